"""Score `speedmigrate facts` on labelled entry points of real repositories.

python tests/score_facts.py --table open.tsv --repos DIR [--rulings FILE] [--json OUT] [--only ID,...] [--jobs 2]

DIR holds one checkout a repository, named OWNER+NAME. Each repository is read by one process of the real command. The
first fact of a question that has a word is compared with the label; no word is unknown. A cell is right when the word
is one that the label allows (`WORDS`, `TEXTS`, `ALSO`); cells whose label says nothing of the question are left out.
Of several idioms (`flag+tokenizer`) the first counts, of kinds of files (`json+sh`) all.
--rulings: a table with the columns id, column, ruling, where, reason: `ruling` replaces what the label allows, the
place proves it. Both figures are printed. Exit 1 where a bar is missed (ruled, with rulings), 2 on bad usage.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

Row = Mapping[str, str]
Verdict = Literal["right", "wrong", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("right", "wrong", "unknown")
MIN_RIGHT, MIN_RIGHT_A_COLUMN, MAX_WRONG, MAX_RULED = 0.80, 0.70, 0.05, 0.08

FACTS = {
    "padding_place": "padding.place",
    "padding_idiom": "padding.idiom",
    "pad_side": "padding.side",
    "batch_contract": "batch.kind",
    "collator": "collate.kind",
    "loader_place": "loader.place",
    "dataset_in_other_file": "data.place",
    "optimizer_cat": "optimizer.kind",
    "precision_cat": "precision.kind",
    "flags_cat": "flags.place",
}

# What a label of fixed wording means: the words that are right, the label's own first; none where the cell is left out.
WORDS: dict[str, dict[str, str]] = {
    "padding_place": {
        "NONE-DYN": "dynamic", "GETITEM": "getitem", "MAP": "map", "NONE-PACK": "packed",
        "FLAG": "flag", "COLLATOR": "collate", "OFFLINE": "offline", "MODEL": "model",
        # The whole set is padded once: ours says whether a data set's constructor does it (init) or the script (build).
        "FEATURES": "init build", "INIT": "init build", "READ": "init build",
        # Generated in the loop: nothing is padded before it, or its prompts are, a batch at a time.
        "NONE-RL": "none dynamic",
    },
    "padding_idiom": {
        "none": "none", "list_concat": "list_concat", "tok_max_length": "tokenizer", "torch_cat_full/zeros": "cat",
        "pad_to_max_flag": "flag", "torch_full_slice": "full_slice", "np_pad": "np_pad",
        "list_concat + tok_max_length": "list_concat tokenizer", "tok_max_length + F_pad": "tokenizer F_pad",
        "list_concat + np.zeros(NxN)": "list_concat full_slice",
        # The code is there and off by default.
        "while_append (off)": "while_append none", "list_concat (dead)": "list_concat none",
        "padnum_pickle": "list_concat",  # pickled as a number, concatenated by the loader
    },
    "pad_side": {
        "right": "right", "left": "left", "none": "none", "tokenizer default": "tokenizer",
        "tokenizer default (left for GLM)": "tokenizer left", "right (left for xlnet)": "right left",
        "right or left (flag)": "right left", "right (prompt left)": "right left", "right (model_max_length)": "right",
        "right (twice, middle + end)": "right",
        "pad_on_right": "tokenizer right",  # a variable that is the tokenizer's `padding_side == "right"`
    },
    "dataset_in_other_file": {"no": "entry", "yes": "other", "library": "library"},
    "optimizer_cat": {
        "torch.optim.AdamW": "torch_adamw", "torch.optim.Adam (not W)": "torch_adam", "LOMO family": "lomo",
        "TrainingArguments / HF default": "hf_default", "TrainingArguments explicit optim string": "hf_optim",
        "transformers.AdamW": "transformers_adamw", "DeepSpeed json/dict section": "deepspeed_config",
        "own / vendored class": "own", "DeepSpeed FusedAdam/CPUAdam in code": "deepspeed_class",
        "apex FusedAdam": "apex_fused", "Adafactor": "adafactor", "paged / 8-bit": "bnb_8bit_or_paged",
    },
    "precision_cat": {
        "shell / README flag": "flag", "fp32 only": "fp32", "shell flag + json": "flag_and_json",
        "TrainingArguments / dtype literal in code": "code_literal", "GradScaler / autocast": "grad_scaler",
        ".half() (+ flag/json)": "half", "DeepSpeed json": "deepspeed_json", "apex amp": "apex_amp",
        "accelerate config": "accelerate_config", "Lightning/Fabric precision": "lightning",
        "DeepSpeed dict in Python": "deepspeed_dict", "not set in the repo": "unset", "other": "other",
        "yaml": "yaml accelerate_config",
    },
    "flags_cat": {
        "sh": "sh", "sh+json": "json+sh", "code": "code", "README": "README", "yaml": "yaml", "json": "json",
        "json+README": "README+json", "json+yaml": "json+yaml", "sh+yaml": "sh+yaml", "sh+json+yaml": "json+sh+yaml",
    },
}  # fmt: skip

# What a label of free wording means: the first pattern found in it decides.
TEXTS: dict[str, tuple[tuple[str, str], ...]] = {
    "batch_contract": (
        (r"^dict\b", "dict"),
        (r"^tuple of two dicts", "tuple nested"),
        (r"^tuple\b", "tuple"),
        (r"^tensor$", "tensor"),
        (r"^list of", "list"),
        (r"^nested dict", "nested dict"),
        (r"^see dataset$", ""),
    ),
    "collator": (
        (r"^see dataset$", ""),
        (r"default_collate \(strings\)", "own default"),
        (r"^TaskCollator:|^own\b|^partial\(|^closure$|^dataset[. ]collate|lambda|identity", "own"),
        (r"^DataCollator \(|^my_collate|^batchify|^fault_tolerance|^concat_pad|^dict (of|\{)", "own"),
        (r"^none passed -> HF default$", "hf_default"),
        (r"^HF default", "hf_default hf:default_data_collator"),
        (r"^none\b|__iter__$", "none"),
        (r"^(framework|trainer)$", "framework"),
        (r"^TRL$", "framework hf:RewardDataCollatorWithPadding"),
        (r"^HF / TRL$", "hf:DataCollatorForLanguageModeling hf:DataCollatorForCompletionOnlyLM"),
        (r"^HF LM collator$", "hf:DataCollatorForLanguageModeling"),
        (r"^HF$", "hf:DataCollatorForSeq2Seq"),  # says the row's padding_where
        (r"^get_dataloader_kwargs", "hf:default_data_collator hf:DataCollatorForSeq2Seq"),  # by the batching strategy
        (r"DataCollatorForMultipleChoice", "own hf:DataCollatorForMultipleChoice hf_default hf:default_data_collator"),
        (r"default_data_collator / DataCollatorWithPadding", "hf:default_data_collator hf:DataCollatorWithPadding"),
        (r"default_data_collator / DataCollatorForSeq2Seq", "hf:default_data_collator hf:DataCollatorForSeq2Seq"),
        (r"DataCollatorWithPadding / default", "hf:DataCollatorWithPadding hf:default_data_collator"),
        (r"DataCollatorForSeq2Seq", "hf:DataCollatorForSeq2Seq"),
        (r"DataCollatorForLanguageModeling", "hf:DataCollatorForLanguageModeling"),
        (r"^default_data_collator", "hf:default_data_collator hf_default"),
        (r"^default / stack$", "default own"),
        (r"^default(_collate)?\b", "default"),
    ),
    "loader_place": (
        (r"^(same file / data module)$", "entry other"),
        (r"^same file", "entry"),
        (r"\b(DataLoader|Trainer) here\b|^DataLoader in entry|^Trainer in main\.py", "entry"),
        (r"^deepspeed\.initialize\(training_data", "entry"),
        (r"^DataLoader in (pretrain|sft|gpt2_ft)\.py|in train\.py$", "entry"),  # the row's own file
        (r"^vendored trainer\.py", "entry other"),  # made here, its class stands there
        (r"no DataLoader", "none"),
        (r"^own class$", "none entry"),
        # These speak of the data only.
        (r"^dataset in|^features built in library code$", ""),
        (r"^other file$|^data module in other file$|\(other file\)$|elsewhere", "other"),
        (r"DataModule$|[/_a-z]\.py$|\+ dataset/$|^fengshen/data/", "other"),
    ),
}

# What else is right where a label matches and another column's text says so: (label, other column, text, words).
ALSO: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    # Rows that a tokenizer pads are labelled by its side or as "tokenizer default", as it came.
    "pad_side": (
        ("^right", "padding_idiom", r"tok_max_length|pad_to_max_flag", "tokenizer"),
        ("^right", "padding_where", r"tokenizer|longest|padding=True", "tokenizer"),
        ("^right", "collator", r"DataCollatorFor(Seq2Seq|LanguageModeling)|DataCollatorWithPadding|^HF", "tokenizer"),
        ("^right", "padding_where", r"DataCollatorFor(Seq2Seq|LanguageModeling|CompletionOnlyLM)", "tokenizer"),
    ),
    "collator": (("^default$", "framework_cat", r"^HF", "hf_default hf:default_data_collator"),),
    "optimizer_cat": (
        ("", "optimizer", r"\bds[- ]json|json also", "deepspeed_config"),
        ("", "optimizer", r"\btransformers\.AdamW", "transformers_adamw"),
        ("", "optimizer", r"\btorch(\.optim)?[. ]AdamW", "torch_adamw"),
        ("", "optimizer", r"CPUAdam", "deepspeed_class"),
        ("", "optimizer", r"apex", "apex_fused"),
        ("", "optimizer", r"Adafactor", "adafactor"),
        ("", "optimizer", r"adamw_(torch|hf)|TrainingArguments$|TrainingArguments field", "hf_optim"),
        ("", "optimizer", r"adamw_torch.*HF default", "hf_default"),
        ("", "optimizer", r"AnyPrecisionAdamW", "own"),
        ("", "optimizer", r"getattr\(torch\.optim", "torch_other"),
    ),
    "precision_cat": (
        ("flag$", "precision_now", r"^n/s$", "unset"),  # the flags exist, nothing in the repository gives them
        ("^apex amp$", "precision", r"GradScaler", "grad_scaler"),
        ("^accelerate config$", "precision", r"in code", "code_literal"),
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One label beside what the tool said; `said` is None where it said no word."""

    id: str
    path: str
    column: str
    label: str
    allowed: tuple[str, ...]
    ruled: tuple[str, ...] | None
    said: str | None
    evidence: str

    def verdict(self, *, with_rulings: bool) -> Verdict:
        """Return how what was said compares with what is allowed."""
        if self.said is None:
            return "unknown"
        allowed = self.ruled if with_rulings and self.ruled is not None else self.allowed
        word = in_order(self.said) if self.column == "flags_cat" else self.said.partition("+")[0]
        return "right" if word in allowed else "wrong"


