"""What the collator of a loader must do, and whether everything that gets its batches stays right with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.batches import read_compute_loss, read_loops
from speedmigrate.facts.carry import carry
from speedmigrate.facts.collates import stacks
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.forwards import width_problems
from speedmigrate.facts.loaders import Loader, sources
from speedmigrate.facts.models import Model, models
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.rowvalue import Record, Rows, Run, Seq
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.tracks import Pads, Use
from speedmigrate.facts.uses import stray_uses
from speedmigrate.facts.value import Cls, Const, Expr, Ext, Frame, Func, Inst, ModuleRef
from speedmigrate.rule import Hop

Key = str | int
# Methods that a Trainer subclass may define without touching how batches become a loss.
_HARMLESS = frozenset(
    "_save save_model _save_checkpoint create_optimizer create_scheduler create_optimizer_and_scheduler log "
    "_load_from_checkpoint save_state save_metrics print_trainable_parameters".split()
)
_SET_LATER = frozenset({"reduction", "ignore_index", "cross_entropy", "collate_fn", "forward"})
_PATCHED = frozenset({"compute_loss", "training_step", "forward", "neftune_noise_alpha", "group_by_length"})
_HOOKS = frozenset(
    "register_forward_hook register_forward_pre_hook register_full_backward_hook register_module_forward_hook".split()
)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One loader that serves rows of a padded data set, in the run of one entry point."""

    entry: EntryFacts
    loader: Loader
    leaves: tuple[Rows, ...]
    wrappers: tuple[ast.AST, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A field of the batch: the code of its pad value at the loader and the value where it is a plain constant."""

    key: Key
    code: str
    constant: object


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """What the batches of one loader hold, and what its users do with them."""

    slots: tuple[Slot, ...]
    width: int
    is_tuple: bool
    add_mask: bool
    models: tuple[Model, ...]
    hops: tuple[Hop, ...]
    trains: bool


def padded_fields(rows: Rows) -> dict[Key, Run]:
    """Return the padded fields of the rows of one data set."""
    return {
        key: value.runs[0]
        for record, _ in rows.returned
        if isinstance(record, Record)
        for key, value in record.items
        if isinstance(value, Seq) and value.runs
    }


def contract(served: Served) -> Contract | list[Hop]:
    """Work out what the collator of a loader must do, or why it cannot be right (worked out once)."""
    return served.entry.once(f"contract:{id(served.loader.site.node)}", lambda _: _contract(served))


def _contract(served: Served) -> Contract | list[Hop]:
    entry, loader = served.entry, served.loader
    problems: list[Hop] = []
    if loader.spread:
        return [loader.site.expr.hop("the loader gets arguments through * or **")]
    for _, expr in loader.datasets:
        problems += sources(entry.values, expr).unknown
    problems += _collate_problems(entry, loader)
    slots, width, is_tuple, missing = _slots(served)
    problems += missing
    if problems:
        return problems
    if loader.kind == "Trainer":
        return _trainer_contract(served, slots)
    return _loop_contract(served, slots, width, is_tuple)


def _collate_problems(entry: EntryFacts, loader: Loader) -> list[Hop]:
    if loader.collate is None:
        return []
    found = []
    for value in entry.values.of(loader.collate):
        if not stacks(entry.values, value) and not (isinstance(value, Const) and value.value is None):
            what = f"the collate `{loader.collate.text[:40]}` is not seen to do nothing but stack"
            found.append(loader.collate.hop(what))
    return found


def _slots(served: Served) -> tuple[tuple[Slot, ...], int, bool, list[Hop]]:
    problems: list[Hop] = []
    codes: dict[Key, Slot] = {}
    keys: list[tuple[Rows, set[Key]]] = []
    tuples: set[bool] = set()
    for rows in served.leaves:
        for key, run in padded_fields(rows).items():
            code = carry(served.entry.values, run.value, served.loader.site.expr)
            if code is None:
                problems.append(
                    run.value.hop(f"the pad value `{run.value.text}` cannot be written at {served.loader.hop.path}")
                )
                continue
            value = served.entry.values.one(run.value)
            slot = Slot(key, code, value.value if isinstance(value, Const) else None)
            if codes.setdefault(key, slot) != slot:
                problems.append(
                    run.value.hop(f"field {key!r} is padded with {code} here and {codes[key].code} elsewhere")
                )
        for record, _ in rows.returned:
            if isinstance(record, Record):
                tuples.add(record.is_tuple)
                keys.append((rows, {key for key, _ in record.items}))
            else:
                problems.append(Hop(rows.hops[0].path, rows.hops[0].line, "a row is neither a dict nor a tuple"))
    for rows, present in keys:
        for key in set(codes) - present:
            problems.append(Hop(rows.hops[0].path, rows.hops[0].line, f"a row of this data set has no field {key!r}"))
    if len(tuples) > 1:
        problems.append(served.loader.hop)
    problems += _late_pads(served, codes)
    ordered = tuple(sorted(codes.values(), key=lambda slot: (str(type(slot.key)), _order(served, slot.key))))
    width = max((len(present) for _, present in keys), default=0)
    return ordered, width, tuples == {True}, problems


def _late_pads(served: Served, codes: dict[Key, Slot]) -> Iterator[Hop]:
    """Yield places that set the pad token of an object after the loader, where its value is read, is built."""
    attributes = {word for slot in codes.values() for word in slot.code.split(".")[1:]}
    for rows in served.leaves:
        for run in padded_fields(rows).values():
            attributes |= {child.id for child in ast.walk(run.value.node) if isinstance(child, ast.Name)} - {"self"}
    runs = [run for rows in served.leaves for run in padded_fields(rows).values()]
    constants = {n.attr for run in runs for n in ast.walk(run.value.node) if isinstance(n, ast.Attribute)}
    site = served.loader.site
    home = site.module.scope(site.node)
    for module, scope, frame in served.entry.scopes:
        for node in own_nodes(scope):
            added = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if added and node.func.attr == "add_special_tokens":  # type: ignore[attr-defined]
                line = _line_at_home(module, scope, frame, node, home)
                if line is None or line > site.node.lineno:
                    yield module.hop(node, "special tokens may be added after the loader is built")
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
                continue
            owners = served.entry.values.of(Expr(module, node.value, frame)) if node.attr in constants else ()
            if any(isinstance(owner, ModuleRef | Cls) for owner in owners):
                yield module.hop(node, f"`{module.text(node)}` changes a constant of another file")
            if node.attr in attributes | {"pad_token", "pad_token_id"}:
                line = _line_at_home(module, scope, frame, node, home)
                if line is None or line > site.node.lineno:
                    yield module.hop(node, f"`{module.text(node)}` may be set after the loader is built")


def _line_at_home(module: Module, scope: ast.AST, frame: Frame | None, node: ast.AST, home: ast.AST) -> int | None:
    """Return the line in the loader's function at which a statement runs, through the calls that lead to it."""
    line: int = node.lineno  # type: ignore[attr-defined]
    while scope is not home:
        if frame is None or frame.call is None:
            return None
        call = frame.call
        line, scope, frame = call.node.lineno, call.module.scope(call.node), call.frame
    return line


def _order(served: Served, key: Key) -> int:
    for rows in served.leaves:
        for record, _ in rows.returned:
            if isinstance(record, Record):
                names = [name for name, _ in record.items]
                if key in names:
                    return names.index(key)
    return 0


def _trainer_contract(served: Served, slots: tuple[Slot, ...]) -> Contract | list[Hop]:
    entry, loader = served.entry, served.loader
    expr = loader.argument("model")
    found = () if expr is None else models(entry.values, expr)
    problems = list(_override_problems(served, slots, found))
    if not found:
        problems.append(loader.site.expr.hop("the Trainer's model is not an argument that can be followed"))
    names = {slot.key for slot in slots}
    problems += [_not_causal(model, loader) for model in found if not model.is_causal_lm]
    problems += _label_problems(loader, slots, {"labels"})
    problems += _mask_problems(loader, slots)
    problems += _trainer_problems(entry, loader)
    if problems:
        return problems
    hops = [loader.hop]
    if expr is not None:
        what = "right pads do not reach earlier positions, labels of -100 are left out"
        hops.append(expr.hop(f"the model is {found[0].name}: {what}"))
    add_mask = "attention_mask" not in names and all(isinstance(slot.key, str) for slot in slots)
    return Contract(slots, 0, False, add_mask, found, tuple(hops), True)


def _override_problems(served: Served, slots: tuple[Slot, ...], found: tuple[Model, ...]) -> Iterator[Hop]:
    """Yield why methods of a Trainer's subclass forbid it; a `compute_loss` is read like a loop."""
    entry, loader = served.entry, served.loader
    for callee in loader.site.callees:
        for base in entry.values.mro(callee) if isinstance(callee, Cls) else ():
            for node in base.node.body if isinstance(base, Cls) else ():
                assert isinstance(base, Cls)
                if not isinstance(node, FunctionNode) or node.name in _HARMLESS:
                    continue
                if node.name == "__init__" and "collator" not in base.module.text(node):
                    continue
                if node.name != "compute_loss":
                    yield base.module.hop(node, f"`{base.node.name}.{node.name}` overrides the Trainer's own")
                    continue
                func = Func(base.module, node, Inst(callee, loader.site.expr) if isinstance(callee, Cls) else None)
                pads = {slot.key: Pads(slot.constant, slot.code) for slot in slots}
                yield from read_compute_loss(entry, func, loader, pads, found).problems


def _not_causal(model: Model, loader: Loader) -> Hop:
    return _model_hop(model, loader, "is not known to be a causal language model, so pads may be attended")


def _label_problems(loader: Loader, slots: tuple[Slot, ...], keys: set[Key]) -> list[Hop]:
    """A model of transformers leaves labels of -100 out of its loss, and only those."""
    return [
        loader.site.expr.hop(f"field {slot.key!r} is padded with {slot.code}, which the model's loss counts")
        for slot in slots
        if slot.key in keys and slot.constant != -100
    ]


def _mask_problems(loader: Loader, slots: tuple[Slot, ...]) -> list[Hop]:
    return [
        loader.site.expr.hop(f"the attention mask is padded with {slot.code}")
        for slot in slots
        if slot.key == "attention_mask" and slot.constant not in {0}
    ]


def _hook_problems(entry: EntryFacts) -> Iterator[Hop]:
    """Yield hooks that see the hidden states, and losses of a router that count every position."""
    for module, scope, _ in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in _SET_LATER:
                if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                    yield module.hop(node, f"`{module.text(node)}` is set at run time")
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr in _HOOKS:
            yield site.expr.hop("a hook sees the padded positions")
        names = {callee.name for callee in site.callees if isinstance(callee, Ext)}
        if names & {"builtins.exec", "builtins.eval", "builtins.globals"}:
            yield site.expr.hop("what is made at run time is not read")
        if "builtins.setattr" in names and site.node.args:
            owners = entry.values.of(site.expr.at(site.node.args[0]))
            if any(isinstance(owner, ModuleRef | Cls) for owner in owners):
                yield site.expr.hop("a constant is set at run time")
        if call_argument(site.node, None, "output_router_logits") is not None:
            yield site.expr.hop("the router's loss counts every position")


def _trainer_problems(entry: EntryFacts, loader: Loader) -> Iterator[Hop]:
    """Yield what else of a run under HF Trainer reads the padded width."""
    yield from _hook_problems(entry)
    yield from _callbacks(entry)
    for name in ("compute_metrics", "preprocess_logits_for_metrics", "compute_loss_func"):
        given = loader.argument(name)
        if given is not None and not (isinstance(given.node, ast.Constant) and given.node.value is None):
            yield given.hop(f"{name} may read the padded width")
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "predict":
            yield site.expr.hop("predictions over the padded width are read")
        for word in ("neftune_noise_alpha", "group_by_length"):
            given_word = call_argument(site.node, None, word)
            if given_word is not None and not (isinstance(given_word, ast.Constant) and not given_word.value):
                yield site.expr.hop(f"{word} depends on the padded length")
    for launch in entry.launches:
        for word in ("neftune_noise_alpha", "group_by_length"):
            flag = launch.flag(word)
            if flag is not None and flag.value not in {"False", "false", "0"}:
                yield Hop(launch.path, flag.line, f"--{word} depends on the padded length")
    for module, scope, _ in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in _PATCHED:
                yield module.hop(node, f"`{module.text(node)}` is set at run time")
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == "data_collator":
                yield module.hop(node, "the collator is set again here")


def _callbacks(entry: EntryFacts) -> Iterator[Hop]:
    """Yield methods of the run's files that take the training loader, as a TrainerCallback's do."""
    for module in {module for module, _, _ in entry.scopes}:
        for node in module.nodes:
            if isinstance(node, FunctionNode) and "train_dataloader" in {a.arg for a in all_arguments(node.args)}:
                yield module.hop(node, "a callback reads the batches")


def _model_hop(model: Model, loader: Loader, why: str) -> Hop:
    return loader.site.expr.hop(f"{model.name} {why}")


def _loop_contract(served: Served, slots: tuple[Slot, ...], width: int, is_tuple: bool) -> Contract | list[Hop]:
    entry, loader = served.entry, served.loader
    use: Use = read_loops(entry, loader, {slot.key: Pads(slot.constant, slot.code) for slot in slots})
    problems = [*use.problems, *stray_uses(entry, {loader.site.node}, rows=False)]
    if not use.loops:
        return [loader.site.expr.hop("no loop over these batches is found")]
    if not use.models:
        problems.append(use.hops[0])
    hops = [loader.hop, *use.hops]
    for model in use.models:
        if model.is_transformers:
            if not model.is_causal_lm:
                problems.append(_not_causal(model, loader))
            continue
        found, causal = width_problems(entry.values, model, loader.site.expr)
        problems += found
        if causal is None:
            problems.append(_model_hop(model, loader, "is not seen to be causal, so pads are attended today"))
        elif causal not in hops:
            hops.append(causal)
    problems += [*_lost_labels(served, use), *_mask_problems(loader, slots), *_hook_problems(entry)]
    if problems:
        return problems
    hops += [hop for hop in use.counted.values() if hop not in hops]
    names = {slot.key for slot in slots}
    if any(model.is_transformers for model in use.models):
        problems += _label_problems(loader, slots, {"labels", *use.counted})
    if problems:
        return problems
    add_mask = (
        not is_tuple and "attention_mask" not in names and use.added_keys and all(m.is_transformers for m in use.models)
    )
    return Contract(slots, width, is_tuple, add_mask, tuple(use.models), tuple(hops), use.backward)


def _lost_labels(served: Served, use: Use) -> list[Hop]:
    """A field that the loss counts must not lose real positions when it is cut after stripping (`ids[:-1]`)."""
    found = []
    for rows in served.leaves:
        for record, node in rows.returned:
            for key, value in record.items if isinstance(record, Record) else ():
                if key in use.counted and isinstance(value, Seq) and value.runs and value.stop:
                    assert rows.func is not None
                    found.append(rows.func.module.hop(node, f"field {key!r} would lose its last real position"))
    return found
