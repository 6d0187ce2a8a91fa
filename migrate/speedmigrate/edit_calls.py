"""Lists between brackets (arguments of a call, names of an import): how a text is put in or taken out.

A list is its bodies (`model=model`) and the gaps around them, which hold commas, white space and comments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from speedmigrate.source import SourceFile
from speedmigrate.splice import NEWLINE, EditConflict, Splice, minimal

_WIDTH = 120
_COMMENT = re.compile(r"#[^\r\n]*")
_INDENT = re.compile(r"[ \t\f]*\Z")


@dataclass(slots=True)
class Items:
    """The list at `start:end`; a body that is new has no span. `gaps[i]` is the text before `bodies[i]`."""

    start: int
    end: int
    bodies: list[str]
    spans: list[tuple[int, int] | None]
    gaps: list[str]

    @classmethod
    def at(cls, text: str, start: int, end: int, spans: Iterable[tuple[int, int]]) -> Items:
        """Make the list of the bodies at `spans` in what lies between two brackets."""
        found = list(spans)
        edges = [start, *(edge for span in found for edge in span), end]
        gaps = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        return cls(start, end, [text[a:b] for a, b in found], [*found], gaps)

    def insert(self, index: int, body: str, *, indent: str, newline: str) -> None:
        """Put a body before the one at `index`, in the layout of its neighbours; `indent` serves an empty list."""
        gap = self.gaps[index]
        if not self.bodies:
            before, after = _split_empty(gap, indent, newline)
        elif index == 0:
            before, after = gap, _plain("," + gap, newline)
        else:
            model = gap if index < len(self.bodies) else self._model(index)
            before, after = _split(gap, _plain(model, newline), last=index == len(self.bodies))
        self.bodies.insert(index, body)
        self.spans.insert(index, None)
        self.gaps[index : index + 1] = [before, after]

    def _model(self, index: int) -> str:
        """Return the gap that one more gap at the end is modelled on."""
        return self.gaps[index - 1] if index > 1 else "," + self.gaps[0]

    def remove(self, index: int) -> None:
        """Take a body away, with the comment that ends its line; comments on lines of their own stay."""
        before, after = self.gaps[index : index + 2]
        last = index == len(self.bodies) - 1
        if len(self.bodies) == 1:
            merged = _join(before, _no_comma(after)) if "#" in before or _own_lines(after) else ""
        elif last:
            kept = before if _has_comma(after) else _no_comma(before)
            stays = _line_break(before) and (_line_break(after) or "#" in before)
            merged = _join(kept, _no_comma(after)) if stays else after
        elif index == 0:
            alone = _line_break(before) and _line_break(after)
            merged = _join(before, _no_comma(after)) if alone or _own_lines(after) else before
        elif _starts_line(before) and _line_break(after):
            merged = _join(before, _no_comma(after))
        else:
            merged = after if _line_break(after) else before
        del self.bodies[index], self.spans[index]
        self.gaps[index : index + 2] = [merged]

    def splices(self, text: str) -> Iterable[Splice]:
        """Yield what turns the old list into this one; text of bodies that stay is never part of it."""
        done, new = self.start, ""
        for gap, body, span in zip(self.gaps, [*self.bodies, ""], [*self.spans, (self.end, self.end)], strict=True):
            new += gap
            if span is None:
                new += body
                continue
            yield from minimal(text, done, span[0], new)
            done, new = span[1], ""


def _line_break(gap: str) -> bool:
    return NEWLINE.search(gap) is not None


def _own_lines(gap: str) -> bool:
    """Say whether a gap has a comment on a line of its own."""
    first = NEWLINE.search(gap)
    return first is not None and "#" in gap[first.end() :]


def _has_comma(gap: str) -> bool:
    return "," in _COMMENT.sub("", gap)


def _starts_line(gap: str) -> bool:
    return _line_break(_COMMENT.sub("", gap).partition(",")[2])


def _no_comma(gap: str) -> str:
    blank = _COMMENT.sub(lambda match: " " * len(match.group()), gap)
    at = blank.find(",")
    return gap if at < 0 else gap[:at] + gap[at + 1 :]


def _first_line(gap: str) -> tuple[str, str]:
    match = NEWLINE.search(gap)
    return (gap, "") if match is None else (gap[: match.start()], gap[match.start() :])


def _join(before: str, after: str) -> str:
    """Return the gap left by a body alone on its lines: what stood above it, then what followed its first line."""
    rest = _first_line(after)[1]
    if not rest:
        return before
    indent = _INDENT.search(before)
    assert indent is not None
    above = before[: indent.start()]
    for end in ("\r\n", "\r", "\n"):
        if above.endswith(end):
            above = above[: -len(end)]
            break
    return above + rest


def _plain(gap: str, newline: str) -> str:
    """Return the gap without comments and blank lines: `, `, or a comma with a line break and the indentation."""
    head, _, tail = _COMMENT.sub("", gap).partition(",")
    head, tail = (newline + NEWLINE.split(part)[-1] if _line_break(part) else "" for part in (head, tail))
    return ", " if "\\" in gap or not head + tail else f"{head},{tail or ' '}"


def _split(gap: str, model: str, *, last: bool) -> tuple[str, str]:
    """Return the gaps before and after a body that comes into `gap` and is set off as `model` is."""
    line, rest = _first_line(gap)
    comma_first = not model.startswith(",")
    if model == ", " or not rest or (comma_first and not last):
        return model, gap
    if comma_first:
        return _no_comma(line) + model, ("," if _has_comma(gap) else "") + _no_comma(rest)
    if _has_comma(line):
        return line + model[1:], "," + rest
    return "," + line + model[1:], rest


def _split_empty(gap: str, indent: str, newline: str) -> tuple[str, str]:
    breaks = list(NEWLINE.finditer(gap))
    if not breaks:
        return "", ""
    head, tail = gap[: breaks[-1].start()], gap[breaks[-1].start() :]
    comment = next((line for line in NEWLINE.split(head)[1:] if line.strip()), "")
    return head + newline + (comment[: -len(comment.lstrip())] if comment else indent), tail


def call_splices(
    source: SourceFile, start: int, end: int, wanted: Mapping[str, str | None], *, indent: str
) -> Iterable[Splice]:
    """Yield the splices that give the call at `start:end` its wanted keywords; None takes one away.

    Raises:
        EditConflict: a keyword to take away is not there.
    """
    call = _Call.parse(source, start, end)
    items = Items.at(source.text, call.start, call.end, call.spans)
    names = list(call.names)
    wanted = dict(wanted)
    # A new keyword takes the place of one that goes, so that one line changes (`fp16=True` -> `bf16=True`).
    going = [name for name, code in wanted.items() if code is None and name in names]
    coming = [name for name, code in wanted.items() if code is not None and name not in names]
    for old, new in zip(going, coming, strict=False):
        index = names.index(old)
        yield Splice(*call.spans[index], new + call.equal + str(wanted[new]))
        names[index] = new
        del wanted[old], wanted[new]
    for name, code in wanted.items():
        if code is None and name not in names:
            raise EditConflict(f"{source.path}:{source.line_of(start)}: no keyword {name} in the call to take away")
        if code is None:
            items.remove(names.index(name))
            names.remove(name)
        elif name in call.values:
            first, last = call.values[name]
            yield Splice(first, last, _folded(code, *_indent_at(source, first), source.newline, ""))
        else:
            index = names.index("**") if "**" in names else len(names)
            items.insert(index, name + call.equal + code, indent=indent, newline=source.newline)
            names.insert(index, name)
            _break_line(source, items, index)
            column = _column(source, items, index)
            if column is not None:
                items.bodies[index] = name + call.equal + _folded(code, *column, source.newline, name + call.equal)
    if call.bare_generator and len(names) > 1:
        (first, last) = call.spans[0]
        yield from (Splice(first, first, "("), Splice(last, last, ")"))
    yield from items.splices(source.text)


def _indent_at(source: SourceFile, offset: int) -> tuple[str, int]:
    """Return the blanks that begin the line of an offset, and the offset's column."""
    line = source.text[source.line_starts[source.line_of(offset) - 1] :]
    return line[: len(line) - len(line.lstrip(" \t"))], offset - source.line_starts[source.line_of(offset) - 1]


