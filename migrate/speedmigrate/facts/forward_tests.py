"""Tests of the padded width in a forward on axes: what they demand of it, and what they decide."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.axes import Value, Width
from speedmigrate.facts.forward_calls import Calls

_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip


class Tests(Calls):
    """Evaluates tests."""

    def demand(self, test: ast.expr, *, fails: bool) -> None:
        """At most so many positions may be demanded, and that there is one at least.

        Args:
            fails: whether the run stops where the test holds, not where it does not.
        """
        for op, other in self.widths(test):
            word = _OPPOSITE.get(op, op) if fails else op
            is_least = word in {ast.Gt, ast.GtE, ast.NotEq} and isinstance(other, int) and other <= 1
            if word not in {ast.Lt, ast.LtE} and not is_least:
                self.problem(test, "a width is demanded")

    def decides(self, test: ast.expr) -> None:
        if any(self.widths(test)):
            self.problem(test, "the padded width decides what is computed")

    def widths(self, test: ast.expr) -> Iterator[tuple[type[ast.cmpop], Value]]:
        """Yield what the padded width is compared with in a test, the width on the left."""
        for node in ast.walk(test):
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                left, right = self.eval(node.left), self.eval(node.comparators[0])
                op, pairs = type(node.ops[0]), [(left, right)]
                if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
                    pairs = list(zip(left, right, strict=True))
                for one, other in pairs:
                    if isinstance(one, Width) and not isinstance(other, Width):
                        yield op, other
                    elif isinstance(other, Width) and not isinstance(one, Width):
                        yield _MIRRORED.get(op, op), one

    def _ifexp(self, node: ast.IfExp) -> Value:
        if self.truth(self.eval(node.test)) is None and self.eval(node.body) != self.eval(node.orelse):
            self.decides(node.test)
        return super()._ifexp(node)
