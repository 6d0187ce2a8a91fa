"""Tensors that the objects of a forward hold: parameters, buffers and the like, of the size that they are made in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from speedmigrate.facts.axes import REST, Tensor, Value
from speedmigrate.facts.forward_index import Indexing
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument, called_name, own_nodes
from speedmigrate.facts.value import Attr, Cls, Const, Expr, Ext, Func, Inst, Result
from speedmigrate.facts.value import Value as Resolved

# Layers of torch whose `weight` has more than the features: a row for every id or position.
_LOOKED_UP = frozenset({"Embedding", "ParallelEmbedding", "VocabParallelEmbedding"})
_MAX_DEPTH = 6


class Tables(Indexing):
    """Evaluates attributes of objects of the root.

    Attributes:
        making: whether what makes a tensor is read, so that names of its function are followed too.
    """

    making = False

    def _name(self, node: ast.Name) -> Value:
        found = super()._name(node)
        if found is None and self.making:
            return self.shaped(self.at(node))
        return found

    def held(self, node: ast.Attribute) -> Value:
        for owner in self.values.of(self.at(node.value)):
            if isinstance(owner, Inst) and isinstance(owner.of, Cls):
                key = ("held", owner, node.attr)
                if key not in self.read.done:
                    self.read.done[key] = None
                    self.read.done[key] = self.table(owner, owner.of, node.attr)
                if isinstance(self.read.done[key], Tensor):
                    return self.read.done[key]
            if isinstance(owner, Inst) and isinstance(owner.of, Ext) and node.attr == "weight":
                if owner.of.last in _LOOKED_UP:
                    return Tensor((REST,), is_table=True)
        return self.known(node)

    def table(self, owner: Inst, cls: Cls, name: str) -> Value:
        """Return the tensor that an attribute holds, of the size that it is made in."""
        for given in (*self.registered(owner, cls, name), *self.assigned(owner, cls, name)):
            for value in self.values.of(given):
                found = self.tensor_of(value)
                if isinstance(found, Tensor):
                    return found
            if isinstance(given.node, ast.Subscript | ast.BinOp | ast.UnaryOp):
                found = self.made_by(given)
                if isinstance(found, Tensor):
                    return found
        return None

    def registered(self, owner: Inst, cls: Cls, name: str) -> Iterator[Expr]:
        for base in self.values.mro(cls):
            for function in base.node.body if isinstance(base, Cls) else ():
                assert isinstance(base, Cls)
                if not isinstance(function, FunctionNode) or f'"{name}"' not in base.module.text(function).replace(
                    "'", '"'
                ):
                    continue
                for node in own_nodes(function):
                    if isinstance(node, ast.Call) and called_name(node) == "register_buffer":
                        said, given = call_argument(node, 0, "name"), call_argument(node, 1, "tensor")
                        if isinstance(said, ast.Constant) and said.value == name and given is not None:
                            yield Expr(base.module, given, self.values.init_frame(owner, base, function))

    def assigned(self, owner: Inst, cls: Cls, name: str) -> Iterator[Expr]:
        for given, base in self.values.assignments(cls, name):
            if given.function.name == "__init__":
                yield Expr(base.module, given.value, self.values.init_frame(owner, base, given.function))

    def tensor_of(self, value: Resolved) -> Value:
        """Return a tensor for what makes one; its sizes where they are seen."""
        if isinstance(value, Attr) and isinstance(value.of, Inst | Attr):
            return self.tensor_of(value.of)
        if isinstance(value, Result) and isinstance(value.of, Attr | Func):
            return self.made_by(value.call) or self.tensor_of(value.of)
        call = getattr(value, "call", None)
        if not isinstance(call, Expr) or not isinstance(call.node, ast.Call):
            return None
        if not (isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.package == "torch"):
            return None
        is_parameter = value.of.last in {"Parameter", "Buffer"}
        if value.of.name.startswith("torch.nn.") and value.of.last[:1].isupper() and not is_parameter:
            return None
        given = call_argument(call.node, 0, "data") if is_parameter else call.node
        found = self.made_by(call.at(given)) if given is not None else None
        return found or Tensor((REST,), is_table=True)

    def made_by(self, call: Expr) -> Tensor | None:
        """Evaluate an expression that makes a tensor where it stands."""
        if self.depth > _MAX_DEPTH:
            return None
        inner = type(self)(self.read, call.module, call.frame, self.depth + 1)
        inner.making = True
        before = list(self.read.problems)
        found = inner.shaped(call)
        self.read.problems[:] = before
        return replace(found, is_table=found.axes == (REST,)) if isinstance(found, Tensor) else None

    def shaped(self, expr: Expr) -> Value:
        """Evaluate an expression that makes a tensor, names of its function followed."""
        if isinstance(expr.node, ast.Name):
            for value in self.values.of(expr):
                return Tensor(()) if isinstance(value, Const) else self.tensor_of(value)
        return self.eval(expr.node)
