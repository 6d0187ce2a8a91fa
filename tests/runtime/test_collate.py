"""PaddingCollator and trim_batch against the plain truth, and the traps D1-D10, D13, D14 (shared/research/traps.md)."""

from __future__ import annotations

import pickle
import time
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

from speedruntime import PaddingCollator, pad_values_of, reference, trim_batch, use_train_collator
from speedruntime.trim import real_span

IDS = {"input_ids": 0, "labels": -100}
KINDS = {"list": list, "numpy": np.array, "tensor": torch.tensor, "int32": lambda row: np.array(row, np.int32)}


def samples_of(*lengths: int, kind: Any = torch.tensor) -> list[dict[str, Any]]:
    return [{"input_ids": kind([i + 1] * n), "labels": kind([i + 1] * n)} for i, n in enumerate(lengths)]


def ids(samples: list[dict[str, Any]]) -> Any:
    return [sample["input_ids"] for sample in samples]


rows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=20), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    rows,
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(["right", "left"]),
    st.sampled_from([None, 4, 8]),
    st.sampled_from([None, 20, 22]),
)
def test_d14_equals_reference_for_lists_arrays_and_tensors(rows, kind, side, multiple, max_length):
    plain = [{"input_ids": row, "labels": [-100 if x < 3 else x for x in row]} for row in rows]
    collate = PaddingCollator(
        IDS,
        padding_side=side,
        pad_to_multiple_of=multiple,
        max_length=max_length,
        add_attention_mask=True,
        add_position_ids=True,
    )
    batch = collate([{key: KINDS[kind](row) for key, row in sample.items()} for sample in plain])
    expected = reference.collate(plain, IDS, side=side, multiple=multiple, max_length=max_length)
    assert list(batch) == list(expected)
    assert {key: value.tolist() for key, value in batch.items()} == expected
    assert batch["input_ids"].dtype == (torch.int32 if kind == "int32" else torch.int64)
    assert batch["attention_mask"].dtype == torch.int64


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 5]), min_size=1, max_size=12), st.data(), st.sampled_from(["right", "left"]))
def test_trim_equals_reference(row, data, side):
    labels = [data.draw(st.sampled_from([-100, x])) for x in row]
    sample = {"input_ids": row, "labels": labels}
    expected = reference.trimmed(sample, IDS, side=side)
    start, stop = real_span([(np.array(row), 0), (torch.tensor(labels), -100)], side=side)
    assert {"input_ids": row[start:stop], "labels": labels[start:stop]} == expected
    batch = trim_batch({key: torch.tensor([value]) for key, value in sample.items()}, IDS, padding_side=side)
    assert {key: value[0].tolist() for key, value in batch.items()} == expected


def test_d1_eos_that_is_pad_keeps_its_label():
    samples = [{"input_ids": row, "labels": row} for row in ([5, 6, 0], [7, 0])]
    assert PaddingCollator(IDS)(samples)["labels"].tolist() == [[5, 6, 0], [7, 0, -100]]
    padded = [{"input_ids": [7, 0, 0, 0], "labels": [7, 0, -100, -100]}]
    assert PaddingCollator(IDS, trim=True)(padded)["labels"].tolist() == [[7, 0]]


def test_d2_mask_from_lengths():
    batch = PaddingCollator(IDS, add_attention_mask=True)(
        [{"input_ids": [0, 5, 0], "labels": [1, 1, 1]}, {"input_ids": [0], "labels": [1]}]
    )
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def tiny(kind: str) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=32)
        return transformers.GPT2LMHeadModel(config).eval()
    shape = {
        "vocab_size": 20,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    if kind == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**shape)).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()