def _column(source: SourceFile, items: Items, index: int) -> tuple[str, int] | None:
    """Return the indentation and column of a new body; None where its line is not known."""
    gap = items.gaps[index]
    if _line_break(gap):
        blanks = NEWLINE.split(gap)[-1]
        return blanks, len(blanks)
    previous = items.spans[index - 1] if index else (items.start, items.start)
    if previous is None:
        return None
    indent, column = _indent_at(source, previous[1])
    return indent, column + len(gap)


def _break_line(source: SourceFile, items: Items, index: int) -> None:
    """Put a new last body on a line of its own, aligned with the line before, where it would run past 120 columns."""
    previous = items.spans[index - 1] if index else None
    if items.gaps[index] != ", " or previous is None or index != len(items.bodies) - 1:
        return
    if not any(_line_break(gap) for gap in items.gaps[:index]):
        return
    indent, column = _indent_at(source, previous[1])
    if column + 2 + len(items.bodies[index]) > _WIDTH:
        items.gaps[index] = "," + source.newline + indent


def _folded(code: str, indent: str, column: int, newline: str, before: str) -> str:
    """Return a call that would run past 120 columns with its arguments on lines of their own."""
    if column + len(before) + len(code) <= _WIDTH or not code.endswith(")"):
        return code
    node = ast.parse(code, mode="eval").body
    if not isinstance(node, ast.Call) or not node.args + [k.value for k in node.keywords]:
        return code
    parts = [ast.get_source_segment(code, a) for a in node.args]
    parts += [f"{k.arg}={ast.get_source_segment(code, k.value)}" for k in node.keywords]
    unit = "\t" if indent.startswith("\t") else "    "
    inner = "".join(f"{newline}{indent}{unit}{part}," for part in parts)
    return f"{ast.get_source_segment(code, node.func)}({inner}{newline}{indent})"


