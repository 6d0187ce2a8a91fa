"""Diffs and mails against the real git; writing and undoing, killed at every step."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from speedmigrate import journal
from speedmigrate.patch import FileChange, diff, mail, undo, write

CHANGES = {
    "plain": FileChange("a.py", b"a\nb\nc\nd\ne\nf\ng\n", b"a\nb\nc\nD\ne\nf\ng\n", 0o644),
    "function": FileChange(
        "z.py",
        b"import a\n\ndef main(" + b"x" * 90 + b"):  \n" + b"    y = 1\n\n" * 5 + b"    z\n",
        b"import b\n\ndef main(" + b"x" * 90 + b"):  \n" + b"    y = 1\n\n" * 5 + b"    zz\n",
        0o644,
    ),
    "two_hunks": FileChange("b.py", b"x\n" * 30, b"y\n" + b"x\n" * 28 + b"z\n", 0o644),
    "no_newline": FileChange("c.py", b"a\nb", b"a\nB", 0o644),
    "newline_comes": FileChange("d.py", b"a\nb", b"a\nb\n", 0o644),
    "newline_goes": FileChange("e.py", b"a\nb\n", b"a\nb", 0o644),
    "no_newline_context": FileChange("f.py", b"a\nb\nc", b"A\nb\nc", 0o644),
    "crlf": FileChange("g.py", b"a\r\nb\r\n", b"a\r\nB\r\nc\r\n", 0o644),
    "lone_cr": FileChange("h.py", b"a\rb\rc\nd\n", b"a\rb\rC\nd\n", 0o644),
    "form_feed": FileChange("i.py", b"\x0ca\n\x0b\x1c\nb\n", b"\x0cA\n\x0b\x1c\nb\n", 0o644),
    "gbk": FileChange("j.py", "# coding: gbk\n训 = 1\n".encode("gbk"), "# coding: gbk\n训 = 2\n".encode("gbk"), 0o644),
    "bom": FileChange("k.py", b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfb\n", 0o644),
    "executable": FileChange("l.py", b"a\n", b"b\n", 0o755),
    "space": FileChange("m n/o p.py", b"a\n", b"b\n", 0o644),
    "cjk": FileChange("训练/数据.py", b"a\n", b"b\n", 0o644),
    "cjk_space": FileChange("训 练.py", b"a\n", b"b\n", 0o644),
    "quoted": FileChange('q"\\\t.py', b"a\n", b"b\n", 0o644),
    "new": FileChange("new/r s.py", None, b"a\r\nb", 0o644),
    "new_executable": FileChange("t.sh", None, b"a\n", 0o755),
    "new_empty": FileChange("u.py", None, b"", 0o644),
    "from_empty": FileChange("v.py", b"", b"a\n", 0o644),
    "to_empty": FileChange("w.py", b"a\n", b"", 0o644),
    "like_a_mail": FileChange(
        "x.md", b"a\n", b"From a\n---\n-- \n--- a/x\n@@ -1 +1 @@\ndiff --git a/a b/b\n.\n", 0o644
    ),
    "trailing_white": FileChange("y.py", b"a  \n\n\n", b"a \t\n\n \n", 0o644),
}


# New files are not in `git diff`, and blank lines are paired in another way.
OTHER_THAN_GIT = ("new", "new_executable", "new_empty", "trailing_white")


def git(root: Path, *words: str, data: bytes = b"") -> bytes:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *settings, *words), cwd=root, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def tree(root: Path, changes: list[FileChange]) -> Path:
    """Make a committed repository with the old bytes."""
    root.mkdir(exist_ok=True)
    git(root, "init", "-q")
    (root / "kept.txt").write_bytes(b"kept\n")
    for change in changes:
        if change.old is not None:
            full = root / change.path
            full.parent.mkdir(parents=True, exist_ok=True)
            full.write_bytes(change.old)
            full.chmod(change.mode)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "old")
    return root


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    files = [
        p for p in root.rglob("*") if p.is_file() and not {".git", ".speedmigrate"} & set(p.relative_to(root).parts)
    ]
    return {p.relative_to(root).as_posix(): (p.read_bytes(), p.stat().st_mode & 0o777) for p in files}


def new_contents(changes: list[FileChange]) -> dict[str, bytes]:
    return {"kept.txt": b"kept\n"} | {change.path: change.new for change in changes}


def only_bytes(root: Path) -> dict[str, bytes]:
    return {path: data for path, (data, _) in contents(root).items()}


def test_all_shapes_apply_and_come_back(tmp_path: Path) -> None:
    changes = list(CHANGES.values())
    root = tree(tmp_path / "root", changes)
    before = contents(root)
    patch = diff(changes)
    git(root, "apply", "--check", data=patch)
    git(root, "apply", data=patch)
    assert only_bytes(root) == new_contents(changes)
    assert contents(root)["l.py"][1] == 0o755
    assert contents(root)["t.sh"][1] == 0o755
    git(root, "apply", "-R", data=patch)
    assert contents(root) == before


@pytest.mark.parametrize("case", [case for case in CHANGES if case not in OTHER_THAN_GIT])
def test_git_writes_the_same_diff(case: str, tmp_path: Path) -> None:
    change = CHANGES[case]
    root = tree(tmp_path / "root", [change])
    (root / change.path).write_bytes(change.new)
    theirs = git(root, "-c", "core.quotepath=true", "diff", "--no-color", "--no-ext-diff").split(b"\n")
    ours = diff([change]).split(b"\n")
    assert ours == [line for line in theirs if not line.startswith(b"index ")]


def test_diff_text() -> None:
    changes = [CHANGES["no_newline"], CHANGES["cjk_space"], CHANGES["new"], CHANGES["plain"]]
    assert diff(changes) == diff(reversed(changes))
    assert diff(changes) == (
        b"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,7 +1,7 @@\n a\n b\n c\n-d\n+D\n e\n f\n g\n"
        b"diff --git a/c.py b/c.py\n--- a/c.py\n+++ b/c.py\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+B\n"
        b"\\ No newline at end of file\n"
        b"diff --git a/new/r s.py b/new/r s.py\nnew file mode 100644\n--- /dev/null\n+++ b/new/r s.py\t\n"
        b"@@ -0,0 +1,2 @@\n+a\r\n+b\n\\ No newline at end of file\n"
        b'diff --git "a/\\350\\256\\255 \\347\\273\\203.py" "b/\\350\\256\\255 \\347\\273\\203.py"\n'
        b'--- "a/\\350\\256\\255 \\347\\273\\203.py"\t\n+++ "b/\\350\\256\\255 \\347\\273\\203.py"\t\n'
        b"@@ -1 +1 @@\n-a\n+b\n"
    )


def test_nothing_changed() -> None:
    assert diff([FileChange("a.py", b"a\n", b"a\n", 0o644)]) == b""


def test_random_edits_apply(tmp_path: Path) -> None:
    rng = random.Random(0)
    changes = []
    for number in range(40):
        old = [rng.choice([b"\n", b"x\n", b"y\r\n", b"%d\n" % rng.randrange(50)]) for _ in range(rng.randrange(400))]
        new = list(old)
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(new) + 1)
            new[at : at + rng.randrange(4)] = [b"n%d\n" % rng.randrange(9) for _ in range(rng.randrange(4))]
        ends = [b"".join(lines).removesuffix(rng.choice([b"", b"\n"])) for lines in (old, new)]
        changes.append(FileChange(f"f{number}.py", *ends, 0o644))
    large = [b"\n", b"x = 1\n", b"    return x\n"] * 2000
    changes.append(FileChange("large.py", b"".join(large), b"import a\n" + b"".join(large[:-1]) + b"return y\n", 0o644))
    root = tree(tmp_path / "root", changes)
    git(root, "apply", data=diff(changes))
    assert only_bytes(root) == new_contents(changes)
    git(root, "apply", "-R", data=diff(changes))
    assert only_bytes(root) == {"kept.txt": b"kept\n"} | {change.path: change.old for change in changes}


def test_mails_are_taken_by_git_am(tmp_path: Path) -> None:
    changes = list(CHANGES.values())
    first, rest = changes[:7], changes[7:]
    second = [FileChange(c.path, c.new, c.new + b"\nmore", c.mode) for c in first]
    body = "Because of 长度.\n---\nFrom: x\nFrom 0 Mon\ndiff -u\n\nlast\n"
    mails = mail([("padding: 动态填充 “x” " * 4, body, first), ("compile: [b] layers", "", rest), ("x", "", second)])
    assert [name for name, _ in mails] == [
        "0001-padding-x-padding-x-padding-x-padding-x.patch",
        "0002-compile-b-layers.patch",
        "0003-x.patch",
    ]
    assert mails[1][1].startswith(
        b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        b"From: speedmigrate <speedmigrate@localhost>\nDate: Mon, 1 Jan 2024 00:00:00 +0000\n"
        b"Subject: [PATCH 2/3] compile: [b] layers\nMIME-Version: 1.0\n"
    )
    assert all(len(line) < 1000 for _, data in mails for line in data.split(b"\n"))
    root = tree(tmp_path / "root", changes)
    (tmp_path / "mails").mkdir()
    for name, data in mails:
        (tmp_path / "mails" / name).write_bytes(data)
    git(root, "am", *(str(tmp_path / "mails" / name) for name, _ in mails))
    expected = new_contents(rest) | {change.path: change.new for change in second}
    assert only_bytes(root) == expected
    log = git(root, "log", "-3", "--reverse", "--format=%an <%ae> %s%n%b").decode()
    assert log == (
        f"speedmigrate <speedmigrate@localhost> {('padding: 动态填充 “x” ' * 4).strip()}\n"
        "Because of 长度.\n ---\n From: x\n From 0 Mon\n diff -u\n\nlast\n\n"
        "speedmigrate <speedmigrate@localhost> compile: [b] layers\n\nspeedmigrate <speedmigrate@localhost> x\n\n"
    )
    git(root, "am", "--abort") if (root / ".git/rebase-apply").exists() else None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tree(tmp_path / "root", list(CHANGES.values()))


def test_write_and_undo(root: Path) -> None:
    before = contents(root)
    changes = list(CHANGES.values())
    assert sorted(write(root, changes, allow_dirty=False)) == sorted(change.path for change in changes)
    assert only_bytes(root) == new_contents(changes)
    assert contents(root)["l.py"][1] == 0o755
    assert b".speedmigrate" not in git(root, "status", "--porcelain", "--ignored=no")
    assert sorted(undo(root)) == sorted(change.path for change in changes)
    assert contents(root) == before
    assert not (root / "new").exists()
    assert git(root, "status", "--porcelain") == b""
    with pytest.raises(ValueError, match="nothing to undo"):
        undo(root)


def test_undo_takes_the_last_write_first(root: Path) -> None:
    first, second = CHANGES["plain"], FileChange("a.py", CHANGES["plain"].new, b"z\n", 0o644)
    write(root, [first])
    write(root, [second], allow_dirty=True)
    undo(root)
    assert (root / "a.py").read_bytes() == first.new
    undo(root)
    assert (root / "a.py").read_bytes() == first.old


def test_nothing_to_write(root: Path) -> None:
    assert write(root, [FileChange("a.py", b"x", b"x", 0o644)]) == []
    assert not (root / ".speedmigrate").exists()


def test_mode_of_the_file_wins(root: Path) -> None:
    (root / "a.py").chmod(0o640)
    write(root, [CHANGES["plain"]], allow_dirty=True)
    assert contents(root)["a.py"][1] == 0o640


def test_read_only_file(root: Path) -> None:
    (root / "a.py").chmod(0o444)
    write(root, [CHANGES["plain"]], allow_dirty=True)
    assert contents(root)["a.py"] == (CHANGES["plain"].new, 0o444)


def test_link_stays_a_link(root: Path) -> None:
    (root / "link.py").symlink_to("a.py")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "link")
    change = CHANGES["plain"]
    write(root, [FileChange("link.py", change.old, change.new, 0o644)])
    assert (root / "link.py").is_symlink()
    assert (root / "a.py").read_bytes() == change.new
    undo(root)
    assert (root / "link.py").is_symlink()
    assert (root / "a.py").read_bytes() == change.old


def test_folder_outside_git(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"a\n")
    write(tmp_path, [FileChange("a.py", b"a\n", b"b\n", 0o644)])
    assert (tmp_path / "a.py").read_bytes() == b"b\n"


REFUSED = {
    "dirty": (lambda root: (root / "kept.txt").write_bytes(b"x"), [CHANGES["plain"]], "kept.txt: not committed"),
    "dirty_staged": (
        lambda root: ((root / "s.py").write_bytes(b""), git(root, "add", "s.py")),
        [CHANGES["plain"]],
        "s.py: not committed",
    ),
    "changed": (
        lambda root: ((root / "a.py").write_bytes(b"x"), git(root, "commit", "-qam", "x")),
        [CHANGES["crlf"], CHANGES["plain"]],
        "a.py: changed since it was read",
    ),
    "appeared": (
        lambda root: (root / "u.py").write_bytes(b""),
        [CHANGES["new_empty"]],
        "u.py: changed since it was read",
    ),
    "gone": (lambda root: None, [FileChange("gone.py", b"a", b"b", 0o644)], "gone.py: changed since it was read"),
    "outside": (lambda root: None, [FileChange("../a.py", None, b"b", 0o644)], "../a.py: leads outside"),
    "outside_link": (
        lambda root: (root / "o").symlink_to(".."),
        [FileChange("o/a.py", None, b"b", 0o644)],
        "leads outside",
    ),
    "in_git": (lambda root: None, [FileChange(".git/hooks/x", None, b"b", 0o755)], "not a file to change"),
    "a_folder": (lambda root: None, [FileChange("m n", None, b"b", 0o755)], "cannot be read"),
    "linked_journal": (lambda root: (root / ".speedmigrate").symlink_to(".."), [CHANGES["plain"]], "a link; remove it"),
    "twice": (
        lambda root: (root / "l2.py").symlink_to("l.py"),
        [CHANGES["executable"], FileChange("l2.py", b"a\n", b"c\n", 0o644)],
        "l2.py: the same file as l.py",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_without_a_trace(case: str, root: Path) -> None:
    prepare, changes, message = REFUSED[case]
    prepare(root)
    before = contents(root)
    with pytest.raises(ValueError, match=message) as caught:
        write(root, [CHANGES["bom"], *changes])
    assert "\n" not in str(caught.value)
    assert contents(root) == before
    assert not list((root / ".speedmigrate").glob("*.json"))


def test_dirty_in_another_folder_of_the_same_git(root: Path) -> None:
    (root / "kept.txt").write_bytes(b"x")
    below = root / "m n"
    with pytest.raises(ValueError, match="not committed"):
        write(below, [FileChange("o p.py", b"a\n", b"b\n", 0o644)])
    assert write(below, [FileChange("o p.py", b"a\n", b"b\n", 0o644)], allow_dirty=True) == ["o p.py"]


def test_git_that_cannot_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".git" / "HEAD").unlink()
    with pytest.raises(ValueError, match="git status failed"):
        write(root, [CHANGES["plain"]])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="git cannot be run"):
        write(root, [CHANGES["plain"]])


def test_journal_that_cannot_be_made(root: Path) -> None:
    (root / ".speedmigrate").write_bytes(b"a file")
    with pytest.raises(ValueError, match=r"\.speedmigrate: cannot be written"):
        write(root, [CHANGES["plain"]], allow_dirty=True)


def test_undo_proves_that_the_files_are_ours(root: Path) -> None:
    write(root, [CHANGES["plain"], CHANGES["crlf"]])
    (root / "g.py").write_bytes(b"mine\n")
    before = contents(root)
    with pytest.raises(ValueError, match=r"g\.py: changed since speedmigrate wrote it; nothing was undone"):
        undo(root)
    assert contents(root) == before


def test_unreadable_journal(root: Path) -> None:
    (root / ".speedmigrate").mkdir()
    (root / ".speedmigrate" / "000001.json").write_bytes(b"{")
    with pytest.raises(ValueError, match="not a journal of speedmigrate"):
        undo(root)
    (root / ".speedmigrate" / "000001.json").write_bytes(b'{"version": 9}')
    with pytest.raises(ValueError, match="written by another version"):
        undo(root)


STEPS = [CHANGES["plain"], CHANGES["crlf"], CHANGES["new"], CHANGES["executable"]]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Make a folder outside git with the old bytes of `STEPS`."""
    for change in STEPS:
        if change.old is not None:
            (tmp_path / change.path).write_bytes(change.old)
            (tmp_path / change.path).chmod(change.mode)
    return tmp_path


