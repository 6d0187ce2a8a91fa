"""Projects that pad in the ways that people do: without the padding each trains on the same samples, as before."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.executed.compare import Proof, Stream, assert_exact, assert_tight, num_real, num_slots, relative_l2
from tests.executed.projects import Result, Run, Script, Workshop, apply, content, copy_project, diff

# A `corrects` of these is one where pads may count; here they do not, so the figures stay.
PADDING = ("--only", "padding", "--effect", "exact,corrects")
STEPS = 8
TOKENS = Stream({"input_ids": 0, "attention_mask": 0})
LABELLED = Stream({"input_ids": 0, "attention_mask": 0, "labels": -100})
TYPED = Stream({"input_ids": 0, "attention_mask": 0, "token_type_ids": 0})
UNMASKED = Stream({"input_ids": 3, "labels": -100}, follows=("attention_mask",))
_TRAINER = """
    --output_dir {out} --use_cpu --save_strategy no --report_to none --logging_steps 1 --lr_scheduler_type constant
    --learning_rate 1e-3 --do_eval
"""
_SGD = ("--optim", "sgd", "--learning_rate", "0.1")


@dataclass(frozen=True)
class Case:
    """A script with its proof.

    Attributes:
        sgd: its flags for SGD; parameters cannot be compared after Adam, which turns rounding noise into whole steps
            where a gradient is 0.
        pending: why the tool does not edit it yet.
    """

    script: Script
    proof: Proof
    sgd: tuple[str, ...] = ()
    pending: str = ""


def _script(project: str, path: str, flags: str) -> Script:
    return Script(project, path, tuple(flags.split()))


def _same(*streams: Stream, **more: Any) -> Proof:
    """The model gets the fields of the batch under their names."""
    return Proof(streams, streams, **more)


_SFT_LAZY = f"""
    --model_name_or_path {{tiny}}/model --data_path {{tiny}}/chats.json --eval_data_path {{tiny}}/chats_val.json
    --model_max_length 96 --per_device_train_batch_size 4 {_TRAINER}
"""
_GLM_MAP = f"""
    --model_name_or_path {{tiny}}/model --train_file {{tiny}}/train.json --validation_file {{tiny}}/dev.json --do_train
    --background_column background --max_source_length 40 --max_target_length 40 --predict_with_generate
    --per_device_train_batch_size 4 {_TRAINER}
"""
_CLS_MAP = """
    --model {tiny}/model --train_path {tiny}/train.txt --dev_path {tiny}/dev.txt --labels {tiny}/labels.txt
    --save_dir {out} --cache_dir {out}/cache --device cpu --max_seq_len 64 --batch_size 8 --valid_steps 4
    --learning_rate 1e-3
"""
_ADAPTER_CAT = """
    --base {tiny}/base --data_path {tiny}/instructions.json --output_dir {out} --device cpu --max_tokens 96
    --batch_size 4 --accum_iter 2 --epochs 1 --blr 0.05
"""
_FEATURES = """
    --do_train --do_eval --model_name_or_path {tiny}/encoder --train_filename {tiny}/train.jsonl
    --dev_filename {tiny}/valid.jsonl --output_dir {out} --max_source_length 64 --max_target_length 32
    --train_batch_size 8 --learning_rate 1e-3 --eval_steps 4 --no_cuda
"""
_PAIRS_SFT = "--model {tiny}/model --data {tiny}/sft.jsonl --eval_data {tiny}/sft_eval.jsonl --out {out} --cpu"
_PAIRS_REWARD = "--model {tiny}/model --data {tiny}/pairs.jsonl --out {out} --cpu"
_READER = """
    --pretrained_model_path {tiny}/encoder.bin --vocab_path {tiny}/vocab.txt --config_path {tiny}/config.json
    --train_path {tiny}/train.tsv --dev_path {tiny}/dev.tsv --output_model_path {out}/stance.bin --batch_size 8
    --seq_length 96 --learning_rate 1e-3
"""
_FLAG_TWINS = f"""
    --model_name_or_path {{tiny}}/encoder --train_file {{tiny}}/train.csv --validation_file {{tiny}}/dev.csv
    --desks_file {{tiny}}/desks.json --cache_dir {{out}}/cache --do_train --max_seq_length 64
    --per_device_train_batch_size 8 {_TRAINER}
