"""What else a run does with a padded data set or with its loader: every use must be followed or harmless.

A data set whose rows are read elsewhere (stacked, measured, saved) must keep its padding; a loader that is read outside
its training loop must keep its width.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.batchloops import PREPARING
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.lightning_runs import is_run
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Frame, Func, Inst, Value
from speedmigrate.rule import Hop

_LOADED = frozenset(
    "DataLoader Subset ConcatDataset ChainDataset random_split RandomSampler SequentialSampler DistributedSampler "
    "WeightedRandomSampler BatchSampler SubsetRandomSampler Trainer Seq2SeqTrainer skip_first_batches".split()
)
_HARMLESS = frozenset(
    "builtins.len builtins.isinstance builtins.print builtins.type builtins.id builtins.super".split()
)
_ITERATING = frozenset(
    "builtins.enumerate builtins.iter builtins.zip tqdm.tqdm tqdm.auto.tqdm itertools.islice itertools.cycle".split()
)
# What hands an object on (then the next use is looked at) or only looks whether it is there.
_CARRYING = (
    ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Return, ast.Tuple, ast.List, ast.Dict, ast.IfExp, ast.BoolOp, ast.If,
    ast.UnaryOp, ast.Expr, ast.FormattedValue,
)  # fmt: skip
# What shows a row without keeping anything of it.
_SHOWING = frozenset(
    "len print decode tolist int str float sum min max join repr format info debug warning round replace any all "
    "convert_ids_to_tokens item".split()
)


def stray_uses(entry: EntryFacts, calls: set[ast.AST], *, rows: bool) -> Iterator[Hop]:
    """Yield uses of what `calls` built that are not known to be harmless.

    Args:
        calls: the calls that build the data sets (`rows`) or the loader.
        rows: whether iterating and indexing read rows; a loader's loops are read elsewhere (`batches`).
    """
    seen: set[ast.AST] = set()
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and node not in seen:
                expr = Expr(module, node, frame)
                if any(isinstance(v, Inst) and v.call.node in calls for v in entry.values.of(expr)):
                    seen.add(node)
                    if not _is_harmless(entry, module, node, frame, rows):
                        statement = module.statement(node)
                        what = "rows are read here" if rows else "the loader is used here"
                        yield module.hop(node, f"{what} in a way that is not followed: {module.text(statement)[:60]}")


def _is_harmless(entry: EntryFacts, module: Module, node: ast.expr, frame: Frame | None, rows: bool) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    if isinstance(parent, ast.Starred):
        parent = module.parents[parent]
    if isinstance(parent, ast.Call):
        if parent.func is node:
            return False
        return _is_followed(entry, Expr(module, parent.func, frame), parent, module, rows)
    if isinstance(parent, ast.Attribute):
        return _is_attribute_harmless(module, parent, rows)
    if isinstance(parent, ast.For | ast.AsyncFor):
        return not rows or _only_shows(entry, module, parent, frame)
    if isinstance(parent, ast.Subscript) and isinstance(node, ast.Name) and node.id == "self":
        return False
    if isinstance(parent, ast.Subscript):
        return rows and parent.value is node and _only_shows(entry, module, module.statement(node), frame)
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, ast.Is | ast.IsNot) for op in parent.ops)
    return isinstance(parent, _CARRYING)


def _is_followed(entry: EntryFacts, func: Expr, call: ast.Call, module: Module, rows: bool) -> bool:
    """Whether a call that gets the object is one whose inside is followed, or does nothing with rows."""
    for callee in entry.values.of(func):
        if isinstance(callee, Func) or (isinstance(callee, Cls) and _takes(entry, callee)):
            continue
        if isinstance(callee, Ext) and (callee.last in _LOADED or callee.name in _HARMLESS):
            continue
        if isinstance(callee, Ext) and callee.name in _ITERATING and not rows and _is_gone_over(module, call):
            continue
        if isinstance(callee, Attr) and callee.name in {"append", "extend", "prepare", "save_pretrained"} | PREPARING:
            continue
        if not rows and is_run(callee):
            continue
        return False
    return True


def _takes(entry: EntryFacts, cls: Cls) -> bool:
    """Whether a class of the root takes the object in an `__init__` that is read, or is a Trainer."""
    base = entry.base(cls)
    if base is not None and base.last.endswith("Trainer"):
        return True
    return base is None or (base.last != "DataLoader" and entry.values.method(cls, "__init__") is not None)


def _is_gone_over(module: Module, call: ast.AST) -> bool:
    """Whether a call stands in the head of a `for` or in `next(...)`, or is assigned to be gone over later."""
    child = call
    for parent in module.ancestors(call):
        if isinstance(parent, ast.For | ast.AsyncFor):
            return child is parent.iter
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "next":
            return True
        if isinstance(parent, ast.Assign) and child is call is parent.value:
            return True
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False


def _is_attribute_harmless(module: Module, parent: ast.Attribute, rows: bool) -> bool:
    if parent.attr in {"__getitem__", "__iter__", "collate_fn"}:
        return False
    if parent.attr == "dataset" and not rows:
        above = module.parents[parent]
        return isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id == "len"
    return True


def _only_shows(entry: EntryFacts, module: Module, start: ast.stmt, frame: Frame | None) -> bool:
    """Whether what is read from rows in a function ends in prints alone."""
    function = module.function(start)
    scope: ast.AST = function if function is not None else module.tree
    tainted: set[str] = set(module.binds(start))
    if not tainted:
        calls = [node for node in ast.walk(start) if isinstance(node, ast.Call)]
        return isinstance(start, ast.Expr) and all(
            _is_shown(entry, Expr(module, node.func, frame), node, tainted) for node in calls
        )
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.For) and _reads(node, tainted):
            tainted |= module.binds(node)
    for node in own_nodes(scope):
        if not _reads(node, tainted):
            continue
        if isinstance(node, ast.Return | ast.Yield | ast.Global | ast.While):
            return False
        if isinstance(node, ast.Assign | ast.AugAssign):
            found = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Attribute | ast.Subscript) for target in found for t in ast.walk(target)):
                return False
        if isinstance(node, ast.Call) and not _is_shown(entry, Expr(module, node.func, frame), node, tainted):
            return False
    return True


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(c, ast.Name) and c.id in names and isinstance(c.ctx, ast.Load) for c in ast.walk(node))


def _is_shown(entry: EntryFacts, func: Expr, node: ast.Call, tainted: set[str]) -> bool:
    name = called_name(node)
    if name in _SHOWING:
        return True
    return all(isinstance(callee, Func) and _prints(entry, callee) for callee in entry.values.of(func))


def _prints(entry: EntryFacts, func: Func) -> bool:
    """Whether a helper of the root does nothing but print."""
    if not isinstance(func.node, FunctionNode):
        return False
    for node in own_nodes(func.node):
        if isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.Yield):
            return False
        if isinstance(node, ast.Call):
            callees: tuple[Value, ...] = entry.values.of(Expr(func.module, node.func, None))
            name = called_name(node)
            if name not in _SHOWING and not all(
                isinstance(v, Ext) and v.package in {"builtins", "torch", "os"} for v in callees
            ):
                return False
    return True
