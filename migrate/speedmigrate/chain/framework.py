"""Who drives the training: a Trainer of a library (as it is, subclassed, copied into the root or patched), an engine,
or a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.loaders import TRAINER_METHODS, is_copy
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Inst, Value
from speedmigrate.rule import Hop

Kind = Literal["hf_trainer", "hf_trainer_subclass", "hf_seq2seq_trainer", "trl", "lightning"]
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric", "lightning_lite")
_OTHERS = frozenset("collie mmengine composer colossalai paddle fairseq allennlp torchtune nemo megatron".split())
DDP = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"})


@dataclass(frozen=True, slots=True, eq=False)
class Trainer:
    """A call that makes a Trainer of a library, or of a class of the root that is one.

    Attributes:
        cls: the class of the root, None where the library's own is used.
        copied: whether that class is a copy of `transformers.Trainer`, not a subclass.
    """

    site: Site
    kind: Kind
    cls: Cls | None
    copied: bool

    def argument(self, entry: EntryFacts, name: str) -> Expr | None:
        """Return what the Trainer gets under this keyword."""
        order = ("model", "args") if self.kind not in {"trl", "lightning"} else ()
        node = call_argument(self.site.node, order.index(name) if name in order else None, name)
        return None if node is None else self.site.expr.at(node)

    @property
    def is_hf(self) -> bool:
        return self.kind != "lightning"


def trainers(entry: EntryFacts) -> tuple[Trainer, ...]:
    """Return the Trainers that a run makes, each call once, the library's own classes and subclasses of the root."""
    return entry.once("chain.trainers", _trainers)


def _trainers(entry: EntryFacts) -> tuple[Trainer, ...]:
    found: dict[ast.AST, Trainer] = {}
    for site in entry.sites:
        for callee in site.callees:
            trainer = _trainer(entry, site, callee)
            if trainer is not None and not copied_around(entry, site):
                found.setdefault(site.node, trainer)
    return tuple(found.values())


def _trainer(entry: EntryFacts, site: Site, callee: Value) -> Trainer | None:
    if isinstance(callee, Ext):
        kind = _ext_kind(callee)
        return Trainer(site, kind, None, False) if kind else None
    if not isinstance(callee, Cls):
        return None
    mro = entry.values.mro(callee)
    bases = [base for base in mro if isinstance(base, Ext)]
    kinds = [kind for base in bases for kind in [_ext_kind(base)] if kind]
    if kinds:
        of_trl = any(isinstance(base, Cls) and base.module.path.startswith("trl/") for base in mro)
        kind = "trl" if of_trl else "hf_trainer_subclass" if kinds[0] == "hf_trainer" else kinds[0]
        return Trainer(site, kind, callee, False)
    if is_copy(entry.values, callee):
        return Trainer(site, "hf_trainer_subclass", callee, True)
    return None


def _ext_kind(value: Ext) -> Kind | None:
    if not value.last.endswith("Trainer"):
        return "lightning" if value.package in _LIGHTNING and value.last in {"Fabric", "from_argparse_args"} else None
    if value.package == "transformers":
        return "hf_seq2seq_trainer" if value.last == "Seq2SeqTrainer" else "hf_trainer"
    if value.package == "trl":
        return "trl"
    return "lightning" if value.package in _LIGHTNING else None


def copied_around(entry: EntryFacts, site: Site) -> bool:
    """Say whether a call stands in a copy of `transformers.Trainer`, whose branches follow the arguments."""
    return id(site.node) in entry.once("chain.copied", _copied_calls)


def _copied_calls(entry: EntryFacts) -> frozenset[int]:
    found: set[int] = set()
    seen: set[ast.ClassDef] = set()
    for module, scope, _ in entry.scopes:
        parent = module.parents.get(scope)
        if isinstance(parent, ast.ClassDef) and parent not in seen:
            seen.add(parent)
            names = {node.name for node in parent.body if isinstance(node, FunctionNode)}
            if names >= TRAINER_METHODS:
                found |= {id(node) for node in ast.walk(parent) if isinstance(node, ast.Call)}
    return frozenset(found)


def calls_of(entry: EntryFacts, *names: str) -> list[Site]:
    """Return the calls of outside things by dotted name, or by last name where the name has no dot; each once."""
    wanted = frozenset(names)
    return [site for site, name in outside_calls(entry) if name in wanted or name.rpartition(".")[2] in wanted]


def outside_calls(entry: EntryFacts) -> tuple[tuple[Site, str], ...]:
    """Return every call of something outside the root with its dotted name, copies of the Trainer left out."""
    return entry.once("chain.outside", _outside_calls)


