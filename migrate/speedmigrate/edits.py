"""Carry out the ops of a rule on one file: all text surgery on Python.

Every op becomes splices of the old text (`splice.py`), so text that no op names stays as it is. `edit_calls.py` knows
commas, `edit_statements.py` and `edit_inserts.py` lines and blocks, `edit_imports.py` imports: these come last, on the
text that the others made.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from speedmigrate.blocks import Blocks
from speedmigrate.edit_calls import call_splices
from speedmigrate.edit_imports import import_text
from speedmigrate.edit_statements import statement_splices
from speedmigrate.rule import (
    AddImport,
    AddRequirement,
    DeleteStatement,
    InsertStatement,
    Op,
    RemoveImport,
    RemoveKeyword,
    Replace,
    SetFlag,
    SetKeyword,
    Wrap,
)
from speedmigrate.source import SourceFile, parse, retext
from speedmigrate.splice import NEWLINE, EditConflict, Rank, Splice, splice

__all__ = ["EditConflict", "apply_ops"]

_Expression = SetKeyword | RemoveKeyword | Replace | Wrap
_Statement = DeleteStatement | InsertStatement
_Import = AddImport | RemoveImport
_T = TypeVar("_T")

# A requirement's distribution name: after `-e url#egg=` or at the start of the line (PEP 508).
_REQUIREMENT = re.compile(r"\s*(?:-e\s+\S*egg=|)([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
_NOT_REQUIREMENTS = (".py", ".toml", ".yaml", ".yml", ".json", ".cfg", ".lock")


def apply_ops(source: SourceFile, ops: Sequence[Op]) -> str:
    """Return the text of a file after those ops that are its own; their offsets are offsets into `source.text`.

    Raises:
        EditConflict: ops contradict each other, or one names a place or a thing that is not there.
    """
    ops = [op for op in dict.fromkeys(ops) if op.path == source.path]
    splices = [Splice(op.start, op.end, op.code) for op in _of(ops, SetFlag)]
    if code_ops := [op for op in ops if isinstance(op, _Expression | _Statement)]:
        splices += _code_splices(source, code_ops)
    text = splice(source.text, splices, path=source.path)
    if imports := [op for op in ops if isinstance(op, _Import)]:
        text = import_text(retext(source, text), imports)
    for op in _of(ops, AddRequirement):
        text = _add_requirement(retext(source, text), op.line)
    return text


def _of(ops: Iterable[Op], kind: type[_T]) -> list[_T]:
    return [op for op in ops if isinstance(op, kind)]


def _code_splices(source: SourceFile, ops: Sequence[_Expression | _Statement]) -> Iterator[Splice]:
    tree = parse(source)
    blocks = Blocks.read(source, tree)
    statements = [op for op in ops if isinstance(op, _Statement)]
    expressions = [op for op in ops if isinstance(op, _Expression)]
    gone = blocks.gone(statements)
    for op in expressions:
        if any(start <= op.start and op.end <= end for start, end in map(source.span, gone)):
            raise EditConflict(f"{_place(source, op)}: a change inside a statement that another change deletes")
    yield from statement_splices(blocks, statements, gone)
    yield from _expression_splices(_Expressions.read(source, tree, blocks), expressions)


def _place(source: SourceFile, op: _Expression) -> str:
    return f"{source.path}:{source.line_of(op.start)}"


@dataclass(frozen=True, slots=True)
class _Expressions:
    """The expressions of a file by span, outermost first, each with its parent; those inside f-strings left out."""

    source: SourceFile
    blocks: Blocks
    by_span: dict[tuple[int, int], list[tuple[ast.expr, ast.AST]]]

    @classmethod
    def read(cls, source: SourceFile, tree: ast.Module, blocks: Blocks) -> _Expressions:
        found: defaultdict[tuple[int, int], list[tuple[ast.expr, ast.AST]]] = defaultdict(list)
        for node, parent in _expressions(tree):
            found[source.span(node)].append((node, parent))
        return cls(source, blocks, found)

    def at(self, op: _Expression, kind: type[ast.expr] = ast.expr) -> tuple[ast.expr, ast.AST]:
        for node, parent in self.by_span.get((op.start, op.end), ()):
            if isinstance(node, kind):
                return node, parent
        what = kind.__name__.lower() if kind is not ast.expr else "expression"
        raise EditConflict(f"{_place(self.source, op)}: no {what} to change here (inside an f-string?)")


def _expressions(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    todo = [node]
    while todo:
        parent = todo.pop()
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.expr) and not _has_slice(child):
                yield child, parent
            if not isinstance(child, ast.JoinedStr):
                todo.append(child)


def _has_slice(node: ast.expr) -> bool:
    """Say whether a node can stand in a subscript only (`:`, or `:, 0`)."""
    return isinstance(node, ast.Slice) or any(isinstance(part, ast.Slice) for part in getattr(node, "elts", ()))


def _expression_splices(expressions: _Expressions, ops: Sequence[_Expression]) -> Iterator[Splice]:
    source = expressions.source
    calls: defaultdict[tuple[int, int], dict[str, str | None]] = defaultdict(dict)
    for number, op in enumerate(ops):
        if isinstance(op, Replace):
            yield from _replace(expressions, op)
        elif isinstance(op, Wrap):
            yield from _wrap(expressions, op, number)
        else:
            code = _lines(source, _argument(op.code)) if isinstance(op, SetKeyword) else None
            expressions.at(op, ast.Call)
            if calls[op.start, op.end].setdefault(op.name, code) != code:
                raise EditConflict(f"{_place(source, op)}: two changes want different values of the keyword {op.name}")
    for (start, end), wanted in calls.items():
        indent = expressions.blocks.indent_at(start) + expressions.blocks.unit
        yield from call_splices(source, start, end, wanted, indent=indent)


def _lines(source: SourceFile, code: str) -> str:
    return NEWLINE.sub(source.newline, code)


def _replace(expressions: _Expressions, op: Replace) -> Iterator[Splice]:
    source = expressions.source
    node, parent = expressions.at(op)
    code = _lines(source, op.code)
    if _lone_generator(source, node, parent):
        code = f"({_argument(code)})"
    elif isinstance(parent, ast.Call | ast.keyword) and node is not getattr(parent, "func", None):
        code = _argument(code)
    elif _needs_parentheses(code, node, parent) and not _parenthesised(source, op):
        code = f"({code})"
    yield Splice(op.start, op.end, code)


def _wrap(expressions: _Expressions, op: Wrap, number: int) -> Iterator[Splice]:
    source = expressions.source
    node, parent = expressions.at(op)
    before, after = _lines(source, op.before), _lines(source, op.after)
    if isinstance(node, _LOOSE) and not _is_bracketed(source.text[op.start : op.end]):
        before, after = before + "(", ")" + after
    elif _lone_generator(source, node, parent):
        before, after = "(" + before, after + ")"
    yield Splice(op.start, op.start, before, Rank.OPEN, -op.end * 1000 - number)
    yield Splice(op.end, op.end, after, Rank.CLOSE, -op.start * 1000 + number)


def _is_bracketed(code: str) -> bool:
    """Say whether an expression's text is in parentheses as a whole (`(a, b)`, not `(a), b`)."""
    return code.startswith("(") and isinstance(_expression(f"{code}[0]"), ast.Subscript)


