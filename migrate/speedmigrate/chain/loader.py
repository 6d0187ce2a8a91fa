"""What makes the batches of a run, where it is built and in which order it takes the rows."""

from __future__ import annotations

from collections.abc import Iterator

from speedmigrate.chain.data_pipes import Pipe, pipes
from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.value import Cls, Const, Ext, Inst, Result
from speedmigrate.rule import Hop


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `loader.kind`, `loader.place` and `loader.sampler`."""
    found = pipes(entry)
    if not found:
        broken = Hop(entry.path, 1, "no loader, Trainer or batch generator of the training is followed")
        yield from (unknown(f"loader.{question}", broken) for question in ("kind", "place"))
        return
    seen: set[str] = set()
    for pipe in found:
        kind = "Trainer" if pipe.kind in {"trl", "library"} else pipe.kind
        if kind not in seen:
            seen.add(kind)
            yield Fact("loader.kind", kind, _name(pipe), (pipe.hop,))
    first = found[0]
    path = _own_path(first) or first.path
    word = "none" if _is_function(first) else "entry" if path == entry.path else "other"
    yield Fact("loader.place", word, path, (first.hop,))
    if first.kind not in {"generator", "Trainer", "trl", "library"}:
        yield _sampler(entry, first)


def _name(pipe: Pipe) -> str:
    of = pipe.value.of if isinstance(pipe.value, Inst) else None
    return (
        of.node.name if isinstance(of, Cls) else pipe.call.module.text(getattr(pipe.call.node, "func", pipe.call.node))
    )


def _own_path(pipe: Pipe) -> str:
    """Return the file of a loader class of the root that is no `DataLoader`."""
    of = pipe.value.of if pipe.kind == "generator" and isinstance(pipe.value, Inst) else None
    return of.module.path if isinstance(of, Cls) else ""


def _is_function(pipe: Pipe) -> bool:
    """Say whether a function yields the batches: then there is no loader."""
    return pipe.kind == "generator" and isinstance(pipe.value, Result)


def _sampler(entry: EntryFacts, pipe: Pipe) -> Fact:
    """Say in which order rows are taken: the sampler's class, or what `shuffle` says."""
    given = [v for v in pipe.sampler or () if not (isinstance(v, Const) and v.value is None)]
    words: dict[str, tuple[str, Hop]] = {}
    for value in given:
        if isinstance(value, Inst) and isinstance(value.of, Cls):
            words.setdefault("own", (value.of.node.name, value.of.module.hop(value.of.node, "the sampler's class")))
        elif isinstance(value, Inst) and isinstance(value.of, Ext):
            word = (
                "distributed"
                if "Distributed" in value.of.last
                else "default"
                if value.of.last == "SequentialSampler"
                else "random"
            )
            words.setdefault(word, (value.of.last, value.call.hop(f"a {value.of.last}")))
    if given and not words:
        return unknown("loader.sampler", pipe.call.hop("the sampler is not followed"))
    if words:
        word = next((w for w in ("own", "distributed", "random") if w in words), "default")
        return Fact(
            "loader.sampler",
            word,
            " or ".join(name for name, _ in words.values()),
            tuple(hop for _, hop in words.values()),
        )
    shuffles = any(isinstance(v, Const) and v.value is True for v in pipe.shuffle or ())
    return Fact("loader.sampler", "random" if shuffles else "default", "shuffle=True" if shuffles else "", (pipe.hop,))
