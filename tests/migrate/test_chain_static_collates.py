"""What is said of collates that pad every batch to a fixed length: how they become dynamic, or why they stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedmigrate.chain.static_collates import StaticCollate, static_collates
from speedmigrate.rule import Replace
from tests.migrate.test_chain_optimizer import entry_of

HEAD = """import torch
from torch.utils.data import DataLoader, default_collate
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
width = 512


def collate(rows):
    texts = [row["text"] for row in rows]
"""
CALL = """    batch = tokenizer(texts, padding="max_length", max_length=width, truncation=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    labels = ids.masked_fill(mask == 0, -100)
"""
FIELDS = """    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
"""
TAIL = """

model = AutoModelForCausalLM.from_pretrained("gpt2")
rows = torch.load("rows.pt")
for batch in DataLoader(rows, batch_size=4, collate_fn=collate):
    model(**batch).loss.backward()
"""
WORD = "the tokenizer pads to the longest row of the batch"
TRIM = "what is padding in all rows of the batch is cut where the collate ends"
WIDTH = "the width is the longest row of the batch"


def found(root: Path, body: str, **files: str) -> tuple[StaticCollate, ...]:
    others = {f"{name}.py": text for name, text in files.items()}
    return static_collates(entry_of(root, {"train.py": HEAD + body + TAIL, **others}))


def only(root: Path, body: str, **files: str) -> StaticCollate:
    (one,) = found(root, body, **files)
    return one


@pytest.mark.parametrize(
    "between",
    [
        "",
        "    labels[labels == tokenizer.eos_token_id] = -100\n",
        "    for i, text in enumerate(texts):\n        labels[i, : len(text)] = -100\n",
        "    for row, text in zip(labels, texts):\n        row[: len(text)] = -100\n",
        "    lengths = mask.sum(1)\n",
        "    number = len(ids)\n",
        "    labels = torch.where(mask == 1, ids, -100)\n",
        "    ids, mask = ids.to('cpu').contiguous(), mask.long()\n",
    ],
)
def test_what_is_done_to_each_position_goes_with_a_narrower_batch(tmp_path: Path, between: str) -> None:
    one = only(tmp_path, CALL + between + FIELDS)
    assert one.problems == ()
    assert one.how == WORD


@pytest.mark.parametrize(
    "between",
    [
        "    last = ids[:, -1]\n",
        "    ids = ids[:, :-1]\n",
        "    mean = ids.float().mean(1)\n",
        "    size = ids.shape[1]\n",
        "    size = len(ids[0])\n",
        "    both = torch.cat([ids, ids])\n",
        "    ids = ids.view(-1, width)\n",
        "    total = ids.sum(1)\n",
        "    where = torch.where(labels == tokenizer.eos_token_id)\n",
        "    picked = ids[mask == 1]\n",
        "    assert ids.shape[1] == width\n",
        "    for i in range(ids.size(1)):\n        print(i)\n",
        "    labels -= 1\n",
        "    sums = [float(row.sum()) for row in ids]\n",
    ],
)
def test_where_the_width_may_be_read_the_end_is_trimmed(tmp_path: Path, between: str) -> None:
    one = only(tmp_path, CALL + between + FIELDS)
    assert one.how != WORD
    assert one.problems or one.how == TRIM


def test_something_else_of_the_fixed_length_keeps_the_padding(tmp_path: Path) -> None:
    one = only(tmp_path, CALL + "    positions = torch.zeros(len(rows), width)\n" + FIELDS)
    assert one.problems[0].what == "something else is made `width` long here"
    assert one.ops == ()


def test_a_tokenizers_own_object_is_not_trimmed(tmp_path: Path) -> None:
    one = only(tmp_path, CALL + "    last = ids[:, -1]\n    return batch\n")
    assert one.problems[0].what == "the padded length may be read: ids[:, -1]"


def test_a_processor_is_not_asked_for_a_pad_token(tmp_path: Path) -> None:
    body = CALL.replace("texts,", "texts, images=texts,") + "    last = ids[:, -1]\n" + FIELDS
    assert any("a processor" in hop.what for hop in only(tmp_path, body).problems)


def test_prefixes_shift_under_left_padding(tmp_path: Path) -> None:
    body = (
        CALL.replace("    batch =", '    tokenizer.padding_side = "left"\n    batch =')
        + "    labels[0, :3] = -100\n"
        + FIELDS
    )
    assert only(tmp_path, body).how == TRIM


def test_a_word_from_a_default_is_edited_there(tmp_path: Path) -> None:
    helper = """

def encode(texts, how="max_length"):
    return tokenizer(texts, padding=how, max_length=512)


def collate"""
    body = """    batch = encode(texts)
    mask = torch.tensor(batch["attention_mask"])
    return {"input_ids": torch.tensor(batch["input_ids"]), "attention_mask": mask, "labels": mask - 1}
"""
    text = HEAD.replace("\n\ndef collate", helper) + body + TAIL
    (one,) = static_collates(entry_of(tmp_path, {"train.py": text}))
    assert [hop.what for hop in one.problems] == []
    assert [op.code for op in one.ops if isinstance(op, Replace)] == ['"longest"']


def test_a_width_is_the_longest_of_several_lists(tmp_path: Path) -> None:
    body = """    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row["ids"])] = torch.tensor(row["ids"])
        labels[i, : len(row["labels"])] = torch.tensor(row["labels"])
    return {"input_ids": ids, "labels": labels}
