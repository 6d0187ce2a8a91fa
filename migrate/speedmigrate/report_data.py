"""The report as data: JSON after `report.schema.json`, and Markdown for a pull request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from speedmigrate import __version__
from speedmigrate.plan import EntryPlan, Planned
from speedmigrate.report import Report, printable, summary
from speedmigrate.rule import Goal
from speedmigrate.series import cost_lines
from speedmigrate.target import Target
from speedmigrate.verdict import GoalVerdict


def json_report(report: Report) -> str:
    """Return the report as JSON (DESIGN 3), keys and order fixed."""
    return json.dumps(report_dict(report), ensure_ascii=True, indent=2) + "\n"


def report_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain data."""
    entries = report.plan.entries
    return {
        "speedmigrate": __version__,
        "root": report.root,
        "target": target_data(report.target),
        "entries": [_entry(entry, report.target) for entry in entries],
        "findings": [_finding(planned) for entry in entries for planned in entry.findings],
        "errors": [{"path": path, "message": message} for path, message in report.errors],
    }


def target_data(target: Target) -> dict[str, str]:
    """Return a target as plain data."""
    return {
        "torch": ".".join(map(str, target.torch)),
        "torch_from": target.torch_from,
        "transformers": ".".join(map(str, target.transformers)),
        "transformers_from": target.transformers_from,
        "arch": f"sm_{target.arch}",
        "arch_from": target.arch_from,
    }


def _entry(entry: EntryPlan, target: Target) -> dict[str, Any]:
    data: dict[str, Any] = {
        "path": entry.path,
        "verdicts": _verdicts(entry.verdicts),
        "launches": [
            {"path": launch.path, "via": list(launch.via), "verdicts": _verdicts(launch.verdicts)}
            for launch in entry.launches
        ],
    }
    return data if entry.target == target else data | {"target": target_data(entry.target)}


def _verdicts(verdicts: Mapping[Goal, GoalVerdict]) -> dict[str, Any]:
    return {
        goal: {"verdict": told.verdict, "reasons": list(told.reasons), "places": list(told.places)}
        for goal, told in verdicts.items()
    }


def _finding(planned: Planned) -> dict[str, Any]:
    finding = planned.finding
    return {
        "id": planned.id,
        "group": finding.group,
        "code": finding.code,
        "rule": finding.rule,
        "goal": finding.goal,
        "status": finding.status,
        "effect": finding.effect,
        "needs": list(finding.needs),
        "path": finding.place.path,
        "line": finding.place.line,
        "end_line": finding.place.end_line,
        "message": finding.message,
        "evidence": [{"path": hop.path, "line": hop.line, "what": hop.what} for hop in finding.evidence],
        "entry": planned.entry,
    }


def markdown_report(report: Report) -> str:
    """Return the report as GitHub Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    yield f"Target: {escape(str(report.target))}"
    for entry in report.plan.entries:
        yield from ("", f"### {code(entry.path)}", "")
        if not entry.trains:
            yield "No training code found."
            continue
        rows = [(goal, told.verdict, " ".join(map(code, told.places))) for goal, told in entry.verdicts.items()]
        yield from markdown_table(("goal", "verdict", "places"), rows)
        if entry.findings:
            yield ""
        for planned in entry.findings:
            yield from _markdown_finding(planned)
    if report.errors:
        yield from ("", "Could not be read:", "")
        yield from (f"- {escape(message)}" for _, message in report.errors)
    yield from ("", f"{escape(summary(report))}.")


def _markdown_finding(planned: Planned) -> Iterator[str]:
    finding = planned.finding
    effect = f", {finding.effect}" if finding.effect else ""
    yield (
        f"- **{finding.code}** {escape(finding.rule)} ({finding.status}{effect}) {code(str(finding.place))}: "
        + escape(finding.message)
    )
    if finding.status == "change":
        yield from (f"  - {escape(line)}" for line in cost_lines(finding))
    yield from (f"  - {code(f'{hop.path}:{hop.line}')} {escape(hop.what)}" for hop in finding.evidence)


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table; cells are Markdown already."""
    head = tuple(head)
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|~" else c for c in printable(text))


def code(text: str) -> str:
    """Return text as a code span."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{printable(text)}{fence}"
