"""Find the commands that a reader is told to type: in README files, Makefiles, docstrings and comments.

They are read as scripts are, and only told: nothing here is edited.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from speedmigrate.launch.commands import started
from speedmigrate.launch.expand import Tree
from speedmigrate.launch.find import Launches
from speedmigrate.launch.paths import join
from speedmigrate.launch.shell import LINE, Walker
from speedmigrate.launch.state import Command, State
from speedmigrate.launch.words import Chunk, Text
from speedmigrate.source import SourceFile

_NAMES = re.compile(r".*\.(?:md|mdx|markdown|rst)|readme(?:\.txt)?|makefile|.*\.mk", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[^\n`]*\n(.*?)^[ \t>]*\1", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PROMPT = re.compile(r"^[ \t]*(?:[$!%>] ?|\(\w+\) ?\$ |[-*] |\d+\. )?[ \t]*", re.MULTILINE)
_ASKS = re.compile(r"\$\{?[1-9]")
_MAX_CALLS = 4
_MOVES = re.compile(r"[ \t]*(?:[$!%>] ?)?cd[ \t]")
_DOCSTRING = re.compile(r"(?:\s|#[^\n]*\n)*[rR]?(\"{3}|'{3})(.*?)\1", re.DOTALL)
_COMMENTS = re.compile(r"(?:^[ \t]*#[^\n]*(?:\n|\Z))+", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*#+ ?([^\n]*\n?)", re.MULTILINE)
_PROGRAM = (
    r"(?:[\w./~$-]*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|accelerate-launch|colossalai|horovodrun|"
    r"composer|fabric|\$\{?\w*PYTHON\w*\}?)[ \t]"
)
_AGAIN = re.compile(r"(?:\S*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate)")
_BEFORE = r"(?:[A-Za-z_]\w*=\S*[ \t]+)*(?:(?:sudo|nohup|srun|time|env|exec)\b[^\n]*?[ \t])?"
_STARTS = re.compile(_BEFORE + _PROGRAM)
_SCRIPT = re.compile(
    _BEFORE + r"(?:(?:bash|sh|sbatch|source|\.)[ \t]+|\./)\S+\.(?:sh|bash|slurm|sbatch)[ \t]+[^\s&|>;]"
)
_USED = re.compile(r"\.py\b|\s-m\s|\.(?:sh|bash|slurm|sbatch)\b")


class Documents(Launches):
    """The commands of texts for people, each with the text as its launch file."""

    def _commands(self, path: str) -> list[Command]:
        source = self.read(path)
        if source is None or not _USED.search(source.text):
            return []
        found: list[Command] = []
        state = State(path)
        for text in texts(source):
            walker = Walker(self._called, self.line, lambda name, at: self.files.resolve(name, at, path).path)
            before, state = state.folder, State(path, state.variables)
            tree = Tree(text)
            walker.walk(tree, tree.root, state)
            found += (self._moved(command, before, path) for command in walker.commands)
            state.folder = state.folder or before
        return found

    @cached_property
    def _calls(self) -> dict[str, int]:
        return {}

    def _called(self, path: str) -> Tree | None:
        """Return the tree of a script that a command of a document calls, or that such a script sources. Scripts are
        launch files by themselves: one that starts programs is looked at again only if its arguments decide."""
        source = self.read(path)
        self._calls[path] = self._calls.get(path, 0) + 1
        if source is None or self._calls[path] > _MAX_CALLS:
            return None
        lines = (line.span() for line in LINE.finditer(source.text))
        if _ASKS.search(source.text) or not any(_begins(source.text, *line) for line in lines):
            return self.tree(path)
        return None

    def _moved(self, command: Command, folder: str, path: str) -> Command:
        """Run a command where an earlier block went (`cd`), if its program is not found without that; cut it before a
        second one on its line (`torchrun a.py OR python a.py`)."""
        again = next((n for n, word in enumerate(command.words) if n and _AGAIN.fullmatch(word.text)), None)
        if again is not None and started(replace(command, words=command.words[:again])) is not None:
            command = replace(command, words=command.words[:again])
        start = started(command) if folder else None
        if start is None or self.program(start, command.folder, path).path is not None:
            return command
        return replace(command, folder=join(folder, command.folder))


def is_document(path: str) -> bool:
    """Say whether a file is one that people read for commands."""
    return bool(_NAMES.fullmatch(posixpath.basename(path)))


def texts(source: SourceFile) -> Iterator[Text]:
    """Yield the parts of a file that start a program: of a Python file, its docstring and its comments."""
    text = source.text
    if not source.path.endswith(".py"):
        yield from _blocks(source, 0, len(text))
        return
    docstring = _DOCSTRING.match(text)
    if docstring:
        yield from _blocks(source, *docstring.span(2))
    for comment in _COMMENTS.finditer(text):
        lines = list(_COMMENT.finditer(text, *comment.span()))
        part = Text(Chunk(line[1], source.path, line.start(1)) for line in lines)
        if any(_begins(line[1], 0, len(line[1])) for line in lines):
            yield part


def _blocks(source: SourceFile, start: int, end: int) -> Iterator[Text]:
    """Yield the fenced blocks of a document, and the lines and inline code outside of them, that start a program."""
    text = source.text
    for fence in _FENCE.finditer(text, start, end):
        yield from _loose(source, start, fence.start())
        lines = [line.span() for line in LINE.finditer(text, *fence.span(2))]
        if any(_begins(text, *line) or _MOVES.match(text, *line) for line in lines):
            yield Text(chunk for line in lines for chunk in _unprompted(source, *line))
        start = fence.end()
    yield from _loose(source, start, end)


def _loose(source: SourceFile, start: int, end: int) -> Iterator[Text]:
    for line in LINE.finditer(source.text, start, end):
        spans = [line.span(), *(code.span(1) for code in _INLINE.finditer(source.text, *line.span()))]
        first = next((span for span in spans if _begins(source.text, *span)), None)
        if first is not None:
            yield Text(_unprompted(source, *first))


def _begins(text: str, start: int, end: int) -> bool:
    """Say whether a line begins with what starts Python, or with a script that is given arguments."""
    prompt = _PROMPT.match(text, start, end)
    at = prompt.end() if prompt else start
    starts = _STARTS.match(text, at, end)
    return bool((starts and _USED.search(text, starts.end() - 1, end)) or _SCRIPT.match(text, at, end))


def _unprompted(source: SourceFile, start: int, end: int) -> Iterator[Chunk]:
    """Yield a line without the prompt before it."""
    prompt = _PROMPT.match(source.text, start, end)
    at = prompt.end() if prompt else start
    yield Chunk(source.text[at:end], source.path, at)
    yield Chunk("\n", "", -1)
