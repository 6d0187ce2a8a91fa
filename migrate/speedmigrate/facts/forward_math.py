"""Arithmetic and comparisons of a forward on axes: masks made of fields, scores and losses that masks meet."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from speedmigrate.facts.axes import (
    KEYS,
    Many,
    Nothing,
    Reach,
    Record,
    Tensor,
    Value,
    Width,
    broadcast,
    clash,
    is_tracked,
    join_all,
    stronger,
)
from speedmigrate.facts.carry import carry
from speedmigrate.facts.forward_expr import Expressions


class Arithmetic(Expressions):
    """Evaluates operators."""

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return None if truth is None else not truth
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        if isinstance(node.op, ast.Invert) and isinstance(value, Tensor):
            return inverted(value)
        if isinstance(value, Width):
            return Width(None)
        return replace(value.computed(), losses=value.losses) if isinstance(value, Tensor) else None

    def _compare(self, node: ast.Compare) -> Value:
        left, right = self.eval(node.left), self.eval(node.comparators[0])
        op = node.ops[0]
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, Record) and isinstance(left, str):
            return any(key == left for key, _ in right.items) == isinstance(op, ast.In)
        if isinstance(op, ast.Is | ast.IsNot):
            if isinstance(right, Nothing) and (isinstance(left, Nothing) or is_tracked(left)):
                return isinstance(left, Nothing) == isinstance(op, ast.Is)
            return None
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return self.compared(node, left, right)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if len(node.ops) == 1 and (numbers or (isinstance(left, str) and isinstance(right, str))):
            found = _COMPARE.get(type(op))
            return found(left, right) if found is not None else None
        if (
            isinstance(left, Width)
            and isinstance(right, int)
            and isinstance(op, ast.Gt | ast.NotEq)
            and right in {0, 1}
        ):
            return True  # `if width > 1`: a batch of training is wider
        return None

    def meet(self, node: ast.AST, left: Tensor, right: Tensor) -> tuple[str, ...]:
        """Return the axes of an operation on two tensors."""
        if clash(left, right):
            self.problem(node, "a table of a fixed size is used whole")
        return broadcast(left.axes, right.axes)

    def compared(self, node: ast.Compare, left: Value, right: Value) -> Value:
        """A comparison with the pad value is a mask; one of positions with positions is a triangle."""
        op = node.ops[0]
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            axes = self.meet(node, left, right)
            both = left.reach == right.reach == "index"
            return Tensor(axes, reach="causal" if both and axes[-1][-1:] == KEYS else "", why=left.why or right.why)
        field, other, code = (
            (left, right, node.comparators[0]) if isinstance(left, Tensor) else (right, left, node.left)
        )
        assert isinstance(field, Tensor)
        equal = self.is_fill(field, other, code)
        plain = field.computed()
        if field.reach in {"drop", "causal"} and isinstance(op, ast.Eq | ast.NotEq | ast.Gt | ast.Lt):
            return plain
        if equal and isinstance(op, ast.NotEq | ast.Gt):
            return replace(plain, key=field.key, fill=0)
        if equal and isinstance(op, ast.Eq):
            return replace(plain, reach="drop")
        return plain

    def is_fill(self, tensor: Tensor, value: Value, node: ast.expr) -> bool:
        """Whether an expression is what the pads of a tensor hold."""
        if tensor.fill is not None and isinstance(value, int | float | str):
            return value == tensor.fill
        if tensor.key is None or value is not None or self.read.pads[tensor.key].constant is not None:
            return False
        return carry(self.values, self.at(node), self.read.place) == self.read.pads[tensor.key].code

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        if isinstance(node.op, ast.MatMult):
            return self.product(node, left, right)
        if isinstance(left, tuple) and isinstance(right, tuple) and isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Add) and any(
            isinstance(each, tuple | Many) and is_tracked(each) for each in (left, right)
        ):
            return Many(
                join_all([each.of if isinstance(each, Many) else each for each in (*_flat(left), *_flat(right))])
            )
        if isinstance(left, tuple) and isinstance(node.op, ast.Mult):
            return Many(join_all(left))
        if isinstance(left, Width) or isinstance(right, Width):
            return self.with_width(node, left, right)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return self.arithmetic(node, left, right)
        if isinstance(left, int | float) and isinstance(right, int | float) and type(node.op) in _ARITHMETIC:
            found: int | float = _ARITHMETIC[type(node.op)](left, right)
            return found
        return None

    def product(self, node: ast.AST, left: Value, right: Value) -> Value:
        raise NotImplementedError

    def with_width(self, node: ast.BinOp, left: Value, right: Value) -> Value:
        """The width may be shifted, and multiplied by the rows; any other arithmetic reads it."""
        if isinstance(left, Tensor) and not left.is_padded and isinstance(node.op, ast.Div):
            return replace(left, why=left.why or self.hop(node, "it is divided by the padded width"))
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            self.problem(node, "the padded width is computed with")
            return None
        if isinstance(left, Width) and isinstance(right, Width):
            if isinstance(node.op, ast.Sub) and left == right and left.offset is not None:
                return 0
            return Width(None, times=isinstance(node.op, ast.Mult))
        width, other = (left, right) if isinstance(left, Width) else (right, left)
        assert isinstance(width, Width)
        if isinstance(node.op, ast.Mult):
            return replace(width, times=True)
        if isinstance(node.op, ast.Add | ast.Sub) and isinstance(left, Width):
            shift = other if isinstance(other, int) else None
            if shift is None or width.offset is None:
                return Width(None, prefix=True)
            return replace(width, offset=width.offset + (shift if isinstance(node.op, ast.Add) else -shift))
        if isinstance(node.op, ast.Add):
            return replace(
                width, offset=None if not isinstance(other, int) or width.offset is None else width.offset + other
            )
        if not isinstance(node.op, ast.Sub):
            self.problem(node, "the padded width is computed with")
        return Width(None)

    def arithmetic(self, node: ast.BinOp, left: Value, right: Value) -> Value:
        tensors = [value for value in (left, right) if isinstance(value, Tensor)]
        if len(tensors) == 2:
            return self.combined(node, tensors[0], tensors[1])
        tensor, other = tensors[0], right if isinstance(left, Tensor) else left
        if isinstance(node.op, ast.Mult) and other == 0:
            return replace(tensor, why=None, wrong=None, key=None, fill=0)
        if isinstance(node.op, ast.Sub) and other == 1 and isinstance(right, Tensor):
            return inverted(tensor)
        scaled = isinstance(node.op, ast.Mult | ast.Div)
        if tensor.reach == "drop" and scaled:
            # Added to scores, a small number only makes pads less likely.
            weak = isinstance(other, int | float) and abs(other) < _HIDING
            return replace(tensor, reach="" if weak else "pads", key=None, fill=None)
        kept = tensor.losses, tensor.weights
        fill = 0 if scaled and tensor.is_zero else None
        return replace(tensor, key=None, fill=fill, losses=kept[0], weights=kept[1])

    def combined(self, node: ast.BinOp, left: Tensor, right: Tensor) -> Value:
        """Two tensors element by element: pads that one of a product has at 0 are 0."""
        product = isinstance(node.op, ast.Mult | ast.BitAnd | ast.Div)
        zero = (
            left.is_zero or (right.is_zero and not isinstance(node.op, ast.Div))
            if product
            else left.is_zero and right.is_zero
        )
        reach: Reach = stronger(left.reach, right.reach)
        if isinstance(node.op, ast.BitAnd) and reach == "drop" and left.reach != right.reach:
            reach = ""
        if {left.reach, right.reach} & {"index"} and reach == "index":
            reach = "index" if not (left.is_padded and right.is_padded and left.reach != right.reach) else ""
        axes = self.meet(node, left, right)
        losses = left.losses or right.losses
        if losses and right.key is not None and product:
            self.read.counted.setdefault(right.key, self.hop(node, "the loss of every token is weighed"))
        if losses and left.key is not None and product:
            self.read.counted.setdefault(left.key, self.hop(node, "the loss of every token is weighed"))
        cut = left.cut or right.cut
        if losses and (right.cut if left.losses else left.cut):
            self.problem(node, "the mask loses its last position, which is real once the padding is gone")
        why, wrong = left.why or right.why, left.wrong or right.wrong
        weights, is_count = left.weights or right.weights, left.is_count and right.is_count
        return Tensor(axes, None, 0 if zero else None, reach, weights, losses, cut, why, wrong, is_count=is_count)


def _flat(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def inverted(tensor: Tensor) -> Tensor:
    """`1 - mask` and `~mask`: what was 0 on pads is true on pads."""
    if tensor.is_zero:
        return replace(tensor, key=None, fill=None, reach="drop")
    if tensor.reach == "drop":
        return replace(tensor, key=None, fill=0, reach="")
    return tensor.computed()


# What is added to scores hides a position from this size on.
_HIDING = 1e3
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}
