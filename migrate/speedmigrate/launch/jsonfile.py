"""Read JSON with the place of each value, and edit it as spans: DeepSpeed configs, in files and in heredocs.

Comments, trailing commas and bare shell words (`$BATCH`) are accepted. `json` gives no places, tree-sitter-json stops
at trailing commas and shell words, and no kept library does both: hence this scanner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speedmigrate.rule import SetFlag
from speedmigrate.source import SourceFile

Value = str | int | float | bool | None | dict[str, "Value"] | list["Value"]

_SKIP = re.compile(r"(?:\s|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_BARE = re.compile(r"[^\s,\[\]{}\"]+(?:\{[^}]*\})?[^\s,\[\]{}\"]*")
_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place; of an object also its members (the last of equal keys counts)."""

    value: Value
    start: int
    end: int
    members: tuple[tuple[str, int, Node], ...] = ()

    def member(self, key: str) -> Node | None:
        return next((node for name, _, node in reversed(self.members) if name == key), None)


@dataclass(frozen=True, slots=True)
class JsonDoc:
    """A JSON text and where it stands."""

    source: SourceFile
    root: Node

    def node(self, *keys: str) -> Node | None:
        """Return the node below `keys`."""
        node: Node | None = self.root
        for key in keys:
            node = node.member(key) if node else None
        return node

    def get(self, *keys: str, default: Value = None) -> Value:
        """Return the value below `keys`; a bare shell word is its text."""
        node = self.node(*keys)
        return default if node is None else node.value


class _NotJsonError(Exception):
    """Text that is not JSON."""


def read_json(source: SourceFile, start: int = 0, end: int | None = None) -> JsonDoc | None:
    """Read a JSON file, or the part of a script that holds one; None if it is not JSON."""
    stop = len(source.text) if end is None else end
    try:
        root = _value(source.text, _skip(source.text, start), stop, 0)
    except _NotJsonError:
        return None
    return JsonDoc(source, root) if _skip(source.text, root.end) >= stop else None


def _skip(text: str, at: int) -> int:
    return match.end() if (match := _SKIP.match(text, at)) else at


def _value(text: str, at: int, stop: int, depth: int) -> Node:
    if at >= stop or depth > _DEPTH:
        raise _NotJsonError
    if text[at] in "{[":
        return _container(text, at, stop, depth)
    string = _STRING.match(text, at)
    if string:
        return Node(_decoded(string.group()), at, string.end())
    bare = _BARE.match(text, at)
    if bare is None:
        raise _NotJsonError
    return Node(_scalar(bare.group()), at, bare.end())


def _container(text: str, start: int, stop: int, depth: int) -> Node:
    closing = "}" if text[start] == "{" else "]"
    members: list[tuple[str, int, Node]] = []
    at = _skip(text, start + 1)
    while at < stop and text[at] != closing:
        key_at, key = at, ""
        if closing == "}":
            string = _STRING.match(text, at)
            at = _skip(text, string.end()) if string else stop
            if string is None or at >= stop or text[at] != ":":
                raise _NotJsonError
            key, at = str(_decoded(string.group())), _skip(text, at + 1)
        node = _value(text, at, stop, depth + 1)
        members.append((key, key_at, node))
        at = _skip(text, node.end)
        if at < stop and text[at] == ",":
            at = _skip(text, at + 1)
        elif at >= stop or text[at] != closing:
            raise _NotJsonError
    if at >= stop:
        raise _NotJsonError
    if closing == "]":
        return Node([node.value for _, _, node in members], start, at + 1)
    return Node({key: node.value for key, _, node in members}, start, at + 1, tuple(members))


def _decoded(string: str) -> str:
    if "\\" not in string:
        return string[1:-1]
    try:
        return str(json.loads(string, strict=False))
    except ValueError:
        return string[1:-1]


def _scalar(bare: str) -> Value:
    try:
        return json.loads(bare)  # type: ignore[no-any-return]
    except ValueError:
        return bare


def set_json(doc: JsonDoc, pointer: Sequence[str], value: Value) -> tuple[SetFlag, ...] | None:
    """Have `value` below the keys of `pointer`, sections added where they are missing, in the style of the file.

    Returns:
        The edits, none if it is so already; None where something other than a section is in the way.
    """
    node = doc.node(*pointer)
    if node is not None:
        if node.value == value and type(node.value) is type(value):
            return ()
        indent = _indent(doc.source.text, node.start)
        return (SetFlag(doc.source.path, node.start, node.end, _dump(doc, value, indent)),)
    keys = list(pointer)
    depth = max(count for count in range(len(keys)) if doc.node(*keys[:count]))
    parent = doc.node(*keys[:depth])
    assert parent is not None
    if not isinstance(parent.value, dict):
        return None
    for key in reversed(keys[depth + 1 :]):
        value = {key: value}
    return tuple(_add(doc, parent, keys[depth], value))


