"""What is missing when a repository's own padding switch is turned off: a collate that pads, labels of one length, a
check that forbids it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.branches import Branches
from speedmigrate.chain.data_maps import functions
from speedmigrate.chain.data_pipes import loaders
from speedmigrate.chain.flags import flag_at
from speedmigrate.chain.framework import Trainer, trainers
from speedmigrate.chain.padding import padding
from speedmigrate.chain.pads import pads, strategy
from speedmigrate.chain.roles import origin, role
from speedmigrate.chain.switch_rows import row_gaps
from speedmigrate.chain.switches import Switch, reached
from speedmigrate.facts.collates import stacks
from speedmigrate.facts.entry import EntryFacts, Scope
from speedmigrate.facts.syntax import call_argument, called_name, has_spread, own_nodes
from speedmigrate.facts.value import Cls, Const, Expr, Ext, Inst, Value
from speedmigrate.rule import Hop

_DATA = frozenset({"getitem", "map", "collate", "init"})
_SHAPING = frozenset(
    {"view", "reshape", "unflatten", "Linear", "LayerNorm", "BatchNorm1d", "Conv1d", "MaxPool1d", "AvgPool1d"}
)
# The first transformers whose Trainer pads predictions across processes (`evaluation_loop`).
_EVENS_OUT = (4, 6)
_COLLATE_OF_LOADER = 6
_COLLATE_OF_TRAINER = 2
# Collators of transformers and TRL that pad each batch, and those of them that pad token-level labels too.
_LABELLING = frozenset({"DataCollatorForSeq2Seq", "DataCollatorForTokenClassification"})
_PADDING = _LABELLING | frozenset(
    "DataCollatorWithPadding DataCollatorForLanguageModeling DataCollatorForWholeWordMask DataCollatorForSOP "
    "DataCollatorForMultipleChoice DataCollatorForCompletionOnlyLM RewardDataCollatorWithPadding "
    "DPODataCollatorWithPadding".split()
)


@dataclass(frozen=True, slots=True)
class Collate:
    """A collate that batches are made with; `value` None is the default of a loader."""

    value: Value | None
    hop: Hop


def gaps(entry: EntryFacts, switch: Switch) -> Iterator[Hop]:
    """Yield why a run is not right with its switch off."""
    off = Branches(entry, switch.flag.key, switch.off)
    yield from _also_ordered(entry, switch)
    yield from _forbidden(entry, switch, off)
    found = list(collates(entry, off))
    if not found:
        yield Hop(entry.path, 1, "what makes the batches is not followed")
    for collate in found:
        yield from _does_not_pad(entry, off, collate)
    yield from _ragged_fields(entry, switch, found)
    yield from _ragged_tensors(entry, switch, off)
    yield from row_gaps(entry)
    yield from _pipelined(entry)
    yield from _noisy(entry)
    yield from _gathered(entry)
    uneven = uneven_predictions(entry)
    if uneven is not None and any(launch.launcher not in {"", "python"} for launch in entry.launches):
        yield uneven
    yield from _shaped(entry, switch)


def _also_ordered(entry: EntryFacts, switch: Switch) -> Iterator[Hop]:
    """Yield where the same flag is a setting of the Trainer, which orders the samples by it."""
    if switch.flag.name == "group_by_length":
        yield Hop(switch.flag.hop.path, switch.flag.hop.line, "the same flag orders the samples by length")
    for site in entry.sites:
        node = call_argument(site.node, None, "group_by_length")
        flag = flag_at(entry, site.expr.at(node)) if node is not None else None
        if flag is not None and flag.key is switch.flag.key:
            yield site.expr.hop("the same flag orders the samples by length")


def still_fixed(entry: EntryFacts, off: Branches) -> Iterator[Hop]:
    """Yield what pads to a fixed length with the switch off, too."""
    for pad in pads(entry):
        if role(entry, pad.scope) in _DATA and reached(off, pad) & {"static", "switch"}:
            yield pad.expr.hop(f"{pad.hop.what} pads to a fixed length with the switch off, too")


def _forbidden(entry: EntryFacts, switch: Switch, off: Branches) -> Iterator[Hop]:
    """Yield the checks that fail with the switch off."""
    for module, scope, frame in entry.scopes:
        if switch.flag.name not in module.source.text:
            continue
        for node in own_nodes(scope):
            if isinstance(node, ast.Assert) and _reads(entry, Expr(module, node.test, frame), switch):
                if off.truth(Expr(module, node.test, frame)) is not True:
                    yield module.hop(node, f"`{module.text(node)[:60]}` forbids it")
            elif isinstance(node, ast.Raise) and isinstance(module.parents[node], ast.If):
                test = module.parents[node].test  # type: ignore[attr-defined]
                if _reads(entry, Expr(module, test, frame), switch) and off.runs(module, node, frame):
                    yield module.hop(node, f"`if {module.text(test)[:60]}` forbids it")


def _reads(entry: EntryFacts, expr: Expr, switch: Switch) -> bool:
    parts = (node for node in ast.walk(expr.node) if isinstance(node, ast.Name | ast.Attribute))
    flags = (flag_at(entry, expr.at(node)) for node in parts if isinstance(node.ctx, ast.Load))
    return any(flag is not None and flag.key is switch.flag.key for flag in flags)


def collates(entry: EntryFacts, off: Branches) -> Iterator[Collate]:
    """Yield what every loader and Trainer of a run makes its batches with when the setting is as `off` says."""
    for trainer in trainers(entry):
        if trainer.is_hf:
            yield from _of_trainer(entry, off, trainer)
    for pipe in loaders(entry):
        call = pipe.call.node
        if isinstance(call, ast.Call) and off.runs(pipe.call.module, call, pipe.call.frame) is not False:
            node = call_argument(call, _COLLATE_OF_LOADER, "collate_fn")
            if node is not None:
                yield from _given(entry, off, pipe.call.at(node))
            elif pipe.collate:
                yield from (Collate(value, pipe.hop) for value in pipe.collate)
            else:
                yield Collate(None, pipe.hop)


def _of_trainer(entry: EntryFacts, off: Branches, trainer: Trainer) -> Iterator[Collate]:
    call = trainer.site.node
    node = call_argument(call, _COLLATE_OF_TRAINER if trainer.kind != "trl" else None, "data_collator")
    found = list(_given(entry, off, trainer.site.expr.at(node))) if node is not None else []
    if node is None and has_spread(call):
        yield Collate(None, trainer.site.expr.hop("a Trainer gets its arguments through * or **"))
        return
    hop = trainer.site.expr.hop("the Trainer's own collate")
    for collate in found or [Collate(Const(None, trainer.site.expr), hop)]:
        if not (isinstance(collate.value, Const) and collate.value.value is None):
            yield collate
        elif trainer.kind == "trl" or any(call_argument(call, None, n) for n in ("tokenizer", "processing_class")):
            yield Collate(Ext("transformers.DataCollatorWithPadding"), hop)
        else:
            yield Collate(Ext("transformers.default_data_collator"), hop)


def _given(entry: EntryFacts, off: Branches, expr: Expr) -> Iterator[Collate]:
    for leaf in off.settled(expr):
        for value in entry.values.of(leaf):
            yield Collate(value, leaf.hop(f"batches are made by `{leaf.text.splitlines()[0][:60]}`"))


def _does_not_pad(entry: EntryFacts, off: Branches, collate: Collate) -> Iterator[Hop]:
    value, hop = collate.value, collate.hop
    if value is None or (isinstance(value, Const) and value.value is None) or stacks(entry.values, value):
        yield Hop(hop.path, hop.line, f"{hop.what}, which only stacks rows of one length")
        return
    own = {func.node for func in functions(entry, (value,))}
    states = [
        state
        for pad in pads(entry)
        if pad.scope[1] in own or origin(entry, pad.scope)[1] in own or _is_made_at(pad.expr, value)
        for state in reached(off, pad)
    ]
    if "longest" in states and not {"static", "switch"} & set(states):
        return
    if not states and not own and _library_name(entry, value) in _PADDING and _fills_up(off, value):
        return
    yield Hop(hop.path, hop.line, f"{hop.what}, which is not seen to pad each batch to its longest row")


def _is_made_at(expr: Expr, value: Value) -> bool:
    return isinstance(value, Inst) and value.call.node is expr.node


def _fills_up(off: Branches, value: Value) -> bool:
    """Say whether a collator of the library pads to the longest row, as it does unless `padding` says otherwise."""
    call = value.call.node if isinstance(value, Inst) else None
    given = call_argument(call, None, "padding") if isinstance(call, ast.Call) else None
    if given is None or not isinstance(value, Inst):
        return True
    constants = [off.constant(leaf) for leaf in off.settled(value.call.at(given))]
    return all(found is not None and strategy("padding", found.value) == "longest" for found in constants)


def _library_name(entry: EntryFacts, value: Value) -> str:
    of = value.of if isinstance(value, Inst) else value
    base = entry.base(of) if isinstance(of, Ext | Cls) else None
    return base.last if base is not None else ""


def _ragged_fields(entry: EntryFacts, switch: Switch, found: list[Collate]) -> Iterator[Hop]:
    """Yield the labels of tokens where a collator of the library pads the inputs only."""
    names = {_library_name(entry, each.value) for each in found if each.value is not None}
    if not names & (_PADDING - _LABELLING) or _is_per_sample(entry):
        return
    for pad in switch.governed:
        module, node, _ = pad.scope
        for child in own_nodes(node):
            keys = child.keys if isinstance(child, ast.Dict) else ()
            if isinstance(child, ast.Subscript) and isinstance(child.ctx, ast.Store):
                keys = [child.slice]
            for key in keys:
                if isinstance(key, ast.Constant) and key.value == "labels":
                    yield module.hop(key, "labels of tokens, which the collator of the dynamic branch does not pad")


def _ragged_tensors(entry: EntryFacts, switch: Switch, off: Branches) -> Iterator[Hop]:
    """Yield where rows of different length would have to make one tensor."""
    for site, _ in entry.calls("torch", "TensorDataset"):
        yield site.expr.hop("a TensorDataset holds rows of one length")
    for pad in switch.governed:
        call = pad.expr.node
        made = call_argument(call, None, "return_tensors") if isinstance(call, ast.Call) else None
        if made is not None and role(entry, pad.scope) in {"map", "build", "init"} and None in reached(off, pad):
            yield pad.expr.hop(f"`return_tensors={pad.expr.module.text(made)}` needs rows of one length")


def _noisy(entry: EntryFacts) -> Iterator[Hop]:
    """Yield where noise is scaled by the padded length."""
    for site in entry.sites:
        given = call_argument(site.node, None, "neftune_noise_alpha")
        if given is not None and not (isinstance(given, ast.Constant) and not given.value):
            yield site.expr.hop("neftune_noise_alpha depends on the padded length")
    for launch in entry.launches:
        flag = launch.flag("neftune_noise_alpha")
        if flag is not None:
            yield Hop(launch.script, flag.line or launch.line, "neftune_noise_alpha depends on the padded length")


def _pipelined(entry: EntryFacts) -> Iterator[Hop]:
    for site in entry.sites:
        if any(isinstance(callee, Ext) and callee.last == "PipelineModule" for callee in site.callees):
            yield site.expr.hop("a pipeline engine keeps the shape of the first batch")


def _shaped(entry: EntryFacts, switch: Switch) -> Iterator[Hop]:
    """Yield where the fixed length is a size of the model or of a view of its tensors."""
    names = {re.split(r"\W+", pad.length)[-1] for pad in switch.governed} - {""}
    for site in entry.sites:
        if called_name(site.node) in _SHAPING:
            read = {getattr(n, "attr", getattr(n, "id", "")) for a in site.node.args for n in ast.walk(a)}
            if read & names:
                yield site.expr.hop(f"`{site.expr.text.splitlines()[0][:60]}` needs the fixed length")


def _gathered(entry: EntryFacts) -> Iterator[Hop]:
    """Yield where token-level tensors are gathered across ranks, which need one width; HF's Trainer pads them."""
    calls = {getattr(site.node.func, "attr", ""): site for site in entry.sites}
    site = calls.get("gather") or calls.get("gather_for_metrics")
    if site is None or "pad_across_processes" in calls or trainers(entry) or _is_per_sample(entry):
        return
    yield site.expr.hop("what is gathered across ranks may be as wide as the batch")


