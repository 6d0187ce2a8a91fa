"""The fixture projects as repositories of their own: copied, migrated with the tool's patch, run under the recorder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

PROJECTS = Path(__file__).parents[2] / "fixtures" / "projects"
RECORDER = Path(__file__).with_name("recorder.py")
FORKSERVER = Path(__file__).with_name("forkserver.py")
GOALS = ("padding", "compile", "precision", "optimizer")
EXACT = ("--effect", "exact")
_GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false")
_ENV = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Script:
    """An entry point of a fixture project.

    Attributes:
        arguments: its flags; ``{tiny}`` is what the project's `make_tiny.py` made, ``{out}`` the folder for its output.
    """

    project: str
    path: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run of a script.

    Attributes:
        patch: the tool's options for the patch, None for the script as it was.
        patched: the script that the patch was made for, if another.
        steps: training steps.
        flags: more flags of the script.
        disable: value of ``SPEEDRUNTIME_DISABLE``; compiling is slow, and has tests of its own.
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

    def tiny(self, project: str) -> Path:
        """Return the folder with the project's tiny model, tokenizer and data."""
        command = [str(PROJECTS / project / "make_tiny.py"), "--out"]
        return self._once(("tiny", project), lambda place: self._fork([*command, str(place)], place, place / "log"))

    def patch(self, script: Script, options: tuple[str, ...]) -> bytes:
        """Return the tool's patch for a script."""

        def make(place: Path) -> None:
            (place / "patch").write_bytes(diff(self.repository(script, None), script, *options))

        return (self._once(("patch", script.project, script.path, options), make) / "patch").read_bytes()

    def repository(self, script: Script, options: tuple[str, ...] | None) -> Path:
        """Return a repository with the project, migrated where options for a patch are given."""

        def make(place: Path) -> None:
            copy_project(script.project, place / "repository")
            if options is not None:
                apply(place / "repository", self.patch(script, options))

        path = None if options is None else script.path
        return self._once(("repository", script.project, path, options), make) / "repository"

    def verdicts(self, script: Script) -> dict[str, str]:
        """Return the verdict of each goal for a script."""

        def make(place: Path) -> None:
            (place / "json").write_bytes(tool(self.repository(script, None), script, "--format", "json"))

        report = json.loads((self._once(("json", script.project, script.path), make) / "json").read_bytes())
        return {goal: found["verdict"] for goal, found in report["entries"][0]["verdicts"].items()}

    def run(self, run: Run) -> Result:
        """Return what a run computed."""
        repository = self.repository(run.patched or run.script, run.patch)
        tiny = self.tiny(run.script.project)
        place = self._once(run, lambda place: self._record(run, repository, tiny, place))
        recordings = sorted(place.glob("recording*.pt"))
        ranks = tuple(torch.load(path, weights_only=False) for path in recordings)
        assert len(ranks) == max(run.processes, 1), recordings
        return Result(ranks, place / "out")

    def record(self, script: Path) -> dict[str, Any]:
        """Return what a script of no project computed."""
        recording = script.with_suffix(".pt")
        self._fork([str(RECORDER), str(recording), script.name], script.parent, script.with_suffix(".log"))
        recorded: dict[str, Any] = torch.load(recording, weights_only=False)
        return recorded

    def close(self) -> None:
        """End the process that the runs are forked from."""
        if "_server" in vars(self):
            self._server.communicate()

    def _once(self, what: object, make: Callable[[Path], None]) -> Path:
        place = self.folder / hashlib.sha256(repr(what).encode()).hexdigest()[:16]
        self.folder.mkdir(exist_ok=True)
        with FileLock(f"{place}.lock"):
            if not (place / "done").exists():
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                make(place)
                (place / "done").touch()
        return place

    def _record(self, run: Run, repository: Path, tiny: Path, place: Path) -> None:
        (place / "out").mkdir()
        flags = [flag.format(tiny=tiny, out=place / "out") for flag in (*run.script.arguments, *run.flags)]
        command = [str(RECORDER), str(place / "recording.pt"), run.script.path, *flags, "--max_steps", str(run.steps)]
        env = {"SPEEDRUNTIME_DISABLE": run.disable}
        if run.processes:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(run.processes)]
            check([sys.executable, *torchrun, *command], repository, env=os.environ | _ENV | env)
        else:
            self._fork(command, repository, place / "log", env)

    def _fork(self, command: list[str], cwd: Path, log: Path, env: dict[str, str] | None = None) -> None:
        log.touch()
        job = {"command": command, "cwd": str(cwd), "env": env or {}, "log": str(log)}
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        status = self._server.stdout.readline().strip()
        assert status == "0", f"{command} ended with {status!r}\n{log.read_text(errors='replace')[-6000:]}"

    @cached_property
    def _server(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(FORKSERVER)]
        pipe = subprocess.PIPE
        env = os.environ | _ENV | {"HF_DATASETS_CACHE": str(self.folder / "datasets")}
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env)


def copy_project(project: str, to: Path) -> Path:
    """Copy a fixture project into a repository of its own, with one commit."""
    shutil.copytree(PROJECTS / project, to, ignore=shutil.ignore_patterns("__pycache__"))
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "the project"]):
        check([*_GIT, *arguments], to)
    return to


def tool(repository: Path, script: Script, *options: str) -> bytes:
    """Return what the tool prints for a script."""
    return check([sys.executable, "-m", "speedmigrate", script.path, "--root", ".", *options], repository)


def diff(repository: Path, script: Script, *options: str) -> bytes:
    """Return the tool's patch for a script."""
    return tool(repository, script, "--diff", *options)


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
