"""Find the launch files of an entry point: the shell scripts of the root that start it, and with which flags."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from speedmigrate.launch.commands import Flag, Started, after, is_rest, level, started
from speedmigrate.launch.expand import Tree
from speedmigrate.launch.files import Files, Resolved
from speedmigrate.launch.shell import LINE, Walker
from speedmigrate.launch.state import Command
from speedmigrate.launch.words import Chunk, Place, Text
from speedmigrate.launch.yamlfile import read_yaml
from speedmigrate.source import SourceFile

_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".job", ".pbs", ".lsf", ".qsub")
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|da|k)?sh\b")
_STARTS = re.compile(r"\.py\b|\s-m\s|\.(?:sh|bash|slurm)\b|\beval\b|\bsource\b|^\s*\. ", re.MULTILINE)
_SETTING = re.compile(r"[^\0=]+=")
_CONFIGS = (".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A config file that a script writes: its name as written, and where its text stands in the script."""

    name: str
    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to start an entry point.

    Attributes:
        path: the launch file that a user runs.
        line: where the command stands (in `places[0].path`).
        via: scripts and modules between the launch file and the entry point.
        flags: the program's, in order; a later one wins. `launcher_flags`: the launcher's own.
        configs: JSON and YAML files of the root that the command names; `heredocs`: those that the script writes.
        env: exported and prefixed variables whose value is known.
        places: the program and the arguments as they stand in the command's text, `"$@"` left out.
        unread: arguments that cannot be read and may hold flags (`$@`, `$EXTRA`).
    """

    path: str
    line: int
    launcher: str
    via: tuple[str, ...]
    flags: tuple[Flag, ...]
    configs: tuple[str, ...]
    env: Mapping[str, str] = field(hash=False)
    launcher_flags: tuple[Flag, ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    places: tuple[Place, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """The file whose text holds the command, which the flag edits are made in."""
        return self.places[0].path if self.places else self.path

    def flag(self, name: str) -> Flag | None:
        """Return the flag that wins among those of a name; dashes and underscores are the same."""
        wanted = _plain(name)
        return next((flag for flag in reversed(self.flags) if _plain(flag.name) == wanted), None)

    def launcher_flag(self, name: str) -> Flag | None:
        """Return the launcher's own flag of a name (`config_file` of accelerate)."""
        wanted = _plain(name)
        return next((flag for flag in reversed(self.launcher_flags) if _plain(flag.name) == wanted), None)


