"""Who gets the batches of a loader, and whether all of them stay right when the padded width changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from speedmigrate.facts.batches import loop_use
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.trainer_use import trainer_use
from speedmigrate.facts.value import Const
from speedmigrate.rule import Hop

# Heads that take the last position of the batch, pad or not.
_POOLS_THE_LAST = ("XLNet", "OpenAIGPT", "TransfoXL", "Reformer")
# Decoders whose sequence head takes the last position that is not `config.pad_token_id`.
_POOLS_BY_ID = tuple(
    "GPT2 GPTNeo GPTJ GPTBigCode Llama Mistral Mixtral Qwen Gemma Phi OPT Bloom Falcon CTRL Mpt StableLm Cohere "
    "Starcoder Persimmon".split()
)


def consumers(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use:
    """Return what is done with the batches of a loader whose fields are padded as `pads` says."""
    is_trainers = loader.kind == "Trainer" or loader.trainer is not None
    use = (trainer_use if is_trainers else loop_use)(entry, loader, pads)
    use.problems += _alone(entry, loader)
    for model in use.models if use.models else ():
        if not (model.is_transformers and "ForSequenceClassification" in model.name):
            continue
        if model.class_name.startswith(_POOLS_THE_LAST):
            use.problems.append(loader.site.expr.hop(f"{model.class_name} reads the last position of the batch"))
        elif model.class_name.startswith(_POOLS_BY_ID):
            what = "takes the last position that is not config.pad_token_id, a pad where the pads here are others"
            use.corrects.append(loader.site.expr.hop(f"{model.class_name} {what}"))
    return use


def reads_predictions(entry: EntryFacts, loader: Loader) -> bool:
    """Say whether predictions of evaluation are read: batches of several widths would fill them up with -100."""
    for name in ("compute_metrics", "preprocess_logits_for_metrics"):
        given = loader.argument(name)
        if given is not None and not (isinstance(given.node, ast.Constant) and given.node.value is None):
            return True
    return any(isinstance(site.node.func, ast.Attribute) and site.node.func.attr == "predict" for site in entry.methods)


def _alone(entry: EntryFacts, loader: Loader) -> Iterator[Hop]:
    """Yield that a DataLoader hands single rows to its collate (`batch_size=None`)."""
    size = loader.argument("batch_size")
    if loader.kind == "DataLoader" and size is not None and loader.argument("batch_sampler") is None:
        value = entry.values.one(size)
        if isinstance(value, Const) and value.value is None:
            yield size.hop("the collate gets single rows, as batch_size is None")
