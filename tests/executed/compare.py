"""What two runs must have in common, and how far apart they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from tests.executed.projects import Result

Sample = dict[str, tuple[float, ...]]
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Stream:
    """Fields of a batch that share the token axis, their last one; a field in a nested batch is named `a.b` or `a.0`.

    Attributes:
        pads: what each field holds in padding; a position is padding where every field does.
        follows: fields that are as long, whatever they hold in padding, such as a mask of ones.
        counted: the field whose last real entry ends a sample, where the script shifts its targets by itself: the last
            token of a sample is an input there if padding follows, and none if it does not.
    """

    pads: Mapping[str, float]
    follows: tuple[str, ...] = ()
    counted: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.pads, *self.follows)

    def only(self, names: Collection[str]) -> Stream:
        """Return the stream of those of its fields that are named."""
        pads = {name: value for name, value in self.pads.items() if name in names}
        return Stream(pads, tuple(name for name in self.follows if name in names), self.counted)


@dataclass(frozen=True)
class Proof:
    """What two runs of a script have to have in common.

    Attributes:
        batches: the streams of what its loaders hand over; none where it makes its batches by itself.
        calls: the streams of the arguments of its model.
        derived: arguments of the model that are made from others and as wide as they, such as a square mask.
        results: output files whose content has to be the same, figures up to rounding.
        aside: patterns of output files that one run may leave and the other not, such as prepared data.
    """

    batches: tuple[Stream, ...]
    calls: tuple[Stream, ...]
    derived: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()


def leaves(batch: Any, path: str = "") -> dict[str, Any]:
    """Return the tensors and plain values of a nested batch by their path."""
    if isinstance(batch, Mapping):
        pairs = [(str(key), value) for key, value in batch.items()]
    elif isinstance(batch, (list, tuple)):
        pairs = [(str(at), value) for at, value in enumerate(batch)]
    else:
        return {path: batch}
    found: dict[str, Any] = {}
    for key, value in pairs:
        found |= leaves(value, f"{path}.{key}" if path else key)
    return found


def samples(batch: Any, *streams: Stream) -> list[Sample]:
    """Return the rows of a batch without their padding, stream by stream."""
    fields = leaves(batch)
    return [sample for stream in streams for _, _, sample in _rows(fields, stream)]


def _rows(fields: dict[str, Any], stream: Stream) -> Iterator[tuple[int, int, Sample]]:
    """Yield where each row begins and ends, and what it holds there."""
    stream = stream.only(fields.keys())
    columns = [fields[name].reshape(-1, fields[name].shape[-1]).tolist() for name in stream.fields]
    for values in zip(*columns, strict=True):
        row = dict(zip(stream.fields, values, strict=True))
        start, end = _extent(row, stream.pads)
        stop = _extent(row, {stream.counted: stream.pads[stream.counted]})[1] if stream.counted else end
        yield start, end, {name: tuple(value[start:stop]) for name, value in row.items()}


def _extent(row: dict[str, list[float]], pads: Mapping[str, float]) -> tuple[int, int]:
    """Return where a row begins and ends: padding is what every field calls so."""
    width = len(row[next(iter(pads))])
    real = [at for at in range(width) if any(row[name][at] != value for name, value in pads.items())]
    return (real[0], real[-1] + 1) if real else (0, 0)


def trained_batches(result: Result) -> Iterator[Any]:
    """Yield the batches that were trained on, of all ranks; accelerate fetches one more."""
    for rank in result.ranks:
        assert len(rank["batches"]) >= len(rank["losses"])
        yield from rank["batches"][: len(rank["losses"])]


def num_slots(batches: Iterable[Any], *streams: Stream) -> int:
    """Return the positions of all batches, padding included."""
    return sum(leaves(batch)[next(iter(stream.pads))].numel() for batch in batches for stream in streams)


def assert_tight(batches: Iterable[Any], *streams: Stream, multiple: int = 8) -> None:
    """Assert that batches are as wide as their longest sample, up to a multiple."""
    for fields in map(leaves, batches):
        for stream in streams:
            longest = max(end - start for start, end, _ in _rows(fields, stream))
            width = fields[next(iter(stream.pads))].shape[-1]
            assert width <= -(-longest // multiple) * multiple, (width, longest)


def num_real(batches: Iterable[Any], *streams: Stream) -> int:
    """Return the positions among them that hold a real token."""
    rows = (row for batch in batches for stream in streams for row in _rows(leaves(batch), stream))
    return sum(end - start for start, end, _ in rows)


def assert_same_samples(
    old: Sequence[Any], new: Sequence[Any], *streams: Stream, derived: tuple[str, ...] = ()
) -> None:
    """Assert that batches hold the same samples in the same order, whatever their width.

    An attention mask may have been added, if it shows the model every real token.
    """
    assert len(old) == len(new)
    for before, after in zip(map(leaves, old), map(leaves, new), strict=True):
        if before.keys() == after.keys() and all(_same(before[name], after[name]) for name in before):
            continue
        shared = before.keys() & after.keys()
        assert before.keys() == shared, before.keys() - shared
        assert after.keys() - shared <= {"attention_mask"}, after.keys() - shared
        for stream in (stream.only(shared) for stream in streams):
            _assert_same_rows(before, after, stream)
        tokens = {name for stream in streams for name in stream.fields}
        for name in shared - tokens - set(derived):
            assert _same(before[name], after[name]), name


def _assert_same_rows(before: dict[str, Any], after: dict[str, Any], stream: Stream) -> None:
    for name in stream.fields:
        assert before[name].dtype == after[name].dtype, name
    pairs = zip(_rows(before, stream), _rows(after, stream), strict=True)
    for at, ((_, _, sample), (start, end, new_sample)) in enumerate(pairs):
        assert new_sample == sample, f"row {at}: {_differing(sample, new_sample)}"
        if "attention_mask" in after.keys() - before.keys():
            assert after["attention_mask"][at, start:end].bool().all(), f"row {at}: the mask hides a token"


def _differing(sample: Sample, other: Sample) -> dict[str, Any]:
    return {name: (values, other[name]) for name, values in sample.items() if values != other[name]}


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return before.dtype == after.dtype and torch.equal(before, after)
    return bool(before == after)


def loss_error(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the largest relative difference of the losses of equal steps."""
    return max(abs(a - b) / abs(a) for a, b in zip(old, new, strict=True))


