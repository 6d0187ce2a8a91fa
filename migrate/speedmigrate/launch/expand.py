"""Expand the words of a shell syntax tree as a shell would, as far as its text alone decides them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from speedmigrate.launch.paths import ROOT, printed_path
from speedmigrate.launch.state import State
from speedmigrate.launch.words import Chunk, Place, Text, Word, fields

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_ALL = re.compile(r'"\$(@|\{@\}|\{\w+\[@\]\})"')

# `<your path>` and `<MODEL>`: what a reader is to fill in; a shell would read redirections and lose what follows.
_PLACEHOLDER = re.compile(r"(?<![<>&\d\\])<[^\W\d](?:[^<>|&;()$`'\"\n]*[^\s<>|&;()$`'\"])?>(?![>&(])")
_LEAD = re.compile(r"(?:\s|\\\r?\n)+")


@functools.cache
def parser() -> Parser:
    """Return the bash parser; imported on first use (30 ms)."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class Tree:
    """The syntax tree of a piece of shell text, with offsets in characters."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.placeholders = tuple(match.span() for match in _PLACEHOLDER.finditer(text.text))
        parsed = _PLACEHOLDER.sub(lambda match: "_" * len(match.group()), text.text)
        data = parsed.encode("utf-8", "surrogatepass")
        self.root = parser().parse(data).root_node
        self._chars: list[int] | None = None
        if len(data) != len(parsed):
            lengths = (len(char.encode("utf-8", "surrogatepass")) for char in parsed)
            self._chars = [number for number, length in enumerate(lengths) for _ in range(length)]
            self._chars.append(len(parsed))

    def span(self, node: Node) -> tuple[int, int]:
        if self._chars is None:
            return node.start_byte, node.end_byte
        return self._chars[node.start_byte], self._chars[node.end_byte]

    def source(self, node: Node) -> str:
        start, end = self.span(node)
        return self.text.text[start:end]

    @property
    def broken(self) -> Iterator[tuple[int, int]]:
        """Where the text is no shell, so that what stands there may be misread."""
        nodes = [self.root] if self.root.has_error else []
        while nodes:
            node = nodes.pop()
            error = node.type == "ERROR" and self.source(node).strip(" \t\r\n\\")
            if error or any(child.is_missing for child in node.children):
                yield self.span(node)
            else:
                nodes += [child for child in node.children if child.has_error]


class Expander:
    """Expands the words of one tree in one state."""

    def __init__(self, tree: Tree, state: State) -> None:
        self.tree = tree
        self.state = state

    def words(self, node: Node) -> list[Word]:
        """Return the words that a node of a command becomes."""
        return fields(list(self._pieces(node, False)))

    def value(self, node: Node | None) -> tuple[Word, ...]:
        """Return what an assignment gives a variable: one word, or the elements of an array."""
        if node is None:
            return (Word((Chunk("", "", -1),)),)
        if node.type == "array":
            return tuple(w for child in node.named_children if child.type != "comment" for w in self.words(child))
        pieces = [piece for piece in self._pieces(node, True) if piece is not None]
        return (Word(tuple(pieces or [Chunk("", "", -1)])),)

    def _pieces(self, node: Node, quoted: bool) -> Iterator[Chunk | None]:
        kind = node.type
        if kind in ("word", "number", "string_content", "extglob_pattern", "variable_name", "special_variable_name"):
            start, end = self.tree.span(node)
            yield from self._literal(start, end, quoted and kind == "string_content")
        elif kind == "raw_string":
            start, end = self.tree.span(node)
            yield from self.tree.text.pieces(start + 1, end - 1) or [self._empty(start + 1)]
        elif kind == "string":
            yield from self._string(node)
        elif kind in ("concatenation", "command_name"):
            for child in node.children:
                yield from self._pieces(child, quoted)
        elif kind == "simple_expansion":
            yield from self._lookup(self.tree.source(node.named_children[-1]), node, quoted)
        elif kind == "expansion":
            yield from self._expansion(node, quoted)
        elif kind == "command_substitution":
            yield self._computed(node, printed_path(self, node), quoted)
        elif kind in ("arithmetic_expansion", "process_substitution", "ansi_c_string", "translated_string"):
            yield self._unread(node, quoted)
        else:
            yield from self._literal(*self.tree.span(node), False)

    def _literal(self, start: int, end: int, in_string: bool) -> Iterator[Chunk]:
        """Yield the text of a range: placeholders unread, backslashes taken away."""
        for begin, stop in self.tree.placeholders:
            if start <= begin and stop <= end:
                yield from self._plain(start, begin, in_string)
                place = self.tree.text.place(begin, stop)
                name = self.tree.text.text[begin:stop]
                yield Chunk(None, "", -1, (place,) if place else (), name=name)
                start = stop
        yield from self._plain(start, end, in_string)

    def _plain(self, start: int, end: int, in_string: bool) -> Iterator[Chunk]:
        text = self.tree.text.text
        position = start
        at = text.find("\\", start, end)
        while at >= 0:
            follow = text[at + 1 : at + 2]
            if follow in ("\n", "\r"):
                yield from self.tree.text.pieces(position, at)
                position = at + (3 if text.startswith("\r\n", at + 1) else 2)
            elif not in_string or follow in '$`"\\':
                yield from self.tree.text.pieces(position, at)
                position = at + 1
            at = text.find("\\", at + 2, end)
        yield from self.tree.text.pieces(position, end)

    def _string(self, node: Node) -> Iterator[Chunk | None]:
        """Yield what a double-quoted string holds; the grammar leaves some blanks outside of its nodes."""
        start, _ = self.tree.span(node)
        position = start + 1
        if not _ALL.fullmatch(self.tree.source(node)):
            yield self._empty(position)
        for child in node.children[1:]:
            child_start, child_end = self.tree.span(child)
            source = self.tree.source(child)
            if child.type != "string_content":
                child_start += len(source) - len(_strip(source))
            yield from self._literal(position, child_start, True)
            if child.type != '"':
                yield from self._pieces(child, True)
            position = child_end

    def _empty(self, at: int) -> Chunk:
        place = self.tree.text.place(at, at)
        return Chunk("", place.path, place.start) if place else Chunk("", "", -1)

    def _site(self, node: Node) -> tuple[Place, ...]:
        start, end = self.tree.span(node)
        source = self.tree.source(node)
        place = self.tree.text.place(start + len(source) - len(_strip(source)), end)
        return (place,) if place else ()

    def _unread(self, node: Node, quoted: bool) -> Chunk:
        return Chunk(None, "", -1, self._site(node), not quoted, name=_strip(self.tree.source(node)))

    def _computed(self, node: Node, text: str | None, quoted: bool) -> Chunk:
        if text is None:
            return self._unread(node, quoted)
        return Chunk(text, "", -1, self._site(node), not quoted)

    def _lookup(self, name: str, node: Node, quoted: bool, index: str = "") -> Iterator[Chunk | None]:
        state = self.state
        if name in self.tree.text.unread:
            yield self.tree.text.unread[name]
            return
        if name in ("0", "BASH_SOURCE"):
            yield self._computed(node, f"{ROOT}/{state.script}", quoted)
            return
        if name == "PWD" and name not in state.variables:
            yield self._computed(node, state.folder or ".", quoted)
            return
        words = self._variable(name, index)
        if words is None:
            yield self._unread(node, quoted)
            return
        for number, word in enumerate(words):
            if number:
                yield None
            for chunk in word.chunks:
                yield replace(chunk, sites=chunk.sites + self._site(node), split=not quoted)

    def _variable(self, name: str, index: str) -> tuple[Word, ...] | None:
        if name in ("@", "*"):
            return self.state.args
        if name.isdigit():
            args = self.state.args
            return None if args is None or int(name) > len(args) else (args[int(name) - 1],)
        words = self.state.variables.get(name)
        if words is None or index in ("@", "*"):
            return words
        if index and not index.isdigit():
            return None
        position = int(index or 0)
        return (words[position],) if position < len(words) else None

    def _expansion(self, node: Node, quoted: bool) -> Iterator[Chunk | None]:
        named = node.named_children
        source = _strip(self.tree.source(node))
        if not named or source.startswith(("${!", "${#")):
            yield self._unread(node, quoted)
            return
        first, index = named[0], ""
        if first.type == "subscript" and len(first.named_children) >= 1:
            index = "".join(self.tree.source(child) for child in first.children[2:-1])
            first = first.children[0]
        name = self.tree.source(first)
        operators = [child.type for child in node.children if not child.is_named][1:-1]
        known = name in self.tree.text.unread or name in ("0", "BASH_SOURCE", "PWD") or self._variable(name, index)
        if not operators or (known and operators[0] in (":-", "-", ":=", "=", ":?", "?")):
            yield from self._lookup(name, node, quoted, index)
        elif operators[0] in (":-", "-", ":=", "=") and len(named) > 1:
            for child in named[1:]:
                for piece in self._pieces(child, quoted):
                    yield piece and replace(piece, sites=piece.sites + self._site(node), split=not quoted)
        elif operators[0] in (":-", "-", ":=", "="):
            yield self._computed(node, "", quoted)
        else:
            yield self._unread(node, quoted)


def _strip(source: str) -> str:
    """Take away the blanks and continued line ends that the grammar puts into an expansion's node."""
    return _LEAD.sub("", source, count=1) if _LEAD.match(source) else source


def assign(tree: Tree, node: Node, state: State) -> str:
    """Carry out `name=value` or `name+=value`; return the name."""
    name = tree.source(node.named_children[0])
    values = [child for child in node.children[2:] if child.is_named]
    value = Expander(tree, state).value(values[0] if values else None)
    if any(child.type == "+=" for child in node.children):
        before = state.variables.get(name, ())
        if values and values[0].type == "array":
            value = (*before, *value)
        elif before:
            value = (Word((*before[0].chunks, *value[0].chunks)), *before[1:])
    state.variables[name] = value
    return name
