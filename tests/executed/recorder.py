"""Run a training script as it is and write down what it computed.

python recorder.py FILE SCRIPT [ARGUMENT...]

``FILE`` gets, as ``torch.save`` writes it, a dict:

losses: the value that each outermost ``backward`` started from.
gradients, names: all gradients before the first optimizer step as one float vector, by sorted parameter name; before
    clipping, since that happens between ``backward`` and ``step``. None where no parameter kept one (ZeRO).
parameters: name to tensor when the script ended.
batches: each batch that a ``DataLoader`` handed over, as the loop got it.
calls: the arguments of each outermost forward of the trained model that gradients follow, by parameter name, however
    the loop came by them; of its parts, where the loop calls these one by one.
optimizer: the options of each parameter group at the last step; num_steps: the optimizer steps made.
num_graphs: the graphs that torch.compile made. log: what ``speedruntime`` logged.

Under torchrun each rank writes its own file, with the rank in its name.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader


class Recorder:
    """What one run computed, filled by the hooks below."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.batches: list[Any] = []
        self.called: list[tuple[nn.Module, dict[str, Any]]] = []
        self.log: list[str] = []
        self.optimizer: list[dict[str, Any]] = []
        self.gradients: torch.Tensor | None = None
        self.names: list[str] = []
        self.model: nn.Module | None = None
        self.num_steps = 0

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The arguments of each outermost forward of the trained model."""
        return [arguments for _, arguments in self.called]

    def on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of a call that may turn out to be one of the trained model."""
        if not torch.is_grad_enabled() or next(module.parameters(), None) is None:
            return
        if self.model is None or _related(module, self.model):
            self.called.append((module, _bound(module, args, kwargs)))

    def on_backward(self) -> None:
        """Keep the gradients; those of the last backward before the first step stay."""
        if self.num_steps:
            return
        self.model = self.model or self._trained()
        found = {} if self.model is None else _parameters(self.model)
        gradients = {name: p.grad for name, p in sorted(found.items()) if p.grad is not None}
        self.names = list(gradients)
        if gradients:
            self.gradients = torch.cat([gradient.detach().float().flatten() for gradient in gradients.values()])

    def _trained(self) -> nn.Module | None:
        model = _trained_module([module for module, _ in self.called])
        if model is not None:
            self.called = [call for call in self.called if _related(call[0], model)]
        return model

    def on_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Count the step and keep the options that it is made with."""
        self.num_steps += 1
        groups = optimizer.param_groups
        self.optimizer = [{key: value for key, value in group.items() if key != "params"} for group in groups]

    def save(self, path: Path) -> None:
        """Write everything down."""
        state = {key: value for key, value in vars(self).items() if key not in ("model", "called")}
        state["calls"] = self.calls
        parameters = {} if self.model is None else _parameters(self.model)
        state["parameters"] = {name: parameter.detach().cpu() for name, parameter in parameters.items()}
        dynamo = sys.modules.get("torch._dynamo.utils")
        state["num_graphs"] = dynamo.counters["stats"]["unique_graphs"] if dynamo else 0
        torch.save(state, path)


def _trained_module(called: Iterable[nn.Module]) -> nn.Module | None:
    """Find the innermost module that holds every parameter with a gradient: the model without its wrappers."""
    trained = {id(p) for module in called for p in module.parameters() if p.grad is not None}
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    sizes = [(sum(id(p) in trained for p in m.parameters()), -len(list(m.modules()))) for m in modules]
    best = max(range(len(modules)), key=sizes.__getitem__, default=None)
    return None if best is None or not sizes[best][0] else modules[best]


def _related(one: nn.Module, other: nn.Module) -> bool:
    """Say whether one of the modules holds the other."""
    return any(part is other for part in one.modules()) or any(part is one for part in other.modules())


def _bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names that its forward gives them; those without a name are numbered."""
    arguments = {}
    for name, value in inspect.signature(module.forward).bind(*args, **kwargs).arguments.items():
        kind = inspect.signature(module.forward).parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            arguments.update({str(at): each for at, each in enumerate(value)})
        else:
            arguments[name] = value
    return {name: _copy(value) for name, value in arguments.items()}


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record what this process trains on."""
    with ExitStack() as stack:
        backward, call = torch.autograd.backward, nn.Module.__call__
        # `Tensor.backward` calls it by this name
        stack.enter_context(patch.object(torch.autograd, "backward", _recorded_backward(recorder, backward, call)))
        stack.enter_context(patch.object(nn.Module, "__call__", _recorded_call(recorder, call)))
        _record_batches(recorder, stack)
        stack.callback(register_optimizer_step_pre_hook(recorder.on_step).remove)
        yield


def _recorded_backward(recorder: Recorder, backward: Any, call: Any) -> Any:
    depth = 0

    def recorded(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if not depth:
            loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
            recorder.losses.append(float(loss.detach()))
        # Reentrant gradient checkpointing calls `backward` and layers inside `backward`.
        depth += 1
        try:
            with patch.object(nn.Module, "__call__", call):
                backward(tensors, *args, **kwargs)
        finally:
            depth -= 1
        if not depth:
            recorder.on_backward()

    return recorded


def _recorded_call(recorder: Recorder, call: Any) -> Any:
    """Record a call; the calls inside it are plain, which torch.compile needs to see."""

    def recorded(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with patch.object(nn.Module, "__call__", call):
            recorder.on_call(module, args, kwargs)
            return call(module, *args, **kwargs)

    return recorded


def _record_batches(recorder: Recorder, stack: ExitStack) -> None:
    """Record what loaders hand over.

    A look-ahead loader fetches uncollated samples with a loader of its own: these are left out, the batches made of
    them are kept. speedruntime takes `DataLoader.__iter__` as it finds it, so it is imported after the change.
    """
    iterate = DataLoader.__iter__

    def recorded(self: DataLoader[Any]) -> Iterator[Any]:
        raw = getattr(self.collate_fn, "__name__", "") == "keep_samples"
        return iterate(self) if raw else _kept(iterate(self), recorder.batches)

    stack.enter_context(patch.object(DataLoader, "__iter__", recorded))
    try:
        from speedruntime import _lookahead
    except ImportError:
        return
    regrouped = _lookahead._regrouped

    def kept(loader: Any, regroup: Any) -> Iterator[Any]:
        return _kept(regrouped(loader, regroup), recorder.batches)

    stack.enter_context(patch.object(_lookahead, "_regrouped", kept))


def _kept(batches: Iterator[Any], into: list[Any]) -> Iterator[Any]:
    for batch in batches:
        into.append(_copy(batch))
        yield batch


def _copy(value: Any) -> Any:
    """Return a value as it is now; of what is neither tensor, container nor plain value the name of its type."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _copy(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        return _copy(value.tolist())
    return value if isinstance(value, (str, int, float, type(None))) else type(value).__name__


class _Keep(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__()
        self.into = into

    def emit(self, record: logging.LogRecord) -> None:
        self.into.append(record.getMessage())


def main(arguments: list[str]) -> None:
    """Run the script under the hooks; its end, whatever it is, is this process's end."""
    path, script = Path(arguments[0]), arguments[1]
    if "RANK" in os.environ:
        path = path.with_suffix(f".{os.environ['RANK']}{path.suffix}")
    recorder = Recorder()
    log = logging.getLogger("speedruntime")
    log.addHandler(_Keep(recorder.log))
    log.setLevel(logging.INFO)
    sys.argv = arguments[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        with recording(recorder):
            runpy.run_path(script, run_name="__main__")
    finally:
        recorder.save(path)


if __name__ == "__main__":
    main(sys.argv[1:])
