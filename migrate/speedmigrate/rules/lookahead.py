"""Batches are made of samples of like length: the loader looks some batches ahead and regroups them.

## What it does
Wraps the training loader in `speedruntime.lookahead`, or calls `use_lookahead(trainer)` after an HF Trainer is built.
Every sample comes once an epoch, in as many batches; no lengths are needed, so it also serves data sets that redraw
samples. Padding each batch to its longest row alone leaves much padding where lengths vary: this takes most of the
rest.

## When it is refused
A loader whose order is sequential today, an evaluation loader, a loader with its own batch sampler.

## Effect
`order`: the same samples, batched differently. `SPEEDRUNTIME_DISABLE=lookahead` turns it off at run time.

## References
- https://huggingface.co/docs/transformers/main_classes/trainer (group_by_length, the same idea over the whole set)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.trims import trims
from speedmigrate.facts.contracts import Contract, contract
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.padding import padded_datasets
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Cls, Const, Ext, Inst
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import AddImport, Example, Finding, InsertStatement, Op, Place, Rule, Wrap
from speedmigrate.rules.strip_padding import group_name
from speedmigrate.rules.trim_padding import group_name as trimmed


def check(entry: EntryFacts) -> Iterator[Finding]:
    found = _shortened(entry)
    for loader, (groups, trains) in found.items():
        yield _finding(entry, loader, groups[0], trains)
    if not found:
        what = "no padding is taken out of the batches of this run, so they keep their order"
        yield RULE.finding("done", Place(entry.path, 1, 1), what)


def _shortened(entry: EntryFacts) -> dict[Loader, tuple[list[str], bool]]:
    """Return the loaders whose batches get shorter, with the groups of changes that do it, and whether they train."""
    found: dict[Loader, tuple[list[str], bool]] = {}
    groups = [group for group in padded_datasets(entry) if not group.refusals]
    # Any one of the groups that strip is enough to make regrouping worth it; the first by order stands for them.
    for group in sorted(groups, key=lambda group: (group.side != "right", group_name(group))):
        for served in group.served:
            if served.entry.path == entry.path:
                kind = contract(served)
                trains = isinstance(kind, Contract) and kind.trains
                found.setdefault(served.loader, ([], trains))[0].append(group_name(group))
    for trim in trims(entry):
        if trim.is_wanted:
            found.setdefault(trim.loader, ([], trim.use.backward))[0].append(trimmed(trim.loader))
    return found


def _finding(entry: EntryFacts, loader: Loader, group: str, trains: bool) -> Finding:
    place = loader.site.module.place(loader.site.node)
    if not trains:
        return RULE.finding("done", place, "an evaluation loader: its order stays as it is")
    why = _ordered(entry, loader)
    if why:
        return RULE.finding("done", place, f"the batches are not regrouped: {why}")
    ops = _trainer_ops(loader) if loader.kind == "Trainer" else _loader_ops(loader)
    if ops is None:
        return RULE.finding(
            "refused", place, "the trainer is not bound to a name, so `use_lookahead(trainer)` has no place"
        )
    ops += runtime_requirement(entry.project, loader.site.module.path)
    message = "batches of like length, regrouped over the next 100 batches of each rank; evaluation keeps its order"
    return RULE.finding(
        "change",
        place,
        message,
        ops=tuple(ops),
        requires=(group,),
        evidence=(loader.hop,),
        needs=("speedmigrate[runtime]", "torch>=1.13"),
    )


def _ordered(entry: EntryFacts, loader: Loader) -> str:
    """Say why the order of a loader must stay, or nothing."""
    if loader.kind == "Trainer":
        return "its Trainer has a batch sampler of its own" if _has_batch_sampler(entry, loader) else ""
    if loader.argument("batch_sampler") is not None:
        return "it has a batch sampler of its own"
    sampler, shuffle = loader.argument("sampler"), loader.argument("shuffle")
    kinds = () if sampler is None else entry.values.of(sampler)
    random = [
        value for value in kinds
        if isinstance(value, Inst) and isinstance(value.of, Ext)
        and value.of.last in {"RandomSampler", "DistributedSampler", "WeightedRandomSampler", "SubsetRandomSampler"}
    ]  # fmt: skip
    for value in random:
        order = call_argument(value.call.node, None, "shuffle") if isinstance(value.call.node, ast.Call) else None
        if isinstance(order, ast.Constant) and order.value is False:
            return "its sampler does not shuffle"
    nothing = [value for value in kinds if isinstance(value, Const) and value.value is None]
    if len(random) + len(nothing) < len(kinds):
        return "its sampler is not one of torch's random samplers"
    shuffled = None if shuffle is None else entry.values.one(shuffle)
    if shuffle is None and not random:
        return "it is sequential today"
    if isinstance(shuffled, Const) and not shuffled.value and not random:
        return "it is sequential today"
    return ""


def _has_batch_sampler(entry: EntryFacts, loader: Loader) -> bool:
    """Say whether a Trainer of the root makes its training batches by a batch sampler."""
    for callee in loader.site.callees:
        method = entry.values.method(callee, "get_train_dataloader") if isinstance(callee, Cls) else None
        nodes = own_nodes(method.node) if method is not None else ()
        if any(isinstance(node, ast.keyword) and node.arg == "batch_sampler" for node in nodes):
            return True
    return False


def _loader_ops(loader: Loader) -> list[Op]:
    start, end = loader.site.module.source.span(loader.site.node)
    path = loader.site.module.path
    return [AddImport(path, "speedruntime", "lookahead"), Wrap(path, start, end, "lookahead(", ")")]


def _trainer_ops(loader: Loader) -> list[Op] | None:
    module, node = loader.site.module, loader.site.node
    statement = module.statement(node)
    if not (isinstance(statement, ast.Assign) and statement.value is node and len(statement.targets) == 1):
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name | ast.Attribute):
        return None
    start, end = module.source.span(statement)
    code = f"use_lookahead({ast.unparse(target)})"
    return [
        AddImport(module.path, "speedruntime", "use_lookahead"),
        InsertStatement(module.path, start, end, code, "after"),
    ]


RULE = Rule(
    code="SM102",
    name="lookahead",
    title="Batches of samples of like length",
    goal="padding",
    effect="order",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "a shuffled loader",
            before="""import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer


