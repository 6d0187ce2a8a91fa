"""Large linear layers compute in FP8.

## What it does
Adds `convert_to_float8(model)` before the layers are compiled. The runtime swaps large `torch.nn.Linear` layers for
torchao's rowwise FP8 ones where the GPU has FP8 and most of the work is in such layers, says which and why not the
others, and changes nothing anywhere else. Parameters and checkpoint keys stay.

## When it is refused
It asks for a word: `--precision fp8` or `--target arch=sm_90` (sm_89 and up). Refused where the layers cannot be
compiled (FP8 without compile is slower), and below torch 2.4.

## Effect
`precision`: matrix products of 8-bit floats with one scale a row. `SPEEDRUNTIME_DISABLE=float8` turns it off at run
time.

## References
- https://github.com/pytorch/ao/tree/main/torchao/float8
"""

from __future__ import annotations

from collections.abc import Iterator

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.places import anchor
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import AddImport, Example, Finding, Place, Rule
from speedmigrate.rules import compile_layers


def check(entry: EntryFacts) -> Iterator[Finding]:
    named = entry.target.arch_named and entry.target.arch >= 89
    if entry.options.precision != "fp8" and not (entry.options.precision == "auto" and named):
        return
    place = Place(entry.path, 1, 1)
    if entry.target.torch < (2, 4):
        yield RULE.finding("refused", place, f"FP8 needs torch>=2.4, the target is {entry.target.torch_said}")
        return
    compiled = [finding for finding in compile_layers.check(entry) if finding.status == "change"]
    found = anchor(entry)
    if not compiled or found is None:
        yield RULE.finding(
            "refused", place, "FP8 pays only in compiled layers, and this model's layers are not compiled (see SM401)"
        )
        return
    yield RULE.finding(
        "change",
        found.module.place(found.statement),
        f"large linear layers of {found.models[0].name} compute in FP8 where the GPU has it",
        ops=(
            AddImport(found.module.path, "speedruntime", "convert_to_float8"),
            found.insert("convert_to_float8", order=0),
            *runtime_requirement(entry.project, found.module.path),
        ),
        requires=(compile_layers.group_name(entry),),
        evidence=(found.site.expr.hop("the model is complete here"),),
        needs=("speedmigrate[runtime,fp8]", "torch>=2.4", "sm_89"),
    )


RULE = Rule(
    code="SM203",
    name="float8",
    title="Large linear layers compute in FP8 (asks for --precision fp8 or --target arch=sm_90)",
    goal="precision",
    effect="precision",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "nobody asked for it",
            before="""from datasets import load_from_disk
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
arguments = TrainingArguments("out")
trainer = Trainer(model=model, args=arguments, train_dataset=load_from_disk("rows"))
trainer.train()
""",
            after=None,
        ),
    ),
)
