"""Where the rows of a data set are made: classes, map functions, lists and generators, wrappers and splits opened."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from speedmigrate.chain.data_given import given
from speedmigrate.chain.data_maps import MAPS, functions, maps_of
from speedmigrate.chain.data_pipes import yielded_part
from speedmigrate.chain.framework import trainers
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import (
    Attr,
    Cls,
    Const,
    Display,
    Expr,
    Ext,
    Frame,
    Func,
    Inst,
    Item,
    Result,
    Unknown,
    Value,
)
from speedmigrate.rule import Hop

Kind = Literal["dataset_class", "iterable_class", "mapped", "tensor_dataset", "list", "generator", "library"]
# Data sets of libraries made of those that they are given.
_PASSING = frozenset(
    "Subset ConcatDataset ChainDataset concatenate_datasets interleave_datasets split_dataset_by_node DatasetDict "
    "random_split IterableWrapper list tuple copy deepcopy ShufflerIterDataPipe InterleavedDataset".split()
)
_FILES = frozenset({"torch.load", "pickle.load", "joblib.load", "numpy.load", "dill.load", "json.load", "json.loads"})
_MADE = frozenset({"from_generator"})
_ROWS = ("__getitem__", "__getitems__")
_MAX_DEPTH = 14


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """One place that makes rows.

    Attributes:
        path: the file whose code makes the rows, empty where a library does.
        value: the object or function that makes them.
        funcs: the map functions, the last in the chain first.
    """

    kind: Kind
    detail: str
    hop: Hop
    path: str
    value: Value
    funcs: tuple[Func, ...] = ()


@dataclass(slots=True)
class Origins:
    found: dict[tuple[str, int], Origin] = field(default_factory=dict)
    unknown: list[Hop] = field(default_factory=list)

    def add(self, origin: Origin, node: ast.AST) -> None:
        self.found.setdefault((origin.kind, id(node)), origin)


@dataclass(frozen=True, slots=True)
class _Step:
    value: Value
    funcs: tuple[Func, ...] = ()
    depth: int = 0

    def to(self, value: Value, *funcs: Func) -> _Step:
        return _Step(value, (*self.funcs, *funcs), self.depth + 1)


def origins(entry: EntryFacts, values: tuple[Value, ...]) -> Origins:
    """Follow what a loader is given to what makes its rows."""
    result = Origins()
    stack = [_Step(value) for value in values]
    seen: set[Value] = set()
    while stack:
        step = stack.pop(0)
        if step.value in seen or step.depth > _MAX_DEPTH:
            continue
        seen.add(step.value)
        stack += _follow(entry, step, result)
    return result


def _follow(entry: EntryFacts, step: _Step, result: Origins) -> list[_Step]:
    """Note what a step says, return what is behind it."""
    value = step.value
    if isinstance(value, Const) and value.value is None:
        return []
    if isinstance(value, Inst):
        return _object(entry, step, value, value.of, result)
    if isinstance(value, Result):
        return _result(entry, step, value, result)
    if isinstance(value, Item):
        return [step.to(v) for v in yielded_part(entry, value)] or [step.to(value.of)]
    if isinstance(value, Attr):
        return [step.to(v) for v in _of_trainer(entry, value)] or _broken(
            result, value.expr.hop(f"`{value.expr.text[:40]}` is not followed")
        )
    if isinstance(value, Display):
        return _display(entry, step, value, result)
    if isinstance(value, Unknown):
        return _broken(result, Hop(value.hop.path, value.hop.line, value.reason))
    return []


def _broken(result: Origins, hop: Hop) -> list[_Step]:
    result.unknown.append(hop)
    return []


def _object(entry: EntryFacts, step: _Step, value: Inst, of: Cls | Ext, result: Origins) -> list[_Step]:
    if isinstance(of, Cls):
        return _class(entry, step, value, of, result)
    node = value.call.node
    if of.last in _PASSING and isinstance(node, ast.Call):
        return [step.to(inner) for inner in _given(entry, value.call, node)]
    if of.name in _FILES:
        return _broken(result, value.call.hop(f"rows come from a file that {of.name} reads"))
    if of.last == "TensorDataset":
        path = "".join(tensor_path(entry, value))
        result.add(Origin("tensor_dataset", of.name, value.call.hop("a TensorDataset"), path, value), node)
        return []
    if of.package in {"datasets", "modelscope"}:
        funcs = step.funcs or maps_of(entry, node)
        if of.last in _MADE and isinstance(node, ast.Call) and node.args:
            funcs += tuple(functions(entry, entry.values.of(value.call.at(node.args[0]))))
        hop = value.call.hop(f"rows come from {of.name}")
        result.add(Origin("mapped" if funcs else "library", of.name, hop, value.call.module.path, value, funcs), node)
        return []
    if of.package in sys.stdlib_module_names or of.package == "builtins" or _is_of_root(entry, of):
        return _broken(result, value.call.hop(f"`{value.call.text[:40]}` is not followed to a data set"))
    kind: Kind = "mapped" if step.funcs else "library"
    result.add(Origin(kind, of.name, value.call.hop(f"rows come from {of.name}"), "", value, step.funcs), node)
    return []


def _is_of_root(entry: EntryFacts, of: Ext) -> bool:
    """Say whether a name belongs to a package of the root whose file is not there."""
    return any(path.startswith((f"{of.package}/", f"src/{of.package}/")) for path in entry.project.files)


def _given(entry: EntryFacts, expr: Expr, node: ast.Call) -> Iterator[Value]:
    """Yield the data sets that a call of a passing class gets, lists and dicts of them opened."""
    for argument in (
        *node.args[:1],
        *(k.value for k in node.keywords if k.arg in {None, "datasets", "dataset", "dsets"}),
    ):
        inner = argument.value if isinstance(argument, ast.Starred) else argument
        for value in entry.values.of(expr.at(inner)):
            yield from members(entry, value, expr)


def members(entry: EntryFacts, value: Value, expr: Expr) -> Iterator[Value]:
    """Yield the data sets in a list or dict display, and the value itself where it is none."""
    node = value.expr.node if isinstance(value, Display) else None
    if isinstance(node, ast.Dict):
        assert isinstance(value, Display)
        for part in node.values:
            yield from entry.values.of(value.expr.at(part))
    elif isinstance(node, ast.ListComp | ast.DictComp):
        assert isinstance(value, Display)
        yield from entry.values.of(value.expr.at(node.elt if isinstance(node, ast.ListComp) else node.value))
    elif isinstance(node, ast.List | ast.Tuple):
        yield from entry.values.elements(value, expr)
    else:
        yield value


def _class(entry: EntryFacts, step: _Step, value: Inst, cls: Cls, result: Origins) -> list[_Step]:
    bases = entry.values.mro(cls)
    outside = {base.last for base in bases if isinstance(base, Ext)}
    node = value.call.node
    rows = next((m for name in _ROWS for m in [entry.values.method(cls, name)] if m is not None), None)
    steps = entry.values.method(cls, "__iter__")
    if rows is None and outside & _PASSING and isinstance(node, ast.Call):
        return [step.to(inner) for inner in _given(entry, value.call, node)]
    if "IterableDataset" in outside or (rows is None and steps is not None):
        rows = steps or rows
    if rows is None:
        return _broken(result, value.call.hop(f"`{cls.node.name}` does not say how its rows are made"))
    kind: Kind = "iterable_class" if rows is steps else "dataset_class"
    wrapped = _wrapped(entry, value, rows)
    if wrapped:
        return [step.to(inner) for inner in wrapped]
    hop = rows.module.hop(rows.node, f"rows come from {cls.node.name}.{getattr(rows.node, 'name', '')}")
    result.add(Origin(kind, cls.node.name, hop, rows.module.path, value), cls.node)
    return []


def _wrapped(entry: EntryFacts, value: Inst, rows: Func) -> tuple[Value, ...]:
    """Return the data sets of the root whose rows a class hands on as they are."""
    node = rows.node
    body = (
        [s for s in getattr(node, "body", []) if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        if not isinstance(node, ast.Lambda)
        else []
    )
    if len(body) != 1 or not isinstance(body[0], ast.Return) or not isinstance(body[0].value, ast.Subscript):
        return ()
    frame = Frame(Func(rows.module, rows.node, value, rows.outer), None, value)
    held = entry.values.of(Expr(rows.module, body[0].value.value, frame))
    return tuple(
        v
        for v in held
        if isinstance(v, Inst)
        and isinstance(v.of, Cls)
        and v.of != value.of
        and entry.values.method(v.of, "__getitem__") is not None
    )


def _result(entry: EntryFacts, step: _Step, value: Result, result: Origins) -> list[_Step]:
    if isinstance(value.of, Attr):
        call = value.call.node
        funcs: tuple[Func, ...] = ()
        if value.of.name in MAPS and isinstance(call, ast.Call):
            argument = call_argument(call, 0, MAPS[value.of.name])
            funcs = tuple(functions(entry, entry.values.of(value.call.at(argument)))) if argument is not None else ()
        return [step.to(value.of.of, *funcs)]
    if isinstance(value.of, Func):
        func = value.of
        name = getattr(func.node, "name", "lambda")
        result.add(
            Origin("generator", name, func.module.hop(func.node, f"rows come from {name}"), func.module.path, value),
            func.node,
        )
        return []
    return _broken(result, value.call.hop(f"`{value.call.text[:40]}` is not followed to a data set"))


def _display(entry: EntryFacts, step: _Step, value: Display, result: Origins) -> list[_Step]:
    node = value.expr.node
    if isinstance(node, ast.Tuple):
        return [step.to(v) for v in entry.values.of(value.expr.at(node.elts[0]))] if node.elts else []
    if isinstance(node, ast.Dict) and node.values:
        return [step.to(v) for v in members(entry, value, value.expr)]
    inner = (
        [v for v in entry.values.elements(value, value.expr) if _is_data(entry, v)]
        if isinstance(node, ast.List)
        else []
    )
    if inner:
        return [step.to(v) for v in inner]
    result.add(
        Origin("list", "list", value.expr.hop("rows are put into a list here"), value.expr.module.path, value), node
    )
    return []


def _is_data(entry: EntryFacts, value: Value) -> bool:
    """Say whether an element of a list is a data set itself, not a row."""
    while isinstance(value, Result) and isinstance(value.of, Attr):
        value = value.of.of
    while isinstance(value, Item):
        value = value.of
    if isinstance(value, Inst) and isinstance(value.of, Ext):
        return value.of.package == "datasets" or value.of.last in {"Subset", "ConcatDataset", "TensorDataset"}
    return (
        isinstance(value, Inst) and isinstance(value.of, Cls) and entry.values.method(value.of, "__len__") is not None
    )


def _of_trainer(entry: EntryFacts, value: Attr) -> tuple[Value, ...]:
    """Return what a Trainer was given for its `train_dataset`."""
    owner = value.of
    if isinstance(owner, Inst) and value.name in {"train_dataset", "data_collator"}:
        for trainer in trainers(entry):
            if trainer.site.node is owner.call.node:
                return given(entry, trainer.site.expr, 3 if value.name == "train_dataset" else 2, value.name) or ()
        # `self` of a method that is not entered from a call: any Trainer of that class.
        for trainer in trainers(entry):
            if trainer.cls is not None and isinstance(owner.of, Cls) and trainer.cls.node is owner.of.node:
                return given(entry, trainer.site.expr, 3 if value.name == "train_dataset" else 2, value.name) or ()
    return ()


def trainer_attribute(entry: EntryFacts, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Open `self.train_dataset` and `self.data_collator` of a Trainer's subclass to what it was given."""
    found: list[Value] = []
    for value in values:
        found += (_of_trainer(entry, value) or (value,)) if isinstance(value, Attr) else (value,)
    return tuple(found)


