"""The root folder: its files, parsed modules (each once) and where an import leads (DESIGN 5, "Imports")."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from speedmigrate import source as sources
from speedmigrate.facts.module import Import, Module, load

_SKIPPED = {".git", ".venv", "venv", "node_modules", "site-packages", "__pycache__", ".speedmigrate", ".tox", "build"}


class Project:
    """Every file below one root. `overlay` holds new bytes of files, for looking at a patched tree without writing
    it."""

    def __init__(self, root: Path, overlay: Mapping[str, bytes] | None = None) -> None:
        self.root = root
        self.overlay = dict(overlay or {})
        self.files = _walk(root)
        self.errors: dict[str, str] = {}
        self._file_set = frozenset(self.files) | set(self.overlay)
        self._by_name: dict[str, list[str]] = {}
        for path in self.files:
            if path.endswith(".py"):
                self._by_name.setdefault(PurePosixPath(path).name, []).append(path)
        self._sources: dict[str, sources.SourceFile | None] = {}
        self._modules: dict[str, Module | None] = {}
        self._found: dict[tuple[str, str, int], str | None] = {}
        self._entries: dict[str, list[PurePosixPath]] = {}
        self._importers: dict[str, tuple[str, ...]] = {}
        self._mentioning: dict[str, tuple[str, ...]] = {}
        # What others work out of the whole project once (`facts.entry.shared`).
        self.shared: dict[str, Any] = {}

    def source(self, path: str) -> sources.SourceFile | None:
        """Return the file, or None where it is absent or unreadable (then `errors` says why)."""
        if path not in self._sources:
            try:
                if path in self.overlay:
                    found = sources.decode(path, self.overlay[path], python=path.endswith(".py"))
                else:
                    found = sources.read(self.root, path)
                self._sources[path] = found
            except sources.SourceError as error:
                self.errors[path] = str(error)
                self._sources[path] = None
        return self._sources[path]

    def module(self, path: str) -> Module | None:
        """Return the parsed file, or None where it cannot be read or parsed (then `errors` says why)."""
        if path not in self._modules:
            self._modules[path] = None
            text = self.source(path)
            if text is not None:
                try:
                    self._modules[path] = load(text)
                except sources.SourceError as error:
                    self.errors[path] = str(error)
        return self._modules[path]

    def modules_mentioning(self, word: str) -> Iterator[Module]:
        """Yield the parsable .py files that hold `word` as a whole identifier (bytes are looked at before parsing)."""
        if word not in self._mentioning:
            pattern = re.compile(rf"\b{re.escape(word)}\b")
            texts = ((path, self.source(path)) for path in self.files if path.endswith(".py"))
            self._mentioning[word] = tuple(
                path for path, text in texts if text is not None and word in text.text and pattern.search(text.text)
            )
        for path in self._mentioning[word]:
            module = self.module(path)
            if module is not None:
                yield module

    def unreadable_mentioning(self, word: str) -> tuple[str, ...]:
        """Return the .py files that hold `word` and cannot be parsed."""
        list(self.modules_mentioning(word))
        return tuple(path for path in self._mentioning[word] if self.module(path) is None)

    def find(self, importer: Module, module: str, level: int = 0) -> str | None:
        """Return the file that `module` means in `importer`, or None where it is outside the root or ambiguous."""
        key = (importer.path, module, level)
        if key not in self._found:
            self._found[key] = self._find(importer, module, level)
        return self._found[key]

    def _find(self, importer: Module, module: str, level: int) -> str | None:
        parts = [part for part in module.split(".") if part]
        here = PurePosixPath(importer.path).parent
        if level:
            base = here
            for _ in range(level - 1):
                base = base.parent
            return self._at(base, parts)
        bases = [here, *self._path_entries(importer), PurePosixPath(), PurePosixPath("src")]
        parent = here
        while parent != PurePosixPath():
            parent = parent.parent
            bases.append(parent)
        for base in bases:
            found = self._at(base, parts)
            if found is not None:
                return found
        return None

    def _at(self, base: PurePosixPath, parts: list[str]) -> str | None:
        path = base.joinpath(*parts)
        for candidate in (path.with_name(path.name + ".py") if parts else path, path / "__init__.py"):
            if str(candidate) in self._file_set:
                return str(candidate)
        return None

    def _path_entries(self, importer: Module) -> list[PurePosixPath]:
        """Return the folders that literal `sys.path.append/insert` lines add."""
        if "sys.path" not in importer.source.text:
            return []
        if importer.path not in self._entries:
            self._entries[importer.path] = list(_path_entries(importer))
        return self._entries[importer.path]

    def import_target(self, importer: Module, entry: Import) -> tuple[str, str]:
        """Return (file in the root, attribute left) of an import, or ("", dotted name) where it leads outside."""
        if entry.attr:
            whole = ".".join(part for part in (entry.module, entry.attr) if part)
            submodule = self.find(importer, whole, entry.level)
            package = self.find(importer, entry.module, entry.level)
            own = package == importer.path  # `from . import x` in the package itself means the file beside it
            if package is not None and (submodule is None or (not own and self._defines(package, entry.attr))):
                return package, entry.attr
            if submodule is not None:
                return submodule, ""
            return "", "." * entry.level + whole
        found = self.find(importer, entry.module, entry.level)
        return (found, "") if found is not None else ("", entry.module)

    def _defines(self, path: str, name: str) -> bool:
        module = self.module(path)
        if module is None:
            return False
        if name in module.imports:
            return True
        return any(name in bound_names(node) for node in module.tree.body)

    def importers(self, path: str) -> tuple[str, ...]:
        """Return the files that import the module at `path` (worked out once)."""
        if path not in self._importers:
            self._importers[path] = self._find_importers(path)
        return self._importers[path]

    def _find_importers(self, path: str) -> tuple[str, ...]:
        return tuple(module.path for module in self.modules_mentioning(_stem(path)) if self.imports(module.path, path))

    def imports(self, importer: str, path: str) -> bool:
        """Say whether one file imports the module at `path`."""
        source = self.source(importer) if importer != path else None
        module = self.module(importer) if source is not None and _stem(path) in source.text else None
        if module is None:
            return False
        entries = [entry for group in module.imports.values() for entry in group] + list(module.stars)
        return any(self.import_target(module, entry)[0] == path for entry in entries)


def _stem(path: str) -> str:
    return PurePosixPath(path).parent.name if path.endswith("__init__.py") else PurePosixPath(path).stem


def _path_entries(importer: Module) -> Iterator[PurePosixPath]:
    for node in importer.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"sys.path.append", "sys.path.insert"}:
            value = node.args[-1] if node.args else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and not value.value.startswith("/"):
                for base in (PurePosixPath(importer.path).parent, PurePosixPath()):
                    yield PurePosixPath(os.path.normpath(base / value.value))


def bound_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds in its own scope (compound statements are looked into)."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(child.name)
        elif isinstance(child, ast.alias):
            names.add(child.asname or child.name.partition(".")[0])
    return names


def _walk(root: Path) -> tuple[str, ...]:
    """Return the files below `root`, those that git ignores and links out of it left out, sorted."""
    listed = _git_files(root)
    if listed is None:
        listed = []
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED)
            listed += [Path(folder, name).relative_to(root).as_posix() for name in names]
    resolved = root.resolve()
    return tuple(sorted(path for path in set(listed) if _is_ours(resolved, path)))


def _is_ours(root: Path, path: str) -> bool:
    if _SKIPPED & set(PurePosixPath(path).parts[:-1]):
        return False
    full = root / path
    if not full.is_symlink() and not any((root / parent).is_symlink() for parent in PurePosixPath(path).parents):
        return True
    return full.resolve().is_relative_to(root) and full.is_file()


def _git_files(root: Path) -> list[str] | None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    except OSError:
        return None
    if done.returncode:
        return None
    return [
        name
        for name in done.stdout.decode("utf-8", "surrogateescape").split("\0")
        if name and os.path.lexists(root / name)
    ]
