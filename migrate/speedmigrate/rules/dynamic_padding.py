"""Rows that are not padded to a fixed length have nothing to strip: said for every data set that is served.

## What it does
Changes nothing. Tells of each loader why its padding stays: each batch is padded to its own longest row already, the
rows are fixed chunks of one length, the repository groups by length, or the hop where the trail from the loader to
the rows breaks.

## When it is refused
Where something that pads to a fixed length is seen but not followed, or nothing is followed at all: the missing link is
named.

## Effect
None.

## References
- https://huggingface.co/docs/transformers/main_classes/data_collator
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from speedmigrate.facts.collates import pads_to_longest
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader, loaders, sources
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.padding import padded_datasets
from speedmigrate.facts.rowvalue import Rows
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import Cls, Const
from speedmigrate.rule import Example, Finding, Hop, Place, Rule

_STATIC = re.compile(
    r"""padding\s*=\s*["']max_length["']|pad_to_max_length|np\.pad\(|F\.pad\(|functional\.pad\(|\[\s*[\w.\[\]"']+\s*\]\s*\*\s*\(?\s*[\w.]*max"""
)


def check(entry: EntryFacts) -> Iterator[Finding]:
    padding = {id(group.func.node) for group in padded_datasets(entry)}
    found = list(loaders(entry))
    for loader in found:
        yield from _loader(entry, loader, padding)
    if not found:
        static = next(_static(entry), None)
        what = "no DataLoader and no HF Trainer is followed, so how the batches are made is not known"
        if static is not None:
            what = f"padding to a fixed length is seen ({static.what}), but no loader that serves it is followed"
        place = Place(entry.path, 1, 1) if static is None else Place(static.path, static.line, static.line)
        yield RULE.finding("refused", place, what)


def _loader(entry: EntryFacts, loader: Loader, padding: set[int]) -> Iterator[Finding]:
    place = loader.site.module.place(loader.site.node)
    dynamic = _dynamic(entry, loader)
    leaves: list[Rows] = []
    unknown: list[Hop] = []
    for _, expr in loader.datasets:
        followed = sources(entry.values, expr)
        leaves += followed.leaves
        unknown += followed.unknown
    for rows in leaves:
        if rows.func is None or id(rows.func.node) not in padding:
            yield _rows(entry, rows, loader, dynamic)
    static = next(_static(entry), None)
    if dynamic is not None and not (leaves or static):
        yield RULE.finding(
            "done", place, f"already dynamic: {dynamic.what} ({dynamic.path}:{dynamic.line})", evidence=(dynamic,)
        )
    elif not leaves:
        first = unknown[0] if unknown else loader.hop
        what = f"the rows are not followed: {first.what} ({first.path}:{first.line})"
        if static is not None:
            what += f"; padding to a fixed length is seen at {static.path}:{static.line}"
        yield RULE.finding("refused", place, what, evidence=tuple(unknown))


def _dynamic(entry: EntryFacts, loader: Loader) -> Hop | None:
    if loader.collate is None:
        return None
    places = [pads_to_longest(entry.values, value) for value in entry.values.of(loader.collate) if not _is_none(value)]
    return places[0] if places and all(places) else None


def _is_none(value: object) -> bool:
    return isinstance(value, Const) and value.value is None


def _rows(entry: EntryFacts, rows: Rows, loader: Loader, dynamic: Hop | None) -> Finding:
    assert isinstance(rows.dataset.of, Cls)
    cls = rows.dataset.of
    place = cls.module.place(rows.func.node if rows.func is not None else cls.node)
    module = rows.func.module if rows.func is not None else cls.module
    if rows.func is not None:
        place = module.place(rows.func.node)
    name = cls.node.name
    static = next(_static_in(module, rows.func.node if rows.func is not None else cls.node), None)
    chunk = _chunks(cls)
    if static is not None:
        what = (
            f"{name} pads to a fixed length in a way that is not followed: {static.what} ({static.path}:{static.line})"
        )
        return RULE.finding("refused", place, what, evidence=(static,))
    if dynamic is not None:
        what = f"{name}: already dynamic, {dynamic.what} ({dynamic.path}:{dynamic.line})"
        return RULE.finding("done", place, what, evidence=(dynamic,))
    if chunk is not None:
        what = f"{name} serves fixed chunks of one length, nothing to strip: {chunk.what} ({chunk.path}:{chunk.line})"
        return RULE.finding("done", place, what, evidence=(chunk,))
    return RULE.finding("refused", place, f"how long the rows of {name} are is not followed", evidence=(loader.hop,))


def _chunks(cls: Cls) -> Hop | None:
    """Find `reshape(-1, length)` of the data, or a slice from `i * length` to `(i + 1) * length`."""
    for function in cls.node.body:
        if not isinstance(function, FunctionNode):
            continue
        for node in own_nodes(function):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"reshape", "view"}
            ):
                if len(node.args) == 2 and function.name != "__getitem__":
                    return cls.module.hop(node, cls.module.text(node)[:60])
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and function.name == "__getitem__":
                lower, upper = node.slice.lower, node.slice.upper
                if isinstance(lower, ast.Name | ast.BinOp) and isinstance(upper, ast.BinOp):
                    if ast.unparse(lower) in ast.unparse(upper) or isinstance(lower, ast.BinOp):
                        return cls.module.hop(node, cls.module.text(node)[:60])
    return None


def _static(entry: EntryFacts) -> Iterator[Hop]:
    """Yield what pads to a fixed length in the functions of the run."""
    seen: set[int] = set()
    for module, scope, _ in entry.scopes:
        if id(scope) not in seen:
            seen.add(id(scope))
            yield from _static_in(module, scope)


def _static_in(module: Module, scope: ast.AST) -> Iterator[Hop]:
    if isinstance(scope, ast.Module):
        return
    text = module.text(scope)
    match = _STATIC.search(text)
    if match is not None:
        start, _ = module.source.span(scope)
        line = module.source.line_of(start + match.start())
        yield Hop(module.path, line, match.group()[:50])


RULE = Rule(
    code="SM103",
    name="dynamic_padding",
    title="Says why rows that are not padded to a fixed length stay as they are",
    goal="padding",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "fixed chunks",
            before="""import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM


class Chunks(Dataset):
    def __init__(self, path, length):
        self.data = np.memmap(path, dtype="uint16").reshape(-1, length)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        ids = torch.from_numpy(self.data[i].astype("int64"))
        return {"input_ids": ids, "labels": ids.clone()}


model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Chunks("tokens.bin", 512), batch_size=8, shuffle=True):
    model(**batch).loss.backward()
    optimizer.step()
""",
            after=None,
        ),
    ),
)
