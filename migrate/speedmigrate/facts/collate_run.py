"""What a collate of the root makes of rows that come padded, run on axes like a loop's body (`batches.py`): the fields
of the batch that have positions, or why narrower rows may change it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from speedmigrate.facts.axes import FREE, POSITIONS, Many, Record, Tensor, Value, is_tracked
from speedmigrate.facts.batchread import LoopRead
from speedmigrate.facts.batchrun import Loop
from speedmigrate.facts.batchvalue import Batch, batch_of
from speedmigrate.facts.collates import STACKING, function_of
from speedmigrate.facts.forward_calls import Given
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import is_first_parameter
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.facts.value import Expr, Ext, Frame
from speedmigrate.facts.value import Value as Resolved
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

_JOINED = frozenset("tensor as_tensor LongTensor FloatTensor BoolTensor array asarray".split())


def collated(
    values: Values, collate: Resolved, pads: Mapping[Key, Pads], place: Expr
) -> tuple[dict[Key, Pads], list[Hop]]:
    """Return the padded fields of the batches that a collate makes of padded rows, and what forbids narrower rows."""
    func = function_of(values, collate)
    names = [a for a in func.node.args.args if not _is_own(func.node, a)] if func is not None else []
    if func is None or not names:
        return {}, [place.hop("the collate is not a function that is read")]
    read = LoopRead(values, pads, place)
    run = _Collate(read, func.module, Frame(func, None, func.receiver))
    rows = batch_of({key: replace(pad, levels=pad.levels - 1) for key, pad in pads.items()})
    made = run.result(func, {names[0].arg: Many(rows)})
    found: dict[Key, Pads] = {}
    problems = [*read.problems, *read.corrects]
    for name, value in _fields(made):
        if isinstance(value, Tensor) and value.is_padded and value.why is None:
            field = _field(value, pads)
            if field is not None:
                found[int(name) if name.isdigit() else name] = field
                continue
        if is_tracked(value):
            problems.append(func.module.hop(func.node, f"what the collate makes of {name!r} is not followed"))
    if not found:
        problems.append(func.module.hop(func.node, "the fields of the batch are not seen"))
    return found, problems


def _is_own(node: FunctionNode | ast.Lambda, argument: ast.arg) -> bool:
    return isinstance(node, FunctionNode) and argument.arg in {"self", "cls"} and is_first_parameter(node, argument)


def _fields(made: Value) -> list[tuple[str, Value]]:
    if isinstance(made, Record):
        return list(made.items)
    return [(str(slot), value) for slot, value in enumerate(made)] if isinstance(made, tuple) else []


def _field(value: Tensor, pads: Mapping[Key, Pads]) -> Pads | None:
    """Return how a tensor of the batch is padded: as the field that it is, or by the value that it has there."""
    if value.axes[-1] != POSITIONS or any(axis != FREE for axis in value.axes[:-1]):
        return None
    levels = len(value.axes) - 1
    if value.key is not None and value.fill == pads[value.key].constant:
        return replace(pads[value.key], levels=levels)
    side = "left" if any(pad.side == "left" for pad in pads.values()) else "right"
    return Pads(value.fill, repr(value.fill) if value.fill is not None else "?", side, levels)


class _Collate(Loop):
    """Reads a collate: rows put one above the other keep their fields."""

    def stacked(self, parts: Value, dim: Value) -> Value:
        found = super().stacked(parts, dim)
        if isinstance(found, Tensor) and isinstance(parts, Many) and isinstance(parts.of, Tensor):
            return replace(found, key=parts.of.key)
        return found

    def concatenate(self, node: ast.AST, parts: Value, dim: Value) -> Value:
        found = super().concatenate(node, parts, dim)
        if isinstance(found, Tensor) and isinstance(parts, Many) and isinstance(parts.of, Tensor):
            return replace(found, key=parts.of.key, fill=parts.of.fill)
        return found

    def outside(self, node: ast.Call, callee: Ext, given: Given) -> Value:
        first = given.args[0] if given.args else None
        if callee.name == "builtins.zip" and len(node.args) == 1 and isinstance(node.args[0], ast.Starred):
            return self.columns(node, self.eval(node.args[0].value))
        if callee.last in STACKING and isinstance(first, Many) and isinstance(first.of, Batch):
            items = tuple((name, self.stacked(Many(value), 0)) for name, value in first.of.items)
            return Batch(items, first.of.is_open)
        if callee.last == "pad_sequence" and isinstance(first, Many) and given.get(1, "batch_first") is True:
            return self.stacked(first, 0)  # the rows are equally long
        if callee.package in {"torch", "numpy"} and callee.last in _JOINED and isinstance(first, Many):
            return self.stacked(first, 0)
        return super().outside(node, callee, given)

    def columns(self, node: ast.AST, rows: Value) -> Value:
        """`zip(*rows)`: the slots of tuples, each with the values of all rows."""
        if isinstance(rows, Many) and isinstance(rows.of, Batch) and rows.of.is_tuple:
            return replace(rows.of, items=tuple((name, Many(value)) for name, value in rows.of.items))
        self.problem(node, "rows are taken apart in a way that is not followed")
        return None