def tensor_path(entry: EntryFacts, value: Inst) -> tuple[str, ...]:
    """Return the file that makes the features of a `TensorDataset` (none where a library or a file does)."""
    stack: list[tuple[Value, int]] = [(value, 0)]
    seen: set[Value] = set()
    found: list[str] = []
    while stack:
        current, depth = stack.pop(0)
        if current in seen or depth > 12:
            continue
        seen.add(current)
        node = current.call.node if isinstance(current, Inst | Result) else None
        if isinstance(current, Inst) and isinstance(current.of, Ext) and isinstance(node, ast.Call):
            if current.of.package in {"torch", "numpy", "builtins"} and current.of.name not in _FILES:
                for argument in node.args:
                    inner = argument.value if isinstance(argument, ast.Starred) else argument
                    stack += [(v, depth + 1) for v in entry.values.of(current.call.at(inner))]
        elif isinstance(current, Result) and isinstance(current.of, Attr):
            stack.append((current.of.of, depth + 1))
        elif isinstance(current, Item | Attr):
            stack.append((current.of, depth + 1))
        elif isinstance(current, Display):
            inner_node = current.expr.node
            if isinstance(inner_node, ast.ListComp | ast.GeneratorExp):
                stack += [(v, depth + 1) for v in entry.values.of(current.expr.at(inner_node.generators[0].iter))]
            elif isinstance(inner_node, ast.List):
                found.append(current.expr.module.path)
                for v in entry.values.elements(current, current.expr):
                    stack.append((v, depth + 1))
            elif isinstance(inner_node, ast.Tuple):
                stack += [(v, depth + 1) for e in inner_node.elts for v in entry.values.of(current.expr.at(e))]
    return tuple(found[-1:])
