"""Where the settings of a run come from: HF `TrainingArguments`, argparse flags, dataclass fields, launch files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Attr, Cls, Const, Expr, Ext, Inst, Result, Value
from speedmigrate.launch.find import Launch
from speedmigrate.launch.jsonfile import JsonDoc, read_json


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """The `TrainingArguments` of a Trainer.

    Attributes:
        cls: the subclass in the root, if it is one.
        literal: the call that builds them, None where they are parsed from flags.
        parser: the call that made the `HfArgumentParser`, where they are parsed.
    """

    value: Inst
    cls: Cls | None
    literal: Expr | None
    parser: Expr | None

    def default(self, entry: EntryFacts, name: str) -> tuple[object, Expr] | None:
        """Return the default that a subclass of the root gives a field: the constant and its expression."""
        if self.cls is None:
            return None
        for owner in entry.values.mro(self.cls):
            if isinstance(owner, Ext):
                continue
            for node in owner.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                    return _field_default(entry, Expr(owner.module, node.value)) if node.value is not None else None
        return None


def _field_default(entry: EntryFacts, expr: Expr) -> tuple[object, Expr] | None:
    if isinstance(expr.node, ast.Call):
        inner = call_argument(expr.node, None, "default")
        return None if inner is None else _field_default(entry, expr.at(inner))
    value = entry.values.one(expr)
    return (value.value, expr) if isinstance(value, Const) else None


def training_arguments(entry: EntryFacts, loader: Loader) -> tuple[Arguments, ...]:
    """Return what the `args` of a Trainer can be."""
    expr = loader.argument("args")
    found = []
    for value in () if expr is None else entry.values.of(expr):
        base = entry.base(value.of) if isinstance(value, Inst) else None
        if not isinstance(value, Inst) or base is None or not base.last.endswith("TrainingArguments"):
            continue
        cls = value.of if isinstance(value.of, Cls) else None
        call = value.call
        callees = entry.values.of(call.at(call.node.func)) if isinstance(call.node, ast.Call) else ()
        built = any(callee == value.of for callee in callees)
        parser = None if built else _parser(callees)
        found.append(Arguments(value, cls, call if built else None, parser))
    return tuple(found)


def _parser(callees: tuple[Value, ...]) -> Expr | None:
    for callee in callees:
        if isinstance(callee, Attr) and isinstance(callee.of, Inst) and isinstance(callee.of.of, Ext):
            if callee.of.of.last == "HfArgumentParser":
                return callee.of.call
    return None


@dataclass(frozen=True, slots=True, eq=False)
class ArgparseFlag:
    """A flag of an `argparse` parser: the `add_argument` call and its default where that is a constant."""

    name: str
    call: Expr
    default: object
    default_expr: Expr | None


def argparse_flag(entry: EntryFacts, value: Value) -> ArgparseFlag | None:
    """Return the flag that `args.name` reads, where `args` was parsed by argparse and one call adds the flag."""
    if not (isinstance(value, Attr) and _is_parsed(value.of)):
        return None
    found = {}
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "add_argument" and _destination(site.node) == value.name:
            found[site.node] = site
    if len(found) != 1:
        return None
    site = next(iter(found.values()))
    default = call_argument(site.node, None, "default")
    if has_spread(site.node):
        return None
    constant = entry.values.one(site.expr.at(default)) if default is not None else None
    return ArgparseFlag(
        value.name, site.expr, constant.value if isinstance(constant, Const) else None,
        None if default is None else site.expr.at(default),
    )  # fmt: skip


def _is_parsed(value: Value) -> bool:
    return (
        isinstance(value, Result) and isinstance(value.of, Attr) and value.of.name in {"parse_args", "parse_known_args"}
    )


def _destination(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    longest = [name for name in names if name.startswith("--")] or names
    return longest[0].lstrip("-").replace("-", "_") if longest else ""


def deepspeed_configs(entry: EntryFacts, launch: Launch) -> Iterator[JsonDoc]:
    """Yield the DeepSpeed JSON configs that a launch passes, those written in its script included."""
    for path in launch.configs:
        source = entry.project.source(path) if path.endswith(".json") else None
        doc = read_json(source) if source is not None else None
        if doc is not None:
            yield doc
    for heredoc in launch.heredocs:
        source = entry.project.source(heredoc.path) if heredoc.name.endswith(".json") else None
        doc = read_json(source, heredoc.start, heredoc.end) if source is not None else None
        if doc is not None:
            yield doc


def zero_stage(doc: JsonDoc) -> int | None:
    stage = doc.get("zero_optimization", "stage")
    return stage if isinstance(stage, int) else None


def offloads(entry: EntryFacts, launch: Launch) -> bool:
    """Say whether a launch's DeepSpeed config moves the optimizer off the GPU."""
    devices = {doc.get("zero_optimization", "offload_optimizer", "device") for doc in deepspeed_configs(entry, launch)}
    return bool(devices & {"cpu", "nvme"})


def is_on(value: str | None, literal: bool) -> bool | None:
    """Return what a boolean flag of a launch file says, None where it cannot be read."""
    if value is None:
        return True if literal else None
    return value.lower() in {"true", "1", "yes", "y", "t"}
