from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from speedmigrate import __version__, cli
from speedmigrate.chain import report as chain_report
from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.report import EntryReport, FactsReport, gather, report_dict
from speedmigrate.chain.tree import BESIDE, tree_lines
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.project import Project
from speedmigrate.report import print_lines
from speedmigrate.rule import Hop, Options
from speedmigrate.target import Target
from tests.migrate.fakes import write_files

LOOP = """\
import torch

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(1)).sum().backward()
    optimizer.step()
"""
TRAINER = """\
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, tok, width):
        self.rows, self.tok, self.width = rows, tok, width

    def __getitem__(self, i):
        ids = self.tok(self.rows[i])["input_ids"]
        gap = self.width - len(ids)
        ids = ids + [self.tok.pad_token_id] * gap
        return {"input_ids": torch.tensor(ids), "name": i}


class Read(Rows):
    def __getitem__(self, i):
        ids = self.rows[i] + [0] * (self.width - len(self.rows[i]))
        return torch.tensor(ids), hash(tuple(ids))


class Bare(Rows):
    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


if __name__ == "__main__":
    (args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
    tok = AutoTokenizer.from_pretrained("x")
    model = AutoModelForCausalLM.from_pretrained("x")
    data = Rows(["a"], tok, 8) if args.seed else Read([[1]], tok, 8)
    Trainer(model=model, args=args, train_dataset=data, eval_dataset=Bare(["a"], tok, 8)).train()
"""
UTILS = "def mean(xs):\n    return sum(xs) / len(xs)\n"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(("facts", *arguments))
        return code, *capfd.readouterr()

    return run


