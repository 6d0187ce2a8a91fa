"""Compute the paths that scripts compute: `$(dirname "$0")`, `$(cd "$DIR" && pwd)`, `$(realpath x)`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

    from speedmigrate.launch.expand import Expander

ROOT = "/@"
"""The root of the repository, in paths that a script computes (`$(dirname "$0")`)."""


def join(folder: str, path: str) -> str:
    """Return `path` seen from `folder`, without `.` and `..` where they can be told; "" is the folder of the start."""
    joined = posixpath.normpath(posixpath.join(folder, path))
    return "" if joined == "." else joined


def printed_path(expander: Expander, substitution: Node) -> str | None:
    """Return the path that a command substitution prints, None where it does more than handle paths."""
    commands = list(_commands(substitution))
    words = [[word.text for child in node.children for word in expander.words(child)] for node in commands]
    folder = expander.state.folder
    if len(words) == 2:
        first, second = words
        readable = first[:1] == ["cd"] and len(first) > 1 and second[:1] == ["pwd"] and "\0" not in first[-1]
        return join(folder, first[-1]) if readable else None
    return _printed(words[0], folder) if len(words) == 1 and words[0] else None


def _printed(words: list[str], folder: str) -> str | None:
    name, argument = words[0], words[-1]
    if name == "pwd":
        return folder or "."
    if words == ["git", "rev-parse", "--show-toplevel"]:
        return ROOT
    if "\0" in argument or len(words) < 2:
        return None
    if name == "dirname":
        return posixpath.dirname(argument) or "."
    if name == "basename" and len(words) == 2:
        return posixpath.basename(argument)
    return argument if name in ("realpath", "readlink") else None


def _commands(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        if child.type in ("list", "redirected_statement"):
            yield from _commands(child)
        elif child.type not in ("file_redirect", "comment"):
            yield child
