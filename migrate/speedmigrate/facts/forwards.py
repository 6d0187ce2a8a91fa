"""Whether the forward of a model of the root gives the real positions the same values at any padded width.

Everything that a forward does must be on a list of what works position by position, over the last dimension, or through
causal attention. What is not on the list is a problem: a table of a fixed size, a layer over the length, a reduction
over positions, attention that is not seen to be causal.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.models import Model, model_classes
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import call_argument, called_name, own_nodes
from speedmigrate.facts.value import Cls, Const, Expr, Ext, Func, Inst, Unknown
from speedmigrate.facts.values import Values
from speedmigrate.rule import Hop

# Layers of torch.nn that work on each position by itself, and containers.
_LAYERS = frozenset(
    "Linear Embedding LayerNorm RMSNorm Dropout GELU SiLU ReLU Tanh Sigmoid Mish LeakyReLU ModuleList ModuleDict "
    "Sequential Identity Parameter CrossEntropyLoss Module".split()
)
_INFERENCE = frozenset(
    "generate sample stream_generate _stream_generate configure_optimizers estimate_mfu from_pretrained "
    "crop_block_size _init_weights get_num_params reset_parameters extra_repr num_parameters".split()
)
# Methods and functions that keep positions apart (shapes are looked at separately).
_FREE = frozenset(
    "transpose permute contiguous chunk split unbind unsqueeze squeeze expand repeat_interleave to float type_as type "
    "half bfloat16 dim numel item masked_fill masked_fill_ matmul add mul div sub pow rsqrt sqrt exp log sigmoid tanh "
    "silu gelu relu dropout embedding linear layer_norm rms_norm neg abs clamp square where zeros_like ones_like "
    "full_like items values append extend get keys detach clone size stack outer cos sin polar view_as_complex "
    "view_as_real ones zeros full triu tril is_available is_autocast_enabled parameters requires_grad_ update copy "
    "arange bmm expand_as reshape_as view_as".split()
)
_BUILTINS = frozenset(
    "len range isinstance hasattr getattr enumerate zip print int float max min tuple list dict super str "
    "ValueError".split()
)
_REDUCTIONS = frozenset(
    "mean sum max min norm std var softmax log_softmax cat argmax cumsum normalize amax logsumexp".split()
)
_MODULES = frozenset({"torch", "F", "nn.functional", "torch.nn.functional"})
_SIZED = frozenset("arange ones zeros full empty expand range repeat_interleave triu tril".split())
_SHAPES = frozenset({"view", "reshape"})
# Words of a branch that runs without targets, or with a cache.
_INFERENCE_WORDS = ("targets", "labels", "past_key_value", "kv_cache", "use_cache")


def width_problems(values: Values, model: Model, place: Expr) -> tuple[tuple[Hop, ...], Hop | None]:
    """Read the forward of a model of the root.

    Returns:
        What would change with the padded width or is not known, and the place that makes it causal (None: none seen).
    """
    if not (isinstance(model.value, Inst) and isinstance(model.value.of, Cls)):
        where = model.value.hop if isinstance(model.value, Unknown) else place.hop("here")
        return (Hop(where.path, where.line, f"{model.name} cannot be read"),), None
    reader = _Forwards(values, model_classes(values, model.value.of))
    return tuple(dict.fromkeys(reader.problems())), reader.causal


class _Forwards:
    """Reads every function that a forward can run."""

    def __init__(self, values: Values, classes: list[Cls]) -> None:
        self.values = values
        self.classes = classes
        self.causal: Hop | None = None
        self.tables = {name for cls in classes for name in _tables(values, cls)}
        nodes = (node for cls in classes for node in ast.walk(cls.node))
        self.masked = any(isinstance(node, ast.Attribute) and node.attr in {"triu", "tril"} for node in nodes)

    def problems(self) -> Iterator[Hop]:
        """Yield what is not known to keep positions apart."""
        seen: set[ast.AST] = set()
        queue: list[tuple[Module, FunctionNode]] = []
        for cls in self.classes:
            yield from self.layers(cls)
            for method in cls.node.body:
                if isinstance(method, FunctionNode) and method.name not in _INFERENCE | {"__init__"}:
                    queue.append((cls.module, method))
        while queue:
            module, function = queue.pop(0)
            if function in seen:
                continue
            seen.add(function)
            for node in own_nodes(function):
                if _is_inference(module, node):
                    continue
                why = self.why(module, function, node)
                if why:
                    yield module.hop(node, f"{why}: {module.text(node)[:60]}")
                if isinstance(node, ast.Call):
                    for callee in self.values.of(Expr(module, node.func, None)):
                        if isinstance(callee, Func) and isinstance(callee.node, FunctionNode):
                            queue.append((callee.module, callee.node))

    def layers(self, cls: Cls) -> Iterator[Hop]:
        """Yield the layers from outside the root that are not known to keep positions apart."""
        for node in ast.walk(cls.node):
            if isinstance(node, ast.Call):
                for callee in self.values.of(Expr(cls.module, node.func, None)):
                    if isinstance(callee, Ext) and callee.name.startswith("torch.nn.") and callee.last[:1].isupper():
                        inside = ".functional." in callee.name or ".init." in callee.name
                        if not inside and callee.last not in _LAYERS:
                            yield cls.module.hop(node, f"{callee.name} is not known to keep positions apart")

    def why(self, module: Module, function: FunctionNode, node: ast.AST) -> str:
        if isinstance(node, ast.Call):
            return self.why_call(module, function, node)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            return self.why_subscript(node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in self.tables:
            parent = module.parents[node]
            if isinstance(node.value, ast.Name) and not isinstance(parent, ast.Subscript):
                return "a table of a fixed size is used whole"
        if isinstance(node, ast.Lambda):
            return "a lambda is not followed"
        if isinstance(node, ast.BinOp):
            return self.why_arithmetic(module, function, node)
        return ""

    def why_call(self, module: Module, function: FunctionNode, node: ast.Call) -> str:
        name = called_name(node)
        if _is_part_of_self(node.func) and any(_is_turned(module, argument) for argument in node.args):
            return "a layer over something other than the features"
        if _is_part_of_self(node.func) and name not in _SHAPES:
            return ""  # a layer or method of the model, looked at where it is built or defined
        if name == "scaled_dot_product_attention":
            return self.attention(module, node)
        if name in _SHAPES:
            return _why_shape(function, node)
        if name in _REDUCTIONS:
            return self.why_reduction(module, node, name)
        if name == "arange" and (len(node.args) > 2 or (len(node.args) == 2 and ast.unparse(node.args[0]) != "0")):
            return "positions that do not count up from 0"
        if name in {"layer_norm", "rms_norm"} and ".shape[1" in ast.unparse(node):
            return "normalises over the positions"
        if name in {"matmul", "bmm"}:
            left = _receiver(node) if len(node.args) == 1 else node.args[:1]
            if any(map(_is_transposition, left)):
                return "a product over something other than the features"
        if name == "flatten":
            return "positions are flattened" if node.args else ""
        if name in _FREE or (isinstance(node.func, ast.Name) and name in _BUILTINS):
            return ""
        if name == "cross_entropy":
            return ""
        return self.why_callee(module, node)

    def why_arithmetic(self, module: Module, function: FunctionNode, node: ast.BinOp) -> str:
        """A product must not run over the positions, and the length is for shapes and slices alone."""
        if isinstance(node.op, ast.MatMult):
            return "a product over something other than the features" if _is_transposition(node.left) else ""
        lengths = _lengths(function)
        for operand in (node.left, node.right):
            text = ast.unparse(operand)
            if text in lengths or text.endswith((".shape[1]", ".size(1)")):
                if not _is_for_a_shape(module, node):
                    return "the length is computed with"
        return ""

    def why_callee(self, module: Module, node: ast.Call) -> str:
        """Layers that were looked at where they are built, functions of the root, classes that hold the output."""
        callees = self.values.of(Expr(module, node.func, None))
        if all(isinstance(callee, Func | Cls | Inst) or _is_element(callee) for callee in callees):
            return ""
        return "this call is not known to keep positions apart"

    def attention(self, module: Module, node: ast.Call) -> str:
        given = call_argument(node, 5, "is_causal")
        constant = self.values.one(Expr(module, given, None)) if given is not None else None
        if isinstance(constant, Const) and constant.value is True:
            self.causal = self.causal or module.hop(node, "attention reaches earlier positions only")
            return ""
        return "attention is not seen to be causal"

    def why_reduction(self, module: Module, node: ast.Call, name: str) -> str:
        """A reduction over the last dimension keeps positions apart; a softmax is attention, which a mask makes
        causal."""
        functional = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in _MODULES
        dim = call_argument(node, 1 if functional else 0, "dim")
        text = "" if dim is None else ast.unparse(dim)
        subject = node.args[:1] if functional else _receiver(node)
        if any(_is_turned(module, each) for each in subject):
            return "reduces over something other than the features"
        if text not in {"-1", "(-1,)"}:
            return "reduces over something other than the last dimension"
        if name in {"softmax", "log_softmax"}:
            if not self.masked or not all(self.is_masked(module, each, 0) for each in subject):
                return "attention is not seen to be causal"
            self.causal = self.causal or module.hop(node, "attention has a triangular mask")
        return ""

    def is_masked(self, module: Module, node: ast.expr, depth: int) -> bool:
        """Whether scores have gone through a triangular mask: a buffer that holds one, or `tril`/`triu` in place."""
        for child in ast.walk(node):
            if isinstance(child, ast.Attribute) and (child.attr in self.tables or child.attr in {"tril", "triu"}):
                return True
        names = [child for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)]
        for name in names if depth < 5 else ():
            for binding in reaching(module, module.scope(name), name.id, name):
                if (
                    binding.value is not None
                    and binding.value is not node
                    and self.is_masked(module, binding.value, depth + 1)
                ):
                    return True
        return False

    def why_subscript(self, node: ast.Subscript) -> str:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        for index, part in enumerate(parts):
            inner = part.elts[0] if isinstance(part, ast.List) and len(part.elts) == 1 else part
            fixed = (isinstance(inner, ast.Constant) and isinstance(inner.value, int)) or isinstance(inner, ast.UnaryOp)
            if index == 1 and (fixed or isinstance(inner, ast.Name | ast.BinOp | ast.Attribute)):
                return "takes positions by their number"
        return ""


def _is_for_a_shape(module: Module, node: ast.AST) -> bool:
    """Whether a number is an argument of a call that makes or changes a shape, or the bound of a slice."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.Call):
            return child is not parent.func and called_name(parent) in _SIZED | _SHAPES
        if isinstance(parent, ast.Subscript):
            return child is parent.slice
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False


