"""Run a training script as it is, one optimizer step at a time, each step when the process that started it says so.

``python stepper.py REPORT_FD PAD_ID SCRIPT FLAG...``. After each optimizer step one JSON line goes to the file
descriptor; then the script waits, at no CPU cost, for one byte on stdin: ``+`` the next step, ``r`` the same after the
peak of memory is reset; the end of stdin ends it. A step lasts from optimizer step to optimizer step, less what
``torch.save`` takes.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


class Recorder:
    """What one step took and trained; `start` and the counts begin anew with each step."""

    def __init__(self, report_fd: int, pad_id: int) -> None:
        self.report_fd = report_fd
        self.pad_id = pad_id
        self.dtype = "unknown"
        self.cost = (0, 0, 0)
        self.begin(0.0)

    def begin(self, start: float) -> None:
        self.start, self.saving = start, 0.0
        self.real = self.slots = self.flops = self.width = 0
        self.loss = torch.tensor(float("nan"))

    def watch(self) -> None:
        """Hook what every script goes through: the model's forward, the loss's backward, the optimizer's step."""
        register_optimizer_step_post_hook(lambda *_: self.on_step())
        backward, save = torch.Tensor.backward, torch.save

        def recorded_backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.loss = loss.detach()
            backward(loss, *args, **kwargs)  # type: ignore[no-untyped-call]

        def recorded_save(*args: Any, **kwargs: Any) -> None:
            before = time.process_time()
            save(*args, **kwargs)
            self.saving += time.process_time() - before

        torch.Tensor.backward = recorded_backward  # type: ignore[method-assign,assignment]
        torch.save = recorded_save

        # A global hook would be in the way of the compiler: it goes once it has seen the model.
        def on_any_forward(module: nn.Module, _: Any) -> None:
            if module.training and torch.is_grad_enabled():
                handle.remove()
                self.on_model(module)
                self.start = time.process_time()

        handle = register_module_forward_pre_hook(on_any_forward)

    def on_model(self, model: nn.Module) -> None:
        """Hook the model's own forward and read what its steps cost."""
        linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        depth = max(len(module) for module in model.modules() if isinstance(module, nn.ModuleList))
        head = linears[-1]
        weights = sum(linear.weight.numel() for linear in linears)
        self.cost = (weights, depth, head.in_features)
        # Not a pre-hook: the first call, which is under way, would not see it.
        model.register_forward_hook(self.on_forward, with_kwargs=True)

        def on_head(*_: Any) -> None:
            handle.remove()
            autocast = torch.is_autocast_enabled("cpu")
            self.dtype = str(torch.get_autocast_dtype("cpu") if autocast else head.weight.dtype).removeprefix("torch.")

        handle = head.register_forward_pre_hook(on_head)

    def on_forward(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], __: Any) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        weights, depth, dim = self.cost
        self.real += int((ids != self.pad_id).sum())
        self.slots += ids.numel()
        self.width = ids.shape[1]
        # Forward and backward as in the usual bounds: no credit for the causal half of the attention.
        self.flops += ids.numel() * (6 * weights + 12 * depth * dim * ids.shape[1])

    def on_step(self) -> None:
        cpu = time.process_time() - self.start - self.saving
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = {
            "cpu_s": cpu,
            "children_s": children.ru_utime + children.ru_stime,
            "real": self.real,
            "slots": self.slots,
            "width": self.width,
            "flops": self.flops,
            "loss": float(self.loss),
            "peak_bytes": peak_bytes(),
            "graphs": num_graphs(),
            "dtype": self.dtype,
        }
        os.write(self.report_fd, (json.dumps(report) + "\n").encode())
        order = os.read(0, 1)
        if not order:
            sys.stdout.flush()
            os._exit(0)
        if order == b"r":
            reset_peak()
        self.begin(time.process_time())


def num_graphs() -> int:
    """Return how many graphs were compiled so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def peak_bytes() -> int:
    """Return the peak of resident memory since the last reset, or since the start where there is none."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM:"))


def reset_peak() -> None:
    """Let the peak start again from what is resident now, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def main() -> None:
    """Run the script under the recorder."""
    report_fd, pad_id, script, *flags = sys.argv[1:]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    Recorder(int(report_fd), int(pad_id)).watch()
    sys.argv = [script, *flags]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
