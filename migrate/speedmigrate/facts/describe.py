"""What the tool understood of one entry point, as a nested list that a person can read; every line has its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from speedmigrate.facts.contracts import padded_fields
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.hftrainer import trainer_settings
from speedmigrate.facts.loaders import Loader, loaders, sources
from speedmigrate.facts.places import anchor
from speedmigrate.facts.rowvalue import Record, Rows
from speedmigrate.facts.value import Cls, Ext

_TOLD = ("AdamW", "Adam", "GradScaler", "autocast", "DistributedDataParallel", "get_peft_model", "initialize", "save")


def describe(entry: EntryFacts) -> list[Any]:
    """Return the chain from loaders to rows, model, optimizer and launch files."""
    lines: list[Any] = [
        f"{entry.path}: {'trains' if entry.trains else 'no training code found'}",
        [f"target: {entry.target}"],
    ]
    for loader in loaders(entry):
        lines.append(list(_loader(entry, loader)))
    found = anchor(entry)
    if found is not None:
        names = ", ".join(sorted({model.name for model in found.models}))
        lines.append([f"model: {names}, complete at {found.module.place(found.statement)}"])
    lines += [[line] for line in _calls(entry)]
    for settings in trainer_settings(entry):
        where = settings.arguments.value.call
        how = "written out" if settings.arguments.literal else "from flags"
        lines.append([f"arguments: {how} ({where.module.place(where.node)})"])
    lines += [list(_launch(launch)) for launch in entry.launches]
    return lines


def _loader(entry: EntryFacts, loader: Loader) -> Iterator[Any]:
    yield f"{loader.kind} ({loader.site.module.place(loader.site.node)})"
    collate = "the default" if loader.collate is None else loader.collate.text.splitlines()[0][:60]
    yield [f"collate: {collate}"]
    for name, expr in loader.datasets:
        found = sources(entry.values, expr)
        yield [f"{name}: {expr.text.splitlines()[0][:60]}", *(list(_rows(rows)) for rows in found.leaves)]
        yield [[f"not followed: {hop.what} ({hop.path}:{hop.line})"] for hop in found.unknown]


def _rows(rows: Rows) -> Iterator[Any]:
    assert isinstance(rows.dataset.of, Cls)
    where = (
        rows.dataset.of.module.place(rows.dataset.of.node)
        if rows.func is None
        else rows.func.module.place(rows.func.node)
    )
    yield f"{rows.dataset.of.node.name}.__getitem__ ({where})"
    padded = padded_fields(rows)
    for record, _ in rows.returned:
        if isinstance(record, Record):
            fields = (
                f"{key!r} padded on the {padded[key].side} with {padded[key].value.text}"
                if key in padded
                else repr(key)
                for key, _ in record.items
            )
            yield [f"{'tuple' if record.is_tuple else 'dict'}: {', '.join(fields)}"]
    yield [[f"not followed: {hop.what} ({hop.path}:{hop.line})"] for hop in rows.problems]


def _calls(entry: EntryFacts) -> Iterator[str]:
    seen: set[int] = set()
    for site in entry.sites:
        for callee in site.callees:
            if isinstance(callee, Ext) and callee.last in _TOLD and id(site.node) not in seen:
                seen.add(id(site.node))
                yield f"{callee.name} ({site.module.place(site.node)})"


def _launch(launch: Any) -> Iterator[Any]:
    yield f"started by {launch.path}:{launch.line} ({launch.launcher})"
    flags = (f"--{flag.name}" + (f" {flag.value}" if flag.value is not None else "") for flag in launch.flags)
    yield [" ".join(flags)]
    if launch.configs:
        yield [f"configs: {', '.join(launch.configs)}"]