def _outside_calls(entry: EntryFacts) -> tuple[tuple[Site, str], ...]:
    found: dict[tuple[int, str], tuple[Site, str]] = {}
    for site in entry.sites:
        for callee in site.callees:
            if isinstance(callee, Ext) and callee.package != "builtins" and not copied_around(entry, site):
                found.setdefault((id(site.node), callee.name), (site, callee.name))
    return tuple(found.values())


def method_calls(entry: EntryFacts, owner: str, *names: str) -> list[Site]:
    """Return the calls of methods of what an outside class or function named `owner` made."""
    found: dict[int, Site] = {}
    for site in entry.methods:
        for callee in site.callees:
            if isinstance(callee, Attr) and callee.name in names:
                of = callee.of.of if isinstance(callee.of, Inst) else None
                if isinstance(of, Ext) and of.last == owner and not copied_around(entry, site):
                    found.setdefault(id(site.node), site)
    return list(found.values())


def patches(entry: EntryFacts) -> list[Hop]:
    """Return the assignments that replace a method of `transformers.Trainer`."""
    found: dict[ast.AST, Hop] = {}
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute | ast.Name):
                        values = entry.values.of(Expr(module, target.value, frame))
                        if any(isinstance(v, Ext) and _ext_kind(v) == "hf_trainer" for v in values):
                            found[node] = module.hop(
                                node, f"a method of the Trainer is replaced: {module.text(target)}"
                            )
    return list(found.values())


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `framework.kind`, the one that drives the run first, the others that the run also uses after it."""
    found = list(_kinds(entry))
    seen: set[str] = set()
    for kind, hops in found:
        if kind not in seen:
            seen.add(kind)
            yield Fact("framework.kind", kind, evidence=hops)
    if found:
        return
    if entry.trains:
        yield Fact("framework.kind", "plain", evidence=_backward(entry))
    else:
        yield unknown("framework.kind", Hop(entry.path, 1, "no Trainer, engine or backward call that is followed"))


def _kinds(entry: EntryFacts) -> Iterator[tuple[str, tuple[Hop, ...]]]:
    order = ("trl", "lightning", "hf_seq2seq_trainer", "hf_trainer_subclass", "hf_trainer")
    patched = patches(entry)
    for trainer in sorted(trainers(entry), key=lambda trainer: order.index(trainer.kind)):
        kind: str = trainer.kind
        hop = trainer.site.expr.hop(f"{trainer.site.module.text(trainer.site.node.func)}(...) is made here")
        if kind.startswith("hf_trainer") and generates(entry, trainer):
            kind = "hf_seq2seq_trainer"
        elif kind == "hf_trainer" and patched:
            kind = "hf_trainer_subclass"
        yield kind, (hop, *patched) if kind == "hf_trainer_subclass" else (hop,)
    for site, name in outside_calls(entry):
        if name.partition(".")[0] in _OTHERS and name.endswith("Trainer"):
            yield "other", (site.expr.hop(f"{name} drives the run"),)
    for name, kind in (("deepspeed.initialize", "deepspeed"), ("accelerate.Accelerator", "accelerate")):
        sites = calls_of(entry, name)
        if sites and (kind != "accelerate" or method_calls(entry, "Accelerator", "prepare", "backward")):
            yield kind, tuple(site.expr.hop(f"{name} is called") for site in sites[:1])
    wraps = _wraps(entry, DDP)
    if wraps:
        yield "ddp_fsdp", wraps
    wraps = _wraps(entry, frozenset({"DataParallel"}))
    if wraps:
        yield "data_parallel", wraps


def _wraps(entry: EntryFacts, names: frozenset[str]) -> tuple[Hop, ...]:
    found: dict[int, Hop] = {}
    for site in entry.sites:
        for callee in site.callees:
            base = entry.base(callee) if isinstance(callee, Ext | Cls) else None
            if base is not None and base.last in names and not copied_around(entry, site):
                found.setdefault(id(site.node), site.expr.hop(f"the model is wrapped by {base.name}"))
    return tuple(found.values())


def generates(entry: EntryFacts, trainer: Trainer) -> bool:
    """Say whether a Trainer gets `Seq2SeqTrainingArguments`, or is a subclass of the root's own Seq2Seq copy."""
    args = trainer.argument(entry, "args")
    for value in entry.values.of(args) if args is not None else ():
        base = entry.base(value.of) if isinstance(value, Inst) else None
        if base is not None and base.last == "Seq2SeqTrainingArguments":
            return True
    return False


def _backward(entry: EntryFacts) -> tuple[Hop, ...]:
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "backward":
            return (site.expr.hop("the loop calls backward"),)
    return ()
