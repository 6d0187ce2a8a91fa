"""Parts that a module gets under names worked out at run time: `setattr(self, name, part)`, `getattr(self, name)`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from speedmigrate.facts.entry import MAX_FRAMES_A_FUNCTION, EntryFacts, Scope
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import Attr, Cls, Const, Expr, Ext, Inst, Value
from speedmigrate.facts.values import Values


@dataclass(frozen=True, slots=True)
class Part:
    """A part, and the expression of its name; `names` are those that it can have, None where they are not known."""

    value: Expr
    name: Expr
    names: frozenset[object] | None = None

    def under(self, names: tuple[object, ...] | None) -> Part:
        return replace(self, names=None if names is None else frozenset(names))


Parts = Mapping[ast.ClassDef, tuple[Part, ...]]


def dynamic_parts(entry: EntryFacts, runs: Callable[[Expr], bool]) -> Parts:
    """Return what the run sets under names that are not written out, by class, where the calls that do it `runs`."""
    found: dict[ast.ClassDef, dict[Part, None]] = {}
    setters = {scope for module, scope, _ in entry.scopes if _sets(module, scope)}
    if not setters:
        return {}
    scopes = entry.scopes
    if _crowded(scopes) & setters:
        scopes = entry.scopes_where(runs)
        setters -= _crowded(scopes)  # perhaps not all of their calls were followed
    for module, scope, frame in scopes:
        owner = module.parents.get(scope)
        for node in own_nodes(scope) if scope in setters and isinstance(owner, ast.ClassDef) else ():
            if isinstance(node, ast.Call) and _is_setter(node) and isinstance(owner, ast.ClassDef):
                part = Part(Expr(module, node.args[2], frame), Expr(module, node.args[1], frame))
                name = entry.values.one(part.name)
                found.setdefault(owner, {}).setdefault(part.under((name.value,) if isinstance(name, Const) else None))
    return {owner: tuple(parts) for owner, parts in found.items()}


def _crowded(scopes: tuple[Scope, ...]) -> set[ast.AST]:
    entered = Counter(scope for _, scope, _ in scopes)
    return {scope for scope, count in entered.items() if count >= MAX_FRAMES_A_FUNCTION}


def _sets(module: Module, scope: ast.AST) -> bool:
    """Say whether a method gives an object an attribute by a name that it works out."""
    if not isinstance(scope, FunctionNode) or not isinstance(module.parents.get(scope), ast.ClassDef):
        return False
    return "setattr" in module.source.text and any(
        isinstance(node, ast.Call) and _is_setter(node) for node in own_nodes(scope)
    )


def _is_setter(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3


def opened(values: Values, callee: Value, parts: Parts) -> Iterator[Value]:
    """Yield what a callee is: `getattr(self, name)` and an attribute that nothing assigns are any of such parts."""
    owner = _owner(values, callee) if parts else None
    if owner is None or owner.node not in parts:
        yield callee
        return
    name = callee.name if isinstance(callee, Attr) else None
    for part in parts[owner.node]:
        if name is None or part.names is None or name in part.names:
            yield from values.of(part.value)


def _owner(values: Values, callee: Value) -> Cls | None:
    of: Value | None = None
    if isinstance(callee, Attr):
        of = callee.of
    elif isinstance(callee, Inst) and callee.of == Ext("builtins.getattr") and isinstance(callee.call.node, ast.Call):
        of = values.one(callee.call.at(callee.call.node.args[0]))
    return of.of if isinstance(of, Inst) and isinstance(of.of, Cls) else None
