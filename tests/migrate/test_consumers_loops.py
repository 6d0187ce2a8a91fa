"""What loops over a `DataLoader` do with padded batches, on the smallest script of each shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.facts.batches import loop_use
from speedmigrate.facts.entry import entry_facts
from speedmigrate.facts.loaders import loaders
from speedmigrate.facts.project import Project
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.rule import Hop, Options
from speedmigrate.target import Target

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
import torch.nn.functional as F
tok = AutoTokenizer.from_pretrained("t")
loader = DataLoader(rows)
opt = torch.optim.SGD(params, lr=0.1)
"""
LINES = HEAD.count("\n")
CAUSAL = "model = AutoModelForCausalLM.from_pretrained('m')\n"
SEQ2SEQ = "model = AutoModelForSeq2SeqLM.from_pretrained('m')\n"
POOLER = """
class Pooler(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(8, 2)
    def forward(self, ids, mask):
        hidden = self.encoder(input_ids=ids, attention_mask=mask)[0]
        return self.head({pooled})
model = Pooler(AutoModel.from_pretrained('m'))
"""
MASKED = "(hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)"
IDS, MASK, LABELS = Pads(None, "tok.pad_token_id"), Pads(0, "0"), Pads(-100, "-100")
TEXT: dict[Key, Pads] = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}
BARE: dict[Key, Pads] = {"input_ids": IDS, "labels": LABELS}
PAIR: dict[Key, Pads] = {0: IDS, 1: MASK}
STEP = "    loss.backward()\n    opt.step()\n"

