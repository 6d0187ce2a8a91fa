"""What steps the parameters: a class in the code, what a Trainer's arguments name, or a section of a DeepSpeed
config."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.framework import Trainer, calls_of, copied_around, trainers
from speedmigrate.chain.optimizer_branches import is_off
from speedmigrate.chain.precision_configs import Config, deepspeed
from speedmigrate.chain.precision_settings import hf_arguments, hf_setting
from speedmigrate.facts.arguments import Arguments
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Cls, Const, Display, Expr, Ext, Inst, Value
from speedmigrate.rule import Hop

# The most telling first: what a run uses beside another optimizer is seldom the plain one.
_RANK = (
    "lomo", "bnb_8bit_or_paged", "apex_fused", "own", "deepspeed_class", "adafactor", "hf_optim", "deepspeed_config",
    "transformers_adamw", "torch_adamw", "torch_adam", "torch_other", "other", "hf_default",
)  # fmt: skip
_OPTIMIZER = frozenset({"torch.optim.Optimizer", "torch.optim.optimizer.Optimizer"})
_TRANSFORMERS = frozenset({"transformers", "pytorch_transformers"})
_OTHERS = frozenset(
    "torch_optimizer lion_pytorch galore_torch adam_mini pytorch_optimizer dadaptation prodigyopt muon schedulefree "
    "timm colossalai pytorch_pretrained_bert fairscale optimi sophia fairseq torchao soap".split()
)
_WORDS = ("Adam", "SGD", "Lion", "Lamb", "LAMB", "Adagrad", "RMSprop", "Muon", "GaLore", "Prodigy", "Sophia", "Shampoo")


@dataclass(frozen=True, slots=True)
class Found:
    """One optimizer that a run can use; `off` where the defaults of the flags leave it out."""

    kind: str
    detail: str
    hop: Hop
    off: bool = False


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `optimizer.kind` for each kind that the run can use, the decisive one first."""
    broken: list[Hop] = []
    found = [*_hf(entry, broken), *_classes(entry, broken), *_sections(entry, broken)]
    found.sort(key=lambda one: (one.off, _RANK.index(one.kind)))
    for kind in dict.fromkeys(one.kind for one in found):
        same = [one for one in found if one.kind == kind]
        detail = ", ".join(dict.fromkeys(one.detail for one in same if one.detail))
        yield Fact("optimizer.kind", kind, detail, tuple(dict.fromkeys(one.hop for one in same)))
    if broken:
        yield unknown("optimizer.kind", *dict.fromkeys(broken))
    elif not found:
        yield unknown("optimizer.kind", Hop(entry.path, 1, "no optimizer that can be followed is built in this run"))


def kind_of(entry: EntryFacts, value: Value) -> tuple[str, str] | None:
    """Return the kind and name of an optimizer class, None for anything else."""
    if isinstance(value, Ext):
        kind = _ext_kind(value)
        return (kind, value.name) if kind else None
    if isinstance(value, Cls):
        mro = entry.values.mro(value)
        if any(isinstance(base, Ext) and (base.name in _OPTIMIZER or _ext_kind(base)) for base in mro):
            return "lomo" if _is_fused(mro) else "own", value.node.name
    return None


def _ext_kind(value: Ext) -> str | None:
    name, last = value.name, value.last
    if not last[:1].isupper() or "lr_scheduler" in name or name in _OPTIMIZER:
        return None
    if name.startswith("torch.optim."):
        if last.endswith("LR"):
            return None
        return {"AdamW": "torch_adamw", "Adam": "torch_adam"}.get(last, "torch_other")
    if last == "Adafactor":
        return "adafactor"
    if last in {"Lomo", "LOMO", "AdaLomo"} and value.package in {"lomo_optim", "collie"}:
        return "lomo"
    if value.package in _TRANSFORMERS and last == "AdamW":
        return "transformers_adamw"
    if name.startswith("deepspeed.ops.") and any(word in last for word in _WORDS):
        return "deepspeed_class"
    if value.package == "accelerate" and last == "DummyOptim":
        return "deepspeed_config"
    if name.startswith(("apex.optimizers.", "apex.contrib.optimizers.")):
        return "apex_fused" if last != "FP16_Optimizer" else None
    if name.startswith("bitsandbytes.optim."):
        return "bnb_8bit_or_paged"
    if value.package in _OTHERS and any(word in last for word in _WORDS):
        return "other"
    return None


