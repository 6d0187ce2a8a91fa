from __future__ import annotations

import io
import sys
import time

import pytest

from speedmigrate import screen


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal and keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    def isatty(self) -> bool:
        return True

    @property
    def sent(self) -> bytes:
        self.flush()
        data: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return data


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in place of the streams; in the test itself, as pytest sets them anew after set-up."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return stream


PATCH = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\r\n+b\n context\n\\ No newline at end of file\n"


def test_a_patch_is_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    screen.write_bytes(PATCH)
    assert terminal.sent == (
        b"\x1b[1mdiff --git a/x b/x\x1b[0m\n\x1b[1m--- a/x\x1b[0m\n\x1b[1m+++ b/x\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n"
        b"\x1b[31m-a\r\x1b[0m\n\x1b[32m+b\x1b[0m\n context\n\\ No newline at end of file\n"
    )


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    screen.write_bytes(PATCH)
    assert terminal.sent == PATCH


def test_progress_shows_only_work_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    with screen.progress("reading"):
        pass
    assert terminal.sent == b""
    with screen.progress("reading", after_seconds=0.01):
        time.sleep(0.3)
    assert b"reading" in terminal.sent


def test_progress_is_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with screen.progress("reading", after_seconds=0.0):
        time.sleep(0.05)
    assert capfd.readouterr() == ("", "")


def test_closed_streams_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    screen.prepare()
    screen.write_text("gone", sys.stdout)
    sys.stdout.close()
    sys.stderr.close()


def test_what_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    screen.prepare()
    screen.write_text("填充", sys.stdout)
    assert stream.buffer.getvalue() == b"\\u586b\\u5145"  # type: ignore[attr-defined]
