"""The layers of one ``nn.ModuleList``: what of them is compiled, for which calls, and why not.

A call has a *form*: which arguments are tensors, of what dtype, which sizes are 1. Whether a form runs compiled is
settled when it is first seen and stays so, because a checkpointed layer that is recomputed has to take the way it took
before: other tensors would be saved, or other random numbers drawn.
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Union

import torch
from torch import nn

from . import _support

_log = logging.getLogger("speedruntime")
Backend = Union[str, Callable[..., Any]]
MAX_GRAPHS = 2
_AOT_MODULES = ("graph_compile", "jit_compile_runtime_wrappers")  # since torch 2.8, before
ATTRIBUTES = ("forward", "_replicate_for_data_parallel")


class Tower:
    """The layers of one list: their compiled function, the forms it was compiled for, and the decision to do so."""

    def __init__(self, name: str, layers: Sequence[nn.Module], backend: Backend) -> None:
        self.name = name
        self.layers = [weakref.ref(layer) for layer in layers]
        self.title = f"{len(layers)} x {type(layers[0]).__name__} in {name}"
        self.backend = backend
        self.is_off = False
        self.warned: set[str] = set()
        self.num_graphs = 0
        self.max_graphs = MAX_GRAPHS
        self.forms: dict[Any, bool] = {}
        self.compiled: dict[type[nn.Module], Callable[..., Any]] = {}

    def run(self, layer: nn.Module, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        slot = _find_slot(layer, args, kwargs)
        form = (kind, slot and slot.is_empty, _form(args), _form(kwargs))
        is_new = form not in self.forms
        if is_new:
            self.forms[form] = self._admits(layer, slot, args, kwargs)
        if not self.forms[form]:
            return type(layer).forward(layer, *args, **kwargs)
        try:
            with self._compiling() if is_new else contextlib.nullcontext():
                return _call(self._compiled(type(layer)), layer, slot, args, kwargs)
        except Exception as caught:
            if not is_new and not isinstance(caught, torch._dynamo.exc.TorchDynamoException):
                raise
            error = caught
        output = type(layer).forward(layer, *args, **kwargs)
        self.forms[form] = False
        self.max_graphs = self.num_graphs
        self._warn_once(f"eager for {self.title}, the compiler failed: {_first_line(error)}")
        return output

    def stay_eager(self, reason: str) -> None:
        """Take the compiled forwards off again and say why."""
        self.is_off = True
        _log.warning("compile_layers: off for %s, %s", self.title, reason)
        for layer in self._alive():
            for name in ATTRIBUTES:
                if getattr(layer.__dict__.get(name), "tower", None) is self:
                    del layer.__dict__[name]

    def _warn_once(self, message: str) -> None:
        if message not in self.warned:
            self.warned.add(message)
            _log.warning("compile_layers: %s", message)

    def _alive(self) -> list[nn.Module]:
        return [layer for layer in (ref() for ref in self.layers) if layer is not None]

    def _admits(self, layer: nn.Module, slot: _Slot | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not self.forms:
            self._decide(layer)
        tensors = list(_tensors((args, kwargs)))
        if self.is_off or any(0 in tensor.shape for tensor in tensors):
            return False
        if slot is not None and not slot.is_empty:
            self._warn_once(f"eager for {self.title} while it gets a {type(slot.cache).__name__}, see use_cache")
            return False
        num_forms = sum(self.forms.values())
        if num_forms and tensors and tensors[0].shape[:1] == (1,):
            return False  # the odd batch of one at the end of an epoch
        is_trained = any(p.requires_grad for p in layer.parameters())
        if is_trained and len(self.layers) > 2 and not any(tensor.requires_grad for tensor in tensors):
            return False  # only the first layer over a frozen embedding sees this: not worth a graph
        return num_forms < self.max_graphs

    def _decide(self, layer: nn.Module) -> None:
        layers = self._alive() or [layer]
        reason = _support.layers_blocker(layers, self.backend)
        if reason:
            self.stay_eager(reason)
            return
        self.max_graphs = max(MAX_GRAPHS, len({kind_of(each) for each in layers}))

    def _compiled(self, kind: type[nn.Module]) -> Callable[..., Any]:
        if kind not in self.compiled:
            self.compiled[kind] = torch.compile(
                _own_code(kind.forward), dynamic=True, fullgraph=True, backend=self._compile_graph
            )
        return self.compiled[kind]

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        num_graphs, start = self.num_graphs, time.perf_counter()
        with torch._dynamo.config.patch(_support.dynamo_settings()), warnings.catch_warnings():
            # dynamo looks at .grad of the layer's input; where warnings are errors that would end the compilation.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor", category=UserWarning)
            yield
        if self.num_graphs > num_graphs:
            seconds = time.perf_counter() - start
            _log.info("compile_layers: %s, graph %d compiled in %.1f s", self.title, self.num_graphs, seconds)

    def _compile_graph(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        if self.num_graphs >= self.max_graphs:
            self._warn_once(f"{self.title} needs more than {self.max_graphs} graphs, the rest is eager")
            return graph.forward
        from torch._dynamo.backends.registry import lookup_backend

        with _backward_failures() as failures:
            code = lookup_backend(self.backend)(graph, inputs)
        if failures:
            raise RuntimeError(f"the backward failed to compile: {failures[0]}")
        self.num_graphs += 1
        return code


class _Slot(NamedTuple):
    """A layer's place in the key/value cache that a model with ``use_cache=True`` makes even in training."""

    place: int | str
    cache: Any
    index: Any
    is_empty: bool


