"""Training loops that get whole batches of padded rows without a collate in between: from a generator of the root, from
an object that is iterated, from a loader that hands rows on as they are. What is cut there, and why it may not be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from speedmigrate.chain.batch_bodies import read_body
from speedmigrate.chain.batch_pieces import Piece, Pieces, at_target, is_tensor, made_in_loop
from speedmigrate.chain.cells import Cell
from speedmigrate.chain.contracts_fixed import contracts
from speedmigrate.chain.cuts import batch_cuts
from speedmigrate.chain.data_loops import Loop, batch_target, is_plain, taken, training_loops
from speedmigrate.chain.data_pipes import Pipe, generator, loaders, opened
from speedmigrate.chain.fields import Row, served
from speedmigrate.chain.roles import origin
from speedmigrate.chain.row_expr import static_pads
from speedmigrate.chain.row_reader import Reader, object_cell
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import Module
from speedmigrate.facts.padding import starters
from speedmigrate.facts.syntax import call_argument, called_name, own_nodes
from speedmigrate.facts.value import Cls, Expr, Ext, Frame, Func, Inst, Result, Value
from speedmigrate.rule import Hop


@dataclass(frozen=True, slots=True, eq=False)
class BatchMaker:
    """One training loop over whole batches of padded rows.

    Attributes:
        anchor: the statement that the cuts stand before (`is_before`) or after.
        lines: the cuts, as code.
        covers: the functions of the data path whose padding is cut.
        corrects: places where today's pads enter the result.
        done: the cut that stands there already.
        note: the settings that the model was read with, where they decide what it is.
    """

    module: Module
    anchor: ast.stmt
    is_before: bool
    lines: tuple[str, ...]
    covers: frozenset[ast.AST]
    problems: tuple[Hop, ...]
    corrects: tuple[Hop, ...]
    hops: tuple[Hop, ...]
    done: Hop | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Source:
    """What a loop gets its batches from: the cell of one batch, and why it is not understood."""

    cell: Cell
    hop: Hop
    ran: frozenset[ast.AST]
    problems: tuple[Hop, ...] = ()


def batch_makers(entry: EntryFacts) -> tuple[BatchMaker, ...]:
    """Return the training loops of a run that get padded batches without a collate (worked out once)."""
    return entry.once("batch makers", lambda entry: tuple(_batch_makers(entry)))


def _batch_makers(entry: EntryFacts) -> Iterator[BatchMaker]:
    if not static_pads(entry) or batch_cuts(entry):
        return
    seen: dict[ast.AST, BatchMaker] = {}
    for loop in training_loops(entry):
        for found in _of_loop(entry, loop):
            before = seen.get(loop.node)
            if before is not None and before.lines != found.lines:
                hop = loop.over.hop("the loop gets batches that are padded in several ways")
                found = replace(before, problems=(*before.problems, hop))
            seen[loop.node] = found
    for maker in seen.values():
        others = tuple(_shared(entry, maker))
        yield replace(maker, problems=(*maker.problems, *others)) if others else maker


def _of_loop(entry: EntryFacts, loop: Loop) -> Iterator[BatchMaker]:
    target, body = batch_target(entry, loop), _body(loop)
    if target is None or not body:
        return
    for source in _sources(entry, loop):
        read, names = at_target(entry, source.cell, target, loop.over)
        ran: set[ast.AST] = set(source.ran)
        made = made_in_loop(entry, body, names, loop.over, ran)
        if made is None and not isinstance(loop.node, ast.For | ast.AsyncFor):
            read = replace(read, anchor=loop.node, is_before=False)  # type: ignore[arg-type]  # an assignment
        elif made is None:
            read = replace(read, anchor=body[0])
        pieces = made or read
        if pieces.found:
            yield _maker(entry, loop, replace(source, ran=frozenset(ran)), pieces, body)


def _body(loop: Loop) -> list[ast.stmt]:
    """Return the statements that a batch reaches: a loop's body, or what follows `batch = next(...)`."""
    if isinstance(loop.node, ast.For | ast.AsyncFor):
        return loop.node.body
    parent = loop.over.module.parents[loop.node]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None) or []
        if loop.node in block:
            return block[block.index(loop.node) + 1 :]
    return []


def _sources(entry: EntryFacts, loop: Loop) -> Iterator[_Source]:
    found = taken(entry, loop)
    inner = {each.node for each in training_loops(entry)} & {*ast.walk(loop.node)} - {loop.node}
    if all(map(is_plain, found)) and isinstance(loop.node, ast.For) and not inner:
        yield _Source(Cell("other"), loop.over.hop("the loop slices its batches out of the whole set"), frozenset())
    for value in () if all(map(is_plain, found)) else found:
        for source in opened(entry, value):
            node = source.call.node if isinstance(source, Inst) else None
            pipe = next((pipe for pipe in loaders(entry) if pipe.call.node is node), None)
            if pipe is not None:
                yield from _handed_on(entry, pipe)
            elif generator(entry, source) is not None:
                yield from _generated(entry, source)


