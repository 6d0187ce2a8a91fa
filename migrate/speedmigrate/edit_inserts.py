"""Insert statements before or after others, at their indentation."""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from speedmigrate.blocks import Block, Blocks, newline_at_end
from speedmigrate.rule import InsertStatement
from speedmigrate.source import SourceFile
from speedmigrate.splice import NEWLINE, EditConflict, Rank, Splice


def insert_splices(
    blocks: Blocks, block: Block, ops: Sequence[InsertStatement], gone: set[ast.stmt]
) -> Iterator[Splice]:
    """Yield the insertions among the statements of one block; `gone` are statements that another op deletes.

    Raises:
        EditConflict: the code is not statements, or a body on its header's line both loses and gets statements.
    """
    places: defaultdict[tuple[ast.stmt, str], list[str]] = defaultdict(list)
    for op in sorted(ops, key=lambda op: op.order):
        places[blocks.at(op), op.where].append(op.code)
    if not places:
        return
    for line in blocks.lines(block):
        opens = line[0] is block.body[0] and blocks.inline(block)
        if opens and not gone.isdisjoint(line):
            place = f"{blocks.source.path}:{line[0].lineno}"
            raise EditConflict(f"{place}: a one-line body both loses and gets statements")
        indent = blocks.inner_indent(block) if opens else blocks.indent_at(blocks.first(line[0]))
        yield from _into_line(_Inserts(blocks, places, indent), line, opens=opens, gone=gone)


@dataclass(frozen=True, slots=True)
class _Inserts:
    """What comes before and after the statements of a line, and at which indentation."""

    blocks: Blocks
    places: Mapping[tuple[ast.stmt, str], Sequence[str]]
    indent: str

    def code(self, stmt: ast.stmt, where: str) -> str:
        newline, unit = self.blocks.source.newline, self.blocks.unit
        return "".join(indent_code(code, self.indent, unit, newline) for code in self.places.get((stmt, where), ()))


def _into_line(inserts: _Inserts, line: Sequence[ast.stmt], *, opens: bool, gone: set[ast.stmt]) -> Iterator[Splice]:
    """Yield the insertions at one logical line; `opens`: it stands behind its block's header (`if x: y`)."""
    blocks, indent, source = inserts.blocks, inserts.indent, inserts.blocks.source
    before = inserts.code(line[0], "before")
    if opens:
        start = blocks.first(line[0])
        header = len(source.text[:start].rstrip(" \t\f"))
        yield Splice(header, start, source.newline + before + indent)
    elif before:
        start = blocks.line_start(blocks.first(line[0]))
        start = start if line[0] in gone else _above_comments(source, start, indent)
        yield Splice(start, start, before, Rank.BEFORE)
    for stmt, following in itertools.pairwise(line):
        if between := inserts.code(stmt, "after") + inserts.code(following, "before"):
            yield Splice(blocks.last(stmt), blocks.first(following), source.newline + between + indent)
    if after := inserts.code(line[-1], "after"):
        end = _below_comments(source, blocks.line_end(blocks.last(line[-1])), indent, line[-1])
        if not newline_at_end(source.text[:end]) and line[-1] not in gone:
            after = source.newline + after[: -len(source.newline)]
        yield Splice(end, end, after, Rank.AFTER, -blocks.first(line[-1]))


def _above_comments(source: SourceFile, start: int, indent: str) -> int:
    """Return where the comments begin that stand directly above a statement; those on top of the file are not its."""
    offset, line = start, source.line_of(start)
    while line > 1:
        above = source.line_starts[line - 2]
        text = source.text[above:offset]
        if not text.startswith(indent + "#") or text.startswith((indent + "# %%", indent + "#%%")):
            return offset
        line, offset = line - 1, above
    return start


def _below_comments(source: SourceFile, end: int, indent: str, stmt: ast.stmt) -> int:
    """Return the end of the comments that close the body of a compound statement."""
    offset = end
    while hasattr(stmt, "body") and offset < len(source.text):
        after = source.line_end(source.line_of(offset))
        text = source.text[offset:after]
        if text.strip() and not (text.startswith((indent + " ", indent + "\t")) and text.lstrip().startswith("#")):
            break
        end = after if text.strip() else end
        offset = after
    return end


def indent_code(code: str, indent: str, unit: str, newline: str) -> str:
    """Return statements as lines at an indentation; lines inside their strings stay as they are."""
    code = textwrap.dedent(code).strip("\r\n")
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise EditConflict(f"not statements: {code!r}") from error
    texts = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str | bytes))
    ]
    inside = {line for n in texts for line in range(n.lineno + 1, (n.end_lineno or n.lineno) + 1)}
    made = []
    for number, line in enumerate(NEWLINE.split(code), 1):
        if number not in inside and line.strip():
            depth = len(line) - len(line.lstrip(" "))
            line = indent + unit * (depth // 4) + " " * (depth % 4) + line[depth:]
        made.append(line + newline)
    return "".join(made)
