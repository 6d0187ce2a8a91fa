"""What a training loop does with a batch once its padding is cut: its statements are run on axes, models included."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from speedmigrate.chain.batch_pieces import Piece, Pieces
from speedmigrate.chain.built import Built
from speedmigrate.chain.variants import other_files, reads_pads, settled
from speedmigrate.facts.axes import FREE, POSITIONS, Tensor, Value
from speedmigrate.facts.batches import behind
from speedmigrate.facts.batchloops import Start
from speedmigrate.facts.batchread import LoopRead
from speedmigrate.facts.batchrun import Loop
from speedmigrate.facts.batchvalue import Batch
from speedmigrate.facts.dynamic_parts import dynamic_parts
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.patched import patched
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.facts.value import Expr
from speedmigrate.rule import Hop


@dataclass(frozen=True, slots=True)
class Body:
    """What was read of a loop's body, and the settings files that it was read with, where these decide."""

    read: LoopRead
    note: str = ""


def read_body(entry: EntryFacts, pieces: Pieces, body: list[ast.stmt], loop: ast.AST, place: Expr) -> Body:
    """Run the statements that follow the cut, with the fields of the batch under the names that the loop has.

    Where that fails and settings decide what the model is made of, it is read as these settings make it.
    """

    def read(built: Built | None) -> LoopRead:
        return _read(entry, built, pieces, body, loop, place)

    plain = read(None)
    if not plain.problems:
        return Body(plain)
    built = entry.once("what is built", Built)
    first = read(built)
    if not first.problems or not built.missing:
        return Body(first, _note(tuple(built.settings.files), ()))
    groups = other_files(entry, built)
    found = [(files, read(Built(entry, files[0]))) for files in groups]
    good = [(files, each) for files, each in found if not each.problems]
    return _joined(good, [(files, each) for files, each in found if each.problems]) if good else Body(first)


def _joined(good: list[tuple[list[str], LoopRead]], others: list[tuple[list[str], LoopRead]]) -> Body:
    """Put together what was read with several settings files."""
    joined = good[0][1]
    joined.corrects = list(dict.fromkeys(hop for _, read in good for hop in read.corrects))
    joined.hops = list(dict.fromkeys(hop for _, read in good for hop in read.hops))
    for files, read in others:
        first = read.problems[0]
        what = f"with these settings the model is not followed: {first.what} ({first.path}:{first.line})"
        joined.hops += [Hop(path, 1, what) for path in files]
    return Body(joined, _note(_paths(good), _paths(others)))


def _paths(reads: list[tuple[list[str], LoopRead]]) -> tuple[str, ...]:
    return tuple(path for files, _ in reads for path in files)


def _note(files: tuple[str, ...], others: tuple[str, ...]) -> str:
    if not files:
        return ""
    note = f"The model is read with the settings of {_listed(files)}"
    return note + (f"; it is not followed with those of {_listed(others)}" if others else "")


def _listed(files: tuple[str, ...]) -> str:
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    return ", ".join(files[:2]) + more


def _read(
    entry: EntryFacts, built: Built | None, pieces: Pieces, body: list[ast.stmt], loop: ast.AST, place: Expr
) -> LoopRead:
    pads = {piece.key: Pads(piece.constant, piece.code, piece.side) for piece in pieces.found}
    read = LoopRead(entry.values, pads, place)
    if built is None:
        read.parts = entry.once("dynamic parts", lambda entry: dynamic_parts(entry, lambda _: True))
    else:
        read.parts, read.setting, read.built = built.parts(entry), built.one, built.opened
    run = Loop(read, place.module, place.frame)
    run.out = []
    run.env |= _names(pieces)
    run.attempt(body)
    scope = place.module.function(place.node) or place.module.tree
    assert isinstance(loop, ast.stmt)
    behind(run, Start((place.module, scope, place.frame), loop, tuple(body), None, ()))
    read.problems += patched(entry)
    if not read.models:
        read.problems.append(place.hop("no model that is followed gets these batches"))
    elif not read.backward:
        read.problems.append(place.hop("the loss of these batches is not followed to `backward`"))
    if built is not None:
        read.hops += settled(built)
        read.corrects += reads_pads(entry.values, built)
    return read


def _names(pieces: Pieces) -> Mapping[str, Value]:
    fields: dict[Key, Value] = {piece.key: _tensor(piece) for piece in pieces.found}
    if not pieces.name:
        return {str(key): value for key, value in fields.items()}
    return {pieces.name: Batch(tuple((str(key), value) for key, value in fields.items()))}


def _tensor(piece: Piece) -> Tensor:
    return Tensor((FREE,) * piece.dim + (POSITIONS,), piece.key, piece.constant)
