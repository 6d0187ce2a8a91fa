"""What a call gets for a parameter, `**dict` and what is stored in the dict included."""

from __future__ import annotations

import ast

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Display, Expr, Inst, Item, Value


def given(entry: EntryFacts, expr: Expr, position: int | None, name: str) -> tuple[Value, ...] | None:
    """Return what a call gets for a parameter, `**dict` opened; None where it gets nothing."""
    node = expr.node
    if not isinstance(node, ast.Call):
        return None
    found = call_argument(node, position, name)
    if found is not None:
        return entry.values.of(expr.at(found))
    for keyword in node.keywords:
        if keyword.arg is None:
            for value in entry.values.of(expr.at(keyword.value)):
                held = held_items(entry, value, name)
                if held:
                    return held
    return None


def held_items(entry: EntryFacts, value: Value, key: str) -> tuple[Value, ...]:
    """Return what a dict built in the root holds under a key, what is stored after it is made included."""
    expr = value.expr if isinstance(value, Display) else value.call if isinstance(value, Inst) else None
    if expr is None:
        return ()
    if isinstance(expr.node, ast.DictComp):
        return _filtered_items(entry, expr, expr.node, key)
    found = [v for v in entry.values.item(value, key, expr) if not (isinstance(v, Item) and v.of == value)]
    statement = expr.module.statement(expr.node) if expr.node in expr.module.parents else None
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        for node in own_nodes(expr.module.function(expr.node) or expr.module.tree):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == name:
                if isinstance(target.slice, ast.Constant) and target.slice.value == key:
                    assert isinstance(node, ast.Assign)
                    found += entry.values.of(expr.at(node.value))
    return tuple(dict.fromkeys(found))


def _filtered_items(entry: EntryFacts, expr: Expr, node: ast.DictComp, key: str) -> tuple[Value, ...]:
    """Look a key up in the dict that `{k: v for k, v in held.items() if ...}` copies."""
    source = node.generators[0].iter
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "items":
        for value in entry.values.of(expr.at(source.func.value)):
            held = held_items(entry, value, key)
            if held:
                return held
    return ()
