"""Batches of like length without knowing any length beforehand: look some batches ahead and regroup their samples.

`sampler.py` needs the lengths and no look-ahead; this needs neither a length column nor an index that has a length.
"""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.distributed import DistributedSampler

from ._disable import is_disabled
from ._transport import keep_samples, num_bytes, unpacked
from .plan import IntArray, bucket

log = logging.getLogger("speedruntime")
_MAX_BYTES = 1 << 30
_Loader = TypeVar("_Loader", bound="DataLoader[Any]")
_RANDOM_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_torch_iter = DataLoader.__iter__


def lookahead(loader: _Loader, *, field: Any = "input_ids", window: int = 100, seed: int = 0) -> _Loader:
    """Return a loader that regroups samples of like length over the next batches, on each rank by itself.

    Workers fetch single samples; ``window`` batches of them are sorted into batches of like length, which come in
    random order and are made by the loader's own ``collate_fn``, in the main process (then pinned, where the loader
    pins). Every sample comes exactly once, in as many batches of the same sizes; the order depends only on the loader's
    own order and ``seed``, and skipping batches with accelerate (resuming) leads to the same ones. A loader whose order
    is not random, or not known to be, comes back unchanged, with one log line that says why; so does any with
    ``SPEEDRUNTIME_DISABLE=lookahead`` or ``bucket``.

    Args:
        loader: a ``DataLoader``, before or after ``accelerator.prepare``, or the one ``deepspeed.initialize`` returns.
        field: key or slot whose length counts, in tokens; default ``"input_ids"``, for tuple samples slot 0. With a
            `PaddingCollator` that trims, its own measure counts.
        window: number of batches to regroup at a time, at most; default 100, and at most 1 GiB of samples, judged by
            the epoch's first batch.
        seed: of the order of batches; default 0.

    Returns:
        A loader with the same ``len``, ``dataset``, ``batch_size``, ``sampler`` and worker settings, and ``set_epoch``.
        A loader made by accelerate or DeepSpeed is changed in place.

    Raises:
        ValueError: ``window`` is below 1.

    Example:
        >>> samples = [{"input_ids": torch.ones(n, dtype=torch.long)} for n in [9, 1] * 400]
        >>> def longest(batch): return max(len(sample["input_ids"]) for sample in batch)
        >>> loader = lookahead(DataLoader(samples, batch_size=4, shuffle=True, collate_fn=longest))
        >>> batches = list(loader)
        >>> len(batches), batches.count(1) > 90
        (200, True)
    """
    if window < 1:
        raise ValueError(f"window is {window!r}; expected at least 1 batch")
    base: Any = getattr(loader, "base_dataloader", loader)
    reason = _why_not(base)
    if reason:
        _log_once(f"look-ahead is off: {reason}")
        return loader
    _install()
    regroup = Regroup(base.collate_fn or default_collate, field=field, window=window, seed=seed)
    _log_once(f"look-ahead is on: samples of like length are grouped over {window} batches")
    if base is not loader or _is_from("accelerate", loader) or _is_from("deepspeed", loader):
        base.collate_fn = regroup
        return loader
    result: Any = copy.copy(loader)
    result.collate_fn = regroup
    result.__class__ = LookaheadLoader if type(loader) is DataLoader else _with_set_epoch(type(loader))
    return result  # type: ignore[no-any-return]


def use_lookahead(trainer: Any, *, field: Any = "input_ids", window: int = 100, seed: int | None = None) -> None:
    """Make an HF ``Trainer`` regroup its training batches by length (see `lookahead`); evaluation stays as it is.

    Args:
        trainer: a constructed ``Trainer``; its ``get_train_dataloader`` is wrapped, overridden or not.
        field: key whose length counts, in tokens; default ``"input_ids"``.
        window: number of batches to regroup at a time; default 100.
        seed: of the order of batches; default ``trainer.args.data_seed`` or ``seed``.

    Example:
        >>> from types import SimpleNamespace
        >>> trainer = SimpleNamespace(args=SimpleNamespace(seed=1), get_train_dataloader=lambda: None)
        >>> use_lookahead(trainer)  # after `trainer = Trainer(...)`
    """
    if seed is None:
        data_seed = getattr(trainer.args, "data_seed", None)
        seed = int(trainer.args.seed if data_seed is None else data_seed)
    options = {"field": field, "window": window, "seed": seed}
    trainer.get_train_dataloader = partial(_looking_ahead, trainer.get_train_dataloader, options)


def _looking_ahead(get_train_dataloader: Callable[[], Any], options: dict[str, Any]) -> Any:
    loader = get_train_dataloader()
    return lookahead(loader, **options) if isinstance(loader, DataLoader) else loader


