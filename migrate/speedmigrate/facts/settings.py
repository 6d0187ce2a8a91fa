"""The setting that wins in a run: the command line over files of arguments over `set_defaults` over the code's defaults
over the library's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.facts.arguments import (
    ArgparseFlag,
    Arguments,
    argparse_flag,
    argparse_flags,
    deepspeed_configs,
    field_default,
    json_text,
    yaml_text,
)
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.hftrainer import trainer_settings
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Attr, Cls, Const, Display, Expr, Inst
from speedmigrate.launch.find import Launch
from speedmigrate.rule import Hop

Source = Literal["command", "file", "set_defaults", "code", "default", "library"]
# What TrainingArguments says where nothing else does (transformers 4.30 to 4.57); `optim` depends on the version.
_LIBRARY: dict[str, object] = {
    "bf16": False,
    "fp16": False,
    "torch_compile": False,
    "gradient_checkpointing": False,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "group_by_length": False,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
}
# What transformers and accelerate put where a DeepSpeed config says "auto".
_AUTO = {
    ("bf16", "enabled"): "bf16",
    ("fp16", "enabled"): "fp16",
    ("train_micro_batch_size_per_gpu",): "per_device_train_batch_size",
    ("gradient_accumulation_steps",): "gradient_accumulation_steps",
    ("gradient_clipping",): "max_grad_norm",
    ("optimizer", "params", "lr"): "learning_rate",
    ("optimizer", "params", "weight_decay"): "weight_decay",
}
# Methods of the parsers of transformers and TRL, with the files that they read.
_FILES = {
    "parse_json_file": (".json",),
    "parse_yaml_file": (".yaml", ".yml"),
    "parse_args_and_config": (".yaml", ".yml"),
}
_PARSERS = frozenset({"HfArgumentParser", "TrlParser", "H4ArgumentParser"})


@dataclass(frozen=True, slots=True)
class Setting:
    """The value that a setting has in one launch.

    Attributes:
        value: a constant of the code, or the text of a command line or file.
        place: where it stands.
        source: what gives it.
        known: the value could be read; else `value` is None.
    """

    value: object
    place: Hop
    source: Source
    known: bool = True


def winning(entry: EntryFacts, launch: Launch | None, name: str) -> Setting | None:
    """Return the value of a setting in one launch (None: started without flags), None where nothing of the run has it.

    Several Trainers whose arguments disagree have a value that cannot be told.
    """
    arguments = entry.once("settings.arguments", lambda entry: tuple(x.arguments for x in trainer_settings(entry)))
    if not arguments:
        return _loose(entry, launch, name)
    found = list(dict.fromkeys(_of_arguments(entry, launch, each, name) for each in dict.fromkeys(arguments)))
    settings = [each for each in found if each is not None]
    if len({(type(each.value), each.value) for each in settings}) > 1 or (settings and len(settings) < len(found)):
        return Setting(None, settings[0].place, settings[0].source, known=False)
    return settings[0] if settings else _loose(entry, launch, name)


def engine(entry: EntryFacts, launch: Launch, *keys: str) -> Setting | None:
    """Return a value of the DeepSpeed config that a launch passes; `auto` is what the arguments say."""
    for doc in deepspeed_configs(entry, launch):
        node = doc.node(*keys)
        if node is None:
            continue
        if node.value == "auto" and keys in _AUTO:
            return winning(entry, launch, _AUTO[keys])
        place = Hop(doc.source.path, doc.source.line_of(node.start), ".".join(keys))
        return _read(node.value if node.value != "auto" else None, place, "file")
    return None


def _of_arguments(entry: EntryFacts, launch: Launch | None, arguments: Arguments, name: str) -> Setting | None:
    if arguments.literal is not None:
        node = arguments.literal.node
        given = call_argument(node, None, name) if isinstance(node, ast.Call) else None
        if given is not None:
            return _written(entry, launch, arguments.literal.at(given), name)
        if isinstance(node, ast.Call) and has_spread(node):
            return Setting(None, arguments.literal.hop("arguments that are spread may set it"), "code", known=False)
    else:
        given_ = _command(launch, name) or _file(entry, launch, name) or _preset(entry, arguments, name)
        if given_ is not None:
            return given_
    default = arguments.default(entry, name)
    if default is not None:
        return Setting(default[0], default[1].hop(f"the default of {name}"), "default")
    return _library(entry, arguments, name)


def _written(entry: EntryFacts, launch: Launch | None, expr: Expr, name: str) -> Setting:
    """Return what the code gives: a constant, or what a flag of the script says."""
    value = entry.values.one(expr)
    read = expr.node.attr if isinstance(expr.node, ast.Attribute) else ""
    field = _fields(entry).get(read)
    if isinstance(value, Const) and (field is None or field[1].node is not value.expr.node):
        return Setting(value.value, expr.hop(f"{name} is set here"), "code")
    flag = argparse_flag(entry, value) if value is not None else None
    found = _of_flag(launch, flag) if flag is not None else _loose(entry, launch, read) if field is not None else None
    if found is not None:
        return found
    return Setting(None, expr.hop(f"{name} is computed here"), "code", known=False)


def _of_flag(launch: Launch | None, flag: ArgparseFlag) -> Setting:
    for option in flag.options:
        given = _command(launch, option)
        if given is not None:
            negated = flag.switch is True and given.value is True
            return Setting(False, given.place, given.source) if negated else given
    place = flag.call.hop(f"the default of --{flag.name}")
    if flag.default_expr is None:
        return Setting(flag.switch, place, "default")
    return Setting(flag.default, place, "default", flag.known)


def _read(value: object, place: Hop, source: Source) -> Setting:
    """Return what was read at a place; None is what could not be."""
    return Setting(value, place, source, value is not None)


def _loose(entry: EntryFacts, launch: Launch | None, name: str) -> Setting | None:
    """Return what an argparse flag, a dataclass field or a launcher says of a name that no Trainer's arguments have."""
    flag = argparse_flags(entry).get(name)
    if flag is not None:
        return _of_flag(launch, flag)
    given = _command(launch, name) or _launcher(entry, launch, name) or _file(entry, launch, name)
    if given is not None:
        return given
    field = _fields(entry).get(name)
    return None if field is None else Setting(field[0], field[1].hop(f"the default of {name}"), "default")


