"""Lengths as linear expressions, so that `max_length - len(ids)` is seen as the gap that padding fills."""

from __future__ import annotations

from dataclasses import dataclass

Atom = tuple[str, str]  # ("len", identity of a sequence) or ("fixed", source text that is the same for every sample)


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant` plus the sum of coefficient times atom."""

    terms: frozenset[tuple[Atom, int]] = frozenset()
    constant: int = 0

    @classmethod
    def of(cls, kind: str, name: str) -> Linear:
        return cls(frozenset({((kind, name), 1)}))

    def plus(self, other: Linear, sign: int = 1) -> Linear:
        found = dict(self.terms)
        for atom, count in other.terms:
            found[atom] = found.get(atom, 0) + sign * count
        return Linear(frozenset((a, c) for a, c in found.items() if c), self.constant + sign * other.constant)

    def times(self, factor: int) -> Linear:
        return Linear(frozenset((a, c * factor) for a, c in self.terms if factor), self.constant * factor)

    @property
    def is_gap(self) -> bool:
        """Whether this is a fixed length less the length of something of the sample."""
        fixed = [count for (kind, _), count in self.terms if kind == "fixed"]
        lengths = [count for (kind, _), count in self.terms if kind == "len"]
        return (
            bool(lengths)
            and all(count < 0 for count in lengths)
            and (fixed == [1] or (not fixed and self.constant > 0))
        )

    @property
    def text(self) -> str:
        """The same for equal expressions."""
        return " ".join([*sorted(f"{count}*{name}" for (_, name), count in self.terms), str(self.constant)])

    @property
    def is_fixed(self) -> bool:
        """Whether this is the same for every sample."""
        return all(kind == "fixed" for (kind, _), _ in self.terms)
