"""What a training loop does with a batch: whether the padded width can change without changing the loss.

The loop's body is read symbolically: batch fields through `.to`, `view(-1)`, the model call, the loss and its
normalisation. Reading a field in any other way is a problem, and then the padding stays.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from speedmigrate.facts.carry import carry
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.models import Model, forward, models
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import targets
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Attr, Cls, Const, Expr, Ext, Frame, Func, Inst, Item, Result, Value
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

Key = str | int
Kind = Literal["batch", "field", "flat", "output", "logits", "losses", "total", "count", "width"]
_ITERATING = frozenset(
    {"builtins.enumerate", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.trange", "builtins.iter", "itertools.islice"}
)
_SAME = frozenset("to cuda cpu contiguous long int float clone detach type view_as npu half bool".split())
_FREE_CALLS = frozenset({"print", "info", "debug", "warning", "write", "set_description", "log", "set_postfix"})


@dataclass(frozen=True, slots=True)
class Pads:
    """How a field of the batch is padded: the constant that fills it (None: not a plain constant), its code at the
    loader."""

    constant: object
    code: str


@dataclass(frozen=True, slots=True)
class Track:
    """A value that has the padded width in it, and which field it stands for."""

    kind: Kind
    key: Key | None = None
    masked: bool = False
    cut: bool = False
    model: Model | None = None


@dataclass(slots=True)
class Use:
    """What was read of the loops over one loader.

    Attributes:
        models: the models that fields of the batch were given to.
        counted: fields that the loss counts (as target or mask), with the place.
        scalar: whether a loss that the width does not change reaches `backward`.
        added_keys: whether the whole dict goes to the model (`model(**batch)`), so a mask can be added to it.
    """

    loops: int = 0
    models: list[Model] = field(default_factory=list)
    counted: dict[Key, Hop] = field(default_factory=dict)
    problems: list[Hop] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    backward: bool = False
    added_keys: bool = False


def read_loops(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use:
    """Read every loop of the run over a `DataLoader`."""
    use = Use()
    seen: set[ast.AST] = set()
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.For | ast.AsyncFor) and node not in seen:
                expr = Expr(module, node.iter, frame)
                if any(_is_over(entry.values, value, loader) for value in entry.values.of(expr)):
                    seen.add(node)
                    use.loops += 1
                    use.hops.append(
                        module.hop(node, f"the loop over the batches of {loader.hop.path}:{loader.hop.line}")
                    )
                    reader = _Reader(entry.values, use, pads, loader.site.expr, module, frame)
                    reader.bind(node, entry.values.of(expr))
                    reader.block(node.body)
    return use


def read_compute_loss(
    entry: EntryFacts, func: Func, loader: Loader, pads: Mapping[Key, Pads], trained: tuple[Model, ...]
) -> Use:
    """Read the `compute_loss(self, model, inputs, ...)` of a Trainer's subclass as the body of a loop."""
    use = Use(loops=1, backward=True)
    use.hops.append(func.module.hop(func.node, "the Trainer's subclass computes the loss here"))
    reader = _Reader(entry.values, use, pads, loader.site.expr, func.module, Frame(func, None, func.receiver))
    names = [argument.arg for argument in func.node.args.args]
    if not isinstance(func.node, FunctionNode) or len(names) < 3:
        use.problems.append(func.module.hop(func.node, "its parameters are not (self, model, inputs)"))
        return use
    reader.model_names[names[1]] = trained
    reader.env[names[2]] = Track("batch")
    reader.block(func.node.body)
    for value in reader.out:
        first = value[0] if isinstance(value, tuple) and value else value
        if isinstance(first, Track) and first.kind != "output":
            use.problems.append(func.module.hop(func.node, f"{_said(first)} is returned as the loss"))
    return use