# name: (script behind the head, pads of the fields), then what is read: problems and corrections as (line, words)
RIGHT: dict[str, tuple[str, dict[Key, Pads]]] = {
    "a position that the mask counts": (
        CAUSAL + "for batch in loader:\n    last = (batch['attention_mask'].sum(1) - 1).clamp(min=0).long()\n"
        "    logits = model(**batch).logits\n    loss = logits[torch.arange(len(last)), last].mean()\n" + STEP, TEXT
    ),
    "whole batch": (
        CAUSAL + "for batch in loader:\n    loss = model(**batch).loss\n" + STEP, TEXT
    ),
    "moved field by field, counted by enumerate and tqdm": (
        "from tqdm import tqdm\n" + SEQ2SEQ + "for i, batch in enumerate(tqdm(loader)):\n"
        "    batch = {k: v.cuda() for k, v in batch.items()}\n    loss = model(**batch).loss\n" + STEP, TEXT
    ),
    "moved by a helper": (
        CAUSAL + "def move(batch, device):\n    out = {}\n    for k, v in batch.items():\n        try:\n"
        "            out[k] = v.to(device)\n        except AttributeError:\n            out[k] = v\n    return out\n"
        "for batch in loader:\n    loss = model(**move(batch, 'cuda')).loss\n" + STEP, TEXT
    ),
    "fields by name, loss kept in a list": (
        CAUSAL + "kept = []\nfor batch in loader:\n    out = model(input_ids=batch['input_ids'].cuda(), "
        "labels=batch['labels'].cuda())\n    loss = out.loss / 4\n    kept.append(loss.item())\n" + STEP, BARE
    ),
    "prepared by accelerate": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n" + CAUSAL
        + "model, opt, loader = accelerator.prepare(model, opt, loader)\nfor batch in loader:\n"
        "    accelerator.backward(model(**batch).loss)\n", TEXT
    ),
    "an engine of DeepSpeed": (
        "import deepspeed\n" + CAUSAL + "engine, opt, _, _ = deepspeed.initialize(model=model, optimizer=opt)\n"
        "for batch in loader:\n    loss = engine(**batch).loss\n    engine.backward(loss)\n    engine.step()\n", TEXT
    ),
    "slots of a tuple, renamed": (
        CAUSAL + "for batch in loader:\n    batch = tuple(t.cuda() for t in batch)\n"
        "    inputs = {'input_ids': batch[0], 'attention_mask': batch[1], 'labels': batch[2]}\n"
        "    loss = model(**inputs)[0]\n" + STEP, {0: IDS, 1: MASK, 2: LABELS}
    ),
    "the next of an iterator": (
        "from itertools import cycle\n" + CAUSAL + "batches = cycle(loader)\nfor step in range(9):\n"
        "    batch = next(batches)\n    loss = model(**batch).loss\n" + STEP, TEXT
    ),
    "the first position is pooled": (
        POOLER.format(pooled="hidden[:, 0]") + "for ids, mask, y in loader:\n"
        "    loss = F.cross_entropy(model(ids, mask), y)\n"
        + STEP, PAIR
    ),
    "a mean that the mask weighs": (
        POOLER.format(pooled=MASKED) + "for ids, mask, y in loader:\n"
        "    loss = F.cross_entropy(model(ids, mask), y)\n" + STEP,
        PAIR
    ),
    "several sequences a row": (
        POOLER.format(pooled="hidden[:, 0]") + "for ids, mask in loader:\n    scores = []\n"
        "    for i in range(len(ids)):\n"
        "        for k in range(len(ids[i])):\n            scores.append(model(ids[i][k][None], mask[i][k][None]))\n"
        "    loss = -torch.cat(scores).mean()\n" + STEP,
        {0: Pads(None, "tok.pad_token_id", levels=2), 1: Pads(0, "0", levels=2)}
    ),
    "log probabilities of the labels": (
        CAUSAL + "for batch in loader:\n    logits = model(batch['input_ids']).logits[:, :-1].log_softmax(-1)\n"
        "    labels = batch['labels'][:, 1:].clone()\n    real = labels != -100\n    labels[labels == -100] = 0\n"
        "    each = torch.gather(logits, 2, labels.unsqueeze(2)).squeeze(2)\n    loss = -(each * real).sum(-1).mean()\n"
        + STEP, BARE
    ),
    "the loss of every token, weighed": (
        CAUSAL + "for batch in loader:\n    logits = model(batch['input_ids']).logits\n"
        "    each = F.cross_entropy(logits.view(-1, 9), batch['labels'].view(-1), reduction='none')\n"
        "    loss = each.sum() / (batch['labels'].view(-1) != -100).sum()\n" + STEP, BARE
    ),
}  # fmt: skip
CORRECTED: dict[str, tuple[str, dict[Key, Pads], list[tuple[int, str]]]] = {
    "an encoder without a mask": (
        "model = AutoModel.from_pretrained('m')\nfor batch in loader:\n"
        "    loss = model(batch['input_ids']).pooler_output.sum()\n"
        + STEP, BARE, [(3, "AutoModel attends to the pads today")]
    ),
    "a model that only from_pretrained knows": (
        "from elsewhere import Chat\nmodel = Chat.from_pretrained('m')\nfor batch in loader:\n"
        "    loss = model(input_ids=batch['input_ids'], labels=batch['labels']).loss\n" + STEP, BARE,
        [(4, "Chat attends to the pads today")]
    ),
    "labels that the loss counts": (
        CAUSAL + "for batch in loader:\n    loss = model(**batch).loss\n" + STEP, {**TEXT, "labels": Pads(0, "0")},
        [(3, "labels of pads (0) count in the loss today")]
    ),
    "a loss of every position": (
        POOLER.format(pooled="hidden") + "for ids, mask, y in loader:\n"
        "    loss = F.binary_cross_entropy_with_logits(model(ids, mask), y)\n" + STEP, {**PAIR, 2: MASK},
        [(12, "the loss counts the pads today")]
    ),
}  # fmt: skip
WRONG: dict[str, tuple[str, dict[Key, Pads], list[tuple[int, str]]]] = {
    "rows in one sequence": (
        CAUSAL + "for batch in loader:\n    batch = {k: torch.cat(list(v))[None] for k, v in batch.items()}\n"
        "    loss = model(**batch).loss\n" + STEP, TEXT, [(3, "sequences are put one behind the other")]
    ),
    "rows in one sequence, by their shape": (
        CAUSAL + "for batch in loader:\n    loss = model(batch['input_ids'].reshape(1, -1)).logits.mean() * 0\n" + STEP,
        BARE, [(3, "rows are put one behind the other")]
    ),
    "kept for all batches": (
        CAUSAL + "kept = []\nfor batch in loader:\n    out = model(**batch)\n    kept.append(out.logits)\n"
        "    loss = out.loss\n" + STEP, TEXT, [(5, "padded values are kept in `kept`")]
    ),
    "kept for all batches by a helper": (
        CAUSAL + "def keep(kept, out):\n    kept.append(out.logits)\nkept = []\nfor batch in loader:\n"
        "    out = model(**batch)\n    keep(kept, out)\n    loss = out.loss\n" + STEP,
        TEXT, [(3, "padded values are kept in `kept`")]
    ),
    "a list that grows": (
        CAUSAL + "kept = []\nfor batch in loader:\n    out = model(**batch)\n    kept = kept + [out.logits]\n"
        "    loss = out.loss\n" + STEP, TEXT, [(5, "batch data is kept for the next batch")]
    ),
    "a position that a field names": (
        CAUSAL + "for batch in loader:\n    last = batch.pop('last')\n    logits = model(**batch).logits\n"
        "    loss = logits[torch.arange(len(last)), last].mean()\n" + STEP,
        TEXT, [(5, "takes positions by their number")]
    ),
    "attention weights": (
        CAUSAL + "for batch in loader:\n    out = model(**batch, output_attentions=True)\n"
        "    loss = out.loss + out.attentions[-1].mean()\n" + STEP,
        TEXT, [(4, "`mean` runs over the padded positions")]
    ),
    "a fixed length": (
        CAUSAL + "for batch in loader:\n    h = model(batch['input_ids']).logits.view(-1, 64, 9)\n"
        "    loss = h.sum()\n" + STEP,
        BARE, [(3, "a new shape that does not name the length")]
    ),
    "the last position is pooled": (
        POOLER.format(pooled="hidden[:, -1]") + "for ids, mask, y in loader:\n"
        "    loss = F.cross_entropy(model(ids, mask), y)\n"
        + STEP, PAIR, [(9, "takes positions by their number")]
    ),
    "a mean over positions is a feature": (
        POOLER.format(pooled="hidden.mean(1)") + "for ids, mask, y in loader:\n"
        "    loss = F.cross_entropy(model(ids, mask), y)\n"
        + STEP, PAIR, [(9, "`mean` runs over the padded positions")]
    ),
    "the width is compared": (
        CAUSAL + "for batch in loader:\n    if batch['input_ids'].shape[1] < 64:\n        continue\n"
        "    loss = model(**batch).loss\n" + STEP, TEXT, [(3, "the padded width is compared")]
    ),
    "the loss is divided by the width": (
        CAUSAL + "for batch in loader:\n    loss = model(**batch).loss / batch['labels'].numel()\n" + STEP, TEXT,
        [(3, "the padded width is computed with"), (4, "what `backward` gets still has the padded positions")]
    ),
    "losses reach backward": (
        CAUSAL + "for batch in loader:\n    logits = model(batch['input_ids']).logits\n"
        "    loss = F.cross_entropy(logits.view(-1, 9), batch['labels'].view(-1), reduction='none')\n" + STEP, BARE,
        [(5, "what `backward` gets still has the padded positions")]
    ),
    "positions are gathered across ranks": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n" + CAUSAL
        + "for batch in loader:\n    logits = accelerator.gather(model(**batch).logits)\n", TEXT,
        [(5, "positions are gathered across ranks")]
    ),
    "the prompt is cut off by its length": (
        CAUSAL + "for batch in loader:\n    new = model.generate(**batch)[:, 64:]\n"
        "    print(tok.batch_decode(new))\n", TEXT,
        [(3, "takes positions by their number")]
    ),
    "a mask of the fixed length": (
        CAUSAL + "for batch in loader:\n"
        "    loss = model(batch['input_ids'], attention_mask=torch.ones(4, 64)).loss\n" + STEP,
        BARE, [(3, "the model gets a tensor of a fixed size")]
    ),
    "a text model of one width": (
        "from transformers import CLIPTextModel\nmodel = CLIPTextModel.from_pretrained('m')\nfor batch in loader:\n"
        "    loss = model(batch['input_ids'], batch['attention_mask']).pooler_output.sum()\n" + STEP, TEXT,
        [(4, "CLIPTextModel is made for one width")]
    ),
    "batch data kept for the next batch": (
        CAUSAL + "seen = None\nfor batch in loader:\n    ids = batch['input_ids']\n"
        "    seen = ids if seen is None else torch.cat([seen, ids])\n    loss = model(**batch).loss\n" + STEP, TEXT,
        [(5, "batch data is kept for the next batch")]
    ),
    "batch data kept in an object": (
        CAUSAL + "class Runner:\n    def go(self):\n        for batch in loader:\n            self.batch = batch\n"
        "            self.step()\n    def step(self):\n        h = model(**self.batch).logits[:, -1]\n"
        "        h.sum().backward()\nRunner().go()\n", TEXT, [(8, "takes positions by their number")]
    ),
    "batch data behind the loop": (
        CAUSAL + "for batch in loader:\n    loss = model(**batch).loss\n"
        + STEP + "print(batch['input_ids'].shape)\n", TEXT,
        [(6, "batch data is read behind the loop")]
    ),
    "a nested function": (
        CAUSAL + "def run():\n    for batch in loader:\n        ids = batch['input_ids']\n        def close():\n"
        "            return model(ids).loss\n        close().backward()\nrun()\n", BARE,
        [(6, "a nested function reads batch data"), (3, "no model that is followed gets these batches")]
    ),
    "a metric that is not known": (
        CAUSAL + "for batch in loader:\n    metric.add(model(**batch).logits, batch['labels'])\n", TEXT,
        [(3, "this call is not known to keep positions apart")]
    ),
    "a loop over positions": (
        CAUSAL + "for batch in loader:\n    for row in batch['input_ids']:\n        for token in row:\n"
        "            print(token)\n"
        "    loss = model(**batch).loss\n" + STEP, TEXT, [(4, "a loop over the positions")]
    ),
    "weights of the fixed length": (
        "weights = torch.linspace(0, 1, 64)\n" + CAUSAL + "for batch in loader:\n"
        "    logits = model(batch['input_ids']).logits\n"
        "    each = F.cross_entropy(logits.view(-1, 9), batch['labels'].view(-1), reduction='none')\n"
        "    loss = (each.view(batch['labels'].size()) * weights).sum()\n" + STEP, BARE, [(6, "fixed size")]
    ),
    "a key that is not followed": (
        CAUSAL + "for batch in loader:\n    loss = model(batch[tok.key]).loss\n" + STEP, TEXT,
        [(3, "a field of the batch is taken by a name"), (2, "no model that is followed gets these batches")]
    ),
    "no loop": (
        "rows = list(loader.dataset)\n", TEXT, [(-1, "no loop over these batches"), (1, "the loader is used here")]
    ),
}  # fmt: skip


