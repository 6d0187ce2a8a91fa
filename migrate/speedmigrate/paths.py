"""From the PATHs of the command line to a root and its entry points; every PATH that cannot be used gets one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speedmigrate.facts.project import Project

LAUNCH_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".json")


class PathError(ValueError):
    """A PATH that cannot be used; `str(error)` is one line for the user."""


@dataclass(frozen=True, slots=True)
class Entries:
    """The entry points that PATHs stand for, the launch files among the PATHs, and the PATHs that cannot be used."""

    paths: tuple[str, ...]
    launches: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]


def find_root(paths: Iterable[str], named: str | None = None) -> Path:
    """Return the named root, else the git root above the paths, else the folder that holds them all.

    Raises:
        PathError: the named root is not a folder.
    """
    if named is not None:
        if not Path(named).is_dir():
            raise PathError(f"--root {named}: expected a folder")
        return Path(named).resolve()
    full = [Path(path).absolute() for path in paths]
    folders = [path if path.is_dir() else path.parent for path in full]
    common = Path(os.path.commonpath(folders)).resolve()
    return next((folder for folder in (common, *common.parents) if (folder / ".git").exists()), common)


def below(root: Path, path: str) -> str:
    """Return a PATH relative to the root, with slashes; a symlink keeps its own name where it lies in the root.

    Raises:
        PathError: it is missing, or not inside the root.
    """
    full = Path(path)
    if not full.exists():
        raise PathError(f"{path}: no such file or folder")
    for candidate in (full.parent.resolve() / full.name if full.name else full.resolve(), full.resolve()):
        if candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    raise PathError(f"{path}: outside the root {root}; name another with --root")


def find_all(project: Project, paths: Sequence[str]) -> Entries:
    """Return the entry points of all PATHs, each once, by path."""
    entries: set[str] = set()
    launches: set[str] = set()
    errors: list[tuple[str, str]] = []
    for path in dict.fromkeys(paths):
        try:
            name = below(project.root, path)
            entries.update(_find(project, path, name))
        except PathError as error:
            errors.append((path, str(error)))
        else:
            if name.endswith(LAUNCH_SUFFIXES):
                launches.add(name)
    return Entries(tuple(sorted(entries)), tuple(sorted(launches)), tuple(errors))


def _find(project: Project, path: str, name: str) -> tuple[str, ...]:
    from speedmigrate.facts.entry import find_entries

    full = Path(path)
    if full.is_dir():
        found = find_entries(project, "" if name == "." else name)
        scripts = [
            file for file in project.files if file.endswith(".py") and (name == "." or file.startswith(f"{name}/"))
        ]
        if scripts and all(script in project.errors for script in scripts):
            raise PathError(f"{path}: none of its scripts can be read: {project.errors[scripts[0]]}")
        return found
    if not name.endswith((".py", *LAUNCH_SUFFIXES)):
        raise PathError(f"{path}: expected a Python script, a launch file (.sh, .yaml, .json) or a folder")
    if not full.is_file():
        raise PathError(f"{path}: expected a regular file")
    source = project.source(name)
    if source is None or (name.endswith(".py") and project.module(name) is None):
        raise PathError(project.errors.get(name, f"{path}: cannot be read"))
    if not source.text.strip():
        raise PathError(f"{path}: empty file")
    return find_entries(project, name)
