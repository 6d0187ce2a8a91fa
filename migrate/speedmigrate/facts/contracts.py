"""What the collator of a loader must do, and whether everything that gets its batches stays right with it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from speedmigrate.facts.carry import carry
from speedmigrate.facts.collates import stacks
from speedmigrate.facts.consumers import consumers, reads_predictions
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader, sources
from speedmigrate.facts.models import Model
from speedmigrate.facts.module import Module
from speedmigrate.facts.rowvalue import Record, Rows, Run, Seq
from speedmigrate.facts.syntax import call_argument, has_spread, own_nodes
from speedmigrate.facts.tracks import Pads, Use
from speedmigrate.facts.trainer_use import grouped
from speedmigrate.facts.value import Cls, Const, Expr, Frame, ModuleRef
from speedmigrate.rule import Hop

Key = str | int
# What models of transformers take, so that the Trainer leaves it in the rows.
_TAKEN = frozenset(
    "input_ids attention_mask labels token_type_ids position_ids decoder_input_ids decoder_attention_mask".split()
)
_IGNORED = -100  # the `ignore_index` of every loss of transformers


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
    """What the batches of one loader hold, and what its users do with them.

    Attributes:
        groups: fields of which each set is equally long in a row, empty where all are; a batch has one width for all.
        corrects: what pads did to the loss before and what it is without them, where that is not the same.
    """

    slots: tuple[Slot, ...]
    width: int
    is_tuple: bool
    add_mask: bool
    models: tuple[Model, ...]
    hops: tuple[Hop, ...]
    trains: bool
    groups: tuple[tuple[Key, ...], ...] = ()
    corrects: tuple[str, ...] = ()


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
    if has_spread(loader.site.node):
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
    read = _settled(slots, lambda slots: consumers(served.entry, served.loader, _pads(slots)))
    use, slots = read.use, read.slots
    problems = [*use.problems, *use.corrects, *grouped(served.entry), *_dropped(served, slots)]
    if problems:
        return problems
    if reads_predictions(served.entry, served.loader) and not all("ForSequence" in m.name for m in use.models):
        what = "evaluation reads predictions of the padded width, through the same collator"
        return [served.loader.site.expr.hop(what)]
    names = {slot.key for slot in slots}
    add_mask = "attention_mask" not in names and all(isinstance(slot.key, str) for slot in slots)
    groups = _groups(served, slots)
    return Contract(slots, 0, False, add_mask, tuple(use.models), tuple(use.hops), True, groups, read.corrects)


def _dropped(served: Served, slots: tuple[Slot, ...]) -> Iterator[Hop]:
    """Yield fields that HF Trainer takes out before the collator where the model does not take them: then one that the
    collator must pad is missing."""
    for site in served.entry.sites:
        given = call_argument(site.node, None, "remove_unused_columns")
        if isinstance(given, ast.Constant) and given.value is False:
            return
    for slot in slots:
        if slot.key not in _TAKEN:
            yield served.loader.site.expr.hop(
                f"field {slot.key!r} may be taken out by the Trainer (remove_unused_columns)"
            )


@dataclass(frozen=True, slots=True)
class _Settled:
    use: Use
    slots: tuple[Slot, ...]
    corrects: tuple[str, ...] = ()


def _settled(slots: tuple[Slot, ...], read: Callable[[tuple[Slot, ...]], Use]) -> _Settled:
    """Pad labels that the loss counts today with what it leaves out. Nothing else that pads did may change."""
    use = read(slots)
    labels = next((slot for slot in slots if slot.key == "labels" and slot.constant != _IGNORED), None)
    if use.problems or not use.corrects or labels is None or not all(m.is_transformers for m in use.models):
        return _Settled(use, slots)
    ignored = replace(labels, code=str(_IGNORED), constant=_IGNORED)
    other = tuple(ignored if slot is labels else slot for slot in slots)
    found = read(other)
    if found.problems or found.corrects:
        return _Settled(use, slots)
    text = (
        f"before: the labels of pads were {labels.code}, which the loss counted as tokens to predict; after: the "
        f"collator pads them with {_IGNORED}, which the loss leaves out, so that it is the loss of the real tokens"
    )
    return _Settled(found, other, (text,))


def _groups(served: Served, slots: tuple[Slot, ...]) -> tuple[tuple[Key, ...], ...]:
    """Return the fields in sets that are surely equally long in a row: those that were filled by the same gap."""
    found: dict[tuple[object, ...], list[Key]] = {}
    fields = [padded_fields(rows) for rows in served.leaves]
    for slot in slots:
        found.setdefault(tuple(each[slot.key].width for each in fields if slot.key in each), []).append(slot.key)
    return tuple(tuple(keys) for keys in found.values()) if len(found) > 1 else ()


def _pads(slots: tuple[Slot, ...]) -> dict[Key, Pads]:
    return {slot.key: Pads(slot.constant, slot.code) for slot in slots}


def _mask_problems(loader: Loader, slots: tuple[Slot, ...]) -> list[Hop]:
    return [
        loader.site.expr.hop(f"the attention mask is padded with {slot.code}")
        for slot in slots
        if slot.key == "attention_mask" and slot.constant not in {0}
    ]


def _loop_contract(served: Served, slots: tuple[Slot, ...], width: int, is_tuple: bool) -> Contract | list[Hop]:
    loader = served.loader
    read = _settled(slots, lambda slots: consumers(served.entry, loader, _pads(slots)))
    use, slots = read.use, read.slots
    problems = [*use.problems, *use.corrects, *_lost_labels(served, use), *_mask_problems(loader, slots)]
    if problems:
        return problems
    hops = dict.fromkeys((loader.hop, *use.hops, *use.counted.values()))
    names = {slot.key for slot in slots}
    is_library = all(model.is_transformers for model in use.models)
    add_mask = not is_tuple and "attention_mask" not in names and use.added_keys and is_library
    groups = _groups(served, slots)
    return Contract(
        slots, width, is_tuple, add_mask, tuple(use.models), tuple(hops), use.backward, groups, read.corrects
    )


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
