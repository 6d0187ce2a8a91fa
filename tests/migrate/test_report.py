from __future__ import annotations

import io
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from speedmigrate.analyse import Analysis, Launch
from speedmigrate.changes import Editor
from speedmigrate.facts.project import Project
from speedmigrate.plan import Plan, Selection, make_plan
from speedmigrate.report import Report, plain, print_lines, printable, report_lines
from speedmigrate.report_data import json_report, markdown_report, report_dict
from speedmigrate.rule import Finding, Hop, Place, SetFlag
from speedmigrate.target import Target
from tests.migrate.fakes import fake_rule, plan_of, swap, write_files

TARGET = Target()
TEXT = """\
target: torch 2.1 (default), transformers 4.36 (default), sm_80 (default)

train.py
  padding    refuse  train.py:3
  compile    report  train.py:2
  precision  noop    train.py:1
  optimizer  edit    train.py:1
  changes
    T100 rule_t100 train.py:1 [exact]
      slow becomes sum
      needs: torch>=2.0
      files: train.py
        train.py:1: names slow
  left alone
    T200 rule_t200 train.py:3
      [bold]the width is read\\x1b[0m
        train.py:3: view(-1, [max_len])
  to know
    T300 rule_t300 train.py:2
      few steps
  nothing to do
    T400 rule_t400 train.py:1
      bf16 already

could not be read
  bad.py:1: syntax error (invalid syntax)

1 change in 1 file; --diff shows the patch, --write applies it
"""

MARKDOWN = """\
Target: torch 2.1 (default), transformers 4.36 (default), sm\\_80 (default)

### `train.py`

| goal | verdict | places |
|---|---|---|
| padding | refuse | `train.py:3` |
| compile | report | `train.py:2` |
| precision | noop | `train.py:1` |
| optimizer | edit | `train.py:1` |

- **T100** rule\\_t100 (change, exact) `train.py:1`: slow becomes sum
  - effect: exact; resume-safe: yes
  - needs: torch\\>=2.0
  - files: train.py
  - `train.py:1` names slow
- **T200** rule\\_t200 (refused) `train.py:3`: \\[bold\\]the width is read\\\\x1b\\[0m
  - `train.py:3` view(-1, \\[max\\_len\\])
- **T300** rule\\_t300 (note) `train.py:2`: few steps
- **T400** rule\\_t400 (done) `train.py:1`: bf16 already

Could not be read:

- bad.py:1: syntax error (invalid syntax)

1 change in 1 file; --diff shows the patch, --write applies it.
"""


def others(_project: object) -> list[Finding]:
    return [
        fake_rule("T200", "padding").finding(
            "refused",
            Place("train.py", 3, 3),
            "[bold]the width is read\x1b[0m",
            evidence=(Hop("train.py", 3, "view(-1, [max_len])"),),
        ),
        fake_rule("T300", "compile").finding("note", Place("train.py", 2, 2), "few steps"),
        fake_rule("T400", "precision").finding("done", Place("train.py", 1, 1), "bf16 already"),
    ]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    write_files(tmp_path, {"train.py": "a = slow\n\nx.view(-1, n)\n"})
    return plan_of(tmp_path, [others, swap("slow", "sum")])[1]


@pytest.fixture
def report(plan: Plan) -> Report:
    return Report("/repo", TARGET, plan, (("bad.py", "bad.py:1: syntax error (invalid syntax)"),))


def test_text(report: Report) -> None:
    out = io.StringIO()
    print_lines(report_lines(report), Console(file=out))
    assert out.getvalue() == TEXT


def test_markdown(report: Report) -> None:
    assert markdown_report(report) == MARKDOWN


def test_json_is_as_the_schema_says(report: Report) -> None:
    schema = json.loads((files("speedmigrate") / "report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json_report(report)), schema, jsonschema.Draft202012Validator)


def test_json_of_a_change(report: Report) -> None:
    data = report_dict(report)
    assert list(data) == ["speedmigrate", "root", "target", "entries", "findings", "errors"]
    assert data["entries"][0]["verdicts"]["optimizer"] == {
        "verdict": "edit",
        "reasons": ["slow becomes sum"],
        "places": ["train.py:1"],
    }
    assert data["findings"][0] == {
        "id": "T100:train.py:1:1",
        "group": "T100:train.py:1",
        "code": "T100",
        "rule": "rule_t100",
        "goal": "optimizer",
        "status": "change",
        "effect": "exact",
        "needs": ["torch>=2.0"],
        "path": "train.py",
        "line": 1,
        "end_line": 1,
        "message": "slow becomes sum",
        "evidence": [{"path": "train.py", "line": 1, "what": "names slow"}],
        "entry": "train.py",
    }


def test_a_goal_that_no_rule_spoke_of_shows_its_reason(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": "a = slow\n"})
    out = io.StringIO()
    plan = plan_of(tmp_path, [swap("slow", "sum")])[1]
    print_lines(report_lines(Report("/repo", TARGET, plan)), Console(file=out))
    assert out.getvalue().splitlines()[3:5] == [
        "  padding    refuse  train.py:1",
        "    not analysed: no rule of this goal said anything. This is a bug of speedmigrate: please report it",
    ]


def test_launch_files_other_targets_and_entries_that_train_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": "", "run.sh": "python train.py --slow\n"})
    project = Project(tmp_path)

    def run_sh(_: Mapping[str, bytes]) -> tuple[Analysis, ...]:
        ops = (SetFlag("run.sh", 16, 22, "--fast"),)
        rule = fake_rule()
        findings = (
            rule.finding("change", Place("run.sh", 1, 1), "flag", ops=ops, resume_safe=False),
            rule.finding("note", Place("train.py", 1, 1), "said elsewhere"),
        )
        launches = (Launch("run.sh", ("start.py",)), Launch("other.sh"))
        other = Target(torch=(2, 4), torch_from="--target")
        return (
            Analysis("model.py", TARGET, False, (), ()),
            Analysis("train.py", other, True, launches, findings),
        )

    def nothing(_: Mapping[str, bytes]) -> tuple[Analysis, ...]:
        return ()

    plan = make_plan(Editor(project), run_sh({}), Selection(only=("optimizer",)), nothing)
    report = Report("/repo", TARGET, plan, hint="")
    out = io.StringIO()
    print_lines(report_lines(report), Console(file=out))
    assert (
        out.getvalue()
        == """\
target: torch 2.1 (default), transformers 4.36 (default), sm_80 (default)

model.py
  no training code found

train.py
  target: torch 2.4 (--target), transformers 4.36 (default), sm_80 (default)
  optimizer  config  run.sh:1
  started by run.sh (via start.py)
    optimizer  config  run.sh:1
  started by other.sh
  changes
    T100 rule_t100 run.sh:1 [exact, not resume-safe]
      flag
      needs: nothing new
      files: run.sh
  to know
    T100 rule_t100 train.py:1
      said elsewhere

1 change in 1 file
"""
    )
    entry = report_dict(report)["entries"][1]
    assert (entry["target"]["torch"], [launch["path"] for launch in entry["launches"]]) == (
        "2.4",
        ["run.sh", "other.sh"],
    )
    assert "No training code found." in markdown_report(report).splitlines()


def test_a_terminal_breaks_lines_with_a_hanging_indent() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=30, color_system=None)
    print_lines([plain(4, "中文 and words that go on for a while, [red]as they are")], console)
    assert out.getvalue() == "    中文 and words that go on\n    for a while, [red]as they\n    are\n"


def test_control_characters_and_surrogates_are_shown() -> None:
    assert printable("a\x1b[31m\nb\udcff中") == "a\\x1b[31m\\nb\\udcff中"
