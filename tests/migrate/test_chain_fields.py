"""What the fields of rows hold at padding, read from small repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain.fields import served
from speedmigrate.facts.carry import carry
from speedmigrate.facts.entry import entry_facts
from speedmigrate.facts.loaders import loaders
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options
from speedmigrate.target import Target

_HEAD = """import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import AutoTokenizer, default_data_collator
from datasets import load_dataset
tokenizer = AutoTokenizer.from_pretrained("gpt2")
"""
_CLASS = """
class Rows(Dataset):
    def __init__(self, texts, tokenizer, width):
        self.texts, self.tokenizer, self.width = texts, tokenizer, width
    def __len__(self):
        return len(self.texts)
    def __getitem__(self, i):
{body}
rows = Rows(open("t").readlines(), tokenizer, 64)
loader = DataLoader(rows, shuffle=True)
for batch in loader:
    model(**batch).loss.backward()
"""


def fields(tmp_path: Path, text: str) -> dict[object, str]:
    """Return what each field of the first loader's rows holds at padding, `-` where it is not per token."""
    (tmp_path / "train.py").write_text(text)
    entry = entry_facts(Project(tmp_path), "train.py", Target(), Options())
    loader = loaders(entry)[0]
    found = served(entry, loader.datasets[0][1])
    assert not found.unknown
    said: dict[object, str] = {}
    for row in found.rows:
        if row.tokenizer is not None:
            said["*"] = row.tokenizer.text
        for field in row.fields:
            code = "-"
            if field.fill is not None:
                code = repr(field.fill.constant)
                if field.fill.expr is not None:
                    code = carry(entry.values, field.fill.expr, loader.site.expr) or "?"
                code += f".{field.fill.attr}" if field.fill.attr else ""
                code += " left" if field.side == "left" else ""
            said[field.key] = field.trouble or code
    return said


def of_class(tmp_path: Path, *lines: str) -> dict[object, str]:
    body = "\n".join(f"        {line}" for line in lines)
    return fields(tmp_path, _HEAD + _CLASS.format(body=body))


IDS = "ids = self.tokenizer.encode(self.texts[i])[: self.width]"
GAP = "gap = self.width - len(ids)"


@pytest.mark.parametrize(
    "lines",
    [
        (IDS, GAP, "labels = ids + [-100] * gap", "ids = ids + [self.tokenizer.pad_token_id] * gap"),
        (IDS, GAP, "labels = list(ids)", "ids += [self.tokenizer.pad_token_id] * gap", "labels += [-100] * gap"),
        (IDS, GAP, "labels = list(ids)", "ids.extend([self.tokenizer.pad_token_id] * gap)",
         "labels.extend([-100 for _ in range(gap)])"),
        (IDS, GAP, "ids = ids + [self.tokenizer.pad_token_id] * gap",
         "labels = [t if t != self.tokenizer.pad_token_id else -100 for t in ids]"),
        (IDS, GAP, "ids = torch.tensor(ids)", "pads = torch.full((gap,), self.tokenizer.pad_token_id)",
         "ids = torch.cat([ids, pads])", "labels = ids.clone()",
         "labels[labels == self.tokenizer.pad_token_id] = -100"),
        (IDS, "ids = F.pad(torch.tensor(ids), (0, self.width - len(ids)), value=self.tokenizer.pad_token_id)",
         "labels = torch.where(ids == self.tokenizer.pad_token_id, -100, ids)"),
        (IDS, "labels = list(ids)", "while len(ids) < self.width:",
         "    ids.append(self.tokenizer.pad_token_id); labels.append(-100)"),
    ],
)  # fmt: skip
def test_lists_and_tensors(tmp_path, lines):
    found = of_class(tmp_path, *lines, 'return {"input_ids": torch.as_tensor(ids), "labels": torch.as_tensor(labels)}')
    assert found == {"input_ids": "tokenizer.pad_token_id", "labels": "-100"}


def test_a_tokenizer_that_pads_its_output(tmp_path):
    found = of_class(
        tmp_path,
        'row = self.tokenizer(self.texts[i], max_length=self.width, padding="max_length", return_tensors="pt")',
        'row = {k: v.squeeze(0) for k, v in row.items()}',
        'return {"input_ids": row["input_ids"], "labels": row["input_ids"].clone(), "i": i}',
    )  # fmt: skip
    assert found == {"input_ids": "tokenizer.pad_token_id", "labels": "tokenizer.pad_token_id", "i": "-"}


