"""Text surgery: each case is a whole text before, what is asked for, and the whole text after."""

from __future__ import annotations

import ast
import io
import itertools
import subprocess
import sys
import tokenize
from collections import Counter

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedmigrate.edits import EditConflict, apply_ops
from speedmigrate.rule import (
    AddImport,
    AddRequirement,
    DeleteStatement,
    InsertStatement,
    Op,
    RemoveImport,
    RemoveKeyword,
    Replace,
    SetFlag,
    SetKeyword,
    Wrap,
)
from speedmigrate.source import SourceFile, decode

PATH = "train.py"
KINDS = {"set": SetKeyword, "remove": RemoveKeyword, "replace": Replace, "wrap": Wrap}
Spec = tuple[str, ...]


def op(source: SourceFile, kind: str, at: str, *rest: str) -> Op:
    """Make an op on the first node whose text is `at` (an expression) or starts with it (a statement)."""
    if kind == "import":
        return AddImport(PATH, at, *(rest or ("",)))
    if kind == "unimport":
        return RemoveImport(PATH, at)
    nodes = list(ast.walk(ast.parse(source.text)))
    if kind in KINDS:
        wanted = ast.Call if kind in ("set", "remove") else ast.expr
        node = next(n for n in nodes if isinstance(n, wanted) and source.segment(n) == at)
        return KINDS[kind](PATH, *source.span(node), *rest)
    node = next(n for n in nodes if isinstance(n, ast.stmt) and source.segment(n).startswith(at))
    if kind == "delete":
        return DeleteStatement(PATH, *source.span(node))
    assert kind in ("before", "after")
    return InsertStatement(PATH, *source.span(node), rest[0], kind)  # type: ignore[arg-type]


def edit(data: str | bytes, *specs: Spec) -> str:
    source = decode(PATH, data if isinstance(data, bytes) else data.encode())
    after = apply_ops(source, [op(source, *spec) for spec in specs])
    compile(after, PATH, "exec", ast.PyCF_ONLY_AST)
    return after


def first_call(text: str) -> str:
    return next(ast.get_source_segment(text, n) or "" for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call))


SET_KEYWORD = {
    "empty": ("f()", "f(k=v)"),
    "blank": ("f( )", "f(k=v)"),
    "empty_lines": ("f(\n)", "f(\n    k=v\n)"),
    "empty_lines_in_block": ("if x:\n  f(\n  )", "if x:\n  f(\n    k=v\n  )"),
    "comment_behind_bracket": ("f(  # c\n)", "f(  # c\n    k=v\n)"),
    "comment_line_in_brackets": ("f(\n  # c\n)", "f(\n  # c\n  k=v\n)"),
    "one": ("f(a)", "f(a, k=v)"),
    "spaces_in_brackets": ("f( a )", "f( a, k=v )"),
    "trailing_comma": ("f(a, b,)", "f(a, b, k=v,)"),
    "no_space": ("f(a,b)", "f(a,b, k=v)"),
    "aligned": ("f(a,\n  b)", "f(a,\n  b,\n  k=v)"),
    "hanging": ("f(\n    a,\n    b\n)", "f(\n    a,\n    b,\n    k=v\n)"),
    "hanging_one": ("f(\n    a\n)", "f(\n    a,\n    k=v\n)"),
    "hanging_comma": ("f(\n    a,\n)", "f(\n    a,\n    k=v,\n)"),
    "comment": (
        "trainer = Trainer(\n    model=model,  # 模型\n    args=args\n)",
        "trainer = Trainer(\n    model=model,  # 模型\n    args=args,\n    k=v\n)",
    ),
    "comment_last": ("f(\n    a,\n    b  # c\n)", "f(\n    a,\n    b,  # c\n    k=v\n)"),
    "comment_last_comma": ("f(\n    a,  # c\n)", "f(\n    a,  # c\n    k=v,\n)"),
    "comment_inline": ("f(a, b  # c\n)", "f(a, b, k=v  # c\n)"),
    "comment_out": ("f(\n    a,\n    # b=1,\n)", "f(\n    a,\n    k=v,\n    # b=1,\n)"),
    "comma_first": ("f(a\n  , b\n)", "f(a\n  , b\n  , k=v\n)"),
    "comma_first_comment": ("f(a\n  , b # c\n)", "f(a\n  , b # c\n  , k=v\n)"),
    "multi_line_argument": ("f(a, {\n  1: 2\n})", "f(a, {\n  1: 2\n}, k=v)"),
    "backslash": ("f(a, \\\n  b)", "f(a, \\\n  b, k=v)"),
    "star": ("f(*a)", "f(*a, k=v)"),
    "double_star": ("f(**kw)", "f(k=v, **kw)"),
    "double_star_inline": ("f(a, **kw)", "f(a, k=v, **kw)"),
    "double_star_lines": ("f(\n    a,  # c\n    **kw\n)", "f(\n    a,  # c\n    k=v,\n    **kw\n)"),
    "double_star_first": ("f(\n    **kw)", "f(\n    k=v,\n    **kw)"),
    "double_star_comment": ("f(\n  a,\n  # of kw\n  **kw\n)", "f(\n  a,\n  k=v,\n  # of kw\n  **kw\n)"),
    "double_star_comma_first": ("f(a\n  , **kw)", "f(a\n  , k=v\n  , **kw)"),
    "generator": ("f(x for x in y)", "f((x for x in y), k=v)"),
    "spaced_equal": ("f(a = 1)", "f(a = 1, k = v)"),
    "existing": ("f(k=1, b=2)", "f(k=v, b=2)"),
    "existing_parentheses": ("f(k=(\n  1  # c\n), b=2)", "f(k=v, b=2)"),
    "existing_same": ("f(k=v)", "f(k=v)"),
    "chain": ("(f\n  .g(a))", "(f\n  .g(a, k=v))"),
    "call_of_call": ("f(a)(b)", "f(a)(b, k=v)"),
    "tabs": ("if x:\n\tf(\n\t\ta,\n\t)", "if x:\n\tf(\n\t\ta,\n\t\tk=v,\n\t)"),
    "form_feed": ("\x0cx = 1\n\x0cf(a,\x0c b)", "\x0cx = 1\n\x0cf(a,\x0c b, k=v)"),
    "unicode": ("f('中', '文')", "f('中', '文', k=v)"),
    "line_separators": ("f('\u2028\x0b', a,\n  b)", "f('\u2028\x0b', a,\n  b,\n  k=v)"),
}


