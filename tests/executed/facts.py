"""What holds for the patch of any script, asserted by the tests of each project."""

from __future__ import annotations

from pathlib import Path

from tests.executed.projects import Run, Script, Workshop, apply, content, copy_project, diff


def assert_applies_and_reverts(workshop: Workshop, script: Script, tmp_path: Path) -> None:
    """Assert that git takes the patch, that the tool finds nothing more to do, and that git takes it back."""
    repository = copy_project(script.project, tmp_path / "repository")
    before = content(repository)
    patch = workshop.patch(script, ())
    assert content(workshop.repository(script, None)) == before
    assert patch.startswith(b"diff --git a/")
    apply(repository, patch)
    assert content(repository) != before
    assert diff(repository, script) == b""
    apply(repository, patch, "-R")
    assert content(repository) == before


def assert_goal_alone(workshop: Workshop, script: Script, goal: str) -> None:
    """Assert that a goal's patch applies alone and leaves a script that runs; that none is made without a change."""
    only = ("--only", goal)
    if workshop.verdicts(script)[goal] not in ("edit", "config"):
        assert workshop.patch(script, only) == b""
        return
    assert workshop.patch(script, only) != b""
    assert len(workshop.run(Run(script, only, steps=2))["losses"]) == 2
