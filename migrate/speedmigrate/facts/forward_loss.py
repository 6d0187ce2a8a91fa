"""Losses of a forward on axes: what they count and what they leave out."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from speedmigrate.facts.axes import FREE, OPEN, ROWS, Nothing, Tensor, Value
from speedmigrate.facts.carry import carry
from speedmigrate.facts.forward_ops import Ops
from speedmigrate.facts.value import Expr

if TYPE_CHECKING:
    from speedmigrate.facts.forward_calls import Given

# Losses of torch with the name of the word that leaves targets out (empty: they count every element).
LOSSES = {
    "CrossEntropyLoss": "ignore_index", "NLLLoss": "ignore_index", "cross_entropy": "ignore_index",
    "nll_loss": "ignore_index", "BCEWithLogitsLoss": "", "BCELoss": "", "MSELoss": "", "L1Loss": "", "SmoothL1Loss": "",
    "KLDivLoss": "", "binary_cross_entropy_with_logits": "", "binary_cross_entropy": "", "mse_loss": "", "l1_loss": "",
    "smooth_l1_loss": "", "kl_div": "", "CosineEmbeddingLoss": "", "MarginRankingLoss": "", "TripletMarginLoss": "",
}  # fmt: skip


class Losses(Ops):
    """Evaluates losses."""

    def loss(self, node: ast.Call, name: str, given: Given, made: Expr | None) -> Value:
        """Return the loss: free where pads are left out; options come from the call or from where it was built."""
        scores, target = given.get(0, "input"), given.get(1, "target")
        reduction = self.reduction(node, given, made)
        padded = [each for each in (scores, target) if isinstance(each, Tensor) and each.is_padded]
        why = next((each.why for each in (scores, target) if isinstance(each, Tensor) and each.why), None)
        if not padded:
            return Tensor((FREE,), why=why)
        if not LOSSES[name]:
            return self.plain(node, padded[0], reduction, why)
        if not isinstance(target, Tensor) or not target.is_padded:
            self.problem(node, "the target of the loss is not followed")
            return None
        if target.cut and target.key is not None:
            self.problem(node, "the target loses its last position, which is real once the padding is gone")
        exact = self.leaves_out(node, target, made)
        if target.key is not None:
            self.read.counted.setdefault(target.key, self.hop(node, "the loss of every token"))
        axes = tuple(ROWS if axis == OPEN else axis for axis in target.axes)
        if reduction == "none":
            return Tensor(axes, fill=0 if exact else None, losses=True, why=why)
        held = "what is not known" if target.fill is None else repr(target.fill)
        wrong = (
            None if exact else self.hop(node, f"targets of pads are {held} and count in the loss today, and no longer")
        )
        return Tensor((FREE,), why=why, wrong=wrong)

    def plain(self, node: ast.Call, padded: Tensor, reduction: Value, why: object) -> Value:
        """A loss of every element: its mean over the padded width counts the pads."""
        losses = replace(padded.computed(), losses=True, reach="")
        if reduction == "none":
            return losses
        wrong = self.hop(node, "the loss counts the pads today, and fewer of them after")
        return Tensor((FREE,), why=padded.why, wrong=wrong)

    def count(self, node: ast.AST, target: Tensor, ignored: object) -> None:
        """Note a field that a loss inside a library counts."""
        if target.key is not None:
            self.read.counted.setdefault(target.key, self.hop(node, "the labels of the model"))
        if target.fill != ignored:
            value = "" if target.fill is None else f" ({target.fill!r})"
            self.correct(node, f"labels of pads{value} count in the loss today, and fewer of them after")

    def reduction(self, node: ast.Call, given: Given, made: Expr | None) -> Value:
        """Return the reduction; the old `reduce=False` means none."""
        for name in ("reduction", "reduce"):
            value = self.worded(node, name, made)
            if value is False:
                return "none"
            if isinstance(value, str):
                return value
        return "mean"

    def worded(self, node: ast.Call, name: str, made: Expr | None) -> Value:
        expr = self.word(node, name, made)
        return None if expr is None else self.constant(expr)

    def word(self, node: ast.Call, name: str, made: Expr | None) -> Expr | None:
        for owner in (self.at(node), made):
            call = owner.node if owner is not None else None
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == name and owner is not None:
                    return owner.at(keyword.value)
        return None

    def leaves_out(self, node: ast.Call, target: Tensor, made: Expr | None) -> bool:
        """Whether the loss ignores what the pads of its target hold."""
        expr = self.word(node, "ignore_index", made)
        ignored = -100 if expr is None else self.constant(expr)
        if ignored is not None and not isinstance(ignored, Nothing):
            return target.fill is not None and target.fill == ignored
        if expr is None or target.key is None:
            return False
        pad = self.read.pads[target.key]
        return carry(self.values, expr, self.read.place) == pad.code