@pytest.mark.parametrize("case", SET_KEYWORD)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_set_keyword(case: str, newline: str) -> None:
    before, after = (text.replace("\n", newline) + newline for text in SET_KEYWORD[case])
    assert edit(before.encode(), ("set", first_call(before), "k", "v")) == after


REMOVE_KEYWORD = {
    "only": ("f(k=1)", "f()"),
    "only_lines": ("f(\n  k=1\n)", "f()"),
    "only_comments": ("f(\n  # a\n  k=1  # k\n  # b\n)", "f(\n  # a\n  # b\n)"),
    "only_own_comment": ("f(k=1,\n  # b\n  )", "f(\n  # b\n  )"),
    "first": ("f(k=1, b=2)", "f(b=2)"),
    "first_aligned": ("f(k=1,  # k\n  b=2)", "f(b=2)"),
    "first_own_comment": ("f(k=1,\n  # b\n  b=2)", "f(\n  # b\n  b=2)"),
    "first_lines": ("f(\n  k=1,\n  b=2\n)", "f(\n  b=2\n)"),
    "middle": ("f(a, k=1, b=2)", "f(a, b=2)"),
    "middle_lines": ("f(\n  a,\n  k=1,  # k\n  b=2\n)", "f(\n  a,\n  b=2\n)"),
    "middle_end_of_line": ("f(a, k=1,  # c\n  b=2)", "f(a,  # c\n  b=2)"),
    "middle_start_of_line": ("f(\n  a,\n  k=1, b=2\n)", "f(\n  a,\n  b=2\n)"),
    "last": ("f(a, k=1)", "f(a)"),
    "last_comma": ("f(a, k=1,)", "f(a,)"),
    "last_lines": ("f(\n  a,\n  k=1\n)", "f(\n  a\n)"),
    "last_lines_comma": ("f(\n  a,\n  k=1,\n)", "f(\n  a,\n)"),
    "last_comments": ("f(\n  a,  # a\n  # o\n  k=1,  # k\n  # p\n)", "f(\n  a,  # a\n  # o\n  # p\n)"),
    "last_comment_kept": ("f(a,  # a\n  k=1)", "f(a  # a\n  )"),
    "last_aligned": ("f(a,\n  k=1)", "f(a)"),
    "comma_first": ("f(a\n  , k=1\n  , b=2\n)", "f(a\n  , b=2\n)"),
    "comma_first_last": ("f(a\n  , k=1\n)", "f(a\n)"),
}


@pytest.mark.parametrize("case", REMOVE_KEYWORD)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_remove_keyword(case: str, newline: str) -> None:
    before, after = (text.replace("\n", newline) + newline for text in REMOVE_KEYWORD[case])
    assert edit(before.encode(), ("remove", first_call(before), "k")) == after


