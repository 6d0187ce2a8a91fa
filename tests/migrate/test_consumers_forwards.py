"""What the reader of forwards says of small models: half of them must be refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from speedmigrate.facts.batches import loop_use
from speedmigrate.facts.entry import entry_facts
from speedmigrate.facts.forward_expr import Read
from speedmigrate.facts.forwards import read_forward
from speedmigrate.facts.loaders import loaders
from speedmigrate.facts.models import models
from speedmigrate.facts.project import Project
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.rule import Options
from speedmigrate.target import Target
from tests.migrate.fakes import write_files

HEAD = """\
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, BertModel


"""
RUN = """

net = Net(100, 32, 64)
for batch in []:
    net(*batch)
"""
INIT = """\
class Net(nn.Module):
    def __init__(self, words, wide, longest):
        super().__init__()
        self.longest = longest
        self.embed = nn.Embedding(words, wide)
        self.out = nn.Linear(wide, words)
"""


def read(
    root: Path, code: str, pads: Mapping[str, object] | None = None, *, side: str = "right", run: str = RUN
) -> Read:
    write_files(root, {"main.py": HEAD + code.strip("\n") + "\n" + run})
    entry = entry_facts(Project(root), "main.py", Target(), Options())
    site = next(site for site in entry.sites if site.expr.text.startswith("net("))
    (model,) = models(entry.values, site.expr.at(site.node.func))
    held: dict[Key, Pads] = {name: Pads(value, repr(value), side) for name, value in (pads or {"ids": 0}).items()}
    return read_forward(entry.values, model, site.expr, list(pads or {"ids": 0}), held)


def said(found: Read) -> list[str]:
    return [hop.what.partition(":")[0] for hop in found.problems]


def corrected(found: Read) -> list[str]:
    return [hop.what.partition(":")[0] for hop in found.corrects]


def body(*lines: str, init: str = "") -> str:
    """A model whose forward turns embedded ids `h` into what the lines return."""
    made = "".join(f"        {line}\n" for line in init.splitlines())
    inner = "".join(f"        {line}\n" for line in lines)
    return f"{INIT}{made}\n    def forward(self, ids, labels=None):\n        h = self.embed(ids)\n{inner}"


CAUSAL = """
def turn(x, table):
    shape = [n if i in (1, x.ndim - 1) else 1 for i, n in enumerate(x.shape)]
    return x * table.view(*[n if i == 1 or i == x.ndim - 1 else 1 for i, n in enumerate(x.shape)])


class Attend(nn.Module):
    def __init__(self, wide, heads):
        super().__init__()
        self.heads, self.size = heads, wide // heads
        self.q = nn.Linear(wide, wide)
        self.k = nn.Linear(wide, wide)
        self.v = nn.Linear(wide, wide)
        self.gate = nn.Parameter(torch.zeros(1, heads, 1, 1))

    def forward(self, x, table, mask, prompt=None):
        rows, length, _ = x.shape
        q = turn(self.q(x).view(rows, length, self.heads, self.size), table)
        k = turn(self.k(x).view(rows, length, self.heads, self.size), table)
        v = self.v(x).view(rows, length, self.heads, self.size)
        if prompt is not None:
            before = prompt.shape[1]
            k = torch.cat([self.k(prompt).view(1, before, self.heads, self.size).repeat(rows, 1, 1, 1), k], dim=1)
            v = torch.cat([self.v(prompt).view(1, before, self.heads, self.size).repeat(rows, 1, 1, 1), v], dim=1)
            mask = torch.cat([torch.zeros(1, 1, length, before).to(mask), mask], dim=-1)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.size) + mask
        if prompt is not None:
            first = self.gate.tanh() * F.softmax(scores[:, :, :, :before].float(), dim=-1)
            scores = torch.cat([first, F.softmax(scores[:, :, :, before:].float(), dim=-1)], dim=-1)
        else:
            scores = scores.softmax(-1)
        return torch.matmul(scores, v).transpose(1, 2).contiguous().view(rows, length, -1)


