"""Shell words that remember where each of their characters stands in the files of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

_BLANK = re.compile(r"(?:\s|\\\r?\n)+")


class Place(NamedTuple):
    """A range of the text of a file."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of text of one place, or a piece that cannot be read (`text` is None).

    Attributes:
        start: offset of the text in the file, -1 if it stands nowhere (a folder computed by `dirname`).
        sites: the expansions (`$ARGS`) it came through, the innermost first.
        split: it came from an expansion outside quotes, so blanks in it separate words.
        maybe: only some branches of the script put it there.
        name: how an unreadable piece is written (`$@`).
    """

    text: str | None
    path: str
    start: int
    sites: tuple[Place, ...] = ()
    split: bool = False
    maybe: bool = False
    name: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.text or "")

    def slice(self, start: int, end: int) -> Chunk:
        """Return the part of a readable piece."""
        assert self.text is not None
        return replace(self, text=self.text[start:end], start=self.start + start if self.start >= 0 else -1)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, after expansion."""

    chunks: tuple[Chunk, ...]

    @property
    def text(self) -> str:
        """The text, with NUL for each piece that cannot be read."""
        return "".join("\0" if chunk.text is None else chunk.text for chunk in self.chunks)

    @property
    def maybe(self) -> bool:
        return any(chunk.maybe for chunk in self.chunks)

    @property
    def signature(self) -> str:
        """The text with unreadable pieces by name: equal signatures are the same path."""
        return "".join(chunk.name if chunk.text is None else chunk.text for chunk in self.chunks)

    @property
    def opaque(self) -> Chunk | None:
        """The piece of a word that is nothing but one unreadable piece."""
        return self.chunks[0] if len(self.chunks) == 1 and self.chunks[0].text is None else None


def merge(chunks: Iterable[Chunk]) -> tuple[Chunk, ...]:
    """Join pieces that stand side by side in one file; drop empty ones that stand beside others."""
    joined: list[Chunk] = []
    for chunk in chunks:
        last = joined[-1] if joined else None
        if last and last.text == "":
            joined.pop()
            last = joined[-1] if joined else None
        if chunk.text == "" and last:
            continue
        if (
            last
            and last.text is not None
            and chunk.text is not None
            and last.start >= 0
            and (chunk.path, chunk.start) == (last.path, last.end)
            and (chunk.sites, chunk.split, chunk.maybe) == (last.sites, last.split, last.maybe)
        ):
            joined[-1] = replace(last, text=last.text + chunk.text)
        else:
            joined.append(chunk)
    return tuple(joined)


def fields(chunks: Sequence[Chunk | None]) -> list[Word]:
    """Split pieces into words: at None (between array elements) and at blanks of pieces that are to be split."""
    words: list[list[Chunk]] = [[]]
    for chunk in chunks:
        if chunk is None:
            words.append([])
        elif chunk.text is None or not chunk.split:
            words[-1].append(chunk)
        else:
            position = 0
            for blank in _BLANK.finditer(chunk.text):
                words[-1].append(chunk.slice(position, blank.start()))
                words.append([])
                position = blank.end()
            words[-1].append(chunk.slice(position, len(chunk.text)))
    kept = [pieces for pieces in words if any(not chunk.split or chunk.text != "" for chunk in pieces)]
    return [Word(merge(pieces)) for pieces in kept]


class Text:
    """Shell text to parse: a file, or what `eval` is given, with the way back from its offsets to the files."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self.chunks = tuple(chunks)
        self.unread: dict[str, Chunk] = {}
        self.starts: list[int] = []
        parts: list[str] = []
        length = 0
        for number, chunk in enumerate(self.chunks):
            if chunk.text is None:
                self.unread[f"__unread_{number}"] = chunk
            part = f"${{__unread_{number}}}" if chunk.text is None else chunk.text
            self.starts.append(length)
            parts.append(part)
            length += len(part)
        self.text = "".join(parts)

    def pieces(self, start: int, end: int) -> list[Chunk]:
        """Return the pieces of a range, not to be split."""
        found = []
        for chunk, at in zip(self.chunks, self.starts, strict=True):
            if chunk.text is not None and max(at, start) < min(end, at + len(chunk.text)):
                found.append(replace(chunk.slice(max(0, start - at), min(len(chunk.text), end - at)), split=False))
        return found

    def place(self, start: int, end: int) -> Place | None:
        """Return where a range stands, or None if it is not in one piece of one file."""
        if len(self.chunks) == 1:
            only = self.chunks[0]
            return Place(only.path, only.start + start, only.start + end) if only.start >= 0 else None
        pieces = self.pieces(start, end)
        if not pieces or any(piece.start < 0 for piece in pieces):
            return None
        first, last = pieces[0], pieces[-1]
        if first.path != last.path or first.sites != last.sites or last.end - first.start != end - start:
            return None
        return Place(first.path, first.start, last.end)


def _key(chunk: Chunk) -> tuple[str | None, str, int, str]:
    return chunk.text, chunk.path, chunk.start, chunk.name


def either(one: Sequence[Word], other: Sequence[Word], name: str) -> tuple[Word, ...]:
    """Return the value of a variable that two branches set differently.

    Lists of flags are put one after the other, what they do not share marked `maybe`; any other value is unread.
    """
    if [tuple(map(_key, w.chunks)) for w in one] == [tuple(map(_key, w.chunks)) for w in other]:
        return tuple(other)
    if len(one) == len(other) == 1:
        left, right = merge(one[0].chunks), merge(other[0].chunks)
        shared = 0
        while shared < min(len(left), len(right)) and _key(left[shared]) == _key(right[shared]):
            shared += 1
        rest = left[shared:], right[shared:]
        if not all(_flags("".join(c.text or "" for c in part)) for part in rest):
            return (Word((Chunk(None, "", -1, name=name),)),)
        blank = (Chunk(" ", "", -1),) if rest[0] and rest[1] else ()
        marked = [tuple(replace(chunk, maybe=True) for chunk in part) for part in rest]
        return (Word((*left[:shared], *marked[0], *blank, *marked[1])),)
    count = 0
    while count < min(len(one), len(other)) and one[count].text == other[count].text:
        count += 1
    rests = [*one[count:], *other[count:]]
    return (*one[:count], *(Word(tuple(replace(c, maybe=True) for c in w.chunks)) for w in rests))


def _flags(text: str) -> bool:
    return not text.strip() or text.lstrip().startswith("-")
