"""What makes the batches of a run: every loader and Trainer with its data set, collate and sampler, training first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.chain.data_given import given
from speedmigrate.chain.data_loops import is_plain, taken, training_loops
from speedmigrate.chain.framework import calls_of, copied_around, outside_calls, trainers
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import own_nodes, super_init
from speedmigrate.facts.value import Attr, Cls, Const, Display, Expr, Ext, Frame, Func, Inst, Item, Result, Value
from speedmigrate.rule import Hop

Kind = Literal["Trainer", "DataLoader", "accelerate", "deepspeed", "lightning", "generator", "trl", "library"]
_TRAINER_ORDER = ("model", "args", "data_collator", "train_dataset")
_LOADER_ORDER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")
_DEEPSPEED_ORDER = ("args", "model", "optimizer", "model_parameters", "training_data")
_LOADERS = frozenset({"DataLoader", "StatefulDataLoader", "MultiEpochsDataLoader"})
# Hooks of Trainer and Lightning that return the training batches.
_HOOKS = frozenset({"get_train_dataloader", "train_dataloader"})
_KNOWN = frozenset({"transformers", "trl", "lightning", "pytorch_lightning"})


@dataclass(frozen=True, slots=True, eq=False)
class Pipe:
    """One place that makes batches.

    Attributes:
        call: the call that builds it (of a generator: the call of the function).
        data, collate, sampler, shuffle: what it gets, None where nothing is given.
        training: whether its batches are seen to reach a backward call, or a hook of a framework says so.
    """

    call: Expr
    kind: Kind
    data: tuple[Value, ...] | None
    collate: tuple[Value, ...] | None
    sampler: tuple[Value, ...] | None = None
    shuffle: tuple[Value, ...] | None = None
    training: bool = False
    tokenizer: bool = False
    value: Value | None = None

    @property
    def hop(self) -> Hop:
        what = self.call.module.text(getattr(self.call.node, "func", self.call.node))
        return self.call.hop(f"batches are made here by {what.splitlines()[0][:50] if what else self.kind}")

    @property
    def path(self) -> str:
        return self.call.module.path


def pipes(entry: EntryFacts) -> tuple[Pipe, ...]:
    """Return what makes the training batches; where that is not seen, everything that makes batches."""
    return entry.once("chain.pipes", _pipes)


def _pipes(entry: EntryFacts) -> tuple[Pipe, ...]:
    hooked = [pipe for pipe in loaders(entry) if _is_hook(pipe)]
    given = [*_trainer_pipes(entry), *_library_pipes(entry)]
    engines = [pipe for pipe in _engine_pipes(entry) if pipe.data]
    if given:
        return tuple(hooked + given)
    if engines:
        return tuple(engines)
    if hooked:
        return tuple(hooked)
    looped = list(_looped(entry))
    return tuple(looped or _shuffled(loaders(entry)))


def _shuffled(found: tuple[Pipe, ...]) -> list[Pipe]:
    """Order loaders: those that shuffle or sample come first, as evaluation does not."""
    return sorted(found, key=lambda pipe: not _shuffles(pipe))


def _shuffles(pipe: Pipe) -> bool:
    if pipe.shuffle and any(isinstance(v, Const) and v.value is True for v in pipe.shuffle):
        return True
    return any(
        isinstance(v, Inst) and isinstance(v.of, Ext) and v.of.last != "SequentialSampler" for v in pipe.sampler or ()
    )


def _is_hook(pipe: Pipe) -> bool:
    function = pipe.call.module.function(pipe.call.node)
    if function is None or not isinstance(pipe.call.module.parents.get(function), ast.ClassDef):
        return False
    if function.name in _HOOKS:
        return True
    above = pipe.call.frame.call if pipe.call.frame is not None else None
    outer = above.module.function(above.node) if above is not None else None
    return outer is not None and outer.name in _HOOKS


def _trainer_pipes(entry: EntryFacts) -> Iterator[Pipe]:
    for trainer in trainers(entry):
        if trainer.kind == "lightning":
            continue
        expr = trainer.site.expr
        order = _TRAINER_ORDER if trainer.kind != "trl" else ()
        part = [
            given(entry, expr, order.index(n) if n in order else None, n) for n in ("train_dataset", "data_collator")
        ]
        tokenizer = any(given(entry, expr, None, n) for n in ("tokenizer", "processing_class"))
        if trainer.kind == "trl" and part[0] is None:
            part[0] = given(entry, expr, None, "dataset")
        kind: Kind = "trl" if trainer.kind == "trl" else "Trainer"
        yield Pipe(
            expr,
            kind,
            part[0],
            part[1],
            training=True,
            tokenizer=tokenizer,
            value=Inst(trainer.cls, expr) if trainer.cls else None,
        )


def _library_pipes(entry: EntryFacts) -> Iterator[Pipe]:
    """Yield the Trainers of other libraries, told by the training data that they get."""
    for site, name in outside_calls(entry):
        if name.endswith("Trainer") and name.partition(".")[0] not in _KNOWN:
            data = given(entry, site.expr, None, "train_dataset")
            if data is not None:
                yield Pipe(site.expr, "library", data, given(entry, site.expr, None, "data_collator"), training=True)


def _engine_pipes(entry: EntryFacts) -> Iterator[Pipe]:
    for site in calls_of(entry, "deepspeed.initialize"):
        data = given(entry, site.expr, _DEEPSPEED_ORDER.index("training_data"), "training_data")
        if data and not all(isinstance(v, Const) and v.value is None for v in data):
            yield Pipe(site.expr, "deepspeed", data, given(entry, site.expr, None, "collate_fn"), training=True)


def loaders(entry: EntryFacts) -> tuple[Pipe, ...]:
    """Return every `DataLoader` of the run, subclasses of the root included."""
    return entry.once("chain.loaders", lambda entry: tuple(_loaders(entry)))


def _loaders(entry: EntryFacts) -> Iterator[Pipe]:
    seen: set[tuple[ast.AST, Frame | None]] = set()
    prepared = _prepared(entry)
    for site in entry.sites:
        for callee in site.callees:
            if (site.node, site.expr.frame) in seen or copied_around(entry, site):
                continue
            expr = _loader_call(entry, site, callee)
            if expr is not None:
                seen.add((site.node, site.expr.frame))
                yield _loader(entry, site, expr, site.node in prepared, callee)


def _loader_call(entry: EntryFacts, site: Site, callee: Value) -> Expr | None:
    """Return the call that gives a DataLoader its arguments: the site, or `super().__init__(...)` of a subclass."""
    if isinstance(callee, Ext):
        return site.expr if callee.last in _LOADERS and callee.package in {"torch", "torchdata", "timm"} else None
    if not isinstance(callee, Cls):
        return None
    bases = entry.values.mro(callee)
    if not any(isinstance(b, Ext) and b.last in _LOADERS and b.package == "torch" for b in bases):
        return None
    init = entry.values.method(callee, "__init__")
    if init is None or not isinstance(init.node, FunctionNode):
        return site.expr
    call = super_init(init.node)
    receiver = Inst(callee, site.expr)
    parent = init.module.parents[init.node]
    assert isinstance(parent, ast.ClassDef)
    frame = entry.values.init_frame(receiver, Cls(init.module, parent, init.outer), init.node)
    return site.expr if call is None else Expr(init.module, call, frame)


def _loader(entry: EntryFacts, site: Site, expr: Expr, prepared: bool, callee: Value) -> Pipe:
    def argument(name: str) -> tuple[Value, ...] | None:
        return given(entry, expr, _LOADER_ORDER.index(name), name)

    function = site.module.function(site.node)
    light = function is not None and function.name.endswith("_dataloader") and function.name != "get_train_dataloader"
    light = light and _is_lightning(entry, site)
    kind: Kind = "lightning" if light else "accelerate" if prepared else "DataLoader"
    return Pipe(
        site.expr, kind, argument("dataset"), argument("collate_fn"), argument("sampler") or argument("batch_sampler"),
        argument("shuffle"), value=Inst(callee, site.expr) if isinstance(callee, Cls | Ext) else None,
    )  # fmt: skip


def _is_lightning(entry: EntryFacts, site: Site) -> bool:
    function = site.module.function(site.node)
    parent = site.module.parents.get(function) if function is not None else None
    if not isinstance(parent, ast.ClassDef):
        return False
    bases = entry.values.mro(Cls(site.module, parent))
    return any(isinstance(base, Ext) and base.last in {"LightningModule", "LightningDataModule"} for base in bases)


def _prepared(entry: EntryFacts) -> set[ast.AST]:
    """Return the calls of what `accelerator.prepare` gets."""
    found: set[ast.AST] = set()
    for site in entry.methods:
        for callee in site.callees:
            if isinstance(callee, Attr) and callee.name in {"prepare", "prepare_data_loader"}:
                owner = callee.of.of if isinstance(callee.of, Inst) else None
                if isinstance(owner, Ext) and owner.package == "accelerate":
                    for argument in site.node.args:
                        values = (
                            entry.values.of(site.expr.at(argument)) if not isinstance(argument, ast.Starred) else ()
                        )
                        found |= {value.call.node for value in values if isinstance(value, Inst)}
    return found


def _looped(entry: EntryFacts) -> Iterator[Pipe]:
    """Yield what the training loops iterate over."""
    by_node: dict[ast.AST, list[Pipe]] = {}
    for pipe in loaders(entry):
        by_node.setdefault(pipe.call.node, []).append(pipe)
    seen: set[ast.AST] = set()
    generators: list[Pipe] = []
    for loop in training_loops(entry):
        for value in taken(entry, loop):
            for inner in opened(entry, value):
                node = inner.call.node if isinstance(inner, Inst | Result) else None
                if node is None or node in seen:
                    continue
                if node in by_node:
                    seen.add(node)
                    same = [p for p in by_node[node] if isinstance(inner, Inst) and p.call.frame == inner.call.frame]
                    yield from same[:1] or by_node[node][:1]
                elif not is_plain(inner) and (own := generator(entry, inner)) is not None:
                    seen.add(node)
                    generators.append(own)
    if not seen & set(by_node):
        yield from generators


def opened(entry: EntryFacts, value: Value) -> Iterator[Value]:
    """Open what stands around a loader: wrapper classes of the root and of libraries that get it, items of a tuple."""
    seen: set[Value] = set()
    stack = [(value, 0)]
    nodes = {pipe.call.node for pipe in loaders(entry)}
    while stack:
        current, depth = stack.pop(0)
        if current in seen:
            continue
        seen.add(current)
        yield current
        if depth > 4 or (isinstance(current, Inst) and current.call.node in nodes):
            continue
        if isinstance(current, Inst | Result) and isinstance(current.call.node, ast.Call):
            if isinstance(current, Result) and isinstance(current.of, Attr):
                stack.append((current.of.of, depth + 1))
            for argument in (*current.call.node.args, *(k.value for k in current.call.node.keywords)):
                if isinstance(argument, ast.Name | ast.Attribute | ast.Call | ast.Starred):
                    node = argument.value if isinstance(argument, ast.Starred) else argument
                    stack += [(v, depth + 1) for v in entry.values.of(current.call.at(node)) if _may_hold(v)]
        elif isinstance(current, Item | Attr):
            stack += [(v, depth + 1) for v in yielded_part(entry, current)] or [(current.of, depth + 1)]
        elif isinstance(current, Display) and isinstance(current.expr.node, ast.List | ast.Tuple):
            stack += [(v, depth + 1) for v in entry.values.elements(current, current.expr) if _may_hold(v)]


def yielded_part(entry: EntryFacts, value: Item | Attr) -> Iterator[Value]:
    """Yield what a place of a tuple holds that a function of the root yields (`for rows, loader in made():`)."""
    made = value.of.of if isinstance(value.of, Item) else None
    if isinstance(value, Item) and isinstance(made, Result) and isinstance(made.of, Func):
        func = made.of
        for node in own_nodes(func.node):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and isinstance(value.key, int):
                if value.key < len(node.value.elts):
                    yield from entry.values.of(
                        Expr(func.module, node.value.elts[value.key], Frame(func, made.call, func.receiver))
                    )


def _may_hold(value: Value) -> bool:
    return isinstance(value, Inst | Result | Item | Display)


def generator(entry: EntryFacts, value: Value) -> Pipe | None:
    """Return a batch generator of the root: a function that yields, or an object whose class says how to iterate."""
    if isinstance(value, Result) and isinstance(value.of, Func) and not _hands_on(value.of):
        return Pipe(value.call, "generator", None, None, training=True, value=value)
    if isinstance(value, Inst) and isinstance(value.of, Cls):
        if any(entry.values.method(value.of, name) for name in ("__next__", "__iter__", "next_batch")):
            return Pipe(value.call, "generator", None, None, training=True, value=value)
    return None


def _hands_on(func: Func) -> bool:
    """Say whether a function only yields what it iterates over of a parameter, as a logger around a loader does."""
    names = {argument.arg for argument in func.node.args.args}
    loops = [node for node in own_nodes(func.node) if isinstance(node, ast.For)]
    handed = {
        name.id
        for loop in loops
        if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(loop.iter))
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name)
    }
    yields = [node.value for node in own_nodes(func.node) if isinstance(node, ast.Yield)]
    return bool(yields) and all(isinstance(value, ast.Name) and value.id in handed for value in yields)
