"""What a shell knows at a point of a script, what it knows after branches, and the commands it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from speedmigrate.launch.words import Chunk, Place, Word, either


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the shell would start it.

    Attributes:
        path: the file where it is written; `line` its line there.
        folder: the folder it runs in, below the unknown start or from `ROOT`.
        via: the scripts through which the first script came to it.
        heredocs: files that the script wrote before, and where their text stands.
    """

    words: tuple[Word, ...]
    path: str
    line: int
    folder: str
    env: dict[str, Word]
    via: tuple[str, ...]
    heredocs: tuple[tuple[Word, Place], ...]


@dataclass(slots=True)
class State:
    """What a shell knows at a point: variables, exported names, folder (below the unknown start), `$1` ... or None."""

    script: str
    variables: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    folder: str = ""
    args: tuple[Word, ...] | None = None
    dead: bool = False

    def copy(self) -> State:
        return State(self.script, dict(self.variables), set(self.exported), self.folder, self.args, self.dead)


def join_branches(state: State, ends: Sequence[State]) -> None:
    """Make `state` what holds after branches that ended in `ends`; a branch that left the script has no say."""
    alive = [end for end in ends if not end.dead] or [ends[-1]]
    names = dict.fromkeys(name for end in alive for name in end.variables)
    merged: dict[str, tuple[Word, ...]] = {}
    for name in names:
        values = [end.variables[name] for end in alive if name in end.variables]
        value = values[0]
        if len(values) < len(alive) and value and value[0].text.lstrip().startswith("-"):
            values.append((Word((Chunk("", "", -1),)),))
        for other in values[1:]:
            value = either(value, other, f"${name}")
        merged[name] = value
    state.variables = merged
    state.exported = set().union(*(end.exported for end in alive))
    state.folder = alive[-1].folder
    state.args = alive[0].args if all(end.args == alive[0].args for end in alive) else None
    state.dead = all(end.dead for end in ends)
