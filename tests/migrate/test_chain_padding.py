"""Where and how a run pads, on the smallest script of each shape (`research/idioms.md`)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from speedmigrate.chain.contracts_fixed import contracts, fixed_contracts, is_image_text
from speedmigrate.chain.fact import Fact
from speedmigrate.chain.padding import Padding, facts
from speedmigrate.chain.padding import padding as chain_padding
from speedmigrate.facts.entry import EntryFacts, entry_facts
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


def run(root: Path, text: str) -> EntryFacts:
    (root / "train.py").write_text(HEAD + textwrap.dedent(text) + "\nloss.backward()\n")
    return entry_facts(Project(root), "train.py", Target(), Options())


def known(root: Path, text: str) -> Padding:
    return chain_padding(run(root, text))


def padding(root: Path, text: str) -> dict[str, Fact]:
    return {fact.name.partition(".")[2]: fact for fact in facts(run(root, text))}


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
    "fixed inside the model": (
        "class Net(torch.nn.Module):\n    def forward(self, texts):\n        return tok(texts, padding='max_length')\n"
        "Net()(texts)",
        ("model", "none", "tokenizer"),
    ),
    "guarded by its own width": (
        "size = args.size\nif size:\n    row = row + [0] * (size - len(row))",
        ("build", "list_concat", "right"),
    ),
    "a lambda around the map": (
        "def encode(row):\n    return row + [0] * (LIMIT - len(row))\ndata.map(lambda row: encode(row))",
        ("map", "list_concat", "right"),
    ),
    "a batch generator": (
        "def batch(rows):\n    return pad_sequence(rows)\n"
        "def batches():\n    rows = []\n    for row in raw:\n        rows.append(row)\n        yield batch(rows)\n"
        "for x in batches():\n    x.sum().backward()",
        ("dynamic", "none", "right"),
    ),
    "a collator of transformers, extended": (
        "from transformers import DataCollatorForLanguageModeling\n"
        "class Own(DataCollatorForLanguageModeling):\n    def torch_call(self, rows):\n"
        "        return pad_sequence(rows, batch_first=True)\n"
        "Trainer(data_collator=Own(tok))",
        ("dynamic", "none", "right"),
    ),
    "random numbers": (
        "def step(net, ids):\n    net(ids).backward()\nstep(torch.nn.Linear(4, 4), torch.randint(9, (2, 4)).cuda())",
        ("none", "none", "none"),
    ),
    "never called": ("def fill(ids):\n    return ids + [0] * (LIMIT - len(ids))", (None, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_padding(tmp_path: Path, name: str) -> None:
    text, want = CASES[name]
    assert words(tmp_path, text) == want


DONE = {
    "fixed inside the model": False,
    "in the model": True,
    "pad_sequence": True,
    "random numbers": True,
    "list concat": False,
    "flag around the padding": False,
}


@pytest.mark.parametrize("name", DONE)
def test_what_is_left_to_do(tmp_path: Path, name: str) -> None:
    assert known(tmp_path, CASES[name][0]).is_done is DONE[name]


ROWS = dataset("ids = ids + [0] * (LIMIT - len(ids))\nreturn ids")
CUTS = {
    "all fields, by name": ("ids, mask = zip(*rows)\nn = max(map(len, mask))\nreturn ids[:, :n], mask[:, :n]", True),
    "each field": ("n = rows['mask'].sum(1).max()\nreturn {k: v[:, :n] for k, v in rows.items()}", True),
    "the labels alone": ("n = max(rows)\nreturn ids, labels[:, :n]", False),
    "a width of the config": ("return ids[:, :LIMIT], mask[:, :LIMIT]", False),
    "the width of a neighbour": ("n = mask.shape[1]\nreturn ids[:, :n], mask[:, :n]", False),
}


@pytest.mark.parametrize("name", CUTS)
def test_batches_are_cut_back(tmp_path: Path, name: str) -> None:
    body, want = CUTS[name]
    text = (
        ROWS.replace("DataLoader(Rows())", "")
        + f"""
