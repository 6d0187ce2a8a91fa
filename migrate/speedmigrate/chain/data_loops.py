"""The loops that train: those around a backward call, and what they take their batches from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.value import Attr, Display, Expr, Ext, Inst, Result, Value

# What hands the elements of its first argument on, with the position of an element in what it yields.
PASSING: dict[str, tuple[int, ...]] = {
    "enumerate": (1,), "tqdm": (), "iter": (), "islice": (), "trange": (), "list": (), "cycle": (), "track": (),
    "next": (), "reversed": (), "tuple": (), "MpDeviceLoader": (), "ParallelLoader": (),
}  # fmt: skip
_MAX_FRAMES = 30


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """One place that takes batches: a `for` statement, or `batch = next(...)`.

    Attributes:
        over: what is iterated.
        target: what the batch is bound to, None where `next` is not assigned.
    """

    node: ast.AST
    over: Expr
    target: ast.expr | None


def training_loops(entry: EntryFacts) -> tuple[Loop, ...]:
    """Return the loops around every backward call of a run, the innermost first (worked out once)."""
    return entry.once("chain.loops", _training_loops)


def _training_loops(entry: EntryFacts) -> tuple[Loop, ...]:
    found: dict[tuple[ast.AST, object], Loop] = {}
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr in {"backward", "manual_backward", "train_batch"}:
            for loop in _around(site.expr):
                found.setdefault((loop.node, loop.over), loop)
    return tuple(found.values())


def _around(expr: Expr) -> Iterator[Loop]:
    """Yield the loops around an expression, through the calls that lead to it."""
    for _ in range(_MAX_FRAMES):
        module, frame = expr.module, expr.frame
        function: ast.AST = module.tree
        for parent in module.ancestors(expr.node):
            if isinstance(parent, ast.For | ast.AsyncFor):
                yield Loop(parent, expr.at(parent.iter), parent.target)
            if isinstance(parent, ast.For | ast.AsyncFor | ast.While):
                yield from _nexts(parent, expr)
            if isinstance(parent, FunctionNode):
                function = parent
                break
        yield from _nexts(function, expr)
        while frame is not None and frame.func.node is not function:
            frame = frame.func.outer
        if frame is None or frame.call is None:
            return
        expr = frame.call


def _nexts(around: ast.AST, expr: Expr) -> Iterator[Loop]:
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call = node.value
            # `list(next(batches))` takes a batch as well.
            if isinstance(call.func, ast.Name) and len(call.args) == 1 and isinstance(call.args[0], ast.Call):
                call = call.args[0]
            if isinstance(call.func, ast.Name) and call.func.id == "next" and call.args:
                yield Loop(node, expr.at(call.args[0]), node.targets[0])
            elif isinstance(call.func, ast.Attribute) and call.func.attr in {"next", "next_batch"} and not call.args:
                yield Loop(node, expr.at(call.func.value), node.targets[0])


def batch_target(entry: EntryFacts, loop: Loop) -> ast.expr | None:
    """Return what the batch is bound to in a loop, `enumerate` taken apart."""
    target = loop.target
    for index in _depth(entry, loop.over):
        if not isinstance(target, ast.Tuple | ast.List) or index >= len(target.elts):
            return target if isinstance(target, ast.Name) else None
        target = target.elts[index]
    return target


def _depth(entry: EntryFacts, over: Expr, depth: int = 0) -> tuple[int, ...]:
    for value in entry.values.of(over):
        if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last in PASSING:
            node = value.call.node
            if isinstance(node, ast.Call) and node.args and depth < 5:
                if PASSING[value.of.last]:
                    return PASSING[value.of.last]
                return _depth(entry, value.call.at(node.args[0]), depth + 1)
    return ()


def taken(entry: EntryFacts, loop: Loop) -> tuple[Value, ...]:
    """Return what a loop really iterates over, `enumerate`, `tqdm` and the like opened."""
    found: dict[Value, None] = {}
    stack = [(value, 0) for value in entry.values.of(loop.over)]
    while stack:
        value, depth = stack.pop(0)
        inner = _inner(value) if depth < 6 else None
        if inner is None:
            found.setdefault(value)
        else:
            stack += [(v, depth + 1) for v in entry.values.of(inner)]
    return tuple(found)


def _inner(value: Value) -> Expr | None:
    call = value.call.node if isinstance(value, Inst | Result) else None
    if not isinstance(call, ast.Call):
        return None
    assert isinstance(value, Inst | Result)
    if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last in PASSING and call.args:
        return value.call.at(call.args[0])
    if isinstance(value, Result) and isinstance(value.of, Attr) and value.of.name == "track" and call.args:
        return value.call.at(call.args[0])
    return None


def is_plain(value: Value) -> bool:
    """Say whether a value is a loop over numbers or epochs, not over batches."""
    if isinstance(value, Inst) and isinstance(value.of, Ext):
        return value.of.last in {"range", "trange", "zip", "count"}
    return isinstance(value, Display)