def in_order(word: str) -> str:
    """Return kinds joined by `+` in one order."""
    return "+".join(sorted(word.split("+")))


def allowed(row: Row, column: str) -> tuple[str, ...] | None:
    """Return the words that a row's label allows, none where it says nothing; None where the label is not known."""
    label = row[column]
    if column in WORDS:
        words = WORDS[column].get(label)
    else:
        words = next((words for pattern, words in TEXTS[column] if re.search(pattern, label)), None)
    if words is None:
        return None
    found = words.split()
    if found:
        for pattern, other, text, more in ALSO.get(column, ()):
            if re.search(pattern, label) and re.search(text, row[other]):
                found += more.split()
    return tuple(dict.fromkeys(found))


def unmapped(rows: Iterable[Row]) -> list[str]:
    """Return the labels that the tables do not know."""
    return [
        f"{row['id']}: {column} {row[column]!r}" for row in rows for column in FACTS if allowed(row, column) is None
    ]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one process said of the entry points of a repository."""

    entries: Mapping[str, Mapping[str, Any]]
    cpu_s: float
    errors: tuple[str, ...]


def ask(repo: Path, paths: Sequence[str]) -> Answer:
    """Run the command on the entry points of a repository, in one process."""
    if not repo.is_dir():
        return Answer({}, 0.0, (f"{repo.name}: absent",))
    command = [sys.executable, "-m", "speedmigrate", "facts", *paths, "--root", ".", "--format", "json"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, cwd=repo, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        said = err.read().decode("utf-8", "replace").splitlines()
        try:
            data = json.loads(out.read())
        except ValueError:
            data = {"entries": [], "errors": [{"message": f"exit {child.returncode}, no JSON: {said[-1:]}"}]}
    failed = [error["message"] for error in data["errors"] if "bug of speedmigrate" in error["message"]]
    errors = (*said, *failed, *(error["message"] for error in data["errors"] if not data["entries"]))
    cpu_s = usage.ru_utime + usage.ru_stime
    return Answer(
        {entry["path"]: entry for entry in data["entries"]}, cpu_s, tuple(f"{repo.name}: {line}" for line in errors)
    )


def cells(row: Row, entry: Mapping[str, Any], rulings: Mapping[tuple[str, str], str]) -> Iterable[Cell]:
    """Yield the cells of a row that its labels say something of."""
    facts = entry.get("facts", ())
    for column, name in FACTS.items():
        words = allowed(row, column)
        if not words:
            continue
        ruling = rulings.get((row["id"], column))
        same = [fact for fact in facts if fact["name"] == name]
        fact = next((fact for fact in same if fact["value"] is not None), None)
        places = fact["evidence"] if fact else [hop for each in same for hop in each["unknown"]]
        evidence = "; ".join(f"{hop['path']}:{hop['line']} {hop['what']}" for hop in places[:2])
        ruled = None if ruling is None else tuple(map(in_order, ruling.split("|")))
        said = fact["value"] if fact else None
        yield Cell(row["id"], row["path"], column, row[column], words, ruled, said, evidence)


def shares(found: Sequence[Cell], *, with_rulings: bool) -> dict[str, float]:
    """Return the share of right, wrong and unknown cells."""
    verdicts = [cell.verdict(with_rulings=with_rulings) for cell in found]
    return {word: verdicts.count(word) / max(len(verdicts), 1) for word in VERDICTS}


def missed(found: Sequence[Cell], *, with_rulings: bool) -> list[str]:
    """Return the bars that are missed, a line each."""
    total = shares(found, with_rulings=with_rulings)
    lines = []
    if total["right"] < MIN_RIGHT:
        lines.append(f"right {total['right']:.1%} overall, at least {MIN_RIGHT:.0%} is needed")
    if total["wrong"] > MAX_WRONG:
        lines.append(f"wrong {total['wrong']:.1%} overall, at most {MAX_WRONG:.0%} is allowed")
    for column in FACTS:
        of = [cell for cell in found if cell.column == column]
        right = shares(of, with_rulings=with_rulings)["right"]
        if of and right < MIN_RIGHT_A_COLUMN:
            lines.append(f"{column}: right {right:.1%}, at least {MIN_RIGHT_A_COLUMN:.0%} is needed")
        ruled = sum(cell.ruled is not None for cell in of) / max(len(of), 1)
        if with_rulings and ruled > MAX_RULED:
            lines.append(f"{column}: {ruled:.1%} of the labels ruled, at most {MAX_RULED:.0%} is allowed")
    return lines


def table(found: Sequence[Cell], num_rows: int, *, with_rulings: bool) -> Iterable[str]:
    """Yield the figures of each column and in all."""
    yield f"{'':<22}{'cells':>6}{'left out':>9}{'right':>12}{'wrong':>12}{'unknown':>12}  no place"
    for column in (*FACTS, "all"):
        of = [cell for cell in found if column in {cell.column, "all"}]
        verdicts = [cell.verdict(with_rulings=with_rulings) for cell in of]
        counts = [f"{verdicts.count(word):>4} {verdicts.count(word) / max(len(of), 1):>6.1%}" for word in VERDICTS]
        silent = sum(cell.said is None and not cell.evidence for cell in of)
        left_out = num_rows * (len(FACTS) if column == "all" else 1) - len(of)
        yield f"{column:<22}{len(of):>6}{left_out:>9}{''.join(f'{count:>12}' for count in counts)}{silent:>10}"


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a tab-separated table with a header."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def main(arguments: Sequence[str]) -> int:
    """Score and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--repos", type=Path, required=True)
    parser.add_argument("--rulings", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(arguments)
    wanted = set(filter(None, args.only.split(",")))
    rows = [row for row in read_table(args.table) if not wanted or row["id"] in wanted]
    unknown_labels = unmapped(rows)
    if unknown_labels or not rows:
        print("\n".join(["no rows" if not rows else "labels that are not mapped:", *unknown_labels]), file=sys.stderr)
        return 2
    rulings = {(one["id"], one["column"]): one["ruling"] for one in read_table(args.rulings)} if args.rulings else {}

    paths: dict[str, list[str]] = {}
    for row in rows:
        paths.setdefault(row["repo"].replace("/", "+"), []).append(row["path"])
    with ThreadPoolExecutor(args.jobs) as pool:
        answers = dict(zip(paths, pool.map(lambda name: ask(args.repos / name, paths[name]), paths), strict=True))
    entries = {row["id"]: answers[row["repo"].replace("/", "+")].entries.get(row["path"], {}) for row in rows}
    found = [cell for row in rows for cell in cells(row, entries[row["id"]], rulings)]

    for answer in answers.values():
        print("".join(f"{line}\n" for line in answer.errors), end="")
    blind = [row["id"] for row in rows if not entries[row["id"]].get("trains")]
    print(f"{len(rows)} entry points; no training code found in {len(blind)}: {' '.join(blind)}\n")
    for cell in found:
        verdict = cell.verdict(with_rulings=bool(rulings))
        if verdict != "right":
            ruled = "" if cell.ruled is None else f", ruled {'|'.join(cell.ruled)}"
            print(
                f"{verdict}\t{cell.id}\t{cell.path}\t{cell.column}\t{cell.label}{ruled}\t{cell.said}\t{cell.evidence}"
            )
    for name, with_rulings in (("raw", False), ("ruled", True)):
        if rulings or not with_rulings:
            print(f"\n{name}", *table(found, len(rows), with_rulings=with_rulings), sep="\n")
    others = sum(cell.said in cell.allowed[1:] for cell in found)
    print(f"\n{others} cells are right by a word that their label's text names beside the first")
    cpu_s = [answer.cpu_s / len(paths[name]) for name, answer in answers.items() for _ in paths[name]]
    print(f"CPU: {sum(cpu_s):.1f} s; an entry point: median {median(cpu_s):.2f} s, most {max(cpu_s):.2f} s (its share)")
    lines = missed(found, with_rulings=bool(rulings))
    print("\n".join(f"missed: {line}" for line in lines) or "all bars met")
    if args.json:
        by_repo = {name: answer.cpu_s for name, answer in answers.items()}
        data = {"cells": [asdict(cell) for cell in found], "cpu_s": by_repo, "missed": lines}
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
