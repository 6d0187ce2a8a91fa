"""The body of a training loop on axes: models under their wrappers, the loss, logging, helpers of the root."""

from __future__ import annotations

import ast
from dataclasses import replace

from speedmigrate.facts.axes import (
    FREE,
    REST,
    Many,
    Output,
    Tensor,
    Value,
    Width,
    has_positions,
    is_tracked,
    join_all,
)
from speedmigrate.facts.batchloops import is_next
from speedmigrate.facts.batchmodels import OPEN, Models
from speedmigrate.facts.batchvalue import OTHER, Batch, batch_of
from speedmigrate.facts.forward_calls import Given
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Attr, Ext, Func, Inst, Item, Result, Unknown

# What shows values and keeps nothing of them.
_SHOWING = frozenset(
    "print info debug warning warn error write set_description set_postfix set_postfix_str log add_scalar add_scalars "
    "log_metrics format print_rank_0 log_dict".split()
)
# Methods of tokenizers that turn ids into text.
_DECODING = frozenset("decode batch_decode convert_ids_to_tokens convert_tokens_to_string".split())
_GATHERING = frozenset(
    "gather gather_for_metrics all_gather all_gather_into_tensor gather_object all_gather_object".split()
)
_NUMBERS = frozenset("builtins.float builtins.int builtins.str builtins.bool builtins.round".split())
_PARTS = frozenset("builtins.list builtins.tuple builtins.dict builtins.iter builtins.reversed".split())
# What stands for a pad value: the tensor has one width on all ranks.
_EVEN = "<across ranks>"
# Libraries that compute with what they are given.
_COMPUTING = frozenset({"torch", "numpy", "math", "scipy", "einops"})
_NO_TENSORS = frozenset(
    "device Generator compile load no_grad inference_mode enable_grad autocast dtype iinfo finfo".split()
)
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript)
_MAX_OUTSIDE = 6