def batch(rows):
{textwrap.indent(body, "    ")}
DataLoader(Rows(), collate_fn=batch)
"""
    )
    assert bool(known(tmp_path, text).cuts) is want


def test_a_second_loader_that_does_not_cut(tmp_path: Path) -> None:
    text = ROWS + "def batch(rows):\n    n = max(rows)\n    return ids[:, :n], mask[:, :n]\n"
    assert not known(tmp_path, text + "DataLoader(Rows(), collate_fn=batch)").cuts


FIXED = {
    "joined": "ids = ids + [0] * (LIMIT - len(ids))\nreturn ids + answer",
    "joined, of a tokenizer": 'row = tok(x, padding="max_length")\nids = row["input_ids"][:-1]\nreturn ids + answer',
    "square": "m = np.zeros((LIMIT, LIMIT))\nreturn ids + [0] * (LIMIT - len(ids)), m",
    "square, of other features": "m = np.zeros(shape=(LIMIT, args.words))\nreturn ids + [0] * (LIMIT - len(ids)), m",
}
FREE = {
    "joined before": "ids = ids + answer\nreturn ids + [0] * (LIMIT - len(ids))",
    "filled twice": "ids = ids + [0] * (LIMIT - len(ids))\nreturn ids + [0] * 4",
    "one number": 'row = tok(x, padding="max_length")\nreturn row["input_ids"][0] + offset',
    "a picture": "return np.zeros((3, 224)), ids + [0] * (LIMIT - len(ids))",
}


@pytest.mark.parametrize("name", {**FIXED, **FREE})
def test_what_fixes_the_length_of_a_row(tmp_path: Path, name: str) -> None:
    entry = run(tmp_path, dataset({**FIXED, **FREE}[name]))
    assert [contract.kind for contract in contracts(entry)] == ([name.partition(",")[0]] if name in FIXED else [])


LIBRARIES = {
    "diffusion": "from diffusers import UNet2DConditionModel\nUNet2DConditionModel.from_pretrained('x')",
    "pipeline": "from deepspeed.pipe import PipelineModule\nPipelineModule(layers=layers)",
    "text": "import clip\nclip.tokenize(texts)",
}


@pytest.mark.parametrize("kind", LIBRARIES)
def test_libraries_fix_the_length(tmp_path: Path, kind: str) -> None:
    entry = run(tmp_path, LIBRARIES[kind])
    assert ([contract.kind for contract in contracts(entry)], len(fixed_contracts(entry))) == ([kind], 1)
    assert is_image_text(entry) is (kind == "text")


def test_a_pipeline_that_is_off(tmp_path: Path) -> None:
    text = """
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=1)
    given = parser.parse_args()
    from deepspeed.pipe import PipelineModule
    if given.stages > 1:
        PipelineModule(layers=layers)
    """
    assert contracts(run(tmp_path, text)) == ()


def test_clip_copied_into_the_root(tmp_path: Path) -> None:
    text = """
    def tokenize(texts, context_length=52):
        out = torch.zeros(len(texts), context_length)
        out[0, : len(texts[0])] = texts[0]
        return out
    class Rows(Dataset):
        def __getitem__(self, i):
            return tokenize(["a"])[0]
    DataLoader(Rows())
    """
    assert is_image_text(run(tmp_path, text))


MODELS = {
    "folded": "return self.body(ids.view(-1, LIMIT))",
    "image": "embeds = self.embed(ids)\nembeds[ids == self.config.pad_token_id] = self.see(images)\nreturn embeds",
    "multiple": "rows, width = ids.shape\nassert width % self.window == 0\nreturn ids",
    "gathered": "torch.distributed.all_gather(out, ids)\nreturn self.body(input_ids=ids)",
}
HARMLESS = {
    "a view by its own size": "return self.body(ids.view(-1, ids.size(-1)))",
    "labels at pads": "labels[ids == self.config.pad_token_id] = -100\nreturn labels",
    "heads of a width": "rows, width, size = x.shape\nassert size % self.heads == 0\nreturn ids",
    "features are gathered": "torch.distributed.all_gather(out, self.body(input_ids=ids))\nreturn out",
}


@pytest.mark.parametrize("name", {**MODELS, **HARMLESS})
def test_what_a_model_makes_of_the_length(tmp_path: Path, name: str) -> None:
    net = f"""
class Net(torch.nn.Module):
    def forward(self, ids, images=None, labels=None):
{textwrap.indent({**MODELS, **HARMLESS}[name], " " * 8)}
Net()(batch)
"""
    entry = run(tmp_path, dataset("return ids + [0] * (LIMIT - len(ids))") + net)
    assert [contract.kind for contract in contracts(entry)] == ([name] if name in MODELS else [])


def test_the_place_is_told(tmp_path: Path) -> None:
    text = "ids = ids + [0] * (LIMIT - len(ids))"
    found = padding(tmp_path, dataset(text))["place"]
    line = 1 + (tmp_path / "train.py").read_text().splitlines().index(" " * 8 + text)
    assert (found.detail, [(hop.path, hop.line, hop.what) for hop in found.evidence]) == (
        "LIMIT",
        [("train.py", line, "[0] * (LIMIT - len(ids))")],
    )
