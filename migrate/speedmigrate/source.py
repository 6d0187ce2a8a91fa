"""Read files of the user's repository; the only module that reads from disk.

A `SourceFile` holds the bytes and the decoded text with its newlines untranslated; every offset in this project is an
offset into that text, and `SourceFile.encode` is the only way back to bytes.
"""

from __future__ import annotations

import ast
import bisect
import codecs
import io
import re
import tokenize
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

_NEWLINE = re.compile(r"\r\n|\r|\n")
MAX_BYTES = 2_000_000


class SourceError(ValueError):
    """A file that cannot be read as text or parsed; `str(error)` is one line for the user, `line` its place or 0."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One text file: its path below the root, bytes, decoded text and where its lines start."""

    path: str
    data: bytes
    text: str
    encoding: str
    bom: bytes
    newline: str
    line_starts: tuple[int, ...] = field(repr=False)

    def offset(self, lineno: int, col_offset: int) -> int:
        """Return the offset in `text` of an `ast` position (1-based line, column in UTF-8 bytes)."""
        start = self.line_starts[lineno - 1]
        line = self.text[start : start + col_offset]
        if line.isascii():
            return start + col_offset
        return start + len(self.text[start : self.line_end(lineno)].encode()[:col_offset].decode())

    def line_end(self, lineno: int) -> int:
        """Return the offset just after the line, its newline included."""
        return self.line_starts[lineno] if lineno < len(self.line_starts) else len(self.text)

    def line_of(self, offset: int) -> int:
        """Return the 1-based line of an offset."""
        return bisect.bisect_right(self.line_starts, offset)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return start and end offset of an `ast` node, its own parentheses left out."""
        end_line, end_col = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self.offset(node.lineno, node.col_offset), self.offset(end_line, end_col)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """Return the source text of an `ast` node."""
        start, end = self.span(node)
        return self.text[start:end]

    def encode(self, text: str) -> bytes:
        """Return `text` as bytes in this file's encoding, its byte order mark kept.

        Raises:
            SourceError: the encoding has no byte for a character of the new text.
        """
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise SourceError(f"{self.path}: {self.encoding} cannot hold the new text ({error.reason})") from error


def decode(path: str, data: bytes, *, python: bool = True) -> SourceFile:
    """Decode bytes as Python does (cookie, byte order mark, else UTF-8); other files are UTF-8.

    Raises:
        SourceError: NUL bytes, an unknown encoding, or bytes that are not text in it.
    """
    if b"\0" in data:
        raise SourceError(f"{path}: expected a text file, found NUL bytes (a binary file?)")
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    encoding = "utf-8"
    try:
        if python:
            encoding = tokenize.detect_encoding(io.BytesIO(data[len(bom) :]).readline)[0]
        text = data[len(bom) :].decode(encoding)
    except (SyntaxError, LookupError, UnicodeDecodeError) as error:
        reason = error.reason if isinstance(error, UnicodeDecodeError) else error
        raise SourceError(
            f"{path}: not text in its encoding ({reason}); save it as UTF-8 or declare a coding"
        ) from error
    ends = list(_NEWLINE.finditer(text))
    newline = ends[0].group() if ends else "\n"
    starts = (0, *(match.end() for match in ends))
    return SourceFile(path, data, text, encoding, bom, newline, starts)


def retext(source: SourceFile, text: str) -> SourceFile:
    """Return the file with another text, in its old encoding and newline.

    Raises:
        SourceError: the encoding has no byte for a character of the text.
    """
    starts = (0, *(match.end() for match in _NEWLINE.finditer(text)))
    return replace(source, data=source.encode(text), text=text, line_starts=starts)


def read(root: Path, path: str) -> SourceFile:
    """Read the file at `path` (relative to `root`, with slashes).

    Raises:
        SourceError: it is missing, unreadable, too large or not text.
    """
    full = root / path
    try:
        if full.stat().st_size > MAX_BYTES:
            raise SourceError(f"{path}: larger than {MAX_BYTES // 1_000_000} MB, left alone (generated?)")
        data = full.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error
    return decode(path, data, python=path.endswith(".py"))


def parse(source: SourceFile) -> ast.Module:
    """Parse a Python file.

    Raises:
        SourceError: it is not Python 3; the message names the line.
    """
    try:
        with warnings.catch_warnings():
            # Invalid escapes in the user's strings are not ours to tell.
            warnings.simplefilter("ignore")
            return ast.parse(source.text)
    except SyntaxError as error:
        raise SourceError(f"{source.path}:{error.lineno}: syntax error ({error.msg})", error.lineno or 0) from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise SourceError(f"{source.path}: cannot be parsed ({type(error).__name__}: nested too deeply?)") from error
