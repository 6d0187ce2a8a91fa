"""Compile the repeated layers of a model in place: one graph for all layers of a tower, for any length.

Every layer gets a ``forward`` of its own that runs the compiled code in training and the eager code under ``no_grad``
and in ``eval()``. Nothing else about the model changes: classes, parameter names, checkpoint keys, hooks. What is
compiled, for which calls, is decided in `_tower.py`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from . import _support
from ._disable import is_disabled
from ._tower import ATTRIBUTES, Backend, Tower, kind_of

_log = logging.getLogger("speedruntime")
_Module = TypeVar("_Module", bound=nn.Module)


def compile_layers(model: _Module, *, backend: Backend = "inductor") -> _Module:
    """Compile each repeated layer of the model in place.

    Call it when the model is complete (LoRA, FP8, freezing) and before DDP, FSDP, DeepSpeed, the optimizer or
    ``Trainer(...)`` take it. Compiling happens at the first training forward; facts known only then (ZeRO-3,
    quantised layers, FSDP's flat parameters, no compiler) keep the layers eager, and one log line says why. So does a
    failure of the compiler: the run goes on in eager mode. ``SPEEDRUNTIME_DISABLE=compile`` leaves the model alone.

    Args:
        model: The module that holds the layers, in any depth: each ``nn.ModuleList`` with two or more children of
            one class and one set of parameter shapes is a tower.
        backend: What ``torch.compile`` takes as backend.

    Returns:
        The same model.

    Example:
        >>> layers = [torch.nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2)]
        >>> model = torch.nn.Sequential(torch.nn.ModuleList(layers))
        >>> keys = list(model.state_dict())
        >>> compile_layers(model) is model and list(model.state_dict()) == keys
        True
    """
    if is_disabled("compile"):
        return model
    reason = _support.compile_blocker()
    towers = [] if reason else list(_find_towers(model, "", set()))
    if not towers:
        _log.warning("compile_layers: off, %s", reason or "no nn.ModuleList with two or more layers of one class")
    for name, layers in towers:
        _attach(Tower(name, layers, backend), layers)
    return model


def _find_towers(module: nn.Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, list[nn.Module]]]:
    for name, child in module.named_children():
        if id(child) in seen:
            continue
        seen.add(id(child))
        layers = _repeated(child) if isinstance(child, nn.ModuleList) else []
        if layers:
            yield prefix + name, layers
        else:
            yield from _find_towers(child, f"{prefix}{name}.", seen)


def _repeated(children: nn.ModuleList) -> list[nn.Module]:
    """Return the children that are layers: same class and same parameter shapes as another child, with parts."""
    layers = [getattr(child, "_checkpoint_wrapped_module", child) for child in children]
    kinds = [(type(layer), tuple(tuple(p.shape) for p in layer.parameters())) for layer in layers]
    repeated = {kind[0] for kind in kinds if kinds.count(kind) > 1 and kind[1]}
    containers = (nn.ModuleList, nn.ModuleDict)
    return [
        layer
        for layer in layers
        if type(layer) in repeated and not isinstance(layer, containers) and next(layer.children(), None) is not None
    ]


def _attach(tower: Tower, layers: Sequence[nn.Module]) -> None:
    if any(isinstance(layer.__dict__.get("forward"), _LayerForward) for layer in layers):
        return
    if any(_is_patched(layer) for layer in layers):
        tower.stay_eager("the layers' forward is patched on the instance")
        return
    for layer in layers:
        layer.__dict__["forward"] = _LayerForward(layer, tower)
        layer.__dict__["_replicate_for_data_parallel"] = _EagerReplica(layer, tower)


def _is_patched(layer: nn.Module) -> bool:
    """Tell whether the layer has a ``forward`` of its own; an unpickled one has its class's, bound."""
    forward = layer.__dict__.get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(layer).forward


class _OnLayer:
    """Something callable that lies in a layer's ``__dict__``; a pickle holds the plain method instead."""

    method = ""

    def __init__(self, layer: nn.Module, tower: Tower) -> None:
        self.layer = layer
        self.tower = tower

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.layer, self.method)

    def __deepcopy__(self, memo: dict[int, Any]) -> _OnLayer:
        return type(self)(copy.deepcopy(self.layer, memo), self.tower)


class _EagerReplica(_OnLayer):
    """Make DataParallel's replicas plain: a replica copies ``__dict__``, and ``forward`` knows the original layer."""

    method = "_replicate_for_data_parallel"

    def __call__(self) -> nn.Module:
        replicate: Callable[[nn.Module], nn.Module] = type(self.layer)._replicate_for_data_parallel
        replica = replicate(self.layer)
        for name in ATTRIBUTES:
            del replica.__dict__[name]
        return replica


class _LayerForward(_OnLayer):
    """The ``forward`` of one layer: compiled in training, eager elsewhere."""

    method = "forward"

    def __init__(self, layer: nn.Module, tower: Tower) -> None:
        super().__init__(layer, tower)
        self.kind: Any = None
        self.drew_random_numbers = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self.layer
        if _support.is_compiling() or not layer.training or self.tower.is_off:
            return type(layer).forward(layer, *args, **kwargs)
        if not torch.is_grad_enabled():
            return self._run_without_grad(args, kwargs)
        if self.drew_random_numbers:
            if _support.in_backward():
                return type(layer).forward(layer, *args, **kwargs)
            self.drew_random_numbers = False
        if self.kind is None:
            self.kind = kind_of(layer)
        return self.tower.run(layer, self.kind, args, kwargs)

    def _run_without_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run eagerly and note whether random numbers were drawn.

        A reentrant checkpoint runs a layer under ``no_grad`` first and recomputes it in the backward. Compiled code
        draws other numbers than eager code, so a layer with dropout has to be recomputed eagerly.
        """
        before = _random_state(self.layer)
        output = type(self.layer).forward(self.layer, *args, **kwargs)
        self.drew_random_numbers = not torch.equal(before, _random_state(self.layer))
        return output


def _random_state(layer: nn.Module) -> torch.Tensor:
    device = next((p.device for p in layer.parameters()), torch.device("cpu"))
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
