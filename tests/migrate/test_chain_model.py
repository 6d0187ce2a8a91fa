"""What the facts of the model say of small runs: kind, wrappers, calls, loss, checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain import model
from tests.migrate.test_chain_optimizer import LOOP, MODEL, TRAINER, entry_of

OPTIMIZED = "optimizer = torch.optim.AdamW(model.parameters())\n"


def told(root: Path, text: str, name: str) -> list[tuple[str | None, str]]:
    """Return the value and detail of each fact of a name."""
    facts = model.facts(entry_of(root, {"train.py": text}))
    return [(fact.value, fact.detail) for fact in facts if fact.name == name]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("", [("transformers", "transformers.AutoModelForCausalLM.from_pretrained")]),
        ("model = torch.nn.Linear(2, 2)\n", [("other", "torch.nn.Linear")]),
        ("class Net(torch.nn.Module):\n    pass\n\nmodel = Net()\n", [("own", "Net")]),
        ("model = AutoModelForCausalLM.from_pretrained('x', trust_remote_code=True)\n",
         [("remote_code", "transformers.AutoModelForCausalLM.from_pretrained")]),
        ("model = input\n", [(None, "")]),
    ],
)  # fmt: skip
def test_what_is_trained(tmp_path: Path, made: str, said: list[tuple[str | None, str]]) -> None:
    assert told(tmp_path, f"{MODEL}{made}{OPTIMIZED}{LOOP}", "model.kind") == said


def test_no_model_is_unknown(tmp_path: Path) -> None:
    assert told(tmp_path, "print(1)\n", "model.kind") == [(None, "")]


def test_the_order_of_the_wrappers(tmp_path: Path) -> None:
    text = f"""{MODEL}from peft import get_peft_model
model = get_peft_model(model, None)
model = torch.compile(model)
model = torch.nn.parallel.DistributedDataParallel(model)
{OPTIMIZED}{LOOP}"""
    assert told(tmp_path, text, "wrap.order") == [
        ("DistributedDataParallel", "get_peft_model > compile > DistributedDataParallel")
    ]
    assert told(tmp_path, text, "compile.call") == [("torch.compile", "torch.compile(model)")]


def test_a_bare_model_has_no_wrappers(tmp_path: Path) -> None:
    text = f"{MODEL}{OPTIMIZED}{LOOP}"
    assert told(tmp_path, text, "wrap.order") == []
    assert told(tmp_path, text, "model.call") == [("call", "**batch")]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("loss = model().loss / 4", [("model", "")]),
        ("loss = model()[0].mean()", [("model", "")]),
        ("loss = torch.nn.functional.cross_entropy(model(), 1, ignore_index=0)", [("cross_entropy", "ignore_index=0")]),
        ("loss = torch.nn.CrossEntropyLoss(reduction='none')(model(), 1)", [("cross_entropy", "reduction='none'")]),
        ("loss = input()", [(None, "")]),
        ("loss = eval('1') + model().loss", [("model", ""), (None, "")]),
    ],
)
def test_the_loss(tmp_path: Path, loss: str, said: list[tuple[str | None, str]]) -> None:
    assert told(tmp_path, f"{MODEL}{OPTIMIZED}{loss}\nloss.backward()\n", "loss.kind") == said


def test_a_class_of_the_root_that_is_not_trained_is_the_loss(tmp_path: Path) -> None:
    net = "class Net(torch.nn.Module):\n    def forward(self, x): ...\n\n"
    text = f"{MODEL}{net}{OPTIMIZED}Net()(model()).backward()\n"
    assert told(tmp_path, text, "loss.kind") == [("own", "Net")]


def test_a_model_of_the_root_gives_the_loss(tmp_path: Path) -> None:
    net = "class Net(torch.nn.Module):\n    def forward(self, x): ...\n\nmodel = Net()\n"
    text = f"{MODEL}{net}{OPTIMIZED}model(1).backward()\n"
    assert told(tmp_path, text, "loss.kind") == [("model", "")]


def test_a_trainer_takes_the_loss_of_the_model(tmp_path: Path) -> None:
    text = f"{TRAINER}Trainer(model, TrainingArguments('out')).train()\n"
    assert told(tmp_path, text, "loss.kind") == [("model", "")]


def test_a_trainer_with_its_own_loss(tmp_path: Path) -> None:
    text = f"""{TRAINER}
class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        output = model(**inputs)
        return transformers.nobody(output) if return_outputs else output.loss

Own(model, TrainingArguments("out")).train()
"""
    assert told(tmp_path, text, "model.call") == [("call", "**inputs")]


def test_checkpoints(tmp_path: Path) -> None:
    text = f"""{MODEL}{OPTIMIZED}optimizer.load_state_dict(torch.load("state.pt"))
{LOOP}torch.save(model.state_dict(), "out.pt")
model.save_pretrained("out")
model.config.save_pretrained("out")
"""
    assert told(tmp_path, text, "checkpoint.save") == [("torch.save", ""), ("save_pretrained", "")]
    assert [value for value, _ in told(tmp_path, text, "checkpoint.load")] == [
        "torch.load",
        "torch.load",
        "load_state_dict",
    ]
