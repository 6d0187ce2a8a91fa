"""Write changed files into the tree, all or nothing, and take them back: the journal under `.speedmigrate/`.

A journal is complete on disk before the first file is replaced, so `undo` can put the old bytes back after a crash at
any step. It holds the newest state of a write: `begun` (files may be old or new), then `done`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import stat
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speedmigrate.patch import FileChange

FOLDER = ".speedmigrate"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """One file of a write: its resolved path below the root, its old bytes (None: it was not there), the new's hash."""

    path: str
    old: str | None
    new_hash: str
    mode: int

    @classmethod
    def of(cls, root: Path, change: FileChange) -> _Entry:
        full = _resolve(root, change.path)
        old = None if change.old is None else base64.b64encode(change.old).decode()
        mode = stat.S_IMODE(full.stat().st_mode) if full.exists() else stat.S_IMODE(change.mode)
        return cls(full.relative_to(root).as_posix(), old, _hash(change.new) or "", mode)

    @property
    def old_bytes(self) -> bytes | None:
        return None if self.old is None else base64.b64decode(self.old)


def write(root: Path, changes: Iterable[FileChange], *, allow_dirty: bool = False) -> list[str]:
    """Write the new bytes of all changes, or of none; return the paths written.

    Raises:
        ValueError: a file changed since it was read, lies outside the root or cannot be written, a tracked file of the
            git tree is dirty and `allow_dirty` is not set, or an earlier write was interrupted.
    """
    root = root.resolve()
    changes = sorted((change for change in changes if change.new != change.old), key=lambda change: change.path)
    if not changes:
        return []
    journals = _journals(root)
    if journals and _load(journals[-1])[0] != "done":
        raise ValueError(f"{root}: an earlier write was interrupted; run `speedmigrate undo` first")
    if not allow_dirty:
        _check_clean(root)
    entries = _entries(root, changes)
    journal = _next_journal(root, journals)
    try:
        _save(journal, "begun", entries)
        _replace_all(root, changes, entries)
        _save(journal, "done", entries)
    except BaseException as error:
        _roll_back(root, journal, entries)
        if isinstance(error, OSError):
            reason = f"cannot be written ({error.strerror}); nothing was changed"
            raise ValueError(f"{error.filename or root}: {reason}") from error
        raise
    return [change.path for change in changes]


def _roll_back(root: Path, journal: Path, entries: Sequence[_Entry]) -> None:
    try:
        if journal.exists():
            _restore(root, journal, entries)
    except OSError as error:
        raise ValueError(f"{root}: writing failed half-way ({error.strerror}); run `speedmigrate undo`") from error


def undo(root: Path) -> list[str]:
    """Put back the bytes that the last write replaced, or that an interrupted one did; return the paths restored.

    Raises:
        ValueError: nothing to undo, or a file is no longer as it was written; then no file is touched.
    """
    root = root.resolve()
    journals = _journals(root)
    if not journals:
        raise ValueError(f"{root}: nothing to undo")
    state, entries = _load(journals[-1])
    for entry in entries:
        found = _hash(_bytes(_resolve(root, entry.path)))
        if found != entry.new_hash and (state == "done" or found != _hash(entry.old_bytes)):
            raise ValueError(f"{entry.path}: changed since speedmigrate wrote it; nothing was undone")
    try:
        if state == "done":
            _save(journals[-1], "begun", entries)
        return _restore(root, journals[-1], entries)
    except OSError as error:
        raise ValueError(f"{error.filename or root}: cannot be restored ({error.strerror}); run undo again") from error


def _check_clean(root: Path) -> None:
    if not any((folder / ".git").exists() for folder in (root, *root.parents)):
        return
    # fsmonitor may name a program of the repository's: never run it.
    command = ("git", "-c", "core.fsmonitor=false", "status", "--porcelain", "-z", "--untracked-files=no")
    try:
        answer = subprocess.run(
            command, cwd=root, capture_output=True, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}, check=False
        )
    except OSError as error:
        raise ValueError(f"{root}: git cannot be run ({error.strerror}); --allow-dirty writes without it") from error
    if answer.returncode:
        reason = os.fsdecode(answer.stderr).strip().partition("\n")[0]
        raise ValueError(f"{root}: git status failed ({reason}); --allow-dirty writes without it")
    dirty = [os.fsdecode(line[3:]) for line in answer.stdout.split(b"\0") if line[2:3] == b" "]
    if dirty:
        more = f" and {len(dirty) - 1} more" if len(dirty) > 1 else ""
        raise ValueError(f"{dirty[0]}{more}: not committed; commit or stash first, or use --allow-dirty")


