"""Where a run cuts padded rows back: a row to its own tokens, a batch to its longest row (collate, loop, model).

Padding that is cut off again costs the model nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.chain.data_maps import functions
from speedmigrate.chain.data_pipes import pipes
from speedmigrate.chain.roles import origin
from speedmigrate.chain.widths import followed
from speedmigrate.facts.entry import EntryFacts, Scope, shared
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.facts.value import Expr
from speedmigrate.rule import Hop

Where = Literal["row", "batch", "model"]
_MEASURED = {"row": frozenset({"sum"}), "batch": frozenset({"max", "amax"}), "model": frozenset({"max", "amax"})}
_COUNTED = frozenset({"count_nonzero", "any", "sum"})
_CASTS = frozenset({"item", "int", "tolist", "cpu", "numpy", "long"})
_DEPTH = 5


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """One function that cuts back.

    Attributes:
        scope: the function, as the run came to it.
        hop: the first place that cuts.
    """

    where: Where
    scope: Scope
    hop: Hop


def cuts(entry: EntryFacts) -> tuple[Cut, ...]:
    """Return the functions of a run that cut what is padded back to the length of the tokens (worked out once)."""
    return entry.once("cuts", lambda entry: tuple(_cuts(entry)))


def batch_cuts(entry: EntryFacts) -> tuple[Cut, ...]:
    """Return what cuts every training batch to its longest row, nothing where some batches stay as they are."""
    found = [cut for cut in cuts(entry) if cut.where != "row"]
    if any(cut.where == "model" or not _is_collate(entry, cut) for cut in found):
        return tuple(found)
    cutting = {origin(entry, cut.scope)[1] for cut in found}
    given = [{func.node for func in functions(entry, pipe.collate or ())} for pipe in pipes(entry)]
    return tuple(found) if given and all(nodes & cutting for nodes in given) else ()


def _is_collate(entry: EntryFacts, cut: Cut) -> bool:
    return origin(entry, cut.scope)[0] == "collate"


def _cuts(entry: EntryFacts) -> Iterator[Cut]:
    for scope in entry.scopes:
        shapes = _shapes(entry, scope[0]).get(scope[1], [])
        where = _where(entry, scope) if shapes else None
        if where is None:
            continue
        kept = [s for s in shapes if _is_cut(entry, scope, where, s)]
        if kept and _covers(scope, where, kept):
            yield Cut(where, scope, scope[0].hop(kept[0], f"cut back here: {scope[0].text(kept[0])[:60]}"))


def _shapes(entry: EntryFacts, module: Module) -> dict[ast.AST, list[ast.Subscript]]:
    return shared(entry.project, f"cuts:{module.path}", lambda: _find_shapes(module))


def _find_shapes(module: Module) -> dict[ast.AST, list[ast.Subscript]]:
    """Return `x[:n]` and `x[:, :n]` of a file whose `n` is no constant, by the function that holds them."""
    found: dict[ast.AST, list[ast.Subscript]] = {}
    for node in module.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _upper(node) is not None:
            found.setdefault(module.function(node) or module.tree, []).append(node)
    return found


def _upper(node: ast.Subscript) -> ast.expr | None:
    """Return the `n` of `x[:n]`, `x[:, :n]`, `x[:n, :n]`."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    last = parts[-1] if parts else None
    if not isinstance(last, ast.Slice) or last.lower is not None or last.step is not None:
        return None
    return None if isinstance(last.upper, ast.Constant) else last.upper


def _where(entry: EntryFacts, scope: Scope) -> Where | None:
    _, node, _ = scope
    role = origin(entry, scope)[0]
    if role == "collate" or (role == "build" and _steps(node)):
        return "batch"
    if role == "model":
        return "model" if _is_outermost(scope) else None
    return "row" if role in {"getitem", "map", "init", "build"} and isinstance(node, FunctionNode) else None


def _steps(node: ast.AST) -> bool:
    """Say whether a function holds the training loop."""
    return any(isinstance(n, ast.Call) and called_name(n) == "backward" for n in own_nodes(node))


