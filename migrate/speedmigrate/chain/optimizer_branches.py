"""Whether a call stands in a branch that the defaults of the flags leave off."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from speedmigrate.chain.framework import calls_of
from speedmigrate.chain.precision_settings import attribute_of, launches
from speedmigrate.facts.arguments import argparse_flag
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Const, Expr, Ext, Inst, Value

_NAMESPACE = Ext("argparse.Namespace")
_ORDERS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
}  # fmt: skip


def is_off(entry: EntryFacts, site: Site) -> bool:
    """Say whether a call needs a flag that no launch gives and whose default leaves it out."""
    module, child = site.module, site.node
    current: ast.AST = child
    for parent in module.ancestors(child):
        if isinstance(parent, ast.If | ast.IfExp):
            truth = truth_of(entry, site.expr.at(parent.test)) if parent.test is not current else None
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            if truth is not None and truth is not (current in body):
                return True
        if isinstance(parent, FunctionNode | ast.Lambda):
            break
        current = parent
    return False


def truth_of(entry: EntryFacts, test: Expr, *, flags: bool = True) -> bool | None:
    """Return what a condition is where no flag is given (`flags=False`: whatever is given), None where it depends."""
    node = test.node
    if isinstance(node, ast.BoolOp):
        parts = [truth_of(entry, test.at(part), flags=flags) for part in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth_of(entry, test.at(node.operand), flags=flags)
        return None if inner is None else not inner
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and flags:
        left, right = (_constant(entry, test.at(part), flags) for part in (node.left, node.comparators[0]))
        if left is None or right is None:
            return None
        return _compare(node.ops[0], left[0], right[0])
    found = _constant(entry, test, flags)
    return None if found is None else bool(found[0])


def _compare(op: ast.cmpop, left: object, right: object) -> bool | None:
    if isinstance(op, ast.Eq | ast.Is):
        return left == right
    if isinstance(op, ast.NotEq | ast.IsNot):
        return left != right
    if isinstance(left, int | float) and isinstance(right, int | float) and type(op) in _ORDERS:
        return _ORDERS[type(op)](left, right)
    return None


def _one(entry: EntryFacts, expr: Expr) -> Value | None:
    """Return the one value of an expression, that of a `Namespace` filled from a file left out."""
    kept = [
        value
        for value in entry.values.of(expr)
        if not (isinstance(value, Attr) and isinstance(value.of, Inst) and value.of.of == _NAMESPACE)
    ]
    return kept[0] if len(kept) == 1 else None


def _constant(entry: EntryFacts, expr: Expr, flags: bool) -> tuple[object] | None:
    """Return the constant that an expression is: a literal, with `flags` the default of a flag that no launch gives."""
    if not flags:
        found = entry.values.one(expr)
        return (found.value,) if isinstance(found, Const) else None
    name = expr.node.attr if isinstance(expr.node, ast.Attribute) else ""
    if name and any(launch.flag(name) is not None for launch in launches(entry)):
        return None
    if name == "deepspeed" and calls_of(entry, "deepspeed.add_config_arguments"):
        return (False,)
    value = _one(entry, expr)
    if isinstance(value, Const):
        return (value.value,)
    flag = argparse_flag(entry, value) if value is not None and attribute_of(value) else None
    if flag is None:
        return None
    action = call_argument(flag.call.node, None, "action") if isinstance(flag.call.node, ast.Call) else None
    if isinstance(action, ast.Constant) and action.value in {"store_true", "store_false"} and flag.default is None:
        return (action.value == "store_false",)
    if flag.default is None and flag.default_expr is not None and not isinstance(flag.default_expr.node, ast.Constant):
        return None
    return (flag.default,)
