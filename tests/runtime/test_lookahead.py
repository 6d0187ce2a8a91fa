"""Look-ahead by property, under plain loops, accelerate and HF Trainer; traps D20-D25 (shared/research/traps.md)."""

from __future__ import annotations

import importlib.util
import json
import logging
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import speedruntime
from speedruntime import PaddingCollator, lookahead, use_lookahead
from speedruntime._lookahead import Regroup, _log_once
from speedruntime._transport import Packed, num_bytes, unpacked

spec = importlib.util.spec_from_file_location("_training_data", Path(__file__).with_name("_training_data.py"))
training_data = sys.modules.setdefault("_training_data", importlib.util.module_from_spec(spec))
spec.loader.exec_module(training_data)
LENGTHS, Samples, Stream = training_data.LENGTHS, training_data.Samples, training_data.Stream
COLLATE = PaddingCollator({"input_ids": 0, "labels": -100}, add_attention_mask=True)


def loader_of(data=None, batch_size=4, seed=0, **options):
    options.setdefault("shuffle", True)
    torch.manual_seed(seed)
    return DataLoader(Samples() if data is None else data, batch_size, collate_fn=COLLATE, **options)


def contents(loader) -> list[tuple[list[int], int]]:
    return [((batch["input_ids"][:, 0] - 10).tolist(), batch["input_ids"].shape[1]) for batch in loader]


def members(batches) -> list[int]:
    return [index for indices, _ in batches for index in indices]


def efficiency(batches) -> float:
    real = sum(int(LENGTHS[index]) for index in members(batches))
    return real / sum(len(indices) * width for indices, width in batches)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 203), st.integers(2, 9), st.integers(1, 60), st.booleans(), st.integers(0, 3))
def test_each_sample_once_in_as_many_batches_of_the_same_sizes(size, batch_size, window, drop_last, seed):
    old = loader_of(Samples(size), batch_size, drop_last=drop_last, seed=seed)
    new = lookahead(loader_of(Samples(size), batch_size, drop_last=drop_last, seed=seed), window=window)
    torch.manual_seed(seed)
    before = contents(old)
    torch.manual_seed(seed)
    after = contents(new)
    assert len(new) == len(old) == len(after)
    assert sorted(members(before)) == sorted(members(after))
    assert [len(indices) for indices, _ in before] == [len(indices) for indices, _ in after]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
def test_d22_epochs_differ_and_seeds_repeat(options):
    loader = lookahead(loader_of(**options), window=20)
    torch.manual_seed(1)
    first, second = contents(loader), contents(loader)
    again = lookahead(loader_of(**options), window=20)
    torch.manual_seed(1)
    assert [contents(again), contents(again)] == [first, second]
    assert first != second
    assert min(efficiency(first), efficiency(second)) > 0.9
    pairs = [{(a, b) for indices, _ in epoch for a in indices for b in indices if a < b} for epoch in (first, second)]
    assert len(pairs[0] & pairs[1]) < 0.5 * len(pairs[0])


def test_order_depends_on_the_seed():
    torch.manual_seed(0)
    one = contents(lookahead(loader_of(), window=20))
    assert contents(lookahead(loader_of(), window=20)) == one
    assert contents(lookahead(loader_of(), window=20, seed=1)) != one


def test_loader_keeps_its_attributes():
    old = loader_of(num_workers=2, prefetch_factor=3, drop_last=True, generator=torch.Generator(), timeout=7)
    new = lookahead(old)
    assert isinstance(new, DataLoader)
    assert type(old) is DataLoader
    names = ["dataset", "batch_size", "sampler", "batch_sampler", "num_workers", "pin_memory", "drop_last", "timeout"]
    names += ["prefetch_factor", "generator", "persistent_workers", "worker_init_fn", "multiprocessing_context"]
    assert [getattr(new, name) for name in names] == [getattr(old, name) for name in names]
    assert new.collate_fn([new.dataset[3]])["input_ids"].tolist() == COLLATE([old.dataset[3]])["input_ids"].tolist()
    assert old.collate_fn is COLLATE


def test_worker_settings_reach_the_workers():
    seen = []
    loader = lookahead(loader_of(num_workers=1, worker_init_fn=_fail_in_worker))
    with pytest.raises(ValueError, match="worker_init_fn ran"):
        seen.extend(loader)


def _fail_in_worker(number: int) -> None:
    raise ValueError("worker_init_fn ran")


