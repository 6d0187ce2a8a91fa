"""Delete statements, and what becomes of the blocks that lose them; `edit_inserts.py` puts statements in."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from speedmigrate.blocks import Block, Blocks, newline_at_end
from speedmigrate.edit_inserts import insert_splices
from speedmigrate.rule import DeleteStatement, InsertStatement
from speedmigrate.source import SourceFile
from speedmigrate.splice import EditConflict, Rank, Splice

_INVERSE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">="), ast.GtE: (">=", "<"), ast.Gt: (">", "<="), ast.LtE: ("<=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}  # fmt: skip


def statement_splices(
    blocks: Blocks, ops: Sequence[DeleteStatement | InsertStatement], gone: set[ast.stmt]
) -> Iterator[Splice]:
    """Yield the splices of all deletions and insertions of a file; `gone` is `blocks.gone(ops)`."""
    inserts: defaultdict[int, list[InsertStatement]] = defaultdict(list)
    for op in ops:
        if isinstance(op, InsertStatement):
            stmt = blocks.at(op)
            if blocks.inside(stmt, gone) or blocks.is_elif(stmt):
                line = blocks.source.line_of(op.start)
                raise EditConflict(f"{blocks.source.path}:{line}: no place for a statement here")
            inserts[id(blocks.parents[stmt].body)].append(op)
    for block in blocks.blocks:
        if block.owner in gone or blocks.inside(block.owner, gone):
            continue
        here = inserts[id(block.body)]
        if gone.issuperset(block.body) and not here and not isinstance(block.owner, ast.Module):
            yield from _empty(blocks, block, gone)
        else:
            yield from _delete(blocks, block, gone, alone=not here)
            yield from insert_splices(blocks, block, here, gone)


def _delete(blocks: Blocks, block: Block, gone: set[ast.stmt], *, alone: bool) -> Iterator[Splice]:
    """Yield the deletions in a block in which something stays, or (not `alone`) is put in."""
    lines = list(blocks.lines(block))
    for whole, run in itertools.groupby(lines, key=gone.issuperset):
        deleted = list(run) if whole else []
        if whole and alone:
            yield _paragraph(blocks, deleted)
        elif whole:
            yield from (_whole_line(blocks, line) for line in deleted)
    for line in lines:
        stays = [stmt for stmt in line if stmt not in gone]
        if not stays:
            continue
        for stmt, following in itertools.pairwise(line):
            if stmt in gone and any(other in stays for other in line[line.index(stmt) :]):
                yield Splice(blocks.first(stmt), blocks.first(following), "")
        if line[-1] in gone:
            yield Splice(blocks.last(stays[-1]), blocks.last(line[-1]), "")


def _paragraph(blocks: Blocks, run: Sequence[Sequence[ast.stmt]]) -> Splice:
    """Return the deletion of a run of lines; where they end a paragraph (or a comment of what follows begins),
    the comment right above them goes too."""
    text = blocks.source.text
    start = blocks.line_start(blocks.first(run[0][0]))
    end = blocks.line_end(blocks.last(run[-1][-1]))
    after = text[end : blocks.line_end(end)] if end < len(text) else ""
    if after.strip() and not after.lstrip(" \t").startswith("#"):
        return Splice(start, end, "")
    above = start
    while above > 0 and text[blocks.line_start(above - 1) : above].lstrip(" \t").startswith("#"):
        above = blocks.line_start(above - 1)
    if above == start:
        return Splice(start, end, "")
    blank_above = above > 0 and not text[blocks.line_start(above - 1) : above].strip()
    return Splice(above, end + (len(after) if blank_above and not after.strip() else 0), "")


def _whole_line(blocks: Blocks, line: Sequence[ast.stmt]) -> Splice:
    return Splice(blocks.line_start(blocks.first(line[0])), blocks.line_end(blocks.last(line[-1])), "")


def _empty(blocks: Blocks, block: Block, gone: set[ast.stmt]) -> Iterator[Splice]:
    """Yield what becomes of a block that loses every statement."""
    owner = block.owner
    if block.name == "orelse" or (block.name == "finalbody" and getattr(owner, "handlers", None)):
        start = _keyword(blocks, block)
        yield Splice(blocks.line_start(start), blocks.line_end(blocks.last(block.body[-1])), "")
        return
    if isinstance(owner, ast.If) and not gone.issuperset(owner.orelse) and not _in_chain(blocks, owner):
        yield from _invert(blocks.source, owner.test)
        yield _merge_else(blocks, owner)
        return
    first, *rest = blocks.lines(block)
    end = blocks.line_end(blocks.last(first[-1]))
    yield Splice(blocks.first(first[0]), end - len(newline_at_end(blocks.source.text[:end])), "pass")
    for line in rest:
        yield _whole_line(blocks, line)


def _in_chain(blocks: Blocks, owner: ast.If) -> bool:
    """Say whether an `if` is part of an `elif` chain."""
    return blocks.is_elif(owner) or any(map(blocks.is_elif, owner.orelse[:1]))


def _keyword(blocks: Blocks, block: Block) -> int:
    """Return where the `else`, `elif` or `finally` of a block begins."""
    first = blocks.first(block.body[0])
    if blocks.is_elif(block.body[0]):
        return first
    start = _end_of_previous(blocks, block)
    found = [m.start() for m in re.finditer(r"#[^\r\n]*|\b(else|finally)\b", blocks.source.text[start:first]) if m[1]]
    return start + found[-1]


def _end_of_previous(blocks: Blocks, block: Block) -> int:
    """Return the end of the last statement before a block's header in the same compound statement."""
    owner, first = block.owner, blocks.first(block.body[0])
    bodies = [
        other.body for other in blocks.blocks if other.owner is owner or other.owner in getattr(owner, "handlers", ())
    ]
    return max(blocks.last(body[-1]) for body in bodies if blocks.last(body[-1]) <= first)


