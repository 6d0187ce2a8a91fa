"""What the launch hop says: where settings live, which commands start a run, and which value of a setting wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain import launch
from speedmigrate.chain.fact import Fact
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.settings import Setting, engine, winning
from tests.migrate.test_chain_optimizer import LOOP, MODEL, TRAINER, entry_of

PLAIN = MODEL + LOOP
PARSED = f"""{TRAINER}
parser = transformers.HfArgumentParser((TrainingArguments,))
args, = parser.parse_args_into_dataclasses()
Trainer(model, args).train()
"""
ARGPARSE = f"""import argparse
{MODEL}parser = argparse.ArgumentParser()
parser.add_argument("--lr", "--rate", type=float, default=1e-4)
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--no-pad", dest="pad_to_max_length", action="store_false")
parser.add_argument("--max_length", default=compute())
args = parser.parse_args()
{LOOP}"""
FIELDS = f"""{TRAINER}@dataclass
class D:
    half: bool = True
d, = transformers.HfArgumentParser((D,)).parse_args_into_dataclasses()
"""
ENGINE = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}'
FLAGS = "--lr 1 --bf16 True"


def place(root: Path, files: dict[str, str]) -> Fact:
    return next(iter(launch.facts(entry_of(root, files))))


# The files beside train.py, and the word.
PLACES: dict[str, tuple[dict[str, str], str | None]] = {
    "script": ({"run.sh": f"python train.py {FLAGS}\n"}, "sh"),
    "script-of-a-wrapper": (
        {"run.sh": f"torchrun wrap.py {FLAGS}\n", "wrap.py": "from train import main\nmain()\n"},
        "sh",
    ),
    "engine": ({"run.sh": "deepspeed train.py --deepspeed ds.json\n", "ds.json": ENGINE}, "sh+json"),
    "engine-that-is-not-here": ({"run.sh": "deepspeed train.py --deepspeed conf/ds.json\n"}, "sh+json"),
    "engine-in-a-variable": ({"run.sh": "deepspeed train.py --deepspeed $DS --lr 1\n"}, "sh"),
    "heredoc": ({"run.sh": "cat <<E > ds.json\n{}\nE\npython train.py --ds ds.json\n"}, "sh+json"),
    "data-is-no-config": ({"run.sh": "python train.py --data d.json\n", "d.json": '[{"text": "a"}]'}, "sh"),
    "accelerate": (
        {
            "run.sh": "accelerate launch --config_file acc.yaml train.py --lr 1\n",
            "acc.yaml": "mixed_precision: bf16\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n",
            "ds.json": ENGINE,
        },
        "sh+json+yaml",
    ),
    "yaml-names-the-engine": (
        {"run.sh": "python train.py args.yaml\n", "args.yaml": "lr: 1\nds: ds.json\nx: no.json\n", "ds.json": ENGINE},
        "sh+json+yaml",
    ),
    "list-of-data": ({"run.sh": "python train.py --data d.yaml\n", "d.yaml": "META:\n- a.json\n"}, "sh"),
    "readme": ({"README.md": f"Run\n```bash\n$ python train.py {FLAGS}\n```\n"}, "README"),
    "readme-of-a-folder": ({"README.md": "```\ncd a\n```\nthen\n```\npython b.py --lr 1\n```\n", "a/b.py": ""}, "code"),
    "inline-code": ({"docs/use.md": f"Type `python train.py {FLAGS}` to start.\n"}, "README"),
    "makefile": ({"Makefile": f"train:\n\tpython train.py {FLAGS}\n"}, "README"),
    "readme-and-engine": (
        {"README.md": "```\ndeepspeed train.py --lr 1 --deepspeed ds.json\n```\n", "ds.json": ENGINE},
        "json+README",
    ),
    "script-told-by-the-readme": (
        {
            "README.md": "```\nbash run.sh conf.sh\n```\n",
            "run.sh": "source $1\npython train.py $OPTIONS\n",
            "conf.sh": 'OPTIONS="--deepspeed ds.json"\n',
            "ds.json": ENGINE,
        },
        "sh+json",
    ),
    # Not a setting, or nothing to know.
    "nothing": ({}, "code"),
    "names-only": ({"README.md": "```\npython train.py --out x\n```\n"}, "code"),
    "prose": ({"README.md": "python train.py is the script. See `python other.py --lr 1`.\n", "other.py": ""}, "code"),
    "no-flags": ({"run.sh": "CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node 8 train.py\n"}, "code"),
    "two-in-a-line": ({"README.md": "`torchrun train.py OR python -m torch.distributed.run --n 2 train.py`\n"}, "code"),
}


@pytest.mark.parametrize("case", PLACES)
def test_place(tmp_path: Path, case: str) -> None:
    files, word = PLACES[case]
    main = f"def main():\n    pass\nif __name__ == '__main__':\n    main()\n{PLAIN}"
    assert place(tmp_path, {"train.py": main, **files}).value == word


# Code that names its config, and the word.
CODE: dict[str, tuple[str, dict[str, str], str]] = {
    "literal": ("import yaml\nargs = yaml.safe_load(open('a.yaml'))\n", {"a.yaml": "lr: 1\n"}, "yaml"),
    "omegaconf": ("from omegaconf import OmegaConf\nargs = OmegaConf.load('a.yaml')\n", {"a.yaml": "lr: 1\n"}, "yaml"),
    "pattern": (
        "from transformers.integrations import HfDeepSpeedConfig\nargs = {}\n"
        "args['p'] = f'conf/ds_{stage}.json'\nHfDeepSpeedConfig(args['p'])\n",
        {"conf/ds_1.json": ENGINE},
        "json",
    ),
    "default-of-a-flag": (
        "import argparse, deepspeed\np = argparse.ArgumentParser()\n"
        "p.add_argument('--deepspeed_config', default='ds.json')\nargs = p.parse_args()\n"
        "deepspeed.initialize(args=args)\n",
        {"ds.json": ENGINE},
        "json",
    ),
    "file-of-a-flag": (
        "import argparse, json\np = argparse.ArgumentParser()\np.add_argument('--c', default='a.json')\n"
        "args = p.parse_args()\nargs = json.load(open(args.c))\n",
        {"a.json": '{"learning_rate": 1}'},
        "json",
    ),
    "parsed-file": (
        "import transformers\np = transformers.HfArgumentParser((object,))\np.parse_json_file('a.json')\n",
        {"a.json": '{"learning_rate": 1}'},
        "json",
    ),
    "hydra": (
        "import hydra\n@hydra.main(config_path='conf', config_name='c')\ndef main(cfg):\n    pass\nmain()\n",
        {"conf/c.yaml": "lr: 1\n"},
        "yaml",
    ),
    "hydra-without-words": (
        "import hydra\n@hydra.main()\ndef main(cfg):\n    pass\nmain()\n",
        {"config.yaml": "lr: 1\n"},
        "yaml",
    ),
    # Not settings of the run.
    "hydra-without-a-file": (
        "import hydra\n@hydra.main(config_name=name)\ndef main(cfg):\n    pass\nmain()\n",
        {},
        "code",
    ),
    "stored-elsewhere": (
        "import yaml\nargs = {}\nargs['q'] = 'a.yaml'\nargs['p'] = find()\nargs = yaml.safe_load(args['p'])\n",
        {"a.yaml": "lr: 1\n"},
        "code",
    ),
    "no-such-flag": (
        "import deepspeed\nargs = parse()\ndeepspeed.initialize(args=args)\n",
        {"ds.json": ENGINE},
        "code",
    ),
    "no-config-of-a-flag": (
        "import argparse, yaml\np = argparse.ArgumentParser()\np.add_argument('--c')\n"
        "p.add_argument('--d', default='a.txt')\n"
        "args = p.parse_args()\nread = yaml.safe_load\nread(open(args.c)), read(open(args.d)), read(open())\n",
        {"a.txt": "lr: 1\n"},
        "code",
    ),
    "data": ("import json\ndata = json.load(open('d.json'))\n", {"d.json": '{"a": [1]}'}, "code"),
    "of-a-library": (
        "import tower\n",
        {"tower.py": "import yaml\nc = yaml.load(open('a.yaml'))\n", "a.yaml": "lr: 1\n"},
        "code",
    ),
    "computed": ("import yaml\nargs = yaml.safe_load(open(find()))\n", {"a.yaml": "lr: 1\n"}, "code"),
    "absent": ("import yaml\nargs = yaml.safe_load(open('b.yaml'))\n", {"a.yaml": "lr: 1\n"}, "code"),
}


@pytest.mark.parametrize("case", CODE)
def test_place_of_what_the_code_names(tmp_path: Path, case: str) -> None:
    code, files, word = CODE[case]
    assert place(tmp_path, {"train.py": code + PLAIN, **files}).value == word


def test_a_file_that_nothing_starts_is_unknown(tmp_path: Path) -> None:
    fact = place(tmp_path, {"train.py": "def run(loss):\n    loss.backward()\n"})
    assert (fact.value, [hop.line for hop in fact.unknown]) == (None, [1])


def test_a_command_that_may_start_another_file_is_unknown(tmp_path: Path) -> None:
    files = {"a/train.py": PLAIN, "b/train.py": "", "run.sh": "\npython $X/train.py --lr 1\n"}
    fact = next(iter(launch.facts(entry_of(tmp_path, files, "a/train.py"))))
    assert (fact.value, [(hop.path, hop.line) for hop in fact.unknown]) == (None, [("run.sh", 2)])


def test_commands(tmp_path: Path) -> None:
    files = {
        "train.py": f'"""Train.\n\n    python train.py --lr 3\n"""\n# torchrun train.py \\\n#   --lr 4\n{PLAIN}',
        "run.sh": "deepspeed train.py --out x --bf16 $EXTRA\n",
        "README.md": "# Use\n1. python train.py --lr 2\n",
        "sweep.py": (
            "import os, subprocess, sys\nfor lr in (1, 2):\n"
            "    subprocess.run([sys.executable, 'train.py', '--lr', '5', str(lr)])\n"
            "    os.system(f'python train.py --lr {lr} ' + '--fp16')\n    os.system(name)\n    subprocess.run([])\n"
        ),
    }
    facts = [fact for fact in launch.facts(entry_of(tmp_path, files)) if fact.name == "launch.command"]
    assert [
        (f.value, f.detail, [(h.path, h.line) for h in f.evidence], [h.what for h in f.unknown]) for f in facts
    ] == [
        ("deepspeed", "--bf16", [("run.sh", 1)], []),
        ("python", "--lr 2", [("README.md", 2)], []),
        ("python", "--lr 3", [("train.py", 3)], []),
        ("torchrun", "--lr 4", [("train.py", 5)], []),
        ("python", "--lr 5", [("sweep.py", 3)], ["`str(lr)` may hold flags"]),
        ("python", "--fp16", [("sweep.py", 4)], []),
    ]


def test_documents_are_no_launches(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, {"train.py": PLAIN, "README.md": "```\npython train.py --lr 2\n```\n"})
    assert entry.launches == ()
    assert [command.path for command in launch.commands(entry)] == ["README.md"]


def said(entry: EntryFacts, name: str) -> tuple[object, str, int, str] | None:
    """Return the value, place and source of a setting in the first command."""
    commands = launch.commands(entry)
    return _told(winning(entry, commands[0] if commands else None, name))


def _told(setting: Setting | None) -> tuple[object, str, int, str] | None:
    if setting is None:
        return None
    return setting.value if setting.known else "?", setting.place.path, setting.place.line, setting.source


# Arguments of a Trainer: the code after its imports, other files, the name, what wins.
WINS: dict[str, tuple[str, dict[str, str], str, tuple[object, str, int, str] | None]] = {
    "command": (PARSED, {"run.sh": "python train.py --bf16 True\n"}, "bf16", ("True", "run.sh", 1, "command")),
    "switch": (PARSED, {"run.sh": "python train.py --bf16\n"}, "bf16", (True, "run.sh", 1, "command")),
    "unread": (PARSED, {"run.sh": "python train.py --bf16 $X\n"}, "bf16", ("?", "run.sh", 1, "command")),
    "some-branches": (
        PARSED, {"run.sh": "[ -n x ] && A=--bf16\npython train.py $A\n"}, "bf16", ("?", "run.sh", 1, "command"),
    ),
    "set-defaults": (
        PARSED.replace("args,", "parser.set_defaults(bf16=True)\nargs,"),
        {}, "bf16", (True, "train.py", 0, "set_defaults"),
    ),
    "computed-set-defaults": (
        PARSED.replace("args,", "parser.set_defaults(bf16=f())\nargs,"),
        {}, "bf16", ("?", "train.py", 0, "set_defaults"),
    ),
    "command-over-set-defaults": (
        PARSED.replace("args,", "parser.set_defaults(bf16=True)\nargs,"),
        {"run.sh": "python train.py --bf16 False\n"}, "bf16", ("False", "run.sh", 1, "command"),
    ),
    "library": (PARSED, {}, "bf16", (False, "train.py", 0, "library")),
    "library-optim": (PARSED, {}, "optim", ("adamw_torch", "train.py", 0, "library")),
    "nowhere": (PARSED, {}, "no_such", None),
    "code-over-command": (
        f"{TRAINER}Trainer(model, TrainingArguments('o', bf16=True)).train()\n",
        {"run.sh": "python train.py --bf16 False\n"}, "bf16", (True, "train.py", 0, "code"),
    ),
    "spread": (
        f"{TRAINER}Trainer(model, TrainingArguments('o', **more)).train()\n", {}, "bf16", ("?", "train.py", 0, "code"),
    ),
    "computed": (
        f"{TRAINER}Trainer(model, TrainingArguments('o', bf16=f())).train()\n",
        {}, "bf16", ("?", "train.py", 0, "code"),
    ),
    "two-trainers": (
        f"{TRAINER}Trainer(model, TrainingArguments('o', bf16=True)).train()\n"
        "Trainer(model, TrainingArguments('o')).train()\n",
        {}, "bf16", ("?", "train.py", 0, "code"),
    ),
    "of-a-flag": (
        f"{ARGPARSE}{TRAINER}Trainer(model, TrainingArguments('o', fp16=args.fp16)).train()\n",
        {"run.sh": "python train.py --fp16\n"}, "fp16", (True, "run.sh", 1, "command"),
    ),
    "file": (
        PARSED.replace("parse_args_into_dataclasses()", "parse_json_file('a.json')"),
        {"run.sh": "python train.py a.json\n", "a.json": '{\n"bf16": true}'}, "bf16", (True, "a.json", 2, "file"),
    ),
    "yaml-file": (
        PARSED.replace("parse_args_into_dataclasses()", "parse_yaml_file('a.yaml')"),
        {"run.sh": "python train.py a.yaml\n", "a.yaml": "x: 1\nbf16: true\n"}, "bf16", (True, "a.yaml", 2, "file"),
    ),
    "file-that-is-not-parsed": (
        PARSED, {"run.sh": "python train.py --c a.json\n", "a.json": '{"bf16": true}'}, "bf16",
        (False, "train.py", 0, "library"),
    ),
    "file-of-an-accelerate-launch": (
        PARSED.replace("parse_args_into_dataclasses()", "parse_yaml_file('b.yaml')"),
        {
            "run.sh": "accelerate launch --config_file a.yaml train.py c.json b.yaml\n",
            "a.yaml": "bf16: false\n", "b.yaml": "bf16: true\n", "c.json": '{"bf16": 1}',
        },
        "bf16", (True, "b.yaml", 1, "file"),
    ),
    "section-of-a-file": (
        PARSED.replace("parse_args_into_dataclasses()", "parse_json_file('a.json')"),
        {"run.sh": "python train.py a.json\n", "a.json": ENGINE}, "bf16", (False, "train.py", 0, "library"),
    ),
    "default-of-a-subclass": (
        PARSED.replace("(TrainingArguments,)", "(A,)").replace(
            "parser =", "class A(TrainingArguments):\n    optim: str = field(default='adamw_hf')\nparser ="
        ),
        {}, "optim", ("adamw_hf", "train.py", 0, "default"),
    ),
    "set-defaults-of-others": (
        PARSED.replace("args,", "parser.set_defaults(fp16=True)\nargs,"), {}, "bf16", (False, "train.py", 0, "library"),
    ),
    "of-a-field": (
        FIELDS + "Trainer(model, TrainingArguments('o', bf16=d.half)).train()\n",
        {}, "bf16", (True, "train.py", 0, "default"),
    ),
    "of-a-field-that-a-flag-sets": (
        FIELDS + "Trainer(model, TrainingArguments('o', bf16=d.half)).train()\n",
        {"run.sh": "python train.py --half False\n"}, "bf16", ("False", "run.sh", 1, "command"),
    ),
    # Without a Trainer.
    "argparse": (ARGPARSE, {"run.sh": "python train.py --rate 3\n"}, "lr", ("3", "run.sh", 1, "command")),
    "argparse-default": (ARGPARSE, {}, "lr", (1e-4, "train.py", 0, "default")),
    "switch-default": (ARGPARSE, {}, "fp16", (False, "train.py", 0, "default")),
    "negated": (
        ARGPARSE, {"run.sh": "python train.py --no-pad\n"}, "pad_to_max_length", (False, "run.sh", 1, "command"),
    ),
    "negated-default": (ARGPARSE, {}, "pad_to_max_length", (True, "train.py", 0, "default")),
    "computed-default": (ARGPARSE, {}, "max_length", ("?", "train.py", 0, "default")),
    "accelerate-flag": (
        PLAIN, {"run.sh": "accelerate launch --mixed_precision fp16 train.py\n"}, "mixed_precision",
        ("fp16", "run.sh", 1, "command"),
    ),
    "accelerate-file": (
        PLAIN,
        {"run.sh": "accelerate launch --config_file a.yaml train.py\n", "a.yaml": "x: 1\nmixed_precision: bf16\n"},
        "mixed_precision", ("bf16", "a.yaml", 2, "file"),
    ),
    "accelerate-file-without-it": (
        PLAIN, {"run.sh": "accelerate launch --config_file a.yaml train.py b.yaml\n", "a.yaml": "x: 1\n", "b.yaml": ""},
        "mixed_precision", None,
    ),
    "accelerate-file-that-is-none": (
        PLAIN, {"run.sh": "accelerate launch --config_file $A train.py\n"}, "mixed_precision", None,
    ),
    "accelerate-file-that-is-broken": (
        PLAIN,
        {"run.sh": "accelerate launch --config_file a.yaml train.py\n", "a.yaml": "mixed_precision: [\n"},
        "mixed_precision", None,
    ),
    "accelerate-without-one": (PLAIN, {"run.sh": "accelerate launch train.py\n"}, "mixed_precision", None),
    "no-launch": (PLAIN, {}, "mixed_precision", None),
    "flag-of-nobody": (PLAIN, {"run.sh": "python train.py --bf16\n"}, "bf16", (True, "run.sh", 1, "command")),
}  # fmt: skip


@pytest.mark.parametrize("case", WINS)
def test_winning(tmp_path: Path, case: str) -> None:
    code, files, name, expected = WINS[case]
    found = said(entry_of(tmp_path, {"train.py": code, **files}), name)
    if expected is not None and found is not None and expected[2] == 0:
        found = (*found[:2], 0, found[3])
    assert found == expected


def test_dataclass_fields_that_a_parser_fills(tmp_path: Path) -> None:
    code = f"""from dataclasses import dataclass, field
