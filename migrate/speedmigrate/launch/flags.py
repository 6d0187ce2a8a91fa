"""Edit the flags of a launch: span edits in the script, in the style of the command that stands there."""

from __future__ import annotations

import re
import shlex

from speedmigrate.launch.commands import Flag
from speedmigrate.launch.find import Launch, same_flag
from speedmigrate.rule import SetFlag
from speedmigrate.source import SourceFile

Edits = tuple[SetFlag, ...] | None

_SAFE = re.compile(r"[\w.,:=@%+/-]+")
_CONTINUED = re.compile(r"([ \t]*)\\(\r?\n)")
_REST = ("$@", "$*", "${@}", "${*}")
_QUOTES = ('\\"', '"', "'")


def set_flag(launch: Launch, source: SourceFile, name: str, value: str | None) -> Edits:
    """Have `--name value` (a switch if `value` is None) on the command line.

    Returns:
        The edits, none if it is so already; None if it cannot be written without guessing: the value cannot be read,
        only some branches give the flag, or its place serves another program too.
    """
    flag = launch.flag(name)
    if flag is None:
        return _insert(launch, source, f"--{name.lstrip('-')}" + ("" if value is None else f" {_quote(value)}"))
    if flag.maybe or flag.common:
        return None
    return _set_value(flag, source, value)


def _set_value(flag: Flag, source: SourceFile, value: str | None) -> Edits:
    if flag.literal and flag.value == value:
        return ()
    if value is None or (flag.value is None and not flag.literal):
        return None
    if flag.value is None:
        return (SetFlag(flag.path, flag.end, flag.end, f" {_quote(value)}"),)
    if flag.literal and not flag.shared:
        return (SetFlag(flag.value_path, flag.value_start, flag.value_end, value),)
    if flag.site_start < 0 or flag.path != source.path:
        return None
    start, end = _outside(source.text, flag.site_start, flag.site_end)
    return (SetFlag(flag.path, start, end, _quote(value)),)


def remove_flag(launch: Launch, source: SourceFile, name: str) -> Edits:
    """Take every `--name` and its value off the command line; None as for `set_flag`."""
    flags = [flag for flag in launch.flags if same_flag(flag.name, name)]
    edits = []
    for flag in flags:
        span = _whole(flag, source)
        if span is None:
            return None
        start, end = _with_blanks(source.text, *span)
        edits.append(SetFlag(flag.path, start, end, ""))
    return tuple(edits)


def replace_flag(launch: Launch, source: SourceFile, old_name: str, new_name: str, value: str | None) -> Edits:
    """Put `--new_name value` where `--old_name` stands; None as for `set_flag`."""
    old = launch.flag(old_name)
    if old is None:
        return set_flag(launch, source, new_name, value)
    if launch.flag(new_name) or sum(same_flag(flag.name, old_name) for flag in launch.flags) > 1:
        removed, added = remove_flag(launch, source, old_name), set_flag(launch, source, new_name, value)
        return None if removed is None or added is None else (*removed, *added)
    span = _whole(old, source)
    if span is None or old.maybe:
        return None
    token = _token(source.text, old, new_name)
    if value is None and old.value is not None:
        return (SetFlag(old.path, span[0], span[1], token),)
    rest = _set_value(old, source, value)
    if rest is None:
        return None
    if any((edit.start, edit.path) == (old.end, old.path) for edit in rest):
        return (SetFlag(old.path, old.start, old.end, token + rest[0].code),)
    return (SetFlag(old.path, old.start, old.end, token), *rest)


def _token(text: str, flag: Flag, name: str) -> str:
    written = text[flag.start : flag.end]
    return written[: len(written) - len(written.lstrip("-+~"))] + name.lstrip("-")


def _quote(value: str) -> str:
    return value if _SAFE.fullmatch(value) else shlex.quote(value)


def _whole(flag: Flag, source: SourceFile) -> tuple[int, int] | None:
    """Return the span of a flag and its value as they stand, their quotes included."""
    if flag.path != source.path or flag.start < 0 or flag.common:
        return None
    has_value = flag.value is not None or not flag.literal
    if has_value and (flag.site_end < flag.end or (not flag.literal and flag.value is None)):
        return None
    start, end = flag.start, flag.end
    if has_value:
        end = _outside(source.text, flag.site_start, flag.site_end)[1]
        if flag.site_start > flag.end + 1:
            return start, end
    before, after = _outside(source.text, start, end)
    is_word = before > 0 and source.text[before - 1] in " \t\n("
    return (before, after) if is_word else (start, end)


def _outside(text: str, start: int, end: int) -> tuple[int, int]:
    """Widen a span by the quotes around it, or by the one that it cuts off (`"$DIR"/x`, `x/"$NAME"`)."""
    for quote in _QUOTES:
        before, after = text.endswith(quote, 0, start), text.startswith(quote, end)
        if text.count(quote, start, end) % 2:
            return (start, end + len(quote)) if after else (start - len(quote) * before, end)
        if before and after:
            return start - len(quote), end + len(quote)
    return start, end


def _with_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """Widen the span of a flag so that its removal leaves no hole: its line, its continuation, or one blank."""
    line = text.rfind("\n", 0, start) + 1
    alone = not text[line:start].strip()
    continued = _CONTINUED.match(text, end)
    if alone and continued:
        return line, continued.end()
    head = re.search(r"[ \t]*\\\r?\n[ \t]*$", text[:start])
    if head:
        return head.start(), end
    ending = re.compile(r"[ \t]*(?:\r?\n|$)").match(text, end)
    if alone and ending:
        return line, ending.end()
    before = re.search(r"[ \t]+$", text[:start])
    if before:
        return before.start(), end
    following = re.compile(r"[ \t]*(?:\\\r?\n)?[ \t]*").match(text, end)
    return start, following.end() if following else end


def _insert(launch: Launch, source: SourceFile, token: str) -> Edits:
    """Add a flag: as a line before the last line that starts with a flag, else after the last argument."""
    text = source.text
    places = [place for place in launch.places if place.path == source.path]
    places = [place for place in places if text[place.start : place.end] not in _REST]
    if not places or places[0] != launch.places[0]:
        return None
    for place in reversed(places[1:]):
        line = text.rfind("\n", 0, place.start) + 1
        continued = _continued_before(text, line)
        indent = text[line : place.start]
        if continued and not indent.strip() and text.startswith("-", place.start):
            blank, newline = continued
            return (SetFlag(source.path, place.start, place.start, f"{token}{blank}\\{newline}{indent}"),)
    last = places[-1]
    end = _outside(text, last.start, last.end)[1]
    line = text.rfind("\n", 0, last.start) + 1
    continued = _continued_before(text, line)
    if continued:
        blank, newline = continued
        indent = text[line : last.start][: len(text[line : last.start]) - len(text[line : last.start].lstrip(" \t"))]
        return (SetFlag(source.path, end, end, f"{blank}\\{newline}{indent}{token}"),)
    return (SetFlag(source.path, end, end, f" {token}"),)


def _continued_before(text: str, line: int) -> tuple[str, str] | None:
    """Return the blanks before the backslash that ends the line before, and its line end."""
    match = re.search(r"([ \t]*)\\(\r?\n)$", text[:line])
    return (match[1] or " ", match[2]) if match else None
