"""The list of rules and a rule's page, both made from the rules themselves."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from difflib import unified_diff

from speedmigrate.report_data import code, escape, markdown_table
from speedmigrate.rule import Example, Rule


def rules_list(rules: Sequence[Rule], form: str) -> str:
    """Return every rule with its goal and effect, as text, json or markdown."""
    rows = [(rule.code, rule.name, rule.goal, rule.effect, rule.title) for rule in rules]
    if form == "json":
        return json.dumps([dict(zip(_KEYS, row, strict=True)) for row in rows], indent=2) + "\n"
    if form == "markdown":
        cells = ((row[0], code(row[1]), *row[2:4], escape(row[4])) for row in rows)
        return "\n".join(markdown_table(_KEYS, cells)) + "\n"
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) + "\n"
        for row in rows
    )


_KEYS = ("code", "rule", "goal", "effect", "title")


def rule_page(rule: Rule) -> str:
    """Return the page of one rule: its documentation and its examples as diffs."""
    parts = [
        f"{rule.code} {rule.name}: {rule.title}",
        f"goal: {rule.goal}; effect: {rule.effect}",
        inspect.cleandoc(rule.docs),
        *map(_example, rule.examples),
    ]
    return "\n\n".join(parts) + "\n"


def _example(example: Example) -> str:
    if example.after is None:
        return f"Left alone: {example.title}\n{_indented(example.before)}"
    old, new = (text.splitlines() for text in (example.before, example.after))
    lines = list(unified_diff(old, new, lineterm="", n=100))[3:]
    return f"Example: {example.title}\n" + "\n".join(f"    {line}".rstrip() for line in lines)


def _indented(text: str) -> str:
    return "\n".join(f"     {line}".rstrip() for line in text.splitlines())
