"""Calls of a loop's body: the model, the losses of torch, sums and means, reshapes, helpers of the root."""

from __future__ import annotations

import ast
from dataclasses import replace

from speedmigrate.facts.batchexpr import SAME, Expressions
from speedmigrate.facts.carry import carry
from speedmigrate.facts.models import Model, forward, models
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.tracks import Track, Tracked, is_own, single
from speedmigrate.facts.value import Cls, Const, Expr, Ext, Frame, Func, Inst, Value
from speedmigrate.facts.values import Values

_FREE_CALLS = frozenset({"print", "info", "debug", "warning", "write", "set_description", "log", "set_postfix"})


class Calls(Expressions):
    """Evaluates calls."""

    def call(self, node: ast.Call) -> Tracked:
        if isinstance(node.func, ast.Attribute):
            base = single(self.eval(node.func.value))
            if base is not None:
                return self.method(node, node.func.attr, base)
            if node.func.attr == "backward":
                self.use.backward = True
        callees = self.values.of(Expr(self.module, node.func, self.frame))
        found = self.known(node, callees)
        if found is not NotImplemented:
            return found  # type: ignore[return-value]
        arguments = [self.eval(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        arguments += [self.eval(keyword.value) for keyword in node.keywords]
        if not any(arguments):
            for callee in callees:
                if isinstance(callee, Func) and callee.module is self.module and self.frame == callee.outer:
                    self.closure(callee.node)
            return None
        if self.is_model(node, arguments):
            return self.run_model(node)
        name = called_name(node)
        if name == "len" and len(arguments) == 1:
            only = single(arguments[0])
            return Track("width") if only is not None and only.kind not in {"field", "batch"} else None
        if name in _FREE_CALLS or name == "isinstance":
            return None
        if len(callees) == 1 and isinstance(callees[0], Func) and self.depth < 3:
            return self.inline(node, callees)
        for value in arguments:
            self.touch(value, node)
        return None

    def known(self, node: ast.Call, callees: tuple[Value, ...]) -> object:
        """Evaluate a call of torch that is known by its value, or return NotImplemented."""
        names = {callee.name for callee in callees if isinstance(callee, Ext)}
        losses = {"torch.nn.functional.cross_entropy"}
        if names & losses and len(names) == 1:
            return self.cross_entropy(node, node, 0)
        made = [
            c
            for c in callees
            if isinstance(c, Inst) and isinstance(c.of, Ext) and c.of.name == "torch.nn.CrossEntropyLoss"
        ]
        if made and len(made) == len(callees):
            results = [self.cross_entropy(node, m.call.node, 0) for m in made if isinstance(m.call.node, ast.Call)]
            if len(set(results)) > 1:
                self.problem(node, "the loss is one of several that differ")
            return results[0] if results else NotImplemented
        if names == {"torch.sum"} and node.args:
            return self.total(single(self.eval(node.args[0])), node)
        if names == {"torch.mean"} and node.args:
            self.mean(single(self.eval(node.args[0])), node)
            return None
        return NotImplemented

    def cross_entropy(self, node: ast.Call, options: ast.Call, start: int) -> Track | None:
        target = single(self.eval(node.args[1])) if len(node.args) > 1 else None
        if target is None and (found := call_argument(node, None, "target")) is not None:
            target = single(self.eval(found))
        if node.args:
            self.eval(node.args[0])
        if target is None or target.key is None or target.kind not in {"field", "flat"}:
            self.problem(node, "the target of the loss is not a field of the batch that is followed")
            return None
        self.use.counted.setdefault(target.key, self.module.hop(node, "the loss of every token"))
        if target.cut:
            self.problem(node, "the target loses its last position, which is real once the padding is gone")
        reduction = call_argument(options, None, "reduction")
        how = reduction.value if isinstance(reduction, ast.Constant) else "mean" if reduction is None else None
        ignored = call_argument(options, None, "ignore_index")
        constant = -100 if ignored is None else self.constant(ignored)
        is_ignored = constant is not None and constant == self.pads[target.key].constant
        if constant is None and ignored is not None:
            code = carry(self.values, Expr(self.module, ignored, self.frame), self.loader)
            is_ignored = code is not None and code == self.pads[target.key].code
        if how == "none":
            return Track("losses", target.key, masked=is_ignored)
        if how not in {"mean", "sum"}:
            self.problem(node, "the reduction of the loss is not a plain word")
        elif not is_ignored:
            self.problem(
                node,
                f"pads count in the loss: the target's pads are {self.pads[target.key].constant!r}, "
                f"ignored is {constant!r}",
            )
        return None

    def constant(self, node: ast.expr) -> object:
        value = self.values.one(Expr(self.module, node, self.frame))
        return value.value if isinstance(value, Const) else None

    def total(self, value: Track | None, node: ast.AST) -> Track | None:
        if value is None:
            return None
        if value.kind == "losses":
            if not value.masked:
                self.problem(node, "the losses of pads are added up")
            return Track("total", value.key)
        if value.kind in {"field", "flat", "mask"}:
            if value.kind != "mask" and value.key is not None and self.pads[value.key].constant not in {0}:
                self.problem(node, "pads are added up")
            return Track("count", value.key)
        self.touch(value, node)
        return None

    def mean(self, value: Track | None, node: ast.AST) -> None:
        if value is not None:
            self.problem(node, "the loss is averaged over the padded width")

    def method(self, node: ast.Call, name: str, base: Track) -> Tracked:
        for argument in node.args:
            found = self.eval(argument)
            if isinstance(found, Track) and found.kind not in {"width", "field", "flat"}:
                self.touch(found, node)
        if base.kind == "batch":
            if name in {"to", "cuda", "copy"}:
                return base
            if name in {"pop", "get"} and node.args and isinstance(node.args[0], ast.Constant):
                return self.member(node.args[0].value)  # type: ignore[arg-type]
            if name in {"items", "keys", "values"}:
                return base
        if base.kind == "output" and is_own(base):
            base = replace(base, kind="logits")
        if name in SAME:
            return base
        if name in {"view", "reshape", "flatten"}:
            return self.flatten(node, base)
        if name == "size":
            return self.size(node, base)
        if name in {"numel", "nelement"}:
            return Track("width", base.key)
        if name == "sum":
            return self.total(base, node)
        if name == "mean":
            self.mean(base, node)
            return None
        if name == "dim" or base.kind == "count":
            return None if name == "item" else base
        if name in {"item", "tolist"} and base.kind in {"total"}:
            return None
        self.touch(base, node)
        return None

    def flatten(self, node: ast.Call, base: Track) -> Track | None:
        """`view(-1)`, `view(-1, vocabulary)`, `view(other.size())` keep what belongs together."""
        shapes = [ast.unparse(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "flatten":
            shapes = ["-1"] if base.kind != "logits" else ["-1", "V"] if shapes == ["0", "1"] else shapes
        if base.kind in {"field", "flat"} and shapes == ["-1"]:
            return replace(base, kind="flat")
        if base.kind == "logits" and len(shapes) == 2 and shapes[0] == "-1":
            return base
        if base.kind == "losses" and (shapes == ["-1"] or all(".size" in s or ".shape" in s for s in shapes)):
            return base
        self.problem(node, "is brought to another shape in a way that is not followed")
        return None

    def size(self, node: ast.Call, base: Track) -> Track | None:
        """The number of rows is free, the vocabulary too; anything else is the padded width."""
        which = ast.unparse(node.args[0]) if node.args else ""
        if which == "0" and base.kind in {"field", "logits"}:
            return None
        if which in {"-1", "2"} and base.kind == "logits":
            return None
        return Track("width", "logits" if base.kind == "logits" else base.key, cut=base.kind in {"flat", "losses"})

    def is_model(self, node: ast.Call, arguments: list[Tracked]) -> bool:
        found = self.models_of(node)
        return bool(found) and all(
            isinstance(m.value, Inst) and (m.is_transformers or _is_module(self.values, m.value)) for m in found
        )

    def models_of(self, node: ast.Call) -> tuple[Model, ...]:
        if isinstance(node.func, ast.Name) and node.func.id in self.model_names:
            return self.model_names[node.func.id]
        return models(self.values, Expr(self.module, node.func, self.frame))

    def run_model(self, node: ast.Call) -> Tracked:
        found = self.models_of(node)
        for model in found:
            if model not in self.use.models:
                self.use.models.append(model)
        for keyword in node.keywords:
            if keyword.arg is None and isinstance(self.eval(keyword.value), Track):
                self.use.added_keys = True
        if found[0].is_transformers:
            self.mask_given(node)
            for argument in [*node.args, *(k.value for k in node.keywords if k.arg is not None)]:
                if self.eval(argument) is None and not self.is_plain(argument):
                    self.problem(argument, "the model gets something that is not followed")
            labels = call_argument(node, None, "labels")
            if labels is not None and isinstance(given := self.eval(labels), Track) and given.key is not None:
                self.use.counted.setdefault(given.key, self.module.hop(node, "the labels of the model"))
            return Track("output", model=found[0])
        return self.inside(node, found[0])

    def mask_given(self, node: ast.Call) -> None:
        """Note whether the model gets the batch's own mask; a mask made here would keep the old width."""
        whole = any(k.arg is None and isinstance(self.eval(k.value), Track) for k in node.keywords)
        given = call_argument(node, 1, "attention_mask")
        if given is None:
            self.use.masked = self.use.masked or whole
        elif single(self.eval(given)) is not None and not whole:
            self.use.masked = True
        else:
            self.problem(node, "the attention mask is made in the loop")

    def inside(self, node: ast.Call, model: Model) -> Tracked:
        """Follow the fields that a model of the root gets: those that its loss uses are read there."""
        entered = forward(self.values, model, Expr(self.module, node, self.frame))
        if entered is None:
            self.problem(node, f"{model.name} has no forward that can be read")
            return None
        func, _ = entered
        parameters = [a.arg for a in func.node.args.args[1:]]
        given = {parameters[i]: self.eval(a) for i, a in enumerate(node.args) if i < len(parameters)}
        given |= {k.arg: self.eval(k.value) for k in node.keywords if k.arg is not None}
        targets_given = {n: v for n, v in given.items() if n in {"targets", "labels", "target", "y"} and v is not None}
        if targets_given:
            self.problem(node, "the loss is made inside the model's forward, which is not followed yet")
        return Track("output", model=model)

    def inline(self, node: ast.Call, callees: tuple[Value, ...]) -> Tracked:
        func = callees[0]
        if not isinstance(func, Func) or not isinstance(func.node, FunctionNode):
            return None
        frame = Frame(func, Expr(self.module, node, self.frame), func.receiver)
        inner = type(self)(self.values, self.use, self.pads, self.loader, func.module, frame, self.depth + 1)
        for argument in (*func.node.args.posonlyargs, *func.node.args.args, *func.node.args.kwonlyargs):
            bound = self.values.argument(frame, argument.arg)
            if bound is not None and bound.module is self.module and bound.frame == self.frame:
                inner.env[argument.arg] = self.eval(bound.node)
        inner.block(func.node.body)
        return next((value for value in inner.out if value is not None), None)


def _is_module(values: Values, value: Inst) -> bool:
    """Whether an object is a `torch.nn.Module` of the root."""
    if not isinstance(value.of, Cls):
        return False
    return any(isinstance(base, Ext) and base.last in {"Module", "PreTrainedModel"} for base in values.mro(value.of))
