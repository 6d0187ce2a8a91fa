"""The values of a forward as axes: which dimension of a tensor runs over the positions of the padded batch.

A forward is run on these instead of on tensors (`forward_run.py`). What has no axis of positions is free: images,
weights, settings; whatever is done to it, the padded width does not reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from speedmigrate.facts.models import Model
from speedmigrate.facts.tracks import Key
from speedmigrate.rule import Hop

# An axis: over positions, over the positions as keys of attention, over rows x positions, over what a reshape leaves
# open (`view(-1, vocabulary)`), or over anything else. A `p` in front: something of a fixed length stands before.
POSITIONS, KEYS, ROWS, OPEN, FREE, REST = "L", "K", "N", "M", "", "*"
# An axis of a fixed size that is not 1 (of a parameter, a buffer, `arange(max_length)`): it must not meet positions.
FIXED = "T"
# What a tensor says of other positions: `index` counts them, `drop` is true on pads, `pads` and `causal` take pads or
# later positions out of scores that it is added to (or that it is).
Reach = Literal["", "index", "drop", "pads", "causal"]
_STRENGTH: tuple[Reach, ...] = ("", "index", "drop", "causal", "pads")


def runs(axis: str) -> bool:
    """Say whether an axis runs over positions."""
    return axis[-1:] in {POSITIONS, KEYS, ROWS, OPEN} and axis != ""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a forward.

    Attributes:
        key: the field of the batch whose plain values it holds.
        fill: the value on pads where it is known.
        weights: whether a softmax over keys or positions made it.
        losses: whether it is the loss of every token.
        cut: whether the last position is gone.
        why: where positions, pads among them, were mixed into it.
        wrong: where pads entered it as they enter the loss today.
        is_table: whether it is a parameter, a buffer or the like, of a size that is not known.
        is_count: whether it was counted from the positions, pads left out: how many tokens there are, where one stands.
    """

    axes: tuple[str, ...]
    key: Key | None = None
    fill: object = None
    reach: Reach = ""
    weights: bool = False
    losses: bool = False
    cut: bool = False
    why: Hop | None = None
    wrong: Hop | None = None
    is_table: bool = False
    is_count: bool = False

    @property
    def is_padded(self) -> bool:
        return any(map(runs, self.axes))

    @property
    def is_zero(self) -> bool:
        """Whether pads are 0 (or False)."""
        return self.fill is not None and self.fill == 0

    def computed(self, axes: tuple[str, ...] | None = None) -> Tensor:
        """Return what a function of every element gives: the values are new, the axes and masks stay."""
        return Tensor(
            self.axes if axes is None else axes,
            reach=self.reach,
            cut=self.cut,
            why=self.why,
            wrong=self.wrong,
            is_count=self.is_count,
        )


@dataclass(frozen=True, slots=True)
class Width:
    """The padded width, `offset` added; `times` where it is multiplied by something else (rows x positions)."""

    offset: int | None = 0
    times: bool = False
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Many:
    """Some number of equal values: what `chunk` gives, a list that a loop fills."""

    of: Value


@dataclass(frozen=True, slots=True)
class Output:
    """What a model of transformers returns; with labels, the loss comes first."""

    model: Model
    hidden: Tensor
    has_loss: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """An object of named values: a `ModelOutput`, a dict of what the forward returns."""

    items: tuple[tuple[str, Value], ...]

    def get(self, name: str) -> Value:
        return dict(self.items).get(name)


@dataclass(frozen=True, slots=True)
class Nothing:
    """`None` of Python, where it is known to be that."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an axis that does not run over positions: rows, heads, features."""


NOTHING, SIZE = Nothing(), Size()
# A value of a forward: None is free and not known, plain numbers and words are free and known.
Value = Tensor | Width | Many | Output | Record | Nothing | Size | tuple["Value", ...] | int | float | str | None


def is_tracked(value: Value) -> bool:
    """Whether the padded width is in a value."""
    if isinstance(value, Tensor):
        return value.is_padded or value.why is not None or value.wrong is not None
    if isinstance(value, tuple):
        return any(is_tracked(part) for part in value)
    if isinstance(value, Record):
        return any(is_tracked(part) for _, part in value.items)
    return is_tracked(value.of) if isinstance(value, Many) else isinstance(value, Width | Output)


