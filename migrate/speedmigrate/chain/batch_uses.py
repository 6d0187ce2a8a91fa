"""How the code that trains takes a batch: by keys, by position, unpacked, as one tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.batch_shapes import Shape
from speedmigrate.chain.data_loops import Loop, batch_target, taken, training_loops
from speedmigrate.chain.data_pipes import opened, pipes
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import Cls, Expr, Ext, Frame, Func, Inst, Result

_DICT_METHODS = frozenset({"items", "keys", "values", "pop", "get", "update"})
_FIELDS = frozenset({"input_ids", "attention_mask", "labels"})
_STEPS = frozenset({"training_step"})
_MAX_DEPTH = 3


def uses(entry: EntryFacts) -> tuple[Shape, ...]:
    """Return how the training loops and steps of a run take their batches (worked out once)."""
    return entry.once("chain.uses", lambda entry: tuple(dict.fromkeys(_uses(entry))))


def _uses(entry: EntryFacts) -> Iterator[Shape]:
    nodes = {pipe.call.node for pipe in pipes(entry)}
    for loop in training_loops(entry):
        if any(_node(inner) in nodes for value in taken(entry, loop) for inner in opened(entry, value)):
            target = batch_target(entry, loop)
            if target is not None:
                yield from _target(entry, loop, target)
    for module, scope, frame in entry.scopes:
        if isinstance(scope, FunctionNode) and scope.name in _STEPS and _is_step(entry, module, scope):
            name = scope.args.args[1].arg
            yield from _named(entry, module, frame, name, list(own_nodes(scope)), 0)


def _node(value: object) -> ast.AST | None:
    return value.call.node if isinstance(value, Inst | Result) else None


def _is_step(entry: EntryFacts, module: Module, scope: FunctionNode) -> bool:
    parent = module.parents.get(scope)
    if not isinstance(parent, ast.ClassDef) or len(scope.args.args) < 2:
        return False
    return any(isinstance(b, Ext) and b.last == "LightningModule" for b in entry.values.mro(Cls(module, parent)))


def _target(entry: EntryFacts, loop: Loop, target: ast.expr) -> Iterator[Shape]:
    module, frame = loop.over.module, loop.over.frame
    if isinstance(target, ast.Tuple | ast.List):
        yield Shape("tuple", str(len(target.elts)), module.hop(target, f"the loop takes {module.text(target)[:50]}"))
        return
    if isinstance(target, ast.Name):
        around: ast.AST = loop.node
        if isinstance(loop.node, ast.Assign):
            around = module.function(loop.node) or module.tree
        nodes = list(_inside(around, loop.node))
        yield from _named(entry, module, frame, target.id, nodes, 0)


def _inside(around: ast.AST, loop: ast.AST) -> Iterator[ast.AST]:
    if around is loop:
        assert isinstance(around, ast.For | ast.AsyncFor)
        for statement in around.body:
            yield from ast.walk(statement)
    else:
        yield from own_nodes(around)


def _named(
    entry: EntryFacts, module: Module, frame: Frame | None, name: str, nodes: list[ast.AST], depth: int
) -> Iterator[Shape]:
    """Yield what the uses of a name say of the batch that it stands for."""
    found = list(_direct(module, name, nodes))
    yield from found
    if found or depth >= _MAX_DEPTH:
        return
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        position = next((i for i, a in enumerate(node.args) if isinstance(a, ast.Name) and a.id == name), None)
        keyword = next((k.arg for k in node.keywords if isinstance(k.value, ast.Name) and k.value.id == name), None)
        if position is None and keyword is None:
            continue
        expr = Expr(module, node, frame)
        for callee in entry.values.of(expr.at(node.func)):
            inner, names = _callee(entry, callee)
            if inner is None:
                continue
            parameter = keyword if position is None else names[position] if position < len(names) else None
            if parameter is not None and not isinstance(inner.node, ast.Lambda):
                called = Frame(inner, expr, inner.receiver)
                yield from _named(entry, inner.module, called, parameter, list(own_nodes(inner.node)), depth + 1)


def _callee(entry: EntryFacts, callee: object) -> tuple[Func | None, list[str]]:
    """Return the function that a call enters and the names of the parameters that its arguments fill."""
    if isinstance(callee, Inst) and isinstance(callee.of, Cls):
        method = entry.values.method(callee.of, "forward") or entry.values.method(callee.of, "__call__")
        callee = Func(method.module, method.node, callee, method.outer) if method is not None else None
    if not isinstance(callee, Func):
        return None, []
    names = [argument.arg for argument in (*callee.node.args.posonlyargs, *callee.node.args.args)]
    return callee, names[1:] if callee.receiver is not None else names


def _direct(module: Module, name: str, nodes: list[ast.AST]) -> Iterator[Shape]:
    names = {name}
    for node in nodes:
        if isinstance(node, ast.Assign) and _moved(node.value, names) and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
    for node in nodes:
        kind, detail = _use(module, names, node)
        if kind:
            yield Shape(
                kind, detail, module.hop(node, f"the batch is read here: {module.text(node).splitlines()[0][:50]}")
            )


def _moved(value: ast.expr, names: set[str]) -> bool:
    """Say whether a value is the batch itself, moved to a device or passed through a call that keeps its kind."""
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in {"to", "cuda", "half"}:
            value = value.func.value
        elif value.args and isinstance(value.func, ast.Name) and value.func.id in {"tuple", "list", "dict", "deepcopy"}:
            value = value.args[0]
        else:
            break
    if isinstance(value, ast.GeneratorExp | ast.ListComp):
        value = value.generators[0].iter
    return isinstance(value, ast.Name) and value.id in names


def _use(module: Module, names: set[str], node: ast.AST) -> tuple[str, str]:
    """Return what one node says of the batch."""

    def is_batch(inner: ast.AST | None) -> bool:
        return isinstance(inner, ast.Name) and inner.id in names

    if isinstance(node, ast.Subscript) and is_batch(node.value) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        return ("dict", key) if isinstance(key, str) else ("tuple", "") if isinstance(key, int) else ("", "")
    if isinstance(node, ast.keyword) and node.arg is None and is_batch(node.value):
        return "dict", "**"
    if isinstance(node, ast.Attribute) and is_batch(node.value):
        parent = module.parents.get(node)
        if node.attr in _DICT_METHODS and isinstance(parent, ast.Call) and parent.func is node:
            return "dict", f".{node.attr}()"
        return ("dict", node.attr) if node.attr in _FIELDS else ("", "")
    if isinstance(node, ast.Starred) and is_batch(node.value):
        return "tuple", "*"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
        if is_batch(node.value) or _moved(node.value, names):
            return "tuple", str(len(node.targets[0].elts))
    if isinstance(node, ast.GeneratorExp | ast.ListComp) and is_batch(node.generators[0].iter):
        target = node.generators[0].target
        parent = module.parents.get(node)
        if isinstance(target, ast.Name) and ".to(" in module.text(node.elt):
            return ("tuple", "") if isinstance(parent, ast.Call | ast.Assign) else ("", "")
        return "list", ""
    return "", ""
