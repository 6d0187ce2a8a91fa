"""Run Python scripts in forks of one process that has torch and transformers loaded: five CPU seconds less for each.

Reads one JSON object a line, {"command": [script, argument...], "cwd", "env": {}, "log"}, and answers with the exit
status. What the script prints goes to the file `log`. It ends with its input.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any


def _load() -> None:
    for name in ("torch._dynamo", "transformers.trainer", "transformers.models.qwen2.modeling_qwen2"):
        import_module(name)


def _run(job: dict[str, Any]) -> int:
    with Path(job["log"]).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    script = job["command"][0]
    sys.argv = job["command"]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0) if isinstance(end.code, (int, type(None))) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _load()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            status = _run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    main()