def _is_outermost(scope: Scope) -> bool:
    """Say whether no other model stands around a forward: what is cut there, no layer before it has seen."""
    _, node, frame = scope
    if not isinstance(node, FunctionNode) or node.name != "forward":
        return False
    while frame is not None and frame.call is not None:
        caller = frame.call.module.function(frame.call.node)
        if isinstance(caller, FunctionNode) and caller.name == "forward":
            return False
        frame = frame.call.frame
    return True


def _is_cut(entry: EntryFacts, scope: Scope, where: Where, node: ast.Subscript) -> bool:
    wide = isinstance(node.slice, ast.Tuple)
    upper = _upper(node)
    assert upper is not None
    if where != "row" and not (wide and _is_all(node.slice)):
        return False
    if where == "model" and not _is_parameter(scope[1], node.value):
        return False
    expr = Expr(scope[0], upper, scope[2])
    return _is_measured(entry, expr, _MEASURED[where], 0) or (where != "row" and _is_counted_down(entry, scope, expr))


def _is_counted_down(entry: EntryFacts, scope: Scope, expr: Expr) -> bool:
    """Say whether a length is counted down over empty columns: `while not used[last]: last -= 1`."""
    node = expr.node.left if isinstance(expr.node, ast.BinOp) else expr.node
    if not isinstance(node, ast.Name):
        return False
    for loop in own_nodes(scope[1]):
        if not isinstance(loop, ast.While):
            continue
        inside = list(ast.walk(loop))
        down = [n for n in inside if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Sub)]
        steps = any(ast.unparse(n.target) == node.id for n in down)
        asked = [n.value for n in inside if isinstance(n, ast.Subscript) and ast.unparse(n.slice) == node.id]
        counts = (each.node for part in asked for each in followed(entry.values, expr.at(part)))
        if steps and any(isinstance(n, ast.Call) and called_name(n) in _COUNTED for n in counts):
            return True
    return False


def _is_all(node: ast.expr) -> bool:
    first = node.elts[0] if isinstance(node, ast.Tuple) else None
    return isinstance(first, ast.Slice) and first.lower is None and first.upper is None


def _is_parameter(node: ast.AST, value: ast.expr) -> bool:
    assert isinstance(node, FunctionNode)
    return isinstance(value, ast.Name) and any(argument.arg == value.id for argument in node.args.args)


def _is_measured(entry: EntryFacts, expr: Expr, names: frozenset[str], depth: int) -> bool:
    """Say whether a length is counted on the data: `max(lengths).item()`, `ids.ne(0).sum(-1).max()`, `sum(mask)`."""
    node = expr.node
    if isinstance(node, ast.Name) and depth < _DEPTH:
        return any(_is_measured(entry, found, names, depth + 1) for found in followed(entry.values, expr))
    if not isinstance(node, ast.Call):
        return False
    name = called_name(node)
    if name in _CASTS:
        inner = node.func.value if isinstance(node.func, ast.Attribute) else (node.args[0] if node.args else None)
        return inner is not None and _is_measured(entry, expr.at(inner), names, depth)
    if name not in names:
        return False
    return isinstance(node.func, ast.Attribute) or len(node.args) == 1


def _covers(scope: Scope, where: Where, kept: list[ast.Subscript]) -> bool:
    """Say whether it is the tokens that are cut, not the labels alone: several fields to one length, or each of all."""
    if where == "model":
        return True
    most = Counter(ast.unparse(_upper(node) or node) for node in kept).most_common(1)[0][1]
    return most > 1 or (where == "batch" and _in_loop(scope, kept[0]))


def _in_loop(scope: Scope, node: ast.AST) -> bool:
    """Say whether a cut is made of one field after the other; the loop of the training itself says nothing."""
    for parent in scope[0].ancestors(node):
        if parent is scope[1]:
            return False
        if isinstance(parent, ast.DictComp | ast.ListComp | ast.GeneratorExp):
            return True
        if isinstance(parent, ast.For) and not _steps(scope[1]):
            return True
    return False
