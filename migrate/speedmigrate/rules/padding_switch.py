"""The repository's own switch for padding is turned to each batch's longest row.

## What it does
Finds the flag, field or constant that chooses between padding to a fixed length and padding each batch to its own
longest row, and turns it off: its default in the code, and its value in the launch files that give one. Nothing else
changes: the branch that then runs is the repository's.

## When it is refused
When the run is not whole with the switch off: a collate that only stacks, another operation that pads to a fixed length
all the same, an assertion that forbids it, labels that nothing pads; when the same flag orders the samples; when
another entry point that shares the default is not whole; when a launch file cannot be written safely.

## Effect
`exact`: the tokens, their mask and their labels stay, the pads after the longest row of each batch go. `corrects` where
the fixed-length branch had no mask, or counted pads in the loss or in a softmax over positions, or padded on the left,
where positions shift with the width.

## References
- https://huggingface.co/docs/transformers/pad_truncation
- https://huggingface.co/docs/transformers/main_classes/data_collator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.flags import Flag, Given
from speedmigrate.chain.switch_gaps import corrections, uneven_predictions
from speedmigrate.chain.switches import Switch, switches
from speedmigrate.facts.arguments import json_text, yaml_text
from speedmigrate.facts.entry import EntryFacts, entry_facts
from speedmigrate.facts.padding import starters
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.launch.find import Launch
from speedmigrate.launch.flags import remove_flag, set_flag
from speedmigrate.launch.jsonfile import set_json
from speedmigrate.launch.yamlfile import set_yaml
from speedmigrate.rule import Example, Finding, Hop, Op, Place, Replace, Rule, SetKeyword

_OFF_TEXTS = {"True": "False", "TRUE": "FALSE", "true": "false", "1": "0", "yes": "no", "False": "True"}
_OFF_TEXTS |= {"false": "true", "0": "1", "no": "yes"}


def check(entry: EntryFacts) -> Iterator[Finding]:
    for switch in switches(entry):
        hop = switch.flag.hop
        place = Place(hop.path, hop.line, hop.line)
        reason = _reason(entry, switch)
        if reason is None and switch.is_off:
            message = f"rows are not padded to a fixed length, the switch {switch.flag.name} is off: {_said(switch)}"
            yield RULE.finding("done", place, message, evidence=switch.hops)
            continue
        ops = reason or _ops(entry, switch)
        if isinstance(ops, Hop):
            message = f"the repository's own switch {switch.flag.name} stays: {ops.what} ({ops.path}:{ops.line})"
            yield RULE.finding("refused", place, message, evidence=(*switch.hops, ops))
            continue
        yield _change(entry, switch, place, ops)


def _reason(entry: EntryFacts, switch: Switch) -> Hop | None:
    """Return why a switch is left alone; of one that is off only what pads all the same."""
    unread = next((each for each in switch.given if not each.known), None)
    if unread is not None:
        return Hop(unread.place.path, unread.place.line, f"what it is given by {unread.place.what} cannot be read")
    problems = switch.fixed if switch.is_off else switch.problems
    return problems[0] if problems else None


def _said(switch: Switch) -> str:
    flag = switch.flag
    where = "on a GPU" if flag.kind == "device" else "by default"
    texts = [f"{flag.default} {where} ({flag.hop.path}:{flag.hop.line})"]
    told = [each for each in switch.given if not each.by_default]
    texts += [f"{each.value} in {each.place.path}:{each.place.line}" for each in told[:3]]
    if len(told) > 3:
        texts.append(f"and so in {len(told) - 3} other launch files")
    elif not told and switch.given[0].launch is not None:
        texts.append("no launch file turns it on")
    return ", ".join(texts)


def _change(entry: EntryFacts, switch: Switch, place: Place, ops: list[Op]) -> Finding:
    wrong = tuple(corrections(entry, switch))
    message = (
        f"the repository's own switch {switch.flag.name} pads every row to a fixed length; off, each batch is padded "
        "to its own longest row"
    )
    if wrong:
        message += f". Before: {wrong[0].what}"
    uneven = uneven_predictions(entry)
    if uneven is not None:
        message += f". Evaluate in one process: with more, {uneven.what}, which transformers below 4.6 cannot"
    given = tuple(each.place for each in switch.given if switch.is_on(each.value))
    evidence = tuple(dict.fromkeys((*switch.hops, *given, *wrong)))
    return RULE.finding(
        "change", place, message, ops=tuple(dict.fromkeys(ops)), evidence=evidence,
        effect="corrects" if wrong else "exact",
    )  # fmt: skip


def _ops(entry: EntryFacts, switch: Switch) -> list[Op] | Hop:
    ops: list[Op] = []
    if any(each.by_default and switch.is_on(each.value) for each in switch.given):
        shared = _shared(entry, switch)
        default = shared or _default(switch)
        if isinstance(default, Hop):
            return default
        ops.append(default)
    other = _other_reader(entry, switch) if switch.flag.kind == "config" else None
    for each in switch.given:
        edits = other or _launch(entry, switch, each, flipped=bool(ops))
        if isinstance(edits, Hop):
            return edits
        ops += edits
    return ops


def _default(switch: Switch) -> Op | Hop:
    flag = switch.flag
    code = _code(switch)
    if flag.written is not None:
        start, end = flag.written.module.source.span(flag.written.node)
        return Replace(flag.written.module.path, start, end, code)
    if flag.argparse is None:
        return Hop(flag.hop.path, flag.hop.line, "its default is not written out")
    call = flag.argparse.call
    start, end = call.module.source.span(call.node)
    return SetKeyword(call.module.path, start, end, "default", code)


def _code(switch: Switch) -> str:
    """Return the value that is off as the default is written: a string, a number or a boolean."""
    if not switch.flag.is_bool:
        return f'"{switch.off}"'
    is_number = isinstance(switch.flag.default, int) and not isinstance(switch.flag.default, bool)
    return str(int(bool(switch.off))) if is_number else str(bool(switch.off))


def _shared(entry: EntryFacts, switch: Switch) -> Hop | None:
    """Return what is missing in another entry point that has the same default."""
    flag = switch.flag
    for path in sorted(starters(entry, flag.hop.path) - {entry.path}):
        other = entry_facts(entry.project, path, entry.target, entry.options)
        same = [each for each in switches(other) if each.flag.key is flag.key]
        problem = next((hop for each in same for hop in each.problems), None)
        if problem is not None:
            return Hop(problem.path, problem.line, f"{path} has the same default, and there {problem.what}")
        if not same and any(_mentions(scope, flag) for _, scope, _ in other.scopes):
            return Hop(path, 1, f"{path} has the same default and reads it in a way that is not followed")
    return None


def _other_reader(entry: EntryFacts, switch: Switch) -> Hop | None:
    """Return a script that is not of the run and may read the same config file."""
    run = {module.path for module, _, _ in entry.scopes}
    for module in entry.project.modules_mentioning(switch.flag.name):
        if module.path not in run:
            return Hop(module.path, 1, f"{module.path} may read {switch.flag.name} of the same config")
    return None


def _mentions(scope: ast.AST, flag: Flag) -> bool:
    return any(flag.name in {getattr(node, "attr", None), getattr(node, "id", None)} for node in own_nodes(scope))


def _launch(entry: EntryFacts, switch: Switch, each: Given, *, flipped: bool) -> list[Op] | Hop:
    """Return the edits that turn the switch off in one launch."""
    launch, flag = each.launch, switch.flag
    if each.by_default:
        return []
    if flag.kind == "config":
        return _in_file(entry, switch, each.place) if switch.is_on(each.value) else []
    if launch is None:
        return []
    negated = launch.flag(f"no_{flag.name}") if flag.kind == "field" else None
    if negated is not None:
        # The parser of transformers has `--no_flag` only where the default is True.
        return _written(entry, launch, negated.name, None) if flipped else []
    if not switch.is_on(each.value):
        return []
    if each.place.path.endswith((".json", ".yaml", ".yml")):
        return _in_file(entry, switch, each.place)
    name = next((option for option in flag.options if launch.flag(option) is not None), flag.name)
    found = launch.flag(name)
    bare = found is None or found.value is None or flag.takes_any_text
    if bare and not flipped and switch.is_on(flag.default):
        return each.place
    text = str(switch.off)
    if flag.is_bool and found is not None:
        text = _OFF_TEXTS.get(str(found.value), text)
    return _written(entry, launch, name, None if bare else text)


def _written(entry: EntryFacts, launch: Launch, name: str, text: str | None) -> list[Op] | Hop:
    source = entry.project.source(launch.script)
    edits = None
    if source is not None:
        edits = remove_flag(launch, source, name) if text is None else set_flag(launch, source, name, text)
    return Hop(launch.script, launch.line, f"--{name} cannot be written safely here") if edits is None else [*edits]


def _in_file(entry: EntryFacts, switch: Switch, place: Hop) -> list[Op] | Hop:
    """Turn the switch off in a file of arguments."""
    assert isinstance(switch.off, bool | str)
    keys = switch.flag.keys or (switch.flag.name,)
    json, yaml = json_text(entry, place.path), yaml_text(entry, place.path)
    edits = set_json(json, keys, switch.off) if json is not None else None
    if json is None and yaml is not None:
        edits = set_yaml(yaml, keys, switch.off)
    return Hop(place.path, place.line, "it cannot be written safely here") if edits is None else [*edits]


_EXAMPLE = """from dataclasses import dataclass, field

from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


@dataclass
class DataArguments:
    static: bool = field(default=True)


data_args, training_args = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
tokenizer = AutoTokenizer.from_pretrained("roberta-base")
padding = "max_length" if data_args.static else False


def encode(rows):
    return tokenizer(rows["text"], padding=padding, max_length=256, truncation=True)


trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("roberta-base"),
    args=training_args,
    train_dataset=load_dataset("csv", data_files="train.csv")["train"].map(encode, batched=True),
    data_collator=default_data_collator if data_args.static else DataCollatorWithPadding(tokenizer),
)
trainer.train()
"""

RULE = Rule(
    code="SM105",
    name="padding_switch",
    title="The repository's own switch pads each batch to its longest row",
    goal="padding",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "a field of the arguments",
            before=_EXAMPLE,
            after=_EXAMPLE.replace("default=True", "default=False"),
        ),
        Example(
            "a collate that only stacks",
            before=_EXAMPLE.replace(
                "default_data_collator if data_args.static else DataCollatorWithPadding(tokenizer)",
                "default_data_collator",
            ),
            after=None,
        ),
    ),
)
