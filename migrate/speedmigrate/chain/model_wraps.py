"""Which expressions are the trained model, and what wraps it, the innermost first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.fact import Fact
from speedmigrate.chain.framework import outside_calls, trainers
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.models import models
from speedmigrate.facts.places import anchor
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Expr, Ext, Inst, Value
from speedmigrate.rule import Hop

_WRAPS = {
    "DistributedDataParallel": "module", "FullyShardedDataParallel": "module", "DataParallel": "module",
    "get_peft_model": "model", "initialize": "model", "fully_shard": "module",
}  # fmt: skip
_PACKAGES = frozenset("torch deepspeed peft apex fairscale accelerate".split())


def trained(entry: EntryFacts) -> list[Expr]:
    """Return the expressions of the model that is trained: what a Trainer gets, what is wrapped or optimized first."""
    given = [expr for t in trainers(entry) if t.is_hf for expr in [t.argument(entry, "model")] if expr is not None]
    place = anchor(entry) if not given else None
    if place is not None:
        for node in ast.walk(place.site.node):
            if isinstance(node, ast.Name) and node.id == place.code:
                return [place.site.expr.at(node)]
    return given or [argument for _, _, arguments in _wrappings(entry) for argument in arguments]


def wrap_order(entry: EntryFacts) -> Iterator[Fact]:
    """Yield the wrappers around the model, the innermost first; a chain that another continues is left out."""
    chains: dict[tuple[str, ...], Hop] = {}
    for site, name, arguments in _wrappings(entry):
        inner = {tuple(reversed(m.wrappers)) for a in arguments for m in models(entry.values, a)} or {()}
        for wrappers in inner:
            chain = (*(w.rpartition(".")[2] for w in wrappers), name.rpartition(".")[2])
            chains.setdefault(chain, site.expr.hop(f"the model is wrapped by {name}"))
    for chain, hop in chains.items():
        if not any(other != chain and other[: len(chain)] == chain for other in chains):
            yield Fact("wrap.order", chain[-1], " > ".join(chain), (hop,))


def _wrappings(entry: EntryFacts) -> Iterator[tuple[Site, str, list[Expr]]]:
    for site, name in outside_calls(entry):
        last, package = name.rpartition(".")[2], name.partition(".")[0]
        if last in _WRAPS and package in _PACKAGES and (last != "initialize" or name == "deepspeed.initialize"):
            node = call_argument(site.node, 1 if last == "initialize" else 0, _WRAPS[last])
            yield site, name, [site.expr.at(node)] if node is not None else []
    seen: set[ast.AST] = set()
    for site in entry.methods:
        for callee in site.callees:
            if isinstance(callee, Attr) and callee.name == "prepare" and _made_by(callee.of, "Accelerator"):
                if site.node not in seen:
                    seen.add(site.node)
                    yield (
                        site,
                        "accelerate.prepare",
                        [e for a in site.node.args for e in [site.expr.at(a)] if _is_model(entry, e)],
                    )


def _made_by(value: Value, last: str) -> bool:
    return isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.last == last


def _is_model(entry: EntryFacts, expr: Expr) -> bool:
    return any(is_module(entry, model.value) for model in models(entry.values, expr))


def is_module(entry: EntryFacts, value: Value) -> bool:
    if not isinstance(value, Inst):
        return False
    if isinstance(value.of, Ext):
        return value.of.last in {"from_pretrained", "from_config"} and "Model" in value.of.name
    base = entry.base(value.of)
    return base is not None and (base.last in {"Module", "LightningModule"} or base.last.endswith("PreTrainedModel"))
