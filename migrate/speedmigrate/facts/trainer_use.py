"""Whether everything that gets the batches of an HF Trainer stays right when the padded width changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.evaluation import evaluation_problems
from speedmigrate.facts.loaders import Loader, loaders, set_later
from speedmigrate.facts.models import models
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.patched import patched
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.trainer_models import read_models
from speedmigrate.facts.trainer_overrides import read_overrides
from speedmigrate.facts.value import Attr, Const
from speedmigrate.rule import Hop

_OFF = frozenset({"False", "false", "0", "0.0", "None"})


def trainer_use(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use:
    """Return what a Trainer does with its batches (of a `DataLoader` that its subclass makes: with those)."""
    trainer = loader.trainer or loader
    use = Use(loops=1, backward=True, added_keys=True)
    use.hops.append(trainer.hop)
    for expr in trainer.arguments("model"):
        use.models += [model for model in models(entry.values, expr) if model not in use.models]
    if not use.models:
        use.problems.append(trainer.site.expr.hop("the Trainer's model is not an argument that can be followed"))
    if trainer.spread:
        use.problems.append(trainer.site.expr.hop("what the Trainer gets through * or ** is not followed"))
    if loader is trainer:
        use.problems += _other_batches(entry, trainer)
    read_models(entry, trainer, pads, use)
    read_overrides(entry, trainer, pads, use)
    use.problems += _run_problems(entry, trainer)
    evaluation_problems(entry, trainer, pads, use)
    use.problems[:] = dict.fromkeys(use.problems)
    use.corrects[:] = dict.fromkeys(use.corrects)
    return use


def grouped(entry: EntryFacts) -> Iterator[Hop]:
    """Yield where `group_by_length` is on: it orders the rows by the length that they have in the data set."""
    return _settings(entry, "group_by_length")


def _other_batches(entry: EntryFacts, trainer: Loader) -> Iterator[Hop]:
    """Yield the loaders that a Trainer's subclass makes itself, with a collate that is not the Trainer's."""
    for made in loaders(entry):
        if made.trainer is not None and made.trainer.site.node is trainer.site.node:
            values = () if made.collate is None else entry.values.of(made.collate)
            if not values or not all(isinstance(v, Attr) and v.name == "data_collator" for v in values):
                yield made.site.expr.hop("the Trainer's batches are made here, by another collate")


def _run_problems(entry: EntryFacts, trainer: Loader) -> Iterator[Hop]:
    """Yield what else of the run reads the padded width."""
    yield from patched(entry)
    yield from _callbacks(entry)
    yield from _settings(entry, "neftune_noise_alpha")
    for expr in trainer.arguments("compute_loss_func"):
        if not all(isinstance(value, Const) and value.value is None for value in entry.values.of(expr)):
            yield expr.hop("compute_loss_func may read the padded width")
    for expr in set_later(entry, trainer.site, "data_collator"):
        yield expr.hop("the collator is set again here")


def _settings(entry: EntryFacts, word: str) -> Iterator[Hop]:
    """Yield where a setting that depends on the padded length is on."""
    what = f"{word} depends on the padded length"
    for site in entry.sites:
        given = call_argument(site.node, None, word)
        if given is not None and not (isinstance(given, ast.Constant) and not given.value):
            yield site.expr.hop(what)
    for launch in entry.launches:
        flag = launch.flag(word)
        if flag is not None and flag.value not in _OFF:
            yield Hop(launch.path, flag.line, f"--{what}")


def _callbacks(entry: EntryFacts) -> Iterator[Hop]:
    """Yield methods of the run's files that read the training loader, as a TrainerCallback can."""
    for module in dict.fromkeys(module for module, _, _ in entry.scopes):
        for node in module.nodes:
            if isinstance(node, FunctionNode) and "train_dataloader" in {a.arg for a in all_arguments(node.args)}:
                yield module.hop(node, "a callback reads the batches")
