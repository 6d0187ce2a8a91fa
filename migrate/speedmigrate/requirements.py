"""The dependency line that a file which imports the runtime asks for."""

from __future__ import annotations

from pathlib import PurePosixPath

from speedmigrate.facts.project import Project
from speedmigrate.rule import AddRequirement


def runtime_requirement(project: Project, path: str) -> list[AddRequirement]:
    """Return the edit of the `requirements.txt` nearest to the file at `path`; none where the root has none above
    it."""
    for folder in PurePosixPath(path).parents:
        candidate = str(folder / "requirements.txt")
        if candidate in project.files:
            return [AddRequirement(candidate, "speedmigrate[runtime]")]
    return []
