"""One parsed file: its syntax tree, parents, imports and top-level names. Computed once a file, never changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from speedmigrate.rule import Hop, Place
from speedmigrate.source import SourceFile, parse

if TYPE_CHECKING:
    from speedmigrate.facts.reaching import Binding

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Import:
    """A name bound by an import: `import module` (`attr` empty) or `from module import attr`; `level` counts the
    dots."""

    module: str
    attr: str
    level: int
    node: ast.Import | ast.ImportFrom


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Module:
    """The facts of one file; `nodes` are all of its tree, breadth first, walked once."""

    source: SourceFile
    tree: ast.Module
    nodes: tuple[ast.AST, ...] = field(repr=False)
    parents: dict[ast.AST, ast.AST] = field(repr=False)
    imports: dict[str, tuple[Import, ...]] = field(repr=False)
    stars: tuple[Import, ...] = field(repr=False)
    global_writers: dict[str, tuple[FunctionNode, ...]] = field(repr=False)
    reached: dict[tuple[ScopeNode, str, ast.AST | None], frozenset[Binding]] = field(default_factory=dict, repr=False)
    _bound: dict[ScopeNode, frozenset[str]] = field(default_factory=dict, repr=False)
    _binds: dict[ast.stmt, frozenset[str]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"Module({self.path})"

    @property
    def path(self) -> str:
        return self.source.path

    def place(self, node: ast.AST) -> Place:
        return Place(self.path, node.lineno, node.end_lineno or node.lineno)  # type: ignore[attr-defined]

    def hop(self, node: ast.AST, what: str) -> Hop:
        return Hop(self.path, node.lineno, what)  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        return self.source.segment(node)

    def bound(self, scope: ScopeNode) -> frozenset[str]:
        """Return every name that a scope binds (computed once)."""
        if scope not in self._bound:
            self._bound[scope] = frozenset((*_parameters(scope), *_bound(scope)))
        return self._bound[scope]

    def binds(self, statement: ast.stmt) -> frozenset[str]:
        """Return every name that a statement, or one inside it, binds in its scope (computed once)."""
        if statement not in self._binds:
            self._binds[statement] = frozenset(_stored([statement]))
        return self._binds[statement]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around `node`, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> ScopeNode:
        """Return the function, class or module whose names an expression at `node` sees first."""
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, ScopeNode) and _is_inside(child, parent):
                return parent
            child = parent
        return self.tree

    def function(self, node: ast.AST) -> FunctionNode | None:
        """Return the innermost function around `node` (lambdas passed over)."""
        scope = self.scope(node)
        while not isinstance(scope, FunctionNode | ast.Module):
            scope = self.scope(scope)
        return scope if isinstance(scope, FunctionNode) else None

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that holds `node`."""
        if isinstance(node, ast.stmt):
            return node
        return next(parent for parent in self.ancestors(node) if isinstance(parent, ast.stmt))


def _is_inside(child: ast.AST, scope: ScopeNode) -> bool:
    """Say whether `child`, a direct child of `scope`, is evaluated inside it (not a decorator, default or base)."""
    if isinstance(scope, ast.Lambda):
        return child is scope.body
    if isinstance(scope, ast.arguments):
        return False
    return isinstance(scope, ast.Module) or child in scope.body


def _parameters(scope: ScopeNode) -> Iterator[str]:
    if isinstance(scope, FunctionNode | ast.Lambda):
        arguments = scope.args
        for argument in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ):
            if argument is not None:
                yield argument.arg


def _bound(scope: ScopeNode) -> Iterator[str]:
    return iter(()) if isinstance(scope, ast.Lambda) else _stored(scope.body)


def _stored(body: Sequence[ast.AST]) -> Iterator[str]:
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id
            continue
        if isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        stack.extend(ast.iter_child_nodes(node))


def load(source: SourceFile) -> Module:
    """Parse a file and collect its facts.

    Raises:
        SourceError: it is not Python 3.
    """
    tree = parse(source)
    parents: dict[ast.AST, ast.AST] = {}
    imports: dict[str, list[Import]] = {}
    stars: list[Import] = []
    globals_: list[ast.Global] = []
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # grows while it is walked
        children = list(ast.iter_child_nodes(node))
        nodes += children
        for child in children:
            parents[child] = node
        if isinstance(node, ast.Global):
            globals_.append(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                module = alias.name if alias.asname else bound
                imports.setdefault(bound, []).append(Import(module, "", 0, node))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                entry = Import(node.module or "", alias.name, node.level, node)
                if alias.name == "*":
                    stars.append(entry)
                else:
                    imports.setdefault(alias.asname or alias.name, []).append(entry)
    writers: dict[str, tuple[FunctionNode, ...]] = {}
    for declared in globals_:
        functions = [p for p in _up(declared, parents) if isinstance(p, FunctionNode)][:1]
        for name in declared.names if functions else ():
            writers[name] = (*writers.get(name, ()), *functions)
    bound_by = {name: tuple(entries) for name, entries in imports.items()}
    return Module(source, tree, tuple(nodes), parents, bound_by, tuple(stars), writers)


def _up(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in parents:
        node = parents[node]
        yield node
