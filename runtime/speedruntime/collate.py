"""Pad the samples of a batch to their longest one, then let the collate function that stood there make the batch.

`trim.py` finds padding that a data set already put in; `reference.py` holds the plain truth for the tests.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np
import torch
from torch.utils.data import default_collate

from ._fields import Field, Layout, at, has, name_of, replaced
from .trim import real_span

Span = tuple[int, int]
PadValues = Union[Mapping[Any, Any], Sequence[Any]]
_STACKS_TENSORS = {("torch.utils.data._utils.collate", "default_collate")} | {
    ("transformers.data.data_collator", name) for name in ("default_data_collator", "torch_default_data_collator")
}


class PaddingCollator:
    """Pad per-token fields to one length per batch in front of any ``collate_fn``.

    The wrapped ``collate_fn`` still makes the batch, so keys, order, dtypes, renames and dropped columns stay as they
    were. Samples may be dicts, ``BatchEncoding``s, tuples, lists or namedtuples whose fields are lists, numpy arrays or
    tensors, ``[T]`` or ``[T, ...]`` (the first dimension is the tokens unless ``dim`` says otherwise).

    Args:
        pad_values: ``{field: value}``, or one entry per slot for tuple samples; None where the field is not per token.
            A value may itself be such a mapping or tuple: the field is then nested and called ``"outer.inner"``.
            With ``trim``, ``...`` stands for a field that holds no one value at padding (position ids): it is cut with
            its group and does not say what is padding.
        collate_fn: makes the batch from the padded samples; default torch's ``default_collate``.
        groups: lists of field names that are padded to one length (in tokens); default one group of all listed fields
            (with ``trim``: those that are equally long in the samples).
            The fields of a group are as long as each other in every sample. An entry that is itself a list of lists
            (``[["chosen", "chosen_labels"], ["rejected", "rejected_labels"]]``) joins several such sets to one length.
        padding_side: ``"right"`` or ``"left"``, or ``{field: side}`` (fields not named: right).
        pad_to_multiple_of: round the length up to a multiple of this many tokens; default None, no rounding.
        max_length: longest sample in tokens; caps the rounding; default None, no bound.
        trim: first remove the padding that the samples carry: positions at the end (the start if that side is left,
            either where a mask is listed) that hold the pad value in every field of the group; default False. Samples
            that are equally long and padded on that side lose the positions that are padding in all of them and keep
            everything else; padding found on the other side moves.
        mask_is_not_pad: whether the model masks ``ids != pad`` itself, so that ``trim`` may tell padding by the ids
            alone; default False.
        dim: the dimension of the tokens in all listed fields of a sample, 1 for ``[C, T]`` (candidates); default 0.
        add_attention_mask: True, or ``{field: mask key}``: add a ``[B, T]`` long mask, 1 on tokens and 0 on padding,
            made from the lengths of the field (True: ``input_ids`` or the first listed) under ``attention_mask``.
            A mask that ``collate_fn`` makes is kept; one that samples carry has to be listed.
        add_position_ids: add ``position_ids`` ``[B, T]``, counted from each sample's first token; default False.

    Returns:
        What ``collate_fn`` returns, with per-token fields ``[B, T, ...]``, and the added keys.

    Raises:
        ValueError: nothing is listed; a name is unknown; a batch or sample is empty; a listed field is missing, no
            sequence, of another length or dtype than it should be, or longer than ``max_length``; a field that is not
            listed is as long as the tokens; the pad value does not fit the dtype.

    Example:
        >>> import torch
        >>> from speedruntime import PaddingCollator
        >>> collate = PaddingCollator({"input_ids": 0, "labels": -100}, add_attention_mask=True)
        >>> samples = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, {"input_ids": [8], "labels": [8]}]
        >>> collate(samples)["labels"].tolist()
        [[5, 6, 7], [8, -100, -100]]
        >>> collate(samples)["attention_mask"].tolist()
        [[1, 1, 1], [1, 0, 0]]
    """

    def __init__(
        self,
        pad_values: PadValues,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        groups: Sequence[Sequence[Any]] | None = None,
        padding_side: str | Mapping[Any, str] = "right",
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
        trim: bool = False,
        mask_is_not_pad: bool = False,
        dim: int = 0,
        add_attention_mask: bool | Mapping[Any, str] = False,
        add_position_ids: bool = False,
    ) -> None:
        for option, number in (("pad_to_multiple_of", pad_to_multiple_of), ("max_length", max_length)):
            if number is not None and number < 1:
                raise ValueError(f"{option} is {number!r}; give a positive number of tokens, or None")
        if dim not in (0, 1) or (dim and (add_attention_mask or add_position_ids)):
            raise ValueError(f"dim is {dim!r}; expected 0, or 1 where nothing is added to the batch")
        self.dim = dim
        self.pad_values = pad_values
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self.pad_to_multiple_of = pad_to_multiple_of
        self.max_length = max_length
        self.trim = trim
        self.add_position_ids = add_position_ids
        self._layout = Layout(pad_values, groups, padding_side, ids_alone=mask_is_not_pad)
        if trim:
            self._layout.check_trimmable()
        else:
            self._layout.check_paddable()
        self._masks = self._layout.masks(add_attention_mask)
        self._position_of = self._layout.main_field() if add_position_ids else None
        if add_position_ids and not self._layout.is_mapping:
            raise ValueError("add_position_ids needs dict samples: a tuple never grows; add the slot in the data set")
        self._to_tensor = _identity(self.collate_fn) in _STACKS_TENSORS
        self._is_default = self.collate_fn is default_collate
        self._checked: set[tuple[Field, Any]] = set()

    def __call__(self, samples: Sequence[Any]) -> Any:
        samples = list(samples)
        if not samples:
            raise ValueError("the batch is empty: expected at least one sample; check the sampler before it")
        self._layout.check_kind(samples)
        groups = self._groups(samples)
        lengths: dict[Field, list[int]] = {}
        widths: dict[Field, int] = {}
        changes: list[dict[Field, Any]] = [{} for _ in samples]
        for group in groups:
            columns: dict[Field, list[Any]] = {}
            spans: dict[Field, list[Span]] = {}
            for fields in group:
                found = self._aligned(samples, fields, columns)
                lengths.update(dict.fromkeys(fields, _sizes(found)))
                spans.update(dict.fromkeys(fields, found))
            width = self._width([(fields[0], lengths[fields[0]]) for fields in group])
            if self.trim and len(group) == 1:
                totals = [_length(value) for value in columns[group[0][0]]]
                shared = _common(spans[group[0][0]], totals, width, self._layout.sides[group[0][0]])
                spans = dict.fromkeys(spans, shared)
                width = max(width, *_sizes(shared))
            for field, column in columns.items():
                widths[field] = width
                self._pad(field, column, spans[field], width, changes)
        self._layout.check_unlisted(samples, [group[0][0] for group in groups], self.dim)
        self._check_added(samples)
        batch = self.collate_fn([replaced(sample, change) for sample, change in zip(samples, changes)])
        return self._with_masks(batch, lengths, widths)

    def length(self, sample: Any) -> int:
        """Return the number of tokens that a sample takes: its longest group, after trimming.

        Args:
            sample: one sample as the data set returns it.

        Returns:
            Length in tokens.

        Raises:
            ValueError: as calling the collator on ``[sample]``.

        Example:
            >>> PaddingCollator({"input_ids": 0, "labels": -100}, trim=True).length(
            ...     {"input_ids": [5, 6, 0, 0], "labels": [5, 6, -100, -100]}
            ... )
            2
        """
        found = [self._aligned([sample], fields, {}) for group in self._groups([sample]) for fields in group]
        return max(size for spans in found for size in _sizes(spans))

    def _groups(self, samples: list[Any]) -> list[list[list[Field]]]:
        """Return the groups: as given, or for ``trim`` the fields that are equally long in these samples."""
        if not self.trim or self._layout.is_grouped:
            return self._layout.groups
        found: dict[tuple[int, ...], list[Field]] = {}
        # HF Trainer takes out the columns that the model does not: what no sample has needs no cut.
        present = [field for field in self._layout.pads if any(has(sample, field) for sample in samples)]
        for field in present or self._layout.pads:
            found.setdefault(tuple(_length(value) for value in self._column(samples, field)), []).append(field)
        if len(found) > 1 or len(present) < len(self._layout.pads):
            for fields in found.values():
                self._layout.check_trimmable(fields)
        return [[fields] for fields in found.values()]

    def _aligned(self, samples: list[Any], fields: list[Field], columns: dict[Field, list[Any]]) -> list[Span]:
        """Put the fields' values into ``columns`` and return where the samples' tokens start and stop."""
        values = {field: self._column(samples, field) for field in fields}
        first = fields[0]
        lengths = [_length(value) for value in values[first]]
        for field in fields[1:]:
            if [_length(value) for value in values[field]] != lengths:
                raise self._ragged(first, lengths, field, values[field])
        if not all(lengths):
            number = lengths.index(0)
            raise ValueError(
                f"sample {number} has no tokens in {name_of(first)!r}; expected at least one: filter empty samples "
                "out of the data set"
            )
        columns.update(values)
        spans = [(0, length) for length in lengths]
        if self.trim:
            pads = [(field, self._layout.pads[field]) for field in fields if self._layout.pads[field] is not ...]
            both = any(field[-1] == "attention_mask" for field in fields)
            for number in range(len(samples)):
                row = [(values[field][number], pad) for field, pad in pads]
                spans[number] = real_span(row, side=self._layout.sides[first], both_ends=both)
        return spans

    def _column(self, samples: list[Any], field: Field) -> list[Any]:
        column = []
        for number, sample in enumerate(samples):
            try:
                value = at(sample, field)
            except (KeyError, IndexError, TypeError):
                raise ValueError(
                    f"sample {number} has no field {name_of(field)!r}, which pad_values lists; it has "
                    f"{self._layout.describe(sample)}: return it from every sample, or take it out of pad_values"
                ) from None
            if not isinstance(value, (list, np.ndarray, torch.Tensor)) or not getattr(value, "ndim", 1):
                if not isinstance(value, (tuple, range)):
                    raise ValueError(
                        f"sample {number}, field {name_of(field)!r}: expected a list, array or tensor with one entry "
                        f"per token, got {type(value).__name__} {str(value)[:40]!r}; declare it None if it is not per "
                        "token"
                    )
                value = list(value)
            column.append(_turned(value) if self.dim else value)
        return column

    def _ragged(self, first: Field, lengths: list[int], field: Field, values: list[Any]) -> ValueError:
        number = next(i for i, value in enumerate(values) if len(value) != lengths[i])
        return ValueError(
            f"sample {number}: {name_of(field)!r} has {len(values[number])} entries, expected {lengths[number]} as in "
            f"{name_of(first)!r}; make them equally long, or put them into separate groups (groups=[[...], [...]])"
        )

    def _width(self, columns: list[tuple[Field, list[int]]]) -> int:
        longest = max(max(lengths) for _, lengths in columns)
        if self.max_length is not None and longest > self.max_length:
            field, lengths = next((field, lengths) for field, lengths in columns if max(lengths) == longest)
            raise ValueError(
                f"sample {lengths.index(longest)}, field {name_of(field)!r}: {longest} tokens, expected at most "
                f"max_length={self.max_length}; truncate in the data set"
            )
        if self.pad_to_multiple_of is not None:
            longest = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
            longest = longest if self.max_length is None else min(longest, self.max_length)
        return longest

    def _pad(
        self, field: Field, column: list[Any], spans: list[Span], width: int, changes: list[dict[Field, Any]]
    ) -> None:
        dtype = getattr(column[0], "dtype", list)
        for number, whole in enumerate(column):
            if getattr(whole, "dtype", list) != dtype:
                raise ValueError(
                    f"sample {number}, field {name_of(field)!r}: dtype {getattr(whole, 'dtype', 'list')}, expected "
                    f"{dtype} as in sample 0; make the data set return one dtype"
                )
            start, stop = spans[number]
            value = whole if stop - start == _length(whole) else whole[start:stop]
            # `default_data_collator` of transformers wants the tokens of a field called `label` as a list.
            if dtype is list and self._to_tensor and (field != ("label",) or self._is_default):
                value = _tensor(value)
            if stop - start < width:
                value = self._padded(field, value, stop - start, width)
            if self.dim:
                changes[number][field] = _turned(value)
            elif value is not whole:
                changes[number][field] = value

    def _padded(self, field: Field, value: Any, length: int, width: int) -> Any:
        pad, left = self._layout.pads[field], self._layout.sides[field] == "left"
        missing = width - length
        if pad is ...:
            raise ValueError(
                f"field {name_of(field)!r} is only cut (pad_values has ... for it), and a sample of {length} tokens "
                f"would have to be padded to {width}; give a pad value, or make the samples equally long"
            )
        if isinstance(value, list):
            filler = pad if not isinstance(value[0], (list, tuple)) else [pad] * len(value[0])
            rest = [copy.copy(filler) for _ in range(missing)] if isinstance(filler, list) else [filler] * missing
            return rest + value if left else value + rest
        if (field, value.dtype) not in self._checked:
            _check_fits(field, value.dtype, pad)
            self._checked.add((field, value.dtype))
        shape = (width, *value.shape[1:])
        row = value.new_full(shape, pad) if isinstance(value, torch.Tensor) else np.full(shape, pad, value.dtype)
        row[slice(missing, None) if left else slice(length)] = value
        return row

    def _check_added(self, samples: list[Any]) -> None:
        added = [key for field, key in self._masks if (key,) not in self._layout.pads]
        added += ["position_ids"] if self._position_of and ("position_ids",) not in self._layout.pads else []
        for key in added:
            for number, sample in enumerate(samples):
                if key in sample and sample[key] is not None:
                    raise ValueError(
                        f"sample {number} already has {key!r}; list it in pad_values (attention_mask: 0) so that it is "
                        "padded with the rest"
                    )

    def _with_masks(self, batch: Any, lengths: dict[Field, list[int]], widths: dict[Field, int]) -> Any:
        wanted = [(field, key, False) for field, key in self._masks]
        if self._position_of:
            wanted.append((self._position_of, "position_ids", True))
        for field, key, positions in wanted:
            if not isinstance(batch, Mapping):
                raise ValueError(
                    f"{key!r} cannot be added: expected a dict from collate_fn, got {type(batch).__name__}"
                )
            if key in batch:
                continue
            mask = mask_from_lengths(lengths[field], widths[field], side=self._layout.sides[field])
            if not any(isinstance(v, torch.Tensor) and v.shape[:2] == mask.shape for v in batch.values()):
                raise ValueError(
                    f"{key!r} cannot be added: no tensor that collate_fn returned is {list(mask.shape)}, the shape of "
                    f"{name_of(field)!r}; build the mask in collate_fn"
                )
            batch[key] = (mask.cumsum(1) - 1).clamp_(min=0) if positions else mask  # type: ignore[index]
        return batch


def mask_from_lengths(lengths: Sequence[int], width: int, *, side: str = "right") -> torch.Tensor:
    """Make a 0/1 attention mask from lengths.

    Args:
        lengths: tokens of each sample, B numbers.
        width: padded length T in tokens.
        side: where the padding is, ``"right"`` (default) or ``"left"``.

    Returns:
        ``[B, T]`` long tensor, 1 on tokens, 0 on padding.

    Example:
        >>> mask_from_lengths([1, 3], 3, side="left").tolist()
        [[0, 0, 1], [1, 1, 1]]
    """
    column = torch.tensor(lengths).unsqueeze(1)
    position = torch.arange(width)
    return (position >= width - column if side == "left" else position < column).long()


def _length(value: Any) -> int:
    # A tensor's own `len` is a Python function, 5x slower than its shape.
    return len(value) if isinstance(value, list) else int(value.shape[0])


def _turned(value: Any) -> Any:
    """Return rows as columns: the tokens of ``[C, T]`` in front, and back."""
    return [list(row) for row in zip(*value)] if isinstance(value, list) else value.swapaxes(0, 1)


def _sizes(spans: Sequence[Span]) -> list[int]:
    return [stop - start for start, stop in spans]


def _common(spans: list[Span], totals: list[int], width: int, side: str) -> list[Span]:
    """Return what stays of samples that are equally long and padded on one side: all positions that hold a token in
    one of them."""
    total = totals[0]
    if any(other != total for other in totals) or (side == "right" and any(start for start, _ in spans)):
        return spans
    start, stop = min(start for start, _ in spans), max(stop for _, stop in spans)
    missing = max(width - (stop - start), 0)
    if start == 0:
        return [(0, min(stop + missing, total))] * len(spans)
    return [(max(start - missing, 0), stop)] * len(spans)


def _tensor(values: list[Any]) -> torch.Tensor:
    if type(values[0]) is int:
        try:
            # `array` reads a list 4x faster than `torch.tensor`, which tries every dtype.
            return torch.from_numpy(np.frombuffer(array("q", values), dtype=np.int64))
        except TypeError:
            pass
    return torch.tensor(values)


def _identity(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__name__", "")


def _check_fits(field: Field, dtype: Any, pad: Any) -> None:
    try:
        held = torch.full((), pad, dtype=dtype) if isinstance(dtype, torch.dtype) else np.full((), pad, dtype)
        rounds = isinstance(pad, float) and isinstance(held.item(), float)
        fits = rounds or held.item() == pad
    except (RuntimeError, OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"field {name_of(field)!r}: pad value {pad!r} does not fit its dtype {dtype}; give a value of that dtype"
        )
