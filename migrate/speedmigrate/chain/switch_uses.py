"""Whether a setting decides about padding and nothing else: every read of it is looked at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.branches import Branches
from speedmigrate.chain.flags import Flag, flag_at
from speedmigrate.chain.pads import STRATEGIES, Pad
from speedmigrate.facts.collates import STACKING
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import Module
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.facts.value import Cls, Expr, Ext, Frame, Func, Inst, Value

# What a call of the library takes that has only to do with padding.
_KEYWORDS = frozenset({"padding", "pad_to_max_length", "max_length", "pad_to_multiple_of", "return_tensors"})
_COLLATES = frozenset({"collate_fn", "data_collator"})
_FILLING = frozenset(
    "append extend len max min full zeros ones cat tensor LongTensor pad range new_full new_zeros new_ones full_like "
    "zeros_like ones_like insert".split()
)
_SHOWING = frozenset("print info debug warning warn error format str bool log warning_once".split())
_MEASURES = frozenset({"len", "max", "min", "size"})
_LOGIC = (ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple)
_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Choices:
    """What a branch about padding can choose: the collates of the run, and the lengths that its rows are filled to."""

    collates: frozenset[Value]
    lengths: frozenset[ast.AST]


def decides_only_padding(entry: EntryFacts, flag: Flag, governed: tuple[Pad, ...]) -> bool:
    """Say whether every test of a setting only chooses between ways to pad."""
    made = Choices(_collates(entry), _lengths(entry, governed))
    return all(_is_about_padding(entry, expr, governed, made) for expr in _reads(entry, flag))


def _collates(entry: EntryFacts) -> frozenset[Value]:
    from speedmigrate.chain.switch_gaps import collates

    return frozenset(each.value for each in collates(entry, Branches(entry)) if each.value is not None)


def _lengths(entry: EntryFacts, governed: tuple[Pad, ...]) -> frozenset[ast.AST]:
    leaves = (leaf for pad in governed if pad.fills is not None for leaf in Branches(entry).settled(pad.fills))
    return frozenset(leaf.node for leaf in leaves)


def _reads(entry: EntryFacts, flag: Flag) -> list[Expr]:
    """Return the places of the run that read a setting, under its name or those that it is handed on by."""
    names, found = {flag.name}, dict[ast.AST, Expr]()
    for _ in range(_MAX_ROUNDS):
        before = set(names)
        for module, scope, frame in entry.scopes:
            if not any(name in module.source.text for name in names):
                continue
            for node in own_nodes(scope):
                name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
                if name not in names or not isinstance(getattr(node, "ctx", None), ast.Load) or node in found:
                    continue
                assert isinstance(node, ast.expr)
                expr = Expr(module, node, frame)
                read = flag_at(entry, expr)
                if read is not None and read.key is flag.key:
                    found[node] = expr
                    names |= set(_handed_on(entry, expr))
        if names == before:
            break
    return list(found.values())


def _handed_on(entry: EntryFacts, expr: Expr) -> Iterator[str]:
    """Yield the names that a read gives its value to."""
    parent = expr.module.parents[expr.node]
    above = expr.module.parents[parent] if isinstance(parent, ast.Tuple) else parent
    if isinstance(above, ast.Assign):
        for node in (node for target in above.targets for node in ast.walk(target)):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            yield from (name,) if name else ()
    elif isinstance(parent, ast.keyword) and parent.arg is not None:
        yield parent.arg
    elif isinstance(parent, ast.Call) and expr.node in parent.args:
        for callee in entry.values.of(expr.at(parent.func)):
            func = entry.values.method(callee, "__init__") if isinstance(callee, Cls) else callee
            if isinstance(func, Func):
                names = [argument.arg for argument in func.node.args.args]
                at = parent.args.index(expr.node) + (isinstance(callee, Cls) or func.receiver is not None)
                yield from names[at : at + 1]


def _is_about_padding(entry: EntryFacts, expr: Expr, governed: tuple[Pad, ...], made: Choices) -> bool:
    module, child = expr.module, expr.node
    for parent in module.ancestors(expr.node):
        if isinstance(parent, _LOGIC):
            child = parent
        elif isinstance(parent, ast.IfExp):
            if child is not parent.test:
                return True
            return all(_is_choice(entry, expr.at(part), made) for part in (parent.body, parent.orelse))
        elif isinstance(parent, ast.If):
            return _is_padding_branch(entry, module, expr.frame, parent, governed, made)
        elif isinstance(parent, ast.keyword | ast.Call):
            call = parent if isinstance(parent, ast.Call) else module.parents[parent]
            return isinstance(call, ast.Call) and _takes(entry, expr, call, getattr(parent, "arg", None))
        else:
            return isinstance(parent, ast.Assign | ast.AnnAssign | ast.Assert | ast.FormattedValue | ast.Return)
    return False


def _takes(entry: EntryFacts, expr: Expr, call: ast.Call, keyword: str | None) -> bool:
    """Say whether a call that gets the setting is read itself, shows it, or is told by it how to pad."""
    if called_name(call) in _SHOWING or keyword in _KEYWORDS or keyword == "group_by_length":
        return True  # that the same setting orders the samples is told by `switch_gaps`
    return all(isinstance(callee, Func | Cls) for callee in entry.values.of(expr.at(call.func)))


def _is_choice(entry: EntryFacts, expr: Expr, made: Choices) -> bool:
    """Say whether an expression is a way to pad: a strategy, a multiple, a collate, a length."""
    node = expr.node
    if isinstance(node, ast.Constant):
        return node.value in STRATEGIES or _feeds_padding(expr.module, node)
    if isinstance(node, ast.IfExp):
        return _is_choice(entry, expr.at(node.body), made) and _is_choice(entry, expr.at(node.orelse), made)
    if isinstance(node, ast.Call) and called_name(node) in _MEASURES:
        return True
    found = entry.values.of(expr)
    if found and all(value in made.collates or _is_collate(value) for value in found):
        return True
    return bool(made.lengths) and made.lengths.issuperset(leaf.node for leaf in Branches(entry).settled(expr))


def _feeds_padding(module: Module, node: ast.expr) -> bool:
    """Say whether a constant goes to an argument about padding, by its keyword or the name that it is kept under."""
    names: set[str] = set()
    for parent in module.ancestors(node):
        if isinstance(parent, ast.IfExp):
            continue
        if isinstance(parent, ast.keyword):
            return parent.arg in _KEYWORDS | _COLLATES
        if isinstance(parent, ast.Return):
            return True
        if isinstance(parent, ast.Assign):
            names = {getattr(target, "attr", getattr(target, "id", "")) for target in parent.targets}
        break
    keywords = (each for each in module.nodes if isinstance(each, ast.keyword) and each.arg in _KEYWORDS | _COLLATES)
    read = {getattr(n, "attr", getattr(n, "id", "")) for keyword in keywords for n in ast.walk(keyword.value)}
    return bool(names & (read - {""}))


def _is_collate(value: Value) -> bool:
    of = value.of if isinstance(value, Inst) else value
    return isinstance(of, Ext) and (of.last in STACKING or "Collator" in of.last)


def _is_padding_branch(
    entry: EntryFacts, module: Module, frame: Frame | None, node: ast.If, governed: tuple[Pad, ...],
    made: Choices,
) -> bool:  # fmt: skip
    if _is_twin(module, node) or _fills(node, governed):
        return True
    return all(_is_choosing(entry, module, frame, each, made) for each in (*node.body, *node.orelse))


def _is_choosing(entry: EntryFacts, module: Module, frame: Frame | None, node: ast.stmt, made: Choices) -> bool:
    """Say whether a statement only chooses a way to pad, says something, or evens widths out across ranks."""
    if isinstance(node, ast.If):
        return all(_is_choosing(entry, module, frame, each, made) for each in (*node.body, *node.orelse))
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) and node.value is not None:
        evens = isinstance(node.value, ast.Call) and called_name(node.value) == "pad_across_processes"
        return evens or _is_choice(entry, Expr(module, node.value, frame), made)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return called_name(node.value) in _SHOWING
    return isinstance(node, ast.Pass | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _is_twin(module: Module, node: ast.If) -> bool:
    """Say whether both branches do the same but for how they pad."""
    other = node.orelse
    if not other:
        block = next((b for b in _blocks(module.parents[node]) if node in b), [])
        other = block[block.index(node) + 1 :][: len(node.body)] if block else []
    return bool(other) and [_plain(s) for s in node.body] == [_plain(s) for s in other]


def _blocks(parent: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list):
            yield block


def _plain(statement: ast.stmt) -> str:
    """Return a statement as text, what its calls say of padding left out."""
    copy = ast.parse(ast.unparse(statement))
    for node in ast.walk(copy):
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in _KEYWORDS]
    return ast.unparse(copy)


def _fills(node: ast.If, governed: tuple[Pad, ...]) -> bool:
    """Say whether a branch does nothing but fill rows up."""
    inside = {child for statement in node.body for child in ast.walk(statement)}
    calls = {called_name(child) for child in inside if isinstance(child, ast.Call)}
    return not node.orelse and calls <= _FILLING and any(pad.expr.node in inside for pad in governed)
