"""Models that a loop gives batch data to, under their wrappers, and what models of the root use of libraries."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from speedmigrate.facts.axes import (
    FIXED,
    FREE,
    POSITIONS,
    Record,
    Tensor,
    Value,
    Width,
    has_positions,
    join_all,
)
from speedmigrate.facts.batchread import Batches
from speedmigrate.facts.forward_calls import Given
from speedmigrate.facts.forward_layers import called
from speedmigrate.facts.models import Model, models, unwrap
from speedmigrate.facts.pretrained import is_pretrained, pretrained_problems, reads_mask
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.trainer_models import ONE_WIDTH
from speedmigrate.facts.value import Attr, Cls, Ext, Func, Inst, Item, Param, Result
from speedmigrate.facts.value import Value as Resolved

# Stands among the words of a call that gets a batch through `**`: it has other fields too.
OPEN = "**"
# What stands for a field: ids that are generated behind the prompt.
_PROMPT = "<generated>"
# Parameters of transformers that no batch has: their defaults stay.
_SETTINGS = frozenset(
    "past_key_values use_cache output_attentions output_hidden_states return_dict inputs_embeds head_mask "
    "encoder_outputs decoder_head_mask cross_attn_head_mask decoder_inputs_embeds cache_position encoder_hidden_states "
    "encoder_attention_mask".split()
)
_MAKING = frozenset({"from_pretrained", "from_config", "_from_config"})
# Parts of models of transformers that look up a vector for every token.
_LOOKUPS = frozenset("embeddings word_embeddings embed_tokens wte shared".split())
_DECODERS = frozenset({"TransformerDecoder", "TransformerDecoderLayer"})


class Models(Batches):
    """Evaluates calls of models."""

    def invoke(self, node: ast.Call, callee: Resolved, given: Given) -> Value:
        models = self.wrapped(callee)
        if models:
            return join_all([self.run_model(node, model, given) for model in models])
        return super().invoke(node, callee, given)

    def wrapped(self, callee: Resolved) -> list[Model]:
        """Return the models that a callee is: of transformers, or modules of the root, under their wrappers."""
        if isinstance(callee, Attr) and callee.name == "forward":
            callee = callee.of
        if not isinstance(callee, Inst | Item | Attr | Result | Param):
            return []
        found = [model for each in called(self.values, callee) for model in unwrap(self.values, each)]
        made: dict[object, Model] = {}
        for model in found:
            for each in self.read.trained if isinstance(model.value, Param) else self.opened(model):
                value = _made(each.value)
                if isinstance(value, Inst) and (self.is_module(value) or _is_loaded(value)):
                    made.setdefault((value.of, value.call.node), replace(each, value=value))
        return list(made.values())

    def opened(self, model: Model) -> Iterable[Model]:
        """Take the model out of `accelerator.unwrap_model(model)`."""
        value = model.value
        if isinstance(value, Result) and isinstance(value.of, Attr) and value.of.name == "unwrap_model":
            if isinstance(value.call.node, ast.Call) and value.call.node.args:
                return models(self.values, value.call.at(value.call.node.args[0]))
        return (model,)

    def is_module(self, value: Resolved) -> bool:
        bases = self.values.mro(value.of) if isinstance(value, Inst) and isinstance(value.of, Cls) else ()
        outside = [base for base in bases if isinstance(base, Ext)]
        return any(base.last == "Module" or _is_model_class(base) for base in outside)

    def run_model(self, node: ast.Call, model: Model, given: Given) -> Value:
        assert isinstance(model.value, Inst)
        self.gets(model)
        if _is_loaded(model.value):
            return self.pretrained(node, model, given)
        if is_pretrained(self.values, model):
            return self.vendored(node, model, given)
        self.read.inside += 1
        found = self.object(node, model.value, given)
        self.read.inside -= 1
        return found

    def vendored(self, node: ast.Call, model: Model, given: Given) -> Value:
        """A class of the root that is written like those of transformers, its weights loaded."""
        names = [str(value.key) for value in given.all if isinstance(value, Tensor) and value.key is not None]
        names += [word for word, value in given.words if has_positions(value)]
        self.read.problems += [
            hop for hop in pretrained_problems(self.values, model, names) if hop not in self.read.problems
        ]
        if not reads_mask(self.values, model):
            given = Given(given.args, tuple(item for item in given.words if item[0] != "attention_mask"))
        return self.pretrained(node, model, given)

    def gets(self, model: Model) -> None:
        """Note a model that the loop gives batch data to."""
        if not self.read.inside and not any(_same(model, each) for each in self.read.models):
            self.read.models.append(model)

    def enter(self, node: ast.Call, func: Func, given: Given) -> Value:
        """Run a function; what a batch given through `**` may hold beside its per-token fields is not known."""
        receiver = func.receiver
        is_method = receiver is not None and self.is_module(receiver)
        if receiver is not None and is_method:
            self.gets(Model(receiver, ()))
        words = dict(given.words)
        if OPEN in words:
            names = [argument.arg for argument in all_arguments(func.node.args)]
            names = names[1:] if receiver is not None else names
            del words[OPEN]
            for name in names[len(given.args) :]:
                if name not in _SETTINGS:
                    words.setdefault(name, None)
        self.read.inside += is_method
        found = super().enter(node, func, Given(given.args, tuple(words.items())))
        self.read.inside -= is_method
        return found

    def pretrained(self, node: ast.Call, model: Model, given: Given) -> Value:
        if not any(has_positions(value) for value in given.all):
            return None
        if model.class_name.startswith(ONE_WIDTH):
            self.problem(node, f"{model.class_name} is made for one width")
        mask = given.get(1, "attention_mask")
        if any(isinstance(value, Tensor) and FIXED in value.axes for value in given.all):
            self.problem(node, "the model gets a tensor of a fixed size")
        if not self.read.inside:
            self.read.whole = self.read.whole or any(keyword.arg is None for keyword in node.keywords)
            self.read.masked = self.read.masked or (isinstance(mask, Tensor) and mask.is_zero)
        found = super().pretrained(node, model, given)
        if "QuestionAnswering" in model.name:
            what = "its softmax over the positions of a span runs over the pads too today"
            self.correct(node, f"{model.name}: {what}, afterwards over fewer")
            span = Tensor((FREE, POSITIONS))
            return Record((("start_logits", span), ("end_logits", span), ("loss", None)))
        return found

    def generated(self, node: ast.Call, model: Model, given: Given) -> Value:
        """Generation starts from the prompt as it is padded; a decoder gives the prompt back in front."""
        self.gets(model)
        self.pretrained(node, model, given)
        if model.is_transformers and any(word in model.name for word in ("Seq2Seq", "ConditionalGeneration")):
            return None
        return Tensor((FREE, POSITIONS), _PROMPT)

    def index(self, node: ast.Subscript, base: Tensor, parts: list[ast.expr]) -> Value:
        """What follows the prompt is new; where it starts is the padded width."""
        if base.key != _PROMPT:
            return super().index(node, base, parts)
        last = parts[-1]
        lower = self.eval(last.lower) if isinstance(last, ast.Slice) and last.lower is not None else None
        if len(parts) == 2 and isinstance(last, ast.Slice) and last.upper is None and isinstance(lower, Width):
            return None
        if len(parts) == 2:
            self.problem(node, "takes positions by their number")
        return replace(base, axes=base.axes[-1:]) if len(parts) == 1 else None

    def layer(self, node: ast.Call, callee: Inst, given: Given) -> Value:
        if isinstance(callee.of, Ext) and callee.of.last in _DECODERS and callee.of.package == "torch":
            return self.decoder(node, given)
        return super().layer(node, callee, given)

    def decoder(self, node: ast.Call, given: Given) -> Value:
        """`nn.TransformerDecoder(target, memory, ...)`: causal or masked over the target, masked over the memory."""
        target, memory = given.get(0, "tgt"), given.get(1, "memory")
        scores, over_target = given.get(2, "tgt_mask"), given.get(4, "tgt_key_padding_mask")
        over_memory = given.get(5, "memory_key_padding_mask")
        if has_positions(target):
            drops = isinstance(over_target, Tensor) and over_target.reach == "drop"
            self.attended(node, "pads" if drops else scores.reach if isinstance(scores, Tensor) else "")
        if has_positions(memory):
            self.attended(node, "pads" if isinstance(over_memory, Tensor) and over_memory.reach == "drop" else "")
        return target.computed() if isinstance(target, Tensor) else None

    def looked_up(self, callee: Attr, given: Given) -> Tensor | None:
        """`encoder.embeddings(ids)` of a model of transformers: a vector for every token."""
        owner: Resolved = callee
        while isinstance(owner, Attr) and owner.name in _LOOKUPS:
            owner = owner.of
        first = given.args[0] if given.args else given.get(None, "input_ids")
        if owner is not callee and isinstance(first, Tensor) and any(_loaded(m) for m in self.wrapped(owner)):
            return first.computed((*first.axes, FREE))
        return None

    def compared(self, node: ast.Compare, left: Value, right: Value) -> Value:
        """A comparison with a plain number says what it gives at pads, where they hold a plain number too."""
        found = super().compared(node, left, right)
        field, other = (left, right) if isinstance(left, Tensor) else (right, left)
        if isinstance(found, Tensor) and isinstance(field, Tensor) and not isinstance(other, Tensor):
            op = node.ops[0] if isinstance(left, Tensor) else None
            plain = not found.reach and found.fill is None and field.reach == ""
            if plain and _is_false(field.fill, op, other):
                return replace(found, fill=0)
        return found

    def concatenate(self, node: ast.AST, parts: Value, dim: Value) -> Value:
        """`cat((source, target), -1)`: pads stand between two sequences, where a mask finds them again."""
        tensors = [part for part in parts if isinstance(part, Tensor)] if isinstance(parts, tuple) else []
        plain = len(tensors) > 1 and all(each.axes == (FREE, POSITIONS) and each.key is not None for each in tensors)
        if plain and isinstance(parts, tuple) and len(tensors) == len(parts) and dim in (1, -1):
            if (
                len({repr(each.fill) for each in tensors}) == 1
                and tensors[0].fill is not None
                and not self.read.is_left
            ):
                what = (
                    "pads stand between the sequences today and move the positions of the second, afterwards fewer do"
                )
                self.correct(node, what)
                return Tensor((FREE, POSITIONS), fill=tensors[0].fill)
        return super().concatenate(node, parts, dim)


def _is_model_class(base: Ext) -> bool:
    """Whether a class of transformers is a model, by the words that its models end in."""
    ends = ("PreTrainedModel", "Model", "Generation", "Classification", "LM", "Answering", "Choice", "ForPreTraining")
    return base.package == "transformers" and base.last.endswith(ends)


def _made(value: Resolved) -> Resolved:
    """See through `Cls.from_pretrained(...)`: of a class of the root, or from outside it."""
    if isinstance(value, Result) and isinstance(value.of, Attr) and isinstance(value.of.of, Cls):
        return Inst(value.of.of, value.call)
    if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last in _MAKING:
        return Inst(Ext(value.of.name.rpartition(".")[0]), value.call)
    return value


def _is_loaded(value: Inst) -> bool:
    """Whether a model is of transformers, or of a library that loads its models in the same way."""
    call = value.call.node
    loaded = isinstance(call, ast.Call) and called_name(call) in _MAKING
    return isinstance(value.of, Ext) and (value.of.package == "transformers" or loaded)


def _same(one: Model, other: Model) -> bool:
    first, second = one.value, other.value
    return (
        isinstance(first, Inst)
        and isinstance(second, Inst)
        and first.call.node is second.call.node
        and first.of == second.of
    )


def _loaded(model: Model) -> bool:
    return isinstance(model.value, Inst) and _is_loaded(model.value)


def _is_false(fill: object, op: ast.cmpop | None, other: Value) -> bool:
    """Whether comparing a pad with a plain number is known to give False."""
    if not isinstance(fill, int | float) or not isinstance(other, int | float):
        return False
    return bool(
        (isinstance(op, ast.Eq) and fill != other)
        or (isinstance(op, ast.NotEq) and fill == other)
        or (isinstance(op, ast.Gt) and fill <= other)
        or (isinstance(op, ast.GtE) and fill < other)
        or (isinstance(op, ast.Lt) and fill >= other)
        or (isinstance(op, ast.LtE) and fill > other)
    )
