"""The fields of the batches that a collate returns, and what each holds at padding."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from speedmigrate.chain.cells import Cell, Fill
from speedmigrate.chain.collate_code import TOKENIZED, CollateReader, is_wide
from speedmigrate.facts.carry import carry
from speedmigrate.facts.collates import STACKING
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.facts.value import Const, Expr, Ext, Frame, Func
from speedmigrate.rule import Hop


@dataclass(slots=True, eq=False)
class Fields:
    """What is known of the batches.

    Attributes:
        pads: the padded fields, as the consumers of the batch are asked about.
        codes: the pad value of each as code at the `return`.
        widths: the length that each is padded to, as written.
        rows: the call that stacks rows into the batch (`default_collate(rows)`), where the collate ends in one.
        tokenizer: the code of the tokenizer whose fields the rows have, whatever they are; else empty.
        is_left: whether the script has its tokenizer pad on the left.
        problems: why the fields cannot be told.
        unwritten: pad values that cannot be written at the `return`.
    """

    pads: dict[Key, Pads] = field(default_factory=dict)
    codes: dict[Key, str] = field(default_factory=dict)
    widths: dict[Key, str] = field(default_factory=dict)
    rows: ast.Call | None = None
    tokenizer: str = ""
    is_tuple: bool = False
    is_left: bool = False
    is_dict: bool = True
    problems: list[Hop] = field(default_factory=list)
    unwritten: list[Hop] = field(default_factory=list)


def fields(entry: EntryFacts, reader: CollateReader, func: Func, *, is_left: bool) -> Fields:
    """Return the fields of what a collate returns."""
    found = Fields(is_left=is_left)
    if not reader.returned:
        found.problems.append(func.module.hop(func.node, "what this collate returns is not seen"))
    for node, cell in reader.returned:
        at = Expr(func.module, node, reader.frame)
        if _is_stacked(entry, at):
            assert isinstance(node, ast.Call)
            found.rows = node
            cell = _element(reader.seen.get(node.args[0], cell))
        _add(entry, found, at, cell)
    if is_left:
        found.pads = {key: Pads(pad.constant, pad.code, "left") for key, pad in found.pads.items()}
    if not found.pads and not found.problems:
        found.problems.append(func.module.hop(func.node, "no padded field is seen in the batch"))
    return found


def _is_stacked(entry: EntryFacts, expr: Expr) -> bool:
    if not (isinstance(expr.node, ast.Call) and expr.node.args and not expr.node.keywords):
        return False
    callees = entry.values.of(expr.at(expr.node.func))
    return bool(callees) and all(isinstance(callee, Ext) and callee.last in STACKING for callee in callees)


def _element(cell: Cell) -> Cell:
    while cell.kind == "list" and cell.element is not None:
        cell = cell.element
    return cell


def _add(entry: EntryFacts, found: Fields, at: Expr, cell: Cell) -> None:
    if cell.kind not in {"record", "encoded"}:
        found.problems.append(at.hop(f"the fields of the batch are not seen: {at.text.splitlines()[0][:50]}"))
        return
    found.is_tuple = cell.is_tuple
    found.is_dict = found.is_dict and cell.tokenizer is None
    if cell.tokenizer is not None and cell.width:
        tokenizer = _written(entry, cell.tokenizer, at)
        if tokenizer is None:
            found.unwritten.append(at.hop(f"the tokenizer `{cell.tokenizer.text}` cannot be written here"))
        found.tokenizer = tokenizer or cell.tokenizer.text
        for name in TOKENIZED:
            pad = Pads(0 if name == "attention_mask" else None, f"{found.tokenizer}.{name}")
            found.pads.setdefault(name, pad)
            found.widths.setdefault(name, cell.width)
    for key, value in cell.items.items():
        _add_field(entry, found, at, key, value)
    segments = cell.items.get("token_type_ids")
    if segments is not None and segments.fill is not None and segments.fill.attr and segments.fill.expr is not None:
        found.tokenizer = _written(entry, segments.fill.expr, at) or segments.fill.expr.text


def _add_field(entry: EntryFacts, found: Fields, at: Expr, key: Key, cell: Cell) -> None:
    if not is_wide(cell):
        if cell.kind == "mixed":
            found.problems.append(at.hop(f"field {key!r} is made of tokens in a way that is not followed"))
        return
    if cell.kind in {"record", "encoded"}:
        found.problems.append(at.hop(f"part {key!r} of the batch has fields of its own, which are not followed"))
        return
    if cell.fill is None or cell.kind not in {"tokens", "filler"}:
        found.problems.append(at.hop(f"what field {key!r} holds at padding is not seen"))
        return
    code = _code(entry, cell.fill, at)
    if code is None:
        assert cell.fill.expr is not None
        code = cell.fill.expr.text + (f".{cell.fill.attr}" if cell.fill.attr else "")
        found.unwritten.append(at.hop(f"the pad value `{code}` of field {key!r} cannot be written here"))
    found.codes[key] = code
    found.widths[key] = cell.width
    found.pads[key] = Pads(_constant(entry, cell.fill), code, cell.side or "right")


def _constant(entry: EntryFacts, fill: Fill) -> object:
    if fill.expr is None:
        return fill.constant
    value = entry.values.one(fill.expr) if not fill.attr else None
    return value.value if isinstance(value, Const) else None


def _code(entry: EntryFacts, fill: Fill, at: Expr) -> str | None:
    if fill.expr is None:
        return repr(int(fill.constant) if isinstance(fill.constant, bool) else fill.constant)
    code = _written(entry, fill.expr, at)
    return None if code is None else f"{code}.{fill.attr}" if fill.attr else code


def _written(entry: EntryFacts, expr: Expr, at: Expr) -> str | None:
    """Return code with the value of an expression at another place; attributes of the collate's own object stay."""
    root: ast.expr = expr.node
    while isinstance(root, ast.Attribute):
        root = root.value
    there, here = expr.frame, at.frame
    if isinstance(root, ast.Name) and root is not expr.node and there is not None and here is not None:
        first, own = _first(there), _first(here)
        if root.id == first and own and there.receiver is not None and there.receiver == here.receiver:
            return own + expr.text[len(first) :]
    if isinstance(root, ast.Name) and expr.module is at.module and _is_free(expr, at, root.id):
        return expr.text
    return carry(entry.values, expr, at)


def _is_free(expr: Expr, at: Expr, name: str) -> bool:
    """Say whether two places of one function see a name of an outer function."""
    scope = at.module.scope(at.node)
    return scope is expr.module.scope(expr.node) and name not in at.module.bound(scope)


def _first(frame: Frame) -> str:
    names = [argument.arg for argument in (*frame.func.node.args.posonlyargs, *frame.func.node.args.args)]
    return names[0] if names and frame.receiver is not None else ""
