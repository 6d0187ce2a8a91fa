"""What the rows of a run are made by, and in which file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.data_origins import Origin, origins
from speedmigrate.chain.data_pipes import Pipe, pipes
from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.value import Cls, Func, Inst, Result, Value
from speedmigrate.rule import Hop

# What tokenizing code writes: fields, attributes and keywords of the tokenizers of transformers.
_TOKENS = ("input_ids", "attention_mask", "pad_token_id", "return_tensors=", "truncation=")


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """What one pipe's rows come from, and where the trail breaks."""

    pipe: Pipe
    origins: tuple[Origin, ...]
    unknown: tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows are made, and whether that code is seen to make tokens."""

    word: str
    where: str
    hop: Hop
    makes_tokens: bool


def data(entry: EntryFacts) -> tuple[Data, ...]:
    """Return the training data of a run, one for each pipe (worked out once)."""
    return entry.once("chain.data", lambda entry: tuple(_data(entry, pipe) for pipe in pipes(entry)))


def _data(entry: EntryFacts, pipe: Pipe) -> Data:
    if pipe.kind == "generator":
        return Data(pipe, tuple(_generator(entry, pipe)), ())
    if pipe.data is None:
        return Data(pipe, (), (pipe.call.hop("no training data is given here"),))
    found = origins(entry, pipe.data)
    return Data(pipe, tuple(found.found.values()), tuple(dict.fromkeys(found.unknown)))


def _generator(entry: EntryFacts, pipe: Pipe) -> Iterator[Origin]:
    """Yield the generator or loader object of the root that makes the batches."""
    value: Value | None = pipe.value
    if isinstance(value, Result) and isinstance(value.of, Func):
        func = value.of
        name = getattr(func.node, "name", "lambda")
        yield Origin(
            "generator", name, func.module.hop(func.node, f"batches come from {name}"), func.module.path, value
        )
    elif isinstance(value, Inst) and isinstance(value.of, Cls):
        method = next(
            m for name in ("__next__", "__iter__", "next_batch") for m in [entry.values.method(value.of, name)] if m
        )
        hop = method.module.hop(method.node, f"batches come from {value.of.node.name}")
        yield Origin("generator", value.of.node.name, hop, method.module.path, value)


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `data.kind` for each training data set, then `data.place`."""
    found = data(entry)
    seen: set[tuple[str, str, Hop]] = set()
    hops: list[Hop] = []
    for each in found:
        hops += each.unknown
        for origin in each.origins:
            key = (origin.kind, origin.detail, origin.hop)
            if key not in seen:
                seen.add(key)
                evidence = (origin.hop, *(f.module.hop(f.node, "mapped over the rows") for f in origin.funcs))
                yield Fact("data.kind", origin.kind, origin.detail, evidence, each.unknown)
    if not found:
        hops.append(Hop(entry.path, 1, "no loader, Trainer or batch generator of the training is followed"))
    if not seen:
        yield unknown("data.kind", *hops)
    yield _place(entry, found, tuple(dict.fromkeys(hops)))


def _place(entry: EntryFacts, found: tuple[Data, ...], hops: tuple[Hop, ...]) -> Fact:
    """Return the place of most of what makes rows, code that makes tokens before other code."""
    for each in found:
        places = [place for origin in each.origins for place in _places(entry, each.pipe, origin)]
        chosen = [place for place in places if place.makes_tokens] or places
        if chosen:
            words = Counter(place.word for place in chosen)
            place = max(chosen, key=lambda place: words[place.word])
            return Fact("data.place", place.word, place.where, (place.hop,), hops)
    return unknown("data.place", *hops)


def _places(entry: EntryFacts, pipe: Pipe, origin: Origin) -> Iterator[Place]:
    """Yield where the rows of an origin are made; nothing where that is not seen."""
    makers = [func for func in origin.funcs if _tokenizes(func) and not _is_of_library(entry, pipe, func)]
    path = makers[0].module.path if makers else origin.path
    if not makers and origin.kind not in {"dataset_class", "iterable_class", "generator"}:
        if pipe.kind in {"trl", "library"} or (not path and origin.kind != "tensor_dataset" and not origin.funcs):
            yield Place("library", origin.detail, origin.hop, False)
            return
        path = origin.funcs[0].module.path if origin.funcs else path
    if path:
        word = "entry" if path == entry.path else "other"
        tokens = bool(makers) or origin.kind in {"dataset_class", "iterable_class", "generator"}
        used = (makers or origin.funcs)[:1]
        yield Place(
            word, path, used[0].module.hop(used[0].node, "mapped over the rows") if used else origin.hop, tokens
        )


def _is_of_library(entry: EntryFacts, pipe: Pipe, func: Func) -> bool:
    """Say whether a function belongs to a library that stands in the root, as the Trainer that calls it does."""
    trainer = pipe.value.of if isinstance(pipe.value, Inst) else None
    if pipe.kind != "trl" or not isinstance(trainer, Cls) or trainer.module.path == entry.path:
        return False
    return func.module.path.partition("/")[0] == trainer.module.path.partition("/")[0]


def _tokenizes(func: Func) -> bool:
    text = func.module.text(func.node)
    return any(word in text for word in _TOKENS)
