"""What is called in a forward: the modules that a name, an element of a `ModuleList` or a wrapper stands for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.models import unwrap
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Attr, Cls, Display, Expr, Ext, Inst, Item, Result, Value
from speedmigrate.facts.values import Values

CONTAINERS = frozenset({"ModuleList", "Sequential", "ModuleDict"})
# Class methods that a library gives to models: they build the class that they are called of.
_MAKERS = frozenset({"from_pretrained", "from_config", "_from_config"})
_COPIES = frozenset({"copy.deepcopy", "copy.copy"})


def called(values: Values, callee: Value, depth: int = 0) -> Iterator[Value]:
    """Yield what a callee is, elements of containers taken out of them."""
    wrapped = [model.value for model in unwrap(values, callee) if model.wrappers] if depth <= 6 else []
    if depth > 6:
        yield callee
    elif wrapped:
        for value in wrapped:
            yield from called(values, value, depth + 1)
    elif isinstance(callee, Inst) and isinstance(callee.of, Ext) and callee.of.name in _COPIES:
        for argument in callee.call.node.args[:1] if isinstance(callee.call.node, ast.Call) else ():
            for value in values.of(callee.call.at(argument)):
                yield from called(values, value, depth + 1)
    elif (
        isinstance(callee, Result)
        and isinstance(callee.of, Attr)
        and isinstance(callee.of.of, Cls)
        and callee.of.name in _MAKERS
    ):
        yield Inst(callee.of.of, callee.call)
    elif isinstance(callee, Item):
        yield from _elements(values, callee, depth)
    elif isinstance(callee, Attr) and isinstance(callee.of, Item | Attr):
        for owner in called(values, callee.of, depth + 1):
            if isinstance(owner, Inst) and isinstance(owner.of, Cls):
                for value in values.attribute(owner, callee.name, callee.expr):
                    yield from called(values, value, depth + 1)
            else:
                yield callee
    else:
        yield callee


def _elements(values: Values, item: Item, depth: int) -> Iterator[Value]:
    for owner in called(values, item.of, depth + 1):
        if isinstance(owner, Inst) and isinstance(owner.of, Ext) and owner.of.last in CONTAINERS:
            for expr in members(values, owner):
                for value in values.of(expr):
                    yield from called(values, value, depth + 1)
        elif isinstance(owner, Item) and _name(owner.of) in {"zip", "enumerate"}:
            yield from _paired(values, owner.of, item.key, depth)
        elif isinstance(owner, Inst) and isinstance(owner.of, Cls):
            yield owner  # a part of a container is again one (`layers[:-4]`), or it is of the root
        else:
            yield item


def _name(value: Value) -> str:
    return value.of.last if isinstance(value, Inst) and isinstance(value.of, Ext) else ""


def _paired(values: Values, owner: Value, key: object, depth: int) -> Iterator[Value]:
    """`for block, past in zip(self.blocks, past)`: an element of the argument at that position."""
    node = owner.call.node if isinstance(owner, Inst) else None
    if not isinstance(node, ast.Call) or not isinstance(owner, Inst) or not isinstance(key, int):
        return
    position = key if _name(owner) == "zip" else 0
    for argument in node.args[position : position + 1]:
        for value in values.of(owner.call.at(argument)):
            yield from called(values, Item(value, None, owner.call), depth + 1)


def members(values: Values, container: Inst) -> Iterator[Expr]:
    """Yield the expressions of a container's modules: its arguments, and what is appended to it."""
    node = container.call.node
    for argument in node.args if isinstance(node, ast.Call) else ():
        inner = argument.value if isinstance(argument, ast.Starred) else argument
        if (
            isinstance(container.of, Ext)
            and container.of.last == "Sequential"
            and not isinstance(argument, ast.Starred)
        ):
            yield container.call.at(inner)
            continue
        for value in values.of(container.call.at(inner)):
            if isinstance(value, Display):
                yield from _displayed(values, value)
    yield from _appended(container)


def _displayed(values: Values, value: Display) -> Iterator[Expr]:
    node = value.expr.node
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        yield value.expr.at(node.elt)
    elif isinstance(node, ast.List | ast.Tuple):
        yield from (value.expr.at(element) for element in node.elts)
        statement = value.expr.module.statement(node)
        if isinstance(statement, ast.Assign) and statement.value is node:
            yield from _added(value.expr, statement)
    elif isinstance(node, ast.Dict):
        yield from (value.expr.at(element) for element in node.values)


def _appended(container: Inst) -> Iterator[Expr]:
    statement = container.call.module.statement(container.call.node)
    if isinstance(statement, ast.Assign) and statement.value is container.call.node:
        yield from _added(container.call, statement)


def _added(expr: Expr, statement: ast.Assign) -> Iterator[Expr]:
    names = {ast.unparse(target) for target in statement.targets}
    function = expr.module.function(expr.node)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Call) and called_name(node) == "append" and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func.value) in names and node.args:
                yield expr.at(node.args[0])