def test_d22_set_epoch_reaches_the_sampler():
    sampler = DistributedSampler(Samples(), 2, 0)
    loader = lookahead(loader_of(shuffle=None, sampler=sampler), window=20)
    epochs = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        assert sampler.epoch == epoch
        epochs.append(contents(loader))
    assert epochs[0] == epochs[2] != epochs[1]


def test_d20_each_rank_regroups_its_own_samples():
    ranks = []
    for rank in (0, 1):
        sampler = DistributedSampler(Samples(202), 2, rank)
        before = contents(loader_of(Samples(202), shuffle=None, sampler=sampler))
        ranks.append(contents(lookahead(loader_of(Samples(202), shuffle=None, sampler=sampler))))
        assert sorted(members(before)) == sorted(members(ranks[rank]))
    assert len(ranks[0]) == len(ranks[1])
    assert sorted(members(ranks[0] + ranks[1])) == list(range(202))


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_data_set(workers):
    loader = lookahead(DataLoader(Stream(), 4, collate_fn=COLLATE, num_workers=workers), window=20)
    first = contents(loader)
    assert sorted(members(first)) == list(range(203))
    assert efficiency(first) > 0.9
    assert contents(loader) == first
    loader.set_epoch(1)
    assert contents(loader) != first


def test_random_order_is_what_makes_it_regroup():
    data = Samples()
    for sampler in (RandomSampler(data), SubsetRandomSampler(range(203)), WeightedRandomSampler([1.0] * 203, 203)):
        assert isinstance(lookahead(loader_of(shuffle=None, sampler=sampler)).collate_fn, Regroup)
    own = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, False), collate_fn=COLLATE)
    assert isinstance(lookahead(own).collate_fn, Regroup)


class OwnSampler(RandomSampler):
    pass


class OwnBatchSampler(BatchSampler):
    pass


class OwnLoader(DataLoader):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda data: DataLoader(data, 4), "order of SequentialSampler"),
        (lambda data: DataLoader(data, 1, shuffle=True), "one sample"),
        (lambda data: DataLoader(data, None), "does not batch"),
        (lambda data: DataLoader(data, 4, sampler=DistributedSampler(data, 2, 0, shuffle=False)), "shuffle=False"),
        (lambda data: DataLoader(data, 4, sampler=OwnSampler(data)), "order of OwnSampler"),
        (
            lambda data: DataLoader(data, batch_sampler=OwnBatchSampler(RandomSampler(data), 4, False)),
            "OwnBatchSampler",
        ),
        (lambda data: DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, False)), "Sequential"),
        (lambda data: OwnLoader(data, 4, shuffle=True), "own way"),
        (lambda data: [1, 2], "no torch DataLoader"),
        (lambda data: lookahead(DataLoader(data, 4, shuffle=True)), "already"),
    ],
)
def test_d25_ordered_or_unknown_loaders_come_back_unchanged(make, says, caplog):
    _log_once.cache_clear()
    loader = make(Samples())
    with caplog.at_level(logging.INFO, "speedruntime"):
        assert lookahead(loader) is loader
        assert lookahead(loader) is loader
    assert [says in record.message for record in caplog.records if "off" in record.message] == [True]


@pytest.mark.parametrize("word", ["lookahead", "bucket", "compile,lookahead"])
def test_disabled_returns_the_loader(word, monkeypatch):
    monkeypatch.setenv("SPEEDRUNTIME_DISABLE", word)
    loader = loader_of()
    assert lookahead(loader) is loader


def test_unknown_word_in_the_variable_warns(monkeypatch):
    monkeypatch.setenv("SPEEDRUNTIME_DISABLE", "lookahed")
    with pytest.warns(UserWarning, match="'lookahed'.*known words: compile, float8, bucket, lookahead, label_only"):
        lookahead(loader_of())


def test_tuple_samples_are_measured_by_slot():
    data = [(torch.ones(int(n)), torch.ones(50), index) for index, n in enumerate(LENGTHS)]
    collate = PaddingCollator((0, None, None))
    widths = [x.shape[1] for x, _, _ in lookahead(DataLoader(data, 4, shuffle=True, collate_fn=collate))]
    assert LENGTHS.sum() / sum(width * 4 for width in widths) > 0.9
    with pytest.raises(ValueError, match="window is 0"):
        lookahead(DataLoader(data, 4, shuffle=True), window=0)


def test_samples_without_the_field_come_in_the_old_order(caplog):
    data = [{"text": "x" * int(n), "index": index} for index, n in enumerate(LENGTHS)]
    torch.manual_seed(0)
    old = [batch["index"].tolist() for batch in DataLoader(data, 4, shuffle=True)]
    loader = lookahead(DataLoader(data, 4, shuffle=True))
    torch.manual_seed(0)
    assert [batch["index"].tolist() for batch in loader] == old
    assert "name it: field=" in caplog.text
    assert loader.collate_fn.broken


