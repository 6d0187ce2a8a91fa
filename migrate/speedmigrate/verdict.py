"""The verdict of an entry point or launch file per goal (DESIGN 2), from its findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speedmigrate.analyse import BUG
from speedmigrate.rule import Finding, Goal, Verdict

STRONGEST: tuple[Verdict, ...] = ("edit", "config", "refuse", "report", "noop")
_OF_STATUS: dict[str, Verdict] = {"done": "noop", "refused": "refuse", "note": "report"}


@dataclass(frozen=True, slots=True)
class GoalVerdict:
    """A verdict with its reasons and places (`file:line`)."""

    verdict: Verdict
    reasons: tuple[str, ...]
    places: tuple[str, ...]


def touched(finding: Finding) -> tuple[str, ...]:
    """Return the files that a change edits, in order."""
    return tuple(sorted({op.path for op in finding.ops}))


def verdict_of(finding: Finding) -> Verdict:
    """Return the verdict that one finding stands for."""
    if finding.status != "change":
        return _OF_STATUS[finding.status]
    return "edit" if any(path.endswith((".py", ".ipynb")) for path in touched(finding)) else "config"


def goal_verdict(findings: Iterable[Finding], entry: str) -> GoalVerdict:
    """Return the strongest verdict of the findings of one goal; none at all is a bug, told as a refusal."""
    found = [(verdict_of(finding), finding) for finding in findings]
    if not found:
        reason = f"not analysed: no rule of this goal said anything. {BUG}"
        return GoalVerdict("refuse", (reason,), (f"{entry}:1",))
    verdict = min((verdict for verdict, _ in found), key=STRONGEST.index)
    chosen = [finding for each, finding in found if each == verdict]
    return GoalVerdict(verdict, _unique(f.message for f in chosen), _unique(str(f.place) for f in chosen))


def goal_verdicts(findings: Sequence[Finding], goals: Iterable[Goal], entry: str) -> dict[Goal, GoalVerdict]:
    """Return the verdict of an entry point for each of `goals`."""
    return {goal: goal_verdict([f for f in findings if f.goal == goal], entry) for goal in goals}


def untrained(goals: Iterable[Goal], entry: str) -> dict[Goal, GoalVerdict]:
    """Return the verdicts of a file in which no training is followed."""
    told = GoalVerdict("refuse", ("no training code is followed from here",), (f"{entry}:1",))
    return dict.fromkeys(goals, told)


def launch_verdicts(findings: Sequence[Finding], goals: Iterable[Goal], path: str) -> dict[Goal, GoalVerdict]:
    """Return the verdicts of a launch file: only goals that have something to say of it; a change of it is `config`."""
    said = [f for f in findings if path in touched(f) or (f.place.path == path and f.status != "change")]
    verdicts: dict[Goal, GoalVerdict] = {}
    for goal in goals:
        found = [f for f in said if f.goal == goal]
        if found:
            told = goal_verdict(found, path)
            config = told.verdict == "edit"
            verdicts[goal] = GoalVerdict("config", told.reasons, told.places) if config else told
    return verdicts


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
