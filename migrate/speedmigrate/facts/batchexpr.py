"""Expressions of a loop's body: attributes, subscripts, the shift of labels, and the arithmetic of a loss."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from speedmigrate.facts.carry import carry
from speedmigrate.facts.models import Model
from speedmigrate.facts.module import Module
from speedmigrate.facts.reaching import targets
from speedmigrate.facts.tracks import Key, Pads, Track, Tracked, Use, is_own, said, single
from speedmigrate.facts.value import Attr, Const, Expr, Frame, Inst, Item, Result, Value
from speedmigrate.facts.values import Values

SAME = frozenset("to cuda cpu contiguous long int float clone detach type view_as npu half bool".split())


class Expressions:
    """Evaluates expressions; `calls.py` adds the calls."""

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
        self.env: dict[str, Tracked] = {}
        self.out: list[Tracked] = []

    def call(self, node: ast.Call) -> Tracked:
        raise NotImplementedError

    def block(self, body: list[ast.stmt]) -> None:
        raise NotImplementedError

    def member(self, key: Key) -> Track | None:
        return Track("field", key) if key in self.pads else None

    def problem(self, node: ast.AST, why: str) -> None:
        hop = self.module.hop(node, f"{why}: {self.module.text(node)[:70]}" if hasattr(node, "lineno") else why)
        if hop not in self.use.problems:
            self.use.problems.append(hop)

    def touch(self, value: Tracked, node: ast.AST, *, free: bool = False) -> None:
        if isinstance(value, tuple):
            for part in value:
                self.touch(part, node, free=free)
        elif value is not None and not free:
            self.problem(node, f"{said(value)} is used in a way that is not followed")

    def eval(self, node: ast.expr) -> Tracked:
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
            return tuple(single(self.eval(element)) for element in node.elts)
        if isinstance(node, ast.DictComp | ast.ListComp | ast.GeneratorExp):
            return self.comprehension(node)
        if isinstance(node, ast.IfExp):
            body, orelse = self.eval(node.body), self.eval(node.orelse)
            return body if body is not None else orelse
        if isinstance(node, ast.Compare):
            return self.compare(node)
        if isinstance(node, ast.JoinedStr | ast.Constant):
            return None
        if isinstance(node, ast.Lambda):
            self.closure(node)
            return None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.touch(self.eval(child), node)
        return None

    def compare(self, node: ast.Compare) -> Track | None:
        """`targets != pad` is a mask that is false on pads; any other comparison of batch data is not followed."""
        left, right = single(self.eval(node.left)), single(self.eval(node.comparators[0]))
        tracked = [value for value in (left, right) if value is not None and value.kind not in {"count", "total"}]
        if not tracked:
            return None
        field = left if left is not None and left.kind in {"field", "flat"} else None
        if field is not None and right is None and len(node.ops) == 1 and isinstance(node.ops[0], ast.NotEq):
            assert field.key is not None
            if self.is_pad(field.key, node.comparators[0]):
                return Track("mask", field.key, cut=field.cut)
        self.problem(node, "batch data or its width is compared in a way that is not followed")
        return None

    def is_pad(self, key: Key, node: ast.expr) -> bool:
        """Whether an expression is what a field is padded with."""
        value = self.values.one(Expr(self.module, node, self.frame))
        if isinstance(value, Const):
            return value.value is not None and value.value == self.pads[key].constant
        code = carry(self.values, Expr(self.module, node, self.frame), self.loader)
        return code is not None and code == self.pads[key].code

    def divides(self, node: ast.AST) -> bool:
        """Whether the divisor of a summed loss is a plain number or setting."""
        return isinstance(node, ast.BinOp) and self.is_plain(node.right)

    def closure(self, node: ast.AST) -> None:
        """A function made inside the loop that reads batch data runs where it is not followed."""
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and self.env.get(child.id) is not None:
                self.problem(child, "a nested function reads batch data")
                return

    def is_plain(self, node: ast.expr) -> bool:
        """Whether an operand is a plain number: a constant, a setting, or arithmetic on such."""
        if isinstance(node, ast.BinOp):
            return self.is_plain(node.left) and self.is_plain(node.right)
        values = self.values.of(Expr(self.module, node, self.frame))
        return all(isinstance(value, Const) or _is_setting(value) for value in values)

    def attribute(self, node: ast.Attribute) -> Track | None:
        base = single(self.eval(node.value))
        if base is None:
            return None
        if base.kind == "output" and is_own(base) and node.attr in {"shape", "device", "dtype"}:
            base = replace(base, kind="logits")
        if base.kind == "output":
            return self.of_output(base, node.attr, node)
        if base.kind == "batch":
            return self.member(node.attr)
        if node.attr == "shape":
            return Track("width", "logits" if base.kind == "logits" else base.key, cut=base.kind in {"flat", "losses"})
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
        base = single(self.eval(node.value))
        if base is None:
            return None
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if base.kind == "batch" and isinstance(key, str | int):
            return self.member(key)
        if base.kind == "output" and is_own(base) and isinstance(node.slice, ast.Tuple | ast.Slice):
            base = replace(base, kind="logits")
        if base.kind == "output":
            return self.of_output(base, str(key), node)
        if base.kind == "width" and base.key == "logits" and ast.unparse(node.slice) in {"-1", "2"}:
            return None
        if base.kind == "width" and key == 0 and not base.cut:
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
        base = single(self.eval(inner))
        element = node.value if isinstance(node, ast.DictComp) else node.elt
        while isinstance(element, ast.Call) and isinstance(element.func, ast.Attribute) and element.func.attr in SAME:
            element = element.func.value
        names = {name for name, _ in targets(node.generators[0].target)}
        plain = isinstance(element, ast.Name) and element.id in names
        if base is not None and base.kind == "batch" and (plain or isinstance(element, ast.IfExp)):
            return base
        self.touch(base, node)
        return None

    def binop(self, node: ast.BinOp) -> Track | None:
        left, right = single(self.eval(node.left)), single(self.eval(node.right))
        if isinstance(node.op, ast.Div):
            return single(self.divide(left, right, node))
        if isinstance(node.op, ast.Mult):
            for loss, mask in ((left, right), (right, left)):
                if (
                    loss is not None
                    and loss.kind == "losses"
                    and mask is not None
                    and mask.kind in {"field", "flat", "mask"}
                ):
                    return self.weigh(loss, mask, node)
        if left is None and right is None:
            return None
        kept, other = (left, node.right) if left is not None else (right, node.left)
        if (
            kept is not None
            and kept.kind in {"total", "losses"}
            and isinstance(node.op, ast.Mult)
            and self.is_plain(other)
        ):
            return kept
        for value in (left, right):
            self.touch(value, node)
        return None

    def weigh(self, loss: Track, mask: Track, node: ast.AST) -> Track:
        assert mask.key is not None
        if mask.cut:
            self.problem(node, "the mask loses its last position, which is real once the padding is gone")
        self.use.counted.setdefault(mask.key, self.module.hop(node, "the loss of every token is weighed by the mask"))
        if mask.kind != "mask" and self.pads[mask.key].constant not in {0}:
            self.problem(node, f"the mask is padded with {self.pads[mask.key].constant!r}, so pads count in the loss")
        return replace(loss, masked=True)

    def divide(self, left: object, right: object, node: ast.AST) -> Track | None:
        if isinstance(right, Track) and right.kind == "width":
            self.problem(node, "the loss is divided by the padded width")
            return None
        if (
            isinstance(left, Track)
            and left.kind == "total"
            and ((isinstance(right, Track) and right.kind == "count") or (right is None and self.divides(node)))
        ):
            return None
        for value in (left, right):
            if isinstance(value, Track):
                self.touch(value, node)
        return None


def _is_setting(value: Value) -> bool:
    """`args.x` of parsed arguments, or a field of an arguments object."""
    if not isinstance(value, Attr):
        return False
    of = value.of
    return isinstance(of, Result | Inst | Item)