def _generated(entry: EntryFacts, value: Value) -> Iterator[_Source]:
    """Read what a generator of the root yields, each place on its own."""
    ran: set[ast.AST] = set()
    if isinstance(value, Result) and isinstance(value.of, Func):
        func, given = value.of, {}
        frame = Frame(func, value.call, func.receiver)
    elif isinstance(value, Inst) and isinstance(value.of, Cls):
        method = next((m for name in ("__iter__", "__next__") if (m := entry.values.method(value.of, name))), None)
        if method is None or not method.node.args.args:
            return
        func = Func(method.module, method.node, value, method.outer)
        frame, given = Frame(func, None, value), {method.node.args.args[0].arg: object_cell(entry, value, ran)}
    else:
        return
    reader = Reader(entry, func, frame, given, ran)
    reader.run()
    if not any(cell.has_tokens for cell in reader.out):
        return
    hop = func.module.hop(func.node, f"batches are made by {getattr(func.node, 'name', 'a function')}")
    problems = [*_unequal(reader.out, hop), *_no_tensors(entry, func, frame)]
    yield _Source(reader.out[0], hop, frozenset(ran), tuple(problems))


def _unequal(cells: list[Cell], hop: Hop) -> Iterator[Hop]:
    first = _said(cells[0])
    if any(_said(cell) != first for cell in cells[1:]):
        yield Hop(hop.path, hop.line, "it gives batches of several kinds")


def _said(cell: Cell) -> object:
    """Return what has to be equal in all batches of a source."""
    fill = cell.fill
    own = (cell.width, cell.side, None if fill is None else fill.constant if fill.expr is None else fill.expr.text)
    inner = tuple((key, _said(part)) for key, part in cell.items.items())
    return (cell.is_tuple, own if cell.has_tokens and cell.kind != "record" else None, inner)


def _no_tensors(entry: EntryFacts, func: Func, frame: Frame) -> Iterator[Hop]:
    """Yield the parts of what is yielded that run over tokens and are not seen to be tensors."""
    for node in own_nodes(func.node):
        if isinstance(node, ast.Yield | ast.Return) and node.value is not None:
            inner = node.value
            parts = inner.elts if isinstance(inner, ast.Tuple | ast.List) else [inner]
            parts = inner.values if isinstance(inner, ast.Dict) else parts
            reader = Reader(entry, func, frame, {}, set())
            for part in parts:
                expr = Expr(func.module, part, frame)
                if not is_tensor(entry, expr) and reader.eval(part).has_tokens:
                    yield expr.hop(f"`{expr.text[:40]}` is not seen to be a tensor")


def _handed_on(entry: EntryFacts, pipe: Pipe) -> Iterator[_Source]:
    """Read the rows of a loader whose collate hands them on as they are."""
    collates = pipe.collate or ()
    if not collates or not all(isinstance(v, Func) and _is_identity(v) for v in collates):
        return
    node = call_argument(pipe.call.node, 0, "dataset") if isinstance(pipe.call.node, ast.Call) else None
    if node is None:
        return
    found = served(entry, pipe.call.at(node))
    rows = sorted(
        (row for row in found.rows if row.is_padded), key=lambda row: sum(bool(f.trouble) for f in row.fields)
    )
    cells = [_row_cell(row) for row in rows]
    if cells:
        problems = (*found.unknown, *_unequal(cells, pipe.hop))
        yield _Source(Cell("list", element=cells[0]), pipe.hop, found.functions, problems)


def _row_cell(row: Row) -> Cell:
    """Return a row as the loop finds it in the batch."""
    cell = Cell("record", is_tuple=row.is_tuple)
    for field in row.fields:
        cell.items[field.key] = (
            Cell("other") if field.fill is None and not field.trouble
            else Cell("mixed") if field.trouble
            else Cell("tokens", field.fill, field.side, field.width, is_mask=field.is_mask)
        )  # fmt: skip
    return cell


def _is_identity(func: Func) -> bool:
    """Say whether a function gives its first parameter back."""
    names = [argument.arg for argument in func.node.args.args]
    body = func.node.body
    if isinstance(body, list):
        only = body[-1]
        body_value = only.value if len(body) == 1 and isinstance(only, ast.Return) else None
    else:
        body_value = body
    return isinstance(body_value, ast.Name) and body_value.id in names[-1:]


