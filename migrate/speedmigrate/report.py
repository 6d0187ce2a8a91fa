"""The report for a reader: what was found, what changes, what it costs and why. `report_data.py` has JSON and Markdown.

Text of the user's files is never taken as markup, and its control characters are shown, not sent to the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from speedmigrate.plan import EntryPlan, Plan, Planned
from speedmigrate.rule import Finding
from speedmigrate.series import cost_lines
from speedmigrate.target import Target
from speedmigrate.verdict import GoalVerdict

HINT = "--diff shows the patch, --write applies it"
_VERDICT_STYLE = {"edit": "bold green", "config": "bold cyan", "refuse": "yellow", "report": "magenta", "noop": "dim"}
_SECTIONS = (("change", "changes"), ("refused", "left alone"), ("note", "to know"), ("done", "nothing to do"))


@dataclass(frozen=True, slots=True)
class Report:
    """A plan with what stands around it.

    Attributes:
        target: that of the first entry point; others are told beside their own.
        errors: files that could not be read.
        hint: what was done with the changes, or how to have it done.
    """

    root: str
    target: Target
    plan: Plan
    errors: tuple[tuple[str, str], ...] = ()
    hint: str = HINT


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report; where a terminal breaks it, the rest is indented like its start."""

    indent: int
    text: Text


def printable(text: str) -> str:
    """Return the text with control characters and lone surrogates escaped, on one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def plain(indent: int, text: str, style: str = "") -> Line:
    """Return a line of one style."""
    return Line(indent, Text(printable(text), style=style))


def labelled(indent: int, label: str, text: str, style: str = "") -> Line:
    """Return a line with a styled label before plain text."""
    return Line(indent, Text.assemble((printable(label), style), printable(text)))


def report_lines(report: Report) -> Iterator[Line]:
    """Yield the report line by line; the first names the target and where it came from."""
    yield labelled(0, "target: ", str(report.target), "bold")
    for entry in report.plan.entries:
        yield plain(0, "")
        yield from _entry_lines(entry, report.target)
    if report.errors:
        yield plain(0, "")
        yield plain(0, "could not be read", "bold red")
        yield from (plain(2, message) for _, message in report.errors)
    yield plain(0, "")
    yield plain(0, summary(report), "bold")


def summary(report: Report) -> str:
    """Return the closing line."""
    entries = report.plan.entries
    if not any(entry.trains for entry in entries):
        return "no training code found: nothing to migrate"
    ids = {planned.id for entry in entries for planned in entry.findings if planned.finding.status == "change"}
    files = len(report.plan.changes)
    if not files:
        return "no changes"
    return f"{count(len(ids), 'change')} in {count(files, 'file')}{f'; {report.hint}' if report.hint else ''}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _entry_lines(entry: EntryPlan, target: Target) -> Iterator[Line]:
    yield plain(0, entry.path, "bold underline")
    if entry.target != target:
        yield labelled(2, "target: ", str(entry.target), "bold")
    if not entry.trains:
        yield plain(2, "no training code found")
        return
    spoken = {planned.finding.goal for planned in entry.findings}
    for goal, verdict in entry.verdicts.items():
        yield _verdict_line(2, goal, verdict)
        if goal not in spoken:
            yield from (plain(4, reason) for reason in verdict.reasons)
    for launch in entry.launches:
        via = f" (via {', '.join(launch.via)})" if launch.via else ""
        yield plain(2, f"started by {launch.path}{via}")
        for goal, verdict in launch.verdicts.items():
            yield _verdict_line(4, goal, verdict)
    for status, title in _SECTIONS:
        found = [planned for planned in entry.findings if planned.finding.status == status]
        if found:
            yield plain(2, title, "bold")
            for planned in found:
                yield from _finding_lines(planned)


def _verdict_line(indent: int, goal: str, verdict: GoalVerdict) -> Line:
    places = ", ".join(verdict.places[:3]) + (f" and {len(verdict.places) - 3} more" if len(verdict.places) > 3 else "")
    return Line(
        indent,
        Text.assemble(
            f"{goal:<10} ", (f"{verdict.verdict:<7}", _VERDICT_STYLE[verdict.verdict]), printable(f" {places}")
        ),
    )


def _finding_lines(planned: Planned) -> Iterator[Line]:
    finding = planned.finding
    head = f"{finding.code} {finding.rule}"
    yield labelled(4, head, f" {finding.place}{_effect(finding)}", "bold")
    yield plain(6, finding.message)
    if finding.status == "change":
        yield from (plain(6, line) for line in cost_lines(finding)[1:])
    yield from _evidence(finding)


def _effect(finding: Finding) -> str:
    if finding.status != "change":
        return ""
    return f" [{finding.effect}{'' if finding.resume_safe else ', not resume-safe'}]"


def _evidence(finding: Finding) -> Iterator[Line]:
    for hop in finding.evidence:
        yield labelled(8, f"{hop.path}:{hop.line}", f": {hop.what}", "cyan")


def print_lines(lines: Iterable[Line], console: Console) -> None:
    """Print lines: broken with a hanging indent on a terminal, whole elsewhere."""
    for line in lines:
        width = console.width - line.indent if console.is_terminal else 1_000_000
        for part in line.text.wrap(console, max(width, 20)) if line.text else [line.text]:
            part.rstrip()
            console.print(Text(" " * line.indent if part else "") + part, soft_wrap=True, highlight=False)