def _is_fused(mro: tuple[Cls | Ext, ...]) -> bool:
    """Whether an optimizer of the root steps inside the backward pass, as LOMO does."""
    return any(
        isinstance(node, FunctionNode) and node.name == "fused_backward"
        for base in mro
        if isinstance(base, Cls)
        for node in base.node.body
    )


def _classes(entry: EntryFacts, broken: list[Hop]) -> Iterator[Found]:
    """Yield the optimizers that the code builds; beside an HF Trainer only those that it is given."""
    given = _given_to_trainers(entry)
    seen: set[tuple[int, str]] = set()
    for site in entry.sites:
        for callee in site.callees:
            for value in _built(entry, site, callee, broken):
                kind = kind_of(entry, value)
                if kind is None or copied_around(entry, site) or (id(site.node), kind[0]) in seen:
                    continue
                if given is not None and not _reaches(site, given):
                    continue
                seen.add((id(site.node), kind[0]))
                if not _wraps_optimizer(entry, site, value):
                    yield Found(*kind, site.expr.hop(f"the optimizer is {kind[1]}"), is_off(entry, site))


def _built(entry: EntryFacts, site: Site, callee: Value, broken: list[Hop]) -> Iterator[Value]:
    """Yield the class that a call builds or will build: of itself, in `partial`, as `optimizer_class`."""
    if isinstance(callee, Ext) and callee.name == "functools.partial" and site.node.args:
        yield from entry.values.of(site.expr.at(site.node.args[0]))
    elif isinstance(callee, Ext) and callee.last in {"ZeroRedundancyOptimizer", "OSS"}:
        name = "optimizer_class" if callee.last == "ZeroRedundancyOptimizer" else "optim"
        node = call_argument(site.node, 1, name)
        yield from entry.values.of(site.expr.at(node)) if node is not None else ()
    elif isinstance(callee, Inst) and callee.of == Ext("builtins.getattr") and isinstance(callee.call.node, ast.Call):
        owner = callee.call.node.args[0] if callee.call.node.args else None
        if owner is not None and Ext("torch.optim") in entry.values.of(callee.call.at(owner)):
            broken.append(site.expr.hop(f"the optimizer's name is not followed: `{callee.call.text[:60]}`"))
    else:
        yield callee


def _wraps_optimizer(entry: EntryFacts, site: Site, value: Value) -> bool:
    """Whether an optimizer class of the root is built around another optimizer."""
    if not isinstance(value, Cls) or not site.node.args:
        return False
    first = entry.values.of(site.expr.at(site.node.args[0]))
    return any(isinstance(v, Inst) and kind_of(entry, v.of) is not None for v in first)


def _given_to_trainers(entry: EntryFacts) -> set[int] | None:
    """Return the calls whose results a Trainer gets, and its own methods; None where the run has no HF Trainer."""
    hf = [trainer for trainer in trainers(entry) if trainer.is_hf]
    if not hf:
        return None
    found: set[int] = set()
    for trainer in hf:
        for name in ("optimizers", "optimizer"):
            expr = trainer.argument(entry, name)
            found |= _calls_in(entry, expr) if expr is not None else set()
        found |= set(_own_makers(entry, trainer))
    return found


def _calls_in(entry: EntryFacts, expr: Expr) -> set[int]:
    found: set[int] = set()
    for value in entry.values.of(expr):
        elements = entry.values.elements(value, expr) if isinstance(value, Display) else (value,)
        found |= {id(v.call.node) for v in elements if isinstance(v, Inst)}
    return found


def _own_makers(entry: EntryFacts, trainer: Trainer) -> Iterator[int]:
    """Yield the methods of a Trainer of the root that make its optimizer, a copy's own left out."""
    for base in entry.values.mro(trainer.cls) if trainer.cls is not None and not trainer.copied else ():
        if isinstance(base, Cls):
            for node in base.node.body:
                if isinstance(node, FunctionNode) and node.name.startswith("create_optimizer"):
                    yield id(node)


