"""The vocabulary of `row_reader.py`: what the code that makes rows holds in its variables.

Only fills are followed closely: which value a field has where its row is padding. A migrated loader cuts off positions
that hold the fill of every field, so a fill that is read wrong cuts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.facts.value import Expr
from speedmigrate.rule import Hop

# tokens: one entry a token (or rows of them); filler: nothing but one value; other: no tokens in it; mixed: computed
# from tokens in a way that is not followed.
Kind = Literal["tokens", "filler", "record", "encoded", "list", "other", "mixed"]
Key = str | int


@dataclass(frozen=True, slots=True)
class Fill:
    """A value as code: a constant, or an expression of the code that makes rows with attributes behind it."""

    constant: object = None
    expr: Expr | None = None
    attr: str = ""

    def is_same(self, other: Fill | None) -> bool | None:
        """Say whether two fills are equal, None where that cannot be told."""
        if other is None:
            return None
        if self.expr is None and other.expr is None:
            return bool(self.constant == other.constant)
        if self.expr is not None and other.expr is not None:
            return True if self.tail == other.tail and self.tail else None
        return None

    @property
    def tail(self) -> str:
        """The last attribute of the code: `pad_token_id` of `self.tokenizer.pad_token_id`."""
        if self.attr:
            return self.attr
        return "" if self.expr is None else self.expr.text.rpartition(".")[2]


@dataclass(slots=True, eq=False)
class Held:
    """What a value holds, shared by all views of it, so that an assignment in place reaches all of them."""

    kind: Kind
    fill: Fill | None = None
    side: str = "right"
    width: str = ""
    is_mask: bool = False


class Cell:
    """One value, or a view of it.

    Attributes:
        fill: what it holds at padding, None where it is not padded or not known.
        width: the length it is padded to, as written.
        is_mask: whether it holds nothing but 1 and, at padding, 0.
        levels: how many lists are around a token id (1: a row of tokens, 2: rows).
        items: the fields of a record.
        is_object: whether a record is an object of a class, its fields attributes.
        element: what a list holds.
        tokenizer: of a tokenizer's output, or of a record that started as one.
    """

    __slots__ = ("element", "held", "hop", "is_object", "is_tuple", "items", "levels", "tokenizer")

    def __init__(
        self, kind: Kind, fill: Fill | None = None, side: str = "right", width: str = "", *, is_mask: bool = False,
        levels: int = 1, items: dict[Key, Cell] | None = None, is_tuple: bool = False, element: Cell | None = None,
        tokenizer: Expr | None = None, hop: Hop | None = None,
    ) -> None:  # fmt: skip
        self.held = Held(kind, fill, side, width, is_mask)
        self.levels = levels
        self.items = {} if items is None else items
        self.is_tuple = is_tuple
        self.element = element
        self.tokenizer = tokenizer
        self.hop = hop
        self.is_object = False

    @property
    def kind(self) -> Kind:
        return self.held.kind

    @property
    def fill(self) -> Fill | None:
        return self.held.fill

    @property
    def side(self) -> str:
        return self.held.side

    @property
    def width(self) -> str:
        return self.held.width

    @property
    def is_mask(self) -> bool:
        return self.held.is_mask

    @property
    def has_tokens(self) -> bool:
        return any(cell.kind in {"tokens", "filler", "encoded", "mixed"} for cell in self.parts())

    def parts(self, depth: int = 0) -> Iterator[Cell]:
        """Yield the cell and what is in it."""
        yield self
        for inner in (*self.items.values(), *([self.element] if self.element is not None else ())):
            if depth < 4:
                yield from inner.parts(depth + 1)

    def view(self, levels: int) -> Cell:
        """Return a part of the value or the value in another shape: it holds the same."""
        if levels == self.levels or self.kind not in {"tokens", "filler"}:
            return self
        cell = self.copied()
        cell.held, cell.levels = self.held, max(levels, 0)
        return cell

    def become(self, other: Cell) -> None:
        """Take over what another cell holds: a list that rows are put into."""
        held = other.held
        self.held.kind, self.held.fill, self.held.side = held.kind, held.fill, held.side
        self.held.width, self.held.is_mask = held.width, held.is_mask
        self.items, self.is_tuple, self.element = other.items, other.is_tuple, other.element
        self.tokenizer, self.levels = other.tokenizer, other.levels

    def copied(self) -> Cell:
        items = {key: cell.copied() for key, cell in self.items.items()}
        return Cell(
            self.kind, self.fill, self.side, self.width, is_mask=self.is_mask, levels=self.levels, items=items,
            is_tuple=self.is_tuple, element=self.element, tokenizer=self.tokenizer, hop=self.hop,
        )  # fmt: skip


def other() -> Cell:
    return Cell("other")


def tokens(fill: Fill | None = None, side: str = "right", width: str = "", *, is_mask: bool = False) -> Cell:
    return Cell("tokens", fill, side, width, is_mask=is_mask)


def filled(cell: Cell, fill: Fill | None) -> Cell:
    """Return tokens of the same padding with another value at it; a comparison is a mask where that is False."""
    is_mask = fill is not None and fill.constant is False
    return Cell("tokens", fill, cell.side, cell.width, is_mask=is_mask, levels=cell.levels, hop=cell.hop)


def joined(first: Cell | None, second: Cell | None) -> Cell:
    """Return what a name holds after two branches: the one that tells more."""
    if first is None or second is None or first is second:
        return first or second or other()
    for one, two in ((first, second), (second, first)):
        if one.kind == "other" or (one.kind == "list" and one.element is None):
            return two
        if one.kind == two.kind == "tokens" and (one.fill is None or (one.side == "left" and two.side == "right")):
            return two
    return first


def concatenated(cells: list[Cell]) -> Cell:
    """Join pieces: a filler that fills a gap at either end is the padding."""
    if any(cell.kind == "mixed" for cell in cells):
        return Cell("mixed")
    real = [cell for cell in cells if not (cell.kind == "list" and cell.element is None)]
    if not real:
        return Cell("list")
    if all(cell.kind in {"list", "other", "record"} for cell in real):
        return joined(real[0], real[-1])
    fill, side, width = _padding(real[0], real[-1])
    is_mask = all(map(is_binary, real)) and (fill is None or fill.constant == 0)
    result = tokens(fill, side, width, is_mask=is_mask)
    result.levels = max(cell.levels for cell in real)
    return result


def _padding(first: Cell, last: Cell) -> tuple[Fill | None, str, str]:
    if last.kind == "filler" and last.width and not _is_answer(first, last):
        return last.fill, "right", last.width
    if first.kind == "filler" and first.width:
        return first.fill, "left", first.width
    if last.kind == "tokens" and last.fill is not None and last.side == "right":
        return last.fill, "right", last.width
    if first.kind == "tokens" and first.fill is not None and first.side == "left":
        return first.fill, "left", first.width
    return None, "right", ""


def _is_answer(first: Cell, last: Cell) -> bool:
    """Whether the last piece of a mask is its ones: `[0] * len(prompt) + [1] * (length - len(prompt))`."""
    return is_binary(first) and is_binary(last) and last.fill is not None and last.fill.constant == 1


def is_binary(cell: Cell) -> bool:
    """Whether a row holds nothing but 0 and 1."""
    return cell.is_mask or (cell.kind == "filler" and cell.fill is not None and cell.fill.constant in {0, 1})