def _maker(entry: EntryFacts, loop: Loop, source: _Source, pieces: Pieces, body: list[ast.stmt]) -> BatchMaker:
    module, anchor = loop.over.module, pieces.anchor
    assert anchor is not None
    done = _is_done(entry, loop, body)
    if done is not None:
        covers, hops = _covered(entry, source.ran), (source.hop, done)
        return BatchMaker(module, anchor, pieces.is_before, (), covers, (), (), hops, done)
    rest = body if pieces.is_before or anchor not in body else body[body.index(anchor) + 1 :]
    # What the rows are does not matter where the loop compares them with the pad value: they are cut by that alone.
    problems = [
        *(() if pieces.says_pads else source.problems),
        *pieces.problems,
        *(each.hop for each in contracts(entry)),
    ]
    body_read = read_body(entry, pieces, rest, loop.node, loop.over) if not problems else None
    read = body_read.read if body_read is not None else None
    if read is not None:
        problems += read.problems
    corrects = tuple(dict.fromkeys(read.corrects)) if read is not None else ()
    streams = _streams(pieces)
    alone = [stream for stream in streams if not any(piece.guards for piece in stream)]
    if pieces.says_pads and corrects and (same := _pad_is_eos(entry)) is not None:
        problems.append(same)
    if alone and corrects:
        keys = ", ".join(repr(piece.key) for piece in alone[0])
        problems.append(module.hop(anchor, f"neither a mask nor labels say which positions of {keys} are padding"))
    hops = (source.hop, loop.over.hop("the loop over its batches"), *(read.hops if read is not None else ()))
    lines = tuple(_line(pieces, stream) for stream in streams)
    return BatchMaker(
        module, anchor, pieces.is_before, lines, _covered(entry, source.ran), tuple(dict.fromkeys(problems)), corrects,
        tuple(dict.fromkeys(hops)), note=body_read.note if body_read is not None else "",
    )  # fmt: skip


def _is_done(entry: EntryFacts, loop: Loop, body: list[ast.stmt]) -> Hop | None:
    """Return the call of `trim_batch` that a loop has already."""
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Call) and called_name(node) == "trim_batch":
            callees = entry.values.of(loop.over.at(node.func))
            if any(isinstance(v, Ext) and v.package == "speedruntime" for v in callees):
                return loop.over.module.hop(node, "the batch is cut here")
    return None


def _streams(pieces: Pieces) -> list[list[Piece]]:
    """Return the fields of one width together."""
    found: dict[tuple[str, int, str], list[Piece]] = {}
    for piece in pieces.found:
        found.setdefault((piece.width, piece.dim, piece.side), []).append(piece)
    return list(found.values())


def _line(pieces: Pieces, stream: list[Piece]) -> str:
    options = "".join(
        [
            ', padding_side="left"' if stream[0].side == "left" else "",
            f", dim={stream[0].dim}" if stream[0].dim != 1 else "",
            ", mask_is_not_pad=True" if len(stream) == 1 and not stream[0].guards else "",
        ]
    )
    codes = {piece.key: piece.code for piece in stream}
    if not pieces.name:
        names, values = _tuple(list(map(str, codes))), _tuple(list(codes.values()))
        bare = names if len(codes) == 1 else names[1:-1]
        return f"{bare} = trim_batch({names}, {values}{options})"
    if pieces.size is None:
        written = "{" + ", ".join(f"{key!r}: {code}" for key, code in codes.items()) + "}"
    else:
        written = _tuple([codes.get(slot, "None") for slot in range(pieces.size)])
    return f"{pieces.name} = trim_batch({pieces.name}, {written}{options})"


def _tuple(parts: list[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _pad_is_eos(entry: EntryFacts) -> Hop | None:
    """Return where the run makes the end of a text its padding, so that ids alone do not tell which is which."""
    for module in dict.fromkeys(module for module, _, _ in entry.scopes):
        for node in module.nodes if "pad_token" in module.source.text else ():
            if isinstance(node, ast.Assign) and any(_is_pad_token(target) for target in node.targets):
                if "eos" in module.text(node.value):
                    return module.hop(
                        node, "the end of a text is its padding too, and ids alone do not tell which is which"
                    )
    return None


def _is_pad_token(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in {"pad_token", "pad_token_id"}


def _covered(entry: EntryFacts, ran: frozenset[ast.AST]) -> frozenset[ast.AST]:
    return frozenset(origin(entry, pad.scope)[1] for pad in static_pads(entry).values() if pad.scope[1] in ran)


def _shared(entry: EntryFacts, maker: BatchMaker) -> Iterator[Hop]:
    """Yield why another entry point that runs this very loop forbids it."""
    path = maker.module.path
    for other in sorted(starters(entry, path) - {entry.path}) if path != entry.path else ():
        facts = EntryFacts(entry.project, other, entry.target, entry.options, entry.values)
        runs = any(module is maker.module and scope is _around(maker) for module, scope, _ in facts.scopes)
        same = [each for each in _alone(facts) if each.anchor is maker.anchor]
        if runs and not same:
            yield Hop(other, 1, "this entry point runs the same loop over batches that are not padded like this")
        for each in same:
            if each.lines != maker.lines:
                yield Hop(other, 1, "this entry point runs the same loop over batches that are padded otherwise")
            yield from (Hop(p.path, p.line, f"{p.what} (in the run of {other})") for p in each.problems[:1])


def _around(maker: BatchMaker) -> ast.AST:
    return maker.module.function(maker.anchor) or maker.module.tree


def _alone(entry: EntryFacts) -> list[BatchMaker]:
    return [found for loop in training_loops(entry) for found in _of_loop(entry, loop)]
