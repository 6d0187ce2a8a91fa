"""What `optimizer.kind` and `framework.kind` say of small runs, and where they say that they do not know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from speedmigrate.chain import framework, optimizer
from speedmigrate.facts.entry import EntryFacts, entry_facts
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options
from speedmigrate.target import Target
from tests.migrate.fakes import write_files

LOOP = """
for batch in torch.load("rows.pt"):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
"""
MODEL = """import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2")
"""
TRAINER = """from dataclasses import dataclass, field

import transformers
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
"""
INITIALIZE = (
    "engine, optimizer, _, _ = deepspeed.initialize(model=model, config={config})\nengine.backward(model().loss)\n"
)


def entry_of(root: Path, files: Mapping[str, str], path: str = "train.py") -> EntryFacts:
    write_files(root, files)
    return entry_facts(Project(root), path, Target(), Options())


def optimizers(root: Path, files: Mapping[str, str]) -> list[tuple[str | None, str, str]]:
    """Return the value, detail and first place of each fact."""
    found = []
    for fact in optimizer.facts(entry_of(root, files)):
        hop = (fact.evidence or fact.unknown)[0]
        found.append((fact.value, fact.detail, f"{hop.path}:{hop.line}"))
    return found


@pytest.mark.parametrize(
    ("built", "kind", "detail"),
    [
        ("from torch.optim import AdamW as A\noptimizer = A(model.parameters())", "torch_adamw", "torch.optim.AdamW"),
        ("optimizer = getattr(torch.optim, 'Adam')(model.parameters())", "torch_adam", "torch.optim.Adam"),
        ("import functools\nmake = functools.partial(torch.optim.AdamW, lr=1)", "torch_adamw", "torch.optim.AdamW"),
        ("optimizer = {'sgd': torch.optim.SGD}['sgd'](model.parameters())", "torch_other", "torch.optim.SGD"),
        ("import bitsandbytes as b\nb.optim.AdamW8bit([])", "bnb_8bit_or_paged", "bitsandbytes.optim.AdamW8bit"),
        ("class Own(torch.optim.Optimizer):\n    pass\n\noptimizer = Own(model.parameters())", "own", "Own"),
    ],
)  # fmt: skip
def test_a_class_is_followed_through_names(tmp_path: Path, built: str, kind: str, detail: str) -> None:
    line = f"{MODEL}{built}".count("\n") + 1
    assert optimizers(tmp_path, {"train.py": f"{MODEL}{built}\n{LOOP}"}) == [(kind, detail, f"train.py:{line}")]


def test_the_class_tried_first_is_the_decisive_one(tmp_path: Path) -> None:
    text = f"""{MODEL}
try:
    from apex.optimizers import FusedAdam as AdamW
except ImportError:
    from torch.optim import AdamW
optimizer = AdamW(model.parameters())
{LOOP}"""
    assert optimizers(tmp_path, {"train.py": text}) == [
        ("apex_fused", "apex.optimizers.FusedAdam", "train.py:10"),
        ("torch_adamw", "torch.optim.AdamW", "train.py:10"),
    ]


def test_a_class_behind_a_flag_that_is_off_comes_last(tmp_path: Path) -> None:
    text = f"""import argparse
{MODEL}
from transformers import Adafactor
parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true")
args = parser.parse_args()
if args.small:
    optimizer = Adafactor(model.parameters())
else:
    optimizer = torch.optim.AdamW(model.parameters())
{LOOP}"""
    assert [kind for kind, _, _ in optimizers(tmp_path, {"train.py": text})] == ["torch_adamw", "adafactor"]


def test_a_name_that_is_read_at_run_time_is_unknown(tmp_path: Path) -> None:
    text = f"{MODEL}optimizer = getattr(torch.optim, input())(model.parameters())\n{LOOP}"
    assert optimizers(tmp_path, {"train.py": text}) == [(None, "", "train.py:5")]


def test_a_class_that_is_called_adamw_is_none(tmp_path: Path) -> None:
    text = f"{MODEL}class AdamW:\n    def step(self): ...\n\noptimizer = AdamW()\n{LOOP}"
    assert optimizers(tmp_path, {"train.py": text}) == [(None, "", "train.py:1")]


def test_the_library_default_of_a_trainer(tmp_path: Path) -> None:
    text = f"{TRAINER}Trainer(model, TrainingArguments('out')).train()\n"
    assert optimizers(tmp_path, {"train.py": text}) == [("hf_default", "", "train.py:7")]


@pytest.mark.parametrize(
    ("optim", "kind"),
    [("adamw_torch", "hf_optim"), ("adafactor", "adafactor"), ("paged_adamw_32bit", "bnb_8bit_or_paged")],
)
def test_the_field_of_a_subclass_names_it(tmp_path: Path, optim: str, kind: str) -> None:
    text = f"""{TRAINER}
