"""What the model of an HF Trainer does with the pads of a batch today, and whether it takes any width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.forwards import read_forward
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.models import Model
from speedmigrate.facts.pretrained import is_pretrained, pretrained_problems, reads_mask
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.value import Attr, Cls, Inst, Result
from speedmigrate.rule import Hop

# Text models of transformers that are made for one width: they pool the last position, or mix all of them unmasked.
ONE_WIDTH = ("Reformer", "Siglip", "CLIP", "Blip", "FNet", "Perceiver", "AltCLIP", "XCLIP", "FlaxReformer")
# Decoders whose positions are rotated or biased: only differences of positions count.
_RELATIVE = ("Llama", "Mistral", "Qwen", "Gemma", "Phi", "Falcon", "GPTNeoX", "GPTJ", "Bloom", "Baichuan", "InternLM")


def read_models(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads], use: Use) -> None:
    """Add to a `Use` what each of its models does with the fields of the batch."""
    mask = pads.get("attention_mask")
    masked = mask is not None and mask.constant is not None and mask.constant == 0
    use.masked = masked and any(model.is_transformers for model in use.models)
    left = any(pad.side == "left" for pad in pads.values())
    for model in use.models:
        own = _own(model)
        if own is not None:
            _read_own(entry, loader, own, pads, masked, use)
        elif model.is_transformers:
            _read_library(loader, model, masked, left, use)
        else:
            use.problems.append(_hop(loader, f"{model.name} is not followed to a model"))
    if mask is not None and not masked:
        use.corrects.append(_hop(loader, f"the attention mask is {mask.code} at pads, so they are attended today"))
    _read_labels(loader, pads, use)


def _read_library(loader: Loader, model: Model, masked: bool, left: bool, use: Use) -> None:
    """Say what a model of transformers does: any width is taken, and a mask hides the pads."""
    name = model.name.removeprefix("transformers.")
    if any(part.startswith(ONE_WIDTH) for part in name.split(".")):
        use.problems.append(_hop(loader, f"{name} is made for one width"))
        return
    if "QuestionAnswering" in name:
        what = "the softmax over the positions of a span runs over the pads too, afterwards over fewer"
        use.corrects.append(_hop(loader, f"{name}: {what}"))
    if left and not any(part.startswith(_RELATIVE) for part in name.split(".")):
        what = "pads on the left move the positions, afterwards by less"
        use.corrects.append(_hop(loader, f"{name}: {what}, where its positions are absolute"))
    if masked:
        use.hops.append(_hop(loader, f"the model is {name}: its mask hides the pads, labels of -100 are left out"))
    elif model.is_causal_lm and not left:
        what = "right pads do not reach earlier positions, labels of -100 are left out"
        use.hops.append(_hop(loader, f"the model is {name}: {what}"))
    else:
        what = "without a mask its attention can reach the pads today, afterwards only those that fill a batch up"
        use.corrects.append(_hop(loader, f"{name}: {what}"))


def _own(model: Model) -> Model | None:
    """Return a model of the root as the object that is made, `Cls.from_pretrained(...)` seen through."""
    value = model.value
    if isinstance(value, Inst) and isinstance(value.of, Cls):
        return model
    if isinstance(value, Result) and isinstance(value.of, Attr) and isinstance(value.of.of, Cls):
        return replace(model, value=Inst(value.of.of, value.call))
    return None


def _read_own(
    entry: EntryFacts, loader: Loader, model: Model, pads: Mapping[Key, Pads], masked: bool, use: Use
) -> None:
    """Read the forward of a model of the root; one that is loaded ready is asked whether it takes any width."""
    fields = [key for key in pads if isinstance(key, str)]
    if not is_pretrained(entry.values, model):
        read = read_forward(entry.values, model, loader.site.expr, fields, pads)
        use.problems += read.problems
        use.corrects += read.corrects
        use.hops += read.hops
        use.drawn += read.drawn
        return
    use.problems += pretrained_problems(entry.values, model, fields)
    if masked and reads_mask(entry.values, model):
        use.hops.append(_hop(loader, f"the model is {model.name}: its mask hides the pads"))
    else:
        what = "without a mask its attention can reach the pads today, afterwards only those that fill a batch up"
        use.corrects.append(_hop(loader, f"{model.name}: {what}"))


def _read_labels(loader: Loader, pads: Mapping[Key, Pads], use: Use) -> None:
    """A loss of transformers leaves labels of -100 out, and only those."""
    labels = pads.get("labels")
    if labels is None:
        return
    use.counted.setdefault("labels", _hop(loader, "the labels of the model"))
    if labels.constant != -100:
        what = f"the labels are {labels.code} at pads, which the loss counts"
        use.corrects.append(_hop(loader, f"{what} today, afterwards only at those that fill a batch up"))


def _hop(loader: Loader, what: str) -> Hop:
    expr = loader.argument("model")
    return (expr or loader.site.expr).hop(what)
