"""What a call gets through `**`: a dict that is written out where it is made, and what is stored in it afterwards."""

from __future__ import annotations

import ast

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import Display, Expr, Ext, Inst, Value
from speedmigrate.facts.values import Values

Given = tuple[tuple[str, Expr], ...]
# Methods of a dict that leave its keys as they are.
_READING = frozenset({"get", "items", "keys", "values", "copy"})


def spread_arguments(values: Values, call: Expr) -> Given | None:
    """Return everything that a call can get through `**`, by name; None where it is not followed."""
    assert isinstance(call.node, ast.Call)
    found: list[tuple[str, Expr]] = []
    if any(isinstance(argument, ast.Starred) for argument in call.node.args):
        return None
    for keyword in call.node.keywords:
        if keyword.arg is None:
            stored = _stored(call.at(keyword.value))
            held = [_held(values, value) for value in values.of(call.at(keyword.value))]
            if stored is None or not held:
                return None
            for each in held:
                if each is None:
                    return None
                found += each
            found += stored
    return tuple(dict.fromkeys(found))


def _held(values: Values, value: Value) -> Given | None:
    """Return the items of a dict display or of `dict(...)`, those stored in it where it is made included."""
    if isinstance(value, Display) and isinstance(value.expr.node, ast.Dict):
        expr, node = value.expr, value.expr.node
        keys = [values.key(expr.at(key)) if key is not None else None for key in node.keys]
        found = [(key, expr.at(item)) for key, item in zip(keys, node.values, strict=True) if isinstance(key, str)]
        if len(found) < len(keys):
            return None
    elif isinstance(value, Inst) and value.of == Ext("builtins.dict") and isinstance(value.call.node, ast.Call):
        expr, call = value.call, value.call.node
        found = [(keyword.arg, expr.at(keyword.value)) for keyword in call.keywords if keyword.arg is not None]
        if call.args or len(found) < len(call.keywords):
            return None
    else:
        return None
    statement = expr.module.statement(expr.node)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    stored = _stored(expr.at(target)) if target is not None else ()
    return None if stored is None else (*found, *stored)


def _stored(expr: Expr) -> Given | None:
    """Return what is stored by key in the dict that a name holds; None where its keys change in another way."""
    if not isinstance(expr.node, ast.Name):
        return ()
    module, name = expr.module, expr.node.id
    scope: ast.AST = module.scope(expr.node)
    found: list[tuple[str, Expr]] = []
    for node in own_nodes(scope) if isinstance(scope, FunctionNode | ast.Module) else ():
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
            continue
        parent = module.parents[node]
        above = module.parents[parent]
        if isinstance(parent, ast.Attribute) and isinstance(above, ast.Call) and parent.attr not in _READING:
            return None
        if isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
            key = parent.slice.value if isinstance(parent.slice, ast.Constant) else None
            if not (isinstance(above, ast.Assign) and isinstance(key, str)):
                return None
            found.append((key, expr.at(above.value)))
    return tuple(found)
