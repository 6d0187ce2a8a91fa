"""What was understood of several entry points, gathered hop by hop, and as JSON after `facts.schema.json`."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from speedmigrate import __version__
from speedmigrate.analyse import BUG, one_line, target_of
from speedmigrate.chain.chain import HOPS
from speedmigrate.chain.fact import Fact
from speedmigrate.facts.entry import EntryFacts, entry_facts
from speedmigrate.facts.project import Project
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Cls, Func, Unknown
from speedmigrate.report import count
from speedmigrate.report_data import target_data
from speedmigrate.rule import Hop, Options
from speedmigrate.target import Target

Ask = Callable[[EntryFacts], Iterator[Fact]]
# Methods that a reader would look for where a run is not seen to train; nothing is concluded from these names.
_STARTS = frozenset("train fit run main launch start learn execute".split())


@dataclass(frozen=True, slots=True)
class EntryReport:
    """The facts of one entry point, or why it has none."""

    path: str
    target: Target
    trains: bool
    facts: tuple[Fact, ...] = ()
    why: tuple[Hop, ...] = ()


@dataclass(frozen=True, slots=True)
class FactsReport:
    """The facts of every entry point asked for; `target` is that of the first, others stand beside their own."""

    root: str
    target: Target
    entries: tuple[EntryReport, ...]
    errors: tuple[tuple[str, str], ...]


def gather(
    project: Project, paths: Sequence[str], options: Options, override: str | None, *, beside: Sequence[Ask] = ()
) -> FactsReport:
    """Ask every hop about every entry point; a hop that fails is a line of `errors` and loses nothing but its own.

    Args:
        paths: entry points of the project.
        override: the value of `--target`.
        beside: what is asked after the hops, for a reader of the text.
    """
    errors: dict[str, list[str]] = {}
    entries = []
    for path in paths:
        entry = entry_facts(project, path, target_of(project, path, override), options)
        entries.append(_entry(entry, (*HOPS, *beside), errors.setdefault(path, [])))
    for path, message in project.errors.items():
        errors.setdefault(path, []).append(message)
    told = tuple((path, message) for path in sorted(errors) for message in errors[path])
    target = entries[0].target if entries else target_of(project, "", override)
    return FactsReport(str(project.root), target, tuple(entries), told)


def _entry(entry: EntryFacts, asks: Sequence[Ask], errors: list[str]) -> EntryReport:
    try:
        trains = entry.trains
        why = () if trains else tuple(_why(entry))
    except Exception as error:  # the other entry points must not be lost
        errors.append(f"{entry.path}: could not be followed ({one_line(error)}). {BUG}")
        return EntryReport(entry.path, entry.target, False)
    facts: list[Fact] = []
    for ask in asks if trains else ():
        try:
            facts.extend(ask(entry))
        except Exception as error:  # the other hops must not be lost
            errors.append(
                f"{entry.path}: the hop {_name(ask)} failed ({one_line(error)}), so it says less than it could. {BUG}"
            )
    return EntryReport(entry.path, entry.target, trains, tuple(facts), why)


def _name(ask: Ask) -> str:
    return ask.__module__.rpartition(".")[2] if ask.__name__ == "facts" else ask.__name__


def _why(entry: EntryFacts) -> Iterator[Hop]:
    """Yield what was looked at where no training code was found, then the calls that may be it and are not followed."""
    files = len({module.path for module, _, _ in entry.scopes})
    looked = f"none of the calls that are followed from here ({len(entry.sites)} in {count(files, 'file')})"
    yield Hop(entry.path, 1, f"{looked} is `backward()`, or `train()` or `fit()` of a Trainer that is known")
    told: set[ast.Call] = set()
    for site in entry.sites:
        followed = any(isinstance(callee, Func | Cls) for callee in site.callees)
        if called_name(site.node) in _STARTS and not followed and site.node not in told:
            told.add(site.node)
            reasons = (callee.reason for callee in site.callees if isinstance(callee, Unknown))
            reason = next(reasons, "it leads out of the root, or to nothing that is known")
            yield site.expr.hop(f"`{' '.join(site.module.text(site.node.func).split())}()` is not followed: {reason}")


def json_report(report: FactsReport) -> str:
    """Return the facts as JSON, keys and order fixed."""
    return json.dumps(report_dict(report), ensure_ascii=True, indent=2) + "\n"


def report_dict(report: FactsReport) -> dict[str, Any]:
    """Return the facts as plain data."""
    return {
        "speedmigrate": __version__,
        "root": report.root,
        "target": target_data(report.target),
        "entries": [_entry_data(entry, report.target) for entry in report.entries],
        "errors": [{"path": path, "message": message} for path, message in report.errors],
    }


def _entry_data(entry: EntryReport, target: Target) -> dict[str, Any]:
    data: dict[str, Any] = {"path": entry.path, "trains": entry.trains, "facts": [_fact(fact) for fact in entry.facts]}
    return data if entry.target == target else data | {"target": target_data(entry.target)}


def _fact(fact: Fact) -> dict[str, Any]:
    return {
        "name": fact.name,
        "value": fact.value,
        "detail": fact.detail,
        "evidence": [_hop(hop) for hop in fact.evidence],
        "unknown": [_hop(hop) for hop in fact.unknown],
    }


def _hop(hop: Hop) -> dict[str, Any]:
    return {"path": hop.path, "line": hop.line, "what": hop.what}
