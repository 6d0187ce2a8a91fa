"""A loop's autocast computes in bfloat16; the gradient scaler, which only float16 needs, stays in place but is off.

## What it does
`autocast()` without a dtype (float16 on CUDA) and with `torch.float16` get `torch.bfloat16`. Where the dtype is
looked up from a flag, the flag's default and the launch files' value change from float16 to bfloat16. Every
`GradScaler` of the run is switched off in the same group (`enabled=False`) where its own condition does not already
do it: `scale`, `unscale_`, `step` and `update` then pass through, and checkpoints keep their keys.

## When it is refused
Target below sm_80; float16 parameters or tensors (`.half()`, HalfTensor); apex amp; an autocast or a scaler in a file
that other entry points share; a dtype or a condition that is not followed.

## Effect
`precision`: from 11 to 8 significant bits and float32's range: no loss scaling, no skipped steps. From float16 this is
stability, not speed.

## References
- https://pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from speedmigrate.facts.arguments import ArgparseFlag, argparse_flag
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.loaders import HF_TRAINERS
from speedmigrate.facts.padding import starters
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Const, Expr, Ext, Value
from speedmigrate.launch.find import Launch
from speedmigrate.launch.flags import set_flag
from speedmigrate.rule import AddImport, Example, Finding, Hop, Op, Place, Replace, Rule, SetKeyword

_AUTOCAST = frozenset(
    {"torch.cuda.amp.autocast", "torch.amp.autocast", "torch.autocast", "torch.cuda.amp.autocast_mode.autocast"}
)
_SCALER = frozenset({"torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler"})
_HALF = "torch.float16"
_BF16 = "torch.bfloat16"
_NAMES = {
    _HALF: "float16",
    "torch.half": "float16",
    _BF16: "bfloat16",
    "torch.float32": "float32",
    "torch.float": "float32",
}


@dataclass(slots=True)
class _Plan:
    """What the autocasts and scalers of a run ask for."""

    ops: list[Op] = field(default_factory=list)
    flags: dict[str, ArgparseFlag] = field(default_factory=dict)
    refusals: list[Hop] = field(default_factory=list)
    done: list[Hop] = field(default_factory=list)
    evidence: list[Hop] = field(default_factory=list)


def check(entry: EntryFacts) -> Iterator[Finding]:
    if any(True for _ in entry.calls("transformers", *HF_TRAINERS)):
        return
    casts, scalers = _sites(entry, _AUTOCAST), _sites(entry, _SCALER)
    half = list(_half(entry))
    place = (
        (casts or scalers)[0].module.place((casts or scalers)[0].node) if casts or scalers else Place(entry.path, 1, 1)
    )
    if entry.options.precision == "keep":
        yield RULE.finding("done", place, "the precision is kept (--precision keep)")
        return
    plan = _Plan(refusals=half)
    for site in casts:
        _autocast(entry, site, plan)
    for site in scalers if plan.ops or plan.flags else ():
        _scaler(entry, site, plan)
    if not casts and not half:
        plan.refusals.append(
            Hop(entry.path, 1, "the loop has no autocast that is followed, and where one belongs is not decided yet")
        )
    if plan.refusals:
        first = plan.refusals[0]
        message = f"the precision stays: {first.what} ({first.path}:{first.line})"
        yield RULE.finding("refused", place, message, evidence=tuple(plan.refusals))
    elif not plan.ops and not plan.flags:
        yield RULE.finding("done", place, f"{plan.done[0].what} ({plan.done[0].path}:{plan.done[0].line})")
    elif entry.target.arch < 80:
        yield RULE.finding(
            "refused", place, f"bf16 needs sm_80, the target is sm_{entry.target.arch} ({entry.target.arch_from})"
        )
    else:
        yield from _change(entry, place, plan)


def _change(entry: EntryFacts, place: Place, plan: _Plan) -> Iterator[Finding]:
    for flag in plan.flags.values():
        failed = _flag_ops(entry, flag, plan)
        if failed is not None:
            yield RULE.finding("refused", place, f"the precision stays: {failed.what} ({failed.path}:{failed.line})")
            return
    yield RULE.finding(
        "change",
        place,
        "autocast in bfloat16 instead of float16, the gradient scaler off (stability more than speed); a checkpoint's "
        "scaler entry is empty from then on, and an old one is accepted",
        ops=tuple(dict.fromkeys(plan.ops)),
        evidence=tuple(plan.evidence),
        needs=("sm_80", "torch>=1.13"),
    )


def _sites(entry: EntryFacts, names: frozenset[str]) -> list[Site]:
    found: dict[ast.AST, Site] = {}
    for site in entry.sites:
        if any(isinstance(callee, Ext) and callee.name in names for callee in site.callees):
            found.setdefault(site.node, site)
    return list(found.values())


def _half(entry: EntryFacts) -> Iterator[Hop]:
    """Yield what makes or needs float16 parameters and tensors, and apex amp."""
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "half" and not site.node.args:
            yield site.expr.hop(f"float16 by `{site.expr.text[:40]}`")
        for callee in site.callees:
            if isinstance(callee, Ext) and (callee.name.startswith("apex.amp") or "HalfTensor" in callee.last):
                yield site.expr.hop(f"float16 by `{callee.name}`")
            if isinstance(callee, Ext) and callee.name == "deepspeed.initialize":
                yield site.expr.hop("the DeepSpeed config owns the precision, which is not changed yet")


def _shared(entry: EntryFacts, site: Site) -> Hop | None:
    """Say which other entry point shares the file that a site stands in."""
    if site.module.path == entry.path:
        return None
    others = sorted(starters(entry, site.module.path) - {entry.path})
    return site.expr.hop(f"{others[0]} shares this") if others else None


def _autocast(entry: EntryFacts, site: Site, plan: _Plan) -> None:
    names = {callee.name for callee in site.callees if isinstance(callee, Ext)}
    position = 0 if any(".cuda.amp." in name for name in names) else 1
    given = call_argument(site.node, 1, "dtype")
    device = call_argument(site.node, 0, "device_type") if position else None
    if isinstance(device, ast.Constant) and device.value == "cpu":
        plan.done.append(site.expr.hop("autocast on the CPU is bfloat16 already"))
        return
    enabled = call_argument(site.node, None, "enabled")
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return
    chosen = _chosen(site)
    if chosen is not None:
        plan.refusals.append(chosen)
        return
    shared = _shared(entry, site)
    start, end = site.module.source.span(site.node)
    if given is None:
        plan.evidence.append(site.expr.hop("autocast without a dtype is float16 on CUDA"))
        _need_torch(site, plan)
        plan.ops.append(SetKeyword(site.module.path, start, end, "dtype", _BF16))
    else:
        _dtype(entry, site.expr.at(given), plan)
    if shared is not None and (plan.ops or plan.flags):
        plan.refusals.append(shared)


def _chosen(site: Site) -> Hop | None:
    """Say where an autocast is one of several precisions that a flag chooses from."""
    module, child = site.module, site.node
    for parent in module.ancestors(site.node):
        if isinstance(parent, ast.Dict):
            return site.expr.hop("this autocast is one of several in a table")
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test and not _is_device_test(parent.test):
            return module.hop(parent.test, f"this autocast is chosen by `{module.text(parent.test)[:40]}`")
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            return None
        child = parent  # type: ignore[assignment]
    return None


def _is_device_test(test: ast.expr) -> bool:
    """`device_type == "cpu"`, `"cuda" in device`, `torch.cuda.is_available()`, the main guard: no choice of
    precision."""
    text = ast.unparse(test)
    return "'cpu'" in text or "'cuda'" in text or "cuda.is_available" in text or "__name__" in text


def _need_torch(site: Site, plan: _Plan) -> None:
    plan.ops.append(AddImport(site.module.path, "torch", ""))


def _dtype(entry: EntryFacts, given: Expr, plan: _Plan) -> None:
    """Follow the dtype of an autocast: a constant of torch, or a table that a flag looks up."""
    flag = _looked_up(entry, given)
    if flag is not None:
        if flag.default == "bfloat16" and not any(_flag_value(launch, flag) == "float16" for launch in entry.launches):
            plan.done.append(given.hop(f"--{flag.name} is bfloat16 already"))
        else:
            plan.flags[flag.name] = flag
            plan.evidence.append(given.hop(f"the dtype is looked up by --{flag.name}"))
        return
    names = {_NAMES.get(value.name) for value in entry.values.of(given) if isinstance(value, Ext)}
    if names == {"bfloat16"}:
        plan.done.append(given.hop("autocast in bfloat16 already"))
    elif names == {"float16"} and isinstance(given.node, ast.Attribute | ast.Name):
        plan.evidence.append(given.hop("autocast in float16"))
        start, end = given.module.source.span(given.node)
        plan.ops.append(Replace(given.module.path, start, end, _BF16))
        plan.ops.append(AddImport(given.module.path, "torch", ""))
    else:
        plan.refusals.append(given.hop(f"the dtype `{given.text[:40]}` is not followed"))


def _looked_up(entry: EntryFacts, given: Expr) -> ArgparseFlag | None:
    """`{"float16": torch.float16, "bfloat16": torch.bfloat16}[args.dtype]`, named or not."""
    expr = given
    for _ in range(4):
        if not isinstance(expr.node, ast.Name):
            break
        module = expr.module
        scope = module.scope(expr.node)
        found = reaching(module, scope, expr.node.id, expr.node) or reaching(module, module.tree, expr.node.id, None)
        values = [b.value for b in found if b.kind == "value" and b.value is not None and not b.unpack]
        if len(values) != 1 or len(found) != 1:
            return None
        expr = expr.at(values[0])
    node = expr.node
    if not isinstance(node, ast.Subscript):
        return None
    table = entry.values.one(expr.at(node.value))
    display = getattr(getattr(table, "expr", None), "node", None)
    if not isinstance(display, ast.Dict):
        return None
    names = {
        k.value: ast.unparse(v)
        for k, v in zip(display.keys, display.values, strict=True)
        if isinstance(k, ast.Constant)
    }
    if names.get("bfloat16") != _BF16:
        return None
    return argparse_flag(entry, entry.values.one(expr.at(node.slice)))


def _flag_value(launch: Launch, flag: ArgparseFlag) -> str | None:
    found = launch.flag(flag.name)
    return found.value if found is not None else None


def _flag_ops(entry: EntryFacts, flag: ArgparseFlag, plan: _Plan) -> Hop | None:
    """Change the flag's default and what the launch files pass; return why it cannot be done."""
    if flag.default not in {"float16", "bfloat16"} or flag.default_expr is None:
        return flag.call.hop(f"the default of --{flag.name} is not float16")
    if flag.default == "float16":
        start, end = flag.default_expr.module.source.span(flag.default_expr.node)
        quote = flag.default_expr.text[0]
        plan.ops.append(Replace(flag.default_expr.module.path, start, end, f"{quote}bfloat16{quote}"))
    for launch in entry.launches:
        found = launch.flag(flag.name)
        if found is None or found.value == "bfloat16":
            continue
        source = entry.project.source(launch.script)
        edits = None if source is None or found.value != "float16" else set_flag(launch, source, flag.name, "bfloat16")
        if edits is None:
            return Hop(launch.path, found.line, f"--{flag.name} of the launch file cannot be changed safely")
        plan.ops += edits
    return None


