"""Reshapes of a forward on axes: where the positions go in `view`, `transpose`, `expand`, `cat` and their like."""

from __future__ import annotations

import ast
from dataclasses import replace

from speedmigrate.facts.axes import (
    FREE,
    KEYS,
    OPEN,
    REST,
    ROWS,
    Many,
    Nothing,
    Size,
    Tensor,
    Value,
    Width,
    as_keys,
    axis_of,
    broadcast,
    is_tracked,
    join,
    placed,
    runs,
)
from speedmigrate.facts.forward_tables import Tables

_BAD_SHAPE = "a new shape that does not name the length read from a tensor"


def spread(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """`view((a, b))` is `view(a, b)`."""
    return args[0] if len(args) == 1 and isinstance(args[0], tuple) else args


def normal(axes: tuple[str, ...], index: Value) -> int | None:
    """Return an axis counted from the front, None where it is not a plain number."""
    if not isinstance(index, int):
        return None
    return index if index >= 0 else len(axes) + index


class Shapes(Tables):
    """Evaluates what changes a shape."""

    def view(self, node: ast.AST, base: Tensor, sizes: tuple[Value, ...]) -> Value:
        if not base.is_padded:
            axes = as_keys(tuple(map(axis_of, sizes)))
            found = replace(base, axes=axes, key=None)
            return found if found.is_padded or base.reach or base.axes != (REST,) else None
        names = [placed(size) for size in sizes]
        held = [axis for axis in base.axes if runs(axis)]
        named = [axis for axis in names if axis != FREE]
        if len(named) == len(held):
            kept = iter(held if ROWS not in held + named and OPEN not in held else named)
            return replace(base, axes=tuple(next(kept) if axis != FREE else FREE for axis in names))
        if named == [ROWS] and len(held) == 1:
            return replace(base, axes=tuple(names))
        if held == [ROWS] and len(named) == 1:
            return replace(base, axes=tuple(names))
        if -1 in sizes and not named and len(held) == 1:
            return self.inferred(node, base, list(sizes))
        self.problem(node, _BAD_SHAPE)
        return None

    def inferred(self, node: ast.AST, base: Tensor, sizes: list[Value]) -> Value:
        """One -1 among sizes that are free: it stands for the rows, or for the positions where they stood."""
        where, held = sizes.index(-1), next(i for i, axis in enumerate(base.axes) if runs(axis))
        axes = [FREE] * len(sizes)
        features = len(base.axes) - held - 1
        if len(sizes) == 1:
            axes[0] = ROWS if not features or (REST not in base.axes and features == 0) else OPEN
        elif where == 0 and len(sizes) == 2 and features:
            axes[0] = ROWS if base.axes[held] == ROWS or isinstance(sizes[1], Size) else OPEN
        elif where == 0 and sizes[1:] == [1] and not features and REST not in base.axes:
            axes[0] = ROWS
        elif where == held and (len(sizes) - where - 1 > 0) == (features > 0):
            if held and all(isinstance(size, int) for size in sizes[:where]):
                self.problem(node, "rows are put one behind the other")
            axes[where] = base.axes[held]
        else:
            self.problem(node, _BAD_SHAPE)
            return None
        return replace(base, axes=tuple(axes))

    def flatten(self, node: ast.AST, base: Tensor, start: Value, end: Value) -> Value:
        first, last = normal(base.axes, start), normal(base.axes, end)
        if first is None or last is None or not base.is_padded:
            return replace(base, key=None) if base.is_padded else None
        inside = [axis for axis in base.axes[first : last + 1] if runs(axis)]
        if not inside:
            return replace(base, axes=(*base.axes[:first], FREE, *base.axes[last + 1 :]))
        if len(inside) == 1 and base.axes[last] == inside[0]:
            axis = inside[0] if first == last else ROWS
            return replace(base, axes=(*base.axes[:first], axis, *base.axes[last + 1 :]))
        self.problem(node, _BAD_SHAPE)
        return None

    def reorder(self, base: Tensor, order: tuple[Value, ...]) -> Value:
        axes = [base.axes[i] for each in order if (i := normal(base.axes, each)) is not None and i < len(base.axes)]
        return replace(base, axes=tuple(axes), key=None)

    def swap(self, base: Tensor, one: Value, other: Value) -> Value:
        axes = list(base.axes)
        first, second = normal(base.axes, one), normal(base.axes, other)
        if first is None or second is None or max(first, second) >= len(axes):
            return base
        axes[first], axes[second] = axes[second], axes[first]
        return replace(base, axes=tuple(axes), key=None)

    def unsqueeze(self, base: Tensor, where: Value) -> Value:
        index = normal((*base.axes, FREE), where)
        if index is None or base.axes == (REST,):
            return base
        return replace(base, axes=(*base.axes[:index], FREE, *base.axes[index:]))

    def squeeze(self, node: ast.AST, base: Tensor, where: Value) -> Value:
        index = normal(base.axes, where)
        if index is None:
            axes = tuple(axis for i, axis in enumerate(base.axes) if axis != FREE or i == 0)
            return replace(base, axes=axes)
        if index < len(base.axes) and base.axes[index] == FREE:
            return replace(base, axes=(*base.axes[:index], *base.axes[index + 1 :]))
        if index < len(base.axes) and runs(base.axes[index]):
            self.problem(node, "the positions are squeezed, so they stand elsewhere")
        return base

    def expand(self, node: ast.AST, base: Tensor, sizes: tuple[Value, ...], *, repeats: bool) -> Value:
        """`expand` names sizes, `repeat` factors; the positions must stay as many as they are."""
        lead = max(0, len(sizes) - len(base.axes))
        axes = (FREE,) * lead + base.axes
        found = []
        for axis, size in zip(axes, sizes, strict=False):
            if not runs(axis):
                found.append(axis_of(size) if isinstance(size, Width) or not base.is_padded else FREE)
            else:
                same = (size == 1) if repeats else (size == -1 or isinstance(size, Width))
                if not same:
                    self.problem(node, _BAD_SHAPE)
                found.append(axis)
        return replace(base, axes=as_keys(tuple(found) + axes[len(sizes) :]), key=base.key if not lead else None)

    def concatenate(self, node: ast.AST, parts: Value, dim: Value) -> Value:
        """What stands before the positions is a prefix of a fixed length; nothing may stand behind them."""
        if isinstance(parts, Tensor) and parts.is_padded:
            parts = Many(self.step(node, parts))
        found = list(parts) if isinstance(parts, tuple) else [parts.of] if isinstance(parts, Many) else []
        tensors = [part for part in found if isinstance(part, Tensor) and part.is_padded]
        if not tensors:
            return None
        whole = max(tensors, key=lambda part: len(part.axes))
        index = normal(whole.axes, dim if not isinstance(dim, Nothing) else 0)
        if index is None or index >= len(whole.axes):
            self.problem(node, "parts are put together in a way that is not followed")
            return None
        joined = tensors[0]
        for part in tensors[1:]:
            merged = join(joined, part)
            joined = merged if isinstance(merged, Tensor) else joined
        joined = replace(joined, key=None, fill=0 if all(_is_zero(part) for part in found) else None)
        at = [isinstance(part, Tensor) and part.is_padded and runs(part.axes[index]) for part in found]
        if isinstance(parts, Many) and any(at):
            self.problem(node, "sequences are put one behind the other")
        elif any(at[:-1]):
            self.problem(node, "something stands behind the padding")
        elif any(at):
            axis = whole.axes[index]
            last = found[-1]
            assert isinstance(last, Tensor)
            axis = last.axes[index] if last.axes[index][0] == "p" or len(found) == 1 else "p" + last.axes[index]
            joined = replace(
                joined,
                axes=(*last.axes[:index], axis, *last.axes[index + 1 :]),
                reach=last.reach,
                weights=last.weights,
                fill=None if len(found) > 1 else joined.fill,
            )
        return joined

    def product(self, node: ast.AST, left: Value, right: Value) -> Value:
        """A matrix product: over features, or over keys with weights that leave pads out."""
        if not is_tracked(left) and not is_tracked(right):
            return None
        one = left if isinstance(left, Tensor) else Tensor((FREE, FREE))
        two = right if isinstance(right, Tensor) else Tensor((FREE, FREE))
        inner, outer = one.axes[-1:], two.axes[-2:-1]
        if any(runs(axis) for axis in inner + outer):
            if not (_weighs(one, inner[0] if inner else FREE) or one.is_zero or two.is_zero):
                self.problem(node, "a product over something other than the features")
                return None
        lead = broadcast(one.axes[:-2], two.axes[:-2])
        return Tensor(as_keys((*lead, *one.axes[-2:-1], *two.axes[-1:])), why=one.why or two.why)

    def einsum(self, node: ast.AST, given: tuple[Value, ...]) -> Value:
        equation = given[0] if given else None
        terms = given[1] if len(given) == 2 and isinstance(given[1], tuple) else given[1:]
        if not isinstance(equation, str) or "->" not in equation or "." in equation:
            if any(is_tracked(term) for term in given):
                self.problem(node, "this product is not followed")
            return None
        inputs, _, output = equation.replace(" ", "").partition("->")
        axes: dict[str, str] = {}
        inside: dict[str, list[Tensor]] = {}
        why = None
        for letters, term in zip(inputs.split(","), terms, strict=False):
            if isinstance(term, Tensor):
                why = why or term.why
                for letter, axis in zip(letters, term.axes, strict=False):
                    axes[letter] = max(axes.get(letter, FREE), axis, key=len)
                    inside.setdefault(letter, []).append(term)
        for letter, axis in axes.items():
            if letter not in output and runs(axis):
                if not any(_weighs(term, axis) or term.is_zero for term in inside[letter]):
                    self.problem(node, "a product over something other than the features")
                    return None
        return Tensor(as_keys(tuple(axes.get(letter, FREE) for letter in output)), why=why)


def _weighs(tensor: Tensor, axis: str) -> bool:
    """Whether a sum over an axis of a tensor is one that a softmax made: over the keys where it has keys."""
    has_keys = any(each[-1:] == KEYS for each in tensor.axes)
    return tensor.weights and (axis[-1:] == KEYS or not has_keys)


def _is_zero(value: Value) -> bool:
    return value == 0 or (isinstance(value, Tensor) and value.is_zero)
