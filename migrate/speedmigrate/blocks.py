"""Statements by block and line: where they stand in the text, which of them go away together."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from speedmigrate.rule import DeleteStatement, InsertStatement
from speedmigrate.source import SourceFile
from speedmigrate.splice import NEWLINE, EditConflict

_PURE_CALLS = ("isinstance", "issubclass", "hasattr", "getattr", "callable", "len", "bool", "torch.cuda.is_available")


@dataclass(frozen=True, slots=True)
class Block:
    """One body of statements: the statement that has it (or the module), the field's name."""

    owner: ast.AST
    name: str
    body: list[ast.stmt]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a file, outermost first, and the way from a statement to its block."""

    source: SourceFile
    blocks: list[Block]
    parents: dict[ast.AST, Block]
    unit: str

    @classmethod
    def read(cls, source: SourceFile, tree: ast.Module) -> Blocks:
        blocks: list[Block] = []
        parents: dict[ast.AST, Block] = {}
        todo: list[ast.AST] = [tree]
        for owner in todo:
            for name in ("body", "orelse", "finalbody"):
                body = getattr(owner, name, None)
                if isinstance(body, list) and body:
                    blocks.append(Block(owner, name, body))
                    parents |= dict.fromkeys(body, blocks[-1])
                    todo += body
            for part in (*getattr(owner, "handlers", ()), *getattr(owner, "cases", ())):
                parents[part] = Block(owner, "parts", [])
                todo.append(part)
        found = cls(source, blocks, parents, "")
        return cls(source, blocks, parents, found._unit())

    def _unit(self) -> str:
        units: Counter[str] = Counter()
        for block in self.blocks:
            if isinstance(block.owner, ast.stmt) and not self.inline(block):
                outer, inner = (self.indent_at(self.first(stmt)) for stmt in (block.owner, block.body[0]))
                units[inner.removeprefix(outer)] += 1
        return units.most_common(1)[0][0] if units else "    "

    def at(self, op: DeleteStatement | InsertStatement) -> ast.stmt:
        """Return the statement that an op names."""
        for stmt in self.parents:
            if isinstance(stmt, ast.stmt) and self.source.span(stmt) == (op.start, op.end):
                return stmt
        raise EditConflict(f"{self.source.path}:{self.source.line_of(op.start)}: no statement to change here")

    def first(self, stmt: ast.stmt) -> int:
        """Return where a statement begins, its decorators included."""
        decorators = getattr(stmt, "decorator_list", ())
        if not decorators:
            return self.source.span(stmt)[0]
        return self.source.text.rindex("@", 0, self.source.span(decorators[0])[0])

    def last(self, stmt: ast.stmt) -> int:
        return self.source.span(stmt)[1]

    def line_start(self, offset: int) -> int:
        return self.source.line_starts[self.source.line_of(offset) - 1]

    def line_end(self, offset: int) -> int:
        return self.source.line_end(self.source.line_of(offset))

    def indent_at(self, offset: int) -> str:
        line = self.source.text[self.line_start(offset) : offset]
        return line[: len(line) - len(line.lstrip())] if line.strip() else line

    def inner_indent(self, block: Block) -> str:
        """Return the indentation of a block that stands on the line of its header, once it has lines of its own."""
        header = getattr(block.owner, "pattern", block.owner)
        return self.indent_at(self.source.span(header)[0]) + self.unit

    def inline(self, block: Block) -> bool:
        """Say whether a block stands on the line of its header (`if x: y`)."""
        first = self.first(block.body[0])
        return bool(self.source.text[self.line_start(first) : first].strip())

    def lines(self, block: Block) -> Iterator[list[ast.stmt]]:
        """Yield the statements of a block by logical line (`a; b` is one line)."""
        line: list[ast.stmt] = []
        for stmt in block.body:
            if line and NEWLINE.search(self.source.text[self.last(line[-1]) : self.first(stmt)].replace("\\", "")):
                yield line
                line = []
            line.append(stmt)
        yield line

    def is_elif(self, stmt: ast.AST) -> bool:
        return isinstance(stmt, ast.If) and self.source.text.startswith("elif", self.source.span(stmt)[0])

    def inside(self, stmt: ast.AST, gone: Iterable[ast.AST]) -> bool:
        """Say whether a statement is inside another one of `gone`."""
        outer = set(gone)
        while (block := self.parents.get(stmt)) is not None:
            stmt = block.owner
            if stmt in outer:
                return True
        return False

    def gone(self, ops: Sequence[DeleteStatement | InsertStatement]) -> set[ast.stmt]:
        """Return the statements that go away as a whole: those named, and each `if` that has nothing left to do."""
        gone = {self.at(op) for op in ops if isinstance(op, DeleteStatement)}
        used = {id(self.parents[self.at(op)].body) for op in ops if isinstance(op, InsertStatement)}

        def empty(body: list[ast.stmt]) -> bool:
            return gone.issuperset(body) and id(body) not in used

        for block in reversed(self.blocks):
            owner = block.owner
            if isinstance(owner, ast.If) and empty(owner.body) and empty(owner.orelse) and _is_pure(owner.test):
                gone.add(owner)
        return gone


def _is_pure(test: ast.expr) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in _PURE_CALLS:
            return False
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
    return True


def newline_at_end(text: str) -> str:
    return next((end for end in ("\r\n", "\n", "\r") if text.endswith(end)), "")
