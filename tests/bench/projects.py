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
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.project_data import WORKLOADS
from tests.bench.project_rungs import EAGER_WARM_UP, Bench, Measured, Rung, cpu


def table(measured: dict[Rung, Measured]) -> str:
    """Return the rungs of a project as a markdown table."""
    speed = "real tokens / CPU-s | speed-up | FLOP bound | CPU-ms a step"
    lines = [f"| rung | {speed} | slots / real token | peak MiB | loss, first epoch |", "|---" * 8 + "|"]
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
    cost_s = compiled.warm_up_s - compiled.epoch_s
    saved_s = (eager.epoch_s - compiled.epoch_s) / num_steps
    pays = f"saves {saved_s * 1e3:.0f} CPU-ms a step: break-even after {cost_s / saved_s:.0f} steps"
    return (
        f"compile: {cost_s:.0f} CPU-s in the warm-up, {compiled.num_graphs} graphs, {compiled.num_late_graphs} of them "
        f"while measured; {pays if saved_s > 0 else f'does not pay here ({-saved_s * 1e3:.0f} CPU-ms a step slower)'}"
    )


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    packages = ("torch", "transformers", "accelerate", "speedmigrate")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}, "cpu": cpu()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the fixture projects before and after migration.")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps an epoch (default 12)")
    parser.add_argument("--epochs", type=int, default=1, help="measured epochs, after one that warms up (default 1)")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 in all rungs of stage1, as in its run script")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    names = [workload.project for workload in WORKLOADS]
    parser.add_argument("--project", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    if args.steps <= EAGER_WARM_UP:
        parser.error(f"--steps is {args.steps}; expected more than {EAGER_WARM_UP}")

    about = machine() | {"threads": args.threads, "bf16": args.bf16, "load_before": os.getloadavg()}
    packages = ", ".join(f"{name} {about[name]}" for name in ("python", "torch", "transformers", "accelerate"))
    print(f"{packages}; {about['cpu']['model']}, {about['cpu']['cores']} cores, {' '.join(about['cpu']['flags'])}")
    bf16 = ", stage1 in bfloat16" if args.bf16 else ""
    print(f"{args.threads} thread, load {about['load_before'][0]:.1f}, {args.steps} steps an epoch{bf16}\n", flush=True)
    results: dict[str, Any] = {}
    for workload in WORKLOADS:
        if args.project and workload.project not in args.project:
            continue
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(
                workload,
                Path(folder),
                num_steps=args.steps,
                num_epochs=args.epochs,
                threads=args.threads,
                bf16=args.bf16,
            )
            measured = bench.measure()
        compiled = next(rung for rung in measured if rung.compile)
        eager = next(row for rung, row in measured.items() if rung.effects == compiled.effects and not rung.compile)
        notes = [compile_note(eager, measured[compiled], args.steps), *bench.notes]
        dtypes = ", ".join(dict.fromkeys(row.dtype for row in measured.values()))
        print(f"**{workload.project}**, max_length {workload.max_length}, batch {workload.batch_size}, {dtypes}\n")
        print(table(measured) + "\n\n" + "\n".join(f"- {note}" for note in notes) + "\n", flush=True)
        results[workload.project] = {"rungs": {r.name: asdict(row) for r, row in measured.items()}, "notes": notes}
    about["load_after"] = os.getloadavg()
    print(f"load at the end {about['load_after'][0]:.1f}")
    if args.json:
        args.json.write_text(json.dumps({"machine": about, "projects": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
