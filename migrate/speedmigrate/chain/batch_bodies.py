"""What a training loop does with a batch once its padding is cut: its statements are run on axes, models included."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from speedmigrate.chain.batch_pieces import Piece, Pieces
from speedmigrate.chain.built import Built
from speedmigrate.facts.axes import FREE, POSITIONS, Tensor, Value
from speedmigrate.facts.batches import behind
from speedmigrate.facts.batchloops import Start
from speedmigrate.facts.batchread import LoopRead
from speedmigrate.facts.batchrun import Loop
from speedmigrate.facts.batchvalue import Batch
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.patched import patched
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.facts.value import Expr


def read_body(entry: EntryFacts, pieces: Pieces, body: list[ast.stmt], loop: ast.AST, place: Expr) -> LoopRead:
    """Run the statements that follow the cut, with the fields of the batch under the names that the loop has."""
    pads = {piece.key: Pads(piece.constant, piece.code, piece.side) for piece in pieces.found}
    built = entry.once("what is built", Built)
    read = LoopRead(entry.values, pads, place, parts=built.parts(entry), setting=built.one, made=built.made)
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
    return read


def _names(pieces: Pieces) -> Mapping[str, Value]:
    fields: dict[Key, Value] = {piece.key: _tensor(piece) for piece in pieces.found}
    if not pieces.name:
        return {str(key): value for key, value in fields.items()}
    return {pieces.name: Batch(tuple((str(key), value) for key, value in fields.items()))}


def _tensor(piece: Piece) -> Tensor:
    return Tensor((FREE,) * piece.dim + (POSITIONS,), piece.key, piece.constant)
