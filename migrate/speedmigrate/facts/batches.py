"""What the training loops of a run do with the batches of a loader: whether the padded width can change without
changing the loss.

A loop's body is run on axes, like the forward of a model (`forward_run.py`): the fields of the batch through `.to`, the
model, the loss and its normalisation. Reading a field in any other way is a problem, and then the padding stays.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from speedmigrate.facts.axes import Value, Width, has_positions, is_tracked
from speedmigrate.facts.batchloops import Start, starts, yields
from speedmigrate.facts.batchread import LoopRead
from speedmigrate.facts.batchrun import Loop
from speedmigrate.facts.batchvalue import batch_of
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.lightning_use import lightning_use
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.models import Model
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.patched import patched
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.uses import stray_uses
from speedmigrate.facts.value import Ext, Frame, Func
from speedmigrate.rule import Hop


def loop_use(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use:
    """Return what the loops over a `DataLoader` do with its batches, and what else is done with the loader."""
    use = lightning_use(entry, loader, pads) or read_loops(entry, loader, pads)
    if not use.loops:
        use.problems.append(loader.site.expr.hop("no loop over these batches is found"))
    elif not use.models:
        use.problems.append(Hop(use.hops[0].path, use.hops[0].line, "no model that is followed gets these batches"))
    use.problems += [*stray_uses(entry, {loader.site.node}, rows=False), *patched(entry)]
    use.problems[:] = dict.fromkeys(use.problems)
    return use


def read_loops(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use:
    """Read every loop of the run over a `DataLoader`."""
    use = Use()
    pads = _collated(entry, loader, pads)
    for start in starts(entry, loader):
        if isinstance(start.node, ast.For | ast.AsyncFor) and yields(start.node):
            continue
        module, _, frame = start.scope
        use.loops += 1
        hop = module.hop(start.node, f"the loop over the batches of {loader.hop.path}:{loader.hop.line}")
        if hop not in use.hops:
            use.hops.append(hop)
        read = LoopRead(entry.values, pads, loader.site.expr, loader=loader)
        run = Loop(read, module, frame)
        if start.target is not None:
            run.bind(start.target, _placed(start.path, batch_of(pads)))
        run.out = []
        run.attempt(list(start.body))
        behind(run, start)
        _carried(run, start)
        _add(use, read)
    return use


def _collated(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Mapping[Key, Pads]:
    """`default_data_collator` of transformers makes `labels` of `label` and `label_ids`."""
    found = entry.values.of(loader.collate) if loader.collate is not None else ()
    if not any(isinstance(value, Ext) and value.last.endswith("default_data_collator") for value in found):
        return pads
    return {"labels" if key in {"label", "label_ids"} else key: pad for key, pad in pads.items()}


def _placed(path: tuple[int, ...], value: Value) -> Value:
    for index in reversed(path):
        value = (*(None for _ in range(index)), value)
    return value


def behind(run: Loop, start: Start) -> None:
    """Batch data that leaves the loop, in a name or as what its function returns, is not followed."""
    module, scope, _ = start.scope
    if any(is_tracked(value) for value in run.out):
        run.problem(start.node, "batch data is returned out of the loop")
    inside = {node for statement in start.body for node in ast.walk(statement)}
    held = {name for name, value in run.env.items() if is_tracked(value)}
    for node in own_nodes(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in held and node not in inside:
            found = reaching(module, module.scope(node), node.id, node)
            if any(binding.node in inside or binding.node is start.node for binding in found):
                run.problem(node, "batch data is read behind the loop")


def _carried(run: Loop, start: Start) -> None:
    """Padded data of one batch that the next one meets has another width then."""
    inside = {node for statement in start.body for node in ast.walk(statement)}
    held = {name for name, value in run.env.items() if has_positions(value) and not isinstance(value, Width)}
    for node in inside:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in held:
            for binding in reaching(run.module, run.module.scope(node), node.id, node):
                later = getattr(binding.node, "lineno", 0) >= run.module.statement(node).lineno
                if binding.node in inside and later and _loop_of(run, binding.node) is start.node:
                    run.problem(node, "batch data is kept for the next batch, whose width is another")


def _loop_of(run: Loop, node: ast.AST) -> ast.AST | None:
    loops = (ast.For, ast.AsyncFor, ast.While)
    return next((each for each in run.module.ancestors(node) if isinstance(each, loops)), None)


def _add(use: Use, read: LoopRead) -> None:
    use.problems += [hop for hop in read.problems if hop not in use.problems]
    use.corrects += [hop for hop in read.corrects if hop not in use.corrects]
    use.hops += [hop for hop in read.hops if hop not in use.hops]
    use.drawn += [hop for hop in read.drawn if hop not in use.drawn]
    use.models += [model for model in read.models if model not in use.models]
    for key, hop in read.counted.items():
        use.counted.setdefault(key, hop)
    use.backward = use.backward or read.backward
    use.masked = use.masked or read.masked
    use.added_keys = use.added_keys or read.whole


def read_compute_loss(
    entry: EntryFacts, func: Func, loader: Loader, pads: Mapping[Key, Pads], trained: tuple[Model, ...]
) -> Use:
    """Read the `compute_loss(self, model, inputs, ...)` of a Trainer's subclass as the body of a loop."""
    use = Use(loops=1, backward=True)
    use.hops.append(func.module.hop(func.node, "the Trainer's subclass computes the loss here"))
    names = [argument.arg for argument in func.node.args.args]
    if not isinstance(func.node, FunctionNode) or len(names) < 3:
        use.problems.append(func.module.hop(func.node, "its parameters are not (self, model, inputs)"))
        return use
    read = LoopRead(entry.values, pads, loader.site.expr, trained=trained)
    run = Loop(read, func.module, Frame(func, None, func.receiver))
    given: dict[str, Value] = {name: None for name in names[3:] if name != "return_outputs"}
    run.result(func, {**given, names[2]: batch_of(pads)})
    for value in run.out:
        run.back(func.node, value[0] if isinstance(value, tuple) and value else value)
    _add(use, read)
    return use
