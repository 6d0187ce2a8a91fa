"""Settings that a config file of the run holds: the keys that the code reads, and what each file says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.launch_configs import named
from speedmigrate.facts.arguments import json_text, yaml_text
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.value import Attr, Ext, Inst, Item, Param, Result, Value
from speedmigrate.launch.find import Launch
from speedmigrate.rule import Hop

_READERS = frozenset({"yaml.safe_load", "yaml.load", "yaml.full_load", "omegaconf.OmegaConf.load", "json.load"})
_MAX_KEYS = 5


def keys_of(entry: EntryFacts, value: Value) -> tuple[str, ...]:
    """Return the keys by which a value is read from a config file; none where it is not."""
    keys: list[str] = []
    while len(keys) < _MAX_KEYS:
        if isinstance(value, Item) and isinstance(value.key, str):
            keys.append(value.key)
            value = value.of
        elif isinstance(value, Result) and isinstance(value.of, Attr) and value.of.name == "get":
            call = value.call.node
            key = entry.values.key(value.call.at(call.args[0])) if isinstance(call, ast.Call) and call.args else None
            if not isinstance(key, str):
                return ()
            keys.append(key)
            value = value.of.of
        elif isinstance(value, Attr):
            keys.append(value.name)
            value = value.of
        else:
            break
    return tuple(reversed(keys)) if _is_config(value) else ()


def _is_config(value: Value) -> bool:
    """Say whether a value is a whole config: what a reader returns, or the argument of a hydra program."""
    if isinstance(value, Inst):
        return isinstance(value.of, Ext) and value.of.name in _READERS
    decorators = getattr(value.func.node, "decorator_list", ()) if isinstance(value, Param) else ()
    return any(ast.unparse(decorator).startswith("hydra.main") for decorator in decorators)


def held(entry: EntryFacts, launch: Launch | None, keys: tuple[str, ...]) -> Iterator[tuple[object, Hop]]:
    """Yield what the config files that a launch passes, else those that the code names, say below `keys`."""
    passed = launch.configs if launch is not None else ()
    for path in passed or [path for path, _ in named(entry)]:
        source = entry.project.source(path)
        if source is None or keys[-1] not in source.text:
            continue
        if path.endswith(".json"):
            json = json_text(entry, path)
            node = json.node(*keys) if json is not None else None
            if node is not None:
                yield node.value, Hop(path, source.line_of(node.start), ".".join(keys))
        else:
            yaml = yaml_text(entry, path)
            if yaml is not None and yaml.has(*keys):
                yield yaml.get(*keys), Hop(path, source.line_of(source.text.index(keys[-1])), ".".join(keys))
