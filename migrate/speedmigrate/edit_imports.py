"""Add and remove imports, on the text that the other edits made."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from speedmigrate.blocks import Blocks
from speedmigrate.edit_calls import Items
from speedmigrate.edit_statements import statement_splices
from speedmigrate.rule import AddImport, DeleteStatement, InsertStatement, RemoveImport
from speedmigrate.source import SourceFile, parse, retext
from speedmigrate.splice import EditConflict, Splice, splice

_Import = ast.Import | ast.ImportFrom


def import_text(source: SourceFile, ops: Sequence[AddImport | RemoveImport]) -> str:
    """Return the text with all imports added and removed.

    Raises:
        EditConflict: a name to import is bound to something else in the file.
    """
    text = source.text
    if adds := [op for op in ops if isinstance(op, AddImport)]:
        text = _add(source, adds)
    for name in sorted({op.name for op in ops if isinstance(op, RemoveImport)}):
        text = _remove(retext(source, text), name)
    return text


def _module(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _add(source: SourceFile, ops: Sequence[AddImport]) -> str:
    tree = parse(source)
    missing: defaultdict[str, set[str]] = defaultdict(set)
    for op in ops:
        if not _is_there(source, tree, op):
            _check_free(source, tree, op)
            missing[op.module].add(op.name)
    splices: list[Splice] = []
    lines: list[str] = []
    for module, names in sorted(missing.items()):
        if "" in names:
            lines.append(f"import {module}")
        if wanted := sorted(names - {""}):
            host = _host(source, tree, module, min(_first_use(source, tree, name) for name in wanted))
            if host is None:
                lines.append(f"from {module} import {', '.join(wanted)}")
            else:
                splices += _merge(source, host, wanted)
    if lines:
        first_use = min(_first_use(source, tree, n or module) for module, names in missing.items() for n in names)
        splices += _new_lines(source, tree, lines, first_use)
    return splice(source.text, splices, path=source.path)


def _is_there(source: SourceFile, tree: ast.Module, op: AddImport) -> bool:
    """Say whether the file has the import at module level, outside `if`, before the name is used."""
    first_use = _first_use(source, tree, op.name or op.module)
    todo: list[ast.stmt] = [stmt for stmt in tree.body if source.span(stmt)[0] < first_use]
    for stmt in todo:
        if isinstance(stmt, ast.Try):
            todo += stmt.body
        if isinstance(stmt, ast.ImportFrom) and _module(stmt) != op.module:
            continue
        if isinstance(stmt, ast.ImportFrom if op.name else ast.Import):
            wanted = op.name or op.module
            if any(alias.name == wanted and alias.asname in (None, op.name) for alias in stmt.names):
                return True
    return False


def _check_free(source: SourceFile, tree: ast.Module, op: AddImport) -> None:
    name = op.name or op.module.partition(".")[0]
    for node in ast.walk(tree):
        if name in _binds(node, op):
            line = getattr(node, "lineno", 1)
            raise EditConflict(
                f"{source.path}:{line}: {name} is bound here, so {op.module} cannot be imported under it"
            )


def _binds(node: ast.AST, op: AddImport) -> set[str]:
    """Return the names that a node binds to something else than what the op imports."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return {node.id}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return {node.name or ""}
    if isinstance(node, ast.MatchMapping):
        return {node.rest or ""}
    if isinstance(node, ast.Global | ast.Nonlocal):
        return set(node.names)
    if isinstance(node, ast.ImportFrom):
        same = op.name if _module(node) == op.module else ""
        return {_bound(alias) for alias in node.names if alias.name != same or not same}
    if isinstance(node, ast.Import):
        top = "" if op.name else op.module.partition(".")[0]
        return {_bound(a) for a in node.names if a.asname or a.name.partition(".")[0] != top}
    return set()


def _first_use(source: SourceFile, tree: ast.Module, name: str) -> int:
    """Return the offset of the first use of a name that runs when the module does, else the text's length."""
    name = name.partition(".")[0]
    todo: list[ast.AST] = [tree]
    found = [len(source.text)]
    for node in todo:
        if isinstance(node, ast.Name) and node.id == name:
            found.append(source.span(node)[0])
        later = node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else []
        skip = later if isinstance(later, list) else [later]
        todo += (child for child in ast.iter_child_nodes(node) if child not in skip)
    return min(found)


def _head(source: SourceFile, tree: ast.Module, before: int) -> Iterator[ast.stmt]:
    """Yield the statements of a module before an offset and before its first function or class."""
    for stmt in tree.body:
        if source.span(stmt)[1] > before or isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        yield stmt


def _host(source: SourceFile, tree: ast.Module, module: str, before: int) -> ast.ImportFrom | None:
    """Return the import statement that names of a module can be added to."""
    for stmt in _head(source, tree, before):
        if isinstance(stmt, ast.ImportFrom) and _module(stmt) == module and stmt.names[0].name != "*":
            return stmt
    return None