import transformers
@dataclass
class Base:
    max_length: int = 512
@dataclass
class Data(Base):
    load_in_8bit: bool = field(default=False)
    other: int = field(default_factory=make)
args, = transformers.HfArgumentParser((Data,)).parse_args_into_dataclasses()
{PLAIN}"""
    entry = entry_of(tmp_path, {"train.py": code})
    assert [said(entry, name) for name in ("max_length", "load_in_8bit", "other")] == [
        (512, "train.py", 5, "default"),
        (False, "train.py", 8, "default"),
        None,
    ]


def test_auto_of_an_engine_is_what_the_arguments_say(tmp_path: Path) -> None:
    files = {"run.sh": "deepspeed train.py --deepspeed ds.json --bf16 True\n", "ds.json": ENGINE}
    entry = entry_of(tmp_path, {"train.py": PARSED, **files})
    [command] = entry.launches
    assert _told(engine(entry, command, "bf16", "enabled")) == ("True", "run.sh", 1, "command")
    assert _told(engine(entry, command, "zero_optimization", "stage")) == (2, "ds.json", 1, "file")
    assert engine(entry, command, "optimizer", "type") is None


def test_settings_of_several_commands_are_told_once_a_value(tmp_path: Path) -> None:
    files = {
        "a.sh": "python train.py --bf16 True\n",
        "b.sh": "python train.py --bf16 True\npython train.py --bf16 $B\n",
    }
    facts = [
        fact for fact in launch.facts(entry_of(tmp_path, {"train.py": PARSED, **files})) if fact.name == "launch.flag"
    ]
    told = [(f.value, f.detail, [f"{h.path}:{h.line}" for h in (*f.evidence, *f.unknown)]) for f in facts]
    assert told[:2] == [("True", "bf16, command", ["a.sh:1", "b.sh:1"]), (None, "bf16, command", ["b.sh:2"])]
