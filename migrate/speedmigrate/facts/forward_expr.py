"""Plain expressions of a forward on axes: names, attributes, displays, conditions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from speedmigrate.facts.axes import (
    FREE,
    KEYS,
    NOTHING,
    POSITIONS,
    Many,
    Nothing,
    Output,
    Record,
    Tensor,
    Value,
    is_tracked,
    join,
    join_all,
    runs,
    size_of,
)
from speedmigrate.facts.dynamic_parts import Parts
from speedmigrate.facts.module import Module
from speedmigrate.facts.tracks import Key, Pads
from speedmigrate.facts.value import Const, Expr, Frame
from speedmigrate.facts.value import Value as Resolved
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

_NO_DATA = frozenset({"device", "dtype", "is_cuda", "requires_grad", "grad", "layout"})
_DRAWING = frozenset({"rand", "randn", "rand_like", "randn_like", "bernoulli"})
_HIDDEN = frozenset({"last_hidden_state", "encoder_last_hidden_state"})
TOKEN_HEADS = ("CausalLM", "LMHeadModel", "MaskedLM", "ConditionalGeneration", "Seq2SeqLM", "TokenClassification")


@dataclass(slots=True)
class Read:
    """What is read of one call of a model: shared by all functions that the call runs.

    Attributes:
        corrects: places where today's pads enter the result.
        counted: fields that a loss counts.
        drawn: places that draw numbers at random, as many as the padded batch has positions.
        unset: attributes that are read before anything padded is put into them.
    """

    values: Values
    pads: Mapping[Key, Pads]
    place: Expr
    problems: list[Hop] = field(default_factory=list)
    corrects: list[Hop] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    counted: dict[Key, Hop] = field(default_factory=dict)
    drawn: list[Hop] = field(default_factory=list)
    attributes: dict[tuple[Resolved, str], Value] = field(default_factory=dict)
    unset: set[tuple[Resolved, str]] = field(default_factory=set)
    done: dict[object, Value] = field(default_factory=dict)
    steps: int = 0
    parts: Parts = field(default_factory=dict)
    setting: Callable[[Expr], Const | None] = lambda _: None
    built: Callable[[Resolved], tuple[Resolved, ...]] = lambda value: (value,)

    @property
    def is_left(self) -> bool:
        return any(pad.side != "right" for pad in self.pads.values())


class Expressions:
    """Evaluates the plain expressions of one function; the modules above it add the others."""

    def __init__(self, read: Read, module: Module, frame: Frame | None, depth: int = 0) -> None:
        self.read, self.module, self.frame, self.depth = read, module, frame, depth
        self.values = read.values
        self.env: dict[str, Value] = {}

    def call(self, node: ast.Call) -> Value:
        raise NotImplementedError

    def hop(self, node: ast.AST, why: str) -> Hop:
        return self.module.hop(node, f"{why}: {' '.join(self.module.text(node).split())[:70]}")

    def problem(self, node: ast.AST, why: str) -> None:
        hop = self.hop(node, why)
        if hop not in self.read.problems:
            self.read.problems.append(hop)

    def correct(self, node: ast.AST, why: str) -> None:
        hop = self.hop(node, why)
        if hop not in self.read.corrects:
            self.read.corrects.append(hop)

    def draw(self, node: ast.AST, name: str, sizes: tuple[str, ...]) -> None:
        """Note numbers that are drawn for every position: others are drawn for another width."""
        if name in _DRAWING and any(map(runs, sizes)):
            self.read.drawn.append(self.hop(node, "numbers are drawn for every position"))

    def at(self, node: ast.expr) -> Expr:
        return Expr(self.module, node, self.frame)

    def eval(self, node: ast.expr) -> Value:
        method = getattr(self, "_" + type(node).__name__.lower(), None)
        if method is not None:
            found: Value = method(node)
            return found
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and is_tracked(self.eval(child)):
                self.problem(node, "padded values are used in a way that is not followed")
        return None

    def _call(self, node: ast.Call) -> Value:
        return self.call(node)

    def _constant(self, node: ast.Constant) -> Value:
        if node.value is None:
            return NOTHING
        return node.value if isinstance(node.value, int | float | str) else None

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.env:
            return self.env[node.id]
        return self.known(node)

    def known(self, node: ast.expr) -> Value:
        """Return a plain number or word that the engine finds, else None."""
        found = self.values.of(self.at(node))
        if len(found) != 1 or not isinstance(found[0], Const):
            setting = self.read.setting(self.at(node))
            found = found if setting is None else (setting,)
        if len(found) == 1 and isinstance(found[0], Const) and not _is_class_default(found[0].expr):
            value = found[0].value
            return NOTHING if value is None else value if isinstance(value, int | float | str) else None
        return None

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.eval(node.value)
        if isinstance(base, Tensor):
            return self.of_tensor(node, base)
        if isinstance(base, Output):
            return self.of_output(base, node.attr)
        if isinstance(base, Record):
            return base.get(node.attr)
        if is_tracked(base):
            self.problem(node, "padded values are used in a way that is not followed")
            return None
        owners = self.values.of(self.at(node.value))
        for owner in owners:
            if (owner, node.attr) in self.read.attributes:
                return self.read.attributes[owner, node.attr]
        if not isinstance(self.module.parents.get(node), ast.Compare):
            self.read.unset.update((owner, node.attr) for owner in owners)
        return True if node.attr == "training" else self.held(node)

    def held(self, node: ast.Attribute) -> Value:
        """Return what an attribute of an object holds that no forward has set."""
        raise NotImplementedError

    def of_tensor(self, node: ast.Attribute, base: Tensor) -> Value:
        if node.attr == "shape":
            return tuple(map(size_of, base.axes))
        if node.attr in {"ndim"}:
            return len(base.axes)
        if node.attr in {"T", "mT", "H"}:
            return replace(base, axes=(*base.axes[:-2], *base.axes[:-3:-1]), key=None)
        if node.attr in {"real", "imag", "data"}:
            return base
        if node.attr not in _NO_DATA and base.is_padded:
            self.problem(node, "padded values are used in a way that is not followed")
        return None

    def of_output(self, base: Output, name: str) -> Value:
        """A token has its own hidden state and logits; pooled features and the loss have no positions."""
        if name in _HIDDEN:
            return base.hidden
        if name in {"hidden_states", "encoder_hidden_states", "decoder_hidden_states"}:
            return Many(base.hidden)
        if name == "logits" and base.model.class_name.endswith(TOKEN_HEADS):
            return base.hidden
        if name.endswith("attentions"):
            return Many(replace(base.hidden, axes=(FREE, FREE, POSITIONS, KEYS)))
        return Many(base.hidden) if name == "past_key_values" else None

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        found: list[Value] = []
        for element in node.elts:
            value = self.eval(element.value if isinstance(element, ast.Starred) else element)
            if isinstance(element, ast.Starred):
                found += value if isinstance(value, tuple) else [value]
            else:
                found.append(value)
        return tuple(found)

    _list = _tuple

    def _starred(self, node: ast.Starred) -> Value:
        return self.eval(node.value)

    def _dict(self, node: ast.Dict) -> Value:
        names = [self.eval(key) if key is not None else None for key in node.keys]
        return Record(tuple((str(name), self.eval(value)) for name, value in zip(names, node.values, strict=True)))

    def _lambda(self, node: ast.Lambda) -> Value:
        return None

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        return None

    def _slice(self, node: ast.Slice) -> Value:
        return None

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        self.env[node.target.id] = self.eval(node.value)
        return self.env[node.target.id]

    def _ifexp(self, node: ast.IfExp) -> Value:
        truth = self.truth(self.eval(node.test))
        if truth is not None:
            return self.eval(node.body if truth else node.orelse)
        return join(self.eval(node.body), self.eval(node.orelse))

    def truth(self, value: Value) -> bool | None:
        """Return whether a value is true, None where that is not known."""
        if isinstance(value, int | float | str):
            return bool(value)
        if isinstance(value, Nothing):
            return False
        return None

    def _boolop(self, node: ast.BoolOp) -> Value:
        wanted = isinstance(node.op, ast.Or)
        known: list[bool | None] = []
        found: list[Value] = []
        for operand in node.values:
            found.append(self.eval(operand))
            known.append(self.truth(found[-1]))
            if known[-1] is wanted:
                return wanted if not is_tracked(join_all(found)) else found[-1]
        if None not in known:
            return found[-1]
        tracked = [value for value in found if isinstance(value, Tensor | Output)]
        return tracked[0] if tracked else None

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Value:
        generator = node.generators[0]
        source = self.eval(generator.iter)
        kept = dict(self.env)
        found: list[Value] = []
        if isinstance(source, tuple) and not generator.ifs:
            for part in source:
                self.bind(generator.target, part)
                found.append(self.eval(node.elt))
            result: Value = tuple(found)
        else:
            self.bind(generator.target, self.step(node, source))
            result = Many(self.eval(node.elt))
        if len(node.generators) > 1 and is_tracked(result):
            self.problem(node, "padded values are used in a way that is not followed")
        self.env = kept
        return result if not isinstance(result, Many) or is_tracked(result) else None

    def step(self, node: ast.AST, source: Value) -> Value:
        """Return what one step of going over a value gives: a row of a tensor, each for itself."""
        if isinstance(source, Many):
            return source.of
        if isinstance(source, tuple):
            return join_all(source)
        if isinstance(source, Tensor) and source.axes[:1] == ("",):
            return Tensor(source.axes[1:], fill=source.fill, why=source.why, wrong=source.wrong)
        if is_tracked(source):
            self.problem(node, "a loop over the positions")
        return None

    def _dictcomp(self, node: ast.DictComp) -> Value:
        return self.gone_over(node, node.generators)

    def _setcomp(self, node: ast.SetComp) -> Value:
        return self.gone_over(node, node.generators)

    def gone_over(self, node: ast.AST, generators: list[ast.comprehension]) -> Value:
        if is_tracked(self.eval(generators[0].iter)):
            self.problem(node, "padded values are used in a way that is not followed")
        return None

    _generatorexp = _listcomp

    def bind(self, target: ast.expr, value: Value) -> None:
        raise NotImplementedError


def _is_class_default(expr: Expr) -> bool:
    """Whether a constant is what a class gives a field, which its objects may hold otherwise."""
    if expr.node not in expr.module.parents:
        return False
    return isinstance(expr.module.parents[expr.module.statement(expr.node)], ast.ClassDef)