def remove_json(doc: JsonDoc, pointer: Sequence[str]) -> tuple[SetFlag, ...] | None:
    """Take a key away; None if it is missing or a comment would go with it."""
    parent = doc.node(*pointer[:-1])
    names = [name for name, _, _ in parent.members] if parent else []
    if parent is None or names.count(pointer[-1]) != 1:
        return None
    number = names.index(pointer[-1])
    _, start, node = parent.members[number]
    end = node.end
    text = doc.source.text
    if number + 1 < len(names):
        end = parent.members[number + 1][1]
    elif number:
        start = parent.members[number - 1][2].end
    outside = text[start : parent.members[number][1]] + text[node.end : end]
    return None if outside.strip(" \t\r\n,") else (SetFlag(doc.source.path, start, end, ""),)


def rename_json(doc: JsonDoc, pointer: Sequence[str], name: str) -> tuple[SetFlag, ...] | None:
    """Give a key another name; None if it is missing, or the name is taken."""
    parent = doc.node(*pointer[:-1])
    found = [at for key, at, _ in parent.members if key == pointer[-1]] if parent else []
    if parent is None or len(found) != 1 or parent.member(name):
        return None
    string = _STRING.match(doc.source.text, found[0])
    assert string
    return (SetFlag(doc.source.path, string.start(), string.end(), json.dumps(name)),)


def _add(doc: JsonDoc, parent: Node, key: str, value: Value) -> Iterator[SetFlag]:
    text, path, newline = doc.source.text, doc.source.path, doc.source.newline
    if not parent.members:
        base = _indent(text, parent.start)
        inner = base + _unit(doc)
        code = (
            f"{newline}{inner}{_member(doc, key, value, inner)}{newline}{base}"
            if _unit(doc)
            else _member(doc, key, value, "")
        )
        yield SetFlag(path, parent.start, parent.end, "{" + code + "}")
        return
    last = parent.members[-1]
    lined = (
        text.rfind("\n", parent.start, last[1]) >= 0 and not text[text.rfind("\n", 0, last[1]) + 1 : last[1]].strip()
    )
    indent = _indent(text, last[1]) if lined else ""
    member = (f"{newline}{indent}" if lined else _gap(doc, parent)) + _member(
        doc, key, value, indent if lined else None
    )
    end = last[2].end
    after = _skip(text, end)
    if text[after] == ",":
        yield SetFlag(path, after + 1, after + 1, member + ("," if lined else ""))
        return
    comment = re.compile(r"[ \t]*(?://|#|/\*)[^\r\n]*").match(text, end)
    if comment and lined:
        yield SetFlag(path, end, end, ",")
        yield SetFlag(path, comment.end(), comment.end(), member)
    else:
        yield SetFlag(path, end, end, "," + member)


def _gap(doc: JsonDoc, parent: Node) -> str:
    text = doc.source.text
    return "" if len(parent.members) > 1 and text[parent.members[-1][1] - 1] == "," else " "


def _member(doc: JsonDoc, name: str, value: Value, indent: str | None) -> str:
    text = doc.source.text
    key = _STRING.match(text, doc.root.members[0][1]) if doc.root.members else None
    colon = re.compile(r"\s*:[ \t]*").match(text, key.end()) if key else None
    return f"{json.dumps(name)}{colon.group() if colon else ': '}{_dump(doc, value, indent)}"


def _unit(doc: JsonDoc) -> str:
    """Return one step of indentation, "" if the text is on one line."""
    text, root = doc.source.text, doc.root
    if not root.members:
        return "    "
    first = root.members[0][1]
    return _indent(text, first)[len(_indent(text, root.end - 1)) :] if "\n" in text[root.start : first] else ""


def _indent(text: str, at: int) -> str:
    line = text.rfind("\n", 0, at) + 1
    return text[line : line + len(text[line:at]) - len(text[line:at].lstrip(" \t"))]


def _dump(doc: JsonDoc, value: Value, indent: str | None) -> str:
    unit = _unit(doc)
    if not isinstance(value, dict) or indent is None or not unit:
        return json.dumps(value, ensure_ascii=False)
    dumped = json.dumps(value, indent=unit, ensure_ascii=False)
    return dumped.replace("\n", doc.source.newline + indent)
