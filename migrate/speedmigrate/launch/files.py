"""Tell which file of a root a script means by a path or a module name."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from speedmigrate.launch.paths import ROOT, join


@dataclass(frozen=True, slots=True)
class Resolved:
    """The file of the root that a path in a script means, or the files that it may mean."""

    path: str | None = None
    candidates: tuple[str, ...] = ()


class Files:
    """The files of a root, by path and by name."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self.root = root.name
        self.paths = frozenset(files)
        self._named: dict[str, list[str]] = {}
        for path in sorted(self.paths):
            self._named.setdefault(posixpath.basename(path), []).append(path)

    def resolve(self, text: str, folder: str, script: str) -> Resolved:
        """Return the file that `text` means in a script run in `folder` (below an unknown start).

        The start is taken to be the script's folder, then the folders above it up to the root; failing these, the one
        file whose path ends like `text` counts.
        """
        path = join(folder, text)
        if path.startswith(f"{ROOT}/") and path[len(ROOT) + 1 :] in self.paths:
            return Resolved(path[len(ROOT) + 1 :])
        if "\0" not in path and not path.startswith("/"):
            start = posixpath.dirname(script)
            while True:
                found = join(start, path)
                if found in self.paths:
                    return Resolved(found)
                if not start:
                    break
                start = posixpath.dirname(start)
        _, inside, rest = path.rpartition(f"/{self.root}/")
        if inside and rest in self.paths:
            return Resolved(rest)
        return self._ending(path)

    def _ending(self, path: str) -> Resolved:
        parts = path.rpartition("\0")[2].split("/")
        if "\0" in posixpath.basename(path):
            return Resolved()
        named = self._named.get(parts[-1], [])
        for count in range(len(parts), 0, -1):
            tail = "/".join(parts[-count:]).lstrip("/")
            hits = [path for path in named if path == tail or path.endswith(f"/{tail}")]
            if hits:
                return Resolved(hits[0]) if len(hits) == 1 else Resolved(None, tuple(hits))
        return Resolved()

    def module(self, name: str, folder: str, script: str) -> Resolved:
        """Return the file that `python -m name` runs."""
        stem = name.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__main__.py", f"src/{stem}.py"):
            found = self.resolve(path, folder, script)
            if found.path and found.path.endswith(path):
                return found
        return Resolved()
