"""Operations along the positions in a forward on axes: attention, softmaxes, sums and means, and how pads stay out."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from speedmigrate.facts.axes import FIXED, FREE, KEYS, OPEN, ROWS, Nothing, Reach, Tensor, Value, broadcast, runs
from speedmigrate.facts.forward_shapes import Shapes, normal

if TYPE_CHECKING:
    from speedmigrate.facts.forward_calls import Given


class Reductions(Shapes):
    """Evaluates what runs along the positions."""

    def softmax(self, node: ast.AST, base: Value, dim: Value) -> Value:
        if not isinstance(base, Tensor) or not base.is_padded:
            return None
        index = normal(base.axes, dim)
        if index is None or index >= len(base.axes):
            self.problem(node, "a softmax over a dimension that is not known")
            return None
        if not runs(base.axes[index]):
            return base.computed()
        self.apart(node, base)
        if base.axes[index][-1] != KEYS and any(axis[-1:] == KEYS for axis in base.axes):
            self.problem(node, "a softmax over the positions that ask, not over the keys")
            return None
        self.attended(node, base.reach)
        return replace(base, key=None, fill=0 if base.reach == "pads" else None, reach="", weights=True)

    def attended(self, node: ast.AST, reach: Reach) -> None:
        """Note how attention keeps pads out, or that it does not."""
        if reach == "pads":
            self.mention(node, "attention leaves pads out")
        elif reach == "causal" and not self.read.is_left:
            self.mention(node, "attention reaches earlier positions only")
        else:
            self.correct(node, "pads are attended today, and no longer")

    def apart(self, node: ast.AST, value: Value) -> None:
        """What runs along the positions must find those of each row by themselves."""
        if isinstance(value, Tensor) and any(axis[-1:] in {ROWS, OPEN} for axis in value.axes):
            self.problem(node, "rows are put one behind the other")

    def mention(self, node: ast.AST, why: str) -> None:
        hop = self.hop(node, why)
        if hop not in self.read.hops:
            self.read.hops.append(hop)

    def reduced(self, node: ast.Call, name: str, base: Tensor, given: Given, first: int) -> Value:
        """A reduction over features keeps positions apart; one over positions must leave pads out."""
        dim = given.get(first + (name in {"norm", "normalize", "topk"}), "dim")
        if isinstance(dim, Tensor):
            return replace(base.computed(), axes=broadcast(base.axes, dim.axes))
        if (name == "topk" and isinstance(dim, Nothing)) or (name == "normalize" and isinstance(dim, Nothing)):
            dim = -1 if name == "topk" else 1
        if name in {"sort", "argsort"} and isinstance(dim, Nothing):
            dim = -1
        indices = set(range(len(base.axes))) if isinstance(dim, Nothing | str) else self.dims(base, dim)
        if indices is None:
            self.problem(node, "a reduction over a dimension that is not known")
            return None
        over = any(runs(base.axes[i]) for i in indices if -len(base.axes) <= i < len(base.axes))
        keep = given.get(first + 1 + (name == "norm"), "keepdim") is True
        axes = tuple(FREE if i in indices else axis for i, axis in enumerate(base.axes) if keep or i not in indices)
        if name in {"cumsum", "normalize", "sort", "argsort", "topk"}:
            axes = base.axes
        found: Value = Tensor(axes, why=base.why, losses=base.losses and not over, wrong=base.wrong)
        if over:
            found = self.over_positions(node, name, base, axes)
        if (name in {"max", "min"} and indices and not isinstance(dim, Nothing)) or name in {"topk", "sort"}:
            return (found, found)
        return found

    def dims(self, base: Tensor, dim: Value) -> set[int] | None:
        found = [normal(base.axes, each) for each in (dim if isinstance(dim, tuple) else (dim,))]
        return {each for each in found if each is not None} if None not in found else None

    def over_positions(self, node: ast.Call, name: str, base: Tensor, axes: tuple[str, ...]) -> Value:
        exact = (
            (name in {"sum", "any", "count_nonzero", "norm"} and base.is_zero)
            or (name == "all" and base.reach == "drop")
            or (name in {"max", "amax", "argmax", "logsumexp"} and base.reach == "pads")
            or (name == "cumsum" and (base.is_zero or not self.read.is_left))
        )  # fmt: skip
        if exact:
            index: Reach = "index" if name == "cumsum" else ""
            return Tensor(axes, why=base.why, reach=index, wrong=base.wrong, is_count=True)
        if base.losses:
            if name == "mean" or name == "sum":
                wrong = self.hop(node, "the loss is taken over the pads too today, and over fewer of them after")
                return Tensor(axes, why=base.why, wrong=wrong)
        return Tensor(axes, why=base.why or self.hop(node, f"`{name}` runs over the padded positions"))

    def attention(self, node: ast.Call, name: str, given: Given) -> Value:
        query = given.get(0, "query") if name != "flash_attn_func" else given.get(0, "q")
        mask = given.get(3, "attn_mask" if name != "memory_efficient_attention" else "attn_bias")
        causal = (
            given.get(5 if name[0] == "s" else None, "is_causal")
            if name != "flash_attn_func"
            else given.get(5, "causal")
        )
        if isinstance(mask, Tensor) and (mask.is_table or FIXED in mask.axes):
            self.problem(node, "a mask of a fixed size is used whole")
        elif name != "flash_attn_func" and mask is None and _has_mask(node):
            self.problem(node, "the mask of this attention is not followed")
        reach: Reach = "causal" if causal is True else ""
        if name != "flash_attn_func" and isinstance(mask, Tensor):
            reach = "pads" if mask.is_zero else mask.reach
        self.attended(node, reach)
        self.apart(node, query)
        return query.computed() if isinstance(query, Tensor) else None

    def attention_layer(self, node: ast.Call, name: str, callee: object, given: Given) -> Value:
        """An attention layer of torch.nn: a key padding mask or a causal mask keeps pads out."""
        words = {"MultiheadAttention": (3, "key_padding_mask", 5, "attn_mask")}
        position, padding, other, mask = words.get(
            name, (2, "src_key_padding_mask", 1, "src_mask" if "Layer" in name else "mask")
        )
        pads, scores = given.get(position, padding), given.get(other, mask)
        reach: Reach = "pads" if isinstance(pads, Tensor) and pads.reach == "drop" else ""
        if not reach and isinstance(scores, Tensor):
            reach = scores.reach
        query = given.args[0] if given.args else given.get(None, "query")
        if any(isinstance(each, Tensor) and each.is_padded for each in given.all):
            self.attended(node, reach)
        self.apart(node, query)
        result = query.computed() if isinstance(query, Tensor) else None
        return (result, None) if name == "MultiheadAttention" else result


def _has_mask(node: ast.Call) -> bool:
    """Whether an attention is given a mask, by position or by name."""
    return len(node.args) > 3 or any(k.arg in {"attn_mask", "attn_bias"} for k in node.keywords)
