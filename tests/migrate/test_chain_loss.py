"""How a loss counts positions, on the smallest loop of each shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain.loss_shape import loss_shape
from speedmigrate.chain.model_loss import loss
from speedmigrate.facts.entry import entry_facts
from speedmigrate.facts.project import Project
from speedmigrate.rule import Options
from speedmigrate.target import Target

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
CASES = {
    "torch's own ignore value": ("loss = F.cross_entropy(x, y)", ("-100", "no", "labels")),
    "a given one": ("loss = F.cross_entropy(x, y, ignore_index=PAD)", ("PAD", "no", "labels")),
    "a module made elsewhere": (
        "crit = nn.CrossEntropyLoss(ignore_index=0, reduction='sum')\nloss = crit(x, y)",
        ("0", "no", "sum"),
    ),
    "shifted before": (
        "a = x[..., :-1, :].contiguous()\nb = y[..., 1:].contiguous()\n"
        "loss = F.cross_entropy(a.view(-1, 9), b.view(-1))",
        ("-100", "yes", "labels"),
    ),
    "a mask": (
        "each = F.cross_entropy(x, y, reduction='none')\nloss = (each.view(-1) * mask).sum() / mask.sum()",
        ("-100", "no", "mask"),
    ),
    "a mask that selects": (
        "each = F.cross_entropy(x, y, reduction='none')\nloss = each[mask].mean()",
        ("-100", "no", "mask"),
    ),
    "pads in the mean": (
        "each = F.cross_entropy(x, y, ignore_index=0, reduction='none')\nloss = each.mean()",
        ("0", "no", "positions"),
    ),
    "pads in the mean, in one line": (
        "loss = F.cross_entropy(x, y, reduction='none').mean()",
        ("-100", "no", "positions"),
    ),
    "a reduction of the command line": ("loss = F.cross_entropy(x, y, reduction=how)", ("-100", "no", None)),
    "losses that go somewhere else": (
        "each = F.cross_entropy(x, y, reduction='none')\nlog(each)",
        ("-100", "no", None),
    ),
    "another loss": ("loss = F.mse_loss(x, y)", ()),
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "loss = F.cross_entropy(x, y).view(-1).mean()",
        "each = F.cross_entropy(x, y, reduction='none').view(y.size())\nloss = torch.sum(each * mask) / mask.sum()",
        "loss = scaler.scale(F.cross_entropy(x, y).to(device))",
    ],
)
def test_the_loss_is_found_under_what_is_done_to_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}{text}\nloss.backward()\n")
    entry = entry_facts(Project(tmp_path), "train.py", Target(), Options())
    assert [fact.value for fact in loss(entry)] == ["cross_entropy"]


@pytest.mark.parametrize("name", CASES)
def test_loss(tmp_path: Path, name: str) -> None:
    text, want = CASES[name]
    (tmp_path / "train.py").write_text(
        f"from torch import nn\nimport torch.nn.functional as F\n{text}\nloss.backward()\n"
    )
    entry = entry_facts(Project(tmp_path), "train.py", Target(), Options())
    facts = tuple(loss_shape(entry))
    assert tuple(fact.value for fact in facts) == want
    assert all(fact.evidence or fact.unknown for fact in facts)
