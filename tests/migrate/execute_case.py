"""Run the script of a rule case, with a tokenizer and a model that need no download, and record what it trained on.

Padding that leaves must leave each batch as it was, cut to its longest sample, with every loss and the gradients.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tokenizers
import torch
import transformers

from tests.executed.compare import Stream, assert_same_samples, leaves, loss_error, relative_l2
from tests.executed.recorder import Recorder, recording

LENGTHS = (3, 17, 9, 40, 5, 28, 12, 70, 8, 21, 33, 6, 15, 2, 50, 11)
PAD, BOS, EOS = 0, 1, 2


def tokenizer() -> Any:
    """One token a character; no character is a special token."""
    letters = {chr(code): 3 + code % 120 for code in range(32, 127)}
    special = {"<pad>": PAD, "<s>": BOS, "</s>": EOS}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({**special, **letters}, unk_token="</s>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="right",
        model_max_length=48, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


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


def execute(folder: Path, files: Mapping[str, str], script: str) -> Recorder:
    """Write the files, run the script in this process and return what it trained on."""
    for path, text in {**files, "train.jsonl": "".join(rows())}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    recorder = Recorder()
    with _stubbed(folder), recording(recorder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        runpy.run_path(str(folder / script), run_name="__main__")
    return recorder


@contextmanager
def _stubbed(folder: Path) -> Iterator[None]:
    known = set(sys.modules)
    with ExitStack() as stack:
        stack.enter_context(patch.object(transformers.AutoTokenizer, "from_pretrained", lambda *_a, **_k: tokenizer()))
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


def assert_same(old: Recorder, new: Recorder) -> None:
    """Compare two runs sample by sample and loss by loss, as DESIGN 6 ("Exactness") puts it."""
    assert old.losses
    was, now = _batches(old), _batches(new)
    streams = tuple(_cut(was, now))
    assert_same_samples(was, now, *streams)
    for before, after in zip(was, now, strict=True):
        _assert_tight(leaves(before), leaves(after), streams)
    assert loss_error(old.losses, new.losses) <= 1e-5
    assert old.gradients is not None
    assert new.gradients is not None
    assert relative_l2(old.gradients, new.gradients) <= 1e-5


def _batches(recorder: Recorder) -> list[Any]:
    """Return the tensors of each step: what a loader gave, or what the model got where no collate made them."""
    made = any(isinstance(value, torch.Tensor) for batch in recorder.batches for value in leaves(batch).values())
    return recorder.batches if made else recorder.calls


def _cut(old: list[Any], new: list[Any]) -> Iterator[Stream]:
    """Yield the fields that became shorter, those of one length together, with what was cut off them."""
    removed: dict[str, set[float]] = {}
    widths: dict[str, list[tuple[int, int]]] = {}
    for before, after in zip(map(leaves, old), map(leaves, new), strict=True):
        tensors = {name: value for name, value in before.items() if isinstance(value, torch.Tensor) and value.ndim}
        shift = int(_shifted(list(tensors.values())))
        for name, value in tensors.items():
            widths.setdefault(name, []).append((value.shape[-1], after[name].shape[-1]))
            removed.setdefault(name, set()).update(_ends(value, after[name], shift).flatten().tolist())
    cut = {name: tuple(both) for name, both in widths.items() if any(was > width for was, width in both)}
    assert cut, "no batch became shorter"
    for both in sorted(set(cut.values())):
        names = [name for name, its in cut.items() if its == both]
        assert all(len(removed[name]) == 1 for name in names), removed
        shifted = _shifted([leaves(old[0])[name] for name in names])
        yield Stream({name: removed[name].pop() for name in names}, counted=names[-1] if shifted else "")


def _ends(before: torch.Tensor, after: torch.Tensor, shift: int) -> torch.Tensor:
    """Return what was cut off a field: its left end, if the right one stayed."""
    start = before.shape[-1] - after.shape[-1]
    if torch.equal(before[..., start:], after):
        return before[..., :start]
    return before[..., after.shape[-1] + shift :]


def _shifted(fields: list[torch.Tensor]) -> bool:
    """Say whether a batch is (inputs, targets) or (inputs, targets, weights), a target being the next input."""
    if len(fields) not in (2, 3) or fields[0].shape != fields[1].shape:
        return False
    others = fields[1][..., :-1][fields[0][..., 1:] != fields[1][..., :-1]]
    return bool((others == others[:1]).all())


def _assert_tight(before: dict[str, Any], after: dict[str, Any], streams: tuple[Stream, ...]) -> None:
    """The new batch is as wide as its longest sample, and not wider than the old one."""
    for stream in streams:
        pads = {**stream.pads, "attention_mask": 0} if "attention_mask" in after else stream.pads
        for column in (0, -1):
            assert any((after[name][..., column] != pad).any() for name, pad in pads.items()), stream
        assert all(after[name].shape[-1] <= before[name].shape[-1] for name in stream.pads)
