"""Parts of tensors in a forward on axes: what an index takes, and what of the positions is left."""

from __future__ import annotations

import ast
from dataclasses import replace

from speedmigrate.facts.axes import (
    FREE,
    KEYS,
    NOTHING,
    POSITIONS,
    REST,
    Many,
    Nothing,
    Output,
    Record,
    Tensor,
    Value,
    Width,
    as_keys,
    axis_of,
    join_all,
    runs,
)
from speedmigrate.facts.forward_math import Arithmetic


class Indexing(Arithmetic):
    """Evaluates subscripts."""

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.eval(node.value)
        if isinstance(base, Output):
            index = self.eval(node.slice)
            if index == (1 if base.has_loss else 0):
                return base.hidden
            return self.of_output(base, index) if isinstance(index, str) else None
        if isinstance(base, Record):
            return base.get(str(self.eval(node.slice)))
        if isinstance(base, Many):
            return Many(base.of) if isinstance(node.slice, ast.Slice) else base.of
        if isinstance(base, tuple):
            return self.entry(node, base)
        if isinstance(base, Width):
            self.problem(node, "the padded width is used in a way that is not followed")
            return None
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not isinstance(base, Tensor):
            base = Tensor((REST,)) if base is None else None
        if base is None:
            return None
        found = self.index(node, base, list(parts))
        return (
            found if isinstance(found, Tensor) and (found.is_padded or found.axes != (REST,) or found.reach) else None
        )

    def entry(self, node: ast.Subscript, base: tuple[Value, ...]) -> Value:
        """An entry or a part of a shape or tuple."""
        if isinstance(node.slice, ast.Slice):
            lower, upper = (None if b is None else self.eval(b) for b in (node.slice.lower, node.slice.upper))
            if isinstance(lower, int | None) and isinstance(upper, int | None) and node.slice.step is None:
                return base[lower:upper]
        index = self.eval(node.slice)
        if isinstance(index, int) and -len(base) <= index < len(base):
            return base[index]
        return join_all(base)

    def index(self, node: ast.Subscript, base: Tensor, parts: list[ast.expr]) -> Value:
        """Take part of a tensor, one entry of the index after the other."""
        if all(map(_is_whole, parts[1:])) and isinstance(mask := self.eval_index(parts[0]), Tensor):
            if len(parts) == 1 or (base.is_padded and mask.is_padded and mask.is_zero):
                return self.select(node, base, mask)
        left, right = parts, []
        for position, part in enumerate(parts):
            if isinstance(part, ast.Constant) and part.value is Ellipsis:
                left, right = parts[:position], parts[position + 1 :]
        middle = _taken(right)
        axes = base.axes
        front, tail = (axes[: len(axes) - middle], axes[len(axes) - middle :]) if middle else (axes, ())
        out, cut = self.walk(node, list(front), left, base)
        rest, cut_too = self.walk(node, list(tail), right, base) if right else ([], False)
        found = as_keys(tuple(out + rest))
        plain = base.key if found and all(axis != FREE for axis in found[1:]) else None
        return replace(base, axes=found, key=base.key if plain is not None else None, cut=base.cut or cut or cut_too)

    def walk(self, node: ast.AST, axes: list[str], parts: list[ast.expr], base: Tensor) -> tuple[list[str], bool]:
        out: list[str] = []
        cut = False
        for part in parts:
            value = None if isinstance(part, ast.Slice) else self.eval_index(part)
            if isinstance(value, Nothing):
                out.append(FREE)
                continue
            axis = axes[0] if axes else FREE
            if axis != REST:
                axes = axes[1:]
            if isinstance(part, ast.Slice):
                taken, shorter = self.sliced(node, axis, part)
                out.append(taken)
                cut = cut or shorter
            elif isinstance(value, tuple | Many):
                self.pick(node, axis, value[0] if isinstance(value, tuple) and len(value) == 1 else None)
                out.append(FREE)
            else:
                self.pick(node, axis, value)
                if isinstance(value, Tensor) and value.is_padded:
                    out += [each for each in value.axes if each != REST]
        return out + axes, cut

    def eval_index(self, node: ast.expr) -> Value:
        return self.eval(node)

    def pick(self, node: ast.AST, axis: str, value: Value) -> None:
        """One position by its number: the first of right-padded rows, or one worked out from the rows."""
        if isinstance(value, Width):
            self.problem(node, "the padded width is used as an index")
        if not runs(axis) or (isinstance(value, Tensor) and self.counts(value) and axis[-1:] in {POSITIONS, KEYS}):
            return
        first = 0 if not self.read.is_left else -1
        if not (isinstance(value, int) and value == first and axis == POSITIONS):
            self.problem(node, "takes positions by their number")

    def counts(self, index: Tensor) -> bool:
        """Whether an index of positions is one that the padded width does not change: of rows, counted from them."""
        return index.is_padded or (index.is_count and index.why is None and not self.read.is_left)

    def sliced(self, node: ast.AST, axis: str, part: ast.Slice) -> tuple[str, bool]:
        """Return the axis that a slice leaves, and whether it takes the last position away."""
        lower = NOTHING if part.lower is None else self.eval(part.lower)
        upper = NOTHING if part.upper is None else self.eval(part.upper)
        if part.step is not None and runs(axis):
            self.problem(node, "takes every other position")
        if not runs(axis):
            if isinstance(lower, Width) and not isinstance(upper, Width):
                self.problem(node, "a slice that starts at the padded width")
            return (axis_of(upper) if isinstance(upper, Width) else FREE), False
        if isinstance(upper, Width) and upper.offset is not None and (isinstance(lower, Nothing) or lower == 0):
            return axis, upper.offset < 0
        if isinstance(upper, Nothing):
            if isinstance(lower, Nothing) or (isinstance(lower, int) and lower >= 0):
                return axis, False
            if axis[0] == "p" and (lower is None or isinstance(lower, Tensor)):
                return axis[1:], False
        elif isinstance(lower, Nothing) or lower == 0:
            if upper == -1 and not self.read.is_left:
                return axis, True
            if axis[0] == "p" and upper is None:
                return FREE, False
        self.problem(node, "takes positions by their number")
        return FREE, False

    def select(self, node: ast.AST, base: Tensor, mask: Tensor) -> Value:
        """`hidden[mask]` keeps the real positions; a table indexed by ids has their positions."""
        if base.is_padded and mask.is_padded:
            if mask.is_zero:
                return Tensor((FREE,), why=base.why)
            self.problem(node, "positions are selected in a way that is not followed")
            return None
        if not base.is_padded:
            return mask.computed((*mask.axes, REST))
        return replace(base, axes=base.axes[1:], key=None)


def _is_whole(part: ast.expr) -> bool:
    return isinstance(part, ast.Slice) and part.lower is None and part.upper is None and part.step is None


def _taken(parts: list[ast.expr]) -> int:
    """Return how many axes the entries of an index stand for."""
    return sum(not (isinstance(part, ast.Constant) and part.value is None) for part in parts)
