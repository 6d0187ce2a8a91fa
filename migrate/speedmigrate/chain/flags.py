"""The setting of a script that an expression reads: a flag, a field, a parameter or a constant, its default, and what
each launch gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.chain.config_values import held, keys_of
from speedmigrate.facts.arguments import ArgparseFlag, argparse_flag, field_default, is_on
from speedmigrate.facts.entry import EntryFacts, shared
from speedmigrate.facts.settings import parsed_field, script_setting
from speedmigrate.facts.syntax import call_argument, parameter_default
from speedmigrate.facts.value import Attr, Const, Expr, Ext, Inst, Item, Param, Result, Value
from speedmigrate.launch.find import Launch
from speedmigrate.rule import Hop

Kind = Literal["field", "argparse", "parameter", "constant", "config", "device"]
_FIELD = Ext("dataclasses.field")


@dataclass(frozen=True, slots=True, eq=False)
class Flag:
    """A setting of the script.

    Attributes:
        key: the node that declares it; two reads of one setting have the same.
        default: what it is where nothing is given.
        written: the default as written, None where none is.
        argparse: the call that adds it, of a flag of `argparse`.
        keys: where it stands in a config file.
    """

    name: str
    kind: Kind
    key: ast.AST
    default: object
    written: Expr | None
    hop: Hop
    argparse: ArgparseFlag | None = None
    keys: tuple[str, ...] = ()

    @property
    def is_bool(self) -> bool:
        return not isinstance(self.default, str)

    @property
    def choices(self) -> tuple[object, ...]:
        """What a command line may give it, where that is written out."""
        node = self.argparse.call.node if self.argparse is not None else None
        given = call_argument(node, None, "choices") if isinstance(node, ast.Call) else None
        parts = given.elts if isinstance(given, ast.List | ast.Tuple) else ()
        return tuple(part.value for part in parts if isinstance(part, ast.Constant))

    @property
    def options(self) -> tuple[str, ...]:
        """The names that a command line gives it by."""
        return self.argparse.options if self.argparse is not None else (f"--{self.name}",)

    @property
    def takes_any_text(self) -> bool:
        """Say whether every text is true on a command line (`type=bool` of argparse)."""
        node = self.argparse.call.node if self.argparse is not None else None
        given = call_argument(node, None, "type") if isinstance(node, ast.Call) else None
        return isinstance(given, ast.Name) and given.id == "bool"


@dataclass(frozen=True, slots=True)
class Given:
    """What a launch (None: a start without flags) gives a setting; `by_default` where it says nothing."""

    launch: Launch | None
    value: object
    place: Hop
    known: bool
    by_default: bool


def flag_at(entry: EntryFacts, expr: Expr) -> Flag | None:
    """Return the one setting that an expression reads."""
    found = [flag_of(entry, value) for value in dict.fromkeys(entry.values.of(expr))]
    first = found[0] if found else None
    return first if first is not None and all(f is not None and f.key is first.key for f in found) else None


def flag_of(entry: EntryFacts, value: Value) -> Flag | None:
    """Return the setting that a value is."""
    if isinstance(value, Const):
        return _constant(entry, value) if _may_switch(value.value) else None
    if isinstance(value, Inst) and value.of == _FIELD:
        return _field(entry, value.call)
    if isinstance(value, Param):
        return _parameter(entry, value)
    flag = argparse_flag(entry, value) if isinstance(value, Attr) else None
    default = flag.switch if flag is not None and flag.default_expr is None else flag.default if flag else None
    if flag is None:
        return _config(entry, value)
    if not flag.known or not _may_switch(default):
        return None
    hop = flag.call.hop(f"--{flag.name}, {default} by default")
    return Flag(flag.name, "argparse", flag.call.node, default, flag.default_expr, hop, flag)


def _config(entry: EntryFacts, value: Value) -> Flag | None:
    keys = keys_of(entry, value) if isinstance(value, Attr | Item | Result) else ()
    first = next(held(entry, next(iter(entry.launches), None), keys), None) if keys else None
    if first is None or not _may_switch(first[0]):
        return None
    node = shared(entry.project, f"config:{keys}", lambda: ast.Constant(".".join(keys)))
    return Flag(keys[-1], "config", node, first[0], None, first[1], None, keys)


def _may_switch(default: object) -> bool:
    return default is None or isinstance(default, str) or default in {0, 1}


def _constant(entry: EntryFacts, value: Const) -> Flag | None:
    module, node = value.expr.module, value.expr.node
    parent = module.parents.get(node)
    above = module.parents.get(parent) if parent is not None else None
    name = ""
    kind: Kind = "constant"
    if isinstance(parent, ast.Assign | ast.AnnAssign):
        target = parent.targets[0] if isinstance(parent, ast.Assign) else parent.target
        name = target.id if isinstance(target, ast.Name) else ""
        kind = "field" if isinstance(above, ast.ClassDef) and _is_filled(entry, name, node) else "constant"
    elif isinstance(parent, ast.arguments):
        name, kind = _defaulted(parent, node), "parameter"
    elif isinstance(parent, ast.keyword) and parent.arg is not None:
        name = parent.arg
    if not name:
        return None
    hop = value.expr.hop(f"{name} is {value.value}")
    return Flag(name, kind, node, value.value, value.expr, hop)


def _is_filled(entry: EntryFacts, name: str, default: ast.expr) -> bool:
    """Say whether a field of a class gets its value from a command line."""
    parsed = parsed_field(entry, name)
    return (parsed is not None and parsed.node is default) or any(launch.flag(name) for launch in entry.launches)


def _defaulted(arguments: ast.arguments, node: ast.expr) -> str:
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return next((a.arg for a in every if parameter_default(arguments, a.arg) is node), "")


def _field(entry: EntryFacts, call: Expr) -> Flag | None:
    statement = call.module.parents.get(call.node)
    default = field_default(entry, call)
    if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name) or default is None:
        return None
    name = statement.target.id
    if not _may_switch(default[0]):
        return None
    return Flag(name, "field", call.node, default[0], default[1], call.hop(f"{name}, {default[0]} by default"))


def _parameter(entry: EntryFacts, value: Param) -> Flag | None:
    """Return a parameter that a command line fills (`fire.Fire(train)`): its default is the setting's."""
    default = parameter_default(value.func.node.args, value.name)
    if not isinstance(default, ast.Constant):
        return None
    return _constant(entry, Const(default.value, Expr(value.func.module, default, value.func.outer)))


