"""Keep a fused optimizer fused when it resumes from an older checkpoint."""

from __future__ import annotations

import functools
import logging
from typing import Any, TypeVar

import torch

from . import _support

_log = logging.getLogger("speedruntime")
_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def keep_fused(optimizer: _Optimizer) -> _Optimizer:
    """Restore ``fused=True`` in every parameter group after each ``load_state_dict``.

    ``load_state_dict`` takes ``fused`` and ``foreach`` from the checkpoint, so a run resumed from a checkpoint that
    was written before the migration silently goes back to the slow step. The object and its class stay as they are.

    Args:
        optimizer: A torch optimizer made with ``fused=True``. One that is not fused is left alone, with one log line.

    Returns:
        The same optimizer.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = keep_fused(torch.optim.AdamW([weight], fused=True))
        >>> state = optimizer.state_dict()
        >>> state["param_groups"][0]["fused"] = None
        >>> optimizer.load_state_dict(state)
        >>> optimizer.param_groups[0]["fused"]
        True
    """
    if not all(group.get("fused") for group in optimizer.param_groups):
        _log.info("keep_fused: %s was not made with fused=True, nothing to keep", type(optimizer).__name__)
        return optimizer
    if _support.has_load_state_dict_hook(optimizer):
        optimizer.register_load_state_dict_post_hook(_restore_fused)
    else:
        _wrap_load_state_dict(optimizer)
    return optimizer


def _wrap_load_state_dict(optimizer: torch.optim.Optimizer) -> None:
    load = optimizer.load_state_dict

    @functools.wraps(load)
    def load_state_dict(*args: Any, **kwargs: Any) -> None:
        load(*args, **kwargs)
        _restore_fused(optimizer)

    optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]  # torch < 2.2 has no hook


def _restore_fused(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            # The unfused step count lies on the CPU; the fused kernel wants it beside the parameter.
            if step is not None:
                step = torch.as_tensor(step, dtype=torch.float32, device=parameter.device)
                optimizer.state[parameter]["step"] = step
