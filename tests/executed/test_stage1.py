"""The stage1 project (HF Trainer, DeepSpeed) trains the same after its migration, on the CPU."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch

from tests.executed.compare import (
    Proof,
    Stream,
    assert_exact,
    assert_same_samples,
    assert_trains,
    files,
    loss_error,
    num_real,
    num_slots,
    relative_l2,
    samples,
    trained_batches,
)
from tests.executed.facts import assert_applies_and_reverts, assert_goal_alone
from tests.executed.projects import EXACT, GOALS, Result, Run, Script, Workshop

TOKENS = Stream({"input_ids": 0, "labels": -100, "attention_mask": 0})
PROOF = Proof((TOKENS,), (TOKENS,))
_FLAGS = """
    --model_name_or_path {tiny}/model --mix_weights 0.5,0.2,0.1,0.2 --output_dir {out} --model_max_length 256
    --per_device_train_batch_size 4 --learning_rate 1e-3 --lr_scheduler_type constant --logging_steps 1 --seed 1
    --save_strategy no --report_to none --use_cpu True --show_sample False --cmb_path {tiny}/data/cmb_train.json
"""
_OTHER_DATA = """
    --med_qa_path {tiny}/data/med_qa.jsonl --multi_turn_path {tiny}/data/multi_turn.json
    --mmap_prefix {tiny}/data/pretrain
"""
_PATH = "stage1_nemotron_qwen_djh_deepspeed_dev_zch_v4_lqy.py"
MIXED = Script("stage1", _PATH, (*_FLAGS.split(), *_OTHER_DATA.split()))
# What the launch file passes beside these, but bf16.
_LAUNCHED = """
    --gradient_accumulation_steps 2 --weight_decay 0.1 --adam_beta2 0.95 --gradient_checkpointing True
    --dataloader_num_workers 2
"""
LAUNCHED = tuple(_LAUNCHED.split())
LEFT_PADDED = Script("stage1", _PATH, tuple(_FLAGS.split()))


def test_patch(workshop: Workshop, tmp_path: Path) -> None:
    assert_applies_and_reverts(workshop, MIXED, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
def test_goal_alone(workshop: Workshop, goal: str) -> None:
    assert_goal_alone(workshop, MIXED, goal)


@pytest.mark.slow
@pytest.mark.transformers4
@pytest.mark.parametrize("flags", [pytest.param((), id="plain"), pytest.param(LAUNCHED, id="as_launched")])
def test_exact(workshop: Workshop, flags: tuple[str, ...]) -> None:
    old, new = workshop.run(Run(MIXED, flags=flags)), workshop.run(Run(MIXED, EXACT, flags=flags))
    print("exact:", assert_exact(old, new, PROOF), "slots", slots(old), "->", slots(new))
    assert old["num_steps"] == new["num_steps"] == 20
    assert slots(new) < slots(old)
    assert [group["fused"] for group in new["optimizer"]] == [True, True]


@pytest.mark.slow
def test_exact_parameters(workshop: Workshop) -> None:
    """After SGD: Adam turns rounding noise into steps of the whole learning rate where a gradient is 0."""
    flags = ("--optim", "sgd", "--learning_rate", "0.1")
    old = workshop.run(Run(MIXED, steps=8, flags=flags))
    new = workshop.run(Run(MIXED, EXACT, steps=8, flags=flags))
    assert_exact(old, new, PROOF)
    assert list(new["parameters"]) == list(old["parameters"])
    flat = [torch.cat([value.flatten() for value in result["parameters"].values()]) for result in (old, new)]
    print("parameters:", relative_l2(*flat))
    assert relative_l2(*flat) <= 1e-5


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")
def test_exact_compiled(workshop: Workshop) -> None:
    old, new = workshop.run(Run(MIXED)), workshop.run(Run(MIXED, EXACT, disable=""))
    print("compiled:", assert_exact(old, new, PROOF), new["num_graphs"], "graphs", new["log"])
    assert new["num_graphs"] == 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed")
def test_exact_deepspeed(workshop: Workshop) -> None:
    flags = ("--deepspeed", "ds_config_zero2.json")
    old = workshop.run(Run(MIXED, flags=flags, processes=1))
    new = workshop.run(Run(MIXED, EXACT, flags=flags, processes=1))
    print("ZeRO-2:", assert_exact(old, new, PROOF))
    assert len(new["losses"]) == 20


@pytest.mark.slow
@pytest.mark.transformers4
@pytest.mark.filterwarnings("ignore")
def test_left_padding_is_corrected(workshop: Workshop) -> None:
    """The new loss and gradients are those of single samples without padding; the old ones were not."""
    old = workshop.run(Run(LEFT_PADDED))
    new = workshop.run(Run(LEFT_PADDED, ("--effect", "exact,corrects")))
    loss, gradients = _truth(workshop.tiny("stage1") / "model", old)
    errors = [abs(result["losses"][0] - loss) / loss for result in (old, new)]
    gradient_errors = [relative_l2(gradients, result["gradients"]) for result in (old, new)]
    print(f"loss {old['losses'][0]:.6f} -> {new['losses'][0]:.6f}, truth {loss:.6f}, errors {errors}")
    print(
        f"gradients: distance to the truth {gradient_errors}; losses differ by",
        loss_error(old["losses"], new["losses"]),
    )
    assert errors[1] <= 1e-5 < errors[0]
    assert gradient_errors[1] <= 1e-5
    assert gradient_errors[0] > 0.01
    assert loss_error(old["losses"], new["losses"]) > 1e-4
    assert_same_samples(old["batches"], new["batches"], TOKENS)
    assert_same_samples(old["calls"], new["calls"], TOKENS)
    assert_trains(new)


def slots(result: Result) -> int:
    """Return the positions that were trained on."""
    return num_slots(trained_batches(result), TOKENS)


def _truth(model_path: Path, result: Result) -> tuple[float, torch.Tensor]:
    """Return loss and gradients of the first batch, one unpadded sample at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    logits, targets = [], []
    for sample in samples(result["batches"][0], TOKENS):
        logits.append(model(torch.tensor([sample["input_ids"]])).logits[0, :-1])
        targets.append(torch.tensor(sample["labels"][1:]))
    loss = torch.nn.functional.cross_entropy(torch.cat(logits), torch.cat(targets))
    loss.backward()
    gradients = [parameter.grad.flatten() for _, parameter in sorted(model.named_parameters())]
    return loss.item(), torch.cat(gradients)


@pytest.mark.slow
@pytest.mark.transformers4
@pytest.mark.parametrize(
    "flags", [pytest.param((), id="plain"), pytest.param((*LAUNCHED, "--bf16", "True"), id="as_launched")]
)
def test_everything_on_trains(workshop: Workshop, flags: tuple[str, ...]) -> None:
    old, new = workshop.run(Run(MIXED, flags=flags)), workshop.run(Run(MIXED, (), flags=flags))
    assert new["num_steps"] == 20
    assert_trains(new)
    ratios = [num_real(trained_batches(result), TOKENS) / slots(result) for result in (old, new)]
    print("real/slots:", ratios, "slots", slots(old), "->", slots(new), "loss", new["losses"])
    assert files(new.out) == files(old.out)
    assert ratios[1] > 0.9 > ratios[0]
