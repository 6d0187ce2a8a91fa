"""The vocabulary of `batches.py`: values of a loop that have the padded width in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from speedmigrate.facts.models import Model
from speedmigrate.rule import Hop

Key = str | int
Kind = Literal["batch", "field", "flat", "output", "logits", "losses", "total", "count", "width", "mask"]


@dataclass(frozen=True, slots=True)
class Pads:
    """How a field of the batch is padded: the constant that fills it (None: not a plain constant), its code at the
    loader."""

    constant: object
    code: str


@dataclass(frozen=True, slots=True)
class Track:
    """A value that has the padded width in it, and which field it stands for."""

    kind: Kind
    key: Key | None = None
    masked: bool = False
    cut: bool = False
    model: Model | None = None


@dataclass(slots=True)
class Use:
    """What was read of the loops over one loader.

    Attributes:
        models: the models that fields of the batch were given to.
        counted: fields that the loss counts (as target or mask), with the place.
        scalar: whether a loss that the width does not change reaches `backward`.
        masked: whether a model of transformers gets the batch's mask.
        added_keys: whether the whole dict goes to the model (`model(**batch)`), so a mask can be added to it.
    """

    loops: int = 0
    models: list[Model] = field(default_factory=list)
    counted: dict[Key, Hop] = field(default_factory=dict)
    problems: list[Hop] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    backward: bool = False
    added_keys: bool = False
    masked: bool = False


Tracked = Track | tuple[Track | None, ...] | None


def single(value: Tracked) -> Track | None:
    return value if isinstance(value, Track) else None


def is_own(value: Track) -> bool:
    """Whether an output comes from a model of the root, which may return plain logits."""
    return value.model is not None and not value.model.is_transformers


def said(value: Track) -> str:
    return {
        "batch": "the batch",
        "field": f"field {value.key!r}",
        "flat": f"field {value.key!r}",
        "output": "the model's output",
        "logits": "the logits",
        "losses": "the loss of every token",
        "total": "the summed loss",
        "count": "the token count",
        "width": "the padded width",
        "mask": f"a mask made from field {value.key!r}",
    }[value.kind]
