"""What a value of the data path is, as built: a dict, a tuple, a tensor, a list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.value import (
    Attr,
    Cls,
    Display,
    Expr,
    Ext,
    Frame,
    Func,
    Inst,
    Item,
    Param,
    Result,
    Value,
)  # fmt: skip
from speedmigrate.rule import Hop

_DICTS = frozenset("dict BatchEncoding BatchFeature UserDict OrderedDict defaultdict default_data_collator "
                   "torch_default_data_collator dotdict EasyDict".split())  # fmt: skip
_TENSORS = frozenset(
    "stack cat tensor LongTensor FloatTensor IntTensor as_tensor from_numpy pad_sequence zeros ones full array asarray "
    "concatenate".split()
)
_KEEPING = frozenset("to cuda long int float astype clone copy contiguous".split())
_MAX_DEPTH = 6
# Each batch is of the same kind as its rows.
ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a batch or row is, its keys or number of slots, and where that is seen."""

    kind: str
    detail: str
    hop: Hop


def returned(entry: EntryFacts, func: Func) -> tuple[Shape, ...]:
    """Return the shapes of what a function returns or yields."""
    return tuple(dict.fromkeys(_returned(entry, func, 0)))


def identity(func: Func) -> tuple[Shape, ...]:
    """Return that a collate gives back the list of rows that it gets, where that is all it does."""
    names = [argument.arg for argument in func.node.args.args][-1:]
    body = func.node.body if isinstance(func.node, ast.Lambda) else func.node.body[-1]
    value: ast.AST | None = body.value if isinstance(body, ast.Return) else body
    alone = isinstance(func.node, ast.Lambda) or len(func.node.body) == 1
    if alone and isinstance(value, ast.Name) and [value.id] == names:
        return (Shape("list", "", func.module.hop(func.node, "the collate gives the rows back as they are")),)
    return ()


def _returned(entry: EntryFacts, func: Func, depth: int) -> Iterator[Shape]:
    frame = Frame(func, None, func.receiver)
    yields = list(_yielded(func))
    if yields:
        for made in yields:
            yield from _of(entry, Expr(func.module, made, frame), depth)
    elif isinstance(func.node, ast.Lambda):
        yield from _of(entry, Expr(func.module, func.node.body, frame), depth)
    else:
        for node in ast.walk(func.node):
            if isinstance(node, ast.Return) and node.value is not None and func.module.function(node) is func.node:
                yield from _of(entry, Expr(func.module, node.value, frame), depth)


def _yielded(func: Func) -> Iterator[ast.expr]:
    for node in ast.walk(func.node):
        if isinstance(node, ast.Yield) and node.value is not None and func.module.function(node) is func.node:
            yield node.value


def _of(entry: EntryFacts, expr: Expr, depth: int) -> Iterator[Shape]:
    for value in entry.values.of(expr):
        yield from shapes(entry, value, expr, depth + 1)


def shapes(entry: EntryFacts, value: Value, at: Expr, depth: int = 0) -> Iterator[Shape]:
    """Yield what a value is built as; nothing where it is not seen."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Display):
        yield from _display(value)
    elif isinstance(value, Inst) and isinstance(value.of, Ext):
        yield from _made(entry, value, value.of, depth)
    elif isinstance(value, Inst):
        assert isinstance(value.of, Cls)
        bases = {base.last for base in entry.values.mro(value.of) if isinstance(base, Ext)}
        if bases & (_DICTS | {"ModelOutput"}):
            yield Shape("dict", value.of.node.name, value.call.hop(f"a {value.of.node.name} is made"))
        elif "NamedTuple" in bases:
            yield Shape("tuple", value.of.node.name, value.call.hop(f"a {value.of.node.name} is made"))
    elif isinstance(value, Result):
        yield from _result(entry, value, depth)


def _display(value: Display) -> Iterator[Shape]:
    node, hop = value.expr.node, value.expr.hop(value.expr.text.splitlines()[0][:60])
    if isinstance(node, ast.Dict):
        keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
        yield Shape("dict", ", ".join(keys[:8]), hop)
    elif isinstance(node, ast.DictComp):
        yield Shape("dict", "", hop)
    elif isinstance(node, ast.Tuple):
        yield Shape("tuple", str(len(node.elts)), hop)
    elif isinstance(node, ast.List | ast.ListComp | ast.GeneratorExp):
        slots = str(len(node.elts)) if isinstance(node, ast.List) and node.elts else ""
        yield Shape("list", slots, hop)


def _made(entry: EntryFacts, value: Inst, of: Ext, depth: int) -> Iterator[Shape]:
    call = value.call.node
    hop = value.call.hop(value.call.text.splitlines()[0][:60])
    if of.last == "default_collate":
        yield Shape(ROWS, "", hop)
    elif of.last in _DICTS:
        keys = [k.arg for k in call.keywords if k.arg] if isinstance(call, ast.Call) and of.last == "dict" else []
        yield Shape("dict", ", ".join(keys[:8]), hop)
    elif of.last in _TENSORS and of.package in {"torch", "numpy"}:
        yield Shape("tensor", "", hop)
    elif of.name == "builtins.tuple" or of.name in {"builtins.map", "builtins.zip"}:
        yield Shape("tuple", "", hop)
    elif of.name == "builtins.list":
        yield Shape("list", "", hop)
    elif of.last in {"deepcopy", "copy"} and isinstance(call, ast.Call) and call.args:
        yield from _of(entry, value.call.at(call.args[0]), depth)


def _result(entry: EntryFacts, value: Result, depth: int) -> Iterator[Shape]:
    call = value.call.node
    hop = value.call.hop(value.call.text.splitlines()[0][:60])
    if isinstance(value.of, Attr):
        if value.of.name in {"pad", "encode_plus", "batch_encode_plus", "prepare_for_model", "apply_chat_template"}:
            if value.of.name != "apply_chat_template" or "return_dict=True" in value.call.text:
                yield Shape("dict", f"tokenizer.{value.of.name}", hop)
        elif value.of.name in _KEEPING:
            yield from shapes(entry, value.of.of, value.call, depth + 1)
        elif value.of.name in {"__call__", "torch_call"}:
            yield Shape("dict", "the base's collator", hop)
    elif isinstance(value.of, Inst) and isinstance(value.of.of, Ext) and value.of.of.package == "transformers":
        yield Shape("dict", value.of.of.last, hop)
    elif isinstance(value.of, Attr | Item | Param | Inst) and isinstance(call, ast.Call):
        names = {keyword.arg for keyword in call.keywords}
        if names & {"return_tensors", "padding", "truncation", "add_special_tokens"}:
            yield Shape("dict", "a tokenizer's", hop)
