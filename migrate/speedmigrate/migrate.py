"""Carry out a command: read the root, plan, then report, print, check or write."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TextIO

import click

from speedmigrate import journal, patch
from speedmigrate.analyse import Analysis, Request, analyse_all, target_of
from speedmigrate.changes import Editor
from speedmigrate.facts.project import Project
from speedmigrate.paths import Entries, PathError, find_all, find_root
from speedmigrate.plan import Plan, Selection, make_plan
from speedmigrate.report import HINT, Report, report_lines
from speedmigrate.rule import EFFECTS, Effect, Options
from speedmigrate.screen import complain, progress, write_bytes, write_lines, write_text

Mode = Literal["report", "diff", "write", "check"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for, checked."""

    paths: tuple[str, ...]
    mode: Mode = "report"
    patch_dir: str | None = None
    root: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = EFFECTS
    options: Options = Options()
    target: str | None = None
    form: str = "text"
    jobs: int = 1
    allow_dirty: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    project: Project
    editor: Editor
    entries: Entries
    plan: Plan


def run(wish: Wish) -> int:
    """Do what was asked and return the exit code."""
    with progress("reading and planning"):
        answer = _answer(wish)
    hint = "" if wish.mode == "diff" else HINT
    if wish.mode == "write":
        hint = _write(answer, wish.allow_dirty)
    if wish.patch_dir is not None:
        hint = _write_series(answer, Path(wish.patch_dir))
    _show(answer, wish, hint, sys.stderr if wish.mode == "diff" else sys.stdout)
    if wish.mode == "diff":
        write_bytes(patch.diff(answer.plan.changes))
    for _, message in answer.entries.errors:
        complain(message)
    if answer.entries.errors:
        return 2
    return 1 if wish.mode == "check" and answer.plan.changes else 0


def _project(paths: Sequence[str], root: str | None) -> Project:
    try:
        return Project(find_root(paths, root))
    except PathError as error:
        raise click.UsageError(str(error)) from error


def _answer(wish: Wish) -> _Answer:
    project = _project(wish.paths, wish.root)
    entries = find_all(project, wish.paths)
    options = replace(wish.options, launch=(*wish.options.launch, *entries.launches))
    request = Request(project.root, options, wish.target)

    def again(overlay: Mapping[str, bytes]) -> Sequence[Analysis]:
        return analyse_all(replace(request, overlay=overlay), entries.paths, wish.jobs)

    analyses = analyse_all(request, entries.paths, wish.jobs, project)
    editor = Editor(project)
    plan = make_plan(editor, analyses, Selection(wish.only, wish.skip, wish.effects), again)
    return _Answer(project, editor, entries, plan)


def _show(answer: _Answer, wish: Wish, hint: str, stream: TextIO) -> None:
    """Write the report; a PATH that cannot be used has its own line on stderr, so text leaves it out."""
    plan, unusable = answer.plan, answer.entries.errors
    if not plan.entries and unusable and wish.form != "json":
        return
    target = plan.entries[0].target if plan.entries else target_of(answer.project, "", wish.target)
    told = {message for _, message in unusable}
    found = sorted({*plan.errors, *answer.project.errors.items()})
    errors = [error for error in found if error[1] not in told]
    if wish.form == "text":
        write_lines(report_lines(Report(str(answer.project.root), target, plan, tuple(errors), hint)), stream)
        return
    from speedmigrate.report_data import json_report, markdown_report

    every = tuple(sorted({*errors, *unusable}))
    report = Report(str(answer.project.root), target, plan, every, hint)
    write_text((json_report if wish.form == "json" else markdown_report)(report), stream)


def _write(answer: _Answer, allow_dirty: bool) -> str:
    try:
        journal.write(answer.project.root, answer.plan.changes, allow_dirty=allow_dirty)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    return "written, and `speedmigrate undo` takes it back"


def _write_series(answer: _Answer, folder: Path) -> str:
    from speedmigrate.series import series

    mails = patch.mail([(each.subject, each.body, each.changes) for each in series(answer.editor, answer.plan)])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted({path.name for path in folder.glob("*.patch")} - {name for name, _ in mails})
        if others:
            raise click.UsageError(f"{folder}: holds {others[0]} already, and `git am` would mix the two; name another")
        for name, data in mails:
            (folder / name).write_bytes(data)
    except OSError as error:
        raise click.ClickException(f"{folder}: cannot be written ({error.strerror})") from error
    return f"written as {len(mails)} patch{'' if len(mails) == 1 else 'es'} to {folder}"


def undo_last(root: str | None) -> int:
    """Take the last --write back."""
    try:
        restored = journal.undo(find_root([str(Path.cwd())], root))
    except (PathError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    write_text("".join(f"restored {path}\n" for path in restored), sys.stdout)
    return 0


def print_facts(paths: Sequence[str], root: str | None, target: str | None, form: str) -> int:
    """Print the facts of the entry points at PATHs."""
    from speedmigrate.chain.report import gather, json_report
    from speedmigrate.chain.tree import BESIDE, tree_lines

    with progress("reading"):
        project = _project(paths, root)
        entries = find_all(project, paths)
        options = Options(launch=entries.launches)
        report = gather(project, entries.paths, options, target, beside=BESIDE if form == "text" else ())
    if form == "json":
        every = tuple(sorted({*report.errors, *entries.errors}))
        write_text(json_report(replace(report, errors=every)), sys.stdout)
    elif entries.paths or not entries.errors:
        told = {message for _, message in entries.errors}
        errors = tuple(error for error in report.errors if error[1] not in told)
        write_lines(tree_lines(replace(report, errors=errors)), sys.stdout)
    for _, message in entries.errors:
        complain(message)
    return 2 if entries.errors else 0
