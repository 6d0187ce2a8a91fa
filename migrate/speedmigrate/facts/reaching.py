"""Which assignments of a name can reach a use of it: reaching definitions over the statements of one scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.facts.module import FunctionNode, Module, ScopeNode

Kind = Literal["value", "augmented", "element", "context", "definition", "import", "parameter", "opaque"]


@dataclass(frozen=True, slots=True)
class Binding:
    """One place that binds a name.

    Attributes:
        kind: `value` (`x = v`), `augmented` (`x += v`), `element` (loop or comprehension over `value`), `context`
            (`with v as x`), `definition`, `import`, `parameter`, or `opaque` (deleted, caught exception, pattern).
        unpack: the positions that lead from `value` to the name in a tuple target.
    """

    name: str
    kind: Kind
    node: ast.AST
    value: ast.expr | None = None
    unpack: tuple[int, ...] = ()


State = frozenset[Binding] | None


class _Found(Exception):  # noqa: N818 - not an error: it carries the answer out
    def __init__(self, state: State) -> None:
        self.state = state


def reaching(module: Module, scope: ScopeNode, name: str, use: ast.AST | None) -> frozenset[Binding]:
    """Return the bindings of `name` in `scope` that reach `use` (None: the end of the scope)."""
    if name not in module.bound(scope):
        return frozenset()
    statement: ast.AST | None = module.statement(use) if isinstance(use, ast.expr) else use
    if hasattr(statement, "body"):
        statement = use  # in the head of a compound statement, where what reaches differs from its body
    key = (scope, name, statement)
    if key not in module.reached:
        module.reached[key] = _reaching(module, scope, name, statement)
    return module.reached[key]


def _reaching(module: Module, scope: ScopeNode, name: str, use: ast.AST | None) -> frozenset[Binding]:
    start: State = frozenset()
    if isinstance(scope, FunctionNode | ast.Lambda):
        for argument in all_arguments(scope.args):
            if argument.arg == name:
                start = frozenset({Binding(name, "parameter", argument)})
    if isinstance(scope, ast.Lambda):
        return start or frozenset()
    around = {use, *module.ancestors(use)} if use is not None else set()
    try:
        end = _Flow(name, around, module).block(scope.body, start)
    except _Found as found:
        end = found.state
    return end or frozenset()


def all_bindings(scope: ScopeNode, name: str) -> frozenset[Binding]:
    """Return every binding of a name in a scope: what a function defined inside it may see."""
    found = set() if isinstance(scope, ast.Lambda) else set(_all_bindings(scope.body, name) or ())
    found = {binding for binding in found if not isinstance(binding.node, ast.Delete)}
    if isinstance(scope, FunctionNode | ast.Lambda):
        found |= {Binding(name, "parameter", a) for a in all_arguments(scope.args) if a.arg == name}
    return frozenset(found)


def all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]


def targets(target: ast.expr, unpack: tuple[int, ...] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every name that an assignment target binds, with its position in the unpacked value."""
    if isinstance(target, ast.Name):
        yield target.id, unpack
    elif isinstance(target, ast.Tuple | ast.List):
        for index, element in enumerate(target.elts):
            yield from targets(element, (*unpack, index))
    elif isinstance(target, ast.Starred):
        yield from targets(target.value, (*unpack, -1))


