"""Who turns data sets into batches: every `DataLoader` and HF `Trainer` of a run, with its data set, collate and
order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.rows import read_rows
from speedmigrate.facts.rowvalue import Passed, Rows
from speedmigrate.facts.spreads import Given, spread_arguments
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Attr, Cls, Const, Display, Expr, Ext, Inst, Unknown, Value
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

Kind = Literal["DataLoader", "Trainer"]
HF_TRAINERS = ("Trainer", "Seq2SeqTrainer")
# The methods by which `transformers.Trainer` runs: a class of the root that has them all is a copy of it.
TRAINER_METHODS = frozenset({"get_train_dataloader", "create_optimizer", "training_step", "compute_loss"})
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
        spread: whether it gets arguments through `*` or `**` that are not followed.
        given: what it gets through `**`, by name, where that is followed.
        copied: whether it is a copy of `transformers.Trainer` in the root.
        trainer: the Trainer whose batches a `DataLoader` makes (`get_train_dataloader` of a subclass).
    """

    site: Site
    kind: Kind
    datasets: tuple[tuple[str, Expr], ...]
    collate: Expr | None
    spread: bool
    given: Given = ()
    copied: bool = False
    trainer: Loader | None = None

    def argument(self, name: str) -> Expr | None:
        """Return what the call gets under a name; of several that `**` can give, the first."""
        return next(iter(self.arguments(name)), None)

    def arguments(self, name: str) -> tuple[Expr, ...]:
        """Return everything that the call can get under a name."""
        order = _LOADER_ORDER if self.kind == "DataLoader" else _TRAINER_ORDER
        found = call_argument(self.site.node, order.index(name) if name in order else None, name)
        if found is not None:
            return (self.site.expr.at(found),)
        return tuple(expr for key, expr in self.given if key == name)

    @property
    def hop(self) -> Hop:
        return self.site.expr.hop(f"batches are made by {self.kind}")


def loaders(entry: EntryFacts) -> tuple[Loader, ...]:
    """Return the loaders of a run, each call once."""
    return entry.once("loaders", _loaders)


def _loaders(entry: EntryFacts) -> tuple[Loader, ...]:
    trainers: dict[ast.AST, Loader] = {}
    for site, _ in entry.calls("transformers", *HF_TRAINERS):
        if not _in_copy(site):
            trainers.setdefault(site.node, _loader(entry, site, "Trainer"))
    for site in entry.sites:
        if any(isinstance(callee, Cls) and is_copy(entry.values, callee) for callee in site.callees):
            trainers.setdefault(site.node, _loader(entry, site, "Trainer", copied=True))
    found: dict[ast.AST, Loader] = {}
    for site, callee in entry.calls("torch", "DataLoader"):
        if isinstance(callee, Ext) and not _in_copy(site):
            found.setdefault(site.node, _fed(entry, _loader(entry, site, "DataLoader"), trainers))
    made = {(loader.trainer.site.node, pair) for loader in found.values() if loader.trainer for pair in loader.datasets}
    return (*found.values(), *(_without(trainer, made) for trainer in trainers.values()))


def is_copy(values: Values, cls: Cls) -> bool:
    """Say whether a class of the root is a copy of `transformers.Trainer`: it, or a base of it, has its methods."""
    return any(isinstance(base, Cls) and _has_methods(base.node) for base in values.mro(cls))


def _has_methods(cls: ast.ClassDef) -> bool:
    return {node.name for node in cls.body if isinstance(node, FunctionNode)} >= TRAINER_METHODS


def _in_copy(site: Site) -> bool:
    """Say whether a call stands in a copy of `transformers.Trainer`, whose batches the Trainer stands for."""
    function = site.module.function(site.node)
    owner = site.module.parents.get(function) if function is not None else None
    return isinstance(owner, ast.ClassDef) and _has_methods(owner)


def _loader(entry: EntryFacts, site: Site, kind: Kind, *, copied: bool = False) -> Loader:
    spread = spread_arguments(entry.values, site.expr)
    data = ("dataset",) if kind == "DataLoader" else ("train_dataset", "eval_dataset")
    bare = Loader(site, kind, (), None, spread is None, spread or (), copied)
    datasets = [(name, expr) for name in data for expr in bare.arguments(name)]
    if kind == "Trainer":
        datasets += [(name, expr) for name in data for expr in set_later(entry, site, name)]
    collates = bare.arguments("collate_fn" if kind == "DataLoader" else "data_collator")
    collate = collates[0] if collates else None
    return replace(bare, datasets=tuple(datasets), collate=collate, spread=bare.spread or len(collates) > 1)


def set_later(entry: EntryFacts, site: Site, name: str) -> tuple[Expr, ...]:
    """Return what is assigned to an attribute of the object that a call makes (`trainer.train_dataset = ...`)."""
    stores = entry.once("loaders.stores", _stores).get(name, ())
    return tuple(
        value for owner, value in stores
        if any(isinstance(made, Inst) and made.call.node is site.node for made in entry.values.of(owner))
    )  # fmt: skip


def _stores(entry: EntryFacts) -> dict[str, list[tuple[Expr, Expr]]]:
    """Return the assignments to attributes that a Trainer takes its data from, by attribute: whose, and the value."""
    found: dict[str, list[tuple[Expr, Expr]]] = {}
    seen: set[ast.AST] = set()
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if not isinstance(node, ast.Assign) or node in seen:
                continue
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in {
                    "train_dataset",
                    "eval_dataset",
                    "data_collator",
                }:
                    if not (isinstance(target.value, ast.Name) and target.value.id == "self"):
                        seen.add(node)
                        made = (Expr(module, target.value, frame), Expr(module, node.value, frame))
                        found.setdefault(target.attr, []).append(made)
    return found


def _without(trainer: Loader, made: set[tuple[ast.Call, tuple[str, Expr]]]) -> Loader:
    """Return a Trainer without the data sets that loaders of its subclass serve."""
    kept = tuple(pair for pair in trainer.datasets if (trainer.site.node, pair) not in made)
    return trainer if kept == trainer.datasets else replace(trainer, datasets=kept)


def _fed(entry: EntryFacts, loader: Loader, trainers: dict[ast.AST, Loader]) -> Loader:
    """Return a `DataLoader` that a Trainer's subclass makes with the Trainer it feeds and the data that it means."""
    site = loader.site
    frame = site.expr.frame
    receiver = frame.receiver if frame is not None else None
    trainer = trainers.get(receiver.call.node) if isinstance(receiver, Inst) else None
    if trainer is None:
        return loader
    datasets: list[tuple[str, Expr]] = []
    for name, expr in loader.datasets:
        attributes = {value.name for value in entry.values.of(expr) if isinstance(value, Attr) and value.of == receiver}
        same = [pair for pair in trainer.datasets if pair[0] in attributes]
        datasets += same or [(name, expr)]
    return replace(loader, datasets=tuple(datasets), trainer=trainer)


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
