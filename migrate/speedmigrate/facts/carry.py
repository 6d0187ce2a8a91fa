"""Write an expression of one place so that it means the same at another (`self.tokenizer.pad_token_id` of a data set ->
`tokenizer.pad_token_id` where the loader is built), or say that it cannot be done."""

from __future__ import annotations

import ast

from speedmigrate.facts.module import FunctionNode, ScopeNode
from speedmigrate.facts.reaching import Binding, all_bindings, reaching
from speedmigrate.facts.value import Cls, Const, Expr, Frame, Inst
from speedmigrate.facts.values import Values

_MAX_STEPS = 12
# Questions to a tokenizer or vocabulary that have one answer however often they are asked.
_LOOK_UPS = frozenset("convert_tokens_to_ids token_to_id piece_to_id PieceToId get_vocab index get".split())


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
        direct = _of_same_object(values, expr, to) or _through_instance(values, expr, to, steps)
        if direct is not None:
            return direct
        base = _carry(values, expr.at(node.value), to, steps + 1)
        return None if base is None else ast.Attribute(base, node.attr, ast.Load())
    if isinstance(node, ast.Name):
        return _name(values, expr, node, to, steps)
    if isinstance(node, ast.UnaryOp):
        inner = _carry(values, expr.at(node.operand), to, steps + 1)
        return None if inner is None else ast.UnaryOp(node.op, inner)
    parts = _parts(node)
    codes = [_carry(values, expr.at(part), to, steps + 1) for part in parts]
    return _rebuilt(node, [code for code in codes if code is not None]) if parts and None not in codes else None


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the operands of arithmetic, of an entry, of a list, of a look-up; none of what may not be repeated."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        return [node.value, node.slice]
    if isinstance(node, ast.List):
        return node.elts
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOK_UPS
    if called and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
        return [node.func.value, *node.args]
    return []


def _rebuilt(node: ast.expr, parts: list[ast.expr]) -> ast.expr:
    if isinstance(node, ast.BinOp):
        return ast.BinOp(parts[0], node.op, parts[1])
    if isinstance(node, ast.Subscript):
        return ast.Subscript(parts[0], parts[1], ast.Load())
    if isinstance(node, ast.List):
        return ast.List(parts, ast.Load())
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Attribute)
    return ast.Call(ast.Attribute(parts[0], node.func.attr, ast.Load()), parts[1:], [])


def _of_same_object(values: Values, expr: Expr, to: Expr) -> ast.expr | None:
    """`self.x`, where `to` is in a method of the very same object and `__init__` alone sets it."""
    assert isinstance(expr.node, ast.Attribute)
    owner = to.frame.receiver if to.frame is not None else None
    if not (isinstance(owner, Inst) and isinstance(owner.of, Cls)) or to.frame is None:
        return None
    arguments = to.frame.func.node.args.args
    given = [given for given, _ in values.assignments(owner.of, expr.node.attr)]
    if not arguments or not given or any(each.function.name != "__init__" for each in given):
        return None
    if values.one(expr.at(expr.node.value)) != owner:
        return None
    return ast.Attribute(ast.Name(arguments[0].arg, ast.Load()), expr.node.attr, ast.Load())


def _through_instance(values: Values, expr: Expr, to: Expr, steps: int) -> ast.expr | None:
    """`self.x`, where the object's `__init__` alone assigned it: carry what was assigned."""
    assert isinstance(expr.node, ast.Attribute)
    owner = values.one(expr.at(expr.node.value))
    if not (isinstance(owner, Inst) and isinstance(owner.of, Cls)):
        return None
    codes: dict[str, ast.expr] = {}
    for given, cls in values.assignments(owner.of, expr.node.attr):
        if given.function.name != "__init__" or given.index is not None:
            return None
        made = Expr(cls.module, given.value, values.init_frame(owner, cls, given.function))
        code = _carry(values, made, to, steps + 1)
        if code is None:
            return None
        codes[ast.unparse(code)] = code
    return next(iter(codes.values())) if len(codes) == 1 else None


def _name(values: Values, expr: Expr, node: ast.Name, to: Expr, steps: int) -> ast.expr | None:
    module, frame = expr.module, expr.frame
    scope: ScopeNode = module.scope(node)
    while not isinstance(scope, ast.Module) and node.id not in module.bound(scope):
        if frame is not None and frame.func.node is scope:
            frame = frame.func.outer
        scope = module.scope(scope)
        if frame is not None and not isinstance(scope, FunctionNode):
            frame = None
    found = reaching(module, scope, node.id, node) if scope is module.scope(node) else all_bindings(scope, node.id)
    if _visible(node.id, found, scope, module is to.module, frame, to):
        return ast.Name(node.id, ast.Load())
    if not found and isinstance(scope, ast.Module) and module is to.module and not _is_bound(node.id, to):
        return ast.Name(node.id, ast.Load())  # a star import brings it, here and there
    if len(found) != 1:
        return None
    binding = next(iter(found))
    if binding.kind == "parameter" and frame is not None:
        argument = values.argument(frame, node.id)
        return None if argument is None else _carry(values, argument, to, steps + 1)
    if binding.kind == "value" and binding.value is not None and not binding.unpack:
        return _carry(values, Expr(module, binding.value, frame), to, steps + 1)
    return None


def _is_bound(name: str, to: Expr) -> bool:
    """Whether a scope around a place binds a name."""
    scope: ScopeNode = to.module.scope(to.node)
    while not isinstance(scope, ast.Module):
        if name in to.module.bound(scope):
            return True
        scope = to.module.scope(scope)
    return name in to.module.bound(scope)


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
