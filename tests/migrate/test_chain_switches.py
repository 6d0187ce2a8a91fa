"""The repository's own padding switches, on the smallest script of each shape."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from speedmigrate.chain.padding import padding
from speedmigrate.chain.switches import Switch, switches
from speedmigrate.facts.entry import entry_facts
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options
from speedmigrate.target import Target

HEAD = """
import argparse
from dataclasses import dataclass, field
import torch
import yaml
from accelerate import Accelerator, DistributedType
from omegaconf import OmegaConf
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, default_data_collator

tok = AutoTokenizer.from_pretrained("x")
model = AutoModelForSequenceClassification.from_pretrained("x")
parser = argparse.ArgumentParser()
"""
ARGPARSE = HEAD + 'parser.add_argument("--full", {flag})\nargs = parser.parse_args()\n'
MAPPED = """
def encode(rows):
    return tok(rows["text"], max_length=64, truncation=True, padding="max_length" if {test} else False)

DataLoader(data.map(encode), collate_fn={collate})
"""
TWINS = "default_data_collator if {test} else DataCollatorWithPadding(tok)"


def found(root: Path, text: str, files: dict[str, str] | None = None) -> tuple[Switch, ...]:
    for path, content in {"train.py": text + "\nloss.backward()\n", **(files or {})}.items():
        (root / path).write_text(content)
    return switches(entry_facts(Project(root), "train.py", Target(), Options()))


def only(root: Path, text: str, files: dict[str, str] | None = None) -> Switch:
    (switch,) = found(root, text, files)
    return switch


def mapped(test: str, collate: str = TWINS) -> str:
    return MAPPED.format(test=test, collate=collate.format(test=test))


def whats(switch: Switch) -> str:
    return "; ".join(hop.what for hop in switch.problems)


@pytest.mark.parametrize(
    ("flag", "test", "off"),
    [
        ('action="store_true"', "args.full", True),
        ('action="store_false"', "args.full", False),
        ("type=int, default=1", "args.full", False),
        ("type=int, default=1", "args.full == 0", True),
        ("type=bool, default=False", "not args.full", False),
        ('default="fixed"', 'args.full == "fixed"', False),
        ('default="ragged"', 'args.full in ("fixed", "square")', True),
    ],
)
def test_a_flag_of_argparse_and_what_it_is_by_default(root: Path, flag: str, test: str, off: bool) -> None:
    switch = only(root, ARGPARSE.format(flag=flag) + mapped(test))
    assert switch.flag.name == "full"
    assert switch.is_off is off
    assert not switch.problems


@pytest.mark.parametrize(
    ("flag", "command", "off"),
    [
        ('action="store_true"', "--full", False),
        ('action="store_true"', "", True),
        ("type=bool, default=False", "--full False", False),
        ("type=int, default=0", "--full 1", False),
        ("type=int, default=1", "--full 0", True),
        ('default="ragged", choices=["fixed", "ragged"]', "--full fixed", None),
    ],
)
def test_a_launch_file_wins_over_the_default(root: Path, flag: str, command: str, off: bool | None) -> None:
    test = 'args.full == "fixed"' if "choices" in flag else "args.full"
    switch = only(root, ARGPARSE.format(flag=flag) + mapped(test), {"run.sh": f"python train.py {command}\n"})
    assert switch.is_off is bool(off)
    assert switch.given[0].launch is not None


def test_what_a_launch_gives_and_cannot_be_read_is_not_off(root: Path) -> None:
    text = ARGPARSE.format(flag="type=int, default=0") + mapped("args.full")
    switch = only(root, text, {"run.sh": "python train.py --full $FULL\n"})
    assert not switch.given[0].known
    assert not switch.is_off


def test_it_covers_the_functions_of_the_data_path(root: Path) -> None:
    text = ARGPARSE.format(flag='action="store_true"') + mapped("args.full")
    (root / "train.py").write_text(text + "\nloss.backward()\n")
    entry = entry_facts(Project(root), "train.py", Target(), Options())
    (switch,) = switches(entry)
    assert switch.covers == padding(entry).origins
    assert [hop.line for hop in switch.hops] == [15, 19]


FIELDS = (
    HEAD
    + """
