"""Every operation of a run that fills token sequences up: how it is written, to what length, on which side.

Found by shape in the syntax (once a file), then read by value: a shape whose length or switch is not what it looks like
is dropped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.chain.widths import followed, gap, width
from speedmigrate.facts.entry import EntryFacts, Scope, shared
from speedmigrate.facts.module import Module
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.value import Cls, Const, Expr, Ext, Func
from speedmigrate.rule import Hop

Idiom = Literal[
    "list_concat", "tokenizer", "cat", "full_slice", "while_append", "np_pad", "F_pad", "pad_sequence", "collator"
]
Reach = Literal["static", "longest", "switch"]
Side = Literal["right", "left", "tokenizer"]
_FILLS = frozenset({"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "tensor", "LongTensor", "empty"})
_CATS = frozenset({"cat", "concat", "concatenate", "hstack"})
_PADS = ("padding", "pad_to_max_length")
STRATEGIES = frozenset({"max_length", "longest", "do_not_pad"})
_NOT_TEXT = frozenset({"torch", "torchvision", "numpy", "PIL", "cv2", "timm", "diffusers", "os", "rich"})


@dataclass(frozen=True, slots=True, eq=False)
class Pad:
    """One operation that fills up.

    Attributes:
        reach: `static` (a length that is the same for all rows), `longest` (of what is at hand), `switch` (a setting
            of the script decides).
        length: the length as written, empty where a library knows it.
        fills: the expression of the length, None where a library knows it.
    """

    expr: Expr
    scope: Scope
    idiom: Idiom
    reach: Reach
    side: Side
    length: str = ""
    fills: Expr | None = None

    @property
    def hop(self) -> Hop:
        return self.expr.hop(self.expr.text.splitlines()[0][:80])


@dataclass(frozen=True, slots=True)
class _Shape:
    kind: Idiom
    node: ast.AST
    fill: ast.expr | None = None
    side: Side = "right"


def pads(entry: EntryFacts) -> tuple[Pad, ...]:
    """Return the padding operations of a run (worked out once)."""
    return entry.once("pads", lambda entry: tuple(_pads(entry)))


def _pads(entry: EntryFacts) -> Iterator[Pad]:
    for scope in entry.scopes:
        module, node, _frame = scope
        for shape in _shapes(entry, module).get(node, ()):
            yield from _READERS[shape.kind](entry, scope, shape)


def _shapes(entry: EntryFacts, module: Module) -> dict[ast.AST, list[_Shape]]:
    """Return what looks like padding in a file, by the function that holds it."""
    return shared(entry.project, f"pads:{module.path}", lambda: _find_shapes(module))


def _find_shapes(module: Module) -> dict[ast.AST, list[_Shape]]:
    found: dict[ast.AST, list[_Shape]] = {}
    for node in module.nodes:
        for shape in _shape(module, node):
            found.setdefault(module.function(node) or module.tree, []).append(shape)
    return found


def _shape(module: Module, node: ast.AST) -> Iterator[_Shape]:
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name == "pad_sequence":
            yield _Shape("pad_sequence", node)
        elif name == "pad" and isinstance(node.func, ast.Attribute) and len(node.args) > 1:
            yield _Shape("np_pad", node)
        elif name in _CATS and node.args and isinstance(node.args[0], ast.List | ast.Tuple):
            for index, part in enumerate(node.args[0].elts):
                yield _Shape("cat", node, part, "left" if index == 0 else "right")
        elif any(k.arg in _PADS for k in node.keywords) or name.startswith("DataCollator") or name == "pad":
            yield _Shape("tokenizer", node)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _filled_list(module, node)
    elif isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp):
        yield from _filled_range(module, node)
    elif isinstance(node, ast.While) and isinstance(node.test, ast.Compare):
        if any(isinstance(n, ast.Call) and called_name(n) == "append" for s in node.body for n in ast.walk(s)):
            yield _Shape("while_append", node)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        yield _Shape("full_slice", node)


def _filled_list(module: Module, node: ast.BinOp) -> Iterator[_Shape]:
    for display, amount in ((node.left, node.right), (node.right, node.left)):
        if isinstance(display, ast.List) and len(display.elts) == 1:
            yield _Shape("list_concat", node, amount, _list_side(module, node))
            return


def _filled_range(module: Module, node: ast.ListComp) -> Iterator[_Shape]:
    source = node.generators[0].iter
    if len(node.generators) == 1 and isinstance(source, ast.Call) and called_name(source) == "range" and source.args:
        yield _Shape("list_concat", node, source.args[-1], _list_side(module, node))


def _list_side(module: Module, node: ast.expr) -> Side:
    """Return the side that a filled list comes to: left where something is added after it."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add):
        if parent.left is node:
            return "left"
        return "right"
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        function = module.function(node) or module.tree
        name = parent.targets[0].id
        sums = [n for n in ast.walk(function) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add)]
        if any(isinstance(n.left, ast.Name) and n.left.id == name for n in sums):
            return "left"
    return "right"


