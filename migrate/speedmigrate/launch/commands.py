"""Tell what a shell command starts: the launcher, its own flags, the program and the program's flags."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from speedmigrate.launch.state import Command
from speedmigrate.launch.words import Chunk, Place, Word

_PYTHON = re.compile(r"(python|pypy|ipython)(\d+(\.\d+)?)?w?$")
_LAUNCHERS = {
    "torchrun",
    "deepspeed",
    "accelerate",
    "accelerate-launch",
    "colossalai",
    "horovodrun",
    "composer",
    "fabric",
}
_MODULES = {
    "torch.distributed.launch": "torch.distributed.launch",
    "torch.distributed.run": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "debugpy": "python",
    "cProfile": "python",
    "pdb": "python",
}
# Commands that take a script's name without starting it.
_OTHER = {"echo", "printf", "cat", "grep", "ls", "rm", "cp", "mv", "mkdir", "pkill", "kill", "vim", "vi", "sed", "awk"}
_OTHER |= {
    "git",
    "pip",
    "pip3",
    "export",
    "chmod",
    "touch",
    "head",
    "tail",
    "diff",
    "find",
    "wget",
    "curl",
    "black",
    "pytest",
}
_NUMBER = re.compile(r"-\.?\d")
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=")
_ENV = re.compile(r"[A-Za-z_]\w*=")


class Flag(NamedTuple):
    """A flag of a command line, and where it stands.

    Attributes:
        name: without its dashes, as written.
        value: its text (several words joined by a blank), None if it has none or cannot be read.
        path, start, end, line: where the flag's own token stands.
        value_start, value_end, value_path: where the literal stands that gives the value, be it in the command or in a
            variable; -1 without one.
        literal: the value (or its absence) is known and stands in one place that can be replaced.
        site_start, site_end: the value as it stands next to the flag (`$LR`), in `path`; -1 without one.
        maybe: only some branches of the script give the flag.
        shared: the value's place also feeds another flag or another program.
        common: the flag's own token is also passed to another program.
    """

    name: str
    value: str | None
    path: str
    start: int
    end: int
    value_start: int
    value_end: int
    line: int
    literal: bool
    value_path: str = ""
    site_start: int = -1
    site_end: int = -1
    maybe: bool = False
    shared: bool = False
    common: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """What a command starts.

    Attributes:
        program: the word that names the script, or the module if `module`.
        unread: arguments that cannot be read and may hold flags (`$@`).
    """

    launcher: str
    program: Word
    module: bool
    launcher_flags: tuple[Flag, ...]
    flags: tuple[Flag, ...]
    words: tuple[Word, ...]
    unread: tuple[str, ...]
    env: dict[str, Word]


def started(command: Command) -> Started | None:
    """Return what a command starts with Python, None if it starts something else or that cannot be told."""
    words = command.words
    env = dict(command.env)
    launcher, first = "", 0
    module = False
    for number, word in enumerate(words):
        text = word.text
        name = posixpath.basename(text)
        before = words[number - 1].text if number else ""
        if not launcher and _ENV.match(text):
            env[text.split("=")[0]] = after(word, text.index("=") + 1)
        elif not launcher and number == 0 and name in _OTHER:
            return None
        elif not launcher and (_PYTHON.match(name) or name in _LAUNCHERS):
            launcher, first = "python" if _PYTHON.match(name) else name.removesuffix("-launch"), number
        elif text in ("-m", "--module"):
            module = bool(launcher)
        elif module and text in _MODULES and launcher == "python":
            launcher, module = _MODULES[text], False
        elif (module and not text.startswith("-") and "\0" not in text and _names_module(launcher, before)) or (
            text.endswith(".py") and not text.startswith("-")
        ):
            own = tuple(words[first + 1 : number])
            flags, _ = _flags(own)
            arguments = tuple(words[number + 1 :])
            given, unread = _flags(arguments)
            kind = module and not text.endswith(".py")
            return Started(launcher or "python", word, kind, flags, given, tuple(words[first:]), unread, env)
        elif launcher == "python" and (text == "-c" or (not text.startswith("-") and before not in ("-W", "-X"))):
            return None
    return None


def _names_module(launcher: str, before: str) -> bool:
    return before in ("-m", "--module") or launcher != "python"


def after(word: Word, position: int) -> Word:
    """Return the word without its first characters, which must be readable."""
    chunks: list[Chunk] = []
    for chunk in word.chunks:
        length = 1 if chunk.text is None else len(chunk.text)
        if position >= length:
            position -= length
        else:
            chunks.append(chunk.slice(position, length) if position else chunk)
            position = 0
    if not chunks:
        last = word.chunks[-1]
        chunks.append(last.slice(len(last.text or ""), len(last.text or "")))
    return Word(tuple(chunks))


def level(word: Word, base: tuple[Place, ...]) -> Place | None:
    """Return where a word stands in the text that holds a flag which came through `base` expansions."""
    ends: list[Place] = []
    for chunk in (word.chunks[0], word.chunks[-1]):
        sites = (
            chunk.sites[: len(chunk.sites) - len(base)] if chunk.sites[len(chunk.sites) - len(base) :] == base else None
        )
        if sites is None or (not sites and chunk.start < 0):
            return None
        ends.append(sites[-1] if sites else Place(chunk.path, chunk.start, chunk.end))
    return Place(ends[0].path, ends[0].start, ends[1].end) if ends[0].path == ends[1].path else None


def is_rest(word: Word) -> bool:
    """Say whether a word is all arguments of the script (`"$@"`)."""
    return word.opaque is not None and word.opaque.name in ("$@", "$*", "${@}", "${*}")


def _flags(words: Sequence[Word]) -> tuple[tuple[Flag, ...], tuple[str, ...]]:
    """Return the flags among arguments, and the unreadable arguments that may hold more of them."""
    flags: list[Flag] = []
    unread: list[str] = []
    token: tuple[Word, str] | None = None
    values: list[Word] = []

    def close() -> None:
        if token:
            flags.append(_flag(token[0], token[1], values))

    for word in words:
        head = word.chunks[0].text or ""
        setting = _SETTING.match(head)
        if (head.startswith("-") and len(head) > 1 and not _NUMBER.match(head)) or setting:
            close()
            if "=" in head:
                token, values = None, []
                name = setting[1] if setting else head.split("=")[0]
                flags.append(_flag(word, name, [after(word, head.index("=") + 1)]))
            else:
                token, values = (word, head), []
        elif is_rest(word) or (word.opaque and (token is None or values)):
            unread.append(word.signature)
        else:
            values.append(word)
    close()
    return tuple(flags), tuple(unread)


def _flag(token: Word, name: str, values: Sequence[Word]) -> Flag:
    head = token.chunks[0]
    base = head.sites
    end = head.start + len(name)
    text = " ".join(word.text for word in values) if values else None
    places = [level(word, base) for word in values]
    site_start = site_end = -1
    if places and places[0] and places[-1] and places[0].path == head.path:
        site_start, site_end = places[0].start, places[-1].end
    literals = [word.chunks[0] for word in values if len(word.chunks) == 1 and word.chunks[0].start >= 0]
    whole = len(literals) == len(values) and all(
        chunk.text is not None and (chunk.path, chunk.sites) == (literals[0].path, literals[0].sites)
        for chunk in literals
    )
    start, stop, path = (literals[0].start, literals[-1].end, literals[0].path) if whole and literals else (-1, -1, "")
    maybe = token.maybe or any(word.maybe for word in values)
    known = text if text is not None and "\0" not in text else None
    return Flag(
        name.lstrip("-"), known, head.path, head.start, end, start, stop, 0, whole, path, site_start, site_end, maybe
    )  # fmt: skip
