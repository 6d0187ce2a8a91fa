"""Run the script of a rule case, with a tokenizer and a model that need no download, and record what it trained on.

Right padding that is stripped must leave each batch as it was, cut to its longest sample, and every loss.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch.utils.data import DataLoader

LENGTHS = (3, 17, 9, 40, 5, 28, 12, 70, 8, 21, 33, 6, 15, 2, 50, 11)
PAD, BOS, EOS = 0, 1, 2
Batch = dict[str, torch.Tensor]


class Tokenizer:
    """One token a character; no character is a special token."""

    pad_token_id, bos_token_id, eos_token_id = PAD, BOS, EOS
    pad_token, bos_token, eos_token = "<pad>", "<s>", "</s>"
    padding_side = "right"
    model_max_length = 48

    def __len__(self) -> int:
        return 128

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [3 + ord(letter) % 120 for letter in text]
        return [BOS, *ids] if add_special_tokens else ids

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, truncation: bool = False, max_length: int | None = None
    ) -> Any:
        ids = self.encode(text, add_special_tokens=add_special_tokens)[: max_length if truncation else None]
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": [1] * len(ids)})


@dataclass
class Record:
    """What every loader gave, batch by batch, and every loss that was followed back."""

    batches: list[Batch] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def tiny_model(*_args: Any, **_options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def rows() -> Iterator[str]:
    letters = "abcdefghij klmnop qrstuvwxyz"
    for number, length in enumerate(LENGTHS):
        text = "".join(letters[(number * 7 + k * k) % len(letters)] for k in range(length))
        cut = max(1, length // 3)
        yield json.dumps({"text": text, "prompt": text[:cut], "answer": text[cut:]}) + "\n"


def execute(folder: Path, files: Mapping[str, str], script: str) -> Record:
    """Write the files, run the script in this process and return what it trained on."""
    for path, text in {**files, "train.jsonl": "".join(rows())}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    record = Record()
    with _stubbed(folder, record), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        runpy.run_path(str(folder / script), run_name="__main__")
    return record


@contextmanager
def _stubbed(folder: Path, record: Record) -> Iterator[None]:
    known, iterate, backward = set(sys.modules), DataLoader.__iter__, torch.Tensor.backward

    def recorded(loader: DataLoader[Any]) -> Iterator[Any]:
        for batch in iterate(loader):
            record.batches.append(_fields(batch))
            yield batch

    def followed(loss: torch.Tensor, *args: Any, **options: Any) -> None:
        record.losses.append(float(loss.detach()))
        backward(loss, *args, **options)

    with ExitStack() as stack:
        stack.enter_context(patch.object(DataLoader, "__iter__", recorded))
        stack.enter_context(patch.object(torch.Tensor, "backward", followed))
        stack.enter_context(patch.object(transformers.AutoTokenizer, "from_pretrained", lambda *_a, **_k: Tokenizer()))
        stack.enter_context(patch.object(transformers.AutoModelForCausalLM, "from_pretrained", tiny_model))
        stack.enter_context(patch.object(sys, "argv", ["train.py"]))
        stack.enter_context(patch.object(sys, "path", [str(folder), *sys.path]))
        stack.enter_context(_chdir(folder))
        yield
    for name in set(sys.modules) - known:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    old = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(old)


def _fields(batch: Any) -> Batch:
    pairs = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    return {str(key): value.clone() for key, value in pairs if isinstance(value, torch.Tensor) and value.ndim > 1}


def assert_same(old: Record, new: Record) -> None:
    """Compare two runs batch by batch and loss by loss, as DESIGN 6 ("Exactness") puts it."""
    assert old.losses
    assert len(old.batches) == len(new.batches)
    assert sum(_width(batch) for batch in new.batches) < sum(_width(batch) for batch in old.batches)
    for before, after in zip(old.batches, new.batches, strict=True):
        assert_cut(before, after)
    torch.testing.assert_close(torch.tensor(new.losses), torch.tensor(old.losses), rtol=1e-5, atol=0)


def assert_cut(before: Batch, after: Batch) -> None:
    """The new batch is the old one without the columns in which every row and field is padding."""
    if "input_ids" not in before:
        return assert_cut_shifted(before, after)
    width = _width(after)
    padding = torch.stack([_is_padding(value) for value in before.values()]).all(0)
    assert padding[:, width:].all()
    assert not padding[:, width - 1].all()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        assert torch.equal(value[:, :width], after[key]), key
    for key in after.keys() - before.keys():
        assert key == "attention_mask"
        assert torch.equal(after[key].bool(), ~padding[:, :width])
    return None


def assert_cut_shifted(before: Batch, after: Batch) -> None:
    """Inputs, targets and weights `(ids[:-1], ids[1:], mask[1:])`: each row is the same up to its last target.

    The last token of a sample was an input in front of padding, with no target; without the padding it is none.
    """
    assert before.keys() == after.keys()
    width = _width(after)
    stops = [_stop(row) for row in before[max(before)]]
    assert stops == [_stop(row) for row in after[max(after)]]
    assert max(stops) == width
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        for row, new_row, stop in zip(value, after[key], stops, strict=True):
            assert torch.equal(row[:stop], new_row[:stop]), key


def _stop(row: torch.Tensor) -> int:
    return int((row != PAD).nonzero().max()) + 1


def _is_padding(value: torch.Tensor) -> torch.Tensor:
    """Say where a field holds what padding has at the end of a row: labels -100, everything else 0."""
    fill = -100 if bool((value == -100).any()) else PAD
    return value == fill


def _width(batch: Batch) -> int:
    return next(iter(batch.values())).shape[1]
