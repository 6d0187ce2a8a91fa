"""The score of `facts` on a table of two rows and a repository made for it, through the real command."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests import score_facts
from tests.migrate.fakes import write_files

LABELS = {
    "padding_place": "MAP", "padding_where": "", "padding_idiom": "tok_max_length", "pad_side": "right",
    "batch_contract": "dict", "collator": "own", "loader_place": "same file", "dataset_in_other_file": "no",
    "optimizer": "AdamW", "optimizer_cat": "torch.optim.AdamW", "precision": "fp32", "precision_now": "fp32",
    "precision_cat": "fp32 only", "framework_cat": "plain loop (1 GPU)", "flags_cat": "code",
}  # fmt: skip
ADAMW = """\
import torch

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(1)).sum().backward()
    optimizer.step()
"""
RULINGS = ("id", "column", "ruling", "where", "reason")


def write_table(path: Path, *rows: dict[str, str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    write_files(tmp_path, {"repos/one+two/a.py": ADAMW, "repos/one+two/b.py": ADAMW.replace("AdamW", "Adam")})
    rows = ({"id": f"R{name}", "repo": "one/two", "path": f"{name}.py", **LABELS} for name in "ab")
    write_table(tmp_path / "table.tsv", *rows)
    return ["--table", str(tmp_path / "table.tsv"), "--repos", str(tmp_path / "repos")]


def optimizer_lines(out: str) -> list[str]:
    return [line for line in out.splitlines() if "optimizer_cat" in line]


def test_a_word_that_the_label_does_not_allow_is_wrong_until_it_is_ruled(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ruling = dict(zip(RULINGS, ("Rb", "optimizer_cat", "torch_adam", "b.py:4", "Adam is called"), strict=True))
    write_table(tmp_path / "rulings.tsv", ruling)
    assert score_facts.main([*arguments, "--rulings", str(tmp_path / "rulings.tsv")]) == 1
    raw, ruled, missed = optimizer_lines(capsys.readouterr().out)
    assert raw.split() == "optimizer_cat 2 0 1 50.0% 1 50.0% 0 0.0% 0".split()
    assert ruled.split() == "optimizer_cat 2 0 2 100.0% 0 0.0% 0 0.0% 0".split()
    assert missed == "missed: optimizer_cat: 50.0% of the labels ruled, at most 8% is allowed"


def test_what_disagrees_is_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    score_facts.main(arguments)
    wrong, _, missed = optimizer_lines(capsys.readouterr().out)
    assert wrong.split("\t")[:6] == ["wrong", "Rb", "b.py", "optimizer_cat", "torch.optim.AdamW", "torch_adam"]
    assert missed == "missed: optimizer_cat: right 50.0%, at least 70% is needed"


def test_an_absent_repository_is_unknown(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "repos").rename(tmp_path / "elsewhere")
    assert score_facts.main([*arguments, "--only", "Ra"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "one+two: absent"
    assert optimizer_lines(out)[1].split() == "optimizer_cat 1 0 0 0.0% 0 0.0% 1 100.0% 1".split()


def test_a_label_without_a_mapping_is_an_error(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "table.tsv", {"id": "Rc", "repo": "one/two", "path": "a.py", **LABELS, "collator": "magic"})
    assert score_facts.main(arguments) == 2
    assert capsys.readouterr().err == "labels that are not mapped:\nRc: collator 'magic'\n"


def test_words_that_a_label_allows() -> None:
    row = {**LABELS, "collator": "see dataset", "optimizer": "HF adamw_torch / ds json", "flags_cat": "sh+json"}
    row["optimizer_cat"] = "TrainingArguments explicit optim string"
    assert score_facts.allowed(row, "collator") == ()
    assert score_facts.allowed(row, "optimizer_cat") == ("hf_optim", "deepspeed_config")
    assert score_facts.allowed(row, "pad_side") == ("right", "tokenizer")
    assert score_facts.allowed(row, "flags_cat") == ("json+sh",)
