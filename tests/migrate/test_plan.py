from __future__ import annotations

import random
from pathlib import Path

import pytest

from speedmigrate.facts.project import Project
from speedmigrate.plan import Plan, Selection
from speedmigrate.rule import Finding, Place, SetFlag
from speedmigrate.series import series
from tests.migrate.fakes import Check, analyses, fake_rule, new_files, plan_of, swap, write_files

TWO_NAMES = {"train.py": "a = slow\nb = wide\n"}


def told(plan: Plan) -> list[tuple[str, str, str]]:
    return [(p.id, p.finding.status, p.finding.message) for entry in plan.entries for p in entry.findings]


def test_all_changes_of_a_file_are_made(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    _, plan = plan_of(tmp_path, [swap("slow", "sum"), swap("wide", "len", code="T200", goal="padding")])
    assert new_files(plan) == {"train.py": "a = sum\nb = len\n"}
    assert told(plan) == [
        ("T100:train.py:1:1", "change", "slow becomes sum"),
        ("T200:train.py:2:1", "change", "wide becomes len"),
    ]


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (Selection(), "a = sum\nb = len\n"),
        (Selection(only=("padding",)), "a = slow\nb = len\n"),
        (Selection(only=("T100",)), "a = sum\nb = wide\n"),
        (Selection(only=("rule_t100",)), "a = sum\nb = wide\n"),
        (Selection(skip=("padding",)), "a = sum\nb = wide\n"),
        (Selection(skip=("T100", "T200")), None),
        (Selection(effects=("corrects",)), "a = slow\nb = len\n"),
    ],
)
def test_only_what_is_selected_is_made(tmp_path: Path, selection: Selection, text: str | None) -> None:
    write_files(tmp_path, TWO_NAMES)
    checks = [swap("slow", "sum"), swap("wide", "len", code="T200", goal="padding", effect="corrects")]
    _, plan = plan_of(tmp_path, checks, selection=selection)
    assert new_files(plan) == ({} if text is None else {"train.py": text})


