"""The config files that hold settings of a run: passed by its commands, or named by its code."""

from __future__ import annotations

import ast
import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator

from speedmigrate.chain.framework import outside_calls
from speedmigrate.facts.arguments import argparse_flag, argparse_flags
from speedmigrate.facts.entry import EntryFacts, Site, launch_index
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Attr, Const, Expr, Ext, Inst
from speedmigrate.launch.find import Launch
from speedmigrate.rule import Hop

_YAML = (".yaml", ".yml")
_CONFIGS = (".json", *_YAML)
# What only a config of DeepSpeed or accelerate, or a file of training arguments has.
_SETTING = re.compile(
    r"""^[^\S\n]*[{,]?[ \t]*["']?(?:zero_optimization|train_micro_batch_size_per_gpu|fp16|bf16|optimizer|"""
    r"""(?:init_|max_|base_)?(?:lr|learning_rate)|(?:\w+_)?batch_size(?:_\w+)?|(?:num_(?:train_)?|max_)?epochs?|"""
    r"""gradient_accumulation_steps|mixed_precision|deepspeed|distributed_type|precision)["']?\s*:""",
    re.MULTILINE,
)
_NAMED = re.compile(r":[ \t]*[\"']?([^\s\"']+\.json)[\"']?[ \t]*(?:#.*)?$", re.MULTILINE)
# Outside calls that read settings from the file that an argument names or opens: its position and keyword.
_READERS: dict[str, tuple[int | None, str]] = {
    "omegaconf.OmegaConf.load": (0, "file_"),
    "yaml.safe_load": (0, "stream"),
    "yaml.load": (0, "stream"),
    "json.load": (0, "fp"),
}
_ENGINES: dict[str, tuple[int | None, str]] = {
    "deepspeed.initialize": (None, "config"),
    "HfDeepSpeedConfig": (0, "config_file_or_dict"),
    "DeepSpeedStrategy": (None, "config"),
    "DeepSpeedPlugin": (None, "hf_ds_config"),
}
_PARSERS = {"parse_json_file": "json_file", "parse_yaml_file": "yaml_file"}


Found = dict[tuple[str, int], tuple[str, Hop]]


def passed(entry: EntryFacts, launches: Iterable[Launch]) -> Found:
    """Return the kind (`json`, `yaml`) and the place of each config that commands pass, by where it stands."""
    found: Found = {}
    for launch in launches:
        for path in launch.configs:
            if (path, 0) not in found and _holds_settings(entry, path):
                found[path, 0] = _kind(path), Hop(path, 1, f"passed at {launch.script}:{launch.line}")
        for made in launch.heredocs:
            source = entry.project.source(made.path)
            if source is not None:
                hop = Hop(made.path, source.line_of(made.start), "a config that the script writes")
                found.setdefault((made.path, made.start), (_kind(made.name), hop))
        found.update(_absent(launch))
    return found | _within(entry, found)


def named(entry: EntryFacts) -> Found:
    """Return the same of the configs that the code names: a literal, or the default of a flag."""
    found: Found = {}
    for path, expr in (*_read(entry), *_hydra(entry)):
        if (path, 0) not in found and _holds_settings(entry, path):
            hop = expr.hop("")
            found[path, 0] = _kind(path), Hop(path, 1, f"named at {hop.path}:{hop.line}")
    return found | _within(entry, found)


def _absent(launch: Launch) -> Iterator[tuple[tuple[str, int], tuple[str, Hop]]]:
    """Yield the engine configs that a command names and the root does not have: settings live there all the same."""
    given = [launch.launcher_flag("config_file") if launch.launcher == "accelerate" else None]
    given += [launch.flag(name) for name in ("deepspeed", "deepspeed_config")]
    for flag in given:
        name = flag.value.split("/")[-1] if flag is not None and flag.value is not None else ""
        known = (*launch.configs, *(made.name for made in launch.heredocs))
        if flag is not None and name.endswith(_CONFIGS) and not any(path.endswith(name) for path in known):
            hop = Hop(flag.path or launch.path, flag.line, f"passes {flag.value}, which is not in the repository")
            yield (flag.path, flag.start), (_kind(name), hop)


def _within(entry: EntryFacts, found: Found) -> Found:
    """Return the DeepSpeed configs that YAML files of arguments name."""
    inner: Found = {}
    for (path, at), (kind, hop) in found.items():
        source = entry.project.source(path) if kind == "yaml" and at == 0 else None
        for line in _NAMED.finditer(source.text) if source is not None else ():
            named_at = _resolved(entry, line[1])
            if named_at is not None and _holds_settings(entry, named_at):
                place = f"{hop.path}:{source.line_of(line.start(1))}" if source is not None else ""
                inner.setdefault((named_at, 0), ("json", Hop(named_at, 1, f"named at {place}")))
    return inner


