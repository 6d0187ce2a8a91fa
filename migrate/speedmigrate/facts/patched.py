"""What a run changes of its model and loss while it runs: hooks, attributes that are set later, code made from text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.syntax import call_argument, called_name, own_nodes
from speedmigrate.facts.value import Cls, Expr, Ext, Frame, Func, ModuleRef
from speedmigrate.rule import Hop

_SET_LATER = frozenset({"reduction", "ignore_index", "cross_entropy", "collate_fn", "forward"})
# What an attention of one's own may do with its positions that is not the same at any width.
_MIXING = frozenset("mean sum max min flip roll softmax chunk split narrow".split())
_HOOKS = frozenset(
    "register_forward_hook register_forward_pre_hook register_full_backward_hook register_module_forward_hook".split()
)


def patched(entry: EntryFacts) -> tuple[Hop, ...]:
    """Return hooks that see the hidden states, and losses of a router that count every position (worked out once)."""
    return entry.once("patched", lambda entry: tuple(dict.fromkeys(_patched(entry))))


def _patched(entry: EntryFacts) -> Iterator[Hop]:
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in _SET_LATER:
                if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                    if node.attr != "forward" or not _is_attention(entry, module, node, frame):
                        yield module.hop(node, f"`{module.text(node)}` is set at run time")
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr in _HOOKS and not _only_requires_grad(entry, site):
            yield site.expr.hop("a hook sees the padded positions")
        names = {callee.name for callee in site.callees if isinstance(callee, Ext)}
        if "builtins.exec" in names or ("builtins.globals" in names and not _is_looked_at(site)):
            yield site.expr.hop("what is made at run time is not read")
        if "builtins.setattr" in names and site.node.args:
            owners = entry.values.of(site.expr.at(site.node.args[0]))
            if any(isinstance(owner, ModuleRef | Cls) for owner in owners):
                yield site.expr.hop("a constant is set at run time")
        if call_argument(site.node, None, "output_router_logits") is not None:
            yield site.expr.hop("the router's loss counts every position")


def _is_looked_at(site: Site) -> bool:
    """Whether the names of a file are only read (`globals().items()`, `globals()[name]`)."""
    parent = site.module.parents[site.node]
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.Attribute) and parent.attr in {"items", "keys", "values", "get"}


def _only_requires_grad(entry: EntryFacts, site: Site) -> bool:
    """Whether a hook does nothing but ask for gradients, as checkpointing needs of embeddings that are frozen."""
    values = entry.values.of(site.expr.at(site.node.args[0])) if site.node.args else ()
    for value in values:
        calls = [n for n in ast.walk(value.node) if isinstance(n, ast.Call)] if isinstance(value, Func) else []
        if not calls or any(called_name(call) != "requires_grad_" for call in calls):
            return False
    return bool(values)


def _is_attention(entry: EntryFacts, module: Module, target: ast.Attribute, frame: Frame | None) -> bool:
    """Whether a class of transformers gets another forward for its attention, one that is causal at any width."""
    statement = module.parents[target]
    owners = entry.values.of(Expr(module, target.value, frame))
    if not isinstance(statement, ast.Assign) or not all(_is_attention_class(owner) for owner in owners):
        return False
    values = entry.values.of(Expr(module, statement.value, frame))
    return bool(owners and values) and all(isinstance(v, Func) and _is_causal(entry, v) for v in values)


def _is_attention_class(value: object) -> bool:
    return isinstance(value, Ext) and value.package == "transformers" and "Attention" in value.last


def _is_causal(entry: EntryFacts, func: Func) -> bool:
    """Whether an attention calls kernels that are causal, and computes with its length for shapes alone."""
    if not isinstance(func.node, FunctionNode):
        return False
    kernels = 0
    for node in own_nodes(func.node):
        name = called_name(node) if isinstance(node, ast.Call) else ""
        if name.startswith("flash_attn_") or name == "scaled_dot_product_attention":
            assert isinstance(node, ast.Call)
            given = call_argument(node, None, "causal") or call_argument(node, None, "is_causal")
            if not (isinstance(given, ast.Constant) and given.value is True):
                return False
            kernels += 1
        elif name in _MIXING or _computes(node):
            return False
    return kernels > 0


def _computes(node: ast.AST) -> bool:
    """Whether a node divides a length, or takes a part of a tensor by numbers of positions."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod | ast.FloorDiv | ast.Div)
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)