def _command(launch: Launch | None, name: str) -> Setting | None:
    """Return what the command line gives; a flag without a value is True, one of some branches cannot be told."""
    flag = launch.flag(name) if launch is not None else None
    if flag is None or launch is None:
        return None
    value = flag.value if flag.value is not None else True if flag.literal else None
    place = Hop(flag.path or launch.script, flag.line or launch.line, f"--{flag.name}")
    return _read(None if flag.maybe else value, place, "command")


def _launcher(entry: EntryFacts, launch: Launch | None, name: str) -> Setting | None:
    """Return what `accelerate launch` says: its own flag, else its config file."""
    if launch is None or launch.launcher != "accelerate":
        return None
    flag, config = launch.launcher_flag(name), launch.launcher_flag("config_file")
    if flag is not None:
        value = flag.value if flag.value is not None else True if flag.literal else None
        return _read(value, Hop(flag.path or launch.script, flag.line or launch.line, f"--{flag.name}"), "command")
    named = config.value if config is not None and config.value is not None else None
    for path in launch.configs if named is not None else ():
        if path.endswith(str(named).rpartition("/")[2]):
            return _in_yaml(entry, path, name)
    return None


def _file(entry: EntryFacts, launch: Launch | None, name: str) -> Setting | None:
    """Return what a file of arguments says: the one that the code parses, or that the command passes."""
    if launch is None:
        return None
    config = launch.launcher_flag("config_file")
    own = str(config.value).rpartition("/")[2] if config is not None and config.value else None
    parsed = entry.once("settings.parsed", _parsed)
    for path in launch.configs if parsed else ():
        if (own is not None and path.endswith(own)) or not path.endswith(parsed):
            continue
        found = _in_json(entry, path, name) if path.endswith(".json") else _in_yaml(entry, path, name)
        if found is not None:
            return found
    return None


