"""Runs the statements of a forward, and of the functions that it calls, on axes."""

from __future__ import annotations

import ast
from typing import Any

from speedmigrate.facts.axes import (
    NOTHING,
    Many,
    Record,
    Tensor,
    Value,
    Width,
    has_positions,
    is_tracked,
    join,
    join_all,
)
from speedmigrate.facts.forward_tests import Tests
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.syntax import is_first_parameter, parameter_default
from speedmigrate.facts.value import Expr, Frame, Func

_MAX_DEPTH = 20
_MAX_STEPS = 6000


_WITHOUT_DATA = (
    ast.Pass, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Delete, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.ClassDef,
)  # fmt: skip


class _Left(Exception):  # noqa: N818 - not an error: the function is left here
    pass


class Run(Tests):
    """Runs one function; what it returns is collected in `out`."""

    out: list[Value]

    def function(self, func: Func, given: dict[str, Value], call: Expr) -> Value:
        """Return what a function of the root gives for these arguments (worked out once for equal ones)."""
        if self.depth > _MAX_DEPTH:
            self.problem(call.node, "calls nested too deeply")
            return None
        is_nested = func.module is self.module and self.module.scope(func.node) is self.module.scope(call.node)
        names = tuple(self.env.items()) if is_nested else ()
        key = (func.node, func.receiver, tuple(sorted(given.items())), names)
        if key not in self.read.done:
            self.read.done[key] = None
            inner = type(self)(self.read, func.module, Frame(func, call, func.receiver), self.depth + 1)
            if is_nested:
                inner.env = dict(self.env)
            self.read.done[key] = inner.result(func, given)
        return self.read.done[key]

    def result(self, func: Func, given: dict[str, Value]) -> Value:
        self.out = []
        for argument in all_arguments(func.node.args):
            if argument.arg in given:
                self.env[argument.arg] = given[argument.arg]
            elif isinstance(func.node, ast.Lambda) or not (
                func.receiver is not None and is_first_parameter(func.node, argument)
            ):
                default = parameter_default(func.node.args, argument.arg)
                self.env.pop(argument.arg, None)
                if default is not None:
                    self.env[argument.arg] = self.eval(default)
        if isinstance(func.node, ast.Lambda):
            return self.eval(func.node.body)
        self.attempt(func.node.body)
        return join_all(self.out) if self.out else NOTHING

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.read.steps += 1
            if self.read.steps > _MAX_STEPS:
                if self.read.steps == _MAX_STEPS + 1:
                    self.problem(node, "the model is too long to be read")
                raise _Left
            method = getattr(self, "_s_" + type(node).__name__.lower(), None)
            if method is not None:
                method(node)
            elif not isinstance(node, _WITHOUT_DATA):
                self.problem(node, "this statement is not followed")

    def _s_assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _s_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.eval(node.value))

    def _s_augassign(self, node: ast.AugAssign) -> None:
        load: Any = ast.copy_location(_as_load(node.target), node.target)
        self.module.parents.setdefault(load, node)
        left, right = self.eval(load), self.eval(node.value)
        operation = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            self.bind(node.target, self.arithmetic(operation, left, right) if not isinstance(right, Width) else None)
            if isinstance(right, Width):
                self.problem(node, "the padded width is computed with")
        elif isinstance(left, Width) or isinstance(right, Width):
            self.bind(node.target, self.with_width(operation, left, right))
        elif isinstance(left, int) and isinstance(right, int) and isinstance(node.op, ast.Add | ast.Sub):
            self.bind(node.target, left + right if isinstance(node.op, ast.Add) else left - right)
        elif isinstance(left, tuple) and isinstance(right, tuple):
            self.bind(node.target, left + right)
        else:
            self.bind(node.target, join(left, right) if is_tracked(left) or is_tracked(right) else None)

    def _s_expr(self, node: ast.Expr) -> None:
        self.eval(node.value)

    def _s_assert(self, node: ast.Assert) -> None:
        self.eval(node.test)
        self.demand(node.test, fails=False)

    def _s_return(self, node: ast.Return) -> None:
        self.out.append(NOTHING if node.value is None else self.eval(node.value))
        raise _Left

    def _s_raise(self, node: ast.Raise) -> None:
        raise _Left

    def _s_continue(self, node: ast.stmt) -> None:
        raise _Left

    _s_break = _s_continue

    def _s_if(self, node: ast.If) -> None:
        truth = self.truth(self.eval(node.test))
        if truth is not None:
            self.block(node.body if truth else node.orelse)
            return
        if any(isinstance(statement, ast.Raise) for statement in node.body):
            self.demand(node.test, fails=True)
        before, num_out = dict(self.env), len(self.out)
        attributes = dict(self.read.attributes)
        left = self.attempt(node.body)
        after, self.env = self.env, dict(before)
        held, self.read.attributes = self.read.attributes, attributes
        left_too = self.attempt(node.orelse)
        if len(self.out) > num_out or not (left or left_too or _are_alike(after, self.env)):
            self.decides(node.test)
        if left and left_too:
            raise _Left
        if left:
            return
        if left_too:
            self.env, self.read.attributes = after, held
            return
        self.env = _joined(after, self.env)
        for name, value in held.items():
            other = self.read.attributes.get(name, value)
            self.read.attributes[name] = join(value, other)

    def attempt(self, body: list[ast.stmt]) -> bool:
        """Run a block; return whether it leaves the function or the loop."""
        try:
            self.block(body)
        except _Left:
            return True
        return False

    def _s_for(self, node: ast.For) -> None:
        source = self.eval(node.iter)
        elements = self.elements(node, source)
        before = dict(self.env)
        for element in elements:
            self.bind(node.target, element)
            self.attempt(node.body)
        if len(elements) == 1 and not isinstance(source, tuple) and self.env != before:
            self.env = _joined(before, self.env)
            self.bind(node.target, elements[0])
            self.attempt(node.body)
        self.block(node.orelse)

    _s_asyncfor = _s_for

    def elements(self, node: ast.For, source: Value) -> list[Value]:
        """Return what the steps of a loop go over."""
        if isinstance(source, Record):
            return [key for key, _ in source.items]
        if isinstance(source, tuple) and (len(source) <= 4 or all(isinstance(part, str) for part in source)):
            return list(source)
        return [self.step(node.iter, source)]

    def _s_while(self, node: ast.While) -> None:
        if self.truth(self.eval(node.test)) is False:
            return
        self.decides(node.test)
        before = dict(self.env)
        self.attempt(node.body)
        self.env = _joined(before, self.env)

    def _s_with(self, node: ast.With) -> None:
        for item in node.items:
            self.eval(item.context_expr)
        self.block(node.body)

    _s_asyncwith = _s_with

    def _s_try(self, node: ast.Try) -> None:
        before = dict(self.env)
        self.block(node.body)
        self.block(node.orelse)
        after, self.env = self.env, before
        for handler in node.handlers:
            self.attempt(handler.body)
        self.env = after
        self.block(node.finalbody)

    def bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self.unpack(target.elts, value)
        elif isinstance(target, ast.Attribute):
            for owner in self.values.of(self.at(target.value)):
                if (owner, target.attr) in self.read.unset and has_positions(value) and not isinstance(value, Width):
                    self.problem(target, "batch data is kept for the next batch, whose width is another")
                self.read.attributes[owner, target.attr] = value
        elif isinstance(target, ast.Subscript):
            self.put(target, value)

    def unpack(self, parts: list[ast.expr], value: Value) -> None:
        for index, part in enumerate(parts):
            inner: Value = None
            if isinstance(part, ast.Starred):
                part, inner = part.value, value if not isinstance(value, tuple) else Many(join_all(value[index:]))
            elif isinstance(value, tuple) and index < len(value):
                inner = value[index]
            elif isinstance(value, Many):
                inner = value.of
            elif isinstance(value, Tensor) and value.axes[:1] == ("",):
                inner = Tensor(value.axes[1:], why=value.why)
            elif is_tracked(value):
                self.problem(part, "padded values are used in a way that is not followed")
            self.bind(part, inner)

    def put(self, target: ast.Subscript, value: Value) -> None:
        """`labels[labels == pad] = -100` gives pads another value; what else is written in is not followed."""
        base, index = self.eval(target.value), self.eval(target.slice)
        name = target.value.id if isinstance(target.value, ast.Name) else ""
        if isinstance(base, Record) and isinstance(index, str) and name:
            kept = tuple(item for item in base.items if item[0] != index)
            self.env[name] = Record((*kept, (index, value)))
            return
        if isinstance(base, Tensor) and base.is_padded and not is_tracked(value):
            if isinstance(index, Tensor) and index.reach == "drop" and name:
                fill = value if isinstance(value, int | float) else None
                self.env[name] = Tensor(base.axes, base.key, fill, base.reach, cut=base.cut, why=base.why)
                return
            if isinstance(index, Tensor) and index.is_padded and name:
                self.env[name] = Tensor(
                    base.axes, base.key, base.fill if index.is_zero else None, cut=base.cut, why=base.why
                )
                return
        if isinstance(base, Many) or (base is None and name):
            self.kept(target, name, value)
            self.env[name] = (
                Many(join(base.of if isinstance(base, Many) else value, value)) if is_tracked(value) else base
            )
            return
        if is_tracked(base) or is_tracked(value):
            self.problem(target, "padded values are written into a tensor")


def _joined(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    """Join the names of two branches; a name of one branch alone is what that branch says."""
    found = {}
    for name in {*one, *other}:
        if name in one and name in other:
            found[name] = join(one[name], other[name])
        else:
            found[name] = one.get(name, other.get(name))
    return found


def _are_alike(one: dict[str, Value], other: dict[str, Value]) -> bool:
    """Whether two branches leave the same padded values."""
    return all(
        one.get(name) == other.get(name)
        for name in {*one, *other}
        if has_positions(one.get(name)) or has_positions(other.get(name))
    )


def _as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    assert isinstance(target, ast.Subscript)
    return ast.Subscript(target.value, target.slice, ast.Load())