def _items(source: SourceFile, stmt: _Import) -> Items:
    start, end = source.span(stmt)
    spans = [source.span(alias) for alias in stmt.names]
    bracket = source.text.find("(", start, spans[0][0])
    if bracket >= 0:
        return Items.at(source.text, bracket + 1, end - 1, spans)
    keyword = source.text.rindex("import", start, spans[0][0])
    return Items.at(source.text, keyword + len("import"), end, spans)


def _merge(source: SourceFile, stmt: ast.ImportFrom, names: Sequence[str]) -> Iterator[Splice]:
    """Yield what adds names to an import: in order where its names are in order, else at the end."""
    items = _items(source, stmt)
    for name in names:
        known = [body.split()[0] for body in items.bodies]
        key = next((key for key in _ORDERS if known == sorted(known, key=key)), None)
        index = sum(key(other) < key(name) for other in known) if key else len(known)
        items.insert(index, name, indent="    ", newline=source.newline)
    return iter(list(items.splices(source.text)))


def _by_kind(name: str) -> tuple[int, str]:
    """Order as isort does by default: constants, classes, then the rest."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name.casefold()


_ORDERS: tuple[Callable[[str], tuple[int, str]], ...] = (
    _by_kind,
    lambda name: (0, name.casefold()),
    lambda name: (0, name),
)


def _new_lines(source: SourceFile, tree: ast.Module, lines: Sequence[str], before: int) -> Iterator[Splice]:
    """Yield the insertion of import lines after the first imports of other distributions, else of any module."""
    code = source.newline.join(lines)
    anchor = _anchor(source, tree, before)
    if anchor is None:
        yield _at_top(source, tree, code + source.newline)
        return
    blocks = Blocks.read(source, tree)
    ops = [InsertStatement(source.path, *source.span(anchor), code)]
    yield from statement_splices(blocks, ops, set())


def _anchor(source: SourceFile, tree: ast.Module, before: int) -> ast.stmt | None:
    runs: list[list[_Import]] = [[]]
    for stmt in _head(source, tree, before):
        if isinstance(stmt, _Import):
            runs[-1].append(stmt)
        elif runs[-1]:
            runs.append([])
    runs = [run for run in runs if run]
    return next((run[-1] for run in runs if not all(map(_is_stdlib, run))), runs[0][-1] if runs else None)


def _is_stdlib(stmt: _Import) -> bool:
    modules = [_module(stmt)] if isinstance(stmt, ast.ImportFrom) else [alias.name for alias in stmt.names]
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def _at_top(source: SourceFile, tree: ast.Module, code: str) -> Splice:
    """Return the insertion into a file without imports: below its docstring or head comments, above its code."""
    blank = source.newline
    body = list(tree.body)
    docstring = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and body.pop(0)
    if docstring and isinstance(docstring, ast.Expr):
        end = source.line_end(docstring.end_lineno or 1)
        if body and source.span(body[0])[0] < end:
            raise EditConflict(f"{source.path}:{docstring.lineno}: no place for an import after the docstring")
        final = source.text[:end].endswith(("\n", "\r"))
        below = source.text[end : source.line_end(source.line_of(end))]
        return Splice(end, end, ("" if final else blank) + blank + code + (blank if below.strip() else ""))
    if not body:
        text = source.text
        return Splice(len(text), len(text), ("" if not text or text.endswith(("\n", "\r")) else blank) + code)
    first = body[0]
    line = min((node.lineno for node in getattr(first, "decorator_list", ())), default=first.lineno)
    start = source.line_starts[line - 1]
    return Splice(start, start, code + blank)


def _remove(source: SourceFile, name: str) -> str:
    """Return the text without the imports of a name, or as it is where something uses the name."""
    tree = parse(source)
    stmts = [n for n in ast.walk(tree) if isinstance(n, _Import) and any(_bound(alias) == name for alias in n.names)]
    if source.path.rpartition("/")[2] == "__init__.py" or _is_used(tree, name):
        return source.text
    if any(isinstance(node, ast.Try) and not set(node.body).isdisjoint(stmts) for node in ast.walk(tree)):
        return source.text
    if any("F401" in source.text[source.span(s)[0] : source.line_end(s.end_lineno or 1)] for s in stmts):
        return source.text
    splices: list[Splice] = []
    whole: list[DeleteStatement | InsertStatement] = []
    for stmt in stmts:
        if all(_bound(alias) == name for alias in stmt.names):
            whole.append(DeleteStatement(source.path, *source.span(stmt)))
            continue
        items = _items(source, stmt)
        for index in reversed(range(len(stmt.names))):
            if _bound(stmt.names[index]) == name:
                items.remove(index)
        splices += items.splices(source.text)
    blocks = Blocks.read(source, tree)
    splices += statement_splices(blocks, whole, blocks.gone(whole))
    return splice(source.text, splices, path=source.path)


def _is_used(tree: ast.Module, name: str) -> bool:
    """Say whether a name is used; a string (`__all__`, an annotation) or a `global` statement counts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            return True
        if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_type(node.value, name):
            return True
    return False


def _is_type(text: str, name: str) -> bool:
    """Say whether a string may be an annotation that uses a name."""
    if name not in text or len(text) > 200:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
