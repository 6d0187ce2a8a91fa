"""Cut a plan into a series of patches, one per goal and effect, each of which applies on the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from speedmigrate.changes import Editor, Stage, closure, stage_order
from speedmigrate.plan import Plan
from speedmigrate.rule import Finding
from speedmigrate.verdict import touched

if TYPE_CHECKING:
    from speedmigrate.patch import FileChange


@dataclass(frozen=True, slots=True)
class SeriesPatch:
    """One patch of a series; `corrects` patches come last, and any number of the last patches may be left out."""

    stage: Stage
    findings: tuple[Finding, ...]
    changes: tuple[FileChange, ...]

    @property
    def subject(self) -> str:
        effect, goal = self.stage
        titles = list(dict.fromkeys(finding.rule for finding in self.findings))
        return f"{goal}: {', '.join(titles)} ({effect})"

    @property
    def body(self) -> str:
        """The commit message below its subject: reasons, places and cost of each change."""
        return "\n\n".join(map(_paragraph, self.findings)) + "\n"


def _paragraph(finding: Finding) -> str:
    lines = [f"{finding.code} {finding.place}: {finding.message}", *cost_lines(finding)]
    lines += [f"  {hop.path}:{hop.line}: {hop.what}" for hop in finding.evidence]
    return "\n".join(lines)


def cost_lines(finding: Finding) -> tuple[str, str, str]:
    """Return what a change costs, as three lines that every report prints."""
    return (
        f"effect: {finding.effect}; resume-safe: {'yes' if finding.resume_safe else 'no'}",
        f"needs: {', '.join(finding.needs) or 'nothing new'}",
        f"files: {', '.join(touched(finding))}",
    )


def series(editor: Editor, plan: Plan) -> tuple[SeriesPatch, ...]:
    """Return the patches; a group comes with the last of the stages of itself and of what it needs.

    Where the groups of a stage do not stand without a later one, they come with that one.
    """
    by_name = {group.name: group for group in plan.groups}
    stages = {
        group.name: max((by_name[name].stage for name in closure(group, by_name)), key=stage_order)
        for group in plan.groups
    }
    patches: list[SeriesPatch] = []
    done: set[str] = set()
    for stage in sorted(set(stages.values()), key=stage_order):
        names = {name for name in by_name if stage_order(stages[name]) <= stage_order(stage)}
        before, after = ([group for group in plan.groups if group.name in chosen] for chosen in (done, names))
        if editor.problem(after):
            continue
        findings = tuple(f for group in after if group.name not in done for f in group.findings)
        changes = editor.build(after, before)
        done = names
        if changes:
            patches.append(SeriesPatch(stage, findings, changes))
    return tuple(patches)
