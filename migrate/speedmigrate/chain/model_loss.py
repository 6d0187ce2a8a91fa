"""What a run takes its loss from: the model's own, a function of torch, a class of the root."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.framework import copied_around, trainers
from speedmigrate.chain.model_wraps import trained
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.models import models
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Inst, Item, Param, Result, Value
from speedmigrate.rule import Hop

# What hands a loss on: a scaler, a reduction, a move.
_PASSING = frozenset("scale mean sum to cuda float clone squeeze view reshape flatten".split())
_MAX_STEPS = 12
_LOSSES = frozenset("cross_entropy CrossEntropyLoss nll_loss NLLLoss".split())


def loss(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `loss.kind`: what the backward call starts from, or what a Trainer's compute_loss computes."""
    found: dict[tuple[str, str], Fact] = {}
    broken: list[tuple[ast.AST | None, Hop]] = []
    told: set[ast.AST | None] = set()
    hf = [trainer for trainer in trainers(entry) if trainer.is_hf]
    for start, expr in _losses(entry):
        for part in dict.fromkeys(_terms(entry, expr)):
            for value in entry.values.of(part):
                kind = _loss_kind(entry, value)
                if kind is None:
                    hop = part.hop(f"what `{part.text[:40]}` is computed from is not followed")
                    broken.append((start if isinstance(value, Param) else None, hop))
                else:
                    told.add(start)
                    found.setdefault(kind, Fact("loss.kind", *kind, (part.hop("the loss"),)))
    # A function is entered by several calls, and by ones whose arguments are not known: one that tells is enough.
    places = dict.fromkeys(hop for start, hop in broken if start not in told)
    if not found and not places and hf and not _own_loss(entry):
        hop = hf[0].site.expr.hop("the Trainer takes the model's own loss")
        found["model", ""] = Fact("loss.kind", "model", "", (hop,))
    yield from found.values()
    if places or not found:
        yield unknown("loss.kind", *(places or (Hop(entry.path, 1, "no loss that is followed"),)))


def _own_loss(entry: EntryFacts) -> list[tuple[Cls, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (base, node)
        for trainer in trainers(entry)
        if trainer.cls is not None and not trainer.copied
        for base in entry.values.mro(trainer.cls)
        if isinstance(base, Cls)
        for node in base.node.body
        if isinstance(node, FunctionNode) and node.name == "compute_loss"
    ]


def _losses(entry: EntryFacts) -> Iterator[tuple[ast.AST, Expr]]:
    """Yield the expressions that losses are taken from, with the method or the backward call that they belong to."""
    own = {id(node) for _, node in _own_loss(entry)}
    seen: set[ast.AST] = set()
    for module, scope, frame in entry.scopes:
        if id(scope) in own and scope not in seen:
            seen.add(scope)
            for node in ast.walk(scope):
                if isinstance(node, ast.Return) and node.value is not None:
                    value = node.value
                    parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                    yield from (
                        (scope, Expr(module, p.elts[0] if isinstance(p, ast.Tuple) else p, frame)) for p in parts
                    )
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "backward" and not copied_around(entry, site):
            # An engine's or an accelerator's backward gets the loss, a tensor's is the loss.
            yield site.node, site.expr.at(site.node.args[0] if site.node.args else func.value)


def _terms(entry: EntryFacts, expr: Expr, steps: int = 0) -> Iterator[Expr]:
    """Yield the tensors of a loss: through names, the sides of sums and quotients, what `scaler.scale(...)` takes."""
    node = expr.node
    if steps > _MAX_STEPS:
        yield expr
    elif isinstance(node, ast.BinOp):
        yield from _terms(entry, expr.at(node.left), steps + 1)
        if isinstance(node.op, ast.Add):
            yield from _terms(entry, expr.at(node.right), steps + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PASSING:
        # `torch.sum(loss)` and `scaler.scale(loss)` take it, `loss.view(-1)` is asked of it.
        owner = expr.at(node.func.value)
        takes = node.func.attr == "scale" or any(isinstance(v, Ext) for v in entry.values.of(owner))
        yield from _terms(entry, expr.at(node.args[0]) if takes and node.args else owner, steps + 1)
    elif isinstance(node, ast.Name):
        named = list(_bound(entry, expr))
        for inner in named:
            yield from _terms(entry, inner, steps + 1)
        if not named:
            yield expr
    else:
        yield expr


def _bound(entry: EntryFacts, expr: Expr) -> Iterator[Expr]:
    """Yield what a name is computed from, where that is an expression that `_terms` opens."""
    assert isinstance(expr.node, ast.Name)
    module, name = expr.module, expr.node.id
    for binding in reaching(module, module.scope(expr.node), name, expr.node):
        if binding.kind == "parameter" and expr.frame is not None:
            argument = entry.values.argument(expr.frame, name)
            if argument is not None:
                yield argument
        elif binding.kind == "value" and binding.value is not None and not binding.unpack:
            yield expr.at(binding.value)


def _loss_kind(entry: EntryFacts, value: Value) -> tuple[str, str] | None:
    """Return the kind and detail of a loss value: of the model's output, of a loss of torch, of a class of the root."""
    if isinstance(value, Attr) and value.name == "loss":
        return "model", ""
    if isinstance(value, Item) and value.key in {0, "loss"} and isinstance(value.of, Result | Inst):
        return "model", ""
    if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last in _LOSSES:
        return "cross_entropy", _ignore(entry, value.call)
    maker = value.of if isinstance(value, Result) else None
    if isinstance(maker, Inst) and isinstance(maker.of, Ext) and maker.of.last in _LOSSES:
        return "cross_entropy", _ignore(entry, maker.call)
    if isinstance(maker, Inst) and isinstance(maker.of, Cls) and isinstance(value, Result):
        node = maker.of.node
        is_trained = any(
            isinstance(m.value, Inst) and m.value.of == maker.of
            for e in trained(entry)
            for m in models(entry.values, e)
        )
        return ("model", "") if is_trained else ("own", node.name)
    return None


def _ignore(entry: EntryFacts, call: Expr) -> str:
    node = call.node
    said = []
    for name in ("ignore_index", "reduction"):
        given = call_argument(node, None, name) if isinstance(node, ast.Call) else None
        if given is not None:
            said.append(f"{name}={call.module.text(given)[:40]}")
    return ", ".join(said)
