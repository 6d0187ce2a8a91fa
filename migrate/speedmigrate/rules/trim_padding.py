"""Rows that a data set pads to a fixed length are cut to the longest one of each batch where they are collated.

## What it does
Wraps the collate of the training loader (of an HF Trainer: its `data_collator`) in `speedruntime.PaddingCollator(...,
trim=True)`. Before the batch is made it cuts off the positions that are padding in every row **and** in every listed
field: mask 0, label ignored, id equal to the pad id. The data set, its caches and evaluation loaders stay as they are.

## When it is refused
When the fields of the rows or their pad values are not followed, when a real token cannot be told from padding (ids
with neither a mask nor labels beside them), when the padded width is read by the loop or the model (a view to the fixed
length, the last position, positions gathered across ranks), when another user of the same loader forbids it. Where the
padding itself can leave the data set, `strip_padding` takes it out instead.

## Effect
`exact` where masks and labels leave padding out of attention and loss. `corrects` where the old code attended padding
or counted it in the loss: then fewer pads, or none, are in the new loss. `order` where the collate draws random masks
over the shape of the batch: other draws, by the same chances.

## References
- https://huggingface.co/docs/transformers/pad_truncation
- https://pytorch.org/docs/stable/data.html#dataloader-collate-fn
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.trims import Trim, trims
from speedmigrate.facts.consumers import reads_predictions
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import AddImport, Effect, Example, Finding, Hop, InsertStatement, Op, Replace, Rule, SetKeyword

_MAX_COLUMNS = 120
NEEDS = ("speedmigrate[runtime]", "torch>=1.13")


def check(entry: EntryFacts) -> Iterator[Finding]:
    for trim in trims(entry):
        loader = trim.loader
        place = loader.site.module.place(loader.site.node)
        if trim.done is not None:
            yield RULE.finding("done", place, f"each batch is cut to its longest row already: {trim.done.what}")
            continue
        ops = None if trim.problems else _ops(entry, trim)
        if ops is None:
            first = trim.problems[0] if trim.problems else loader.site.expr.hop("the Trainer is not bound to a name")
            message = f"rows are padded to a fixed length, and stay so: {first.what} ({first.path}:{first.line})"
            yield RULE.finding("refused", place, message, evidence=trim.problems or (first,))
            continue
        draws = trim.draws(entry)
        effect: Effect = "corrects" if trim.use.corrects else "order" if draws else "exact"
        yield RULE.finding(
            "change", place, _message(trim, draws), effect=effect, ops=tuple(ops), group=group_name(loader),
            needs=NEEDS, evidence=(*trim.use.corrects, *trim.hops),
        )  # fmt: skip


def group_name(loader: Loader) -> str:
    """Return the name of the atomic group that trims the batches of one loader."""
    return f"trim:{loader.site.module.path}:{loader.site.node.lineno}"


def _message(trim: Trim, draws: Hop | None) -> str:
    text = (
        "rows come padded to a fixed length and are cut to the longest of each batch where they are collated: the code "
        "that pads is not taken apart"
    )
    if trim.use.corrects:
        text += ". " + "; ".join(dict.fromkeys(f"{hop.what} ({hop.path}:{hop.line})" for hop in trim.use.corrects[:3]))
    if draws is not None:
        text += f". {draws.what}: other numbers are drawn than before, by the same chances"
    return text


def _ops(entry: EntryFacts, trim: Trim) -> list[Op] | None:
    site, loader = trim.loader.site, trim.loader
    path = site.module.path
    ops: list[Op] = [AddImport(path, "speedruntime", "PaddingCollator")]
    if trim.tokenizer and trim.is_static:
        ops.append(AddImport(path, "speedruntime", "pad_values_of"))
    ops += runtime_requirement(entry.project, path)
    if loader.kind == "Trainer" and not (
        trim.serves_evaluation and _is_plain(loader) and not reads_predictions(entry, loader)
    ):
        return _training_only(trim, ops)
    start, end = site.module.source.span(site.node)
    collate, imports = _collate(loader)
    code = _collator(trim, collate)
    if loader.collate is not None and loader.collate.node in site.node.args:
        first, last = site.module.source.span(loader.collate.node)
        return [*ops, *imports, Replace(path, first, last, code)]
    keyword = "data_collator" if loader.kind == "Trainer" else "collate_fn"
    return [*ops, *imports, SetKeyword(path, start, end, keyword, code)]


def _is_plain(loader: Loader) -> bool:
    """Whether the collator is an argument of this call or none at all, not a part of `**kwargs`."""
    node = loader.site.node
    if loader.collate is None:
        return True
    return loader.collate.node in node.args or any(k.arg == "data_collator" for k in node.keywords)


def _collate(loader: Loader) -> tuple[str, list[Op]]:
    """Return the code of the collate that stood there, empty for torch's default."""
    node = loader.collate.node if loader.collate is not None else None
    if loader.collate is not None and not (isinstance(node, ast.Constant) and node.value is None):
        return loader.collate.text, []
    if loader.kind == "DataLoader":
        return "", []
    path = loader.site.module.path
    for name in ("processing_class", "tokenizer"):
        argument = loader.argument(name)
        if argument is not None:
            found = "DataCollatorWithPadding"
            return f"{found}({argument.text})", [AddImport(path, "transformers", found)]
    return "default_data_collator", [AddImport(path, "transformers", "default_data_collator")]


