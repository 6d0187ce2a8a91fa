"""What makes a batch of rows: torch's or transformers' default, a collator of a library, or code of the root."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.data_maps import functions
from speedmigrate.chain.data_origins import trainer_attribute
from speedmigrate.chain.data_pipes import Pipe, pipes
from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import (
    PARTIAL,
    Cls,
    Const,
    Display,
    Expr,
    Ext,
    Frame,
    Func,
    Inst,
    Result,
    Unknown,
    Value,
)
from speedmigrate.rule import Hop

_TORCH = frozenset({"default_collate", "default_convert"})


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `collate.kind`, one for each collate that the training can take."""
    found = pipes(entry)
    if not found:
        yield unknown("collate.kind", Hop(entry.path, 1, "no loader or Trainer of the training is followed"))
    given = [fact for pipe in found for fact in collates(entry, pipe)]
    known = dict.fromkeys(fact for fact in given if fact.value is not None)
    yield from known or dict.fromkeys(given)


def collates(entry: EntryFacts, pipe: Pipe) -> Iterator[Fact]:
    """Yield what one pipe collates with."""
    if pipe.kind == "generator":
        for func in _called(entry, pipe):
            yield _own(func.module.hop(func.node, "makes each batch of its rows"), _described(func))
            return
        yield Fact("collate.kind", "none", "batches are made without a collate", (pipe.hop,))
        return
    values = opened(entry, trainer_attribute(entry, pipe.collate or ()))
    real = [v for v in values if not (isinstance(v, Const) and v.value is None)]
    seen: set[tuple[str | None, str]] = set()
    for value in real:
        fact = _collate(entry, value, pipe)
        if (fact.value, fact.detail) not in seen:
            seen.add((fact.value, fact.detail))
            yield fact
    if len(real) < len(values) or not values:
        yield _default(pipe)


def opened(entry: EntryFacts, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Open a dict of collates for training and evaluation to the one for training."""
    found: list[Value] = []
    for value in values:
        node = value.expr.node if isinstance(value, Display) else None
        if isinstance(node, ast.Dict) and node.values:
            assert isinstance(value, Display)
            found += entry.values.of(value.expr.at(node.values[0]))
        else:
            found.append(value)
    return tuple(dict.fromkeys(found))


def _called(entry: EntryFacts, pipe: Pipe) -> Iterator[Func]:
    """Yield the functions that a generator makes each batch with: `yield function(rows)`."""
    made = pipe.value.of if isinstance(pipe.value, Result) else None
    for node in own_nodes(made.node) if isinstance(made, Func) else ():
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Call):
            assert isinstance(made, Func)
            frame = Frame(made, pipe.call, made.receiver)
            for callee in entry.values.of(Expr(made.module, node.value.func, frame)):
                if isinstance(callee, Func):
                    yield callee


def _default(pipe: Pipe) -> Fact:
    if pipe.kind in {"trl", "library"}:
        return Fact("collate.kind", "framework", "the Trainer's own", (pipe.hop,))
    if pipe.kind == "Trainer":
        detail = "DataCollatorWithPadding" if pipe.tokenizer else "default_data_collator"
        return Fact("collate.kind", "hf_default", f"none passed: {detail}", (pipe.hop,))
    return Fact("collate.kind", "default", "none passed", (pipe.hop,))


def _collate(entry: EntryFacts, value: Value, pipe: Pipe) -> Fact:
    if isinstance(value, Ext):
        return _outside(value, pipe.call)
    if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of != PARTIAL:
        return _outside(value.of, value.call, made=True)
    if isinstance(value, Inst) and isinstance(value.of, Cls):
        of = value.of
        return _own(of.module.hop(of.node, f"the collate is an object of {of.node.name}"), f"class {of.node.name}")
    if isinstance(value, Func):
        return _own(value.module.hop(value.node, "the collate"), _described(value))
    if isinstance(value, Inst) and value.of == PARTIAL:
        for func in functions(entry, (value,)):
            return _own(func.module.hop(func.node, "the collate, bound by partial"), f"partial of {_described(func)}")
        call = value.call.node
        inner = entry.values.of(value.call.at(call.args[0])) if isinstance(call, ast.Call) and call.args else ()
        for each in inner:
            if isinstance(each, Ext):
                return _outside(each, value.call)
    if isinstance(value, Unknown):
        return unknown("collate.kind", Hop(value.hop.path, value.hop.line, value.reason))
    return unknown("collate.kind", pipe.call.hop("the collate is not followed"))


def _own(hop: Hop, detail: str) -> Fact:
    return Fact("collate.kind", "own", f"{detail} in {hop.path}", (hop,))


def _described(func: Func) -> str:
    if isinstance(func.node, ast.Lambda):
        return "a lambda"
    parent = func.module.parents.get(func.node)
    owner = f"{parent.name}." if isinstance(parent, ast.ClassDef) else ""
    return f"function {owner}{func.node.name}"


def _outside(of: Ext, expr: Expr, *, made: bool = False) -> Fact:
    """Say which collate of a library it is; `made` where `expr` is the call that makes it."""
    hop = expr.hop(f"the collate is {of.name}")
    if of.last in _TORCH and of.package == "torch":
        return Fact("collate.kind", "default", of.last, (hop,))
    if of.package in {"transformers", "trl"}:
        call = expr.node if made and isinstance(expr.node, ast.Call) else None
        arguments = [f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords if k.arg] if call is not None else []
        detail = f"{of.last}({', '.join(arguments)[:80]})" if made else of.last
        return Fact("collate.kind", f"hf:{of.last}", detail, (hop,))
    return Fact("collate.kind", "framework", of.name, (hop,))
