"""HF Trainer's AdamW steps in one fused kernel.

## What it does
Sets `optim` to `adamw_torch_fused` where it is `adamw_torch`, `adamw_hf` or `adamw_apex_fused`, or the library's
default is one of them: in the `TrainingArguments(...)` call, in a subclass's field, and in the launch files whose
flag would win.

## When it is refused
Another optimizer is asked for; a subclass of the Trainer makes its own; DeepSpeed without an optimizer section before
torch 2.4 (the optimizer is built on CPU parameters there, and fused raises). A DeepSpeed section owns its optimizer.

## Effect
`exact`: Trainer writes lr, betas, eps and weight decay from the same arguments.

## References
- https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments.optim
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from speedmigrate.facts.arguments import Arguments, offloads
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.hftrainer import TrainerSettings, is_deepspeed, overrides, section, trainer_settings
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Attr, Const, Expr, Inst
from speedmigrate.launch.find import Launch
from speedmigrate.launch.flags import set_flag
from speedmigrate.rule import Example, Finding, InsertStatement, Op, Replace, Rule, SetKeyword

FUSED = "adamw_torch_fused"
# Names of DeepSpeed and accelerate configs.
_CONFIG = re.compile(r"deepspeed|zero|ds[_-]|accelerate", re.IGNORECASE)
_SLOW = frozenset({"adamw_torch", "adamw_hf", "adamw_apex_fused"})


def check(entry: EntryFacts) -> Iterator[Finding]:
    seen: set[int] = set()
    for settings in trainer_settings(entry):
        if entry.target.old_transformers:
            place = settings.loader.site.module.place(settings.loader.site.node)
            yield RULE.finding("refused", place, entry.target.old_transformers)
            return
        if id(settings.loader.site.node) not in seen:
            seen.add(id(settings.loader.site.node))
            yield from _findings(entry, settings)
    if not seen:
        for site, _ in entry.calls("transformers", "Trainer", "Seq2SeqTrainer"):
            yield RULE.finding(
                "refused", site.module.place(site.node), "the Trainer's arguments are not followed to TrainingArguments"
            )


def _findings(entry: EntryFacts, settings: TrainerSettings) -> Iterator[Finding]:
    loader, arguments = settings.loader, settings.arguments
    place = loader.site.module.place(loader.site.node)
    if loader.argument("optimizers") is not None:
        yield RULE.finding("done", place, "the Trainer gets its optimizer from the script")
        return
    if overrides(entry, loader, "create_optimizer", "create_optimizer_and_scheduler"):
        yield RULE.finding("refused", place, "a subclass of the Trainer makes its own optimizer")
        return
    owned = [launch for launch in entry.launches if section(entry, launch, "optimizer") is not None]
    for launch in owned:
        yield RULE.finding(
            "done", place, f"the DeepSpeed config of {launch.path} has an optimizer section, which owns it"
        )
    if owned and len(owned) == len(entry.launches):
        return
    offloaded = [launch for launch in entry.launches if launch not in owned and offloads(entry, launch)]
    if offloaded:
        yield RULE.finding("refused", place, f"{offloaded[0].path} offloads the optimizer to the CPU")
        return
    launched = any(is_deepspeed(launch) for launch in entry.launches if launch not in owned)
    unknown = not entry.launches and _has_deepspeed_config(entry)
    early = entry.target.torch < (2, 4) and (launched or unknown)
    if early:
        yield RULE.finding(
            "refused",
            place,
            "under DeepSpeed the optimizer is built on CPU parameters, where fused needs torch>=2.4; "
            f"the target is {entry.target.torch_said}",
        )
        return
    yield _change(entry, settings, arguments, [launch for launch in entry.launches if launch not in owned])


def _set_default(entry: EntryFacts, arguments: Arguments) -> object:
    """Return what `parser.set_defaults(optim=...)` sets, which wins over the field."""
    parser = arguments.parser.node if arguments.parser is not None else None
    for site in entry.methods:
        given = call_argument(site.node, None, "optim")
        for callee in site.callees if given is not None else ():
            if isinstance(callee, Attr) and callee.name == "set_defaults" and isinstance(callee.of, Inst):
                if callee.of.call.node is parser and isinstance(given, ast.Constant):
                    return given.value
    return None


def _has_deepspeed_config(entry: EntryFacts) -> bool:
    """Whether the root holds a config that may start any of its scripts under DeepSpeed."""
    names = [path for path in entry.project.files if path.endswith((".yaml", ".yml", ".json"))]
    for path in names:
        if _CONFIG.search(path.rpartition("/")[2]):
            source = entry.project.source(path)
            if source is not None and ("zero_optimization" in source.text or "DEEPSPEED" in source.text):
                return True
    return False


def _change(entry: EntryFacts, settings: TrainerSettings, arguments: Arguments, launches: list[Launch]) -> Finding:
    place = settings.loader.site.module.place(settings.loader.site.node)
    if arguments.literal is not None:
        return _literal(entry, arguments)
    ops: list[Op] = []
    found = arguments.default(entry, "optim")
    library = (
        "adamw_torch_fused" if entry.target.transformers >= (4, 57) and entry.target.torch >= (2, 8) else "adamw_torch"
    )
    current = _set_default(entry, arguments) or (library if found is None else found[0])
    if current not in _SLOW | {FUSED}:
        return RULE.finding("refused", place, f"optim is {current!r}: another optimizer, left as it is")
    for launch in launches:
        flag = launch.flag("optim")
        if flag is None or flag.value == FUSED:
            continue
        if flag.value not in _SLOW:
            return RULE.finding(
                "refused", place, f"{launch.path}:{flag.line} asks for optim {flag.value!r}: left as it is"
            )
        source = entry.project.source(launch.script)
        edits = None if source is None else set_flag(launch, source, "optim", FUSED)
        if edits is None:
            return RULE.finding(
                "refused", place, f"the flag --optim of {launch.path}:{flag.line} cannot be written safely"
            )
        ops += edits
    if current in _SLOW:
        change = _default(entry, arguments, found, launches)
        if change is None:
            return RULE.finding(
                "refused",
                place,
                "optim is the library's default, and there is no place to set it that flags can still override",
            )
        ops += change
    if not ops:
        return RULE.finding("done", place, "optim is adamw_torch_fused already")
    return RULE.finding(
        "change",
        place,
        f"Trainer's AdamW steps in one fused kernel (optim {current!r} -> {FUSED!r})",
        ops=tuple(dict.fromkeys(ops)),
        needs=("torch>=2.0", "transformers>=4.30"),
        evidence=(settings.loader.hop, arguments.value.call.hop("its arguments come from here")),
    )


def _literal(entry: EntryFacts, arguments: Arguments) -> Finding:
    expr = arguments.literal
    assert expr is not None
    assert isinstance(expr.node, ast.Call)
    place = expr.module.place(expr.node)
    if has_spread(expr.node):
        return RULE.finding(
            "refused", place, "TrainingArguments gets arguments through * or **, which may already set optim"
        )
    given = call_argument(expr.node, None, "optim")
    value = entry.values.one(expr.at(given)) if given is not None else None
    current = value.value if isinstance(value, Const) else None
    if given is None and entry.target.transformers >= (4, 57) and entry.target.torch >= (2, 8):
        return RULE.finding("done", place, "the library's default is adamw_torch_fused already")
    if given is not None and current == FUSED:
        return RULE.finding("done", place, "optim is adamw_torch_fused already")
    if given is not None and current not in _SLOW:
        return RULE.finding("refused", place, f"optim is `{expr.module.text(given)}`: left as it is")
    start, end = expr.module.source.span(expr.node)
    return RULE.finding(
        "change",
        place,
        "Trainer's AdamW steps in one fused kernel",
        needs=("torch>=2.0", "transformers>=4.30"),
        ops=(SetKeyword(expr.module.path, start, end, "optim", f'"{FUSED}"'),),
        evidence=(expr.hop("the Trainer's arguments"),),
    )


def _default(entry: EntryFacts, arguments: Arguments, found: object, launches: list[Launch]) -> list[Op] | None:
    """Give `optim` its new default: the subclass's field, the launch files, or the parser's defaults."""
    if isinstance(found, tuple):
        expr = found[1]
        assert isinstance(expr, Expr)
        start, end = expr.module.source.span(expr.node)
        return [Replace(expr.module.path, start, end, f'"{FUSED}"')]
    if launches:
        ops: list[Op] = []
        for launch in launches:
            source = entry.project.source(launch.script)
            edits = None if source is None or launch.flag("optim") else set_flag(launch, source, "optim", FUSED)
            if edits is None and launch.flag("optim") is None:
                return None
            ops += edits or ()
        return ops
    if arguments.parser is None:
        return None
    module = arguments.parser.module
    statement = module.statement(arguments.parser.node)
    if not (isinstance(statement, ast.Assign) and statement.value is arguments.parser.node):
        return None
    start, end = module.source.span(statement)
    code = f'{ast.unparse(statement.targets[0])}.set_defaults(optim="{FUSED}")'
    return [InsertStatement(module.path, start, end, code, "after")]


RULE = Rule(
    code="SM302",
    name="trainer_optim",
    title="HF Trainer's AdamW steps in one fused kernel",
    goal="optimizer",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "adamw_torch in the arguments",
            before="""from datasets import load_from_disk
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
arguments = TrainingArguments("out", optim="adamw_torch")
trainer = Trainer(model=model, args=arguments, train_dataset=load_from_disk("rows"))
trainer.train()
""",
            after="""from datasets import load_from_disk
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
arguments = TrainingArguments("out", optim="adamw_torch_fused")
trainer = Trainer(model=model, args=arguments, train_dataset=load_from_disk("rows"))
trainer.train()
""",
        ),
        Example(
            "another optimizer",
            before="""from datasets import load_from_disk
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
arguments = TrainingArguments("out", optim="adafactor")
trainer = Trainer(model=model, args=arguments, train_dataset=load_from_disk("rows"))
trainer.train()
""",
            after=None,
        ),
    ),
)
