"""What the methods of a Trainer's subclass, or of a copy of the Trainer in the root, do with the batches.

Only methods that the Trainer calls with a batch, or to make one, can touch the width. The loss is read; the others must
be plain: batch in, model, loss out, by calls that are known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from speedmigrate.facts.batches import read_compute_loss
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import TRAINER_METHODS, Loader, loaders
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.value import Cls, Func, Inst

_LOSS = frozenset({"compute_loss", "training_step"})
# What the Trainer calls to train, beside the loss.
_TRAINING = frozenset(
    "train _inner_training_loop _prepare_inputs _prepare_input get_batch_samples _get_collator_with_removed_columns "
    "get_train_dataloader num_examples".split()
)
# Calls of the Trainer's own code around the model and its loss; a batch goes through them as it is.
_PLAIN = frozenset(
    "compute_loss training_step _prepare_inputs _prepare_input compute_loss_context_manager label_smoother train "
    "autocast_smart_context_manager pop get isinstance hasattr getattr unwrap_model _get_name values keys join "
    "ValueError backward scale scale_loss item detach print info warning debug is_sagemaker_mp_enabled super len "
    "smp_forward_backward reduce_mean to log empty_cache append is_torch_xla_available is_peft_available "
    "_is_peft_model get_base_model items dict type no_sync _inner_training_loop set_epoch get_train_dataloader "
    "update copy is_torch_tpu_available accumulate isnan isinf tqdm is_deepspeed_zero3_enabled".split()
)
_SHAPES = frozenset({"shape", "size", "numel", "view", "reshape"})


def read_overrides(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads], use: Use) -> None:
    """Add to a `Use` what the methods of a Trainer of the root do with its batches."""
    seen: set[str] = set()
    for cls, base, node in _methods(entry, loader):
        if node.name in seen:
            continue
        seen.add(node.name)
        copied = _is_copy(base)
        if node.name in _LOSS:
            if not _is_plain(node):
                func = Func(base.module, node, Inst(cls, loader.site.expr), base.outer)
                found = read_compute_loss(entry, func, loader, pads, tuple(use.models))
                use.problems += found.problems
                use.corrects += found.corrects
                use.counted.update(found.counted)
            use.hops.append(base.module.hop(node, f"`{base.node.name}.{node.name}` computes the loss"))
        elif node.name == "__init__" and not copied and _sets_collator(node):
            use.problems.append(base.module.hop(node, f"`{base.node.name}` sets a collator of its own"))
        elif node.name in _TRAINING and not copied and not _is_plain(node) and not _makes_loader(entry, loader, node):
            use.problems.append(base.module.hop(node, f"`{base.node.name}.{node.name}` overrides the Trainer's own"))


def _methods(entry: EntryFacts, loader: Loader) -> Iterator[tuple[Cls, Cls, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for callee in loader.site.callees:
        for base in entry.values.mro(callee) if isinstance(callee, Cls) else ():
            for node in base.node.body if isinstance(base, Cls) else ():
                if isinstance(node, FunctionNode) and isinstance(callee, Cls) and isinstance(base, Cls):
                    yield callee, base, node


def _is_copy(base: Cls) -> bool:
    return {node.name for node in base.node.body if isinstance(node, FunctionNode)} >= TRAINER_METHODS


def _sets_collator(node: ast.AST) -> bool:
    return any(
        (isinstance(child, ast.Attribute) and child.attr == "data_collator" and isinstance(child.ctx, ast.Store))
        or (isinstance(child, ast.keyword) and child.arg == "data_collator" and not isinstance(child.value, ast.Name))
        for child in ast.walk(node)
    )


def _makes_loader(entry: EntryFacts, loader: Loader, node: ast.AST) -> bool:
    """Say whether a method makes a `DataLoader` that is looked at by itself."""
    inside = {id(child) for child in ast.walk(node)}
    return any(
        made.trainer is not None and made.trainer.site.node is loader.site.node and id(made.site.node) in inside
        for made in loaders(entry)
    )


def _is_plain(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a method only hands the batch to the model and its loss on."""
    names = [argument.arg for argument in node.args.args]
    model, batch = (names[1], names[2]) if len(names) > 2 else ("", "")
    step = node.name == "training_step"
    for child in own_nodes(node):
        if isinstance(child, ast.Call):
            name = called_name(child)
            whole = isinstance(child.func, ast.Name) and child.func.id == model and _is_whole(child, batch)
            if not whole and name not in _PLAIN and not (step and name == "mean" and not child.args):
                return False
        elif _cuts(child) or (isinstance(child, ast.BinOp | ast.ListComp | ast.Lambda) and not step):
            return False
    return True


def _cuts(node: ast.AST) -> bool:
    """Say whether a node reads a shape or takes a part of a tensor."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice | ast.Tuple)
    return isinstance(node, ast.Attribute) and node.attr in _SHAPES


def _is_whole(call: ast.Call, batch: str) -> bool:
    """Say whether a call gets the whole batch and nothing else of it: `model(**inputs)`."""
    spread = [k.value for k in call.keywords if k.arg is None]
    plain = all(isinstance(k.value, ast.Constant) for k in call.keywords if k.arg is not None)
    return not call.args and plain and [ast.unparse(value) for value in spread] == [batch]
