"""The fields of the rows that a loader gets: which of them hold one entry a token, and what each holds at padding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.cells import Cell, Fill, Key
from speedmigrate.chain.data_maps import functions
from speedmigrate.chain.data_origins import Origin, origins
from speedmigrate.chain.row_reader import Reader, function_cell, method_cell, unnamed
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.value import Cls, Const, Expr, Frame, Func, Inst, Result, Value
from speedmigrate.rule import Hop

_ROWS = ("__getitem__", "__iter__", "__next__")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a row.

    Attributes:
        fill: what it holds at padding; None where it is not per token, or that is not seen.
        width: the length that it is padded to, as written.
        is_mask: whether it is 1 on tokens and 0 at padding.
        levels: 1 for a row of tokens, 2 for several rows of one length (candidates).
        trouble: why it cannot be cut, empty where it can or need not be.
    """

    key: Key
    fill: Fill | None
    side: str = "right"
    width: str = ""
    is_mask: bool = False
    levels: int = 1
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The rows of one origin.

    Attributes:
        tokenizer: the tokenizer whose fields the rows have beside `fields`, None where the fields are all there is.
        is_static: whether these fields are padded to a fixed length; else each batch pads them.
        width: that length, as written.
        levels: as of its fields.
    """

    origin: Origin
    fields: tuple[Field, ...]
    is_tuple: bool
    tokenizer: Expr | None
    is_static: bool
    width: str
    levels: int
    hop: Hop

    def told(self, what: str) -> Hop:
        return Hop(self.hop.path, self.hop.line, what)

    @property
    def is_padded(self) -> bool:
        return (self.tokenizer is not None and self.is_static) or any(field.fill is not None for field in self.fields)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a data set expression can serve.

    Attributes:
        unknown: where the trail breaks.
        objects: where rows are objects of a class, whose fields are attributes.
        functions: the functions that were read.
    """

    rows: tuple[Row, ...]
    unknown: tuple[Hop, ...]
    objects: tuple[Hop, ...]
    functions: frozenset[ast.AST]


def served(entry: EntryFacts, data: Expr) -> Rows:
    """Return the rows of a data set expression (worked out once)."""
    return entry.once(f"fields:{id(data.node)}:{hash(data.frame)}", lambda entry: _served(entry, data))


def _served(entry: EntryFacts, data: Expr) -> Rows:
    found = origins(entry, entry.values.of(data))
    unknown = list(found.unknown)
    objects: list[Hop] = []
    rows: list[Row] = []
    ran: set[ast.AST] = set()
    for origin in found.found.values():
        cells = [cell for cell in _cells(entry, origin, ran) if cell.kind in {"record", "encoded"}]
        if any(cell.is_object for cell in cells):
            objects.append(Hop(origin.hop.path, origin.hop.line, "a row is neither a dict nor a tuple"))
        if not cells:
            what = f"the fields of its rows are not seen: {origin.hop.what}"
            unknown.append(Hop(origin.hop.path, origin.hop.line, what))
        drop = 1 if origin.kind == "tensor_dataset" or (origin.funcs and _is_batched(entry, origin)) else 0
        rows += [_row(origin, cell, drop) for cell in cells]
    return Rows(tuple(rows), tuple(dict.fromkeys(unknown)), tuple(objects), frozenset(ran))


def _is_batched(entry: EntryFacts, origin: Origin) -> bool:
    """Whether the maps over these rows get several at a time."""
    for site in entry.methods:
        given = call_argument(site.node, None, "batched")
        if given is not None and set(origin.funcs) & set(functions(entry, _first(entry, site))):
            value = entry.values.one(site.expr.at(given))
            return isinstance(value, Const) and value.value is True
    return False


def _first(entry: EntryFacts, site: Site) -> tuple[Value, ...]:
    node = call_argument(site.node, 0, "function")
    return () if node is None else entry.values.of(site.expr.at(node))


def _row(origin: Origin, cell: Cell, drop: int) -> Row:
    """Return a row of what was read; `drop`: how many levels are around the row itself."""
    fields = tuple(_field(key, inner, drop) for key, inner in cell.items.items())
    padded = cell.kind == "encoded" and bool(cell.width)
    return Row(
        origin, fields, cell.is_tuple, cell.tokenizer, padded, cell.width, max(cell.levels - drop, 1), origin.hop
    )


