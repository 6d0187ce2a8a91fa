from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from speedmigrate import __version__, analyse, cli, paths
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.rule import Example, Rule
from tests.migrate.fakes import fake_rule, swap, write_files

SCRIPT = """\
import torch

a = slow
loss = torch.nn.Linear(1, 1)(torch.ones(1)).sum()
if __name__ == "__main__":
    loss.backward()
"""
DIFF = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -1,6 +1,6 @@
 import torch
\x20
-a = slow
+a = sum
 loss = torch.nn.Linear(1, 1)(torch.ones(1)).sum()
 if __name__ == "__main__":
     loss.backward()
"""
Run = Callable[..., tuple[int, str, str]]
COMMAND = [sys.executable, "-m", "speedmigrate"]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path, {"train.py": SCRIPT})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> tuple[Rule, ...]:
    found = (
        fake_rule("T100", "optimizer", "exact", swap("slow", "sum")),
        fake_rule("T200", "padding", "corrects", swap("wide", "len", code="T200", goal="padding", effect="corrects")),
    )
    monkeypatch.setattr(analyse, "load_rules", lambda: found)
    monkeypatch.setattr(cli, "load_rules", lambda: found)
    return found


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        return code, *capfd.readouterr()

    return run


def test_diff_alone_goes_to_stdout_and_the_report_to_stderr(command: Run) -> None:
    code, out, err = command("train.py", "--diff")
    assert (code, out) == (0, DIFF)
    assert err.startswith("target: ")
    assert Path("train.py").read_text() == SCRIPT


def test_the_diff_is_taken_by_git_and_a_second_run_has_none(command: Run) -> None:
    subprocess.run(["git", "apply"], input=command("train.py", "--diff")[1], text=True, check=True)
    assert Path("train.py").read_text() == SCRIPT.replace("slow", "sum")
    code, out, err = command("train.py", "--diff")
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == "no changes"


def test_options_may_stand_before_the_path(command: Run) -> None:
    assert command("--diff", "train.py") == command("migrate", "train.py", "--diff")


def test_only_and_skip(command: Run) -> None:
    assert command("train.py", "--diff", "--only", "padding")[1] == ""
    assert command("train.py", "--diff", "--only", "padding,t100")[1] == DIFF
    assert command("train.py", "--diff", "--skip", "rule_t100")[1] == ""
    assert command("train.py", "--diff", "--effect", "corrects,order")[1] == ""


def test_check(command: Run) -> None:
    assert command("train.py", "--check")[0] == 1
    assert command("train.py", "--check", "--only", "padding")[0] == 0


def test_json(command: Run, root: Path) -> None:
    code, out, _ = command("train.py", "--format", "json")
    data = json.loads(out)
    assert (code, data["root"], [entry["path"] for entry in data["entries"]]) == (0, str(root), ["train.py"])


def test_markdown(command: Run) -> None:
    assert command(".", "--format", "markdown")[1].splitlines()[2] == "### `train.py`"


def test_write_and_undo(command: Run) -> None:
    assert command("train.py", "--write")[0] == 0
    assert Path("train.py").read_text() == SCRIPT.replace("slow", "sum")
    code, out, _ = command("undo")
    assert (code, out) == (0, "restored train.py\n")
    assert Path("train.py").read_text() == SCRIPT


def test_write_refuses_a_dirty_tree(command: Run) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    Path("train.py").write_text(SCRIPT + "\n")
    code, out, err = command("train.py", "--write")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--allow-dirty" in err
    assert command("train.py", "--write", "--allow-dirty")[0] == 0


def test_patch_dir_is_a_series_that_git_takes(command: Run) -> None:
    Path("train.py").write_text(SCRIPT.replace("slow", "slow + wide"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    assert command("train.py", "--patch-dir", "patches")[0] == 0
    names = sorted(path.name for path in Path("patches").iterdir())
    assert names == ["0001-optimizer-rule_t100-exact.patch", "0002-padding-rule_t200-corrects.patch"]
    for name in names:
        subprocess.run([*git, "am", "-q", f"patches/{name}"], check=True)
    assert Path("train.py").read_text() == SCRIPT.replace("slow", "sum + len")
    log = subprocess.run([*git, "log", "--format=%s", "-2"], check=True, capture_output=True, text=True)
    assert log.stdout == "padding: rule_t200 (corrects)\noptimizer: rule_t100 (exact)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.py"], "gone.py: no such file or folder"),
        (["picture.png"], "picture.png: expected a Python script, a launch file (.sh, .yaml, .json) or a folder"),
        (["notes.txt"], "notes.txt: expected a Python script, a launch file (.sh, .yaml, .json) or a folder"),
        (["bad.py"], "bad.py:2: syntax error (invalid syntax)"),
        (["empty.py"], "empty.py: empty file"),
        (["binary.py"], "binary.py: expected a text file, found NUL bytes (a binary file?)"),
        (["--root", "sub", "train.py"], "train.py: outside the root {root}/sub; name another with --root"),
        (["--root", "gone", "train.py"], "--root gone: expected a folder"),
        (
            ["train.py", "--only", "optimiser"],
            "Invalid value for '--only': unknown goal or rule 'optimiser'; "
            "did you mean optimizer?",
        ),
        (["train.py", "--skip", "T10"], "Invalid value for '--skip': unknown goal or rule 'T10'; did you mean T100?"),
        (
            ["train.py", "--effect", "all"],
            "Invalid value for '--effect': unknown effect 'all'; "
            "expected one of exact, order, precision, corrects",
        ),
        (["train.py", "--only", ","], "Invalid value for '--only': expected one goal or rule or more, got ','"),
        (
            ["train.py", "--target", "arch=h100"],
            ""
            "Invalid value for '--target': expected torch=2.4, transformers=4.41 or arch=sm_80, got 'arch=h100'",
        ),
        (["train.py", "--diff", "--write"], "--diff and --write contradict each other; give one of them"),
        (["train.py", "--check", "--write"], "--write and --check contradict each other; give one of them"),
        (["train.py", "--patch-dir", "x", "--diff"], "--diff and --patch-dir contradict each other; give one of them"),
        (["train.py", "--allow-dirty"], "--allow-dirty says nothing without --write"),
        (["train.py", "--only", "T100", "--skip", "T100"], "--only and --skip both name T100"),
        (
            ["train.py", "--precision", "fp8", "--skip", "precision"],
            ""
            "--precision fp8 and --skip precision contradict each other",
        ),
        (["explain", "T101"], "Invalid value for 'CODE': unknown rule 'T101'; did you mean T100?"),
        (["train.py", "--dif"], "No such option '--dif'. Did you mean '--diff'?"),
        (["--diff"], "Missing argument 'PATH...'."),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(command: Run, root: Path, arguments: list[str], message: str) -> None:
    write_files(root, {"bad.py": "a = 1\na b\n", "empty.py": "\n", "notes.txt": "text", "picture.png": "", "sub/x": ""})
    (root / "binary.py").write_bytes(b"\x7fELF\0\0")
    assert command(*arguments) == (2, "", f"speedmigrate: {message.format(root=root)}\n")
    assert (root / "train.py").read_text() == SCRIPT


def test_other_paths_are_migrated_beside_a_bad_one(command: Run, root: Path) -> None:
    write_files(root, {"bad.py": "a b\n"})
    code, out, err = command("bad.py", "train.py", "--diff")
    assert (code, out) == (2, DIFF)
    assert err.splitlines()[-1] == "speedmigrate: bad.py:1: syntax error (invalid syntax)"


def test_a_folder_tells_its_bad_files_and_goes_on(command: Run, root: Path) -> None:
    write_files(root, {"bad.py": "def train(:\n"})
    code, out, _ = command(".", "--format", "json")
    data = json.loads(out)
    assert code == 0
    assert [entry["path"] for entry in data["entries"]] == ["train.py"]
    assert [error["path"] for error in data["errors"]] == ["bad.py"]


def test_a_folder_of_which_nothing_can_be_read(command: Run, root: Path) -> None:
    write_files(root, {"sub/train_bad.py": "def train(:\n"})
    code, out, err = command("sub")
    assert (code, out) == (2, "")
    assert err.startswith("speedmigrate: sub: none of its scripts can be read: train_bad.py:1: syntax error")


def test_a_file_that_may_not_be_read(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert command("train.py") == (2, "", "speedmigrate: train.py: cannot be read (Permission denied)\n")


@pytest.mark.parametrize("path", ["plain.py", "nothing"])
def test_no_training_code(command: Run, root: Path, path: str) -> None:
    write_files(root, {"plain.py": "print(1)\n", "nothing/readme.md": "x"})
    code, out, err = command(path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "no training code found: nothing to migrate"


def test_the_root_is_the_git_root_above(command: Run, root: Path) -> None:
    (root / ".git").mkdir()
    write_files(root, {"a/b/train.py": SCRIPT})
    assert json.loads(command("a/b/train.py", "--format", "json")[1])["root"] == str(root)


def test_a_reader_that_stops_early_hears_nothing(root: Path) -> None:
    line = '"$0" -m speedmigrate . --format json | true; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(["bash", "-c", line, sys.executable], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_interrupt_is_exit_130(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(analyse, "analyse_paths", interrupt)
    assert command("train.py")[0] == 130


def test_rules_and_explain(command: Run) -> None:
    assert command("rules")[1] == (
        "T100  rule_t100  optimizer  exact     Rule T100\nT200  rule_t200  padding    corrects  Rule T200\n"
    )
    assert command("explain", "t100")[1] == (
        "T100 rule_t100: Rule T100\n\ngoal: optimizer; effect: exact\n\nSwap a word.\n\nEffect: none.\n"
    )


def test_a_series_that_cannot_be_written(command: Run) -> None:
    assert command("train.py", "--patch-dir", "train.py/x") == (
        2,
        "",
        "speedmigrate: train.py/x: cannot be written (Not a directory)\n",
    )


def test_a_series_is_not_mixed_with_another(command: Run, root: Path) -> None:
    write_files(root, {"patches/0009-old.patch": ""})
    assert command("train.py", "--patch-dir", "patches") == (
        2,
        "",
        "speedmigrate: patches: holds 0009-old.patch already, and `git am` would mix the two; name another\n",
    )


def test_undo_without_a_write(command: Run, root: Path) -> None:
    assert command("undo") == (2, "", f"speedmigrate: {root}: nothing to undo\n")


def test_rules_as_data_and_an_explained_example(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = (Example("swapped", "a = slow\n", "a = sum\n"), Example("kept", "a = 1\n", None))
    rule = replace(fake_rule(), examples=examples)
    monkeypatch.setattr(cli, "load_rules", lambda: (rule,))
    assert json.loads(command("rules", "--format", "json")[1]) == [
        {"code": "T100", "rule": "rule_t100", "goal": "optimizer", "effect": "exact", "title": "Rule T100"}
    ]
    assert command("rules", "--format", "markdown")[1] == (
        "| code | rule | goal | effect | title |\n|---|---|---|---|---|\n"
        "| T100 | `rule_t100` | optimizer | exact | Rule T100 |\n"
    )
    page = command("explain", "rule_t100")[1]
    assert page.endswith("Example: swapped\n    -a = slow\n    +a = sum\n\nLeft alone: kept\n     a = 1\n")


def test_an_entry_point_that_cannot_be_analysed_is_told(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: object) -> bool:
        raise RecursionError("too deep")

    monkeypatch.setattr(EntryFacts, "trains", property(crash))
    code, out, _ = command("train.py", "--format", "json")
    data = json.loads(out)
    assert (code, data["entries"][0]["verdicts"]["padding"]["verdict"]) == (0, "refuse")
    assert data["errors"][0]["message"] == (
        "train.py: could not be analysed (RecursionError: too deep). This is a bug of speedmigrate: please report it"
    )


def test_a_pipe_is_not_waited_for(command: Run, root: Path) -> None:
    os.mkfifo(root / "pipe.py")
    assert command("pipe.py") == (2, "", "speedmigrate: pipe.py: expected a regular file\n")


def test_a_rule_that_crashes_is_told_and_the_others_go_on(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: object) -> list[object]:
        raise KeyError("x")

    broken = fake_rule("T300", "compile", "exact", crash)
    monkeypatch.setattr(
        analyse, "load_rules", lambda: (broken, fake_rule("T100", "optimizer", "exact", swap("slow", "sum")))
    )
    code, out, err = command("train.py", "--diff")
    assert (code, out) == (0, DIFF)
    assert "the rule rule_t300 failed here (KeyError: 'x'); nothing is changed" in err


def test_help_teaches(command: Run) -> None:
    code, out, err = command("--help")
    assert (code, err) == (0, "")
    assert "speedmigrate train.py --diff | git apply" in out
    assert "--patch-dir DIR" in out
    assert "explain" in out


def test_version_starts_fast() -> None:
    before = os.times()
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    after = os.times()
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    assert done.stdout == f"speedmigrate {__version__}\n"
    assert seconds <= 0.3


def test_a_bug_of_ours_is_one_line_with_its_place(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(paths, "below", crash)
    code, out, err = command("train.py")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("speedmigrate: test_cli.py:")
    assert err.endswith(": KeyError: 'x'; nothing more was done. This is a bug of speedmigrate: please report it\n")


def test_jobs_do_not_change_the_output(root: Path) -> None:
    write_files(root, {"bad.py": "def train(:\n"} | {f"train_{number}.py": SCRIPT for number in range(5)})
    outputs = {
        subprocess.run(
            [*COMMAND, ".", "--format", "json", "-j", jobs], capture_output=True, text=True, check=True
        ).stdout
        for jobs in ("1", "2")
    }
    assert len(outputs) == 1


def test_the_order_of_paths_does_not_change_the_output(command: Run, root: Path) -> None:
    write_files(root, {"one.py": SCRIPT, "two.py": SCRIPT})
    orders = permutations(["train.py", "one.py", "two.py"])
    assert len({command(*order, "--diff") for order in orders}) == 1


def test_nothing_heavy_is_imported_for_the_version() -> None:
    code = (
        "import sys; from speedmigrate.cli import run; run(['--version']); "
        "print({'rich', 'libcst', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
