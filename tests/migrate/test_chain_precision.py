"""What `precision.kind` and its places say of small runs, and where they say that nothing is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain import precision
from tests.migrate.test_chain_optimizer import LOOP, MODEL, TRAINER, entry_of

PARSED = f"""{TRAINER}
args, = transformers.HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(model, args).train()
"""


def kind(root: Path, files: dict[str, str]) -> tuple[str | None, str]:
    """Return the word and its first place."""
    fact = next(iter(precision.facts(entry_of(root, files))))
    hop = (fact.evidence or fact.unknown)[0]
    return fact.value, f"{hop.path}:{hop.line}"


def test_a_loop_without_any_word_of_it_is_float32(tmp_path: Path) -> None:
    assert kind(tmp_path, {"train.py": MODEL + LOOP}) == ("fp32", "train.py:1")


def test_no_training_code_is_unknown(tmp_path: Path) -> None:
    assert kind(tmp_path, {"train.py": MODEL}) == (None, "train.py:1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("scaler = torch.cuda.amp.GradScaler()", "grad_scaler"),
        ("scaler = torch.cuda.amp.GradScaler(enabled=False)", "fp32"),
        ("with torch.autocast('cuda', dtype=torch.bfloat16): model()", "grad_scaler"),
        ("with torch.autocast('cpu'): model()", "fp32"),
        ("model = model.half()", "half"),
        ("mask = torch.ones(2).half()", None),
        ("mask = torch.ones(2, dtype=torch.bfloat16)", None),
        ("mask = torch.ones(2, dtype=torch.float32)", "fp32"),
        ("torch.set_default_dtype(torch.bfloat16)", "code_literal"),
        ("from apex import amp\nmodel, optimizer = amp.initialize(model, None)", "apex_amp"),
        ("import accelerate as a\nmodel = a.Accelerator(mixed_precision='bf16').prepare(model)", "accelerate_config"),
    ],
)  # fmt: skip
def test_what_a_loop_does(tmp_path: Path, line: str, said: str | None) -> None:
    assert kind(tmp_path, {"train.py": f"{MODEL}{line}\n{LOOP}"})[0] == said


def test_the_places_of_a_loop(tmp_path: Path) -> None:
    text = f"""{MODEL}model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)
scaler = torch.cuda.amp.GradScaler(enabled=True)
with torch.cuda.amp.autocast(dtype=torch.float16):
    model()
{LOOP}"""
    facts = precision.facts(entry_of(tmp_path, {"train.py": text}))
    assert [(fact.name, fact.value, fact.detail) for fact in facts] == [
        ("precision.kind", "grad_scaler", ""),
        ("precision.scaler", "GradScaler", "enabled=True"),
        ("precision.autocast", "autocast", "dtype=torch.float16"),
        ("precision.cast", "torch_dtype=float16", "the model is loaded in this format"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("TrainingArguments('out', bf16=True)", "code_literal"),
        ("TrainingArguments('out', fp16=False)", "fp32"),
        ("TrainingArguments('out', fp16=input())", "code_literal"),
        ("TrainingArguments('out')", "fp32"),
        ("input()", None),
    ],
)
def test_what_a_trainer_is_given(tmp_path: Path, arguments: str, said: str | None) -> None:
    assert kind(tmp_path, {"train.py": f"{TRAINER}Trainer(model, args={arguments}).train()\n"})[0] == said


def test_a_flag_of_a_launch_file(tmp_path: Path) -> None:
    files = {"train.py": PARSED, "run.sh": "python train.py \\\n  --bf16 True\n"}
    assert kind(tmp_path, files) == ("flag", "run.sh:2")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}', "flag"),
        ('{"fp16": {"enabled": "auto"}}', "flag_and_json"),
        ('{"zero_optimization": {"stage": 2}}', "flag"),
    ],
)
def test_a_deepspeed_file_beside_a_flag(tmp_path: Path, config: str, said: str) -> None:
    files = {"train.py": PARSED, "run.sh": "deepspeed train.py --bf16 --deepspeed ds.json\n", "ds.json": config}
    assert kind(tmp_path, files)[0] == said


def test_flags_that_nothing_gives_are_unset(tmp_path: Path) -> None:
    assert kind(tmp_path, {"train.py": PARSED}) == ("unset", "train.py:9")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{'train_batch_size': 2, 'fp16': {'enabled': True}}", "deepspeed_dict"),
        ("'ds.json'", "deepspeed_json"),
        ("input()", None),
    ],
)
def test_an_engine(tmp_path: Path, config: str, said: str | None) -> None:
    text = (
        f"{MODEL}import deepspeed\nengine = deepspeed.initialize(model=model, config={config})[0]\nengine.backward(1)\n"
    )
    files = {"train.py": text, "ds.json": '{"fp16": {"enabled": true}}'}
    assert kind(tmp_path, files)[0] == said


def test_lightning_has_its_own_argument(tmp_path: Path) -> None:
    text = f"{MODEL}import pytorch_lightning as pl\npl.Trainer(precision=16).fit(model)\n"
    assert kind(tmp_path, {"train.py": text}) == ("lightning", "train.py:6")