def _lone_generator(source: SourceFile, node: ast.expr, parent: ast.AST) -> bool:
    """Say whether a generator shares its parentheses with the call that it is the argument of."""
    if not (isinstance(node, ast.GeneratorExp) and isinstance(parent, ast.Call) and node in parent.args):
        return False
    return source.span(node)[1] == source.span(parent)[1]


def _parenthesised(source: SourceFile, op: Replace) -> bool:
    return source.text[: op.start].rstrip().endswith("(") and source.text[op.end :].lstrip().startswith(")")


_ATOMS = (
    ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp,
    ast.SetComp, ast.GeneratorExp, ast.JoinedStr,
)  # fmt: skip
_LOOSE = (ast.Tuple, ast.NamedExpr, ast.Yield, ast.YieldFrom)
_TIGHT_PARENTS = (
    ast.Attribute, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Await, ast.Starred, ast.Subscript,
    ast.comprehension,
)  # fmt: skip
_FREE_PARENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


def _needs_parentheses(code: str, old: ast.expr, parent: ast.AST) -> bool:
    """Say whether an expression put in the place of `old` would be torn apart without parentheses."""
    node = _expression(code)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and isinstance(parent, ast.Attribute)
    if isinstance(node, _ATOMS) or _is_bracketed(code):
        return False
    if isinstance(node, _LOOSE):
        return isinstance(node, ast.NamedExpr) or not isinstance(parent, _FREE_PARENTS)
    return isinstance(parent, _TIGHT_PARENTS) or old is getattr(parent, "func", None)


def _argument(code: str) -> str:
    """Return the code of an expression as it can stand between commas."""
    node = _expression(code)
    return f"({code})" if isinstance(node, _LOOSE) and not _is_bracketed(code) else code


def _expression(code: str) -> ast.expr:
    try:
        return ast.parse(f"({code}\n)", mode="eval").body
    except SyntaxError as error:
        raise EditConflict(f"not an expression: {code!r}") from error


def _add_requirement(source: SourceFile, line: str) -> str:
    """Return a requirements file with the line at its end, unless it has the distribution already."""
    text = source.text
    if source.path.endswith(_NOT_REQUIREMENTS) or "--hash=" in text:
        raise EditConflict(f"{source.path}: not a plain requirements file; add {line!r} by hand")
    if _distribution(line) in map(_distribution, NEWLINE.split(text)):
        return text
    final = "" if text and not text.endswith(("\n", "\r")) else source.newline
    return text + ("" if final else source.newline) + line + final


def _distribution(line: str) -> str:
    match = _REQUIREMENT.match(line)
    return re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else ""
