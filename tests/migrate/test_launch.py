"""Reading launch files and editing them as spans: whole texts are compared, in bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from speedmigrate.launch.documents import Documents, is_document
from speedmigrate.launch.files import Files
from speedmigrate.launch.find import Launch, find_launches, index
from speedmigrate.launch.flags import Edits, remove_flag, replace_flag, set_flag
from speedmigrate.launch.jsonfile import Value, read_json, remove_json, rename_json, set_json
from speedmigrate.launch.yamlfile import Value as Scalar
from speedmigrate.launch.yamlfile import read_yaml, set_yaml
from speedmigrate.source import SourceFile, decode

ROOT = Path("/home/user/repo")


def sources(files: dict[str, str]) -> Callable[[str], SourceFile | None]:
    made = {path: decode(path, text.encode(), python=False) for path, text in files.items()}
    return made.get


def launches(files: dict[str, str], entry: str = "train.py", importers: Sequence[str] = ()) -> tuple[Launch, ...]:
    files = {entry: "", **files}
    return find_launches(ROOT, sorted(files), entry, importers=importers, read=sources(files))


def edited(text: str, edits: Edits, path: str = "run.sh") -> str:
    """Return the text after edits of one file."""
    assert edits is not None
    assert {edit.path for edit in edits} <= {path}
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.code + text[edit.end :]
    return text


Act = Callable[[Launch, SourceFile], Edits]


def flag(name: str, value: str | None) -> Act:
    return lambda launch, source: set_flag(launch, source, name, value)


def without(name: str) -> Act:
    return lambda launch, source: remove_flag(launch, source, name)


def swap(old: str, new: str, value: str | None) -> Act:
    return lambda launch, source: replace_flag(launch, source, old, new, value)


# ids: the shape; before, act, after (None: left alone, because it cannot be written safely)
SHELL: dict[str, tuple[str, Act, str | None]] = {
    "value": ("python train.py --bf16 False --lr 1\n", flag("bf16", "True"), "python train.py --bf16 True --lr 1\n"),
    "value-is-there": ("python train.py --bf16 True\n", flag("bf16", "True"), "python train.py --bf16 True\n"),
    "equals": ("python3 -u train.py --bf16=False\n", flag("bf16", "True"), "python3 -u train.py --bf16=True\n"),
    "quotes-stay": (
        'python train.py --optim "adamw_hf"\n',
        flag("optim", "adamw"),
        'python train.py --optim "adamw"\n',
    ),
    "single-quotes-stay": ("python train.py --o='a b' -x\n", flag("o", "c d"), "python train.py --o='c d' -x\n"),
    "switch-gets-value": (
        "python train.py --bf16 --lr 1\n",
        flag("bf16", "False"),
        "python train.py --bf16 False --lr 1\n",
    ),
    "last-one-wins": ("python train.py --bs 1 --bs 2\n", flag("bs", "8"), "python train.py --bs 1 --bs 8\n"),
    "dash-is-underscore": ("python train.py --max-len 9\n", flag("max_len", "8"), "python train.py --max-len 8\n"),
    "hydra": ("python train.py model.bf16=false\n", flag("model.bf16", "true"), "python train.py model.bf16=true\n"),
    "negative-number": ("python train.py --seed -1 --x\n", flag("seed", "2"), "python train.py --seed 2 --x\n"),
    "variable-literal": (
        'BF16="False"\npython train.py --bf16 $BF16\n',
        flag("bf16", "True"),
        'BF16="True"\npython train.py --bf16 $BF16\n',
    ),
    "default-of-variable": (
        "python train.py --bf16 ${BF16:-False}\n",
        flag("bf16", "True"),
        "python train.py --bf16 ${BF16:-True}\n",
    ),
    "variable-of-two-flags": (
        "X=1\npython train.py --a $X --b $X\n",
        flag("a", "2"),
        "X=1\npython train.py --a 2 --b $X\n",
    ),
    "variable-of-other-command": (
        'D=a\nmkdir $D\npython train.py --dir "$D"/x\n',
        flag("dir", "b"),
        "D=a\nmkdir $D\npython train.py --dir b\n",
    ),
    "string-of-flags": (
        'ARGS="--lr 1 \\\n  --fp16 True"\nARGS="$ARGS --x"\npython train.py $ARGS\n',
        flag("fp16", "False"),
        'ARGS="--lr 1 \\\n  --fp16 False"\nARGS="$ARGS --x"\npython train.py $ARGS\n',
    ),
    "array": (
        'A=(\n  --lr 1e-4  # rate\n  --fp16 True\n)\nA+=(--x "a b")\ntorchrun train.py "${A[@]}"\n',
        flag("fp16", "False"),
        'A=(\n  --lr 1e-4  # rate\n  --fp16 False\n)\nA+=(--x "a b")\ntorchrun train.py "${A[@]}"\n',
    ),
    "array-add": (
        'A=(--lr 1)\ntorchrun train.py "${A[@]}"\n',
        flag("bf16", None),
        'A=(--lr 1)\ntorchrun train.py "${A[@]}" --bf16\n',
    ),
    "one-line-add": (
        "deepspeed --include localhost:0,1 train.py --lr 1 > log.txt 2>&1 &\n",
        flag("bf16", "True"),
        "deepspeed --include localhost:0,1 train.py --lr 1 --bf16 True > log.txt 2>&1 &\n",
    ),
    "no-arguments-add": (
        "cd src; python train.py | tee log\n",
        flag("bf16", None),
        "cd src; python train.py --bf16 | tee log\n",
    ),
    "continued-add": (
        "torchrun --nproc_per_node 8 \\\n    train.py \\\n    --lr 1 \\\n    --epochs 3\n",
        flag("bf16", "True"),
        "torchrun --nproc_per_node 8 \\\n    train.py \\\n    --lr 1 \\\n    --bf16 True \\\n    --epochs 3\n",
    ),
    "continued-add-tabs": (
        "python train.py\\\n\t--lr 1\\\n\t--x\n",
        flag("bf16", None),
        "python train.py\\\n\t--lr 1\\\n\t--bf16 \\\n\t--x\n",
    ),
    "crlf-add": (
        "python train.py \\\r\n  --lr 1 \\\r\n  --x 2\r\necho done\r\n",
        flag("bf16", "True"),
        "python train.py \\\r\n  --lr 1 \\\r\n  --bf16 True \\\r\n  --x 2\r\necho done\r\n",
    ),
    "crlf-set": (
        "X=1\r\npython train.py \\\r\n  --x $X\r\n",
        flag("x", "2"),
        "X=2\r\npython train.py \\\r\n  --x $X\r\n",
    ),
    "trailing-backslash-add": (
        "python train.py \\\n  --lr 1 \\\n\necho\n",
        flag("x", None),
        "python train.py \\\n  --x \\\n  --lr 1 \\\n\necho\n",
    ),
    "only-variables-add": (
        'OPTS="--lr 1"\ntorchrun \\\n    train.py \\\n    $OPTS \\\n    "$@"\n',
        flag("bf16", None),
        'OPTS="--lr 1"\ntorchrun \\\n    train.py \\\n    $OPTS \\\n    --bf16 \\\n    "$@"\n',
    ),
    "before-rest-of-arguments": (
        'python train.py --lr 1 "$@"\n',
        flag("bf16", None),
        'python train.py --lr 1 --bf16 "$@"\n',
    ),
    "quoted-end-add": (
        'python train.py --out "$DIR/x"/"y z"\n',
        flag("b", None),
        'python train.py --out "$DIR/x"/"y z" --b\n',
    ),
    "value-that-needs-quotes": ("python train.py\n", flag("fsdp", "a b"), "python train.py --fsdp 'a b'\n"),
    "no-newline-at-end": ("python train.py --x", flag("b", None), "python train.py --x --b"),
    "eval-add": (
        'ARGS="--lr 1"\ncmd="python train.py $ARGS"\necho $cmd\neval "$cmd" 2>&1\n',
        flag("b", None),
        'ARGS="--lr 1"\ncmd="python train.py $ARGS --b"\necho $cmd\neval "$cmd" 2>&1\n',
    ),
    "command-in-variable": (
        'run="torchrun train.py \\\n  --a 1 \\\n  --b 2"\n$run\n',
        flag("c", "3"),
        'run="torchrun train.py \\\n  --a 1 \\\n  --c 3 \\\n  --b 2"\n$run\n',
    ),
    "bash-c": (
        "bash -c 'cd src && python train.py --bf16 False'\n",
        flag("bf16", "True"),
        "bash -c 'cd src && python train.py --bf16 True'\n",
    ),
    "heredoc-of-a-job": (
        "sbatch <<EOF\n#!/bin/bash\nsrun python train.py --bf16 False\nEOF\n",
        flag("bf16", "True"),
        "sbatch <<EOF\n#!/bin/bash\nsrun python train.py --bf16 True\nEOF\n",
    ),
    "non-ascii-before": (
        "# 训练脚本 é\nX='数据'\npython train.py --d $X --bf16 False\n",
        flag("bf16", "True"),
        "# 训练脚本 é\nX='数据'\npython train.py --d $X --bf16 True\n",
    ),
    "in-function": (
        'go() {\n  lr=$1; shift\n  python train.py --lr $lr "$@"\n}\ngo 1e-4 --y\n',
        flag("x", None),
        'go() {\n  lr=$1; shift\n  python train.py --lr $lr --x "$@"\n}\ngo 1e-4 --y\n',
    ),
    "remove-line": (
        "python train.py \\\n  --fp16 True \\\n  --x 1\n",
        without("fp16"),
        "python train.py \\\n  --x 1\n",
    ),
    "remove-last-line": (
        "python train.py \\\n  --x 1 \\\n  --fp16\n",
        without("fp16"),
        "python train.py \\\n  --x 1\n",
    ),
    "remove-in-line": ("python train.py --fp16 --x 1\n", without("fp16"), "python train.py --x 1\n"),
    "remove-in-string": ('A="--fp16 --x 1"\npython train.py $A\n', without("fp16"), 'A="--x 1"\npython train.py $A\n'),
    "remove-quoted-value": ('D=a\npython train.py --o "$D/x" --y\n', without("o"), "D=a\npython train.py --y\n"),
    "remove-array-line": (
        "A=(\n  --x 1\n  --fp16\n)\npython train.py ${A[@]}\n",
        without("fp16"),
        "A=(\n  --x 1\n)\npython train.py ${A[@]}\n",
    ),
    "remove-every": ("python train.py --fp16 --x 1 --fp16\n", without("fp16"), "python train.py --x 1\n"),
    "remove-crlf": (
        "python train.py \\\r\n  --fp16 \\\r\n  --x 1\r\n",
        without("fp16"),
        "python train.py \\\r\n  --x 1\r\n",
    ),
    "replace-switch": (
        "python train.py \\\n  --fp16 \\\n  --x 1\n",
        swap("fp16", "bf16", None),
        "python train.py \\\n  --bf16 \\\n  --x 1\n",
    ),
    "replace-value": ("python train.py --fp16 True\n", swap("fp16", "bf16", "True"), "python train.py --bf16 True\n"),
    "replace-value-by-switch": (
        "python train.py --fp16 True -x\n",
        swap("fp16", "bf16", None),
        "python train.py --bf16 -x\n",
    ),
    "replace-switch-by-value": (
        "python train.py --fp16 -x\n",
        swap("fp16", "dtype", "bf16"),
        "python train.py --dtype bf16 -x\n",
    ),
    "replace-equals": ("python train.py --fp16=1\n", swap("fp16", "bf16", "2"), "python train.py --bf16=2\n"),
    "replace-where-the-new-one-is": (
        "python train.py --fp16 True --bf16 False\n",
        swap("fp16", "bf16", "True"),
        "python train.py --bf16 True\n",
    ),
    "replace-missing": ("python train.py\n", swap("fp16", "bf16", "True"), "python train.py --bf16 True\n"),
    # Left alone.
    "value-to-switch": ("python train.py --bf16 True\n", flag("bf16", None), None),
    "unread-value": ("python train.py --bf16 $BF16\n", flag("bf16", "True"), None),
    "argument-value": ("python train.py --bf16 $1\n", flag("bf16", "True"), None),
    "computed-value": ("python train.py --n $((2*3))\n", flag("n", "True"), None),
    "branches": ('if [ -n "$X" ]; then\n  A="--bf16 True"\nfi\npython train.py $A\n', flag("bf16", "False"), None),
    "and-branch": ('[ -n "$X" ] && A+=" --bf16 True"\npython train.py $A\n', flag("bf16", "False"), None),
    "case-branches": ("case $1 in\n a) D=1;;\n *) D=2;;\nesac\npython train.py --d $D\n", flag("d", "3"), None),
    "flags-of-two-programs": ('A="--bf16 True"\npython train.py $A\npython eval.py $A\n', flag("bf16", "False"), None),
    "remove-flags-of-two-programs": ('A="--bf16 True"\npython train.py $A\npython eval.py $A\n', without("bf16"), None),
    "remove-unread": ("python train.py --bf16 $BF16\n", without("bf16"), None),
    "replace-unread": ("python train.py --fp16 $FP16\n", swap("fp16", "bf16", "True"), None),
    "replace-in-branch": ('if a; then A="--fp16"; fi\npython train.py $A\n', swap("fp16", "bf16", None), None),
}


@pytest.mark.parametrize("case", SHELL)
def test_shell_edit(case: str) -> None:
    before, act, after = SHELL[case]
    files = {"run.sh": before, "eval.py": ""}
    source = sources(files)("run.sh")
    assert source
    [launch] = launches(files)
    edits = act(launch, source)
    if after is None:
        assert edits is None
        return
    assert source.encode(edited(before, edits)) == after.encode()
    [again] = launches(files | {"run.sh": after})
    changed = sources({"run.sh": after})("run.sh")
    assert changed
    assert act(again, changed) == ()


STARTS: dict[str, tuple[dict[str, str], list[tuple[str, str, tuple[str, ...]]]]] = {
    "python": ({"run.sh": "python train.py\n"}, [("run.sh", "python", ())]),
    "path-of-python": ({"run.sh": "/opt/py/bin/python3.10 -u ./train.py\n"}, [("run.sh", "python", ())]),
    "unread-python": ({"run.sh": "$PYTHON train.py\n"}, [("run.sh", "python", ())]),
    "prefixes": ({"run.sh": "CUDA_VISIBLE_DEVICES=0 nohup srun -p x python train.py &\n"}, [("run.sh", "python", ())]),
    "torchrun": ({"run.sh": "torchrun --nproc_per_node=8 train.py\n"}, [("run.sh", "torchrun", ())]),
    "accelerate": ({"run.sh": "accelerate launch --config_file a.yaml train.py\n"}, [("run.sh", "accelerate", ())]),
    "deepspeed": ({"run.sh": "deepspeed --include localhost:0 train.py\n"}, [("run.sh", "deepspeed", ())]),
    "distributed-launch": (
        {"run.sh": "python -m torch.distributed.launch --use_env train.py\n"},
        [("run.sh", "torch.distributed.launch", ())],
    ),
    "distributed-run": ({"run.sh": "python -m torch.distributed.run -m train\n"}, [("run.sh", "torchrun", ())]),
    "module": ({"run.sh": "python -m train --x\n"}, [("run.sh", "python", ())]),
    "launcher-in-variable": ({"run.sh": 'L="torchrun --n 1"\nS=train.py\n$L $S --x\n'}, [("run.sh", "torchrun", ())]),
    "shebang-only": ({"launch": "#!/usr/bin/env bash\npython train.py\n"}, [("launch", "python", ())]),
    "folder-of-the-script": ({"scripts/run.sh": "cd ..\npython train.py\n"}, [("scripts/run.sh", "python", ())]),
    "computed-folder": (
        {"scripts/run.sh": 'D=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)\npython $D/train.py\n'},
        [("scripts/run.sh", "python", ())],
    ),
    "unread-folder": ({"run.sh": "python $HOME/x/train.py\n"}, [("run.sh", "python", ())]),
    "absolute-in-root": ({"run.sh": "python /data/repo/train.py\n", "x/train.py": ""}, [("run.sh", "python", ())]),
    "folder-between": ({"x/y/run.sh": "python ../train.py\n", "x/train.py": ""}, []),
    "importer": ({"run.sh": "python train_mem.py\n", "train_mem.py": ""}, [("run.sh", "python", ("train_mem.py",))]),
    "calls-a-script": (
        {"all.sh": "for x in 1 2; do bash run.sh --x $x; done\n", "run.sh": "python train.py $@\n"},
        [("all.sh", "python", ("run.sh",)), ("run.sh", "python", ())],
    ),
    "sourced-command": (
        {"all.sh": "X=1\nsource ./run.sh\n", "run.sh": "python train.py --x $X\n"},
        [("all.sh", "python", ("run.sh",)), ("run.sh", "python", ())],
    ),
    "several": ({"run.sh": "python train.py --a\npython train.py --b\n"}, [("run.sh", "python", ())] * 2),
    "if-condition": ({"run.sh": "if ! python train.py; then exit 1; fi\n"}, [("run.sh", "python", ())]),
    # Not a launch of this entry point.
    "other-program": (
        {"run.sh": "python eval.py train.py\npython -c 'import train'\npython manage\n", "eval.py": ""},
        [],
    ),
    "only-named": ({"run.sh": "echo python train.py\ncat train.py\ngit add train.py\n# python train.py\n"}, []),
    "same-name-elsewhere": ({"a/run.sh": "python train.py\n", "a/train.py": ""}, []),
    "python-shebang": ({"launch": "#!/usr/bin/env python\nos.system('python train.py')\n"}, []),
    "recursive": ({"run.sh": "bash run.sh\nsource run.sh\n"}, []),
    "broken": ({"run.sh": "if then python ( train\n"}, []),
    "job-file": ({"a.job": "python train.py\n"}, [("a.job", "python", ())]),
}


@pytest.mark.parametrize("case", STARTS)
def test_start(case: str) -> None:
    files, expected = STARTS[case]
    assert [(x.path, x.launcher, x.via) for x in launches(files, importers=["train_mem.py"])] == expected


def test_ambiguous_name_is_no_match_but_told() -> None:
    files = {"run.sh": "#!/bin/sh\n\npython $X/train.py\n", "a/train.py": "", "b/train.py": ""}
    found = index(ROOT, sorted(files), sources(files))
    assert found.of("a/train.py") == ()
    assert found.ambiguous("a/train.py") == found.ambiguous("b/train.py") == ("run.sh:3",)
    assert found.ambiguous("c.py") == ()


def test_resolve_prefers_the_longest_ending() -> None:
    files = Files(ROOT, ["a/x/train.py", "b/y/train.py", "pkg/__main__.py", "src/lib/run.py"])
    assert files.resolve("/data/y/train.py", "", "run.sh").path == "b/y/train.py"
    assert files.resolve("tr\0.py", "", "run.sh").path is None
    assert files.module("pkg", "", "run.sh").path == "pkg/__main__.py"
    assert files.module("lib.run", "", "run.sh").path == "src/lib/run.py"
    assert files.module("lib.none", "", "run.sh").path is None


def test_what_a_launch_says() -> None:
    script = (
        "#!/bin/bash\n"
        "export OMP_NUM_THREADS=4\n"
        'LR="2e-5"\n'
        "NCCL_DEBUG=INFO accelerate launch --config_file=cfg/acc.yaml --mixed_precision fp16 \\\n"
        '  train.py --lr "$LR" --names a b \\\n'
        "  --bf16 --deepspeed cfg/ds.json --out $OUT/x $MORE cfg/more.yml $@\n"
    )
    files = {"run.sh": script, "cfg/acc.yaml": "", "cfg/ds.json": "", "cfg/more.yml": "", "cfg/no.json": ""}
    [launch] = launches(files)
    assert (launch.line, launch.launcher, launch.unread) == (4, "accelerate", ("$MORE", "$@"))
    assert launch.env == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    assert launch.configs == ("cfg/acc.yaml", "cfg/ds.json", "cfg/more.yml")
    assert [(f.name, f.value) for f in launch.launcher_flags] == [
        ("config_file", "cfg/acc.yaml"),
        ("mixed_precision", "fp16"),
    ]
    told = [(f.name, f.value, f.literal, f.line, script[f.value_start : f.value_end]) for f in launch.flags[:4]]
    assert told == [
        ("lr", "2e-5", True, 5, "2e-5"),
        ("names", "a b", True, 5, "a b"),
        ("bf16", None, True, 6, ""),
        ("deepspeed", "cfg/ds.json", True, 6, "cfg/ds.json"),
    ]
    out = launch.flag("out")
    assert out
    assert (out.value, out.literal) == (None, False)
    lr = launch.flag("--lr")
    assert lr
    assert (script[lr.start : lr.end], script[lr.site_start : lr.site_end]) == ("--lr", "$LR")
    mixed = launch.launcher_flag("mixed-precision")
    assert mixed
    assert mixed.value == "fp16"


# What the shell would pass: name and value, None for a switch, "?" for what cannot be read.
VALUES: dict[str, tuple[str, list[tuple[str, str | None]]]] = {
    "env-command": ("env X=1 'Y=a b' python train.py --a 1\n", [("a", "1")]),
    "empty-value": ("python train.py --a= --b ''\n", [("a", ""), ("b", "")]),
    "unset-to-empty": ('A=\npython train.py --a "$A" --b\n', [("a", ""), ("b", None)]),
    "escapes": ('python train.py --a x\\ y --b "p\\"q\\z" --c \\\n 1\n', [("a", "x y"), ("b", 'p"q\\z'), ("c", "1")]),
    "concatenation": ("A=1\npython train.py --a x{1,2}$A'y'\n", [("a", "x{1,2}1y")]),
    "folder": ("cd a\npython ../train.py --a $PWD/x --b $(pwd) --c $OLD\n", [("a", "a/x"), ("b", "a"), ("c", "?")]),
    "array-element": (
        "A=(x y)\npython train.py --a ${A[1]} --b ${A} --c ${A[$i]} --d ${A[7]}\n",
        [("a", "y"), ("b", "x"), ("c", "?"), ("d", "?")],
    ),
    "string-operators": (
        "A=x.y\npython train.py --a ${A%.*} --b ${#A} --c ${!A} --d ${B-} --e ${A:-z}\n",
        [("a", "?"), ("b", "?"), ("c", "?"), ("d", None), ("e", "x.y")],
    ),
    "append": ('A="x"\nA+="y"\nA+=""\nB+=z\npython train.py --a $A$B\n', [("a", "xyz")]),
    "function-not-called": ("f() { python train.py --a $1; }\n", [("a", "?")]),
    "exec": ("exec python train.py --a 1\n", [("a", "1")]),
    "subshell": ("A=1\n(A=2; cd /tmp)\npython train.py --a $A\n", [("a", "1")]),
    "redirect-in-the-middle": ("python train.py >log --a 1 2>&1\n", [("a", "1")]),
    "while-and-heredoc": (
        "while read A; do cat <<EOF\nx\nEOF\ndone\npython train.py --a $A <<EOF\nx\nEOF\n",
        [("a", "?")],
    ),
    "redirected-loop": ("while read A; do\n  python train.py --a $A\ndone < list.txt\n", [("a", "?")]),
    "continued-assignments": ("A=1 B=2 \\\n  python train.py --a $A\n", [("a", "?")]),
    "read": ("A=1\nread -p x A\npython train.py --a $A\n", [("a", "?")]),
    "for": ("for a in 1 2\ndo python train.py --a $a\ndone\n", [("a", "?")]),
    "two-assignments": ("A=1 B=2\npython train.py --a $A$B\n", [("a", "12")]),
    "eval-of-unread": ('eval "A=$1 python train.py --a $1 --b \\"$2\\""\n', [("a", "?"), ("b", "?")]),
    "same-in-both-branches": (
        "if a; then A=1; B=x; else A=1; B=y; fi\npython train.py --a 1 --b $B\n",
        [("a", "1"), ("b", "?")],
    ),
    "branch-that-leaves": ('A=1\nif [ -z "$1" ]; then A=2; exit 1; fi\npython train.py --a $A\n', [("a", "1")]),
    "branches-add-flags": (
        'A="--a 1"\nif x; then A="$A --b"; elif y; then A="$A --c"; fi\npython train.py $A\n',
        [("a", "1"), ("b", None), ("c", None)],
    ),
    "branches-add-elements": (
        'A=(--a 1)\nif x; then A+=(--b); else A+=(--c 2); fi\npython train.py "${A[@]}"\n',
        [("a", "1"), ("b", None), ("c", "2")],
    ),
    "script-called-by-path": ("./train.sh --x 1\nsrun ./no.sh\nnohup\npython train.py --a 1\n", [("a", "1")]),
    "computed-paths": (
        "D=$(dirname $(realpath $0))\nG=$(git rev-parse --show-toplevel)\n"
        "python train.py --a $D --b $(basename a/b.sh) --c $G/x\n",
        [("a", "/@"), ("b", "b.sh"), ("c", "/@/x")],
    ),
    "empty-command": ("A=\n$A\nX=$(date; date; date)\npython train.py --a $A$X\n", [("a", "?")]),
    "brace-range": ("python train.py --a {1..3} --b $'x'\n", [("a", "{1..3}"), ("b", "?")]),
    "sourced-nothing": ("source\nsource $X\npython train.py --a 1\n", [("a", "1")]),
    "paths-of-unread": (
        'python train.py --a $(dirname $X) --b $(cd "$X" && pwd) --c $(a; b; c)\n',
        [("a", "?"), ("b", "?"), ("c", "?")],
    ),
    "placeholders": (
        'M=<your model>\nD= <data folder>\npython train.py --a <A> --b $M/x --c "<名>" --d $D --e 1 <in >out\n',
        [("a", "?"), ("b", "?"), ("c", "?"), ("d", "?"), ("e", "1")],
    ),
    "positional-of-two": ("python train.py a b --c\n", [("c", None)]),
}


@pytest.mark.parametrize("case", VALUES)
def test_values(case: str) -> None:
    script, expected = VALUES[case]
    [launch] = launches({"run.sh": script})
    told = [(f.name, "?" if f.value is None and not f.literal else f.value) for f in launch.flags]
    assert told == expected


# A script that bash cannot parse: where its commands stand, their flags, and what of them is unread.
BROKEN: dict[str, tuple[str, list[tuple[int, list[str], int]]]] = {
    "bracket-that-is-open": ("X=(a\npython train.py --a 1\n", [(2, ["a"], 1)]),
    "bracket-that-is-lost": ("X={a)\npython train.py --a 1\n", [(2, ["a"], 0)]),
    "quote-that-is-open": ('python train.py --a "b\n\npython train.py --c 1\n', [(1, ["a"], 1), (3, ["c"], 1)]),
    "trailing-backslash": ("python train.py --a 1 \\", [(1, ["a"], 0)]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_rest_of_a_broken_script_is_read(case: str) -> None:
    script, expected = BROKEN[case]
    found = [(x.line, [flag.name for flag in x.flags], len(x.unread)) for x in launches({"run.sh": script})]
    assert found == expected


def test_the_engine_config_of_accelerate_is_a_config_of_the_launch() -> None:
    config = "deepspeed_config:\n  deepspeed_config_file: ds.json\n"
    files = {"run.sh": "accelerate launch --config_file c/a.yaml train.py\n", "c/a.yaml": config, "c/ds.json": "{}"}
    [launch] = launches(files)
    assert launch.configs == ("c/a.yaml", "c/ds.json")
    [launch] = launches({**files, "c/a.yaml": "mixed_precision: bf16\n"})
    assert launch.configs == ("c/a.yaml",)


# Documents: the text, and the line, folder and flags of each command of train.py.
DOCUMENTS: dict[str, tuple[str, list[tuple[int, list[str]]]]] = {
    "fence": ("Run:\n```bash\nX=2\npython train.py --a $X\n```\n", [(4, ["2"])]),
    "prompts": ("~~~\n$ cd a\n$ python ../train.py \\\n    --a 1\n~~~\n", [(3, ["1"])]),
    "cd-of-an-earlier-block": ("```\ncd no\n```\n\n```\npython ../train.py --a 1\n```\n", [(6, ["1"])]),
    "variables-of-an-earlier-block": ("```\nX=1\npython no.py\n```\n`python train.py --a $X`\n", [(5, ["1"])]),
    "line": ("- python train.py --a 1 \\\n    --b 2\n", [(1, ["1", "2"])]),
    "inline": ("First `pip install x`, then `torchrun train.py --a 1`.\n", [(1, ["1"])]),
    "second-program": ("`python train.py --a 1 --b python train.py --c 2`\n", [(1, ["1", "?"])]),
    "script-with-arguments": ("`bash go.sh 7`\n", [(1, ["7"])]),
    "nothing": ("train.py trains; `python eval.py` and `ls train.py` do not.\n", []),
    "code": ("```python\nimport train\nmodel = train.py\n```\n", []),
    "script-that-is-not-here": ("`bash none.sh 7`\n", []),
    "blocks-without-programs": ("```\nls\n```\n`python train.py --a 1`\n", [(4, ["1"])]),
    "script-that-asks-nothing": ("`bash own.sh 7`\n", []),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_commands_of_documents(case: str) -> None:
    text, expected = DOCUMENTS[case]
    scripts = {"go.sh": "python train.py --a $1\n", "own.sh": "python train.py --a 1\n"}
    files = {"README.md": text, "train.py": "", "eval.py": "", **scripts}
    found = Documents(Files(ROOT, files), sources(files), ("README.md",)).of("train.py")
    assert [(x.line, [flag.value or "?" for flag in x.flags]) for x in found] == expected


def test_what_is_a_document() -> None:
    paths = ["README", "a/readme.txt", "a/b.md", "x.rst", "Makefile", "a.txt", "b.py", "READMES"]
    assert [path for path in paths if is_document(path)] == paths[:5]


def test_flags_of_branches_are_told_apart() -> None:
    script = 'A="--a 1"\nif x; then A="$A --b"; fi\n[ -n "$X" ] && B=--c\npython train.py $A $B\n'
    [launch] = launches({"run.sh": script})
    assert [(f.name, f.maybe) for f in launch.flags] == [("a", False), ("b", True), ("c", True)]


def test_recursion_and_length_are_bounded() -> None:
    calls = {f"s{n}.sh": f"bash s{n + 1}.sh\n" for n in range(20)}
    assert launches({**calls, "s20.sh": "f() { f; }\nf\npython train.py\n"})[-1].path == "s20.sh"
    assert launches({"run.sh": "true\n" * 6000 + "python train.py\n"}) == ()


def test_flags_of_a_sourced_file_stand_there() -> None:
    files = {"base.sh": 'ARGS="--fp16 True"\n', "run.sh": ". ./base.sh\npython train.py $ARGS\n"}
    [launch] = launches(files)
    source = sources(files)("run.sh")
    assert source
    edits = set_flag(launch, source, "fp16", "False")
    assert edited(files["base.sh"], edits, "base.sh") == 'ARGS="--fp16 False"\n'
    assert set_flag(launch, source, "fp16", None) is None


def test_arguments_of_a_called_script_are_its_flags() -> None:
    files = {"a.sh": "bash b.sh --bf16 True\n", "b.sh": 'python train.py --lr 1 "$@"\n'}
    first, second = launches(files)
    assert [(f.name, f.value, f.path) for f in first.flags] == [("lr", "1", "b.sh"), ("bf16", "True", "a.sh")]
    assert (first.unread, second.unread) == ((), ("$@",))


HEREDOC = """\
OUT=logs
cat <<EOT > $OUT/ds.json
{
  "train_micro_batch_size_per_gpu": ${BATCH},
  "zero_optimization": {"stage": 2},
  "fp16": {
    "enabled": true,
    "loss_scale": 0
  }
}
EOT
python train.py --deepspeed $OUT/ds.json
"""


def test_heredoc_json() -> None:
    [launch] = launches({"run.sh": HEREDOC})
    [made] = launch.heredocs
    assert made.name == "logs/ds.json"
    source = sources({"run.sh": HEREDOC})("run.sh")
    assert source
    doc = read_json(source, made.start, made.end)
    assert doc
    assert doc.get("train_micro_batch_size_per_gpu") == "${BATCH}"
    assert edited(HEREDOC, set_json(doc, ("fp16", "enabled"), False)) == HEREDOC.replace("true", "false")
    added = HEREDOC.replace("  }\n}\nEOT", '  },\n  "bf16": {\n    "enabled": true\n  }\n}\nEOT')
    assert edited(HEREDOC, set_json(doc, ("bf16", "enabled"), True)) == added


@pytest.mark.parametrize(
    "line",
    [
        "cat > ds.json <<EOF\n{}\nEOF",
        "cat <<'EOF' | tee ds.json\n{}\nEOF",
        "tee ds.json <<-EOF >/dev/null\n\t{}\n\tEOF",
        "echo '{}' > ds.json",
    ],
)
def test_ways_to_write_a_config(line: str) -> None:
    script = f"{line}\nexport DS=ds.json\npython train.py\n"
    [launch] = launches({"run.sh": script})
    [made] = launch.heredocs
    assert (made.name, script[made.start : made.end].strip()) == ("ds.json", "{}")


JSON: dict[str, tuple[str, Sequence[str], Value, str | None]] = {
    "scalar": ('{"fp16": {"enabled": true}}', ("fp16", "enabled"), False, '{"fp16": {"enabled": false}}'),
    "same": ('{ "a" :1 }', ("a",), 1, '{ "a" :1 }'),
    "not-the-same-type": ('{"a": 1}', ("a",), True, '{"a": true}'),
    "comments": (
        '{\n  // precision\n  "fp16": true, /* old */\n  "x": "auto" # last\n}\n',
        ("bf16",),
        True,
        '{\n  // precision\n  "fp16": true, /* old */\n  "x": "auto", # last\n  "bf16": true\n}\n',
    ),
    "trailing-commas": ('{\n\t"a": 1,\n}\n', ("b",), "auto", '{\n\t"a": 1,\n\t"b": "auto",\n}\n'),
    "section": (
        '{\n    "a": {\n        "b": 1\n    }\n}',
        ("bf16", "enabled"),
        "auto",
        '{\n    "a": {\n        "b": 1\n    },\n    "bf16": {\n        "enabled": "auto"\n    }\n}',
    ),
    "inside-one-line": ('{\n  "a": {"b": 1}\n}', ("a", "c"), 2, '{\n  "a": {"b": 1, "c": 2}\n}'),
    "compact": ('{"a":1,"b":2}', ("c", "d"), None, '{"a":1,"b":2,"c":{"d": null}}'),
    "empty": ("{}\n", ("a",), 1, '{\n    "a": 1\n}\n'),
    "empty-section": ('{\n  "a": {}\n}', ("a", "b"), 1, '{\n  "a": {\n    "b": 1\n  }\n}'),
    "crlf": ('{\r\n  "a": 1\r\n}\r\n', ("b",), 2, '{\r\n  "a": 1,\r\n  "b": 2\r\n}\r\n'),
    "last-of-equal-keys": ('{"a": 1, "a": 2}', ("a",), 3, '{"a": 1, "a": 3}'),
    "broken-escape": ('{"\\u12": "x", "a": 1}', ("a",), 2, '{"\\u12": "x", "a": 2}'),
    "non-ascii": ('{"名": "值", "a": 1}', ("a",), 2, '{"名": "值", "a": 2}'),
    "through-a-scalar": ('{"fp16": "auto"}', ("fp16", "enabled"), True, None),
    "through-a-list": ('{"a": [{"b": 1}]}', ("a", "b"), 2, None),
}


@pytest.mark.parametrize("case", JSON)
def test_json_edit(case: str) -> None:
    before, pointer, value, after = JSON[case]
    source = decode("ds.json", before.encode(), python=False)
    doc = read_json(source)
    assert doc
    edits = set_json(doc, pointer, value)
    assert (after is None) == (edits is None)
    if after is not None:
        assert source.encode(edited(before, edits, "ds.json")) == after.encode()
        again = read_json(decode("ds.json", after.encode(), python=False))
        assert again
        assert (again.get(*pointer), set_json(again, pointer, value)) == (value, ())


@pytest.mark.parametrize(
    "text", ["", "x: 1", "{", '{"a" 1}', '{"a": 1} {}', "{a: 1}", '{"a": [1 2]}', "[" * 300, '{"a": }']
)
def test_not_json(text: str) -> None:
    assert read_json(decode("ds.json", text.encode(), python=False)) is None


def test_json_keys_are_renamed_and_removed() -> None:
    text = '{\n  "a": 1,\n  "fp16": {"enabled": true},\n  "z": 2 // why\n}\n'
    doc = read_json(decode("ds.json", text.encode(), python=False))
    assert doc
    assert doc.get("no", "such", default=7) == 7
    assert edited(text, rename_json(doc, ("fp16",), "bf16"), "ds.json") == text.replace("fp16", "bf16")
    assert edited(text, remove_json(doc, ("fp16",)), "ds.json") == text.replace('  "fp16": {"enabled": true},\n', "")
    assert edited(text, remove_json(doc, ("z",)), "ds.json") == text.replace(',\n  "z": 2', "")
    assert edited(text, remove_json(doc, ("fp16", "enabled")), "ds.json") == text.replace('"enabled": true', "")
    assert rename_json(doc, ("a",), "z") is None
    assert rename_json(doc, ("b",), "c") is None
    assert remove_json(doc, ("b",)) is None
    commented = read_json(decode("ds.json", b'{"a": 1, // of a\n "b": 2}', python=False))
    assert commented
    assert remove_json(commented, ("a",)) is None


YAML: dict[str, tuple[str, Sequence[str], Scalar, str | None]] = {
    "scalar": (
        "mixed_precision: fp16  # half\nx: 1\n",
        ("mixed_precision",),
        "bf16",
        "mixed_precision: bf16  # half\nx: 1\n",
    ),
    "same": ("bf16: yes\n", ("bf16",), True, "bf16: yes\n"),
    "text-is-not-a-number": ("lr: 1e-4\n", ("lr",), 0.0001, "lr: 0.0001\n"),
    "quotes": ("a: 'fp16'\nb: \"x\"\n", ("a",), "bf16", "a: 'bf16'\nb: \"x\"\n"),
    "quotes-go-with-a-bool": ("a: 'no'\n", ("a",), True, "a: true\n"),
    "text-that-looks-like-a-bool": ("mixed_precision: fp16\n", ("mixed_precision",), "no", 'mixed_precision: "no"\n'),
    "nested": (
        "t:\n  # note\n  fp16: true\n  l: [1, 2]\n",
        ("t", "fp16"),
        False,
        "t:\n  # note\n  fp16: false\n  l: [1, 2]\n",
    ),
    "flow": ("t: {fp16: true, l: 1}\n", ("t", "fp16"), False, "t: {fp16: false, l: 1}\n"),
    "anchor-kept": ("a: &p fp16\nb: 1\n", ("a",), "bf16", "a: &p bf16\nb: 1\n"),
    "alias": ("a: &p fp16\nb: *p\n", ("b",), "bf16", "a: &p fp16\nb: bf16\n"),
    "merged": (
        "base: &b\n  fp16: true\nt:\n  <<: *b\n  x: 1\n",
        ("t", "fp16"),
        False,
        "base: &b\n  fp16: true\nt:\n  <<: *b\n  x: 1\n  fp16: false\n",
    ),
    "empty-value": ("a:\n# note\nb: 1\n", ("a",), "x", "a: x\n# note\nb: 1\n"),
    "add": ("a: 1 # one\nl:\n- 1\n", ("b",), True, "a: 1 # one\nb: true\nl:\n- 1\n"),
    "add-without-newline": ("a: 1", ("b",), None, "a: 1\nb: null"),
    "add-first": ("# head\nl:\n- 1\n", ("b",), 2, "# head\nb: 2\nl:\n- 1\n"),
    "add-nested": ("t:\n    a: 1\nz: 1\n", ("t", "b"), 2, "t:\n    a: 1\n    b: 2\nz: 1\n"),
    "crlf": ("a: 1\r\nb: 2\r\n", ("c",), 3, "a: 1\r\nb: 2\r\nc: 3\r\n"),
    "documents": ("a: 1\n---\na: 2\n", ("a",), 3, "a: 3\n---\na: 2\n"),
    "merge-of-two": (
        "x: &x {a: 1}\ny: &y {b: 2}\nt:\n  <<: [*x, *y]\n  c: 3\n",
        ("t", "c"),
        4,
        "x: &x {a: 1}\ny: &y {b: 2}\nt:\n  <<: [*x, *y]\n  c: 4\n",
    ),
    # Left alone.
    "anchor-of-others": ("a: &p fp16\nb: *p\n", ("a",), "bf16", None),
    "section-is-an-alias": ("a: &p\n  x: 1\nb: *p\n", ("b", "x"), 2, None),
    "block-text": ("a: |\n  fp16\n", ("a",), "bf16", None),
    "list": ("a:\n- 1\n", ("a",), 1, None),
    "missing-section": ("a: 1\n", ("t", "b"), 1, None),
    "add-to-braces": ("t: {a: 1}\n", ("t", "b"), 1, None),
    "add-to-list-item": ("t: 1\nu: {}\n", ("u", "b"), 1, None),
}


@pytest.mark.parametrize("case", YAML)
def test_yaml_edit(case: str) -> None:
    before, keys, value, after = YAML[case]
    source = decode("a.yaml", before.encode(), python=False)
    doc = read_yaml(source)
    assert doc
    edits = set_yaml(doc, keys, value)
    assert (after is None) == (edits is None)
    if after is not None:
        assert source.encode(edited(before, edits, "a.yaml")) == after.encode()
        again = read_yaml(decode("a.yaml", after.encode(), python=False))
        assert again
        assert (again.get(*keys), set_yaml(again, keys, value)) == (value, ())


def test_yaml_values() -> None:
    text = "i: 1_0\nf: 1.5\nt: On\nn: ~\ns: 1e-5\nq: 'on'\nm:\n  <<: [{a: 1}, {b: 2}]\n"
    doc = read_yaml(decode("a.yaml", text.encode(), python=False))
    assert doc
    assert [doc.get(key) for key in "iftnsq"] == [10, 1.5, True, None, "1e-5", "on"]
    assert (doc.get("m", "b"), doc.get("m"), doc.get("x", "y", default=3)) == (2, None, 3)
    assert (doc.has("m", "a"), doc.has("m", "c")) == (True, False)


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [", "a: b: c\n", "\t- x: {"])
def test_not_a_yaml_mapping(text: str) -> None:
    assert read_yaml(decode("a.yaml", text.encode(), python=False)) is None


def test_grammars_are_imported_on_use() -> None:
    modules = ", ".join(f"speedmigrate.launch.{name}" for name in ("find", "flags", "jsonfile", "yamlfile"))
    code = f"import sys, {modules}; print(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not re.search(r"'(tree_sitter|ruamel)", done.stdout)
