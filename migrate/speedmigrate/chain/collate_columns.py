"""Rows that a collate fills up one by one and puts into lists: the filling goes, `pad_sequence` pads the lists.

Reads `ids.extend([pad] * (width - len(ids)))`, `all_ids.append(ids)`, then `torch.tensor(all_ids)`; a list of ones as
long as the padding becomes a mask of the row's own length.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.collate_code import CollateReader
from speedmigrate.chain.collate_edit import Edit
from speedmigrate.chain.pads import Pad
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.facts.value import Const, Expr, Ext
from speedmigrate.rule import AddImport, DeleteStatement, Op, Replace

_TENSORS = frozenset({"torch.tensor", "torch.LongTensor"})


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """A list of rows of the batch: its name, what is behind a row, and the row's own name or the ones it is made of."""

    name: str
    fill: int
    row: str
    made: ast.BinOp | None = None


def columns(entry: EntryFacts, reader: CollateReader, found: list[Pad]) -> Edit | None:
    """Return the edit, None where the code is of another shape."""
    module, function = reader.module, reader.func.node
    if not isinstance(function, FunctionNode) or any(
        pad.idiom != "list_concat" or pad.side != "right" for pad in found
    ):
        return None
    drops = [module.statement(pad.expr.node) for pad in found]
    names = [_grown(drop, pad.expr.node) for drop, pad in zip(drops, found, strict=True)]
    if not all(names) or any(pad.scope[1] is not function for pad in found) or len({pad.length for pad in found}) > 1:
        return None
    known: dict[str, _Column] = {}
    for name, pad in zip(names, found, strict=True):
        fill = _fill(entry, pad)
        column = next(iter(_columns_of(function, name, pad.length)), "")
        if fill is None or not column:
            return None
        known[column] = _Column(column, fill, name)
    if any(_is_read_otherwise(module, function, name, drops) for name in names):
        return None
    known |= {column.name: column for column in _fillers(entry, reader, function, found[0].length, names[0])}
    return _edit(entry, reader, function, known, drops, found)


def _is_read_otherwise(module: Module, function: FunctionNode, name: str, drops: list[ast.stmt]) -> bool:
    """Say whether a row is read in any way but to grow, to be measured, cut, or put into its list."""
    inside = {node for drop in drops for node in ast.walk(drop)}
    for node in own_nodes(function):
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)) or node in inside:
            continue
        parent = module.parents[node]
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Slice):
            node, parent = parent, module.parents[parent]
        if isinstance(parent, ast.Attribute) and parent.attr in {"append", "extend"}:
            continue
        if isinstance(parent, ast.Call) and called_name(parent) in {"len", "append"} and parent.args[:1] == [node]:
            continue
        if isinstance(parent, ast.Assign) and ast.unparse(parent.targets[0]) == name:
            continue
        return True
    return False


def _grown(statement: ast.stmt, pad: ast.AST) -> str:
    """Return the name of the list that a statement fills up."""
    if isinstance(statement, ast.AugAssign) and statement.value is pad and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if called_name(call) == "extend" and call.args[:1] == [pad] and isinstance(call.func, ast.Attribute):
            return call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        value = statement.value
        if isinstance(value, ast.BinOp) and value.right is pad and isinstance(value.left, ast.Name):
            return value.left.id if value.left.id == statement.targets[0].id else ""
    return ""


def _fill(entry: EntryFacts, pad: Pad) -> int | None:
    node = pad.expr.node
    display = next((n for n in ast.walk(node) if isinstance(n, ast.List) and len(n.elts) == 1), None)
    value = entry.values.one(pad.expr.at(display.elts[0])) if display is not None else None
    return value.value if isinstance(value, Const) and type(value.value) is int else None


def _appends(function: FunctionNode) -> Iterator[tuple[str, ast.expr]]:
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and called_name(node) == "append" and len(node.args) == 1:
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                yield node.func.value.id, node.args[0]


def _columns_of(function: FunctionNode, row: str, length: str) -> set[str]:
    """Return the lists that a row is put into, whole or cut to the width."""
    found = set()
    for name, added in _appends(function):
        if isinstance(added, ast.Subscript) and isinstance(added.slice, ast.Slice):
            upper = added.slice.upper
            added = added.value if added.slice.lower is None and upper and ast.unparse(upper) == length else added
        if isinstance(added, ast.Name) and added.id == row:
            found.add(name)
    return found if len(found) == 1 else set()


