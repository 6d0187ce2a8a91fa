"""Text that is cut into blocks of one length, so that nothing is padded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.roles import Role, role
from speedmigrate.facts.entry import EntryFacts, shared
from speedmigrate.facts.module import Module
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.value import Expr, Ext
from speedmigrate.rule import Hop

_STREAMS = frozenset({"memmap", "fromfile", "from_file"})


@dataclass(frozen=True, slots=True)
class Pack:
    """One place that cuts a stream of tokens into blocks."""

    role: Role
    hop: Hop


def packs(entry: EntryFacts) -> tuple[Pack, ...]:
    """Return the places of the run that cut a stream of tokens into blocks (worked out once)."""
    return entry.once("packs", lambda entry: tuple(dict.fromkeys(_packs(entry))))


def _packs(entry: EntryFacts) -> Iterator[Pack]:
    for scope in entry.scopes:
        module, node, frame = scope
        for found in _shapes(entry, module).get(node, ()):
            where = role(entry, scope)
            # The script itself slices all kinds of lists into batches.
            if where in {"order", "model", "collate"} or (where == "build" and isinstance(found, ast.Subscript)):
                continue
            if not isinstance(found, ast.Call) or _reads_numbers(entry, Expr(module, found, frame)):
                yield Pack(where, module.hop(found, f"cut into blocks: {module.text(found).splitlines()[0][:60]}"))
    for site, callee in entry.calls("trl", "ConstantLengthDataset", "SFTTrainer", "SFTConfig"):
        packing = call_argument(site.node, None, "packing")
        base = entry.base(callee)
        if base is not None and base.last == "ConstantLengthDataset":
            yield Pack("map", site.expr.hop("TRL packs rows to one length"))
        elif packing is not None and entry.values.key(site.expr.at(packing)) is True:
            yield Pack("map", site.expr.hop("packing=True"))


def _reads_numbers(entry: EntryFacts, expr: Expr) -> bool:
    """Say whether what looks like `np.memmap(path)` or `torch.from_file(path)` is one; a reshape needs no look."""
    assert isinstance(expr.node, ast.Call)
    if called_name(expr.node) not in _STREAMS:
        return True
    callees = entry.values.of(expr.at(expr.node.func))
    return any(isinstance(callee, Ext) and callee.package in {"numpy", "torch"} for callee in callees)


def _shapes(entry: EntryFacts, module: Module) -> dict[ast.AST, list[ast.AST]]:
    return shared(entry.project, f"packs:{module.path}", lambda: _find(module))


def _find(module: Module) -> dict[ast.AST, list[ast.AST]]:
    found: dict[ast.AST, list[ast.AST]] = {}
    for node in module.nodes:
        if _is_cut(module, node):
            found.setdefault(module.function(node) or module.tree, []).append(node)
    return found


def _is_cut(module: Module, node: ast.AST) -> bool:
    """See `x[i : i + block]` under `for i in range(0, n, block)`, a memory-mapped file, and a stream of tokens that is
    reshaped into rows (`np.array(tokens).reshape(rows, block)`, `buffer[:-1].view(rows, block)`)."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        low, high = node.slice.lower, node.slice.upper
        if isinstance(low, ast.Name) and isinstance(high, ast.BinOp) and isinstance(high.op, ast.Add):
            step = high.right if ast.unparse(high.left) == low.id else high.left
            return any(ast.unparse(each) == ast.unparse(step) for each in _steps(module, node, low.id))
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in {"reshape", "view"} and len(node.args) == 2:
        return _is_stream(node.func.value)
    return called_name(node) in _STREAMS


def _is_stream(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return "1" in {ast.unparse(e).lstrip("-") for e in (node.slice.lower, node.slice.upper) if e is not None}
    return isinstance(node, ast.Call) and called_name(node) in {"array", "asarray", "LongTensor", "from_numpy"}


def _steps(module: Module, node: ast.AST, name: str) -> Iterator[ast.expr]:
    for parent in module.ancestors(node):
        loops = parent.generators if isinstance(parent, ast.ListComp | ast.GeneratorExp) else [parent]
        for loop in loops:
            if (
                isinstance(loop, ast.For | ast.comprehension)
                and isinstance(loop.target, ast.Name)
                and loop.target.id == name
            ):
                call = loop.iter
                if isinstance(call, ast.Call) and called_name(call) == "range" and len(call.args) == 3:
                    yield call.args[2]
