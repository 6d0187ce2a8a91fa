"""Where the number format of a run is decided, and the places that make it: scalers, autocasts, casts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.framework import Trainer, calls_of, copied_around, method_calls, trainers
from speedmigrate.chain.precision_configs import Config, deepspeed, dicts
from speedmigrate.chain.precision_settings import (
    Setting,
    accelerate_settings,
    flag_values,
    hf_arguments,
    hf_setting,
    launches,
)
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.models import models
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Inst, Item, Result
from speedmigrate.rule import Hop

_DTYPES = {
    "torch.float16": "float16", "torch.half": "float16", "torch.bfloat16": "bfloat16", "torch.float32": "float32",
    "torch.float": "float32", "torch.HalfTensor": "float16", "torch.cuda.HalfTensor": "float16",
    "torch.BFloat16Tensor": "bfloat16", "torch.cuda.BFloat16Tensor": "bfloat16",
}  # fmt: skip
_HALVES = frozenset({"float16", "bfloat16"})
_LOADS = frozenset({"from_pretrained", "from_config"})


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides the precision, with its evidence."""

    kind: str
    detail: str
    hops: tuple[Hop, ...]


def facts(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `precision.kind` and the places of scalers, autocasts and casts."""
    found = _kind(entry)
    if isinstance(found, Kind):
        yield Fact("precision.kind", found.kind, found.detail, found.hops)
    else:
        yield unknown("precision.kind", found)
    for site in scalers(entry):
        enabled = call_argument(site.node, None, "enabled")
        yield Fact(
            "precision.scaler", "GradScaler", _written(site, "enabled", enabled), (site.expr.hop(site.expr.text[:60]),)
        )
    for site in autocasts(entry):
        dtype = call_argument(site.node, 1, "dtype")
        yield Fact(
            "precision.autocast", "autocast", _written(site, "dtype", dtype), (site.expr.hop(site.expr.text[:60]),)
        )
    for kind, hop in casts(entry):
        yield Fact("precision.cast", kind, hop.what, (hop,))


def _written(site: Site, name: str, node: ast.expr | None) -> str:
    return "" if node is None else f"{name}={site.module.text(node)[:60]}"


def scalers(entry: EntryFacts) -> list[Site]:
    """Return the gradient scalers that a run makes, a constant `enabled=False` left out."""
    found = calls_of(entry, "GradScaler", "ShardedGradScaler")
    return [site for site in found if not _is_false(call_argument(site.node, None, "enabled"))]


def autocasts(entry: EntryFacts) -> list[Site]:
    """Return the autocasts that a run enters, those on the CPU or switched off left out."""
    found = []
    for site in calls_of(entry, "torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast", "autocast"):
        device = call_argument(site.node, 0, "device_type")
        on_cpu = isinstance(device, ast.Constant) and device.value == "cpu"
        if not on_cpu and not _is_false(call_argument(site.node, None, "enabled")):
            found.append(site)
    return found


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def casts(entry: EntryFacts) -> tuple[tuple[str, Hop], ...]:
    """Return the casts of models and the number formats that models are loaded in, each with the format's name."""
    return entry.once("chain.casts", lambda entry: tuple(dict.fromkeys(_casts(entry))))


def _casts(entry: EntryFacts) -> Iterator[tuple[str, Hop]]:
    for site in entry.sites:
        func = site.node.func
        if not isinstance(func, ast.Attribute) or copied_around(entry, site):
            continue
        if func.attr in {"half", "bfloat16"} and not site.node.args and _is_model(entry, site.expr.at(func.value)):
            kind = "half" if func.attr == "half" else "bfloat16"
            yield kind, site.expr.hop(f"the model is cast: .{func.attr}()")
        elif func.attr in _LOADS:
            given = call_argument(site.node, None, "torch_dtype") or call_argument(site.node, None, "dtype")
            kinds = _dtypes(entry, site.expr.at(given)) if given is not None else set()
            if len(kinds) == 1 and "?" not in kinds:
                yield f"torch_dtype={kinds.pop()}", site.expr.at(given).hop("the model is loaded in this format")  # type: ignore[arg-type]
        elif func.attr in {"set_default_dtype", "set_default_tensor_type"} and site.node.args:
            kinds = _dtypes(entry, site.expr.at(site.node.args[0]))
            if len(kinds) == 1 and "?" not in kinds:
                yield f"default={kinds.pop()}", site.expr.hop("the default number format is set")


def _dtypes(entry: EntryFacts, expr: Expr) -> set[str]:
    """Return the number formats that an expression can be, "?" standing for what is not followed."""
    return {_DTYPES.get(v.name, "?") if isinstance(v, Ext) else "?" for v in entry.values.of(expr)}


def _is_model(entry: EntryFacts, expr: Expr) -> bool:
    for model in models(entry.values, expr):
        if isinstance(model.value, Item) and isinstance(model.value.of, Result):
            maker = model.value.of.of
            return isinstance(maker, Attr) and maker.name in {"modules", "children"}
        if isinstance(model.value, Result) and isinstance(model.value.of, Attr):
            # A class of the root that a base outside it loads.
            return model.value.of.name in _LOADS and isinstance(model.value.of.of, Cls)
        of = model.value.of if isinstance(model.value, Inst) else None
        if isinstance(of, Ext) and of.package in {"transformers", "peft", "modelscope"} and _LOADS & {of.last}:
            return True
        base = entry.base(of) if isinstance(of, Cls) else None
        if base is not None and (base.last in {"Module", "LightningModule"} or base.last.endswith("PreTrainedModel")):
            return True
    return False


def _kind(entry: EntryFacts) -> Kind | Hop:
    apex = calls_of(entry, "apex.amp.initialize")
    if apex:
        return Kind("apex_amp", "", tuple(site.expr.hop("apex changes model and optimizer") for site in apex))
    found = trainers(entry)
    hf = [trainer for trainer in found if trainer.is_hf]
    if hf:
        return _hf(entry, hf[0])
    if found:
        return _lightning(entry, found[0])
    if not entry.trains and not calls_of(entry, "deepspeed.initialize", "accelerate.Accelerator"):
        return _dict(entry) or Hop(entry.path, 1, "no training code that is followed")
    return _engine(entry) or _loop(entry)


def _half(entry: EntryFacts) -> tuple[Hop, ...]:
    return tuple(hop for kind, hop in casts(entry) if kind == "half")


def _hf(entry: EntryFacts, trainer: Trainer) -> Kind | Hop:
    half = _half(entry)
    if half:
        return Kind("half", "", half)
    arguments = hf_arguments(entry, trainer)
    given = [s for one in arguments for name in ("bf16", "fp16") for s in hf_setting(entry, one, name)]
    if not arguments:
        given = [s for name in ("bf16", "fp16") for s in flag_values(entry, name)]
    literal = [s for s in given if s.how == "literal" and s.text is not False]
    if literal:
        return Kind("code_literal", "", tuple(s.hop for s in literal))
    loaded = tuple(hop for kind, hop in casts(entry) if kind.removeprefix("torch_dtype=") in _HALVES)
    files = [s for s in given if s.how == "file" and s.text is True]
    if files:
        kind = "yaml" if files[0].hop.path.endswith((".yaml", ".yml")) else "other"
        return Kind(kind, "a file of arguments", tuple(s.hop for s in files))
    flags = [s for s in given if s.how == "flag"]
    configs = [c for c in deepspeed(entry) if _matters(c)]
    if flags:
        if configs:
            return Kind("flag_and_json", "", _flag_hops(flags) + _section_hops(configs))
        return Kind("code_literal", "", loaded) if loaded else Kind("flag", _told(flags), _flag_hops(flags))
    defaults = [s for s in given if s.how == "default" and s.text is True]
    if defaults:
        return Kind("code_literal", "a default", tuple(s.hop for s in defaults))
    if loaded:
        return Kind("code_literal", "", loaded)
    if any(config.enabled(name) is True for config in configs for name in ("fp16", "bf16")):
        return Kind("deepspeed_json", "", _section_hops(configs))
    settings = accelerate_settings(entry, "mixed_precision")
    if settings:
        return Kind("yaml", str(settings[0].text), tuple(s.hop for s in settings))
    if not arguments:
        return trainer.site.expr.hop("the Trainer's arguments are not followed, no flag is given")
    return _silent(entry, arguments[0].literal, trainer)


def _silent(entry: EntryFacts, literal: Expr | None, trainer: Trainer) -> Kind:
    """Say what it is where nothing gives a value: the arguments written out, or a flag that stays off."""
    if literal is not None:
        return Kind("fp32", "", (literal.hop("the arguments set no precision"),))
    if launches(entry):
        hops = tuple(Hop(launch.path, launch.line, "no precision flag is given here") for launch in launches(entry))
        return Kind("flag", "given nowhere: float32", hops[:3])
    return Kind("unset", "", (trainer.site.expr.hop("the arguments have the flags, the repository gives no value"),))


def _told(flags: list[Setting]) -> str:
    return ", ".join(dict.fromkeys(f"{s.hop.what.split()[0]} {s.text}" for s in flags))


def _flag_hops(flags: list[Setting]) -> tuple[Hop, ...]:
    return tuple(dict.fromkeys(s.hop for s in flags))


def _matters(config: Config) -> bool:
    """Whether a config says more than that the flags decide: "auto" in both sections, or no section."""
    values = [config.enabled("fp16"), config.enabled("bf16")]
    return any(value is not None for value in values) and values != ["auto", "auto"]


def _section_hops(configs: list[Config]) -> tuple[Hop, ...]:
    return tuple(hop for config in configs for name in ("fp16", "bf16") for hop in [config.section(name)] if hop)


def _lightning(entry: EntryFacts, trainer: Trainer) -> Kind:
    node = call_argument(trainer.site.node, None, "precision")
    if node is not None:
        return Kind(
            "lightning",
            trainer.site.module.text(node)[:40],
            (trainer.site.expr.at(node).hop("precision= of Lightning"),),
        )
    flags = list(flag_values(entry, "precision"))
    if flags:
        return Kind("lightning", _told(flags), _flag_hops(flags))
    configs = [config for config in deepspeed(entry) if _matters(config)]
    if configs:
        return Kind("flag_and_json", "", _section_hops(configs))
    return Kind("lightning", "no value is given", (trainer.site.expr.hop("Lightning's own precision argument"),))


def _engine(entry: EntryFacts) -> Kind | Hop | None:
    """Say what decides under accelerate and DeepSpeed; None where neither drives the run."""
    if method_calls(entry, "Accelerator", "prepare", "backward"):
        half = _half(entry)
        if half:
            return Kind("half", "", half)
        return _accelerate(entry)
    sites = calls_of(entry, "deepspeed.initialize")
    found = _dict(entry)
    if found is not None or not sites:
        return found
    configs = deepspeed(entry)
    saying = [config for config in configs if config.section("fp16") or config.section("bf16")]
    if saying:
        flags = [s for name in ("fp16", "bf16") for s in flag_values(entry, name)]
        if flags:
            return Kind("flag_and_json", _told(flags), _flag_hops(flags) + _section_hops(saying))
        return Kind("deepspeed_json", "", _section_hops(saying))
    if configs:
        return None
    return sites[0].expr.hop("the DeepSpeed config that may own the precision is not followed")


def _accelerate(entry: EntryFacts) -> Kind:
    sites = calls_of(entry, "accelerate.Accelerator")
    given = [
        (site, node)
        for site in sites
        for node in [call_argument(site.node, None, "mixed_precision")]
        if node is not None
    ]
    settings = accelerate_settings(entry, "mixed_precision")
    hops = tuple(s.hop for s in settings) + tuple(site.expr.at(node).hop("mixed_precision=") for site, node in given)
    detail = str(settings[0].text) if settings else ", ".join(site.module.text(node)[:40] for site, node in given)
    return Kind(
        "accelerate_config",
        detail,
        hops or tuple(site.expr.hop("the user's accelerate config decides") for site in sites),
    )


def _dict(entry: EntryFacts) -> Kind | None:
    """A DeepSpeed config written as a dict in the code."""
    found = [config for config in dicts(entry) if config.section("fp16") or config.section("bf16")]
    return Kind("deepspeed_dict", "", _section_hops(found)) if found else None


def _loop(entry: EntryFacts) -> Kind | Hop:
    chosen = _chosen(entry)
    if chosen:
        return Kind("flag", "", chosen)
    scaled = tuple(site.expr.hop("a gradient scaler") for site in scalers(entry))
    half = _half(entry)
    cast = tuple(site.expr.hop("autocast") for site in autocasts(entry))
    if scaled:
        return Kind("grad_scaler", "", scaled + cast)
    if half:
        return Kind("half", "", half + cast)
    if cast:
        return Kind("grad_scaler", "autocast, no scaler", cast)
    literal = tuple(hop for kind, hop in casts(entry) if kind.rpartition("=")[2] in _HALVES)
    if literal:
        return Kind("code_literal", "", literal)
    return _hint(entry) or Kind("fp32", "", (Hop(entry.path, 1, "no autocast, scaler, cast or engine in the run"),))


def _hint(entry: EntryFacts) -> Hop | None:
    """Return a place that asks for 16 bits, or for a format that is not followed, where what it does is not known."""
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr in {"half", "bfloat16"} and not site.node.args:
            return site.expr.hop(f"a cast of what is not followed: {site.expr.text[:40]}")
        for node in (*site.node.args, *(keyword.value for keyword in site.node.keywords)):
            if isinstance(node, ast.Attribute) and node.attr in {"float16", "bfloat16", "half"}:
                if _dtypes(entry, site.expr.at(node)) & _HALVES:
                    return site.expr.at(node).hop(f"16 bits in a part of the run: {site.expr.text[:40]}")
        if isinstance(func, ast.Attribute) and func.attr in _LOADS:
            given = call_argument(site.node, None, "torch_dtype")
            if given is not None and "?" in _dtypes(entry, site.expr.at(given)):
                return site.expr.at(given).hop("the format that a model is loaded in is not followed")
    return None


def _chosen(entry: EntryFacts) -> tuple[Hop, ...]:
    """Return the sharding policies whose number format a table of formats gives."""
    found = []
    for site in calls_of(entry, "MixedPrecision"):
        node = call_argument(site.node, 0, "param_dtype")
        if node is not None and len(_dtypes(entry, site.expr.at(node)) - {"?"}) > 1:
            found.append(site.expr.at(node).hop("a flag chooses the format of FSDP"))
    return tuple(found)