@dataclass
class Rows:
    full: bool = {default}

class Own:
    full = True

settings, training = HfArgumentParser((Rows, TrainingArguments)).parse_args_into_dataclasses()
"""
)


@pytest.mark.parametrize(("default", "off"), [("True", False), ("field(default=False)", True), ("None", True)])
def test_a_field_that_a_parser_fills(root: Path, default: str, off: bool) -> None:
    switch = only(root, FIELDS.format(default=default) + mapped("settings.full"))
    assert (switch.flag.kind, switch.is_off) == ("field", off)


def test_the_complement_that_the_parser_adds_to_a_true_field(root: Path) -> None:
    text = FIELDS.format(default="True") + mapped("settings.full")
    assert only(root, text, {"run.sh": "python train.py --no_full\n"}).is_off


def test_a_class_that_no_parser_fills_is_a_constant(root: Path) -> None:
    switch = only(root, FIELDS.format(default="True") + mapped("Own.full"))
    assert (switch.flag.kind, switch.is_off) == ("constant", False)


@pytest.mark.parametrize(
    "choice",
    [
        'padding = "max_length" if args.full else False',
        'if args.full:\n    padding = "max_length"\nelse:\n    padding = False',
        'padding = False\nif args.full:\n    padding = "max_length"',
        'padding = "max_length"\nif not args.full:\n    padding = False',
        'def choose(full):\n    if full:\n        return "max_length"\n    return False\npadding = choose(args.full)',
        'class Setup:\n    def __init__(self, full):\n        self.padding = "max_length" if full else False\n'
        "padding = Setup(args.full).padding",
    ],
)
def test_a_strategy_that_is_chosen_before(root: Path, choice: str) -> None:
    text = ARGPARSE.format(flag='action="store_false"') + choice
    text += """
def encode(rows):
    return tok(rows["text"], max_length=64, truncation=True, padding=padding)
if args.full:
    collate = default_data_collator
else:
    collate = DataCollatorWithPadding(tok)
