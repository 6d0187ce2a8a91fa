"""Tell which files a shell command writes: `cat <<EOF > ds.json`, `tee`, `echo '{...}' > ds.json`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speedmigrate.launch.expand import Expander
from speedmigrate.launch.words import Place, Word

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class Written:
    """A command's name, the files it writes, and where the text stands that it writes into each."""

    command: str
    targets: tuple[Word, ...]
    places: tuple[Place, ...]


def below(nodes: Iterable[Node], kind: str) -> list[Node]:
    """Return the nodes of a kind among `nodes` and below them."""
    found: list[Node] = []
    for node in nodes:
        found += [node] if node.type == kind else below(node.named_children, kind)
    return found


def written(expander: Expander, command: Node, redirects: Iterable[Node]) -> Written:
    """Return what a command with its redirections writes; no places if it is not text of the script."""
    words = _words(expander, command)
    name = posixpath.basename(words[0].text) if words else ""
    targets = [word for node in _targets(expander, redirects) for word in expander.words(node)]
    piped = [_words(expander, node) for node in below(redirects, "command")]
    for teed in (words, *piped):
        targets += teed[1:] if teed and teed[0].text == "tee" else []
    places = [expander.tree.text.place(*expander.tree.span(body)) for body in below(redirects, "heredoc_body")]
    if name == "echo" and len(words) == 2 and len(words[1].chunks) == 1 and words[1].chunks[0].start >= 0:
        chunk = words[1].chunks[0]
        places = [Place(chunk.path, chunk.start, chunk.end)]
    elif name not in ("cat", "tee"):
        places = []
    return Written(name, tuple(targets), tuple(place for place in places if place))


def _words(expander: Expander, command: Node) -> list[Word]:
    nodes = [child for child in command.named_children if not child.type.endswith("_redirect")]
    return [word for child in nodes for word in expander.words(child)]


def _targets(expander: Expander, redirects: Iterable[Node]) -> list[Node]:
    """Return the nodes that name the files of output redirections."""
    found = []
    for redirect in below(redirects, "file_redirect"):
        names = [child for child in redirect.named_children if child.type != "file_descriptor"]
        if names and expander.tree.source(redirect).lstrip("12&").startswith(">"):
            found.append(names[0])
    return found
