"""Decide which changes are made: selection, atomic groups, conflicts, and a second pass that must find nothing to do.

`series.py` cuts a plan into patches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from speedmigrate.analyse import BUG, Analysis
from speedmigrate.changes import Editor, Group, drop_needy, finding_order, make_groups, settle
from speedmigrate.rule import EFFECTS, GOALS, Effect, Finding, Goal, Status
from speedmigrate.target import Target
from speedmigrate.verdict import GoalVerdict, goal_verdicts, launch_verdicts, touched, untrained

if TYPE_CHECKING:
    from speedmigrate.patch import FileChange

Again = Callable[[Mapping[str, bytes]], Sequence[Analysis]]


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user asked for: goals, rule codes or rule names to take and to leave, and the effects allowed."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = EFFECTS

    def names(self, finding: Finding) -> bool:
        """Say whether the finding's goal or rule is asked for, whatever its effect."""
        words = {finding.goal, finding.code, finding.rule}
        return (not self.only or bool(words & set(self.only))) and not words & set(self.skip)

    def goals(self, findings: Iterable[Finding]) -> tuple[Goal, ...]:
        """Return the goals that have a verdict: all, or those named by themselves or by one of their rules."""
        seen = {finding.goal for finding in findings if self.names(finding)}
        return tuple(g for g in GOALS if g not in self.skip and (not self.only or g in self.only or g in seen))


@dataclass(frozen=True, slots=True)
class Planned:
    """A finding of an entry point with its stable id; entry points that share a finding share its id."""

    id: str
    entry: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A launch file of an entry point, what leads to it, and the goals that have something to say of it."""

    path: str
    via: tuple[str, ...]
    verdicts: dict[Goal, GoalVerdict]


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """An entry point and its verdicts."""

    path: str
    target: Target
    trains: bool
    verdicts: dict[Goal, GoalVerdict]
    launches: tuple[LaunchPlan, ...]
    findings: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer: entry points by path, the groups that are made, and the files as they will be."""

    entries: tuple[EntryPlan, ...]
    groups: tuple[Group, ...]
    changes: tuple[FileChange, ...]
    errors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Fate:
    """What became of groups that are not made, each with the reason: `left` as asked, `dropped` against our will."""

    left: dict[str, str]
    dropped: dict[str, str]

    def of(self, finding: Finding) -> Finding:
        """Return the finding as it is to be told."""
        if finding.status != "change":
            return finding
        if finding.group in self.dropped:
            return _told(finding, "refused", self.dropped[finding.group])
        return _told(finding, "note", self.left[finding.group]) if finding.group in self.left else finding


def _told(finding: Finding, status: Status, reason: str) -> Finding:
    message = f"not changed: {reason} (would be: {finding.message})"
    return replace(finding, status=status, message=message, ops=(), group="", requires=())


def make_plan(editor: Editor, analyses: Sequence[Analysis], selection: Selection, again: Again) -> Plan:
    """Plan the changes of some entry points; `again` analyses them once more with new bytes in place."""
    analyses = sorted(analyses, key=lambda analysis: analysis.path)
    offered = make_groups(_findings(analyses))
    chosen, fate = _select(offered, selection)
    groups, gone = settle(editor, chosen)
    fate.dropped.update(gone)
    while groups:
        blamed = _blame(again(editor.new_bytes(groups)), groups, selection, offered, fate)
        if not blamed:
            break
        drop_needy({group.name: group for group in groups}, blamed, f"the change that it needs was not made. {BUG}")
        groups = [group for group in groups if group.name not in blamed]
        fate.dropped.update(blamed)
    errors = sorted({error for analysis in analyses for error in analysis.errors})
    return Plan(_entries(analyses, selection, fate), tuple(groups), editor.build(groups), tuple(errors))


def _findings(analyses: Iterable[Analysis]) -> list[Finding]:
    return [finding for analysis in analyses for finding in analysis.findings]


def _select(offered: Sequence[Group], selection: Selection) -> tuple[list[Group], _Fate]:
    """Return the groups asked for whose requirements are too; a group is taken whole or not at all."""
    groups = {group.name: group for group in offered}
    dropped = {
        group.name: "it needs a change that no rule can make here"
        for group in offered
        if group.requires - groups.keys()
    }
    drop_needy(groups, dropped, "it needs a change that no rule can make here")
    left: dict[str, str] = {}
    for group in offered:
        others = sorted({str(f.effect) for f in group.findings if f.effect not in selection.effects})
        if others:
            left[group.name] = f"--effect leaves {', '.join(others)} out"
        elif not all(map(selection.names, group.findings)):
            left[group.name] = "--only or --skip leaves a change out that belongs to it"
    drop_needy(groups, left, "it needs a change that is not selected")
    chosen = [group for group in offered if group.name not in left | dropped]
    return chosen, _Fate(left, dropped)


def _blame(
    analyses: Sequence[Analysis], groups: Sequence[Group], selection: Selection, offered: Sequence[Group], fate: _Fate
) -> dict[str, str]:
    """Return the groups to answer for what a second pass would still change, with the reason."""
    known = {(f.code, f.place.path) for group in offered if group.name in fate.dropped for f in group.findings}
    blamed: dict[str, str] = {}
    for group in _select(make_groups(_findings(analyses)), selection)[0]:
        for finding in group.findings:
            if (finding.code, finding.place.path) not in known:
                reason = f"a second run would still change {finding.place} ({finding.code}). {BUG}"
                blamed |= {suspect.name: reason for suspect in _suspects(finding, groups)}
    return blamed


def _suspects(finding: Finding, groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups of the same rule and file; failing that of the same rule, of the same file, or all."""
    files = {finding.place.path, *touched(finding)}
    same_rule = [group for group in groups if any(f.code == finding.code for f in group.findings)]
    same_file = [group for group in groups if any(files & set(touched(f)) for f in group.findings)]
    both = [group for group in same_rule if group in same_file]
    return both or same_rule or same_file or groups


def _entries(analyses: Sequence[Analysis], selection: Selection, fate: _Fate) -> tuple[EntryPlan, ...]:
    asked = {a.path: sorted(filter(selection.names, a.findings), key=finding_order) for a in analyses}
    told = {path: list(dict.fromkeys(map(fate.of, findings))) for path, findings in asked.items()}
    ids = _ids(finding for findings in told.values() for finding in findings)
    entries: list[EntryPlan] = []
    for analysis in analyses:
        findings = told[analysis.path]
        goals = selection.goals(findings)
        verdicts = goal_verdicts(findings, goals, analysis.path)
        if not analysis.trains:
            verdicts = untrained(goals, analysis.path)
        entries.append(
            EntryPlan(
                analysis.path,
                analysis.target,
                analysis.trains,
                verdicts,
                tuple(LaunchPlan(x.path, x.via, launch_verdicts(findings, goals, x.path)) for x in analysis.launches),
                tuple(Planned(ids[finding], analysis.path, finding) for finding in findings),
            )
        )
    return tuple(entries)


def _ids(findings: Iterable[Finding]) -> dict[Finding, str]:
    """Return `code:path:line:ordinal` for each finding."""
    count: defaultdict[str, int] = defaultdict(int)
    ids: dict[Finding, str] = {}
    for finding in sorted(set(findings), key=finding_order):
        stem = f"{finding.code}:{finding.place}"
        count[stem] += 1
        ids[finding] = f"{stem}:{count[stem]}"
    return ids