def _find_slot(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Slot | None:
    named: tuple[tuple[int | str, Any], ...] = (*enumerate(args), *kwargs.items())
    for place, cache in named:
        if "Cache" in type(cache).__name__:
            index = next((m.__dict__["layer_idx"] for m in layer.modules() if "layer_idx" in m.__dict__), None)
            is_known = type(cache).__name__ == "DynamicCache" and index is not None
            return _Slot(place, cache, index, is_known and cache.get_seq_length(index) == 0)
    return None


class _EmptyCache:
    """What a layer sees instead of the cache while it is traced; it keeps ``layer_idx`` out of the graph's guards."""

    def __init__(self) -> None:
        self.updates: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.updates.append((key, value))
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def get_usable_length(self, *_: Any) -> int:
        return 0


@contextlib.contextmanager
def _backward_failures() -> Iterator[list[str]]:
    """Collect failures to compile a backward.

    With dynamic sizes AOTAutograd only logs them, tries again in ``loss.backward()`` and fails the run there
    (`torch/_functorch/_aot_autograd/graph_compile.py`, "suppressing in case backwards not needed").
    """
    failures: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        is_failure = str(record.msg).startswith("failed to eagerly compile backwards")
        if is_failure:
            failures.append(_first_line(record.exc_info[1]) if record.exc_info else str(record.msg))
        return not is_failure

    loggers = [logging.getLogger(f"torch._functorch._aot_autograd.{n}") for n in _AOT_MODULES]
    for logger in loggers:
        logger.addFilter(collect)
    try:
        yield failures
    finally:
        for logger in loggers:
            logger.removeFilter(collect)


def _call(
    compiled: Callable[..., Any], layer: nn.Module, slot: _Slot | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if slot is None:
        return compiled(layer, None, args, kwargs)[0]
    # The compiled code must not see the cache: it would be guarded, layer by layer.
    args = tuple(None if value is slot.cache else value for value in args)
    kwargs = {name: None if value is slot.cache else value for name, value in kwargs.items()}
    output, updates = compiled(layer, slot.place, args, kwargs)
    for key, value in updates:
        slot.cache.update(key, value, slot.index)
    if isinstance(output, tuple):
        return tuple(slot.cache if isinstance(item, _EmptyCache) else item for item in output)
    return output


def _own_code(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Give each tower a code object of its own: dynamo counts recompiles by code object."""

    def layer_forward(layer: nn.Module, place: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if place is None:
            return forward(layer, *args, **kwargs), ()
        cache = _EmptyCache()
        if isinstance(place, str):
            output = forward(layer, *args, **{**kwargs, place: cache})
        else:
            output = forward(layer, *args[:place], cache, *args[place + 1 :], **kwargs)
        return output, cache.updates

    layer_forward.__code__ = layer_forward.__code__.replace()
    return layer_forward


def kind_of(layer: nn.Module) -> Any:
    """Return what dynamo specialises on in a layer and what differs between layers of one class."""
    parameters = tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in layer.named_parameters())
    switches = tuple(
        (name, value)
        for module in layer.modules()
        for name, value in module.__dict__.items()
        if value is None or isinstance(value, (bool, str))
    )
    return hash((type(layer), parameters, switches))


def _form(value: Any) -> Any:
    """Return the part of an argument that decides which graph serves it: all but the sizes above 1."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device, value.requires_grad, tuple(min(size, 2) for size in value.shape)
    if isinstance(value, (tuple, list)):
        return tuple(map(_form, value))
    if isinstance(value, dict):
        return tuple((name, _form(item)) for name, item in value.items())
    if value is None or isinstance(value, (bool, str, float)):
        return value
    return type(value)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _first_line(error: BaseException | None) -> str:
    cause = getattr(error, "inner_exception", error)
    return f"{type(cause).__name__}: {(str(cause).strip().splitlines() or ['?'])[0]}"
