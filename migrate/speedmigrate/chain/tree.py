"""The facts for a reader: a tree of hops, each word with its place, and what only a reader wants beside the words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from speedmigrate.chain.fact import Fact
from speedmigrate.chain.report import Ask, EntryReport, FactsReport
from speedmigrate.facts.contracts import padded_fields
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.hftrainer import trainer_settings
from speedmigrate.facts.loaders import loaders, sources
from speedmigrate.facts.places import anchor
from speedmigrate.facts.rowvalue import Record, Rows, Run
from speedmigrate.facts.value import Cls, Inst
from speedmigrate.report import Line, labelled, plain, printable
from speedmigrate.rule import Hop

_NONE = (
    "no training code found: no script here starts a run (a call at its top, or under `if __name__`) that reaches "
    "`backward()`, or `train()` or `fit()` of a Trainer"
)
_MAX_FACTS = 8
_MAX_PLACES = 4
_MAX_TEXT = 140


def tree_lines(report: FactsReport) -> Iterator[Line]:
    """Yield the facts line by line; the first names the target and where it came from."""
    yield labelled(0, "target: ", str(report.target), "bold")
    for entry in report.entries:
        yield plain(0, "")
        yield plain(0, entry.path, "bold underline")
        if entry.target != report.target:
            yield labelled(2, "target: ", str(entry.target), "bold")
        yield from _entry(entry)
    if not report.entries:
        yield from (plain(0, ""), plain(0, _NONE))
    if report.errors:
        yield plain(0, "")
        yield plain(0, "errors", "bold red")
        yield from (plain(2, message) for _, message in report.errors)


def _entry(entry: EntryReport) -> Iterator[Line]:
    if not entry.trains:
        yield plain(2, "no training code found", "yellow")
        yield from (_place(4, "", hop) for hop in entry.why[:_MAX_PLACES])
        yield from _more(4, len(entry.why) - _MAX_PLACES)
    groups: dict[str, list[Fact]] = {}
    for fact in _merged(entry.facts):
        groups.setdefault(fact.name.partition(".")[0], []).append(fact)
    for hop, facts in groups.items():
        yield plain(2, hop, "bold")
        yield from _group(facts)


def _merged(facts: Iterable[Fact]) -> Iterable[Fact]:
    """Return the facts with those that say the same of several places made one."""
    found: dict[tuple[str, str | None, str], Fact] = {}
    for fact in facts:
        key = (fact.name, fact.value, fact.detail)
        old = found.get(key, Fact(*key))
        found[key] = replace(old, evidence=old.evidence + fact.evidence, unknown=old.unknown + fact.unknown)
    return found.values()


def _group(facts: Sequence[Fact]) -> Iterator[Line]:
    """Yield the facts of one hop; a place that stands under one of them is not told again under the next."""
    told: set[Hop] = set()
    for name in dict.fromkeys(fact.name for fact in facts):
        same = [fact for fact in facts if fact.name == name]
        for fact in same[:_MAX_FACTS]:
            yield _head(fact)
            told.update(fact.evidence[:1])
            yield from _places(6, "", [hop for hop in fact.evidence[1:] if hop not in told])
            yield from _places(6, "unknown: ", fact.unknown if fact.value is not None else fact.unknown[1:])
            told.update(fact.evidence)
        yield from _more(4, len(same) - _MAX_FACTS)


def _head(fact: Fact) -> Line:
    """Return the line of a fact: its word, what stands beside it and the place that decides."""
    question = f"{fact.name.partition('.')[2]}: "
    if fact.value is None:
        hop = fact.unknown[0]
        beside = f": {fact.detail}: {hop.what}" if fact.detail else f": {hop.what}"
        return Line(4, Text.assemble(question, ("unknown", "yellow"), _short(beside), *_at(hop)))
    beside = fact.detail or "".join(hop.what for hop in fact.evidence[:1])
    known = {"", fact.value, *(hop.path for hop in fact.evidence[:1])}
    beside = "" if beside in known else f", {beside}"
    places = (part for hop in fact.evidence[:1] for part in _at(hop))
    return Line(4, Text.assemble(question, (fact.value, "bold"), _short(beside), *places))


def _places(indent: int, label: str, hops: Sequence[Hop]) -> Iterator[Line]:
    hops = list(dict.fromkeys(hops))
    yield from (_place(indent, label, hop) for hop in hops[:_MAX_PLACES])
    yield from _more(indent, len(hops) - _MAX_PLACES)


def _place(indent: int, label: str, hop: Hop) -> Line:
    return Line(indent, Text.assemble((label, "yellow"), _short(hop.what), *_at(hop)))


def _at(hop: Hop) -> Iterator[str | tuple[str, str]]:
    yield from (" (", (printable(f"{hop.path}:{hop.line}"), "cyan"), ")")


def _more(indent: int, number: int) -> Iterator[Line]:
    if number > 0:
        yield plain(indent, f"… and {number} more", "dim")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return printable(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1].rstrip() + "…")


def rows(entry: EntryFacts) -> Iterator[Fact]:
    """Yield the rows of each data set class that pads them: the fields, on which side and with what."""
    seen: set[Inst] = set()
    for loader in loaders(entry):
        for _, expr in loader.datasets:
            for leaf in sources(entry.values, expr).leaves:
                if leaf.dataset not in seen and padded_fields(leaf):
                    seen.add(leaf.dataset)
                    yield from _rows(leaf)


def _rows(leaf: Rows) -> Iterator[Fact]:
    assert isinstance(leaf.dataset.of, Cls)
    assert leaf.func is not None
    name = leaf.dataset.of.node.name
    hop = leaf.func.module.hop(leaf.func.node, "its rows are made here")
    padded = padded_fields(leaf)
    for record in dict.fromkeys(record for record, _ in leaf.returned if isinstance(record, Record)):
        fields = ", ".join(_field(key, padded.get(key)) for key, _ in record.items)
        yield Fact("data.rows", "tuple" if record.is_tuple else "dict", f"{name}: {fields}", (hop,))
    if leaf.problems:
        yield Fact("data.rows", None, name, (), tuple(leaf.problems))


def _field(key: str | int, run: Run | None) -> str:
    name = f"[{key}]" if isinstance(key, int) else repr(key)
    return name if run is None else f"{name} padded on the {run.side} with {run.value.text}"


def complete(entry: EntryFacts) -> Iterator[Fact]:
    """Yield the statement at which the model has all its parts."""
    found = anchor(entry)
    if found is not None:
        names = ", ".join(sorted({model.name for model in found.models}))
        hop = found.module.hop(found.statement, "it has all its parts before this")
        yield Fact("model.complete", names, "", (hop,))


def arguments(entry: EntryFacts) -> Iterator[Fact]:
    """Yield where the arguments of each Trainer come from."""
    for settings in trainer_settings(entry):
        how = "written out" if settings.arguments.literal else "from flags"
        yield Fact("framework.arguments", how, "", (settings.arguments.value.call.hop(""),))


BESIDE: tuple[Ask, ...] = (rows, complete, arguments)