class Rows(Dataset):
    def __init__(self, texts, tokenizer, max_length):
        self.texts, self.tokenizer, self.max_length = texts, tokenizer, max_length

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        ids = self.tokenizer.encode(self.texts[i])[: self.max_length]
        gap = self.max_length - len(ids)
        labels = ids + [-100] * gap
        ids = ids + [self.tokenizer.pad_token_id] * gap
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
rows = Rows(open("texts").readlines(), tokenizer, 512)
loader = DataLoader(rows, batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
""",
            after="""import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from speedruntime import PaddingCollator, lookahead


class Rows(Dataset):
    def __init__(self, texts, tokenizer, max_length):
        self.texts, self.tokenizer, self.max_length = texts, tokenizer, max_length

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        ids = self.tokenizer.encode(self.texts[i])[: self.max_length]
        labels = ids
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
rows = Rows(open("texts").readlines(), tokenizer, 512)
loader = lookahead(DataLoader(rows, batch_size=8, shuffle=True, collate_fn=PaddingCollator(
    {"input_ids": tokenizer.pad_token_id, "labels": -100},
    add_attention_mask=True,
)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "a sequential loader",
            before="""import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer


class Rows(Dataset):
    def __init__(self, texts, tokenizer, max_length):
        self.texts, self.tokenizer, self.max_length = texts, tokenizer, max_length

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        ids = self.tokenizer.encode(self.texts[i])[: self.max_length]
        gap = self.max_length - len(ids)
        labels = ids + [-100] * gap
        ids = ids + [self.tokenizer.pad_token_id] * gap
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
rows = Rows(open("texts").readlines(), tokenizer, 512)
loader = DataLoader(rows, batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
""",
            after=None,
        ),
    ),
)