def _training_only(trim: Trim, ops: list[Op]) -> list[Op] | None:
    """Set the collator after the Trainer is built, for its training batches alone."""
    module, node = trim.loader.site.module, trim.loader.site.node
    statement = module.statement(node)
    if not (isinstance(statement, ast.Assign) and statement.value is node and len(statement.targets) == 1):
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name | ast.Attribute):
        return None
    name = ast.unparse(target)
    start, end = module.source.span(statement)
    arguments = _arguments(trim, f"{name}.data_collator")
    code = f"use_train_collator({name}, PaddingCollator({', '.join(arguments)}))"
    if statement.col_offset + len(code) > _MAX_COLUMNS:
        lines = "".join(f"    {argument},\n" for argument in arguments)
        code = f"use_train_collator({name}, PaddingCollator(\n{lines}))"
    ops.append(AddImport(module.path, "speedruntime", "use_train_collator"))
    return [*ops, InsertStatement(module.path, start, end, code, "after")]


def _collator(trim: Trim, collate: str) -> str:
    return f"PaddingCollator({', '.join(_arguments(trim, collate))})"


def _arguments(trim: Trim, collate: str) -> list[str]:
    arguments = [_pad_values(trim)]
    if collate:
        arguments.append(f"collate_fn={collate}")
    if trim.side == "left" and ("attention_mask" not in trim.pads or "..." in trim.pads.values()):
        arguments.append('padding_side="left"')
    if trim.levels > 1:
        arguments.append("dim=1")
    if trim.ids_alone:
        arguments.append("mask_is_not_pad=True")
    return [*arguments, "trim=True"]


def _pad_values(trim: Trim) -> str:
    if trim.is_tuple:
        codes = [code or "None" for _, code in sorted(trim.pads.items(), key=lambda item: int(item[0]))]
        return f"({', '.join(codes)}{',' if len(codes) == 1 else ''})"
    known = {
        "input_ids": f"{trim.tokenizer}.pad_token_id",
        "attention_mask": "0",
        "token_type_ids": f"{trim.tokenizer}.pad_token_type_id",
    }
    said = {key for key, code in trim.pads.items() if trim.is_static and known.get(str(key)) == code}
    pads = {key: code for key, code in trim.pads.items() if code is not None and key not in said}
    pads |= dict.fromkeys(trim.left, "None")
    written = ", ".join(f'"{key}": {code}' for key, code in pads.items())
    if not trim.tokenizer:
        return f"{{{written}}}"
    if not trim.is_static:
        # Each batch pads them; one that happens to be as long as a listed field is no mistake.
        return f"{{**dict.fromkeys({trim.tokenizer}.model_input_names), {written}}}"
    if all(str(key).isidentifier() for key in pads):
        return f"pad_values_of({', '.join([trim.tokenizer, *(f'{key}={code}' for key, code in pads.items())])})"
    return f"{{**pad_values_of({trim.tokenizer}), {written}}}"


_BEFORE = """import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer


class Rows(Dataset):
    def __init__(self, texts, tokenizer, max_length):
        self.texts, self.tokenizer, self.max_length = texts, tokenizer, max_length

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        row = self.tokenizer(
            self.texts[i], max_length=self.max_length, padding="max_length", truncation=True, return_tensors="pt"
        )
        ids, mask = row["input_ids"][0], row["attention_mask"][0]
        labels = ids.clone()
        labels[mask == 0] = -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
rows = Rows(open("texts").readlines(), tokenizer, 512)
loader = DataLoader(rows, batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
"""

RULE = Rule(
    code="SM104",
    name="trim_padding",
    title="Batches of padded rows are cut to their longest row",
    goal="padding",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "a tokenizer that pads",
            before=_BEFORE,
            after=_BEFORE.replace(
                "AutoTokenizer\n", "AutoTokenizer\nfrom speedruntime import PaddingCollator\n", 1
            ).replace(
                "shuffle=True)",
                "shuffle=True, collate_fn=PaddingCollator(\n"
                '    {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "labels": -100},\n'
                "    trim=True,\n"
                "))",
            ),
        ),
        Example("the last position is read", before=_BEFORE.replace(".loss", ".logits[:, -1].mean()"), after=None),
    ),
)
