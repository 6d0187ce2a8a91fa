"""Calls of a forward on axes: functions and modules of the root, layers, models of transformers."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from speedmigrate.facts.axes import (
    FREE,
    NOTHING,
    POSITIONS,
    Many,
    Nothing,
    Output,
    Record,
    Tensor,
    Value,
    Width,
    has_positions,
    is_tracked,
    join_all,
    runs,
)
from speedmigrate.facts.dynamic_parts import opened
from speedmigrate.facts.forward_layers import CONTAINERS, called, members
from speedmigrate.facts.forward_loss import LOSSES, Losses
from speedmigrate.facts.forward_ops import MAKERS, SAME
from speedmigrate.facts.models import Model
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Func, Inst, Item, Result
from speedmigrate.facts.value import Value as Resolved

# Layers that work on each position by itself, by the libraries that have them.
_LAYERS = frozenset(
    "Linear Embedding LayerNorm RMSNorm Dropout GELU SiLU ReLU Tanh Sigmoid Mish LeakyReLU Identity Softplus ELU "
    "ColumnParallelLinear RowParallelLinear ParallelEmbedding VocabParallelEmbedding FusedRMSNorm FusedLayerNorm "
    "MixedFusedRMSNorm MergedLinear LlamaRMSNorm T5LayerNorm Linear8bitLt Linear4bit DropPath NewGELUActivation".split()
)
_LIBRARIES = frozenset("torch fairscale apex loralib bitsandbytes transformers timm megatron".split())
_EMBEDDINGS = frozenset({"Embedding", "ParallelEmbedding", "VocabParallelEmbedding"})
_LOGGING = frozenset({"warn", "info", "debug", "warning"})
_RUNS_ITS_ARGUMENT = frozenset({"torch.utils.checkpoint.checkpoint", "deepspeed.checkpointing.checkpoint"})
_KEPT_FOR_BACKWARD = frozenset({"save_for_backward", "mark_dirty", "mark_non_differentiable"})
# Parts of models of transformers that work on each position, or move the tokens one to the right.
_TOKENWISE = frozenset({"lm_head", "_shift_right"})
# Models of transformers whose positions are relative, or counted by the mask.
_RELATIVE = (
    "Llama", "Mistral", "Mixtral", "Qwen", "Gemma", "Phi", "Falcon", "GPTJ", "GPTNeoX", "OPT", "Bloom", "Roberta",
    "XLMRoberta", "T5", "MT5", "UMT5", "StableLm", "Olmo", "Cohere", "Granite", "Starcoder2", "Baichuan", "InternLM",
)  # fmt: skip
_HEADS = ("ForSequenceClassification", "ForMultipleChoice", "ForNextSentencePrediction")


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of a call, evaluated."""

    args: tuple[Value, ...]
    words: tuple[tuple[str, Value], ...]

    def get(self, position: int | None, name: str) -> Value:
        """Return an argument by name or position, Nothing where it is not given."""
        for word, value in self.words:
            if word == name:
                return value
        return self.args[position] if position is not None and position < len(self.args) else NOTHING

    @property
    def all(self) -> tuple[Value, ...]:
        return (*self.args, *(value for _, value in self.words))


