"""AdamW takes one fused step over all parameters instead of one kernel per parameter and operation.

## What it does
`torch.optim.AdamW(...)` gets `fused=True`; so does `torch.optim.Adam` without weight decay. `transformers.AdamW`
becomes `torch.optim.AdamW` with that class's own defaults written out (eps 1e-6, weight decay 0.0), and its import
goes. Where a checkpoint's optimizer state is loaded, `keep_fused(optimizer)` follows, since loading restores the old
flag.

## When it is refused
`foreach`, `capturable` or `differentiable` set; arguments through `*` or `**` that cannot be read;
`correct_bias=False`; offload to the CPU; more than one class possible; other optimizers (SGD, Adafactor, Lion, LOMO,
8-bit, Adam with L2).

## Effect
`exact`: the same update up to rounding, hyper-parameters as they were. Before torch 2.4 a fused optimizer needs CUDA
parameters, so there the flag follows the parameters' device. transformers' class adds eps before the bias correction,
torch's after it: updates of gradients near eps differ (D75 of the rule's tests), all others do not.

## References
- https://pytorch.org/docs/stable/generated/torch.optim.AdamW.html
- https://github.com/huggingface/transformers/blob/v4.36.0/src/transformers/optimization.py (AdamW)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.arguments import offloads
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.loaders import HF_TRAINERS
from speedmigrate.facts.models import models
from speedmigrate.facts.places import model_of_parameters
from speedmigrate.facts.syntax import call_argument, has_spread
from speedmigrate.facts.value import Attr, Cls, Const, Display, Ext, Inst, Value
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import (
    AddImport,
    Example,
    Finding,
    InsertStatement,
    Op,
    Place,
    RemoveImport,
    RemoveKeyword,
    Replace,
    Rule,
    SetKeyword,
)

_TORCH = frozenset({"torch.optim.AdamW", "torch.optim.adamw.AdamW"})
_TORCH_ADAM = frozenset({"torch.optim.Adam", "torch.optim.adam.Adam"})
_TRANSFORMERS = frozenset({"transformers.AdamW", "transformers.optimization.AdamW"})
_FUSED = {
    "apex.optimizers.FusedAdam": "apex's FusedAdam is fused already",
    "deepspeed.ops.adam.FusedAdam": "DeepSpeed's FusedAdam is fused already",
    "deepspeed.ops.adam.DeepSpeedCPUAdam": "DeepSpeedCPUAdam serves an optimizer offloaded to the CPU",
}
_PACKAGES = frozenset(
    "bitsandbytes torch_optimizer lion_pytorch lomo_optim galore_torch adam_mini pytorch_optimizer dadaptation "
    "prodigyopt muon schedulefree apex deepspeed colossalai torch timm transformers".split()
)
_ORDER = ("params", "lr", "betas", "eps", "weight_decay")
_BLOCKING = ("foreach", "capturable", "differentiable", "maximize_foreach")


def check(entry: EntryFacts) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    for site in entry.sites:
        names = {c.name for c in site.callees if isinstance(c, Ext) and _is_optimizer(c)}
        own = [c for c in site.callees if isinstance(c, Cls) and _is_own(entry, c)]
        if (names or own) and site.node not in seen:
            seen.add(site.node)
            yield _finding(entry, site, names, own)
    if not seen and not any(True for _ in entry.calls("transformers", *HF_TRAINERS)):
        yield RULE.finding("refused", Place(entry.path, 1, 1), "no optimizer that can be followed is built in this run")


def _is_optimizer(value: Ext) -> bool:
    if value.name in _FUSED or value.name in _TORCH | _TORCH_ADAM | _TRANSFORMERS:
        return True
    if value.package not in _PACKAGES or not value.last[:1].isupper() or ".lr_scheduler" in value.name:
        return False
    inside = (
        ".optim." in value.name or value.name.startswith("bitsandbytes.optim") or value.package not in {"torch", "timm"}
    )
    words = (
        "Adam",
        "SGD",
        "Lion",
        "Lamb",
        "LAMB",
        "Adafactor",
        "Adagrad",
        "RMSprop",
        "LBFGS",
        "Lomo",
        "Muon",
        "GaLore",
    )
    return inside and any(word in value.last for word in words) and not value.last.endswith(("Scheduler", "LR"))


def _is_own(entry: EntryFacts, cls: Cls) -> bool:
    return any(isinstance(base, Ext) and base.name == "torch.optim.Optimizer" for base in entry.values.mro(cls))


def _finding(entry: EntryFacts, site: Site, names: set[str], own: list[Cls]) -> Finding:
    place = site.module.place(site.node)
    if own:
        return RULE.finding(
            "refused", place, f"{own[0].node.name} is an optimizer class of this repository: it is left as it is"
        )
    if len(site.callees) > 1:
        return RULE.finding("refused", place, f"the optimizer may be one of several: {', '.join(sorted(names))}")
    name = names.pop()
    if name in _FUSED:
        return RULE.finding("done", place, _FUSED[name])
    if name not in _TORCH | _TORCH_ADAM | _TRANSFORMERS:
        return RULE.finding(
            "refused", place, f"{name} is another algorithm or has another memory need: it is left as it is"
        )
    reason = _reason(entry, site, name)
    if reason:
        status = "done" if reason == _ALREADY else "refused"
        return RULE.finding(status, place, reason)  # type: ignore[arg-type]
    if name in _TRANSFORMERS and has_spread(site.node):
        return RULE.finding("refused", place, "transformers.AdamW gets arguments through **, which may hold its own")
    ops = _transformers_ops(site) if name in _TRANSFORMERS else []
    start, end = site.module.source.span(site.node)
    fused = _flag(entry, site)
    if not fused:
        return RULE.finding(
            "refused", place, "before torch 2.4 fused needs CUDA parameters, and whose parameters these are is not seen"
        )
    ops.append(SetKeyword(site.module.path, start, end, "fused", fused))
    needs = ["torch>=2.0"]
    kept = _keep(entry, site)
    if kept:
        ops += kept
        needs.insert(0, "speedmigrate[runtime]")
    message = "AdamW steps in one fused kernel, hyper-parameters as they were"
    if name in _TRANSFORMERS:
        message += " (transformers.AdamW's defaults written out: eps 1e-6, weight_decay 0.0)"
    if name in _TORCH_ADAM:
        message = "Adam without weight decay steps in one fused kernel"
    return RULE.finding(
        "change",
        place,
        message,
        ops=tuple(ops),
        needs=tuple(needs),
        evidence=(site.expr.hop(f"the optimizer is {name}"),),
    )


_ALREADY = "fused already"


def _reason(entry: EntryFacts, site: Site, name: str) -> str:
    """Say why an AdamW stays as it is, or nothing."""
    node = site.node
    if has_spread(node) and not _spread_is_read(entry, site):
        return "its arguments come through * or **, which may already hold the flag"
    fused = call_argument(node, None, "fused")
    if isinstance(fused, ast.Constant) and fused.value:
        return _ALREADY
    if fused is not None:
        return f"fused is set to `{site.module.text(fused)}`: left as it is"
    for word in _BLOCKING:
        blocking = call_argument(node, None, word)
        if blocking is not None and not (isinstance(blocking, ast.Constant) and not blocking.value):
            return f"{word} is set, which excludes fused"
    if entry.target.torch < (2, 0):
        return f"fused AdamW needs torch>=2.0, the target is {entry.target.torch_said}"
    if any(offloads(entry, launch) for launch in entry.launches):
        return "a launch file offloads the optimizer to the CPU"
    if name in _TRANSFORMERS and len(node.args) > len(_ORDER):
        return "transformers.AdamW gets positional arguments beyond weight_decay"
    bias = call_argument(node, None, "correct_bias")
    if bias is not None and not (isinstance(bias, ast.Constant) and bias.value is True):
        return "correct_bias is not True: torch's AdamW always corrects"
    if name in _TORCH_ADAM:
        decay = call_argument(node, 4, "weight_decay")
        value = entry.values.one(site.expr.at(decay)) if decay is not None else None
        if decay is not None and not (isinstance(value, Const) and value.value in {0}):
            return "Adam with an L2 weight decay is another algorithm than AdamW: left as it is"
    return ""


def _spread_is_read(entry: EntryFacts, site: Site) -> bool:
    """Whether every `**` argument is a dict display whose keys are seen, and none of them is about the kernel."""
    if any(isinstance(argument, ast.Starred) for argument in site.node.args):
        return False
    for keyword in site.node.keywords:
        if keyword.arg is None:
            value = entry.values.one(site.expr.at(keyword.value))
            keys = _keys(value)
            if keys is None or keys & {"fused", *_BLOCKING, "correct_bias", "no_deprecation_warning"}:
                return False
    return True


def _keys(value: Value) -> set[str] | None:
    node = value.expr.node if isinstance(value, Display) else None
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    if isinstance(value, Inst) and value.of == Ext("builtins.dict") and isinstance(value.call.node, ast.Call):
        if not value.call.node.args and all(keyword.arg for keyword in value.call.node.keywords):
            return {str(keyword.arg) for keyword in value.call.node.keywords}
    return None


def _transformers_ops(site: Site) -> list[Op]:
    module, node = site.module, site.node
    start, end = module.source.span(node)
    ops: list[Op] = [
        Replace(module.path, *module.source.span(node.func), "torch.optim.AdamW"),
        AddImport(module.path, "torch", ""),
    ]
    if isinstance(node.func, ast.Name):
        ops.append(RemoveImport(module.path, node.func.id))
    for word in ("correct_bias", "no_deprecation_warning"):
        if call_argument(node, None, word) is not None:
            ops.append(RemoveKeyword(module.path, start, end, word))
    for word, code in (("eps", "1e-6"), ("weight_decay", "0.0")):
        if call_argument(node, _ORDER.index(word), word) is None:
            ops.append(SetKeyword(module.path, start, end, word, code))
    return ops


def _flag(entry: EntryFacts, site: Site) -> str:
    """Return the code of the flag; before torch 2.4 it follows the parameters' device."""
    if entry.target.torch >= (2, 4):
        return "True"
    model = model_of_parameters(site)
    # `or None` leaves torch its own choice elsewhere: an explicit False would also switch foreach off.
    return f"next({model}.parameters()).is_cuda or None" if model and _is_moved(entry) else ""


