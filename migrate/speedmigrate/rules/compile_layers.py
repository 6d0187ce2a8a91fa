"""The model's repeated layers are compiled in place.

## What it does
Adds one line, `compile_layers(model)`, where the model is complete and not yet wrapped, optimized or given to a
Trainer. Each repeated layer's forward is compiled at its first training step, with dynamic sequence length: same
parameter names, same checkpoints, same class; evaluation and `generate` stay eager. The runtime looks at facts that
only a run knows (ZeRO-3 partitions, FSDP, quantised layers, no compiler) and then stays off with one log line.

## When it is refused
A target below torch 2.0, a model that is not followed or has no repeated layers, a quantised base, ZeRO-3 in every
launch file, model or pipeline parallelism, TPU, generation inside the training loop, a forward that is replaced at
run time.

## Effect
`exact`, up to rounding. `SPEEDRUNTIME_DISABLE=compile` turns it off at run time.

## References
- https://pytorch.org/tutorials/recipes/regional_compilation.html
- https://github.com/pytorch/torchtitan (per-layer compile before the parallel wrap)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.arguments import deepspeed_configs, zero_stage
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.models import repeated_layers
from speedmigrate.facts.places import Anchor, anchor
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Const, Expr, Ext, Value
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import AddImport, Example, Finding, Hop, Op, Place, Rule

# `torch.jit.is_scripting()` and its like only ask: models of transformers that were copied call them.
_SCRIPTS = frozenset(f"torch.jit.{name}" for name in ("script", "trace", "trace_module", "freeze", "load"))
_KBIT_WORDS = ("load_in_8bit", "load_in_4bit", "quantization_config")


def check(entry: EntryFacts) -> Iterator[Finding]:
    place = Place(entry.path, 1, 1)
    compiled = _compiled(entry)
    if compiled is not None:
        yield RULE.finding(
            "done", Place(compiled.path, compiled.line, compiled.line), f"compiled already: {compiled.what}"
        )
        return
    if entry.target.torch < (2, 0):
        yield RULE.finding("refused", place, f"torch {entry.target.torch_said} has no compile: it needs torch>=2.0")
        return
    found = anchor(entry)
    if found is None:
        yield RULE.finding(
            "refused",
            place,
            "the trained model is not followed to a place where it is wrapped, optimized or given to a Trainer",
        )
        return
    place = found.module.place(found.statement)
    reason = next(_reasons(entry, found), None)
    if reason is not None:
        message = f"the layers are not compiled: {reason.what} ({reason.path}:{reason.line})"
        yield RULE.finding("refused", place, message, evidence=(reason,))
        return
    ops: list[Op] = [
        AddImport(found.module.path, "speedruntime", "compile_layers"),
        found.insert("compile_layers", order=1),
    ]
    yield RULE.finding(
        "change",
        place,
        f"the repeated layers of {found.models[0].name} are compiled in place, with dynamic length",
        ops=(*ops, *runtime_requirement(entry.project, found.module.path)),
        evidence=(found.site.expr.hop("the model is complete here"),),
        group=group_name(entry),
        needs=("speedmigrate[runtime]", "torch>=2.0"),
    )


def group_name(entry: EntryFacts) -> str:
    """Return the name of the group that compiles the layers of an entry point's model."""
    return f"compile:{entry.path}"


def _compiled(entry: EntryFacts) -> Hop | None:
    for site in entry.sites:
        for callee in site.callees:
            if isinstance(callee, Ext) and callee.name in {"torch.compile", "speedruntime.compile_layers"}:
                return site.expr.hop(site.expr.text[:60])
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == "compile" and not site.node.args:
            return site.expr.hop(site.expr.text[:60])
        on = call_argument(site.node, None, "torch_compile")
        if isinstance(on, ast.Constant) and on.value:
            return site.expr.hop("torch_compile=True")
    return None


