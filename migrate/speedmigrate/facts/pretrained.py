"""Whether a model of the root that is written like those of transformers and loaded by `from_pretrained` takes
batches of another width.

Its forward is read from the fields of the batch on: every value that comes from them has the padded width in it. What
is done with such a value must be on a list of what keeps positions apart or counts them from the front; what takes
positions from the end, averages over them, brings them to a fixed shape or sends them to other ranks is a problem.
`forwards.py` reads models that are trained from nothing, and looks at all their code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from speedmigrate.facts.models import Model
from speedmigrate.facts.pretrained_calls import FREE, Calls
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.value import (
    Cls,
    Const,
    Expr,
    Ext,
    Frame,
    Func,
    Inst,
)
from speedmigrate.facts.values import Values
from speedmigrate.facts.wide import is_negative, second
from speedmigrate.rule import Hop

_AVERAGES = frozenset({"mean", "std", "var", "median", "nanmean"})
# What is taken of all entries of an axis.
_ACROSS = frozenset("max min norm softmax log_softmax logsumexp normalize amax amin argmax argmin topk sort".split())
_GATHERS = frozenset({"all_gather", "all_gather_into_tensor", "gather_for_metrics", "_all_gather_base"})
_LENGTH_WORDS = frozenset(
    "max_length max_len max_seq_len max_seq_length seq_length max_position_embeddings n_positions n_ctx "
    "model_max_length".split()
)
_MAX_FUNCTIONS = 150


def is_pretrained(values: Values, model: Model) -> bool:
    """Whether a model is of a class of the root that extends `PreTrainedModel` of transformers and is loaded."""
    value = model.value
    if not (isinstance(value, Inst) and isinstance(value.of, Cls)):
        return False
    bases = [base for base in values.mro(value.of) if isinstance(base, Ext)]
    return any(
        base.package == "transformers" and base.last.endswith(("PreTrainedModel", "ForCausalLM")) for base in bases
    )


def pretrained_problems(values: Values, model: Model, keys: Iterable[str]) -> tuple[Hop, ...]:
    """Return what the forward of a model does with the fields of a batch that the padded width changes."""
    assert isinstance(model.value, Inst)
    assert isinstance(model.value.of, Cls)
    func = values.method(model.value.of, "forward")
    if func is None:
        of = model.value.of
        return (of.module.hop(of.node, f"{of.node.name} has no forward that can be read"),)
    reader = _Reader(values)
    reader.enter(Func(func.module, func.node, model.value, func.outer), frozenset(keys))
    return tuple(dict.fromkeys(reader.run()))


def reads_mask(values: Values, model: Model) -> bool:
    """Whether the forward of a model of the root does anything with the `attention_mask` that it is given."""
    cls = model.value.of if isinstance(model.value, Inst) else None
    func = values.method(cls, "forward") if isinstance(cls, Cls) else None
    if func is None or "attention_mask" not in {argument.arg for argument in all_arguments(func.node.args)}:
        return False
    names = [node for node in ast.walk(func.node) if isinstance(node, ast.Name) and node.id == "attention_mask"]
    return any(isinstance(node.ctx, ast.Load) for node in names)


class _Reader:
    """Reads functions, each with the parameters that have the padded width in them."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.queue: list[tuple[Frame, frozenset[str]]] = []
        self.seen: set[tuple[int, frozenset[str]]] = set()

    def enter(self, func: Func, names: frozenset[str], call: Expr | None = None) -> None:
        key = (id(func.node), names)
        if names and key not in self.seen:
            self.seen.add(key)
            self.queue.append((Frame(func, call, func.receiver), names))

    def run(self) -> Iterator[Hop]:
        count = 0
        while self.queue:
            frame, names = self.queue.pop(0)
            count += 1
            if count > _MAX_FUNCTIONS:
                yield frame.func.module.hop(frame.func.node, "the model is too large to read")
                return
            yield from _Function(self.values, self.enter, frame, names).problems()