def _is_over(values: Values, value: Value, loader: Loader) -> bool:
    """Whether a value is the loader, or iterates over it through `enumerate`, `tqdm` and the like."""
    for _ in range(6):
        if isinstance(value, Inst) and value.call.node is loader.site.node:
            return True
        if isinstance(value, Item | Attr):
            value = value.of
        elif isinstance(value, Inst | Result) and isinstance(value.call.node, ast.Call) and value.call.node.args:
            found = values.of(value.call.at(value.call.node.args[0]))
            if len(found) != 1:
                return any(_is_over(values, inner, loader) for inner in found)
            value = found[0]
        else:
            return False
    return False


def _depth_of(value: Value, values: Values) -> tuple[int, ...]:
    """Return the target positions that lead to the batch: `enumerate` puts it second."""
    if isinstance(value, Inst) and value.of == Ext("builtins.enumerate"):
        return (1,)
    if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.name in _ITERATING:
        node = value.call.node
        if isinstance(node, ast.Call) and node.args:
            for inner in values.of(value.call.at(node.args[0])):
                return _depth_of(inner, values)
    return ()


class _Reader:
    def __init__(
        self,
        values: Values,
        use: Use,
        pads: Mapping[Key, Pads],
        loader: Expr,
        module: Module,
        frame: Frame | None,
        depth: int = 0,
    ):
        self.values, self.use, self.pads, self.loader = values, use, pads, loader
        self.module, self.frame, self.depth = module, frame, depth
        self.model_names: dict[str, tuple[Model, ...]] = {}
        self.env: dict[str, Track | tuple[Track | None, ...] | None] = {}
        self.out: list[Track | tuple[Track | None, ...] | None] = []

    def bind(self, node: ast.For | ast.AsyncFor, found: tuple[Value, ...]) -> None:
        prefix = _depth_of(found[0], self.values)
        for name, path in targets(node.target):
            if path[: len(prefix)] == prefix:
                rest = path[len(prefix) :]
                self.env[name] = Track("batch") if not rest else self.member(rest[0])

    def member(self, key: Key) -> Track | None:
        return Track("field", key) if key in self.pads else None

    def problem(self, node: ast.AST, why: str) -> None:
        hop = self.module.hop(node, f"{why}: {self.module.text(node)[:70]}" if hasattr(node, "lineno") else why)
        if hop not in self.use.problems:
            self.use.problems.append(hop)

    # Statements ------------------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = self.eval(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.store(target, value, node)
        elif isinstance(node, ast.AugAssign):
            value = self.eval(node.value)
            if isinstance(node.target, ast.Name) and isinstance(node.op, ast.Div):
                self.env[node.target.id] = self.divide(self.env.get(node.target.id), value, node)
            elif value is not None:
                self.touch(value, node)
        elif isinstance(node, ast.Return):
            self.out.append(None if node.value is None else self.eval(node.value))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            return
        else:
            self.compound(node)

    def compound(self, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.touch(self.eval(child), child, free=isinstance(node, ast.If | ast.Expr | ast.Assert | ast.While))
            elif isinstance(child, ast.withitem):
                self.eval(child.context_expr)
        for name in ("body", "orelse", "finalbody"):
            self.block(getattr(node, name, None) or [])
        for handler in getattr(node, "handlers", ()):
            self.block(handler.body)

    def store(self, target: ast.expr, value: Track | tuple[Track | None, ...] | None, node: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                if isinstance(value, tuple):
                    part: Track | tuple[Track | None, ...] | None = value[index] if index < len(value) else None
                elif isinstance(value, Track) and value.kind == "batch":
                    part = self.member(index)
                elif isinstance(value, Track) and value.kind == "output":
                    part = value
                else:
                    part = None
                    self.touch(value, node)
                self.store(element, part, node)
        else:
            owner = self.eval(target.value) if isinstance(target, ast.Subscript | ast.Attribute) else None
            if not (isinstance(owner, Track) and owner.kind == "batch"):
                self.touch(value, node)

    # Expressions -----------------------------------------------------------------------------------------------------

    def touch(self, value: Track | tuple[Track | None, ...] | None, node: ast.AST, *, free: bool = False) -> None:
        if isinstance(value, tuple):
            for part in value:
                self.touch(part, node, free=free)
        elif value is not None and not free:
            self.problem(node, f"{_said(value)} is used in a way that is not followed")

    def eval(self, node: ast.expr) -> Track | tuple[Track | None, ...] | None:
        if isinstance(node, ast.Name):
            return self.env.get(node.id)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.Attribute):
            return self.attribute(node)
        if isinstance(node, ast.Subscript):
            return self.subscript(node)
        if isinstance(node, ast.BinOp):
            return self.binop(node)
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(_single(self.eval(element)) for element in node.elts)
        if isinstance(node, ast.DictComp | ast.ListComp | ast.GeneratorExp):
            return self.comprehension(node)
        if isinstance(node, ast.IfExp):
            body, orelse = self.eval(node.body), self.eval(node.orelse)
            return body if body is not None else orelse
        if isinstance(node, ast.Compare | ast.BoolOp | ast.JoinedStr | ast.Constant | ast.Lambda):
            return None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.touch(self.eval(child), node)
        return None

    def attribute(self, node: ast.Attribute) -> Track | None:
        base = _single(self.eval(node.value))
        if base is None:
            return None
        if base.kind == "output" and _is_own(base) and node.attr in {"shape", "device", "dtype"}:
            base = replace(base, kind="logits")
        if base.kind == "output":
            return self.of_output(base, node.attr, node)
        if base.kind == "batch":
            return self.member(node.attr)
        if node.attr == "shape":
            return Track("width", "logits" if base.kind == "logits" else base.key)
        if node.attr in {"device", "dtype", "data"}:
            return base if node.attr == "data" else None
        self.touch(base, node)
        return None

    def of_output(self, output: Track, name: str, node: ast.AST) -> Track | None:
        """`output.loss` of a causal model of transformers leaves labels of -100 out; `output.logits` has the width."""
        if name in {"loss", "0"}:
            model = output.model
            if model is None or not model.is_transformers:
                self.problem(node, "the loss is made inside a model whose loss is not followed")
            return None
        return Track("logits", None)

    def subscript(self, node: ast.Subscript) -> Track | None:
        base = _single(self.eval(node.value))
        if base is None:
            return None
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if base.kind == "batch" and isinstance(key, str | int):
            return self.member(key)
        if base.kind == "output" and _is_own(base) and isinstance(node.slice, ast.Tuple | ast.Slice):
            base = replace(base, kind="logits")
        if base.kind == "output":
            return self.of_output(base, str(key), node)
        if base.kind == "width" and (key == 0 or (base.key == "logits" and ast.unparse(node.slice) in {"-1", "2"})):
            return None
        if base.kind in {"field", "logits"}:
            return self.shifted(node, base)
        if base.kind == "width":
            return base
        self.touch(base, node)
        return None

    def shifted(self, node: ast.Subscript, base: Track) -> Track | None:
        """`logits[..., :-1, :]` and `labels[:, 1:]`: the shift of a language model's loss."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        words = [ast.unparse(part) for part in parts if ast.unparse(part) not in {":", "..."}]
        if words == ["1:"] and len(parts) > 1:
            return base
        if words == [":-1"] and len(parts) > 1:
            return replace(base, cut=True)
        self.touch(base, node)
        return None

    def comprehension(self, node: ast.DictComp | ast.ListComp | ast.GeneratorExp) -> Track | None:
        """`{k: v.to(device) for k, v in batch.items()}` and `[t.to(device) for t in batch]` keep the batch."""
        source = node.generators[0].iter
        inner = source.func.value if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) else source
        base = _single(self.eval(inner))
        element = node.value if isinstance(node, ast.DictComp) else node.elt
        while isinstance(element, ast.Call) and isinstance(element.func, ast.Attribute) and element.func.attr in _SAME:
            element = element.func.value
        names = {name for name, _ in targets(node.generators[0].target)}
        plain = isinstance(element, ast.Name) and element.id in names
        if base is not None and base.kind == "batch" and (plain or isinstance(element, ast.IfExp)):
            return base
        self.touch(base, node)
        return None

    def binop(self, node: ast.BinOp) -> Track | None:
        left, right = _single(self.eval(node.left)), _single(self.eval(node.right))
        if isinstance(node.op, ast.Div):
            return _single(self.divide(left, right, node))
        if isinstance(node.op, ast.Mult):
            for loss, mask in ((left, right), (right, left)):
                if loss is not None and loss.kind == "losses" and mask is not None and mask.kind in {"field", "flat"}:
                    return self.weigh(loss, mask, node)
        if left is None and right is None:
            return None
        if (left is None or right is None) and not isinstance(node.op, ast.MatMult | ast.FloorDiv | ast.Mod):
            kept = left or right
            if kept is not None and kept.kind in {"total", "losses"} and isinstance(node.op, ast.Mult):
                return kept
        for value in (left, right):
            self.touch(value, node)
        return None

    def weigh(self, loss: Track, mask: Track, node: ast.AST) -> Track:
        assert mask.key is not None
        if mask.cut:
            self.problem(node, "the mask loses its last position, which is real once the padding is gone")
        self.use.counted.setdefault(mask.key, self.module.hop(node, "the loss of every token is weighed by the mask"))
        if self.pads[mask.key].constant not in {0}:
            self.problem(node, f"the mask is padded with {self.pads[mask.key].constant!r}, so pads count in the loss")
        return replace(loss, masked=True)

    def divide(self, left: object, right: object, node: ast.AST) -> Track | None:
        if isinstance(right, Track) and right.kind == "width":
            self.problem(node, "the loss is divided by the padded width")
            return None
        if (
            isinstance(left, Track)
            and left.kind == "total"
            and (right is None or (isinstance(right, Track) and right.kind == "count"))
        ):
            return None
        for value in (left, right):
            if isinstance(value, Track):
                self.touch(value, node)
        return None

    # Calls -----------------------------------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Track | tuple[Track | None, ...] | None:
        if isinstance(node.func, ast.Attribute):
            base = _single(self.eval(node.func.value))
            if base is not None:
                return self.method(node, node.func.attr, base)
            if node.func.attr == "backward":
                self.use.backward = True
        callees = self.values.of(Expr(self.module, node.func, self.frame))
        found = self.known(node, callees)
        if found is not NotImplemented:
            return found  # type: ignore[return-value]
        arguments = [self.eval(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        arguments += [self.eval(keyword.value) for keyword in node.keywords]
        if not any(arguments):
            return None
        if self.is_model(node, arguments):
            return self.run_model(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _FREE_CALLS or name in {"len", "isinstance"}:
            return None
        if len(callees) == 1 and isinstance(callees[0], Func) and self.depth < 3:
            return self.inline(node, callees)
        for value in arguments:
            self.touch(value, node)
        return None

    def known(self, node: ast.Call, callees: tuple[Value, ...]) -> object:
        """Evaluate a call of torch that is known by its value, or return NotImplemented."""
        names = {callee.name for callee in callees if isinstance(callee, Ext)}
        losses = {"torch.nn.functional.cross_entropy"}
        if names & losses and len(names) == 1:
            return self.cross_entropy(node, node, 0)
        made = [
            c
            for c in callees
            if isinstance(c, Inst) and isinstance(c.of, Ext) and c.of.name == "torch.nn.CrossEntropyLoss"
        ]
        if made and len(made) == len(callees) and isinstance(made[0].call.node, ast.Call):
            return self.cross_entropy(node, made[0].call.node, 0)
        if names == {"torch.sum"} and node.args:
            return self.total(_single(self.eval(node.args[0])), node)
        if names == {"torch.mean"} and node.args:
            self.mean(_single(self.eval(node.args[0])), node)
            return None
        return NotImplemented

    def cross_entropy(self, node: ast.Call, options: ast.Call, start: int) -> Track | None:
        target = _single(self.eval(node.args[1])) if len(node.args) > 1 else None
        if target is None and (found := call_argument(node, None, "target")) is not None:
            target = _single(self.eval(found))
        if node.args:
            self.eval(node.args[0])
        if target is None or target.key is None or target.kind not in {"field", "flat"}:
            self.problem(node, "the target of the loss is not a field of the batch that is followed")
            return None
        self.use.counted.setdefault(target.key, self.module.hop(node, "the loss of every token"))
        if target.cut:
            self.problem(node, "the target loses its last position, which is real once the padding is gone")
        reduction = call_argument(options, None, "reduction")
        how = reduction.value if isinstance(reduction, ast.Constant) else "mean" if reduction is None else None
        ignored = call_argument(options, None, "ignore_index")
        constant = -100 if ignored is None else self.constant(ignored)
        is_ignored = constant is not None and constant == self.pads[target.key].constant
        if constant is None and ignored is not None:
            code = carry(self.values, Expr(self.module, ignored, self.frame), self.loader)
            is_ignored = code is not None and code == self.pads[target.key].code
        if how == "none":
            return Track("losses", target.key, masked=is_ignored)
        if how not in {"mean", "sum"}:
            self.problem(node, "the reduction of the loss is not a plain word")
        elif not is_ignored:
            self.problem(
                node,
                f"pads count in the loss: the target's pads are {self.pads[target.key].constant!r}, "
                f"ignored is {constant!r}",
            )
        return None

    def constant(self, node: ast.expr) -> object:
        value = self.values.one(Expr(self.module, node, self.frame))
        return value.value if isinstance(value, Const) else None

    def total(self, value: Track | None, node: ast.AST) -> Track | None:
        if value is None:
            return None
        if value.kind == "losses":
            if not value.masked:
                self.problem(node, "the losses of pads are added up")
            return Track("total", value.key)
        if value.kind in {"field", "flat"}:
            return Track("count", value.key)
        self.touch(value, node)
        return None

    def mean(self, value: Track | None, node: ast.AST) -> None:
        if value is not None:
            self.problem(node, "the loss is averaged over the padded width")

    def method(self, node: ast.Call, name: str, base: Track) -> Track | tuple[Track | None, ...] | None:
        for argument in node.args:
            found = self.eval(argument)
            if isinstance(found, Track) and found.kind not in {"width", "field", "flat"}:
                self.touch(found, node)
        if base.kind == "batch":
            if name in {"to", "cuda", "copy"}:
                return base
            if name in {"pop", "get"} and node.args and isinstance(node.args[0], ast.Constant):
                return self.member(node.args[0].value)  # type: ignore[arg-type]
            if name in {"items", "keys", "values"}:
                return base
        if base.kind == "output" and _is_own(base):
            base = replace(base, kind="logits")
        if name in _SAME:
            return base
        if name in {"view", "reshape", "flatten"}:
            return self.flatten(node, base)
        if name == "size":
            return self.size(node, base)
        if name == "sum":
            return self.total(base, node)
        if name == "mean":
            self.mean(base, node)
            return None
        if name == "dim" or base.kind == "count":
            return None if name == "item" else base
        if name in {"item", "tolist"} and base.kind in {"total"}:
            return None
        self.touch(base, node)
        return None

    def flatten(self, node: ast.Call, base: Track) -> Track | None:
        """`view(-1)`, `view(-1, vocabulary)`, `view(other.size())` keep what belongs together."""
        shapes = [ast.unparse(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "flatten":
            shapes = ["-1"] if base.kind != "logits" else ["-1", "V"] if shapes == ["0", "1"] else shapes
        if base.kind in {"field", "flat"} and shapes == ["-1"]:
            return replace(base, kind="flat")
        if base.kind == "logits" and len(shapes) == 2 and shapes[0] == "-1":
            return base
        if base.kind == "losses" and (shapes == ["-1"] or all(".size" in s or ".shape" in s for s in shapes)):
            return base
        self.problem(node, "is brought to another shape in a way that is not followed")
        return None

    def size(self, node: ast.Call, base: Track) -> Track | None:
        if (
            node.args
            and ast.unparse(node.args[0]) in {"0", "-1"}
            and (base.kind == "logits" or ast.unparse(node.args[0]) == "0")
        ):
            return None
        return replace(base, kind="width")

    def is_model(self, node: ast.Call, arguments: list[Track | tuple[Track | None, ...] | None]) -> bool:
        found = self.models_of(node)
        return bool(found) and all(
            isinstance(m.value, Inst) and (m.is_transformers or _is_module(self.values, m.value)) for m in found
        )

    def models_of(self, node: ast.Call) -> tuple[Model, ...]:
        if isinstance(node.func, ast.Name) and node.func.id in self.model_names:
            return self.model_names[node.func.id]
        return models(self.values, Expr(self.module, node.func, self.frame))

    def run_model(self, node: ast.Call) -> Track | tuple[Track | None, ...] | None:
        found = self.models_of(node)
        for model in found:
            if model not in self.use.models:
                self.use.models.append(model)
        for keyword in node.keywords:
            if keyword.arg is None and isinstance(self.eval(keyword.value), Track):
                self.use.added_keys = True
        if found[0].is_transformers:
            labels = call_argument(node, None, "labels")
            if labels is not None and isinstance(given := self.eval(labels), Track) and given.key is not None:
                self.use.counted.setdefault(given.key, self.module.hop(node, "the labels of the model"))
            return Track("output", model=found[0])
        return self.inside(node, found[0])

    def inside(self, node: ast.Call, model: Model) -> Track | tuple[Track | None, ...] | None:
        """Follow the fields that a model of the root gets: those that its loss uses are read there."""
        entered = forward(self.values, model, Expr(self.module, node, self.frame))
        if entered is None:
            self.problem(node, f"{model.name} has no forward that can be read")
            return None
        func, _ = entered
        parameters = [a.arg for a in func.node.args.args[1:]]
        given = {parameters[i]: self.eval(a) for i, a in enumerate(node.args) if i < len(parameters)}
        given |= {k.arg: self.eval(k.value) for k in node.keywords if k.arg is not None}
        targets_given = {n: v for n, v in given.items() if n in {"targets", "labels", "target", "y"} and v is not None}
        if targets_given:
            self.problem(node, "the loss is made inside the model's forward, which is not followed yet")
        return Track("output", model=model)

    def inline(self, node: ast.Call, callees: tuple[Value, ...]) -> Track | tuple[Track | None, ...] | None:
        func = callees[0]
        if not isinstance(func, Func) or not isinstance(func.node, FunctionNode):
            return None
        frame = Frame(func, Expr(self.module, node, self.frame), func.receiver)
        inner = _Reader(self.values, self.use, self.pads, self.loader, func.module, frame, self.depth + 1)
        for argument in (*func.node.args.posonlyargs, *func.node.args.args, *func.node.args.kwonlyargs):
            bound = self.values.argument(frame, argument.arg)
            if bound is not None and bound.module is self.module and bound.frame == self.frame:
                inner.env[argument.arg] = self.eval(bound.node)
        inner.block(func.node.body)
        return next((value for value in inner.out if value is not None), None)


def _single(value: Track | tuple[Track | None, ...] | None) -> Track | None:
    return value if isinstance(value, Track) else None


def _is_own(value: Track) -> bool:
    """Whether an output comes from a model of the root, which may return plain logits."""
    return value.model is not None and not value.model.is_transformers


def _said(value: Track) -> str:
    return {
        "batch": "the batch",
        "field": f"field {value.key!r}",
        "flat": f"field {value.key!r}",
        "output": "the model's output",
        "logits": "the logits",
        "losses": "the loss of every token",
        "total": "the summed loss",
        "count": "the token count",
        "width": "the padded width",
    }[value.kind]


def _is_module(values: Values, value: Inst) -> bool:
    """Whether an object is a `torch.nn.Module` of the root."""
    if not isinstance(value.of, Cls):
        return False
    return any(isinstance(base, Ext) and base.last in {"Module", "PreTrainedModel"} for base in values.mro(value.of))
