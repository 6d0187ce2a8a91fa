"""The base of `Values`: answers are remembered, chains are bounded; the parts above it say how each kind is
followed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from speedmigrate.facts.project import Project
from speedmigrate.facts.syntax import Assigned
from speedmigrate.facts.value import Const, Expr, Frame, Func, Unknown, Value

MAX_DEPTH = 24
MAX_VALUES = 12
MAX_STEPS = 100


class Resolver:
    """Resolves expressions of one project."""

    def __init__(self, project: Project) -> None:
        # A chain of names is followed by recursion, about eight Python frames a step.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
        self.project = project
        self._depth = 0
        self._memo: dict[tuple[int, Frame | None], tuple[Value, ...]] = {}
        self._properties: dict[ast.ClassDef, dict[str, Func]] = {}
        self._attributes: dict[ast.ClassDef, dict[str, list[Assigned]]] = {}

    def of(self, expr: Expr) -> tuple[Value, ...]:
        """Return every value that `expr` can have (never empty)."""
        key = (id(expr.node), expr.frame)
        if key not in self._memo:
            self._memo[key] = (Unknown("it depends on itself", expr.hop("here")),)
            self._depth += 1
            try:
                found = tuple(dict.fromkeys(self._of(expr))) if self._depth <= MAX_STEPS else ()
            finally:
                self._depth -= 1
            if len(found) > 1:
                found = tuple(v for v in found if not (isinstance(v, Unknown) and v.reason == "it depends on itself"))
            self._memo[key] = found[:MAX_VALUES] or (Unknown("nothing reaches this place", expr.hop(expr.text[:60])),)
        return self._memo[key]

    def one(self, expr: Expr) -> Value:
        """Return the value of `expr` where it has just one, else Unknown."""
        found = self.of(expr)
        return found[0] if len(found) == 1 else Unknown("it may be one of several", expr.hop(expr.text[:60]))

    def key(self, expr: Expr) -> object:
        value = self.one(expr)
        return value.value if isinstance(value, Const) else None

    def _of(self, expr: Expr) -> Iterator[Value]:
        raise NotImplementedError

    def returned(self, frame: Frame) -> Iterator[Value]:
        """Yield what a function of the root returns in this call."""
        raise NotImplementedError
