"""What a registry holds: a dict of a module or class that decorators and assignments fill."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.objects import Objects
from speedmigrate.facts.value import Cls, Display, Expr, Func, Item, Param, Value


class Registries(Objects):
    """Follows lookups in registries."""

    def looked_up(self, base: Value, key: object, expr: Expr) -> Iterator[Value]:
        """Yield what `base[key]` or `base.get(key)` can be, with what is registered in `base` at run time."""
        found = tuple(self.item(base, key, expr))
        # The plain answer first: a store into a registry inside a registry asks for the outer one again.
        if isinstance(base, Display) and _is_registry(base) and all(isinstance(value, Item) for value in found):
            found = tuple(self._registered(base, key)) or found
        yield from found

    def _registered(self, base: Display, key: object) -> Iterator[Value]:
        module = base.expr.module
        for target, stored in _stores(module):
            if any(
                isinstance(v, Display) and v.expr.node is base.expr.node for v in self.of(Expr(module, target.value))
            ):
                for value in self.of(Expr(module, stored)):
                    if isinstance(value, Param):
                        yield from self._decorated(value.func, key)
                    elif not isinstance(key, str) or self.key(Expr(module, target.slice)) in {key, None}:
                        yield value

    def _decorated(self, func: Func, key: object) -> Iterator[Value]:
        """Yield the definitions that a decorator gets: `func` itself, or made by the function around it."""
        outer = func.module.function(func.node)
        decorator = outer if outer is not None else func.node
        if not isinstance(decorator, FunctionNode):
            return
        for module in self.project.modules_mentioning(decorator.name):
            for node in module.nodes:
                if isinstance(node, FunctionNode | ast.ClassDef):
                    marks = (Expr(module, mark) for mark in node.decorator_list)
                    if any(self._is_mark(mark, decorator, key) for mark in marks):
                        yield Cls(module, node) if isinstance(node, ast.ClassDef) else Func(module, node)

    def _is_mark(self, mark: Expr, decorator: FunctionNode, key: object) -> bool:
        call = mark.node if isinstance(mark.node, ast.Call) else None
        callee = mark.at(call.func) if call is not None else mark
        if not ast.unparse(callee.node).endswith(decorator.name):
            return False
        if not any(isinstance(value, Func) and value.node is decorator for value in self.of(callee)):
            return False
        said = self.key(mark.at(call.args[0])) if call is not None and call.args else None
        return not isinstance(key, str) or said is None or said == key


def _is_registry(base: Display) -> bool:
    node = base.expr.node
    return isinstance(node, ast.Dict) and isinstance(base.expr.module.scope(node), ast.Module | ast.ClassDef)


def _stores(module: Module) -> Iterator[tuple[ast.Subscript, ast.expr]]:
    """Yield every `target[key] = value` of a file."""
    for node in module.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield node.targets[0], node.value
