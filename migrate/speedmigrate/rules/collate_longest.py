"""A collate that pads every batch to a fixed length pads it to its longest row instead.

## What it does
Takes the fixed length out of a collate function of the repository, with the smallest edit: `padding=True` where one
tokenizer call gets the whole batch (or `"longest"` where the word is an argument or a default elsewhere), the longest
row where a width is computed, and otherwise a trim of what is padding in all rows at the end of the collate
(`PaddingCollator(..., trim=True)` in front of `default_collate`, `trim_batch` around what is returned). Truncation and
`max_length` stay.

## When it is refused
When the collate itself, the loop or the model reads the padded width, when a loader that uses the collate is not
followed, when the collate serves others too, or when the text has one length by contract (CLIP, diffusion prompts).

## Effect
`exact`: real tokens, their labels and positions stay. `corrects` where pads were attended or counted in the loss; the
message says what they did.

## References
- https://huggingface.co/docs/transformers/pad_truncation
- https://pytorch.org/docs/stable/data.html#dataloader-collate-fn
"""

from __future__ import annotations

from collections.abc import Iterator

from speedmigrate.chain.static_collates import StaticCollate, static_collates
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.rule import AddImport, Effect, Example, Finding, Rule

NEEDS = ("speedmigrate[runtime]", "torch>=1.13")


def check(entry: EntryFacts) -> Iterator[Finding]:
    for found in static_collates(entry):
        place = found.func.module.place(found.func.node)
        if found.done is not None:
            what = f"{found.name} cuts each batch to its longest row already"
            yield RULE.finding("done", place, what, evidence=(found.done, *found.hops))
            continue
        if found.problems:
            first = found.problems[0]
            message = (
                f"{found.name} pads every batch to a fixed length, and the padding stays: {first.what} "
                f"({first.path}:{first.line})"
            )
            yield RULE.finding("refused", place, message, evidence=(*found.problems, *found.hops))
            continue
        effect: Effect = "corrects" if found.corrects else "exact"
        uses_runtime = any(isinstance(op, AddImport) and op.module == "speedruntime" for op in found.ops)
        yield RULE.finding(
            "change", place, _message(found), effect=effect, ops=found.ops, evidence=(*found.hops, *found.corrects),
            needs=NEEDS if uses_runtime else (),
        )  # fmt: skip


def _message(found: StaticCollate) -> str:
    text = f"{found.name} pads every batch to a fixed length; {found.how}"
    for hop in found.corrects[:1]:
        text += f". {hop.what[0].upper()}{hop.what[1:]} ({hop.path}:{hop.line})"
    return text


_HEAD = """import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")


def collate(texts):
"""
_TAIL = """

model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
texts = open("texts", encoding="utf-8").read().splitlines()
for batch in DataLoader(texts, batch_size=8, shuffle=True, collate_fn=collate):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_CALL = """    batch = tokenizer(texts, padding={}, max_length=512, truncation=True, return_tensors="pt")
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch
"""
_LAST = _CALL.replace("    return batch\n", '    batch["labels"][:, -1] = -100\n    return batch\n')

RULE = Rule(
    code="SM106",
    name="collate_longest",
    title="A collate pads each batch to its longest row, not to a fixed length",
    goal="padding",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "one tokenizer call for the whole batch",
            before=_HEAD + _CALL.format('"max_length"') + _TAIL,
            after=_HEAD + _CALL.format("True") + _TAIL,
        ),
        Example(
            "the last position is read",
            before=_HEAD + _LAST.format('"max_length"') + _TAIL,
            after=None,
        ),
    ),
)
