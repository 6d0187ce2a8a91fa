"""Questions about syntax alone: arguments of calls, parameters of functions, what a scope holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import Binding, targets


def own_nodes(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes of a scope's body, those of nested functions and classes left out."""
    found: tuple[ast.AST, ...] | None = getattr(node, "_own_nodes", None)
    if found is None:
        found = tuple(_own_nodes(node))
        node._own_nodes = found  # type: ignore[attr-defined]  # kept on the node: every hop asks again
    return found


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    body = node.body if isinstance(node, FunctionNode | ast.Module | ast.ClassDef) else [node]
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, FunctionNode | ast.ClassDef):
            stack += current.decorator_list
            continue
        stack += reversed(list(ast.iter_child_nodes(current)))


def call_argument(call: ast.Call, position: int | None, name: str | None) -> ast.expr | None:
    """Return the argument of a call by keyword or position."""
    for keyword in call.keywords:
        if name is not None and keyword.arg == name:
            return keyword.value
    if position is not None and 0 <= position < len(call.args):
        if not any(isinstance(argument, ast.Starred) for argument in call.args[: position + 1]):
            return call.args[position]
    return None


def called_name(node: ast.Call) -> str:
    """Return the last name of what is called (`f` of `f()` and of `x.f()`), empty where it has none."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def has_spread(call: ast.Call) -> bool:
    """Say whether a call has `*args` or `**kwargs`."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def parameter_default(arguments: ast.arguments, name: str) -> ast.expr | None:
    positional = [*arguments.posonlyargs, *arguments.args]
    for argument, default in zip(
        positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True
    ):
        if argument.arg == name:
            return default
    for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.arg == name:
            return keyword_default
    return None


def is_first_parameter(function: FunctionNode | ast.Lambda, node: ast.arg) -> bool:
    positional = [*function.args.posonlyargs, *function.args.args]
    return bool(positional) and positional[0] is node


def owner_class(module: Module, function: FunctionNode | ast.Lambda) -> ast.ClassDef | None:
    parent = module.parents.get(function)
    if not isinstance(parent, ast.ClassDef) or not isinstance(function, FunctionNode):
        return None
    marks = {ast.unparse(d) for d in function.decorator_list}
    return None if marks & {"staticmethod", "classmethod"} else parent


def is_classmethod(function: FunctionNode | ast.Lambda) -> bool:
    return isinstance(function, FunctionNode) and any(ast.unparse(d) == "classmethod" for d in function.decorator_list)


def method_of(cls: ast.ClassDef, name: str) -> FunctionNode | None:
    found = [node for node in cls.body if isinstance(node, FunctionNode) and node.name == name]
    return found[-1] if found else None


def super_init(init: FunctionNode) -> ast.Call | None:
    """Return the call of the base's `__init__` in an `__init__`."""
    for node in own_nodes(init):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
            base = node.func.value
            if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super":
                return node
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """What a method assigns to an attribute; `index` where the attribute is one of several that a call unpacks to."""

    value: ast.expr
    function: FunctionNode
    index: int | None = None


def self_assignments(cls: ast.ClassDef) -> dict[str, list[Assigned]]:
    """Return what the methods of a class assign to attributes of their first parameter."""
    found: dict[str, list[Assigned]] = {}
    for function in cls.body:
        if not isinstance(function, FunctionNode) or not function.args.args:
            continue
        receiver = function.args.args[0].arg
        for node in own_nodes(function):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for attribute, value, index in _pairs(target, node.value):
                        owner = attribute.value
                        if isinstance(owner, ast.Name) and owner.id == receiver:
                            found.setdefault(attribute.attr, []).append(Assigned(value, function, index))
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Attribute, ast.expr, int | None]]:
    """Yield the attributes that an assignment sets with what each gets, `self.a, self.b = a, b` taken apart."""
    if isinstance(target, ast.Attribute):
        yield target, value, None
    elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        if len(target.elts) == len(value.elts):
            for inner, part in zip(target.elts, value.elts, strict=True):
                yield from _pairs(inner, part)
    elif isinstance(target, ast.Tuple | ast.List):
        for index, inner in enumerate(target.elts):
            if isinstance(inner, ast.Attribute):
                yield inner, value, index


def at_path(value: ast.expr | None, path: tuple[int, ...]) -> ast.expr | None:
    for index in path:
        if not isinstance(value, ast.Tuple | ast.List) or index >= len(value.elts):
            return None
        value = value.elts[index]
    return value


def assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    found = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in found if isinstance(target, ast.Name)}


def comprehension(generator: ast.comprehension, name: str) -> Iterator[Binding]:
    for bound, path in targets(generator.target):
        if bound == name:
            yield Binding(name, "element", generator.target, generator.iter, path)
