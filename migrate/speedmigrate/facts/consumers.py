"""Who gets the batches of a loader, and whether all of them stay right when the padded width changes."""

from __future__ import annotations

from collections.abc import Mapping

from speedmigrate.facts.batches import loop_use
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.trainer_use import trainer_use


def consumers(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use:
    """Return what is done with the batches of a loader whose fields are padded as `pads` says."""
    is_trainers = loader.kind == "Trainer" or loader.trainer is not None
    return (trainer_use if is_trainers else loop_use)(entry, loader, pads)
