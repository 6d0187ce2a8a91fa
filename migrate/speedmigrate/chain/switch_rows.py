"""What the rows and the evaluation of a run cannot do without one length, whatever the collate pads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.cells import Fill
from speedmigrate.chain.fields import served
from speedmigrate.chain.pads import pads
from speedmigrate.facts.consumers import reads_predictions
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.loaders import Loader, loaders
from speedmigrate.facts.models import models
from speedmigrate.facts.syntax import called_name
from speedmigrate.rule import Hop

# What collators of transformers pad, and columns that hold one value a row or never reach a collator.
_KNOWN = frozenset(
    "input_ids attention_mask token_type_ids labels label label_ids special_tokens_mask decoder_input_ids "
    "decoder_attention_mask start_positions end_positions example_id offset_mapping overflow_to_sample_mapping "
    "length".split()
)
# Heads whose predictions have no width, or whose metrics cut it off themselves.
_WITHOUT_WIDTH = ("ForSequence", "ForMultipleChoice", "QuestionAnswering", "ForNextSentence", "ForImage")


def row_gaps(entry: EntryFacts) -> Iterator[Hop]:
    """Yield fields that no collate of a library pads, rows chosen by their length, predictions that are decoded."""
    for loader in loaders(entry):
        yield from _fields(entry, loader)
        if loader.kind == "Trainer" and reads_predictions(entry, loader) and not _is_without_width(entry, loader):
            what = "evaluation reads predictions, which batches of several widths fill up with -100"
            yield loader.site.expr.hop(what)
    lengths = {pad.length for pad in pads(entry)}
    for site in entry.methods:
        if called_name(site.node) == "filter" and any(_is_length(site, n, lengths) for n in ast.walk(site.node)):
            yield site.expr.hop("rows are chosen by their length")


def _is_length(site: Site, node: ast.AST, lengths: set[str]) -> bool:
    """Whether a part of a condition is a length: `len(row)`, or what rows are padded to."""
    if isinstance(node, ast.Call):
        return called_name(node) == "len"
    return isinstance(node, ast.Name | ast.Attribute) and site.module.text(node) in lengths


def _fields(entry: EntryFacts, loader: Loader) -> Iterator[Hop]:
    for _, data in loader.datasets:
        for row in served(entry, data).rows:
            for field in row.fields:
                own = field.key not in _KNOWN and (field.fill is not None or field.trouble)
                whole = field.key == "attention_mask" and field.fill == Fill(1)
                if isinstance(field.key, str) and (own or whole):
                    yield row.told(f"field {field.key!r} is as long as the padded row, and the collate does not pad it")


def _is_without_width(entry: EntryFacts, loader: Loader) -> bool:
    expr = loader.argument("model")
    found = () if expr is None else models(entry.values, expr)
    return bool(found) and all(any(word in model.name for word in _WITHOUT_WIDTH) for model in found)
