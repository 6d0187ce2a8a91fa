"""What the recorder writes down of scripts as people write them, and what the comparison of two runs tells apart."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.executed.compare import (
    Stream,
    assert_same_figures,
    assert_same_samples,
    assert_tight,
    files,
    leaves,
    num_real,
    num_slots,
    samples,
)
from tests.executed.projects import Workshop
from tests.executed.recorder import Recorder, recording

_COMMON = """
import torch
from torch import nn
from torch.utils.data import DataLoader

IDS = torch.arange(1, 25).view(6, 4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 32)

    def forward(self, input_ids, labels=None, **extra):
        logits = self.head(self.table(input_ids))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), (input_ids if labels is None else labels).flatten())
        return {"loss": loss, "logits": logits}


model = Model()
rows = [{"input_ids": row, "labels": row} for row in IDS]
"""
_LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches():
    loss = step(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_GENERATOR = """
def batches():
    for start in range(0, 6, 2):
        yield IDS[start:start + 2]

def step(batch):
    model.eval()
    with torch.no_grad():
        model(IDS[:1])
    return nn.CrossEntropyLoss()(model(batch)["logits"].flatten(0, 1), batch.flatten())
"""
_NESTED = """
def batches():
    return DataLoader([({"ids": row}, [row, 1.5], "text") for row in IDS], batch_size=2)

def step(batch):
    return nn.DataParallel(model)(batch[0]["ids"], labels=batch[1][0])["loss"]
"""
_PARTS = """
model.score = lambda ids: model.head(model.table(ids))

def batches():
    return DataLoader(IDS, batch_size=2)

def step(batch):
    return model.score(batch).logsumexp(-1).mean()
"""
_TRAINER = """
from transformers import Trainer, TrainingArguments


class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(rows)


arguments = TrainingArguments("out", per_device_train_batch_size=2, max_steps=3, save_strategy="no", report_to="none",
                              use_cpu=True, optim="sgd", learning_rate=0.1)
InOrder(model=model, args=arguments, train_dataset=rows).train()
"""
_ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
loader = DataLoader(rows, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for batch in loader:
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()
"""
_DEEPSPEED = """
import os

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0",
                  DS_ACCELERATOR="cpu")
import deepspeed

config = {"train_batch_size": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}}
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for batch in DataLoader(rows, batch_size=2):
    engine.backward(engine(**batch)["loss"])
    engine.step()
"""
_LIGHTNING = """
import lightning


class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Task(), DataLoader(rows, batch_size=2))
"""
IDS = torch.arange(1, 25).view(3, 2, 4)
ROWS = [{"input_ids": ids, "labels": ids} for ids in IDS]


def _needs(name: str) -> Any:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"needs {name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "batches", "calls"),
    [
        pytest.param(_GENERATOR + _LOOP, [], [{"input_ids": ids} for ids in IDS], id="own_generator"),
        pytest.param(
            _NESTED + _LOOP,
            [[{"ids": ids}, [ids, torch.tensor([1.5, 1.5], dtype=torch.float64)], ["text"] * 2] for ids in IDS],
            [{"0": ids, "labels": ids} for ids in IDS],
            id="nested_tuples",
        ),
        pytest.param(_TRAINER, ROWS, ROWS, id="trainer"),
        pytest.param(_ACCELERATE, ROWS, ROWS, id="accelerate"),
        pytest.param(_DEEPSPEED, ROWS, ROWS, id="deepspeed", marks=_needs("deepspeed")),
        pytest.param(_LIGHTNING, ROWS, ROWS, id="lightning", marks=_needs("lightning")),
    ],
)
def test_batches_and_calls(workshop: Workshop, tmp_path: Path, body: str, batches: list[Any], calls: list[Any]) -> None:
    (tmp_path / "train.py").write_text(_COMMON + body)
    recorded = workshop.record(tmp_path / "train.py")
    assert_same_samples(batches, recorded["batches"][: len(batches)])
    assert_same_samples(calls, [_ids_and_labels(call) for call in recorded["calls"]])
    assert len(recorded["losses"]) == recorded["num_steps"] == 3
    assert recorded["names"] in (["head.bias", "head.weight", "table.weight"], [])
    assert (recorded["gradients"] is None) == (recorded["names"] == [])


def _ids_and_labels(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name in ("0", "input_ids", "labels") and value is not None}


@pytest.mark.slow
def test_a_model_that_is_called_part_by_part(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_COMMON + _PARTS + _LOOP)
    calls = workshop.record(tmp_path / "train.py")["calls"]
    assert [next(iter(call.values())).shape for call in calls] == [(2, 4), (2, 4, 8)] * 3


def test_recording_leaves_nothing_behind() -> None:
    before = (torch.autograd.backward, torch.nn.Module.__call__, torch.utils.data.DataLoader.__iter__)
    recorder, model = Recorder(), torch.nn.Linear(2, 1)
    with recording(recorder):
        model(torch.ones(1, 2)).sum().backward()
    assert (torch.autograd.backward, torch.nn.Module.__call__, torch.utils.data.DataLoader.__iter__) == before
    model(torch.ones(1, 2)).sum().backward()
    assert len(recorder.losses) == len(recorder.calls) == 1