class Failing:
    """Stand in for a function that fails at its n-th call, and for good where `for_good`."""

    def __init__(self, function: object, at: int, *, for_good: bool) -> None:
        self.function, self.at, self.for_good, self.calls = function, at, for_good, 0

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        if self.calls == self.at or (self.for_good and self.calls > self.at):
            raise OSError(28, "No space left on device")
        return self.function(*args, **kwargs)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["replace", "fsync"])
@pytest.mark.parametrize("at", range(1, 12))
def test_failure_at_any_step_changes_nothing(name: str, at: int, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plain
    before = contents(root)
    failing = Failing(getattr(os, name), at, for_good=False)
    message = ""
    with monkeypatch.context() as patched:
        patched.setattr(os, name, failing)
        try:
            write(root, STEPS)
        except ValueError as error:
            message = str(error)
    if failing.calls < at:
        assert contents(root) != before
    else:
        assert "No space left on device" in message
        assert contents(root) == before
        assert not list((root / ".speedmigrate").glob("*.json"))
    assert not list(root.rglob("*.speedmigrate.tmp"))


def test_failure_for_good_is_undone_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(root)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", Failing(os.replace, 4, for_good=True))
        with pytest.raises(ValueError, match="run `speedmigrate undo`"):
            write(root, STEPS)
    with pytest.raises(ValueError, match="an earlier write was interrupted"):
        write(root, STEPS, allow_dirty=True)
    undo(root)
    assert contents(root) == before


def test_failure_of_undo(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(root)
    write(root, STEPS)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", Failing(os.replace, 3, for_good=True))
        with pytest.raises(ValueError, match="run undo again"):
            undo(root)
    undo(root)
    assert contents(root) == before


def test_file_changed_between_check_and_replace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(root)
    prepare = journal._prepare

    def slow(full: Path, data: bytes, mode: int) -> None:
        prepare(full, data, mode)
        if full.name == "l.py":
            full.write_bytes(b"mine\n")

    monkeypatch.setattr(journal, "_prepare", slow)
    with pytest.raises(ValueError, match=r"l\.py: changed while it was being written"):
        write(root, STEPS)
    assert contents(root) == before | {"l.py": (b"mine\n", 0o755)}


KILL = """
import os, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from speedmigrate.patch import FileChange, write
left = int(sys.argv[2])
def deadly(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return function(*args, **kwargs)
    return call
for name in ("replace", "fsync", "open", "chmod", "unlink"):
    setattr(os, name, deadly(getattr(os, name)))
root = Path(sys.argv[1])
write(root, eval(sys.argv[4]), allow_dirty=True)
"""


def run_killed(root: Path, steps: int, what: str) -> int:
    code = Path(journal.__file__).parents[1]
    return subprocess.run([sys.executable, "-c", KILL, str(root), str(steps), str(code), what], check=False).returncode


def check_interrupted(root: Path, before: dict[str, tuple[bytes, int]]) -> None:
    """Check that every file is old or new as a whole; undo; check that all are old."""
    after = before | {change.path: (change.new, change.mode) for change in STEPS}
    seen = contents(root)
    assert all(seen.get(path) in (before.get(path), after[path]) for path in after)
    if list((root / ".speedmigrate").glob("*.json")):
        undo(root)
    assert contents(root) == before


class Killed(BaseException):
    """The process is gone: nothing that it would do later happens."""


def kill_after(patched: pytest.MonkeyPatch, steps: int) -> None:
    calls = iter(range(steps))

    def deadly(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(calls, None) is None:
                raise Killed
            return function(*args, **kwargs)

        return call

    for name in ("replace", "fsync", "open", "chmod", "unlink", "mkdir", "rmdir"):
        patched.setattr(os, name, deadly(getattr(os, name)))


@pytest.mark.parametrize("steps", range(64))
def test_dead_at_any_step(steps: int, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, done = plain, False
    before = contents(root)
    with monkeypatch.context() as patched, contextlib.suppress(Killed):
        kill_after(patched, steps)
        write(root, STEPS)
        done = True
    if list((root / ".speedmigrate").glob("*.json")):
        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            kill_after(patched, steps // 2)
            undo(root)
    check_interrupted(root, before)
    assert done or steps < 63


@pytest.mark.parametrize("steps", [2, 8, 14, 20, 24, 30])
def test_killed(steps: int, plain: Path) -> None:
    before = contents(plain)
    assert run_killed(plain, steps, repr(STEPS)) == 9
    check_interrupted(plain, before)