def _kind(path: str) -> str:
    return "yaml" if path.endswith(_YAML) else "json"


def _holds_settings(entry: EntryFacts, path: str) -> bool:
    source = entry.project.source(path)
    return source is not None and _SETTING.search(source.text) is not None


def _read(entry: EntryFacts) -> Iterator[tuple[str, Expr]]:
    """Yield the files of the root that calls read settings from. Modules of the root read many files (the shape of a
    vision tower, a task list): of the plain readers only those of the entry point's own file, or through a flag,
    count."""
    for site, name in outside_calls(entry):
        last = name.rpartition(".")[2]
        given = (
            _ENGINES.get(name)
            or _ENGINES.get(last)
            or ((None, "deepspeed") if last.endswith("TrainingArguments") else None)
        )
        plain = _READERS.get(name) if given is None else None
        node = call_argument(site.node, *(given or plain or (None, "")))
        for path, expr in _files(entry, site.expr.at(node)) if node is not None else ():
            if given is not None or expr.module.path == entry.path or _is_flag(expr):
                yield path, expr
        if name == "deepspeed.initialize":
            yield from _default(entry, "deepspeed_config")
    for site in entry.methods:
        func = site.node.func
        word = _PARSERS.get(func.attr) if isinstance(func, ast.Attribute) else None
        node = call_argument(site.node, 0, word) if word is not None else None
        if node is not None:
            yield from _files(entry, site.expr.at(node))


def _is_flag(expr: Expr) -> bool:
    func = expr.node.func if isinstance(expr.node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == "add_argument"


def _default(entry: EntryFacts, name: str) -> Iterator[tuple[str, Expr]]:
    """Yield the file that the default of a flag names, which `deepspeed.initialize(args=args)` reads by itself."""
    flag = argparse_flags(entry).get(name)
    if flag is not None and isinstance(flag.default, str):
        yield from ((path, flag.call) for path in _matching(entry, flag.default))


def _files(entry: EntryFacts, expr: Expr) -> Iterator[tuple[str, Expr]]:
    """Yield the files that an expression names, or an opened file was opened by."""
    for value in entry.values.of(expr):
        if isinstance(value, Inst) and value.of == Ext("builtins.open") and isinstance(value.call.node, ast.Call):
            opened = call_argument(value.call.node, 0, "file")
            if opened is not None:
                yield from _files(entry, value.call.at(opened))
        elif isinstance(value, Attr):
            flag = argparse_flag(entry, value)
            if flag is not None and isinstance(flag.default, str):
                yield from ((path, flag.call) for path in _matching(entry, flag.default))
        elif isinstance(value, Const) and isinstance(value.value, str):
            yield from ((path, value.expr) for path in _matching(entry, value.value))
    for node in (expr.node, *_stored(expr)):
        pattern = _pattern(node)
        if pattern is not None:
            yield from ((path, expr.at(node)) for path in _matching(entry, pattern))


def _stored(expr: Expr) -> Iterator[ast.expr]:
    """Yield what the same function puts where an expression reads (`args["config"] = ...`)."""
    if isinstance(expr.node, ast.Subscript):
        text = ast.unparse(expr.node)
        for node in own_nodes(expr.module.function(expr.node) or expr.module.tree):
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == text for target in node.targets):
                yield node.value


def _pattern(node: ast.AST) -> str | None:
    """Return an f-string with `*` for what it fills in."""
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)


def _matching(entry: EntryFacts, text: str) -> Iterator[str]:
    """Yield the configs of the root that a path or a pattern means."""
    if not text.endswith(_CONFIGS):
        return
    if "*" in text:
        folders = [posixpath.dirname(entry.path), ""]
        paths = [posixpath.normpath(posixpath.join(folder, text)) for folder in folders]
        yield from (file for file in entry.project.files if any(fnmatch.fnmatchcase(file, path) for path in paths))
        return
    path = _resolved(entry, text)
    if path is not None:
        yield path


def _resolved(entry: EntryFacts, text: str) -> str | None:
    return launch_index(entry.project).files.resolve(text, "", entry.path).path


def _hydra(entry: EntryFacts) -> Iterator[tuple[str, Expr]]:
    """Yield the config that `hydra.main(config_path=..., config_name=...)` starts from."""
    for site, name in outside_calls(entry):
        if name != "hydra.main":
            continue
        folder, stem = (_constant(entry, site, 0, "config_path"), _constant(entry, site, 1, "config_name"))
        path = _resolved(entry, f"{folder or '.'}/{(stem or 'config').removesuffix('.yaml')}.yaml")
        if path is not None:
            yield path, site.expr


def _constant(entry: EntryFacts, site: Site, position: int, name: str) -> str | None:
    node = call_argument(site.node, position, name)
    value = entry.values.one(site.expr.at(node)) if node is not None else None
    return value.value if isinstance(value, Const) and isinstance(value.value, str) else None
