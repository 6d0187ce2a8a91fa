"""Which part of the data path a function of the run is: who calls it, as far as frames and passed functions say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.chain.data_maps import functions
from speedmigrate.chain.data_pipes import pipes
from speedmigrate.facts.entry import EntryFacts, Scope, Site
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.value import Cls, Expr, Ext, Func, Inst, Result, Value

Role = Literal["getitem", "map", "collate", "init", "build", "model", "order"]
_ROWS = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__"})
_MODEL = frozenset({"forward", "training_step", "compute_loss"})
_MAPS = frozenset({"map", "with_transform", "set_transform"})
_COLLATES = frozenset({"collate_fn", "data_collator"})
_POOLS = frozenset({"multiprocessing", "concurrent", "joblib", "torch"})
_MAX_STEPS = 30


@dataclass(frozen=True, slots=True)
class Passed:
    """A function that a call of the run gets as an argument, and what that says of it."""

    site: Site
    role: Role | None


def passed(entry: EntryFacts) -> dict[ast.AST, Passed]:
    """Return the functions that are passed on, by their node; a map or a collate wins over other uses."""
    return entry.once("passed", _passed)


def _passed(entry: EntryFacts) -> dict[ast.AST, Passed]:
    found: dict[ast.AST, Passed] = {}
    for site in entry.sites:
        call = site.node
        given = [(None, argument) for argument in call.args] + [(k.arg, k.value) for k in call.keywords]
        for name, argument in given:
            if not isinstance(argument, ast.Name | ast.Attribute | ast.Lambda | ast.Call):
                continue
            role = "collate" if name in _COLLATES else _map_role(entry, site)
            for func in _run_later(entry, entry.values.of(site.expr.at(argument))):
                if func not in found or (found[func].role is None and role is not None):
                    found[func] = Passed(site, role)
    return found


def _map_role(entry: EntryFacts, site: Site) -> Role | None:
    func = site.node.func
    if not isinstance(func, ast.Attribute) or func.attr not in _MAPS or len(site.node.args) > 1:
        return None  # `pool.map(fn, rows)` takes the rows beside the function
    for value in entry.values.of(site.expr.at(func.value)):
        if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.package in _POOLS:
            return None
    return "map"


def _run_later(entry: EntryFacts, values: tuple[Value, ...]) -> Iterator[ast.AST]:
    """Yield the nodes of what runs when one of the values is called: a lambda, and what it calls alone."""
    yield from (value.node for value in values if isinstance(value, Func))
    yield from (func.node for func in functions(entry, values))


def role(entry: EntryFacts, scope: Scope) -> Role:
    """Return the part of the data path that a scope belongs to; `build` where the script itself comes to it."""
    return origin(entry, scope)[0]


def origin(entry: EntryFacts, scope: Scope) -> tuple[Role, ast.AST]:
    """Return the part of the data path that a scope belongs to, and the function that makes it so."""
    module, node, frame = scope
    for _ in range(_MAX_STEPS):
        if not isinstance(node, FunctionNode | ast.Lambda):
            return "build", node
        own = _own_role(entry, scope)
        if own is not None:
            return own, node
        if frame is not None and frame.func.node is not node:
            frame = frame.func.outer
        if frame is not None and frame.call is not None:
            if _is_yielded(entry, frame.call):
                return "collate", node
            module, call, frame = frame.call.module, frame.call.node, frame.call.frame
        elif node in passed(entry):
            expr: Expr = passed(entry)[node].site.expr
            module, call, frame = expr.module, expr.node, expr.frame
        else:
            return "build", node
        node = module.function(call) or module.tree
        scope = (module, node, frame)
    return "build", node


def _is_yielded(entry: EntryFacts, call: Expr) -> bool:
    """Say whether a call makes what a batch generator of the training yields."""
    if not isinstance(call.module.parents.get(call.node), ast.Yield):
        return False
    return call.module.function(call.node) in entry.once("batch_generators", _batch_generators)


def _batch_generators(entry: EntryFacts) -> frozenset[ast.AST]:
    made = [pipe.value.of for pipe in pipes(entry) if pipe.kind == "generator" and isinstance(pipe.value, Result)]
    return frozenset(of.node for of in made if isinstance(of, Func))


def _own_role(entry: EntryFacts, scope: Scope) -> Role | None:
    module, node, _ = scope
    given = passed(entry).get(node)
    if given is not None and given.role is not None:
        return given.role
    parent = module.parents.get(node)
    if not isinstance(node, FunctionNode) or not isinstance(parent, ast.ClassDef):
        return None
    if node.name in _ROWS:
        bases = entry.values.mro(Cls(module, parent))
        return "order" if any(isinstance(b, Ext) and b.last.endswith("Sampler") for b in bases) else "getitem"
    if node.name in _MODEL:
        return "model"
    if node.name == "__init__":
        methods = (entry.values.method(Cls(module, parent), name) for name in _ROWS)
        return "init" if any(method is not None for method in methods) else None
    return None