def _scaler(entry: EntryFacts, site: Site, plan: _Plan) -> None:
    shared = _shared(entry, site)
    if shared is not None:
        plan.refusals.append(shared)
        return
    if len(site.node.args) > 4:
        plan.refusals.append(site.expr.hop("the scaler's arguments are positional"))
        return
    given = call_argument(site.node, None, "enabled")
    if isinstance(given, ast.Constant) and given.value is False:
        return
    plan.evidence.append(site.expr.hop("a gradient scaler, which float16 needs and bfloat16 does not"))
    if given is not None and _off_by_flag(entry, site.expr.at(given), plan):
        return
    start, end = site.module.source.span(site.node)
    plan.ops.append(SetKeyword(site.module.path, start, end, "enabled", "False"))


def _off_by_flag(entry: EntryFacts, given: Expr, plan: _Plan) -> bool:
    """Whether the scaler's own condition is false once the flag says bfloat16 (`args.dtype == "float16"`, an `and` of
    it)."""
    node = given.node
    parts = node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]
    return any(_is_half_test(entry, given.at(part), plan) for part in parts)


def _is_half_test(entry: EntryFacts, part: Expr, plan: _Plan) -> bool:
    node = part.node
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)):
        return False
    value: Value = entry.values.one(part.at(node.left))
    other = entry.values.one(part.at(node.comparators[0]))
    flag = argparse_flag(entry, value)
    return flag is not None and flag.name in plan.flags and isinstance(other, Const) and other.value == "float16"


RULE = Rule(
    code="SM201",
    name="loop_bf16",
    title="A loop's autocast computes in bfloat16, the gradient scaler is off",
    goal="precision",
    effect="precision",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "autocast without a dtype",
            before="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.cuda.amp.GradScaler()
for batch in torch.load("batches.pt"):
    with torch.cuda.amp.autocast():
        loss = model(**batch).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            after="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.cuda.amp.GradScaler(enabled=False)
for batch in torch.load("batches.pt"):
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        loss = model(**batch).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ),
        Example(
            "bfloat16 already",
            before="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.cuda.amp.GradScaler()
for batch in torch.load("batches.pt"):
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        loss = model(**batch).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            after=None,
        ),
    ),
)
