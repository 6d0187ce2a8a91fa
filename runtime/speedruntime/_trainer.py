"""What is set on a constructed HF ``Trainer`` for its training batches alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def use_train_collator(trainer: Any, collate_fn: Callable[[Any], Any]) -> None:
    """Make an HF ``Trainer`` collate its training batches with ``collate_fn``; evaluation keeps ``data_collator``.

    Args:
        trainer: a constructed ``Trainer``; its ``get_train_dataloader`` is wrapped, overridden or not.
        collate_fn: makes a training batch of a list of samples.

    Example:
        >>> from types import SimpleNamespace
        >>> trainer = SimpleNamespace(data_collator=len, get_train_dataloader=lambda: trainer.data_collator)
        >>> use_train_collator(trainer, max)
        >>> trainer.get_train_dataloader(), trainer.data_collator
        (<built-in function max>, <built-in function len>)
    """
    trainer.get_train_dataloader = partial(_collating, trainer, trainer.get_train_dataloader, collate_fn)


def _collating(trainer: Any, get_train_dataloader: Callable[[], Any], collate_fn: Callable[[Any], Any]) -> Any:
    before, trainer.data_collator = trainer.data_collator, collate_fn
    try:
        return get_train_dataloader()
    finally:
        trainer.data_collator = before
