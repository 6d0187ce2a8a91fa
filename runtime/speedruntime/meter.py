"""Count how many of the slots that training computes hold real tokens."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch

log = logging.getLogger("speedruntime")
_Batch = TypeVar("_Batch")


class PaddingMeter:
    """Count slots, real tokens and shapes of the batches of a loop; one log line at the end.

    Nothing waits for the device: sums of masks stay tensors until they are read. ``SPEEDRUNTIME_METER=0``: off.

    Args:
        field: key (or slot) of the token ids ``[B, T]``; default ``"input_ids"``.
        mask: key (or slot) of the 0/1 mask that marks real tokens; default
            ``"attention_mask"``. Batches without it count as all real.

    Example:
        >>> meter = PaddingMeter()
        >>> batch = {"input_ids": torch.zeros(2, 4), "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])}
        >>> for _ in meter([batch, batch]): pass
        >>> meter.num_slots, meter.num_tokens, meter.efficiency, meter.num_shapes
        (16, 10, 0.625, 1)
    """

    def __init__(self, *, field: Any = "input_ids", mask: Any = "attention_mask") -> None:
        self.field = field
        self.mask = mask
        self.enabled = os.environ.get("SPEEDRUNTIME_METER", "1") not in ("0", "off", "false")
        self.shapes: Counter[tuple[int, ...]] = Counter()
        self.seconds = 0.0
        self._known = 0
        self._sums: list[torch.Tensor] = []

    def __call__(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yield the batches of a loop, counting them; log the line when it ends.

        Args:
            batches: a loader or any iterable of batches.

        Returns:
            Iterator over the same batches.
        """
        if not self.enabled:
            yield from batches
            return
        started = time.perf_counter()
        try:
            for batch in batches:
                self.update(batch)
                yield batch
        finally:
            self.seconds += time.perf_counter() - started
            log.info("%s", self.summary())

    def update(self, batch: Any) -> None:
        """Count one batch.

        Args:
            batch: mapping or tuple with the ids ``[B, T]`` and, where there is one, the mask ``[B, T]``.
        """
        ids = batch[self.field]
        self.shapes[tuple(ids.shape[:2])] += 1
        has_mask = self.mask in batch if isinstance(batch, Mapping) else isinstance(self.mask, int)
        if has_mask and batch[self.mask] is not None:
            self._sums.append(batch[self.mask].sum())
        else:
            self._known += ids.shape[0] * ids.shape[1]
        if len(self._sums) == 1024:
            self._sums = [torch.stack(self._sums).sum()]

    @property
    def num_slots(self) -> int:
        """Slots computed: rows times padded length, over all batches."""
        return sum(rows * width * count for (rows, width), count in self.shapes.items())

    @property
    def num_tokens(self) -> int:
        """Real tokens among the slots."""
        return self._known + sum(int(total) for total in self._sums)

    @property
    def efficiency(self) -> float:
        """Real tokens per slot, 0 to 1."""
        return self.num_tokens / self.num_slots if self.num_slots else 1.0

    @property
    def num_shapes(self) -> int:
        """Distinct shapes, each of which may cost a graph."""
        return len(self.shapes)

    def summary(self) -> str:
        """Return the figures as one line."""
        rate = f", {self.num_tokens / self.seconds:,.0f} tokens/s" if self.seconds else ""
        return (
            f"padding: {self.num_tokens:,} tokens in {self.num_slots:,} slots ({self.efficiency:.1%}), "
            f"{self.num_shapes} shapes in {sum(self.shapes.values())} batches{rate}"
        )
