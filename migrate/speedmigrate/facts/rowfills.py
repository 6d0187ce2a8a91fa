"""Arrays of a row: padding made by `zeros`, `full` and their kind, joined by `cat` or `pad`, told apart by its sign."""

from __future__ import annotations

import ast
import operator
from dataclasses import replace

from speedmigrate.facts.linear import Linear
from speedmigrate.facts.rowexpr import Expressions
from speedmigrate.facts.rowvalue import Abstract, Canvas, Number, Run, Seq, Side, is_position, length_of
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Const, Expr

_FILLS = frozenset(f"{package}.{name}" for package in ("torch", "numpy") for name in ("zeros", "ones", "full"))
_LIKE = frozenset(f"{name}_like" for name in _FILLS)
_CATS = frozenset(
    "torch.cat torch.concat torch.concatenate torch.hstack numpy.concatenate numpy.hstack numpy.append".split()
)
_PADS = frozenset({"numpy.pad", "torch.nn.functional.pad"})
_WHERE = frozenset({"torch.where", "numpy.where"})


class Fills(Expressions):
    """Evaluates the calls that make, join and choose among arrays of one position a token."""

    def array_call(self, node: ast.Call, names: set[str]) -> Abstract | None:
        """Evaluate a call of torch or numpy; None where it is none of these, or not followed."""
        if names <= _FILLS:
            return self.fill(node, next(iter(names)).rpartition(".")[2])
        if names <= _LIKE:
            return self.fill_like(node, next(iter(names)).rpartition(".")[2])
        if names <= _CATS:
            return self.cat(node, names)
        if names <= _PADS:
            return self.pad(node, is_numpy="numpy.pad" in names)
        if names <= _WHERE and len(node.args) == 3:
            return self.where(node, *node.args)
        if names == {"itertools.repeat"} and len(node.args) == 2:
            times = self.eval(node.args[1])
            return self.pads(node, node.args[0], times) if isinstance(times, Number) else None
        if names == {"builtins.min"} and len(node.args) == 2:
            both = [self.eval(argument) for argument in node.args]
            is_padded = any(isinstance(each, Number) and each.padded for each in both)
            return Number(self.opaque().length, is_padded) if all(isinstance(e, Number) for e in both) else None
        if names == {"builtins.max"} and len(node.args) == 2:
            found = [self.eval(argument) for argument in node.args]
            gaps = [each for each in found if isinstance(each, Number) and each.value.is_gap]
            return gaps[0] if len(gaps) == 1 and Number(Linear()) in found else None
        return None

    def pads(self, node: ast.expr, value: ast.expr | Expr, times: Number) -> Seq | None:
        """Return `times` pads, None where that is not the gap to a fixed length."""
        if times.padded or not times.value.is_gap:
            return None
        made = value if isinstance(value, Expr) else self.expr(value)
        return Seq(times.value, (Run("right", made, times.value),), pure=True)

    def fill(self, node: ast.Call, name: str) -> Abstract | None:
        """`torch.zeros(n)`: pads where `n` is a gap, a canvas where it is a fixed length."""
        size = node.args[0] if node.args else call_argument(node, None, "size") or call_argument(node, None, "shape")
        if isinstance(size, ast.Tuple | ast.List) and len(size.elts) == 1:
            size = size.elts[0]
        is_full = name.endswith("full")
        if size is None or isinstance(size, ast.Tuple | ast.List | ast.Starred) or len(node.args) > 1 + is_full:
            return None
        length = self.eval(size)
        value = call_argument(node, 1, "fill_value") if is_full else None
        made = self.expr(value) if value is not None else self.constant(int("ones" in name), node)
        floats = not is_full and call_argument(node, None, "dtype") is None
        if not isinstance(length, Number) or (is_full and value is None):
            return None
        if length.padded:
            return Seq(length.value, wide=True, array=True)
        found = self.pads(node, made, length) or Seq(length.value)
        if length.value.is_fixed:
            is_wide = bool(length.value.terms)
            found = replace(found, wide=is_wide, canvas=Canvas(size, made, dict(self.env)))
        return replace(found, array=True, typed=True, floats=floats)

    def fill_like(self, node: ast.Call, name: str) -> Abstract | None:
        base = self.eval(node.args[0]) if node.args else None
        value = call_argument(node, 1, "fill_value") if name.startswith("full") else None
        if not isinstance(base, Seq) or base.wide or (name.startswith("full") and value is None):
            return None
        made = self.expr(value) if value is not None else self.constant(int(name.startswith("ones")), node)
        runs = tuple(replace(run, value=made) for run in base.runs)
        return replace(base, runs=runs, array=True, canvas=None, root=None)

    def cat(self, node: ast.Call, names: set[str]) -> Abstract | None:
        """`torch.cat((ids, pads))`: the padding goes, what it was joined to stays."""
        axis = call_argument(node, 1, "dim") or call_argument(node, None, "axis")
        parts: list[ast.expr] = []
        if names == {"numpy.append"}:
            parts, axis = node.args[:2], call_argument(node, None, "axis")
        elif node.args and isinstance(node.args[0], ast.Tuple | ast.List):
            parts = node.args[0].elts
        if axis is not None and self.number(axis) not in {0, -1}:
            return None
        found = [self.eval(part.value if isinstance(part, ast.Starred) else part) for part in parts]
        if any(isinstance(part, ast.Starred) for part in parts):
            return None
        if len(parts) < 2 or not all(isinstance(each, Seq) for each in found):
            return None
        values = [each for each in found if isinstance(each, Seq)]
        if len(values) == 2:
            return self.cat_two(node, (values[0], values[1]), (parts[0], parts[1]), is_numpy="torch" not in str(names))
        inner, last = values[:-1], values[-1]
        if not last.pure or any(each.runs for each in inner) or names == {"numpy.append"}:
            return None
        whole = node.args[0]
        self.drop(whole, None, code=f"({', '.join(self.module.text(part) for part in parts[:-1])})")
        length = inner[0].length
        for each in inner[1:]:
            length = length.plus(each.length)
        floats = all(each.floats for each in inner)
        return Seq(length.plus(last.length), last.runs, array=True, promoted=last.floats and not floats)

    def cat_two(
        self, node: ast.Call, values: tuple[Seq, Seq], parts: tuple[ast.expr, ast.expr], *, is_numpy: bool
    ) -> Abstract | None:
        kept = values[0] if values[1].pure else values[1]
        if is_numpy and not kept.array:
            return None  # a list would stay where an array was
        found = self.join_ends(values[0], values[1], node, parts)
        return replace(found, array=True, promoted=bool(found.runs) and (found.promoted or not kept.typed))

    def pad(self, node: ast.Call, *, is_numpy: bool) -> Abstract | None:
        """`np.pad(ids, (0, gap), constant_values=2)`, `F.pad(ids, (0, gap), value=2)`."""
        widths = call_argument(node, 1, "pad_width" if is_numpy else "pad")
        mode = call_argument(node, 2, "mode")
        if not node.args or (mode is not None and not (isinstance(mode, ast.Constant) and mode.value == "constant")):
            return None
        if is_numpy and isinstance(widths, ast.Tuple | ast.List) and len(widths.elts) == 1:
            widths = widths.elts[0]
        base = self.eval(node.args[0])
        if not isinstance(widths, ast.Tuple | ast.List) or len(widths.elts) != 2 or not isinstance(base, Seq):
            return None
        sides = [self.eval(each) for each in widths.elts]
        none = Number(Linear())
        if is_numpy and not base.array:
            return None  # a list would stay where an array was
        if base.pure or base.canvas is not None or none not in sides or sides == [none, none]:
            return None
        left = sides[1] == none
        gap = sides[0] if left else sides[1]
        if not isinstance(gap, Number) or any(name.endswith("@-1") for (_, name), _ in gap.value.terms):
            return None  # the last of several dimensions is no position
        if not is_numpy and not self.has_room(gap):
            return None  # a negative width cuts
        value = call_argument(node, None, "constant_values") if is_numpy else call_argument(node, 3, "value")
        if isinstance(value, ast.Tuple | ast.List):
            value = value.elts[0 if left else -1]
        pads = self.pads(node, value if value is not None else self.constant(0, node), gap)
        if pads is None:
            return None
        ends = (pads, base) if left else (base, pads)
        return replace(self.join_ends(*ends, node, (node.args[0], node.args[0])), array=True)

    def has_room(self, gap: Number) -> bool:
        """Whether a gap is surely not negative: it was asked for, or what it is measured by was cut to fit."""
        if gap.value in self.room_left:
            return True
        fixed = Linear(frozenset(t for t in gap.value.terms if t[0][0] == "fixed"), gap.value.constant)
        measured = fixed.plus(gap.value, -1)
        names = [name for (_, name), count in measured.terms if count == 1]
        return len(measured.terms) == len(names) == 1 and names[0].endswith(f"[:{fixed.text}]")

    def where(self, node: ast.expr, test: ast.expr, one: ast.expr, other: ast.expr) -> Abstract | None:
        """`torch.where(real, ids, 0)`: what every pad becomes."""
        chosen, values = self.eval(test), (self.eval(one), self.eval(other))
        if not isinstance(chosen, Seq) or not chosen.runs:
            return None
        for value, scalar, on in ((values[0], other, False), (values[1], one, True)):
            if isinstance(value, Seq) and value.runs and isinstance(self.eval(scalar), Number):
                found = self.chosen(value, chosen, scalar, on=on)
                return None if found is None else replace(found, root=None)
        return None

    def chosen(self, base: Seq, test: Abstract, value: ast.expr, *, on: bool = True) -> Seq | None:
        """Return a sequence after `base[test] = value`; None where its pads are not told apart by that."""
        if not isinstance(test, Seq) or len(test.runs) != 1 or len(base.runs) != 1 or test.length != base.length:
            return None
        verdict = self.values.one(test.runs[0].value)
        if not isinstance(verdict, Const) or not isinstance(verdict.value, bool):
            return None
        if (test.start, test.stop, test.runs[0].side) != (base.start, base.stop, base.runs[0].side):
            return None
        run = replace(base.runs[0], value=self.expr(value)) if verdict.value is on else base.runs[0]
        return replace(base, runs=(run,))

    def shape_of(self, base: Seq, axis: object) -> Number | None:
        """Return `x.shape[axis]`. The last dimension is the first only where there is no other."""
        if axis == 0 or (axis == -1 and base.runs):
            return length_of(base)
        return Number(Linear.of("len", f"#{next(self._ids)}@-1")) if axis == -1 else None

    def element_wise(self, node: ast.BinOp, left: Abstract, right: Abstract) -> Abstract | None:
        """`zeros(n) - 1`, `pad * ones(n)`, `1 - mask`: what every pad becomes."""
        compute = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}.get(type(node.op))
        base, other, scalar = (left, right, node.right) if isinstance(left, Seq) else (right, left, node.left)
        if compute is None or not isinstance(base, Seq) or not base.array or not base.runs:
            return None
        if not isinstance(other, Number) or other.padded:
            return None
        number = self.number(scalar)
        if number is not None:
            return self.over(base, node, lambda pad: compute(pad, number) if base is left else compute(number, pad))
        neutral = {ast.Add: 0, ast.Mult: 1}.get(type(node.op))
        if neutral is None or not all(self.is_constant(run, neutral) for run in base.runs):
            return None
        return replace(base, runs=tuple(replace(run, value=self.expr(scalar)) for run in base.runs), root=None)


def side_of(lower: Abstract | None, upper: Abstract | None) -> tuple[Side, Number] | None:
    """Return which end of a canvas a slice leaves over, and how long the slice is: `[:n]` or `[-n:]`."""
    if isinstance(upper, Number) and (lower is None or is_position(lower)):
        return "right", upper
    if isinstance(lower, Number) and upper is None and not is_position(lower):
        return "left", Number(lower.value.times(-1), lower.padded)
    return None
