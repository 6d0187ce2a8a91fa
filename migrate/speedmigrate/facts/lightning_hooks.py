"""Methods of a LightningModule, of its data module and of callbacks that get a batch, or what a step returns."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.lightning_runs import PACKAGES
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.value import Cls, Ext, Inst
from speedmigrate.rule import Hop

# The words that the methods of a step begin with.
_STEMS = {
    "training_step": ("training_", "on_train_"),
    "validation_step": ("validation_", "on_validation_"),
    "test_step": ("test_", "on_test_"),
    "predict_step": ("predict_", "on_predict_", "write_on_"),
}
_TRANSFERS = frozenset({"on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device"})


def batch_hooks(entry: EntryFacts, owners: Iterable[Inst], step: str) -> Iterator[Hop]:
    """Yield the methods beside a step that read its batch."""
    for module, node, skipped in _methods(entry, owners):
        position = _batch_at(node.name, step)
        if position is not None and _reads(node, position + skipped):
            yield module.hop(node, f"`{node.name}` gets the batch")


def output_hooks(entry: EntryFacts, owners: Iterable[Inst], step: str) -> Iterator[Hop]:
    """Yield the methods that read what a step returns."""
    for module, node, skipped in _methods(entry, owners):
        if node.name.startswith(_STEMS[step]) and node.name.endswith("_end") and _reads(node, 1 + skipped):
            yield module.hop(node, f"`{node.name}` gets what `{step}` returns")


def _batch_at(name: str, step: str) -> int | None:
    if name in _TRANSFERS or name == "tbptt_split_batch":
        return 1
    if name.startswith(_STEMS[step]) and name.endswith(("_batch_start", "_batch_end")):
        return 3 if name.startswith("write_on_") else 1 if name.endswith("_start") else 2
    return None


def _methods(
    entry: EntryFacts, owners: Iterable[Inst]
) -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Yield the methods of the owners, and of callbacks, which get the trainer and the module first."""
    for owner in dict.fromkeys(owner.of for owner in owners):
        assert isinstance(owner, Cls)
        for base in entry.values.mro(owner):
            if isinstance(base, Cls):
                yield from ((base.module, node, 0) for node in base.node.body if isinstance(node, FunctionNode))
    for cls in _callbacks(entry):
        yield from ((cls.module, node, 2) for node in cls.node.body if isinstance(node, FunctionNode))


def _callbacks(entry: EntryFacts) -> Iterator[Cls]:
    """Yield the classes of the run's files that extend a callback of Lightning."""
    for module in dict.fromkeys(module for module, _, _ in entry.scopes):
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and any(
                isinstance(child, FunctionNode) and child.name.startswith(("on_", "write_on_")) for child in node.body
            ):
                cls = Cls(module, node)
                if any(_is_callback(base) for base in entry.values.mro(cls)):
                    yield cls


def _is_callback(base: Cls | Ext) -> bool:
    if not isinstance(base, Ext) or base.package not in PACKAGES:
        return False
    return base.last == "Callback" or ".callbacks." in base.name


def _reads(node: ast.FunctionDef | ast.AsyncFunctionDef, position: int) -> bool:
    names = [argument.arg for argument in node.args.args]
    name = names[position] if position < len(names) else node.args.vararg.arg if node.args.vararg is not None else None
    return any(isinstance(c, ast.Name) and c.id == name and isinstance(c.ctx, ast.Load) for c in ast.walk(node))
