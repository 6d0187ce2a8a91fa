"""What scripts migrated by speedmigrate import: collators, batch plans, compile, precision.

Importing the package is cheap: each name is loaded on first use (PEP 562), and transformers is never imported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._lookahead import lookahead as lookahead
    from ._lookahead import use_lookahead as use_lookahead
    from ._tokenizer import pad_values_of as pad_values_of
    from ._trainer import use_train_collator as use_train_collator
    from .collate import PaddingCollator as PaddingCollator
    from .compile import compile_layers as compile_layers
    from .float8 import convert_to_float8 as convert_to_float8
    from .lengths import sample_lengths as sample_lengths
    from .meter import PaddingMeter as PaddingMeter
    from .optim import keep_fused as keep_fused
    from .sampler import LengthBucketBatchSampler as LengthBucketBatchSampler
    from .trim import trim_batch as trim_batch

# Each value is the module that holds the name. No module may be called like a name: importing it would hide the name.
_LAZY = {
    "LengthBucketBatchSampler": "sampler",
    "PaddingCollator": "collate",
    "PaddingMeter": "meter",
    "compile_layers": "compile",
    "convert_to_float8": "float8",
    "keep_fused": "optim",
    "lookahead": "_lookahead",
    "pad_values_of": "_tokenizer",
    "sample_lengths": "lengths",
    "trim_batch": "trim",
    "use_lookahead": "_lookahead",
    "use_train_collator": "_trainer",
}

__all__ = [
    "LengthBucketBatchSampler",
    "PaddingCollator",
    "PaddingMeter",
    "compile_layers",
    "convert_to_float8",
    "keep_fused",
    "lookahead",
    "pad_values_of",
    "sample_lengths",
    "trim_batch",
    "use_lookahead",
    "use_train_collator",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
