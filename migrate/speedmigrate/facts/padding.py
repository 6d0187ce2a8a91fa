"""The static padding of a run: which `__getitem__` pads, every loader in the root that serves its rows, and whether all
of them stay right when the padding leaves the data set and a collator pads each batch instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from speedmigrate.facts.contracts import Contract, Served, contract, padded_fields
from speedmigrate.facts.entry import EntryFacts, looks_like_entry
from speedmigrate.facts.loaders import loaders, sources
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.rowvalue import Number, Record, Rows, Seq, Side
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.uses import stray_uses
from speedmigrate.facts.value import Cls, Expr, Func
from speedmigrate.rule import Hop


@dataclass(slots=True, eq=False)
class Padded:
    """One `__getitem__` that pads to a fixed length.

    Attributes:
        refusals: why the padding must stay (empty: it can go).
    """

    func: Func
    rows: list[Rows]
    side: Side
    served: list[Served] = field(default_factory=list)
    refusals: list[Hop] = field(default_factory=list)

    @property
    def name(self) -> str:
        parent = self.func.module.parents[self.func.node]
        owner = f"{parent.name}." if isinstance(parent, ast.ClassDef) else ""
        return owner + getattr(self.func.node, "name", "")


def padded_datasets(entry: EntryFacts) -> tuple[Padded, ...]:
    """Return the padding `__getitem__`s of a run, with all their users in the root (worked out once)."""
    return entry.once("padded", _padded_datasets)


def _padded_datasets(entry: EntryFacts) -> tuple[Padded, ...]:
    found: dict[ast.AST, Padded] = {}
    for served in _served(entry):
        for rows in served.leaves:
            side = _side(rows)
            if rows.func is None or (side is None and not rows.drops):
                continue
            group = found.setdefault(rows.func.node, Padded(rows.func, [], side or "right"))
            group.rows.append(rows)
    for group in found.values():
        _collect_users(entry, group)
        _refuse(group)
    return tuple(found.values())


def _served(entry: EntryFacts) -> tuple[Served, ...]:
    return entry.once("served", _find_served)


def _find_served(entry: EntryFacts) -> tuple[Served, ...]:
    found = []
    for loader in loaders(entry):
        opened = [sources(entry.values, expr) for _, expr in loader.datasets]
        leaves = tuple(rows for each in opened for rows in each.leaves)
        if leaves:
            found.append(Served(entry, loader, leaves, tuple(node for each in opened for node in each.wrappers)))
    return tuple(found)


def _side(rows: Rows) -> Side | None:
    sides = {run.side for run in padded_fields(rows).values()}
    return sides.pop() if len(sides) == 1 else None


def _collect_users(entry: EntryFacts, group: Padded) -> None:
    owner = group.func.module.parents[group.func.node]
    assert isinstance(owner, ast.ClassDef)
    entries = {entry.path: entry}
    wanted = _constructions(entry, Cls(group.func.module, owner, group.func.outer))
    for path in {path for call in wanted for path in starters(entry, call.module.path)}:
        if path not in entries:
            entries[path] = EntryFacts(entry.project, path, entry.target, entry.options, entry.values)
    seen: set[ast.AST] = set()
    loaded: set[ast.AST] = set()
    for path in sorted(entries):
        for served in _served(entries[path]):
            mine = [rows for rows in served.leaves if rows.func is not None and rows.func.node is group.func.node]
            if mine:
                seen |= {rows.dataset.call.node for rows in mine}
                if served.loader.site.node not in loaded:
                    loaded.add(served.loader.site.node)
                    group.served.append(served)
    for path in sorted(entries):
        built = {node for rows in _served_rows(entries[path], group) for node in rows}
        group.refusals += stray_uses(entries[path], built, rows=True)
    for path in entry.project.unreadable_mentioning(owner.name):
        group.refusals.append(Hop(path, 1, f"this file mentions {owner.name} and cannot be parsed"))
    for call in wanted:
        if call.node not in seen:
            group.refusals.append(
                call.hop(f"`{' '.join(call.text.split())[:50]}` is built here too and not followed to a loader")
            )


def _served_rows(entry: EntryFacts, group: Padded) -> Iterator[set[ast.AST]]:
    """Yield the calls that build the data sets of a group and the data sets that pass their rows on."""
    for served in _served(entry):
        mine = [rows for rows in served.leaves if rows.func is not None and rows.func.node is group.func.node]
        if mine:
            yield {rows.dataset.call.node for rows in mine} | set(served.wrappers)


def _constructions(entry: EntryFacts, cls: Cls) -> list[Expr]:
    """Return every call in the root that makes an object of the class or of a subclass that inherits its rows."""
    classes = {cls.node: cls}
    queue = [cls]
    while queue:
        current = queue.pop()
        for module in entry.project.modules_mentioning(current.node.name):
            for node in module.nodes:
                if isinstance(node, ast.ClassDef) and node not in classes:
                    candidate = Cls(module, node)
                    if any(isinstance(b, Cls) and b.node is current.node for b in entry.values.mro(candidate)[1:]):
                        classes[node] = candidate
                        queue.append(candidate)
    inheriting = {}
    for node, candidate in classes.items():
        found = entry.values.method(candidate, "__getitem__")
        own = entry.values.method(cls, "__getitem__")
        if found is not None and own is not None and found.node is own.node:
            inheriting[node] = candidate
    calls: list[Expr] = []
    for node, candidate in classes.items():
        found = entry.values.method(candidate, "__getitem__")
        if node not in inheriting and found is not None and "__getitem__(" in candidate.module.text(found.node):
            calls.append(Expr(candidate.module, ast.copy_location(ast.Name(node.name, ast.Load()), node)))
    for candidate in inheriting.values():
        for module in entry.project.modules_mentioning(candidate.node.name):
            for node in module.nodes:
                if isinstance(node, ast.Call) and not isinstance(node.func, ast.Call):
                    expr = Expr(module, node, None)
                    values = entry.values.of(expr.at(node.func))
                    if any(isinstance(value, Cls) and value.node in inheriting for value in values):
                        if all(call.node is not node for call in calls):
                            calls.append(expr)
    return calls


def starters(entry: EntryFacts, path: str) -> set[str]:
    """Return the entry points whose run can reach a file: itself or what imports it."""
    found: set[str] = set()
    queue, seen = [path], {path}
    while queue and len(seen) < 200:
        current = queue.pop()
        if looks_like_entry(entry.project, current):
            found.add(current)
        for importer in entry.project.importers(current):
            if importer not in seen:
                seen.add(importer)
                queue.append(importer)
    return found


def _refuse(group: Padded) -> None:
    """Collect every reason for which the padding must stay."""
    if isinstance(group.func.node, FunctionNode) and group.func.node.decorator_list:
        group.refusals.append(group.func.module.hop(group.func.node, f"{group.name} is decorated"))
    group.refusals += [*_shared_helpers(group), *_read_by_itself(group)]
    for rows in group.rows:
        group.refusals += [hop for hop in rows.problems if hop not in group.refusals]
        if _side(rows) is None:
            group.refusals.append(rows.hops[0])
        if any(not isinstance(record, Record) for record, _ in rows.returned):
            group.refusals.append(Hop(rows.hops[0].path, rows.hops[0].line, "a row is neither a dict nor a tuple"))
        for record, node in rows.returned:
            group.refusals += _shape_refusals(rows, record, node) if isinstance(record, Record) else []
    if not group.served:
        group.refusals.append(group.rows[0].hops[0])
    for served in group.served:
        found = contract(served)
        if isinstance(found, Contract):
            continue
        group.refusals += [hop for hop in found if hop not in group.refusals]


def _read_by_itself(group: Padded) -> Iterator[Hop]:
    """Yield places where a data set's own class reads its rows."""
    owners = {rows.dataset.of.node: rows.dataset.of for rows in group.rows if isinstance(rows.dataset.of, Cls)}
    for cls in owners.values():
        for function in cls.node.body:
            first = function.args.args[0].arg if isinstance(function, FunctionNode) and function.args.args else ""
            for node in ast.walk(function) if first else ():
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == first:
                    yield cls.module.hop(node, "the data set reads its own rows")


