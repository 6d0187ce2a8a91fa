"""HF Trainer computes in bfloat16.

## What it does
`fp16=True` becomes `bf16=True`, and a run in float32 gets `bf16=True`: in the `TrainingArguments(...)` call, or in the
launch files whose flags decide. A DeepSpeed JSON that fixes `fp16.enabled` to true is changed with it; "auto" follows.

## When it is refused
Target below sm_80; a model loaded or cast to float16; a quantised base; arguments that are not followed; a launch file
whose flag cannot be changed safely.

## Effect
`precision`. From float16: the range of float32, no loss scaling. From float32: matrix products in bfloat16,
parameters and optimizer state stay in float32.

## References
- https://huggingface.co/docs/transformers/perf_train_gpu_one#bf16
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.arguments import Arguments, is_on
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.hftrainer import TrainerSettings, section, trainer_settings
from speedmigrate.facts.loaders import HF_TRAINERS
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Const, Ext
from speedmigrate.launch.find import Launch
from speedmigrate.launch.flags import replace_flag, set_flag
from speedmigrate.launch.jsonfile import rename_json, set_json
from speedmigrate.rule import Example, Finding, Hop, Op, Place, RemoveKeyword, Rule, SetKeyword


def check(entry: EntryFacts) -> Iterator[Finding]:
    trainers = list(entry.calls("transformers", *HF_TRAINERS))
    if not trainers:
        return
    place = trainers[0][0].module.place(trainers[0][0].node)
    if entry.options.precision == "keep":
        yield RULE.finding("done", place, "the precision is kept (--precision keep)")
        return
    if entry.target.old_transformers:
        yield RULE.finding("refused", place, entry.target.old_transformers)
        return
    settings = list(trainer_settings(entry))
    if not settings:
        yield RULE.finding("refused", place, "the Trainer's arguments are not followed to TrainingArguments")
        return
    literal = [s for s in settings if s.arguments.literal is not None]
    if literal:
        yield _literal(entry, literal[0])
    else:
        yield from _flags(entry, settings[0])


def _literal(entry: EntryFacts, settings: TrainerSettings) -> Finding:
    expr = settings.arguments.literal
    assert expr is not None
    assert isinstance(expr.node, ast.Call)
    place = expr.module.place(expr.node)
    bf16, fp16 = (call_argument(expr.node, None, name) for name in ("bf16", "fp16"))
    values = [None if given is None else entry.values.one(expr.at(given)) for given in (bf16, fp16)]
    constants = [value.value if isinstance(value, Const) else None for value in values]
    if constants[0] is True:
        return RULE.finding("done", place, "bf16=True already")
    if has_spread(expr.node):
        return RULE.finding(
            "refused", place, "TrainingArguments gets arguments through * or **, which may already set the precision"
        )
    if any(
        given is not None and not isinstance(value, Const) for given, value in zip((bf16, fp16), values, strict=True)
    ):
        return RULE.finding("refused", place, "bf16 or fp16 is computed, and what from is not followed")
    reason = next(_reasons(entry), None)
    if reason is not None:
        return RULE.finding("refused", place, f"the precision stays: {reason.what} ({reason.path}:{reason.line})")
    start, end = expr.module.source.span(expr.node)
    ops: list[Op] = [SetKeyword(expr.module.path, start, end, "bf16", "True")]
    if fp16 is not None:
        ops.append(RemoveKeyword(expr.module.path, start, end, "fp16"))
    before = "float16" if constants[1] else "float32"
    return _change(place, ops, before, (expr.hop("the Trainer's arguments"),))


def _change(place: Place, ops: list[Op], before: str, evidence: tuple[Hop, ...]) -> Finding:
    told = " (stability more than speed)" if before == "float16" else ""
    return RULE.finding(
        "change",
        place,
        f"Trainer computes in bfloat16 instead of {before}{told}",
        ops=tuple(dict.fromkeys(ops)),
        evidence=evidence,
        needs=("sm_80", "torch>=1.13", "transformers>=4.30"),
    )


def _reasons(entry: EntryFacts) -> Iterator[Hop]:
    """Yield why the precision must stay."""
    if entry.target.arch < 80:
        yield Hop(entry.path, 1, f"bf16 needs sm_80, the target is sm_{entry.target.arch} ({entry.target.arch_from})")
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "half" and not site.node.args:
            yield site.expr.hop(f"float16 parameters by `{site.expr.text[:40]}`")
        for word in ("torch_dtype", "dtype"):
            given = call_argument(site.node, None, word)
            if given is not None and _is_load(site.node):
                kinds = {v.last for v in entry.values.of(site.expr.at(given)) if isinstance(v, Ext)}
                if kinds & {"float16", "half"} and not kinds & {"bfloat16"}:
                    yield site.expr.hop("the model is loaded in float16")
        for word in ("load_in_8bit", "load_in_4bit"):
            given = call_argument(site.node, None, word)
            if given is not None and not (isinstance(given, ast.Constant) and not given.value):
                yield site.expr.hop(f"the base may be quantised ({word})")
        given = call_argument(site.node, None, "quantization_config")
        if given is not None and not (isinstance(given, ast.Constant) and given.value is None):
            yield site.expr.hop("the base may be quantised (quantization_config)")


def _is_load(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr in {"from_pretrained", "from_config"}


def _flags(entry: EntryFacts, settings: TrainerSettings) -> Iterator[Finding]:
    """Flags decide: look at every launch file."""
    place = settings.loader.site.module.place(settings.loader.site.node)
    arguments = settings.arguments
    default = arguments.default(entry, "bf16")
    if default is not None and default[0] is True and not any(_says(launch, "fp16") for launch in entry.launches):
        yield RULE.finding("done", place, "bf16 is on by default in the arguments' class")
        return
    if not entry.launches:
        yield RULE.finding(
            "note",
            place,
            "no launch file that is followed starts this script: pass --bf16 True where you start it",
        )
        return
    ops: list[Op] = []
    before: set[str] = set()
    evidence: list[Hop] = []
    for launch in entry.launches:
        found = _launch(entry, launch, arguments)
        if isinstance(found, Hop):
            yield RULE.finding(
                "refused", Place(found.path, found.line, found.line), f"the precision stays: {found.what}"
            )
        elif not found:
            flag = launch.flag("bf16")
            line = flag.line if flag is not None else launch.line
            yield RULE.finding("done", Place(launch.path, line, line), f"{launch.path} passes bf16 already")
        else:
            ops += found
            before.add("float16" if _says(launch, "fp16") else "float32")
            evidence.append(Hop(launch.path, launch.line, f"starts the run with {sorted(before)[0]}"))
    if ops:
        reason = next(_reasons(entry), None)
        if reason is not None:
            yield RULE.finding(
                "refused",
                place,
                f"the precision stays: {reason.what} ({reason.path}:{reason.line})",
                evidence=(reason,),
            )
        else:
            yield _change(place, ops, " or ".join(sorted(before)), tuple(evidence))


def _says(launch: Launch, name: str) -> bool:
    flag = launch.flag(name)
    return flag is not None and bool(is_on(flag.value, flag.literal))


def _launch(entry: EntryFacts, launch: Launch, arguments: Arguments) -> list[Op] | Hop:
    """Return the edits that make one launch compute in bfloat16: none where it does, a reason where it cannot be
    done."""
    flags = {name: launch.flag(name) for name in ("bf16", "fp16")}
    for name, flag in flags.items():
        if flag is not None and is_on(flag.value, flag.literal) is None:
            return Hop(launch.path, flag.line, f"the value of --{name} cannot be read")
    if _says(launch, "bf16"):
        return []
    if launch.unread:
        return Hop(launch.path, launch.line, f"the command holds `{launch.unread[0]}`, which may hold flags")
    source = entry.project.source(launch.script)
    if source is None:
        return Hop(launch.path, launch.line, "the launch file cannot be read")
    if _says(launch, "fp16"):
        assert flags["fp16"] is not None
        edits = replace_flag(launch, source, "fp16", "bf16", flags["fp16"].value)
    else:
        edits = set_flag(launch, source, "bf16", "True")
    if edits is None:
        return Hop(launch.path, launch.line, "the flag cannot be written safely")
    config = _config_ops(entry, launch)
    return config if isinstance(config, Hop) else [*edits, *config]


def _unsafe(launch: Launch) -> Hop:
    return Hop(launch.path, launch.line, "the DeepSpeed config cannot be written safely")


def _config_ops(entry: EntryFacts, launch: Launch) -> list[Op] | Hop:
    """A DeepSpeed config must follow: "auto" does, a fixed `fp16.enabled` is changed, a missing bf16 section is
    added."""
    ops: list[Op] = []
    doc = section(entry, launch, "fp16")
    if doc is None or (section(entry, launch, "bf16") is not None and doc.get("fp16", "enabled") == "auto"):
        return ops
    if doc.get("fp16") == {"enabled": True} and doc.get("bf16") is None:
        return list(rename_json(doc, ("fp16",), "bf16") or ()) or _unsafe(launch)
    if doc.get("fp16", "enabled") is True:
        edits = set_json(doc, ("fp16", "enabled"), False)
        if edits is None:
            return _unsafe(launch)
        ops += edits
    value = "auto" if doc.get("fp16", "enabled") == "auto" else True
    if doc.get("bf16", "enabled") is None or doc.get("bf16", "enabled") is False:
        edits = (
            set_json(doc, ("bf16", "enabled"), value)
            if doc.get("bf16") is not None
            else set_json(doc, ("bf16",), {"enabled": value})
        )
        if edits is None:
            return _unsafe(launch)
        ops += edits
    return ops


RULE = Rule(
    code="SM202",
    name="trainer_bf16",
    title="HF Trainer computes in bfloat16",
    goal="precision",
    effect="precision",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "float16 in the arguments",
            before="""from datasets import load_from_disk
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
arguments = TrainingArguments("out", fp16=True)
trainer = Trainer(model=model, args=arguments, train_dataset=load_from_disk("rows"))
trainer.train()
""",
            after="""from datasets import load_from_disk
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
arguments = TrainingArguments("out", bf16=True)
trainer = Trainer(model=model, args=arguments, train_dataset=load_from_disk("rows"))
trainer.train()
""",
        ),
        Example(
            "bfloat16 already",
            before="""from datasets import load_from_disk
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
arguments = TrainingArguments("out", bf16=True)
trainer = Trainer(model=model, args=arguments, train_dataset=load_from_disk("rows"))
trainer.train()
""",
            after=None,
        ),
    ),
)
