"""Splices: a text replaced at a span of the old text, and how many of them become one new text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

NEWLINE = re.compile(r"\r\n|\r|\n")


class EditConflict(ValueError):  # noqa: N818 - says what it is, as `Refused` does
    """Edits that cannot be made together, or not at this place; `str(error)` is one line for the user."""


class Rank(IntEnum):
    """Which of the insertions at one offset comes first: ends of expressions, then text between, then beginnings."""

    CLOSE = 0
    PLAIN = 1
    AFTER = 2
    BEFORE = 3
    OPEN = 4


@dataclass(frozen=True, slots=True)
class Splice:
    """Replace `start:end` by `text`; `rank` and `key` order the insertions (`start == end`) at one offset."""

    start: int
    end: int
    text: str
    rank: Rank = Rank.PLAIN
    key: int = 0

    @property
    def deletes(self) -> bool:
        return not self.text and self.start < self.end


def minimal(text: str, start: int, end: int, new: str) -> Iterable[Splice]:
    """Yield the splice that makes `new` of `text[start:end]`, without what both have in common at their ends."""
    while start < end and new and text[start] == new[0]:
        start, new = start + 1, new[1:]
    while start < end and new and text[end - 1] == new[-1]:
        end, new = end - 1, new[:-1]
    if start < end or new:
        yield Splice(start, end, new)


def splice(text: str, splices: Iterable[Splice], *, path: str) -> str:
    """Return `text` with all splices made; one that deletes may lie inside another that deletes.

    Raises:
        EditConflict: two splices overlap and differ.
    """
    pieces: list[str] = []
    done, deleted = 0, False
    for each in sorted(dict.fromkeys(splices), key=lambda s: (s.start, s.end > s.start, s.rank, s.key, -s.end)):
        if each.start < done:
            if each.deletes and deleted and each.end <= done:
                continue
            line = 1 + len(NEWLINE.findall(text, 0, each.start))
            raise EditConflict(f"{path}:{line}: two changes want different text at the same place")
        pieces += (text[done : each.start], each.text)
        done = max(each.end, done)
        deleted = each.deletes
    return "".join((*pieces, text[done:]))
