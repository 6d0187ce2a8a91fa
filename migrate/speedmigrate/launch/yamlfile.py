"""Read YAML with the place of each value (ruamel.yaml), and edit it as spans: accelerate and training configs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from speedmigrate.rule import SetFlag
from speedmigrate.source import SourceFile

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

Value = str | int | float | bool | None
_PROPERTIES = re.compile(r"(?:[&!][^\s]*[ \t]+)*")
_ALIAS = re.compile(r"\*([^\s,\]}]+)")
_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
# The scalars of YAML 1.1, as PyYAML reads them in transformers and accelerate: `1e-4` is text there.
_TRUE, _FALSE = re.compile(r"(?i:true|yes|on)"), re.compile(r"(?i:false|no|off)")
_NULL = re.compile(r"~|(?i:null)|")
_INT, _FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)"), re.compile(r"[-+]?(?:[0-9][0-9_]*)?\.[0-9_]*(?:[eE][-+][0-9]+)?")


@dataclass(frozen=True, slots=True)
class YamlDoc:
    """A YAML mapping and where it stands."""

    source: SourceFile
    root: MappingNode

    def get(self, *keys: str, default: Value = None) -> Value:
        """Return the scalar below `keys`, merged keys (`<<`) included."""
        node: Node | None = self.root
        for key in keys:
            node = _find(node, key)
        return default if node is None or not _is_scalar(node) else _scalar(node.value, node.style)

    def has(self, *keys: str) -> bool:
        """Say whether there is anything below `keys`."""
        node: Node | None = self.root
        for key in keys:
            node = _find(node, key)
        return node is not None


def read_yaml(source: SourceFile) -> YamlDoc | None:
    """Read the first document of a YAML file; None if it is not a mapping."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="rt", pure=True)
    yaml.allow_duplicate_keys = True
    try:
        root = next(iter(yaml.compose_all(source.text)), None)
    except (YAMLError, RecursionError, ValueError):
        return None
    return YamlDoc(source, root) if _is_mapping(root) else None


def _is_scalar(node: Node) -> TypeGuard[ScalarNode]:
    return bool(node.id == "scalar")  # type: ignore[attr-defined]  # ruamel.yaml gives the class only to its subclasses


def _is_mapping(node: Node | None) -> TypeGuard[MappingNode]:
    return node is not None and bool(node.id == "mapping")  # type: ignore[attr-defined]


def _own(node: Node | None, key: str) -> tuple[Node, Node] | None:
    """Return the key and value nodes of a mapping's own entry."""
    if not _is_mapping(node):
        return None
    return next(((name, value) for name, value in reversed(node.value) if name.value == key), None)


def _find(node: Node | None, key: str) -> Node | None:
    own = _own(node, key)
    if own:
        return own[1]
    merged = _own(node, "<<")
    if merged is None:
        return None
    bases = [merged[1]] if _is_mapping(merged[1]) else merged[1].value
    return next((found for base in bases if (found := _find(base, key)) is not None), None)


def _scalar(text: str, style: str | None) -> Value:
    if style in ("'", '"', "|", ">"):
        return text
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return bool(_TRUE.fullmatch(text))
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) and text != "." else text


def set_yaml(doc: YamlDoc, keys: Sequence[str], value: Value) -> tuple[SetFlag, ...] | None:
    """Have a scalar below `keys`: its text replaced where it stands, or a line added to its section.

    Returns:
        The edits, none if it is so already; None where the value is no scalar, an anchor that others use, or the
        section is missing or written in braces.
    """
    section: Node | None = doc.root
    for key in keys[:-1]:
        entry = _own(section, key)
        section = entry[1] if entry and not _alias(doc, entry) else None
    if not _is_mapping(section):
        return None
    own = _own(section, keys[-1])
    if own is None:
        return _add(doc, section, keys[-1], value)
    if _is_scalar(own[1]) and doc.get(*keys) == value and type(doc.get(*keys)) is type(value):
        return ()
    alias = _alias(doc, own)
    if alias:
        return (SetFlag(doc.source.path, alias.start(), alias.end(), _dump(value)),)
    return _replace(doc, own, value)


def _replace(doc: YamlDoc, entry: tuple[Node, Node], value: Value) -> tuple[SetFlag, ...] | None:
    text, node = doc.source.text, entry[1]
    if not _is_scalar(node) or node.style in ("|", ">"):
        return None
    if node.anchor and re.search(rf"\*{re.escape(node.anchor)}(?![\w-])", text):
        return None
    start, end = node.start_mark.index, node.end_mark.index
    properties = _PROPERTIES.match(text, start, end)
    start = properties.end() if properties else start
    if start == end:
        after = text.index(":", entry[0].end_mark.index) + 1
        return (SetFlag(doc.source.path, after, after, f" {_dump(value)}"),)
    quote = text[start] if text[start] in "\"'" and isinstance(value, str) else ""
    return (SetFlag(doc.source.path, start, end, f"{quote}{value}{quote}" if quote else _dump(value)),)


def _alias(doc: YamlDoc, entry: tuple[Node, Node]) -> re.Match[str] | None:
    """Return the `*name` that gives an entry its value."""
    text = doc.source.text
    colon = re.compile(r"\s*:\s*").match(text, entry[0].end_mark.index)
    return _ALIAS.match(text, colon.end()) if colon else None


def _add(doc: YamlDoc, section: MappingNode, key: str, value: Value) -> tuple[SetFlag, ...] | None:
    """Add a line after the last entry of the section that ends on its own line."""
    if section.flow_style or not section.value:
        return None
    source = doc.source
    indent = " " * section.value[0][0].start_mark.column
    for name, node in reversed(section.value):
        line = source.line_of(name.start_mark.index)
        end = source.line_end(line)
        single = _alias(doc, (name, node)) or (
            _is_scalar(node) and node.style not in ("|", ">") and source.line_of(node.end_mark.index) == line
        )
        if single:
            code = f"{indent}{key}: {_dump(value)}"
            ended = source.text[:end].endswith("\n")
            code = f"{code}{source.newline}" if ended else f"{source.newline}{code}"
            return (SetFlag(source.path, end, end, code),)
    first = section.value[0][0].start_mark.index
    alone = not source.text[source.line_starts[source.line_of(first) - 1] : first].strip()
    return (SetFlag(source.path, first, first, f"{key}: {_dump(value)}{source.newline}{indent}"),) if alone else None


def _dump(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or _scalar(value, None) != value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
