"""sample_lengths, PaddingMeter and the switch; trap D6 (shared/research/traps.md)."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import torch

from speedruntime import PaddingCollator, PaddingMeter, sample_lengths
from speedruntime._disable import WORDS, is_disabled

DATA = [{"input_ids": [1] * n, "n": n} for n in (3, 1, 7)]


class Rows:
    """A map-style data set that counts what it is asked for."""

    def __init__(self, samples):
        self.samples = samples
        self.asked = 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.asked += 1
        return self.samples[index]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("key", ["input_ids", "n", lambda sample: len(sample["input_ids"])])
def test_one_pass_in_the_order_of_the_data(key, workers):
    if workers and callable(key):
        key = _length
    lengths = sample_lengths(DATA * 50, key, num_workers=workers)
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [3, 1, 7] * 50


def _length(sample):
    return len(sample["input_ids"])


def test_tuple_samples_by_slot():
    assert sample_lengths([("x", torch.ones(4, 2)), ("y", torch.ones(1, 2))], 1).tolist() == [4, 1]


def test_columns_are_read_without_samples():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([{**row, "attention": 1} for row in DATA])
    data.set_transform(_fails)
    assert sample_lengths(data).tolist() == sample_lengths(data, "n").tolist() == [3, 1, 7]
    with pytest.raises(ValueError, match="no column 'ids'"):
        sample_lengths(data, "ids")
    padded = datasets.Dataset.from_dict({"input_ids": [[1, 2, 0, 0]] * 20, "attention_mask": [[1, 1, 0, 0]] * 20})
    assert sample_lengths(padded).tolist() == [2] * 20


def _fails(batch):
    raise AssertionError("a sample was built")


def test_d6_padded_rows_have_no_length_of_their_own():
    padded = [{"input_ids": [5] * n + [0] * (9 - n), "labels": [5] * n + [-100] * (9 - n)} for n in range(1, 9)] * 3
    with pytest.raises(ValueError, match=r"all 24 samples have 9 entries.*they look padded"):
        sample_lengths(padded)
    collate = PaddingCollator({"input_ids": 0, "labels": -100}, trim=True)
    assert sample_lengths(padded, collate.length).tolist() == list(range(1, 9)) * 3
    masked = [{**row, "attention_mask": torch.tensor([int(x != 0) for x in row["input_ids"]])} for row in padded]
    assert sample_lengths(masked).tolist() == list(range(1, 9)) * 3


def test_cache_is_read_and_renewed(tmp_path):
    rows = Rows(DATA)
    cache = tmp_path / "deep" / "lengths.npy"
    assert sample_lengths(rows, cache=cache).tolist() == [3, 1, 7]
    assert rows.asked == 3
    assert sample_lengths(rows, cache=cache).tolist() == [3, 1, 7]
    assert rows.asked == 3
    rows.samples = DATA[:2]
    assert sample_lengths(rows, cache=cache).tolist() == [3, 1]
    assert [path.suffix for path in cache.parent.iterdir()] == [".npy", ".npy"]


@pytest.mark.parametrize(("data", "key", "says"), [([], "input_ids", "empty"), (DATA, "ids", "no 'ids'")])
def test_bad_input_is_named(data, key, says):
    with pytest.raises(ValueError, match=says):
        sample_lengths(data, key)


def batch(rows, width, real):
    mask = torch.zeros(rows, width, dtype=torch.long)
    mask.view(-1)[:real] = 1
    return {"input_ids": torch.zeros(rows, width), "attention_mask": mask}


def test_meter_counts_and_tells_once(caplog):
    meter = PaddingMeter()
    batches = [batch(2, 4, 5), batch(2, 4, 8), batch(1, 3, 3), {"input_ids": torch.zeros(2, 2)}]
    with caplog.at_level(logging.INFO, "speedruntime"):
        assert list(meter(iter(batches))) == batches
    assert (meter.num_slots, meter.num_tokens, meter.num_shapes) == (23, 20, 3)
    assert meter.efficiency == pytest.approx(20 / 23)
    assert [record.message.split(", 3 shapes")[0] for record in caplog.records] == [
        "padding: 20 tokens in 23 slots (87.0%)"
    ]


def test_meter_keeps_few_tensors():
    meter = PaddingMeter()
    for _ in range(3000):
        meter.update(batch(1, 2, 1))
    assert len(meter._sums) < 1100
    assert meter.num_tokens == 3000


def test_meter_is_off_by_variable(monkeypatch, caplog):
    monkeypatch.setenv("SPEEDRUNTIME_METER", "0")
    meter = PaddingMeter(field=0, mask=1)
    with caplog.at_level(logging.INFO, "speedruntime"):
        assert list(meter([1, 2])) == [1, 2]
    assert (caplog.records, meter.num_slots, meter.efficiency) == ([], 0, 1.0)


def test_meter_tells_when_the_loop_is_left(caplog):
    with caplog.at_level(logging.INFO, "speedruntime"):
        for _ in PaddingMeter()([batch(2, 4, 5)] * 3):
            break
    assert "5 tokens in 8 slots" in caplog.text


@pytest.mark.parametrize("word", WORDS)
def test_each_word_switches_itself_off(word, monkeypatch):
    monkeypatch.delenv("SPEEDRUNTIME_DISABLE", raising=False)
    assert not is_disabled(word)
    monkeypatch.setenv("SPEEDRUNTIME_DISABLE", f" {word} , ")
    assert [other for other in WORDS if is_disabled(other)] == [word]
    assert os.environ["SPEEDRUNTIME_DISABLE"]