def has_positions(value: Value) -> bool:
    """Whether a value has one entry a position, or is the number of them."""
    if isinstance(value, Tensor):
        return value.is_padded
    if isinstance(value, tuple):
        return any(map(has_positions, value))
    if isinstance(value, Many):
        return has_positions(value.of)
    return isinstance(value, Width | Output) or (
        isinstance(value, Record) and any(has_positions(v) for _, v in value.items)
    )


def axis_of(size: Value) -> str:
    """Return the axis of a shape's entry."""
    if isinstance(size, Width):
        return ROWS if size.times else "pL" if size.prefix else POSITIONS
    return FREE if isinstance(size, Size) or size in (1, -1) else FIXED


def placed(size: Value) -> str:
    """Return the axis of an entry of a new shape of padded values: positions, or anything else."""
    return axis_of(size) if isinstance(size, Width) else FREE


def size_of(axis: str) -> Value:
    """Return the entry of a shape for an axis."""
    if not runs(axis):
        return None if axis == REST else SIZE
    return Width(times=axis[-1] in {ROWS, OPEN}, prefix=axis[0] == "p")


def as_keys(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The second axis of positions runs over keys."""
    seen = False
    found = []
    for axis in axes:
        found.append(axis[:-1] + KEYS if seen and axis[-1:] == POSITIONS else axis)
        seen = seen or axis[-1:] == POSITIONS
    return tuple(found)


def broadcast(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes of what an operation on two tensors gives."""
    if REST in left or REST in right:
        left, right = _filled(left, len(right)), _filled(right, len(left))
    size = max(len(left), len(right))
    pairs = zip((FREE,) * (size - len(left)) + left, (FREE,) * (size - len(right)) + right, strict=True)
    return as_keys(tuple(_wider(one, other) for one, other in pairs))


def _filled(axes: tuple[str, ...], size: int) -> tuple[str, ...]:
    if REST not in axes:
        return axes
    known = tuple(axis for axis in axes if axis != REST)
    lead = size - len(known) - 1 if len(known) == 1 and size > 1 else 0
    # `table[:width]` is added to a batch: its first axis meets the positions, its features the features.
    return known + (FREE,) * max(0, size - len(known) - max(lead, 0)) if known else ()


def _wider(one: str, other: str) -> str:
    if one[-1:] == KEYS or other[-1:] == KEYS:
        return "pK" if "p" in one + other else KEYS
    return one if runs(one) else other if runs(other) else max(one, other, key=len)


def clash(left: Tensor, right: Tensor) -> bool:
    """Whether positions of one meet an axis of a fixed size of the other."""
    if REST in left.axes or REST in right.axes:
        pair = (left, right), (right, left)
        return any(one.is_table and REST in one.axes and not one.is_padded and other.is_padded for one, other in pair)
    pairs = zip(reversed(left.axes), reversed(right.axes), strict=False)
    return any((runs(one) and other == FIXED) or (runs(other) and one == FIXED) for one, other in pairs)


def stronger(left: Reach, right: Reach) -> Reach:
    return max(left, right, key=_STRENGTH.index)


def join(left: Value, right: Value) -> Value:
    """Return a value that stands for both of two branches."""
    if left == right:
        return left
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.is_padded != right.is_padded:
            kept = left if left.is_padded else right
            return replace(kept, why=left.why or right.why, wrong=left.wrong or right.wrong)
        axes = left.axes if len(left.axes) != len(right.axes) else tuple(map(_wider, left.axes, right.axes))
        return Tensor(
            axes,
            left.key if left.key == right.key else None,
            left.fill if left.fill == right.fill else None,
            min(left.reach, right.reach, key=_STRENGTH.index),
            left.weights and right.weights,
            left.losses or right.losses,
            left.cut or right.cut,
            left.why or right.why,
            left.wrong or right.wrong,
            is_count=left.is_count and right.is_count,
        )
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
        return tuple(map(join, left, right))
    if isinstance(left, Width) and isinstance(right, Width):
        return Width(None, left.times or right.times, left.prefix or right.prefix)
    if is_tracked(left) or is_tracked(right):
        one = left if is_tracked(left) else right
        # A mask that is not always there is none.
        return replace(one, reach="", fill=None) if isinstance(one, Tensor) else one
    return None


def join_all(found: Sequence[Value]) -> Value:
    """Return a value that stands for all of several."""
    result: Value = found[0] if found else None
    for value in found[1:]:
        result = join(result, value)
    return result
