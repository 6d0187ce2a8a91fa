"""What a collate of the root makes of rows that come padded: the fields with positions, or why they must stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.facts.collate_run import collated
from speedmigrate.facts.loaders import loaders
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.rule import Hop
from tests.migrate.test_chain_optimizer import entry_of

HEAD = """import numpy as np
import torch
from functools import partial
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate


"""
TAIL = """

for batch in DataLoader(torch.load("rows.pt"), batch_size=4, collate_fn=collate):
    print(batch)
"""
DICTS: dict[Key, Pads] = {"ids": Pads(7, "7"), "labels": Pads(-100, "-100")}
TUPLES: dict[Key, Pads] = {1: Pads(7, "7"), 2: Pads(-100, "-100")}


def read(root: Path, code: str, pads: dict[Key, Pads]) -> tuple[dict[Key, Pads], list[Hop]]:
    entry = entry_of(root, {"train.py": HEAD + code + TAIL})
    (loader,) = loaders(entry)
    assert loader.collate is not None
    (value,) = entry.values.of(loader.collate)
    return collated(entry.values, value, pads, loader.site.expr)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["return {'x': torch.stack([row['ids'] for row in rows])}"], {"x": 7}),
        (["return {'x': torch.tensor([row['ids'] for row in rows])}"], {"x": 7}),
        (["return {'x': torch.from_numpy(np.stack([row['ids'] for row in rows]))}"], {"x": 7}),
        (["return {'x': torch.cat([row['ids'].unsqueeze(0) for row in rows], dim=0)}"], {"x": 7}),
        (["return {'x': pad_sequence([row['ids'] for row in rows], batch_first=True, padding_value=3)}"], {"x": 7}),
        (["batch = default_collate(rows)", "batch['mask'] = batch['ids'] != 7", "return batch"],
         {"ids": 7, "labels": -100, "mask": 0}),
        (["return {'x': torch.stack([row['ids'] for row in rows]) * 2, 'y': len(rows)}"], {"x": None}),
        (["ids = [row['ids'] for row in rows]", "return torch.stack(ids), torch.ones(len(rows))"], {0: 7}),
    ],
)  # fmt: skip
def test_the_fields_of_the_batch(tmp_path: Path, lines: list[str], wanted: dict[Key, object]) -> None:
    fields, problems = read(tmp_path, "def collate(rows):\n    " + "\n    ".join(lines), DICTS)
    assert problems == []
    assert {key: pad.constant for key, pad in fields.items()} == wanted
    assert {pad.levels for pad in fields.values()} == {1}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["return {'x': torch.stack([row['ids'] for row in rows])[:, -1:]}"], "by their number"),
        (["return {'x': pad_sequence([row['ids'] for row in rows])}"], "not known to keep positions apart"),
        (["return {'x': torch.stack([row['ids'].float().mean() for row in rows])}"], "what the collate makes of 'x'"),
        (["return {'x': torch.stack([row['ids'] for row in rows]).T}"], "what the collate makes of 'x'"),
        (["return list(zip(*rows))"], "rows are taken apart"),
        (["return rows"], "the fields of the batch are not seen"),
    ],
)
def test_a_collate_that_may_read_the_width(tmp_path: Path, lines: list[str], why: str) -> None:
    _, problems = read(tmp_path, "def collate(rows):\n    " + "\n    ".join(lines), DICTS)
    assert any(why in hop.what for hop in problems), problems


def test_slots_of_tuples_and_left_sides(tmp_path: Path) -> None:
    pads = {slot: Pads(pad.constant, pad.code, "left") for slot, pad in TUPLES.items()}
    code = "def collate(rows):\n    a, b, c, d = zip(*rows)\n    return torch.stack(c), torch.stack(b) > 0, d, a"
    fields, problems = read(tmp_path, code, pads)
    assert problems == []
    assert {slot: (pad.constant, pad.side) for slot, pad in fields.items()} == {0: (-100, "left"), 1: (None, "left")}


@pytest.mark.parametrize("code", ["def collate():\n    pass", "collate = build()", "collate = partial(build(), 1)"])
def test_a_collate_that_is_not_read(tmp_path: Path, code: str) -> None:
    assert [hop.what for hop in read(tmp_path, code, DICTS)[1]] == ["the collate is not a function that is read"]


def test_a_method_of_a_class_gets_rows_behind_self(tmp_path: Path) -> None:
    code = """class Collate:
    def __call__(self, rows):
        return {"ids": torch.stack([row["ids"] for row in rows])}


collate = Collate()"""
    assert list(read(tmp_path, code, DICTS)[0]) == ["ids"]
