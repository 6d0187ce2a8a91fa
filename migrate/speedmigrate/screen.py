"""Write to the terminal: bytes of a patch, lines of a report, one progress display."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from speedmigrate.report import Line

_COLOURS = ((b"@@", b"36"), (b"+++", b"1"), (b"---", b"1"), (b"diff ", b"1"), (b"+", b"32"), (b"-", b"31"))


def prepare() -> None:
    """Make the streams take any text: what the terminal's encoding lacks is escaped, a closed stream takes all."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def write_bytes(data: bytes) -> None:
    """Write a patch to stdout as it is; on a terminal its lines are coloured."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        data = b"".join(map(_coloured, re.split(rb"(?<=\n)", data)))
    with _closed_early(sys.stdout):
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def _coloured(line: bytes) -> bytes:
    for start, colour in _COLOURS:
        if line.startswith(start):
            return b"\x1b[" + colour + b"m" + line.rstrip(b"\n") + b"\x1b[0m" + (b"\n" if line.endswith(b"\n") else b"")
    return line


def write_text(text: str, stream: TextIO) -> None:
    """Write text to a stream."""
    with _closed_early(stream):
        stream.write(text)
        stream.flush()


def write_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Write the lines of a report to a stream, styled on a terminal."""
    from rich.console import Console

    from speedmigrate.report import print_lines

    with _closed_early(stream):
        print_lines(lines, Console(file=stream))
        stream.flush()


def complain(message: str) -> None:
    """Write one line about something that the user has to put right."""
    from_user = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in message)
    write_text(f"speedmigrate: {from_user}\n", sys.stderr)


@contextmanager
def _closed_early(stream: TextIO) -> Iterator[None]:
    """Let a reader that has seen enough (`| head -1`) close the pipe: nothing is said, nothing more is written."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def progress(what: str, after_seconds: float = 1.0) -> Iterator[None]:
    """Show that work goes on, on a terminal's stderr and only once it takes longer than `after_seconds`."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(file=sys.stderr).status(what)
    timer = threading.Timer(after_seconds, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
