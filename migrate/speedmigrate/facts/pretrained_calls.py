"""What a model that is loaded ready calls with values that have the padded width in them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from speedmigrate.facts.models import unwrap
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.syntax import call_argument, called_name, method_of
from speedmigrate.facts.value import (
    PARTIAL,
    Attr,
    Cls,
    Const,
    Display,
    Expr,
    Ext,
    Frame,
    Func,
    Inst,
    Item,
    Param,
    Result,
    Unknown,
    Value,
)
from speedmigrate.facts.values import Values
from speedmigrate.facts.wide import Wide

Enter = Callable[[Func, frozenset[str], Expr | None], None]
# Methods and functions that keep positions apart; a shape that they are given is looked at by itself.
FREE = frozenset(
    "transpose permute contiguous chunk split unbind unsqueeze squeeze expand repeat repeat_interleave to float "
    "type_as type half bfloat16 dim numel item masked_fill masked_fill_ masked_scatter matmul add mul div sub pow "
    "rsqrt sqrt exp log sigmoid tanh silu gelu relu dropout embedding linear layer_norm rms_norm neg abs clamp "
    "square where zeros_like ones_like full_like items values append extend get keys detach clone size stack "
    "outer cos sin polar ones zeros full triu tril tril_ arange bmm baddbmm expand_as reshape_as view_as long int "
    "bool eq ne lt gt le ge logical_or logical_and new_ones new_zeros new_full new_tensor tolist index cpu cuda "
    "numpy fill_ unsqueeze_ argmax einsum rearrange tensor finfo is_grad_enabled all any requires_grad_ "
    "index_select cumsum update copy rotate_half pop nonzero isinstance hasattr getattr len range zip enumerate "
    "tuple list dict print format str max min warning_once info warning device broadcast_to softmax log_softmax "
    "logsumexp norm normalize cross_entropy CrossEntropyLoss binary_cross_entropy_with_logits masked_select "
    "scaled_dot_product_attention checkpoint get_usable_length get_seq_length to_legacy_cache from_legacy_cache t "
    "ValueError zeros_ sub_ add_ mul_ view_as_complex view_as_real flatten data_ptr topk set sorted".split()
)
# Packages whose functions take sequences of any length.
_OPEN = frozenset(
    {
        "transformers",
        "flash_attn",
        "xformers",
        "math",
        "einops",
        "einops_exts",
        "peft",
        "logging",
        "builtins",
        "apex",
        "os",
    }
)
_LAYERS = frozenset(
    "Linear Embedding LayerNorm RMSNorm Dropout GELU SiLU ReLU Tanh Sigmoid Mish LeakyReLU Identity Softmax "
    "CrossEntropyLoss Linear8bitLt "
    "Linear4bit BCEWithLogitsLoss MSELoss".split()
)
_EMBEDDINGS = frozenset({"get_input_embeddings", "get_output_embeddings", "get_base_model"})
_CONTAINERS = frozenset({"ModuleList", "Sequential"})


class Calls(Wide):
    """Follows calls: `enter` is told what of the root is called, and which of its parameters have the width in them."""

    def __init__(self, values: Values, enter: Enter, frame: Frame, names: frozenset[str]) -> None:
        self.values, self.enter, self.frame = values, enter, frame
        super().__init__(frame.func, names)

    def why_callee(self, node: ast.Call) -> str:
        """Follow functions, methods and layers of the root; those of libraries must take any length."""
        if isinstance(node.func, ast.Call) and called_name(node.func) in _EMBEDDINGS:
            return ""
        if self.is_super(node.func):
            return "" if self.follow_super(node) else "this call is not known to keep positions apart"
        found = [v for c in self.values.of(Expr(self.module, node.func, self.frame)) for v in _opened(self.values, c)]
        known = [value for value in found if not _is_setter(value)]
        if known and all(self.follow(value, node) for value in known):
            return ""
        return "this call is not known to keep positions apart"

    def follow(self, value: Value, node: ast.Call) -> bool:
        if isinstance(value, Func):
            if value.module.parents.get(value.node) is not None and self._is_inner(value):
                return True
            call = (
                Expr(self.module, node, self.frame) if value.receiver is None and node in self.module.parents else None
            )
            self.enter(value, self.parameters(value, node), call)
            return True
        if isinstance(value, Cls):
            return not any(self.values.method(value, name) for name in ("forward", "__call__"))
        if isinstance(value, Inst) and isinstance(value.of, Cls):
            method = self.values.method(value.of, "forward") or self.values.method(value.of, "__call__")
            if method is None:
                return any(isinstance(b, Ext) and b.package in _OPEN for b in self.values.mro(value.of))
            self.enter(Func(method.module, method.node, value, method.outer), self.parameters(method, node), None)
            return True
        if isinstance(value, Inst) and isinstance(value.of, Ext):
            if value.of.last == "Linear" and any(map(_is_turned, node.args)):
                return False  # a layer over the positions
            return value.of.package in _OPEN or value.of.last in _LAYERS | _EMBEDDINGS
        if isinstance(value, Ext):
            return value.package in _OPEN or value.last in FREE or value.name == "torch.gather"
        if isinstance(value, Item):
            return isinstance(value.of, Ext) and value.of.package in _OPEN
        if isinstance(value, Result):
            return isinstance(value.of, Attr) and value.of.name in _EMBEDDINGS | FREE
        if isinstance(value, Param):
            return self.follow_argument(value, node)
        if isinstance(value, Attr):
            return self._is_library(value) or value.name in FREE or self.follow_method(value, node)
        return isinstance(value, Const) and value.value is None

    @staticmethod
    def is_super(func: ast.expr) -> bool:
        return (
            isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call) and called_name(func.value) == "super"
        )

    def follow_super(self, node: ast.Call) -> bool:
        """Follow `super().forward(...)` to the next class that has it."""
        receiver, owner = self.func.receiver, self.module.parents.get(self.func.node)
        assert isinstance(node.func, ast.Attribute)
        if not (isinstance(receiver, Inst) and isinstance(receiver.of, Cls)):
            return False
        bases = self.values.mro(receiver.of)
        own = [i for i, base in enumerate(bases) if isinstance(base, Cls) and base.node is owner]
        for base in bases[own[0] + 1 :] if own else ():
            if isinstance(base, Ext):
                return base.package in _OPEN
            method = method_of(base.node, node.func.attr)
            if method is not None:
                return self.follow(Func(base.module, method, receiver, base.outer), node)
        return False

    def follow_method(self, value: Attr, node: ast.Call) -> bool:
        """Follow a method of a model of the root that is reached through PEFT, which has it under `model`."""
        owners = [model.value for model in unwrap(self.values, value.of)]
        known = [owner for owner in owners if not _is_setter(owner)]
        return bool(known) and all(self._has_method(owner, value, node, 0) for owner in known)

    def _has_method(self, owner: Value, value: Attr, node: ast.Call, depth: int) -> bool:
        if not (isinstance(owner, Inst) and isinstance(owner.of, Cls)) or depth > 2:
            return False
        method = self.values.method(owner.of, value.name)
        if method is not None:
            return self.follow(Func(method.module, method.node, owner, method.outer), node)
        inner = [v for v in self.values.attribute(owner, "model", value.expr) if not _is_setter(v)]
        return bool(inner) and all(self._has_method(v, value, node, depth + 1) for v in inner)

    def follow_argument(self, value: Param, node: ast.Call) -> bool:
        """Follow the layer that `custom_forward(layer)`, defined in here, is given and calls."""
        func = value.func.node
        if not isinstance(func, FunctionNode) or not self._is_inner(value.func):
            return False
        names = [argument.arg for argument in func.args.args]
        given: list[Value] = []
        for call in self.nodes:
            if isinstance(call, ast.Call) and called_name(call) == func.name and value.name in names:
                argument = call_argument(call, names.index(value.name), value.name)
                if argument is None:
                    return False
                given += self.values.of(Expr(self.module, argument, self.frame))
        found = [inner for each in given for inner in _opened(self.values, each)]
        if func.name in self.checkpointed():
            return bool(found)
        return bool(found) and all(not isinstance(v, Param) and self.follow(v, node) for v in found)

    def checkpointed(self) -> set[str]:
        """Return the functions in here that wrap what `checkpoint` calls, which is followed from there."""
        calls = [n for n in self.nodes if isinstance(n, ast.Call) and called_name(n) == "checkpoint" and n.args]
        return {called_name(call.args[0]) for call in calls if isinstance(call.args[0], ast.Call)}

    def _is_inner(self, value: Func) -> bool:
        return any(parent is self.func.node for parent in value.module.ancestors(value.node))

    def _is_library(self, value: Attr) -> bool:
        """Whether a method is one of a model of a library, or that a class of the root has from one."""
        of = value.of
        while isinstance(of, Attr):
            of = of.of
        if isinstance(of, Inst) and isinstance(of.of, Cls):
            return any(isinstance(b, Ext) and b.package in _OPEN for b in self.values.mro(of.of))
        return isinstance(of, Inst) and isinstance(of.of, Ext) and of.of.package in _OPEN

    def parameters(self, func: Func, node: ast.Call) -> frozenset[str]:
        """Return the parameters that get a value with the padded width in it."""
        named = [a.arg for a in (*func.node.args.posonlyargs, *func.node.args.args)]
        if isinstance(func.module.parents.get(func.node), ast.ClassDef) and named[:1] in (["self"], ["cls"]):
            named = named[1:]
        found = {k.arg for k in node.keywords if k.arg is not None and self.is_wide(k.value)}
        found |= {named[i] for i, a in enumerate(node.args) if i < len(named) and self.is_wide(a)}
        spread = [a for a in node.args if isinstance(a, ast.Starred)] + [k for k in node.keywords if k.arg is None]
        if any(self.is_wide(part) for part in spread):
            found |= {argument.arg for argument in all_arguments(func.node.args)} - {"self"}
        return frozenset(found)

    def enter_arguments(self, node: ast.Call) -> None:
        """`checkpoint(layer, hidden, ...)` calls its first argument, or the layer that `wrapped(layer)` calls, with the
        rest."""
        if called_name(node) != "checkpoint" or not node.args:
            return
        first = node.args[0]
        rest = [k for k in node.keywords if k.arg not in {"use_reentrant"}]
        for layer in first.args if isinstance(first, ast.Call) else [first]:
            for callee in self.values.of(Expr(self.module, layer, self.frame)):
                for value in _opened(self.values, callee):
                    self.follow(value, ast.Call(layer, node.args[1:], rest))


def _is_turned(node: ast.expr) -> bool:
    """Whether an argument comes straight out of a transposition, so that its last axis may be the positions."""
    if isinstance(node, ast.Call):
        return called_name(node) in {"transpose", "permute", "swapaxes", "t"}
    return isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}


def _opened(values: Values, value: Value) -> Iterator[Value]:
    """Open the elements of a list of layers to the layers, and models under PEFT."""
    if isinstance(value, Inst | Item):
        for model in unwrap(values, value):
            yield from _loaded(values, model.value)
    else:
        yield from _loaded(values, value)


def _loaded(values: Values, value: Value) -> Iterator[Value]:
    """Open `Cls.from_pretrained(...)` to an object of the class, `skip_init(Layer, ...)` to one of the layer, and a
    list of layers to the layers."""
    if isinstance(value, Result) and isinstance(value.of, Attr) and isinstance(value.of.of, Cls):
        yield Inst(value.of.of, value.call)
    elif isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last == "skip_init":
        call = value.call.node
        for made in values.of(value.call.at(call.args[0])) if isinstance(call, ast.Call) and call.args else ():
            yield Inst(made, value.call) if isinstance(made, Cls | Ext) else value
    elif isinstance(value, Result) and isinstance(value.of, Inst) and value.of.of == PARTIAL:
        call = value.of.call.node
        for made in values.of(value.of.call.at(call.args[0])) if isinstance(call, ast.Call) and call.args else ():
            yield Inst(made, value.call) if isinstance(made, Cls | Ext) else value
    elif isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last in _CONTAINERS:
        yield from _elements(values, value.call)
    else:
        yield value


def _elements(values: Values, made: Expr) -> Iterator[Value]:
    """Yield the layers that a list of layers is made of."""
    arguments = made.node.args if isinstance(made.node, ast.Call) else []
    found = [value for argument in arguments for value in _members(values, made.at(argument))]
    yield from found or [Unknown("its layers are not seen", made.hop(made.text[:40]))]


def _members(values: Values, expr: Expr) -> Iterator[Value]:
    node = expr.node
    if isinstance(node, ast.Starred):
        yield from _members(values, expr.at(node.value))
    elif isinstance(node, ast.ListComp | ast.GeneratorExp):
        yield from _members(values, expr.at(node.elt))
    elif isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _members(values, expr.at(element))
    else:
        for value in values.of(expr):
            members = values.elements(value, expr) if isinstance(value, Display) else [value]
            for member in members:
                yield from _loaded(values, member)


def _is_setter(value: Value) -> bool:
    """Whether a value is what `set_input_embeddings(new)` and the like put there, or the value itself."""
    while isinstance(value, Attr):
        value = value.of
    if isinstance(value, Param):
        return isinstance(value.func.node, FunctionNode) and value.func.node.name.startswith("set_")
    return isinstance(value, Unknown) and value.reason == "it depends on itself"