"""
    one = only(tmp_path, body)
    assert one.how == WIDTH
    codes = [getattr(op, "code", "") for op in one.ops]
    assert 'longest = max(len(part) for row in rows for part in (row["ids"], row["labels"]))' in codes


@pytest.mark.parametrize(
    "line", ['        row["ids"].append(2)\n', '        row["ids"] = row["ids"][1:]\n', "        row = dict(row)\n"]
)
def test_rows_that_change_before_they_are_measured(tmp_path: Path, line: str) -> None:
    body = f"""    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
{line}        ids[i, : len(row["ids"])] = torch.tensor(row["ids"])
    return {{"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100)}}
"""
    assert only(tmp_path, body).how != WIDTH


def test_a_batch_of_dicts_is_not_followed(tmp_path: Path) -> None:
    one = only(tmp_path, CALL + '    return {"input_ids": ids}, {"labels": labels}\n')
    assert "part 0 of the batch has fields of its own, which are not followed" in [hop.what for hop in one.problems]


def test_a_class_that_inherits_keeps_the_padding(tmp_path: Path) -> None:
    other = "from train import collate\n\ncollate([1, 2])\n"
    one = only(tmp_path, CALL + FIELDS, other=other)
    assert [hop.path for hop in one.problems] == ["other.py"]


def test_dynamic_collates_are_not_spoken_of(tmp_path: Path) -> None:
    assert found(tmp_path, CALL.replace('"max_length"', "True") + FIELDS) == ()


def test_the_collate_is_covered_whatever_is_said_of_it(tmp_path: Path) -> None:
    one = only(tmp_path, CALL + "    last = ids[:, -1]\n    return batch\n")
    assert one.covers == {one.func.node}
    assert one.name == "collate"


def test_a_row_that_is_read_after_it_was_filled_up(tmp_path: Path) -> None:
    body = """    all_ids, masks = [], []
    for row in rows:
        ids = row["ids"]
        ids.extend([0] * (width - len(ids)))
        all_ids.append(ids)
        masks.append([int(token > 0) for token in ids])
    return {"input_ids": torch.tensor(all_ids), "attention_mask": torch.tensor(masks)}
"""
    assert "pad_sequence" not in str(only(tmp_path, body).ops)


def test_two_calls_of_one_helper_keep_one_length(tmp_path: Path) -> None:
    helper = """

def encode(texts):
    return tokenizer(texts, padding="max_length", max_length=512)["input_ids"]


def collate"""
    body = """    ids, labels = torch.tensor(encode(texts)), torch.tensor(encode(texts[:]))
    return {"input_ids": ids, "labels": labels}
"""
    text = HEAD.replace("\n\ndef collate", helper)
    (one,) = static_collates(entry_of(tmp_path, {"train.py": text + body + TAIL}))
    assert one.how != WORD


def test_branches_of_one_if_are_one_call(tmp_path: Path) -> None:
    body = """    if texts[0]:
        batch = tokenizer(texts, padding="max_length", max_length=width, truncation=True, return_tensors="pt")
    else:
        batch = tokenizer(rows, padding="max_length", max_length=width, truncation=True, return_tensors="pt")
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch
"""
    one = only(tmp_path, body)
    assert one.problems == ()
    assert one.how == WORD


def test_each_length_is_trimmed_for_itself(tmp_path: Path) -> None:
    body = """    ids, mask, labels = [], [], []
    for text in texts:
        source = tokenizer(text, padding="max_length", max_length=width, return_tensors="pt")
        ids.append(source["input_ids"])
        mask.append(source["attention_mask"])
        target = tokenizer(text, padding="max_length", max_length=32, return_tensors="pt")["input_ids"]
        labels.append(target.masked_fill(target == tokenizer.pad_token_id, -100))
    return {"input_ids": torch.cat(ids), "attention_mask": torch.cat(mask), "labels": torch.cat(labels)}
"""
    one = only(tmp_path, body)
    assert one.how == TRIM
    assert [getattr(op, "before", "").strip() for op in one.ops][1:] == ["trim_batch(", "trim_batch("]


def test_ids_alone_do_not_say_what_is_padding(tmp_path: Path) -> None:
    body = CALL + '    last = ids[:, -1]\n    return {"input_ids": ids}\n'
    what = "neither a mask nor labels say which positions of 'input_ids' are padding"
    assert what in [hop.what for hop in only(tmp_path, body).problems]


def test_a_subclass_keeps_the_padding(tmp_path: Path) -> None:
    collator = """

class Collator:
    def __call__(self, rows):
        return collate(rows)


class Longer(Collator):
    pass

"""
    text = HEAD + CALL + FIELDS + collator + TAIL.replace("collate_fn=collate", "collate_fn=Collator()")
    (one,) = static_collates(entry_of(tmp_path, {"train.py": text}))
    assert "Longer inherits from Collator" in [hop.what for hop in one.problems]


def test_a_helper_that_pads_for_others_keeps_the_padding(tmp_path: Path) -> None:
    helper = """

def encode(texts):
    return tokenizer(texts, padding="max_length", max_length=512, return_tensors="pt")


def collate"""
    body = """    batch = encode(texts)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch
"""
    text = HEAD.replace("\n\ndef collate", helper) + body + TAIL
    other = "from train import encode\n\nprint(encode(['a'])['input_ids'].shape)\n"
    (one,) = static_collates(entry_of(tmp_path, {"train.py": text, "other.py": other}))
    assert [(hop.path, hop.what) for hop in one.problems] == [("other.py", "encode pads for others too: encode(['a'])")]


def test_siglip_was_trained_with_one_length(tmp_path: Path) -> None:
    text = (HEAD + CALL + FIELDS + TAIL).replace("AutoModelForCausalLM", "SiglipModel")
    (one,) = static_collates(entry_of(tmp_path, {"train.py": text}))
    assert any("takes text of the length" in hop.what for hop in one.problems)


@pytest.mark.parametrize(
    "line",
    ["ids += [0] * (width - len(ids))", "ids = ids + [0] * (width - len(ids))", "ids.extend([0] * (width - len(ids)))"],
)
def test_rows_that_grow_in_any_of_three_ways(tmp_path: Path, line: str) -> None:
    body = f"""    all_ids = []
    for row in rows:
        ids = list(row["ids"])
        {line}
        all_ids.append(ids[:width])
    return {{"input_ids": torch.LongTensor(all_ids)}}
"""
    one = only(tmp_path, body)
    assert (
        "pad_sequence([torch.LongTensor(row) for row in all_ids], batch_first=True, padding_value=0)" in str(one.ops)
        or one.problems
    )
    assert one.how == "rows keep their own length and are padded to the longest of the batch"


LIGHT = """import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")


def collate(rows):
    batch = tokenizer(rows, padding="max_length", max_length=64, truncation=True, return_tensors="pt")
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch


class Notes(pl.LightningDataModule):
    def setup(self, stage):
        rows = torch.load("rows.pt")
        self.loaders = [DataLoader(rows, batch_size=4, collate_fn=collate)]
        self.tests = DataLoader(rows, batch_size=8, collate_fn=collate)

    def train_dataloader(self):
        return self.loaders

    def test_dataloader(self):
        return self.tests


class Writer(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained("gpt2")

    def training_step(self, batch, batch_idx):
        out = self.model(**batch)
        return {"loss": out.loss, "scores": [out.logits, (out.logits, 1)]}


writer, notes = Writer(), Notes()
trainer = pl.Trainer(callbacks=[])
trainer.fit(writer, datamodule=notes)
"""
MORE = {
    "a test that may be run": ("trainer.fit", "find().test(writer, notes)\ntrainer.fit", "no loop over"),
    "a test that is run": ("trainer.fit", "trainer.test(writer, notes)\ntrainer.fit", "no test_step"),
    "a callback that gets the batch": (
        "writer, notes =",
        "class Shown(pl.callbacks.Callback):\n"
        "    def on_train_batch_start(self, trainer, module, batch, batch_idx):\n"
        "        print(batch)\n\n\nwriter, notes =",
        "`on_train_batch_start` gets the batch",
    ),
    "a callback that gets what steps return": (
        "writer, notes =",
        "class Shown(pl.Callback):\n"
        "    def on_train_batch_end(self, trainer, module, *given):\n        print(given)\n\n\n"
        "writer, notes =",
        "`on_train_batch_end` gets what `training_step` returns",
    ),
    "a data module that moves the batch": (
        "    def test_dataloader",
        "    def on_after_batch_transfer(self, batch, index):\n        return batch\n\n    def test_dataloader",
        "`on_after_batch_transfer` gets the batch",
    ),
    "a step without a batch": ("self, batch, batch_idx", "self", "its parameters are not (self, batch, ...)"),
    "a loss of every position": ('"loss": out.loss', '"loss": out.logits', "has the padded positions"),
    "a mean over all positions": ('"loss": out.loss', '"loss": out.logits.mean()', "`mean` runs over"),
}


@pytest.mark.parametrize("name", MORE)
def test_what_lightning_hands_the_batches_to(tmp_path: Path, name: str) -> None:
    old, new, why = MORE[name]
    (one,) = static_collates(entry_of(tmp_path, {"train.py": LIGHT.replace(old, new, 1)}))
    assert any(why in hop.what for hop in one.problems), one.problems


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("trainer.fit", "notes.test()\ntrainer.fit"),
        ("    def test_", "    def on_train_batch_end(self, outputs, batch):\n        pass\n\n    def test_"),
        ("writer,", "class Shown(pl.Callback):\n    def on_train_start(self, trainer):\n        pass\n\n\nwriter,"),
    ],
)  # fmt: skip
def test_loaders_that_no_run_asks_for(tmp_path: Path, old: str, new: str) -> None:
    text = LIGHT.replace(old, new, 1).replace(
        "class Notes", "class Base:\n    def test(self):\n        pass\n\n\nclass Notes"
    )
    text = text.replace("Notes(pl.LightningDataModule)", "Notes(Base, pl.LightningDataModule)")
    (one,) = static_collates(entry_of(tmp_path, {"train.py": text}))
    assert one.problems == ()


def test_a_collate_that_the_runtime_cuts_is_done(tmp_path: Path) -> None:
    cut = '    return trim_batch({"input_ids": ids, "attention_mask": mask}, {"input_ids": 0, "attention_mask": 0})\n'
    text = "from speedruntime import trim_batch\n" + HEAD + CALL + cut + TAIL
    (one,) = static_collates(entry_of(tmp_path, {"train.py": text}))
    assert (one.ops, one.problems) == ((), ())
    assert one.done is not None
    assert text.splitlines()[one.done.line - 1].startswith("    return trim_batch")
