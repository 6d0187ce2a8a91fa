"""Which training loops get whole padded batches, what is cut there and why it may not be."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from speedmigrate.chain.batch_makers import BatchMaker, batch_makers
from speedmigrate.facts.entry import EntryFacts, entry_facts
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options
from speedmigrate.target import Target
from tests.migrate.fakes import write_files

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer

tok = AutoTokenizer.from_pretrained("x")
L = 64


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(99, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, ids, mask):
        weights = mask.unsqueeze(-1).float()
        return self.head((self.words(ids) * weights).sum(1) / weights.sum(1))


def read_rows(path, length):
    rows = []
    for line in open(path):
        ids = tok.encode(line)[:length]
        mask = [1] * len(ids)
        gap = length - len(ids)
        rows.append((ids + [tok.pad_token_id] * gap, mask + [0] * gap, len(line) % 2))
    return rows


rows = read_rows("x", L)
ids = torch.tensor([row[0] for row in rows])
mask = torch.tensor([row[1] for row in rows])
kinds = torch.tensor([row[2] for row in rows])
model = Judge()
"""
STEP = "nn.functional.cross_entropy(model(a, m), k).backward()"


def run(root: Path, text: str) -> EntryFacts:
    (root / "train.py").write_text(HEAD + textwrap.dedent(text))
    return entry_facts(Project(root), "train.py", Target(), Options())


def made(root: Path, text: str) -> BatchMaker:
    (found,) = batch_makers(run(root, text))
    return found


LOOPS = {
    "a generator": (
        f"""
        def batches(ids, mask, kinds):
            for i in range(0, len(ids), 4):
                yield ids[i : i + 4], mask[i : i + 4], kinds[i : i + 4]
        for a, m, k in batches(ids, mask, kinds):
            {STEP}
        """,
        "a, m = trim_batch((a, m), (tok.pad_token_id, 0))",
        True,
    ),
    "next of a generator": (
        f"""
        def batches(ids, mask, kinds):
            while True:
                for i in range(0, len(ids), 4):
                    yield ids[i : i + 4], mask[i : i + 4], kinds[i : i + 4]
        stream = batches(ids, mask, kinds)
        for step in range(100):
            a, m, k = next(stream)
            {STEP}
        """,
        "a, m = trim_batch((a, m), (tok.pad_token_id, 0))",
        False,
    ),
    "slices in the loop": (
        f"""
        for i in range(0, len(ids), 4):
            a = ids[i : i + 4]
            m = mask[i : i + 4]
            k = kinds[i : i + 4]
            {STEP}
        """,
        "a, m = trim_batch((a, m), (tok.pad_token_id, 0))",
        False,
    ),
    "a dict": (
        """
        def batches(ids, mask, kinds):
            for i in range(0, len(ids), 4):
                yield {"a": ids[i : i + 4], "m": mask[i : i + 4], "k": kinds[i : i + 4]}
        for batch in batches(ids, mask, kinds):
            nn.functional.cross_entropy(model(batch["a"], batch["m"]), batch["k"]).backward()
        """,
        "batch = trim_batch(batch, {'a': tok.pad_token_id, 'm': 0})",
        True,
    ),
    "a slice under a name": (
        f"""
        def batches(ids, mask, kinds):
            for i in range(len(ids) // 4):
                part = slice(i * 4, i * 4 + 4)
                yield ids[part, :], mask[part, :], kinds[part]
        for a, m, k in batches(ids, mask, kinds):
            {STEP}
        """,
        "a, m = trim_batch((a, m), (tok.pad_token_id, 0))",
        True,
    ),
    "rows handed on": (
        f"""
        class Rows(Dataset):
            def __init__(self, rows):
                self.rows = rows

            def __getitem__(self, i):
                return self.rows[i]
        for rows_ in DataLoader(Rows(rows), collate_fn=lambda batch: batch):
            a = torch.tensor([row[0] for row in rows_])
            m = a != tok.pad_token_id
            k = torch.tensor([row[2] for row in rows_])
            {STEP}
        """,
        "a, m = trim_batch((a, m), (tok.pad_token_id, 0))",
        False,
    ),
}


@pytest.mark.parametrize(("text", "line", "is_before"), LOOPS.values(), ids=LOOPS)
def test_a_loop_is_cut(tmp_path: Path, text: str, line: str, is_before: bool) -> None:
    maker = made(tmp_path, text)
    assert maker.problems == ()
    assert maker.corrects == ()
    assert (maker.lines, maker.is_before) == ((line,), is_before)
    assert maker.covers


def test_a_loop_that_cuts_is_done(tmp_path: Path) -> None:
    text = LOOPS["slices in the loop"][0].replace(
        STEP, f"a, m = trim_batch((a, m), (tok.pad_token_id, 0))\n            {STEP}"
    )
    maker = made(tmp_path, "from speedruntime import trim_batch\n" + textwrap.dedent(text))
    assert maker.done is not None
    assert maker.lines == ()


PROBLEMS = {
    "batches of several kinds": (
        "yield ids[i : i + 4], mask[i : i + 4], kinds[i : i + 4]",
        "yield ids[i : i + 4], mask[i : i + 4], kinds[i : i + 4]; yield mask[i:], ids[i:], kinds[i:]",
        "batches of several kinds",
    ),
    "the width is read": (STEP, f"print(a.size(1) * 64)\n            {STEP}\n            k = a.view(-1, 64)", "64"),
    "not taken apart": ("for a, m, k in", "for (a, m, *k) in", "not taken apart"),
}


@pytest.mark.parametrize(("old", "new", "why"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_named(tmp_path: Path, old: str, new: str, why: str) -> None:
    text = LOOPS["a generator"][0]
    assert old in text
    maker = made(tmp_path, text.replace(old, new))
    told = [hop.what for hop in maker.problems]
    assert any(why in what for what in told), told


def test_a_loop_of_another_file_is_right_for_each_entry(tmp_path: Path) -> None:
    loop = textwrap.dedent(HEAD[: HEAD.index("\nrows =")]) + textwrap.dedent(f"""
        def train(ids, mask, kinds):
            model = Judge()
            for i in range(0, len(ids), 4):
                a, m, k = ids[i : i + 4], mask[i : i + 4], kinds[i : i + 4]
                {STEP}
        """)
    start = HEAD[HEAD.index("\nrows =") :].replace("model = Judge()", "train(ids, mask, kinds)")
    entry = "import torch\nfrom loop import read_rows, train\nL = 64\n" + start
    files = {"loop.py": loop, "one.py": entry, "two.py": entry.replace("L)", "32)")}
    write_files(tmp_path, files)
    (maker,) = batch_makers(entry_facts(Project(tmp_path), "one.py", Target(), Options()))
    assert maker.module.path == "loop.py"
    assert maker.problems == ()
    write_files(
        tmp_path,
        {"two.py": "import torch\nfrom loop import train\ntrain(torch.ones(8, 4), torch.ones(8, 4), torch.ones(8))\n"},
    )
    (maker,) = batch_makers(entry_facts(Project(tmp_path), "one.py", Target(), Options()))
    assert [hop.path for hop in maker.problems] == ["two.py"]
