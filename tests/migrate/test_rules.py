"""Every case of `fixtures/rules/<rule>/`: the rule makes exactly the text beside it, or changes nothing and says why.

`<case>.in.py` becomes `<case>.out.py`; `<case>.keep.py` stays. A case of several files is one `<case>.case`: sections
`== path`, and unless it is a keep a line `==== after` followed by the sections of the changed files. Comments on top:
`# speedmigrate: --target torch=2.4` gives arguments to the run; `# effect: corrects` names an effect that is not the
rule's; `# because: train.py:9` a place or word that the reason of a keep has to name; `# run` has the script run before
and after too.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from speedmigrate import cli
from speedmigrate.analyse import BUG
from speedmigrate.rule import Example, Rule, load_rules
from tests.migrate.fakes import write_files

FOLDER = Path(__file__).parents[2] / "fixtures" / "rules"
SCRIPT = "train.py"
PARTNERS = {"lookahead": ("strip_padding",), "float8": ("compile_layers",)}
RULES = {rule.name: rule for rule in load_rules()}


@dataclass(frozen=True)
class Case:
    """A case: the files before, those that change, and what its first lines ask for."""

    rule: str
    name: str
    before: dict[str, str]
    after: dict[str, str]
    arguments: tuple[str, ...]
    effect: str
    because: str
    runs: bool

    @property
    def expected(self) -> dict[str, str]:
        return self.before | self.after

    @property
    def only(self) -> str:
        return ",".join((self.rule, *PARTNERS.get(self.rule, ())))


def sections(text: str) -> dict[str, str]:
    """Return the text of each `== path` section."""
    files: dict[str, str] = {}
    path = ""
    for line in text.splitlines(keepends=True):
        if line.startswith("== "):
            path = line.removeprefix("== ").strip()
            files[path] = ""
        elif path:
            files[path] += line
    return files


def read(path: Path) -> Case:
    text = path.read_text(encoding="utf-8")
    name, kind = path.name.split(".", 1)
    after: dict[str, str] = {}
    if kind == "case":
        first, _, last = text.partition("==== after\n")
        before, after = sections(first), sections(last)
    else:
        before = {SCRIPT: text}
    if kind == "in.py":
        after = {SCRIPT: path.with_name(f"{name}.out.py").read_text(encoding="utf-8")}
    header = dict(_option(line) for line in text.splitlines()[:3] if line.startswith("# "))
    arguments = tuple(shlex.split(header.get("speedmigrate", "")))
    effect = header.get("effect", RULES[path.parent.name].effect)
    because = header.get("because", "")
    return Case(path.parent.name, name, before, after, arguments, effect, because, "run" in header)


def _option(line: str) -> tuple[str, str]:
    key, _, value = line.removeprefix("# ").partition(":")
    return key.strip(), value.strip()


def cases() -> list[Case]:
    return [read(path) for path in sorted(FOLDER.glob("*/*")) if not path.name.endswith(".out.py")]


def params(chosen: list[Case], *marks: Any) -> list[Any]:
    return [pytest.param(case, id=f"{case.rule}/{case.name}", marks=marks) for case in chosen]


CASES = cases()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_of(root: Path) -> dict[str, str]:
    found = sorted(path for path in root.rglob("*") if path.is_file())
    paths = [path.relative_to(root) for path in found]
    return {str(path): (root / path).read_bytes().decode() for path in paths if not path.parts[0].startswith(".")}


def findings(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """Run the tool on the working folder and return what it found; nothing may have gone wrong."""
    code = cli.run([".", "--format", "json", *arguments])
    out, err = capfd.readouterr()
    assert code == 0, err + out
    found: list[dict[str, Any]] = json.loads(out)["findings"]
    assert not [each["message"] for each in found if BUG in each["message"]]
    return found


def reason(finding: dict[str, Any]) -> list[str]:
    """Return what a finding says, and the places it leans on."""
    places = [f"{each['path']}:{each['line']}" for each in (finding, *finding["evidence"])]
    return [finding["message"], *places]


@pytest.mark.parametrize("case", params(CASES))
def test_case(case: Case, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_files(root, case.before)
    found = findings(capfd, "--only", case.only, "--write", "--allow-dirty", *case.arguments)
    told = "\n".join(f"{each['status']} {each['path']}:{each['line']} {each['message']}" for each in found)
    assert files_of(root) == case.expected, told
    for path, text in case.expected.items():
        if path.endswith(".py"):
            compile(text, path, "exec")
    if case.after:
        effects = {each["effect"] for each in found if each["status"] == "change" and each["rule"] == case.rule}
        assert effects == {case.effect}
        again = findings(capfd, "--only", case.only, "--check", *case.arguments)
        assert not [each for each in again if each["status"] == "change"]
        assert files_of(root) == case.expected
    else:
        goal = RULES[case.rule].goal
        reasons = [each for each in findings(capfd, "--only", goal, *case.arguments) if each["goal"] == goal]
        assert any(each["message"] for each in reasons), "a silent skip"
        assert any(case.because in text for each in reasons for text in reason(each)), told


@pytest.mark.slow
@pytest.mark.parametrize("case", params([case for case in CASES if case.runs]))
def test_batches_and_losses_stay(case: Case, root: Path) -> None:
    from tests.migrate.execute_case import assert_same, execute

    old = execute(root / "old", case.before, SCRIPT)
    new = execute(root / "new", case.expected, SCRIPT)
    assert_same(old, new)


def test_two_in_five_cases_are_keeps() -> None:
    for rule in {case.rule for case in CASES}:
        chosen = [case for case in CASES if case.rule == rule]
        keeps = [case for case in chosen if not case.after]
        assert len(keeps) >= 4, rule
        edits = any(example.after is not None for example in RULES[rule].examples)  # else the rule only speaks
        assert len(chosen) - len(keeps) >= (4 if edits else 0), rule
        assert 5 * len(keeps) >= 2 * len(chosen), rule


def test_no_out_file_is_alone() -> None:
    outs = {path.name.removesuffix(".out.py") for path in FOLDER.glob("*/*.out.py")}
    assert outs == {path.name.removesuffix(".in.py") for path in FOLDER.glob("*/*.in.py")}


EXAMPLES = [(rule, example) for rule in RULES.values() for example in rule.examples]


@pytest.mark.parametrize(("rule", "example"), [pytest.param(r, e, id=f"{r.name}/{e.title}") for r, e in EXAMPLES])
def test_example(rule: Rule, example: Example, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_files(root, {SCRIPT: example.before})
    only = ",".join((rule.name, *(PARTNERS.get(rule.name, ()) if example.after is not None else ())))
    findings(capfd, "--only", only, "--write", "--allow-dirty")
    assert files_of(root)[SCRIPT] == (example.before if example.after is None else example.after)


def test_every_rule_has_an_example_of_each_kind() -> None:
    for rule in RULES.values():
        kinds = {example.after is None for example in rule.examples}
        assert True in kinds, rule.name
        # One rule only tells why nothing changes; FP8 asks for a word on the command line.
        assert False in kinds or rule.name in {"dynamic_padding", "float8"}, rule.name