def _reasons(entry: EntryFacts, found: Anchor) -> Iterator[Hop]:
    """Yield why the layers must not be compiled."""
    place = found.site.expr
    for model in found.models:
        if not model.is_transformers:
            yield from repeated_layers(entry.values, model, place)
        elif entry.target.old_transformers:
            yield Hop(entry.path, 1, entry.target.old_transformers)
        if any("kbit" in wrapper or "int8" in wrapper for wrapper in model.wrappers):
            yield Hop(entry.path, 1, "the base is quantised (prepared for k-bit training)")
    for site in entry.sites:
        yield from _site_reasons(entry, site.expr, site.node, site.callees)
    yield from _patched(entry)
    yield from _zero3(entry)


def _site_reasons(entry: EntryFacts, expr: Expr, node: ast.Call, callees: tuple[Value, ...]) -> Iterator[Hop]:

    for word in _KBIT_WORDS:
        argument = call_argument(node, None, word)
        if argument is not None and word == "quantization_config":
            if not (isinstance(argument, ast.Constant) and argument.value is None):
                yield expr.hop("the base is quantised (quantization_config)")
        elif argument is not None:
            value = entry.values.one(expr.at(argument))
            if isinstance(value, Const) and value.value is True:
                yield expr.hop(f"the base is quantised ({word}=True)")
    device_map = call_argument(node, None, "device_map")
    if isinstance(device_map, ast.Constant) and device_map.value in {"auto", "balanced", "sequential"}:
        yield expr.hop(f'the model is spread over devices (device_map="{device_map.value}")')
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else ""
    if name in {"register_hook", "register_post_accumulate_grad_hook"}:
        yield expr.hop("gradient hooks are set, which may step parameters in the middle of a backward pass")
    if name in {"quantize", "dispatch_model", "parallelize", "PipelineModule"}:
        yield expr.hop(f"the model is quantised or split over devices (`{name}`)")
    for callee in callees:
        if isinstance(callee, Ext) and callee.package in {
            "torch_xla",
            "auto_gptq",
            "awq",
            "gptqmodel",
            "fairscale",
            "megatron",
        }:
            yield expr.hop(f"{callee.package} is in use")
        if isinstance(callee, Ext) and callee.name in _SCRIPTS:
            yield expr.hop(f"{callee.name} makes a script of the model")
        if isinstance(callee, Ext) and callee.last in {
            "PPOTrainer",
            "GRPOTrainer",
            "RLOOTrainer",
            "PipelineModule",
            "dispatch_model",
        }:
            yield expr.hop(f"{callee.last} generates in the loop or splits the model")
    if name == "generate" and _is_in_training(expr, node):
        yield expr.hop("the model generates inside the training loop")


def _is_in_training(expr: Expr, node: ast.Call) -> bool:

    function = expr.module.function(node)
    return function is not None and any(
        isinstance(child, ast.Attribute) and child.attr == "backward" for child in own_nodes(function)
    )


def _patched(entry: EntryFacts) -> Iterator[Hop]:
    """Yield assignments to a `forward` in the functions of the run."""

    for module, scope, _ in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and target.attr == "forward":
                        yield module.hop(node, f"a forward is replaced: {module.text(node)[:60]}")


def _zero3(entry: EntryFacts) -> Iterator[Hop]:
    """ZeRO-3 in every launch file; where only some use it, the runtime call looks for itself."""
    stages = [{zero_stage(doc) for doc in deepspeed_configs(entry, launch)} for launch in entry.launches]
    if stages and all(stage == {3} for stage in stages):
        yield Hop(
            entry.launches[0].path, entry.launches[0].line, "every launch file uses ZeRO-3, which partitions the layers"
        )


RULE = Rule(
    code="SM401",
    name="compile_layers",
    title="The repeated layers are compiled in place",
    goal="compile",
    effect="exact",
    check=check,
    docs=__doc__,
    examples=(
        Example(
            "before the optimizer",
            before="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.load("batches.pt"):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            after="""import torch
from transformers import AutoModelForCausalLM
from speedruntime import compile_layers

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
compile_layers(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.load("batches.pt"):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
        Example(
            "compiled already",
            before="""import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
model = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
