"""The whole chain of one entry point: every hop asked in the order of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from speedmigrate.chain import batch, collate, data, framework, launch, loader, model, optimizer, padding, precision
from speedmigrate.chain.fact import Fact
from speedmigrate.facts.entry import EntryFacts

HOPS: tuple[Callable[[EntryFacts], Iterator[Fact]], ...] = (
    framework.facts,
    data.facts,
    padding.facts,
    collate.facts,
    loader.facts,
    batch.facts,
    model.facts,
    optimizer.facts,
    precision.facts,
    launch.facts,
)


def chain(entry: EntryFacts) -> tuple[Fact, ...]:
    """Return every fact of an entry point; one without training code has none."""
    return entry.once("chain", lambda entry: tuple(fact for hop in HOPS for fact in hop(entry)))