def test_d6_padded_samples_are_measured_without_their_padding():
    data = [
        {"input_ids": [index + 10] + [5] * (n - 1) + [0] * (64 - n), "labels": [1] * n + [-100] * (64 - n)}
        for index, n in enumerate(LENGTHS)
    ]
    collate = PaddingCollator({"input_ids": 0, "labels": -100}, trim=True)
    assert efficiency(contents(lookahead(DataLoader(data, 4, shuffle=True, collate_fn=collate)))) > 0.9


def test_window_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr("speedruntime._lookahead._MAX_BYTES", 20_000)
    fetched, ahead = [], []

    class Counting(Samples):
        def __getitem__(self, index):
            fetched.append(index)
            return super().__getitem__(index)

    for used, _ in enumerate(lookahead(loader_of(Counting(), 4))):
        ahead.append(len(fetched) - 4 * (used + 1))
    per_sample = sum(num_bytes(training_data.sample(index)) for index in range(203)) / 203
    assert max(ahead) * per_sample < 2.5 * 20_000


def test_many_open_samples_need_no_file_descriptors():
    import resource

    data = [{"input_ids": torch.ones(int(n), dtype=torch.long) * (index + 10)} for index, n in enumerate(LENGTHS)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        loader = DataLoader(data, 4, shuffle=True, num_workers=1, collate_fn=PaddingCollator({"input_ids": 0}))
        assert sorted(members(contents(lookahead(loader)))) == list(range(203))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_batches_are_pinned_after_collating(monkeypatch):
    pinned = []
    module = sys.modules["speedruntime._lookahead"]
    monkeypatch.setattr(module, "_has_accelerator", lambda: True)
    monkeypatch.setattr(module, "pin_memory", lambda batch: pinned.append(batch) or batch)
    batches = list(lookahead(loader_of(Samples(20), pin_memory=True)))
    assert [id(batch) for batch in pinned] == [id(batch) for batch in batches]
    assert len(list(lookahead(loader_of(Samples(20))))) == len(pinned) == 5


def test_iterable_data_set_under_accelerate():
    from accelerate import Accelerator, skip_first_batches

    loader = Accelerator(cpu=True).prepare(lookahead(DataLoader(Stream(), 4, collate_fn=COLLATE), window=20))
    whole = contents(loader)
    assert sorted(members(whole)) == list(range(203))
    assert efficiency(whole) > 0.9
    assert contents(skip_first_batches(loader, 7)) == whole[7:]


@pytest.mark.filterwarnings("ignore")
def test_loader_made_by_deepspeed():
    dataloader = pytest.importorskip("deepspeed.runtime.dataloader")
    options = {"batch_size": 4, "pin_memory": False, "local_rank": 0, "tput_timer": None, "collate_fn": COLLATE}
    ranks = {"data_parallel_world_size": 1, "data_parallel_rank": 0, "num_local_io_workers": 0}
    old = dataloader.DeepSpeedDataLoader(Samples(), **options, **ranks)
    before = contents(old)
    loader = lookahead(old, window=20)
    after = contents(loader)
    assert loader is old
    assert lookahead(loader) is loader
    assert len(before) == len(after) == len(loader)
    assert sorted(members(after)) == list(range(203))
    assert efficiency(after) > 0.9 > 0.7 > efficiency(before)


def test_transport_keeps_types_and_values():
    samples = [
        {"a": torch.ones(2, dtype=torch.bfloat16), "b": torch.tensor(3), "c": np.arange(2), "d": "x", "e": [1, None]},
        (torch.zeros(2, 2)[:, 0], torch.ones(1, requires_grad=True), torch.eye(2).to_sparse()),
    ]
    first, second = unpacked(pickle.loads(pickle.dumps(Packed(samples))))
    assert first["a"].dtype == torch.bfloat16
    assert (first["b"].item(), first["b"].shape, first["d"], first["e"]) == (3, (), "x", [1, None])
    assert second[0].tolist() == [0, 0]
    assert second[1].requires_grad
    assert second[2].is_sparse


def accelerated(order: str, prepare, *, window: int = 8):
    from accelerate.utils import set_seed

    set_seed(3)
    loader = DataLoader(Samples(), 4, shuffle=True, collate_fn=COLLATE)
    return prepare(lookahead(loader, window=window)) if order == "before" else lookahead(prepare(loader), window=window)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("skip", [1, 8, 13, 50, 51])
def test_d23_skipping_batches_gives_the_identical_tail(order, skip):
    from accelerate import Accelerator, skip_first_batches

    prepare = Accelerator(cpu=True).prepare
    whole = contents(accelerated(order, prepare))
    assert sorted(members(whole)) == list(range(203))
    assert efficiency(whole) > 0.85
    assert contents(skip_first_batches(accelerated(order, prepare), skip)) == whole[skip:]


def _rank(rank: int, port: int, order: str, out: str) -> None:
    import os

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    from accelerate import Accelerator, skip_first_batches
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    whole = contents(accelerated(order, accelerator.prepare))
    tail = contents(skip_first_batches(accelerated(order, accelerator.prepare), 11))
    Path(out, str(rank)).write_text(json.dumps({"whole": whole, "tail": tail, "world": accelerator.num_processes}))
    accelerator.end_training()


@pytest.mark.parametrize("order", ["before", "after"])
def test_d20_two_gloo_processes_share_the_data_and_do_not_hang(order, tmp_path):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(rank, port, order, str(tmp_path))) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    ranks = [json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    assert [rank["world"] for rank in ranks] == [2, 2]
    assert [len(rank["whole"]) for rank in ranks] == [26, 26]
    assert set(members(ranks[0]["whole"] + ranks[1]["whole"])) == set(range(203))
    assert all(efficiency(rank["whole"]) > 0.85 for rank in ranks)
    assert all(rank["whole"][11:] == rank["tail"] for rank in ranks)


def train(tmp_path: Path, *, look: bool, resume: str | None = None, **options):
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, default_data_collator

    seen, evaluated = [], []

    class Model(LlamaForCausalLM):
        def forward(self, input_ids=None, attention_mask=None, labels=None, **rest):
            (seen if self.training else evaluated).append(((input_ids[:, 0] - 10).tolist(), input_ids.shape[1]))
            assert attention_mask is not None
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **rest)

    torch.manual_seed(0)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = Model(LlamaConfig(vocab_size=120, num_key_value_heads=1, max_position_embeddings=64, **shape))
    args = TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, per_device_eval_batch_size=4, save_steps=8,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1000, **options,
    )  # fmt: skip
    collate = PaddingCollator(
        {"input_ids": 0, "labels": -100}, collate_fn=default_data_collator, add_attention_mask=True
    )
    trainer = Trainer(
        model=model, args=args, train_dataset=Samples(100), eval_dataset=Samples(20), data_collator=collate
    )
    if look:
        use_lookahead(trainer, window=5)
    trainer.train(resume_from_checkpoint=resume)
    trainer.evaluate()
    return seen, evaluated, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.transformers4
