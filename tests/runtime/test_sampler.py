"""Batch plans by property, and the traps D20-D24, D27 (shared/research/traps.md)."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from speedruntime import LengthBucketBatchSampler, reference
from speedruntime.plan import bucket, slot_efficiency

# Lengths in tokens of public SFT sets (one 8k BPE for all), cut as a script with max_length=2048 would.
MEASURED = {
    name: np.minimum(np.array(lengths), 2048)
    for name, lengths in json.loads(Path(__file__).with_name("lengths.json").read_text()).items()
}
UNEVEN = MEASURED["medical_qa_zh_long"]
FEW = MEASURED["tool_calling_en"]


def batches_of(sampler: LengthBucketBatchSampler, epoch: int = 0) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def sample_pairs(batches: list[list[int]]) -> set[tuple[int, int]]:
    return {(a, b) for batch in batches for a in batch for b in batch if a < b}


plans = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 5),
        "num_replicas": st.integers(1, 4),
        "drop_last": st.booleans(),
        "gradient_accumulation_steps": st.integers(1, 3),
        "shuffle": st.booleans(),
        "seed": st.integers(-3, 3),
    }
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), plans, st.integers(0, 3))
def test_d20_ranks_cover_the_data_with_equal_batches(lengths, options, epoch):
    world, size = options["num_replicas"], options["batch_size"]
    ranks = [batches_of(LengthBucketBatchSampler(lengths, rank=rank, **options), epoch) for rank in range(world)]
    expected = reference.num_batches(len(lengths), size, num_replicas=world, drop_last=options["drop_last"])
    assert [len(batches) for batches in ranks] == [expected] * world
    assert len({tuple(len(batch) for batch in batches) for batches in ranks}) == 1
    seen = Counter(index for batches in ranks for batch in batches for index in batch)
    assert sum(seen.values()) - len(seen) <= world - 1
    if not options["drop_last"]:
        assert set(seen) == set(range(len(lengths)))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("total", "world"), [(17, 2), (16, 2), (23, 4), (7, 1), (3, 4)])
def test_d26_as_many_batches_as_the_old_loader(total, world, drop_last):
    data = list(range(total))
    old = DataLoader(data, 3, sampler=DistributedSampler(data, world, 0), drop_last=drop_last)
    new = LengthBucketBatchSampler([5] * total, 3, num_replicas=world, drop_last=drop_last)
    assert len(DataLoader(data, batch_sampler=new)) == len(old) == len(list(new))


def test_d27_last_batch_is_short_or_dropped():
    assert [len(batch) for batch in LengthBucketBatchSampler(range(1, 12), 4)] == [4, 4, 3]
    assert [len(batch) for batch in LengthBucketBatchSampler(range(1, 12), 4, drop_last=True)] == [4, 4]


def test_d27_other_samples_are_dropped_in_each_epoch():
    sampler = LengthBucketBatchSampler(range(1, 12), 4, drop_last=True)
    kept = {frozenset(index for batch in batches_of(sampler, epoch) for index in batch) for epoch in range(4)}
    assert len(kept) > 1


@pytest.mark.parametrize("name", MEASURED)
def test_efficiency_order_and_membership(name):
    lengths = MEASURED[name]
    sampler = LengthBucketBatchSampler(lengths, 8, seed=1)
    epochs = [batches_of(sampler, epoch) for epoch in range(4)]
    assert min(slot_efficiency(lengths, [np.array(batch) for batch in batches]) for batches in epochs) >= 0.93
    # D24: no cycle of lengths.
    for batches in epochs:
        means = np.array([lengths[batch].mean() for batch in batches])
        assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.3
    # A full sort would keep nearly every pair.
    for before, after in pairwise(epochs):
        pairs = sample_pairs(before)
        assert len(pairs & sample_pairs(after)) < 0.5 * len(pairs)


def test_ranks_work_on_like_lengths_at_the_same_step():
    lengths = UNEVEN
    ranks = [list(LengthBucketBatchSampler(lengths, 4, num_replicas=4, rank=rank)) for rank in range(4)]
    longest = np.array([[lengths[batch].max() for batch in batches] for batches in ranks])
    assert longest.mean() / longest.max(0).mean() > 0.9


def test_accumulation_windows_hold_like_lengths():
    lengths = UNEVEN
    batches = list(LengthBucketBatchSampler(lengths, 5, gradient_accumulation_steps=4))
    means = np.array([lengths[batch].mean() for batch in batches]).reshape(-1, 4)
    assert means.std(1).mean() < 0.2 * means.std()


def test_d21_plan_is_the_same_on_every_rank_and_run():
    options = {"batch_size": 4, "num_replicas": 2, "seed": 5}
    orders = [LengthBucketBatchSampler(FEW, rank=rank, **options).plan().order for rank in (0, 1, 0)]
    np.random.seed(1)
    torch.manual_seed(1)
    assert (orders[0] == orders[1]).all()
    assert (orders[0] == orders[2]).all()


def _planning_rank(rank: int, path: str, lengths: list[int]) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
    sampler = LengthBucketBatchSampler(lengths, 2, num_replicas=2, rank=rank)
    try:
        said = f"{len(list(sampler))} batches"
    except ValueError as error:
        said = str(error)
    Path(path, str(rank)).write_text(said)
    dist.destroy_process_group()


@pytest.mark.parametrize(("other", "says"), [([3, 1, 2, 2, 9], "2 batches"), ([3, 1, 2, 2, 8], "rank 1 plans with")])
def test_d21_ranks_with_other_lengths_stop_instead_of_hanging(other, says, tmp_path):
    context = torch.multiprocessing.get_context("fork")
    lengths = ([3, 1, 2, 2, 9], other)
    processes = [context.Process(target=_planning_rank, args=(rank, str(tmp_path), lengths[rank])) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    said = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    assert said[0] == said[1]
    assert re.match(says, said[0])


def test_d22_epochs_differ_with_and_without_set_epoch():
    sampler = LengthBucketBatchSampler(FEW, 8)
    own = [list(sampler), list(sampler)]
    assert own[0] != own[1]
    assert own == [batches_of(LengthBucketBatchSampler(FEW, 8), epoch) for epoch in (0, 1)]


@pytest.mark.parametrize("stop", [0, 1, 20, 38])
def test_d23_resume_gives_the_identical_tail(stop):
    sampler = LengthBucketBatchSampler(FEW, 8, seed=2)
    sampler.set_epoch(3)
    expected = list(sampler) + list(sampler)
    sampler.set_epoch(3)
    used = iter(sampler)
    head = [next(used) for _ in range(stop)]
    resumed = LengthBucketBatchSampler(FEW, 8)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert head + list(resumed) + list(resumed) == expected
    resumed.load_state_dict({**sampler.state_dict(num_batches=7), "epoch": 3})
    assert list(resumed) == expected[7 : len(sampler)]


def test_accelerate_shards_it_and_forwards_the_epoch():
    from accelerate.data_loader import BatchSamplerShard, DataLoaderShard

    data = list(range(203))
    lengths = UNEVEN[:203]
    seen = []
    for rank in (0, 1):
        sampler = LengthBucketBatchSampler(lengths, 4, gradient_accumulation_steps=2)
        loader = DataLoaderShard(data, batch_sampler=BatchSamplerShard(sampler, 2, rank))
        loader.set_epoch(2)
        assert sampler.epoch == 2
        seen.append([batch.tolist() for batch in loader])
    assert len(seen[0]) == len(seen[1])
    assert {index for batches in seen for batch in batches for index in batch} == set(data)


@pytest.mark.parametrize("world", [1, 3])
def test_token_budget(world):
    lengths = UNEVEN
    ranks = [LengthBucketBatchSampler(lengths, 64, max_tokens=4096, num_replicas=world, rank=r) for r in range(world)]
    plans = [list(sampler) for sampler in ranks]
    assert {len(plan) for plan in plans} == {len(ranks[0])}
    assert max(len(batch) * lengths[batch].max() for plan in plans for batch in plan) <= 4096
    assert {index for plan in plans for batch in plan for index in batch} == set(range(len(lengths)))
    dropped = LengthBucketBatchSampler(lengths, 64, max_tokens=4096, num_replicas=world, drop_last=True)
    assert len(ranks[0]) - 1 <= len(list(dropped)) <= len(ranks[0])


def test_disabled_leaves_lengths_aside(monkeypatch):
    monkeypatch.setenv("SPEEDRUNTIME_DISABLE", "bucket")
    batches = [np.array(batch) for batch in LengthBucketBatchSampler(UNEVEN, 8)]
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert slot_efficiency(UNEVEN, batches) < 0.6


def test_shuffle_false_keeps_the_order_of_a_distributed_sampler():
    data = list(range(10))
    for rank in (0, 1):
        old = DataLoader(data, 2, sampler=DistributedSampler(data, 2, rank, shuffle=False))
        new = DataLoader(
            data, batch_sampler=LengthBucketBatchSampler(data, 2, num_replicas=2, rank=rank, shuffle=False)
        )
        assert [batch.tolist() for batch in new] == [batch.tolist() for batch in old]


def test_ten_million_lengths_in_five_seconds_and_a_gigabyte():
    import resource

    lengths = np.random.default_rng(0).integers(1, 2048, 10_000_000).astype(np.int32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    plan = LengthBucketBatchSampler(lengths, 8).plan()
    seconds = time.process_time() - started
    assert seconds < 5
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 1024
    assert len(plan.starts) == 1_250_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([], 2), "lengths has shape"),
        (([1.5], 2), "dtype float64"),
        (([3, -1], 2), "sample 1 has length -1"),
        (([3], 0), "batch_size is 0"),
        (([3], 2, {"rank": 1}), "rank is 1; expected 0 to 0"),
        (([3], 2, {"gradient_accumulation_steps": 0}), "gradient_accumulation_steps is 0"),
        (([3, 9], 2, {"max_tokens": 8}), "sample 1 has 9 tokens, expected at most max_tokens=8"),
    ],
)
def test_bad_input_is_named(arguments, says):
    lengths, size, options = (*arguments, {})[:3]
    with pytest.raises(ValueError, match=says):
        LengthBucketBatchSampler(lengths, size, **options)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 5))
def test_bucket_is_a_permutation_in_the_sizes_given(lengths, size, seed):
    sizes = [size] * (len(lengths) // size) + ([len(lengths) % size] if len(lengths) % size else [])
    batches = bucket(np.array(lengths), sizes, np.random.default_rng(seed), jitter=size)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert [len(batch) for batch in batches] == sorted(sizes, reverse=True)


def test_at_least_as_efficient_as_hf_group_by_length():
    from transformers.trainer_pt_utils import get_length_grouped_indices

    for name, lengths in MEASURED.items():
        ours = slot_efficiency(lengths, [np.array(batch) for batch in LengthBucketBatchSampler(lengths, 8)])
        order = get_length_grouped_indices(lengths.tolist(), 8, generator=torch.Generator().manual_seed(0))
        theirs = slot_efficiency(lengths, [np.array(order[i : i + 8]) for i in range(0, len(order), 8)])
        assert ours >= max(theirs, 0.93), name
