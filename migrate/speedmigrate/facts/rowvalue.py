"""The vocabulary of `rows.py`: padding terms, sequences, numbers and records as one function builds them."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from speedmigrate.facts.linear import Linear
from speedmigrate.facts.module import Module
from speedmigrate.facts.value import Expr, Func, Inst
from speedmigrate.rule import Hop

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Run:
    """A padding term: `value` (an expression of the dataset's code) repeated to fill the gap on one side."""

    side: Side
    value: Expr
    width: Linear


@dataclass(frozen=True, slots=True)
class Drop:
    """One edit that takes a padding term out: what goes, and what comes in its place.

    Attributes:
        keep: the expression that stays, None where the whole statement goes.
        code: the text that comes in its place where no expression says it.
    """

    module: Module
    node: ast.AST
    keep: ast.expr | None
    code: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """An array made as long as the fixed length, to be filled from the front: the size that was written, the value, and
    what the names stood for there."""

    size: ast.expr
    value: Expr
    env: Mapping[str, Abstract]


@dataclass(frozen=True, slots=True)
class Seq:
    """A list, array or tensor with one position a token.

    Attributes:
        length: how long it is, pads included.
        runs: the padding terms in it; `pure` where it is nothing but one.
        start, stop: how many positions were cut from its front and end after padding.
        wide: built from the fixed length itself (`torch.arange(max_length)`).
        broken: why it cannot be followed any further.
        array: a tensor or array, on whose every element `+` and `-` work.
        typed: made from a list or cast here, so its dtype is not that of padding that is joined to it.
        floats: made as floats because no dtype was given; `promoted` where joining such padding made it so.
        canvas: where it was made with the fixed length and is not filled yet.
        root: what it is the very same list or array as, once the padding that made a copy of it is gone.
    """

    length: Linear
    runs: tuple[Run, ...] = ()
    pure: bool = False
    start: int = 0
    stop: int = 0
    wide: bool = False
    broken: Hop | None = None
    array: bool = False
    typed: bool = False
    floats: bool = False
    promoted: bool = False
    canvas: Canvas | None = None
    root: Seq | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Number:
    """A number; `padded` where the length of something padded is in it."""

    value: Linear
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A dict (keys are strings) or tuple (keys are positions) under construction."""

    items: tuple[tuple[str | int, Abstract], ...]
    is_tuple: bool = False

    def get(self, key: object) -> Abstract | None:
        return dict(self.items).get(key)  # type: ignore[call-overload, no-any-return]

    def set(self, key: str | int, value: Abstract) -> Record:
        return Record((*((k, v) for k, v in self.items if k != key), (key, value)), self.is_tuple)


@dataclass(frozen=True, slots=True)
class Passed:
    """A row of another dataset, passed on as it is."""

    datasets: tuple[Inst, ...]


Abstract = Seq | Number | Record | Passed


@dataclass(slots=True)
class Rows:
    """What was read of one dataset class: the rows it returns, the padding terms to drop, and what was not
    understood."""

    dataset: Inst
    func: Func | None
    returned: list[tuple[Record | Passed | Seq | Number, ast.AST]] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    problems: list[Hop] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)


def kinds(value: Seq) -> set[tuple[str, str]]:
    return {(run.side, ast.unparse(run.value.node)) for run in value.runs}


def whole(value: Abstract | None) -> int | None:
    """Return the plain number that a slice bound is; 0 where there is none."""
    if value is None:
        return 0
    return value.value.constant if isinstance(value, Number) and not value.value.terms else None


def is_wide(value: Abstract) -> bool:
    if isinstance(value, Number):
        return value.padded or any(kind == "fixed" for (kind, _), _ in value.value.terms)
    if isinstance(value, Record):
        return any(is_wide(part) and not (isinstance(part, Number) and part.value.is_fixed) for _, part in value.items)
    return isinstance(value, Seq) and value.wide


def is_full_width(base: Seq, bound: Linear) -> bool:
    """Whether a cut at `bound` leaves padded data as it is: the padding filled it to exactly that length."""
    return any(
        bound in (fill, fill.times(-1))
        for run in base.runs
        for fill in [Linear(frozenset(t for t in run.width.terms if t[0][0] == "fixed"), run.width.constant)]
    )


def reads(node: ast.AST, names: Container[str]) -> bool:
    """Whether an expression reads one of these names."""
    return any(isinstance(child, ast.Name) and child.id in names for child in ast.walk(node))


def is_position(value: Abstract) -> bool:
    """Whether a number is one that counts from the front."""
    if not isinstance(value, Number) or value.padded:
        return False
    return value.value.constant >= 0 and all(count > 0 for _, count in value.value.terms)


def length_of(value: Abstract) -> Number | None:
    """Return how long a sequence is."""
    return Number(value.length, bool(value.runs) and not value.pure) if isinstance(value, Seq) else None


def copied(value: Abstract) -> Abstract:
    """Return a copy, which no longer changes with what it is a copy of."""
    if isinstance(value, Seq):
        return replace(value, root=None)
    return replace(value) if isinstance(value, Record) else value