@pytest.mark.filterwarnings("ignore")
def test_d23_d25_trainer_regroups_training_only_and_resumes(tmp_path):
    plain, _, _ = train(tmp_path / "plain", look=False)
    seen, evaluated, parameters = train(tmp_path / "look", look=True, dataloader_num_workers=1)
    assert len(seen) == len(plain) == 50
    assert sorted(members(seen[:25])) == sorted(members(seen[25:])) == list(range(100))
    assert efficiency(seen) > 0.85 > 0.75 > efficiency(plain)
    assert members(evaluated) == list(range(20))
    for step in (8, 32):
        tail, _, resumed = train(tmp_path / "resumed", look=True, resume=str(tmp_path / "look" / f"checkpoint-{step}"))
        assert tail == seen[step:]
        torch.testing.assert_close(resumed, parameters, rtol=0, atol=0)


def test_efficiency_on_the_measured_sets():
    for name, totals in json.loads(Path(__file__).with_name("lengths.json").read_text()).items():
        lengths = np.minimum(totals, 2048).tolist()
        data = [{"input_ids": range(n)} for n in lengths]
        found = []
        for seed in range(20 if len(lengths) < 3000 else 2):
            torch.manual_seed(seed)
            collate = lambda samples: [len(sample["input_ids"]) for sample in samples]  # noqa: E731
            batches = list(lookahead(DataLoader(data, 8, shuffle=True, collate_fn=collate)))
            found.append(sum(lengths) / sum(len(batch) * max(batch) for batch in batches))
        assert np.mean(found) >= 0.90, name


def test_importing_the_package_loads_neither_torch_nor_transformers():
    import subprocess

    code = "import sys, speedruntime; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(speedruntime.__all__) == set(speedruntime._LAZY)
    assert callable(speedruntime.lookahead)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = speedruntime.nothing
