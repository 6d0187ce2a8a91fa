"""What `verify` says of a new text: each case is the old text, the new one and every problem."""

from __future__ import annotations

import pytest

from speedmigrate.source import decode
from speedmigrate.verify import verify

CASES: dict[str, tuple[str, str, list[str]]] = {
    "fine": ("import a\nx = a\n", "import a\nx = a.b\n", []),
    "syntax": ("x = 1\n", "x = (\n", ["line 1: syntax error in the new text ('(' was never closed)"]),
    "compile_only": (
        "x = 1\n",
        "x = 1\nreturn x\n",
        ["line 2: syntax error in the new text ('return' outside function)"],
    ),
    "future_not_first": (
        "from __future__ import annotations\n",
        "import b\nb\nfrom __future__ import annotations\n",
        ["line 3: syntax error in the new text (from __future__ imports must occur at the beginning of the file)"],
    ),
    "null": ("x = 1\n", "x = '\0'\n", ["not text"]),
    "import_gone": ("import a\na()\n", "a()\n", ["the name a would not be bound any more"]),
    "import_gone_unused": ("import a\n", "", []),
    "assignment_gone": ("x = 1\nprint(x)\n", "print(x)\n", ["the name x would not be bound any more"]),
    "local_gone": (
        "def f():\n    x = 1\n    return x\n",
        "def f():\n    return x\n",
        ["the name x would not be bound any more"],
    ),
    "local_gone_global_left": (
        "x = 0\ndef f():\n    x = 1\n    return x\n",
        "x = 0\ndef f():\n    return x\n",
        ["the name x would not be bound in f any more"],
    ),
    "argument_stays": ("def f(x):\n    x = 1\n    return x\n", "def f(x):\n    return x\n", []),
    "new_name": ("x = 1\n", "x = tokenizer\n", ["the name tokenizer is not bound"]),
    "new_name_behind_star": ("from a import *\nx = 1\n", "from a import *\nx = tokenizer\n", []),
    "gone_behind_star": (
        "from a import *\nb = 1\nb\n",
        "from a import *\nb\n",
        ["the name b would not be bound any more"],
    ),
    "already_unbound": ("x = y\n", "x = y + y\n", []),
    "builtins": ("x = 1\n", "x = len(__file__), __name__\n", []),
    "global_statement": ("def f():\n    global x\n    x = 1\nx\n", "def f():\n    global x\n    x = 1\nx + 1\n", []),
    "class_scope": (
        "class A:\n    b = 1\n    def f(self): return __class__, super().f\n",
        "class A:\n    b = 2\n    def f(self): return __class__, super().f\n",
        [],
    ),
    "comprehension": (
        "def f(a): return [b for b in a]\n",
        "def f(a):\n    c = [d for d in a]\n    return [b for b in c]\n",
        [],
    ),
    "unused_import": (
        "x = 1\n",
        "import b\nfrom c import d, e\nx = e\n",
        ["the import of b would not be used", "the import of d would not be used"],
    ),
    "import_for_all": ("__all__ = ['d']\nd = 1\n", "from c import d\n__all__ = ['d']\n", []),
    "old_unused_import": ("import b\n", "import b\nx = 1\n", []),
    "mixed_newlines": ("x = 1\n", "x = 1\r\n", ["line ends would be mixed: ['\\r\\n']"]),
    "first_newline": ("x = 1", "x = 1\ny = 1\n", []),
    "mixed_before": ("x = 1\r\ny = 1\n", "x = 1\r\ny = 2\n", []),
    "escape_warning": ("x = '\\d'\n", "x = '\\d' is 1\n", []),
}


@pytest.mark.parametrize("case", CASES)
def test_python(case: str) -> None:
    before, after, problems = CASES[case]
    found = verify(decode("a.py", before.encode()), after)
    if case == "null":
        assert found
    else:
        assert found == [f"a.py: {problem}" for problem in problems]


def test_encoding_cannot_hold_the_text() -> None:
    source = decode("a.py", "# coding: latin-1\né = 1\n".encode("latin-1"))
    assert verify(source, source.text + "# 中\n") == [
        "a.py: iso-8859-1 cannot hold the new text (ordinal not in range(256))"
    ]


def test_gbk_and_bom_are_kept() -> None:
    for data in ("# coding: gbk\n训 = 1\n".encode("gbk"), "\ufeff训 = 1\n".encode()):
        source = decode("a.py", data)
        assert verify(source, source.text + "练 = 2\n") == []


def test_cookie_pushed_down() -> None:
    source = decode("a.py", b"#!/bin/x\n# coding: latin-1\nx = 1\n")
    assert verify(source, "#!/bin/x\n\n" + source.text[9:]) == ["a.py: its encoding iso-8859-1 would be read as utf-8"]


@pytest.mark.parametrize(
    ("before", "after", "problems"),
    [
        ('{"a": 1}', '{"a": 2}', []),
        ('{"a": 1}', '{"a": 2', ["a.json: not JSON any more (Expecting ',' delimiter: line 1 column 8 (char 7))"]),
        ("{'a': 1}", "{'a': 2}", []),
    ],
)
def test_json(before: str, after: str, problems: list[str]) -> None:
    assert verify(decode("a.json", before.encode(), python=False), after) == problems


def test_other_files_are_not_parsed() -> None:
    assert verify(decode("a.sh", b"python a.py\n", python=False), "python a.py --bf16\n") == []


def test_nested_too_deeply() -> None:
    source = decode("a.py", b"x = 1\n")
    problems = verify(source, "x = " + "-" * 200_000 + "1\n")
    assert len(problems) == 1
    assert problems[0].startswith("a.py: ")
