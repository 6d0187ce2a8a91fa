"""What is done with the batches of an HF Trainer: small repositories, about half of which must be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from speedmigrate.facts.entry import EntryFacts, entry_facts
from speedmigrate.facts.hftrainer import trainer_settings
from speedmigrate.facts.loaders import Loader, loaders
from speedmigrate.facts.project import Project
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.trainer_use import grouped, trainer_use
from speedmigrate.rule import Hop, Options
from speedmigrate.target import Target
from tests.migrate.fakes import write_files

HEAD = """\
import torch
import transformers
from functools import partial
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForQuestionAnswering, Trainer, TrainingArguments
from transformers import AutoModelForSequenceClassification, PreTrainedModel, Seq2SeqTrainer


class Rows(torch.utils.data.Dataset):
    def __getitem__(self, i):
        return {"input_ids": [1, 2]}


def stack(rows):
    return rows


"""
MODEL = 'model = AutoModelForCausalLM.from_pretrained("x")\n'
PLAIN = MODEL + "trainer = Trainer(model=model, train_dataset=Rows())\ntrainer.train()\n"
IDS: dict[Key, Pads] = {"input_ids": Pads(None, "tok.pad_token_id"), "labels": Pads(-100, "-100")}
MASKED: dict[Key, Pads] = {**IDS, "attention_mask": Pads(0, "0")}
METHODS = "".join(
    f"    def {name}(self, *args):\n        return None\n\n"
    for name in ("get_train_dataloader", "create_optimizer", "training_step")
)
COPY = (
    "class Copy:\n"
    + METHODS.replace("return None", "return DataLoader(self.train_dataset, collate_fn=self.data_collator)", 1)
    + "    def compute_loss(self, model, inputs, return_outputs=False):\n"
)


def facts(root: Path, text: str, **files: str) -> EntryFacts:
    write_files(root, {"train.py": HEAD + text, **{f"{name}.sh": value for name, value in files.items()}})
    return entry_facts(Project(root), "train.py", Target(), Options())


def trainer(entry: EntryFacts) -> Loader:
    found = [loader for loader in loaders(entry) if loader.kind == "Trainer"]
    assert len(found) == 1
    return found[0]


def use(root: Path, text: str, pads: Mapping[Key, Pads] = IDS, **files: str) -> Use:
    entry = facts(root, text, **files)
    return trainer_use(entry, trainer(entry), pads)


def whats(hops: Sequence[Hop]) -> str:
    return "\n".join(hop.what for hop in hops)


FREE = {
    "plain": PLAIN,
    "save and optimizer": "class Own(Trainer):\n    def _save(self, output_dir=None):\n        pass\n\n"
    "    def create_optimizer(self):\n        return None\n\n    def _get_train_sampler(self):\n        return None\n\n"
    + PLAIN.replace("= Trainer(", "= Own("),
    "loss that adds": "class Own(Trainer):\n    def compute_loss(self, model, inputs, return_outputs=False):\n"
    "        outputs = model(**inputs)\n        self.log({'loss': outputs.loss.item()})\n"
    "        return (outputs.loss, outputs) if return_outputs else outputs.loss\n\n"
    + PLAIN.replace("= Trainer(", "= Own("),
    "quantised and adapted": "from peft import get_peft_model\n"
    + MODEL
    + "model = model.quantize(4)\nmodel = get_peft_model(model, None)\nTrainer(model, train_dataset=Rows()).train()\n",
    "gradient hook": MODEL
    + "def needed(module, given, output):\n    output.requires_grad_(True)\n\n"
    + "model.get_input_embeddings().register_forward_hook(needed)\nTrainer(model, train_dataset=Rows()).train()\n",
    "causal attention is patched": "import transformers\nfrom flash_attn import flash_attn_func\n\n"
    "def forward(self, x):\n    b, n, _ = x.size()\n    q = self.q_proj(x).view(b, n, self.num_heads, -1)\n"
    "    return self.o_proj(flash_attn_func(q, q, q, causal=True).reshape(b, n, -1))\n\n"
    "transformers.models.llama.modeling_llama.LlamaAttention.forward = forward\n" + PLAIN,
    "metrics that leave -100 out": "def metrics(p):\n    preds = p.predictions.argmax(-1)[:, :-1].reshape(-1)\n"
    "    labels = p.label_ids[:, 1:].reshape(-1)\n    return {'acc': (preds == labels)[labels != -100].mean()}\n\n"
    + PLAIN.replace("Rows())", "Rows(), eval_dataset=Rows(), compute_metrics=metrics)"),
    "copy of the trainer": COPY
    + "        out = model(**inputs)\n        return out['loss'] if isinstance(out, dict) else out[0]\n\n"
    + PLAIN.replace("= Trainer(", "= Copy("),
    "prompt is cut from the generated": "class Own(Seq2SeqTrainer):\n"
    "    def prediction_step(self, model, inputs, *rest):\n        made = self.model.generate(**inputs)\n"
    "        return made[:, inputs['input_ids'].size()[-1]:]\n\n"
    + PLAIN.replace("= Trainer(", "= Own(").replace("Rows())", "Rows(), eval_dataset=Rows())"),
    "grouped by length": MODEL
    + "args = TrainingArguments('out', group_by_length=True)\nTrainer(model, args, train_dataset=Rows()).train()\n",
    "noise is off": MODEL
    + "args = TrainingArguments('out', neftune_noise_alpha=None)\nTrainer(model, args, train_dataset=Rows()).train()\n",
}


@pytest.mark.parametrize("name", FREE)
def test_the_width_is_free(tmp_path: Path, name: str) -> None:
    found = use(tmp_path, FREE[name])
    assert (whats(found.problems), whats(found.corrects)) == ("", "")
    assert found.models
    assert found.backward
    assert found.hops


def own(method: str) -> str:
    return f"class Own(Trainer):\n{method}\n\n" + PLAIN.replace("= Trainer(", "= Own(")


REFUSED = {
    "unknown model": ("Trainer(model=build(), train_dataset=Rows()).train()\n", "not followed"),
    "no model": ("Trainer(train_dataset=Rows()).train()\n", "not an argument that can be followed"),
    "unknown arguments": (MODEL + "Trainer(model, **load()).train()\n", "through * or **"),
    "arguments of a list": (MODEL + "Trainer(*load(), model=model, **{}).train()\n", "through * or **"),
    "dict that is updated": (MODEL + "d = dict(train_dataset=Rows())\nd.update(x)\nTrainer(model, **d)\n", "**"),
    "loss of the last position": (
        own("    def compute_loss(self, model, inputs):\n        return model(**inputs).logits[:, -1].sum()"),
        "takes positions by their number",
    ),
    "step of its own": (
        own("    def training_step(self, model, inputs):\n        return model(inputs['input_ids'][:, :8]).loss"),
        "takes positions by their number",
    ),
    "batches are cut": (
        own("    def _prepare_inputs(self, inputs):\n        return {k: v[:, :8] for k, v in inputs.items()}"),
        "`Own._prepare_inputs` overrides",
    ),
    "collator of its own": (
        own("    def __init__(self, **kwargs):\n        super().__init__(data_collator=stack(1), **kwargs)"),
        "sets a collator of its own",
    ),
    "collator is set again": (PLAIN.replace("trainer.train", "trainer.data_collator = stack\ntrainer.train"), "again"),
    "loaders of its own": (
        own("    def get_train_dataloader(self):\n        return DataLoader(Rows(), collate_fn=stack)"),
        "by another collate",
    ),
    "noise": (
        MODEL + "args = TrainingArguments('o', neftune_noise_alpha=5)\nTrainer(model, args, None, Rows()).train()\n",
        "neftune_noise_alpha depends",
    ),
    "loss function": (PLAIN.replace("Rows())", "Rows(), compute_loss_func=stack)"), "compute_loss_func"),
    "hook": (PLAIN.replace("trainer =", "model.register_forward_hook(stack)\ntrainer ="), "a hook sees"),
    "attention in groups is patched": (
        "from flash_attn import flash_attn_func\n\ndef forward(self, x):\n    b, n, _ = x.size()\n"
        "    g = n // 4\n    q = x.view(b * 4, g, 8, -1)\n    return flash_attn_func(q, q, q, causal=True)\n\n"
        "transformers.models.llama.modeling_llama.LlamaAttention.forward = forward\n" + PLAIN,
        "LlamaAttention.forward` is set",
    ),
    "attention both ways is patched": (
        "from flash_attn import flash_attn_func\n\ndef forward(self, x):\n    return flash_attn_func(x, x, x)\n\n"
        "transformers.models.llama.modeling_llama.LlamaAttention.forward = forward\n" + PLAIN,
        "LlamaAttention.forward` is set",
    ),
    "another method is patched": (
        "transformers.models.llama.modeling_llama.LlamaModel.forward = stack\n" + PLAIN,
        "LlamaModel.forward` is set",
    ),
    "callback": (
        "class Watch(transformers.TrainerCallback):\n    def on_step_end(self, args, train_dataloader=None, **rest):\n"
        "        print(next(iter(train_dataloader)))\n\n" + PLAIN,
        "a callback reads the batches",
    ),
    "metrics of the last position": (
        "def metrics(p):\n    return {'a': (p.predictions[:, -2].argmax(-1) == 3).mean()}\n\n"
        + PLAIN.replace("Rows())", "Rows(), compute_metrics=metrics)"),
        "positions are taken by their number",
    ),
    "metrics of a fixed length": (
        "def metrics(p):\n    preds, labels = p\n    return {'a': preds.reshape(8, 512)[labels != -100].mean()}\n\n"
        + PLAIN.replace("Rows())", "Rows(), compute_metrics=partial(metrics))"),
        "brought to a fixed shape",
    ),
    "metrics of a library": (
        "from other import metrics\n" + PLAIN.replace("Rows())", "Rows(), compute_metrics=metrics)"),
        "compute_metrics is not followed",
    ),
    "predictions by number": (
        PLAIN + "found = trainer.predict(Rows())\nscores = found.predictions\nprint(scores[:, 7])\n",
        "positions are taken by their number",
    ),
    "evaluation by number": (
        own("    def predict(self, x):\n        return x[:, 7]").replace("Rows())", "Rows(), eval_dataset=Rows())"),
        "positions are taken by their number",
    ),
    "made for one width": (
        PLAIN.replace('AutoModelForCausalLM.from_pretrained("x")', 'transformers.SiglipModel.from_pretrained("x")'),
        "made for one width",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    text, why = REFUSED[name]
    found = use(tmp_path, text)
    assert found.problems
    assert why in whats(found.problems)


CORRECTED: dict[str, tuple[str, Mapping[Key, Pads], str]] = {
    "labels are counted": (PLAIN, {**IDS, "labels": Pads(0, "0")}, "the labels are 0 at pads"),
    "mask of ones": (PLAIN, {**IDS, "attention_mask": Pads(1, "1")}, "the attention mask is 1 at pads"),
    "left without a mask": (
        PLAIN,
        {"input_ids": Pads(0, "0", "left")},
        "pads on the left move the positions",
    ),
    "unknown class": (PLAIN.replace("AutoModelForCausalLM.f", "AutoModel.f"), IDS, "without a mask"),
    "spans": (
        PLAIN.replace("AutoModelForCausalLM.f", "AutoModelForQuestionAnswering.f"),
        {"input_ids": Pads(0, "0"), "attention_mask": Pads(0, "0")},
        "the softmax over the positions of a span",
    ),
    "metrics count pads": (
        "def metrics(p):\n    return {'a': (p.predictions.argmax(-1) == p.label_ids).mean()}\n\n"
        + PLAIN.replace("Rows())", "Rows(), compute_metrics=metrics)"),
        IDS,
        "compute_metrics counts the labels of pads",
    ),
}


@pytest.mark.parametrize("name", CORRECTED)
def test_corrected(tmp_path: Path, name: str) -> None:
    text, pads, what = CORRECTED[name]
    found = use(tmp_path, text, pads)
    assert not found.problems
    assert what in whats(found.corrects)


def test_scores_of_rows_have_no_width(tmp_path: Path) -> None:
    text = "def metrics(p):\n    return {'a': p.predictions[:, 1].mean()}\n\n" + PLAIN.replace(
        "Rows())", "Rows(), compute_metrics=metrics)"
    ).replace("AutoModelForCausalLM.f", "AutoModelForSequenceClassification.f")
    found = use(tmp_path, text, {"input_ids": Pads(0, "0"), "attention_mask": Pads(0, "0")})
    assert (found.problems, found.corrects, found.masked) == ([], [], True)


OWN = """\
class Own(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.llm = AutoModelForCausalLM.from_config(config)
        self.head = torch.nn.Linear(8, 8)

    def forward(self, input_ids, attention_mask=None, labels=None):
        embeds = self.llm.get_input_embeddings()(input_ids)
        B, N, C = embeds.shape
        embeds = embeds.reshape(B * N, C).reshape(B, N, C)
        hidden = self.llm(inputs_embeds=embeds, attention_mask=attention_mask)[0]
        LINE
        return self.head(hidden)


model = Own.from_pretrained("x")
Trainer(model=model, train_dataset=Rows()).train()
"""


@pytest.mark.parametrize(
    "line",
    [
        "kept = hidden[:, 1:]",
        "first = hidden[:, 0].mean(dim=1)",
        "chosen = hidden[torch.arange(B), attention_mask.sum(1) - 1].mean(dim=0)",
        "flat = hidden.view(-1, C)",
        "joined = torch.cat([self.queries, hidden], dim=1)",
    ],
)
def test_a_loaded_model_takes_any_width(tmp_path: Path, line: str) -> None:
    found = use(tmp_path, OWN.replace("LINE", line), MASKED)
    assert (whats(found.problems), whats(found.corrects)) == ("", "")
    assert "its mask hides the pads" in whats(found.hops)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("pooled = hidden.mean(dim=1)", "averages over the padded width"),
        ("last = hidden[:, -1]", "a position is taken from the end"),
        ("pooled = hidden.max(dim=1)", "looks across the positions"),
        ("total = hidden.sum(dim=1)", "adds up over the padded width"),
        ("flat = hidden.view(8, 512, 64)", "a shape of a fixed length"),
        ("flat = hidden.view(-1, self.config.max_length)", "a shape of a fixed length"),
        ("joined = torch.cat([hidden, self.queries], dim=1)", "put behind the pads"),
        ("torch.distributed.all_gather(self.others, hidden)", "go to other ranks"),
        ("mixed = torch.nn.Conv1d(8, 8, 3)(hidden)", "not known to keep positions apart"),
        ("other = unknown(hidden)", "not known to keep positions apart"),
    ],
)
def test_a_loaded_model_reads_the_width(tmp_path: Path, line: str, why: str) -> None:
    assert why in whats(use(tmp_path, OWN.replace("LINE", line), MASKED).problems)


def test_a_mask_that_is_not_read(tmp_path: Path) -> None:
    text = OWN.replace("attention_mask=attention_mask", "").replace("LINE", "pass")
    assert "without a mask" in whats(use(tmp_path, text, MASKED).corrects)


SPREAD = """\
def module():
    data = dict(train_dataset=Rows(), eval_dataset=None)
    data["data_collator"] = stack
    return data


def other():
    return {"train_dataset": Rows()}


found = FOUND
"""


def test_arguments_of_a_dict(tmp_path: Path) -> None:
    text = SPREAD.replace("FOUND", "module()") + MODEL + "Trainer(model=model, **found).train()\n"
    loader = trainer(facts(tmp_path, text))
    assert [name for name, _ in loader.datasets] == ["train_dataset", "eval_dataset"]
    assert loader.collate is not None
    assert loader.collate.text == "stack"
    assert not loader.spread


def test_one_of_two_dicts(tmp_path: Path) -> None:
    text = SPREAD.replace("FOUND", "module() if x else other()") + MODEL + "Trainer(model=model, **found).train()\n"
    loader = trainer(facts(tmp_path, text))
    assert [name for name, _ in loader.datasets] == ["train_dataset", "train_dataset", "eval_dataset"]
    assert not loader.spread


@pytest.mark.parametrize("made", ["dict([1])", "{**other()}", "{name: Rows()}", "dict(**other())", "load()"])
def test_dicts_that_are_not_followed(tmp_path: Path, made: str) -> None:
    assert trainer(facts(tmp_path, f"{MODEL}found = {made}\nTrainer(model=model, **found).train()\n")).spread


def test_a_data_set_that_is_set_later(tmp_path: Path) -> None:
    text = MODEL + "trainer = Trainer(model)\ntrainer.train_dataset = Rows()\ntrainer.train()\n"
    assert [(name, expr.text) for name, expr in trainer(facts(tmp_path, text)).datasets] == [
        ("train_dataset", "Rows()")
    ]


def test_a_copy_has_no_settings(tmp_path: Path) -> None:
    text = COPY + "        return model(**inputs)[0]\n\n" + PLAIN.replace("= Trainer(", "= Copy(")
    entry = facts(tmp_path, text)
    assert [loader.kind for loader in loaders(entry)] == ["Trainer"]
    assert trainer(entry).copied
    assert not list(trainer_settings(entry))


def test_loaders_that_a_subclass_makes(tmp_path: Path) -> None:
    method = (
        "    def get_train_dataloader(self):\n        data = self.train_dataset\n"
        "        return DataLoader(data, collate_fn=stack)\n"
    )
    entry = facts(tmp_path, own(method))
    made, fed = loaders(entry)
    assert (made.kind, made.trainer is not None, fed.datasets) == ("DataLoader", True, ())
    assert [(name, expr.text) for name, expr in made.datasets] == [("train_dataset", "Rows()")]
    assert not trainer_use(entry, made, IDS).problems


def test_grouping_orders_by_the_length_of_rows(tmp_path: Path) -> None:
    entry = facts(tmp_path, PLAIN, run="python train.py --group_by_length True\n")
    assert [hop.path for hop in grouped(entry)] == ["run.sh"]


VENDORED = """\
import einops
from transformers.activations import ACT2FN
from peft import get_peft_model
from torch.nn.utils import skip_init
from torch.utils.checkpoint import checkpoint


class Block(torch.nn.Module):
    def __init__(self, init=skip_init):
        super().__init__()
        self.proj = init(torch.nn.Linear, 8, 8)
        self.act = ACT2FN["silu"]
        self.scale = torch.nn.Parameter(torch.ones(8))
        self.table = torch.nn.Parameter(torch.zeros(1, 512, 8))

    def forward(self, hidden, mask, past=None, use_cache=False):
        if past is not None:
            hidden = hidden[:, -8:]
        if use_cache:
            hidden = hidden[:, -4:]
        scores = torch.softmax(hidden @ hidden.transpose(1, 2) + mask, dim=-1)
        out = scores @ self.proj(hidden)
        out += hidden * self.scale + self.table[:, : out.shape[1]]
        print(out[:, -1].max().item(), torch.nn.functional.pad(out, (1, 0)))
        BLOCK
        return self.normed(self.act(out), *[out])

    def normed(self, hidden, *others, **options):
        if hidden.dim() == 4:
            return self.normed(hidden[0])
        return hidden


class Fast(Block):
    def forward(self, hidden, mask, past=None, use_cache=False):
        return super().forward(hidden, mask)


class Inner(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(10, 8)
        self.layers = torch.nn.ModuleList([Fast() for _ in range(2)])
        self.final = torch.nn.LayerNorm(8)

    def set_input_embeddings(self, new):
        self.embed = new

    def get_prompt(self, rows):
        return self.final(torch.zeros(rows, 4, 8))

    def forward_train(self, input_ids, attention_mask=None, labels=None):
        batch, length = input_ids.shape[:2]
        hidden = self.embed(input_ids)
        spans = [row.tolist().index(1) for row in input_ids]
        for start in spans:
            print(start)
        mask = attention_mask[:, None, :].float()
        mask = torch.cat([self.get_prompt(batch)[:, :, 0], mask], dim=1)
        for layer in self.layers:
            if self.training:

                def made(module):
                    def run(*inputs):
                        return module(*inputs, None)

                    return run

                hidden = checkpoint(made(layer), hidden, mask)
                hidden = checkpoint(layer, hidden, mask, use_reentrant=False)
            else:
                hidden = layer(hidden, mask, **{"use_cache": False})
        hidden = hidden.view(batch, length, 2, -1).reshape(batch, length, 8)
        sizes = {name: part.size(0) for name, part in {"h": hidden}.items()}
        print(sizes, hidden.size(-1), hidden.device, hidden.numel(), (lambda: 1)())
        HERE
        loss = torch.nn.CrossEntropyLoss(reduction="none")(hidden.view(-1, 8), labels.view(-1))
        weight = (labels != -100).sum()
        return (loss * (labels.view(-1) != -100)).sum() / weight, hidden


class Outer(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.lm = Inner(config)
        if config.use_lora:
            self.lm = get_peft_model(self.lm, None)

    def set_decoder(self, new):
        self.lm = new

    def forward(self, input_ids, attention_mask=None, labels=None):
        kept = einops.rearrange(input_ids, "b n -> b n")
        return self.lm.forward_train(kept, attention_mask, labels=labels)


model = Outer.from_pretrained("x")
Trainer(model=model, train_dataset=Rows()).train()
"""


def vendored(block: str = "pass", here: str = "pass") -> str:
    return VENDORED.replace("BLOCK", block).replace("HERE", here)


def test_a_model_that_is_copied_into_the_root(tmp_path: Path) -> None:
    found = use(tmp_path, vendored(), MASKED)
    assert (whats(found.problems), whats(found.corrects)) == ("", "")


@pytest.mark.parametrize(
    ("block", "here", "why"),
    [
        ("out = out[:, -3:]", "pass", "positions are counted from the end"),
        ("out = out[:, ::2]", "pass", "positions are counted from the end"),
        ("out = out[:, :-2]", "pass", "positions are counted from the end"),
        ("out = self.scan(out)", "pass", "not known to keep positions apart"),
        ("out = Row()(out)", "pass", "not known to keep positions apart"),
        ("pass", "x = torch.nn.CrossEntropyLoss(ignore_index=0)(hidden, labels)", "ignores another label"),
        ("out = out + self.table", "pass", "a table of a fixed size"),
        ("out = self.proj(out.transpose(1, 2))", "pass", "not known to keep positions apart"),
        ("out = torch.nn.functional.pad(out, (0, 0, 0, 512 - out.shape[1]))", "pass", "rows are padded in the model"),
        ("pass", "x = (hidden * 2).mean(1)", "averages over the padded width"),
        ("pass", "x = Gathered.apply(hidden)", "go to other ranks"),
        ("pass", "x = hidden.sum(1)", "adds up over the padded width"),
        ("pass", "x = self.embed.missing(hidden)", "not known to keep positions apart"),
    ],
)
def test_a_copied_model_that_reads_the_width(tmp_path: Path, block: str, here: str, why: str) -> None:
    assert why in whats(use(tmp_path, vendored(block, here), MASKED).problems)


SMALL = """\
class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.embed(input_ids)
        LINE
        logits = self.head(hidden)
        return torch.nn.functional.cross_entropy(logits.view(-1, 10), labels.view(-1)), logits


Trainer(model=Small(), train_dataset=Rows()).train()
"""


def test_a_model_that_is_trained_from_nothing(tmp_path: Path) -> None:
    found = use(tmp_path, SMALL.replace("LINE", "pass"), MASKED)
    assert (whats(found.problems), whats(found.corrects)) == ("", "")
    assert use(tmp_path, SMALL.replace("LINE", "hidden = hidden[:, -1]"), MASKED).problems


def test_a_model_without_a_forward(tmp_path: Path) -> None:
    text = (
        'class Bare(PreTrainedModel):\n    pass\n\nTrainer(Bare.from_pretrained("x"), train_dataset=Rows()).train()\n'
    )
    assert "no forward that can be read" in whats(use(tmp_path, text).problems)
