"""Who turns data sets into batches: every `DataLoader` and HF `Trainer` of a run, with its data set, collate and
order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.rows import read_rows
from speedmigrate.facts.rowvalue import Passed, Rows
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Cls, Const, Display, Expr, Ext, Inst, Unknown, Value
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

Kind = Literal["DataLoader", "Trainer"]
HF_TRAINERS = ("Trainer", "Seq2SeqTrainer")
_TRAINER_ORDER = ("model", "args", "data_collator", "train_dataset", "eval_dataset")
_LOADER_ORDER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")
# Data sets of torch that pass the rows of their first argument on.
_PASSING = frozenset({"Subset", "ConcatDataset", "ChainDataset"})


@dataclass(frozen=True, slots=True, eq=False)
class Loader:
    """One place that makes batches.

    Attributes:
        datasets: the data set expressions it is given (a Trainer: training and evaluation).
        collate: the collate expression, None where the default is used.
    """

    site: Site
    kind: Kind
    datasets: tuple[tuple[str, Expr], ...]
    collate: Expr | None
    spread: bool

    def argument(self, name: str) -> Expr | None:
        return _argument(self.site, self.kind, name)

    @property
    def hop(self) -> Hop:
        return self.site.expr.hop(f"batches are made by {self.kind}")


def loaders(entry: EntryFacts) -> tuple[Loader, ...]:
    """Return the loaders of a run, each call once."""
    return entry.once("loaders", _loaders)


def _loaders(entry: EntryFacts) -> tuple[Loader, ...]:
    found: dict[ast.AST, Loader] = {}
    for site, callee in entry.calls("torch", "DataLoader"):
        if isinstance(callee, Ext):
            found.setdefault(site.node, _loader(site, "DataLoader", ("dataset",), "collate_fn"))
    for site, _ in entry.calls("transformers", *HF_TRAINERS):
        names = ("train_dataset", "eval_dataset")
        found.setdefault(site.node, _loader(site, "Trainer", names, "data_collator"))
    return tuple(found.values())


def _argument(site: Site, kind: Kind, name: str) -> Expr | None:
    order = _LOADER_ORDER if kind == "DataLoader" else _TRAINER_ORDER
    found = call_argument(site.node, order.index(name) if name in order else None, name)
    return None if found is None else site.expr.at(found)


def _loader(site: Site, kind: Kind, data: tuple[str, ...], collate: str) -> Loader:
    datasets = tuple((name, expr) for name in data for expr in [_argument(site, kind, name)] if expr is not None)
    return Loader(site, kind, datasets, _argument(site, kind, collate), has_spread(site.node))


@dataclass(frozen=True, slots=True)
class Sources:
    """The data sets that a data set expression can mean, wrappers opened, and where the trail breaks."""

    leaves: tuple[Rows, ...]
    unknown: tuple[Hop, ...]
    wrappers: tuple[ast.AST, ...]


def sources(values: Values, expr: Expr) -> Sources:
    """Follow a data set expression to the classes whose `__getitem__` makes the rows."""
    leaves: dict[tuple[object, ...], Rows] = {}
    unknown: list[Hop] = []
    wrappers: list[ast.AST] = []
    stack: list[tuple[Value, int]] = [(value, 0) for value in values.of(expr)]
    while stack:
        value, depth = stack.pop(0)
        if isinstance(value, Const) and value.value is None:
            continue
        if isinstance(value, Inst) and isinstance(value.of, Cls) and depth < 6:
            rows = read_rows(values, value)
            passed = [v for v, _ in rows.returned if isinstance(v, Passed)]
            if passed:
                wrappers.append(value.call.node)
            stack += [(inner, depth + 1) for each in passed for inner in each.datasets]
            if len(passed) < len(rows.returned) or not rows.returned:
                leaves.setdefault((value,), rows)
        elif isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last in _PASSING and depth < 6:
            node = value.call.node
            argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
            if argument is not None:
                for inner in values.of(value.call.at(argument)):
                    stack += [(part, depth + 1) for part in _members(values, inner, value.call)]
        else:
            unknown.append(_hop(value, expr))
    return Sources(tuple(leaves.values()), tuple(unknown), tuple(wrappers))


def _members(values: Values, value: Value, expr: Expr) -> Iterator[Value]:
    if isinstance(value, Display):
        yield from values.elements(value, expr)
    else:
        yield value


def _hop(value: Value, expr: Expr) -> Hop:
    if isinstance(value, Unknown):
        return Hop(value.hop.path, value.hop.line, value.reason)
    if isinstance(value, Inst) and isinstance(value.of, Ext):
        return value.call.hop(f"a data set made by {value.of.name}")
    return expr.hop(f"`{expr.text[:40]}` is not followed to a data set class")
