"""Where and how a run pads, on the smallest script of each shape (`research/idioms.md`)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from speedmigrate.chain.fact import Fact
from speedmigrate.chain.padding import facts
from speedmigrate.facts.entry import entry_facts
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options
from speedmigrate.target import Target

HEAD = """
import argparse
from functools import partial
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Trainer, default_data_collator

args = argparse.ArgumentParser().parse_args()
tok = AutoTokenizer.from_pretrained("x")
LIMIT = 128
"""


def padding(root: Path, text: str) -> dict[str, Fact]:
    (root / "train.py").write_text(HEAD + textwrap.dedent(text) + "\nloss.backward()\n")
    entry = entry_facts(Project(root), "train.py", Target(), Options())
    return {fact.name.partition(".")[2]: fact for fact in facts(entry)}


def words(root: Path, text: str) -> tuple[str | None, ...]:
    found = padding(root, text)
    return tuple(found[name].value for name in ("place", "idiom", "side"))


def dataset(body: str) -> str:
    return f"""
class Rows(Dataset):
    def __getitem__(self, i):
{textwrap.indent(textwrap.dedent(body), " " * 8)}
DataLoader(Rows())
"""


def mapped(body: str) -> str:
    return f"""
def encode(row):
{textwrap.indent(textwrap.dedent(body), " " * 4)}
data.map(encode, batched=True)
"""


def collate(body: str) -> str:
    return f"""
