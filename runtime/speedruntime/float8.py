"""Swap the linear layers that gain from it for float8 ones (torchao), and say which stay and why."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, defaultdict
from typing import TypeVar

from torch import nn

from . import _support
from ._disable import is_disabled

_log = logging.getLogger("speedruntime")
_Module = TypeVar("_Module", bound=nn.Module)

_HEADS = {"classification_head", "classifier", "embed_out", "head", "lm_head", "output_layer", "score", "v_head"}
_ROUTERS = {"gate", "gating", "router", "wg"}
_TOWERS = ("audio", "image", "vision", "visual", "vit")


def convert_to_float8(
    model: _Module, *, recipe: str = "rowwise", min_flop_share: float = 0.6, emulate: bool = False
) -> _Module:
    """Swap large ``nn.Linear`` layers for torchao's ``Float8Linear``, in place.

    Call it on the bare model: before ``get_peft_model``, ``compile_layers``, the optimizer and DDP, FSDP or DeepSpeed.
    Parameters and checkpoint keys stay as they are. Stay in high precision: output heads and tied weights, routers and
    experts, LoRA matrices, vision and audio towers, layers with hooks or of a class derived from ``nn.Linear``, sizes
    that are no multiple of 16 and layers too small to gain. Nothing is changed, and one log line says why, where the
    GPU has no float8 (sm_89, MI300), torchao is missing, or too little of the linear work would convert.

    It gains only together with ``compile_layers``, and it trains with fewer bits: first compare the loss of some
    hundred steps with and without (``SPEEDRUNTIME_DISABLE=float8``). A toy model lags by 0.4 at a learning rate of
    1e-3 and is equal to 0.005 at 3e-4.

    Args:
        model: A module with ``nn.Linear`` layers below it.
        recipe: torchao's recipe name: ``"rowwise"``, or ``"tensorwise"``, which is faster, but one outlier spoils a
            whole tensor (error 94 % against 5 %).
        min_flop_share: The part of the FLOPs of all linear layers that has to convert, from 0 to 1.
        emulate: Compute what float8 would, on any device and slowly: for tests. No GPU is asked for, no layer is small.

    Returns:
        The same model.

    Raises:
        ValueError: If torchao knows no such recipe.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 50))
        >>> convert_to_float8(model) is model  # no such GPU: unchanged
        True
    """
    reason = "SPEEDRUNTIME_DISABLE" if is_disabled("float8") else _support.float8_blocker(emulate=emulate)
    reasons = {} if reason else _reasons_against(model, recipe, is_small_kept=not emulate)
    wanted = {name for name, against in reasons.items() if against is None}
    share = _flop_share(model, wanted)
    if reason is None and not wanted:
        reason = f"no linear layer is fit for it: {_summary(reasons)}"
    if reason is None and share < min_flop_share:
        reason = f"{share:.0%} of the linear FLOPs would convert, {min_flop_share:.0%} are needed: {_summary(reasons)}"
    if reason is not None:
        _log.warning("convert_to_float8: off, %s", reason)
        return model
    _swap(model, wanted, recipe, emulate)
    _log.info(
        "convert_to_float8: %d of %d linear layers, %.0f %% of their FLOPs, in float8 (%s); kept: %s",
        *(len(wanted), len(reasons), 100 * share, recipe, _summary(reasons)),
    )
    return model


def _swap(model: nn.Module, wanted: set[str], recipe: str, emulate: bool) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # The weight gradient sums over the tokens of a batch, whose number is rarely a multiple of 16.
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), pad_inner_dim=True, emulate=emulate)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name in wanted)
    converted = {name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"}
    assert converted >= wanted, f"torchao left {sorted(wanted - converted)} as they were"


def _reasons_against(model: nn.Module, recipe: str, *, is_small_kept: bool) -> dict[str, str | None]:
    """Return for each linear layer why it stays as it is, or None where it converts."""
    shared = _shared_parameters(model)
    vocabularies = {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)}
    reasons: dict[str, str | None] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name:
            reasons[name] = (
                _name_reason(name)
                or _module_reason(module)
                or _role_reason(module, shared, vocabularies)
                or (_size_reason(module, recipe) if is_small_kept else None)
            )
    return reasons


def _name_reason(name: str) -> str | None:
    parts = name.lower().split(".")
    if parts[-1] in _HEADS:
        return "an output head"
    if _ROUTERS.intersection(parts) or any(part.startswith("expert") or "router" in part for part in parts):
        return "a router or an expert"
    if any(part.startswith("lora_") for part in parts):
        return "a LoRA matrix"
    if any(word in part for part in parts for word in _TOWERS):
        return "in a vision or audio tower"
    return None


def _module_reason(module: nn.Linear) -> str | None:
    if type(module) is not nn.Linear:
        return f"a {type(module).__name__}, not an nn.Linear"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return "has hooks, which the swap would drop"
    if "forward" in module.__dict__:
        return "has a forward of its own"
    # From the attributes: under DeepSpeed's zero.Init the weight's shape is (0,).
    if module.in_features % 16 or module.out_features % 16:
        return "a size is no multiple of 16"
    return None


def _role_reason(module: nn.Linear, shared: set[int], vocabularies: set[int]) -> str | None:
    if id(module.weight) in shared:
        return "a tied weight"
    return "an output head" if module.out_features in vocabularies else None


def _size_reason(module: nn.Linear, recipe: str) -> str | None:
    """Return whether the matrix is too small to gain, by the sizes of torchao's ``_auto_filter_for_recipe``."""
    num_out, num_in = module.out_features, module.in_features
    if recipe == "tensorwise":
        is_small = num_in <= 4096 and num_out <= 1024
    else:
        is_small = num_out <= 2048 or num_in <= 1024 or (num_out <= 4096 and num_in <= 2048)
    return "too small to gain" if is_small else None


def _shared_parameters(model: nn.Module) -> set[int]:
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    return {parameter for parameter, count in owners.items() if count > 1}


def _flop_share(model: nn.Module, wanted: set[str]) -> float:
    flops = {n: m.in_features * m.out_features for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    return sum(flops[name] for name in wanted) / max(1, sum(flops.values()))


def _summary(reasons: dict[str, str | None]) -> str:
    names = defaultdict(list)
    for name, reason in reasons.items():
        if reason is not None:
            names[reason].append(name)
    return "; ".join(f"{reason}: {len(group)} ({group[0]}, ...)" for reason, group in names.items()) or "none"
