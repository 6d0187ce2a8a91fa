"""Which steps of a LightningModule take the batches of a loader, by the runs of Lightning Trainers that are seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Cls, Display, Ext, Frame, Func, Inst, Value

PACKAGES = frozenset({"pytorch_lightning", "lightning", "lightning_fabric"})
_STEPS = {
    "train_dataloader": "training_step",
    "val_dataloader": "validation_step",
    "test_dataloader": "test_step",
    "predict_dataloader": "predict_step",
}
# What runs, with the arguments that may be loaders of its step.
_RUNS = {
    "fit": (("train_dataloaders", 1, "training_step"), ("train_dataloader", None, "training_step"),
            ("val_dataloaders", 2, "validation_step")),
    "validate": (("dataloaders", 1, "validation_step"),),
    "test": (("dataloaders", 1, "test_step"),),
    "predict": (("dataloaders", 1, "predict_step"),),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A call of `fit` or its like, the module that it gets, and the objects that it asks for loaders."""

    site: Site
    name: str
    module: Inst
    sources: tuple[Inst, ...]

    @property
    def steps(self) -> frozenset[str]:
        return frozenset(step for _, _, step in _RUNS[self.name])


def runs(entry: EntryFacts) -> tuple[Run, ...]:
    """Return the runs of Trainers of Lightning (worked out once)."""
    return entry.once("lightning_runs", lambda entry: tuple(_runs(entry)))


def _runs(entry: EntryFacts) -> Iterator[Run]:
    for site in entry.methods:
        for callee in site.callees:
            if isinstance(callee, Attr) and is_run(callee):
                given = call_argument(site.node, 0, "model")
                for value in entry.values.of(site.expr.at(given)) if given is not None else ():
                    if isinstance(value, Inst) and is_a(entry, value, "LightningModule"):
                        yield Run(site, callee.name, value, (value, *_data_modules(entry, site)))


def _data_modules(entry: EntryFacts, site: Site) -> Iterator[Inst]:
    for argument in (*site.node.args[1:], *(keyword.value for keyword in site.node.keywords)):
        for value in entry.values.of(site.expr.at(argument)):
            if isinstance(value, Inst) and is_a(entry, value, "LightningDataModule"):
                yield value


def steps(entry: EntryFacts, loader: Loader) -> tuple[tuple[Inst, str], ...]:
    """Return the modules of Lightning that take batches of the loader, each with the name of its step."""
    return tuple(dict.fromkeys(_steps(entry, loader)))


def _steps(entry: EntryFacts, loader: Loader) -> Iterator[tuple[Inst, str]]:
    asked = False
    for run in runs(entry):
        for name in _given_by(entry, run.sources, loader):
            asked = True
            if _STEPS[name] in run.steps:
                yield run.module, _STEPS[name]
        for word, position, step in _RUNS[run.name]:
            given = call_argument(run.site.node, position, word)
            if given is not None and any(
                _holds(entry, value, loader) for value in entry.values.of(run.site.expr.at(given))
            ):
                yield run.module, step
    if not asked:
        for _, name in makers(entry, loader):
            yield from ((run.module, _STEPS[name]) for run in runs(entry) if _STEPS[name] in run.steps)


def is_idle(entry: EntryFacts, loader: Loader) -> bool:
    """Say whether a loader is only there for steps that no run of the script takes."""
    names = {name for run in runs(entry) for name in _given_by(entry, run.sources, loader)}
    names |= {name for _, name in makers(entry, loader)}
    return bool(names and runs(entry)) and not steps(entry, loader) and not any(_may_run(entry, n) for n in names)


def _may_run(entry: EntryFacts, name: str) -> bool:
    """Say whether some call that is not followed may be a run that asks for these loaders."""
    words = {run for run, given in _RUNS.items() if _STEPS[name] in {step for _, _, step in given}}
    for site in entry.sites:
        if isinstance(site.node.func, ast.Attribute) and site.node.func.attr in words:
            if not all(isinstance(callee, Func | Cls) for callee in site.callees):
                return True
    return False


def _given_by(entry: EntryFacts, sources: tuple[Inst, ...], loader: Loader) -> Iterator[str]:
    """Yield the methods of modules and data modules that return the loader."""
    for source in sources:
        for name in _STEPS:
            assert isinstance(source.of, Cls)
            method = entry.values.method(source.of, name)
            if method is not None:
                func = Func(method.module, method.node, source, method.outer)
                if any(_holds(entry, v, loader) for v in entry.values.returned(Frame(func, None, source))):
                    yield name


def makers(entry: EntryFacts, loader: Loader) -> Iterator[tuple[Inst, str]]:
    """Yield the methods that give loaders around the call that makes the loader, with their objects."""
    for site in entry.sites:
        frame = site.expr.frame if site.node is loader.site.node else None
        while frame is not None:
            name = getattr(frame.func.node, "name", "")
            if name in _STEPS and isinstance(frame.receiver, Inst):
                yield frame.receiver, name
            frame = frame.call.frame if frame.call is not None else None


def is_run(callee: Value) -> bool:
    """Say whether a method is `fit` or its like of a Trainer of Lightning."""
    owner = callee.of if isinstance(callee, Attr) and callee.name in _RUNS else None
    of = owner.of if isinstance(owner, Inst) else None
    return isinstance(of, Ext) and of.package in PACKAGES and "Trainer" in of.name.split(".")


def is_a(entry: EntryFacts, value: Value, base: str) -> bool:
    """Say whether an object of the root extends a class of Lightning."""
    found = entry.values.mro(value.of) if isinstance(value, Inst) and isinstance(value.of, Cls) else ()
    return any(isinstance(each, Ext) and each.last == base and each.package in PACKAGES for each in found)


def _holds(entry: EntryFacts, value: Value, loader: Loader) -> bool:
    if isinstance(value, Display):
        return any(_holds(entry, each, loader) for each in entry.values.elements(value, value.expr))
    return isinstance(value, Inst) and value.call.node is loader.site.node