def _fillers(
    entry: EntryFacts, reader: CollateReader, function: FunctionNode, length: str, row: str
) -> Iterator[_Column]:
    """Yield lists of rows that hold one value at every position up to the width."""
    for name, added in _appends(function):
        if isinstance(added, ast.BinOp) and isinstance(added.op, ast.Mult) and ast.unparse(added.right) == length:
            display = added.left
            if isinstance(display, ast.List) and len(display.elts) == 1:
                value = entry.values.one(reader.expr(display.elts[0]))
                if isinstance(value, Const) and type(value.value) is int and value.value in {0, 1}:
                    yield _Column(name, 0, row, added)


def _edit(
    entry: EntryFacts,
    reader: CollateReader,
    function: FunctionNode,
    known: dict[str, _Column],
    drops: list[ast.stmt],
    found: list[Pad],
) -> Edit | None:
    module = reader.module
    fields = _returned(entry, reader, known)
    if fields is None or {column.name for _, _, column in fields} != set(known):
        return None
    if any(module.text(node) == found[0].length for node in _others(function, drops, known, found[0].length)):
        return None
    result = Edit(how="rows keep their own length and are padded to the longest of the batch")
    ops: list[Op] = [_delete(module, drop) for drop in drops]
    ops += [_delete(module, node) for node in _dead(function, drops)]
    for key, call, column in fields:
        if column.made is not None:
            start, end = module.source.span(column.made.right)
            ops.append(Replace(module.path, start, end, f"min(len({column.row}), {found[0].length})"))
            if module.text(column.made.left) == "[1]":
                what = (
                    f"field {key!r} was 1 on all `{found[0].length}` positions, so padding was attended; "
                    "now it is 0 behind the end of each row"
                )
                result.corrects += (module.hop(column.made, what),)
        ops += _padded(module, call, column)
        result.pads[key] = Pads(column.fill, repr(column.fill))
    result.ops = (*ops, AddImport(module.path, "torch.nn.utils.rnn", "pad_sequence"))
    return result


def _returned(
    entry: EntryFacts, reader: CollateReader, known: dict[str, _Column]
) -> list[tuple[Key, ast.Call, _Column]] | None:
    """Return the fields of the returned dict that are made of the lists."""
    if len(reader.returned) != 1 or not isinstance(reader.returned[0][0], ast.Dict):
        return None
    display = reader.returned[0][0]
    found: list[tuple[Key, ast.Call, _Column]] = []
    for key, value in zip(display.keys, display.values, strict=True):
        name = entry.values.key(reader.expr(key)) if key is not None else None
        if not (isinstance(value, ast.Call) and len(value.args) == 1 and isinstance(value.args[0], ast.Name)):
            continue
        callees = entry.values.of(Expr(reader.module, value.func, reader.frame))
        column = known.get(value.args[0].id)
        if column is None or not isinstance(name, str | int) or value.keywords:
            continue
        if all(isinstance(callee, Ext) and callee.name in _TENSORS for callee in callees) and callees:
            found.append((name, value, column))
    return found


def _others(
    function: FunctionNode, drops: list[ast.stmt], known: dict[str, _Column], length: str
) -> Iterator[ast.expr]:
    """Yield uses of the width that the edit does not take away."""
    inside = {node for drop in drops for node in ast.walk(drop)}
    inside |= {node for column in known.values() if column.made is not None for node in ast.walk(column.made)}
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    for node in own_nodes(function):
        if isinstance(node, ast.expr) and node not in inside and ast.unparse(node) == length:
            if not isinstance(parents.get(node), ast.Slice | ast.Compare):
                yield node


def _padded(module: Module, call: ast.Call, column: _Column) -> Iterator[Op]:
    start, end = module.source.span(call)
    kind = module.text(call.func)
    row = "row" if column.name != "row" else "each"
    made = f"{kind}({row}, dtype={kind.rpartition('.')[0]}.long)" if kind.endswith(".tensor") else f"{kind}({row})"
    code = f"pad_sequence([{made} for {row} in {column.name}], batch_first=True, padding_value={column.fill})"
    yield Replace(module.path, start, end, code)


def _delete(module: Module, statement: ast.stmt) -> DeleteStatement:
    start, end = module.source.span(statement)
    return DeleteStatement(module.path, start, end)


def _dead(function: FunctionNode, drops: list[ast.stmt]) -> Iterator[ast.Assign]:
    """Yield lengths that only the dropped statements read."""
    gone = {node for drop in drops for node in ast.walk(drop)}
    for node in own_nodes(function):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call | ast.BinOp)
        ):
            name = node.targets[0].id
            reads = [
                n
                for n in ast.walk(function)
                if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
            ]
            calls = [n for n in ast.walk(node.value) if isinstance(n, ast.Call)]
            if reads and gone.issuperset(reads) and all(called_name(call) in {"len", "max"} for call in calls):
                yield node