def test_signs_tell_padding_before_they_are_taken_back(tmp_path):
    found = of_class(
        tmp_path, IDS, "ids = torch.tensor(ids)", "gap = self.width - ids.shape[0]",
        "ids = torch.cat((ids, torch.zeros(gap, dtype=torch.int64) - 1))", "labels = ids.clone()", "labels[:3] = -1",
        "mask = ids.ge(0)", "other = labels.ge(0)", "ids[~mask] = 0", "labels[~other] = 0",
        "return ids, labels, mask.float()",
    )  # fmt: skip
    assert found == {0: "0", 1: "0", 2: "False"}


def test_spans_of_a_row_that_is_looped_over_stay_views_of_it(tmp_path):
    found = fields(
        tmp_path,
        _HEAD + """
def encode(texts, tokenizer):
    ids = tokenizer(texts, max_length=64, padding="max_length", return_tensors="pt").input_ids
    labels = ids.clone()
    for text, label in zip(texts, labels):
        end = len(text)
        label[:2] = -100
        label[end:] = -100
    return dict(input_ids=ids, labels=labels, attention_mask=ids.ne(tokenizer.pad_token_id))
""" + _CLASS.format(body="""        made = encode([self.texts[i]], self.tokenizer)
        return dict(input_ids=made["input_ids"][0], labels=made["labels"][0], attention_mask=made["attention_mask"][0])
"""),
    )  # fmt: skip
    assert found == {"input_ids": "tokenizer.pad_token_id", "labels": "-100", "attention_mask": "False"}


def test_lists_that_a_batched_map_fills(tmp_path):
    found = fields(
        tmp_path,
        _HEAD
        + """
def convert(rows, tokenizer, width):
    out = {"input_ids": [], "attention_mask": [], "position_ids": [], "labels": []}
    for text in rows["text"]:
        row = tokenizer(text, truncation=True, max_length=width, padding="max_length")
        out["input_ids"].append(row["input_ids"])
        out["attention_mask"].append(row["attention_mask"])
        out["position_ids"].append([i for i in range(len(row["input_ids"]))])
        out["labels"].append(int(text[0]))
    for key, value in out.items():
        out[key] = np.array(value)
    return out
from functools import partial
data = load_dataset("text", data_files="t")["train"].map(partial(convert, tokenizer=tokenizer, width=64), batched=True)
for batch in DataLoader(data, collate_fn=default_data_collator):
    model(**batch).loss.backward()
""",
    )
    assert found == {
        "input_ids": "tokenizer.pad_token_id", "attention_mask": "0", "position_ids": "Ellipsis", "labels": "-"
    }  # fmt: skip


def test_features_in_a_tensor_data_set(tmp_path):
    found = fields(
        tmp_path,
        _HEAD
        + """
class Feature:
    def __init__(self, ids, mask, label):
        self.ids = ids
        self.mask = mask
        self.label = label
def features(lines, tokenizer, width):
    found = []
    for line in lines:
        ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)[:width])
        mask = [1] * len(ids)
        gap = width - len(ids)
        ids += [tokenizer.pad_token_id] * gap
        mask += [0] * gap
        found.append(Feature(ids, mask, 1))
    return found
made = features(open("t"), tokenizer, 64)
ids = torch.tensor([f.ids for f in made])
data = TensorDataset(ids, torch.tensor([f.mask for f in made]), torch.tensor([f.label for f in made]))
for batch in DataLoader(data):
    model(batch[0], batch[1], labels=batch[2]).loss.backward()
""",
    )
    assert found == {0: "tokenizer.pad_token_id", 1: "0", 2: "-"}


def test_prepended_padding_is_on_the_left(tmp_path):
    found = of_class(
        tmp_path, IDS, GAP, "mask = [0] * gap + [1] * len(ids)",
        "ids = [self.tokenizer.pad_token_id] * gap + ids", 'return {"input_ids": ids, "attention_mask": mask}',
    )  # fmt: skip
    assert found == {"input_ids": "tokenizer.pad_token_id left", "attention_mask": "0 left"}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((IDS, GAP, "ids = ids + [0] * gap", "x = np.diff(ids)", 'return {"input_ids": ids, "x": x}'),
         {"input_ids": "0", "x": "it is made of tokens in a way that is not followed"}),
        ((IDS, 'return {"input_ids": ids}'), {"input_ids": "its value at padding is not seen"}),
        (('row = self.tokenizer([self.texts[i], "b"], padding="max_length", max_length=8)',
          'return {"input_ids": [row["input_ids"], row["input_ids"]]}'),
         {"input_ids": "each row holds several sequences"}),
        ((IDS, GAP, "mask = [0] * 3 + [1] * (self.width - len(ids[3:]))", "ids = ids + [0] * gap",
          'return {"input_ids": ids, "mask": mask}'), {"input_ids": "0", "mask": "its value at padding is not seen"}),
    ],
)  # fmt: skip
def test_what_is_not_followed_is_said(tmp_path, lines, expected):
    assert of_class(tmp_path, *lines) == expected
