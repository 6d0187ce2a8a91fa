"""Expressions of a row: what concatenation, slices, conversions, comparisons and helpers of the root do to a
sequence."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from speedmigrate.facts.linear import Linear
from speedmigrate.facts.reaching import Binding, reaching
from speedmigrate.facts.rowbase import Abstracts
from speedmigrate.facts.rowvalue import (
    Abstract,
    Number,
    Passed,
    Record,
    Run,
    Seq,
    is_full_width,
    is_position,
    is_wide,
    reads,
    whole,
)
from speedmigrate.facts.value import Cls, Expr, Inst, Item

COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_ORDERS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


class Expressions(Abstracts):
    """Evaluates the expressions of one function over abstract values."""

    def _eval_call(self, node: ast.Call) -> Abstract:
        raise NotImplementedError

    def mapped(self, node: ast.expr, source: Seq, target: ast.expr, element: ast.expr) -> Abstract:
        raise NotImplementedError

    def element_wise(self, node: ast.BinOp, left: Abstract, right: Abstract) -> Abstract | None:
        raise NotImplementedError

    def shape_of(self, base: Seq, axis: object) -> Number | None:
        raise NotImplementedError

    def pads(self, node: ast.expr, value: ast.expr | Expr, times: Number) -> Seq | None:
        raise NotImplementedError

    def run(self) -> None:
        """Read the function's body."""
        raise NotImplementedError

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
        if any(isinstance(element, ast.Starred) for element in node.elts):
            return self.spread(node)
        for element in node.elts:
            self.touch(self.eval(element), node)
        return Seq(Linear(constant=len(node.elts)))

    def spread(self, node: ast.List) -> Abstract:
        """`[*ids, *pads]`."""
        found = [self.eval(element.value if isinstance(element, ast.Starred) else element) for element in node.elts]
        length = Linear()
        for element, value in zip(node.elts, found, strict=True):
            part = value.length if isinstance(element, ast.Starred) and isinstance(value, Seq) else Linear(constant=1)
            length = length.plus(part)
        last, *others = reversed(found)
        if isinstance(last, Seq) and last.pure and isinstance(node.elts[-1], ast.Starred):
            for value in others:
                self.touch(value, node)
            self.drop(node, None, code=f"[{', '.join(self.module.text(element) for element in node.elts[:-1])}]")
            return Seq(length, last.runs)
        for value in found:
            self.touch(value, node)
        spread = [v for e, v in zip(node.elts, found, strict=True) if isinstance(e, ast.Starred)]
        return Seq(length, wide=any(map(is_wide, spread)))

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
        if len(node.ops) == 1 and isinstance(left, Seq) and left.runs and type(node.ops[0]) in COMPARISONS:
            return self.compared(node, left, node.comparators[0], type(node.ops[0]))
        for value in (left, right):
            is_length = isinstance(value, Number)
            self.touch(value, node, reading=not is_length or self.is_bound(node, left, right))
        return self.opaque()

    def is_bound(self, node: ast.Compare, left: Abstract, right: Abstract) -> bool:
        """Whether a test only asks if something is longer than the fixed length, as nothing padded is."""
        if len(node.ops) != 1 or not isinstance(left, Number) or not isinstance(right, Number):
            return False
        if isinstance(node.ops[0], ast.Gt | ast.LtE):
            length, bound = left, right
        elif isinstance(node.ops[0], ast.Lt | ast.GtE):
            length, bound = right, left
        else:
            return False
        padded = [v for v in self.env.values() if isinstance(v, Seq) and v.runs and v.length == length.value]
        return not bound.padded and any(is_full_width(value, bound.value) for value in padded)

    def compared(self, node: ast.expr, base: Seq, other: ast.expr, op: type[ast.cmpop]) -> Abstract:
        """`ids.ne(pad)`, `ids != pad`, `ids >= 0`: what every pad of the sequence becomes."""
        same = all(self.is_same(run.value.node, other) for run in base.runs)
        number = self.number(other)
        found = None
        if same:
            found = replace(base, runs=tuple(self._answered(run, op, node) for run in base.runs))
        elif number is not None:
            found = self.over(base, node, lambda pad: COMPARISONS[op](pad, number))
        if found is None:
            self.touch(base, node)
            return self.opaque()
        return replace(found, array=True, promoted=False, floats=False, root=None)

    def _answered(self, run: Run, op: type[ast.cmpop], node: ast.AST) -> Run:
        return replace(run, value=self.constant(op in {ast.Eq, ast.GtE, ast.LtE}, node))

    def is_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Whether two expressions read the same, every name in them bound by the same statements."""
        if ast.unparse(one) != ast.unparse(other):
            return False
        names, others = ([n for n in ast.walk(each) if isinstance(n, ast.Name)] for each in (one, other))
        return all(self.bound(n) == self.bound(m) for n, m in zip(names, others, strict=True))

    def bound(self, node: ast.AST) -> frozenset[Binding]:
        assert isinstance(node, ast.Name)
        return reaching(self.module, self.module.scope(node), node.id, node)

    def _eval_unaryop(self, node: ast.UnaryOp) -> Abstract:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, Number):
            return Number(value.value.times(-1), value.padded)
        if isinstance(node.op, ast.Invert) and isinstance(value, Seq) and value.runs:
            found = self.over(value, node, lambda pad: not pad if isinstance(pad, bool) else ~int(pad))
            if found is not None:
                return found
        self.touch(value, node, reading=isinstance(node.op, ast.Not))
        return self.opaque()

    def _eval_ifexp(self, node: ast.IfExp) -> Abstract:
        self.touch(self.eval(node.test), node.test)
        with self.knowing(node.test, True):
            body = self.eval(node.body)
        with self.knowing(node.test, False):
            return self.merge(body, self.eval(node.orelse), node)

    @contextmanager
    def knowing(self, test: ast.expr, verdict: bool) -> Iterator[None]:
        """Note what is not negative where a test came out so."""
        known = len(self.room_left)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _ORDERS):
            left, right = self.eval(test.left), self.eval(test.comparators[0])
            more = isinstance(test.ops[0], ast.Gt | ast.GtE)
            if isinstance(left, Number) and isinstance(right, Number):
                sign = 1 if more is verdict else -1
                self.room_left.append(left.value.plus(right.value, -1).times(sign))
        yield
        del self.room_left[known:]

    def _eval_binop(self, node: ast.BinOp) -> Abstract:
        left, right = self.eval(node.left), self.eval(node.right)
        found = self.element_wise(node, left, right)
        if found is not None:
            return found
        if isinstance(node.op, ast.Mult):
            return self.repeat(node, left, right)
        if isinstance(left, Number) and isinstance(right, Number) and isinstance(node.op, ast.Add | ast.Sub):
            sign = -1 if isinstance(node.op, ast.Sub) else 1
            return Number(left.value.plus(right.value, sign), left.padded or right.padded)
        is_array = any(isinstance(value, Seq) and value.array for value in (left, right))
        if isinstance(node.op, ast.Add) and not is_array and (isinstance(left, Seq) or isinstance(right, Seq)):
            left = left if isinstance(left, Seq) else self.opaque()
            right = right if isinstance(right, Seq) else self.opaque()
            return self.join_ends(left, right, node, (node.left, node.right))
        for value in (left, right):
            self.touch(value, node)
        return replace(self.opaque(), wide=is_wide(left) or is_wide(right))

    def repeat(self, node: ast.BinOp, left: Abstract, right: Abstract) -> Abstract:
        """`[value] * n`: padding where `n` is a gap."""
        display, times = (node.left, right) if isinstance(node.left, ast.List | ast.Tuple) else (node.right, left)
        if isinstance(display, ast.List | ast.Tuple) and isinstance(times, Seq) and not times.runs:
            return self.opaque()
        if isinstance(display, ast.List | ast.Tuple) and isinstance(times, Number):
            width = times.value.times(len(display.elts))
            pads = self.pads(node, display.elts[0], times) if len(display.elts) == 1 else None
            return pads or Seq(width, wide=times.padded or (times.value.is_fixed and bool(times.value.terms)))
        if isinstance(left, Number) and isinstance(right, Number):
            for one, other in ((left, right), (right, left)):
                if not one.value.terms:
                    return Number(other.value.times(one.value.constant), other.padded)
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
            size = self.shape_of(inner, node.slice.value) if isinstance(inner, Seq) else None
            if size is not None:
                return size
        self.touch(base, node)
        self.touch(self.eval(node.slice), node)
        return replace(self.opaque(), array=isinstance(node.slice, ast.Compare))

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
            for bound in (lower, upper):
                if bound is not None:
                    self.touch(bound, node)
            return replace(self.opaque(), length=self.shorter(base, lower, upper), wide=base.wide, array=base.array)
        if isinstance(upper, Number) and not upper.padded and upper.value == base.length.plus(base.runs[0].width, -1):
            if len(base.runs) == 1 and base.runs[0].side == "right" and (lower is None or is_position(lower)):
                return replace(self.opaque(), array=base.array)
        start, stop = whole(lower), whole(upper)
        if isinstance(upper, Number) and lower in (None, Number(Linear())) and upper.value == base.length:
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

    def shorter(self, base: Seq, lower: Abstract | None, upper: Abstract | None) -> Linear:
        """Return how long `base[:n]` is: the same for two sequences of one length that are cut alike."""
        cut = upper if lower is None else lower if upper is None else None
        if not isinstance(cut, Number) or cut.padded:
            return self.opaque().length
        side = "[:" if lower is None else "["
        return Linear.of("len", f"{base.length.text}{side}{cut.value.text}]")

    def _eval_generatorexp(self, node: ast.GeneratorExp) -> Abstract:
        return self._eval_listcomp(node)

    def _eval_listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Abstract:
        generator = node.generators[0]
        times = self.counted(generator.iter)
        if times is not None and len(node.generators) == 1 and not generator.ifs:
            pads = None if reads(node.elt, {ast.unparse(generator.target)}) else self.pads(node, node.elt, times)
            self.read_by(node.elt)
            return pads or Seq(times.value, wide=is_wide(times))
        source = self.eval(generator.iter)
        if len(node.generators) != 1 or generator.ifs or not isinstance(source, Seq):
            self.touch(source, node)
            return self.opaque()
        if not source.runs:
            self.read_by(node.elt)
            return replace(self.opaque(), length=source.length)
        return self.mapped(node, source, generator.target, node.elt)

    def read_by(self, element: ast.expr) -> None:
        """Padded data that the element of a comprehension reads is not followed."""
        for child in ast.walk(element):
            if isinstance(child, ast.Name) and child.id in self.env:
                self.touch(self.env[child.id], element)

    def counted(self, node: ast.expr) -> Number | None:
        """Return the `n` of `range(n)`."""
        if not (isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) == "range"):
            return None
        found = self.eval(node.args[0])
        return found if isinstance(found, Number) else None
