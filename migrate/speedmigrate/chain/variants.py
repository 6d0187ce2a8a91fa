"""The settings that a model is read under: those that the script starts with, or where it cannot start with them, those
of each kind of settings file that it can."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.built import Built
from speedmigrate.chain.run_settings import is_number
from speedmigrate.facts.arguments import json_text
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.value import Cls, Expr, Ext, Value
from speedmigrate.facts.values import Values
from speedmigrate.launch.jsonfile import JsonDoc
from speedmigrate.rule import Hop

_RECURRENT = frozenset({"RNN", "LSTM", "GRU"})
_CONVOLUTIONS = frozenset({"Conv1d", "Conv2d"})


def other_files(entry: EntryFacts, built: Built) -> list[list[str]]:
    """Return the settings files that make the look-ups possible which fail, those that decide alike together."""
    found: dict[str, list[str]] = {}
    tops = {path.partition("/")[0] for path in built.settings.files if "/" in path}
    for path in sorted(entry.project.files) if built.missing else ():
        doc = json_text(entry, path) if path.endswith(".json") and path.partition("/")[0] in tops else None
        if doc is not None and all(_fits(doc, name, keys) for name, keys in built.missing.items()):
            kinds = [(name, doc.get(name)) for name in sorted(built.settings.asked)]
            found.setdefault(repr([kind for kind in kinds if not is_number(kind[1])]), []).append(path)
    return list(found.values())


def _fits(doc: JsonDoc, name: str, keys: frozenset[object]) -> bool:
    value = doc.get(name)
    return bool(value) and all(each in keys for each in (value if isinstance(value, list) else [value]))


def settled(built: Built) -> Iterator[Hop]:
    """Yield where the settings come from that decide what the model is."""
    by_file: dict[str, dict[str, Hop]] = {}
    for name, held in built.settings.taken.items():
        if held.place is not None and len(held.values) == 1:
            by_file.setdefault(held.place.path, {})[name] = held.place
    for places in by_file.values():
        first = min(places.values(), key=lambda place: place.line)
        yield Hop(
            first.path, first.line, f"the model is read with these settings as they are here: {', '.join(places)}"
        )


def reads_pads(values: Values, built: Built) -> Iterator[Hop]:
    """Yield the look-ups whose other classes run recurrent or convolution layers along the positions."""
    found: dict[Expr, list[str]] = {}
    for cls, (key, table) in built.others.items():
        if any(map(_runs_along, _made(values, cls))):
            names = [str(name) for name, value in built.keys(table).items() if cls in values.of(value)]
            found.setdefault(key, []).extend(names)
    for key, names in found.items():
        said = ", ".join(f"`{name}`" for name in sorted(names))
        yield key.hop(f"with {key.text} one of {said}, its layers read the pads too today, and fewer of them after")


def _made(values: Values, cls: Cls) -> Iterator[tuple[Value, ast.Call]]:
    for base in values.mro(cls):
        for node in ast.walk(base.node) if isinstance(base, Cls) else ():
            if isinstance(node, ast.Call) and isinstance(base, Cls):
                yield from ((value, node) for value in values.of(Expr(base.module, node.func)))


def _runs_along(made: tuple[Value, ast.Call]) -> bool:
    value, call = made
    if not isinstance(value, Ext) or value.package != "torch":
        return False
    is_same_length = value.last in _CONVOLUTIONS and not any(keyword.arg == "stride" for keyword in call.keywords)
    return value.last in _RECURRENT or is_same_length