def logit_error(kind: str, **options: Any) -> float:
    model = tiny(kind)
    samples = [{"input_ids": torch.randint(1, 20, (n,))} for n in (3, 9, 6)]
    side = options.get("padding_side", "right")
    batch = PaddingCollator({"input_ids": 0}, **options)(samples)
    with torch.no_grad():
        logits = model(**batch).logits
        error = 0.0
        for row, sample in zip(logits, samples, strict=True):
            alone = model(input_ids=sample["input_ids"][None]).logits[0]
            n = len(alone)
            error = max(error, float((alone - (row[:n] if side == "right" else row[-n:])).abs().max()))
    return error


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_d3_positions_on_either_side_equal_single_samples(kind, side):
    assert logit_error(kind, padding_side=side, add_attention_mask=True, add_position_ids=True) < 1e-5


def test_d3_left_padding_without_positions_would_be_wrong():
    assert logit_error("gpt2", padding_side="left", add_attention_mask=True) > 1e-2


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_d4_masked_batch_equals_single_samples(kind):
    assert logit_error(kind, add_attention_mask=True) < 1e-5


def test_d4_encoder_without_mask_would_be_wrong():
    assert logit_error("bert") > 1e-4


def test_d5_padding_of_the_data_set_is_trimmed_first():
    sample = {"input_ids": [5, 6, 7, 0, 0], "labels": [5, 6, 7, -100, -100]}
    collate = PaddingCollator(IDS, trim=True, add_attention_mask=True)
    assert collate.length(sample) == 3
    assert collate([sample])["attention_mask"].tolist() == [[1, 1, 1]]


def test_d7_a_sample_that_nobody_truncated_is_named():
    with pytest.raises(ValueError, match=r"sample 1, field 'input_ids': 11 tokens, expected at most max_length=10"):
        PaddingCollator(IDS, max_length=10)(samples_of(3, 11))


def test_d8_rounding_stops_at_max_length():
    shape = PaddingCollator(IDS, pad_to_multiple_of=64, max_length=1000)(samples_of(990, 2))["input_ids"].shape
    assert shape == (2, 1000)


def test_d9_loss_is_the_mean_over_single_samples():
    model = tiny("llama")
    samples = samples_of(3, 9, 6)
    batch = PaddingCollator(IDS, add_attention_mask=True)(samples)
    assert batch["labels"][0].tolist() == [1, 1, 1] + [-100] * 6
    with torch.no_grad():
        alone = [model(**{key: value[None] for key, value in sample.items()}).loss for sample in samples]
        weights = torch.tensor([2.0, 8.0, 5.0])
        torch.testing.assert_close(model(**batch).loss, (torch.stack(alone) * weights).sum() / 15, rtol=1e-5, atol=0)


def test_d10_unlisted_field_as_long_as_the_tokens_raises():
    samples = [{**sample, "loss_mask": [1] * len(sample["labels"])} for sample in samples_of(3, 2)]
    with pytest.raises(ValueError, match=r"'loss_mask'.*not listed.*add 'loss_mask' to pad_values"):
        PaddingCollator(IDS)(samples)
    assert PaddingCollator({**IDS, "loss_mask": 0})(samples)["loss_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_unlisted_fields_that_are_not_per_token_pass():
    samples = [
        {**sample, "name": "abc"[: len(sample["labels"])], "box": [1.0, 2.0, 3.0]} for sample in samples_of(3, 2)
    ]
    assert PaddingCollator(IDS, collate_fn=list)(samples)[0]["box"] == [1.0, 2.0, 3.0]
    alone = [{"input_ids": [1, 2], "box": [1, 2]}]
    assert PaddingCollator({"input_ids": 0, "box": None})(alone)["box"] is not None


def test_d13_trainer_drops_unused_columns_before_the_collator(tmp_path):
    from transformers import Trainer, TrainingArguments, default_data_collator

    data = [{**sample, "text": "x", "index": i} for i, sample in enumerate(samples_of(3, 5, 2, 4, kind=list))]
    collate = PaddingCollator(IDS, collate_fn=default_data_collator, add_attention_mask=True)
    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=2, report_to=[], use_cpu=True)
    batch = next(
        iter(Trainer(model=tiny("llama"), args=args, train_dataset=data, data_collator=collate).get_train_dataloader())
    )
    assert list(batch) == ["input_ids", "labels", "attention_mask"]


