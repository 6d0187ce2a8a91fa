"""What model a run trains, how it is wrapped, and (for a model of the root) whether its forward lets pads be
dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Inst, Item, Result, Unknown, Value
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

# Calls that return the model they are given, wrapped: the position and the name of that argument.
_WRAPPERS = {
    "DistributedDataParallel": "module", "DataParallel": "module", "FullyShardedDataParallel": "module",
    "get_peft_model": "model", "prepare_model_for_kbit_training": "model", "prepare_model_for_int8_training": "model",
    "compile": "model", "initialize": "model", "PeftModel.from_pretrained": "model", "prepare": "model",
    "convert_sync_batchnorm": "module", "BetterTransformer.transform": "model",
}  # fmt: skip
# Methods of a model that give the model back: weights stored in fewer bits, adapters merged.
_RETURNING = frozenset({"quantize", "merge_and_unload", "to_bettertransformer", "reverse_bettertransformer"})
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_DECODERS = (
    "GPT2", "GPTNeo", "GPTJ", "OPT", "Bloom", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Phi", "Falcon",
    "StableLm", "Baichuan", "InternLM", "Starcoder2", "GPTBigCode", "Olmo", "Cohere", "Granite",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """A model: the value that built it and the wrappers around it, outermost first."""

    value: Value
    wrappers: tuple[str, ...]

    @property
    def is_causal_lm(self) -> bool:
        """Whether it is a causal language model of transformers (its loss ignores labels of -100)."""
        if not (isinstance(self.value, Inst) and isinstance(self.value.of, Ext)):
            return False
        parts = self.value.of.name.split(".")
        return parts[0] == "transformers" and any(_is_decoder(part) for part in parts)

    @property
    def is_transformers(self) -> bool:
        return (
            isinstance(self.value, Inst) and isinstance(self.value.of, Ext) and self.value.of.package == "transformers"
        )

    @property
    def name(self) -> str:
        of = self.value.of if isinstance(self.value, Inst) else None
        if isinstance(self.value, Result) and isinstance(self.value.of, Attr):
            of = self.value.of.of if isinstance(self.value.of.of, Cls) else None
        if isinstance(of, Cls):
            return of.node.name
        return of.name if isinstance(of, Ext) else "what is trained"

    @property
    def class_name(self) -> str:
        """The name without what builds it: `BertModel` of `transformers.BertModel.from_pretrained`."""
        parts = [part for part in self.name.split(".") if part[:1].isupper()]
        return parts[-1] if parts else self.name


def _is_decoder(name: str) -> bool:
    """Whether a class of transformers is a decoder whatever its config says (BertLMHeadModel is not)."""
    return name == "AutoModelForCausalLM" or (name.endswith(_CAUSAL) and name.startswith(_DECODERS))


def models(values: Values, expr: Expr) -> tuple[Model, ...]:
    """Return every model that an expression can be."""
    return tuple(dict.fromkeys(model for value in values.of(expr) for model in unwrap(values, value)))


def unwrap(values: Values, value: Value, wrappers: tuple[str, ...] = (), depth: int = 0) -> Iterator[Model]:
    """Yield the models that a value holds under DDP, PEFT, an engine and the like."""
    if depth > 8:
        return
    if isinstance(value, Item) and isinstance(value.of, Inst | Attr):
        yield from unwrap(values, value.of, wrappers, depth + 1)
        return
    if isinstance(value, Attr) and value.name in {"module", "model", "base_model"}:
        yield from unwrap(values, value.of, wrappers, depth + 1)
        return
    if isinstance(value, Result) and isinstance(value.of, Attr) and value.of.name in _RETURNING:
        yield from unwrap(values, value.of.of, wrappers, depth + 1)
        return
    if (
        isinstance(value, Inst)
        and isinstance(value.of, Cls)
        and _is_peft(value.of)
        and isinstance(value.call.node, ast.Call)
    ):
        argument = call_argument(value.call.node, 0, "model")
        if argument is not None:
            for inner in values.of(value.call.at(argument)):
                yield from unwrap(values, inner, (*wrappers, f"peft.{value.of.node.name}"), depth + 1)
            return
    if isinstance(value, Inst) and isinstance(value.of, Ext) and isinstance(value.call.node, ast.Call):
        tail = ".".join(value.of.name.split(".")[-2:])
        name = tail if tail in _WRAPPERS else value.of.last
        if name in _WRAPPERS and value.of.package not in {"transformers"}:
            argument = call_argument(value.call.node, 0, _WRAPPERS[name])
            if argument is not None:
                for inner in values.of(value.call.at(argument)):
                    yield from unwrap(values, inner, (*wrappers, value.of.name), depth + 1)
                return
    yield Model(value, wrappers)


def _is_peft(cls: Cls) -> bool:
    """Whether a class is a model of PEFT, copied into the root as a package of that name."""
    return cls.node.name.startswith("PeftModel") and "peft" in cls.module.path.split("/")[:-1]


def model_classes(values: Values, cls: Cls) -> list[Cls]:
    """Return the class, its bases and the classes of the root that its code builds or calls."""
    found: list[Cls] = []
    queue: list[Cls] = [cls]
    while queue and len(found) < 60:
        current = queue.pop(0)
        if any(current.node is seen.node for seen in found):
            continue
        found.append(current)
        queue += [base for base in values.mro(current) if isinstance(base, Cls)]
        for node in ast.walk(current.node):
            if isinstance(node, ast.Call):
                for callee in values.of(Expr(current.module, node.func, None)):
                    if isinstance(callee, Cls):
                        queue.append(callee)
    return found


def repeated_layers(values: Values, model: Model, place: Expr) -> Iterator[Hop]:
    """Yield why the layers of a model of the root cannot be compiled one by one; nothing where they can."""
    if not (isinstance(model.value, Inst) and isinstance(model.value.of, Cls)):
        where = model.value.hop if isinstance(model.value, Unknown) else None
        yield where or place.hop(f"{model.name} is not a model of transformers or of this repository")
        return
    classes = model_classes(values, model.value.of)
    lists = False
    for cls in classes:
        for node in ast.walk(cls.node):
            if isinstance(node, ast.Call):
                names = {v.last for v in values.of(Expr(cls.module, node.func, None)) if isinstance(v, Ext)}
                lists = lists or "ModuleList" in names
            if isinstance(node, FunctionNode) and node.name == "forward":
                yield from _data_dependent(cls, node)
    if not lists:
        yield model.value.of.module.hop(
            model.value.of.node, f"no nn.ModuleList of repeated layers is seen in {model.name}"
        )


def _data_dependent(cls: Cls, function: FunctionNode) -> Iterator[Hop]:
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            if node.func.attr in {"item", "tolist", "nonzero"}:
                yield cls.module.hop(node, f"{cls.node.name}.forward depends on data: {cls.module.text(node)[:60]}")
