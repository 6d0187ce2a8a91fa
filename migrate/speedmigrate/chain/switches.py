"""The repository's own switches between a fixed length and the longest of each batch: a setting, what it governs, what
each launch gives it, and what is missing with it off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from speedmigrate.chain.branches import Branches
from speedmigrate.chain.flags import Flag, Given, given
from speedmigrate.chain.pads import Pad, Reach, pads, strategy
from speedmigrate.chain.roles import origin, role
from speedmigrate.chain.widths import width
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.syntax import call_argument
from speedmigrate.rule import Hop

State = frozenset[Reach | None]
_STRATEGIES = ("longest", "max_length")
_ARGUMENTS = ("padding", "pad_to_max_length")


@dataclass(frozen=True, slots=True, eq=False)
class Switch:
    """A setting that decides whether rows are padded to a fixed length.

    Attributes:
        on: the values that pad to a fixed length; `off` the one that does not.
        given: what each launch gives it.
        governed: the padding operations that it decides on.
        covers: the functions of the data path that they belong to.
        fixed: what pads to a fixed length all the same with the switch off.
        problems: what is missing with the switch off, `fixed` included.
    """

    flag: Flag
    on: tuple[object, ...]
    off: object
    given: tuple[Given, ...]
    governed: tuple[Pad, ...]
    covers: frozenset[ast.AST]
    fixed: tuple[Hop, ...]
    problems: tuple[Hop, ...]

    @property
    def is_off(self) -> bool:
        return all(each.known and not self.is_on(each.value) for each in self.given)

    @property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(dict.fromkeys((self.flag.hop, *(pad.hop for pad in self.governed))))

    def is_on(self, value: object) -> bool:
        return (bool(value) if self.flag.is_bool else value) in self.on


def switches(entry: EntryFacts) -> tuple[Switch, ...]:
    """Return the switches of a run (worked out once)."""
    return entry.once("switches", lambda entry: tuple(_switches(entry)))


def _switches(entry: EntryFacts) -> Iterator[Switch]:
    from speedmigrate.chain.switch_gaps import gaps, still_fixed
    from speedmigrate.chain.switch_uses import decides_only_padding

    found = [pad for pad in pads(entry) if role(entry, pad.scope) not in {"model", "order"}]
    flags: dict[ast.AST, Flag] = {}
    compared: dict[ast.AST, set[object]] = {}
    for pad in found:
        branches = Branches(entry)
        reached(branches, pad)
        flags |= branches.read
        for key, words in branches.compared.items():
            compared.setdefault(key, set()).update(words)
    for flag in flags.values():
        if flag.kind == "constant" and not isinstance(flag.default, bool):
            continue
        values = _values(flag, compared.get(flag.key, set()))
        states = {str(value): [reached(Branches(entry, flag.key, value), pad) for pad in found] for value in values}
        on = tuple(value for value in values if _differ(states, str(value)))
        off = next((value for value in values if value not in on), None)
        if not on or off is None:
            continue
        governed = tuple(
            pad
            for i, pad in enumerate(found)
            if not states[str(off)][i] & {"static", "switch"} and any("static" in states[str(value)][i] for value in on)
        )
        if not governed or not decides_only_padding(entry, flag, governed):
            continue
        covers = frozenset(origin(entry, pad.scope)[1] for pad in governed)
        fixed = tuple(still_fixed(entry, Branches(entry, flag.key, off)))
        switch = Switch(flag, on, off, given(entry, flag), governed, covers, fixed, fixed)
        yield replace(switch, problems=(*fixed, *gaps(entry, switch)))
    yield from _devices(entry, found)


def _devices(entry: EntryFacts, found: list[Pad]) -> Iterator[Switch]:
    """Yield the tests for a device that alone gets a fixed length (a TPU)."""
    for pad in found:
        branches = Branches(entry)
        if pad.reach == "longest" or reached(branches, pad) & {"static", "switch"} or not branches.devices:
            continue
        test = branches.devices[0]
        flag = Flag(test.text, "device", test.node, False, None, test.hop(f"{test.text} is False on a GPU"))
        covers = frozenset({origin(entry, pad.scope)[1]})
        yield Switch(flag, (True,), False, given(entry, flag), (pad,), covers, (), ())


def _values(flag: Flag, compared: set[object]) -> tuple[object, ...]:
    """Return what a setting can be, of several that pad to the longest row the one that the code names first."""
    if flag.is_bool:
        return (True, False)
    return flag.choices or tuple(dict.fromkeys((*sorted(map(str, compared)), *_STRATEGIES, flag.default)))


def _differ(states: dict[str, list[State]], value: str) -> bool:
    """Say whether something pads to a fixed length under a value that another value leaves alone."""
    others = [found for name, found in states.items() if name != value]
    return any(
        "static" in state and any("static" not in other[i] for other in others) for i, state in enumerate(states[value])
    )


def reached(branches: Branches, pad: Pad) -> State:
    """Return to what length a padding operation fills up when the setting is as `branches` says; None: it does not."""
    expr, frame = pad.expr, pad.scope[2]
    if branches.runs(expr.module, expr.node, frame) is False:
        return frozenset({None})
    while frame is not None and frame.call is not None:
        if branches.runs(frame.call.module, frame.call.node, frame.call.frame) is False:
            return frozenset({None})
        frame = frame.call.frame
    if pad.fills is not None:
        return frozenset(width(branches.entry.values, leaf) for leaf in branches.settled(pad.fills))
    if pad.idiom not in {"tokenizer", "collator"} or not isinstance(expr.node, ast.Call):
        return frozenset({pad.reach})
    found: set[Reach | None] = set()
    for name in _ARGUMENTS:
        node = call_argument(expr.node, None, name)
        for leaf in branches.settled(expr.at(node)) if node is not None else ():
            value = branches.constant(leaf)
            found.add("switch" if value is None else strategy(name, value.value))
    return frozenset(found) if found else frozenset({pad.reach})
