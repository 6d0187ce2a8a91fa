"""What an expression is: values followed through names, calls, attributes, classes and files (DESIGN 5)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.containers import prepared_arguments
from speedmigrate.facts.registries import Registries
from speedmigrate.facts.resolver import MAX_DEPTH
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import (
    Attr,
    Cls,
    Const,
    Display,
    Expr,
    Ext,
    Frame,
    Func,
    Inst,
    ModuleRef,
    Result,
    Unknown,
    Value,
)

# Methods that return their own object (torch.nn.Module and torch.Tensor).
_SELF_METHODS = frozenset("to cuda cpu train eval half float double bfloat16 requires_grad_ contiguous npu xpu".split())


class Values(Registries):
    """Resolves expressions of one project; answers are remembered."""

    def _of(self, expr: Expr) -> Iterator[Value]:
        node = expr.node
        if expr.frame is not None and expr.frame.depth > MAX_DEPTH:
            yield Unknown("calls nested too deeply", expr.hop(expr.text[:60]))
        elif isinstance(node, ast.Constant):
            yield Const(node.value, expr)
        elif isinstance(node, ast.Name):
            yield from self.name(expr.module, node.id, node, expr.frame)
        elif isinstance(node, ast.Attribute):
            for base in self.of(expr.at(node.value)):
                yield from self.attribute(base, node.attr, expr)
        elif isinstance(node, ast.Call):
            yield from self._call(expr, node)
        elif isinstance(node, ast.IfExp):
            yield from self.of(expr.at(node.body))
            yield from self.of(expr.at(node.orelse))
        elif isinstance(node, ast.BoolOp):
            for operand in node.values:
                yield from self.of(expr.at(operand))
        elif isinstance(node, ast.NamedExpr | ast.Await):
            yield from self.of(expr.at(node.value))
        elif isinstance(node, ast.Lambda):
            yield Func(expr.module, node, None, expr.frame)
        elif isinstance(node, ast.Subscript):
            yield from self._subscript(expr, node)
        elif isinstance(node, ast.UnaryOp):
            yield self._unary(expr, node)
        elif isinstance(
            node, ast.List | ast.Tuple | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.GeneratorExp
        ):
            yield Display(expr)
        else:
            yield Unknown("computed here", expr.hop(expr.text[:60]))

    def _subscript(self, expr: Expr, node: ast.Subscript) -> Iterator[Value]:
        key = self.key(expr.at(node.slice))
        if isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__":
            owners = self.of(expr.at(node.value.value))
            if all(isinstance(owner, ModuleRef) for owner in owners):
                for owner in owners:
                    assert isinstance(owner, ModuleRef)
                    yield from (
                        self.exported(owner.module, key) if isinstance(key, str) else self.held(owner.module, expr)
                    )
                return
        for base in self.of(expr.at(node.value)):
            if not (isinstance(base, Inst) and base.of == Ext("builtins.globals")):
                yield from self.looked_up(base, key, expr)
            elif isinstance(key, str):
                yield from self.exported(base.call.module, key)
            else:
                yield from self.defined(base.call.module, expr, imported=True)

    def _unary(self, expr: Expr, node: ast.UnaryOp) -> Value:
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(node.op, ast.USub) and isinstance(number, int | float):
            return Const(-number, expr)
        return Unknown("computed here", expr.hop(expr.text[:60]))

    def _call(self, expr: Expr, node: ast.Call) -> Iterator[Value]:
        callees = self.of(expr.at(node.func))
        # A plain value beside a class or function is one that is never called: it would raise.
        for callee in [each for each in callees if not isinstance(each, Const)] or callees:
            yield from self.call(callee, expr, node)

    def call(self, callee: Value, expr: Expr, node: ast.Call) -> Iterator[Value]:
        """Yield what calling `callee` at `expr` gives."""
        if isinstance(callee, Cls):
            yield Inst(callee, expr)
        elif isinstance(callee, Ext):
            yield from self._call_outside(callee, expr, node)
        elif isinstance(callee, Func):
            yield from self.returned(Frame(callee, expr, callee.receiver))
        elif isinstance(callee, Attr) and callee.name in _SELF_METHODS:
            yield callee.of
        elif isinstance(callee, Unknown):
            yield callee
        elif isinstance(callee, Attr) and callee.name == "get" and isinstance(callee.of, Display) and node.args:
            yield from self.looked_up(callee.of, self.key(expr.at(node.args[0])), expr)
            for default in node.args[1:2]:
                yield from self.of(expr.at(default))
        else:
            result = Result(callee, expr)
            prepared = prepared_arguments(result)
            if prepared is not None and len(prepared) == 1:
                yield from self.of(prepared[0])
            else:
                yield result

    def _call_outside(self, callee: Ext, expr: Expr, node: ast.Call) -> Iterator[Value]:
        if callee.name == "builtins.getattr" and len(node.args) >= 2:
            name = self.key(expr.at(node.args[1]))
            bases = self.of(expr.at(node.args[0]))
            if isinstance(name, str) or all(isinstance(base, ModuleRef) for base in bases):
                for base in bases:
                    if isinstance(name, str):
                        yield from self.attribute(base, name, expr)
                    elif isinstance(base, ModuleRef):
                        yield from self.defined(base.module, expr, imported=False)
                return
        if callee.name == "importlib.import_module" and node.args:
            name = self.key(expr.at(node.args[0]))
            path = self.project.find(expr.module, name) if isinstance(name, str) else None
            module = self.project.module(path) if path is not None else None
            if module is not None:
                yield ModuleRef(module)
                return
        if callee.name == "builtins.super":
            frame = expr.frame
            if frame is not None and isinstance(frame.receiver, Inst):
                yield Result(callee, expr)
                return
        yield Inst(callee, expr)

    def returned(self, frame: Frame) -> Iterator[Value]:
        """Yield what a function of the root returns in this call."""
        node, module = frame.func.node, frame.func.module
        if frame.depth > MAX_DEPTH or _is_recursive(frame):
            yield Unknown("calls nested too deeply", module.hop(node, "here"))
            return
        if isinstance(node, ast.Lambda):
            yield from self.of(Expr(module, node.body, frame))
            return
        values = [child for child in own_nodes(node) if isinstance(child, ast.Return) and child.value is not None]
        if any(isinstance(child, ast.Yield | ast.YieldFrom) for child in own_nodes(node)):
            yield Result(
                frame.func, frame.call or Expr(module, ast.Name(id=node.name, lineno=node.lineno, col_offset=0))
            )
            return
        for child in values:
            assert child.value is not None
            yield from self.of(Expr(module, child.value, frame))
        if not values:
            yield Const(None, Expr(module, ast.Constant(value=None, lineno=node.lineno, col_offset=0), frame))


def _is_recursive(frame: Frame) -> bool:
    """Say whether a call stands inside another call of the same function."""
    above = frame.call.frame if frame.call is not None else None
    while above is not None:
        if above.func.node is frame.func.node:
            return True
        above = above.call.frame if above.call is not None else None
    return False