"""
_EVAL = ("eval_results.json",)
CASES = {
    "sft_eager": Case(_script("sft_lazy", "train.py", _SFT_LAZY), _same(LABELLED, results=_EVAL), _SGD),
    "sft_lazy": Case(
        _script("sft_lazy", "train_mem.py", f"{_SFT_LAZY} --lazy_preprocess True"),
        _same(LABELLED, results=_EVAL),
        _SGD,
    ),
    "glm_map": Case(_script("glm_map", "main.py", _GLM_MAP), _same(UNMASKED, results=_EVAL), _SGD),
    "cls_map": Case(_script("cls_map", "train.py", _CLS_MAP), _same(TYPED, results=("history.json",))),
    "adapter_cat": Case(
        _script("adapter_cat", "train_adapter.py", _ADAPTER_CAT),
        Proof((Stream({"0": 0, "1": 0, "2": 0}),), (Stream({"examples": 0, "labels": 0}),), results=("log.json",)),
    ),
    "features_tensordataset": Case(
        _script("features_tensordataset", "run.py", _FEATURES),
        Proof(
            (Stream({"0": 1, "1": 0}), Stream({"2": 1, "3": 0})),
            (Stream({"source_ids": 1, "source_mask": 0}), Stream({"target_ids": 1, "target_mask": 0})),
            results=("history.json", "dev.output"),
            aside=("cached_*",),
        ),
    ),
    "pairs_reward": Case(
        _script("pairs_left", "train_reward.py", _PAIRS_REWARD),
        _same(TOKENS, results=("reward_log.json",)),
        pending="rows of shape (1, length) that the script's own collate joins",
    ),
    "left_padded": Case(_script("pairs_left", "train_sft.py", _PAIRS_SFT), _same(LABELLED, results=("sft_log.json",))),
    "reader_batches": Case(
        _script("reader_batches", "run_stance.py", _READER),
        Proof((), (Stream({"ids": 0, "kinds": 0}),), results=("stance.bin.json",)),
    ),
    # The Trainer saves the tokenizer of a collator that has one.
    "flag_twins": Case(
        _script("flag_twins", "run_classification.py", _FLAG_TWINS),
        _same(TYPED, results=_EVAL, aside=("*token*",)),
        _SGD,
    ),
}
KEEPS = {
    "glm_middle": _script(
        "keeps/glm_middle", "train.py", "--data {tiny}/articles.jsonl --vocab {tiny}/vocab.txt --out {out}"
    ),
    "square_attention": _script(
        "keeps/square_attention",
        "train.py",
        "--train_file {tiny}/train.jsonl --words_file {tiny}/words.json --output_dir {out}",
    ),
    "clip_context": _script("keeps/clip_context", "main.py", "--data {tiny}/shoes.pt --output {out}"),
}
_DATASETS = pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")


def _params(*, sgd: bool = False) -> list[Any]:
    return [
        pytest.param(case, id=name, marks=[*_marks(case), *([_DATASETS] if name in _LOADED else [])])
        for name, case in CASES.items()
        if case.sgd or not sgd
    ]


def _marks(case: Case) -> list[Any]:
    return [pytest.mark.xfail(reason=f"rule not there yet: {case.pending}", strict=True)] if case.pending else []


_LOADED = ("glm_map", "cls_map", "flag_twins")


@pytest.mark.parametrize("case", _params())
def test_patch(workshop: Workshop, tmp_path: Path, case: Case) -> None:
    repository = copy_project(case.script.project, tmp_path / "repository")
    before = content(repository)
    patch = workshop.patch(case.script, PADDING)
    assert patch.startswith(b"diff --git a/")
    apply(repository, patch)
    assert diff(repository, case.script, *PADDING) == b""
    apply(repository, patch, "-R")
    assert content(repository) == before


@pytest.mark.slow
@pytest.mark.parametrize("case", _params())
def test_exact(workshop: Workshop, case: Case) -> None:
    old, new = _both(workshop, case)
    print(f"{case.script.path}:", assert_exact(old, new, case.proof))
    slots = [num_slots(result["calls"], *case.proof.calls) for result in (old, new)]
    real = num_real(new["calls"], *case.proof.calls)
    print(f"slots {slots[0]} -> {slots[1]}, real {real}: {real / slots[0]:.2f} -> {real / slots[1]:.2f}")
    assert new["num_steps"] == STEPS
    assert slots[1] < slots[0]
    assert_tight(new["calls"], *case.proof.calls)


@pytest.mark.slow
@pytest.mark.parametrize("case", _params(sgd=True))
def test_exact_parameters(workshop: Workshop, case: Case) -> None:
    old, new = _both(workshop, case, *case.sgd)
    assert list(new["parameters"]) == list(old["parameters"])
    flat = [torch.cat([value.flatten() for value in result["parameters"].values()]) for result in (old, new)]
    print("parameters:", relative_l2(*flat))
    assert relative_l2(*flat) <= 1e-5


def _both(workshop: Workshop, case: Case, *flags: str) -> tuple[Result, Result]:
    assert workshop.patch(case.script, PADDING), "no edit"
    old = workshop.run(Run(case.script, steps=STEPS, flags=flags))
    return old, workshop.run(Run(case.script, PADDING, steps=STEPS, flags=flags))


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in KEEPS.items()])
def test_keep(workshop: Workshop, script: Script) -> None:
    """Where the length is part of the algorithm nothing changes, and the report says so."""
    assert workshop.patch(script, ("--only", "padding")) == b""
    assert workshop.verdicts(script)["padding"] in ("refuse", "report")


@pytest.mark.slow
@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in KEEPS.items()])
def test_keep_trains(workshop: Workshop, script: Script) -> None:
    losses = workshop.run(Run(script, steps=STEPS))["losses"]
    assert len(losses) == STEPS
    assert all(torch.tensor(losses).isfinite())
