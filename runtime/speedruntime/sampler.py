"""Batches of like length from known lengths: one plan for all ranks, a function of (lengths, settings, seed, epoch).

`_lookahead.py` does it where lengths are not known beforehand.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import Sampler

from ._disable import is_disabled
from .plan import IntArray, length_order


class Plan(NamedTuple):
    """One rank's epoch: batch k is ``order[starts[k] : starts[k] + sizes[k]]``."""

    order: IntArray
    starts: IntArray
    sizes: IntArray


class LengthBucketBatchSampler(Sampler[list[int]]):
    """Yield lists of sample numbers of like length, in random order of batches.

    As many batches as ``DataLoader(batch_size, sampler=DistributedSampler(num_replicas, rank))`` makes, so a
    learning-rate schedule does not move: each sample once per epoch, at most ``num_replicas - 1`` repeated to give
    every rank as many batches; the last one is short, or dropped. All ranks work on samples of like length at the same
    step. Which samples share a batch changes with the epoch, and so does the order. ``SPEEDRUNTIME_DISABLE=bucket``
    leaves lengths aside.

    Args:
        lengths: ``[N]`` integers, length of each sample in tokens.
        batch_size: samples per batch and rank.
        shuffle: default True; False keeps the order of the data set and groups nothing, as evaluation needs.
        num_replicas: ranks that share the data; default 1. Under ``accelerator.prepare``, which shards by itself, leave
            1 and multiply ``gradient_accumulation_steps`` by the number of ranks.
        rank: this rank, from 0; default 0.
        seed: the same on all ranks; default 0.
        drop_last: drop the short batch at the end instead of yielding it; default False.
        gradient_accumulation_steps: consecutive batches of like length, so that no micro-batch of a step weighs much
            more per token than another; default 1.
        max_tokens: with it a batch holds at most this many slots (samples x longest, per rank) and at most
            ``batch_size`` samples: the number of batches is then another than the old loader's. Default None.

    Raises:
        ValueError: lengths are empty, negative or not one-dimensional integers; a number is out of range; a sample is
            longer than ``max_tokens``; on iterating: ranks of a process group have other lengths or settings.

    Example:
        >>> sampler = LengthBucketBatchSampler([1, 9, 1, 9, 1, 9], batch_size=3)
        >>> sorted(sorted(batch) for batch in sampler)
        [[0, 2, 4], [1, 3, 5]]
    """

    def __init__(
        self,
        lengths: Sequence[int] | NDArray[np.integer],
        batch_size: int,
        *,
        shuffle: bool = True,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        gradient_accumulation_steps: int = 1,
        max_tokens: int | None = None,
    ) -> None:
        self.lengths = _checked(lengths, max_tokens)
        for name, number in (
            ("batch_size", batch_size),
            ("num_replicas", num_replicas),
            ("gradient_accumulation_steps", gradient_accumulation_steps),
        ):
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} is {number!r}; expected a positive integer")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank is {rank!r}; expected 0 to {num_replicas - 1} with num_replicas={num_replicas}")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.num_replicas = num_replicas
        self.rank = rank
        self.seed = seed
        self.drop_last = drop_last
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.max_tokens = max_tokens
        self.epoch = 0
        self._next_batch = 0
        self._agreed = False
        self._budget_sizes = None if max_tokens is None else self._sizes_in_budget(max_tokens)

    @property
    def sampler(self) -> LengthBucketBatchSampler:
        """This sampler: accelerate forwards ``set_epoch`` to the ``sampler`` of a batch sampler."""
        return self

    def __len__(self) -> int:
        if self._budget_sizes is not None:
            return len(self._budget_sizes)
        per_rank = -(-len(self.lengths) // self.num_replicas)
        return per_rank // self.batch_size if self.drop_last else -(-per_rank // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        self._check_agreement()
        plan = self.plan()
        while self._next_batch < len(plan.starts):
            start, size = plan.starts[self._next_batch], plan.sizes[self._next_batch]
            self._next_batch += 1
            yield plan.order[start : start + size].tolist()
        self.set_epoch(self.epoch + 1)

    def _check_agreement(self) -> None:
        """Raise on every rank where ranks would plan differently: they would wait for each other for ever."""
        if self._agreed or self.num_replicas == 1 or not (dist.is_available() and dist.is_initialized()):
            return
        # Under NCCL an object travels by the current GPU, which is only ours where the script has set it.
        if "nccl" in dist.get_backend() and os.environ.get("LOCAL_RANK") != str(torch.cuda.current_device()):
            return
        settings = [self.batch_size, self.seed, self.epoch, self.drop_last, self.gradient_accumulation_steps]
        mine = (len(self.lengths), zlib.crc32(np.ascontiguousarray(self.lengths, np.int64).tobytes()), *settings)
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, mine)
        other = next((rank for rank, theirs in enumerate(found) if theirs != found[0]), None)
        if other is not None:
            raise ValueError(
                f"rank {other} plans with {found[other]}, rank 0 with {found[0]} (number of samples, checksum, "
                "batch_size, seed, epoch, ...); measure the lengths once and hand the same to every rank"
            )
        self._agreed = True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that comes next, from its first batch; without it every full pass counts as one.

        Args:
            epoch: number of the epoch, from 0.
        """
        if epoch != self.epoch:
            self.epoch, self._next_batch = epoch, 0

    def state_dict(self, num_batches: int | None = None) -> dict[str, int]:
        """Return what `load_state_dict` needs to go on with the next batch.

        Args:
            num_batches: batches that training has used in this epoch. Default: those handed out, which is more where
                workers have fetched ahead.

        Returns:
            Seed, epoch and number of the next batch.
        """
        done = self._next_batch if num_batches is None else num_batches
        return {"seed": self.seed, "epoch": self.epoch, "next_batch": done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state_dict` was taken: the next pass yields the rest of that epoch.

        Args:
            state: what `state_dict` returned.
        """
        self.seed, self.epoch, self._next_batch = state["seed"], state["epoch"], state["next_batch"]

    def plan(self) -> Plan:
        """Return this rank's batches of the current epoch.

        Returns:
            `Plan` of ``len(self)`` batches.
        """
        rng = np.random.default_rng([abs(self.seed), self.epoch])
        if not self.shuffle:
            return self._in_order()
        if self._budget_sizes is not None:
            return self._within_budget(self._budget_sizes, rng)
        world, per_rank = self.num_replicas, -(-len(self.lengths) // self.num_replicas)
        short = 0 if self.drop_last else per_rank % self.batch_size
        step = self.batch_size * world
        chosen = self._chosen(per_rank // self.batch_size * step + short * world, rng)
        order = self._by_length(chosen, rng)
        # What does not fill an accumulation window comes last, from a random place among the lengths.
        block = step * self.gradient_accumulation_steps
        tail = len(order) % block
        num_blocks = len(order) // block
        cut = int(rng.integers(num_blocks + 1)) * block
        order = np.concatenate([order[:cut], order[cut + tail :], order[cut : cut + tail]])
        blocks = rng.permutation(num_blocks)
        steps = np.arange(self.gradient_accumulation_steps)
        starts = (blocks[:, None] * block + rng.permuted(np.tile(steps, (num_blocks, 1)), axis=1) * step).ravel()
        starts = np.concatenate([starts, num_blocks * block + np.arange(tail // step) * step])
        if world > 1:
            ranks = rng.permuted(np.tile(np.arange(world), (len(starts), 1)), axis=1)
            starts = starts + ranks[:, self.rank] * self.batch_size
        sizes = np.full(len(starts), self.batch_size)
        if short:
            starts = np.append(starts, len(order) - short * world + self.rank * short)
            sizes = np.append(sizes, short)
        return Plan(order, starts, sizes)

    def _chosen(self, total: int, rng: np.random.Generator) -> IntArray:
        """Return the samples of this epoch: all, some of them twice to fill up, or a random part of them."""
        num_samples = len(self.lengths)
        if total < num_samples:
            return rng.permutation(num_samples)[:total]
        return np.concatenate([np.arange(num_samples), rng.integers(num_samples, size=total - num_samples)])

    def _by_length(self, chosen: IntArray, rng: np.random.Generator) -> IntArray:
        if is_disabled("bucket"):
            return rng.permutation(chosen)
        return chosen[length_order(self.lengths[chosen], rng, jitter=self.batch_size * 3 // 2)]

    def _in_order(self) -> Plan:
        world, size = self.num_replicas, self.batch_size
        per_rank = -(-len(self.lengths) // world)
        mine = (np.arange(per_rank) * world + self.rank) % len(self.lengths)
        starts = np.arange(len(self)) * size
        return Plan(mine, starts, np.minimum(size, per_rank - starts))

    def _sizes_in_budget(self, max_tokens: int) -> list[int]:
        """Return samples per batch and rank, from the longest samples to the shortest: the same in every epoch."""
        ordered = np.sort(self.lengths)[::-1]
        sizes: list[int] = []
        start = 0
        while start < len(ordered):
            fitting = min(self.batch_size, max_tokens // max(1, int(ordered[start])))
            left = -(-(len(ordered) - start) // self.num_replicas)
            if left < fitting and self.drop_last:
                break
            sizes.append(min(fitting, left))
            start += sizes[-1] * self.num_replicas
        return sizes

    def _within_budget(self, sizes: list[int], rng: np.random.Generator) -> Plan:
        world = self.num_replicas
        totals = np.array(sizes, dtype=np.int64) * world
        order = length_order(self.lengths, rng)[::-1]
        missing = int(totals.sum()) - len(order)
        if missing > 0:
            order = np.concatenate([order, order[len(order) - 1 - np.arange(missing) % len(order)]])
        starts = np.concatenate([[0], np.cumsum(totals)[:-1]]).astype(np.int64)
        ranks = rng.permuted(np.tile(np.arange(world), (len(sizes), 1)), axis=1)[:, self.rank]
        shuffled = rng.permutation(len(sizes))
        mine = starts + ranks * np.array(sizes, dtype=np.int64)
        return Plan(order, mine[shuffled], np.array(sizes, dtype=np.int64)[shuffled])


def _checked(lengths: Any, max_tokens: int | None) -> NDArray[np.integer]:
    array = np.asarray(lengths)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise ValueError(f"lengths has shape {list(array.shape)} and dtype {array.dtype}; expected integers [N]")
    if array.min() < 0:
        raise ValueError(f"sample {int(array.argmin())} has length {int(array.min())}; expected 0 tokens or more")
    if max_tokens is not None and array.max() > max_tokens:
        raise ValueError(
            f"sample {int(array.argmax())} has {int(array.max())} tokens, expected at most max_tokens={max_tokens}; "
            "truncate it or raise max_tokens"
        )
    return array
