"""Models and data on which the fixture projects are measured: their own texts at their real lengths, a larger model.

``python project_data.py PROJECT FOLDER NUM_SAMPLES``. The projects' `make_tiny.py` scale their lengths down; here the
same templates and length lists are used unscaled.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECTS = Path(__file__).parents[2] / "fixtures" / "projects"
HIDDEN, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = 256, 4, 8, 4
# stage1's tokenizer has 1,280 entries; the head is made as wide as in the other benchmarks.
STAGE1_VOCAB = 8000


@dataclass(frozen=True)
class Workload:
    """A fixture project as it is measured.

    Attributes:
        path: the entry point.
        batch_size: samples a step.
        max_length: in tokens, what the legacy script pads to.
        build: makes model and data in a folder for a number of samples, returns the pad id.
        flags: of the script; ``{data}`` is that folder, ``{out}`` one for output, ``{epochs}`` the epochs to train.
        bf16_flags: those with which the script itself computes in bfloat16.
    """

    project: str
    path: str
    batch_size: int
    max_length: int
    build: Callable[[Path, int], int]
    flags: tuple[str, ...]
    bf16_flags: tuple[str, ...] = ()


def _make_tiny(project: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{project}_make_tiny", PROJECTS / project / "make_tiny.py")
    assert spec
    assert spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SCALE = 1.0
    return module


def build_stage1(folder: Path, num_samples: int) -> int:
    """Make a Qwen2 model and the three SFT sets, in the run script's proportions and without the fixed chunks."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tiny, rng = _make_tiny("stage1"), random.Random(42)
    tok = tiny.train_tokenizer(rng, 1280)
    tiny.save_tokenizer(tok, str(folder / "model"))
    torch.manual_seed(42)
    pad, bos, eos = (tok.token_to_id(token) for token in (tiny.PAD, tiny.BOS, tiny.EOS))
    config = Qwen2Config(
        vocab_size=STAGE1_VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 11 // 4,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        use_sliding_window=False,
        pad_token_id=pad,
        bos_token_id=bos,
        eos_token_id=eos,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")

    num_multi_turn, num_cmb = num_samples * 20 // 75, num_samples * 15 // 75
    # The script leaves questions without an answer out.
    cmb = [row for row in tiny.make_cmb(rng, tok, num_cmb + num_cmb // 40 + 2) if row["answer"]][:num_cmb]
    tiny.dump(tiny.make_med_qa(rng, tok, num_samples - num_multi_turn - num_cmb), str(folder / "med_qa.jsonl"))
    tiny.dump(tiny.make_multi_turn(rng, tok, num_multi_turn), str(folder / "multi_turn.json"))
    tiny.dump(cmb, str(folder / "cmb.json"))
    return int(pad)


def build_plain_ddp(folder: Path, num_samples: int) -> int:
    """Make the tokenizer and the conversations; the script makes its model from its flags."""
    tiny, rng = _make_tiny("plain_ddp"), random.Random(2024)
    tok = tiny.train_tokenizer(rng, str(folder))
    with (folder / "sft.jsonl").open("w", encoding="utf-8") as file:
        for number in range(num_samples):
            turns = []
            for turn in range(2 if rng.random() < 0.08 else 1):
                question, answer = tiny.LENGTHS[(number + 37 * turn) % len(tiny.LENGTHS)]
                text = tiny.text_of(rng, tok, question, rng.choice(tiny.ASK))
                turns.append({"role": "user", "content": text})
                turns.append({"role": "assistant", "content": tiny.text_of(rng, tok, answer)})
            file.write(json.dumps({"conversations": turns}, ensure_ascii=False) + "\n")
    return int(tok.token_to_id("<|endoftext|>"))


STAGE1 = Workload(
    "stage1",
    "stage1_nemotron_qwen_djh_deepspeed_dev_zch_v4_lqy.py",
    batch_size=4,
    max_length=1024,
    build=build_stage1,
    flags=(
        *("--model_name_or_path", "{data}/model", "--med_qa_path", "{data}/med_qa.jsonl"),
        *("--multi_turn_path", "{data}/multi_turn.json", "--cmb_path", "{data}/cmb.json"),
        *("--output_dir", "{out}", "--model_max_length", "1024", "--num_train_epochs", "{epochs}"),
        *("--per_device_train_batch_size", "4", "--learning_rate", "3e-4", "--weight_decay", "0.1"),
        *("--adam_beta2", "0.95", "--lr_scheduler_type", "cosine", "--logging_steps", "1", "--seed", "42"),
        *("--save_strategy", "no", "--report_to", "none", "--use_cpu", "True"),
    ),
    bf16_flags=("--bf16", "True"),
)
PLAIN_DDP = Workload(
    "plain_ddp",
    "train_full_sft.py",
    batch_size=8,
    max_length=512,
    build=build_plain_ddp,
    flags=(
        *("--data_path", "{data}/sft.jsonl", "--tokenizer", "{data}/tokenizer", "--out_dir", "{out}"),
        *("--device", "cpu", "--epochs", "{epochs}", "--batch_size", "8", "--learning_rate", "3e-4"),
        *("--log_interval", "1", "--num_workers", "0", "--max_seq_len", "512", "--dim", str(HIDDEN)),
        *("--n_layers", str(NUM_LAYERS), "--n_heads", str(NUM_HEADS), "--n_kv_heads", str(NUM_KV_HEADS)),
    ),
)
WORKLOADS = (STAGE1, PLAIN_DDP)


def main() -> None:
    """Make a project's model and data; the pad id is the last thing printed."""
    project, folder, num_samples = sys.argv[1:]
    workload = next(workload for workload in WORKLOADS if workload.project == project)
    print(workload.build(Path(folder), int(num_samples)))


if __name__ == "__main__":
    main()
