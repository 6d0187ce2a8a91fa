"""What the reader of a row keeps: the values of names, the padding terms to drop, and what was not understood."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from speedmigrate.facts.linear import Linear
from speedmigrate.facts.rowvalue import Abstract, Drop, Number, Record, Rows, Run, Seq, kinds
from speedmigrate.facts.value import Const, Expr, Frame
from speedmigrate.facts.values import Values


class Abstracts:
    """What the names of one function stand for; where padding is taken out and what is not followed is noted."""

    _ids = count()

    def __init__(self, values: Values, rows: Rows, frame: Frame, depth: int) -> None:
        self.values = values
        self.rows = rows
        self.frame = frame
        self.module = frame.func.module
        self.depth = depth
        self.env: dict[str, Abstract] = {}
        self.out: list[tuple[Abstract, ast.AST]] = []
        self.changed: list[tuple[Seq, Seq]] = []
        self.room_left: list[Linear] = []

    def eval(self, node: ast.expr) -> Abstract:
        raise NotImplementedError

    def opaque(self) -> Seq:
        return Seq(Linear.of("len", f"#{next(self._ids)}"))

    def expr(self, node: ast.expr) -> Expr:
        return Expr(self.module, node, self.frame)

    def problem(self, node: ast.AST, why: str) -> None:
        hop = self.module.hop(node, why)
        if hop not in self.rows.problems:
            self.rows.problems.append(hop)

    def touch(self, value: Abstract, node: ast.AST, *, reading: bool = False) -> None:
        """Note that a value is used in a way that is not followed; padded data must not be."""
        if isinstance(value, Seq) and value.runs and not reading:
            self.problem(node, f"padded data is used here in a way that is not followed: {self.module.text(node)[:60]}")
        elif isinstance(value, Record) and not reading:
            for _, part in value.items:
                self.touch(part, node)
        elif isinstance(value, Number) and value.padded and not reading:
            self.problem(node, f"the padded length is used here: {self.module.text(node)[:60]}")

    def rebind(self, old: Seq, new: Seq) -> None:
        """A list or array changed in place: every name and field that stands for it changes."""
        self.changed.append((old, new))
        for name, value in self.env.items():
            if value is old:
                self.env[name] = new
            elif isinstance(value, Record) and any(part is old for _, part in value.items):
                items = tuple((key, new if part is old else part) for key, part in value.items)
                self.env[name] = replace(value, items=items)

    def mutated(self, owner: Abstract | None, node: ast.AST) -> None:
        """A list or array is changed in place: nothing else may become the very same one when padding goes."""
        if not isinstance(owner, Seq):
            return
        held = [part for value in self.env.values() for part in (_parts(value))]
        for value in held:
            if value is not owner and (value.root or value) is (owner.root or owner):
                what = f"this changes a copy, and it is one because of its padding: {self.module.text(node)[:60]}"
                self.problem(node, what)

    def constant(self, value: object, node: ast.AST) -> Expr:
        return self.expr(ast.copy_location(ast.Constant(value), node))  # type: ignore[arg-type]

    def number(self, node: ast.expr) -> float | None:
        """Return the plain number that an expression is."""
        found = self.values.one(self.expr(node))
        return found.value if isinstance(found, Const) and isinstance(found.value, int | float) else None

    def is_constant(self, run: Run, number: float) -> bool:
        """Whether the pads are this number."""
        value = self.values.one(run.value)
        return isinstance(value, Const) and isinstance(value.value, int | float) and value.value == number

    def over(self, base: Seq, node: ast.AST, compute: Callable[[float], object]) -> Seq | None:
        """Return a sequence with something computed of each element; None where a pad is no plain number."""
        runs = []
        for run in base.runs:
            pad = self.values.one(run.value)
            if not isinstance(pad, Const) or not isinstance(pad.value, int | float):
                return None
            runs.append(replace(run, value=self.constant(compute(pad.value), node)))
        return replace(base, runs=tuple(runs), root=None)

    def merge(self, left: Abstract | None, right: Abstract | None, node: ast.AST) -> Abstract:
        if left is None or right is None or left == right:
            found = left if right is None else right
            assert found is not None
            return found
        if isinstance(left, Seq) and isinstance(right, Seq):
            if left.runs and right.runs and kinds(left) != kinds(right):
                self.problem(node, "the branches pad in different ways")
            base = left if left.runs else right
            same = left.length == right.length
            return replace(
                base, length=left.length if same else self.opaque().length, pure=left.pure and right.pure,
                wide=left.wide or right.wide, broken=left.broken or right.broken, array=left.array or right.array,
                promoted=left.promoted or right.promoted, canvas=None,
            )  # fmt: skip
        if isinstance(left, Record) and isinstance(right, Record) and left.is_tuple == right.is_tuple:
            keys = [k for k, _ in left.items] + [k for k, _ in right.items if left.get(k) is None]
            return Record(tuple((k, self.merge(left.get(k), right.get(k), node)) for k in keys), left.is_tuple)
        if isinstance(left, Number) and isinstance(right, Number):
            return Number(self.opaque().length, left.padded or right.padded)
        for value in (left, right):
            self.touch(value, node)
        return self.opaque()

    def join_ends(self, left: Seq, right: Seq, node: ast.AST, operands: tuple[ast.expr, ast.expr] | None) -> Seq:
        """Join two sequences; where one of them is padding alone, note how to drop it."""
        length = left.length.plus(right.length)
        if right.pure and left.pure:
            return Seq(length, left.runs, pure=True)
        if right.pure:
            self.drop(node, None if operands is None else operands[0])
            promoted = left.promoted or (right.floats and not left.floats)
            runs = (*left.runs, *right.runs)
            return replace(left, length=length, runs=runs, pure=False, promoted=promoted, root=left.root or left)
        if left.pure:
            self.drop(node, None if operands is None else operands[1])
            runs = tuple(replace(run, side="left") for run in left.runs)
            promoted = right.promoted or (left.floats and not right.floats)
            runs = (*right.runs, *runs)
            return replace(right, length=length, runs=runs, pure=False, promoted=promoted, root=right.root or right)
        broken = left.broken or right.broken
        if left.runs or right.runs:
            self.problem(node, "padded data is joined to something else")
        return Seq(length, left.runs or right.runs, wide=left.wide or right.wide, broken=broken)

    def drop(self, node: ast.AST, keep: ast.expr | None, *, code: str = "") -> None:
        found = Drop(self.module, node, keep, code)
        if found not in self.rows.drops:
            self.rows.drops.append(found)


def _parts(value: Abstract) -> list[Seq]:
    found = [part for _, part in value.items] if isinstance(value, Record) else [value]
    return [part for part in found if isinstance(part, Seq)]