class Net(nn.Module):
    def __init__(self, words, wide, longest):
        super().__init__()
        self.words = words
        self.embed = nn.Embedding(words, wide)
        self.layers = nn.ModuleList()
        for _ in range(4):
            self.layers.append(Attend(wide, 4))
        self.prompts = nn.Embedding(8, wide)
        self.out = nn.Linear(wide, words)
        self.table = torch.outer(torch.arange(longest), torch.ones(wide // 4))
        self.loss = nn.CrossEntropyLoss(ignore_index=0)

    def forward(self, ids, labels):
        rows, length = ids.shape
        h = self.embed(ids)
        table = self.table[:length]
        mask = torch.full((1, 1, length, length), float("-inf"), device=h.device)
        mask = torch.triu(mask, diagonal=1).type_as(h)
        for layer in self.layers[:2]:
            h = h + layer(h, table, mask)
        prompts = self.prompts.weight.reshape(2, 4, -1).unsqueeze(1)
        for number, layer in enumerate(self.layers[2:]):
            h = h + layer(h, table, mask, prompts[number])
        scores = self.out(h)[:, :-1, :]
        labels = labels[:, 1:]
        if labels.sum() == 0:
            return scores.mean() * 0
        return self.loss(scores.reshape(-1, self.words), labels.flatten())
"""
LOOKUP = """
class Net(nn.Module):
    def __init__(self, words, wide, longest):
        super().__init__()
        self.embed = nn.Embedding(words, wide)
        self.place = nn.Embedding(longest, wide)
        self.inner = nn.Linear(wide, 3 * wide)
        self.register_buffer("seen", torch.tril(torch.ones(longest, longest)).view(1, longest, longest))

    def forward(self, ids, labels, kept):
        h = self.embed(ids) + self.place(torch.arange(ids.size(1), device=ids.device).unsqueeze(0))
        q, k, v = self.inner(h).chunk(3, dim=-1)
        w = q @ k.transpose(-2, -1)
        n = w.size(-1)
        w = w * self.seen[:, :n, :n] - 1e10 * (1 - self.seen[:, :n, :n])
        h = nn.Softmax(dim=-1)(w) @ v
        scores = F.linear(h, self.embed.weight)
        losses = F.cross_entropy(scores.view(-1, scores.size(-1)), labels.view(-1), reduction="none").view_as(labels)
        return scores, (losses * kept).sum() / kept.sum()
"""


def test_adapters_in_front_of_the_keys(tmp_path: Path) -> None:
    found = read(tmp_path, CAUSAL, {"ids": 0, "labels": 0})
    assert (said(found), corrected(found)) == ([], [])
    assert list(found.counted) == ["labels"]
    assert {hop.what.partition(":")[0] for hop in found.hops} == {"attention reaches earlier positions only"}


def test_labels_that_the_loss_counts(tmp_path: Path) -> None:
    found = read(tmp_path, CAUSAL, {"ids": 0, "labels": -1})
    assert corrected(found) == ["targets of pads are -1 and count in the loss today, and no longer"]


def test_left_pads_are_attended(tmp_path: Path) -> None:
    found = read(tmp_path, CAUSAL, {"ids": 0, "labels": 0}, side="left")
    assert set(corrected(found)) == {"pads are attended today, and no longer"}


def test_weighed_losses(tmp_path: Path) -> None:
    found = read(tmp_path, LOOKUP, {"ids": 0, "labels": 0, "kept": 0})
    assert (said(found), corrected(found)) == ([], [])
    assert list(found.counted) == ["labels", "kept"]


def test_weights_that_are_one_on_pads(tmp_path: Path) -> None:
    found = read(tmp_path, LOOKUP, {"ids": 0, "labels": 0, "kept": 1})
    assert said(found) == ["`sum` runs over the padded positions"] or corrected(found)


KEPT = {
    "tokens for themselves": body("return self.out(F.gelu(h))"),
    "the first position": body("return self.out(h[:, 0])"),
    "a masked mean": body(
        "kept = (ids != 0).float()",
        "return self.out((h * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True))",
    ),
    "the last real position": body(
        "last = ids.ne(0).sum(dim=1) - 1",
        "return self.out(h[torch.arange(ids.size(0)), last])",
    ),
    "real positions selected": body("return self.out(h[ids != 0])"),
    "pooling with a softmax that leaves pads out": body(
        "w = self.out(h).squeeze(-1).masked_fill(ids == 0, -1e9)",
        "return (F.softmax(w, dim=1).unsqueeze(-1) * h).sum(dim=1)",
        init="self.out = nn.Linear(wide, 1)",
    ),
    "a layer of torch with a mask of pads": body(
        "return self.out(self.layer(h, src_key_padding_mask=ids == 0))",
        init="self.layer = nn.TransformerEncoderLayer(wide, 4, batch_first=True)",
    ),
    "a table cut to the width": body(
        "return self.out(h + self.place[:, : ids.shape[1]])",
        init=("self.place = nn.Parameter(torch.zeros(1, longest, wide))"),
    ),
    "a scale for every feature": body(
        "return self.out(h * self.scale)", init=("self.scale = nn.Parameter(torch.ones(wide))")
    ),
    "causal attention of torch": body("return self.out(F.scaled_dot_product_attention(h, h, h, is_causal=True))"),
    "a mask of the model of transformers": body(
        "h = self.bert(ids, attention_mask=ids.ne(0)).last_hidden_state",
        "return self.out(h[:, 0])",
        init="self.bert = BertModel.from_pretrained('x')",
    ),
    "images beside the tokens": body(
        "image = self.conv(torch.rand(2, 3, 8, 8)).flatten(2).mean(-1)",
        "return self.out(torch.cat([image.unsqueeze(1), h], dim=1))[:, image.shape[1]:]",
        init="self.conv = nn.Conv2d(3, wide, 2)",
    ),
    "labels shifted by one more": body(
        "labels = F.pad(labels, (0, 1), value=-100)[..., 1:]",
        "s = self.out(h)",
        "return F.cross_entropy(s.view(-1, s.size(-1)), labels.reshape(-1))",
    ),
    "a triangle that is cut": body(
        "n = ids.size(1)",
        "w = torch.where(self.causal[:, :n, :n], h @ h.transpose(1, 2), torch.tensor(-1e9))",
        "return self.out(w.softmax(-1) @ h)",
        init="self.register_buffer('causal', torch.ones(longest, longest).tril().bool()[None])",
    ),
    "at most so many positions": body(
        "assert ids.shape[1] <= self.longest",
        "if ids.shape[1] > self.longest:",
        "    raise ValueError",
        "return self.out(h)",
    ),
    "a rotation as complex numbers": body(
        "n, pairs = ids.size(1), torch.view_as_complex(h.reshape(*h.shape[:-1], -1, 2))",
        "return self.out(torch.view_as_real(pairs * self.turns[None, :n]).flatten(2))",
        init="self.register_buffer('turns', torch.ones(longest, wide // 2))",
    ),
    "a lookup of flags": body(
        "return self.out(h) if self.training else self.out(h[:, -1])",
    ),
}
REFUSED = {
    "the last position": (body("return self.out(h[:, -1])"), "takes positions by their number"),
    "the last positions": (body("return self.out(h[:, -4:])"), "takes positions by their number"),
    "a fixed cut": (body("return self.out(h[:, :16])"), "takes positions by their number"),
    "a shape of a fixed length": (
        body("return self.out(h.view(-1, self.longest * 32))"),
        "the model returns a shape that does not name the length",
    ),
    "a fixed number of rows": (
        body("return self.out(h.reshape(ids.size(0), self.longest, -1))"),
        "a new shape that does not name the length read from a tensor",
    ),
    "ids in rows of a fixed length": (
        body("return self.out(self.embed(ids.view(-1, self.longest)))"),
        "a new shape that does not name the length read from a tensor",
    ),
    "a plain mean": (body("return self.out(h.mean(1))"), "`mean` runs over the padded positions"),
    "a plain sum": (body("return self.out(h.sum(dim=1))"), "`sum` runs over the padded positions"),
    "a plain maximum": (body("return self.out(h.max(1)[0])"), "`max` runs over the padded positions"),
    "a mean over masked values": (
        body("return self.out((h * (ids != 0).unsqueeze(-1)).mean(1))"),
        "`mean` runs over the padded positions",
    ),
    "a table used whole": (
        body("return self.out(h + self.place)", init="self.place = nn.Parameter(torch.zeros(1, longest, wide))"),
        "a table of a fixed size is used whole",
    ),
    "a buffer used whole": (
        body("return self.out(h + self.place)", init="self.register_buffer('place', torch.zeros(longest, wide))"),
        "a table of a fixed size is used whole",
    ),
    "positions of a fixed number": (
        body("return self.out(h + self.place(torch.arange(self.longest)))", init=(
            "self.place = nn.Embedding(longest, wide)"
        )),
        "a table of a fixed size is used whole",
    ),
    "positions from the end": (
        body("n = ids.size(1)", "return self.out(h + self.embed(torch.arange(n - 1, -1, -1)))"),
        "positions that do not count up from the front",
    ),
    "a layer over the positions": (
        body("return self.out(h.transpose(1, 2))"), "a layer over the positions",
    ),
    "a normalisation over the positions": (
        body("return self.out(self.norm(h))", init="self.norm = nn.LayerNorm([longest, wide])"),
        "normalises over the positions",
    ),
    "a convolution": (
        body("return self.out(self.conv(h.transpose(1, 2)).transpose(1, 2))", init=(
            "self.conv = nn.Conv1d(wide, wide, 3, padding=1)"
        )),
        "this call is not known to keep positions apart",
    ),
    "a recurrent layer": (
        body("h, _ = self.rnn(h)", "return self.out(h)", init="self.rnn = nn.LSTM(wide, wide, bidirectional=True)"),
        "this call is not known to keep positions apart",
    ),
    "a product over the positions": (
        body("return self.out(h.transpose(1, 2) @ h)"), "a product over something other than the features",
    ),
    "something behind the padding": (
        body("return self.out(torch.cat([h, h[:, :1] * 0 + self.embed.weight[:1]], dim=1))"),
        "takes positions by their number",
    ),
    "a prompt behind the padding": (
        body("return self.out(torch.cat([h, self.embed.weight[:4].expand(2, 4, 8)], dim=1))"),
        "something stands behind the padding",
    ),
    "half as many positions": (
        body("n = ids.size(1)", "return self.out(h.view(ids.size(0), n // 2, 64))"),
        "the padded width is computed with",
    ),
    "weights turned around": (
        body(
            "n = ids.size(1)",
            "w = h @ h.transpose(1, 2) + torch.triu(torch.full((n, n), float('-inf')), 1)",
            "return self.out(w.softmax(-1).transpose(1, 2) @ h)",
        ),
        "a product over something other than the features",
    ),
    "a softmax over what asks": (
        body("return self.out((h @ h.transpose(1, 2)).softmax(1) @ h)"),
        "a softmax over the positions that ask, not over the keys",
    ),
    "every other position": (body("return self.out(h[:, ::2])"), "takes every other position"),
    "a causal buffer used whole": (
        body(
            "w = torch.where(self.causal, h @ h.transpose(1, 2), torch.tensor(-1e9))",
            "return self.out(w.softmax(-1) @ h)",
            init="self.register_buffer('causal', torch.ones(longest, longest).tril().bool()[None])",
        ),
        "a table of a fixed size is used whole",
    ),
    "rows of a table under a new axis": (
        body("return self.out(h + self.place.weight[None])", init="self.place = nn.Embedding(longest, wide)"),
        "a table of a fixed size is used whole",
    ),
    "the end of a table": (
        body("return self.out(h + self.place[-h.shape[1]:])", init="self.place = nn.Parameter(torch.ones(longest))"),
        "a slice that starts at the padded width",
    ),
    "a row of a table for the width": (
        body("return self.out(h + self.place.weight[h.shape[1] - 1])", init="self.place = nn.Embedding(longest, wide)"),
        "the padded width is used as an index",
    ),
    "a mask that is not seen": (
        body("w = (h @ h.transpose(1, 2)).masked_fill(words.seen(), -1e9)", "return self.out(w.softmax(-1) @ h)"),
        "a mask that is not followed",
    ),
    "rows in one attention": (
        body("h = h.flatten(0, 1)", "return self.out((h @ h.transpose(-2, -1)).softmax(-1) @ h)"),
        "rows are put one behind the other",
    ),
    "a normalisation over the width": (
        body("return self.out(F.layer_norm(h, h.shape[1:]))"), "a layer over the positions",
    ),
    "an axis that is not there": (
        body("return self.out(self.embed(ids.squeeze(1)))"), "the positions are squeezed, so they stand elsewhere",
    ),
    "a width that is demanded": (
        body("assert ids.shape[1] == self.longest", "return self.out(h)"), "a width is demanded",
    ),
    "a width that others than one stop": (
        body("if h.shape != (4, self.longest, 32):", "    raise ValueError", "return self.out(h)"),
        "a width is demanded",
    ),
    "another result for short rows": (
        body("if ids.shape[1] < 32:", "    return self.out(h)", "return self.out(h * 2)"),
        "the padded width decides what is computed",
    ),
    "another factor for short rows": (
        body("return self.out(h * (1.0 if ids.shape[1] > 32 else 0.5))"),
        "the padded width decides what is computed",
    ),
    "what the last batch left": (
        body(
            "if self.last is not None:",
            "    h = h + self.last",
            "self.last = h.detach()",
            "return self.out(h)",
            init="self.last = None",
        ),
        "batch data is kept for the next batch, whose width is another",
    ),
    "a division by the width": (
        body("return self.out(h) / ids.size(1)"), "the padded width is computed with",
    ),
    "padding to a fixed width": (
        body("return self.out(F.pad(h, (0, 0, 0, self.longest - ids.size(1))))"),
        "something is added to the positions",
    ),
    "what is not known": (
        body("return self.out(strange(h))", init="").replace("class Net", "from odd import strange\n\n\nclass Net"),
        "this call is not known to keep positions apart",
    ),
    "half of the width": (
        body("return self.out(h[:, : ids.size(1) // 2])"), "takes positions by their number",
    ),
    "pads in a sum of losses": (
        body(
            "scores = self.out(h)",
            "losses = F.cross_entropy(scores.transpose(1, 2), labels, reduction='none')",
            "return (losses * torch.softmax(scores, 1)[..., 0]).sum()",
        ),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_a_width_that_may_change(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, KEPT[name], {"ids": 0, "labels": -100})
    assert (said(found), corrected(found)) == ([], [])


@pytest.mark.parametrize("name", REFUSED)
def test_a_width_that_is_read(tmp_path: Path, name: str) -> None:
    code, why = REFUSED[name]
    found = read(tmp_path, code, {"ids": 0, "labels": 0})
    assert (why in said(found)) if why else (found.problems or found.corrects)


@pytest.mark.parametrize(
    ("lines", "init", "why"),
    [
        (
            ["return self.out(torch.softmax(h @ h.transpose(1, 2), -1) @ h)"],
            "",
            "pads are attended today, and no longer",
        ),
        (
            ["return self.out(self.bert(ids).last_hidden_state[:, 0])"],
            "self.bert = BertModel.from_pretrained('x')",
            "BertModel attends to the pads today, and no longer",
        ),
        (
            ["return F.binary_cross_entropy_with_logits(self.out(h).squeeze(-1), labels.float())"],
            "",
            "the loss counts the pads today, and fewer of them after",
        ),
        (
            [
                "s = self.out(h)",
                "return F.cross_entropy(s.view(-1, s.size(-1)), labels.view(-1), reduction='none').mean()",
            ],
            "",
            "the loss is taken over the pads too today, and over fewer of them after",
        ),
    ],
)  # fmt: skip
def test_pads_that_enter_today(tmp_path: Path, lines: list[str], init: str, why: str) -> None:
    found = read(tmp_path, body(*lines, init=init), {"ids": 0, "labels": 0})
    assert said(found) == []
    assert why in corrected(found)


def test_a_model_that_is_not_read(tmp_path: Path) -> None:
    write_files(tmp_path, {"main.py": HEAD + "net = build()\nfor batch in []:\n    net(batch)\n"})
    entry = entry_facts(Project(tmp_path), "main.py", Target(), Options())
    site = next(site for site in entry.sites if site.expr.text.startswith("net("))
    (model,) = models(entry.values, site.expr.at(site.node.func))
    assert said(read_forward(entry.values, model, site.expr, [], {})) == [
        "what is trained has no forward that can be read"
    ]


LIGHTNING = """
import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM


class Rows(Dataset):
    def __getitem__(self, i):
        return {"ids": [0] * 8, "labels": [0] * 8}


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return self.made(Rows())

    def made(self, rows):
        return DataLoader(rows, batch_size=4)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained("x")

    def training_step(self, batch, batch_idx):
        STEP


pl.Trainer().fit(Net(), Data())
"""
PLAIN = (
    'out = self.model(input_ids=batch["ids"], labels=batch["labels"])\n'
    '        self.log("loss", out.loss)\n'
    "        return out.loss"
)


def step(root: Path, code: str, label: object = -100) -> Use:
    write_files(root, {"main.py": code})
    entry = entry_facts(Project(root), "main.py", Target(), Options())
    (loader,) = loaders(entry)
    return loop_use(entry, loader, {"ids": Pads(0, "0"), "labels": Pads(label, repr(label))})


def test_a_step_gets_the_batches(tmp_path: Path) -> None:
    use = step(tmp_path, LIGHTNING.replace("STEP", PLAIN))
    assert (use.problems, use.corrects, use.backward) == ([], [], True)
    assert list(use.counted) == ["labels"]
    assert [model.class_name for model in use.models] == ["AutoModelForCausalLM"]


def test_a_loader_that_fit_gets(tmp_path: Path) -> None:
    code = LIGHTNING.replace("STEP", PLAIN).replace("fit(Net(), Data())", "fit(Net(), [DataLoader(Rows())])")
    use = step(tmp_path, code.replace("return DataLoader(rows, batch_size=4)", "return rows"))
    assert (use.problems, use.loops) == ([], 1)


def test_a_data_module_that_is_not_followed(tmp_path: Path) -> None:
    use = step(tmp_path, LIGHTNING.replace("STEP", PLAIN).replace("fit(Net(), Data())", "fit(Net(), find(Data()))"))
    assert (use.problems, use.loops) == ([], 1)


def test_a_run_that_only_validates(tmp_path: Path) -> None:
    code = LIGHTNING.replace("STEP", PLAIN).replace("fit(", "validate(")
    code = code.replace("train_dataloader", "val_dataloader").replace("training_step", "validation_step")
    use = step(tmp_path, code)
    assert (use.problems, use.loops, use.backward) == ([], 1, False)


def test_a_step_whose_labels_count(tmp_path: Path) -> None:
    use = step(tmp_path, LIGHTNING.replace("STEP", PLAIN.replace("return out.loss", 'return {"loss": out.loss}')), 0)
    assert len(use.corrects) == 1


def test_a_step_that_backs_by_hand(tmp_path: Path) -> None:
    use = step(tmp_path, LIGHTNING.replace("STEP", PLAIN.replace("return out.loss", "self.manual_backward(out[0])")))
    assert use.problems == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "        return out.loss",
            '        return {"loss": out.loss, "scores": out.logits}\n\n'
            "    def training_epoch_end(self, outputs):\n        print(outputs)",
        ),
        ("return out.loss", "return out.logits.mean()"),
        ("batch_idx", "*others"),
        ("def training_step(self, batch, batch_idx)", "def training_step(self)"),
        ("def training_step", "def first_step"),
        (
            "    def training_step",
            "    def on_train_batch_start(self, batch, i):\n        print(batch)\n\n    def training_step",
        ),
    ],
)
def test_a_step_that_is_not_followed(tmp_path: Path, old: str, new: str) -> None:
    use = step(tmp_path, LIGHTNING.replace("STEP", PLAIN).replace(old, new))
    assert bool(use.problems) is (old != "batch_idx")