def _reaches(site: Site, given: set[int]) -> bool:
    function = site.module.function(site.node)
    return id(site.node) in given or (function is not None and id(function) in given)


def _hf(entry: EntryFacts, broken: list[Hop]) -> Iterator[Found]:
    """Yield what the arguments of the HF Trainers name."""
    for trainer in trainers(entry):
        if not trainer.is_hf or _is_given(entry, trainer) or _makes(entry, trainer):
            continue
        arguments = hf_arguments(entry, trainer)
        for one in arguments:
            yield from _named(entry, one)
        if not arguments:
            broken.append(trainer.site.expr.hop("the Trainer's arguments are not followed"))


def _is_given(entry: EntryFacts, trainer: Trainer) -> bool:
    """Whether a Trainer gets an optimizer that is not None."""
    expr = trainer.argument(entry, "optimizers") or trainer.argument(entry, "optimizer")
    if expr is None:
        return False
    for value in entry.values.of(expr):
        if isinstance(value, Display):
            first = next(iter(entry.values.item(value, 0, expr)), None)
            if not (isinstance(first, Const) and first.value is None):
                return True
        elif not (isinstance(value, Const) and value.value is None):
            return True
    return False


def _makes(entry: EntryFacts, trainer: Trainer) -> bool:
    """Whether a Trainer of the root builds a class of its own choice, not what the arguments name."""
    makers = set(_own_makers(entry, trainer))
    if not makers:
        return False
    inside = [site for site in entry.sites if (f := site.module.function(site.node)) is not None and id(f) in makers]
    asks = any(
        isinstance(site.node.func, ast.Attribute)
        and site.node.func.attr in {"get_optimizer_cls_and_kwargs", "create_optimizer"}
        for site in inside
    )
    return not asks and any(kind_of(entry, callee) for site in inside for callee in site.callees)


def _named(entry: EntryFacts, arguments: Arguments) -> Iterator[Found]:
    settings = list(hf_setting(entry, arguments, "optim"))
    for setting in settings:
        text = setting.text if isinstance(setting.text, str) else ""
        kind = _optim_kind(text)
        yield Found(kind, text or "computed", setting.hop)
    if not settings:
        call = arguments.literal or arguments.value.call
        hop = call.hop("optim is given nowhere: the library's default")
        if arguments.literal is not None and has_spread(arguments.literal.node):  # type: ignore[arg-type]
            hop = call.hop("optim is not given, unless through `**`")
        yield Found("hf_default", "", hop)


def _optim_kind(text: str) -> str:
    if "8bit" in text or "paged" in text or "4bit" in text:
        return "bnb_8bit_or_paged"
    if text == "adafactor":
        return "adafactor"
    return "lomo" if "lomo" in text else "hf_optim"


def _sections(entry: EntryFacts, broken: list[Hop]) -> Iterator[Found]:
    """Yield the optimizer sections of DeepSpeed configs that own the optimizer of a run."""
    sites = calls_of(entry, "deepspeed.initialize")
    hf = any(trainer.is_hf for trainer in trainers(entry))
    if sites and not any(_lets_config(entry, site) for site in sites):
        return
    if not sites and not hf:
        return
    configs = deepspeed(entry)
    for config in configs:
        hop = config.section("optimizer")
        if hop is not None:
            yield Found("deepspeed_config", _type(config), hop)
    if sites and not configs:
        broken.append(sites[0].expr.hop("the DeepSpeed config that may own the optimizer is not followed"))


def _type(config: Config) -> str:
    found = config.doc.get("optimizer", "type") if config.doc is not None else None
    return found if isinstance(found, str) else ""


def _lets_config(entry: EntryFacts, site: Site) -> bool:
    """Whether `deepspeed.initialize` gets no optimizer, or may get None."""
    node = call_argument(site.node, 2, "optimizer")
    if node is None:
        return not has_spread(site.node)
    return any(isinstance(value, Const) and value.value is None for value in entry.values.of(site.expr.at(node)))
