"""What the steps of a LightningModule do with the batches of a loader.

A step is read like the body of a loop, and what `training_step` returns is the loss. What a step returns besides goes
to methods that get outputs, or nowhere. Where the model is chosen from a table, one whose "loss" would have positions
cannot be trained, so the run is not started with it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from speedmigrate.facts.axes import Record, Tensor, Value, has_positions
from speedmigrate.facts.batchread import LoopRead
from speedmigrate.facts.batchrun import Loop
from speedmigrate.facts.batchvalue import batch_of
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.forward_calls import Given
from speedmigrate.facts.lightning_hooks import batch_hooks, output_hooks
from speedmigrate.facts.lightning_runs import makers, runs, steps
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.models import Model
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.value import Attr, Cls, Frame, Func, Inst, Result
from speedmigrate.facts.value import Value as Resolved
from speedmigrate.rule import Hop

_TRAINING = "training_step"
_MAX_CHOICES = 6


def lightning_use(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use | None:
    """Return what Lightning's steps do with the batches of a loader; None where none of them gets these."""
    found = steps(entry, loader)
    if not found:
        return None
    use = Use(added_keys=True)
    for receiver, name in found:
        func = _method(entry, receiver, name)
        if func is None:
            what = f"`{Model(receiver, ()).name}` has no {name} that is read"
            use.problems.append(loader.site.expr.hop(what))
        elif not isinstance(func.node, FunctionNode) or len(func.node.args.args) < 2:
            use.problems.append(func.module.hop(func.node, "its parameters are not (self, batch, ...)"))
        else:
            _add_step(entry, loader, pads, receiver, func, use)
    use.problems, use.corrects = list(dict.fromkeys(use.problems)), list(dict.fromkeys(use.corrects))
    return use


def _method(entry: EntryFacts, receiver: Inst, name: str) -> Func | None:
    assert isinstance(receiver.of, Cls)
    method = entry.values.method(receiver.of, name)
    return None if method is None else Func(method.module, method.node, receiver, method.outer)


def _add_step(
    entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads], receiver: Inst, func: Func, use: Use
) -> None:
    """Add to a `Use` what one step does with the batch."""
    assert isinstance(func.node, FunctionNode)
    name = func.node.name
    use.loops += 1
    use.backward = use.backward or name == _TRAINING
    use.hops.append(func.module.hop(func.node, f"`{name}` gets the batches of {loader.hop.path}:{loader.hop.line}"))
    owners = [receiver, *(run_source for run in runs(entry) for run_source in run.sources if run.module == receiver)]
    owners += [maker for maker, _ in makers(entry, loader)]
    use.problems += batch_hooks(entry, owners, name)
    outputs = [*output_hooks(entry, owners, name), *(_predictions(entry, receiver) if name == "predict_step" else ())]
    step = _read(entry, loader, pads, func, _untrainable(entry, loader, pads, receiver))
    step.give_back(func.node, outputs)
    read = step.read
    use.hops += [hop for hop in read.hops if hop not in use.hops]
    use.drawn += read.drawn
    use.models += [model for model in read.models if model not in use.models]
    use.problems += read.problems
    use.corrects += read.corrects
    use.masked = use.masked or read.masked
    use.added_keys = use.added_keys and read.whole
    use.counted = read.counted | use.counted


def _untrainable(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads], receiver: Inst) -> frozenset[object]:
    """Return the callees, of several that a call can have, with which the loss of `training_step` is no number."""
    func = _method(entry, receiver, _TRAINING)
    fitted = any(run.module == receiver and _TRAINING in run.steps for run in runs(entry))
    if not fitted or func is None or len(func.node.args.args) < 2:
        return frozenset()
    step = _read(entry, loader, pads, func, frozenset())
    dropped: set[object] = set()
    for choice in step.read.choices[:_MAX_CHOICES] if step.is_padded else ():
        wrong = {one for one in choice if _read(entry, loader, pads, func, choice - {one}).is_padded}
        dropped |= wrong if wrong != choice else set()
    return frozenset(dropped)


def _predictions(entry: EntryFacts, receiver: Inst) -> list[Hop]:
    """Return where the predictions of all batches are used together."""
    used = [run.site for run in runs(entry) if run.module == receiver and run.name == "predict"]
    return [
        site.expr.hop("the predictions of all batches are used here")
        for site in used
        if not isinstance(site.module.parents[site.node], ast.Expr)
    ]


def _read(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads], func: Func, without: frozenset[object]) -> _Step:
    read = _StepRead(entry.values, pads, loader.site.expr, loader=loader, without=without)
    step = _Step(read, func.module, Frame(func, None, func.receiver))
    step.env[func.node.args.args[1].arg] = batch_of(pads)
    step.out = []
    assert isinstance(func.node, FunctionNode)
    step.attempt(func.node.body)
    return step


@dataclass(slots=True)
class _StepRead(LoopRead):
    """What is read of one step.

    Attributes:
        without: callees that are left out where a call has others.
        choices: the callees of each call that has several.
    """

    without: frozenset[object] = frozenset()
    choices: list[frozenset[object]] = field(default_factory=list)


class _Step(Loop):
    """Reads a step of a LightningModule."""

    read: _StepRead

    def possible(self, node: ast.Call, callees: list[Resolved]) -> list[Resolved]:
        choice = frozenset(map(_made, callees))
        if len(choice) > 1 and not self.read.inside and choice not in self.read.choices:
            self.read.choices.append(choice)
        return [callee for callee in callees if _made(callee) not in self.read.without] or callees

    def attribute_of(self, node: ast.Call, callee: Attr, given: Given) -> Value:
        if callee.name == "manual_backward" and given.args:
            self.back(node, given.args[0])
            return None
        return super().attribute_of(node, callee, given)

    @property
    def is_padded(self) -> bool:
        """Whether the loss is one of every token."""
        return any(map(has_positions, self.losses))

    @property
    def losses(self) -> list[Value]:
        """What the step returns as the loss: itself, or the entry of that name."""
        return [value.get("loss") if isinstance(value, Record) else value for value in self.out]

    def give_back(self, node: ast.stmt, outputs: list[Hop]) -> None:
        """Look at what the step returns: the loss, and what the methods that get outputs are given."""
        trains = getattr(node, "name", "") == _TRAINING
        for loss in self.losses if trains else ():
            if has_positions(loss):
                self.problem(node, "the loss that the step returns has the padded positions")
            elif isinstance(loss, Tensor) and loss.why is not None:
                self.read.problems.append(loss.why)
            else:
                self.shown(loss)
        if outputs:
            for value in self.out:
                for part in _parts(value):
                    if has_positions(part):
                        self.read.problems += outputs
                    else:
                        self.shown(part)


def _made(callee: Resolved) -> object:
    """Return what tells a callee from others, wherever it is called."""
    return (callee.of, callee.call.node) if isinstance(callee, Inst | Result) else callee


def _parts(value: Value) -> tuple[Value, ...]:
    """Return what a dict or tuple that a step returns holds."""
    if isinstance(value, Record):
        return tuple(part for _, inner in value.items for part in _parts(inner))
    return tuple(part for inner in value for part in _parts(inner)) if isinstance(value, tuple) else (value,)