class Calls(Losses):
    """Evaluates calls; `forward_run.py` runs the functions."""

    def function(self, func: Func, given: dict[str, Value], call: Expr) -> Value:
        raise NotImplementedError

    def arguments(self, node: ast.Call) -> Given:
        args: list[Value] = []
        for argument in node.args:
            value = self.eval(argument)
            if not isinstance(argument, ast.Starred):
                args.append(value)
            elif isinstance(value, tuple):
                args += value
            else:
                args.append(value.of if isinstance(value, Many) else value)
        words: list[tuple[str, Value]] = []
        for keyword in node.keywords:
            value = self.eval(keyword.value)
            if keyword.arg is not None:
                words.append((keyword.arg, value))
            elif isinstance(value, Record):
                words += value.items
            elif is_tracked(value):
                self.problem(keyword.value, "padded values are handed on in a way that is not followed")
        return Given(tuple(args), tuple(words))

    def call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            base = self.eval(node.func.value)
            if isinstance(base, Tensor) and (base.is_padded or base.axes != ("*",) or base.reach):
                return self.method(node, node.func.attr, base, self.arguments(node))
            if isinstance(base, tuple | Many | Record | Nothing) or (
                base is None and isinstance(node.func.value, ast.Name)
            ):
                found = self.of_list(node, node.func.value, node.func.attr, base)
                if found is not NotImplemented:
                    return found  # type: ignore[return-value]
        given = self.arguments(node)
        name = called_name(node)
        plain = name if isinstance(node.func, ast.Name) else ""
        if plain == "isinstance" and len(node.args) == 2:
            return self.is_instance(node, given.args[0])
        if plain == "len" and len(given.args) == 1:
            return self.length(given.args[0])
        if plain == "list" and not node.args:
            return ()
        if plain == "print" or (name in _LOGGING and not self.is_layer(node.func)):
            return None
        if name not in MAKERS and not any(is_tracked(value) or isinstance(value, Tensor) for value in given.all):
            return None
        held = [
            each for found in self.values.of(self.at(node.func)) for each in opened(self.values, found, self.read.parts)
        ]
        known = [each for callee in held for each in self.read.built(callee)]
        callees = [each for callee in known for found in called(self.values, callee) for each in self.read.built(found)]
        return join_all(
            [self.invoke(node, callee, given) for callee in self.possible(node, list(dict.fromkeys(callees)))]
        )

    def is_layer(self, func: ast.expr) -> bool:
        """Say whether what is called is made by the model: a layer may be called like a method of a logger."""
        return any(isinstance(value, Inst | Cls | Func) for value in self.values.of(self.at(func)))

    def possible(self, node: ast.Call, callees: list[Resolved]) -> list[Resolved]:
        """Return what of several callees a call can be."""
        return callees

    def of_list(self, node: ast.Call, owner: ast.expr, name: str, base: Value) -> object:
        """Methods of lists, shapes and dicts."""
        if name in {"append", "extend", "insert"} and isinstance(owner, ast.Name):
            given = self.arguments(node).args
            value = given[-1] if given else None
            before = [base.of] if isinstance(base, Many) else list(base) if isinstance(base, tuple) else []
            if name == "extend" and isinstance(value, tuple | Many):
                value = value.of if isinstance(value, Many) else join_all(value)
            self.kept(node, owner.id, value)
            if is_tracked(value) or before:
                self.env[owner.id] = Many(join_all([*before, value]))
            return None
        if isinstance(base, Record) and name in {"get", "pop"}:
            given = self.arguments(node).args
            return base.get(str(given[0])) if given else None
        if isinstance(base, Record) and name == "items":
            return tuple((key, value) for key, value in base.items)
        if isinstance(base, Record) and name in {"keys", "values"}:
            return tuple(key if name == "keys" else value for key, value in base.items)
        if isinstance(base, tuple) and name == "numel":
            return Width(None, times=True) if any(isinstance(part, Width) for part in base) else None
        return NotImplemented

    def kept(self, node: ast.AST, name: str, value: Value) -> None:
        """Padded values in a list or dict that is not made here stand beside those of other batches."""
        if self.env.get(name) is None and has_positions(value):
            self.problem(node, f"padded values are kept in `{name}` beside those of other batches")

    def is_instance(self, node: ast.Call, value: Value) -> Value:
        names = {each.last for each in self.values.of(self.at(node.args[1])) if isinstance(each, Ext)}
        if isinstance(value, str):
            return "str" in names if names else None
        if isinstance(value, Tensor):
            return "Tensor" in names if names else None
        if isinstance(value, tuple):
            return bool(names & {"tuple", "list"}) if names else None
        return None

    def length(self, value: Value) -> Value:
        if isinstance(value, Tensor):
            return Width() if value.axes and runs(value.axes[0]) else None
        return len(value) if isinstance(value, tuple) else None

    def invoke(self, node: ast.Call, callee: Resolved, given: Given) -> Value:
        if isinstance(callee, Func):
            return self.enter(node, callee, given)
        if isinstance(callee, Ext):
            return self.outside(node, callee, given)
        if isinstance(callee, Cls):
            return Record(given.words) if not given.args else self.unknown(node, given)
        if isinstance(callee, Inst):
            return self.object(node, callee, given)
        if isinstance(callee, Item) and isinstance(callee.of, Ext) and callee.of.last == "ACT2FN":
            return given.args[0].computed() if isinstance(given.args[0], Tensor) else None
        if isinstance(callee, Attr):
            return self.attribute_of(node, callee, given)
        return self.unknown(node, given)

    def unknown(self, node: ast.Call, given: Given) -> Value:
        if any(is_tracked(value) for value in given.all):
            self.problem(node, "this call is not known to keep positions apart")
        return None

    def attribute_of(self, node: ast.Call, callee: Attr, given: Given) -> Value:
        """`super().forward(...)`, and the parts of a class of transformers that the root extends."""
        owner = callee.of
        frame = self.frame
        if callee.name in _KEPT_FOR_BACKWARD | SAME:
            return None
        if callee.name in {"view_as", "expand_as", "reshape_as"} and given.args and isinstance(given.args[0], Tensor):
            return Tensor(given.args[0].axes)
        if isinstance(owner, Result) and owner.of == Ext("builtins.super") and frame is not None:
            found = self.above(callee.name)
            if found is not None:
                return self.enter(node, found, given)
        if isinstance(owner, Cls) and callee.name == "apply":
            method = self.values.method(owner, "forward")
            if method is not None:  # `torch.autograd.Function`: its backward is the derivative of its forward
                bound = Func(method.module, method.node, Inst(owner, self.at(node)), method.outer)
                return self.enter(node, bound, given)
        if isinstance(owner, Inst) and isinstance(owner.of, Cls):
            for base in self.values.mro(owner.of):
                if isinstance(base, Ext) and base.package == "transformers":
                    first = given.args[0] if given.args else None
                    if callee.name in _TOKENWISE and isinstance(first, Tensor):
                        return first.computed()
                    return self.pretrained(node, Model(Inst(base, owner.call), ()), given)
        return self.unknown(node, given)

    def above(self, name: str) -> Func | None:
        """Return the method of a base that `super().name` is."""
        assert self.frame is not None
        receiver = self.frame.receiver
        here = self.module.parents.get(self.frame.func.node)
        if not (isinstance(receiver, Inst) and isinstance(receiver.of, Cls)):
            return None
        passed = False
        for base in self.values.mro(receiver.of):
            if isinstance(base, Cls):
                for method in base.node.body if passed else ():
                    if isinstance(method, FunctionNode) and method.name == name:
                        return Func(base.module, method, receiver, base.outer)
                passed = passed or base.node is here
        return None

    def enter(self, node: ast.Call, func: Func, given: Given) -> Value:
        """Bind the arguments to the parameters and run the function."""
        arguments = func.node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        names = names[1:] if func.receiver is not None and names else names
        bound: dict[str, Value] = dict(zip(names, given.args, strict=False))
        if len(given.args) > len(names) and arguments.vararg is not None:
            bound[arguments.vararg.arg] = given.args[len(names) :]
        others = []
        known = {*names, *(argument.arg for argument in arguments.kwonlyargs)}
        for word, value in given.words:
            if word in known:
                bound[word] = value
            else:
                others.append((word, value))
        if others and arguments.kwarg is not None:
            bound[arguments.kwarg.arg] = Record(tuple(others))
        return self.function(func, bound, self.at(node))

    def object(self, node: ast.Call, callee: Inst, given: Given) -> Value:
        """A module, or a loss, that is called."""
        if isinstance(callee.of, Cls):
            for name in ("forward", "__call__"):
                method = self.values.method(callee.of, name)
                if method is not None:
                    return self.enter(node, Func(method.module, method.node, callee, method.outer), given)
            for base in self.values.mro(callee.of):
                if isinstance(base, Ext) and base.package == "transformers":
                    return self.pretrained(node, Model(Inst(base, callee.call), ()), given)
                if isinstance(base, Ext):
                    return self.layer(node, Inst(base, callee.call), given)
            return self.unknown(node, given)
        if callee.of.last in LOSSES:
            return self.loss(node, callee.of.last, given, callee.call)
        return self.layer(node, callee, given)

    def layer(self, node: ast.Call, callee: Inst, given: Given) -> Value:
        assert isinstance(callee.of, Ext)
        name, first = callee.of.last, given.args[0] if given.args else NOTHING
        if callee.of.package == "transformers" and name not in _LAYERS:
            return self.pretrained(node, Model(callee, ()), given)
        if name == "Softmax" or name == "LogSoftmax":
            return self.softmax(node, first, self.option(callee, 0, "dim"))
        if name in CONTAINERS:
            return self.sequence(node, callee, given)
        if name == "Flatten" and isinstance(first, Tensor):
            return self.flatten(node, first, 1, -1)
        if name in {"MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer"}:
            return self.attention_layer(node, name, callee, given)
        if name not in _LAYERS or callee.of.package not in _LIBRARIES or not isinstance(first, Tensor):
            return self.unknown(node, given)
        if name in _EMBEDDINGS:
            return first.computed((*first.axes, FREE))
        shape = callee.call.node.args[0] if isinstance(callee.call.node, ast.Call) and callee.call.node.args else None
        if name == "LayerNorm" and isinstance(shape, ast.List | ast.Tuple) and len(shape.elts) > 1:
            self.problem(node, "normalises over the positions")
        if first.axes and runs(first.axes[-1]) and name not in {"Dropout", "Identity"} and _mixes(name):
            self.problem(node, "a layer over the positions")
            return None
        if name in {"Dropout", "Identity"}:
            return first
        return first.computed()

    def option(self, callee: Inst, position: int, name: str) -> Value:
        """Return a plain argument of the call that built a layer or loss."""
        call = callee.call.node
        if not isinstance(call, ast.Call):
            return NOTHING
        for keyword in call.keywords:
            if keyword.arg == name:
                return self.constant(callee.call.at(keyword.value))
        return self.constant(callee.call.at(call.args[position])) if position < len(call.args) else NOTHING

    def sequence(self, node: ast.Call, callee: Inst, given: Given) -> Value:
        value: Value = given.args[0] if given.args else None
        for expr in members(self.values, callee):
            found = [each for v in self.values.of(expr) for each in called(self.values, v)]
            value = join_all([self.invoke(node, each, Given((value,), ())) for each in found])
        return value

    def pretrained(self, node: ast.Call, model: Model, given: Given) -> Value:
        """A model of transformers: pads are masked, out of reach of a decoder, or attended."""
        mask = given.get(1, "attention_mask")
        tokens = given.get(0, "input_ids")
        if not isinstance(tokens, Tensor):
            tokens = next((value for value in given.all if isinstance(value, Tensor) and value.is_padded), NOTHING)
        labels = given.get(None, "labels")
        if isinstance(labels, Tensor) and labels.key is not None and labels.is_padded:
            self.count(node, labels, -100)
        if isinstance(mask, Tensor) and mask.is_zero:
            self.mention(node, f"{model.class_name} gets the mask, which leaves pads out")
        elif model.is_causal_lm and not self.read.is_left:
            self.mention(node, f"{model.class_name} is causal: right pads do not reach earlier positions")
        else:
            self.correct(node, f"{model.class_name} attends to the pads today, and no longer")
        if (
            self.read.is_left
            and not model.class_name.startswith(_RELATIVE)
            and not is_tracked(given.get(None, "position_ids"))
        ):
            self.correct(node, "positions may be counted from the pads on today, and from the first token after")
        self.apart(node, tokens)
        why = tokens.why if isinstance(tokens, Tensor) else None
        if model.class_name.endswith(_HEADS):
            return Record((("logits", None), ("loss", None)))
        return Output(model, Tensor((FREE, POSITIONS, FREE), why=why), not isinstance(labels, Nothing))

    def outside(self, node: ast.Call, callee: Ext, given: Given) -> Value:
        if callee.name in _RUNS_ITS_ARGUMENT and node.args:
            rest = Given(given.args[1:], tuple((word, v) for word, v in given.words if word != "use_reentrant"))
            found = [each for v in self.values.of(self.at(node.args[0])) for each in called(self.values, v)]
            return join_all([self.invoke(node, each, rest) for each in found])
        if callee.last in LOSSES and callee.package == "torch":
            return self.loss(node, callee.last, given, None)
        return self.torch(node, callee, given)


def _mixes(name: str) -> bool:
    return name not in {"GELU", "SiLU", "ReLU", "Tanh", "Sigmoid", "Mish", "LeakyReLU", "Softplus", "ELU"}
