"""What a collate does with the rows: only stacks them, or pads each batch to its own longest row."""

from __future__ import annotations

import ast

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument, called_name, own_nodes
from speedmigrate.facts.value import PARTIAL, Cls, Const, Expr, Ext, Func, Inst, Value
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

# Collates of torch and transformers that only stack: rows of one length in, rows of one length out.
STACKING = frozenset({"default_data_collator", "torch_default_data_collator", "default_collate"})
# Collators of transformers and TRL that pad to the longest row of the batch unless they are told otherwise.
_DYNAMIC = frozenset(
    "DataCollatorWithPadding DataCollatorForSeq2Seq DataCollatorForLanguageModeling DataCollatorForTokenClassification "
    "DataCollatorForCompletionOnlyLM DataCollatorWithFlattening DPODataCollatorWithPadding "
    "RewardDataCollatorWithPadding DataCollatorForWholeWordMask DataCollatorForPreference PaddingCollator".split()
)
_STACKS = frozenset({"torch.stack", "torch.utils.data.default_collate", "torch.utils.data.dataloader.default_collate"})
_FREE = frozenset(
    "builtins.zip builtins.list builtins.tuple builtins.dict builtins.map torch.tensor torch.LongTensor".split()
)


def stacks(values: Values, value: Value) -> bool:
    """Say whether a collate only stacks the fields of the rows."""
    if isinstance(value, Ext):
        return value.last in STACKING
    func = _function(values, value)
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


def pads_to_longest(values: Values, value: Value) -> Hop | None:
    """Return the place where a collate pads each batch to its own longest row, where it is seen to."""
    if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last in _DYNAMIC:
        call = value.call.node
        padding = call_argument(call, None, "padding") if isinstance(call, ast.Call) else None
        constant = values.one(value.call.at(padding)) if padding is not None else Const(True, value.call)
        if isinstance(constant, Const) and constant.value in {True, "longest"}:
            return value.call.hop(f"{value.of.last} pads each batch to its longest row")
        return None
    func = _function(values, value)
    return None if func is None else _padding_place(values, func, 0)


def _padding_place(values: Values, func: Func, depth: int) -> Hop | None:
    """Find `pad_sequence`, `tokenizer.pad` or a width that is the maximum over the batch in a function."""
    if _is_static(func):
        return None
    for node in own_nodes(func.node):
        if not isinstance(node, ast.Call):
            continue
        name = called_name(node)
        padding = call_argument(node, None, "padding")
        plain = padding is None or (isinstance(padding, ast.Constant) and padding.value in {True, "longest"})
        if name == "pad_sequence" or (name == "pad" and plain and call_argument(node, None, "max_length") is None):
            return func.module.hop(node, f"each batch is padded here: {func.module.text(node)[:50]}")
        if name == "max" and any(
            isinstance(child, ast.Call) and "len" in ast.unparse(child) for child in ast.walk(node)
        ):
            return func.module.hop(node, f"the width is the longest row of the batch: {func.module.text(node)[:50]}")
        if padding is not None and plain and isinstance(padding, ast.Constant):
            return func.module.hop(node, "the tokenizer pads each batch to its longest text")
        if depth < 2:
            for callee in values.of(Expr(func.module, node.func, None)):
                found = _padding_place(values, callee, depth + 1) if isinstance(callee, Func) else None
                if found is not None:
                    return found
    return None


def _is_static(func: Func) -> bool:
    """Whether anything in the function pads to a fixed length."""
    text = func.module.text(func.node)
    return '"max_length"' in text or "'max_length'" in text or "pad_to_max_length" in text


def _function(values: Values, value: Value) -> Func | None:
    if isinstance(value, Func):
        return value
    if isinstance(value, Inst) and isinstance(value.of, Cls):
        return values.method(value.of, "__call__") or values.method(value.of, "torch_call")
    if isinstance(value, Inst) and value.of == PARTIAL and isinstance(value.call.node, ast.Call):
        for inner in values.of(value.call.at(value.call.node.args[0])) if value.call.node.args else ():
            return _function(values, inner)
    return None
