"""Padding to a fixed length leaves `__getitem__`; a collator pads each batch to its own longest sample.

## What it does
Drops the padding from the rows of a data set, on the right or on the left: `[value] * (max_length - len(ids))` and
other lists of that length, `torch.cat` with zeros or a filled tensor, `np.pad` and `F.pad`, loops that append until the
list is full. An array that is made at the fixed length and filled from the front is made as long as what fills it. The
collate of every loader that serves these rows is wrapped in `speedruntime.PaddingCollator`. Truncation, redrawing and
everything else that decides which tokens a sample has stays as it is. Every data set user in the root is in the same
group.

## When it is refused
When any hop is not followed (data set, collate, loop, model), when the padded width is read (a mean over positions, the
last position, a view to the fixed length, the length of a padded row), when pads count in a loss that is not the
model's, or when the pad value cannot be written where the batches are made. `trim_padding` takes most of these.

## Effect
`exact` for right padding in front of a causal model: the real tokens, their labels and their positions stay, so loss
and gradients stay. `corrects` for left padding without a mask: real tokens attended the pads before them and sat at
positions shifted by their number; now they start at position 0 and nothing is attended but the sample. `corrects` too
where labels of pads were tokens that the loss of a model of transformers counted: the collator pads them with -100.

## References
- https://huggingface.co/docs/transformers/pad_truncation
- https://pytorch.org/docs/stable/data.html#dataloader-collate-fn
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.padding import is_cut_back
from speedmigrate.facts.contracts import Contract, Served, contract, padded_fields
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.module import Module
from speedmigrate.facts.padding import Padded, padded_datasets
from speedmigrate.facts.rowvalue import Drop
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import (
    AddImport,
    DeleteStatement,
    Effect,
    Example,
    Finding,
    Hop,
    InsertStatement,
    Op,
    Replace,
    Rule,
    SetKeyword,
)

NEEDS = ("speedmigrate[runtime]", "torch>=1.13")


def check(entry: EntryFacts) -> Iterator[Finding]:
    for group in padded_datasets(entry):
        place = group.func.module.place(group.func.node)
        if group.refusals and is_cut_back(entry):
            continue  # the batches are short already: dynamic_padding says so
        if group.refusals:
            first = group.refusals[0]
            message = (
                f"{group.name} pads to a fixed length, and the padding stays: {first.what} ({first.path}:{first.line})"
            )
            yield RULE.finding("refused", place, message, evidence=tuple(dict.fromkeys(group.refusals)))
            continue
        corrects = tuple(dict.fromkeys(text for served in group.served for text in _contract(served).corrects))
        effect: Effect = "exact" if group.side == "right" and not corrects else "corrects"
        ops = [*_strip(group), *(op for served in group.served for op in collator_ops(served))]
        yield RULE.finding(
            "change", place, "; ".join([_message(group), *corrects]), effect=effect, ops=tuple(ops),
            group=group_name(group), needs=NEEDS,
            evidence=tuple(dict.fromkeys(_evidence(group))),
        )  # fmt: skip


def group_name(group: Padded) -> str:
    """Return the name of the atomic group that strips one `__getitem__`."""
    return f"strip:{group.func.module.path}:{group.func.node.lineno}"


def _message(group: Padded) -> str:
    side = "right" if group.side == "right" else "left"
    text = f"{group.name} pads every row on the {side} to a fixed length; each batch is padded to its own longest row"
    if group.side == "left":
        masked = any("attention_mask" in padded_fields(rows) for rows in group.rows)
        attended, alone = (
            ("", "") if masked else ("attended the pads before it and ", " and attends its own sample only")
        )
        text += (
            f". Before: every real token {attended}sat at a position shifted by the number of pads before it; after: a "
            f"sample starts at position 0{alone}"
        )
    return text


def _evidence(group: Padded) -> Iterator[Hop]:
    yield from group.rows[0].hops
    for rows in group.rows:
        yield from (drop.module.hop(drop.node, f"padding: {drop.module.text(drop.node)}") for drop in rows.drops)
    for served in group.served:
        yield from _contract(served).hops


def _contract(served: Served) -> Contract:
    found = contract(served)
    assert isinstance(found, Contract)
    return found


def _strip(group: Padded) -> list[Op]:
    drops = [drop for rows in group.rows for drop in rows.drops]
    drops = list({drop.node: drop for drop in drops}.values())
    ops: list[Op] = []
    gone: set[ast.AST] = set()
    for drop in drops:
        statement = drop.module.statement(drop.node)
        if drop.code:
            start, end = drop.module.source.span(drop.node)
            if isinstance(drop.node, ast.stmt):
                ops.append(_delete(drop.module, drop.node))
                ops.append(InsertStatement(drop.module.path, start, end, drop.code, "before"))
            else:
                ops.append(Replace(drop.module.path, start, end, drop.code))
            gone |= set(ast.walk(drop.node))
        elif drop.keep is None or _is_same_name(statement, drop):
            ops += _statement_ops(drop, statement)
            gone |= set(ast.walk(statement))
        else:
            start, end = drop.module.source.span(drop.node)
            ops.append(Replace(drop.module.path, start, end, drop.module.text(drop.keep)))
            gone |= set(ast.walk(drop.node)) - set(ast.walk(drop.keep))
    for function in {drop.module.function(drop.node) for drop in drops}:
        for node in ast.walk(function) if function is not None else ():
            # An emptied `if` goes with its test (`edits.py`).
            if isinstance(node, ast.If) and not node.orelse and gone.issuperset(node.body):
                gone |= set(ast.walk(node))
    ops += _dead(drops, gone)
    return ops


def _delete(module: Module, statement: ast.stmt) -> DeleteStatement:
    start, end = module.source.span(statement)
    return DeleteStatement(module.path, start, end)


def _statement_ops(drop: Drop, statement: ast.stmt) -> list[Op]:
    """Delete a statement that pads. `if gap > 0: <it> elif gap < 0: <cut>` becomes `if gap < 0: <cut>`."""
    module = drop.module
    owner = module.parents[statement]
    other = owner.orelse[0] if isinstance(owner, ast.If) and len(owner.orelse) == 1 else None
    if not (isinstance(owner, ast.If) and isinstance(other, ast.If)) or not _exclude(owner.test, other.test):
        return [_delete(module, statement)]
    one = owner.body[0] if len(owner.body) == 1 else None
    cut = other.body[0] if len(other.body) == 1 and not other.orelse else None
    if one is not statement or not isinstance(one, ast.Assign) or not isinstance(cut, ast.Assign):
        return [_delete(module, statement)]
    if ast.dump(one.targets[0]) != ast.dump(cut.targets[0]) or len({*one.targets, *cut.targets}) > 2:
        return [_delete(module, statement)]
    moved = [(owner.test, other.test), (one.value, cut.value)]
    ops: list[Op] = [Replace(module.path, *module.source.span(a), module.text(b)) for a, b in moved]
    return [*ops, _delete(module, other)]


def _exclude(one: ast.expr, other: ast.expr) -> bool:
    """Whether two tests compare the same and are never both true."""
    if not (isinstance(one, ast.Compare) and isinstance(other, ast.Compare)):
        return False
    if len(one.ops) != 1 or ast.dump(one.left) != ast.dump(other.left):
        return False
    if ast.dump(one.comparators[0]) != ast.dump(other.comparators[0]):
        return False
    return (type(one.ops[0]), type(other.ops[0])) in {
        pair for a, b in ((ast.Gt, ast.Lt), (ast.Gt, ast.LtE), (ast.GtE, ast.Lt)) for pair in ((a, b), (b, a))
    }


def _is_same_name(statement: ast.stmt, drop: Drop) -> bool:
    """`ids = ids + padding` says nothing once the padding is gone."""
    return (
        isinstance(statement, ast.Assign)
        and statement.value is drop.node
        and len(statement.targets) == 1
        and isinstance(drop.keep, ast.Name)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id == drop.keep.id
    )


def _dead(drops: list[Drop], gone: set[ast.AST]) -> Iterator[Op]:
    """Delete the assignments that nothing reads any more (`pad_len = max_length - len(ids)`)."""
    for module, function in {(drop.module, drop.module.function(drop.node)): None for drop in drops}:
        if function is None:
            continue
        while True:
            dead = [node for node in ast.walk(function) if _is_dead(function, node, gone)]
            if not dead:
                break
            for node in dead:
                assert isinstance(node, ast.Assign)
                gone |= set(ast.walk(node))
                yield _delete(module, node)


def _is_dead(function: ast.AST, node: ast.AST, gone: set[ast.AST]) -> bool:
    if not (isinstance(node, ast.Assign) and node not in gone and len(node.targets) == 1):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Name) or not _is_length(node.value):
        return False
    reads = [
        n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)
    ]
    return bool(reads) and gone.issuperset(reads)


def _is_length(node: ast.expr) -> bool:
    """Whether an expression only computes: names, attributes, numbers, `len`, arithmetic, a list display."""
    for child in ast.walk(node):
        if isinstance(child, ast.Call) and not (
            isinstance(child.func, ast.Name) and child.func.id in {"len", "max", "min"}
        ):
            return False
    return True


def collator_ops(served: Served) -> list[Op]:
    """Return the edits that put the collator where a loader makes its batches."""
    found = _contract(served)
    site, loader = served.loader.site, served.loader
    path = site.module.path
    start, end = site.module.source.span(site.node)
    arguments = [_pad_values(found)]
    keyword = "collate_fn" if loader.kind == "DataLoader" else "data_collator"
    ops: list[Op] = [AddImport(path, "speedruntime", "PaddingCollator")]
    if loader.collate is not None and not _is_none(loader):
        arguments.append(f"collate_fn={loader.collate.text}")
    elif loader.kind == "Trainer":
        name, code = _trainer_default(served)
        arguments.append(f"collate_fn={code}")
        ops.append(AddImport(path, "transformers", name))
    if found.groups:
        sets = ", ".join(f"[{', '.join(map(_name, fields))}]" for fields in found.groups)
        arguments.append(f"groups=[[{sets}]]")
    if found.add_mask:
        arguments.append("add_attention_mask=True")
    code = f"PaddingCollator({', '.join(arguments)})"
    if loader.collate is not None and loader.collate.node in site.node.args:
        first, last = site.module.source.span(loader.collate.node)
        ops.append(Replace(path, first, last, code))
    else:
        ops.append(SetKeyword(path, start, end, keyword, code))
    return [*ops, *runtime_requirement(served.entry.project, path)]


def _is_none(loader: Loader) -> bool:
    node = loader.collate.node if loader.collate is not None else None
    return isinstance(node, ast.Constant) and node.value is None


def _trainer_default(served: Served) -> tuple[str, str]:
    """Return what HF Trainer uses without `data_collator`: padding by the tokenizer where it was given one."""
    for name in ("processing_class", "tokenizer"):
        argument = served.loader.argument(name)
        if argument is not None:
            return "DataCollatorWithPadding", f"DataCollatorWithPadding({argument.text})"
    return "default_data_collator", "default_data_collator"


def _name(key: str | int) -> str:
    return f'"{key}"' if isinstance(key, str) else str(key)


def _pad_values(found: Contract) -> str:
    if not found.is_tuple:
        return "{" + ", ".join(f'"{slot.key}": {slot.code}' for slot in found.slots) + "}"
    codes = {slot.key: slot.code for slot in found.slots}
    parts = [codes.get(index, "None") for index in range(found.width)]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


RULE = Rule(
    code="SM101",
    name="strip_padding",
    title="Padding to a fixed length leaves the data set; a collator pads each batch",
    goal="padding",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "right padding, labels of -100",
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
from speedruntime import PaddingCollator


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
loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=PaddingCollator(
    {"input_ids": tokenizer.pad_token_id, "labels": -100},
    add_attention_mask=True,
))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            "the padded length is asked for",
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
        if len(ids) == self.max_length:
            labels[-1] = self.tokenizer.eos_token_id
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
            after=None,
        ),
    ),
)
