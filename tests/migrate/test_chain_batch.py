"""What `batch.kind` says of small runs: how batches are made, how they are taken, and where the two disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain import batch
from tests.migrate.test_chain_data import IMPORTS, ROWS
from tests.migrate.test_chain_optimizer import entry_of


def told(root: Path, text: str) -> list[tuple[str | None, str]]:
    entry = entry_of(root, {"train.py": IMPORTS + text, "rows.py": ROWS})
    return [(fact.value, fact.detail) for fact in batch.facts(entry) if fact.name == "batch.kind"]


def loop(collate: str, taken: str) -> str:
    return f"{collate}\nfor batch in DataLoader(data, collate_fn=collate):\n    {taken}\n    model().loss.backward()\n"


@pytest.mark.parametrize(
    ("collate", "taken", "said"),
    [
        ("data, collate = rows.Rows(), None", "pass", ("dict", "input_ids")),
        ("data, collate = nobody(), None", "model(**batch)", ("dict", "**")),
        ("data, collate = nobody(), None", "x, y = batch", ("tuple", "2")),
        ("data, collate = nobody(), None", "batch = tuple(t.to(0) for t in batch)\n    model(batch[0])", ("tuple", "")),
        ("data, collate = TensorDataset(), None", "pass", ("tuple", "")),
        ("data = nobody()\ndef collate(rows):\n    return torch.stack(rows)", "model(batch)", ("tensor", "")),
        ("data = nobody()\ndef collate(rows):\n    made = {}\n    return made", "model(**batch)", ("dict", "**")),
        ("data = nobody()\ndef collate(rows):\n    return rows.a, rows.b", "pass", ("tuple", "2")),
        ("data, collate = nobody(), lambda rows: rows", "model(batch[0])", ("list", "")),
        ("data, collate = nobody(), nobody", "pass", (None, "")),
        ("data = nobody()\ndef collate(rows):\n    return {'a': 1}", "x, y = batch", (None, "")),
        ("data = nobody()\ndef collate(rows):\n    return {'a': 1} if rows else (1, 2)", "pass", (None, "")),
    ],
)
def test_what_a_batch_is(tmp_path: Path, collate: str, taken: str, said: tuple[str | None, str]) -> None:
    assert told(tmp_path, loop(collate, taken)) == [said]


def test_the_loop_takes_the_batch_apart(tmp_path: Path) -> None:
    text = "for step, (x, y) in enumerate(DataLoader(nobody())):\n    model(x, y).loss.backward()\n"
    assert told(tmp_path, text) == [("tuple", "2")]


def test_a_step_that_gets_the_batch_is_read(tmp_path: Path) -> None:
    text = """def step(batch):
    model(batch["input_ids"]).loss.backward()

for batch in DataLoader(nobody()):
    step(batch)
"""
    assert told(tmp_path, text) == [("dict", "input_ids")]


def test_a_default_collate_inside_keeps_the_kind_of_the_rows(tmp_path: Path) -> None:
    imported = "from torch.utils.data import default_collate\ndata = rows.Rows()\n"
    collate = "def collate(rows):\n    return default_collate(rows)"
    assert told(tmp_path, loop(imported + collate, "pass")) == [("dict", "input_ids")]


def test_a_trainer_hands_on_dicts(tmp_path: Path) -> None:
    assert told(tmp_path, "Trainer(model, train_dataset=nobody()).train()\n") == [("dict", "")]


def test_a_generator_of_the_root(tmp_path: Path) -> None:
    text = "def made():\n    yield 1, 2, 3\n\nfor batch in made():\n    model(batch).loss.backward()\n"
    assert told(tmp_path, text) == [("tuple", "3")]


def test_no_loader_is_unknown(tmp_path: Path) -> None:
    assert told(tmp_path, "model().loss.backward()\n") == [(None, "")]