def read(root: Path, script: str, pads: dict[Key, Pads]) -> tuple[list[Hop], list[Hop]]:
    (root / "train.py").write_text(HEAD + script)
    entry = entry_facts(Project(root), "train.py", Target(), Options())
    (loader,) = loaders(entry)
    use = loop_use(entry, loader, pads)
    return use.problems, use.corrects


def matches(found: list[Hop], wanted: list[tuple[int, str]]) -> bool:
    """Whether the hops are those wanted: line behind the head, and words of what is said."""
    return len(found) == len(wanted) and all(
        hop.line == LINES + line and words in hop.what for hop, (line, words) in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("name", RIGHT)
def test_width_may_change(tmp_path: Path, name: str) -> None:
    script, pads = RIGHT[name]
    assert read(tmp_path, script, pads) == ([], [])


@pytest.mark.parametrize("name", CORRECTED)
def test_pads_enter_the_result_today(tmp_path: Path, name: str) -> None:
    script, pads, wanted = CORRECTED[name]
    problems, corrects = read(tmp_path, script, pads)
    assert problems == []
    assert matches(corrects, wanted), corrects


@pytest.mark.parametrize("name", WRONG)
def test_width_is_read(tmp_path: Path, name: str) -> None:
    script, pads, wanted = WRONG[name]
    problems, _ = read(tmp_path, script, pads)
    assert matches(problems, wanted), problems
