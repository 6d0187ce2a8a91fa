"""The functions that a run maps over its rows, wherever the mapped data set is kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import PARTIAL, Attr, Cls, Expr, Frame, Func, Inst, Item, Result, Value

# Methods of a data set that take a function of rows, with the name of that parameter.
MAPS = {"map": "function", "with_transform": "transform", "set_transform": "transform"}

_MAX_STEPS = 14


def functions(entry: EntryFacts, values: tuple[Value, ...], depth: int = 0) -> Iterator[Func]:
    """Yield the functions of the root among callables: partials, objects and lambdas around one call opened."""
    for value in values:
        if isinstance(value, Func):
            body = value.node.body if isinstance(value.node, ast.Lambda) else None
            if isinstance(body, ast.Call) and depth < 3:
                callees = entry.values.of(Expr(value.module, body.func, Frame(value, None, value.receiver)))
                inner = list(functions(entry, callees, depth + 1))
                if inner:
                    yield from inner
                    continue
            yield value
        elif isinstance(value, Inst) and isinstance(value.of, Cls):
            for name in ("__call__", "torch_call"):
                method = entry.values.method(value.of, name)
                if method is not None:
                    yield Func(method.module, method.node, value, method.outer)
                    break
        elif isinstance(value, Inst) and value.of == PARTIAL and depth < 3:
            call = value.call.node
            if isinstance(call, ast.Call) and call.args:
                yield from functions(entry, entry.values.of(value.call.at(call.args[0])), depth + 1)


def maps_of(entry: EntryFacts, leaf: ast.AST) -> tuple[Func, ...]:
    """Return the functions mapped over what a call made, those of other branches included."""
    return entry.once("chain.maps", _all_maps).get(leaf, ())


def _all_maps(entry: EntryFacts) -> dict[ast.AST, tuple[Func, ...]]:
    """Return the functions that are mapped over what each call made, wherever the result is kept."""
    found: dict[ast.AST, tuple[Func, ...]] = {}
    for site in entry.methods:
        func = site.node.func
        if not isinstance(func, ast.Attribute) or func.attr not in MAPS:
            continue
        argument = call_argument(site.node, 0, MAPS[func.attr])
        if argument is None:
            continue
        funcs = tuple(functions(entry, entry.values.of(site.expr.at(argument))))
        for value in entry.values.of(site.expr.at(func.value)):
            for _ in range(_MAX_STEPS):
                if isinstance(value, Result) and isinstance(value.of, Attr):
                    value = value.of.of
                elif isinstance(value, Item):
                    value = value.of
                else:
                    break
            if isinstance(value, Inst):
                found[value.call.node] = tuple(dict.fromkeys((*funcs, *found.get(value.call.node, ()))))
    return found
