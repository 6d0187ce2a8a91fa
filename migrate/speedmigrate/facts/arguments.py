"""Where the settings of a run come from: HF `TrainingArguments`, argparse flags, dataclass fields, launch files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.entry import EntryFacts, shared
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Attr, Cls, Const, Expr, Ext, Inst, Result, Value
from speedmigrate.launch.find import Launch
from speedmigrate.launch.jsonfile import JsonDoc, read_json
from speedmigrate.launch.yamlfile import YamlDoc, read_yaml


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
                    return field_default(entry, Expr(owner.module, node.value)) if node.value is not None else None
        return None


def field_default(entry: EntryFacts, expr: Expr) -> tuple[object, Expr] | None:
    """Return the constant that a dataclass field starts with (`field(default=...)` seen through) and its place."""
    if isinstance(expr.node, ast.Call):
        inner = call_argument(expr.node, None, "default")
        return None if inner is None else field_default(entry, expr.at(inner))
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

    @property
    def known(self) -> bool:
        """Whether the default could be read: a constant, or none is given."""
        node = self.default_expr.node if self.default_expr is not None else None
        return self.default is not None or node is None or (isinstance(node, ast.Constant) and node.value is None)

    @property
    def options(self) -> tuple[str, ...]:
        """The names that a command line gives it by."""
        args = self.call.node.args if isinstance(self.call.node, ast.Call) else ()
        return tuple(a.value for a in args if isinstance(a, ast.Constant) and isinstance(a.value, str))

    @property
    def switch(self) -> bool | None:
        """What a flag without a value starts as (False of `store_true`), None for one that takes a value."""
        action = call_argument(self.call.node, None, "action") if isinstance(self.call.node, ast.Call) else None
        name = action.value if isinstance(action, ast.Constant) else None
        return {"store_true": False, "store_false": True}.get(str(name))


def argparse_flag(entry: EntryFacts, value: Value) -> ArgparseFlag | None:
    """Return the flag that `args.name` reads, where `args` was parsed by argparse and one call adds the flag."""
    return argparse_flags(entry).get(value.name) if isinstance(value, Attr) and _is_parsed(value.of) else None


def argparse_flags(entry: EntryFacts) -> dict[str, ArgparseFlag]:
    """Return the flags that one call of `add_argument` each adds, by the name that the code reads them by."""
    return entry.once("arguments.argparse", _argparse_flags)


def _argparse_flags(entry: EntryFacts) -> dict[str, ArgparseFlag]:
    found: dict[str, dict[ast.Call, Expr]] = {}
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "add_argument":
            found.setdefault(_destination(site.node), {})[site.node] = site.expr
    single = {name: next(iter(calls.items())) for name, calls in found.items() if len(calls) == 1}
    return {name: _flag(entry, name, *call) for name, call in single.items() if not has_spread(call[0])}


def _flag(entry: EntryFacts, name: str, call: ast.Call, expr: Expr) -> ArgparseFlag:
    default = call_argument(call, None, "default")
    constant = entry.values.one(expr.at(default)) if default is not None else None
    given = constant.value if isinstance(constant, Const) else None
    return ArgparseFlag(name, expr, given, None if default is None else expr.at(default))


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
    texts: list[tuple[str, int, int | None]] = [(path, 0, None) for path in launch.configs if path.endswith(".json")]
    texts += [(made.path, made.start, made.end) for made in launch.heredocs if made.name.endswith(".json")]
    for text in texts:
        doc = json_text(entry, *text)
        if doc is not None:
            yield doc


def json_text(entry: EntryFacts, path: str, start: int = 0, end: int | None = None) -> JsonDoc | None:
    """Return a JSON object of the root, a file or a part of a script (read once); None where it is no object."""
    return shared(entry.project, f"json:{path}:{start}", lambda: _json_text(entry, path, start, end))


def _json_text(entry: EntryFacts, path: str, start: int, end: int | None) -> JsonDoc | None:
    source = entry.project.source(path)
    if source is None or not source.text[start:end].lstrip().startswith(("{", "/", "#")):
        return None
    doc = read_json(source, start, end)
    return doc if doc is not None and isinstance(doc.root.value, dict) else None


def yaml_text(entry: EntryFacts, path: str) -> YamlDoc | None:
    """Return a YAML file of the root (read once), None where it is none."""
    source = entry.project.source(path)
    return None if source is None else shared(entry.project, f"yaml:{path}", lambda: read_yaml(source))


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
