"""Rules that replace one word by another, so that the plan can be tested without any analysis."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from speedmigrate.analyse import Analysis
from speedmigrate.changes import Editor
from speedmigrate.facts.project import Project
from speedmigrate.plan import Plan, Selection, make_plan
from speedmigrate.rule import Effect, Finding, Goal, Hop, Place, Replace, Rule
from speedmigrate.target import Target

ALL = Selection()
Check = Callable[[Project], Iterable[Finding]]


def swap(
    old: str,
    new: str,
    *,
    code: str = "T100",
    goal: Goal = "optimizer",
    effect: Effect = "exact",
    group: str = "",
    requires: tuple[str, ...] = (),
) -> Check:
    """Return a check whose changes put `new` where `old` stands in any Python or shell file of the root."""

    def check(project: Project) -> Iterable[Finding]:
        for path in project.files:
            source = project.source(path)
            for match in re.finditer(rf"\b{re.escape(old)}\b", source.text if source else ""):
                assert source is not None
                line = source.line_of(match.start())
                yield fake_rule(code, goal, effect).finding(
                    "change",
                    Place(path, line, line),
                    f"{old} becomes {new}",
                    ops=(Replace(path, match.start(), match.end(), new),),
                    evidence=(Hop(path, line, f"names {old}"),),
                    group=group,
                    requires=requires,
                    needs=("torch>=2.0",),
                )

    return check


def fake_rule(code: str = "T100", goal: Goal = "optimizer", effect: Effect = "exact", *checks: Check) -> Rule:
    """Return a rule that runs checks on the entry point's project."""
    return Rule(
        code,
        f"rule_{code.lower()}",
        f"Rule {code}",
        goal,
        effect,
        check=lambda entry: [finding for check in checks for finding in check(entry.project)],
        docs="Swap a word.\n\n    Effect: none.\n",
    )


def write_files(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8", newline="")


def analyses(project: Project, checks: Sequence[Check], entries: Sequence[str]) -> tuple[Analysis, ...]:
    found = tuple(finding for check in checks for finding in check(project))
    return tuple(Analysis(entry, Target(), True, (), found, tuple(project.errors.items())) for entry in entries)


def plan_of(
    root: Path, checks: Sequence[Check], *, entries: Sequence[str] = ("train.py",), selection: Selection = ALL
) -> tuple[Editor, Plan]:
    """Plan the checks' changes on the files of `root`."""
    project = Project(root)
    editor = Editor(project)
    plan = make_plan(
        editor,
        analyses(project, checks, entries),
        selection,
        lambda overlay: analyses(Project(root, overlay), checks, entries),
    )
    return editor, plan


def new_files(plan: Plan) -> dict[str, str]:
    return {change.path: change.new.decode() for change in plan.changes}
