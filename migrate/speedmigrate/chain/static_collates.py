"""The collates of a run that pad each batch to a fixed length, and the edit that pads it to its longest row instead."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from speedmigrate.chain.collate_code import read_collate
from speedmigrate.chain.collate_edits import edit
from speedmigrate.chain.collate_fields import fields
from speedmigrate.chain.collate_users import func_name, other_runs, served, shared_helpers, stray, uses
from speedmigrate.chain.contracts_fixed import contracts
from speedmigrate.chain.framework import outside_calls
from speedmigrate.chain.padding import padding
from speedmigrate.chain.pads import Pad, pads
from speedmigrate.chain.roles import origin
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import Expr, Ext, Func
from speedmigrate.rule import Hop, Op

_IDIOMS = frozenset({"tokenizer", "list_concat", "full_slice", "cat", "np_pad", "F_pad", "while_append"})


@dataclass(frozen=True, slots=True, eq=False)
class StaticCollate:
    """One collate that pads every batch to the same length.

    Attributes:
        covers: the functions of the data path whose padding this is.
        ops: the edit; empty where there are problems.
        how: what the edit does, as the message says it.
        corrects: what pads do today and what happens after, where the result changes.
        problems: why the padding must stay.
        done: where the runtime cuts the batch already, None where it does not.
    """

    func: Func
    covers: frozenset[ast.AST]
    ops: tuple[Op, ...]
    how: str
    corrects: tuple[Hop, ...]
    problems: tuple[Hop, ...]
    hops: tuple[Hop, ...]
    done: Hop | None = None

    @property
    def name(self) -> str:
        parent = self.func.module.parents.get(self.func.node)
        owned = f"{parent.name}." if isinstance(parent, ast.ClassDef) else ""
        return owned + func_name(self.func)


def static_collates(entry: EntryFacts) -> tuple[StaticCollate, ...]:
    """Return the collates of a run that pad to a fixed length (worked out once)."""
    return entry.once("static_collates", lambda entry: tuple(_static_collates(entry)))


def _static_collates(entry: EntryFacts) -> Iterator[StaticCollate]:
    groups: dict[ast.AST, list[Pad]] = {}
    for pad in pads(entry):
        if pad.reach == "static" and pad.idiom in _IDIOMS:
            role, node = origin(entry, pad.scope)
            if role == "collate":
                groups.setdefault(node, []).append(pad)
    for node, found in groups.items():
        yield _static(entry, node, found)


def _static(entry: EntryFacts, node: ast.AST, found: list[Pad]) -> StaticCollate:
    once = list({pad.expr.node: pad for pad in found}.values())
    hops = [pad.hop for pad in once]
    here = served(entry).get(node, [])
    if not here:
        module = once[0].scope[0]
        func = Func(module, node) if isinstance(node, FunctionNode | ast.Lambda) else Func(module, _nothing())
        missing = once[0].expr.hop("the collate that pads here is not followed to a loader")
        return StaticCollate(func, frozenset({node}), (), "", (), (missing,), tuple(hops))
    func = here[0].func
    done = _cut(entry, func)
    if done is not None:
        return StaticCollate(func, frozenset({node}), (), "", (), (), tuple(hops), done)
    everywhere = [*here, *other_runs(entry, func)]
    reader = read_collate(entry, func)
    tokenized = all(pad.idiom == "tokenizer" for pad in once)
    is_left = tokenized and any(fact.name == "padding.side" and fact.value == "left" for fact in padding(entry).facts)
    held = fields(entry, reader, func, is_left=is_left)
    made = edit(entry, reader, held, once)
    problems = [*made.problems, *(contract.hop for contract in contracts(entry) if contract.kind not in made.allows)]
    problems += _text_towers(entry)
    problems += stray(entry, func, everywhere)
    problems += shared_helpers(entry, func, made.touched)
    read, wrong = ([], []) if problems else uses(everywhere, held.pads | made.pads, entry)
    problems += wrong
    if made.apart and any(model.is_causal_lm for use in read for model in use.models):
        problems.append(once[-1].expr.hop("inputs and labels of a causal model would get lengths of their own"))
    corrects = (*made.corrects, *(hop for use in read for hop in use.corrects))
    hops += [each.loader.hop for each in everywhere] + [hop for use in read for hop in use.hops]
    return StaticCollate(
        func, frozenset({node}), () if problems else made.ops, made.how, _unique(corrects), _unique(problems),
        _unique(hops),
    )  # fmt: skip


def _cut(entry: EntryFacts, func: Func) -> Hop | None:
    """Return the call of the runtime that cuts the batch in the collate itself."""
    for node in own_nodes(func.node):
        if isinstance(node, ast.Call):
            callees = entry.values.of(Expr(func.module, node.func))
            if any(isinstance(callee, Ext) and callee.package == "speedruntime" for callee in callees):
                return func.module.hop(node, "the batch is cut to its longest row here")
    return None


def _text_towers(entry: EntryFacts) -> Iterator[Hop]:
    """Yield text towers without a mask that pool the last of a fixed number of positions."""
    for site, name in outside_calls(entry):
        if any(part.startswith("Siglip") for part in name.split(".")):
            yield site.expr.hop(f"{name} takes text of the length that it was trained with")


def _nothing() -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, ast.Constant(None))


def _unique(hops: Iterable[Hop]) -> tuple[Hop, ...]:
    return tuple(dict.fromkeys(hops))
