"""Whether a collate only stacks the rows."""

from __future__ import annotations

import ast

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import PARTIAL, Cls, Expr, Ext, Func, Inst, Value
from speedmigrate.facts.values import Values

# Collates of torch and transformers that only stack: rows of one length in, rows of one length out.
STACKING = frozenset({"default_data_collator", "torch_default_data_collator", "default_collate"})
_STACKS = frozenset({"torch.stack", "torch.utils.data.default_collate", "torch.utils.data.dataloader.default_collate"})
_FREE = frozenset(
    "builtins.zip builtins.list builtins.tuple builtins.dict builtins.map torch.tensor torch.LongTensor".split()
)


def stacks(values: Values, value: Value) -> bool:
    """Say whether a collate only stacks the fields of the rows."""
    if isinstance(value, Ext):
        return value.last in STACKING
    func = function_of(values, value)
    if func is None or not isinstance(func.node, FunctionNode):
        return False
    found = False
    for node in own_nodes(func.node):
        if isinstance(node, ast.For | ast.While | ast.If | ast.BinOp | ast.AugAssign):
            return False
        if isinstance(node, ast.Call):
            names = {v.name for v in values.of(Expr(func.module, node.func, None)) if isinstance(v, Ext)}
            if len(names) != 1 or not names <= _STACKS | _FREE:
                return False
            found = found or names <= _STACKS
    return found


def function_of(values: Values, value: Value) -> Func | None:
    """Return the function of the root that a collate runs: itself, of its class, or under `partial`."""
    if isinstance(value, Func):
        return value
    if isinstance(value, Inst) and isinstance(value.of, Cls):
        method = values.method(value.of, "__call__") or values.method(value.of, "torch_call")
        return None if method is None else Func(method.module, method.node, value, method.outer)
    if isinstance(value, Inst) and value.of == PARTIAL and isinstance(value.call.node, ast.Call):
        for inner in values.of(value.call.at(value.call.node.args[0])) if value.call.node.args else ():
            return function_of(values, inner)
    return None
