"""Check a new text before anyone sees it: a rule may be wrong, the file must not be.

`facts` of the new text (a second pass has nothing to do) are the plan's to check; this module looks at one file alone.
"""

from __future__ import annotations

import ast
import builtins
import json
import symtable
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.source import SourceError, SourceFile, decode
from speedmigrate.splice import NEWLINE

# What a module has without binding it, beyond the builtins.
_GIVEN = {"__file__", "__path__", "__builtins__", "__annotations__", "__class__", "__module__", "__qualname__"}
_BUILTINS = frozenset(dir(builtins)) | _GIVEN
_NAMELESS = ("lambda", "genexpr", "listcomp", "setcomp", "dictcomp")


def verify(source: SourceFile, new_text: str) -> list[str]:
    """Return what is wrong with a new text of a file, one line each; nothing where it is fine."""
    problems = [*_form(source, new_text)]
    if source.path.endswith(".json"):
        problems += _json(source, new_text)
    if source.path.endswith(".py"):
        problems += _python(source, new_text)
    return [f"{source.path}: {problem}" for problem in problems]


def _form(source: SourceFile, new_text: str) -> Iterator[str]:
    old_ends, new_ends = (set(NEWLINE.findall(text)) for text in (source.text, new_text))
    if not new_ends <= (old_ends or {source.newline}):
        yield f"line ends would be mixed: {sorted(new_ends - old_ends)!r}"
    try:
        data = source.encode(new_text)
        again = decode(source.path, data, python=source.path.endswith(".py"))
    except SourceError as error:
        yield str(error).removeprefix(f"{source.path}: ")
        return
    if (again.text, again.encoding, again.bom) != (new_text, source.encoding, source.bom):
        yield f"its encoding {source.encoding} would be read as {again.encoding}"


def _json(source: SourceFile, new_text: str) -> Iterator[str]:
    try:
        json.loads(source.text)
    except ValueError:
        return
    try:
        json.loads(new_text)
    except ValueError as error:
        yield f"not JSON any more ({error})"


def _python(source: SourceFile, new_text: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(new_text, source.path, "exec", dont_inherit=True)
            old, new = _Names.read(source.text), _Names.read(new_text)
        except SyntaxError as error:
            yield f"line {error.lineno}: syntax error in the new text ({error.msg})"
            return
        except (RecursionError, MemoryError, ValueError) as error:
            yield f"the new text cannot be compiled ({type(error).__name__})"
            return
    yield from _unbound(old, new)
    for name in sorted(new.imported - old.imported - new.used):
        yield f"the import of {name} would not be used"


def _unbound(old: _Names, new: _Names) -> Iterator[str]:
    for name in sorted(new.free - old.free):
        if name in old.bound or not new.star:
            yield (
                f"the name {name} would not be bound any more" if name in old.bound else f"the name {name} is not bound"
            )
    for scope, names in old.local.items():
        for name in sorted(names & new.outer.get(scope, frozenset()) - new.free):
            yield f"the name {name} would not be bound in {scope.rpartition('#')[0]} any more"


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a file: read from the module but not bound there (`free`), bound anywhere, imported, used; per
    function those that it binds (`local`) and those that it reads from outside (`outer`).
    """

    free: frozenset[str]
    bound: frozenset[str]
    imported: frozenset[str]
    used: frozenset[str]
    star: bool
    local: dict[str, frozenset[str]]
    outer: dict[str, frozenset[str]]

    @classmethod
    def read(cls, text: str) -> _Names:
        tree = ast.parse(text)
        top = symtable.symtable(text, "<file>", "exec")
        tables = list(_tables(top, ""))
        module = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
        module |= {
            s.get_name() for _, t in tables for s in t.get_symbols() if s.is_declared_global() and s.is_assigned()
        }
        module |= {child.get_name() for child in top.get_children()}
        read = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
        read |= {s.get_name() for _, t in tables for s in t.get_symbols() if s.is_global() and s.is_referenced()}
        symbols = [symbol for _, table in ((("", top), *tables)) for symbol in table.get_symbols()]
        nodes = list(ast.walk(tree))
        strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        return cls(
            free=frozenset(read - module - _BUILTINS),
            bound=frozenset(s.get_name() for s in symbols if s.is_assigned() or s.is_imported() or s.is_parameter()),
            imported=frozenset(s.get_name() for s in symbols if s.is_imported()),
            used=frozenset({node.id for node in nodes if isinstance(node, ast.Name)} | strings),
            star=any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes),
            local={
                key: frozenset(s.get_name() for s in t.get_symbols() if s.is_local())
                for key, t in tables
                if t.get_name() not in _NAMELESS
            },
            outer={
                key: frozenset(s.get_name() for s in t.get_symbols() if s.is_global() and s.is_referenced())
                for key, t in tables
            },
        )


def _tables(table: symtable.SymbolTable, path: str) -> Iterator[tuple[str, symtable.SymbolTable]]:
    """Yield the scopes below one, each with a key that is the same before and after an edit."""
    seen: Counter[str] = Counter()
    for child in table.get_children():
        name = f"{path}.{child.get_name()}" if path else child.get_name()
        seen[name] += 1
        key = f"{name}#{seen[name]}"
        yield key, child
        yield from _tables(child, key)
