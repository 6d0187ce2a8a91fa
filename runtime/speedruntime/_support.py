"""What this machine, this torch and these layers can do: the only place with version checks.

Each ``*_blocker`` returns the reason why a feature has to stay off, or None.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

_QUANTISED_PACKAGES = {
    "aqlm", "auto_gptq", "autoawq", "awq", "bitsandbytes", "eetq", "gptqmodel", "hqq", "optimum", "quanto", "vptq",
}  # fmt: skip
_QUANTISED_CLASSES = {"Linear4bit", "Linear8bitLt", "QuantLinear", "BitLinear", "WQLinear", "WQLinear_GEMM"}


def torch_version() -> tuple[int, int]:
    """Return (major, minor) of the torch that is imported."""
    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)


def has_load_state_dict_hook(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the optimizer has ``register_load_state_dict_post_hook`` (torch 2.2)."""
    return hasattr(optimizer, "register_load_state_dict_post_hook")


def shares_graphs() -> bool:
    """Tell whether dynamo makes one graph for all modules of a class (torch 2.5) instead of one per module."""
    return torch_version() >= (2, 5)


def is_compiling() -> bool:
    """Tell whether this code is being traced by dynamo, ``torch.jit`` or export."""
    if hasattr(getattr(torch, "compiler", None), "is_compiling"):
        return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return torch._dynamo.is_compiling() or torch._C._get_tracing_state() is not None  # torch < 2.2


def in_backward() -> bool:
    """Tell whether autograd is running a backward now, as it is when a checkpoint recomputes.

    A torch that cannot say (2.0) is taken to be in one: the caller then stays eager.
    """
    task_id = getattr(torch._C, "_current_graph_task_id", None)
    return task_id is None or task_id() != -1


def dynamo_settings() -> dict[str, Any]:
    """Return the dynamo settings under which a layer is compiled, those that this torch has.

    DDP's splitter would cut one layer into several graphs, though DDP overlaps between the layers already. A float
    that dynamo first takes for dynamic makes it enter the backend twice (seen with 2.13).
    """
    wanted = {"optimize_ddp": False, "specialize_float": True}
    return {name: value for name, value in wanted.items() if hasattr(torch._dynamo.config, name)}


def compile_blocker() -> str | None:
    """Return why this torch cannot compile at all."""
    if torch_version() < (2, 0):
        return f"torch {torch.__version__} has no torch.compile (2.0 is needed)"
    if sys.version_info >= (3, 12) and torch_version() < (2, 4):
        return f"torch {torch.__version__} cannot compile on Python {sys.version_info[0]}.{sys.version_info[1]}"
    return None


def float8_blocker(*, emulate: bool) -> str | None:
    """Return why this machine cannot train in float8; emulation only needs torchao."""
    if not emulate and not _has_float8_gpu():
        return "float8 needs a GPU of sm_89 or later, or an MI300"
    if importlib.util.find_spec("torchao") is None:
        return "torchao is not installed (pip install 'speedmigrate[fp8]')"
    try:
        importlib.import_module("torchao.float8")
    except Exception as error:  # a torchao made for another torch fails in many ways
        return f"this torchao does not go with torch {torch.__version__}: {type(error).__name__}: {error}"
    return None


def _has_float8_gpu() -> bool:
    if not torch.cuda.is_available():
        return False
    if torch.version.hip:
        return torch.cuda.get_device_properties(0).gcnArchName.startswith(("gfx94", "gfx95"))
    return torch.cuda.get_device_capability() >= (8, 9)


def layers_blocker(layers: Sequence[nn.Module], backend: Any) -> str | None:
    """Return why these layers have to stay eager, from what is known at their first training forward."""
    parameters = [p for layer in layers for p in layer.parameters()]
    return (
        _sharding_blocker(layers, parameters)
        or _quantisation_blocker(layers)
        or _device_blocker({p.device for p in parameters}, backend)
    )


def _sharding_blocker(layers: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> str | None:
    if any(hasattr(p, "ds_id") or hasattr(p, "ds_status") for p in parameters):
        return "DeepSpeed ZeRO-3 partitions the parameters"
    if not parameters or any(getattr(m, "_is_fsdp_managed_module", False) for layer in layers for m in layer.modules()):
        return "FSDP flattens the parameters (fully_shard, FSDP2, would not)"
    return None


def _quantisation_blocker(layers: Sequence[nn.Module]) -> str | None:
    for module in (m for layer in layers for m in layer.modules()):
        package = type(module).__module__.split(".")[0]
        if package in _QUANTISED_PACKAGES or type(module).__name__ in _QUANTISED_CLASSES:
            return f"the layers are quantised ({type(module).__module__}.{type(module).__name__})"
    return None


def _device_blocker(devices: set[torch.device], backend: Any) -> str | None:
    if len(devices) > 1:
        return f"the layers lie on several devices ({', '.join(sorted(map(str, devices)))})"
    device = next(iter(devices))
    if device.type not in ("cpu", "cuda", "xpu"):
        return f"device type {device.type!r} is not one that torch.compile serves here"
    return _inductor_blocker(device) if backend == "inductor" else None


def _inductor_blocker(device: torch.device) -> str | None:
    if device.type == "cpu":
        names = ("cl",) if sys.platform == "win32" else (os.environ.get("CXX", "g++"), "g++", "clang++", "c++")
        return None if any(map(shutil.which, names)) else f"no C++ compiler was found ({', '.join(names)})"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (7, 0):
        return "the GPU is older than sm_70, which triton needs"
    return None
