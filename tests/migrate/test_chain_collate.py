"""What `collate.kind` says of small runs, and where it says that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain import collate
from tests.migrate.test_chain_data import IMPORTS, LOOP, ROWS
from tests.migrate.test_chain_optimizer import entry_of

OWN = """import functools
import transformers
from transformers import DataCollatorForSeq2Seq, default_data_collator
from torch.utils.data import default_collate


class Collator:
    def __call__(self, rows): ...

    @staticmethod
    def plain(rows): ...


def stack(rows, width=1): ...


def made(width):
    def inner(rows): ...

    return inner


"""


def told(root: Path, text: str) -> list[tuple[str | None, str]]:
    entry = entry_of(root, {"train.py": IMPORTS + OWN + text, "rows.py": ROWS})
    return [(fact.value, fact.detail) for fact in collate.facts(entry)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", [("default", "none passed")]),
        (", collate_fn=None", [("default", "none passed")]),
        (", collate_fn=default_collate", [("default", "default_collate")]),
        (", collate_fn=default_data_collator", [("hf:default_data_collator", "default_data_collator")]),
        (", collate_fn=DataCollatorForSeq2Seq(0, padding=False)",
         [("hf:DataCollatorForSeq2Seq", "DataCollatorForSeq2Seq(padding=False)")]),
        (", collate_fn=Collator()", [("own", "class Collator in train.py")]),
        (", collate_fn=Collator.plain", [("own", "function Collator.plain in train.py")]),
        (", collate_fn=functools.partial(stack, width=2)", [("own", "partial of function stack in train.py")]),
        (", collate_fn=made(2)", [("own", "function inner in train.py")]),
        (", collate_fn=lambda rows: rows", [("own", "a lambda in train.py")]),
        (", collate_fn=default_data_collator if model else Collator()",
         [("hf:default_data_collator", "default_data_collator"), ("own", "class Collator in train.py")]),
        (", **{'collate_fn': stack}", [("own", "function stack in train.py")]),
        (", collate_fn=nobody", [(None, "")]),
        (", collate_fn=model.collate", [(None, "")]),
    ],
)  # fmt: skip
def test_the_collate_of_a_loader(tmp_path: Path, given: str, said: list[tuple[str | None, str]]) -> None:
    assert told(tmp_path, f"loader = DataLoader(rows.Rows(){given})\n{LOOP}") == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", [("hf_default", "none passed: default_data_collator")]),
        (", tokenizer=rows", [("hf_default", "none passed: DataCollatorWithPadding")]),
        (", data_collator=stack", [("own", "function stack in train.py")]),
        (", data_collator={'train': Collator(), 'eval': stack}", [("own", "class Collator in train.py")]),
    ],
)
def test_the_collate_of_a_trainer(tmp_path: Path, given: str, said: list[tuple[str | None, str]]) -> None:
    assert told(tmp_path, f"Trainer(model, train_dataset=rows.Rows(){given}).train()\n") == said


def test_a_trainer_of_trl_collates_by_itself(tmp_path: Path) -> None:
    text = "from trl import SFTTrainer\nSFTTrainer(model, train_dataset=rows.Rows()).train()\n"
    assert told(tmp_path, text) == [("framework", "the Trainer's own")]


def test_a_generator_has_none(tmp_path: Path) -> None:
    text = f"loader = rows.batches([1], 1)\n{LOOP}"
    assert told(tmp_path, text) == [("none", "batches are made without a collate")]


def test_a_generator_that_calls_a_function_for_each_batch(tmp_path: Path) -> None:
    text = f"def held(data):\n    collate = made(1)\n    yield collate(data)\n\nloader = held([1])\n{LOOP}"
    assert told(tmp_path, text) == [("own", "function inner in train.py")]


def test_no_loader_is_unknown(tmp_path: Path) -> None:
    assert told(tmp_path, "model().loss.backward()\n") == [(None, "")]
