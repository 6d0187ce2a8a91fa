"""Batches that come padded out of a generator are cut to their own longest row in the training loop.

## What it does
Where no collate makes the batch: a reader pads all rows to one length and a generator of the repository yields slices
of the whole set, or the loader hands rows on as they are and the loop makes the tensors. There one line cuts the
columns that are padding in every row and in every field (`trim_batch`), before the batch goes to the model. Fields of
another length are cut by a line of their own. Evaluation keeps its width.

## When it is refused
When the loop, or a model that it calls, reads the padded width or cannot be read; when a field that runs over the
tokens is not understood or its pad value cannot be written at the loop; when what the generator yields is not seen to
be tensors; when ids alone would say what is padding and the model does not mask by them; when another entry point that
runs the same loop gets other batches.

## Effect
`exact`: the pads are masked, or out of reach, and left out of the loss. `corrects` where the old code attended them or
counted them in the loss; the message says where.

## References
- https://pytorch.org/docs/stable/data.html#working-with-collate-fn
"""

from __future__ import annotations

from collections.abc import Iterator

from speedmigrate.chain.batch_makers import BatchMaker, batch_makers
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import AddImport, Example, Finding, InsertStatement, Op, Place, Rule


def check(entry: EntryFacts) -> Iterator[Finding]:
    for maker in batch_makers(entry):
        hop = maker.hops[0]
        place = Place(hop.path, hop.line, hop.line)
        if maker.done is not None:
            done = Place(maker.done.path, maker.done.line, maker.done.line)
            yield RULE.finding(
                "done", done, "each batch is cut to its own longest row in the loop", evidence=maker.hops
            )
        elif maker.problems:
            problem = maker.problems[0]
            message = f"rows come padded to a fixed length, and stay so: {problem.what} ({problem.path}:{problem.line})"
            yield RULE.finding("refused", place, message, evidence=(*maker.hops, *maker.problems))
        else:
            yield _change(entry, maker, place)


def _change(entry: EntryFacts, maker: BatchMaker, place: Place) -> Finding:
    message = "each batch is cut to its own longest row before the model gets it"
    if maker.corrects:
        first = maker.corrects[0]
        message += f". Before: {first.what} ({first.path}:{first.line})"
    if maker.note:
        message += f". {maker.note}"
    return RULE.finding(
        "change",
        place,
        message,
        ops=tuple(_ops(entry, maker)),
        evidence=(*maker.hops, *maker.corrects),
        effect="corrects" if maker.corrects else "exact",
        needs=("speedmigrate[runtime]", "torch>=1.13"),
    )


def _ops(entry: EntryFacts, maker: BatchMaker) -> Iterator[Op]:
    path = maker.module.path
    start, end = maker.module.source.span(maker.anchor)
    yield AddImport(path, "speedruntime", "trim_batch")
    yield InsertStatement(path, start, end, "\n".join(maker.lines), "before" if maker.is_before else "after")
    yield from runtime_requirement(entry.project, path)


RULE = Rule(
    code="SM107",
    name="trim_batches",
    title="Batches of a generator are cut to their own longest row in the training loop",
    goal="padding",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "slices of a whole set",
            before="""import torch
from torch import nn
from transformers import AutoTokenizer


class Judge(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(size, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids, mask):
        weights = mask.unsqueeze(-1).float()
        return self.head((self.words(ids) * weights).sum(1) / weights.sum(1))


def read_rows(path, tokenizer, length):
    rows = []
    for line in open(path, encoding="utf-8"):
        ids = tokenizer.encode(line)[:length]
        mask = [1] * len(ids)
        gap = length - len(ids)
        rows.append((ids + [0] * gap, mask + [0] * gap, len(line) % 2))
    return rows


def batches(ids, mask, kinds, size):
    for i in range(0, ids.size(0), size):
        yield ids[i : i + size], mask[i : i + size], kinds[i : i + size]


tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
rows = read_rows("train.txt", tokenizer, 256)
ids = torch.tensor([row[0] for row in rows])
mask = torch.tensor([row[1] for row in rows])
kinds = torch.tensor([row[2] for row in rows])
model = Judge(len(tokenizer))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for ids_batch, mask_batch, kinds_batch in batches(ids, mask, kinds, 8):
    nn.functional.cross_entropy(model(ids_batch, mask_batch), kinds_batch).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            after="""import torch
from torch import nn
from transformers import AutoTokenizer
from speedruntime import trim_batch


class Judge(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(size, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids, mask):
        weights = mask.unsqueeze(-1).float()
        return self.head((self.words(ids) * weights).sum(1) / weights.sum(1))


def read_rows(path, tokenizer, length):
    rows = []
    for line in open(path, encoding="utf-8"):
        ids = tokenizer.encode(line)[:length]
        mask = [1] * len(ids)
        gap = length - len(ids)
        rows.append((ids + [0] * gap, mask + [0] * gap, len(line) % 2))
    return rows


def batches(ids, mask, kinds, size):
    for i in range(0, ids.size(0), size):
        yield ids[i : i + size], mask[i : i + size], kinds[i : i + size]


tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
rows = read_rows("train.txt", tokenizer, 256)
ids = torch.tensor([row[0] for row in rows])
mask = torch.tensor([row[1] for row in rows])
kinds = torch.tensor([row[2] for row in rows])
model = Judge(len(tokenizer))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for ids_batch, mask_batch, kinds_batch in batches(ids, mask, kinds, 8):
    ids_batch, mask_batch = trim_batch((ids_batch, mask_batch), (0, 0))
    nn.functional.cross_entropy(model(ids_batch, mask_batch), kinds_batch).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
        Example(
            "a model of a fixed width",
            before="""import torch
from torch import nn
from transformers import AutoTokenizer


class Judge(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(size, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids, mask):
        ids = ids.view(-1, 256)
        weights = mask.unsqueeze(-1).float()
        return self.head((self.words(ids) * weights).sum(1) / weights.sum(1))


def read_rows(path, tokenizer, length):
    rows = []
    for line in open(path, encoding="utf-8"):
        ids = tokenizer.encode(line)[:length]
        mask = [1] * len(ids)
        gap = length - len(ids)
        rows.append((ids + [0] * gap, mask + [0] * gap, len(line) % 2))
    return rows


def batches(ids, mask, kinds, size):
    for i in range(0, ids.size(0), size):
        yield ids[i : i + size], mask[i : i + size], kinds[i : i + size]


tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
rows = read_rows("train.txt", tokenizer, 256)
ids = torch.tensor([row[0] for row in rows])
mask = torch.tensor([row[1] for row in rows])
kinds = torch.tensor([row[2] for row in rows])
model = Judge(len(tokenizer))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for ids_batch, mask_batch, kinds_batch in batches(ids, mask, kinds, 8):
    nn.functional.cross_entropy(model(ids_batch, mask_batch), kinds_batch).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            after=None,
        ),
    ),
)