def _read_fill(entry: EntryFacts, scope: Scope, shape: _Shape) -> Iterator[Pad]:
    """Read `[pad] * (width - len(ids))` and a `torch.cat` part of that many."""
    assert shape.fill is not None
    expr = Expr(scope[0], shape.fill, scope[2])
    if shape.kind == "cat":
        amount = _fill_amount(entry, expr, 0)
        if amount is None:
            return
        expr = amount
    found = gap(entry.values, expr)
    if found is not None:
        place = Expr(scope[0], shape.node, scope[2]) if isinstance(shape.node, ast.expr) else expr
        yield Pad(place, scope, shape.kind, width(entry.values, found), shape.side, found.text, found)


def _fill_amount(entry: EntryFacts, expr: Expr, depth: int) -> Expr | None:
    """Return how many fillers a part of a concatenation holds (`torch.zeros(n) - 1`, `pad.new_full((n,), 0)`)."""
    node = expr.node
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List):
            return expr.at(node.right)
        return _fill_amount(entry, expr.at(node.left), depth) or _fill_amount(entry, expr.at(node.right), depth)
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name.removeprefix("new_") in _FILLS and node.args:
            inner = node.args[0]
            if name in {"tensor", "LongTensor"}:
                return _fill_amount(entry, expr.at(inner), depth)
            return expr.at(inner)
        if isinstance(node.func, ast.Attribute):
            return _fill_amount(entry, expr.at(node.func.value), depth)
    if isinstance(node, ast.Name) and depth < 3:
        for found in followed(entry.values, expr):
            amount = _fill_amount(entry, found, depth + 1)
            if amount is not None:
                return amount
    return None


def _read_np_pad(entry: EntryFacts, scope: Scope, shape: _Shape) -> Iterator[Pad]:
    assert isinstance(shape.node, ast.Call)
    expr = Expr(scope[0], shape.node, scope[2])
    amount = expr.at(shape.node.args[1])
    found = gap(entry.values, amount)
    if found is None:
        return
    names = {value.package for value in entry.values.of(expr.at(shape.node.func)) if isinstance(value, Ext)}
    idiom: Idiom = "np_pad" if "numpy" in names else "F_pad"
    left = isinstance(amount.node, ast.Tuple) and gap(entry.values, amount.at(amount.node.elts[0])) is not None
    yield Pad(expr, scope, idiom, width(entry.values, found), "left" if left else "right", found.text, found)


def _read_pad_sequence(entry: EntryFacts, scope: Scope, shape: _Shape) -> Iterator[Pad]:
    assert isinstance(shape.node, ast.Call)
    expr = Expr(scope[0], shape.node, scope[2])
    given = call_argument(shape.node, 3, "padding_side")
    side = entry.values.key(expr.at(given)) if given is not None else "right"
    yield Pad(expr, scope, "pad_sequence", "longest", "left" if side == "left" else "right")


def _read_while(entry: EntryFacts, scope: Scope, shape: _Shape) -> Iterator[Pad]:
    """Read `while len(ids) < width: ids.append(pad)`."""
    assert isinstance(shape.node, ast.While)
    assert isinstance(shape.node.test, ast.Compare)
    left, right = shape.node.test.left, shape.node.test.comparators[0]
    if isinstance(left, ast.Call) and called_name(left) == "len" and isinstance(shape.node.test.ops[0], ast.Lt):
        length = Expr(scope[0], right, scope[2])
        reach, place = width(entry.values, length), Expr(scope[0], left, scope[2])
        yield Pad(place, scope, "while_append", reach, "right", length.text, length)