class Loop(Models):
    """Reads a loop's body, and every function of the root that it calls."""

    def call(self, node: ast.Call) -> Value:
        name = called_name(node)
        if isinstance(node.func, ast.Attribute) and name == "backward":
            self.back(node, self.eval(node.args[0] if node.args else node.func.value))
            return None
        if self.read.loader is not None and is_next(self.values, self.at(node), self.read.loader):
            return batch_of(self.read.pads)
        if isinstance(node.func, ast.Attribute) and self.eval(node.func.value) == OTHER:
            if not any(is_tracked(value) for value in self.arguments(node).all):
                return OTHER
        if name in _SHOWING and self.only_shows(node):
            for value in self.arguments(node).all:
                self.shown(value)
            return None
        self.nested(node)
        return super().call(node)

    def only_shows(self, node: ast.Call) -> bool:
        """Whether a call with the name of a logging method is one: of nothing padded, not of torch, not of the root."""
        if isinstance(node.func, ast.Attribute) and isinstance(self.eval(node.func.value), Tensor | Output):
            return False
        callees = self.values.of(self.at(node.func))
        is_outside = any(isinstance(c, Ext) and c.package in _COMPUTING for c in callees)
        return not is_outside and not self.is_layer(node.func)

    def back(self, node: ast.AST, value: Value) -> None:
        """The loss: a number, into which pads did not get through a mean over positions."""
        self.read.backward = True
        if has_positions(value) or not isinstance(value, Tensor):
            if is_tracked(value):
                self.problem(node, "what `backward` gets still has the padded positions")
        elif value.why is not None:
            self.read.problems += [value.why] if value.why not in self.read.problems else []
        else:
            self.shown(value)

    def shown(self, value: Value) -> None:
        """What pads entered is printed, kept or made smaller: it counts them today."""
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Tensor):
                self.read.corrects += [
                    hop for hop in (part.why, part.wrong) if hop is not None and hop not in self.read.corrects
                ]

    def nested(self, node: ast.Call) -> None:
        """Functions that read batch data which they are not given: of this function, or kept in an object."""
        kept = not self.read.inside and any(is_tracked(value) for value in self.read.attributes.values())
        if not kept and not isinstance(node.func, ast.Name):
            return
        for callee in self.values.of(self.at(node.func)):
            if not isinstance(callee, Func):
                continue
            # One that is given batch data is run, on the names of this function too.
            if self.module.scope(callee.node) is self.module.scope(node) and not self.gives_data(node):
                for child in self.closures(callee):
                    self.problem(child, "a nested function reads batch data")
            given = self.arguments(node) if kept and callee.receiver is not None else None
            if given is not None and not any(is_tracked(value) for value in given.all):
                if is_tracked(self.enter(node, callee, given)):
                    self.problem(node, "batch data that an object keeps is returned here")

    def gives_data(self, node: ast.Call) -> bool:
        return any(is_tracked(value) for value in self.arguments(node).all)

    def arguments(self, node: ast.Call) -> Given:
        given = super().arguments(node)
        spread = [self.eval(keyword.value) for keyword in node.keywords if keyword.arg is None]
        starred = [self.eval(a.value) for a in node.args if isinstance(a, ast.Starred)]
        if any(isinstance(value, Batch) for value in starred):
            return self.spread_slots(node, given)
        if any(isinstance(value, Batch) and value.is_open for value in spread):
            return Given(given.args, (*given.words, (OPEN, None)))
        return given

    def spread_slots(self, node: ast.Call, given: Given) -> Given:
        """`model(*batch)`: the slots in their order."""
        found: list[Value] = []
        for argument in node.args:
            value = self.eval(argument.value if isinstance(argument, ast.Starred) else argument)
            if isinstance(argument, ast.Starred) and isinstance(value, Batch):
                last = max((int(name) for name, _ in value.items if name.isdigit()), default=-1)
                found += [value.get(str(slot)) for slot in range(last + 1)]
            else:
                found.append(value)
        return Given(tuple(found), given.words)

    def unknown(self, node: ast.Call, given: Given) -> Value:
        """A loss that already counts pads may go anywhere; that it does is told."""
        for value in given.all:
            if not has_positions(value) and isinstance(value, Tensor) and value.why is None:
                self.shown(value)
        told = [v for v in given.all if has_positions(v) or not isinstance(v, Tensor) or v.why is not None]
        return super().unknown(node, Given(tuple(told), ()))

    not_known = unknown

    def _name(self, node: ast.Name) -> Value:
        found = super()._name(node)
        if found is None and node.id not in self.env and not self.read.inside:
            return self.outer(node)
        return found

    def outer(self, node: ast.Name) -> Value:
        """Return a tensor that is made outside the loop, of the size that it is made in."""
        for value in self.values.of(self.at(node)):
            if isinstance(value, Inst) and isinstance(value.of, Ext) and _makes_tensor(value.of):
                return self.tensor_of(value) or Tensor((REST,), is_table=True)
            if _is_turned(value):
                for binding in reaching(self.module, self.module.scope(node), node.id, node):
                    found = self.computed_outside(binding.value) if binding.value is not None else None
                    return found if isinstance(found, Tensor) else Tensor((REST,), is_table=True)
            if isinstance(value, Unknown):
                for binding in reaching(self.module, self.module.scope(node), node.id, node):
                    if isinstance(binding.value, _COMPUTED) and not binding.unpack:
                        return self.computed_outside(binding.value)
        return None

    def computed_outside(self, node: ast.expr) -> Value:
        made = type(self)(self.read, self.module, self.frame, self.depth + 1)
        made.making = True
        before = list(self.read.problems)
        found = made.eval(node) if self.depth < _MAX_OUTSIDE else None
        self.read.problems[:] = before
        return found

    def _compare(self, node: ast.Compare) -> Value:
        found = super()._compare(node)
        if found is None and not self.read.inside and not all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            if any(isinstance(self.eval(side), Width) for side in (node.left, *node.comparators)):
                self.problem(node, "the padded width is compared")
        return found

    def attribute_of(self, node: ast.Call, callee: Attr, given: Given) -> Value:
        name = callee.name
        if name == "scale" and given.args:
            return given.args[0]
        if name in _DECODING:
            return None
        if name == "generate":
            models = self.wrapped(callee.of)
            if models:
                return join_all([self.generated(node, model, given) for model in models])
        found = self.looked_up(callee, given)
        if found is not None:
            return found
        if name in _GATHERING or name == "pad_across_processes":
            return self.gathered_across(node, name, given)
        if name in {"append", "extend"} and not any(has_positions(value) or _mixed(value) for value in given.all):
            for value in given.all:
                self.shown(value)
            return None
        return super().attribute_of(node, callee, given)

    def gathered_across(self, node: ast.Call, name: str, given: Given) -> Value:
        first = given.args[0] if given.args else None
        if name == "pad_across_processes":
            return replace(first, fill=_EVEN) if isinstance(first, Tensor) else first
        for value in given.all:
            if has_positions(value) and not (isinstance(value, Tensor) and value.fill == _EVEN):
                self.problem(node, "positions are gathered across ranks, whose batches would have other widths")
        return replace(first, fill=None) if isinstance(first, Tensor) else None

    def outside(self, node: ast.Call, callee: Ext, given: Given) -> Value:
        if callee.name in _NUMBERS:
            for value in given.all:
                self.shown(value)
            if not any(has_positions(value) for value in given.all):
                return None
        if callee.name in _PARTS and len(given.args) == 1 and not isinstance(given.args[0], Tensor):
            return given.args[0]
        if callee.name in {"builtins.enumerate", "builtins.zip"} and all(
            isinstance(each, tuple) for each in given.args
        ):
            return super().outside(node, callee, given)
        if callee.name == "builtins.enumerate" and given.args:
            return Many((None, self.element(node, given.args[0])))
        if callee.name == "builtins.map" and len(node.args) == 2 and isinstance(node.args[0], ast.Lambda):
            return self.mapped(node, node.args[0], given.args[1])
        if callee.name == "builtins.zip":
            return Many(tuple(self.element(node, value) for value in given.args))
        if callee.name == "builtins.range":
            if any(isinstance(value, Width) for value in given.args):
                self.problem(node, "a loop over the positions")
            return None
        if callee.last in _GATHERING and callee.name.startswith(("torch.distributed.", "accelerate.")):
            return self.gathered_across(node, callee.last, given)
        if callee.package in {"accelerate", "transformers", "pytorch_lightning"} and callee.last in {
            "send_to_device", "move_data_to_device"
        }:  # fmt: skip
            return given.args[0] if given.args else None
        if callee.package == "torch" and callee.last in {
            "tensor",
            "as_tensor",
            "from_numpy",
            "LongTensor",
            "FloatTensor",
        }:
            return given.args[0] if given.args else None
        return super().outside(node, callee, given)

    def mapped(self, node: ast.Call, function: ast.Lambda, source: Value) -> Value:
        """`map(lambda t: t.to(device), batch)`: slot by slot."""
        name = function.args.args[0].arg if len(function.args.args) == 1 else ""
        if not name or not isinstance(source, tuple | Batch):
            return self.unknown(node, Given((source,), ()))
        parts = source.elements() if isinstance(source, Batch) else [(str(i), part) for i, part in enumerate(source)]
        kept, found = dict(self.env), []
        for key, part in parts:
            self.env[name] = part
            found.append((key, self.eval(function.body)))
        self.env = kept
        is_open = isinstance(source, Batch) and source.is_open
        return Batch(tuple(found), is_open) if isinstance(source, Batch) else tuple(part for _, part in found)

    def element(self, node: ast.AST, value: Value) -> Value:
        """Return what one step over a value gives."""
        if isinstance(value, Many):
            return value.of
        if value == OTHER:
            return value
        if isinstance(value, Tensor) and value.axes[:1] == (FREE,):
            return Tensor(value.axes[1:], fill=value.fill, why=value.why)
        if isinstance(value, Batch):
            return join_all([inner for _, inner in value.elements()])
        if isinstance(value, tuple):
            return join_all(value)
        if is_tracked(value):
            self.problem(node, "a loop over the positions")
        return None

    def method(self, node: ast.Call, name: str, base: Tensor, given: Given) -> Value:
        if name in {"tolist", "numpy"} and not self.read.inside:
            return base
        if name == "item" and not base.is_padded:
            self.shown(base)
            return None
        return super().method(node, name, base, given)

    def is_instance(self, node: ast.Call, value: Value) -> Value:
        if isinstance(value, Batch):
            names = {each.last for each in self.values.of(self.at(node.args[1])) if isinstance(each, Ext)}
            mine = {"tuple", "list"} if value.is_tuple else {"dict", "Mapping", "MutableMapping", "BatchEncoding"}
            return bool(names & mine) if names else None
        return super().is_instance(node, value)

    def length(self, value: Value) -> Value:
        if isinstance(value, Many | Batch):
            return None
        return super().length(value)

    def _yield(self, node: ast.Yield) -> Value:
        if node.value is not None and is_tracked(self.eval(node.value)):
            self.problem(node, "batch data is yielded")
        return None

    def _s_with(self, node: ast.With) -> None:
        for item in node.items:
            self.eval(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, self.scaled(item.context_expr))
        self.block(node.body)

    _s_asyncwith = _s_with

    def scaled(self, node: ast.expr) -> Value:
        """`with amp.scale_loss(loss, optimizer) as scaled`: the loss."""
        if isinstance(node, ast.Call) and called_name(node) == "scale_loss" and node.args:
            return self.eval(node.args[0])
        return None


def _mixed(value: Value) -> bool:
    return isinstance(value, Tensor) and value.why is not None


def _makes_tensor(of: Ext) -> bool:
    """Whether a function makes a tensor or an array (`torch.linspace`, `numpy.ones`)."""
    return of.package in {"torch", "numpy"} and of.name.count(".") == 1 and of.last not in _NO_TENSORS


def _is_turned(value: object) -> bool:
    """Say whether a value is a tensor that torch makes, indexed or put into another shape."""
    found = value
    for _ in range(_MAX_OUTSIDE):
        if isinstance(found, Item | Attr):
            found = found.of
        elif isinstance(found, Result) and isinstance(found.of, Attr):
            found = found.of.of
    return found is not value and isinstance(found, Inst) and isinstance(found.of, Ext) and _makes_tensor(found.of)