def _entries(root: Path, changes: Sequence[FileChange]) -> list[_Entry]:
    entries = [_Entry.of(root, change) for change in changes]
    for change, entry in zip(changes, entries, strict=True):
        if _bytes(root / entry.path) != change.old:
            raise ValueError(f"{change.path}: changed since it was read; run again")
    seen: dict[str, str] = {}
    for change, entry in zip(changes, entries, strict=True):
        if entry.path in seen:
            raise ValueError(f"{change.path}: the same file as {seen[entry.path]}; name one of them")
        seen[entry.path] = change.path
    return entries


def _resolve(root: Path, path: str) -> Path:
    """Return the file that a path leads to, links followed.

    Raises:
        ValueError: it is outside the root, or not ours to write.
    """
    full = (root / path).resolve()
    if not full.is_relative_to(root) or full == root:
        raise ValueError(f"{path}: leads outside {root}")
    if {".git", FOLDER} & set(full.relative_to(root).parts):
        raise ValueError(f"{path}: not a file to change")
    return full


def _hash(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error


def _journals(root: Path) -> list[Path]:
    return sorted((root / FOLDER).glob("[0-9]*.json"))


def _next_journal(root: Path, journals: Sequence[Path]) -> Path:
    folder = root / FOLDER
    if folder.is_symlink():
        raise ValueError(f"{folder}: a link; remove it")
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_bytes(b"*\n")
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written ({error.strerror}); nothing was changed") from error
    return folder / f"{int(journals[-1].stem) + 1 if journals else 1:06d}.json"


def _save(journal: Path, state: str, entries: Sequence[_Entry]) -> None:
    record = {"version": _VERSION, "state": state, "files": [asdict(entry) for entry in entries]}
    temporary = journal.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    _create(temporary, json.dumps(record, indent=1).encode(), 0o600)
    temporary.replace(journal)
    _sync_folders([journal, journal.parent])


def _load(journal: Path) -> tuple[str, list[_Entry]]:
    try:
        record = json.loads(journal.read_bytes())
        if record["version"] != _VERSION:
            raise ValueError(f"{journal}: written by another version of speedmigrate")
        return record["state"], [_Entry(**entry) for entry in record["files"]]
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{journal}: not a journal of speedmigrate ({type(error).__name__})") from error


def _temporary(full: Path) -> Path:
    return full.with_name(f".{full.name}.speedmigrate.tmp")


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create a file that is not there, and have it on disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(mode)


def _replace_all(root: Path, changes: Sequence[FileChange], entries: Sequence[_Entry]) -> None:
    fulls = [root / entry.path for entry in entries]
    for full, change, entry in zip(fulls, changes, entries, strict=True):
        full.parent.mkdir(parents=True, exist_ok=True)
        _prepare(full, change.new, entry.mode)
    for full, change in zip(fulls, changes, strict=True):
        if _bytes(full) != change.old:
            raise ValueError(f"{change.path}: changed while it was being written; nothing was changed")
        _temporary(full).replace(full)
    _sync_folders(fulls)


def _prepare(full: Path, data: bytes, mode: int) -> None:
    temporary = _temporary(full)
    _create(temporary, data, mode)
    if full.exists() and hasattr(os, "chown"):
        owner = full.stat()
        with contextlib.suppress(OSError):
            os.chown(temporary, owner.st_uid, owner.st_gid)
            temporary.chmod(mode)


def _restore(root: Path, journal: Path, entries: Sequence[_Entry]) -> list[str]:
    """Put every file that has our new bytes back to its old ones, then drop the journal."""
    restored: list[str] = []
    for entry in entries:
        full = root / entry.path
        _temporary(full).unlink(missing_ok=True)
        if _hash(_bytes(full)) == entry.new_hash:
            old = entry.old_bytes
            if old is None:
                full.unlink()
                _drop_empty(full.parent, root)
            else:
                _prepare(full, old, stat.S_IMODE(full.stat().st_mode))
                _temporary(full).replace(full)
            restored.append(entry.path)
    _sync_folders(full for entry in entries if (full := root / entry.path).parent.exists())
    journal.unlink()
    _sync_folders([journal])
    return restored


def _drop_empty(folder: Path, root: Path) -> None:
    with contextlib.suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def _sync_folders(paths: Iterable[Path]) -> None:
    """Have the names of files on disk; only POSIX can."""
    for folder in sorted({path.parent for path in paths}) if os.name == "posix" else ():
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
