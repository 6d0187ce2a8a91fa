"""Whether a call stands in a branch that the defaults of the flags leave off."""

from __future__ import annotations

import ast

from speedmigrate.chain.framework import calls_of
from speedmigrate.chain.precision_settings import attribute_of, launches
from speedmigrate.facts.arguments import argparse_flag
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Const, Expr


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


def truth_of(entry: EntryFacts, test: Expr) -> bool | None:
    """Return what a condition is where no flag is given, None where it cannot be told."""
    node = test.node
    if isinstance(node, ast.BoolOp):
        parts = [truth_of(entry, test.at(part)) for part in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth_of(entry, test.at(node.operand))
        return None if inner is None else not inner
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = (_constant(entry, test.at(part)) for part in (node.left, node.comparators[0]))
        if left is None or right is None:
            return None
        return _compare(node.ops[0], left[0], right[0])
    found = _constant(entry, test)
    return None if found is None else bool(found[0])


def _compare(op: ast.cmpop, left: object, right: object) -> bool | None:
    if isinstance(op, ast.Eq | ast.Is):
        return left == right
    if isinstance(op, ast.NotEq | ast.IsNot):
        return left != right
    return None


def _constant(entry: EntryFacts, expr: Expr) -> tuple[object] | None:
    """Return the constant that an expression is by default: a literal, a flag that no launch gives."""
    name = expr.node.attr if isinstance(expr.node, ast.Attribute) else ""
    if name and any(launch.flag(name) is not None for launch in launches(entry)):
        return None
    if name == "deepspeed" and calls_of(entry, "deepspeed.add_config_arguments"):
        return (False,)
    value = entry.values.one(expr)
    if isinstance(value, Const):
        return (value.value,)
    flag = argparse_flag(entry, value) if attribute_of(value) else None
    if flag is None:
        return None
    action = call_argument(flag.call.node, None, "action") if isinstance(flag.call.node, ast.Call) else None
    if isinstance(action, ast.Constant) and action.value in {"store_true", "store_false"} and flag.default is None:
        return (action.value == "store_false",)
    if flag.default is None and flag.default_expr is not None and not isinstance(flag.default_expr.node, ast.Constant):
        return None
    return (flag.default,)