STATEMENTS: dict[str, tuple[str, list[Spec], str]] = {
    "delete": ("a = 1\nx = 2  # c\nb = 3\n", [("delete", "x")], "a = 1\nb = 3\n"),
    "delete_keeps_own_comment": ("# of x\nx = 2\nb = 3\n", [("delete", "x")], "# of x\nb = 3\n"),
    "delete_lines": ("a = 1\nx = f(\n  1\n)\nb = 3\n", [("delete", "x")], "a = 1\nb = 3\n"),
    "delete_last_without_newline": ("a = 1\nx = 2", [("delete", "x")], "a = 1\n"),
    "delete_all_of_module": ("x = 2", [("delete", "x")], ""),
    "delete_first_of_line": ("x = 1; a = 2; b = 3\n", [("delete", "x")], "a = 2; b = 3\n"),
    "delete_middle_of_line": ("a = 2; x = 1; b = 3\n", [("delete", "x")], "a = 2; b = 3\n"),
    "delete_last_of_line": ("a = 2; x = 1;  # c\n", [("delete", "x")], "a = 2;  # c\n"),
    "delete_two_of_line": ("x = 1; a = 2; y = 3; z = 4\n", [("delete", w) for w in "xyz"], "a = 2\n"),
    "delete_whole_line": ("x = 1; y = 2; # c\na = 1\n", [("delete", "x"), ("delete", "y")], "a = 1\n"),
    "delete_decorated": ("@d\n@e(\n  1)\ndef f():\n    pass\na = 1\n", [("delete", "def")], "a = 1\n"),
    "delete_form_feed": ("a = 1\n\x0c\nx = 1\n", [("delete", "x")], "a = 1\n\x0c\n"),
    "one_line_if": ("if q: x = 1\nb = 1\n", [("delete", "x")], "b = 1\n"),
    "one_line_if_call": ("if q(): x = 1\nb = 1\n", [("delete", "x")], "if q(): pass\nb = 1\n"),
    "one_line_if_walrus": ("if (q := 1): x = q\nb = 1\n", [("delete", "x")], "if (q := 1): pass\nb = 1\n"),
    "body_of_def": ("def f():\n    # o\n    x = 1  # c\n", [("delete", "x")], "def f():\n    # o\n    pass\n"),
    "body_without_newline": ("def f():\n    x = 1", [("delete", "x")], "def f():\n    pass"),
    "body_of_two": ("with a:\n    x = 1\n    y = 1\n", [("delete", "x"), ("delete", "y")], "with a:\n    pass\n"),
    "body_of_for": (
        "for i in a:\n    if isinstance(i, b):\n        x = 1\n",
        [("delete", "x")],
        "for i in a:\n    pass\n",
    ),
    "body_of_case": (
        "match a:\n    case 1:\n        x = 1\n",
        [("delete", "x")],
        "match a:\n    case 1:\n        pass\n",
    ),
    "body_of_handler": (
        "try:\n    a = 1\nexcept E:\n    x = 1\n",
        [("delete", "x")],
        "try:\n    a = 1\nexcept E:\n    pass\n",
    ),
    "try": ("try:\n    x = 1\nfinally:\n    b = 1\n", [("delete", "x")], "try:\n    pass\nfinally:\n    b = 1\n"),
    "finally": ("try:\n    a = 1\nfinally:\n    x = 1\n", [("delete", "x")], "try:\n    a = 1\nfinally:\n    pass\n"),
    "finally_after_except": (
        "try:\n    a = 1\nexcept E:\n    b = 1\nelse:\n    y = 1\nfinally:\n    x = 1\n",
        [("delete", "x"), ("delete", "y")],
        "try:\n    a = 1\nexcept E:\n    b = 1\n",
    ),
    "else": (
        "if q:\n    a = 1\n# else:\nelse:  # e\n    x = 1\nb = 1\n",
        [("delete", "x")],
        "if q:\n    a = 1\n# else:\nb = 1\n",
    ),
    "else_one_line": ("if q: a = 1\nelse: x = 1\nb = 1\n", [("delete", "x")], "if q: a = 1\nb = 1\n"),
    "for_else": ("for i in a:\n    b = 1\nelse:\n    x = 1\n", [("delete", "x")], "for i in a:\n    b = 1\n"),
    "elif": ("if q:\n    a = 1\nelif r:\n    x = 1\nb = 1\n", [("delete", "x")], "if q:\n    a = 1\nb = 1\n"),
    "elif_with_else": (
        "if q:\n    a = 1\nelif r:\n    x = 1\nelse:\n    b = 1\n",
        [("delete", "x")],
        "if q:\n    a = 1\nelif r:\n    pass\nelse:\n    b = 1\n",
    ),
    "elif_call": (
        "if q:\n    a = 1\nelif r():\n    x = 1\n",
        [("delete", "x")],
        "if q:\n    a = 1\nelif r():\n    pass\n",
    ),
    "if_of_chain": (
        "if q:\n    x = 1\nelif r:\n    a = 1\n",
        [("delete", "x")],
        "if q:\n    pass\nelif r:\n    a = 1\n",
    ),
    "both_branches": ("if q:\n    x = 1\nelse:\n    y = 1\nb = 1\n", [("delete", "x"), ("delete", "y")], "b = 1\n"),
    "both_branches_call": (
        "if q():\n    x = 1\nelse:\n    y = 1\nb = 1\n",
        [("delete", "x"), ("delete", "y")],
        "if q():\n    pass\nb = 1\n",
    ),
    "invert_less": (
        "if (a) < (b):  # c\n    # o\n    x = 1\nelse:  # d\n    y = 1\n",
        [("delete", "x")],
        "if (a) >= (b):  # c\n    y = 1\n",
    ),
    "invert_is_not": ("if a is  not None: x = 1\nelse: y = 1\n", [("delete", "x")], "if a is None: y = 1\n"),
    "invert_not_in": ("if a not in b:\n    x = 1\nelse:\n    y = 1\n", [("delete", "x")], "if a in b:\n    y = 1\n"),
    "invert_not": ("if not(a):\n    x = 1\nelse:\n    y = 1\n", [("delete", "x")], "if (a):\n    y = 1\n"),
    "invert_call": ("if a(b):\n    x = 1\nelse:\n    y = 1\n", [("delete", "x")], "if not a(b):\n    y = 1\n"),
    "invert_and": ("if a and b:\n    x = 1\nelse:\n    y = 1\n", [("delete", "x")], "if not (a and b):\n    y = 1\n"),
    "invert_chain": ("if a<b<c:\n    x = 1\nelse:\n    y = 1\n", [("delete", "x")], "if not (a<b<c):\n    y = 1\n"),
    "invert_comment": (
        "if (a  # <\n    < b):\n    x = 1\nelse:\n    y = 1\n",
        [("delete", "x")],
        "if not (a  # <\n    < b):\n    y = 1\n",
    ),
    "invert_one_line_else_lines": ("if a.b: x = 1\nelse:\n    y = 1\n", [("delete", "x")], "if not a.b:\n    y = 1\n"),
    "insert_after": ("a = 1  # c\nb = 1\n", [("after", "a", "x = 1")], "a = 1  # c\nx = 1\nb = 1\n"),
    "insert_after_without_newline": (
        "a = 1  # c",
        [("after", "a", "x = 1"), ("after", "a", "y = 1")],
        "a = 1  # c\nx = 1\ny = 1",
    ),
    "insert_after_compound": (
        "if a:\n    b = 1\n    # tail\n\n# own\nc = 1\n",
        [("after", "if", "x = 1"), ("after", "b", "y = 1")],
        "if a:\n    b = 1\n    y = 1\n    # tail\nx = 1\n\n# own\nc = 1\n",
    ),
    "insert_before_with_comment": (
        "a = 1\n\n# of b\nb = 1\n",
        [("before", "b", "x = 1"), ("after", "a", "y = 1")],
        "a = 1\ny = 1\n\nx = 1\n# of b\nb = 1\n",
    ),
    "insert_before_cell": ("a = 1\n# %%\nb = 1\n", [("before", "b", "x = 1")], "a = 1\n# %%\nx = 1\nb = 1\n"),
    "insert_below_file_head": (
        "#!/bin/x\n# coding: utf-8\nb = 1\n",
        [("before", "b", "x = 1")],
        "#!/bin/x\n# coding: utf-8\nx = 1\nb = 1\n",
    ),
    "insert_order": ("a = 1\n", [("after", "a", "z = 1"), ("after", "a", "x = 1")], "a = 1\nz = 1\nx = 1\n"),
    "insert_block_tabs": (
        "def f():\n\ta = 1\n\n",
        [("after", "a", "if a:\n    b = 1\n    if c:\n        pass")],
        "def f():\n\ta = 1\n\tif a:\n\t\tb = 1\n\t\tif c:\n\t\t\tpass\n\n",
    ),
    "insert_two_spaces": (
        "if a:\n  b = 1\n",
        [("after", "b", "if a:\n    x = 1")],
        "if a:\n  b = 1\n  if a:\n    x = 1\n",
    ),
    "insert_string": (
        "if a:\n    b = 1\n",
        [("after", "b", 't = """a\n  b\n"""')],
        'if a:\n    b = 1\n    t = """a\n  b\n"""\n',
    ),
    "insert_decorated": (
        "@d\ndef f(): pass\n",
        [("before", "def", "x = 1"), ("after", "def", "y = 1")],
        "x = 1\n@d\ndef f(): pass\ny = 1\n",
    ),
    "insert_in_line": (
        "a = 1; b = 2\n",
        [("after", "a", "x = 1"), ("before", "b", "y = 1"), ("before", "a", "w = 1"), ("after", "b", "z = 1")],
        "w = 1\na = 1\nx = 1\ny = 1\nb = 2\nz = 1\n",
    ),
    "insert_in_one_line_if": (
        "if a: b = 1  # c\n",
        [("before", "b", "x = 1"), ("after", "b", "y = 1")],
        "if a:\n    x = 1\n    b = 1  # c\n    y = 1\n",
    ),
    "insert_in_one_line_case": (
        "match a:\n    case 1: b = 1\n",
        [("after", "b", "y = 1")],
        "match a:\n    case 1:\n        b = 1\n        y = 1\n",
    ),
    "delete_and_insert": (
        "if q:\n    # o\n    x = 1\n",
        [("delete", "x"), ("before", "x", "y = 1"), ("after", "x", "z = 1")],
        "if q:\n    # o\n    y = 1\n    z = 1\n",
    ),
    "delete_and_insert_without_newline": ("a = 1\nx = 1", [("delete", "x"), ("after", "x", "z = 1")], "a = 1\nz = 1\n"),
}