TOKENS = Stream({"ids": 0, "labels": -100}, follows=("mask",))


def _batch(width: int, *rows: list[int], side: str = "right", mask: int = 1) -> dict[str, torch.Tensor]:
    def padded(row: list[int], pad: int) -> list[int]:
        fill = [pad] * (width - len(row))
        return row + fill if side == "right" else fill + row

    return {
        "ids": torch.tensor([padded(row, 0) for row in rows]),
        "labels": torch.tensor([padded(row, -100) for row in rows]),
        "mask": torch.tensor([padded([1] * len(row), mask) for row in rows]),
        "score": torch.arange(len(rows)),
    }


@pytest.mark.parametrize("side", ["right", "left"])
def test_samples_are_the_same_whatever_their_width(side: str) -> None:
    old, new = _batch(9, [4, 5, 6], [7, 8], side=side), _batch(3, [4, 5, 6], [7, 8], side=side, mask=0)
    assert_same_samples([old], [new], TOKENS)
    assert samples(new, TOKENS) == [
        {"ids": (4, 5, 6), "labels": (4, 5, 6), "mask": (1, 1, 1)},
        {"ids": (7, 8), "labels": (7, 8), "mask": (1, 1)},
    ]
    assert (num_slots([old], TOKENS), num_slots([new], TOKENS), num_real([new], TOKENS)) == (18, 6, 5)


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(_batch(3, [4, 5, 6], [7, 9]), id="token"),
        pytest.param(_batch(3, [4, 5], [7, 8]), id="cut"),
        pytest.param(_batch(3, [7, 8], [4, 5, 6]), id="order"),
        pytest.param(_batch(3, [4, 5, 6]), id="row"),
        pytest.param({**_batch(3, [4, 5, 6], [7, 8]), "score": torch.tensor([0, 2])}, id="other_field"),
        pytest.param({**_batch(3, [4, 5, 6], [7, 8]), "more": 1}, id="field_more"),
        pytest.param({"ids": torch.tensor([[4, 5, 6], [7, 8, 0]])}, id="field_less"),
        pytest.param({**_batch(3, [4, 5, 6], [7, 8]), "mask": torch.ones(2, 3, dtype=torch.bool)}, id="dtype"),
        pytest.param({**_batch(3, [4, 5, 6], [7, 8]), "mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}, id="mask"),
    ],
)
def test_other_samples_are_told(new: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        assert_same_samples([_batch(9, [4, 5, 6], [7, 8])], [new], TOKENS)


def test_a_mask_that_was_added_shows_every_token() -> None:
    old, new = ({"ids": _batch(width, [4, 5, 6], [7, 8])["ids"]} for width in (9, 3))
    ids = Stream({"ids": 0})
    assert_same_samples([old], [{**new, "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}], ids)
    with pytest.raises(AssertionError):
        assert_same_samples([old], [{**new, "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 0]])}], ids)


def test_the_last_input_of_a_script_that_shifts() -> None:
    old = [torch.tensor([[4, 5, 6, 0], [7, 8, 0, 0]]), torch.tensor([[5, 6, 0, 0], [8, 0, 0, 0]])]
    new = [torch.tensor([[4, 5], [7, 0]]), torch.tensor([[5, 6], [8, 0]])]
    assert_same_samples([old], [new], Stream({"0": 0, "1": 0}, counted="1"))
    with pytest.raises(AssertionError):
        assert_same_samples([old], [new], Stream({"0": 0, "1": 0}))


def test_leaves_of_a_nested_batch() -> None:
    assert leaves([{"a": 1, "b": ("x", None)}, 2.5]) == {"0.a": 1, "0.b.0": "x", "0.b.1": None, "1": 2.5}


def test_a_batch_that_is_wider_than_its_samples() -> None:
    assert_tight([_batch(8, [4, 5, 6], [7, 8])], TOKENS)
    with pytest.raises(AssertionError):
        assert_tight([_batch(9, [4, 5, 6], [7, 8])], TOKENS)


def test_figures_may_differ_by_rounding() -> None:
    old = '{"loss": 0.25, "text": "two eggs"}\n{"runtime": 3}'
    assert_same_figures(old, '{"loss": 0.250001, "text": "two eggs"}\n{"runtime": 4}')
    for new in ('{"loss": 0.26, "text": "two eggs"}\n', '{"loss": 0.25, "text": "ten eggs"}\n'):
        with pytest.raises(AssertionError):
            assert_same_figures(old, new)


def test_files_that_are_left_aside(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2, 3)}, tmp_path / "model.pth")
    torch.save([], tmp_path / "cached_rows")
    assert files(tmp_path, "cached_*") == {"model.pth": {"a": (2, 3)}}