def _receiver(node: ast.Call) -> list[ast.expr]:
    return [node.func.value] if isinstance(node.func, ast.Attribute) else []


def _lengths(function: FunctionNode) -> set[str]:
    """Return the names that hold the length: the second of an unpacked shape, or `x.size(1)`."""
    found: set[str] = set()
    for child in own_nodes(function):
        if isinstance(child, ast.Assign):
            text = ast.unparse(child.value)
            target = child.targets[0]
            if (
                isinstance(target, ast.Tuple)
                and len(target.elts) >= 2
                and text.endswith((".shape", ".size()", ".shape[:2]"))
            ):
                found.add(ast.unparse(target.elts[1]))
            if isinstance(target, ast.Name) and text.endswith((".shape[1]", ".size(1)")):
                found.add(target.id)
    return found


def _is_turned(module: Module, node: ast.expr) -> bool:
    """Whether an argument comes straight out of a transposition, so that its last dimension may be the positions."""
    found = [node]
    if isinstance(node, ast.Name):
        bindings = reaching(module, module.scope(node), node.id, node)
        found = [binding.value for binding in bindings if binding.value is not None]
    return any(_is_transposition(value) for value in found)


def _is_transposition(value: ast.expr) -> bool:
    func = value.func if isinstance(value, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr in {"transpose", "permute", "swapaxes", "swapdims", "t"}:
        return True
    return isinstance(value, ast.Attribute) and value.attr in {"T", "mT", "H"}


def _is_part_of_self(node: ast.expr) -> bool:
    """Whether an expression is a chain of attributes and items of `self`, no call in it."""
    inner = node
    while isinstance(inner, ast.Attribute | ast.Subscript):
        inner = inner.value
    return inner is not node and isinstance(inner, ast.Name) and inner.id == "self"


def _is_element(value: object) -> bool:
    """Whether a value is a part of a container of the model, whose layers were looked at where they are built."""
    of = getattr(value, "of", None)
    while of is not None:
        if isinstance(of, Inst | Cls):
            return True
        of = getattr(of, "of", None)
    return False


def _tables(values: Values, cls: Cls) -> Iterator[str]:
    """Yield the buffers and the parameters of more than one dimension that a class registers."""
    for node in ast.walk(cls.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer":
            if node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_parameter(values, cls, node.value):
            shape = node.value.args[0] if node.value.args else None
            flat = isinstance(shape, ast.Call) and len(shape.args) == 1 and not isinstance(shape.args[0], ast.Tuple)
            if not flat:
                yield from (target.attr for target in node.targets if isinstance(target, ast.Attribute))


def _is_parameter(values: Values, cls: Cls, node: ast.Call) -> bool:
    return any(isinstance(v, Ext) and v.last == "Parameter" for v in values.of(Expr(cls.module, node.func, None)))


def _why_shape(function: FunctionNode, node: ast.Call) -> str:
    """A new shape must name the length that it read from a tensor, or be rows of the last dimension."""
    read = {
        name.id
        for child in own_nodes(function)
        if isinstance(child, ast.Assign) and any(word in ast.unparse(child.value) for word in (".shape", ".size("))
        for name in ast.walk(child.targets[0])
        if isinstance(name, ast.Name)
    }
    parts = [ast.unparse(argument) for argument in node.args]
    if len(parts) == 2 and parts[0] == "-1" and (parts[1].endswith((".size(-1)", ".shape[-1]"))):
        return ""
    if parts == ["-1"]:
        return ""
    words = {child.id for argument in node.args for child in ast.walk(argument) if isinstance(child, ast.Name)}
    lengths = any(word in part for part in parts for word in (".shape[1]", ".size(1)", ".shape[:-1]", ".shape[:2]"))
    if len(parts) >= 3 and (len(words & read) >= 2 or lengths):
        return ""
    if lengths and len(parts) >= 2:
        return ""
    return "a new shape that does not name the length read from a tensor"


def _is_inference(module: Module, node: ast.AST) -> bool:
    """Whether a use stands in the branch that runs without targets (`if targets is not None: ... else: here`)."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.If):
            test = ast.unparse(parent.test)
            wanted = any(word in test for word in _INFERENCE_WORDS)
            if wanted and (
                ("is not None" in test and child in parent.orelse) or ("is None" in test and child in parent.body)
            ):
                return True
        child = parent
    return False