class _Flow:
    """Carries the set of live bindings of one name through statements; raises `_Found` at the statement looked for."""

    def __init__(self, name: str, around: set[ast.AST], module: Module) -> None:
        self.name = name
        self.around = around
        self.module = module

    def block(self, body: list[ast.stmt], state: State) -> State:
        for statement in body:
            state = self.statement(statement, state)
        return state

    def statement(self, node: ast.stmt, state: State) -> State:
        here = node in self.around
        if not here and self.name not in self.module.binds(node):
            return None if isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break) else state
        method = getattr(self, "_" + type(node).__name__.lower(), None)
        if method is not None:
            found: State = method(node, state, here)
            return found
        if here:
            raise _Found(state)
        if isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break):
            return None
        return self.after(simple_bindings(node, self.name), state)

    def after(self, found: list[Binding], state: State) -> State:
        if not found or state is None:
            return state
        if found[-1].kind == "augmented":
            return state | {found[-1]}
        return frozenset({found[-1]})

    def at(self, node: ast.AST | None, state: State) -> None:
        """Stop where the use is in this part of a compound statement's head."""
        if node is not None and node in self.around:
            raise _Found(state)

    def _if(self, node: ast.If, state: State, here: bool) -> State:
        self.at(node.test, state)
        state = self.after(walrus(node.test, self.name), state)
        return _join(self.block(node.body, state), self.block(node.orelse, state))

    def _for(self, node: ast.For, state: State, here: bool) -> State:
        self.at(node.iter, state)
        bound = [Binding(self.name, "element", node, node.iter, p) for n, p in targets(node.target) if n == self.name]
        return self._loop(node, bound, state)

    _asyncfor = _for

    def _while(self, node: ast.While, state: State, here: bool) -> State:
        again = _join(state, _all_bindings(node.body, self.name))
        self.at(node.test, again)
        return self._loop(node, walrus(node.test, self.name), state)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, bound: list[Binding], state: State) -> State:
        inside = _all_bindings(node.body, self.name)
        self.block(node.body, self.after(bound, _join(state, inside)))
        after = _join(_join(state, inside), frozenset(bound))
        return self.block(node.orelse, after)

    def _with(self, node: ast.With, state: State, here: bool) -> State:
        for item in node.items:
            self.at(item.context_expr, state)
            if item.optional_vars is not None:
                found = [
                    Binding(self.name, "context", node, item.context_expr, path)
                    for bound, path in targets(item.optional_vars)
                    if bound == self.name
                ]
                state = self.after(found, state)
        return self.block(node.body, state)

    _asyncwith = _with

    def _try(self, node: ast.Try, state: State, here: bool) -> State:
        done = self.block(node.body, state)
        broken = _join(state, _all_bindings(node.body, self.name))
        done = self.block(node.orelse, done)
        for handler in node.handlers:
            inner = frozenset({Binding(self.name, "opaque", handler)}) if handler.name == self.name else broken
            done = _join(done, self.block(handler.body, inner))
        return self.block(node.finalbody, done if not node.finalbody else _join(done, broken))

    _trystar = _try

    def _match(self, node: ast.Match, state: State, here: bool) -> State:
        self.at(node.subject, state)
        out = state
        for case in node.cases:
            inner = state
            if any(getattr(part, "name", None) == self.name for part in ast.walk(case.pattern)):
                inner = frozenset({Binding(self.name, "opaque", node)})
            out = _join(out, self.block(case.body, inner))
        return out

    def _functiondef(self, node: FunctionNode | ast.ClassDef, state: State, here: bool) -> State:
        if here:
            raise _Found(state)
        return frozenset({Binding(self.name, "definition", node)}) if node.name == self.name else state

    _asyncfunctiondef = _functiondef
    _classdef = _functiondef


def _join(left: State, right: State) -> State:
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _all_bindings(body: list[ast.stmt], name: str) -> State:
    found: set[Binding] = set()
    for statement in body:
        found |= set(any_bindings(statement, name))
    return frozenset(found)


def any_bindings(node: ast.stmt, name: str) -> Iterator[Binding]:
    """Yield every binding of `name` in a statement and the statements inside it, nested scopes left out."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if node.name == name:
            yield Binding(name, "definition", node)
        return
    if isinstance(node, ast.For | ast.AsyncFor):
        yield from (Binding(name, "element", node, node.iter, path) for n, path in targets(node.target) if n == name)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                for bound, path in targets(item.optional_vars):
                    if bound == name:
                        yield Binding(name, "context", node, item.context_expr, path)
    elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
        yield from simple_bindings(node, name)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from any_bindings(child, name)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            for inner in child.body:
                yield from any_bindings(inner, name)


def walrus(node: ast.AST, name: str) -> list[Binding]:
    """Return what `name := value` expressions inside a node bind."""
    return [
        Binding(name, "value", child, child.value)
        for child in ast.walk(node)
        if isinstance(child, ast.NamedExpr) and child.target.id == name
    ]


def simple_bindings(node: ast.stmt, name: str) -> list[Binding]:
    """Return what a simple statement binds `name` to."""
    found: list[Binding] = []
    if isinstance(node, ast.Assign):
        for target in node.targets:
            found += [Binding(name, "value", node, node.value, path) for n, path in targets(target) if n == name]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        found += [Binding(name, "value", node, node.value, path) for n, path in targets(node.target) if n == name]
    elif isinstance(node, ast.AugAssign):
        found += [Binding(name, "augmented", node, node.value) for n, _ in targets(node.target) if n == name]
    elif isinstance(node, ast.Import | ast.ImportFrom):
        if any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names):
            found.append(Binding(name, "import", node))
    elif isinstance(node, ast.Delete):
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
            found.append(Binding(name, "opaque", node))
    return found or walrus(node, name)
