"""Calls and comprehensions of a row: conversions, methods of sequences, helpers of the root."""

from __future__ import annotations

import ast
from dataclasses import replace

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.rowfills import Fills
from speedmigrate.facts.rowvalue import (
    Abstract,
    Number,
    Record,
    Run,
    Seq,
    copied,
    is_wide,
    length_of,
)
from speedmigrate.facts.value import Ext, Frame, Func, Value

_CONVERSIONS = frozenset(
    "torch.tensor torch.LongTensor torch.IntTensor torch.FloatTensor torch.BoolTensor torch.as_tensor torch.from_numpy "
    "torch.Tensor numpy.array numpy.asarray builtins.list builtins.tuple copy.deepcopy copy.copy torch.clone".split()
)
_SHARING = frozenset("torch.from_numpy torch.as_tensor numpy.asarray".split())
_CASTS = frozenset("long int float bool half double to astype type type_as bfloat16".split())
_COPYING = frozenset({"clone", "copy", "tolist", "astype"})
_NUMBERS = frozenset("long int float half double bfloat16".split())
_KEEPING_METHODS = _CASTS | frozenset("clone copy contiguous numpy tolist detach squeeze view_as cpu".split())
_COMPARING: dict[str, type[ast.cmpop]] = {
    "ne": ast.NotEq, "eq": ast.Eq, "ge": ast.GtE, "gt": ast.Gt, "le": ast.LtE, "lt": ast.Lt
}  # fmt: skip
_NEUTRAL_CALLS = frozenset("builtins.print builtins.isinstance builtins.type builtins.str builtins.repr".split())
_MAX_INLINE = 4


