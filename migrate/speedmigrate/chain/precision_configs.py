"""The DeepSpeed configs of a run: files, heredocs of launch files, dicts of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.framework import calls_of, outside_calls
from speedmigrate.chain.precision_settings import given, launches, read_named, strings
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Attr, Display, Expr, Ext, Inst, Value
from speedmigrate.launch.find import Launch
from speedmigrate.launch.jsonfile import JsonDoc, read_json
from speedmigrate.rule import Hop

# Sections that only a DeepSpeed config has.
_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "bf16", "fp16", "optimizer")


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    """A DeepSpeed config: a JSON text, or a dict display of the code.

    Attributes:
        launch: the launch that passes it, None where the code names it.
        written: sections that the code sets on the loaded dict.
    """

    doc: JsonDoc | None
    display: Expr | None
    launch: Launch | None
    written: tuple[tuple[str, Hop], ...] = ()

    def section(self, name: str) -> Hop | None:
        """Return the place of a section, None where the config has none."""
        for key, hop in self.written:
            if key == name:
                return hop
        if self.doc is not None:
            node = self.doc.node(name)
            line = self.doc.source.line_of(node.start) if node is not None else 0
            return Hop(self.doc.source.path, line, f"the DeepSpeed config has `{name}`") if node is not None else None
        given = _member(self.display, name)
        return None if given is None or self.display is None else self.display.at(given).hop(f"the config has `{name}`")

    def enabled(self, name: str) -> object:
        """Return what `name.enabled` says: True, False, "auto", None where it is absent or computed."""
        if self.doc is not None:
            return self.doc.get(name, "enabled")
        section = _member(self.display, name)
        inner = _member(self.display.at(section), "enabled") if section is not None and self.display else None
        return inner.value if isinstance(inner, ast.Constant) else None


def _member(expr: Expr | None, key: str) -> ast.expr | None:
    node = expr.node if expr is not None else None
    if isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                return value
    return call_argument(node, None, key) if isinstance(node, ast.Call) else None


def deepspeed(entry: EntryFacts) -> tuple[Config, ...]:
    """Return the DeepSpeed configs of a run: of its launches, and those that the code names or holds."""
    return entry.once("chain.deepspeed", lambda entry: tuple(_deepspeed(entry)))


def _deepspeed(entry: EntryFacts) -> Iterator[Config]:
    seen: set[tuple[str, int]] = set()
    for launch in launches(entry):
        for path, start, end in _texts(launch):
            if (path, start) not in seen:
                seen.add((path, start))
                source = entry.project.source(path)
                doc = read_json(source, start, end) if source is not None else None
                if doc is not None and _is_deepspeed(doc):
                    seen.add((path, doc.root.start))
                    yield Config(doc, None, launch)
    for expr in _given(entry):
        for config in _followed(entry, expr):
            at = (config.doc.source.path, config.doc.root.start) if config.doc is not None else ("", id(config.display))
            if at not in seen:
                seen.add(at)
                yield config


def _texts(launch: Launch) -> Iterator[tuple[str, int, int | None]]:
    """Yield where the JSON configs of a launch stand: files, and heredocs of its script."""
    for path in launch.configs:
        if path.endswith(".json"):
            yield path, 0, None
    for heredoc in launch.heredocs:
        if heredoc.name.endswith(".json"):
            yield heredoc.path, heredoc.start, heredoc.end


def _is_deepspeed(doc: JsonDoc) -> bool:
    return any(doc.node(name) is not None for name in _DEEPSPEED)


def _given(entry: EntryFacts) -> Iterator[Expr]:
    """Yield the expressions of the code that name or hold a DeepSpeed config."""
    for site in calls_of(entry, "deepspeed.initialize"):
        for name in ("config", "config_params"):
            node = call_argument(site.node, None, name)
            if node is not None:
                yield site.expr.at(node)
        yield from _default_of_flag(entry, "deepspeed_config")
    for site, name in outside_calls(entry):
        last = name.rpartition(".")[2]
        word = {"HfDeepSpeedConfig": "config_file_or_dict", "DeepSpeedPlugin": "hf_ds_config"}.get(last)
        word = "deepspeed" if last.endswith("TrainingArguments") else word
        word = "strategy" if name.startswith(("lightning", "pytorch_lightning")) and last == "Trainer" else word
        node = call_argument(site.node, 0 if last == "HfDeepSpeedConfig" else None, word) if word else None
        if node is not None:
            yield site.expr.at(node)


def _default_of_flag(entry: EntryFacts, name: str) -> Iterator[Expr]:
    for site in entry.methods:
        if any(isinstance(callee, Attr) and callee.name == "add_argument" for callee in site.callees):
            if any(isinstance(a, ast.Constant) and a.value == f"--{name}" for a in site.node.args):
                default = call_argument(site.node, None, "default")
                if default is not None:
                    yield site.expr.at(default)


def _followed(entry: EntryFacts, expr: Expr) -> Iterator[Config]:
    for setting in given(entry, expr.node.attr) if isinstance(expr.node, ast.Attribute) else ():
        for doc in read_named(entry, str(setting.text)):
            yield Config(doc, None, None)
    for value in entry.values.of(expr):
        if isinstance(value, Display) and isinstance(value.expr.node, ast.Dict):
            yield Config(None, value.expr, None, tuple(_written(entry, value)))
        elif isinstance(value, Inst) and value.of == Ext("builtins.dict"):
            yield Config(None, value.call, None, tuple(_written(entry, value)))
        elif isinstance(value, Inst) and value.of == Ext("json.load") and isinstance(value.call.node, ast.Call):
            for doc in _opened(entry, value.call):
                yield Config(doc, None, None, tuple(_written(entry, value)))
        else:
            for path in strings(entry, value):
                for doc in read_named(entry, path):
                    yield Config(doc, None, None)


def _opened(entry: EntryFacts, call: Expr) -> Iterator[JsonDoc]:
    assert isinstance(call.node, ast.Call)
    for value in entry.values.of(call.at(call.node.args[0])) if call.node.args else ():
        if isinstance(value, Inst) and value.of == Ext("builtins.open") and isinstance(value.call.node, ast.Call):
            for name in entry.values.of(value.call.at(value.call.node.args[0])) if value.call.node.args else ():
                for path in strings(entry, name):
                    yield from read_named(entry, path)


def _written(entry: EntryFacts, value: Value) -> Iterator[tuple[str, Hop]]:
    """Yield the sections that the code sets on a config (`config["optimizer"] = ...`)."""
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                target = node.targets[0]
                key = target.slice.value if isinstance(target.slice, ast.Constant) else None
                if key in _DEEPSPEED and value in entry.values.of(Expr(module, target.value, frame)):
                    yield str(key), module.hop(node, f"the code sets `{key}` of the DeepSpeed config")


def dicts(entry: EntryFacts) -> tuple[Config, ...]:
    """Return the DeepSpeed configs that the code writes as dict displays, followed to an engine or told by their
    sections."""
    return entry.once("chain.dicts", lambda entry: tuple(_dicts(entry)))


def _dicts(entry: EntryFacts) -> Iterator[Config]:
    seen = set()
    for config in deepspeed(entry):
        if config.display is not None:
            seen.add(config.display.node)
            yield config
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Dict) and node not in seen and _is_config(node):
                seen.add(node)
                yield Config(None, Expr(module, node, frame), None)


def _is_config(node: ast.Dict) -> bool:
    """Whether a dict has the section of ZeRO or a batch size of DeepSpeed, and a precision with `enabled`."""
    sections = {k.value: v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)}
    inner = [sections.get("fp16"), sections.get("bf16")]
    told = any(
        isinstance(v, ast.Dict) and any(isinstance(k, ast.Constant) and k.value == "enabled" for k in v.keys)
        for v in inner
    )
    return told and any(isinstance(name, str) and name.startswith(("zero_", "train_")) for name in sections)
