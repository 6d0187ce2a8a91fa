"""Send samples from a worker to the main process as one block of bytes.

A tensor sent by itself keeps one file descriptor open for as long as it lives; hundreds of batches of uncollated
samples would exceed the usual limit of 1,024 (https://github.com/pytorch/pytorch/issues/973).
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.requires_grad:
            return NotImplemented
        if obj.device.type != "cpu" or obj.layout != torch.strided:
            return NotImplemented
        try:
            return _tensor, (obj.numpy(),)
        except (TypeError, RuntimeError):  # a dtype that numpy lacks, a conjugate view
            return NotImplemented


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.tensor(array)


class Packed:
    """A list of samples as bytes."""

    __slots__ = ("data",)

    def __init__(self, samples: list[Any]) -> None:
        stream = io.BytesIO()
        _Pickler(stream, protocol=5).dump(samples)
        self.data = stream.getvalue()

    def __getstate__(self) -> bytes:
        return self.data

    def __setstate__(self, data: bytes) -> None:
        self.data = data


def keep_samples(samples: Any) -> Any:
    """Collate nothing: what workers of a look-ahead loader run in place of the loader's ``collate_fn``."""
    return samples if get_worker_info() is None else Packed(list(samples))


def unpacked(samples: Any) -> list[Any]:
    return list(pickle.loads(samples.data)) if isinstance(samples, Packed) else list(samples)


def num_bytes(value: Any) -> int:
    """Estimate what a sample holds in memory."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict) or hasattr(value, "items"):
        return sum(num_bytes(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], int):
            return 8 * len(value)
        return sum(8 + num_bytes(inner) for inner in value)
    return 8