@dataclass(frozen=True, slots=True)
class _Call:
    """A call: between its parentheses, spans of its arguments, their names (`**`, or empty), spans of named values."""

    start: int
    end: int
    spans: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    values: Mapping[str, tuple[int, int]]
    equal: str
    bare_generator: bool

    @classmethod
    def parse(cls, source: SourceFile, start: int, end: int) -> _Call:
        import libcst as cst

        text = source.text[start:end]
        config = cst.PartialParserConfig(default_newline=source.newline if source.newline != "\r" else "\n")
        code = cst.Module([], default_newline=config.default_newline).code_for_node  # type: ignore[arg-type]
        torn = EditConflict(f"{source.path}:{source.line_of(start)}: the call cannot be taken apart")
        try:
            # The parentheses let a call of several lines stand alone; libcst makes them the node's own.
            node = cst.parse_expression(f"({text})", config)
        except cst.ParserSyntaxError as error:
            raise torn from error
        assert isinstance(node, cst.Call)
        at = start + len(code(node.func) + code(node.whitespace_after_func)) + 1
        first = at
        at += len(code(node.whitespace_before_args))
        bare = cst.SimpleWhitespace("")
        spans, names, values, equal = [], [], {}, "="
        for arg in node.args:
            body = code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=bare))
            spans.append((at, at + len(body)))
            names.append(arg.keyword.value if arg.keyword else "**" if arg.star == "**" else "")
            if arg.keyword:
                values[arg.keyword.value] = (at + len(body) - len(code(arg.value)), at + len(body))
                equal = code(arg.equal) if isinstance(arg.equal, cst.AssignEqual) else "="
            at += len(code(arg))
        if at != end - 1:
            raise torn
        generator = len(node.args) == 1 and isinstance(node.args[0].value, cst.GeneratorExp)
        bare_generator = generator and not node.args[0].value.lpar
        return cls(first, at, tuple(spans), tuple(names), values, equal if len(equal) <= 3 else "=", bare_generator)