Pair = namedtuple("Pair", "x y index")


def test_tuples_and_namedtuples_keep_their_type():
    samples = [Pair(torch.tensor([1, 2]), np.array([True, False]), 0), Pair(torch.tensor([3]), np.array([True]), 1)]
    batch = PaddingCollator((9, False, None))(samples)
    assert type(batch) is Pair
    assert batch.x.tolist() == [[1, 2], [3, 9]]
    assert batch.y.dtype == torch.bool
    assert batch.y.tolist() == [[True, False], [True, False]]
    assert batch.index.tolist() == [0, 1]
    x, y, _ = PaddingCollator((9, 0, None))([tuple(sample) for sample in samples])
    assert x.shape == y.shape == (2, 2)


def test_batch_encoding_keeps_its_type_and_the_sample_its_values():
    from transformers import BatchEncoding

    samples = [BatchEncoding({"input_ids": [1, 2]}), BatchEncoding({"input_ids": [3]})]
    padded = PaddingCollator({"input_ids": 0}, collate_fn=list)(samples)
    assert [type(sample) for sample in padded] == [BatchEncoding, BatchEncoding]
    assert [sample["input_ids"] for sample in padded] == [[1, 2], [3, 0]]
    assert samples[1]["input_ids"] == [3]


def test_the_wrapped_collate_makes_the_batch():
    def collate(samples):
        return {"x": torch.stack([s["input_ids"] for s in samples]), "n": len(samples)}

    batch = PaddingCollator(IDS, collate_fn=collate, add_attention_mask={"input_ids": "mask"})(samples_of(1, 3))
    assert list(batch) == ["x", "n", "mask"]


def test_equal_lengths_give_what_the_old_collate_gave():
    samples = [{**sample, "weight": 0.5} for sample in samples_of(4, 4)]
    new, old = PaddingCollator(IDS)(samples), default_collate(samples)
    assert list(new) == list(old)
    for key in old:
        torch.testing.assert_close(new[key], old[key])


def test_longest_rows_are_not_copied():
    samples = samples_of(5, 2, 5)
    padded = ids(PaddingCollator(IDS, collate_fn=list)(samples))
    assert [padded[i] is samples[i]["input_ids"] for i in range(3)] == [True, False, True]


def test_two_dimensional_and_float_fields():
    samples = [
        {"input_ids": torch.ones(n).long(), "box": torch.ones(n, 4), "bias": np.ones(n, np.float32)} for n in (2, 3)
    ]
    batch = PaddingCollator({"input_ids": 0, "box": -1, "bias": -np.inf}, add_attention_mask=True)(samples)
    assert batch["box"].shape == (2, 3, 4)
    assert batch["box"][0, 2].tolist() == [-1] * 4
    assert batch["bias"].dtype == torch.float32
    assert batch["bias"][0, 2] == -np.inf


def test_separate_groups_and_joint_sets():
    encoder_decoder = PaddingCollator(IDS, groups=[["input_ids"], ["labels"]], add_attention_mask=True)
    batch = encoder_decoder([{"input_ids": [1] * 5, "labels": [1]}, {"input_ids": [1], "labels": [1, 2]}])
    assert (batch["input_ids"].shape, batch["labels"].shape) == ((2, 5), (2, 2))
    joint = PaddingCollator(
        {"chosen": 0, "rejected": 0},
        groups=[[["chosen"], ["rejected"]]],
        add_attention_mask={"chosen": "chosen_mask", "rejected": "rejected_mask"},
    )
    batch = joint([{"chosen": [1] * 5, "rejected": [1]}, {"chosen": [1], "rejected": [1, 2]}])
    assert batch["chosen"].shape == batch["rejected"].shape == (2, 5)
    assert batch["rejected_mask"].sum(1).tolist() == [1, 2]


