"""The README's blocks: those between `begin`/`end` markers are made by the tool, those after `run` are commands.

python -m tests.readme --update     write the made blocks anew
python tests/readme.py --run tests  run a command block
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SCRIPT = "fixtures/projects/stage1/stage1_nemotron_qwen_djh_deepspeed_dev_zch_v4_lqy.py"


def speedmigrate(*arguments: str) -> str:
    """Return what the tool prints on stdout."""
    command = [sys.executable, "-m", "speedmigrate", *arguments]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


def _diff() -> str:
    out = speedmigrate(SCRIPT, "--root", str(Path(SCRIPT).parent), "--diff")
    return f"```diff\n{out}```\n"


MADE: dict[str, Callable[[], str]] = {"diff": _diff, "rules": lambda: speedmigrate("rules", "--format", "markdown")}


def made(text: str) -> dict[str, str]:
    """Return the text of each made block of the README."""
    return dict(re.findall(r"^<!-- begin (\w+) -->\n(.*?)^<!-- end \1 -->$", text, re.DOTALL | re.MULTILINE))


def updated(text: str) -> str:
    """Return the README with every made block made anew."""
    for name, old in made(text).items():
        text = text.replace(f"<!-- begin {name} -->\n{old}<!--", f"<!-- begin {name} -->\n{MADE[name]()}<!--")
    return text


def commands(text: str) -> dict[str, str]:
    """Return the shell text of each command block."""
    return dict(re.findall(r"^<!-- run (\w+) -->\n```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def examples(text: str) -> list[str]:
    """Return the lines after `$` of the console blocks, without their comments."""
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = (line for block in blocks for line in block.splitlines() if line.startswith("$ "))
    return [line[2:].partition("  # ")[0].rstrip() for line in lines]


def main(arguments: list[str]) -> int:
    """Carry out `--update` or `--run NAME`."""
    text = README.read_text(encoding="utf-8")
    if arguments == ["--update"]:
        README.write_text(updated(text), encoding="utf-8")
        return 0
    if arguments[:1] == ["--run"] and len(arguments) == 2:
        return subprocess.run(["bash", "-euo", "pipefail", "-c", commands(text)[arguments[1]]], cwd=ROOT).returncode
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
