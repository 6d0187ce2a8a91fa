"""To what length something is filled up: a fixed one, or the longest of what is at hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from speedmigrate.facts.reaching import reaching, targets
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.facts.value import Cls, Expr, Inst
from speedmigrate.facts.values import Values

Width = Literal["static", "longest"]
_LONGEST = frozenset({"max", "amax", "len", "size", "numel", "max_length_of", "cumsum"})
_SIZES = frozenset({"shape", "ndim"})
_DEPTH = 6


def gap(values: Values, expr: Expr, depth: int = 0) -> Expr | None:
    """Return the length that an amount of padding fills up to: `width` of `width - len(ids)`, through names, calls of
    `max` and `int`, and parameters."""
    node = expr.node
    if depth > _DEPTH:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        inner = gap(values, expr.at(node.left), depth + 1)
        if inner is not None:
            return inner
        return expr.at(node.left) if _measures(values, expr.at(node.right), depth) else None
    if isinstance(node, ast.BinOp):
        return gap(values, expr.at(node.left), depth + 1) or gap(values, expr.at(node.right), depth + 1)
    if isinstance(node, ast.Call) and called_name(node) in {"max", "int", "abs"}:
        return next((found for arg in node.args for found in [gap(values, expr.at(arg), depth + 1)] if found), None)
    if isinstance(node, ast.Tuple | ast.List):
        return next((found for arg in node.elts for found in [gap(values, expr.at(arg), depth + 1)] if found), None)
    if isinstance(node, ast.IfExp):
        return gap(values, expr.at(node.body), depth + 1) or gap(values, expr.at(node.orelse), depth + 1)
    if isinstance(node, ast.Name):
        return next((found for e in followed(values, expr) for found in [gap(values, e, depth + 1)] if found), None)
    return None


def _measures(values: Values, expr: Expr, depth: int) -> bool:
    """Say whether an expression is the length of something."""
    for node in ast.walk(expr.node):
        if isinstance(node, ast.Call) and called_name(node) in {"len", "size", "numel", "sum"}:
            return True
        if isinstance(node, ast.Attribute) and node.attr in _SIZES:
            return True
        if isinstance(node, ast.Name) and depth < _DEPTH:
            if any(_measures(values, found, depth + 2) for found in _sources(values, expr.at(node))):
                return True
    return False


def _sources(values: Values, expr: Expr) -> Iterator[Expr]:
    """Yield what a name stands for, is taken from in a loop, or has appended."""
    yield from followed(values, expr)
    node, module = expr.node, expr.module
    if not isinstance(node, ast.Name):
        return
    scope = module.function(node) or module.tree
    for binding in reaching(module, scope, node.id, node):
        if binding.kind == "element" and binding.value is not None:
            yield expr.at(binding.value)
        elif isinstance(binding.value, ast.List) and not binding.value.elts:
            for child in own_nodes(scope):
                if isinstance(child, ast.Call) and called_name(child) == "append" and child.args:
                    if isinstance(child.func, ast.Attribute) and ast.unparse(child.func.value) == node.id:
                        yield expr.at(child.args[0])
    for parent in module.ancestors(node):
        for generator in getattr(parent, "generators", ()):
            if any(name == node.id for name, _ in targets(generator.target)):
                yield expr.at(generator.iter)


def width(values: Values, expr: Expr) -> Width:
    """Say whether a length is the longest of some rows, or the same for all."""
    return "longest" if _is_longest(values, expr, 0) else "static"


def _is_longest(values: Values, expr: Expr, depth: int) -> bool:
    node = expr.node
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name in _LONGEST and any(_is_measured(child) for child in ast.walk(node)):
            return True
        if name in {"amax", "item"} or (name == "max" and len(node.args) == isinstance(node.func, ast.Name)):
            return True
    if isinstance(node, ast.Attribute):
        return node.attr in _SIZES
    if isinstance(node, ast.Name):
        return depth < _DEPTH and any(_is_longest(values, found, depth + 1) for found in followed(values, expr))
    parts = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    return any(_is_longest(values, expr.at(part), depth) for part in parts)


def _is_measured(node: ast.AST) -> bool:
    """Say whether a node is a length: `len(x)`, `len` handed to `map`, `x.shape`, `x.size(1)`."""
    if isinstance(node, ast.Name):
        return node.id == "len"
    return isinstance(node, ast.Attribute) and node.attr in {*_SIZES, "size"}


def source(values: Values, expr: Expr) -> Expr:
    """Follow a length to where it comes from: through names, parameters, attributes that an `__init__` sets."""
    for _ in range(_DEPTH):
        found = list(followed(values, expr)) if isinstance(expr.node, ast.Name) else list(_attribute(values, expr))
        if len(found) != 1:
            break
        expr = found[0]
    return expr


def _attribute(values: Values, expr: Expr) -> Iterator[Expr]:
    owner = values.one(expr.at(expr.node.value)) if isinstance(expr.node, ast.Attribute) else None
    if isinstance(owner, Inst) and isinstance(owner.of, Cls) and isinstance(expr.node, ast.Attribute):
        for given, cls in values.assignments(owner.of, expr.node.attr):
            if given.function.name == "__init__" and given.index is None:
                yield Expr(cls.module, given.value, values.init_frame(owner, cls, given.function))


def followed(values: Values, expr: Expr) -> Iterator[Expr]:
    """Yield the expressions that a local name or parameter stands for."""
    node, module = expr.node, expr.module
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    scope = module.scope(node)
    while isinstance(scope, ast.Lambda | ast.ClassDef):
        scope = module.scope(scope)
    for binding in reaching(module, scope, node.id, node):
        if binding.kind in {"value", "augmented"} and binding.value is not None and not binding.unpack:
            yield expr.at(binding.value)
        elif binding.kind == "value" and isinstance(binding.value, ast.Tuple) and len(binding.unpack) == 1:
            yield expr.at(binding.value.elts[binding.unpack[0]])
        elif binding.kind == "value" and isinstance(binding.value, ast.Attribute) and binding.value.attr == "shape":
            yield expr.at(binding.value)
        elif binding.kind == "parameter" and expr.frame is not None and expr.frame.func.node is scope:
            argument = values.argument(expr.frame, node.id)
            if argument is not None:
                yield argument