def _shared_helpers(group: Padded) -> Iterator[Hop]:
    """Yield helpers of the root that pad and are called from anywhere but the methods of these data sets."""
    owners = {rows.dataset.of.node for rows in group.rows if isinstance(rows.dataset.of, Cls)}
    owners.add(group.func.module.parents[group.func.node])  # type: ignore[arg-type]
    entry = group.served[0].entry if group.served else None
    for drop in {id(d.node): d for rows in group.rows for d in rows.drops}.values():
        function = drop.module.function(drop.node)
        if function is None or function is group.func.node or entry is None:
            continue
        for module in entry.project.modules_mentioning(function.name):
            for node in module.nodes:
                if isinstance(node, ast.Call) and called_name(node) == function.name:
                    around = {parent for parent in module.ancestors(node) if isinstance(parent, ast.ClassDef)}
                    if not around & owners:
                        yield module.hop(node, f"{function.name} pads for others too: {module.text(node)[:50]}")


def _shape_refusals(rows: Rows, record: Record, node: ast.AST) -> list[Hop]:
    assert rows.func is not None
    found = []
    cuts = {value.start + value.stop for _, value in record.items if isinstance(value, Seq) and value.runs}
    if len(cuts) > 1:
        found.append(rows.func.module.hop(node, "the padded fields are cut by different amounts"))
    for key, value in record.items:
        if isinstance(value, Number) and (value.padded or (value.value.is_fixed and value.value.terms)):
            found.append(rows.func.module.hop(node, f"field {key!r} is the fixed length"))
        if isinstance(value, Seq) and value.promoted:
            found.append(rows.func.module.hop(node, f"field {key!r} has its dtype by its padding alone"))
        if isinstance(value, Seq) and value.wide and not value.runs:
            found.append(rows.func.module.hop(node, f"field {key!r} is made with the fixed length"))
        if isinstance(value, Seq) and value.runs and value.start and value.runs[0].side == "left":
            found.append(rows.func.module.hop(node, f"field {key!r} is cut in front after left padding"))
    return found
