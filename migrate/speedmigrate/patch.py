"""Turn changed files into a patch: a diff that `git apply` takes, or mails that `git am` takes.

`journal.py` writes the changes into the tree and takes them back; its `write` and `undo` are offered here too.
"""

from __future__ import annotations

import difflib
import os
import re
from binascii import b2a_qp
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.header import Header

from speedmigrate.journal import undo, write

__all__ = ["FileChange", "diff", "mail", "undo", "write"]

CONTEXT = 3
# Above this many lines difflib takes frequent lines for junk: the diff stays right, and is made in linear time.
_LARGE = 2000
_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_NO_NEWLINE = b"\n\\ No newline at end of file\n"
_SENDER = "speedmigrate <speedmigrate@localhost>"
_DATE = "Mon, 1 Jan 2024 00:00:00 +0000"
_FROM_LINE = f"From {'0' * 40} Mon Sep 17 00:00:00 2001"
# Lines that would end the message of a mail, or start its patch, for `git mailinfo` and `git mailsplit`.
_MAIL_MARK = re.compile(r"---|diff -|Index: |From |(?:From|Subject|Date): |-- $|-+ ?(?:8<|>8)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file's bytes before and after (`old` is None for a new file); `mode` holds its permission bits."""

    path: str
    old: bytes | None
    new: bytes
    mode: int


def diff(changes: Iterable[FileChange]) -> bytes:
    """Return a unified diff of the changes, by path, as `git diff` writes it."""
    return b"".join(_file_diff(change) for change in sorted(changes, key=lambda c: c.path) if change.new != change.old)


def _file_diff(change: FileChange) -> bytes:
    old, new = (_quote(f"{side}/{change.path}") for side in "ab")
    lines = [b"diff --git %s %s\n" % (old, new)]
    if change.old is None:
        lines.append(b"new file mode %s\n" % (b"100755" if change.mode & 0o100 else b"100644"))
        old = b"/dev/null"
    hunks = list(_hunks(_lines(change.old or b""), _lines(change.new)))
    if hunks:
        # git ends these two lines with a tab where the name has a space, for the sake of GNU patch.
        lines += (
            b"%s %s%s\n" % (sign, name, b"\t" if b" " in name else b"") for sign, name in ((b"---", old), (b"+++", new))
        )
    return b"".join((*lines, *hunks))


def _quote(path: str) -> bytes:
    """Return a path as git prints it with `core.quotePath` on."""
    data = os.fsencode(path)
    if all(32 <= byte < 127 and byte not in _ESCAPES for byte in data):
        return data
    shown = (
        f"\\{_ESCAPES[byte]}" if byte in _ESCAPES else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
        for byte in data
    )
    return f'"{"".join(shown)}"'.encode()


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    head = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    skip = max(0, head - CONTEXT)
    whole = old
    old, new = old[skip:], new[skip:]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=max(len(old), len(new)) > _LARGE)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        ranges = (_range(skip + old_start, skip + old_end), _range(skip + new_start, skip + new_end))
        yield b"@@ -%s +%s @@%s\n" % (*ranges, _function(whole, skip + old_start))
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from _marked(b" ", old[a:b])
            else:
                yield from _marked(b"-", old[a:b])
                yield from _marked(b"+", new[c:d])


def _function(lines: Sequence[bytes], before: int) -> bytes:
    """Return the line that git names behind a hunk's position: the last one above that begins with a letter."""
    found = next((line for line in reversed(lines[:before]) if re.match(rb"[A-Za-z_$]", line)), b"")
    return b" " + found[:80].rstrip() if found else b""


def _range(start: int, end: int) -> bytes:
    count = end - start
    first = start + 1 if count else start
    return b"%d" % first if count == 1 else b"%d,%d" % (first, count)


def _marked(mark: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    return (mark + line if line.endswith(b"\n") else mark + line + _NO_NEWLINE for line in lines)


def mail(patches: Sequence[tuple[str, str, Iterable[FileChange]]]) -> list[tuple[str, bytes]]:
    """Return the file name and the bytes of a mail for each (subject, body, changes), for `git am`."""
    total = len(patches)
    return [
        (f"{number:04d}-{_slug(subject)}.patch", _mail(f"[PATCH {number}/{total}] {subject}", body, diff(changes)))
        for number, (subject, body, changes) in enumerate(patches, 1)
    ]


def _slug(subject: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+|\.{2,}", "-", subject)[:52].strip("-.") or "patch"


def _mail(subject: str, body: str, patch: bytes) -> bytes:
    subject = " ".join(subject.split())
    if not subject.isascii():
        subject = Header(subject, "utf-8", header_name="Subject").encode(linesep="\n")
    text = "\n".join(" " + line if _MAIL_MARK.match(line) else line for line in body.strip("\n").splitlines())
    payload = text.encode() + b"\n\n---\n" + patch
    # git am strips the CR of CRLF from a plain mail, but not from an encoded one.
    quoted = b"\r" in patch
    head = (
        _FROM_LINE,
        f"From: {_SENDER}",
        f"Date: {_DATE}",
        f"Subject: {subject}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=UTF-8",
        f"Content-Transfer-Encoding: {'quoted-printable' if quoted else '8bit'}",
        "",
        "",
    )
    if quoted:
        payload = b"\n".join(b2a_qp(line, istext=False) for line in payload.split(b"\n"))
    return "\n".join(head).encode() + payload