def same_flag(one: str, other: str) -> bool:
    """Say whether two names mean one flag: dashes and underscores are the same."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Launches:
    """All Python programs that the shell scripts of a root start; made once for a root."""

    files: Files
    read: Callable[[str], SourceFile | None]
    scripts: tuple[str, ...]

    @cached_property
    def started(self) -> tuple[tuple[str, Command, Started, Resolved], ...]:
        """Each launch file with each command of Python that it comes to, and the program that the command means."""
        found = []
        for path, command in self.commands:
            start = started(command)
            if start:
                found.append((path, command, start, self.program(start, command.folder, path)))
        return tuple(found)

    def program(self, start: Started, folder: str, path: str) -> Resolved:
        """Return the file that a command of a launch file starts in a folder."""
        find = self.files.module if start.module else self.files.resolve
        return find(start.program.text, folder, path)

    @cached_property
    def programs(self) -> tuple[str, ...]:
        """The files of the root that are started."""
        return tuple(dict.fromkeys(program.path for *_, program in self.started if program.path))

    @cached_property
    def commands(self) -> tuple[tuple[str, Command], ...]:
        """Each launch file with each command that it comes to."""
        return tuple((path, command) for path in self.scripts for command in self._commands(path))

    @cached_property
    def _trees(self) -> dict[str, Tree | None]:
        return {}

    def tree(self, path: str) -> Tree | None:
        """Return the tree of a shell file, None where there is nothing to run."""
        if path not in self._trees:
            source = self.read(path)
            usable = source is not None and bool(_STARTS.search(source.text) or "=" in source.text)
            self._trees[path] = Tree(Text((Chunk(source.text, path, 0),))) if source and usable else None
        return self._trees[path]

    def line(self, path: str, offset: int) -> int:
        """Return the line of an offset of a script."""
        source = self.read(path)
        return source.line_of(offset) if source else 0

    def _commands(self, path: str) -> list[Command]:
        source = self.read(path)
        tree = self.tree(path) if source and _STARTS.search(source.text) else None
        if tree is None:
            return []
        walker = Walker(self.tree, self.line, lambda text, folder: self.files.resolve(text, folder, path).path)
        walker.run(path, tree)
        return walker.commands

    @cached_property
    def _uses(self) -> dict[tuple[str, int], set[tuple[str, str]]]:
        """For each place that commands are made of, the programs and flags that it feeds."""
        programs = {id(command): program.path or start.program.text for _, command, start, program in self.started}
        uses: dict[tuple[str, int], set[tuple[str, str]]] = {}
        for _, command in self.commands:
            user = programs.get(id(command), command.words[0].text)
            flag = ""
            for word in () if user in ("echo", "printf") else command.words:
                name = (word.chunks[0].text or "").split("=")[0]
                flag = _plain(name) if name.startswith("-") else flag
                for chunk in word.chunks:
                    uses.setdefault((chunk.path, chunk.start), set()).add((user, flag))
        return uses

    def of(self, entry: str, importers: Sequence[str] = ()) -> tuple[Launch, ...]:
        """Return the launches of an entry point, or of modules that import and call it."""
        launches = []
        for path, command, start, program in self.started:
            if program.path == entry:
                launches.append(self._launch(path, command, start, ()))
            elif program.path and program.path in importers:
                launches.append(self._launch(path, command, start, (program.path,)))
        return tuple(dict.fromkeys(launches))

    def ambiguous(self, entry: str) -> tuple[str, ...]:
        """Return the `file:line` of commands whose program may be the entry point or another file."""
        return tuple(f"{c.path}:{c.line}" for _, c, _, program in self.started if entry in program.candidates)

    def _launch(self, path: str, command: Command, start: Started, modules: tuple[str, ...]) -> Launch:
        given = [*start.words, *start.env.values()]
        given += [after(word, word.text.index("=") + 1) for word in start.words if _SETTING.match(word.text)]
        named = [word for word in given if word.text.endswith(_CONFIGS)]
        found = [self.files.resolve(word.text, command.folder, path).path for word in named]
        found += [self._engine(config) for config in found if config and start.launcher == "accelerate"]
        made = [
            Heredoc(target.signature, *place)
            for target, place in command.heredocs
            if any(word.signature == target.signature for word in given)
        ]
        env = {name: word.text for name, word in start.env.items() if "\0" not in word.text}
        return Launch(
            path, command.line, start.launcher, (*command.via, *modules), self._placed(start.flags, start),
            tuple(dict.fromkeys(p for p in found if p)), env, self._placed(start.launcher_flags, start),
            tuple(dict.fromkeys(made)), _places(start), (*start.unread, *self._broken(command)),
        )  # fmt: skip

    def _engine(self, config: str) -> str | None:
        """Return the DeepSpeed JSON that a config file of accelerate names."""
        source = self.read(config) if config.endswith((".yaml", ".yml")) else None
        doc = read_yaml(source) if source is not None and "deepspeed_config_file" in source.text else None
        name = doc.get("deepspeed_config", "deepspeed_config_file") if doc is not None else None
        return self.files.resolve(name, "", config).path if isinstance(name, str) else None

    def _broken(self, command: Command) -> Iterator[str]:
        """Yield what is no shell on the lines of a command."""
        source, tree = self.read(command.path), self._trees.get(command.path)
        if source is None or tree is None or not tree.root.has_error or not command.line:
            return
        line = LINE.match(source.text, source.line_starts[command.line - 1])
        for start, end in tree.broken:
            if line is not None and start < line.end() and end > line.start():
                yield " ".join(source.text[start:end].split())[:40]

    def _placed(self, flags: Iterable[Flag], start: Started) -> tuple[Flag, ...]:
        return tuple(
            flag._replace(
                line=self.line(flag.path, flag.start) if flag.start >= 0 else 0,
                shared=len(self._uses.get((flag.value_path, flag.value_start), ())) > 1,
                common=len(self._uses.get((flag.path, flag.start), ())) > 1,
            )
            for flag in flags
        )


def _places(start: Started) -> tuple[Place, ...]:
    """Return where the program and its arguments stand, in the text that holds the launcher and the program."""
    launcher, program = start.words[0].chunks[0], start.program.chunks[-1]
    base = launcher.sites
    while base and program.sites[len(program.sites) - len(base) :] != base:
        base = base[1:]
    arguments = start.words[start.words.index(start.program) :]
    places = [level(word, base) for word in arguments if not is_rest(word)]
    return tuple(dict.fromkeys(place for place in places if place))


def index(root: Path, files: Sequence[str], read: Callable[[str], SourceFile | None]) -> Launches:
    """Find the shell scripts of a root."""
    scripts = []
    for path in files:
        name = posixpath.basename(path)
        if name.endswith(_SUFFIXES):
            scripts.append(path)
        elif "." not in name:
            source = read(path)
            if source and _SHEBANG.match(source.text):
                scripts.append(path)
    return Launches(Files(root, files), read, tuple(scripts))


def find_launches(
    root: Path,
    files: Sequence[str],
    entry: str,
    *,
    importers: Sequence[str] = (),
    read: Callable[[str], SourceFile | None],
) -> tuple[Launch, ...]:
    """Return the launches of one entry point; with several entry points, make one `index` and ask it."""
    return index(root, files, read).of(entry, importers)
