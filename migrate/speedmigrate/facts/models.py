"""What model a run trains, how it is wrapped, and (for a model of the root) whether its forward lets pads be
dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Frame, Func, Inst, Item, Unknown, Value
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

# Calls that return the model they are given, wrapped: the position and the name of that argument.
_WRAPPERS = {
    "DistributedDataParallel": "module", "DataParallel": "module", "FullyShardedDataParallel": "module",
    "get_peft_model": "model", "prepare_model_for_kbit_training": "model", "prepare_model_for_int8_training": "model",
    "compile": "model", "initialize": "model", "PeftModel.from_pretrained": "model", "prepare": "model",
    "convert_sync_batchnorm": "module", "BetterTransformer.transform": "model",
}  # fmt: skip
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_POOLS = frozenset(
    "Conv1d Conv2d ConvTranspose1d BatchNorm1d MaxPool1d AvgPool1d AdaptiveAvgPool1d AdaptiveMaxPool1d LSTM GRU RNN "
    "InstanceNorm1d GroupNorm".split()
)
_POOL_CALLS = frozenset("max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d conv1d interpolate".split())


@dataclass(frozen=True, slots=True)
class Model:
    """A model: the value that built it and the wrappers around it, outermost first."""

    value: Value
    wrappers: tuple[str, ...]

    @property
    def is_causal_lm(self) -> bool:
        """Whether it is a causal language model of transformers (its loss ignores labels of -100)."""
        if not (isinstance(self.value, Inst) and isinstance(self.value.of, Ext)):
            return False
        parts = self.value.of.name.split(".")
        return parts[0] == "transformers" and any(part.endswith(_CAUSAL) for part in parts)

    @property
    def is_transformers(self) -> bool:
        return (
            isinstance(self.value, Inst) and isinstance(self.value.of, Ext) and self.value.of.package == "transformers"
        )

    @property
    def name(self) -> str:
        of = self.value.of if isinstance(self.value, Inst) else None
        if isinstance(of, Cls):
            return of.node.name
        return of.name if isinstance(of, Ext) else "a model that is not followed"


def models(values: Values, expr: Expr) -> tuple[Model, ...]:
    """Return every model that an expression can be."""
    return tuple(dict.fromkeys(model for value in values.of(expr) for model in _unwrap(values, value, (), 0)))


def _unwrap(values: Values, value: Value, wrappers: tuple[str, ...], depth: int) -> Iterator[Model]:
    if depth > 8:
        return
    if isinstance(value, Item) and isinstance(value.of, Inst | Attr):
        yield from _unwrap(values, value.of, wrappers, depth + 1)
        return
    if isinstance(value, Attr) and value.name in {"module", "model", "base_model"}:
        yield from _unwrap(values, value.of, wrappers, depth + 1)
        return
    if isinstance(value, Inst) and isinstance(value.of, Ext) and isinstance(value.call.node, ast.Call):
        tail = ".".join(value.of.name.split(".")[-2:])
        name = tail if tail in _WRAPPERS else value.of.last
        if name in _WRAPPERS and value.of.package not in {"transformers"}:
            argument = call_argument(value.call.node, 0, _WRAPPERS[name])
            if argument is not None:
                for inner in values.of(value.call.at(argument)):
                    yield from _unwrap(values, inner, (*wrappers, value.of.name), depth + 1)
                return
    yield Model(value, wrappers)


def width_problems(values: Values, model: Model) -> tuple[tuple[Hop, ...], Hop | None]:
    """Read the forward of a model of the root.

    Returns:
        What would change with the padded width, and the place that makes it causal (None where none is seen).
    """
    if not (isinstance(model.value, Inst) and isinstance(model.value.of, Cls)):
        where = model.value.hop if isinstance(model.value, Unknown) else Hop("", 0, "")
        return (Hop(where.path, where.line, f"{model.name} cannot be read"),), None
    problems: list[Hop] = []
    causal: Hop | None = None
    for cls in _classes(values, model.value.of):
        found, place = _read_class(values, cls)
        problems += found
        causal = causal or place
    return tuple(problems), causal


def _classes(values: Values, cls: Cls) -> list[Cls]:
    """Return the class, its bases and the classes of the root that its code builds or calls."""
    found: list[Cls] = []
    queue: list[Cls] = [cls]
    while queue and len(found) < 60:
        current = queue.pop(0)
        if any(current.node is seen.node for seen in found):
            continue
        found.append(current)
        queue += [base for base in values.mro(current) if isinstance(base, Cls)]
        for node in ast.walk(current.node):
            if isinstance(node, ast.Call):
                for callee in values.of(Expr(current.module, node.func, None)):
                    if isinstance(callee, Cls):
                        queue.append(callee)
    return found


def _read_class(values: Values, cls: Cls) -> tuple[list[Hop], Hop | None]:
    problems: list[Hop] = []
    causal: Hop | None = None
    inference = {"generate", "sample", "configure_optimizers", "estimate_mfu", "stream_generate", "_stream_generate"}
    for function in cls.node.body:
        if not isinstance(function, FunctionNode) or function.name in inference:
            continue
        for node in own_nodes(function):
            if _is_causal(node):
                causal = causal or cls.module.hop(node, f"{cls.node.name} attends to earlier positions only")
            why = _width_use(values, cls, function, node)
            if why:
                problems.append(cls.module.hop(node, f"{why}: {cls.module.text(node)[:60]}"))
    return problems, causal


def _is_causal(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in {"is_causal", "causal"} and not (
            isinstance(node.value, ast.Constant) and not node.value.value
        )
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"tril", "triu"}


def _width_use(values: Values, cls: Cls, function: FunctionNode, node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _POOLS | _POOL_CALLS:
            return "mixes neighbouring positions or averages over them"
        if name in {"mean", "sum", "max", "min", "softmax", "norm", "std", "var"} and function.name != "__init__":
            return _over_positions(node, name)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and function.name != "__init__":
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        if len(parts) >= 2 and _is_everything(parts[0]) and _is_last(parts[1]) and not _is_inference(cls, node):
            return "takes the last position, which is a pad today"
    return ""


def _over_positions(node: ast.Call, name: str) -> str:
    """Say whether a reduction is over the positions; over the last dimension it is not."""
    position = 1 if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in {"torch", "F"} else 0
    dim = call_argument(node, position, "dim")
    if dim is None and name == "softmax":
        return ""
    text = "" if dim is None else ast.unparse(dim)
    if text in {"1", "-2"}:
        return "reduces over the positions"
    if text == "" and name in {"mean"}:
        return "averages over everything"
    return ""


def _is_everything(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and node.lower is None and node.upper is None


def _is_last(node: ast.expr) -> bool:
    if isinstance(node, ast.List) and len(node.elts) == 1:
        node = node.elts[0]
    return isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1"


def _is_inference(cls: Cls, node: ast.AST) -> bool:
    """Whether a use stands in the branch that runs without targets (`if targets is not None: ... else: here`)."""
    child = node
    for parent in cls.module.ancestors(node):
        if isinstance(parent, ast.If):
            test = ast.unparse(parent.test)
            wanted = any(word in test for word in ("targets", "labels"))
            if wanted and (
                ("is not None" in test and child in parent.orelse) or ("is None" in test and child in parent.body)
            ):
                return True
        child = parent
    return False


def forward_parameters(values: Values, model: Model) -> tuple[str, ...]:
    """Return the parameter names of the forward of a model of the root."""
    if isinstance(model.value, Inst) and isinstance(model.value.of, Cls):
        func = values.method(model.value.of, "forward")
        if func is not None:
            return tuple(a.arg for a in (*func.node.args.args[1:], *func.node.args.kwonlyargs))
    return ()


def forward(values: Values, model: Model, call: Expr) -> tuple[Func, Frame] | None:
    """Return the forward of a model of the root and the frame of one call of it."""
    if isinstance(model.value, Inst) and isinstance(model.value.of, Cls):
        func = values.method(model.value.of, "forward")
        if func is not None:
            bound = Func(func.module, func.node, model.value, func.outer)
            return bound, Frame(bound, call, model.value)
    return None


def repeated_layers(values: Values, model: Model) -> Iterator[Hop]:
    """Yield why the layers of a model of the root cannot be compiled one by one; nothing where they can."""
    if not (isinstance(model.value, Inst) and isinstance(model.value.of, Cls)):
        where = model.value.hop if isinstance(model.value, Unknown) else None
        yield where or Hop("", 0, f"{model.name} is not a model of transformers or of this repository")
        return
    classes = _classes(values, model.value.of)
    lists = False
    for cls in classes:
        for node in ast.walk(cls.node):
            if isinstance(node, ast.Call):
                names = {v.last for v in values.of(Expr(cls.module, node.func, None)) if isinstance(v, Ext)}
                lists = lists or "ModuleList" in names
            if isinstance(node, FunctionNode) and node.name == "forward":
                yield from _data_dependent(cls, node)
    if not lists:
        yield model.value.of.module.hop(
            model.value.of.node, f"no nn.ModuleList of repeated layers is seen in {model.name}"
        )


def _data_dependent(cls: Cls, function: FunctionNode) -> Iterator[Hop]:
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            if node.func.attr in {"item", "tolist", "nonzero"}:
                yield cls.module.hop(node, f"{cls.node.name}.forward depends on data: {cls.module.text(node)[:60]}")
