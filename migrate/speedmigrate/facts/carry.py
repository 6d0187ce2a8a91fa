"""Write an expression of one place so that it means the same at another (`self.tokenizer.pad_token_id` of a data set ->
`tokenizer.pad_token_id` where the loader is built), or say that it cannot be done."""

from __future__ import annotations

import ast

from speedmigrate.facts.module import FunctionNode, ScopeNode
from speedmigrate.facts.reaching import Binding, reaching
from speedmigrate.facts.value import Cls, Const, Expr, Frame, Inst
from speedmigrate.facts.values import Values

_MAX_STEPS = 12


def carry(values: Values, expr: Expr, to: Expr) -> str | None:
    """Return code that has the value of `expr` at the place of `to`, or None where none is found."""
    found = _carry(values, expr, to, 0)
    return None if found is None else ast.unparse(found)


def _carry(values: Values, expr: Expr, to: Expr, steps: int) -> ast.expr | None:
    node = expr.node
    constant = values.one(expr)
    if isinstance(constant, Const) and isinstance(constant.value, int | float | str | bool | None):
        return ast.parse(repr(constant.value), mode="eval").body
    if steps > _MAX_STEPS:
        return None
    if isinstance(node, ast.Attribute):
        direct = _through_instance(values, expr, to, steps)
        if direct is not None:
            return direct
        base = _carry(values, expr.at(node.value), to, steps + 1)
        return None if base is None else ast.Attribute(base, node.attr, ast.Load())
    if isinstance(node, ast.Name):
        return _name(values, expr, node, to, steps)
    if isinstance(node, ast.UnaryOp):
        inner = _carry(values, expr.at(node.operand), to, steps + 1)
        return None if inner is None else ast.UnaryOp(node.op, inner)
    return None


def _through_instance(values: Values, expr: Expr, to: Expr, steps: int) -> ast.expr | None:
    """`self.x`, where the object's `__init__` assigned it once: carry what was assigned."""
    assert isinstance(expr.node, ast.Attribute)
    owner = values.one(expr.at(expr.node.value))
    if not (isinstance(owner, Inst) and isinstance(owner.of, Cls)):
        return None
    found = list(values.assignments(owner.of, expr.node.attr))
    if len(found) != 1:
        return None
    given, cls = found[0]
    if given.function.name != "__init__" or given.index is not None:
        return None
    made = Expr(cls.module, given.value, values.init_frame(owner, cls, given.function))
    return _carry(values, made, to, steps + 1)


def _name(values: Values, expr: Expr, node: ast.Name, to: Expr, steps: int) -> ast.expr | None:
    module, frame = expr.module, expr.frame
    scope: ScopeNode = module.scope(node)
    while not isinstance(scope, ast.Module) and node.id not in module.bound(scope):
        scope = module.scope(scope)
        if frame is not None and not isinstance(scope, FunctionNode):
            frame = None
    found = reaching(module, scope, node.id, node if scope is module.scope(node) else None)
    if _visible(node.id, found, scope, module is to.module, frame, to):
        return ast.Name(node.id, ast.Load())
    if len(found) != 1:
        return None
    binding = next(iter(found))
    if binding.kind == "parameter" and frame is not None:
        argument = values.argument(frame, node.id)
        return None if argument is None else _carry(values, argument, to, steps + 1)
    if binding.kind == "value" and binding.value is not None and not binding.unpack:
        return _carry(values, Expr(module, binding.value, frame), to, steps + 1)
    return None


def _visible(
    name: str, found: frozenset[Binding], scope: ScopeNode, same_file: bool, frame: Frame | None, to: Expr
) -> bool:
    """Whether `name` at `to` has the very same bindings."""
    if not same_file or not found:
        return False
    there: ScopeNode = to.module.scope(to.node)
    while not isinstance(there, ast.Module) and name not in to.module.bound(there):
        there = to.module.scope(there)
    if there is not scope:
        return False
    if not isinstance(scope, ast.Module) and frame != to.frame:
        return False
    here = to.node if there is to.module.scope(to.node) else None
    return reaching(to.module, there, name, here) == found
