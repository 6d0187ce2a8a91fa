"""The plain truth of collator and batch plan, slow and obvious: what the tests compare the fast paths with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pad_rows(rows: Sequence[Sequence[Any]], pad: Any, *, width: int, side: str = "right") -> list[list[Any]]:
    """Pad lists to one width.

    Args:
        rows: B lists of at most ``width`` entries.
        pad: what fills them up.
        width: entries per row.
        side: ``"right"`` (default) or ``"left"``.

    Returns:
        B lists of ``width`` entries.

    Example:
        >>> pad_rows([[1, 2], [3]], 0, width=3, side="left")
        [[0, 1, 2], [0, 0, 3]]
    """
    padded = []
    for row in rows:
        filler = [pad] * (width - len(row))
        padded.append(filler + list(row) if side == "left" else list(row) + filler)
    return padded


def padded_width(lengths: Sequence[int], *, multiple: int | None = None, max_length: int | None = None) -> int:
    """Return the length a batch is padded to: the longest, rounded up, at most ``max_length``.

    Args:
        lengths: tokens of each sample.
        multiple: round up to a multiple of this; default None.
        max_length: upper bound of the rounding; default None.

    Returns:
        Length in tokens.

    Example:
        >>> padded_width([3, 9], multiple=8, max_length=12)
        12
    """
    width = max(lengths)
    while multiple is not None and width % multiple:
        width += 1
    return width if max_length is None else min(width, max_length)


def collate(
    samples: Sequence[Mapping[str, Sequence[Any]]],
    pad_values: Mapping[str, Any],
    *,
    side: str = "right",
    multiple: int | None = None,
    max_length: int | None = None,
) -> dict[str, list[list[int]]]:
    """Pad samples of lists, with mask and positions from lengths.

    Args:
        samples: B dicts whose listed fields are lists of equal length in a sample.
        pad_values: pad value of each field.
        side: ``"right"`` (default) or ``"left"``.
        multiple: as in `padded_width`.
        max_length: as in `padded_width`.

    Returns:
        The fields, ``attention_mask`` and ``position_ids``, each B rows of one length.

    Example:
        >>> collate([{"input_ids": [7, 8]}, {"input_ids": [9]}], {"input_ids": 0})["attention_mask"]
        [[1, 1], [1, 0]]
    """
    lengths = [len(sample[next(iter(pad_values))]) for sample in samples]
    width = padded_width(lengths, multiple=multiple, max_length=max_length)
    batch = {
        key: pad_rows([sample[key] for sample in samples], pad, width=width, side=side)
        for key, pad in pad_values.items()
    }
    batch["attention_mask"] = pad_rows([[1] * n for n in lengths], 0, width=width, side=side)
    positions = []
    for mask in batch["attention_mask"]:
        count, row = 0, []
        for bit in mask:
            count += bit
            row.append(max(count - 1, 0))
        positions.append(row)
    batch["position_ids"] = positions
    return batch


def trimmed(
    sample: Mapping[str, Sequence[Any]], pad_values: Mapping[str, Any], *, side: str = "right"
) -> dict[str, list[Any]]:
    """Remove the end of a sample that is padding in every field, one position at a time.

    Args:
        sample: lists of equal length.
        pad_values: pad value of each field.
        side: end to look at, ``"right"`` (default) or ``"left"``.

    Returns:
        The lists without padding, at least one position long.

    Example:
        >>> trimmed({"input_ids": [5, 0, 0], "labels": [5, 0, -100]}, {"input_ids": 0, "labels": -100})
        {'input_ids': [5, 0], 'labels': [5, 0]}
    """
    rows = {key: list(sample[key]) for key in pad_values}
    end = -1 if side == "right" else 0
    while all(len(rows[key]) > 1 and rows[key][end] == pad for key, pad in pad_values.items()):
        for row in rows.values():
            row.pop(end)
    return rows


def num_batches(num_samples: int, batch_size: int, *, num_replicas: int = 1, drop_last: bool = False) -> int:
    """Count the batches of ``DataLoader(sampler=DistributedSampler(...))`` one sample at a time.

    Args:
        num_samples: size of the data set.
        batch_size: samples per batch and rank.
        num_replicas: ranks; default 1.
        drop_last: of the ``DataLoader``; default False.

    Returns:
        Batches per rank and epoch.

    Example:
        >>> num_batches(17, 3, num_replicas=2), num_batches(17, 3, num_replicas=2, drop_last=True)
        (3, 3)
    """
    per_rank = 0
    while per_rank * num_replicas < num_samples:
        per_rank += 1
    full = 0
    while (full + 1) * batch_size <= per_rank:
        full += 1
    return full if drop_last or full * batch_size == per_rank else full + 1
