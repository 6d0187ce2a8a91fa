"""The settings that reach a run from outside its code: arguments of HF Trainers, flags with the values that launch
files give them, files of arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.framework import Trainer
from speedmigrate.chain.launch import commands
from speedmigrate.facts.arguments import Arguments, argparse_flag, yaml_text
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Cls, Const, Expr, Ext, Inst, Item, Result, Value
from speedmigrate.launch.files import Files
from speedmigrate.launch.find import Launch
from speedmigrate.launch.jsonfile import JsonDoc, read_json
from speedmigrate.launch.yamlfile import YamlDoc
from speedmigrate.rule import Hop


def launches(entry: EntryFacts) -> tuple[Launch, ...]:
    """Return every command that starts the run, those of its documents included."""
    return commands(entry)


def strings(entry: EntryFacts, value: Value) -> Iterator[str]:
    """Yield the texts that a value can be: constants, a flag's default and what the launches give the flag."""
    if isinstance(value, Const):
        if isinstance(value.value, str):
            yield value.value
        return
    flag = argparse_flag(entry, value)
    if flag is not None and isinstance(flag.default, str):
        yield flag.default
    if isinstance(value, Attr):
        for launch in launches(entry):
            given = launch.flag(value.name)
            if given is not None and given.value is not None:
                yield given.value


def files(entry: EntryFacts) -> Files:
    return entry.once("chain.files", lambda entry: Files(entry.project.root, entry.project.files))


def read_named(entry: EntryFacts, path: str) -> Iterator[JsonDoc]:
    """Yield the JSON file of the root that a path in the code or in a launch means."""
    found = files(entry).resolve(path, "", entry.path).path if path.endswith(".json") else None
    source = entry.project.source(found) if found is not None else None
    doc = read_json(source) if source is not None else None
    if doc is not None:
        yield doc


def hf_arguments(entry: EntryFacts, trainer: Trainer) -> tuple[Arguments, ...]:
    """Return what the `args` of a Trainer can be: objects of `TrainingArguments`, a config of TRL, or a subclass."""
    expr = trainer.argument(entry, "args") or trainer.argument(entry, "config")
    found = []
    for value in () if expr is None else (v for first in entry.values.of(expr) for v in _parsed(entry, first)):
        base = entry.base(value.of) if isinstance(value, Inst) else None
        if isinstance(value, Inst) and base is not None and _is_arguments(base):
            call = value.call
            callees = entry.values.of(call.at(call.node.func)) if isinstance(call.node, ast.Call) else ()
            built = any(callee == value.of for callee in callees)
            parser = None if built else next((p for c in callees for p in _parser(c)), None)
            cls = value.of if isinstance(value.of, Cls) else None
            found.append(Arguments(value, cls, call if built else None, parser))
    return tuple(found)


def _parsed(entry: EntryFacts, value: Value) -> Iterator[Value]:
    """Follow what a subclass of `HfArgumentParser`, or TRL's, parses to objects of the classes it was made with."""
    call = value.of if isinstance(value, Item) and isinstance(value.key, int) else None
    parser = call.of.of if isinstance(call, Result) and isinstance(call.of, Attr) else None
    base = entry.base(parser.of) if isinstance(parser, Inst) else None
    node = parser.call.node if isinstance(parser, Inst) else None
    types = call_argument(node, 0, "dataclass_types") if isinstance(node, ast.Call) else None
    if base is None or base.last not in {"HfArgumentParser", "TrlParser"} or types is None:
        yield value
        return
    assert isinstance(value, Item)
    assert isinstance(call, Result)
    assert isinstance(parser, Inst)
    for held in entry.values.of(parser.call.at(types)):
        for cls in entry.values.item(held, value.key, parser.call.at(types)):
            yield Inst(cls, call.call) if isinstance(cls, Cls | Ext) else cls


def _is_arguments(base: Ext) -> bool:
    return base.last.endswith("TrainingArguments") or (base.package == "trl" and base.last.endswith("Config"))


def _parser(callee: Value) -> Iterator[Expr]:
    if isinstance(callee, Attr) and isinstance(callee.of, Inst) and isinstance(callee.of.of, Ext):
        yield callee.of.call


def argument_files(entry: EntryFacts, arguments: Arguments) -> Iterator[JsonDoc]:
    """Yield the JSON files that `HfArgumentParser.parse_json_file` reads the arguments from."""
    node = arguments.value.call.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parse_json_file":
        path = call_argument(node, 0, "json_file")
        for value in entry.values.of(arguments.value.call.at(path)) if path is not None else ():
            for text in strings(entry, value):
                yield from read_named(entry, text)


