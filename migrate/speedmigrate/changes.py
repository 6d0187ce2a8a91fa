"""Groups of changes and the files that come out of them; which groups can be applied together.

Reads the root through a project, writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from speedmigrate.analyse import BUG
from speedmigrate.edits import EditConflict, apply_ops
from speedmigrate.patch import FileChange
from speedmigrate.rule import EFFECTS, GOALS, Effect, Finding, Goal, Op
from speedmigrate.source import SourceError, SourceFile, decode
from speedmigrate.verify import verify

if TYPE_CHECKING:
    from speedmigrate.facts.project import Project

Stage = tuple[Effect, Goal]


@dataclass(frozen=True, slots=True)
class Group:
    """Changes that are made together or not at all, from any number of entry points; equal ones are kept once."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def requires(self) -> frozenset[str]:
        return frozenset(name for f in self.findings for name in f.requires if name != self.name)

    @property
    def stage(self) -> Stage:
        """The patch that the group belongs to: the last effect among its changes, and the goal that has it."""
        last = max(self.findings, key=lambda f: stage_order(_stage(f)))
        return _stage(last)

    @property
    def order(self) -> tuple[object, ...]:
        first = self.findings[0]
        return (*stage_order(self.stage), first.code, first.place.path, first.place.line, self.name)


def stage_order(stage: Stage) -> tuple[int, int]:
    """Return the sort key of a patch: exact, order, precision, corrects; then the goals."""
    return EFFECTS.index(stage[0]), GOALS.index(stage[1])


def _stage(finding: Finding) -> Stage:
    assert finding.effect is not None, f"{finding.code}: a change without an effect"
    return finding.effect, finding.goal


def make_groups(findings: Iterable[Finding]) -> list[Group]:
    """Gather changes into groups, in the order in which they are applied, whatever order they came in."""
    by_name: defaultdict[str, dict[Finding, None]] = defaultdict(dict)
    for finding in findings:
        if finding.status == "change":
            by_name[finding.group][finding] = None
    groups = [Group(name, tuple(sorted(found, key=finding_order))) for name, found in by_name.items()]
    return sorted(groups, key=lambda group: group.order)


def finding_order(finding: Finding) -> tuple[object, ...]:
    """Return a sort key that does not depend on the order in which files were read."""
    place = finding.place
    return finding.code, place.path, place.line, place.end_line, finding.status, finding.message, repr(finding)


def closure(group: Group, by_name: Mapping[str, Group]) -> set[str]:
    """Return the names of the group and of all that it needs, directly or not."""
    found = {group.name}
    todo = [group]
    while todo:
        for name in todo.pop().requires & by_name.keys() - found:
            found.add(name)
            todo.append(by_name[name])
    return found


def drop_needy(groups: Mapping[str, Group], gone: dict[str, str], reason: str) -> None:
    """Add to `gone`, until nothing moves, the groups that need one that is gone."""
    before = -1
    while before != len(gone):
        before = len(gone)
        gone |= {name: reason for name, group in groups.items() if name not in gone and group.requires & gone.keys()}


@dataclass(frozen=True, slots=True)
class Editor:
    """Apply groups to the files of a project; the text of a file under given ops is made and verified once."""

    project: Project
    _made: dict[tuple[str, tuple[Op, ...]], bytes | str] = field(default_factory=dict, repr=False)

    def new_bytes(self, groups: Iterable[Group]) -> dict[str, bytes]:
        """Return every edited file's new bytes, by path.

        Raises:
            EditConflict: the groups cannot be applied together, or a result does not pass `verify`.
        """
        by_path: defaultdict[str, dict[Op, None]] = defaultdict(dict)
        for op in (op for group in groups for finding in group.findings for op in finding.ops):
            by_path[op.path][op] = None
        made: dict[str, bytes] = {}
        for path in sorted(by_path):
            result = self._file(path, tuple(by_path[path]))
            if isinstance(result, str):
                raise EditConflict(result)
            made[path] = result
        return made

    def problem(self, groups: Iterable[Group]) -> str:
        """Return why the groups cannot be applied together, or an empty string."""
        try:
            self.new_bytes(groups)
        except EditConflict as error:
            return str(error)
        return ""

    def build(self, groups: Iterable[Group], base: Iterable[Group] = ()) -> tuple[FileChange, ...]:
        """Return the files that differ between `base` and `groups` applied, as `FileChange`s by path."""
        before, after = self.new_bytes(base), self.new_bytes(groups)
        found: list[FileChange] = []
        for path, new in after.items():
            source = self.project.source(path)
            old = before.get(path, source.data if source else None)
            if new != old:
                found.append(FileChange(path, old, new, self._mode(path)))
        return tuple(found)

    def _mode(self, path: str) -> int:
        full = self.project.root / path
        return full.stat().st_mode & 0o777 if full.exists() else 0o644

    def _file(self, path: str, ops: tuple[Op, ...]) -> bytes | str:
        key = path, ops
        if key not in self._made:
            self._made[key] = _edit(self._source(path), ops)
        return self._made[key]

    def _source(self, path: str) -> SourceFile:
        return self.project.source(path) or decode(path, b"", python=path.endswith(".py"))


def _edit(source: SourceFile, ops: tuple[Op, ...]) -> bytes | str:
    """Return the new bytes, or the reason why there are none."""
    try:
        text = apply_ops(source, ops)
        problems = verify(source, text)
        return problems[0] if problems else source.encode(text)
    except (EditConflict, SourceError) as error:
        return str(error)


def settle(editor: Editor, groups: Sequence[Group]) -> tuple[list[Group], dict[str, str]]:
    """Return the groups that can be applied together, and why the others cannot; an earlier group wins."""
    if not editor.problem(groups):
        return list(groups), {}
    by_name = {group.name: group for group in groups}
    kept: set[str] = set()
    gone: dict[str, str] = {}
    for group in groups:
        together = (kept | closure(group, by_name)) - gone.keys()
        problem = editor.problem(each for each in groups if each.name in together)
        if problem:
            gone[group.name] = f"{problem}. {BUG}"
        else:
            kept = together
    drop_needy(by_name, gone, f"the change that it needs could not be made. {BUG}")
    return [group for group in groups if group.name not in gone], gone