class Calls(Fills):
    """Evaluates calls."""

    def _eval_call(self, node: ast.Call) -> Abstract:
        name = ast.unparse(node.func)
        if name == "len" and len(node.args) == 1:
            value = self.eval(node.args[0])
            return length_of(value) or Number(self.opaque().length)
        if isinstance(node.func, ast.Attribute):
            found = self.method(node, node.func)
            if found is not None:
                return found
        callees = self.values.of(self.expr(node.func))
        names = {callee.name for callee in callees if isinstance(callee, Ext)}
        if names and names <= _CONVERSIONS and node.args:
            return self.converted(node, names)
        found = self.array_call(node, names) if names and len(names) == len(callees) else None
        if found is not None:
            return found
        if names == {"builtins.dict"} and not node.args:
            items = [(k.arg, self.eval(k.value)) for k in node.keywords]
            return Record(tuple((key, value) for key, value in items if key is not None))
        passed = self.passed(node)
        if passed is not None:
            return passed
        arguments = [self.eval(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        arguments += [self.eval(keyword.value) for keyword in node.keywords]
        inlined = self.inline(node, callees)
        if inlined is not None:
            return inlined
        for value in arguments:
            self.touch(value, node, reading=bool(names) and names <= _NEUTRAL_CALLS)
        return replace(self.opaque(), wide=any(is_wide(value) for value in arguments))

    def converted(self, node: ast.Call, names: set[str]) -> Abstract:
        """`torch.tensor(ids)`, `list(ids)`: the same values, in something of their own."""
        given = self.eval(node.args[0])
        value = copied(given)
        if not isinstance(value, Seq) or not isinstance(given, Seq):
            return value
        if names <= _SHARING:
            value = replace(value, root=given.root or given)
        is_array = bool({name.partition(".")[0] for name in names} & {"torch", "numpy"})
        is_cast = any(keyword.arg == "dtype" for keyword in node.keywords) or any(n.endswith("Tensor") for n in names)
        array = is_array or (value.array and not any(name.startswith("builtins.") for name in names))
        return replace(value, array=array, typed=is_array, canvas=None, promoted=value.promoted and not is_cast)

    def method(self, node: ast.Call, func: ast.Attribute) -> Abstract | None:
        """Evaluate a method of a followed sequence or record."""
        if isinstance(func.value, ast.Name) and func.value.id not in self.env:
            return None
        root = func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id not in self.env:
            return None
        base = self.eval(func.value)
        if isinstance(base, Seq) and func.attr in _KEEPING_METHODS:
            return self.kept(node, base, func.attr)
        if isinstance(base, Seq) and base.runs and func.attr in _COMPARING and len(node.args) == 1:
            return self.compared(node, base, node.args[0], _COMPARING[func.attr])
        if isinstance(base, Seq) and base.runs and func.attr == "masked_fill" and len(node.args) == 2:
            found = self.chosen(base, self.eval(node.args[0]), node.args[1])
            if found is not None:
                return copied(found)
        if isinstance(base, Seq) and func.attr in {"new_zeros", "new_ones", "new_full"}:
            filled = self.fill(node, func.attr)
            return self.opaque() if filled is None else replace(filled, floats=False)  # type: ignore[arg-type]
        if isinstance(base, Seq) and func.attr == "numel":
            return length_of(base)
        size = self.size(node, base) if isinstance(base, Seq) and func.attr == "size" else None
        if size is not None:
            return size
        if isinstance(base, Seq) and func.attr in {"sum", "any"} and all(map(self.is_zero, base.runs)):
            return self.opaque()
        if isinstance(base, Record) and func.attr == "update" and isinstance(func.value, ast.Name):
            added = (
                self.eval(node.args[0])
                if node.args
                else self._eval_call(ast.copy_location(ast.Call(ast.Name("dict", ast.Load()), [], node.keywords), node))
            )
            for key, value in added.items if isinstance(added, Record) else ():
                base = base.set(key, value)
            self.env[func.value.id] = base
            return self.opaque()
        self.touch(base, node)
        return None if not (isinstance(base, Seq) and base.runs) else self.opaque()

    def kept(self, node: ast.Call, base: Seq, name: str) -> Seq:
        """A conversion; what was true or false becomes a number."""
        found = base
        if name in _NUMBERS and base.runs:
            found = self.over(base, node, lambda pad: int(pad) if isinstance(pad, bool) else pad) or base
        is_cast = name in _CASTS
        array = name != "tolist" and (base.array or is_cast)
        root = None if name in _COPYING else found.root or base
        return replace(
            found,
            array=array,
            typed=base.typed or is_cast,
            promoted=base.promoted and not is_cast,
            canvas=None,
            root=root,
        )

    def size(self, node: ast.Call, base: Seq) -> Number | None:
        axis = self.number(node.args[0]) if len(node.args) == 1 else None
        return self.shape_of(base, axis)

    def inline(self, node: ast.Call, callees: tuple[Value, ...]) -> Abstract | None:
        """Read a helper of the root with these arguments."""
        if len(callees) != 1 or not isinstance(callees[0], Func) or self.depth >= _MAX_INLINE:
            return None
        func = callees[0]
        if not isinstance(func.node, FunctionNode) or any(
            isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(func.node)
        ):
            return None
        frame = Frame(func, self.expr(node), func.receiver)
        inner = type(self)(self.values, self.rows, frame, self.depth + 1)
        for argument in (*func.node.args.posonlyargs, *func.node.args.args, *func.node.args.kwonlyargs):
            bound = self.values.argument(frame, argument.arg)
            if bound is not None and bound.module is self.module and bound.frame == self.frame:
                inner.env[argument.arg] = self.eval(bound.node)
        inner.run()
        for old, new in inner.changed:
            self.rebind(old, new)
        if not inner.out:
            return self.opaque()
        result = inner.out[0][0]
        for value, at in inner.out[1:]:
            result = inner.merge(result, value, at)
        return result

    def is_zero(self, run: Run) -> bool:
        """Whether a pad adds nothing to a sum."""
        return self.is_constant(run, 0)

    def mapped(self, node: ast.expr, source: Seq, target: ast.expr, element: ast.expr) -> Abstract:
        """`[x if x != pad else -100 for x in ids]`: follow the pad through the choice."""
        if isinstance(element, ast.IfExp) and isinstance(element.test, ast.Compare) and len(element.test.ops) == 1:
            sides = {ast.unparse(element.test.left), ast.unparse(element.test.comparators[0])}
            for run in source.runs:
                if sides == {ast.unparse(target), ast.unparse(run.value.node)}:
                    equal = isinstance(element.test.ops[0], ast.Eq)
                    if equal or isinstance(element.test.ops[0], ast.NotEq):
                        chosen = element.body if equal else element.orelse
                        runs = tuple(replace(r, value=self.expr(chosen)) for r in source.runs)
                        return replace(source, runs=runs)
        self.touch(source, node)
        return self.opaque()