def _is_moved(entry: EntryFacts) -> bool:
    """Whether the run itself moves a model to a device; a Trainer would do so after the optimizer is built."""
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr in {"to", "cuda"}:
            if any(isinstance(model.value, Inst) for model in models(entry.values, site.expr.at(func.value))):
                return True
    return False


def _keep(entry: EntryFacts, site: Site) -> list[Op]:
    """Return the edits that keep the flag where this optimizer's state is loaded from a checkpoint."""
    if not any(_loads(callee, site) for other in entry.methods for callee in other.callees):
        return []
    module = site.module
    statement = module.statement(site.node)
    if not (isinstance(statement, ast.Assign) and statement.value is site.node and len(statement.targets) == 1):
        return []
    start, end = module.source.span(statement)
    code = f"keep_fused({ast.unparse(statement.targets[0])})"
    return [
        AddImport(module.path, "speedruntime", "keep_fused"),
        InsertStatement(module.path, start, end, code, "after"),
        *runtime_requirement(entry.project, module.path),
    ]


def _loads(callee: Value, site: Site) -> bool:
    return (
        isinstance(callee, Attr) and callee.name == "load_state_dict"
        and isinstance(callee.of, Inst) and callee.of.call.node is site.node
    )  # fmt: skip


RULE = Rule(
    code="SM301",
    name="fused_adamw",
    title="AdamW steps in one fused kernel",
    goal="optimizer",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "torch.optim.AdamW",
            before="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for batch in torch.load("batches.pt"):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            after="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=next(model.parameters()).is_cuda or None)
for batch in torch.load("batches.pt"):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
        Example(
            "foreach is set",
            before="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
for batch in torch.load("batches.pt"):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            after=None,
        ),
    ),
)