def test_a_goal_that_is_not_selected_has_no_verdict(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    _, plan = plan_of(tmp_path, [swap("slow", "sum")], selection=Selection(only=("T100",)))
    assert {goal: told.verdict for goal, told in plan.entries[0].verdicts.items()} == {"optimizer": "edit"}


def test_an_effect_left_out_is_told_as_a_note(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    _, plan = plan_of(tmp_path, [swap("slow", "sum", effect="precision")], selection=Selection(effects=("exact",)))
    assert told(plan) == [
        (
            "T100:train.py:1:1",
            "note",
            "not changed: --effect leaves precision out (would be: slow becomes sum)",
        )
    ]
    assert plan.entries[0].verdicts["optimizer"].verdict == "report"


def test_a_group_is_left_out_whole(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    checks = [
        swap("slow", "sum", group="both"),
        swap("wide", "len", code="T200", goal="padding", effect="corrects", group="both"),
    ]
    _, plan = plan_of(tmp_path, checks, selection=Selection(effects=("exact",)))
    assert new_files(plan) == {}
    _, plan = plan_of(tmp_path, checks, selection=Selection(only=("padding",)))
    assert new_files(plan) == {}


def test_a_change_goes_with_what_it_requires(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    needy = swap("slow", "sum", requires=("base",))
    base = swap("wide", "len", code="T200", goal="padding", group="base")
    assert new_files(plan_of(tmp_path, [needy, base])[1]) == {"train.py": "a = sum\nb = len\n"}
    _, plan = plan_of(tmp_path, [needy, base], selection=Selection(only=("optimizer",)))
    assert new_files(plan) == {}
    assert told(plan) == [
        (
            "T100:train.py:1:1",
            "note",
            "not changed: it needs a change that is not selected (would be: slow becomes sum)",
        )
    ]
    _, plan = plan_of(tmp_path, [needy])
    assert told(plan) == [
        (
            "T100:train.py:1:1",
            "refused",
            "not changed: it needs a change that no rule can make here (would be: slow becomes sum)",
        )
    ]


def test_a_conflict_drops_the_later_group_whole(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": "a = slow\nb = wide\n", "other.py": "c = wide\n"})
    checks = [
        swap("slow", "sum"),
        swap("slow", "max", code="T200", group="second"),
        swap("wide", "len", code="T200", group="second"),
    ]
    _, plan = plan_of(tmp_path, checks)
    assert new_files(plan) == {"train.py": "a = sum\nb = wide\n"}
    assert [(id_, status) for id_, status, _ in told(plan)] == [
        ("T100:train.py:1:1", "change"),
        ("T200:other.py:1:1", "refused"),
        ("T200:train.py:1:1", "refused"),
        ("T200:train.py:2:1", "refused"),
    ]
    assert all(
        message.endswith(")") and "please report it" in message for _, s, message in told(plan) if s == "refused"
    )


def test_a_result_that_is_no_python_is_dropped(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    _, plan = plan_of(tmp_path, [swap("slow", "sum"), swap("wide", "(", code="T200", goal="padding")])
    assert new_files(plan) == {"train.py": "a = sum\nb = wide\n"}
    assert [status for _, status, _ in told(plan)] == ["change", "refused"]


def test_what_requires_a_dropped_group_is_dropped_too(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    needy = swap("slow", "sum", requires=("base",))
    _, plan = plan_of(tmp_path, [needy, swap("wide", "(", code="T200", group="base")])
    assert new_files(plan) == {}
    assert [status for _, status, _ in told(plan)] == ["refused", "refused"]


def test_equal_changes_of_two_entry_points_are_made_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"one.py": "", "two.py": "", "shared.py": "a = slow\n"})
    _, plan = plan_of(tmp_path, [swap("slow", "sum")], entries=["two.py", "one.py"])
    assert new_files(plan) == {"shared.py": "a = sum\n"}
    assert [(p.id, p.entry) for entry in plan.entries for p in entry.findings] == [
        ("T100:shared.py:1:1", "one.py"),
        ("T100:shared.py:1:1", "two.py"),
    ]


def test_a_change_that_a_second_run_would_repeat_is_dropped(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    _, plan = plan_of(tmp_path, [swap("wide", "len"), swap("slow", "slow + slow", code="T200", goal="padding")])
    assert new_files(plan) == {"train.py": "a = slow\nb = len\n"}
    assert told(plan)[1] == (
        "T200:train.py:1:1",
        "refused",
        "not changed: a second run would still change train.py:1 (T200). "
        "This is a bug of speedmigrate: please report it (would be: slow becomes slow + slow)",
    )


def test_goals_without_a_finding_are_refused_aloud(tmp_path: Path) -> None:
    write_files(tmp_path, TWO_NAMES)
    _, plan = plan_of(tmp_path, [swap("slow", "sum")])
    verdicts = plan.entries[0].verdicts
    assert {goal: verdict.verdict for goal, verdict in verdicts.items()} == {
        "padding": "refuse",
        "compile": "refuse",
        "precision": "refuse",
        "optimizer": "edit",
    }
    assert verdicts["padding"].reasons[0].startswith("not analysed: ")
    assert verdicts["optimizer"].places == ("train.py:1",)


def flag_change(project: Project) -> list[Finding]:
    source = project.source("run.sh")
    assert source is not None
    at = source.text.find("--slow")
    if at < 0:
        return []
    ops = (SetFlag("run.sh", at, at + 6, "--fast"),)
    return [fake_rule().finding("change", Place("run.sh", 1, 1), "flag", ops=ops)]


def test_a_change_of_launch_files_alone_is_config(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": "", "run.sh": "python train.py --slow\n"})
    _, plan = plan_of(tmp_path, [flag_change])
    assert new_files(plan) == {"run.sh": "python train.py --fast\n"}
    assert plan.entries[0].verdicts["optimizer"].verdict == "config"


def test_series_has_one_patch_per_goal_and_effect_with_corrects_last(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": "a = slow\nb = wide\nc = full\nd = last\n"})
    checks = [
        swap("full", "abs", code="T300", goal="precision", effect="precision"),
        swap("wide", "len", code="T200", goal="padding", effect="corrects"),
        swap("slow", "sum"),
        swap("last", "min", code="T400", goal="compile", requires=("T200:train.py:2",)),
    ]
    editor, plan = plan_of(tmp_path, checks)
    patches = series(editor, plan)
    assert [patch.subject for patch in patches] == [
        "optimizer: rule_t100 (exact)",
        "precision: rule_t300 (precision)",
        "padding: rule_t400, rule_t200 (corrects)",
    ]
    text = (tmp_path / "train.py").read_bytes()
    for patch in patches:
        assert [change.old for change in patch.changes] == [text]
        text = patch.changes[0].new
    assert text == plan.changes[0].new
    assert patches[0].body == (
        "T100 train.py:1: slow becomes sum\n"
        "effect: exact; resume-safe: yes\n"
        "needs: torch>=2.0\n"
        "files: train.py\n"
        "  train.py:1: names slow\n"
    )


def test_the_plan_does_not_depend_on_the_order_of_files_and_findings(tmp_path: Path) -> None:
    names = [f"pkg/m{number}.py" for number in range(12)]
    write_files(tmp_path, dict.fromkeys(names, "a = slow\nb = wide\nc = slow + wide\n"))
    checks: list[Check] = [swap("slow", "sum"), swap("wide", "len", code="T200", group="w", requires=())]
    plans = [plan_of(tmp_path, checks, entries=names)[1]]
    rng = random.Random(0)
    for _ in range(20):
        rng.shuffle(names)
        rng.shuffle(checks)

        def shuffled(project: Project, order: tuple[Check, ...] = tuple(checks)) -> list[Finding]:
            found = [finding for check in order for finding in check(project)]
            rng.shuffle(found)
            return found

        plans.append(plan_of(tmp_path, [shuffled], entries=list(names))[1])
    assert all(plan == plans[0] for plan in plans)


def test_a_patch_that_does_not_stand_alone_comes_with_the_next(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.py": "a = slow\nb = wide\n"})
    checks = [swap("slow", "new", effect="exact"), swap("wide", "(new := 1)", code="T200", effect="corrects")]
    editor, plan = plan_of(tmp_path, checks)
    assert new_files(plan) == {"train.py": "a = new\nb = (new := 1)\n"}
    assert [patch.subject for patch in series(editor, plan)] == ["optimizer: rule_t100, rule_t200 (corrects)"]


def test_files_that_cannot_be_read_are_told_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"one.py": "slow\n", "two.py": "slow\n"})
    (tmp_path / "bad.py").write_bytes(b"\0")
    _, plan = plan_of(tmp_path, [swap("slow", "sum")], entries=["one.py", "two.py"])
    assert plan.errors == (("bad.py", "bad.py: expected a text file, found NUL bytes (a binary file?)"),)
    assert analyses(Project(tmp_path), [], ["one.py"])[0].findings == ()