def test_nested_fields():
    samples = [{"query": {"input_ids": [1] * n}, "doc": ([2] * (4 - n), "x")} for n in (1, 3)]
    collate = PaddingCollator(
        {"query": {"input_ids": 0}, "doc": (7, None)},
        groups=[["query.input_ids"], ["doc.0"]],
        padding_side={"doc.0": "left"},
    )
    batch = collate(samples)
    assert batch["query"]["input_ids"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch["doc"][0].tolist() == [[2, 2, 2], [7, 7, 2]]


def test_listed_mask_of_the_sample_is_padded_and_kept():
    samples = [{"input_ids": [1, 2, 3], "attention_mask": [0, 1, 1]}, {"input_ids": [1], "attention_mask": [1]}]
    collate = PaddingCollator({"input_ids": 9, "attention_mask": 0}, add_attention_mask=True)
    assert collate(samples)["attention_mask"].tolist() == [[0, 1, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match=r"sample 0.*attention_mask"):
        PaddingCollator({"input_ids": 9}, add_attention_mask=True)(samples)


def test_trim_with_a_mask_finds_left_padding_and_pads_right():
    samples = [
        {"input_ids": [0, 0, 5], "labels": [-100, -100, 5], "attention_mask": [0, 0, 1]},
        {"input_ids": [0, 6, 7], "labels": [-100, 6, 7], "attention_mask": [0, 1, 1]},
    ]
    batch = PaddingCollator({**IDS, "attention_mask": 0}, trim=True)(samples)
    assert batch["input_ids"].tolist() == [[5, 0], [6, 7]]
    assert batch["labels"].tolist() == [[5, -100], [6, 7]]
    assert batch["attention_mask"].tolist() == [[1, 0], [1, 1]]
    left = PaddingCollator({**IDS, "attention_mask": 0}, trim=True, padding_side="left")(samples)
    assert left["input_ids"].tolist() == [[0, 5], [6, 7]]
    assert left["attention_mask"].tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_tokens_may_be_the_second_dimension(kind):
    rows = [
        {"input_ids": kind([[5, 6, 0, 0], [7, 0, 0, 0]]), "attention_mask": kind([[1, 1, 0, 0], [1, 0, 0, 0]]), "y": 1},
        {"input_ids": kind([[8, 0, 0, 0], [9, 9, 9, 0]]), "attention_mask": kind([[1, 0, 0, 0], [1, 1, 1, 0]]), "y": 0},
    ]
    collate = PaddingCollator({"input_ids": 0, "attention_mask": 0}, trim=True, dim=1)
    batch = collate([dict(row) for row in rows])
    assert batch["input_ids"].tolist() == [[[5, 6, 0], [7, 0, 0]], [[8, 0, 0], [9, 9, 9]]]
    assert batch["attention_mask"].tolist() == [[[1, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 1, 1]]]
    assert [collate.length(row) for row in rows] == [2, 3]
    with pytest.raises(ValueError, match="'other': it is as long as the tokens"):
        collate([{**row, "other": row["input_ids"]} for row in rows])
    with pytest.raises(ValueError, match="dim is 1"):
        PaddingCollator({"input_ids": 0}, dim=1, add_attention_mask=True)


def test_a_field_called_label_stays_a_list_for_transformers():
    from transformers import default_data_collator

    rows = [{"input_ids": [5, 0, 0], "label": [5, -100, -100]}, {"input_ids": [5, 6, 0], "label": [5, 6, -100]}]
    collate = PaddingCollator({"input_ids": 0, "label": -100}, collate_fn=default_data_collator, trim=True)
    assert collate(rows)["labels"].tolist() == default_data_collator(rows)["labels"][:, :2].tolist()


def test_trim_keeps_what_equally_long_samples_hold_at_padding():
    samples = [
        {"input_ids": [5, 0, 0, 0], "labels": [5, -100, -100, -100], "position_ids": [0, 1, 2, 3]},
        {"input_ids": [6, 7, 0, 0], "labels": [6, 7, -100, -100], "position_ids": [0, 1, 2, 3]},
    ]
    batch = PaddingCollator({**IDS, "position_ids": ...}, trim=True)(samples)
    assert batch["position_ids"].tolist() == [[0, 1], [0, 1]]
    assert batch["labels"].tolist() == [[5, -100], [6, 7]]
    longer = PaddingCollator({**IDS, "position_ids": ...}, trim=True, pad_to_multiple_of=3)(samples)
    assert longer["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]
    wider = PaddingCollator({**IDS, "position_ids": ...}, trim=True, pad_to_multiple_of=8)
    with pytest.raises(ValueError, match="is only cut"):
        wider(samples)


def test_an_ellipsis_is_for_trim_alone():
    with pytest.raises(ValueError, match="which only trim=True can do"):
        PaddingCollator({**IDS, "position_ids": ...})


def test_trim_groups_fields_by_their_length():
    samples = [
        {"input_ids": [5, 0, 0, 0], "attention_mask": [1, 0, 0, 0], "labels": [6, 7, -100]},
        {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0], "labels": [6, -100, -100]},
    ]
    collate = PaddingCollator({**IDS, "attention_mask": 0}, trim=True)
    batch = collate(samples)
    assert {name: list(value.shape) for name, value in batch.items()} == {
        "input_ids": [2, 2], "attention_mask": [2, 2], "labels": [2, 2]
    }  # fmt: skip
    assert [collate.length(sample) for sample in samples] == [2, 2]


def test_trim_refuses_ids_whose_length_is_all_their_own():
    samples = [{"input_ids": [5, 0, 0, 0], "labels": [6, 7, -100]}]
    with pytest.raises(ValueError, match="padding cannot be found by 'input_ids' alone"):
        PaddingCollator(IDS, trim=True)(samples)


def test_trim_leaves_out_what_no_sample_has():
    samples = [{"input_ids": [5, 0, 0], "labels": [5, -100, -100]}, {"input_ids": [5, 6, 0], "labels": [5, 6, -100]}]
    collate = PaddingCollator({**IDS, "segments": 0}, trim=True)
    assert collate(samples)["input_ids"].tolist() == [[5, 0], [5, 6]]
    with pytest.raises(ValueError, match="sample 1 has no field 'segments'"):
        collate([{**samples[0], "segments": [0, 0, 0]}, samples[1]])
    with pytest.raises(ValueError, match="padding cannot be found by 'input_ids' alone"):
        collate([{"input_ids": [5, 0, 0]}])


def test_trim_by_ids_alone_asks_for_a_word():
    with pytest.raises(ValueError, match="padding cannot be found by 'input_ids' alone"):
        PaddingCollator({"input_ids": 0}, trim=True)
    collate = PaddingCollator({"input_ids": 0}, trim=True, mask_is_not_pad=True)
    assert collate([{"input_ids": [5, 0, 0]}, {"input_ids": [5, 6, 0]}])["input_ids"].tolist() == [[5, 0], [5, 6]]


def test_the_pad_values_of_a_tokenizer():
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = SimpleNamespace(pad_token_id=3, pad_token_type_id=1, model_input_names=names)
    assert pad_values_of(tokenizer, labels=-100) == {
        "input_ids": 3, "token_type_ids": 1, "attention_mask": 0, "labels": -100
    }  # fmt: skip
    tokenizer.pad_token_id = None
    with pytest.raises(ValueError, match="has no pad token"):
        pad_values_of(tokenizer)


def test_a_trainer_collates_its_training_batches_alone_with_another_collator():
    trainer = SimpleNamespace(data_collator="old")
    trainer.get_train_dataloader = lambda: f"train with {trainer.data_collator}"
    use_train_collator(trainer, "new")
    assert (trainer.get_train_dataloader(), trainer.data_collator) == ("train with new", "old")


def test_trim_keeps_a_beginning_that_looks_like_padding_where_no_mask_tells():
    sample = {"input_ids": [0, 5, 6, 0], "labels": [-100, -100, 6, -100]}
    assert PaddingCollator(IDS, trim=True)([sample])["input_ids"].tolist() == [[0, 5, 6]]


def test_trim_never_by_an_id_alone():
    with pytest.raises(ValueError, match="'input_ids' alone"):
        PaddingCollator({"input_ids": 0}, trim=True)
    with pytest.raises(ValueError, match="'input_ids' alone"):
        trim_batch({"input_ids": torch.zeros(1, 4)}, {"input_ids": 0})


def test_trim_keeps_one_position_of_a_row_that_is_all_padding():
    samples = [{"input_ids": [0, 0], "labels": [-100, -100]}]
    assert PaddingCollator(IDS, trim=True)(samples)["input_ids"].tolist() == [[0]]


def test_trim_batch_gives_contiguous_fields_and_keeps_the_rest():
    ids_, labels, index = torch.tensor([[5, 0, 0, 0], [5, 6, 0, 0]]), torch.tensor([[5, 0, 0, 0]] * 2), torch.arange(2)
    x, y, rest = trim_batch((ids_, labels, index), (0, 0, None), pad_to_multiple_of=3)
    assert x.tolist() == [[5, 0, 0], [5, 6, 0]]
    assert (x.is_contiguous(), y.shape, rest is index) == (True, (2, 3), True)


@pytest.mark.parametrize("side", ["right", "left"])
def test_trim_batch_cuts_a_later_dimension(side):
    ids_ = torch.tensor([[[5, 6, 0, 0], [7, 0, 0, 0]], [[8, 0, 0, 0], [9, 0, 0, 0]]])
    labels = torch.tensor([[[-100, 6, -100, -100], [-100] * 4]] * 2)
    if side == "left":
        ids_, labels = ids_.flip(2), labels.flip(2)
    x, y, last = trim_batch((ids_, labels, torch.ones(2, 2)), (0, -100, None), padding_side=side, dim=2)
    assert (x.shape, y.shape, last.shape) == ((2, 2, 2), (2, 2, 2), (2, 2))
    assert x.tolist() == (ids_[..., 2:] if side == "left" else ids_[..., :2]).tolist()
    assert trim_batch((ids_, labels), (0, -100), padding_side=side)[0].shape == (2, 2, 4)  # C is no padding


def test_trim_batch_cuts_by_ids_alone_where_the_mask_is_made_of_them():
    (ids_,) = trim_batch((torch.tensor([[5, 0, 0], [0, 6, 0]]),), (0,), mask_is_not_pad=True)
    assert ids_.tolist() == [[5, 0], [0, 6]]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PaddingCollator({}), "lists no per-token field"),
        (lambda: PaddingCollator((None, None)), "lists no per-token field"),
        (lambda: PaddingCollator(IDS, padding_side="middle"), "expected 'right' or 'left'"),
        (lambda: PaddingCollator(IDS, padding_side={"labels": "left"}), "padding_side differs"),
        (lambda: PaddingCollator(IDS, groups=[["input_ids"]]), "'labels' 0 times"),
        (lambda: PaddingCollator(IDS, groups=[["input_ids", "label"]]), "'label', which pad_values does not list"),
        (lambda: PaddingCollator(IDS, pad_to_multiple_of=0), "pad_to_multiple_of is 0"),
        (lambda: PaddingCollator((0, 0), add_attention_mask=True), "a tuple never grows"),
        (lambda: PaddingCollator((0, 0), add_position_ids=True), "a tuple never grows"),
        (lambda: PaddingCollator(IDS)([]), "batch is empty"),
        (lambda: PaddingCollator(IDS)(samples_of(3, 0)), "sample 1 has no tokens in 'input_ids'"),
        (lambda: PaddingCollator(IDS)([{"input_ids": [1, 2]}]), "sample 0 has no field 'labels'"),
        (lambda: PaddingCollator(IDS)([{"input_ids": [1], "labels": 3}]), "field 'labels': expected a list"),
        (
            lambda: PaddingCollator(IDS)([{"input_ids": [1], "labels": torch.tensor(3)}]),
            "field 'labels': expected a list",
        ),
        (lambda: PaddingCollator(IDS)([{"input_ids": [1, 2], "labels": [1]}]), "'labels' has 1 entries, expected 2"),
        (lambda: PaddingCollator(IDS)([([1], [1])]), "sample 0 is tuple, expected a dict"),
        (lambda: PaddingCollator((0, 0))([([1], [1], [1])]), "sample 0 has 3 slots, expected 2"),
        (
            lambda: PaddingCollator(IDS)(samples_of(1, 2) + samples_of(1, kind=list)),
            "sample 2, field 'input_ids': dtype",
        ),
        (lambda: PaddingCollator({"m": -100})([{"m": torch.ones(n).bool()} for n in (1, 2)]), "'m'.*-100 does not fit"),
        (lambda: PaddingCollator({"m": -100})([{"m": np.ones(n, np.uint8)} for n in (1, 2)]), "'m'.*-100 does not fit"),
        (
            lambda: PaddingCollator({"m": 0}, collate_fn=list, add_attention_mask=True)([{"m": [1]}]),
            "expected a dict from collate_fn",
        ),
        (
            lambda: PaddingCollator({"m": 0}, collate_fn=lambda s: {}, add_attention_mask=True)([{"m": [1]}]),
            "build the mask in collate_fn",
        ),
        (lambda: trim_batch({"a": torch.ones(1, 2)}, {"b": -100}), "no field 'b'"),
        (lambda: trim_batch({"a": torch.ones(1, 2), "b": torch.ones(1, 3)}, {"a": 0, "b": -1}), "field 'b' is"),
        (lambda: trim_batch((torch.ones(1, 2),), (0,)), "cannot be found by 0 alone"),
        (lambda: trim_batch((torch.ones(1, 2),), (None,), mask_is_not_pad=True), "lists no per-token field"),
        (lambda: trim_batch((torch.ones(1, 2),), (-1,), dim=2), "dim is 2"),
    ],
)
def test_bad_input_is_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_works_in_spawned_workers():
    collate = PaddingCollator(IDS, add_attention_mask=True)
    assert pickle.loads(pickle.dumps(collate))(samples_of(1, 2))["labels"].shape == (2, 2)
    loader = DataLoader(
        samples_of(1, 3, 2, 4), batch_size=2, collate_fn=collate, num_workers=1, multiprocessing_context="spawn"
    )
    assert [batch["input_ids"].shape for batch in loader] == [(2, 3), (2, 4)]


@pytest.mark.parametrize("method", ["seq2seq", "default"])
def test_is_three_times_as_fast_as_hf_collators(method):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, default_data_collator

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"p": 0, "q": 1}, "q")), pad_token="p")
    lengths = [2048] * 8 if method == "default" else [2048, 100, 1000, 700, 40, 1500, 300, 900]
    samples = [{**sample, "attention_mask": sample["labels"]} for sample in samples_of(*lengths, kind=list)]
    ours = PaddingCollator({**IDS, "attention_mask": 0}, collate_fn=default_data_collator)
    theirs = (
        default_data_collator if method == "default" else DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)
    )

    def seconds(collate: Any) -> float:
        started = time.process_time()
        for _ in range(5):
            collate(list(samples))
        return time.process_time() - started

    pairs = [(seconds(ours), seconds(theirs)) for _ in range(5)]
    assert min(mine for mine, _ in pairs) < min(other for _, other in pairs) / 3
