"""The vocabulary of `rows.py`: padding terms, sequences, numbers and records as one function builds them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
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
    """One edit that takes a padding term out: the joined expression and the operand that stays (None: whole
    statement)."""

    module: Module
    node: ast.AST
    keep: ast.expr | None


@dataclass(frozen=True, slots=True)
class Seq:
    """A list, array or tensor with one position a token.

    Attributes:
        length: how long it is, pads included.
        runs: the padding terms in it; `pure` where it is nothing but one.
        start, stop: how many positions were cut from its front and end after padding.
        wide: built from the fixed length itself (`torch.arange(max_length)`).
        broken: why it cannot be followed any further.
    """

    length: Linear
    runs: tuple[Run, ...] = ()
    pure: bool = False
    start: int = 0
    stop: int = 0
    wide: bool = False
    broken: Hop | None = None


@dataclass(frozen=True, slots=True)
class Number:
    value: Linear


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
        return value.value.is_fixed and bool(value.value.terms)
    return isinstance(value, Seq) and value.wide


def is_full_width(base: Seq, bound: Linear) -> bool:
    """Whether a cut at `bound` leaves padded data as it is: the padding filled it to exactly that length."""
    return any(
        bound in (fill, fill.times(-1))
        for run in base.runs
        for fill in [Linear(frozenset(t for t in run.width.terms if t[0][0] == "fixed"), run.width.constant)]
    )
