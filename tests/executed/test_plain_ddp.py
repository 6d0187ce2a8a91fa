"""The plain_ddp project (a loop in plain PyTorch) trains the same after its migration, on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.executed.compare import (
    Proof,
    Stream,
    assert_exact,
    assert_trains,
    files,
    loss_error,
    num_real,
    num_slots,
    trained_batches,
)
from tests.executed.facts import assert_applies_and_reverts, assert_goal_alone
from tests.executed.projects import EXACT, GOALS, Result, Run, Script, Workshop

# Inputs, targets and loss mask; the model gets the inputs alone.
TOKENS = Stream({"0": 0, "1": 0, "2": 0}, counted="2")
PROOF = Proof((TOKENS,), (), derived=("tokens", "0"))
_FLAGS = """
    --tokenizer {tiny}/tokenizer --out_dir {out} --device cpu --dim 64 --n_layers 2 --n_heads 4 --max_seq_len 256
    --batch_size 8 --learning_rate 1e-3 --log_interval 1 --num_workers 0
"""


def _script(path: str, data: str, *flags: str) -> Script:
    return Script("plain_ddp", path, (*_FLAGS.split(), "--data_path", f"{{tiny}}/{data}", *flags))


SFT = _script("train_full_sft.py", "sft.jsonl")
PRETRAIN = _script("train_pretrain.py", "pretrain.jsonl", "--accumulation_steps", "2", "--warmup_iters", "2")
LORA = _script("train_lora.py", "sft.jsonl", "--learning_rate", "1e-2")
EVERY = Script("plain_ddp", ".")
# The project's own torch has no fused AdamW for the CPU; this one has.
FUSED = (*EXACT, "--target", "torch=2.4")
SCRIPTS = [pytest.param(script, id=script.path.removesuffix(".py")) for script in (SFT, PRETRAIN, LORA)]


@pytest.mark.parametrize("script", [*SCRIPTS, pytest.param(EVERY, id="every_script")])
def test_patch(workshop: Workshop, tmp_path: Path, script: Script) -> None:
    assert_applies_and_reverts(workshop, script, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_goal_alone(workshop: Workshop, script: Script, goal: str) -> None:
    assert_goal_alone(workshop, script, goal)


@pytest.mark.slow
@pytest.mark.transformers4
@pytest.mark.parametrize("options", [pytest.param(EXACT, id="pinned"), pytest.param(FUSED, id="fused")])
@pytest.mark.parametrize("script", SCRIPTS)
def test_exact(workshop: Workshop, script: Script, options: tuple[str, ...]) -> None:
    old, new = workshop.run(Run(script)), workshop.run(Run(script, options))
    print(script.path, assert_exact(old, new, PROOF), "slots", slots(old), "->", slots(new))
    assert len(old["losses"]) == 20
    assert slots(new) < slots(old)
    assert all(bool(group["fused"]) == (options == FUSED) for group in new["optimizer"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "patched"),
    [
        pytest.param(LORA, SFT, id="the_other_user_of_the_data_set"),
        pytest.param(SFT, EVERY, id="all_at_once"),
        pytest.param(PRETRAIN, EVERY, id="all_at_once_pretrain"),
        pytest.param(LORA, EVERY, id="all_at_once_lora"),
    ],
)
def test_exact_with_the_patch_for_another(workshop: Workshop, script: Script, patched: Script) -> None:
    """A patch leaves the scripts right that share a file with the one it was made for."""
    old, new = workshop.run(Run(script)), workshop.run(Run(script, EXACT, patched=patched))
    print(script.path, assert_exact(old, new, PROOF))
    assert slots(new) < slots(old)


@pytest.mark.slow
def test_exact_with_two_processes(workshop: Workshop) -> None:
    old, new = workshop.run(Run(SFT, processes=2)), workshop.run(Run(SFT, EXACT, processes=2))
    print("two processes:", assert_exact(old, new, PROOF), "slots", slots(old), "->", slots(new))
    assert [len(rank["losses"]) for rank in new.ranks] == [20, 20]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")
def test_exact_compiled(workshop: Workshop) -> None:
    old, new = workshop.run(Run(SFT)), workshop.run(Run(SFT, EXACT, disable=""))
    print("compiled:", assert_exact(old, new, PROOF), new["num_graphs"], "graphs", new["log"])
    assert new["num_graphs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "processes"),
    [
        pytest.param(SFT, 0, id="train_full_sft"),
        pytest.param(SFT, 2, id="train_full_sft_two_processes"),
        pytest.param(PRETRAIN, 0, id="train_pretrain"),
        pytest.param(LORA, 0, id="train_lora"),
    ],
)
def test_everything_on_trains(workshop: Workshop, script: Script, processes: int) -> None:
    old = workshop.run(Run(script, processes=processes))
    new = workshop.run(Run(script, (), processes=processes))
    assert [len(rank["losses"]) for rank in new.ranks] == [20] * max(processes, 1)
    assert_trains(new)
    ratios = [num_real(trained_batches(result), TOKENS) / slots(result) for result in (old, new)]
    print("real/slots:", ratios, "slots", slots(old), "->", slots(new), "loss", new["losses"])
    assert files(new.out) == files(old.out)
    assert ratios[1] > 0.9 > ratios[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [pytest.param(SFT, id="train_full_sft"), pytest.param(PRETRAIN, id="train_pretrain")]
)
def test_resume_from_a_checkpoint_of_before(workshop: Workshop, script: Script) -> None:
    """A run begun before the migration goes on after it as if there had been none, in fused steps."""
    whole, half = workshop.run(Run(script)), workshop.run(Run(script, steps=10))
    resumed = workshop.run(Run(script, FUSED, flags=_resume(half)))
    print("resumed:", loss_error(whole["losses"][10:], resumed["losses"]))
    assert half["losses"] == whole["losses"][:10]
    assert loss_error(whole["losses"][10:], resumed["losses"]) <= 1e-5
    assert all(group["fused"] for group in resumed["optimizer"])


@pytest.mark.slow
def test_resume_with_everything_on(workshop: Workshop) -> None:
    half = workshop.run(Run(SFT, steps=10))
    resumed = workshop.run(Run(SFT, (), flags=_resume(half)))
    assert len(resumed["losses"]) == 10
    assert max(resumed["losses"]) < half["losses"][0]


def slots(result: Result) -> int:
    """Return the positions that were trained on."""
    return num_slots(trained_batches(result), TOKENS)


def _resume(half: Result) -> tuple[str, str]:
    (checkpoint,) = half.out.iterdir()
    return "--resume", str(checkpoint)
