"""The model of a run: what it is, how it is wrapped and compiled, where it is called, what its loss is, where it is
saved."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.framework import calls_of, copied_around, outside_calls, trainers
from speedmigrate.chain.loss_shape import loss_shape
from speedmigrate.chain.model_loss import loss
from speedmigrate.chain.model_wraps import is_module, trained, wrap_order
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.models import Model, models
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Cls, Const, Ext, Inst, Item, Param, Result
from speedmigrate.rule import Hop

_SAVES = frozenset("save_pretrained save_checkpoint save_model save_state save_16bit_model".split())
_LOADS = frozenset("load_state_dict load_checkpoint load_state".split())


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield the facts of the model, one for each place."""
    yield from _model(entry)
    for site in calls_of(entry, "torch.compile"):
        yield Fact("compile.call", "torch.compile", site.expr.text[:60], (site.expr.hop("the model is compiled"),))
    yield from wrap_order(entry)
    yield from _calls(entry)
    yield from loss(entry)
    yield from loss_shape(entry)
    yield from _checkpoints(entry)


def _model(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `model.kind`: transformers, own (a class of the root), remote_code or other (another library's)."""
    found: dict[str, Fact] = {}
    broken: list[Hop] = []
    for expr in trained(entry):
        for model in models(entry.values, expr):
            kind = _model_kind(entry, model)
            if kind is None:
                broken.append(getattr(model.value, "hop", None) or expr.hop(f"`{expr.text[:40]}` is not followed"))
            else:
                hop = model.value.call.hop("the model is made here") if isinstance(model.value, Inst | Result) else None
                found.setdefault(kind + model.name, Fact("model.kind", kind, _name(model), (hop or expr.hop("it"),)))
    yield from found.values()
    if broken or not found:
        yield unknown("model.kind", *(dict.fromkeys(broken) or (Hop(entry.path, 1, "no model that is followed"),)))


def _model_kind(entry: EntryFacts, model: Model) -> str | None:
    value = model.value
    if isinstance(value, Result) and isinstance(value.of, Attr) and isinstance(value.of.of, Cls):
        return "own"
    if not isinstance(value, Inst):
        return None
    if isinstance(value.of, Cls):
        return "own"
    node = value.call.node
    remote = call_argument(node, None, "trust_remote_code") if isinstance(node, ast.Call) else None
    if remote is not None:
        said = entry.values.one(value.call.at(remote))
        if isinstance(said, Const) and said.value is True:
            return "remote_code"
    return "transformers" if value.of.package == "transformers" else "other"


def _name(model: Model) -> str:
    value = model.value
    if isinstance(value, Result) and isinstance(value.of, Attr) and isinstance(value.of.of, Cls):
        return value.of.of.node.name
    return model.name


def _calls(entry: EntryFacts) -> Iterator[Fact]:
    """Yield where the training code calls the model: beside a backward call, or in a Trainer's own method."""
    seen: set[ast.AST] = set()
    training = _training_functions(entry)
    for site in entry.sites:
        function = site.module.function(site.node) or site.module.tree
        if function not in training or site.node in seen or copied_around(entry, site):
            continue
        if _calls_model(entry, site):
            seen.add(site.node)
            arguments = ", ".join(site.module.text(node)[:30] for node in (*site.node.args, *site.node.keywords))
            yield Fact("model.call", "call", arguments, (site.expr.hop(site.expr.text.splitlines()[0][:60]),))


def _training_functions(entry: EntryFacts) -> set[ast.AST]:
    found: set[ast.AST] = set()
    for site in entry.sites:
        if isinstance(site.node.func, ast.Attribute) and site.node.func.attr == "backward":
            found.add(site.module.function(site.node) or site.module.tree)
    for trainer in trainers(entry):
        for base in entry.values.mro(trainer.cls) if trainer.cls is not None and not trainer.copied else ():
            if isinstance(base, Cls):
                names = {"compute_loss", "training_step"}
                found |= {node for node in base.node.body if isinstance(node, FunctionNode) and node.name in names}
    return found


def _calls_model(entry: EntryFacts, site: Site) -> bool:
    if not isinstance(site.node.func, ast.Name | ast.Attribute):
        return False
    if any(isinstance(callee, Ext | Cls | Attr) for callee in site.callees):
        return False
    if any(isinstance(callee, Param) and callee.name == "model" for callee in site.callees):
        return True
    return any(
        is_module(entry, m.value)
        for callee in site.callees
        if isinstance(callee, Inst | Item)
        for m in models(entry.values, site.expr.at(site.node.func))
    )


def _checkpoints(entry: EntryFacts) -> Iterator[Fact]:
    """Yield where state is written and read: of torch, of the models, engines and Trainers."""
    for site, name in outside_calls(entry):
        if name in {"torch.save", "torch.distributed.checkpoint.save", "safetensors.torch.save_file"}:
            yield Fact("checkpoint.save", name, "", (site.expr.hop(site.expr.text.splitlines()[0][:60]),))
        elif name in {"torch.load", "torch.distributed.checkpoint.load", "safetensors.torch.load_file"}:
            yield Fact("checkpoint.load", name, "", (site.expr.hop(site.expr.text.splitlines()[0][:60]),))
    seen: set[ast.AST] = set()
    for site in entry.methods:
        func = site.node.func
        attr = func.attr if isinstance(func, ast.Attribute) else ""
        kind = "save" if attr in _SAVES else "load" if attr in _LOADS else ""
        if kind and site.node not in seen and not copied_around(entry, site) and not _is_text(entry, site):
            seen.add(site.node)
            yield Fact(f"checkpoint.{kind}", attr, "", (site.expr.hop(site.expr.text.splitlines()[0][:60]),))


def _is_text(entry: EntryFacts, site: Site) -> bool:
    """Whether what is saved is a tokenizer or a config."""
    func = site.node.func
    assert isinstance(func, ast.Attribute)
    values = entry.values.of(site.expr.at(func.value))
    names = [
        v.of.name if isinstance(v, Inst) and isinstance(v.of, Ext) else v.name if isinstance(v, Attr) else ""
        for v in values
    ]
    return any(word in name for name in names for word in ("Tokenizer", "Processor", "Config", "tokenizer", "config"))
