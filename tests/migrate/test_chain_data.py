"""What `data.*` and `loader.*` say of small runs, and where they say that they do not know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from speedmigrate.chain import data, loader
from tests.migrate.test_chain_optimizer import entry_of

IMPORTS = """import random

import torch
from datasets import load_dataset
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, TensorDataset
from transformers import AutoModelForCausalLM, Trainer

import rows

model = AutoModelForCausalLM.from_pretrained("gpt2")
"""
LOOP = """
for batch in loader:
    model(**batch).loss.backward()
"""
ROWS = """import torch
from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, data=()):
        self.data = data

    def __getitem__(self, index):
        return {"input_ids": self.data[index]}

    def __len__(self):
        return len(self.data)


class More(Rows):
    pass


def tokenize(row, tokenizer=None):
    return {"input_ids": tokenizer(row["text"])}


def features(texts):
    made = []
    for text in texts:
        made.append(text)
    return made


def module(path):
    return dict(train_dataset=Rows(path), eval_dataset=None)


def batches(data, size):
    for start in range(0, len(data), size):
        yield data[start : start + size]
"""


def told(
    root: Path, text: str, *names: str, files: Mapping[str, str] | None = None
) -> list[tuple[str, str | None, str]]:
    """Return name, value and detail of the facts asked for."""
    entry = entry_of(root, {"train.py": IMPORTS + text, "rows.py": ROWS, **(files or {})})
    return [(f.name, f.value, f.detail) for f in (*data.facts(entry), *loader.facts(entry)) if f.name in names]


def kinds(root: Path, text: str) -> list[tuple[str | None, str]]:
    return [(value, detail) for _, value, detail in told(root, text, "data.kind", "data.place")]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("data = rows.Rows()", [("dataset_class", "Rows"), ("other", "rows.py")]),
        ("data = rows.More() if model else rows.Rows()",
         [("dataset_class", "More"), ("dataset_class", "Rows"), ("other", "rows.py")]),
        ("class Own(Dataset):\n    def __getitem__(self, i): ...\n\ndata = Own()",
         [("dataset_class", "Own"), ("entry", "train.py")]),
        ("class Own(IterableDataset):\n    def __iter__(self): ...\n\ndata = Own()",
         [("iterable_class", "Own"), ("entry", "train.py")]),
        ("data = load_dataset('x').map(rows.tokenize)['train']",
         [("mapped", "datasets.load_dataset"), ("other", "rows.py")]),
        ("data = load_dataset('x')['train'].shuffle().map(lambda row: rows.tokenize(row)).select(range(3))",
         [("mapped", "datasets.load_dataset"), ("other", "rows.py")]),
        ("raw = load_dataset('x')\nraw['train'].set_transform(rows.tokenize)\ndata = raw['train']",
         [("mapped", "datasets.load_dataset"), ("other", "rows.py")]),
        ("data = load_dataset('x')['train']", [("library", "datasets.load_dataset"), ("entry", "train.py")]),
        ("data = ConcatDataset([rows.Rows(), rows.More()])",
         [("dataset_class", "Rows"), ("dataset_class", "More"), ("other", "rows.py")]),
        ("data = TensorDataset(torch.tensor([f.ids for f in rows.features(['a'])]))",
         [("tensor_dataset", "torch.utils.data.TensorDataset"), ("other", "rows.py")]),
        ("data = TensorDataset(torch.load('rows.pt'))",
         [("tensor_dataset", "torch.utils.data.TensorDataset"), (None, "")]),
        ("data = [1, 2]", [("list", "list"), ("entry", "train.py")]),
        ("data = torch.load('rows.pt')", [(None, ""), (None, "")]),
        ("data = random.choice([rows.Rows()])", [(None, ""), (None, "")]),
        ("data = nobody()", [(None, ""), (None, "")]),
    ],
)  # fmt: skip
def test_what_makes_the_rows(tmp_path: Path, made: str, said: list[tuple[str | None, str]]) -> None:
    assert kinds(tmp_path, f"{made}\nloader = DataLoader(data)\n{LOOP}") == said


def test_a_file_beside_what_builds_the_rows_stays_unknown(tmp_path: Path) -> None:
    text = f"data = torch.load('rows.pt') if model else rows.Rows()\nloader = DataLoader(data)\n{LOOP}"
    (fact, _) = data.facts(entry_of(tmp_path, {"train.py": IMPORTS + text, "rows.py": ROWS}))
    assert (fact.value, [hop.line for hop in fact.unknown]) == ("dataset_class", [11])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("module = rows.module('x')\nTrainer(model, **module).train()",
         [("dataset_class", "Rows"), ("other", "rows.py")]),
        ("module = rows.module('x')\nTrainer(model, **{k: v for k, v in module.items() if k != 'x'}).train()",
         [("dataset_class", "Rows"), ("other", "rows.py")]),
        ("class Own(Trainer):\n    def get_train_dataloader(self):\n        return DataLoader(self.train_dataset)\n\n"
         "Own(model, train_dataset=rows.Rows()).train()", [("dataset_class", "Rows"), ("other", "rows.py")]),
        ("Trainer(model).train()", [(None, ""), (None, "")]),
    ],
)  # fmt: skip
def test_what_a_trainer_is_given(tmp_path: Path, made: str, said: list[tuple[str | None, str]]) -> None:
    assert kinds(tmp_path, made) == said


LOADER = ("loader.kind", "loader.place", "loader.sampler")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("loader = DataLoader(rows.Rows(), shuffle=True)",
         [("DataLoader", "DataLoader"), ("entry", "train.py"), ("random", "shuffle=True")]),
        ("from torch.utils.data.distributed import DistributedSampler\n"
         "data = rows.Rows()\nloader = DataLoader(data, sampler=DistributedSampler(data))",
         [("DataLoader", "DataLoader"), ("entry", "train.py"), ("distributed", "DistributedSampler")]),
        ("class Order:\n    def __iter__(self): ...\n\nloader = DataLoader(rows.Rows(), sampler=Order())",
         [("DataLoader", "DataLoader"), ("entry", "train.py"), ("own", "Order")]),
        ("loader = DataLoader(rows.Rows(), sampler=nobody())",
         [("DataLoader", "DataLoader"), ("entry", "train.py"), (None, "")]),
        ("from accelerate import Accelerator\nloader = Accelerator().prepare(DataLoader(rows.Rows()))",
         [("accelerate", "DataLoader"), ("entry", "train.py"), ("default", "")]),
        ("loader = rows.batches([1, 2], 1)", [("generator", "rows.batches"), ("none", "train.py")]),
        ("loader = None", [(None, ""), (None, "")]),
    ],
)  # fmt: skip
def test_what_makes_the_batches(tmp_path: Path, made: str, said: list[tuple[str | None, str]]) -> None:
    found = told(tmp_path, f"{made}\n{LOOP}", *LOADER)
    assert [(value, detail) for _, value, detail in found] == said


def test_the_training_loader_comes_first_and_alone(tmp_path: Path) -> None:
    other = "other = DataLoader([1])\nfor batch in other:\n    print(batch)\n"
    text = f"{other}loader = DataLoader(rows.Rows(), shuffle=True)\n{LOOP}"
    assert told(tmp_path, text, "data.kind") == [("data.kind", "dataset_class", "Rows")]


def test_a_logger_around_a_loader_is_no_generator(tmp_path: Path) -> None:
    log = "def log(batches):\n    for batch in batches:\n        yield batch\n\n"
    text = f"{log}loader = log(DataLoader(rows.Rows()))\n"
    assert told(tmp_path, text + LOOP, "loader.kind") == [("loader.kind", "DataLoader", "DataLoader")]


def test_deepspeed_makes_the_loader(tmp_path: Path) -> None:
    text = "import deepspeed\n_, _, loader, _ = deepspeed.initialize(model=model, training_data=rows.Rows())\n"
    assert told(tmp_path, text + LOOP, "data.kind", "loader.kind") == [
        ("data.kind", "dataset_class", "Rows"),
        ("loader.kind", "deepspeed", "deepspeed.initialize"),
    ]


def test_a_hook_of_lightning_in_another_file(tmp_path: Path) -> None:
    held = """import lightning
from torch.utils.data import DataLoader
from rows import Rows


class Held(lightning.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Rows())
"""
    text = "import lightning\nfrom held import Held\nlightning.Trainer().fit(model, datamodule=Held())\n"
    assert told(tmp_path, text, "data.place", "loader.kind", "loader.place", files={"held.py": held}) == [
        ("data.place", "other", "rows.py"),
        ("loader.kind", "lightning", "DataLoader"),
        ("loader.place", "other", "held.py"),
    ]


def test_a_trainer_of_trl_makes_the_rows_unless_they_are_tokens_already(tmp_path: Path) -> None:
    text = "from trl import SFTTrainer\nSFTTrainer(model, train_dataset=load_dataset('x')['train']{}).train()\n"
    assert told(tmp_path, text.format(""), "data.place") == [("data.place", "library", "datasets.load_dataset")]
    mapped = text.format(".map(rows.tokenize)")
    assert told(tmp_path, mapped, "data.place") == [("data.place", "other", "rows.py")]
