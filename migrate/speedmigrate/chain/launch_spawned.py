"""The commands that other programs of the root build and start: `subprocess.run([...])`, `os.system("...")`."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace

from speedmigrate.facts.entry import EntryFacts, launch_index, shared
from speedmigrate.facts.module import Module
from speedmigrate.facts.project import Project
from speedmigrate.facts.value import Const, Display, Expr, Ext
from speedmigrate.launch.expand import Tree
from speedmigrate.launch.find import Launch, Launches
from speedmigrate.launch.shell import Walker
from speedmigrate.launch.state import Command
from speedmigrate.launch.words import Chunk, Text, Word

_STARTERS = frozenset(
    ["os.system", "os.popen", *(f"subprocess.{name}" for name in "run call check_call check_output Popen".split())]
)


@dataclass(frozen=True)
class _Spawned(Launches):
    """The commands that calls of Python files start."""

    found: tuple[tuple[str, Command], ...] = ()

    def _commands(self, path: str) -> list[Command]:
        return [command for at, command in self.found if at == path]


def spawned(entry: EntryFacts) -> tuple[Launch, ...]:
    """Return the commands by which other programs of the root start an entry point; they are only told."""
    return entry.once("chain.spawned", lambda entry: tuple(_spawned(entry)))


def _spawned(entry: EntryFacts) -> Iterator[Launch]:
    stem = posixpath.splitext(entry.path)[0]
    names = (posixpath.basename(entry.path), ".".join(stem.split("/")[-2:]))
    for path in shared(entry.project, "spawners", lambda: _spawners(entry.project)):
        source = entry.project.source(path) if path != entry.path else None
        told = source is not None and any(name in source.text for name in names)
        module = entry.project.module(path) if told else None
        if module is not None:
            found = tuple((path, command) for command in _commands(entry, module))
            yield from _Spawned(launch_index(entry.project).files, entry.project.source, (path,), found).of(entry.path)


def _spawners(project: Project) -> tuple[str, ...]:
    texts = ((path, project.source(path)) for path in project.files if path.endswith(".py"))
    words = ("subprocess.", "os.system", "os.popen", "from subprocess")
    return tuple(path for path, source in texts if source is not None and any(word in source.text for word in words))


def _commands(entry: EntryFacts, module: Module) -> Iterator[Command]:
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        func = Expr(module, node.func)
        if any(isinstance(value, Ext) and value.name in _STARTERS for value in entry.values.of(func)):
            for command in _built(entry, Expr(module, node.args[0])):
                yield replace(command, path=module.path, line=node.lineno)


def _built(entry: EntryFacts, expr: Expr) -> Iterator[Command]:
    """Yield the commands that an argument is: a list of words, or text for a shell."""
    for value in entry.values.of(expr):
        if isinstance(value, Display) and isinstance(value.expr.node, ast.List | ast.Tuple):
            words = tuple(Word((_chunk(entry, value.expr.at(each)),)) for each in value.expr.node.elts)
            if words:
                yield Command(words, "", 0, "", {}, (), ())
            return
    chunks = _text(entry, expr)
    if chunks:
        walker = Walker(lambda path: None, lambda path, at: 0, lambda text, folder: None)
        walker.run(expr.module.path, Tree(Text(chunks)))
        yield from walker.commands


def _text(entry: EntryFacts, expr: Expr) -> list[Chunk]:
    """Return the pieces of a text: constants, f-strings and sums of these; what is filled in is unread."""
    node = expr.node
    if isinstance(node, ast.JoinedStr):
        return [
            _chunk(entry, expr.at(part.value if isinstance(part, ast.FormattedValue) else part)) for part in node.values
        ]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_text(entry, expr.at(node.left)), *_text(entry, expr.at(node.right))]
    chunk = _chunk(entry, expr)
    return [chunk] if chunk.text is not None else []


def _chunk(entry: EntryFacts, expr: Expr) -> Chunk:
    value = entry.values.one(expr)
    if isinstance(value, Const) and isinstance(value.value, str):
        return Chunk(value.value, "", -1)
    return Chunk(None, "", -1, name=expr.text)
