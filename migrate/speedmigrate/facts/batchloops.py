"""Where a run takes batches out of a loader: `for` loops over it, `next(...)` of an iterator over it, generators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.entry import EntryFacts, Scope
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import Attr, Expr, Ext, Frame, Func, Inst, Item, Result, Value
from speedmigrate.facts.values import Values

# Methods that give loaders back: wrapped for a run over several devices, or without their first batches.
PREPARING = frozenset({"prepare", "prepare_data_loader", "setup_dataloaders", "skip_first_batches"})
Path = tuple[int, ...]
# Calls that go over their first argument as it is.
_ITERATING = frozenset(
    "builtins.iter builtins.list builtins.reversed itertools.islice itertools.cycle rich.progress.track "
    "more_itertools.peekable accelerate.skip_first_batches".split()
)


@dataclass(frozen=True, slots=True)
class Start:
    """A place where batches come in: the statements to read, and the target that a batch is bound to.

    Attributes:
        path: the positions that lead from the target to the batch (`enumerate` puts it second).
    """

    scope: Scope
    node: ast.stmt
    body: tuple[ast.stmt, ...]
    target: ast.expr | None
    path: Path


def starts(entry: EntryFacts, loader: Loader) -> Iterator[Start]:
    """Yield every place of the run that takes batches out of a loader."""
    seen: set[tuple[int, Frame | None]] = set()
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.For | ast.AsyncFor):
                path = over(entry.values, Expr(module, node.iter, frame), loader)
                found = Start((module, scope, frame), node, (*node.body, *node.orelse), node.target, path or ())
            elif isinstance(node, ast.Call) and is_next(entry.values, Expr(module, node, frame), loader):
                path, found = (), _around(entry, (module, scope, frame), node)
            else:
                continue
            if path is not None and (id(found.node), frame) not in seen:
                seen.add((id(found.node), frame))
                yield found


def _around(entry: EntryFacts, where: Scope, call: ast.Call) -> Start:
    """Return the innermost loop around a `next(...)`; outside a loop, its statement and those behind it."""
    module = where[0]
    statement = module.statement(call)
    for parent in module.ancestors(call):
        if isinstance(parent, ast.For | ast.While | ast.AsyncFor):
            return Start(where, parent, tuple(parent.body), None, ())
        if isinstance(parent, FunctionNode):
            break
    owner = module.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(owner, name, None)
        if isinstance(block, list) and statement in block:
            return Start(where, statement, tuple(block[block.index(statement) :]), None, ())
    return Start(where, statement, (statement,), None, ())


def is_next(values: Values, expr: Expr, loader: Loader) -> bool:
    """Say whether an expression takes the next batch of an iterator over the loader."""
    node = expr.node
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id == "next" and node.args:
        return over(values, expr.at(node.args[0]), loader) is not None
    if isinstance(node.func, ast.Attribute) and node.func.attr in {"__next__", "next"} and not node.args:
        return over(values, expr.at(node.func.value), loader) is not None
    return False


def over(values: Values, expr: Expr, loader: Loader) -> Path | None:
    """Return the positions that lead to a batch in what iterating over `expr` gives; None: it is another iterable."""
    for value in values.of(expr):
        path = _path(values, value, loader, 0)
        if path is not None:
            return path
    return None


def _path(values: Values, value: Value, loader: Loader, depth: int) -> Path | None:
    if depth > 8:
        return None
    if isinstance(value, Inst) and value.call.node is loader.site.node:
        return ()
    if isinstance(value, Inst) and isinstance(value.of, Ext) and isinstance(value.call.node, ast.Call):
        return _through(values, value.of, value.call, value.call.node, loader, depth)
    if isinstance(value, Item) and isinstance(value.of, Result) and _is_prepare(value.of):
        return _path(values, value.of, loader, depth + 1)
    if isinstance(value, Result) and isinstance(value.call.node, ast.Call):
        if _is_prepare(value):
            return _first(values, value.call, value.call.node.args, loader, depth)
        if isinstance(value.of, Func):
            return _yielded(values, value.of, value.call, loader, depth)
    return None


def _is_prepare(value: Result) -> bool:
    """Whether a method of an accelerator gives the loaders back that it is given."""
    return isinstance(value.of, Attr) and value.of.name in PREPARING


def _through(values: Values, of: Ext, call: Expr, node: ast.Call, loader: Loader, depth: int) -> Path | None:
    if of.name == "builtins.enumerate":
        inner = _first(values, call, node.args[:1], loader, depth)
        return None if inner is None else (1, *inner)
    if of.name == "builtins.zip":
        for index, argument in enumerate(node.args):
            inner = _first(values, call, [argument], loader, depth)
            if inner is not None:
                return (index, *inner)
    if of.package == "tqdm" or of.name in _ITERATING:
        given = node.args[:1] or [keyword.value for keyword in node.keywords if keyword.arg == "iterable"]
        return _first(values, call, given, loader, depth)
    return None


def _first(values: Values, call: Expr, given: list[ast.expr], loader: Loader, depth: int) -> Path | None:
    for argument in given:
        for value in values.of(call.at(argument)):
            path = _path(values, value, loader, depth + 1)
            if path is not None:
                return path
    return None


def _yielded(values: Values, func: Func, call: Expr, loader: Loader, depth: int) -> Path | None:
    """A generator of the root that goes over the loader and yields its batches as they are."""
    frame = Frame(func, call, func.receiver)
    for node in own_nodes(func.node):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            for value in values.of(Expr(func.module, node.iter, frame)):
                if _path(values, value, loader, depth + 1) == () and yields(node):
                    return ()
    return None


def yields(loop: ast.For | ast.AsyncFor) -> bool:
    """Say whether a loop does nothing with what it goes over but yield it, once."""
    if not isinstance(loop.target, ast.Name):
        return False
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    used = [node for node in nodes if isinstance(node, ast.Name) and node.id == loop.target.id]
    given = [node.value for node in nodes if isinstance(node, ast.Yield)]
    return len(used) == len(given) == 1 and given[0] is used[0]