def relative_l2(old: torch.Tensor, new: torch.Tensor) -> float:
    """Return ``|new - old| / |old|`` over all entries."""
    return float(torch.linalg.vector_norm(new.double() - old.double()) / torch.linalg.vector_norm(old.double()))


def assert_exact(old: Result, new: Result, proof: Proof, *, tolerance: float = 1e-5) -> dict[str, float]:
    """Assert that two runs computed the same, and return how far they are apart."""
    figures = {"loss": 0.0, "gradients": 0.0}
    for before, after in zip(old.ranks, new.ranks, strict=True):
        assert before["losses"]
        figures["loss"] = max(figures["loss"], loss_error(before["losses"], after["losses"]))
        assert after["names"] == before["names"]
        assert hyper_parameters(after) == hyper_parameters(before)
        if before["gradients"] is not None:
            figures["gradients"] = max(figures["gradients"], relative_l2(before["gradients"], after["gradients"]))
        assert_same_samples(before["batches"], after["batches"], *proof.batches)
        assert_same_samples(before["calls"], after["calls"], *proof.calls, derived=proof.derived)
    assert files(new.out, *proof.aside) == files(old.out, *proof.aside)
    for name in proof.results:
        assert_same_figures((old.out / name).read_text(), (new.out / name).read_text())
    assert max(figures.values()) <= tolerance, figures
    return figures


def hyper_parameters(rank: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the options of each parameter group but those that say which kernel steps."""
    return [
        {key: value for key, value in group.items() if key not in ("fused", "foreach")} for group in rank["optimizer"]
    ]


def files(out: Path, *aside: str) -> dict[str, Any]:
    """Return the output files but those left aside, each with the keys that it holds, where it is a checkpoint."""
    left = (path for path in sorted(out.iterdir()) if not any(fnmatch(path.name, pattern) for pattern in aside))
    return {path.name: _keys(path) for path in left}


def assert_same_figures(old: str, new: str) -> None:
    """Assert that two texts are the same but for the rounding of figures; lines about time are left out."""
    lines = [[line for line in text.split("\n") if not re.search("runtime|per_second", line)] for text in (old, new)]
    before, after = ("\n".join(each) for each in lines)
    assert _FIGURE.sub("#", after) == _FIGURE.sub("#", before)
    for a, b in zip(_FIGURE.findall(before), _FIGURE.findall(after), strict=True):
        assert abs(float(a) - float(b)) <= 1e-4 * abs(float(a)), (a, b)


def _keys(path: Path) -> Any:
    if path.suffix == ".safetensors":
        with safe_open(str(path), "pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
    return _nested_keys(torch.load(path, weights_only=True)) if path.suffix == ".pth" else None


def _nested_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nested_keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_nested_keys(inner) for inner in value]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def assert_trains(result: Result) -> None:
    """Assert a finite loss that falls, summed over the batches of a step."""
    for rank in result.ranks:
        losses = torch.tensor(rank["losses"]).view(rank["num_steps"], -1).sum(1)
        assert losses.isfinite().all()
        assert losses[-5:].mean() < losses[:5].mean(), losses.tolist()