def set_default(entry: EntryFacts, arguments: Arguments, name: str) -> Const | None:
    """Return what `parser.set_defaults(name=...)` sets, which wins over the field."""
    for site in entry.methods if arguments.parser is not None else ():
        given = call_argument(site.node, None, name)
        for callee in site.callees if given is not None else ():
            if isinstance(callee, Attr) and callee.name == "set_defaults" and isinstance(callee.of, Inst):
                assert given is not None
                value = entry.values.one(site.expr.at(given))
                if callee.of.call == arguments.parser and isinstance(value, Const):
                    return value
    return None


@dataclass(frozen=True, slots=True)
class Setting:
    """What decides a value: its text (None where it is computed), where it stands, and how it got there.

    `how` is `literal` (in the call), `default` (of the arguments' class or of a flag), `flag` (a launch gives it) or
    `file` (a JSON file of arguments).
    """

    text: object
    hop: Hop
    how: str


def hf_setting(entry: EntryFacts, arguments: Arguments, name: str) -> Iterator[Setting]:
    """Yield every value that a field of a Trainer's arguments is given, the code's own first."""
    call = arguments.literal
    if call is not None:
        node = call_argument(call.node, None, name) if isinstance(call.node, ast.Call) else None
        if node is not None:
            value = entry.values.one(call.at(node))
            yield Setting(
                value.value if isinstance(value, Const) else None, call.at(node).hop(f"{name} is set here"), "literal"
            )
            return
    default = arguments.default(entry, name)
    preset = set_default(entry, arguments, name)
    if preset is not None:
        yield Setting(preset.value, preset.expr.hop(f"{name} is set as a default"), "default")
    elif default is not None:
        yield Setting(default[0], default[1].hop(f"the default of {name}"), "default")
    if call is None:
        yield from given(entry, name)
        for doc in argument_files(entry, arguments):
            node_ = doc.node(name)
            if node_ is not None:
                line = doc.source.line_of(node_.start)
                yield Setting(node_.value, Hop(doc.source.path, line, f"{name} is given in a file"), "file")


def flag_values(entry: EntryFacts, name: str) -> Iterator[Setting]:
    """Yield what the launches give a flag; a flag without a value is True."""
    for launch in launches(entry):
        flag = launch.flag(name)
        if flag is not None:
            text = flag.value if flag.value is not None else True if flag.literal else None
            yield Setting(text, Hop(flag.path or launch.path, flag.line, f"--{name} is given here"), "flag")


def given(entry: EntryFacts, name: str) -> Iterator[Setting]:
    """Yield what the launches give a setting: by its flag, or in a YAML file of arguments that they pass."""
    yield from flag_values(entry, name)
    for launch in launches(entry):
        launcher = launch.launcher_flag("config_file")
        for path in launch.configs:
            if launcher is not None and launcher.value and path.endswith(launcher.value):
                continue
            doc = _yaml(entry, path)
            value = doc.get(name) if doc is not None else None
            if value is not None and doc is not None:
                yield Setting(value, Hop(path, _line_of(doc.source.text, name), f"{name} is given in a file"), "file")


def _yaml(entry: EntryFacts, path: str) -> YamlDoc | None:
    return yaml_text(entry, path) if path.endswith((".yaml", ".yml")) else None


def _line_of(text: str, name: str) -> int:
    return text[: max(text.find(f"{name}:"), 0)].count("\n") + 1


def attribute_of(value: Value) -> str:
    """Return the name of the setting that a value reads (`args.fp16`, `config["fp16"]`), empty where it is none."""
    if isinstance(value, Attr):
        return value.name
    return value.key if isinstance(value, Item) and isinstance(value.key, str) else ""


def accelerate_settings(entry: EntryFacts, name: str) -> list[Setting]:
    """Return what the launches of `accelerate launch` give a setting: the launcher's own flag, or its config file."""
    found = []
    for launch in launches(entry):
        if launch.launcher != "accelerate":
            continue
        flag = launch.launcher_flag(name)
        if flag is not None and flag.value is not None:
            found.append(Setting(flag.value, Hop(flag.path or launch.path, flag.line, f"--{name}"), "flag"))
            continue
        for path in launch.configs:
            doc = _yaml(entry, path)
            value = doc.get(name) if doc is not None else None
            if value is not None and doc is not None:
                line = _line_of(doc.source.text, name)
                found.append(Setting(value, Hop(path, line, f"{name} of accelerate"), "file"))
    return found
