"""What is read of one loop, and how a batch itself is used in it: its keys, slots, items, comprehensions over it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from speedmigrate.facts.axes import FREE, Many, Record, Tensor, Value, is_tracked, join_all
from speedmigrate.facts.batchvalue import OTHER, Batch
from speedmigrate.facts.forward_expr import Read
from speedmigrate.facts.forward_run import Run
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.models import Model
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.value import Func

_MOVES = frozenset("to cuda cpu pin_memory copy contiguous detach half float npu convert_to_tensors".split())
_NOT_FOLLOWED = "the batch is used in a way that is not followed"


@dataclass(slots=True)
class LoopRead(Read):
    """What is read of one loop.

    Attributes:
        trained: the models that a Trainer hands to the function that is read.
        inside: how many models of the root are being run.
        whole: whether a model of transformers gets the batch through `**`.
    """

    loader: Loader | None = None
    trained: tuple[Model, ...] = ()
    models: list[Model] = field(default_factory=list)
    inside: int = 0
    backward: bool = False
    masked: bool = False
    whole: bool = False


class Batches(Run):
    """Evaluates what is done with a batch as a whole."""

    read: LoopRead

    def _attribute(self, node: ast.Attribute) -> Value:
        found = super()._attribute(node)
        if node.attr == "data" and found is None and isinstance(base := self.eval(node.value), Batch):
            return base  # `BatchEncoding.data` is the dict itself
        return found

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.eval(node.value)
        if not isinstance(base, Batch):
            return super()._subscript(node)
        if isinstance(node.slice, ast.Slice):
            return self.slots(node, base, node.slice)
        key = self.eval(node.slice)
        if isinstance(key, str | int):
            return base.get(str(key))
        if is_tracked(base):
            self.problem(node, "a field of the batch is taken by a name that is not followed")
        return None

    def slots(self, node: ast.AST, base: Batch, part: ast.Slice) -> Value:
        """`batch[:3]`, `batch[1:]`: the slots counted anew."""
        lower, upper = (0 if bound is None else self.eval(bound) for bound in (part.lower, part.upper))
        if not isinstance(lower, int) or not isinstance(upper, int) or lower < 0 or upper < 0 or part.step:
            self.problem(node, _NOT_FOLLOWED)
            return None
        last = upper if part.upper is not None else 1000
        kept = [(int(name), value) for name, value in base.items]
        return Batch(tuple((str(slot - lower), value) for slot, value in kept if lower <= slot < last), base.is_open)

    def unpack(self, parts: list[ast.expr], value: Value) -> None:
        if not isinstance(value, Batch):
            super().unpack(parts, value)
            return
        for index, part in enumerate(parts):
            if isinstance(part, ast.Starred):
                self.problem(part, _NOT_FOLLOWED)
            else:
                self.bind(part, value.get(str(index)))

    def elements(self, node: ast.For, source: Value) -> list[Value]:
        if isinstance(source, Batch):
            others = [_other(source)] if source.is_open else []
            return [value for _, value in source.elements()] + others or [None]
        return super().elements(node, source)

    def put(self, target: ast.Subscript, value: Value) -> None:
        base = self.eval(target.value)
        if not isinstance(base, Record):
            super().put(target, value)
            return
        key = self.eval(target.slice)
        held = base if isinstance(base, Batch) else Batch(base.items, is_open=False)
        if isinstance(target.value, ast.Name) and isinstance(key, str | int):
            self.env[target.value.id] = held.with_item(str(key), value)
        elif is_tracked(value):
            self.problem(target, _NOT_FOLLOWED)
        elif isinstance(target.value, ast.Name):
            self.env[target.value.id] = replace(held, is_open=True)

    def _s_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            base = self.eval(target.value) if isinstance(target, ast.Subscript) else None
            if isinstance(target, ast.Subscript) and isinstance(base, Batch) and isinstance(target.value, ast.Name):
                key = self.eval(target.slice)
                self.env[target.value.id] = base.without(str(key)) if isinstance(key, str | int) else base

    def of_list(self, node: ast.Call, owner: ast.expr, name: str, base: Value) -> object:
        if isinstance(base, Batch):
            return self.of_batch(node, owner, name, base)
        found = super().of_list(node, owner, name, base)
        if found is NotImplemented and is_tracked(base):
            if name in {"tolist", "numpy", "copy", "cpu", "detach"} or name in _MOVES:
                return base
            if name not in {"index", "count"}:
                self.problem(node, "padded values are used in a way that is not followed")
                return None
        return found

    def of_batch(self, node: ast.Call, owner: ast.expr, name: str, base: Batch) -> Value:
        """A method of the batch."""
        given = self.arguments(node).args
        if name in _MOVES:
            return base
        if name in {"items", "keys", "values"}:
            return Batch(base.items, base.is_open, name)  # type: ignore[arg-type]  # one of the three words
        if name in {"get", "pop"} and given and isinstance(given[0], str | int):
            if name == "pop" and isinstance(owner, ast.Name):
                self.env[owner.id] = base.without(str(given[0]))
            return base.get(str(given[0]))
        if name == "update" and len(given) == 1 and isinstance(given[0], Record) and isinstance(owner, ast.Name):
            for key, value in given[0].items:
                base = base.with_item(key, value)
            self.env[owner.id] = base
            return None
        self.problem(node, _NOT_FOLLOWED)
        return None

    def _dict(self, node: ast.Dict) -> Value:
        """A dict is a batch of what it holds; `{**batch, ...}` keeps the fields of the batch."""
        found = Batch((), is_open=False)
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.eval(item)
            name = self.eval(key) if key is not None else None
            if key is None and isinstance(value, Record):
                found = Batch(
                    (*found.items, *value.items), found.is_open or (isinstance(value, Batch) and value.is_open)
                )
            elif isinstance(name, str | int):
                found = found.with_item(str(name), value)
            elif is_tracked(value):
                self.problem(node, "padded values are kept under a key that is not followed")
        return found

    def _dictcomp(self, node: ast.DictComp) -> Value:
        return self.comprehended(node, node.generators, node.key, node.value)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Value:
        source = self.eval(node.generators[0].iter)
        if isinstance(source, Batch):
            return self.comprehended(node, node.generators, None, node.elt)
        if isinstance(source, Tensor) and source.is_padded and len(node.generators) == 1:
            return self.rows(node, source)
        return super()._listcomp(node)

    _generatorexp = _listcomp

    def rows(self, node: ast.ListComp | ast.GeneratorExp, source: Tensor) -> Value:
        """`[f(row) for row in tensor]`: every row for itself."""
        if source.axes[:1] != (FREE,):
            self.problem(node, "a loop over the positions")
            return None
        kept = dict(self.env)
        self.bind(node.generators[0].target, Tensor(source.axes[1:], fill=source.fill, why=source.why))
        found = Many(self.eval(node.elt))
        self.env = kept
        return found if is_tracked(found) else None

    def comprehended(
        self, node: ast.AST, generators: list[ast.comprehension], key: ast.expr | None, value: ast.expr
    ) -> Value:
        """`{k: v.to(device) for k, v in batch.items()}`, `tuple(t.to(device) for t in batch)`: field by field."""
        source = self.eval(generators[0].iter)
        if not isinstance(source, Batch) or len(generators) > 1:
            if is_tracked(source):
                self.problem(node, "padded values are used in a way that is not followed")
            return None
        kept = dict(self.env)
        found: list[tuple[str, Value]] = []
        for name, element in source.elements():
            self.bind(generators[0].target, element)
            if any(self.truth(self.eval(test)) is False for test in generators[0].ifs):
                continue
            named = self.eval(key) if key is not None else name
            found.append((str(named) if isinstance(named, str | int) else name, self.eval(value)))
        self.env = kept
        if key is None and any(not name.isdigit() for name, _ in found):
            return Many(join_all([inner for _, inner in found]))
        return Batch(tuple(found), source.is_open)

    def _compare(self, node: ast.Compare) -> Value:
        """`"labels" in batch`, `name in ("input_ids", "labels")`."""
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            left, right = self.eval(node.left), self.eval(node.comparators[0])
            negated = isinstance(node.ops[0], ast.NotIn)
            if isinstance(right, Batch):
                known = isinstance(left, str | int) and (left in dict(right.items) or not right.is_open)
                return (str(left) in dict(right.items)) is not negated if known else None
            if isinstance(right, Record):
                return super()._compare(node)
            if isinstance(right, tuple) and isinstance(left, str) and all(isinstance(each, str) for each in right):
                return (left in right) is not negated
            if is_tracked(left) or is_tracked(right):
                self.problem(node, "padded values are compared in a way that is not followed")
            return None
        return super()._compare(node)

    def closures(self, callee: Func) -> Iterator[ast.Name]:
        """Yield where a function that is defined in this one reads batch data of it."""
        if callee.module is self.module and isinstance(callee.node, FunctionNode | ast.Lambda):
            own = self.module.bound(callee.node)
            for child in ast.walk(callee.node):
                if isinstance(child, ast.Name) and child.id in own:
                    continue
                if (
                    isinstance(child, ast.Name)
                    and isinstance(child.ctx, ast.Load)
                    and is_tracked(self.env.get(child.id))
                ):
                    yield child


def _other(source: Batch) -> Value:
    """Return what a step gives for a field that holds nothing per token."""
    return (None, OTHER) if source.view == "items" else OTHER if source.is_tuple or source.view == "values" else None
