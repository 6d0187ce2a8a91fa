"""Measure what facts cost on real repositories: ``python -m tests.bench.facts --repos DIR [--table open.tsv]``.

By hand; the tests do not time anything. DIR holds one checkout a repository, named OWNER+NAME; the table names entry
points (columns repo and path). The clock is CPU time, children included. Three things are measured:

- modules: every .py file of every repository read and put through the gate (`ENTRY_WORDS`), those that pass parsed
  and their `Module` facts made; a line fitted over the repositories says whether it is linear in the bytes.
- entries: all facts of one entry point, once as a process of the real command and once in this process, where nothing
  is imported any more; each time the repository is read afresh.
- folders: `speedmigrate facts REPOSITORY`, a process each.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression, median, quantiles
from typing import Any

from speedmigrate.chain.report import gather
from speedmigrate.cli import collect_rarely
from speedmigrate.facts.entry import ENTRY_WORDS
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options


@dataclass(frozen=True)
class Modules:
    """What the files of a repository took: to list and read, to gate, to parse those that pass."""

    repo: str
    num_files: int
    num_bytes: int
    num_parsed: int
    read_s: float
    parse_s: float

    @property
    def cpu_s(self) -> float:
        """All of it."""
        return self.read_s + self.parse_s


@dataclass(frozen=True)
class Entry:
    """What the facts of one entry point took, as a process and without its start-up."""

    repo: str
    path: str
    process_s: float
    inside_s: float


def modules(root: Path, *, gated: bool) -> Modules:
    """Read every .py file of a repository and make the facts of those that pass the gate."""
    start = time.process_time()
    project = Project(root)
    sources = [source for path in project.files if path.endswith(".py") for source in [project.source(path)] if source]
    passed = [source for source in sources if not gated or any(word in source.text for word in ENTRY_WORDS)]
    read = time.process_time()
    parsed = [module for source in passed for module in [project.module(source.path)] if module]
    return Modules(
        root.name,
        len(sources),
        sum(len(source.data) for source in sources),
        len(parsed),
        read - start,
        time.process_time() - read,
    )


def process_s(root: Path, path: str) -> float:
    """Return the CPU seconds of a process of the command."""
    command = [sys.executable, "-m", "speedmigrate", "facts", path, "--root", ".", "--format", "json"]
    child = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def inside_s(root: Path, path: str) -> float:
    """Return the CPU seconds of the facts of an entry point in this process, the repository read afresh."""
    start = time.process_time()
    gather(Project(root), [path], Options(), None)
    return time.process_time() - start


def fit(measured: Sequence[Modules]) -> str:
    """Return a line over the repositories, and how much of the spread it explains."""
    sizes = [row.num_bytes / 2**20 for row in measured]
    costs = [row.cpu_s for row in measured]
    slope, intercept = linear_regression(sizes, costs)
    mean = sum(costs) / len(costs)
    left = sum((cost - intercept - slope * size) ** 2 for size, cost in zip(sizes, costs, strict=True))
    explained = 1 - left / sum((cost - mean) ** 2 for cost in costs)
    return f"{slope:.2f} CPU-s a MiB {intercept:+.3f} a repository, R2 {explained:.3f}"


def spread(values: Sequence[float]) -> str:
    """Return the median, the ninth decile and the most."""
    return f"median {median(values):.2f}, 90 % below {quantiles(values, n=10)[-1]:.2f}, most {max(values):.2f} CPU-s"


def measure_modules(roots: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Measure and print the modules of all repositories, gated and all."""
    results = {}
    for name, gated in (("gated", True), ("all", False)):
        rows = [modules(root, gated=gated) for root in roots]
        results[name] = [asdict(row) for row in rows]
        files, parsed = sum(row.num_files for row in rows), sum(row.num_parsed for row in rows)
        total_s, read_s = sum(row.cpu_s for row in rows), sum(row.read_s for row in rows)
        print(
            f"modules, {name}: {files} files, {parsed} parsed, {total_s:.1f} CPU-s ({read_s:.1f} to list, read, gate)"
        )
        print(f"  {fit(rows)}", flush=True)
    return results


def measure_entries(repos: Path, table: Path, every: int) -> list[Entry]:
    """Measure and print every n-th entry point of the table that is there."""
    with table.open(encoding="utf-8", newline="") as file:
        wanted = [(row["repo"].replace("/", "+"), row["path"]) for row in csv.DictReader(file, delimiter="\t")][::every]
    there = [(repo, path) for repo, path in wanted if (repos / repo / path).is_file()]
    rows = []
    for repo, path in there:
        inside = inside_s(repos / repo, path)
        rows.append(Entry(repo, path, process_s(repos / repo, path), inside))
    print(f"entries: {len(rows)} of {len(wanted)} are there")
    print(f"  a process: {spread([row.process_s for row in rows])}")
    print(f"  without start-up: {spread([row.inside_s for row in rows])}", flush=True)
    return rows


def measure_folders(roots: Sequence[Path]) -> dict[str, float]:
    """Measure and print the command on whole repositories."""
    rows = {root.name: process_s(root, ".") for root in roots}
    worst = max(rows, key=lambda name: rows[name])
    print(f"folders: {sum(rows.values()):.1f} CPU-s in all; {spread(list(rows.values()))} ({worst})", flush=True)
    return rows


def profile(repos: Path, entries: Sequence[Entry], num_lines: int) -> None:
    """Print where the time of the entry points around the median goes."""
    ranked = sorted(entries, key=lambda entry: entry.inside_s)
    middle = ranked[len(ranked) // 4 : 3 * len(ranked) // 4 : 4]
    profiler = cProfile.Profile()
    for entry in middle:
        profiler.runcall(inside_s, repos / entry.repo, entry.path)
    print(f"profile of {len(middle)} entry points around the median")
    stats = pstats.Stats(profiler, stream=sys.stdout).strip_dirs()
    stats.sort_stats("tottime").print_stats(num_lines)
    stats.sort_stats("cumulative").print_stats(num_lines)


def main() -> None:
    """Measure and print."""
    collect_rarely()
    parser = argparse.ArgumentParser(description="Measure what facts cost.")
    parser.add_argument("--repos", type=Path, required=True, help="folder of checkouts, named OWNER+NAME")
    parser.add_argument("--table", type=Path, help="entry points; without it only modules and folders are measured")
    parser.add_argument("--every", type=int, default=1, help="take every n-th entry point of the table (default 1)")
    parser.add_argument("--no-folders", action="store_true", help="leave whole repositories out")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="print N lines of a profile of the entries")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    roots = sorted(path for path in args.repos.iterdir() if path.is_dir())
    if len(roots) < 2:
        parser.error(f"--repos is {args.repos}; expected a folder of two repositories or more")

    print(f"{len(roots)} repositories, load {os.getloadavg()[0]:.1f}", flush=True)
    results: dict[str, Any] = {"modules": measure_modules(roots)}
    if args.table:
        entries = measure_entries(args.repos, args.table, args.every)
        results["entries"] = [asdict(entry) for entry in entries]
        if args.profile:
            profile(args.repos, entries, args.profile)
    if not args.no_folders:
        results["folders"] = measure_folders(roots)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