@pytest.mark.parametrize("case", STATEMENTS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_statements(case: str, newline: str) -> None:
    before, specs, after = STATEMENTS[case]
    newline = newline if "\n" in before else "\n"
    assert edit(before.replace("\n", newline).encode(), *specs) == after.replace("\n", newline)


EXPRESSIONS: dict[str, tuple[str, list[Spec], str]] = {
    "nested": (
        "x = f(g(a))\n",
        [
            ("set", "g(a)", "k", "1"),
            ("set", "f(g(a))", "m", "2"),
            ("wrap", "g(a)", "w(", ")"),
            ("wrap", "f(g(a))", "o(", ")"),
            ("replace", "a", "b"),
            ("wrap", "a", "z(", ")"),
        ],
        "x = o(f(w(g(z(b), k=1)), m=2))\n",
    ),
    "wraps_in_order": ("x = a\n", [("wrap", "a", "f(", ")"), ("wrap", "a", "g(", ", 1)")], "x = g(f(a), 1)\n"),
    "wraps_with_one_start": ("x = a.b\n", [("wrap", "a", "f(", ")"), ("wrap", "a.b", "g(", ")")], "x = g(f(a).b)\n"),
    "wrap_at_start_of_inserted": ("a.b\n", [("wrap", "a", "f(", ")"), ("before", "a", "x = 1")], "x = 1\nf(a).b\n"),
    "wrap_at_end_of_inserted": ("a", [("wrap", "a", "f(", ")"), ("after", "a", "x = 1")], "f(a)\nx = 1"),
    "wrap_value_of_set": ("f(k=1)\n", [("set", "f(k=1)", "k", "2"), ("wrap", "1", "g(", ")")], "f(k=g(2))\n"),
    "wrap_bare_tuple": ("x = (a), b\n", [("wrap", "(a), b", "f(", ")")], "x = f(((a), b))\n"),
    "wrap_tuple": ("x = (a, b)\n", [("wrap", "(a, b)", "f(", ")")], "x = f((a, b))\n"),
    "wrap_yield": (
        "def f():\n    x = yield a, b\n",
        [("wrap", "yield a, b", "f(", ")")],
        "def f():\n    x = f((yield a, b))\n",
    ),
    "remove_in_removed": ("f(k=g(a=1))\n", [("remove", "f(k=g(a=1))", "k"), ("remove", "g(a=1)", "a")], "f()\n"),
    "wrap_generator": ("f(x for x in y)\n", [("wrap", "(x for x in y)", "g(", ")")], "f(g((x for x in y)))\n"),
    "replace_generator": ("f(x for x in y)\n", [("replace", "(x for x in y)", "z")], "f(z)\n"),
    "replace_lambda": ("f(lambda: a)\n", [("replace", "lambda: a", "b")], "f(b)\n"),
    "replace_in_attribute": ("x = a.b\n", [("replace", "a", "b or c")], "x = (b or c).b\n"),
    "replace_in_attribute_number": ("x = a.b\n", [("replace", "a", "1")], "x = (1).b\n"),
    "replace_in_parentheses": ("x = (a).b\n", [("replace", "a", "b or c")], "x = (b or c).b\n"),
    "replace_callee": ("x = a()\n", [("replace", "a", "b or c")], "x = (b or c)()\n"),
    "replace_argument_tuple": ("f(a)\n", [("replace", "a", "b, c")], "f((b, c))\n"),
    "replace_argument_tuple_in_brackets": ("f(a)\n", [("replace", "a", "(b, c)")], "f((b, c))\n"),
    "replace_value": ("x = a\n", [("replace", "a", "b, c")], "x = b, c\n"),
    "set_walrus": ("f(a)\n", [("set", "f(a)", "k", "(yield)")], "f(a, k=(yield))\n"),
    "set_tuple": ("f(a)\n", [("set", "f(a)", "k", "1, 2")], "f(a, k=(1, 2))\n"),
    "set_and_remove": (
        "f(\n  a,\n  x=1,  # c\n  b=2,  # d\n)\n",
        [
            ("remove", "f(\n  a,\n  x=1,  # c\n  b=2,  # d\n)", "x"),
            ("set", "f(\n  a,\n  x=1,  # c\n  b=2,  # d\n)", "b", "3"),
        ],
        "f(\n  a,\n  b=3,  # d\n)\n",
    ),
    "rename": (
        "f(a, old=g(b))\n",
        [("remove", "f(a, old=g(b))", "old"), ("set", "f(a, old=g(b))", "new", "g(b)")],
        "f(a, new=g(b))\n",
    ),
    "twice": ("f(a)\n", [("set", "f(a)", "k", "1"), ("set", "f(a)", "k", "1")], "f(a, k=1)\n"),
    "two_keywords": (
        "f(\n  a\n)\n",
        [("set", "f(\n  a\n)", "k", "1"), ("set", "f(\n  a\n)", "m", "2")],
        "f(\n  a,\n  k=1,\n  m=2\n)\n",
    ),
    "in_statement_beside_deleted": ("x = 1; f(a)\n", [("delete", "x"), ("set", "f(a)", "k", "1")], "f(a, k=1)\n"),
    "call_around_f_string": ("f(f'{g(a)}')\n", [("set", "f(f'{g(a)}')", "k", "1")], "f(f'{g(a)}', k=1)\n"),
}


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_expressions(case: str) -> None:
    before, specs, after = EXPRESSIONS[case]
    assert edit(before, *specs) == after


OVERLAP = "two changes want different text at the same place"
TWO_VALUES = "two changes want different values of the keyword k"
CONFLICTS: dict[str, tuple[str, list[Spec], str]] = {
    "two_values": ("f(a)\n", [("set", "f(a)", "k", "1"), ("set", "f(a)", "k", "2")], TWO_VALUES),
    "set_and_remove": ("f(k=1)\n", [("set", "f(k=1)", "k", "2"), ("remove", "f(k=1)", "k")], TWO_VALUES),
    "missing_keyword": ("f(a)\n", [("remove", "f(a)", "k")], "no keyword k in the call to take away"),
    "replace_in_set": ("f(k=g(1))\n", [("set", "f(k=g(1))", "k", "2"), ("replace", "1", "3")], OVERLAP),
    "replace_in_removed": ("f(k=1)\n", [("remove", "f(k=1)", "k"), ("replace", "1", "3")], OVERLAP),
    "replace_twice": ("x = a\n", [("replace", "a", "b"), ("replace", "a", "c")], OVERLAP),
    "wrap_in_replaced": ("x = g(a)\n", [("replace", "g(a)", "b"), ("wrap", "a", "f(", ")")], OVERLAP),
    "wrap_in_deleted": (
        "x = a\n",
        [("delete", "x"), ("wrap", "a", "f(", ")")],
        "a change inside a statement that another change deletes",
    ),
    "insert_in_deleted": (
        "if a:\n    b = 1\n",
        [("delete", "if"), ("after", "b", "x = 1")],
        "no place for a statement here",
    ),
    "insert_before_elif": (
        "if a:\n    b = 1\nelif c:\n    d = 1\n",
        [("before", "elif", "x = 1")],
        "no place for a statement here",
    ),
    "one_line_body": (
        "if a: b = 1\n",
        [("delete", "b"), ("after", "b", "x = 1")],
        "a one-line body both loses and gets statements",
    ),
    "not_statements": ("a = 1\n", [("after", "a", "x = ")], "not statements: 'x = '"),
    "not_an_expression": ("a = 1\n", [("replace", "1", "x = 1")], "not an expression: 'x = 1'"),
    "slice": ("x[:, a]\n", [("wrap", ":, a", "f(", ")")], "no expression to change here (inside an f-string?)"),
    "bound": ("m = 1\n", [("import", "lib", "m")], "m is bound here, so lib cannot be imported under it"),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_conflicts(case: str) -> None:
    before, specs, message = CONFLICTS[case]
    with pytest.raises(EditConflict) as caught:
        edit(before, *specs)
    assert str(caught.value).partition(": ")[2] == message or str(caught.value) == message


def test_deletion_inside_a_deletion_is_one() -> None:
    assert edit("if a:\n    b = 1\nc = 1\n", ("delete", "if"), ("delete", "b")) == "c = 1\n"


@pytest.mark.parametrize(
    "kind", [DeleteStatement, lambda p, s, e: Replace(p, s, e, "b"), lambda p, s, e: SetKeyword(p, s, e, "k", "v")]
)
def test_a_place_that_is_not_there(kind: type) -> None:
    with pytest.raises(EditConflict, match=r"^train\.py:1: no (statement|expression|call) to change here"):
        apply_ops(decode(PATH, b"x = 1 + 1\n"), [kind(PATH, 0, 3)])


def test_only_calls_have_keywords() -> None:
    with pytest.raises(EditConflict, match="no call to change here"):
        apply_ops(decode(PATH, b"x = 1 + 1\n"), [SetKeyword(PATH, 4, 9, "k", "v")])


def test_nothing_is_edited_inside_an_f_string() -> None:
    source = decode(PATH, b"x = f'{a}'\n")
    with pytest.raises(EditConflict, match="no expression to change here"):
        apply_ops(source, [Replace(PATH, 7, 8, "b")])


IMPORTS: dict[str, tuple[str, list[Spec], str]] = {
    "merge": ("from m import a, c\nb(a, c)\n", [("import", "m", "b")], "from m import a, b, c\nb(a, c)\n"),
    "merge_unordered": ("from m import c, a\n", [("import", "m", "b")], "from m import c, a, b\n"),
    "merge_isort": ("from m import A, b\n", [("import", "m", "C")], "from m import A, C, b\n"),
    "merge_alias": ("from m import a as z\n", [("import", "m", "b")], "from m import a as z, b\n"),
    "merge_lines": (
        "from m import (\n    a,  # A\n    c,\n)\n",
        [("import", "m", "b"), ("import", "m", "d")],
        "from m import (\n    a,  # A\n    b,\n    c,\n    d,\n)\n",
    ),
    "merge_backslash": (
        "from m import a, \\\n    c\n",
        [("import", "m", "b"), ("import", "m", "d")],
        "from m import a, b, \\\n    c, d\n",
    ),
    "merge_import_in_name": (
        "from importlib import (a)\n",
        [("import", "importlib", "b")],
        "from importlib import (a, b)\n",
    ),
    "merge_relative": ("from .m import a\n", [("import", ".m", "b")], "from .m import a, b\n"),
    "not_merged_star": ("from m import *\n", [("import", "m", "b")], "from m import *\nfrom m import b\n"),
    "not_merged_after_use": (
        "x = b\nfrom m import a\n",
        [("import", "m", "b")],
        "from m import b\n\nx = b\nfrom m import a\n",
    ),
    "not_merged_in_function": (
        "def f():\n    from m import a\n",
        [("import", "m", "b")],
        "from m import b\n\ndef f():\n    from m import a\n",
    ),
    "there_too_late": ("b()\nfrom m import b\n", [("import", "m", "b")], "from m import b\n\nb()\nfrom m import b\n"),
    "there": ("from m import b\n", [("import", "m", "b")], "from m import b\n"),
    "there_in_try": (
        "try:\n    from m import b\nexcept E:\n    pass\n",
        [("import", "m", "b")],
        "try:\n    from m import b\nexcept E:\n    pass\n",
    ),
    "there_module": ("import m.n\n", [("import", "m.n")], "import m.n\n"),
    "module": ("import torch\n", [("import", "torch.nn")], "import torch\nimport torch.nn\n"),
    "several": (
        "import a\n",
        [("import", "m", "c"), ("import", "m", "b"), ("import", "l", "x")],
        "import a\nfrom l import x\nfrom m import b, c\n",
    ),
    "after_block": (
        '"""Doc."""\nfrom __future__ import annotations\nimport os\n\nimport a  # A\n\nx = 1\n',
        [("import", "m", "b")],
        '"""Doc."""\nfrom __future__ import annotations\nimport os\n\nimport a  # A\nfrom m import b\n\nx = 1\n',
    ),
    "after_environment": (
        "import os\nos.environ['A'] = '1'\nimport torch\n\ndef f(): pass\n\nimport late\n",
        [("import", "m", "b")],
        "import os\nos.environ['A'] = '1'\nimport torch\nfrom m import b\n\ndef f(): pass\n\nimport late\n",
    ),
    "standard_library_only": ("import os\nx = 1\n", [("import", "m", "b")], "import os\nfrom m import b\nx = 1\n"),
    "not_inside_try": (
        "try:\n    import a\nexcept E:\n    a = 1\nimport c\n",
        [("import", "m", "b")],
        "try:\n    import a\nexcept E:\n    a = 1\nimport c\nfrom m import b\n",
    ),
    "before_first_use": (
        "import os\nb()\nimport torch\n",
        [("import", "m", "b")],
        "import os\nfrom m import b\nb()\nimport torch\n",
    ),
    "semicolons": ("import a; import c\n", [("import", "m", "b")], "import a; import c\nfrom m import b\n"),
    "docstring": ('"""Doc."""\nx = 1\n', [("import", "m", "b")], '"""Doc."""\n\nfrom m import b\n\nx = 1\n'),
    "docstring_blank": ('"""Doc."""\n\nx = 1\n', [("import", "m", "b")], '"""Doc."""\n\nfrom m import b\n\nx = 1\n'),
    "docstring_only": ('"""Doc."""', [("import", "m", "b")], '"""Doc."""\n\nfrom m import b\n'),
    "head_comments": (
        "#!/bin/x\n# coding: utf-8\n\nx = 1\n",
        [("import", "m", "b")],
        "#!/bin/x\n# coding: utf-8\n\nfrom m import b\n\nx = 1\n",
    ),
    "comments_only": ("# a", [("import", "m", "b")], "# a\nfrom m import b\n"),
    "decorated_first": ("@d\ndef f(): pass\n", [("import", "m", "b")], "from m import b\n\n@d\ndef f(): pass\n"),
    "crlf": ("import a\r\nx = 1\r\n", [("import", "m", "b")], "import a\r\nfrom m import b\r\nx = 1\r\n"),
    "remove": ("from m import a, b\na\n", [("unimport", "b")], "from m import a\na\n"),
    "remove_last_name": ("import a\nfrom m import b  # c\nx = 1\n", [("unimport", "b")], "import a\nx = 1\n"),
    "remove_alias": ("import m as b, c\nc\n", [("unimport", "b")], "import c\nc\n"),
    "remove_lines": (
        "from m import (\n    a,\n    b,  # B\n)\na\n",
        [("unimport", "b")],
        "from m import (\n    a,\n)\na\n",
    ),
    "remove_in_function": ("def f():\n    import b\n", [("unimport", "b")], "def f():\n    pass\n"),
    "remove_dotted": ("import b.c\nx = 1\n", [("unimport", "b")], "x = 1\n"),
    "remove_and_add": (
        "from m import b\nx = 1\n",
        [("unimport", "b"), ("import", "m", "c")],
        "from m import c\nx = 1\n",
    ),
    "remove_what_a_replace_left": ("from m import b\nx = b\n", [("replace", "b", "1"), ("unimport", "b")], "x = 1\n"),
    "keep_used": ("import b\nb.c\n", [("unimport", "b")], "import b\nb.c\n"),
    "keep_all": ("import b\n__all__ = ['b']\n", [("unimport", "b")], "import b\n__all__ = ['b']\n"),
    "keep_annotation": (
        "import b\ndef f(x: 'list[b]'): pass\n",
        [("unimport", "b")],
        "import b\ndef f(x: 'list[b]'): pass\n",
    ),
    "remove_beside_text": ("import b\nx = 'use b'\n", [("unimport", "b")], "x = 'use b'\n"),
    "remove_beside_long_text": (f"import b\nx = '{'b + ' * 99}b'\n", [("unimport", "b")], f"x = '{'b + ' * 99}b'\n"),
    "keep_global": ("import b\ndef f():\n    global b\n", [("unimport", "b")], "import b\ndef f():\n    global b\n"),
    "keep_noqa": ("import b  # noqa: F401\n", [("unimport", "b")], "import b  # noqa: F401\n"),
    "keep_try": ("try:\n    import b\nexcept E: pass\n", [("unimport", "b")], "try:\n    import b\nexcept E: pass\n"),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_imports(case: str) -> None:
    before, specs, after = IMPORTS[case]
    assert edit(before, *specs) == after


BINDINGS = [
    "def m(): pass",
    "class m: pass",
    "def f(m): pass",
    "import m",
    "import x as m",
    "from other import m",
    "from lib import x as m",
    "for m in a: pass",
    "try: pass\nexcept E as m: pass",
    "match a:\n    case [*m]: pass",
    "match a:\n    case {**m}: pass",
    "match a:\n    case m: pass",
    "def f():\n    global m",
]


@pytest.mark.parametrize("text", BINDINGS)
def test_a_name_bound_to_something_else(text: str) -> None:
    with pytest.raises(EditConflict, match="m is bound here, so lib cannot be imported under it"):
        edit(text, ("import", "lib", "m"))


def test_package_keeps_its_imports() -> None:
    source = decode("pkg/__init__.py", b"from m import b\n")
    assert apply_ops(source, [RemoveImport("pkg/__init__.py", "b")]) == source.text


def test_docstring_line_with_code_takes_no_import() -> None:
    with pytest.raises(EditConflict, match="no place for an import after the docstring"):
        edit('"""Doc."""; x = 1\n', ("import", "m", "b"))


ENCODINGS = {
    "bom": ("\ufeff训练 = f(a)\n".encode(), "utf-8"),
    "gbk": ("# -*- coding: gbk -*-\n训练 = f(a)\n".encode("gbk"), "gbk"),
    "latin1": ("# coding: latin-1\né = f(a)\n".encode("latin-1"), "iso-8859-1"),
}


@pytest.mark.parametrize("case", ENCODINGS)
def test_encodings(case: str) -> None:
    data, encoding = ENCODINGS[case]
    source = decode(PATH, data)
    after = apply_ops(source, [op(source, "set", "f(a)", "k", "v"), AddImport(PATH, "m", "b")])
    new = b"f(a, k=v)"
    body = data.replace(b"f(a)", new)
    start = data.rindex(b"\n", 0, -1) + 1 if b"coding" in data else len(source.bom)
    assert source.encode(after) == body[:start] + b"from m import b\n\n" + body[start:]
    assert source.encoding == encoding


REQUIREMENTS = {
    "end": ("torch\n", "torch\nspeedmigrate[runtime]\n"),
    "no_newline": ("torch", "torch\nspeedmigrate[runtime]"),
    "empty": ("", "speedmigrate[runtime]\n"),
    "crlf": ("torch\r\n", "torch\r\nspeedmigrate[runtime]\r\n"),
    "there": ("Speed_Migrate >= 1  # x\ntorch\n", "Speed_Migrate >= 1  # x\ntorch\nspeedmigrate[runtime]\n"),
    "there_normalised": (
        "SpeedMigrate[runtime]>=1; python_version > '3'\n",
        "SpeedMigrate[runtime]>=1; python_version > '3'\n",
    ),
    "there_egg": ("-e git+https://x/y#egg=speedmigrate\n", "-e git+https://x/y#egg=speedmigrate\n"),
    "options": ("-r base.txt\n# speedmigrate\n", "-r base.txt\n# speedmigrate\nspeedmigrate[runtime]\n"),
}


@pytest.mark.parametrize("case", REQUIREMENTS)
def test_requirements(case: str) -> None:
    before, after = REQUIREMENTS[case]
    source = decode("requirements.txt", before.encode(), python=False)
    assert apply_ops(source, [AddRequirement("requirements.txt", "speedmigrate[runtime]")]) == after


def test_locked_requirements_are_left() -> None:
    source = decode("requirements.txt", b"torch==2.1 --hash=sha256:00\n", python=False)
    with pytest.raises(EditConflict, match="not a plain requirements file"):
        apply_ops(source, [AddRequirement("requirements.txt", "speedmigrate")])


def test_flags() -> None:
    source = decode("run.sh", b"python a.py --fp16 True\n", python=False)
    ops = [
        SetFlag("run.sh", 14, 18, "bf16"),
        SetFlag("run.sh", 23, 23, " --x"),
        SetFlag("run.sh", 23, 23, " --y"),
        SetFlag("b.sh", 0, 1, ""),
    ]
    assert apply_ops(source, ops) == "python a.py --bf16 True --x --y\n"


@pytest.mark.parametrize("answer", ["f(a, b)", "f(a"])
def test_a_call_that_libcst_reads_otherwise(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = decode(PATH, b"f(a)\n")
    read = cst.parse_expression
    monkeypatch.setattr(cst, "parse_expression", lambda *_: read(f"({answer})"))
    with pytest.raises(EditConflict, match="the call cannot be taken apart"):
        apply_ops(source, [op(source, "set", "f(a)", "k", "v")])


def test_libcst_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, speedmigrate.edits, speedmigrate.verify, speedmigrate.patch; sys.exit('libcst' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


WHITE = st.sampled_from(["", " ", "\n", "\n    ", "  # c,(\n  ", "\n  # own,)\n    ", " \\\n  "])
VALUES = st.sampled_from(
    ["1", "'a,b'", "(x)", "(\n  2)", "g(y, z=3)", "[1, 2]", "'''\n#'''", "lambda a, b: a", "{**d}", "f'{a}'"]
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draw a call with any layout, and the code of its arguments."""
    names = [f"k{i}=" for i in range(4)]
    given_names = names[: draw(st.integers(0, 3))]
    arguments = [draw(VALUES) for _ in range(draw(st.integers(0, 2)))]
    arguments += [name + draw(VALUES) for name in given_names] + draw(st.sampled_from([[], ["**kw"]]))
    gaps = [draw(WHITE) + "," + draw(WHITE) for _ in arguments[1:]]
    end = draw(WHITE) + ("," + draw(WHITE) if arguments and draw(st.booleans()) else "")
    gaps = [draw(WHITE), *gaps, end] if arguments else [draw(WHITE.filter(lambda gap: "\\" not in gap))]
    inner = "".join(itertools.chain.from_iterable(itertools.zip_longest(gaps, arguments, fillvalue="")))
    return f"t = fun({inner})\n", arguments


def shape(text: str) -> tuple[list[str], dict[str | None, str]]:
    call = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [ast.dump(a) for a in call.args], {k.arg: ast.dump(k.value) for k in call.keywords}


def comments(text: str, *, own_line: bool = False) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [t for t in tokens if t.type == tokenize.COMMENT]
    return Counter(t.string.strip() for t in found if not own_line or not t.line[: t.start[1]].strip())


@settings(max_examples=250, deadline=None)
@given(calls(), st.sampled_from(["new", "k0", "k1"]), st.sampled_from(["\n", "\r\n"]))
def test_any_call_layout_takes_a_keyword(call: tuple[str, list[str]], name: str, newline: str) -> None:
    text = call[0].replace("\n", newline)
    args, keywords = shape(text)
    after = edit(text.encode(), ("set", first_call(text), name, "v"))
    assert shape(after) == (args, {**keywords, name: ast.dump(ast.parse("v", mode="eval").body)})
    assert comments(after) == comments(text)
    assert after.count("\n") == after.count(newline)
    assert edit(after.encode(), ("set", first_call(after), name, "v")) == after
    if name not in keywords:
        back = edit(after.encode(), ("remove", first_call(after), name))
        assert shape(back) == (args, keywords)
        assert not comments(after, own_line=True) - comments(back)