def _read_slice(entry: EntryFacts, scope: Scope, shape: _Shape) -> Iterator[Pad]:
    """Read `out = torch.full((n, width), pad)` then `out[i, :len(row)] = row`."""
    assert isinstance(shape.node, ast.Assign)
    assert isinstance(shape.node.targets[0], ast.Subscript)
    target = shape.node.targets[0]
    where = target.slice.elts[-1] if isinstance(target.slice, ast.Tuple) and target.slice.elts else target.slice
    if not isinstance(where, ast.Slice):
        return
    if where.upper is None and where.lower is None:
        return
    for made in _filled(entry, Expr(scope[0], target.value, scope[2])):
        length = _made_width(entry, made)
        if length is not None:
            side: Side = "right" if where.upper is not None else "left"
            yield Pad(made, scope, "full_slice", width(entry.values, length), side, length.text, length)


def _filled(entry: EntryFacts, expr: Expr) -> Iterator[Expr]:
    """Yield what made the tensor that a slice is assigned into; it may stand in a dict under a literal key."""
    node = expr.node
    if isinstance(node, ast.Name):
        yield from followed(entry.values, expr)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        for made in _filled(entry, expr.at(node.value)):
            for key, value in (
                zip(made.node.keys, made.node.values, strict=True) if isinstance(made.node, ast.Dict) else ()
            ):
                if isinstance(key, ast.Constant) and key.value == node.slice.value:
                    yield made.at(value)
    elif isinstance(node, ast.Subscript):
        yield from _filled(entry, expr.at(node.value))


def _made_width(entry: EntryFacts, made: Expr) -> Expr | None:
    """Return the last dimension of a tensor that is made full of one value."""
    node = made.node
    if isinstance(node, ast.BinOp):
        return _made_width(entry, made.at(node.left)) or _made_width(entry, made.at(node.right))
    if not isinstance(node, ast.Call):
        return None
    name = called_name(node).removeprefix("new_")
    if name not in {"zeros", "ones", "full", "empty"}:
        if isinstance(node.func, ast.Attribute):
            return _made_width(entry, made.at(node.func.value))
        return None
    if not node.args:
        return None
    last = node.args[0] if name == "full" or len(node.args) == 1 else node.args[-1]
    if (isinstance(last, ast.Attribute) and last.attr == "shape") or (
        isinstance(last, ast.Call) and called_name(last) == "size" and not last.args
    ):
        return None  # of the shape of a tensor that is there: nothing is filled up
    if isinstance(last, ast.Tuple | ast.List):
        return made.at(last.elts[-1]) if last.elts else None
    return made.at(last)


def _read_tokenizer(entry: EntryFacts, scope: Scope, shape: _Shape) -> Iterator[Pad]:
    """Read a call of a tokenizer or of a library's collator, by the values that its `padding` can have."""
    assert isinstance(shape.node, ast.Call)
    expr = Expr(scope[0], shape.node, scope[2])
    callees = entry.values.of(expr.at(shape.node.func))
    if any(isinstance(value, Ext) and value.package in _NOT_TEXT for value in callees):
        return
    collator = next((v for v in callees if isinstance(v, Ext) and "Collator" in v.last), None)
    if collator is None and (
        called_name(shape.node).startswith("DataCollator") or all(isinstance(value, Func | Cls) for value in callees)
    ):
        return
    reach = _told(entry, expr, shape.node, collator)
    if reach is None:
        return
    length = call_argument(shape.node, None, "max_length")
    text = expr.at(length).text if length is not None else ""
    yield Pad(expr, scope, "collator" if collator else "tokenizer", reach, "tokenizer", text)


def strategy(name: str, value: object) -> Reach | None:
    """Return to what length a tokenizer fills up for this value of its argument `name`, None where it does not."""
    if value == "max_length" or (name == "pad_to_max_length" and value is True):
        return "static"
    return "longest" if value is True or value == "longest" else None


def _told(entry: EntryFacts, expr: Expr, call: ast.Call, collator: Ext | None) -> Reach | None:
    found: set[Reach | None] = set()
    for name in _PADS:
        given = call_argument(call, None, name)
        if given is None:
            continue
        for value in entry.values.of(expr.at(given)):
            if not isinstance(value, Const):
                found.add("switch")
            elif value.value in STRATEGIES or isinstance(value.value, bool | None):
                found.add(strategy(name, value.value))
    if not found:
        if collator is not None:
            return "longest"
        # `tokenizer.pad(rows)` pads to the longest unless it is told otherwise.
        return "longest" if called_name(call) == "pad" and call.keywords else None
    return "switch" if len(found) > 1 else found.pop()


_READERS = {
    "list_concat": _read_fill,
    "cat": _read_fill,
    "np_pad": _read_np_pad,
    "pad_sequence": _read_pad_sequence,
    "while_append": _read_while,
    "full_slice": _read_slice,
    "tokenizer": _read_tokenizer,
}
