"""Measure the two fixture projects end to end, before and after migration: ``python -m tests.bench.projects``.

By hand; the tests do not time anything. Each project is copied, migrated with the tool's own command in rungs, and
every rung runs the user's script as it is under `stepper.py`. All rungs are alive at once and take turns step by step
(A B C A B C ...), so a busy machine slows them alike; the clock is the process's CPU time. What is compared is whole
epochs of the same samples. Where batches are regrouped or layers compiled, one epoch warms up (its cost is told apart)
and the next is measured. Elsewhere one epoch is enough: its first two steps stand at the others' time for a position.

A rung's real tokens are the input positions that hold no padding. Where a script shifts its labels by itself
(plain_ddp), dropping the last position costs a padded row a pad and an unpadded one its last token: the migrated rungs
are given one token a sample less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.project_data import PROJECTS, WORKLOADS, Workload

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


class Process:
    """A rung's script, stopped after each optimizer step until it is told to go on."""

    def __init__(self, command: Sequence[str], cwd: Path, env: dict[str, str], log: Path) -> None:
        self.command, self.cwd, self.env, self.log = command, cwd, env, log
        self.steps: list[Step] = []

    def step(self, *, reset_peak: bool = False) -> Step:
        """Let the script train one step and return what it took."""
        if self.steps:
            assert self._popen.stdin
            self._popen.stdin.write(b"r" if reset_peak else b"+")
            self._popen.stdin.flush()
        line = self._reports.readline()
        if not line:
            tail = self.log.read_text(errors="replace")[-4000:]
            raise RuntimeError(f"{' '.join(self.command)} ended after {len(self.steps)} steps:\n{tail}")
        self.steps.append(Step(**json.loads(line)))
        return self.steps[-1]

    def close(self) -> None:
        """End the script."""
        if "_popen" not in vars(self):
            return
        assert self._popen.stdin
        self._popen.stdin.close()
        try:
            self._popen.wait(30)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    @cached_property
    def _popen(self) -> subprocess.Popen[bytes]:
        self._read_fd, write_fd = os.pipe()
        stepper, *command = self.command
        command = [sys.executable, stepper, str(write_fd), *command]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.cwd,
                env=os.environ | self.env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
            )
        os.close(write_fd)
        return process

    @cached_property
    def _reports(self) -> Any:
        assert self._popen
        return os.fdopen(self._read_fd)


class Bench:
    """One project's rungs, in a folder of their own."""

    def __init__(self, workload: Workload, *, num_steps: int, num_epochs: int, threads: int, folder: Path) -> None:
        self.workload, self.num_steps, self.num_epochs, self.threads = workload, num_steps, num_epochs, threads
        self.folder = folder
        (folder / "data").mkdir()
        # In a process of its own: this one needs no torch.
        build = [DATA, workload.project, folder / "data", num_steps * workload.batch_size]
        self.pad_id = int(run([sys.executable, *map(str, build)], folder).split()[-1])
        self.notes: list[str] = []

    def measure(self) -> dict[Rung, Measured]:
        """Run all rungs and return what each took."""
        processes: dict[Rung, Process] = {}
        with ExitStack() as stack:
            for rung in self._rungs():
                processes[rung] = stack.enter_context(self._running(rung))
            say(f"{self.workload.project}: {len(processes)} rungs warm up")
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(self._warm_up, processes.values(), [self._num_warm_up(rung) for rung in processes]))
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

    def _warm_up(self, process: Process, num_steps: int) -> None:
        for _ in range(num_steps):
            process.step()

    def _num_warm_up(self, rung: Rung) -> int:
        return self.num_steps if rung.warms_up_an_epoch else EAGER_WARM_UP

    def _rungs(self) -> Iterator[Rung]:
        found, reasons = self._patch_as_reported()
        yield Rung("legacy", ())
        yield Rung("exact, eager", ("exact",))
        wider = ("exact", *(effect for effect in ("corrects", "order") if effect in found))
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
        with self._running(Rung(f"{rung.name}, probed", rung.effects)) as process:
            return process.step().dtype

    @contextmanager
    def _running(self, rung: Rung) -> Iterator[Process]:
        name = "".join(letter for letter in rung.name if letter.isalnum())
        self._copy(name)
        if rung.effects:
            self._tool(name, "--effect", ",".join(rung.effects), "--write", "--allow-dirty")
        places = {"data": self.folder / "data", "out": self.folder / f"{name}.out", "epochs": self.num_epochs + 1}
        flags = [flag.format_map(places) for flag in self.workload.flags]
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
        process = Process(command, self.folder / name, env, self.folder / f"{name}.log")
        try:
            yield process
        finally:
            process.close()

    def _copy(self, name: str) -> None:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECTS / self.workload.project, self.folder / name, ignore=ignore)

    def _tool(self, name: str, *options: str) -> str:
        command = [sys.executable, "-m", "speedmigrate", self.workload.path, "--root", ".", *options]
        return run(command, self.folder / name)


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
        loss: mean over the measured steps.
        num_bad_losses: how many of all steps had a loss that is not finite.
        num_graphs, num_late_graphs: compiled in all, and while measured.
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
            loss=sum(step.loss for step in after) / len(after),
            num_bad_losses=sum(step.loss - step.loss != 0 for step in steps),
            num_graphs=steps[-1].graphs,
            num_late_graphs=steps[-1].graphs - before[-1].graphs,
            steps=[(step.width, step.cpu_s) for step in after],
        )