def _field(key: Key, cell: Cell, drop: int) -> Field:
    if cell.kind == "filler" and not cell.width:
        return Field(key, None)
    if cell.kind in {"tokens", "filler"} and cell.fill is not None:
        levels = max(cell.levels - drop, 1)
        if levels > 2:
            return Field(key, cell.fill, width=cell.width, trouble="each row holds several sequences")
        return Field(key, cell.fill, cell.side or "right", cell.width, cell.is_mask, levels)
    if cell.kind in {"tokens", "filler"}:
        return Field(key, None, trouble="its value at padding is not seen")
    inner = [each for each in cell.items.values() if each.kind == "tokens" and each.fill is not None]
    if cell.kind == "record" and inner:
        return Field(key, inner[0].fill, width=inner[0].width, trouble="its padded fields stand inside it")
    if cell.kind == "mixed" or cell.has_tokens:
        return Field(key, None, trouble="it is made of tokens in a way that is not followed")
    return Field(key, None)


def _cells(entry: EntryFacts, origin: Origin, ran: set[ast.AST]) -> Iterator[Cell]:
    value = origin.value
    if origin.funcs:
        row = Cell("record")
        for func in reversed(origin.funcs):
            result = function_cell(entry, func, _frame(entry, func), row, ran)
            if result.kind in {"record", "encoded"}:
                row = result
        _rename(entry, row)
        yield row
    elif isinstance(value, Inst) and isinstance(value.of, Cls):
        for name in _ROWS:
            method = entry.values.method(value.of, name)
            steps = _iterator(entry, value, method) if name == "__iter__" and method is not None else None
            if steps is not None:
                yield method_cell(entry, *steps, ran)
                return
            cell = method_cell(entry, value, method, ran) if method is not None else None
            if cell is not None and cell.kind != "other":
                yield cell
                return
    elif origin.kind == "tensor_dataset" and isinstance(value, Inst):
        yield _tensors(entry, value, ran)
    elif isinstance(value, Result) and isinstance(value.of, Func):
        yield function_cell(entry, value.of, Frame(value.of, value.call, value.of.receiver), Cell("other"), ran)


def _rename(entry: EntryFacts, row: Cell) -> None:
    """Give the columns the names that `rename_column` gives them."""
    for site in entry.methods:
        name = called_name(site.node)
        if name not in {"rename_column", "rename_columns"}:
            continue
        pairs = [site.node.args[:2]] if name == "rename_column" else _entries(site.node.args[:1])
        for pair in pairs:
            keys = [entry.values.key(site.expr.at(part)) for part in pair]
            if len(keys) == 2 and isinstance(keys[1], str) and keys[0] in row.items:
                row.items[keys[1]] = row.items.pop(keys[0])


def _entries(arguments: list[ast.expr]) -> list[list[ast.expr]]:
    found = arguments[0] if arguments else None
    if not isinstance(found, ast.Dict):
        return []
    return [[key, value] for key, value in zip(found.keys, found.values, strict=True) if key is not None]


def _iterator(entry: EntryFacts, value: Inst, method: Func) -> tuple[Inst, Func] | None:
    """Return the object of the root that an `__iter__` hands out, with its `__next__`."""
    func = Func(method.module, method.node, value, method.outer)
    for made in entry.values.returned(Frame(func, None, value)):
        if isinstance(made, Inst) and isinstance(made.of, Cls):
            found = entry.values.method(made.of, "__next__")
            if found is not None:
                return made, found
    return None


def _tensors(entry: EntryFacts, value: Inst, ran: set[ast.AST]) -> Cell:
    """Read `TensorDataset(ids, mask, labels)` in the function that it stands in."""
    call = value.call.node
    assert isinstance(call, ast.Call)
    result = Cell("record", is_tuple=True)
    frame = value.call.frame
    func = unnamed(value.call) if frame is None else frame.func
    reader = Reader(entry, func, frame or Frame(func, None), {}, ran)
    for index, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            return Cell("other")
        result.items[index] = reader.eval(argument)
    return result


def _frame(entry: EntryFacts, func: Func) -> Frame:
    """Return the call of the run that enters a map function: a partial or a lambda binds parameters that it needs."""
    frames = [frame for _, node, frame in entry.scopes if node is func.node and frame is not None]
    called = [frame for frame in frames if frame.call is not None]
    return (called or frames or [Frame(func, None, func.receiver)])[0]
