"""The settings that a script's own namespace holds: argparse flags, over them a JSON file that the script itself loads,
over that the command lines of the launch files. `facts/settings.py` has those of libraries' arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.arguments import argparse_flag, argparse_flags, json_text
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.settings import script_setting
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import Attr, Display, Expr, Ext, Inst, Value
from speedmigrate.launch.find import Launch
from speedmigrate.rule import Hop


@dataclass(frozen=True, slots=True)
class Held:
    """What a setting can be in the launches of a run: the values and one place; none where nothing defines it.

    Attributes:
        is_open: whether it is the default of a flag that takes a value, which any command may give.
    """

    values: tuple[object, ...]
    place: Hop | None
    is_open: bool = False


class RunSettings:
    """Answers what a setting of the run's namespace is.

    Attributes:
        file: the JSON file that is loaded, None for the one that the launch or the flag's default names.
        taken: the settings that answers were built on.
        files: the JSON files that were read.
    """

    def __init__(self, entry: EntryFacts, file: str | None = None) -> None:
        self.entry, self.file = entry, file
        self.taken: dict[str, Held] = {}
        self.files: dict[str, None] = {}
        self._configs: dict[Value, tuple[str, ...] | None] = {}
        self._held: dict[tuple[Value, str], Held | None] = {}

    @property
    def asked(self) -> set[str]:
        """The names that were asked for so far."""
        return {name for _, name in self._held}

    def held(self, value: Value) -> Held | None:
        """Return what `args.name` is; None where that is not a setting, or not known."""
        if not isinstance(value, Attr):
            return None
        key = (value.of, value.name)
        if key not in self._held:
            self._held[key] = self._of(value)
        return self._held[key]

    def take(self, value: Value) -> Held | None:
        """Return what a setting is that is not open, and note that an answer is built on it."""
        found = self.held(value)
        if found is None or found.is_open or not isinstance(value, Attr):
            return None
        if found.place is not None and not all(map(is_number, found.values)):
            self.taken.setdefault(value.name, found)
        return found

    def is_namespace(self, value: Value) -> bool:
        return self.configs(value) is not None

    def configs(self, value: Value) -> tuple[str, ...] | None:
        """Return the flags that name the JSON files loaded over a namespace; None of anything else."""
        if value not in self._configs:
            self._configs[value] = None
            self._configs[value] = self._loaded(value)
        return self._configs[value]

    def _loaded(self, value: Value) -> tuple[str, ...] | None:
        if _is_parsed(value):
            return ()
        node = value.call.node if isinstance(value, Inst) and value.of == Ext("argparse.Namespace") else None
        if not isinstance(value, Inst) or not isinstance(node, ast.Call) or node.args or len(node.keywords) != 1:
            return None
        given = node.keywords[0].value
        if node.keywords[0].arg is not None or not isinstance(given, ast.Name):
            return None
        return self._merged(value.call.at(given), given.id)

    def _merged(self, merged: Expr, name: str) -> tuple[str, ...] | None:
        """Return the flags of the files whose values a dict made by `vars(args)` gets."""
        sources = [self._vars_of(value) for value in self.entry.values.of(merged)]
        if not sources or None in sources:
            return None
        found = [flag for source in sources for flag in source or ()]
        function = merged.module.function(merged.node)
        for node in own_nodes(function) if function is not None else ():
            if isinstance(node, ast.Subscript) and _is_name(node.value, name) and isinstance(node.ctx, ast.Store):
                return None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_name(node.func.value, name):
                flags = self._update(merged.at(node.args[0]), name) if node.func.attr == "update" else None
                if flags is None:
                    return None
                found += flags
        return tuple(found)

    def _vars_of(self, value: Value) -> tuple[str, ...] | None:
        if isinstance(value, Inst) and value.of == Ext("builtins.vars") and isinstance(value.call.node, ast.Call):
            owner = self.entry.values.one(value.call.at(value.call.node.args[0]))
            return self.configs(owner) if owner is not None else None
        return None

    def _update(self, given: Expr, name: str) -> list[str] | None:
        """Return the flag that names the file of what is merged in; nothing for values that the dict has already."""
        found: list[str] = []
        for value in self.entry.values.of(given):
            node = value.expr.node if isinstance(value, Display) else None
            if isinstance(node, ast.DictComp) and isinstance(node.value, ast.Subscript):
                if _is_name(node.value.value, name):
                    continue
            flag = self._file_flag(value)
            if flag is None:
                return None
            found.append(flag)
        return found

    def _file_flag(self, value: Value) -> str | None:
        """Return the flag that `json.load(open(args.flag))` reads its file from."""
        if not isinstance(value, Inst) or value.of != Ext("json.load") or not isinstance(value.call.node, ast.Call):
            return None
        for opened in self.entry.values.of(value.call.at(value.call.node.args[0])):
            if (
                isinstance(opened, Inst)
                and opened.of == Ext("builtins.open")
                and isinstance(opened.call.node, ast.Call)
            ):
                path = self.entry.values.one(opened.call.at(opened.call.node.args[0]))
                flag = argparse_flag(self.entry, path) if path is not None else None
                return flag.name if flag is not None else None
        return None

    def stored(self, name: str) -> Iterator[Expr]:
        """Yield what the run itself assigns to `args.name`."""
        for module, scope, frame in self.entry.scopes:
            for node in own_nodes(scope) if f".{name} = " in module.source.text else ():
                target = node.targets[0] if isinstance(node, ast.Assign) else None
                if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute) and target.attr == name:
                    owner = Expr(module, target.value, frame)
                    if not _is_name(target.value, "self") and any(map(self.is_namespace, self.entry.values.of(owner))):
                        yield owner.at(node.value)

    def _of(self, value: Attr) -> Held | None:
        configs = self.configs(value.of)
        if configs is None or value.name in self.entry.once("run settings.written", _written):
            return None
        found: list[tuple[object, Hop]] = []
        for launch in self.entry.launches or (None,):
            given = self._in(launch, configs, value.name)
            if given is None:
                return None
            found += given
        if not found:
            return Held((), None)
        plain = {repr(each): each for each, _ in found}
        flag = argparse_flags(self.entry).get(value.name)
        places = {place for _, place in found}
        is_default = (
            flag is not None and flag.switch is None and places == {flag.call.hop(f"the default of --{flag.name}")}
        )
        return Held(tuple(plain.values()), found[0][1], is_default)

    def _in(self, launch: Launch | None, configs: tuple[str, ...], name: str) -> list[tuple[object, Hop]] | None:
        """Return the value in one launch (nothing where it has none), None where it is not known."""
        setting = script_setting(self.entry, launch, name)
        if setting is not None and setting.source == "command":
            flag = argparse_flags(self.entry).get(name)
            plain = flag is not None and (
                flag.switch is not None or not flag.call.module.text(flag.call.node).count("type=")
            )
            return [(setting.value, setting.place)] if setting.known and plain else None
        for flag_name in configs:
            path = self._path(launch, flag_name)
            doc = json_text(self.entry, path) if path is not None else None
            if path is None or doc is None:
                return None
            self.files.setdefault(path)
            node = doc.node(name)
            if node is not None:
                return [
                    (node.value, Hop(doc.source.path, doc.source.line_of(node.start), f"`{name}` is {node.value!r}"))
                ]
        if setting is None:
            return None if name in self.entry.once("run settings.options", _options) else []
        return [(setting.value, setting.place)] if setting.known else None

    def _path(self, launch: Launch | None, flag: str) -> str | None:
        if self.file is not None:
            return self.file
        given = script_setting(self.entry, launch, flag)
        return str(given.value) if given is not None and given.known and given.value else None


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_parsed(value: Value) -> bool:
    called = getattr(value, "of", None)
    return isinstance(called, Attr) and called.name in {"parse_args", "parse_known_args"}


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _options(entry: EntryFacts) -> frozenset[str]:
    """Return the words of all flags that are added, several times or not."""
    return frozenset(
        argument.value.lstrip("-").replace("-", "_")
        for site in entry.sites
        if isinstance(site.node.func, ast.Attribute) and site.node.func.attr in {"add_argument", "set_defaults"}
        for argument in ast.walk(site.node)
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


def _written(entry: EntryFacts) -> frozenset[str]:
    """Return the names that the run writes to some object's attributes, its own left out."""
    return frozenset(name for module in dict.fromkeys(m for m, _, _ in entry.scopes) for name in _writes(module.nodes))


def _writes(nodes: tuple[ast.AST, ...]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not _is_name(node.value, "self"):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set_defaults":
            yield from (keyword.arg for keyword in node.keywords if keyword.arg is not None)