@dataclass
class Own(TrainingArguments):
    optim: str = field(default="{optim}")

args, = transformers.HfArgumentParser((Own,)).parse_args_into_dataclasses()
Trainer(model, args).train()
"""
    assert optimizers(tmp_path, {"train.py": text}) == [(kind, optim, "train.py:10")]


def test_a_launch_flag_names_it(tmp_path: Path) -> None:
    text = f"""{TRAINER}
args, = transformers.HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(model, args).train()
"""
    files = {"train.py": text, "run.sh": "python train.py \\\n  --optim adamw_torch\n"}
    assert optimizers(tmp_path, files) == [("hf_optim", "adamw_torch", "run.sh:2")]


def test_what_the_trainer_is_given_wins(tmp_path: Path) -> None:
    text = f"""{TRAINER}from transformers import AdamW
optimizer = AdamW(model.parameters())
Trainer(model, TrainingArguments("out"), optimizers=(optimizer, None)).train()
"""
    assert optimizers(tmp_path, {"train.py": text}) == [("transformers_adamw", "transformers.AdamW", "train.py:8")]


def test_arguments_that_are_not_followed_are_unknown(tmp_path: Path) -> None:
    text = f"{TRAINER}Trainer(model, args=input()).train()\n"
    assert optimizers(tmp_path, {"train.py": text}) == [(None, "", "train.py:7")]


def test_a_section_of_a_deepspeed_file_owns_it(tmp_path: Path) -> None:
    text = f"{MODEL}import deepspeed\n{INITIALIZE.format(config='chr(47)')}".replace("chr(47)", "'ds.json'")
    files = {"train.py": text, "ds.json": '{\n "zero_optimization": {},\n "optimizer": {"type": "AdamW"}\n}\n'}
    assert optimizers(tmp_path, files) == [("deepspeed_config", "AdamW", "ds.json:3")]


def test_a_dict_of_the_code_owns_it_from_a_later_line(tmp_path: Path) -> None:
    text = f"""{MODEL}import deepspeed
config = {{"train_batch_size": 8}}
config["optimizer"] = {{"type": "Adam"}}
{INITIALIZE.format(config="config")}"""
    assert optimizers(tmp_path, {"train.py": text}) == [("deepspeed_config", "", "train.py:7")]


def test_a_deepspeed_config_that_is_not_followed_is_unknown(tmp_path: Path) -> None:
    text = f"{MODEL}import deepspeed\n{INITIALIZE.format(config='input()')}"
    assert optimizers(tmp_path, {"train.py": text}) == [(None, "", "train.py:6")]


@pytest.mark.parametrize(
    ("made", "kinds"),
    [
        ("class Own(Trainer):\n    pass\n\nOwn(model, TrainingArguments('out')).train()", ["hf_trainer_subclass"]),
        ("Trainer(model, TrainingArguments('out')).train()", ["hf_trainer"]),
        ("transformers.Trainer.create_optimizer = print\nTrainer(model).train()", ["hf_trainer_subclass"]),
        ("Trainer(model, transformers.Seq2SeqTrainingArguments('out')).train()", ["hf_seq2seq_trainer"]),
        ("from torch.nn import DataParallel\nDataParallel(model)().loss.backward()", ["data_parallel"]),
        ("model().loss.backward()", ["plain"]),
        ("class Trainer:\n    def train(self): ...\n\nTrainer().train()", [None]),
        ("model()", [None]),
    ],
)
def test_the_framework(tmp_path: Path, made: str, kinds: list[str | None]) -> None:
    entry = entry_of(tmp_path, {"train.py": f"{TRAINER}{made}\n"})
    assert [fact.value for fact in framework.facts(entry)] == kinds