class LookaheadLoader(DataLoader[Any]):
    """A ``DataLoader`` whose ``collate_fn`` is a `Regroup`, made by `lookahead`."""

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler (or the iterable data set) and the regrouping which epoch comes next."""
        if isinstance(self.collate_fn, Regroup):
            self.collate_fn.epoch = epoch
        owners: list[Any] = [
            self.sampler,
            self.batch_sampler,
            getattr(self.batch_sampler, "sampler", None),
            self.dataset,
        ]
        for owner in {id(owner): owner for owner in owners}.values():
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)


class Regroup:
    """The loader's own ``collate_fn``, marked: a ``DataLoader`` that has it iterates over regrouped batches.

    accelerate rebuilds a loader from its parts, as a plain ``DataLoader`` (``prepare``, ``skip_first_batches``); of
    what we hand over only ``collate_fn`` arrives, so the regrouping rides on it. Called, it collates and no more.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], *, field: Any, window: int, seed: int) -> None:
        self.collate_fn = collate_fn
        self.field = field
        self.window = window
        self.seed = seed
        self.epoch = 0
        self.broken = False

    def __call__(self, samples: Any) -> Any:
        return self.collate_fn(samples)

    def window_for(self, first_batch: list[Any], num_batches: int | None) -> int:
        """Return the window for an epoch: a whole part of it, within the memory bound."""
        size = sum(num_bytes(sample) for sample in first_batch)
        window = max(1, min(self.window, _MAX_BYTES // max(size, 1)))
        return window if num_batches is None else -(-num_batches // -(-num_batches // window))

    def regrouped(self, batches: list[list[Any]], whole: bool) -> list[list[Any]]:
        """Return the samples of some batches as batches of like length, in random order, of the same sizes."""
        samples = list(chain.from_iterable(batches))
        sizes = [len(batch) for batch in batches]
        try:
            lengths = np.array([self._length(sample) for sample in samples])
        except (KeyError, IndexError, TypeError) as error:
            self.broken = True
            log.warning("look-ahead is off: samples have no %r with a length (%r); name it: field=", self.field, error)
            return batches
        # The data's own order is new in each epoch, and a resumed run sees it again; a count of epochs it does not.
        entropy = [abs(self.seed), self.epoch, zlib.crc32(lengths.tobytes())]
        # Where one window holds the whole epoch, nothing but the jitter changes who shares a batch.
        jitter = max(sizes) * 3 // 2 if whole else 0
        plan: list[IntArray] = bucket(lengths, sizes, np.random.default_rng(entropy), jitter=jitter)
        return [[samples[number] for number in batch] for batch in plan]

    def _length(self, sample: Any) -> int:
        collate = getattr(self.collate_fn, "data_collator", self.collate_fn)  # HF's RemoveColumnsCollator
        if getattr(collate, "trim", False) is True and hasattr(collate, "length"):
            return int(collate.length(sample))
        value = sample[0 if isinstance(sample, (tuple, list)) and self.field == "input_ids" else self.field]
        shape = getattr(value, "shape", None)
        return len(value) if shape is None or shape[0] != 1 else int(shape[-1])


@cache
def _log_once(message: str) -> None:
    log.info(message)


def _install() -> None:
    if DataLoader.__iter__ is not _iter:
        DataLoader.__iter__ = _iter  # type: ignore[method-assign]


def _iter(self: DataLoader[Any]) -> Any:
    regroup = self.collate_fn
    if not isinstance(regroup, Regroup) or regroup.broken or self.batch_sampler is None:
        return _torch_iter(self)
    return _regrouped(self, regroup)


def _regrouped(loader: DataLoader[Any], regroup: Regroup) -> Iterator[Any]:
    if isinstance(loader.dataset, IterableDataset):
        incoming = _torch_iter(_fetching(loader, None))
        return _stream(loader, regroup, incoming, None)
    skip = 0
    batch_sampler: Any = loader.batch_sampler
    while hasattr(batch_sampler, "skip_batches"):
        skip += batch_sampler.skip_batches
        batch_sampler = batch_sampler.batch_sampler
    num_batches = len(batch_sampler)
    if not skip:
        return _stream(loader, regroup, _torch_iter(_fetching(loader, batch_sampler)), num_batches)
    resume = _Resume(loader, regroup, batch_sampler, skip)
    batches = _stream(loader, regroup, _torch_iter(_fetching(loader, resume)), num_batches, resume)
    return (batch for number, batch in enumerate(batches) if number >= resume.drop)


def _stream(
    loader: DataLoader[Any], regroup: Regroup, incoming: Any, num_batches: int | None, resume: _Resume | None = None
) -> Iterator[Any]:
    fetched = map(unpacked, incoming)
    batches = list(islice(fetched, 1))
    if not batches:
        return
    window = resume.window if resume else regroup.window_for(batches[0], num_batches)
    batches.extend(islice(fetched, window - 1))
    pins = loader.pin_memory and _has_accelerator()
    while batches:
        upcoming: list[list[Any]] = []
        for samples in regroup.regrouped(batches, whole=window == num_batches):
            upcoming.extend(islice(fetched, 1))
            batch = regroup.collate_fn(samples)
            yield pin_memory(batch) if pins else batch  # type: ignore[no-untyped-call]
        batches = upcoming


class _Resume:
    """The order of batches from the window on that holds batch number ``skip``; windows before it are not fetched."""

    def __init__(self, loader: DataLoader[Any], regroup: Regroup, batch_sampler: Any, skip: int) -> None:
        self.loader, self.regroup, self.batch_sampler, self.skip = loader, regroup, batch_sampler, skip
        self.window = 1
        self.drop = 0

    def __iter__(self) -> Iterator[list[int]]:
        # Lazily: a sampler draws its seed at the first `next`, after the loader has drawn one for its workers.
        order = iter(self.batch_sampler)
        head = list(islice(order, self.skip))
        if not head:
            return
        # The epoch's first batch sets the window, as it did in the run that is resumed.
        first = _torch_iter(_fetching(self.loader, head[:1], generator=torch.Generator(), persistent_workers=False))
        self.window = self.regroup.window_for(unpacked(next(first)), len(self.batch_sampler))
        start = self.skip // self.window * self.window
        self.drop = self.skip - start
        yield from chain(head[start:], order)


def _fetching(loader: DataLoader[Any], batch_sampler: Any, **changed: Any) -> DataLoader[Any]:
    """Return a loader with the same data and workers that hands over uncollated samples."""
    cached = loader.__dict__.get("_lookahead_fetching")
    if cached is not None and cached.batch_sampler is batch_sampler:
        return cached  # type: ignore[no-any-return]
    names = ["num_workers", "worker_init_fn", "timeout", "multiprocessing_context", "generator", "persistent_workers"]
    names += ["prefetch_factor"] if loader.num_workers else []
    names += ["in_order"] if hasattr(loader, "in_order") else []
    options = {**{name: getattr(loader, name) for name in names}, **changed}
    if batch_sampler is None:
        options.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
    fetching = DataLoader(loader.dataset, batch_sampler=batch_sampler, collate_fn=keep_samples, **options)
    if batch_sampler is loader.batch_sampler or batch_sampler is None:
        loader.__dict__["_lookahead_fetching"] = fetching
    return fetching


def _why_not(loader: Any) -> str | None:
    for word in ("lookahead", "bucket"):
        if is_disabled(word):
            return f"SPEEDRUNTIME_DISABLE holds {word!r}"
    if isinstance(getattr(loader, "collate_fn", None), Regroup):
        return "the loader looks ahead already"
    if _is_from("deepspeed", loader) and hasattr(loader, "data_sampler"):
        # It makes a `DataLoader` with its `collate_fn` and `data_sampler` in each epoch.
        return _why_ordered(loader.data_sampler)
    if not isinstance(loader, DataLoader):
        return f"{type(loader).__name__} is no torch DataLoader"
    if type(loader).__iter__ not in (_torch_iter, _iter) and not _is_from("accelerate", loader):
        return f"{type(loader).__name__} iterates in its own way"
    if loader.batch_sampler is None:
        return "the loader does not batch (batch_size=None)"
    if isinstance(loader.dataset, IterableDataset):
        return "batches hold one sample: nothing is padded" if loader.batch_size == 1 else None
    batch_sampler: Any = loader.batch_sampler
    while _is_from("accelerate", batch_sampler) and hasattr(batch_sampler, "batch_sampler"):
        batch_sampler = batch_sampler.batch_sampler
    if type(batch_sampler) is not BatchSampler:
        return f"the batch sampler {type(batch_sampler).__name__} is not known and may group samples already"
    if batch_sampler.batch_size == 1:
        return "batches hold one sample: nothing is padded"
    return _why_ordered(batch_sampler.sampler)


def _why_ordered(sampler: Any) -> str | None:
    name = type(sampler).__name__
    if type(sampler) is DistributedSampler:
        return None if sampler.shuffle else f"{name}(shuffle=False) keeps an order"
    if type(sampler) in _RANDOM_SAMPLERS or (_is_from("accelerate", sampler) and isinstance(sampler, RandomSampler)):
        return None
    return f"the order of {name} is not random, or not known to be"


def _is_from(package: str, value: Any) -> bool:
    return type(value).__module__.split(".")[0] == package


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch.accelerator: 2.6
    return bool(accelerator.is_available())


def _with_set_epoch(cls: type[Any]) -> type[Any]:
    return cls if hasattr(cls, "set_epoch") else type(cls.__name__, (LookaheadLoader, cls), {})
