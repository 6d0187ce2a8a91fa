"""Expressions of a row: what concatenation, slices, conversions, comparisons and helpers of the root do to a
sequence."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import count

from speedmigrate.facts.linear import Linear
from speedmigrate.facts.reaching import Binding, reaching
from speedmigrate.facts.rowvalue import (
    Abstract,
    Drop,
    Number,
    Passed,
    Record,
    Rows,
    Run,
    Seq,
    is_full_width,
    is_wide,
    kinds,
    whole,
)
from speedmigrate.facts.value import Cls, Expr, Frame, Inst, Item
from speedmigrate.facts.values import Values


class Expressions:
    """Evaluates the expressions of one function over abstract values."""

    _ids = count()

    def __init__(self, values: Values, rows: Rows, frame: Frame, depth: int) -> None:
        self.values = values
        self.rows = rows
        self.frame = frame
        self.module = frame.func.module
        self.depth = depth
        self.env: dict[str, Abstract] = {}
        self.out: list[tuple[Abstract, ast.AST]] = []

    def _eval_call(self, node: ast.Call) -> Abstract:
        raise NotImplementedError

    def mapped(self, node: ast.ListComp, source: Seq, target: ast.expr, element: ast.expr) -> Abstract:
        raise NotImplementedError

    def run(self) -> None:
        """Read the function's body."""
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
                wide=left.wide or right.wide, broken=left.broken or right.broken,
            )  # fmt: skip
        if isinstance(left, Record) and isinstance(right, Record) and left.is_tuple == right.is_tuple:
            keys = [k for k, _ in left.items] + [k for k, _ in right.items if left.get(k) is None]
            return Record(tuple((k, self.merge(left.get(k), right.get(k), node)) for k in keys), left.is_tuple)
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
            return replace(left, length=length, runs=(*left.runs, *right.runs), pure=False)
        if left.pure:
            self.drop(node, None if operands is None else operands[1])
            runs = tuple(replace(run, side="left") for run in left.runs)
            return replace(right, length=length, runs=(*right.runs, *runs), pure=False)
        broken = left.broken or right.broken
        if left.runs or right.runs:
            self.problem(node, "padded data is joined to something else")
        return Seq(length, left.runs or right.runs, wide=left.wide or right.wide, broken=broken)

    def drop(self, node: ast.AST, keep: ast.expr | None) -> None:
        found = Drop(self.module, node, keep)
        if found not in self.rows.drops:
            self.rows.drops.append(found)

    def eval(self, node: ast.expr) -> Abstract:
        method = getattr(self, "_eval_" + type(node).__name__.lower(), None)
        if method is not None:
            return method(node)  # type: ignore[no-any-return]
        wide = False
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                found = self.eval(child)
                wide = wide or is_wide(found)
                self.touch(
                    found, node, reading=isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.JoinedStr)
                )
        return replace(self.opaque(), wide=wide)

    def _eval_constant(self, node: ast.Constant) -> Abstract:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return Number(Linear(constant=node.value))
        return self.opaque()

    def _eval_name(self, node: ast.Name) -> Abstract:
        if node.id in self.env:
            return self.env[node.id]
        return self.fixed(node)

    def _eval_attribute(self, node: ast.Attribute) -> Abstract:
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if node.attr in {"input_ids", "attention_mask", "data"} or not isinstance(root, ast.Name):
            self.touch(self.eval(node.value), node)
            return self.opaque()
        if root.id in self.env:
            self.touch(self.env[root.id], node)
            return self.opaque()
        return self.fixed(node)

    def fixed(self, node: ast.Name | ast.Attribute) -> Abstract:
        """Return a name or attribute chain that is not set in this function: the same for every sample."""
        text = ast.unparse(node)
        argument = self.values.argument(self.frame, node.id) if isinstance(node, ast.Name) else None
        if argument is not None and self.depth:
            return self.opaque()
        root = text.partition(".")[0]
        function = self.frame.func.node
        parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if root in parameters and (root != parameters[0] or self.frame.receiver is None):
            return self.opaque()
        return Number(Linear.of("fixed", text))

    def _eval_list(self, node: ast.List) -> Abstract:
        for element in node.elts:
            self.touch(self.eval(element), node)
        if any(isinstance(element, ast.Starred) for element in node.elts):
            return self.opaque()
        return Seq(Linear(constant=len(node.elts)))

    def _eval_tuple(self, node: ast.Tuple) -> Abstract:
        return Record(tuple((i, self.eval(element)) for i, element in enumerate(node.elts)), is_tuple=True)

    def _eval_dict(self, node: ast.Dict) -> Abstract:
        items: list[tuple[str | int, Abstract]] = []
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.eval(value)
            if key is None and isinstance(found, Record):
                items += found.items
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                items.append((key.value, found))
            else:
                self.touch(found, node)
        return Record(tuple(items))

    def _eval_compare(self, node: ast.Compare) -> Abstract:
        left, right = self.eval(node.left), self.eval(node.comparators[0])
        if len(node.ops) == 1 and isinstance(left, Seq) and left.runs and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return self.compared(node, left, node.comparators[0], equal=isinstance(node.ops[0], ast.Eq))
        for value in (left, right):
            self.touch(value, node, reading=True)
        return self.opaque()

    def compared(self, node: ast.expr, base: Seq, other: ast.expr, *, equal: bool) -> Abstract:
        """`ids.ne(pad)`, `ids != pad`: what every pad of the sequence becomes."""
        if not all(self.is_same(run.value.node, other) for run in base.runs):
            self.touch(base, node)
            return self.opaque()
        value = self.expr(ast.copy_location(ast.Constant(equal), node))
        return replace(base, runs=tuple(replace(run, value=value) for run in base.runs))

    def is_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Whether two expressions read the same, every name in them bound by the same statements."""
        if ast.unparse(one) != ast.unparse(other):
            return False
        names = [(n, m) for n, m in zip(ast.walk(one), ast.walk(other), strict=True) if isinstance(n, ast.Name)]
        return all(self.bound(n) == self.bound(m) for n, m in names)

    def bound(self, node: ast.AST) -> frozenset[Binding]:
        assert isinstance(node, ast.Name)
        return reaching(self.module, self.module.scope(node), node.id, node)

    def _eval_unaryop(self, node: ast.UnaryOp) -> Abstract:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, Number):
            return Number(value.value.times(-1))
        self.touch(value, node, reading=isinstance(node.op, ast.Not))
        return self.opaque()

    def _eval_ifexp(self, node: ast.IfExp) -> Abstract:
        self.eval(node.test)
        return self.merge(self.eval(node.body), self.eval(node.orelse), node)

    def _eval_binop(self, node: ast.BinOp) -> Abstract:
        left, right = self.eval(node.left), self.eval(node.right)
        if isinstance(node.op, ast.Mult):
            return self.repeat(node, left, right)
        if isinstance(left, Number) and isinstance(right, Number) and isinstance(node.op, ast.Add | ast.Sub):
            return Number(left.value.plus(right.value, -1 if isinstance(node.op, ast.Sub) else 1))
        if isinstance(node.op, ast.Add) and (isinstance(left, Seq) or isinstance(right, Seq)):
            left = left if isinstance(left, Seq) else self.opaque()
            right = right if isinstance(right, Seq) else self.opaque()
            return self.join_ends(left, right, node, (node.left, node.right))
        for value in (left, right):
            self.touch(value, node)
        return replace(self.opaque(), wide=is_wide(left) or is_wide(right))

    def repeat(self, node: ast.BinOp, left: Abstract, right: Abstract) -> Abstract:
        """`[value] * n`: padding where `n` is a gap."""
        display, times = (node.left, right) if isinstance(node.left, ast.List) else (node.right, left)
        if isinstance(display, ast.List) and isinstance(times, Seq) and not times.runs:
            return self.opaque()
        if isinstance(display, ast.List) and isinstance(times, Number):
            width = times.value.times(len(display.elts))
            if times.value.is_gap and len(display.elts) == 1:
                return Seq(width, (Run("right", self.expr(display.elts[0]), width),), pure=True)
            return Seq(width, wide=times.value.is_fixed and bool(times.value.terms))
        if isinstance(left, Number) and isinstance(right, Number):
            for one, other in ((left, right), (right, left)):
                if not one.value.terms:
                    return Number(other.value.times(one.value.constant))
            return Number(
                Linear.of("fixed", ast.unparse(node))
                if left.value.is_fixed and right.value.is_fixed
                else self.opaque().length
            )
        for value in (left, right):
            self.touch(value, node)
        return self.opaque()

    def _eval_subscript(self, node: ast.Subscript) -> Abstract:
        base = self.eval(node.value)
        if isinstance(node.slice, ast.Slice):
            return self.cut(node, base, node.slice)
        if isinstance(base, Record) and isinstance(node.slice, ast.Constant):
            return base.get(node.slice.value) or self.opaque()
        passed = self.passed(node)
        if passed is not None:
            return passed
        if (
            isinstance(node.slice, ast.Constant)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "shape"
        ):
            inner = self.eval(node.value.value)
            if isinstance(inner, Seq) and node.slice.value in {0, -1}:
                return Number(inner.length)
        self.touch(base, node)
        self.touch(self.eval(node.slice), node)
        return self.opaque()

    def passed(self, node: ast.expr) -> Passed | None:
        """Return the datasets whose row an expression is, where it is one."""
        found = [
            value.of for value in self.values.of(self.expr(node))
            if isinstance(value, Item) and isinstance(value.of, Inst) and isinstance(value.of.of, Cls)
            and self.values.method(value.of.of, "__getitem__") is not None
        ]  # fmt: skip
        return Passed(tuple(found)) if found else None

    def cut(self, node: ast.Subscript, base: Abstract, at: ast.Slice) -> Abstract:
        if not isinstance(base, Seq):
            return self.opaque()
        if at.step is not None or base.pure:
            self.touch(base, node)
            return self.opaque()
        lower, upper = (None if part is None else self.eval(part) for part in (at.lower, at.upper))
        if not base.runs:
            return replace(self.opaque(), wide=base.wide)
        start, stop = whole(lower), whole(upper)
        if isinstance(upper, Number) and lower is None and upper.value == base.length:
            return base
        if isinstance(lower, Number) and upper is None and lower.value == base.length.times(-1):
            return base
        if start is not None and stop is not None and start >= 0 >= stop:
            shorter = Linear(constant=start - stop)
            return replace(base, length=base.length.plus(shorter, -1), start=base.start + start, stop=base.stop - stop)
        fixed = upper if lower is None else lower
        if (
            isinstance(fixed, Number)
            and fixed.value.is_fixed
            and fixed.value.terms
            and (lower is None or upper is None)
        ):
            if is_full_width(base, fixed.value):
                return base
        self.touch(base, node)
        return self.opaque()

    def _eval_listcomp(self, node: ast.ListComp) -> Abstract:
        generator = node.generators[0]
        source = self.eval(generator.iter)
        if len(node.generators) != 1 or generator.ifs or not isinstance(source, Seq):
            self.touch(source, node)
            return self.opaque()
        if not source.runs:
            return replace(self.opaque(), length=source.length)
        return self.mapped(node, source, generator.target, node.elt)