DataLoader(data.map(encode), collate_fn=collate)
"""
    switch = only(root, text)
    assert not switch.is_off
    assert not switch.problems


COLLATE = """
class Collate:
    def __init__(self, full, limit):
        self.full, self.limit = full, limit

    def __call__(self, rows):
{body}
DataLoader(data, collate_fn=Collate(args.full, 64))
"""


@pytest.mark.parametrize(
    "body",
    [
        """
        width = self.limit if self.full else max(len(row) for row in rows)
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])
        """,
        """
        if self.full:
            return tok.pad(rows, padding="max_length", max_length=self.limit, return_tensors="pt")
        return tok.pad(rows, padding="longest", return_tensors="pt")
        """,
    ],
)
def test_a_collate_of_the_script_that_has_both(root: Path, body: str) -> None:
    text = ARGPARSE.format(flag="type=int, default=1") + COLLATE.format(
        body=textwrap.dedent(body).replace("\n", "\n        ")
    )
    switch = only(root, text)
    assert not switch.is_off
    assert not switch.problems


@pytest.mark.parametrize(
    ("addition", "collate", "what"),
    [
        ("", "default_data_collator", "only stacks rows of one length"),
        ("", "None", "only stacks rows of one length"),
        ("", "lambda rows: rows", "not seen to pad each batch"),
        ("", "DataCollatorForSeq2Seq(tok, padding=False)", "not seen to pad each batch"),
        ("", 'DataCollatorWithPadding(tok, padding="max_length")', "not seen to pad each batch"),
        ("assert args.full, 'not without'", TWINS, "forbids it"),
        ("if not args.full:\n    raise ValueError", TWINS, "forbids it"),
        ("TrainingArguments('x', group_by_length=args.full)", TWINS, "orders the samples by length"),
        ("torch.utils.data.TensorDataset(data)", TWINS, "rows of one length"),
        ("TrainingArguments('x', neftune_noise_alpha=5)", TWINS, "depends on the padded length"),
        ("torch.nn.Linear(64, 2)", TWINS, ""),
    ],
)
def test_what_is_missing_with_it_off(root: Path, addition: str, collate: str, what: str) -> None:
    text = ARGPARSE.format(flag='action="store_false"') + addition + mapped("args.full", collate)
    switch = only(root, text)
    assert what in whats(switch)
    assert bool(switch.problems) is bool(what)


def test_a_trainer_without_a_collate_pads_where_it_has_the_tokenizer(root: Path) -> None:
    text = ARGPARSE.format(flag='action="store_false"') + mapped("args.full").rpartition("DataLoader")[0]
    twins = "data_collator=default_data_collator if args.full else None"
    assert not only(root, text + f"Trainer(model, train_dataset=data.map(encode), tokenizer=tok, {twins})").problems
    switch = only(root, text + f"Trainer(model, train_dataset=data.map(encode), {twins})")
    assert "only stacks" in whats(switch)


@pytest.mark.parametrize(
    "other",
    [
        "if args.full:\n    model.freeze()",
        "if args.full:\n    epochs = 1",
        "epochs = 1 if args.full else 3",
        "for _ in range(args.full):\n    pass",
        "optimizer = torch.optim.SGD(model.parameters(), lr=1.0 * args.full)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=1.0, nesterov=args.full)",
    ],
)
def test_a_setting_that_decides_more_than_padding_is_no_switch(root: Path, other: str) -> None:
    assert not found(root, ARGPARSE.format(flag='action="store_false"') + other + mapped("args.full"))


@pytest.mark.parametrize(
    "other",
    [
        'print("full", args.full)',
        "if args.full:\n    print('slow')",
        "DataCollatorWithPadding(tok, pad_to_multiple_of=None if args.full else 8)",
        "multiple = None if args.full else 8\nDataCollatorWithPadding(tok, pad_to_multiple_of=multiple)",
        "if not args.full:\n    rows = accelerator.pad_across_processes(rows, dim=1)",
    ],
)
def test_what_else_a_switch_may_be_read_for(root: Path, other: str) -> None:
    assert found(root, ARGPARSE.format(flag='action="store_false"') + other + mapped("args.full"))


def test_a_mode_that_pads_in_one_of_its_branches_is_no_switch(root: Path) -> None:
    text = """
if args.full:
    def encode(rows):
        return tok(rows["text"], padding="max_length", max_length=64)
else:
    def encode(rows):
        return tok(rows["title"], rows["text"])
DataLoader(data.map(encode), collate_fn=DataCollatorWithPadding(tok))
"""
    assert not found(root, ARGPARSE.format(flag='action="store_false"') + text)


CONFIG = HEAD + 'config = {read}("base.{kind}")\n'


@pytest.mark.parametrize(
    ("read", "test", "off"),
    [
        ("OmegaConf.load", "config.data.full", False),
        ("OmegaConf.load", 'config["data"]["other"]', True),
        ("OmegaConf.load", 'config["data"].get("full")', False),
    ],
)
def test_a_key_of_a_config_file(root: Path, read: str, test: str, off: bool) -> None:
    text = CONFIG.format(read=read, kind="yaml") + mapped(test)
    switch = only(root, text, {"base.yaml": "learning_rate: 0.1\ndata:\n  full: true\n  other: false\n"})
    assert (switch.flag.kind, switch.is_off) == ("config", off)


@pytest.mark.parametrize("test", ["accelerator.distributed_type == DistributedType.TPU", "is_torch_tpu_available()"])
def test_a_device_that_the_target_is_not(root: Path, test: str) -> None:
    body = f"""
accelerator = Accelerator()
def collate(rows):
    padding = "max_length" if {test} else "longest"
    return tok.pad(rows, padding=padding, max_length=64)
DataLoader(data, collate_fn=collate)
"""
    switch = only(root, HEAD + body)
    assert (switch.flag.kind, switch.is_off) == ("device", True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path
