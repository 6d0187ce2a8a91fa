"""What a batch is when it reaches the model: a dict, a tuple, one tensor or a list of rows."""

from __future__ import annotations

from collections.abc import Iterator

from speedmigrate.chain.batch_shapes import ROWS, Shape, identity, returned
from speedmigrate.chain.batch_uses import uses
from speedmigrate.chain.collate import opened
from speedmigrate.chain.data import Data, data
from speedmigrate.chain.data_maps import functions
from speedmigrate.chain.data_origins import Origin, trainer_attribute
from speedmigrate.chain.data_pipes import Pipe
from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.facts.collates import STACKING
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.value import PARTIAL, Cls, Const, Ext, Func, Inst, Result, Value
from speedmigrate.rule import Hop

_TORCH_DEFAULT = frozenset({"default_collate", "default_convert"})
_SEQUENCES = frozenset({"tuple", "list"})


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `batch.kind`."""
    yield _batch(entry)


def _batch(entry: EntryFacts) -> Fact:
    found = data(entry)
    trainer = next((each.pipe for each in found if each.pipe.kind in {"Trainer", "trl"}), None)
    made = tuple(dict.fromkeys(shape for each in found[:1] for shape in _made(entry, each)))
    if trainer is not None and (not made or any(shape.kind in {"dict", "list"} for shape in made)):
        detail = next((shape.detail for shape in made if shape.kind == "dict"), "")
        return Fact("batch.kind", "dict", detail, (trainer.call.hop("a Trainer hands each batch on as a dict"),))
    return _agreed(entry, made, uses(entry))


def _agreed(entry: EntryFacts, made: tuple[Shape, ...], used: tuple[Shape, ...]) -> Fact:
    """Return what making and taking say together; where they contradict each other it is Unknown."""
    built, taken = {shape.kind for shape in made}, {shape.kind for shape in used}
    unpacked = any(shape.kind == "tuple" and shape.detail for shape in used)
    both = built & taken or (_SEQUENCES & built and _SEQUENCES & taken and ({"tuple"} if unpacked else built))
    hops = tuple(dict.fromkeys(shape.hop for shape in (*made, *used)))
    if not built and not taken:
        return unknown("batch.kind", Hop(entry.path, 1, "no code that makes or takes a batch is followed"))
    if built and taken and not both:
        return unknown("batch.kind", *hops[:6])
    words = set(both) if both else built or taken
    if words >= _SEQUENCES:
        words.discard("list")
    if len(words) != 1:
        return unknown("batch.kind", *hops[:6])
    (word,) = words
    detail = next((shape.detail for shape in (*made, *used) if shape.kind == word and shape.detail), "")
    said = tuple(dict.fromkeys(shape.hop for shape in (*made, *used) if shape.kind in {word} | (_SEQUENCES & words)))
    return Fact("batch.kind", word, detail, said[:6] or hops[:6])


def _made(entry: EntryFacts, each: Data) -> Iterator[Shape]:
    """Yield what a pipe's batches are built as: by the collate, else by the rows under a default one."""
    pipe = each.pipe
    if pipe.kind == "generator":
        for origin in each.origins:
            yield from _rows(entry, origin)
        return
    values = opened(entry, trainer_attribute(entry, pipe.collate or ()))
    default = not values
    for value in values:
        shapes = tuple(_collated(entry, pipe, value))
        default = default or _is_default(value) or any(shape.kind == ROWS for shape in shapes)
        yield from (shape for shape in shapes if shape.kind != ROWS)
    if default:
        for origin in each.origins:
            for shape in _rows(entry, origin):
                yield Shape("tuple", shape.detail, shape.hop) if shape.kind == "list" else shape


def _is_default(value: Value) -> bool:
    if isinstance(value, Const):
        return value.value is None
    return isinstance(value, Ext) and value.last in _TORCH_DEFAULT


def _collated(entry: EntryFacts, pipe: Pipe, value: Value) -> Iterator[Shape]:
    of = value.of if isinstance(value, Inst) and value.of != PARTIAL else value
    if (
        isinstance(of, Ext)
        and of.last not in _TORCH_DEFAULT
        and (of.last in STACKING or of.package in {"transformers", "trl"})
    ):
        yield Shape("dict", of.last, pipe.hop)
        return
    if isinstance(of, Cls) and not any(functions(entry, (value,))):
        bases = [base for base in entry.values.mro(of) if isinstance(base, Ext)]
        if any(base.package in {"transformers", "trl"} for base in bases):
            yield Shape("dict", of.node.name, pipe.hop)
    for func in _functions(entry, value):
        yield from identity(func) or returned(entry, func)


def _functions(entry: EntryFacts, value: Value) -> Iterator[Func]:
    if isinstance(value, Func):
        yield value
    else:
        yield from functions(entry, (value,))


def _rows(entry: EntryFacts, origin: Origin) -> Iterator[Shape]:
    """Yield what the rows of one origin are built as."""
    if origin.kind == "tensor_dataset":
        yield Shape("tuple", "", origin.hop)
    elif origin.kind in {"mapped", "library"}:
        if (
            isinstance(origin.value, Inst)
            and isinstance(origin.value.of, Ext)
            and origin.value.of.package == "datasets"
        ):
            yield Shape("dict", "", origin.hop)
    elif isinstance(origin.value, Inst) and isinstance(origin.value.of, Cls):
        for name in ("__getitem__", "__next__", "next_batch", "__iter__"):
            method = entry.values.method(origin.value.of, name)
            if method is not None:
                yield from returned(entry, Func(method.module, method.node, origin.value, method.outer))
                return
    elif isinstance(origin.value, Result) and isinstance(origin.value.of, Func):
        yield from returned(entry, origin.value.of)