def uneven_predictions(entry: EntryFacts) -> Hop | None:
    """Return the Trainer that gathers predictions as wide as the batch as they are; later ones even them out first.

    https://github.com/huggingface/accelerate/pull/19 is what transformers took that over from.
    """
    found = trainers(entry)
    if not found or entry.target.transformers >= _EVENS_OUT or _is_per_sample(entry):
        return None
    return found[0].site.expr.hop("predictions of different width are gathered across processes when it evaluates")


def _is_per_sample(entry: EntryFacts) -> bool:
    """Say whether the model gives one prediction a sample."""
    for site in entry.sites:
        text = ast.unparse(site.node.func)
        if "ForSequenceClassification" in text or "ForMultipleChoice" in text:
            return True
    return False


def corrections(entry: EntryFacts, switch: Switch) -> Iterator[Hop]:
    """Yield what the fixed-length branch computes that the dynamic one does not: pads without a mask, pads in the loss,
    positions counted from the left of the fixed length."""
    found = list(collates(entry, Branches(entry, switch.flag.key, switch.off)))
    names = {_library_name(entry, each.value) for each in found if each.value is not None}
    masking = any(_masks_labels(entry, each) for each in found)
    for site in entry.sites:
        if "ForQuestionAnswering" in site.expr.text.partition("(")[0]:
            what = "the softmax over the positions of a span ran over all pads; after: over those up to the longest row"
            yield site.expr.hop(what)
            break
    for fact in padding(entry).facts:
        if fact.name == "padding.side" and fact.value == "left" and fact.evidence:
            what = "pads on the left shift real tokens to the end of the fixed length; after: of the longest row"
            yield Hop(fact.evidence[0].path, fact.evidence[0].line, what)
    for pad in switch.governed:
        module, node, _ = pad.scope
        text = module.text(node) if not isinstance(node, ast.Module) else ""
        if not text or not names & _PADDING:
            continue
        returned = [child.value for child in own_nodes(node) if isinstance(child, ast.Return)]
        keys = {getattr(key, "value", None) for value in returned if isinstance(value, ast.Dict) for key in value.keys}
        if "input_ids" in keys and "attention_mask" not in keys and None not in keys:
            yield module.hop(node, "the model attended pads, as the rows have no mask; after: the collator gives one")
        if masking and "labels" in text and "input_ids" in text and not _ignores(entry, pad.scope):
            yield module.hop(
                node, "the loss counted pads, as the labels hold them; after: the collator fills with -100"
            )


def _masks_labels(entry: EntryFacts, collate: Collate) -> bool:
    """Say whether a collator of the library fills labels up with -100."""
    value = collate.value
    if value is None or _library_name(entry, value) not in _LABELLING or not isinstance(value, Inst):
        return False
    call = value.call.node
    fill = call_argument(call, None, "label_pad_token_id") if isinstance(call, ast.Call) else None
    return fill is None or _is_ignored(entry, value.call.at(fill))


def _ignores(entry: EntryFacts, scope: Scope) -> bool:
    """Say whether a function writes -100."""
    module, node, frame = scope
    parts = (n for n in own_nodes(node) if isinstance(n, ast.Name | ast.Attribute | ast.UnaryOp))
    return any(_is_ignored(entry, Expr(module, part, frame)) for part in parts)


def _is_ignored(entry: EntryFacts, expr: Expr) -> bool:
    value = entry.values.one(expr)
    return isinstance(value, Const) and value.value == -100