class _Function(Calls):
    """Reads what one function does with values that have the padded width in them."""

    def problems(self) -> Iterator[Hop]:
        for node in self.nodes:
            why = ""
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and self.is_wide(node.value):
                why = self.why_part(node)
            elif isinstance(node, ast.Call) and (self.takes_wide(node) or called_name(node) == "CrossEntropyLoss"):
                why = self.why_call(node)
            elif isinstance(node, ast.BinOp) and (self.is_wide(node.left) or self.is_wide(node.right)):
                why = "a table of a fixed size" if any(map(self.is_table, (node.left, node.right))) else ""
            if why:
                yield self.module.hop(node, f"{why}: {' '.join(self.module.text(node).split())[:60]}")

    def is_table(self, node: ast.expr) -> bool:
        """Whether an operand is a parameter of the model that has an axis of positions: two axes or more."""
        if not isinstance(node, ast.Attribute):
            return False
        for value in self.values.of(Expr(self.module, node, self.frame)):
            made = value.call.node if isinstance(value, Inst) and value.of == Ext("torch.nn.Parameter") else None
            inner = made.args[0] if isinstance(made, ast.Call) and made.args else None
            if isinstance(inner, ast.Call) and len(inner.args) > 1:
                return True
        return False

    def takes_wide(self, node: ast.Call) -> bool:
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return any(self.is_wide(part) for part in (*owner, *node.args, *(k.value for k in node.keywords)))

    def why_part(self, node: ast.Subscript) -> str:
        """Positions are counted from the front; from the end a pad may stand, unless all but one are meant."""
        index = second(node)
        if index is None or (isinstance(node.value, ast.Attribute) and node.value.attr == "shape"):
            return ""
        if isinstance(index, ast.Slice):
            bounds = [b for b in (index.lower, index.upper) if b is not None and not self.is_wide(b)]
            if any(is_negative(bound) and ast.unparse(bound) != "-1" for bound in bounds) or index.step is not None:
                return "positions are counted from the end"
            start = index.lower in bounds and index.lower is not None and is_negative(index.lower)
            return "positions are counted from the end" if start else ""
        return "a position is taken from the end" if is_negative(index) and not self.is_number(node) else ""

    def is_number(self, node: ast.Subscript) -> bool:
        """Whether `positions[:, -1].max().item()` asks how long the rows are."""
        names = [p.attr for p in list(self.module.ancestors(node))[:4] if isinstance(p, ast.Attribute)]
        return names == ["max", "item"]

    def why_call(self, node: ast.Call) -> str:
        name = called_name(node)
        if name in _GATHERS or (name == "apply" and "ather" in ast.unparse(node.func)):
            return "values with the padded width go to other ranks"
        if name in _AVERAGES:
            return self.why_average(node)
        if name in {"view", "reshape"}:
            return self.why_shape(node)
        if name in {"cat", "concat", "concatenate"}:
            return self.why_joined(node)
        if name == "sum":
            return self.why_sum(node)
        if name == "pad":
            fixed = node.args[1:2] and all(
                isinstance(c, ast.Tuple | ast.List | ast.Constant | ast.Load) for c in ast.walk(node.args[1])
            )
            return "" if fixed else "rows are padded in the model"
        if name in _ACROSS and _is_across(node):
            return "it looks across the positions"
        if name in {"cross_entropy", "CrossEntropyLoss"}:
            return self.why_loss(node)
        if name in FREE:
            self.enter_arguments(node)
            return ""
        return self.why_callee(node)

    def why_average(self, node: ast.Call) -> str:
        functional = isinstance(node.func, ast.Attribute) and not _is_module(node.func.value)
        given = call_argument(node, 0 if functional else 1, "dim")
        return (
            "" if given is not None and ast.unparse(given) in {"-1", "(-1,)"} else "it averages over the padded width"
        )

    def why_sum(self, node: ast.Call) -> str:
        """A sum of a mask, or of what a mask weighs, leaves pads out; a sum of losses has zeros where labels are left
        out."""
        subject = node.func.value if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value) else None
        subject = subject or (node.args[0] if node.args else node)
        weighed = isinstance(subject, ast.Compare) or (
            isinstance(subject, ast.BinOp) and isinstance(subject.op, ast.Mult)
        )
        field = isinstance(subject, ast.Name) and subject.id in self.given
        return "" if weighed or field or not _is_across(node) else "it adds up over the padded width"

    def why_loss(self, node: ast.Call) -> str:
        given = call_argument(node, None, "ignore_index")
        value = self.values.one(Expr(self.module, given, self.frame)) if given is not None else None
        known = given is None or (isinstance(value, Const) and value.value == -100)
        return "" if known else "the loss ignores another label"

    def why_shape(self, node: ast.Call) -> str:
        for argument in node.args:
            words = {child.attr for child in ast.walk(argument) if isinstance(child, ast.Attribute)}
            if words & _LENGTH_WORDS:
                return "a shape of a fixed length"
        open_ = any(ast.unparse(a) == "-1" or self.is_wide(a) or isinstance(a, ast.Starred) for a in node.args)
        tuples = any(isinstance(a, ast.Name | ast.Tuple) for a in node.args)
        return "" if open_ or tuples else "a shape of a fixed length"

    def why_joined(self, node: ast.Call) -> str:
        """Nothing may stand behind the pads of a row."""
        dim = call_argument(node, 1, "dim")
        parts = node.args[0].elts if node.args and isinstance(node.args[0], ast.List | ast.Tuple) else []
        if dim is None or ast.unparse(dim) != "1" or not parts:
            return ""
        kinds = [self.is_wide(part) for part in parts]
        return "" if kinds == sorted(kinds) and kinds.count(True) == 1 else "something is put behind the pads"


def _is_across(node: ast.Call) -> bool:
    """Whether a call names the second axis, the positions of a batch."""
    functional = isinstance(node.func, ast.Attribute) and not _is_module(node.func.value)
    given = call_argument(node, 0 if functional else 1, "dim") or call_argument(node, None, "axis")
    return given is not None and ast.unparse(given) in {"1", "(1,)", "-2", "[1]"}


def _is_module(node: ast.expr) -> bool:
    return ast.unparse(node) in {"torch", "F", "nn.functional", "torch.nn.functional"}
