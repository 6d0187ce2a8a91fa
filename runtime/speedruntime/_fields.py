"""Which fields of a sample are per token: names, pad values, sides and groups, read once from the user's arguments."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .trim import check_not_ids_alone

# A field is the path to it: ("input_ids",), (0,) for a tuple slot, ("prompt", "input_ids") where nested.
Field = tuple[Any, ...]


def name_of(field: Field) -> Any:
    return field[0] if len(field) == 1 else ".".join(map(str, field))


def at(sample: Any, field: Field) -> Any:
    for key in field:
        sample = sample[key]
    return sample


def has(sample: Any, field: Field) -> bool:
    try:
        at(sample, field)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def replaced(sample: Any, changes: Mapping[Field, Any]) -> Any:
    """Return a shallow copy of a sample with some fields replaced; its type stays."""
    if not changes:
        return sample
    nested: dict[Any, dict[Field, Any]] = {}
    plain: dict[Any, Any] = {}
    for field, value in changes.items():
        if len(field) == 1:
            plain[field[0]] = value
        else:
            nested.setdefault(field[0], {})[field[1:]] = value
    for key, inner in nested.items():
        plain[key] = replaced(sample[key], inner)
    if isinstance(sample, dict):
        return {**sample, **plain} if type(sample) is dict else _updated(copy.copy(sample), plain)
    if isinstance(sample, Mapping):
        return _updated(copy.copy(sample), plain)
    slots = [plain.get(slot, value) for slot, value in enumerate(sample)]
    if hasattr(sample, "_fields"):
        return type(sample)(*slots)
    return slots if isinstance(sample, list) else tuple(slots)


class Layout:
    """Pad values, sides and groups by field.

    Attributes:
        pads: pad value of each per-token field.
        sides: ``"right"`` or ``"left"`` of each.
        groups: each group holds sets of fields; a set is equally long in a sample, a group in a batch.
    """

    def __init__(
        self, pad_values: Any, groups: Any, padding_side: str | Mapping[Any, str], *, ids_alone: bool = False
    ) -> None:
        self.ids_alone = ids_alone
        self.is_mapping = isinstance(pad_values, Mapping)
        self.num_slots = None if self.is_mapping else len(pad_values)
        self.pads: dict[Field, Any] = {}
        self.undeclared_ok: set[Any] = set()
        self._read(pad_values, ())
        if not self.pads:
            raise ValueError(
                f"pad_values={pad_values!r} lists no per-token field; give {{field: pad value}}, or one entry per "
                "tuple slot"
            )
        self._by_name = {name_of(field): field for field in self.pads}
        self.is_grouped = groups is not None
        self.groups = [[list(self.pads)]] if groups is None else [self._group(group) for group in groups]
        self._check_groups()
        sides = dict(padding_side) if isinstance(padding_side, Mapping) else dict.fromkeys(self._by_name, padding_side)
        self.sides = dict.fromkeys(self.pads, "right")
        for name, side in sides.items():
            if side not in ("right", "left"):
                raise ValueError(f"padding_side is {side!r}; expected 'right' or 'left'")
            self.sides[self.field(name, "padding_side")] = side
        for fields in (fields for group in self.groups for fields in group):
            if len({self.sides[field] for field in fields}) > 1:
                raise ValueError(
                    f"padding_side differs among {[name_of(f) for f in fields]}, whose tokens belong together; give "
                    "one side, or separate groups"
                )

    def _read(self, pad_values: Any, path: Field) -> None:
        items = pad_values.items() if isinstance(pad_values, Mapping) else enumerate(pad_values)
        for key, pad in items:
            if isinstance(pad, (Mapping, tuple, list)):
                self._read(pad, (*path, key))
            elif pad is not None:
                self.pads[(*path, key)] = pad
            if not path:
                self.undeclared_ok.add(key)

    def _group(self, group: Sequence[Any]) -> list[list[Field]]:
        sets = group if all(isinstance(entry, (list, tuple)) for entry in group) else [group]
        return [[self.field(name, "groups") for name in names] for names in sets]

    def _check_groups(self) -> None:
        named = [field for group in self.groups for fields in group for field in fields]
        for field in self.pads:
            if named.count(field) != 1:
                raise ValueError(f"groups names {name_of(field)!r} {named.count(field)} times; expected once")

    def field(self, name: Any, option: str) -> Field:
        if name not in self._by_name:
            raise ValueError(f"{option} names {name!r}, which pad_values does not list: {list(self._by_name)}")
        return self._by_name[name]

    def main_field(self) -> Field:
        return self._by_name.get("input_ids", self.groups[0][0][0])

    def masks(self, add_attention_mask: bool | Mapping[Any, str]) -> list[tuple[Field, str]]:
        if not add_attention_mask:
            return []
        if not self.is_mapping:
            raise ValueError("add_attention_mask needs dict samples: a tuple never grows; add the slot in the data set")
        if isinstance(add_attention_mask, Mapping):
            return [(self.field(name, "add_attention_mask"), key) for name, key in add_attention_mask.items()]
        return [(self.main_field(), "attention_mask")]

    def check_trimmable(self, *sets: list[Field]) -> None:
        for fields in () if self.ids_alone else sets or [fields for group in self.groups for fields in group]:
            check_not_ids_alone([(name_of(f), self.pads[f]) for f in fields if self.pads[f] is not ...])

    def check_paddable(self) -> None:
        for field, pad in self.pads.items():
            if pad is ...:
                raise ValueError(
                    f"pad_values has ... for {name_of(field)!r}, which only trim=True can do; give a value"
                )

    def check_kind(self, samples: list[Any]) -> None:
        for number, sample in enumerate(samples):
            if self.is_mapping != isinstance(sample, Mapping) or not isinstance(sample, (Mapping, tuple, list)):
                expected = "a dict, as pad_values is {field: value}" if self.is_mapping else "a tuple, as pad_values is"
                raise ValueError(f"sample {number} is {type(sample).__name__}, expected {expected}")
            if self.num_slots is not None and len(sample) != self.num_slots:
                raise ValueError(
                    f"sample {number} has {len(sample)} slots, expected {self.num_slots}: pad_values needs one entry "
                    "per slot, None where a slot is not per token"
                )

    def check_unlisted(self, samples: list[Any], firsts: list[Field], dim: int) -> None:
        """Raise for a field that nobody declared and that is as long as the tokens in every sample."""
        if not self.is_mapping:
            return
        totals = {_length(at(samples[0], first), dim) for first in firsts}
        for key, value in samples[0].items():
            length = _length(value, dim)
            if key in self.undeclared_ok or length not in totals:
                continue
            if any(all(_length(s.get(key), dim) == _length(at(s, first), dim) for s in samples) for first in firsts):
                raise ValueError(
                    f"sample 0, field {key!r}: it is as long as the tokens ({length}) and is not listed, so it "
                    f"would come out unpadded; add {key!r} to pad_values with its pad value, or with None if it is not "
                    "per token"
                )

    def describe(self, sample: Any) -> str:
        return f"{list(sample)}" if isinstance(sample, Mapping) else f"{len(sample)} slots"


def _updated(sample: Any, values: Mapping[Any, Any]) -> Any:
    for key, value in values.items():
        sample[key] = value
    return sample


def _is_sequence(value: Any) -> bool:
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.ndim > 0
    return isinstance(value, list) and bool(value) and isinstance(value[0], (int, float, list))


def _length(value: Any, dim: int) -> int:
    """Return the size of a dimension, -1 where there is none."""
    if not _is_sequence(value):
        return -1
    return len(value) if dim == 0 else _length(value[0], dim - 1)