def given(entry: EntryFacts, flag: Flag) -> tuple[Given, ...]:
    """Return the value of a setting in each launch of the run."""
    if flag.kind in {"constant", "device"}:
        return (Given(None, flag.default, flag.hop, True, True),)
    if flag.kind == "config":
        return tuple(each for launch in entry.launches or (None,) for each in _configured(entry, flag, launch))
    return tuple(_given(entry, flag, launch) for launch in entry.launches or (None,))


def _configured(entry: EntryFacts, flag: Flag, launch: Launch | None) -> Iterator[Given]:
    found = list(held(entry, launch, flag.keys))
    yield from (Given(launch, value, hop, _may_switch(value), False) for value, hop in found)
    if not found and launch is not None:
        yield Given(
            launch, None, Hop(launch.script, launch.line, "a config that is not in the repository"), False, False
        )


def _given(entry: EntryFacts, flag: Flag, launch: Launch | None) -> Given:
    negated = launch.flag(f"no_{flag.name}") if launch is not None and flag.kind == "field" else None
    if negated is not None and launch is not None:
        return Given(launch, False, Hop(launch.script, negated.line or launch.line, f"--{negated.name}"), True, False)
    setting = script_setting(entry, launch, flag.name)
    if setting is None or setting.source == "default":
        return Given(launch, flag.default, flag.hop, True, True)
    value = setting.value
    if flag.is_bool and isinstance(value, str):
        value = bool(value) if flag.takes_any_text else is_on(value, True)
    return Given(launch, value, setting.place, setting.known, False)
