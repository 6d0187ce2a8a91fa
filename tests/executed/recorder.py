"""Run a training script as it is and write down what it computed.

python recorder.py FILE SCRIPT [ARGUMENT...]

``FILE`` gets, as ``torch.save`` writes it, a dict:

losses: the value that each outermost ``backward`` started from.
gradients, names: all gradients before the first optimizer step as one float vector, by sorted parameter name; before
    clipping, since that happens between ``backward`` and ``step``. None where no parameter kept one (ZeRO).
parameters: name to tensor when the script ended.
batches: each batch that a ``DataLoader`` handed over, as the loop got it.
optimizer: the options of each parameter group at the last step; num_steps: the optimizer steps made.
num_graphs: the graphs that torch.compile made. log: what ``speedruntime`` logged.

Under torchrun each rank writes its own file, with the rank in its name.
"""

from __future__ import annotations

import gc
import logging
import os
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader


class Recorder:
    """What one run computed, filled by the hooks below."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.batches: list[Any] = []
        self.log: list[str] = []
        self.optimizer: list[dict[str, Any]] = []
        self.gradients: torch.Tensor | None = None
        self.names: list[str] = []
        self.model: nn.Module | None = None
        self.num_steps = 0

    def on_backward(self) -> None:
        """Keep the gradients; those of the last backward before the first step stay."""
        if self.num_steps:
            return
        self.model = self.model or _trained_module()
        found = {} if self.model is None else _parameters(self.model)
        gradients = {name: p.grad for name, p in sorted(found.items()) if p.grad is not None}
        self.names = list(gradients)
        if gradients:
            self.gradients = torch.cat([gradient.detach().float().flatten() for gradient in gradients.values()])

    def on_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Count the step and keep the options that it is made with."""
        self.num_steps += 1
        groups = optimizer.param_groups
        self.optimizer = [{key: value for key, value in group.items() if key != "params"} for group in groups]

    def save(self, path: Path) -> None:
        """Write everything down."""
        state = {key: value for key, value in vars(self).items() if key != "model"}
        parameters = {} if self.model is None else _parameters(self.model)
        state["parameters"] = {name: parameter.detach().cpu() for name, parameter in parameters.items()}
        dynamo = sys.modules.get("torch._dynamo.utils")
        state["num_graphs"] = dynamo.counters["stats"]["unique_graphs"] if dynamo else 0
        torch.save(state, path)


def _trained_module() -> nn.Module | None:
    """Find the innermost module that holds every parameter with a gradient: the model without its wrappers."""
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    sizes = [(sum(p.grad is not None for p in m.parameters()), -len(list(m.modules()))) for m in modules]
    best = max(range(len(modules)), key=sizes.__getitem__, default=None)
    return None if best is None or not sizes[best][0] else modules[best]


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def _record_losses(recorder: Recorder) -> None:
    backward = torch.autograd.backward
    depth = 0

    def recorded(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if not depth:
            loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
            recorder.losses.append(float(loss.detach()))
        # Reentrant gradient checkpointing calls `backward` inside `backward`.
        depth += 1
        try:
            backward(tensors, *args, **kwargs)
        finally:
            depth -= 1
        if not depth:
            recorder.on_backward()

    torch.autograd.backward = recorded  # `Tensor.backward` calls it by this name


def _record_batches(recorder: Recorder) -> None:
    """Record what loaders hand over.

    A look-ahead loader fetches uncollated samples with a loader of its own: these are left out, the batches made of
    them are kept. speedruntime takes `DataLoader.__iter__` as it finds it, so it is imported after the change.
    """
    iterate = DataLoader.__iter__

    def recorded(self: DataLoader[Any]) -> Iterator[Any]:
        raw = getattr(self.collate_fn, "__name__", "") == "keep_samples"
        return iterate(self) if raw else _kept(iterate(self), recorder.batches)

    DataLoader.__iter__ = recorded  # type: ignore[assignment,method-assign]
    try:
        from speedruntime import _lookahead
    except ImportError:
        return
    regrouped = _lookahead._regrouped
    _lookahead._regrouped = lambda loader, regroup: _kept(regrouped(loader, regroup), recorder.batches)


def _kept(batches: Iterator[Any], into: list[Any]) -> Iterator[Any]:
    for batch in batches:
        into.append(_copy(batch))
        yield batch


def _copy(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.detach().clone()
    if isinstance(batch, Mapping):
        return {key: _copy(value) for key, value in batch.items()}
    return [_copy(value) for value in batch] if isinstance(batch, (list, tuple)) else batch


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
    _record_losses(recorder)
    _record_batches(recorder)
    register_optimizer_step_pre_hook(recorder.on_step)
    log = logging.getLogger("speedruntime")
    log.addHandler(_Keep(recorder.log))
    log.setLevel(logging.INFO)
    sys.argv = arguments[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        recorder.save(path)


if __name__ == "__main__":
    main(sys.argv[1:])