def table(measured: dict[Rung, Measured]) -> str:
    """Return the rungs of a project as a markdown table."""
    head = "real tokens / CPU-s | speed-up | FLOP bound | CPU-ms a step | slots / real token | peak MiB | loss"
    lines = [f"| rung | {head} |", "|---" * 8 + "|"]
    legacy = next(iter(measured.values()))
    for rung, row in measured.items():
        finite = f"{row.loss:.3f}, finite" if not row.num_bad_losses else f"{row.num_bad_losses} not finite"
        lines.append(
            f"| {rung.name} | {row.tokens_per_second:.0f} | {row.tokens_per_second / legacy.tokens_per_second:.2f}x | "
            f"{legacy.flops_per_token / row.flops_per_token:.2f}x | {row.step_s * 1e3:.0f} | "
            f"{row.slots_per_token:.2f} | {row.peak_bytes / 2**20:.0f} | {finite} |"
        )
    return "\n".join(lines)


def compile_note(eager: Measured, compiled: Measured, num_steps: int) -> str:
    """Return what compiling costs, and after how many steps it has paid."""
    cost_s = (compiled.warm_up_s - compiled.epoch_s) - (eager.warm_up_s - eager.epoch_s)
    saved_s = (eager.epoch_s - compiled.epoch_s) / num_steps
    pays = f"saves {saved_s * 1e3:.0f} CPU-ms a step: break-even after {cost_s / saved_s:.0f} steps"
    return (
        f"compile: {cost_s:.0f} CPU-s in the warm-up, {compiled.num_graphs} graphs, {compiled.num_late_graphs} of them "
        f"while measured; {pays if saved_s > 0 else f'does not pay here ({-saved_s * 1e3:.0f} CPU-ms a step slower)'}"
    )


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


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    packages = ("torch", "transformers", "accelerate", "speedmigrate")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}, "cpu": cpu()}


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the fixture projects before and after migration.")
    parser.add_argument("--steps", type=int, default=16, help="optimizer steps an epoch (default 16)")
    parser.add_argument("--epochs", type=int, default=1, help="measured epochs, after one that warms up (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    names = [workload.project for workload in WORKLOADS]
    parser.add_argument("--project", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    if args.steps <= EAGER_WARM_UP:
        parser.error(f"--steps is {args.steps}; expected more than {EAGER_WARM_UP}")

    about = machine() | {"threads": args.threads, "load_before": os.getloadavg()}
    packages = ", ".join(f"{name} {about[name]}" for name in ("python", "torch", "transformers", "accelerate"))
    print(f"{packages}; {about['cpu']['model']}, {about['cpu']['cores']} cores, {' '.join(about['cpu']['flags'])}")
    print(f"{args.threads} thread, load {about['load_before'][0]:.1f}, {args.steps} steps an epoch\n", flush=True)
    results: dict[str, Any] = {}
    for workload in WORKLOADS:
        if args.project and workload.project not in args.project:
            continue
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(
                workload,
                num_steps=args.steps,
                num_epochs=args.epochs,
                threads=args.threads,
                folder=Path(folder),
            )
            measured = bench.measure()
        compiled = next(rung for rung in measured if rung.compile)
        eager = measured[Rung(next(r.name for r in measured if r.effects == compiled.effects), compiled.effects)]
        notes = [compile_note(eager, measured[compiled], args.steps), *bench.notes]
        print(f"**{workload.project}**, max_length {workload.max_length}, batch {workload.batch_size}\n")
        print(table(measured) + "\n\n" + "\n".join(f"- {note}" for note in notes) + "\n", flush=True)
        results[workload.project] = {"rungs": {r.name: asdict(row) for r, row in measured.items()}, "notes": notes}
    about["load_after"] = os.getloadavg()
    print(f"load at the end {about['load_after'][0]:.1f}")
    if args.json:
        args.json.write_text(json.dumps({"machine": about, "projects": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