def _merge_else(blocks: Blocks, owner: ast.If) -> Splice:
    """Return the deletion that makes the body of `else` the body of its `if`."""
    text = blocks.source.text
    colon = _colon(text, blocks.source.span(owner.test)[1], blocks.first(owner.body[0]))
    first = blocks.first(owner.orelse[0])
    orelse = next(block for block in blocks.blocks if block.owner is owner and block.name == "orelse")
    other = _colon(text, _keyword(blocks, orelse), first)
    if blocks.line_end(colon) <= blocks.first(owner.body[0]) and blocks.line_end(other) <= first:
        return Splice(blocks.line_end(colon), blocks.line_end(other), "")
    return Splice(colon + 1, other + 1, "")


def _colon(text: str, start: int, end: int) -> int:
    return next(start + m.start() for m in re.finditer(r"#[^\r\n]*|(:)", text[start:end]) if m[1])


def _invert(source: SourceFile, test: ast.expr) -> Iterator[Splice]:
    """Yield what turns a test into its contrary: another operator, a `not` less or a `not` more."""
    start, end = source.span(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        word = re.compile(r"not\s*").match(source.text, start)
        assert word is not None
        yield Splice(start, word.end(), "")
        return
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _INVERSE:
        left, right = source.span(test.left)[1], source.span(test.comparators[0])[0]
        old, new = _INVERSE[type(test.ops[0])]
        found = re.compile(old).search(source.text, left, right)
        if found and "#" not in source.text[left:right]:
            yield Splice(*found.span(), new)
            return
    tight = isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant)
    before, after = source.text[:start].rstrip(), source.text[end:].lstrip()
    if tight or not (before.endswith("(") and after.startswith(")")):
        yield Splice(start, start, "not " if tight else "not (", Rank.OPEN, -end * 1000)
        yield from () if tight else (Splice(end, end, ")", Rank.CLOSE, -start * 1000),)
    else:
        yield Splice(len(before) - 1, len(before) - 1, "not ", Rank.OPEN, -end * 1000)