def checked(text: str) -> dict[str, Any]:
    """Return the JSON after holding it against the schema."""
    schema = json.loads((files("speedmigrate") / "chain" / "facts.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    data: dict[str, Any] = json.loads(text)
    jsonschema.validate(data, schema, jsonschema.Draft202012Validator)
    return data


def shown(report: FactsReport) -> str:
    out = io.StringIO()
    print_lines(tree_lines(report), Console(file=out))
    return out.getvalue()


def hops(number: int) -> tuple[Hop, ...]:
    return tuple(Hop("data.py", line, f"step {line}") for line in range(1, number + 1))


def test_the_tree() -> None:
    facts = (
        Fact("data.kind", "class", "Rows", hops(2)),
        Fact("padding.place", "getitem", "self.width", hops(6), (Hop("data.py", 9, "**more"),)),
        Fact("padding.side", "right", "right", hops(2)),
        unknown("padding.idiom", Hop("data.py", 7, "computed\nhere"), Hop("data.py", 8, "[red]")),
        Fact("loader.place", "entry", "train.py", (Hop("train.py", 3, "made"),)),
        Fact("data.place", "other", "", hops(1)),
        Fact("cast.kind", "half", "x", hops(1)),
        Fact("cast.kind", "half", "x", (Hop("train.py", 4, "again"),)),
        Fact("flags.place", "code"),
        *(Fact("wrap.order", str(number), "", hops(1)) for number in range(10)),
    )
    other = Target(torch=(2, 4), torch_from="--target")
    why = (Hop("utils.py", 1, "nothing"), *hops(5))
    entries = (
        EntryReport("train.py", Target(), True, facts),
        EntryReport("utils.py", other, False, (), why),
    )
    assert (
        shown(FactsReport("/repo", Target(), entries, (("bad.py", "bad.py:1: syntax error"),)))
        == """\
target: torch 2.1 (default), transformers 4.36 (default), sm_80 (default)

train.py
  data
    kind: class, Rows (data.py:1)
      step 2 (data.py:2)
    place: other, step 1 (data.py:1)
  padding
    place: getitem, self.width (data.py:1)
      step 2 (data.py:2)
      step 3 (data.py:3)
      step 4 (data.py:4)
      step 5 (data.py:5)
      … and 1 more
      unknown: **more (data.py:9)
    side: right (data.py:1)
    idiom: unknown: computed here (data.py:7)
      unknown: [red] (data.py:8)
  loader
    place: entry (train.py:3)
  cast
    kind: half, x (data.py:1)
      again (train.py:4)
  flags
    place: code
  wrap
    order: 0, step 1 (data.py:1)
    order: 1, step 1 (data.py:1)
    order: 2, step 1 (data.py:1)
    order: 3, step 1 (data.py:1)
    order: 4, step 1 (data.py:1)
    order: 5, step 1 (data.py:1)
    order: 6, step 1 (data.py:1)
    order: 7, step 1 (data.py:1)
    … and 2 more

utils.py
  target: torch 2.4 (--target), transformers 4.36 (default), sm_80 (default)
  no training code found
    nothing (utils.py:1)
    step 1 (data.py:1)
    step 2 (data.py:2)
    step 3 (data.py:3)
    … and 2 more

errors
  bad.py:1: syntax error
"""
    )


def test_json_is_as_the_schema_says() -> None:
    facts = (Fact("a.b", "word", "as written", hops(1)), unknown("a.c", *hops(1)))
    other = Target(torch=(2, 4), torch_from="--target")
    entries = (EntryReport("train.py", Target(), True, facts), EntryReport("utils.py", other, False))
    data = checked(json.dumps(report_dict(FactsReport("/repo", Target(), entries, (("bad.py", "no"),)))))
    step = {"path": "data.py", "line": 1, "what": "step 1"}
    assert list(data) == ["speedmigrate", "root", "target", "entries", "errors"]
    assert data["speedmigrate"] == __version__
    assert data["entries"][0] == {
        "path": "train.py",
        "trains": True,
        "facts": [
            {"name": "a.b", "value": "word", "detail": "as written", "evidence": [step], "unknown": []},
            {"name": "a.c", "value": None, "detail": "", "evidence": [], "unknown": [step]},
        ],
    }
    assert (data["entries"][1]["target"]["torch"], data["errors"]) == ("2.4", [{"path": "bad.py", "message": "no"}])


def test_the_schema_wants_a_place_where_there_is_no_word() -> None:
    entries = (EntryReport("train.py", Target(), True, (Fact("a.b", None),)),)
    with pytest.raises(jsonschema.ValidationError):
        checked(json.dumps(report_dict(FactsReport("/repo", Target(), entries, ()))))


def test_a_script_of_a_repository_as_json(command: Command, root: Path) -> None:
    write_files(root, {"train.py": LOOP, "utils.py": UTILS})
    code, out, err = command("train.py", "--format", "json", "--target", "torch=2.4")
    data = checked(out)
    kinds = [fact["value"] for fact in data["entries"][0]["facts"] if fact["name"] == "optimizer.kind"]
    assert (code, err, kinds) == (0, "", ["torch_adamw"])
    assert (data["root"], data["target"]["torch_from"], data["errors"]) == (str(root), "--target", [])


def test_a_folder_is_every_entry_point_in_it_and_a_launch_file_what_it_starts(command: Command, root: Path) -> None:
    write_files(root, {"a/one.py": LOOP, "a/two.py": LOOP, "a/utils.py": UTILS, "run.sh": "python a/two.py --lr 1\n"})
    for paths, found in (((".",), ["a/one.py", "a/two.py"]), (("run.sh",), ["a/two.py"])):
        data = checked(command(*paths, "--format", "json")[1])
        assert [(entry["path"], entry["trains"]) for entry in data["entries"]] == [(path, True) for path in found]


def test_no_entry_point_that_trains(command: Command, root: Path) -> None:
    write_files(
        root, {"utils.py": UTILS, "go.py": "import outside\n\noutside.make(1).run()\nprint(open('x').read())\n"}
    )
    target = "target: torch 2.1 (default), transformers 4.36 (default), sm_80 (default)\n\n"
    said = (
        "no training code found: no script here starts a run (a call at its top, or under `if __name__`) that reaches "
        "`backward()`, or `train()` or `fit()` of a Trainer\n"
    )
    assert command(".") == (0, target + said, "")
    said = (
        "utils.py\n  no training code found\n    none of the calls that are followed from here (2 in 1 file) is "
        "`backward()`, or `train()` or `fit()` of a Trainer that is known (utils.py:1)\n"
    )
    assert command("utils.py") == (0, target + said, "")


def test_the_calls_that_may_train_and_are_not_followed_are_told(root: Path) -> None:
    write_files(root, {"go.py": "import gin\n\nx = jobs[3]\nx.train()\ngin.make(1).run()\nx.close()\n"})
    entry = gather(Project(root), ["go.py"], Options(), None).entries[0]
    assert entry.why[1:] == (
        Hop("go.py", 4, "`x.train()` is not followed: `jobs` is not bound in go.py"),
        Hop(
            "go.py",
            5,
            "`gin.make(1).run()` is not followed: it leads out of the root, or to nothing that is known",
        ),
    )


def test_a_path_that_cannot_be_read(command: Command, root: Path) -> None:
    write_files(root, {"train.py": LOOP, "bad.py": "def f(:\n"})
    assert command("gone.py") == (2, "", "speedmigrate: gone.py: no such file or folder\n")
    code, out, err = command("train.py", "bad.py", "gone.py", "--format", "json")
    assert [entry["path"] for entry in checked(out)["entries"]] == ["train.py"]
    assert (code, [error["path"] for error in checked(out)["errors"]]) == (2, ["bad.py", "gone.py"])
    assert err.splitlines()[1] == "speedmigrate: gone.py: no such file or folder"
    code, out, err = command("train.py", "bad.py")
    assert (code, len(err.splitlines()), "errors" in out) == (2, 1, False)


def crash(_: EntryFacts) -> Iterator[Fact]:
    yield Fact("crash.seen", "before")
    raise KeyError("x")


def after(_: EntryFacts) -> Iterator[Fact]:
    yield Fact("after.seen", "yes")


def test_a_hop_that_fails_loses_no_other(command: Command, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(root, {"train.py": LOOP})
    monkeypatch.setattr(chain_report, "HOPS", (crash, after))
    code, out, err = command("train.py")
    assert (code, err) == (0, "")
    assert out.partition("\n\n")[2] == (
        "train.py\n  crash\n    seen: before\n  after\n    seen: yes\n  model\n"
        "    complete: torch.nn.Linear, it has all its parts before this (train.py:4)\n\nerrors\n"
        "  train.py: the hop crash failed (KeyError: 'x'), so it says less than it could. "
        "This is a bug of speedmigrate: please report it\n"
    )
    assert len(checked(command("train.py", "--format", "json")[1])["errors"]) == 1


def test_an_entry_point_that_cannot_be_followed_loses_no_other(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(root, {"one.py": LOOP, "two.py": LOOP})
    monkeypatch.setattr(EntryFacts, "trains", property(lambda entry: bool(1 / (entry.path != "one.py"))))
    code, out, _ = command("one.py", "two.py", "--format", "json")
    data = checked(out)
    assert (code, [bool(entry["facts"]) for entry in data["entries"]]) == (0, [False, True])
    assert data["errors"] == [
        {
            "path": "one.py",
            "message": "one.py: could not be followed (ZeroDivisionError: division by zero). "
            "This is a bug of speedmigrate: please report it",
        }
    ]


def test_what_stands_beside_the_hops(root: Path) -> None:
    write_files(root, {"train.py": TRAINER})
    entry = EntryFacts(Project(root), "train.py", Target(), Options())
    assert [fact for ask in BESIDE for fact in ask(entry)] == [
        Fact(
            "data.rows",
            "dict",
            "Rows: 'input_ids' padded on the right with self.tok.pad_token_id, 'name'",
            (Hop("train.py", 10, "its rows are made here"),),
        ),
        Fact(
            "data.rows",
            "tuple",
            "Read: [0] padded on the right with 0, [1]",
            (Hop("train.py", 18, "its rows are made here"),),
        ),
        Fact(
            "data.rows",
            None,
            "Read",
            (),
            (Hop("train.py", 20, "padded data is used here in a way that is not followed: hash(tuple(ids))"),),
        ),
        Fact(
            "model.complete",
            "transformers.AutoModelForCausalLM.from_pretrained",
            "",
            (Hop("train.py", 33, "it has all its parts before this"),),
        ),
        Fact("framework.arguments", "from flags", "", (Hop("train.py", 29, ""),)),
    ]


def test_a_run_with_none_of_it_has_nothing_beside_the_hops(root: Path) -> None:
    write_files(root, {"train.py": "import torch\n\nfor x in torch.ones(3, requires_grad=True):\n    x.backward()\n"})
    entry = EntryFacts(Project(root), "train.py", Target(), Options())
    assert [fact for ask in BESIDE for fact in ask(entry)] == []
