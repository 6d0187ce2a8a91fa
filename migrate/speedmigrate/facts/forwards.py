"""Whether the forward of a model of the root gives the real positions the same values at any padded width.

The forward is run on axes instead of tensors (`axes.py`): the fields of the batch come in with an axis of positions,
and everything that meets them must be known to keep positions apart, to reach them causally or through a mask, or to
leave pads out of a sum. What is not known is a problem, with its place; pads that enter the result today are corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from speedmigrate.facts.axes import OPEN, Many, Record, Tensor, Value
from speedmigrate.facts.batchvalue import field_of
from speedmigrate.facts.forward_expr import Read
from speedmigrate.facts.forward_run import Run
from speedmigrate.facts.models import Model
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.facts.value import Cls, Expr, Func, Inst, Unknown
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop


def read_forward(values: Values, model: Model, call: Expr, fields: Iterable[str], pads: Mapping[Key, Pads]) -> Read:
    """Run the forward of a model of the root on the fields of a batch, which it gets by their names.

    Args:
        call: where it is called from; pad values are named as they are there.
    """
    read = Read(values, pads, call)
    cls = model.value.of if isinstance(model.value, Inst) else None
    func = values.method(cls, "forward") if isinstance(cls, Cls) else None
    if func is None:
        where = model.value.hop if isinstance(model.value, Unknown) else call.hop("here")
        read.problems.append(Hop(where.path, where.line, f"{model.name} has no forward that can be read"))
        return read
    bound = Func(func.module, func.node, model.value, func.outer)
    start = Run(read, call.module, call.frame)
    _returned(read, start.function(bound, {name: field_of(name, pads[name]) for name in fields}, call), call)
    return read


def _returned(read: Read, result: Value, call: Expr) -> None:
    """What mixes the positions and is returned is a problem, what counts pads is corrected."""
    if isinstance(result, tuple):
        for part in result:
            _returned(read, part, call)
    elif isinstance(result, Record):
        _returned(read, tuple(part for _, part in result.items), call)
    elif isinstance(result, Many):
        _returned(read, result.of, call)
    elif isinstance(result, Tensor):
        if OPEN in result.axes:
            read.problems.append(call.hop("the model returns a shape that does not name the length"))
        read.problems += [hop for hop in (result.why,) if hop is not None and hop not in read.problems]
        read.corrects += [hop for hop in (result.wrong,) if hop is not None and hop not in read.corrects]
