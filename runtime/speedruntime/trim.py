"""Find and remove padding that is already there: in one sample (`real_span`) or in a collated batch (`trim_batch`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def real_span(fields: Sequence[tuple[Any, Any]], *, side: str = "right", both_ends: bool = False) -> tuple[int, int]:
    """Return where a sample starts and stops once its padding is gone.

    A position is padding where **every** field holds its pad value, never by one id alone.

    Args:
        fields: ``(values, pad value)`` of each field; values ``[T, ...]`` of equal T.
        side: the end that is padded, ``"right"`` (default) or ``"left"``.
        both_ends: look at both ends (safe where an attention mask is among the fields); default False.

    Returns:
        ``(start, stop)`` in tokens; at least one position is kept.

    Example:
        >>> real_span([([5, 6, 0, 0], 0), ([5, 0, -100, -100], -100)])
        (0, 2)
    """
    total = len(fields[0][0])
    ends = ([-1] if both_ends or side == "right" else []) + ([0] if both_ends or side == "left" else [])
    if not any(all(bool(_holds(values[end], pad)) for values, pad in fields) for end in ends):
        return 0, total
    real = np.zeros(total, dtype=bool)
    for values, pad in fields:
        real |= ~_holds(values, pad, each=True)
    if not real.any():
        return (0, 1) if side == "right" else (total - 1, total)
    start = int(real.argmax()) if 0 in ends else 0
    stop = total - int(real[::-1].argmax()) if -1 in ends else total
    return start, stop


def trim_batch(
    fields: Any,
    pad_values: Mapping[Any, Any] | Sequence[Any],
    *,
    padding_side: str = "right",
    pad_to_multiple_of: int | None = None,
    dim: int = 1,
    mask_is_not_pad: bool = False,
) -> Any:
    """Cut the columns of a collated batch that are padding in every row and every listed field.

    For loaders whose samples come out already padded and collated; where samples can be reached, `PaddingCollator` does
    more. What is cut is contiguous, so that a `view` which took the whole field takes it.

    Args:
        fields: dict, or tuple/list, of tensors; those listed are ``[B, T, ...]`` with one T.
        pad_values: ``{field: value}``, or one entry per slot; None (or not listed) where a field is not per token. List
            the labels or the mask, not the ids alone.
        padding_side: the end that is padded, ``"right"`` (default) or ``"left"``.
        pad_to_multiple_of: keep a multiple of this many columns; default None.
        dim: the dimension of the tokens in all listed fields, 2 for ``[B, C, T]``; default 1.
        mask_is_not_pad: whether the attention mask is made as ``ids != pad`` from what comes out here, so that the ids
            alone say what is padding; default False.

    Returns:
        The same structure with the listed fields ``[B, t, ...]``, t <= T.

    Raises:
        ValueError: no field is listed, ids alone are listed, one is missing, or their shapes differ.

    Example:
        >>> batch = {"input_ids": torch.tensor([[5, 6, 0, 0]]), "labels": torch.tensor([[5, 6, -100, -100]])}
        >>> trim_batch(batch, {"input_ids": 0, "labels": -100})["input_ids"].tolist()
        [[5, 6]]
    """
    listed = dict(pad_values) if isinstance(pad_values, Mapping) else dict(enumerate(pad_values))
    listed = {key: pad for key, pad in listed.items() if pad is not None}
    if not (mask_is_not_pad and listed):
        check_not_ids_alone(list(listed.items()))
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side is {padding_side!r}; expected 'right' or 'left'")
    missing = [key for key in listed if (key not in fields if isinstance(fields, Mapping) else key >= len(fields))]
    if missing:
        raise ValueError(f"the batch has no field {missing[0]!r}, which pad_values lists; take it out of pad_values")
    first = next(iter(listed))
    shape = fields[first].shape[: dim + 1]
    if not 0 < dim < fields[first].ndim:
        raise ValueError(f"dim is {dim!r}; expected a dimension after the rows of {first!r}, which is {list(shape)}")
    width = shape[dim]
    for key in listed:
        if fields[key].shape[: dim + 1] != shape:
            raise ValueError(
                f"field {key!r} is {list(fields[key].shape)}, expected the rows and columns of {first!r}, {list(shape)}"
            )
    real = torch.zeros(width, dtype=torch.bool, device=fields[first].device)
    for key, pad in listed.items():
        real |= (fields[key] != pad).movedim(dim, 0).flatten(1).any(1)
    columns = real.nonzero()
    if padding_side == "right":
        keep = int(columns[-1]) + 1 if len(columns) else 1
    else:
        keep = width - int(columns[0]) if len(columns) else 1
    if pad_to_multiple_of is not None:
        keep = min(width, -(-keep // pad_to_multiple_of) * pad_to_multiple_of)
    kept = slice(0, keep) if padding_side == "right" else slice(width - keep, width)
    taken = (*(slice(None),) * dim, kept)
    if isinstance(fields, Mapping):
        return {key: value[taken].contiguous() if key in listed else value for key, value in fields.items()}
    slots = [value[taken].contiguous() if slot in listed else value for slot, value in enumerate(fields)]
    return type(fields)(*slots) if hasattr(fields, "_fields") else type(fields)(slots)


def check_not_ids_alone(fields: Sequence[tuple[Any, Any]]) -> None:
    """Raise where padding would be found by an id alone: a real token may equal the pad id (pad == eos).

    Args:
        fields: ``(name, pad value)`` of the fields that decide together.

    Raises:
        ValueError: no field, or one field that is neither a mask nor labels (negative pad value).
    """
    if not fields:
        raise ValueError("pad_values lists no per-token field; give {field: pad value}")
    name, pad = fields[0]
    if len(fields) == 1 and "mask" not in str(name) and not (isinstance(pad, (int, float)) and pad < 0):
        raise ValueError(
            f"padding cannot be found by {name!r} alone: a real token may equal the pad value {pad!r}; list the labels "
            "or the attention mask beside it"
        )


def _holds(values: Any, pad: Any, *, each: bool = False) -> Any:
    if isinstance(values, torch.Tensor):
        values = values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy()
    equal = np.asarray(values) == pad
    if each:
        return equal.reshape(len(equal), -1).all(1)
    return equal.all()
