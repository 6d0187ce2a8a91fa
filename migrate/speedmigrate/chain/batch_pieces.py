"""The parts of a batch that hold one entry a token: what a training loop gets from its source, or makes itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from speedmigrate.chain.cells import Cell, Key
from speedmigrate.chain.row_reader import Reader, unnamed
from speedmigrate.chain.widths import followed
from speedmigrate.facts.carry import carry
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import Module
from speedmigrate.facts.reaching import targets
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Const, Expr, Ext, Frame
from speedmigrate.rule import Hop

TENSORS = frozenset("tensor LongTensor IntTensor BoolTensor FloatTensor as_tensor from_numpy stack cat".split())
_SAME = frozenset("to cuda cpu long int float contiguous clone detach type half bool t transpose view reshape".split())
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """One field of the batch that runs over the tokens.

    Attributes:
        key: the name, slot or key that the loop has it under.
        code: what it holds at padding, as code at the loop.
        constant: the same where it is a plain number, else None.
        dim: the dimension of the tokens.
        guards: whether it tells padding from a real token that equals the pad value: a mask, or labels.
    """

    key: Key
    code: str
    constant: object
    side: str
    width: str
    dim: int
    guards: bool


@dataclass(frozen=True, slots=True)
class Pieces:
    """What of a batch runs over tokens, and what is not known of it.

    Attributes:
        name: the name of the whole batch, empty where the loop takes it apart.
        size: how many slots the whole batch has, None of a dict.
        anchor: the statement that they are ready before or after.
        says_pads: whether the loop itself says which of its tokens are padding, by a mask `ids != pad` of each.
    """

    found: tuple[Piece, ...]
    problems: tuple[Hop, ...]
    name: str = ""
    size: int | None = None
    anchor: ast.stmt | None = None
    is_before: bool = True
    says_pads: bool = False


def piece(entry: EntryFacts, key: Key, cell: Cell, place: Expr, told: str | None = None) -> Piece | str:
    """Return the field of a cell that is padded, or why it cannot be cut; `told`: the pad value as the loop has it."""
    fill = cell.fill
    if cell.kind == "mixed" or fill is None or fill.constant is ... or cell.levels not in {2, 3}:
        return "it is made of tokens in a way that is not followed"
    if fill.expr is None:
        constant = fill.constant
        code: str | None = repr(int(constant)) if isinstance(constant, bool) else repr(constant)
    else:
        value = entry.values.one(fill.expr) if not fill.attr else None
        constant = value.value if isinstance(value, Const) else None
        code = carry(entry.values, fill.expr, place)
        code = told if code is None else f"{code}.{fill.attr}" if fill.attr else code
    if code is None:
        assert fill.expr is not None
        return f"its pad value `{fill.expr.text}` cannot be written at the loop"
    negative = isinstance(constant, int | float) and not isinstance(constant, bool) and constant < 0
    return Piece(key, code, constant, cell.side, cell.width, cell.levels - 1, cell.is_mask or negative)


def pieces_of(
    entry: EntryFacts, cells: dict[Key, Cell], place: Expr, hop: Hop, told: dict[str, str] | None = None
) -> Pieces:
    """Return the fields among the cells of a batch."""
    found: list[Piece] = []
    problems: list[Hop] = []
    for key, cell in cells.items():
        if not cell.has_tokens:
            continue
        read = piece(entry, key, cell, place, (told or {}).get(str(key)))
        if isinstance(read, Piece):
            found.append(read)
        else:
            problems.append(Hop(hop.path, hop.line, f"{key!r} of the batch: {read}"))
    return Pieces(tuple(found), tuple(problems))


def at_target(entry: EntryFacts, cell: Cell, target: ast.expr, place: Expr) -> tuple[Pieces, dict[str, Cell]]:
    """Return the fields of a batch as a loop's target takes it, and what the names hold."""
    hop = place.module.hop(target, "the loop takes the batch here")
    if isinstance(target, ast.Name):
        names: dict[str, Cell] = {target.id: cell}
        if cell.kind == "record" and cell.items:
            read = pieces_of(entry, cell.items, place, hop)
            return replace(read, name=target.id, size=len(cell.items) if cell.is_tuple else None), names
        alone: dict[Key, Cell] = {target.id: cell} if cell.kind != "list" else {}
        return pieces_of(entry, alone, place, hop), names
    if not isinstance(target, ast.Tuple | ast.List) or not cell.is_tuple:
        return Pieces((), ()), {}
    bound: dict[Key, Cell] = {}
    bound |= {name: cell.items[path[0]] for name, path in targets(target) if len(path) == 1 and path[0] in cell.items}
    read = pieces_of(entry, bound, place, hop)
    if len(cell.items) != len(target.elts) or len(bound) != len(target.elts):
        read = replace(
            read, problems=(*read.problems, Hop(hop.path, hop.line, "the batch is not taken apart name by name"))
        )
    return read, {str(name): inner for name, inner in bound.items()}


