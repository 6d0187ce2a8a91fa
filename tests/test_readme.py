"""Every block of the README is run: made blocks are current, examples work, commands are those that set-up needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import README, ROOT, SCRIPT, commands, examples, updated

TEXT = README.read_text(encoding="utf-8")


def test_made_blocks_are_current() -> None:
    """Run `python -m tests.readme --update` where this fails."""
    assert updated(TEXT) == TEXT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A fresh repository with the fixture project, under the names that the README's examples use."""
    source = (ROOT / SCRIPT).parent
    shutil.copytree(source, tmp_path / "project")
    shutil.move(tmp_path / "project" / Path(SCRIPT).name, tmp_path / "project" / "train.py")
    run = (source / "run_stage1.sh").read_text(encoding="utf-8").replace(Path(SCRIPT).name, "train.py")
    (tmp_path / "project" / "run_stage1.sh").unlink()
    (tmp_path / "project" / "run.sh").write_text(run, encoding="utf-8")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], cwd=tmp_path / "project", check=True)
    return tmp_path / "project"


@pytest.mark.parametrize("line", [line for line in examples(TEXT) if line.startswith("speedmigrate")])
def test_examples_work(project: Path, tmp_path: Path, line: str) -> None:
    tool = tmp_path / "bin" / "speedmigrate"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m speedmigrate "$@"\n')
    tool.chmod(0o755)
    env = os.environ | {"PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line], cwd=project, env=env, capture_output=True, text=True
    )
    assert done.returncode == (1 if "--check" in line else 0), done.stderr


def test_other_examples_are_the_installation() -> None:
    assert [line for line in examples(TEXT) if not line.startswith("speedmigrate")] == ["pip install ."]


def test_command_blocks() -> None:
    """`.ci/run` runs these on a machine with nothing installed; here only that they are there and name real things."""
    blocks = commands(TEXT)
    assert sorted(blocks) == ["setup", "tests", "tool"]
    assert SCRIPT in blocks["tool"]
    assert (ROOT / SCRIPT).is_file()
