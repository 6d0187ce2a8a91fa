"""The fixture projects as repositories of their own: copied, migrated with the patch of the tool, run under the recorder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

PROJECTS = Path(__file__).parents[2] / "fixtures" / "projects"
RECORDER = Path(__file__).with_name("recorder.py")
GOALS = ("padding", "compile", "precision", "optimizer")
EXACT = ("--effect", "exact")
_GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false")


@dataclass(frozen=True)
class Script:
    """An entry point of a fixture project.

    Attributes:
        arguments: its flags; ``{tiny}`` is what the project's `make_tiny.py` made, ``{out}`` the folder for its output.
    """

    project: str
    path: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run of a script.

    Attributes:
        patch: the tool's options for the patch, None for the script as it was.
        patched: the script that the patch was made for, if another.
        steps: training steps.
        flags: more flags of the script.
        disable: value of ``SPEEDRUNTIME_DISABLE``; compiling takes minutes, and has tests of its own.
        processes: number of processes under torchrun, 0 for plain Python.
    """

    script: Script
    patch: tuple[str, ...] | None = None
    patched: Script | None = None
    steps: int = 20
    flags: tuple[str, ...] = ()
    disable: str = "compile"
    processes: int = 0


@dataclass(frozen=True)
class Result:
    """What a run left: the recording of each rank and the folder with the script's output."""

    ranks: tuple[dict[str, Any], ...]
    out: Path

    def __getitem__(self, name: str) -> Any:
        return self.ranks[0][name]


class Workshop:
    """A folder where repositories, data and runs are made once a session, by whichever worker needs them first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _once(self, what: object, make: Callable[[Path], None]) -> Path:
        place = self.folder / hashlib.sha256(repr(what).encode()).hexdigest()[:16]
        with FileLock(f"{place}.lock"):
            if not (place / "done").exists():
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(parents=True)
                make(place)
                (place / "done").touch()
        return place

    def tiny(self, project: str) -> Path:
        """Return the folder with the project's tiny model, tokenizer and data."""
        command = [sys.executable, str(PROJECTS / project / "make_tiny.py"), "--out"]
        return self._once(("tiny", project), lambda place: check([*command, str(place)], place))

    def repository(self, script: Script, patch: tuple[str, ...] | None) -> Path:
        """Return a repository with the project, migrated where a patch is asked for."""

        def make(place: Path) -> None:
            copy_project(script.project, place / "repository")
            if patch is not None:
                apply(place / "repository", diff(place / "repository", script, *patch))

        return self._once(("repository", script.project, script.path, patch), make) / "repository"

    def run(self, run: Run) -> Result:
        """Return what a run computed."""
        repository = self.repository(run.patched or run.script, run.patch)
        tiny = self.tiny(run.script.project)
        place = self._once(run, lambda place: record(run, repository, tiny, place))
        recordings = sorted(place.glob("recording*.pt"))
        ranks = tuple(torch.load(path, weights_only=False) for path in recordings)
        assert len(ranks) == max(run.processes, 1), recordings
        return Result(ranks, place / "out")


def copy_project(project: str, to: Path) -> Path:
    """Copy a fixture project into a repository of its own, with one commit."""
    shutil.copytree(PROJECTS / project, to, ignore=shutil.ignore_patterns("__pycache__"))
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "the project"]):
        check([*_GIT, *arguments], to)
    return to


def diff(repository: Path, script: Script, *options: str) -> bytes:
    """Return the tool's patch for a script."""
    return check([sys.executable, "-m", "speedmigrate", script.path, "--root", ".", "--diff", *options], repository)


def apply(repository: Path, patch: bytes, *options: str) -> None:
    """Apply a patch with git; an empty one changes nothing."""
    if patch:
        check([*_GIT, "apply", *options], repository, patch)


def content(repository: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and mode of every file."""
    files = (path for path in repository.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(repository)): (path.read_bytes(), path.stat().st_mode) for path in files}


def check(command: Sequence[str], cwd: Path, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    """Return a command's stdout; if it fails, its output is the error."""
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, env=env)
    assert done.returncode == 0, f"{command}\n{done.stdout.decode()[-2000:]}\n{done.stderr.decode()[-6000:]}"
    return done.stdout


def record(run: Run, repository: Path, tiny: Path, place: Path) -> None:
    """Run a script under the recorder; recordings and output go into a folder."""
    (place / "out").mkdir()
    flags = [flag.format(tiny=tiny, out=place / "out") for flag in (*run.script.arguments, *run.flags)]
    command = [str(RECORDER), str(place / "recording.pt"), run.script.path, *flags, "--max_steps", str(run.steps)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(run.processes)]
    env = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SPEEDRUNTIME_DISABLE": run.disable,
    }
    check([sys.executable, *(torchrun if run.processes else []), *command], repository, env=env)