def made_in_loop(
    entry: EntryFacts, body: list[ast.stmt], names: dict[str, Cell], place: Expr, ran: set[ast.AST]
) -> Pieces | None:
    """Return the tensors that the statements of a loop make of rows or slice out of whole sets; None where none do.
    `ran` collects the functions that were read."""
    module, frame = place.module, place.frame
    func = frame.func if frame is not None and frame.func.node is module.function(place.node) else unnamed(place)
    reader = Reader(entry, func, frame or Frame(func, None), dict(names), ran)
    made: dict[str, tuple[Cell, ast.stmt]] = {}
    told: dict[str, str] = {}
    masks: dict[Key, str] = {}
    last = -1
    for index, statement in enumerate(body):
        reader.statement(statement)
        for name, value in _assigned(statement):
            cell = reader.env.get(name)
            if cell is None or not cell.has_tokens or cell.levels < 2 or cell.kind == "list":
                made.pop(name, None)
            elif _makes(value, names) or _is_mask_of(value, cell, set(made)) or (name in made and _keeps(value, name)):
                made[name] = (cell, statement)
                compared = _pad_of_mask(value)
                told |= compared
                masks |= dict.fromkeys((name, *compared), next(iter(compared), "")) if compared else {}
                last = index
    if last < 0:
        return None
    hop = module.hop(body[last], "the batch is made here")
    read = pieces_of(entry, {name: cell for name, (cell, _) in made.items()}, place, hop, told)
    problems = [*read.problems, *_read_before(module, body[: last + 1], set(made))]
    widths = {each.key: each.width for each in read.found}
    found = tuple(replace(each, width=widths.get(masks.get(each.key, each.key), each.width)) for each in read.found)
    says = bool(found) and all(each.key in masks for each in found)
    return replace(read, found=found, problems=tuple(problems), anchor=body[last], is_before=False, says_pads=says)


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = zip(target.elts, value.elts, strict=True)
            yield from ((t.id, v) for t, v in pairs if isinstance(t, ast.Name))


def _makes(value: ast.expr, names: dict[str, Cell]) -> bool:
    """Say whether an expression makes a tensor of rows, or takes a slice of a whole set."""
    if any(isinstance(node, ast.Call) and called_name(node) in TENSORS for node in ast.walk(value)):
        return True
    loaded = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    sliced = any(isinstance(node, ast.Subscript) and _first_is_slice(node) for node in ast.walk(value))
    return sliced and not any(names[name].kind != "other" for name in loaded & set(names))


def _first_is_slice(node: ast.Subscript) -> bool:
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return isinstance(first, ast.Slice) and first.lower is not None and first.upper is not None


def _is_mask_of(value: ast.expr, cell: Cell, made: set[str]) -> bool:
    """Say whether an expression is the mask `ids.ne(pad)` or `ids != pad` of a tensor made before."""
    fill = cell.fill
    if fill is None or fill.constant is not False:
        return False
    return any(isinstance(node, ast.Name) and node.id in made for node in ast.walk(value))


def _pad_of_mask(value: ast.expr) -> dict[str, str]:
    """Return what the loop itself takes for padding: `pad` of `ids.ne(pad)` and `ids != pad`, by the tensor's name."""
    for node in ast.walk(value):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and isinstance(node.ops[0], ast.NotEq):
            return {node.left.id: ast.unparse(node.comparators[0])}
        if (
            isinstance(node, ast.Call)
            and called_name(node) == "ne"
            and isinstance(node.func, ast.Attribute)
            and node.args
        ):
            if isinstance(node.func.value, ast.Name):
                return {node.func.value.id: ast.unparse(node.args[0])}
    return {}


def _keeps(value: ast.expr, name: str) -> bool:
    """Say whether `x = x.to(device)` only moves or casts a tensor."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME:
        value = value.func.value
    return isinstance(value, ast.Name) and value.id == name


def _read_before(module: Module, body: list[ast.stmt], made: set[str]) -> Iterator[Hop]:
    """Yield what reads a tensor before all of them are made: it would keep the padded width."""
    known: set[str] = set()
    for statement in body:
        names = {name for name, _ in _assigned(statement)}
        loaded = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if loaded & known and not names & made:
            yield module.hop(statement, "a tensor is read before the batch is complete")
        known |= names & made


def is_tensor(entry: EntryFacts, expr: Expr, depth: int = 0) -> bool:
    """Say whether an expression is seen to be a tensor of torch: a slice of one, one moved or cast, one just made."""
    node = expr.node
    if depth > _DEPTH:
        return False
    if isinstance(node, ast.Subscript):
        return is_tensor(entry, expr.at(node.value), depth + 1)
    if isinstance(node, ast.Name):
        found = list(followed(entry.values, expr))
        return bool(found) and all(is_tensor(entry, each, depth + 1) for each in found)
    if not isinstance(node, ast.Call):
        return False
    if called_name(node) in TENSORS:
        return any(isinstance(v, Ext) and v.package == "torch" for v in entry.values.of(expr.at(node.func)))
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
        return is_tensor(entry, expr.at(node.func.value), depth + 1)
    return False
