"""What an edit of a collate is."""

from __future__ import annotations

from dataclasses import dataclass, field

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.rule import Hop, Op


@dataclass(slots=True, eq=False)
class Edit:
    """One way to make a collate dynamic.

    Attributes:
        how: what it does, in words.
        pads: fields that are padded otherwise than before.
        corrects: what changes for the result by the edit itself.
        allows: kinds of fixed contracts that this edit keeps right.
        touched: the functions whose code changes.
        apart: whether fields that may belong to one sequence get lengths of their own.
        problems: why there is no edit.
    """

    ops: tuple[Op, ...] = ()
    how: str = ""
    pads: dict[Key, Pads] = field(default_factory=dict)
    corrects: tuple[Hop, ...] = ()
    allows: frozenset[str] = frozenset()
    touched: set[FunctionNode] = field(default_factory=set)
    apart: bool = False
    problems: list[Hop] = field(default_factory=list)
