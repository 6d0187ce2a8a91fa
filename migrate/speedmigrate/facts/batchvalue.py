"""A batch on axes: the fields that hold one entry a token, under the keys of a dict or the slots of a tuple."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from speedmigrate.facts.axes import FREE, POSITIONS, REST, Record, Tensor, Value
from speedmigrate.facts.tracks import Key, Pads

# A field that holds nothing per token.
OTHER = Tensor((REST,))
View = Literal["", "items", "keys", "values"]


@dataclass(frozen=True, slots=True)
class Batch(Record):
    """A batch, or what a loop makes of one (moved, renamed, some taken out).

    Attributes:
        is_open: whether it has other fields, which hold nothing per token.
        view: what iterating gives (`batch.items()`); empty for the batch itself.
    """

    is_open: bool = True
    view: View = ""

    def get(self, name: str) -> Value:
        """Return a field; one that is not listed holds nothing per token."""
        return dict(self.items).get(name, OTHER if self.is_open else None)

    @property
    def is_tuple(self) -> bool:
        return all(name.isdigit() for name, _ in self.items)

    def without(self, name: str) -> Batch:
        return replace(self, items=tuple(item for item in self.items if item[0] != name))

    def with_item(self, name: str, value: Value) -> Batch:
        return replace(self, items=(*self.without(name).items, (name, value)))

    def elements(self) -> list[tuple[str, Value]]:
        """Return what each step of an iteration gives, beside the name of its field."""
        if self.view == "items":
            return [(name, (name, value)) for name, value in self.items]
        if self.view == "keys" or (not self.view and not self.is_tuple):
            return [(name, name) for name, _ in self.items]
        return list(self.items)


def batch_of(pads: Mapping[Key, Pads]) -> Batch:
    """Return the batch of a loader whose fields are padded as `pads` says."""
    return Batch(tuple((str(key), field_of(key, pads[key])) for key in pads))


def field_of(key: Key, pad: Pads) -> Tensor:
    return Tensor((FREE,) * pad.levels + (POSITIONS,), key, pad.constant)
