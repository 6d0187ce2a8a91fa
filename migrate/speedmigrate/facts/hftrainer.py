"""The settings of every HF Trainer of a run, per launch file: the value that wins and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.arguments import Arguments, deepspeed_configs, training_arguments
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader, loaders
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.value import Cls
from speedmigrate.launch.find import Launch
from speedmigrate.launch.jsonfile import JsonDoc


@dataclass(frozen=True, slots=True, eq=False)
class TrainerSettings:
    """One Trainer and the arguments it gets."""

    loader: Loader
    arguments: Arguments


def trainer_settings(entry: EntryFacts) -> Iterator[TrainerSettings]:
    """Yield every Trainer of a run with each arguments object it can get (a copy of the class follows its own ways)."""
    for loader in loaders(entry):
        if loader.kind == "Trainer" and not loader.copied:
            for arguments in training_arguments(entry, loader):
                yield TrainerSettings(loader, arguments)


def overrides(entry: EntryFacts, loader: Loader, *names: str) -> bool:
    """Say whether the Trainer is a subclass of the root that defines one of these methods."""
    return any(
        isinstance(node, FunctionNode) and node.name in names
        for callee in loader.site.callees
        if isinstance(callee, Cls)
        for base in entry.values.mro(callee)
        if isinstance(base, Cls)
        for node in base.node.body
    )


def section(entry: EntryFacts, launch: Launch, name: str) -> JsonDoc | None:
    """Return the DeepSpeed config of a launch that has a section of this name."""
    for doc in deepspeed_configs(entry, launch):
        if doc.get(name) is not None:
            return doc
    return None


def is_deepspeed(launch: Launch) -> bool:
    return any(launch.flag(name) is not None for name in ("deepspeed", "deepspeed_config", "ds_config"))
