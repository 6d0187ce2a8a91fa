"""What every hop of the chain says: a word of a fixed list, what it stands on, and where the trail broke."""

from __future__ import annotations

from dataclasses import dataclass

from speedmigrate.rule import Hop


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing understood of a run.

    Attributes:
        name: the hop and the question, `padding.place`.
        value: a word of the question's list; None where the code does not say it (then `unknown` holds the place).
        detail: what a person wants beside the word, as written in the code (`DataCollatorForSeq2Seq(padding=False)`).
        evidence: the places that the word stands on, the decisive one first.
        unknown: the places where the trail broke. A fact can hold both: known for one branch, not for another.
    """

    name: str
    value: str | None
    detail: str = ""
    evidence: tuple[Hop, ...] = ()
    unknown: tuple[Hop, ...] = ()


def unknown(name: str, *hops: Hop) -> Fact:
    """Return a fact whose trail broke at these places."""
    return Fact(name, None, unknown=hops)
