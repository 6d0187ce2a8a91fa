"""Rows that are not padded to a fixed length have nothing to strip, and padding that cannot go stays: both are said.

## What it does
Changes nothing. Says where the sequences of a run are filled up: each batch to its own longest row, blocks of one
length, inside the model, ready in a file; or to a fixed length in a way that is not stripped yet.

## When it is refused
Where padding to a fixed length is seen that no other rule takes out: what fixes the length is named where it is seen (a
matrix over the positions, a width that the model folds by, tokens behind the pads, a pipeline, prompts of a diffusion
model; the text of an image model is told as a note). Where no operation that pads or packs is seen at all, or where the
rows come from is not followed: the place is named.

## Effect
None.

## References
- https://huggingface.co/docs/transformers/main_classes/data_collator
"""

from __future__ import annotations

from collections.abc import Iterator

from speedmigrate.chain.batch_makers import batch_makers
from speedmigrate.chain.contracts_fixed import fixed_contracts, is_image_text
from speedmigrate.chain.padding import is_cut_back, padding
from speedmigrate.chain.static_collates import static_collates
from speedmigrate.chain.switches import switches
from speedmigrate.chain.trims import trims
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.padding import padded_datasets
from speedmigrate.rule import Example, Finding, Hop, Place, Rule, Status

_DONE = {
    "dynamic": "already dynamic, each batch is padded to its own longest row",
    "packed": "nothing to strip, the text is cut into blocks of one length",
    "model": "nothing pads before the model, which fills up what it gets itself",
    "none": "nothing to strip, the batches are generated in the loop",
    "library": "nothing of this repository pads, a library makes the rows and the batches",
    "random": "nothing to strip, the batches are random numbers of one length",
    "offline": "the rows come ready from a file, padded or not by what wrote it",
}
_CUT = "rows are padded, but each batch is cut back to its longest row before the model takes it"
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
    cut_back = is_cut_back(entry)
    stripped = {group.func.node for group in padded_datasets(entry) if not (group.refusals and cut_back)}
    trimmed = [trim for trim in trims(entry) if not trim.problems]
    spoken = stripped.union(*(switch.covers for switch in switches(entry)))
    spoken = spoken.union(*(found.covers for found in static_collates(entry)), *(trim.covers for trim in trimmed))
    spoken = spoken.union(*(maker.covers for maker in batch_makers(entry) if not maker.problems))
    if spoken and known.origins <= spoken:
        return  # strip_padding, padding_switch and collate_longest speak of them
    hops = fact.evidence or fact.unknown or (Hop(entry.path, 1, "the run"),)
    if known.cuts and not stripped:
        yield _say("done", _CUT, (*known.cuts, *hops))
    elif known.is_done and not stripped:
        what = _DONE.get(fact.detail) or _DONE[str(fact.value)]
        if known.chunks:
            first = known.chunks[0]
            what += f" after a map has padded each chunk to the longest there ({first.path}:{first.line})"
        yield _say("done", what, (*hops, *known.chunks))
    elif fact.value == "model":
        yield _say("refused", "the model itself fills its text up to a fixed length", hops)
    elif fact.value in _STATIC:
        yield _static(entry, _STATIC[fact.value], hops)
    else:
        yield _say("refused", "how the batches get their length is not followed", (*known.missing, *hops))


def _static(entry: EntryFacts, what: str, hops: tuple[Hop, ...]) -> Finding:
    """Say why padding to a fixed length stays: what fixes the length of the text, where something is seen to."""
    if is_image_text(entry):
        return _say("note", f"{what}, and stay so, as the text of an image model has one length", hops)
    fixed = fixed_contracts(entry)
    if fixed:
        return _say("refused", f"{what}, and must stay so, as the length is fixed elsewhere", (*fixed, *hops))
    return _say("refused", f"{what}, and stay so", hops)


def _say(status: Status, what: str, hops: tuple[Hop, ...]) -> Finding:
    first = hops[0]
    place = Place(first.path, first.line, first.line)
    return RULE.finding(status, place, f"{what}: {first.what} ({first.path}:{first.line})", evidence=hops)


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
