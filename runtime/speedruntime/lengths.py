"""Measure how many tokens each sample of a data set has, once, without counting padding."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from ._transport import keep_samples, unpacked

log = logging.getLogger("speedruntime")
Key = Union[str, int, Callable[[Any], int]]


def sample_lengths(
    dataset: Any,
    key: Key = "input_ids",
    *,
    cache: str | os.PathLike[str] | None = None,
    num_workers: int | None = None,
) -> NDArray[np.int64]:
    """Return the length of each sample: from a column where there is one, else by one pass over the data set.

    Args:
        dataset: map-style data set (``len`` and ``[index]``); a ``datasets.Dataset`` is read by column.
        key: field whose length counts, in tokens; an integer field is taken to hold the length; a slot number for
            tuple samples; or a function from sample to length, such as ``PaddingCollator(..., trim=True).length``.
        cache: file to keep the lengths in (``.npy``; a hash of the data set's size and fingerprint and of the key is
            added to its name). Default None.
        num_workers: processes for the pass; default all cores but one, at most 8, and none below 10,000 samples.

    Returns:
        ``[N]`` int64, in tokens.

    Raises:
        ValueError: the data set is empty, the key is missing, or all samples are equally long, as padded ones are.

    Example:
        >>> sample_lengths([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}]).tolist()
        [3, 1]
    """
    if not len(dataset):
        raise ValueError("the data set is empty; expected at least one sample")
    path = None if cache is None else _cache_path(cache, dataset, key)
    if path is not None and path.exists():
        lengths: NDArray[np.int64] = np.load(path)
        return lengths
    found = _from_column(dataset, key)
    if num_workers is None:
        num_workers = min(8, (os.cpu_count() or 1) - 1) if len(dataset) >= 10_000 else 0
    lengths = _by_pass(dataset, key, num_workers) if found is None else found
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        with part.open("wb") as stream:
            np.save(stream, lengths)
        part.replace(path)
    return lengths


def _cache_path(cache: str | os.PathLike[str], dataset: Any, key: Key) -> Path:
    named = key if isinstance(key, (str, int)) else getattr(key, "__qualname__", type(key).__name__)
    content = f"{len(dataset)}|{named}|{getattr(dataset, '_fingerprint', '')}"
    path = Path(cache)
    return path.with_name(f"{path.stem}-{hashlib.sha256(content.encode()).hexdigest()[:12]}.npy")


def _from_column(dataset: Any, key: Key) -> NDArray[np.int64] | None:
    names = getattr(dataset, "column_names", None)
    if not isinstance(names, list) or callable(key):
        return None
    if key not in names:
        raise ValueError(f"the data set has no column {key!r}, expected one of {names}; name it with key=")
    plain = dataset.with_format(None)
    if "attention_mask" in names:
        return _padding_free([_mask_length(row) for row in plain["attention_mask"]], key, masked=True)
    column = plain[key]
    first = column[0]
    if isinstance(first, (int, np.integer)):
        return np.asarray(column[:], dtype=np.int64)
    return _padding_free([len(row) for row in column], key)


def _by_pass(dataset: Any, key: Key, num_workers: int) -> NDArray[np.int64]:
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=64, collate_fn=_Measure(key), num_workers=num_workers)
    lengths: list[int] = []
    masked, told = False, time.monotonic()
    for batch in loader:
        measured = unpacked(batch)
        lengths.extend(length for length, _ in measured)
        masked = measured[-1][1]
        if time.monotonic() - told > 5:
            told = time.monotonic()
            log.info("sample_lengths: %d of %d samples", len(lengths), len(dataset))
    return _padding_free(lengths, key, masked=masked)


class _Measure:
    def __init__(self, key: Key) -> None:
        self.key = key

    def __call__(self, samples: list[Any]) -> Any:
        return keep_samples([self._measure(sample) for sample in samples])

    def _measure(self, sample: Any) -> tuple[int, bool]:
        """Return the length and whether it is known to leave padding out."""
        if callable(self.key):
            return int(self.key(sample)), True
        if isinstance(sample, Mapping) and sample.get("attention_mask") is not None:
            return _mask_length(sample["attention_mask"]), True
        try:
            value = sample[self.key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"a sample has no {self.key!r} ({error!r}); name the field with key=") from error
        return (int(value), True) if isinstance(value, (int, np.integer)) else (len(value), False)


def _mask_length(mask: Any) -> int:
    return int(mask.sum()) if isinstance(mask, (np.ndarray, torch.Tensor)) else int(np.sum(mask))


def _padding_free(lengths: list[int], key: Any, *, masked: bool = False) -> NDArray[np.int64]:
    array = np.asarray(lengths, dtype=np.int64)
    if not masked and len(array) >= 16 and array.min() == array.max() > 1:
        raise ValueError(
            f"all {len(array)} samples have {array[0]} entries in {key!r}: they look padded, and the length of a "
            "padded row says nothing; pass key=PaddingCollator(..., trim=True).length, which leaves the padding out"
        )
    return array
