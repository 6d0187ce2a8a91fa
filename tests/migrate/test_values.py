"""What the value facts follow, each on the smallest repository that has the shape."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from speedmigrate.facts.entry import EntryFacts, entry_facts
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options
from speedmigrate.target import Target

RUNNER = """
    class Runner:
        def train(self):
            self.loss.backward()
"""
REGISTRY = """
    class Registry:
        tables = {"runner": {}}

        @classmethod
        def register(cls, name):
            def wrap(target):
                cls.tables["runner"][name] = target
                return target

            return wrap

        @classmethod
        def get(cls, name):
            return cls.tables["runner"].get(name, None)
"""


def entry(root: Path, **files: str) -> EntryFacts:
    for name, text in files.items():
        (root / f"{name}.py").write_text(textwrap.dedent(text))
    return entry_facts(Project(root), "train.py", Target(), Options())


def reached(facts: EntryFacts) -> set[str]:
    return {name for _, node, _ in facts.scopes if (name := getattr(node, "name", ""))}


@pytest.mark.parametrize(
    "lookup",
    [
        "import runners\ngetattr(runners, args.name)().train()",
        "import importlib\nkind = getattr(importlib.import_module('runners'), args.name)\nkind().train()",
        "from runners import Runner\nglobals()[args.name]().train()",
        "from runners import Runner\nTABLE = {'a': Runner}\nTABLE[args.name]().train()",
        "from runners import Runner\nTABLE = {'a': Runner}\nTABLE.get(args.name)().train()",
        "from runners import Runner\nTABLE = {}\nTABLE['a'] = Runner\nTABLE[args.name]().train()",
    ],
)
def test_a_class_that_a_name_made_at_run_time_picks(tmp_path: Path, lookup: str) -> None:
    train = f"import argparse\nargs = argparse.ArgumentParser().parse_args()\n{lookup}\n"
    assert "train" in reached(entry(tmp_path, runners=RUNNER, train=train))


def test_a_class_that_a_decorator_registers(tmp_path: Path) -> None:
    runners = "from registry import Registry\n@Registry.register('base')\n" + textwrap.dedent(RUNNER)
    train = "from registry import Registry\nimport runners\nRegistry.get(config.name)().train()\n"
    facts = entry(tmp_path, registry=REGISTRY, runners=runners, train=train)
    assert facts.trains
    assert "train" in reached(facts)


def test_a_key_that_is_known_picks_its_class_alone(tmp_path: Path) -> None:
    runners = "from registry import Registry\n@Registry.register('other')\n" + textwrap.dedent(RUNNER)
    train = "from registry import Registry\nimport runners\nRegistry.get('base')().train()\n"
    assert not entry(tmp_path, registry=REGISTRY, runners=runners, train=train).trains


def test_a_partial_gives_its_arguments_to_the_function(tmp_path: Path) -> None:
    train = """
        from functools import partial

        def tokenize(limit, row, fixed=False):
            return row[:limit]

        rows.map(partial(tokenize, 7))
        loss.backward()
        """
    facts = entry(tmp_path, train=train)
    frames = [frame for _, node, frame in facts.scopes if getattr(node, "name", "") == "tokenize"]
    assert [(e.text if (e := facts.values.argument(frame, name)) else None) for frame in frames if frame
            for name in ("limit", "row", "fixed")] == ["7", None, "False"]  # fmt: skip


def test_methods_that_torch_calls_are_part_of_the_run(tmp_path: Path) -> None:
    train = """
        import torch

        class Data(torch.utils.data.Dataset):
            def __getitem__(self, index):
                return pad(index)

        class Net(torch.nn.Module):
            def forward(self, x):
                return head(x)

        def pad(x): return x
        def head(x): return x
        def unused(x): return x

        for batch in torch.utils.data.DataLoader(Data()):
            Net()(batch).backward()
        """
    assert reached(entry(tmp_path, train=train)) == {"__getitem__", "pad", "forward", "head"}


def test_recursion_ends(tmp_path: Path) -> None:
    train = """
        def walk(tree, depth):
            left = walk(tree[0], depth + 1)
            right = walk(tree[1], depth + 1)
            return left or right or walk(left, depth) or walk(right, depth)

        walk(tree, 0).backward()
        """
    assert entry(tmp_path, train=train).trains


@pytest.mark.parametrize(
    "wrapped",
    [
        "engine, _, _, _ = deepspeed.initialize(model=Net())\nengine(batch).backward()",
        "net = accelerate.Accelerator().prepare(Net())\nnet(batch).backward()",
        "net, data = accelerate.Accelerator().prepare(Net(), batch)\nnet(data).backward()",
        "DistributedDataParallel(torch.compile(Net()))(batch).backward()",
        "agent = Agent(Net())\nagent.engine(batch).backward()",
    ],
)
def test_a_wrapped_model_is_called(tmp_path: Path, wrapped: str) -> None:
    train = """
        import accelerate, deepspeed, torch
        from torch.nn.parallel import DistributedDataParallel

        class Net(torch.nn.Module):
            def forward(self, x):
                return x

        class Agent:
            def __init__(self, net):
                self.engine, self.optimizer, _, _ = deepspeed.initialize(model=net)

        """
    assert "forward" in reached(entry(tmp_path, train=textwrap.dedent(train) + wrapped))


def test_reading_a_property_runs_it(tmp_path: Path) -> None:
    train = """
        class Base:
            @property
            def loaders(self):
                return build(self)

        class Runner(Base):
            def train(self):
                for batch in self.loaders:
                    batch.backward()

            @property
            def unread(self):
                return other(self)

        def build(runner): return []
        def other(runner): return []
        Runner().train()
        """
    assert reached(entry(tmp_path, train=train)) == {"train", "loaders", "build"}
