"""What two runs must have in common, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from tests.executed.projects import Result

IGNORE_INDEX = -100


@dataclass(frozen=True)
class Sample:
    """A row of a batch without its padding.

    Attributes:
        tokens: ids up to the last one that a target that counts depends on.
        targets: position in `tokens` and id of each target that counts.
        num_real: length without padding.
    """

    tokens: tuple[int, ...]
    targets: tuple[tuple[int, int], ...]
    num_real: int


def samples(batch: Any, pad: int) -> list[Sample]:
    """Return the samples of a batch: a dict with ids and labels, or (ids, next ids, loss mask)."""
    if isinstance(batch, dict):
        ids, targets, counts = batch["input_ids"], batch["labels"], batch["labels"] != IGNORE_INDEX
    else:
        ids, targets, counts = batch[0], batch[1], batch[2] != 0
    rows = zip(ids.tolist(), targets.tolist(), counts.tolist(), strict=True)
    return [_sample(*row, pad=pad) for row in rows]


def _sample(ids: list[int], targets: list[int], counts: list[bool], *, pad: int) -> Sample:
    real = [at for at, (token, count) in enumerate(zip(ids, counts, strict=True)) if token != pad or count]
    start, end = (real[0], real[-1] + 1) if real else (0, 0)
    counted = [at for at, count in enumerate(counts) if count]
    tokens = tuple(ids[start : counted[-1] + 1]) if counted else ()
    return Sample(tokens, tuple((at - start, targets[at]) for at in counted), end - start)


def trained_batches(result: Result) -> Iterator[Any]:
    """Yield the batches that were trained on, of all ranks; accelerate fetches one more."""
    for rank in result.ranks:
        assert len(rank["batches"]) >= len(rank["losses"])
        yield from rank["batches"][: len(rank["losses"])]


def num_slots(result: Result) -> int:
    """Return the positions that the model computed."""
    return sum(_ids(batch).numel() for batch in trained_batches(result))


def num_real(result: Result, pad: int) -> int:
    """Return the positions among them that hold a real token."""
    return sum(sample.num_real for batch in trained_batches(result) for sample in samples(batch, pad))


def _ids(batch: Any) -> torch.Tensor:
    ids: torch.Tensor = batch["input_ids"] if isinstance(batch, dict) else batch[0]
    return ids


def loss_error(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the largest relative difference of the losses of equal steps."""
    return max(abs(a - b) / abs(a) for a, b in zip(old, new, strict=True))


def relative_l2(old: torch.Tensor, new: torch.Tensor) -> float:
    """Return ``|new - old| / |old|`` over all entries."""
    return float(torch.linalg.vector_norm(new.double() - old.double()) / torch.linalg.vector_norm(old.double()))


def assert_exact(old: Result, new: Result, *, pad: int, tolerance: float = 1e-5) -> dict[str, float]:
    """Assert that two runs computed the same, and return how far they are apart."""
    figures = {"loss": 0.0, "gradients": 0.0}
    for before, after in zip(old.ranks, new.ranks, strict=True):
        figures["loss"] = max(figures["loss"], loss_error(before["losses"], after["losses"]))
        assert after["names"] == before["names"]
        assert hyper_parameters(after) == hyper_parameters(before)
        if before["gradients"] is not None:
            figures["gradients"] = max(figures["gradients"], relative_l2(before["gradients"], after["gradients"]))
    for before, after in zip(trained_batches(old), trained_batches(new), strict=True):
        pairs = zip(samples(before, pad), samples(after, pad), strict=True)
        assert all((a.tokens, a.targets) == (b.tokens, b.targets) for a, b in pairs)
    assert files(new.out) == files(old.out)
    assert max(figures.values()) <= tolerance, figures
    return figures


def hyper_parameters(rank: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the options of each parameter group but those that say which kernel steps."""
    return [
        {key: value for key, value in group.items() if key not in ("fused", "foreach")} for group in rank["optimizer"]
    ]


def files(out: Path) -> dict[str, Any]:
    """Return the output files, each with the keys that it holds, where it is a checkpoint."""
    return {path.name: _keys(path) for path in sorted(out.iterdir())}


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
