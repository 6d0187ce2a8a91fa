"""Run the rules over entry points, in one process or several; the results do not depend on how many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from speedmigrate.rule import Finding, Options, Place, Rule, load_rules
from speedmigrate.target import LIBRARIES, Target

if TYPE_CHECKING:
    from speedmigrate.facts.entry import EntryFacts
    from speedmigrate.facts.project import Project


BUG = "This is a bug of speedmigrate: please report it"


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch file of an entry point and the files that lead from it there."""

    path: str
    via: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the rules said of one entry point; `errors` are the files that could not be read on the way."""

    path: str
    target: Target
    trains: bool
    launches: tuple[Launch, ...]
    findings: tuple[Finding, ...]
    errors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What to look at: the root, what the command line said, and new bytes that stand for files of the root."""

    root: Path
    options: Options = Options()
    target: str | None = None
    overlay: Mapping[str, bytes] = field(default_factory=dict)


def analyse(entry: EntryFacts, rules: Iterable[Rule]) -> Analysis:
    """Run every rule on one entry point."""
    findings: list[Finding] = []
    for rule in rules if entry.trains else ():
        try:
            findings += (_met(finding, entry.target) for finding in rule.check(entry))
        except Exception as error:  # a crash on a file that is not ours to fix must not lose the other rules
            findings.append(_crash(rule, entry.path, error))
    launches = tuple(dict.fromkeys(Launch(launch.path, tuple(launch.via)) for launch in entry.launches))
    return Analysis(entry.path, entry.target, entry.trains, launches, tuple(findings))


def _met(finding: Finding, target: Target) -> Finding:
    """Return a change as it is where the target has what it needs, else as a refusal with the version."""
    for need in finding.needs if finding.status == "change" else ():
        library, _, least = need.partition(">=")
        if library in LIBRARIES and target.version(library) < tuple(map(int, least.split("."))):
            said = ".".join(map(str, target.version(library)))
            message = f"not changed: it needs {need}, and the target is {library} {said} ({target.source(library)})"
            return replace(finding, status="refused", effect=None, message=message, ops=(), group="", requires=())
    return finding


def _crash(rule: Rule, path: str, error: Exception) -> Finding:
    message = f"the rule {rule.name} failed here ({one_line(error)}); nothing is changed. {BUG}"
    return rule.finding("refused", Place(path, 1, 1), message)


def one_line(error: Exception) -> str:
    """Return an error with its type, for a message."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def analyse_paths(request: Request, paths: Sequence[str], project: Project | None = None) -> tuple[Analysis, ...]:
    """Analyse the entry points at `paths` in this process; `project` is the root where it was read before."""
    from speedmigrate.facts.entry import entry_facts
    from speedmigrate.facts.project import Project

    project = project or Project(request.root, request.overlay)
    rules = load_rules()
    found: list[Analysis] = []
    failures: dict[str, str] = {}
    for path in paths:
        target = target_of(project, path, request.target)
        try:
            found.append(analyse(entry_facts(project, path, target, request.options), rules))
        except Exception as error:  # the other entry points must not be lost
            failures[path] = f"{path}: could not be analysed ({one_line(error)}). {BUG}"
            found.append(Analysis(path, target, True, (), ()))
    errors = tuple(sorted((project.errors | failures).items()))
    return tuple(replace(analysis, errors=errors) for analysis in found)


def target_of(project: Project, path: str, override: str | None) -> Target:
    """Return the target of an entry point; `override` is the value of `--target`."""
    from speedmigrate.target import detect_target

    return detect_target(project.root, project.files, path, project.source, override=override)


def analyse_all(
    request: Request, paths: Sequence[str], jobs: int = 1, project: Project | None = None
) -> tuple[Analysis, ...]:
    """Analyse entry points, by path, with up to `jobs` processes."""
    paths = sorted(set(paths))
    jobs = min(jobs, len(paths))
    if jobs <= 1:
        return analyse_paths(request, paths, project)
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    chunks = [paths[start::jobs] for start in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = pool.map(analyse_paths, [request] * jobs, chunks)
        return tuple(sorted((analysis for part in parts for analysis in part), key=lambda analysis: analysis.path))
