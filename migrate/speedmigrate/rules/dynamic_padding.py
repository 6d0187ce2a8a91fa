"""Rows that are not padded to a fixed length have nothing to strip, and padding that cannot go stays: both are said.

## What it does
Changes nothing. Says where the sequences of a run are filled up: each batch to its own longest row, blocks of one
length, inside the model, ready in a file; or to a fixed length in a way that is not stripped yet.

## When it is refused
Where padding to a fixed length is seen that no other rule takes out, and where no operation that pads or packs is seen
at all: the place is named.

## Effect
None.

## References
- https://huggingface.co/docs/transformers/main_classes/data_collator
"""

from __future__ import annotations

from collections.abc import Iterator

from speedmigrate.chain.padding import padding
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.padding import padded_datasets
from speedmigrate.rule import Example, Finding, Hop, Place, Rule

_DONE = {
    "dynamic": "already dynamic, each batch is padded to its own longest row",
    "packed": "nothing to strip, the text is cut into blocks of one length",
    "model": "nothing pads before the model, which fills up what it gets itself",
    "none": "nothing to strip, the batches are generated in the loop",
    "offline": "the rows come ready from a file, padded or not by what wrote it",
}
_STATIC = {
    "getitem": "rows are padded to a fixed length as they are read",
    "map": "rows are padded to a fixed length in a map over the data set",
    "collate": "each batch is padded to a fixed length by its collate",
    "init": "the whole set is padded when it is built",
    "build": "the whole set is padded by the script before it is served",
    "flag": "a setting of the script pads to a fixed length",
}


def check(entry: EntryFacts) -> Iterator[Finding]:
    known = padding(entry)
    fact = known.facts[0]
    stripped = {group.func.node for group in padded_datasets(entry)}
    if stripped and known.origins <= stripped:
        return  # strip_padding speaks of them
    hops = fact.evidence or fact.unknown or (Hop(entry.path, 1, "the run"),)
    first = hops[0]
    place = Place(first.path, first.line, first.line)
    where = f"{first.what} ({first.path}:{first.line})"
    if fact.value in _DONE and known.is_sure and not stripped:
        yield RULE.finding("done", place, f"{_DONE[fact.value]}: {where}", evidence=hops)
    elif fact.value in _STATIC:
        yield RULE.finding("refused", place, f"{_STATIC[fact.value]}, and stay so: {where}", evidence=hops)
    else:
        yield RULE.finding(
            "refused", place, f"how the batches get their length is not followed: {where}", evidence=hops
        )


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
