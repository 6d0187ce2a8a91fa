"""Where the settings of a run live, the commands that start it, and the settings that win."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speedmigrate.chain.fact import Fact
from speedmigrate.chain.launch_configs import named, passed
from speedmigrate.chain.launch_flags import flags, is_setting
from speedmigrate.chain.launch_spawned import spawned
from speedmigrate.facts.entry import EntryFacts, has_main, launch_index, shared
from speedmigrate.launch.documents import Documents, is_document
from speedmigrate.launch.find import Launch, Launches
from speedmigrate.rule import Hop

_NOTHING = "no launch file, config or documented command gives it a setting"


def facts(entry: EntryFacts) -> Iterator[Fact]:
    yield _place(entry)
    yield from (_command(launch) for launch in commands(entry))
    yield from flags(entry, commands(entry))


def commands(entry: EntryFacts) -> tuple[Launch, ...]:
    """Return every command that starts a run: of launch files, and, only to be told, of documents, comments and other
    programs."""
    return (*entry.launches, *documented(entry), *spawned(entry))


def _command(launch: Launch) -> Fact:
    given = [flag for flag in launch.flags if is_setting(flag)]
    text = " ".join(f"--{flag.name}" + (f" {flag.value}" if flag.value is not None else "") for flag in given)
    place = Hop(launch.script, launch.line, "the command")
    via = tuple(Hop(path, 1, "on the way") for path in (launch.path, *launch.via) if path != launch.script)
    unread = tuple(Hop(launch.script, launch.line, f"`{word}` may hold flags") for word in launch.unread)
    return Fact("launch.command", launch.launcher, text, (place, *via), unread)


def documented(entry: EntryFacts) -> tuple[Launch, ...]:
    """Return the commands that README files, Makefiles and the entry point's own comments tell a reader to type."""
    return entry.once("chain.documented", _documented)


def _documented(entry: EntryFacts) -> tuple[Launch, ...]:
    project = entry.project

    def index(paths: Sequence[str]) -> Launches:
        return Documents(launch_index(project).files, project.source, tuple(paths))

    found = shared(project, "documents", lambda: index([path for path in project.files if is_document(path)]))
    return (*found.of(entry.path, entry.starters(found.programs)), *index([entry.path]).of(entry.path))


def _place(entry: EntryFacts) -> Fact:
    told = documented(entry)
    scripts = [x for x in (*entry.launches, *told) if _passes(x) and (x in entry.launches or _is_script(x))]
    typed = [x for x in told if not _is_script(x)]
    configs = {**named(entry), **passed(entry, scripts or typed)}
    kinds: dict[str, list[Hop]] = {"sh": [], "json": [], "yaml": [], "README": []}
    kinds["sh"] = [Hop(x.script, x.line, f"passes {len(x.flags)} flags") for x in scripts]
    for kind, hop in configs.values():
        kinds[kind].append(hop)
    if not kinds["sh"] and not kinds["yaml"]:
        kinds["README"] = [Hop(x.path, x.line, f"a command with {len(x.flags)} flags") for x in typed if _sets(x)]
    said = [kind for kind, hops in kinds.items() if hops]
    evidence = tuple(dict.fromkeys(hop for kind in said for hop in kinds[kind]))
    unknown = tuple(dict.fromkeys(_unread(entry, [*entry.launches, *told])))
    if not said and (unknown or not _starts(entry)):
        start = (Hop(entry.path, 1, "nothing in this file starts the run, and no command was found that does"),)
        return Fact("flags.place", None, "", (), unknown or start)
    return Fact("flags.place", "+".join(said) or "code", "", evidence or (Hop(entry.path, 1, _NOTHING),), unknown)


def _starts(entry: EntryFacts) -> bool:
    return entry.module is not None and has_main(entry.module)


def _is_script(launch: Launch) -> bool:
    return bool(launch.via) and not launch.via[0].endswith(".py")


def _passes(launch: Launch) -> bool:
    """Say whether a command gives the program anything."""
    return bool(launch.flags or launch.unread or launch.configs)


def _sets(launch: Launch) -> bool:
    """Say whether a command gives the program a setting of training, beside names and paths."""
    return any(is_setting(flag) for flag in launch.flags)


def _unread(entry: EntryFacts, launches: Sequence[Launch]) -> Iterator[Hop]:
    """Yield what of the commands cannot be read, and the commands whose program may be this file or another."""
    for launch in launches:
        for word in launch.unread:
            yield Hop(launch.script, launch.line, f"`{word}` may hold flags")
    for place in launch_index(entry.project).ambiguous(entry.path):
        path, _, line = place.rpartition(":")
        yield Hop(path, int(line), "may start this file or another of its name")
