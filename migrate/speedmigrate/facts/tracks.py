"""What is said of padded fields and of the code that uses them; values of a loop that `forwards.py` is asked about."""

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
    loader, the side, and how many dimensions stand before the positions."""

    constant: object
    code: str
    side: str = "right"
    levels: int = 1


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
        corrects: places where today's pads enter the result (attended without a mask, counted in the loss), so that the
            loss changes without them.
        drawn: places that draw numbers at random, as many as the padded batch has positions.
        added_keys: whether the whole dict goes to the model (`model(**batch)`), so a mask can be added to it.
    """

    loops: int = 0
    models: list[Model] = field(default_factory=list)
    counted: dict[Key, Hop] = field(default_factory=dict)
    problems: list[Hop] = field(default_factory=list)
    corrects: list[Hop] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    drawn: list[Hop] = field(default_factory=list)
    backward: bool = False
    added_keys: bool = False
    masked: bool = False


Tracked = Track | tuple[Track | None, ...] | None
