"""The fixture projects in rungs, from the legacy script to the whole patch, each run step by step by `stepper.py`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.project_data import PROJECTS, Workload

DATA = Path(__file__).with_name("project_data.py")
STEPPER = Path(__file__).with_name("stepper.py")
EAGER_WARM_UP = 2
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class Rung:
    """A state of the project: which effects of the patch are in, and whether layers are compiled."""

    name: str
    effects: tuple[str, ...]
    compile: bool = False

    @property
    def folder(self) -> str:
        """Name of the folder with the project in this state."""
        return "".join(letter for letter in self.name if letter.isalnum())

    @property
    def warms_up_an_epoch(self) -> bool:
        """Whether its first epoch is not like the others."""
        return self.compile or "order" in self.effects


@dataclass(frozen=True)
class Step:
    """What `stepper.py` reports of one optimizer step; counts are in tokens, ``children_s`` is since the start."""

    cpu_s: float
    children_s: float
    real: int
    slots: int
    width: int
    flops: int
    loss: float
    peak_bytes: int
    graphs: int
    dtype: str


@dataclass(frozen=True)
class Measured:
    """What a rung took, after its warm-up.

    Attributes:
        tokens_per_second: real tokens a CPU second, over whole epochs.
        epoch_s, warm_up_s: CPU seconds of a measured epoch and of what went before it, compiler included.
        step_s: median CPU seconds of a step.
        slots_per_token: positions computed for a real token.
        flops_per_token: of matrix products and attention.
        peak_bytes: resident memory.
        loss: mean over the first epoch, which all rungs train alike.
        num_bad_losses: how many of all steps had a loss that is not finite.
        num_graphs, num_late_graphs: compiled in all, and while measured.
        dtype: of the matrix products.
        steps: width of the batch and CPU seconds of each measured step.
    """

    tokens_per_second: float
    epoch_s: float
    warm_up_s: float
    step_s: float
    slots_per_token: float
    flops_per_token: float
    peak_bytes: int
    loss: float
    num_bad_losses: int
    num_graphs: int
    num_late_graphs: int
    dtype: str
    steps: list[tuple[int, float]]

    @classmethod
    def of(cls, steps: list[Step], num_warm_up: int, num_steps: int) -> Measured:
        """Sum up the steps of a rung."""
        before, after = steps[:num_warm_up], steps[num_warm_up:]
        if num_warm_up < num_steps:
            counted, num_epochs = steps, 1
            slots = sum(step.slots for step in after)
            cpu_s = sum(step.cpu_s for step in after) * sum(step.slots for step in counted) / slots
        else:
            counted, num_epochs = after, len(after) // num_steps
            cpu_s = sum(step.cpu_s for step in after)
        real = sum(step.real for step in counted)
        return cls(
            tokens_per_second=real / cpu_s,
            epoch_s=cpu_s / num_epochs,
            warm_up_s=sum(step.cpu_s for step in before) + before[-1].children_s,
            step_s=median(step.cpu_s for step in after),
            slots_per_token=sum(step.slots for step in counted) / real,
            flops_per_token=sum(step.flops for step in counted) / real,
            peak_bytes=max(step.peak_bytes for step in after),
            loss=sum(step.loss for step in steps[:num_steps]) / num_steps,
            num_bad_losses=sum(step.loss - step.loss != 0 for step in steps),
            num_graphs=steps[-1].graphs,
            num_late_graphs=steps[-1].graphs - before[-1].graphs,
            dtype=after[-1].dtype,
            steps=[(step.width, step.cpu_s) for step in after],
        )


class Process:
    """A rung's script, stopped after each optimizer step until it is told to go on."""

    def __init__(self, command: Sequence[str], cwd: Path, env: dict[str, str], log: Path) -> None:
        self.command, self.log = list(command), log
        self.steps: list[Step] = []
        read_fd, write_fd = os.pipe()
        self._reports = os.fdopen(read_fd)
        stepper, *arguments = command
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, stepper, str(write_fd), *arguments],
                cwd=cwd,
                env=os.environ | env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
            )
        os.close(write_fd)

    def step(self, *, reset_peak: bool = False) -> Step:
        """Let the script train one step and return what it took."""
        if self.steps:
            assert self._process.stdin
            self._process.stdin.write(b"r" if reset_peak else b"+")
            self._process.stdin.flush()
        line = self._reports.readline()
        if not line:
            tail = self.log.read_text(errors="replace")[-4000:]
            raise RuntimeError(f"{' '.join(self.command)} ended after {len(self.steps)} steps:\n{tail}")
        self.steps.append(Step(**json.loads(line)))
        return self.steps[-1]

    def close(self) -> None:
        """End the script."""
        assert self._process.stdin
        self._process.stdin.close()
        self._reports.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Bench:
    """One project's rungs, in a folder of their own."""

    def __init__(
        self, workload: Workload, folder: Path, *, num_steps: int, num_epochs: int, threads: int, bf16: bool
    ) -> None:
        self.workload, self.folder = workload, folder
        self.num_steps, self.num_epochs, self.threads = num_steps, num_epochs, threads
        self.flags = (*workload.flags, *(workload.bf16_flags if bf16 else ()))
        (folder / "data").mkdir()
        # In a process of its own: this one needs no torch.
        build = [DATA, workload.project, folder / "data", num_steps * workload.batch_size]
        self.pad_id = int(run([sys.executable, *map(str, build)], folder).split()[-1])
        self.notes: list[str] = []

    def measure(self) -> dict[Rung, Measured]:
        """Run all rungs and return what each took."""
        rungs = list(self._rungs())
        for rung in rungs:
            self._migrate(rung)
        say(f"{self.workload.project}: {len(rungs)} rungs warm up")
        with ExitStack() as stack:
            with ThreadPoolExecutor(2) as pool:
                running = pool.map(lambda rung: self._warmed_up(rung, stack), rungs)
                processes = dict(zip(rungs, running, strict=True))
            self._take_turns(processes)
        return {
            rung: Measured.of(process.steps, self._num_warm_up(rung), self.num_steps)
            for rung, process in processes.items()
        }

    def _take_turns(self, processes: dict[Rung, Process]) -> None:
        rounds = self.num_steps * self.num_epochs
        once = self.num_steps - EAGER_WARM_UP
        totals = {rung: rounds if rung.warms_up_an_epoch else once for rung in processes}
        for number in range(rounds):
            for rung, process in processes.items():
                # A rung with fewer steps than rounds is spread over all of them.
                if number * totals[rung] // rounds < (number + 1) * totals[rung] // rounds:
                    process.step(reset_peak=number == 0)
            say(f"{self.workload.project}: round {number + 1} of {rounds}", end="\r")
        say("")

    def _warmed_up(self, rung: Rung, stack: ExitStack) -> Process:
        process = self._start(rung)
        stack.callback(process.close)
        for _ in range(self._num_warm_up(rung)):
            process.step()
        return process

    def _num_warm_up(self, rung: Rung) -> int:
        return self.num_steps if rung.warms_up_an_epoch else EAGER_WARM_UP

    def _rungs(self) -> Iterator[Rung]:
        found, reasons = self._patch_as_reported()
        yield Rung("legacy", ())
        yield Rung("exact, eager", ("exact",))
        wider = ("exact", *(effect for effect in ("corrects", "order") if effect in found))
        if wider[1:]:
            yield Rung(f"+ {', '.join(wider[1:])}", wider)
        yield Rung("+ compile", wider, compile=True)
        if "precision" not in found:
            self.notes.append(f"bf16: the patch has none: {'; '.join(reasons)}")
        elif "avx512_bf16" not in cpu()["flags"]:
            self.notes.append("bf16: the patch has it, this CPU has no avx512_bf16")
        else:
            rung = Rung("+ bf16", (*wider, "precision"), compile=True)
            dtype = self._dtype(rung)
            if dtype == "bfloat16":
                yield rung
            else:
                self.notes.append(f"bf16: the patch has it, but on the CPU the script still computes in {dtype}")

    def _patch_as_reported(self) -> tuple[set[str], list[str]]:
        """Return the effects of the whole patch, and what the tool says of the precision."""
        self._copy("report")
        report = json.loads(self._tool("report", "--format", "json"))
        changes = [finding for finding in report["findings"] if finding["status"] == "change"]
        return {change["effect"] for change in changes}, report["entries"][0]["verdicts"]["precision"]["reasons"]

    def _dtype(self, rung: Rung) -> str:
        probe = Rung(f"{rung.name}, probed", rung.effects)
        self._migrate(probe)
        with closing(self._start(probe)) as process:
            return process.step().dtype

    def _migrate(self, rung: Rung) -> None:
        self._copy(rung.folder)
        if rung.effects:
            self._tool(rung.folder, "--effect", ",".join(rung.effects), "--write", "--allow-dirty")

    def _start(self, rung: Rung) -> Process:
        name = rung.folder
        places = {"data": self.folder / "data", "out": self.folder / f"{name}.out", "epochs": self.num_epochs + 1}
        flags = [flag.format_map(places) for flag in self.flags]
        env = {
            "SPEEDRUNTIME_DISABLE": "" if rung.compile else "compile",
            "OMP_NUM_THREADS": str(self.threads),
            "MKL_NUM_THREADS": str(self.threads),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / f"{name}.inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        command = [str(STEPPER), str(self.pad_id), self.workload.path, *flags]
        return Process(command, self.folder / name, env, self.folder / f"{name}.log")

    def _copy(self, name: str) -> None:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECTS / self.workload.project, self.folder / name, ignore=ignore)

    def _tool(self, name: str, *options: str) -> str:
        command = [sys.executable, "-m", "speedmigrate", self.workload.path, "--root", ".", *options]
        return run(command, self.folder / name)


def run(command: Sequence[str], cwd: Path) -> str:
    """Return what a command prints; if it fails, its output is the error."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def cpu() -> dict[str, Any]:
    """Return the CPU's model and those of its flags that matter."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    found = {name.strip(): value.strip() for name, value in lines.items()}
    flags = found.get("flags", "").split()
    return {
        "model": found.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
    }


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
