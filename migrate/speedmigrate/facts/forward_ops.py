"""Functions and methods of torch on axes: element by element, along the positions, made from the width."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from speedmigrate.facts.axes import (
    FIXED,
    FREE,
    NOTHING,
    POSITIONS,
    Many,
    Nothing,
    Reach,
    Record,
    Size,
    Tensor,
    Value,
    Width,
    as_keys,
    axis_of,
    is_tracked,
    join_all,
    runs,
    size_of,
)
from speedmigrate.facts.forward_math import inverted
from speedmigrate.facts.forward_reductions import Reductions
from speedmigrate.facts.forward_shapes import normal, spread
from speedmigrate.facts.value import Const, Expr, Ext

if TYPE_CHECKING:
    from speedmigrate.facts.forward_calls import Given

SAME = frozenset(
    "to cuda cpu contiguous long int float half bfloat16 double bool clone detach type type_as npu requires_grad_ "
    "requires_grad dropout identity".split()
)
_ELEMENTS = frozenset(
    "exp log tanh sigmoid relu gelu silu sqrt rsqrt square pow abs neg clamp clamp_min clip softplus logsigmoid cos "
    "sin polar round floor ceil sign reciprocal nan_to_num isnan isinf erf leaky_relu elu "
    "mish hardtanh log1p expm1 isfinite float_power remainder lerp minimum maximum".split()
)
_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "div": ast.Div, "multiply": ast.Mult, "true_divide": ast.Div,
    "add_": ast.Add, "mul_": ast.Mult, "sub_": ast.Sub, "div_": ast.Div, "logical_and": ast.BitAnd,
    "logical_or": ast.BitOr,
}  # fmt: skip
_COMPARISONS: dict[str, type[ast.cmpop]] = {
    "eq": ast.Eq, "ne": ast.NotEq, "gt": ast.Gt, "lt": ast.Lt, "ge": ast.GtE, "le": ast.LtE,
}  # fmt: skip
_REDUCTIONS = frozenset(
    "mean sum max min norm std var argmax argmin cumsum normalize amax amin logsumexp all any prod count_nonzero topk "
    "sort argsort".split()
)
MAKERS = frozenset(
    "arange zeros ones full empty rand randn new_zeros new_ones new_full new_empty Tensor FloatTensor".split()
)
_MADE = MAKERS - {"arange"}
_LIKE = frozenset("zeros_like ones_like full_like empty_like rand_like randn_like bernoulli".split())
_FUNCTIONAL_LAYERS = frozenset({"linear", "layer_norm", "rms_norm", "normalize"})
_ATTENTION = frozenset({"scaled_dot_product_attention", "flash_attn_func", "memory_efficient_attention"})
_PACKAGES = frozenset({"torch", "math", "flash_attn", "xformers", "builtins", "einops", "copy", "numpy"})


class Ops(Reductions):
    """Evaluates functions and methods of torch."""

    def constant(self, expr: Expr) -> Value:
        found = self.values.one(expr)
        value = found.value if isinstance(found, Const) else ...
        if isinstance(found, Ext) or value is ...:
            return None
        return NOTHING if value is None else value if isinstance(value, int | float | str) else None

    def method(self, node: ast.Call, name: str, base: Tensor, given: Given) -> Value:
        args = given.args
        if name in SAME:
            return base
        if name in {"size", "dim", "numel", "nelement"}:
            return self.sizes(name, base, args)
        if name in {"item", "tolist", "numpy"}:
            if base.is_padded:
                self.problem(node, "padded values leave the tensor")
            return None
        if name in {"view", "reshape"}:
            dtype = args and isinstance(args[0], Nothing)
            return base if dtype else self.view(node, base, spread(args or (given.get(None, "size"),)))
        if name in {"view_as", "expand_as", "reshape_as"} and args and isinstance(args[0], Tensor):
            return replace(base, axes=args[0].axes)
        if name in {"permute", "transpose", "swapaxes", "swapdims", "t"}:
            return self.turned(name, base, spread(args))
        if name in {"expand", "repeat", "tile"}:
            return self.expand(node, base, spread(args), repeats=name != "expand")
        if name in {"new_zeros", "new_ones", "new_full", "new_empty"}:
            return self.made(name, sizes_of(name, args))
        return self.common(node, name, base, given, 0)

    def sizes(self, name: str, base: Tensor, args: tuple[Value, ...]) -> Value:
        if name == "dim":
            return len(base.axes)
        if name in {"numel", "nelement"}:
            return Width(times=True) if base.is_padded else None
        if not args:
            return tuple(map(size_of, base.axes))
        index = normal(base.axes, args[0])
        return size_of(base.axes[index]) if index is not None and index < len(base.axes) else None

    def turned(self, name: str, base: Tensor, args: tuple[Value, ...]) -> Value:
        if name == "permute":
            return self.reorder(base, args)
        if name == "t":
            return replace(base, axes=base.axes[::-1], key=None)
        return self.swap(base, args[0], args[1]) if len(args) > 1 else base

    def common(self, node: ast.Call, name: str, base: Tensor, given: Given, first: int) -> Value:
        """What is a method of a tensor and a function of torch alike; arguments count from `first`."""
        args = given.args[first:]
        other = args[0] if args else NOTHING
        if name in _OPERATORS or name in _COMPARISONS:
            return self.operated(node, name, base, other)
        if name in {"logical_not", "bitwise_not"}:
            return inverted(base)
        if name in _ELEMENTS:
            tensors = [each for each in args if isinstance(each, Tensor)]
            axes = base.axes
            for each in tensors:
                axes = self.meet(node, replace(base, axes=axes), each)
            return replace(base.computed(), axes=axes)
        if name in {"masked_fill", "masked_fill_"} and len(args) > 1:
            return self.filled(node, base, args[0], args[1])
        if name in {"softmax", "log_softmax"}:
            scores = self.softmax(node, base, given.get(first, "dim"))
            # A log-probability is, but for its sign, the loss of its token.
            is_loss = name == "log_softmax" and isinstance(scores, Tensor) and not scores.weights
            return replace(scores, losses=True) if is_loss and isinstance(scores, Tensor) else scores
        if name in {"matmul", "bmm", "mm"}:
            return self.product(node, base, other)
        if name in _REDUCTIONS:
            return self.reduced(node, name, base, given, first)
        simple: dict[str, Callable[[], Value]] = {
            "unsqueeze": lambda: self.unsqueeze(base, given.get(first, "dim")),
            "squeeze": lambda: self.squeeze(node, base, given.get(first, "dim")),
            "view_as_complex": lambda: base.computed(base.axes[:-1]),
            "view_as_real": lambda: base.computed((*base.axes, FREE)),
            "flatten": lambda: self.flatten(
                node, base, _or(given.get(first, "start_dim"), 0), _or(given.get(first + 1, "end_dim"), -1)
            ),
            "chunk": lambda: self.parts(node, base, _or(given.get(first + 1, "dim"), 0)),
            "split": lambda: self.parts(node, base, _or(given.get(first + 1, "dim"), 0)),
            "unbind": lambda: self.unbound(node, base, _or(given.get(first, "dim"), 0)),
            "gather": lambda: self.gathered(node, base, given.get(first, "dim"), given.get(first + 1, "index")),
            "scatter": lambda: self.scattered(node, base, given.get(first, "dim"), given.get(first + 1, "index")),
            "scatter_": lambda: self.scattered(node, base, given.get(first, "dim"), given.get(first + 1, "index")),
            "repeat_interleave": lambda: self.along(node, base, _or(given.get(first + 1, "dim"), NOTHING)),
            "index_select": lambda: self.along(node, base, other),
            "flip": lambda: self.along(node, base, other),
            "tril": lambda: replace(base, reach="causal"),
            "triu": lambda: replace(base, reach="causal"),
            "masked_select": lambda: self.select(node, base, other) if isinstance(other, Tensor) else None,
            "outer": lambda: base.computed((*base.axes, FREE)),
        }
        if name in simple:
            return simple[name]()
        if base.is_padded or any(is_tracked(value) for value in args):
            self.problem(node, "this call is not known to keep positions apart")
        return None

    def operated(self, node: ast.Call, name: str, base: Tensor, other: Value) -> Value:
        """`x.mul(y)` is `x * y`, `x.eq(y)` is `x == y`."""
        code = node.args[-1] if node.args else node
        if name in _OPERATORS:
            operation = ast.copy_location(ast.BinOp(code, _OPERATORS[name](), code), node)
            if isinstance(other, Width):
                return self.with_width(operation, base, other)
            return self.arithmetic(operation, base, other)
        return self.compared(ast.copy_location(ast.Compare(code, [_COMPARISONS[name]()], [code]), node), base, other)

    def filled(self, node: ast.AST, base: Tensor, mask: Value, value: Value) -> Value:
        if not isinstance(mask, Tensor):
            self.problem(node, "a mask that is not followed")
            return base
        axes = self.meet(node, base, mask)
        number = value if isinstance(value, int | float) else None
        reach: Reach = base.reach
        if mask.reach in {"causal", "drop", "pads"} and number != 0:
            reach = "causal" if mask.reach == "causal" else "pads"
        fill = number if mask.reach == "drop" else base.fill if mask.is_zero or not mask.is_padded else None
        kept = base.key if fill is not None and mask.reach == "drop" else None
        return replace(base, axes=axes, key=kept, fill=fill, reach=reach)

    def where(self, node: ast.AST, mask: Value, one: Value, other: Value) -> Value:
        tensors = [each for each in (one, other) if isinstance(each, Tensor)]
        if not isinstance(mask, Tensor):
            if any(is_tracked(each) for each in tensors):
                self.problem(node, "a mask that is not followed")
            return join_all(tensors) if tensors else None
        if mask.reach == "drop" and isinstance(other, Tensor):
            return self.filled(node, other, mask, one if not isinstance(one, Tensor) else None)
        if mask.is_zero and isinstance(one, Tensor):
            return self.filled(node, one, inverted(mask), other if not isinstance(other, Tensor) else None)
        if mask.reach == "causal" and tensors:
            return self.filled(node, tensors[0], mask, None)
        axes = mask.axes
        for each in tensors:
            axes = self.meet(node, replace(mask, axes=axes), each)
        return Tensor(axes, why=mask.why or next((each.why for each in tensors if each.why), None))

    def parts(self, node: ast.AST, base: Tensor, dim: Value) -> Value:
        index = normal(base.axes, dim)
        if index is not None and index < len(base.axes) and not runs(base.axes[index]):
            return Many(replace(base, key=None))
        self.problem(node, "the positions are split")
        return None

    def unbound(self, node: ast.AST, base: Tensor, dim: Value) -> Value:
        index = normal(base.axes, dim)
        if index is not None and index < len(base.axes) and base.axes[index] == FREE:
            return Many(replace(base, axes=(*base.axes[:index], *base.axes[index + 1 :]), key=None))
        self.problem(node, "the positions are taken apart")
        return None

    def along(self, node: ast.AST, base: Tensor, dim: Value) -> Value:
        index = normal(base.axes, dim)
        if not base.is_padded or (index is not None and index < len(base.axes) and base.axes[index] == FREE):
            return replace(base, key=None)
        self.problem(node, "positions are taken out or repeated")
        return None

    def gathered(self, node: ast.AST, base: Tensor, dim: Value, index: Value) -> Value:
        where = normal(base.axes, dim)
        if where is None or where >= len(base.axes):
            self.problem(node, "positions are taken in a way that is not followed")
            return None
        if not runs(base.axes[where]):
            if isinstance(index, Tensor) and index.is_padded and not base.is_padded:
                return index.computed()
            return replace(base.computed(), losses=base.losses)
        if isinstance(index, Tensor) and not index.is_padded and self.counts(index):
            return Tensor(tuple(FREE if i == where else axis for i, axis in enumerate(base.axes)), why=base.why)
        self.problem(node, "takes positions by their number")
        return None

    def scattered(self, node: ast.AST, base: Tensor, dim: Value, index: Value) -> Value:
        """Values written into the features of each position, which its own entries of the index choose."""
        where = normal(base.axes, dim)
        if where is not None and isinstance(index, Tensor) and len(index.axes) == len(base.axes):
            pairs = [pair for i, pair in enumerate(zip(base.axes, index.axes, strict=True)) if i != where]
            if not runs(base.axes[where]) and all(one == other for one, other in pairs):
                return base.computed()
        self.problem(node, "values are written into positions by their number")
        return None

    def made(self, name: str, sizes: tuple[Value, ...]) -> Tensor:
        axes = as_keys(tuple(map(axis_of, sizes)))
        fill = 0 if "zeros" in name else None
        return Tensor(axes, fill=fill)

    def torch(self, node: ast.Call, callee: Ext, given: Given) -> Value:
        """A function from outside the root."""
        name, args = callee.last, given.args
        first = args[0] if args else next((value for word, value in given.words if word in {"input", "query"}), NOTHING)
        if "Output" in name or name in {"dict", "SimpleNamespace", "BatchEncoding"}:
            return Record(given.words) if given.words else self.not_known(node, given)
        if callee.package not in _PACKAGES:
            return self.not_known(node, given)
        if name == "arange":
            return self.arange(node, args or (given.get(None, "end"),))
        if name in _MADE:
            made = self.made(name, sizes_of(name, args or (given.get(None, "size"),)))
            self.draw(node, name, made.axes)
            return made
        if name in {"cat", "concat", "concatenate", "stack"}:
            dim = _or(given.get(1, "dim"), 0)
            return self.concatenate(node, first, dim) if name != "stack" else self.stacked(first, dim)
        if name == "einsum":
            return self.einsum(node, args)
        if name == "where" and len(args) == 3:
            return self.where(node, *args)
        if name in _ATTENTION:
            return self.attention(node, name, given)
        if callee.package == "builtins":
            return self.builtin(node, name, first, given)
        if name in {"embedding", "one_hot"} and isinstance(first, Tensor):
            return first.computed((*first.axes, FREE))
        if name in {"addmm", "baddbmm"} and len(args) > 2:
            return self.product(node, args[1], args[2])
        if not isinstance(first, Tensor):
            second = args[1] if len(args) > 1 else NOTHING
            if isinstance(second, Tensor) and name in {"matmul", "bmm", "mm"}:
                return self.product(node, first, second)
            if isinstance(second, Tensor) and name in _OPERATORS:
                return self.operated(node, name, second, first)
            return self.not_known(node, given)
        if name in _LIKE:
            self.draw(node, name, first.axes)
            return Tensor(first.axes, fill=0 if name == "zeros_like" else None)
        return self.function_of(node, name, first, given)

    def builtin(self, node: ast.Call, name: str, first: Value, given: Given) -> Value:
        args = given.args
        if name in {"list", "tuple"}:
            return Many(self.step(node, first)) if isinstance(first, Tensor) and first.is_padded else first
        if name == "enumerate" and isinstance(first, tuple):
            return tuple(enumerate(first))
        if name == "zip" and all(isinstance(each, tuple) for each in args):
            return tuple(zip(*args, strict=False))
        if name in {"enumerate", "zip"} and not any(isinstance(each, tuple | Tensor) for each in args):
            parts = tuple(each.of if isinstance(each, Many) else None for each in args)
            return Many((None, *parts) if name == "enumerate" else parts)
        return self.not_known(node, given)

    def function_of(self, node: ast.Call, name: str, first: Tensor, given: Given) -> Value:
        args = given.args
        if name in _FUNCTIONAL_LAYERS and name != "normalize":
            if (first.axes and runs(first.axes[-1])) or any(
                is_tracked(each) and not isinstance(each, Tensor) for each in args[1:]
            ):
                self.problem(node, "a layer over the positions")
            return first.computed()
        if name in SAME:
            return first
        if name in {"reshape", "permute"}:
            sizes = spread(args[1:])
            return self.view(node, first, sizes) if name == "reshape" else self.reorder(first, sizes)
        if name in {"transpose", "swapaxes"} and len(args) > 2:
            return self.swap(first, args[1], args[2])
        if name == "pad":
            return self.padded(node, first, given.get(1, "pad"), _or(given.get(3, "value"), 0))
        if name == "outer":
            second = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else None
            return first.computed((*first.axes, *(second.axes if second is not None else (FREE,))))
        if name == "numel":
            return self.sizes(name, first, ())
        return self.common(node, name, first, given, 1)

    def padded(self, node: ast.AST, base: Tensor, sizes: Value, value: Value) -> Value:
        """Features may be added; behind labels, one more that the loss ignores as it ignores their pads."""
        if isinstance(sizes, tuple) and sizes[:1] == (0,) and len(sizes) == 2 and base.fill is not None:
            if value == base.fill and isinstance(sizes[1], int):
                return base
        if isinstance(sizes, tuple) and base.axes[-(len(sizes) // 2) :] == (FREE,) * (len(sizes) // 2):
            return base.computed()
        self.problem(node, "something is added to the positions")
        return None

    def stacked(self, parts: Value, dim: Value) -> Value:
        found = join_all(parts) if isinstance(parts, tuple) else parts.of if isinstance(parts, Many) else None
        if not isinstance(found, Tensor):
            return None
        index = normal((*found.axes, FREE), dim) or 0
        return replace(found, axes=(*found.axes[:index], FREE, *found.axes[index:]), key=None)

    def arange(self, node: ast.AST, args: tuple[Value, ...]) -> Value:
        if not any(isinstance(each, Width) for each in args):
            return Tensor((FREE if isinstance(args[-1], Size) else FIXED,))
        if len(args) > 2 or (len(args) == 2 and isinstance(args[0], Width)):
            self.problem(node, "positions that do not count up from the front")
        if self.read.is_left:
            self.correct(node, "positions are counted from the pads on today, and from the first token after")
        return Tensor((POSITIONS,), reach="index")

    def not_known(self, node: ast.Call, given: Given) -> Value:
        if any(is_tracked(value) for value in given.all):
            self.problem(node, "this call is not known to keep positions apart")
        return None


def sizes_of(name: str, args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the sizes of a call that makes a tensor; `full` gets the value behind them."""
    if "full" in name or (args and isinstance(args[0], tuple)):
        return args[0] if isinstance(args[0], tuple) else (args[0],)
    return args


def _or(value: Value, default: Value) -> Value:
    return default if isinstance(value, Nothing) else value