def batch(rows):
{textwrap.indent(textwrap.dedent(body), " " * 4)}
DataLoader(data, collate_fn=batch)
"""


CASES = {
    "list concat": (dataset("n = LIMIT - len(ids)\nids += [0] * n"), ("getitem", "list_concat", "right")),
    "extend": (dataset("ids.extend([0] * (LIMIT - len(ids)))"), ("getitem", "list_concat", "right")),
    "comprehension": (dataset("ids += [0 for _ in range(LIMIT - len(ids))]"), ("getitem", "list_concat", "right")),
    "prepended": (dataset("ids = [0] * (LIMIT - len(ids)) + ids"), ("getitem", "list_concat", "left")),
    "never below zero": (dataset("ids = ids + [0] * max(0, LIMIT - len(ids))"), ("getitem", "list_concat", "right")),
    "cat": (
        dataset("gap = LIMIT - x.shape[0]\nx = torch.cat((x, torch.zeros(gap, dtype=torch.int64) - 1))"),
        ("getitem", "cat", "right"),
    ),
    "numpy": (dataset("ids = np.pad(ids, (0, LIMIT - len(ids)))"), ("getitem", "np_pad", "right")),
    "numpy, left": (dataset("ids = np.pad(ids, (LIMIT - len(ids), 0))"), ("getitem", "np_pad", "left")),
    "F.pad": (dataset("ids = F.pad(ids, (0, LIMIT - ids.size(0)), value=0)"), ("getitem", "F_pad", "right")),
    "while": (dataset("while len(ids) < LIMIT:\n    ids.append(0)"), ("getitem", "while_append", "right")),
    "slice": (dataset("out = torch.zeros(LIMIT)\nout[: len(ids)] = ids"), ("getitem", "full_slice", "right")),
    "a buffer in a dict": (
        collate('out = {"ids": torch.ones(8, LIMIT).long() * 2}\nout["ids"][0, : len(rows[0])] = rows[0]'),
        ("collate", "full_slice", "right"),
    ),
    "a helper with parameters": (
        "def fill(ids, size):\n    return ids + [0] * (size - len(ids))\n" + dataset("return fill(ids, LIMIT)"),
        ("getitem", "list_concat", "right"),
    ),
    "tokenizer in a map": (
        mapped('return tok(row["text"], padding="max_length", max_length=LIMIT)'),
        ("map", "tokenizer", "tokenizer"),
    ),
    "a tokenizer told its side": (
        'tok.padding_side = "left"\n' + mapped('return tok(row["text"], padding="max_length", max_length=LIMIT)'),
        ("map", "tokenizer", "left"),
    ),
    "map of a partial": (
        "def encode(size, row):\n    return [0] * (size - len(row)) + row\ndata.map(partial(encode, LIMIT))",
        ("map", "list_concat", "left"),
    ),
    "built in the constructor": (
        "class Rows(Dataset):\n    def __init__(self):\n        self.rows = [r + [0] * (LIMIT - len(r)) for r in raw]\n"
        "    def __getitem__(self, i):\n        return self.rows[i]\nDataLoader(Rows())",
        ("init", "list_concat", "right"),
    ),
    "longest of the whole set": (
        "width = max(len(r) for r in raw)\nrows = [r + [0] * (width - len(r)) for r in raw]",
        ("build", "list_concat", "right"),
    ),
    "a pool is not a data set": (
        "import multiprocessing\ndef fill(r):\n    return r + [0] * (LIMIT - len(r))\n"
        "rows = multiprocessing.Pool(4).map(fill, raw)",
        ("build", "list_concat", "right"),
    ),
    "flag of the tokenizer": (
        'how = "max_length" if args.pad_all else False\n' + mapped('return tok(row["text"], padding=how)'),
        ("flag", "flag+tokenizer", "tokenizer"),
    ),
    "flag around the padding": (
        dataset("if args.pad_all:\n    ids = ids + [0] * (LIMIT - len(ids))"),
        ("flag", "flag+list_concat", "right"),
    ),
    "longest of the batch": (
        collate("width = max(len(r) for r in rows)\nreturn [r + [0] * (width - len(r)) for r in rows]"),
        ("dynamic", "none", "right"),
    ),
    "longest, collected in a loop": (
        collate("sizes = []\nfor r in rows:\n    sizes.append(r.shape[1])\nwidth = max(sizes)\n"
                "return [torch.cat([torch.full((1, width - sizes[i]), 0), r]) for i, r in enumerate(rows)]"),
        ("dynamic", "none", "left"),
    ),
    "pad_sequence": (collate("return pad_sequence(rows, batch_first=True)"), ("dynamic", "none", "right")),
    "a collator of the library": (
        "Trainer(data_collator=DataCollatorForSeq2Seq(tok))",
        ("dynamic", "none", "tokenizer"),
    ),
    "a collator told not to": ("Trainer(data_collator=DataCollatorForSeq2Seq(tok, padding=False))", (None, None, None)),
    "in the model": (
        "class Net(torch.nn.Module):\n    def forward(self, texts):\n        return tok(texts, padding=True)\n"
        "Net()(texts)",
        ("model", "none", "tokenizer"),
    ),
    "blocks": (
        mapped("return [ids[i : i + LIMIT] for i in range(0, len(ids), LIMIT)]"),
        ("packed", "none", "none"),
    ),
    "a stream cut by view": ("x = tokens[:-1].view(4, LIMIT)", ("packed", "none", "none")),
    "switched off by a constant": (
        "def encode(row, fixed=False):\n    if fixed and LIMIT > 1:\n        row = row + [0] * (LIMIT - len(row))\n"
        "data.map(partial(encode))",
        (None, None, None),
    ),
    "a memory-mapped file": ('ids = np.memmap("x.bin", dtype="uint16")', ("packed", "none", "none")),
    "another from_file": ('words = AutoTokenizer.from_file("x.json")', (None, None, None)),
    "batches of prompts": ("for i in range(0, len(texts), 8):\n    texts[i : i + 8]", (None, None, None)),
    "blocks of a sampler's indices": (
        "class Order(torch.utils.data.Sampler):\n    def __iter__(self):\n"
        "        return [ids[i : i + 8] for i in range(0, len(ids), 8)]\nDataLoader(data, sampler=Order())",
        (None, None, None),
    ),
    "labels repeated, not padded": (dataset("return [-100] * len(prompt) + answer"), (None, None, None)),
    "a convolution": ("torch.nn.Conv2d(1, 1, 3, padding=True)", (None, None, None)),
    "never called": ("def fill(ids):\n    return ids + [0] * (LIMIT - len(ids))", (None, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_padding(tmp_path: Path, name: str) -> None:
    text, want = CASES[name]
    assert words(tmp_path, text) == want


def test_the_place_is_told(tmp_path: Path) -> None:
    text = "ids = ids + [0] * (LIMIT - len(ids))"
    found = padding(tmp_path, dataset(text))["place"]
    line = 1 + (tmp_path / "train.py").read_text().splitlines().index(" " * 8 + text)
    assert (found.detail, [(hop.path, hop.line, hop.what) for hop in found.evidence]) == (
        "LIMIT",
        [("train.py", line, "[0] * (LIMIT - len(ids))")],
    )
