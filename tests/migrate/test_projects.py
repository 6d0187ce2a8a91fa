"""The patches of the fixture projects: exactly the text beside them, in any order of files and with any jobs."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from speedmigrate import cli
from speedmigrate.facts import project as projects

FOLDER = Path(__file__).parents[2] / "fixtures" / "projects"
STAGE1 = "stage1_nemotron_qwen_djh_deepspeed_dev_zch_v4_lqy.py"
CASES = [
    ("stage1", STAGE1, ()),
    ("stage1", STAGE1, ("--target", "arch=sm_90")),
    ("plain_ddp", "train_full_sft.py", ()),
    ("plain_ddp", "train_pretrain.py", ()),
    ("plain_ddp", "train_lora.py", ()),
]
GOALS = ("padding", "compile", "precision", "optimizer")


def expected(case: tuple[str, str, tuple[str, ...]]) -> Path:
    project, script, arguments = case
    name = "sm_90" if arguments else Path(script).stem if project != "stage1" else "all"
    return FOLDER / f"{project}.{name}.patch"


@pytest.fixture(params=CASES, ids=lambda case: f"{expected(case).stem}")
def case(request: pytest.FixtureRequest) -> tuple[str, str, tuple[str, ...]]:
    found: tuple[str, str, tuple[str, ...]] = request.param
    return found


@pytest.fixture
def root(case: tuple[str, str, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FOLDER / case[0], tmp_path / "repo")
    monkeypatch.chdir(tmp_path / "repo")
    for command in (["init", "-q"], ["config", "core.autocrlf", "false"], ["add", "-A"]):
        subprocess.run(["git", *command], check=True)
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "before"], check=True)
    return tmp_path / "repo"


def diff(capfdbinary: pytest.CaptureFixture[bytes], script: str, *arguments: str) -> bytes:
    assert cli.run([script, "--diff", *arguments]) == 0
    return capfdbinary.readouterr().out


def apply(patch: bytes, *options: str) -> None:
    subprocess.run(["git", "apply", *options, "-"], input=patch, check=True)


def test_patch(case: tuple[str, str, tuple[str, ...]], root: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    patch = diff(capfdbinary, case[1], *case[2])
    assert patch == expected(case).read_bytes()
    apply(patch)
    assert diff(capfdbinary, case[1], *case[2]) == b""
    apply(patch, "-R")
    assert subprocess.run(["git", "status", "--porcelain"], capture_output=True, check=True).stdout == b""


def test_each_goal_alone(
    case: tuple[str, str, tuple[str, ...]], root: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for goal in GOALS:
        patch = diff(capfdbinary, case[1], "--only", goal, *case[2])
        if patch:
            apply(patch)
            assert diff(capfdbinary, case[1], "--only", goal, *case[2]) == b""
            apply(patch, "-R")


def test_order_of_files_and_jobs(root: Path, case: tuple[str, str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch,
                                 capfdbinary: pytest.CaptureFixture[bytes]) -> None:  # fmt: skip
    if case[1] != "train_full_sft.py":
        pytest.skip("one project is enough: 20 runs")
    assert diff(capfdbinary, ".", "-j2") == diff(capfdbinary, ".", "-j1") != b""
    first = diff(capfdbinary, case[1])
    walk = projects._walk
    for seed in range(20):

        def shuffled(root: Path, seed: int = seed) -> tuple[str, ...]:
            files = list(walk(root))
            random.Random(seed).shuffle(files)
            return tuple(files)

        monkeypatch.setattr(projects, "_walk", shuffled)
        assert diff(capfdbinary, case[1]) == first