def _parsed(entry: EntryFacts) -> tuple[str, ...]:
    """Return the endings of the files that the code parses its arguments from."""
    called = {site.node.func.attr for site in entry.sites if isinstance(site.node.func, ast.Attribute)}
    return tuple(ending for method, endings in _FILES.items() if method in called for ending in endings)


def _in_yaml(entry: EntryFacts, path: str, name: str) -> Setting | None:
    source = entry.project.source(path)
    if source is None or f"{name}:" not in source.text:
        return None
    doc = yaml_text(entry, path)
    if doc is None or not doc.has(name):
        return None
    return Setting(doc.get(name), Hop(path, source.line_of(source.text.index(f"{name}:")), name), "file")


def _in_json(entry: EntryFacts, path: str, name: str) -> Setting | None:
    doc = json_text(entry, path)
    node = doc.node(name) if doc is not None else None
    if doc is None or node is None or isinstance(node.value, dict | list):
        return None
    return Setting(node.value, Hop(path, doc.source.line_of(node.start), name), "file")


def _preset(entry: EntryFacts, arguments: Arguments, name: str) -> Setting | None:
    """Return what `parser.set_defaults(name=...)` says."""
    for parser, site in entry.once("settings.presets", lambda entry: tuple(_presets(entry))):
        given = call_argument(site.node, None, name) if parser == arguments.parser else None
        if given is not None:
            value = entry.values.one(site.expr.at(given))
            known = isinstance(value, Const)
            place = site.expr.at(given).hop(f"{name} is set as a default")
            return Setting(value.value if isinstance(value, Const) else None, place, "set_defaults", known)
    return None


def _presets(entry: EntryFacts) -> Iterator[tuple[Expr, Site]]:
    """Yield the calls of `set_defaults`, each with the call that made its parser."""
    for site in entry.methods:
        for callee in site.callees:
            if isinstance(callee, Attr) and callee.name == "set_defaults" and isinstance(callee.of, Inst):
                yield callee.of.call, site


def _library(entry: EntryFacts, arguments: Arguments, name: str) -> Setting | None:
    base = entry.base(arguments.value.of)
    if base is None or base.package != "transformers":
        return None
    place = arguments.value.call.hop("the library's default")
    if name == "optim":
        newest = entry.target.transformers >= (4, 57) and entry.target.torch >= (2, 8)
        return Setting("adamw_torch_fused" if newest else "adamw_torch", place, "library")
    return Setting(_LIBRARY[name], place, "library") if name in _LIBRARY else None


def script_setting(entry: EntryFacts, launch: Launch | None, name: str) -> Setting | None:
    """Return the value of a flag or field of the script's own in one launch, whatever a Trainer's arguments say."""
    return _loose(entry, launch, name)


def parsed_field(entry: EntryFacts, name: str) -> Expr | None:
    """Return the default of a dataclass field that a parser of transformers or TRL fills from flags."""
    found = _fields(entry).get(name)
    return None if found is None else found[1]


def _fields(entry: EntryFacts) -> dict[str, tuple[object, Expr]]:
    """Return the defaults of the dataclasses that a parser of transformers or TRL fills from flags."""
    return entry.once("settings.fields", lambda entry: dict(_parsed_fields(entry)))


def _parsed_fields(entry: EntryFacts) -> Iterator[tuple[str, tuple[object, Expr]]]:
    for site in entry.sites:
        if not any((base := entry.base(callee)) is not None and base.last in _PARSERS for callee in site.callees):
            continue
        given = call_argument(site.node, 0, "dataclass_types")
        for cls in _classes(entry, site.expr.at(given)) if given is not None else ():
            for owner in [base for base in reversed(entry.values.mro(cls)) if isinstance(base, Cls)]:
                for node in owner.node.body:
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                        default = field_default(entry, Expr(owner.module, node.value))
                        if default is not None:
                            yield node.target.id, default


def _classes(entry: EntryFacts, expr: Expr) -> Iterator[Cls]:
    for value in entry.values.of(expr):
        if isinstance(value, Display) and isinstance(value.expr.node, ast.Tuple | ast.List):
            for element in value.expr.node.elts:
                yield from _classes(entry, value.expr.at(element))
        elif isinstance(value, Cls):
            yield value
