"""A width that a collate fills rows up to, and the rows it measures: the longest of them becomes the width.

Reads `out = torch.full((len(rows), width), pad)` with `out[i, : len(row)] = row`, and `[pad] * (width - len(row))`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.collate_code import CollateReader
from speedmigrate.chain.collate_edit import Edit
from speedmigrate.chain.collate_fields import Fields
from speedmigrate.chain.pads import Pad
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.rule import InsertStatement, Op, Replace

# Make something of the length that they are given.
MAKING = frozenset(
    "ones zeros full empty arange range new_full new_zeros new_ones new_empty repeat tile expand".split()
)


def measured(reader: CollateReader, held: Fields, found: list[Pad]) -> Edit | None:
    """Return the edit, None where the code is of another shape."""
    module, function = reader.module, reader.func.node
    if not isinstance(function, FunctionNode) or held.problems or reader.trouble:
        return None
    lengths = {pad.length for pad in found}
    if len(lengths) != 1 or any(pad.scope[1] is not function or pad.idiom == "tokenizer" for pad in found):
        return None
    width = lengths.pop()
    uses = [n for n in own_nodes(function) if isinstance(n, ast.expr) and _is_load(n) and ast.unparse(n) == width]
    cuts = [node for node in uses if isinstance(module.parents[node], ast.Slice)]
    if not all(_is_made(module, node) for node in uses if node not in cuts):
        return None
    rows = list(dict.fromkeys(_rows(function)))
    longest = _longest(module, function, rows)
    if longest is None:
        return None
    ops = _ops(module, function, width, uses, cuts, longest)
    if ops is None:
        return None
    how = "the width is the longest row of the batch"
    return Edit(tuple(ops), how, allows=frozenset({"square"}))


def _is_load(node: ast.expr) -> bool:
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _is_made(module: Module, node: ast.expr) -> bool:
    """Say whether a use of the width makes something of that length, or fills up to it."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.Tuple | ast.List):
            child = parent
            continue
        if isinstance(parent, ast.Call):
            return called_name(parent) in MAKING and child is not parent.func
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub):
            right = parent.right
            return child is parent.left and isinstance(right, ast.Call) and called_name(right) == "len"
        return isinstance(parent, ast.Compare)
    return False


def _rows(function: FunctionNode) -> Iterator[ast.expr]:
    """Yield what is measured: `row` of `width - len(row)` and of `out[i, : len(row)]`."""
    for node in own_nodes(function):
        part: ast.expr | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            part = node.right
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
            part = last.upper or last.lower if isinstance(last, ast.Slice) else None
        if isinstance(part, ast.Call) and called_name(part) == "len" and len(part.args) == 1:
            yield part.args[0]


def _longest(module: Module, function: FunctionNode, rows: list[ast.expr]) -> tuple[str, str] | None:
    """Return the code of the longest row, and the name of what it goes over."""
    loops = {_loop(module, row) for row in rows}
    if len(loops) != 1 or not rows:
        return None
    loop = loops.pop()
    if loop is None:
        return None
    target, source = loop
    texts = list(dict.fromkeys(module.text(row) for row in rows))
    if any(_is_changed(function, ast.unparse(row)) for row in rows) or _is_bound_again(function, target):
        return None
    if len(texts) == 1:
        return f"max(len({texts[0]}) for {target} in {source})", source
    return f"max(len(part) for {target} in {source} for part in ({', '.join(texts)}))", source


def _loop(module: Module, row: ast.expr) -> tuple[str, str] | None:
    """Return the target and the iterable of the loop whose element a row is part of."""
    root: ast.expr = row
    while isinstance(root, ast.Attribute) or (isinstance(root, ast.Subscript) and isinstance(root.slice, ast.Constant)):
        root = root.value
    if not isinstance(root, ast.Name):
        return None
    for parent in module.ancestors(row):
        if isinstance(parent, ast.For):
            target, source = parent.target, parent.iter
            if isinstance(source, ast.Call) and called_name(source) == "enumerate" and isinstance(target, ast.Tuple):
                target, source = target.elts[-1], source.args[0]
            if isinstance(target, ast.Name) and target.id == root.id:
                return (target.id, source.id) if isinstance(source, ast.Name) else None
        if isinstance(parent, FunctionNode):
            return None
    return None


def _is_bound_again(function: FunctionNode, name: str) -> bool:
    """Say whether the target of a loop gets another value anywhere but in loops."""
    nodes = own_nodes(function)
    stored = {n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)}
    loops = [n.target for n in nodes if isinstance(n, ast.For | ast.comprehension)]
    return bool(stored - {n for target in loops for n in ast.walk(target)})


def _is_changed(function: FunctionNode, text: str) -> bool:
    """Say whether a row is given another value or grows before it is measured."""
    for node in own_nodes(function):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            whole = ast.unparse(node)
            inner = ast.unparse(node.value) if isinstance(node, ast.Subscript) else ""
            loops = isinstance(node, ast.Name) and whole == text
            if (whole == text and not loops) or inner == text:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == text:
            return True
    return False


def _ops(
    module: Module,
    function: FunctionNode,
    width: str,
    uses: list[ast.expr],
    cuts: list[ast.expr],
    longest: tuple[str, str],
) -> list[Op] | None:
    code, source = longest
    bound = [n for n in own_nodes(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    made = [module.statement(n) for n in bound if n.id == source]
    assigned = [module.statement(n) for n in bound if n.id == width]
    first = assigned[0] if assigned else _top(module, function, uses[0])
    if len(made) > 1 or len(assigned) > 1 or any(statement.lineno >= first.lineno for statement in made):
        return None
    if assigned:
        if not isinstance(first, ast.Assign) or first not in function.body:
            return None
        start, end = module.source.span(first.value)
        old = module.text(first.value)
        return [Replace(module.path, start, end, f"min({old}, {code})" if cuts else code)]
    name = "longest" if "longest" not in module.bound(function) else "longest_row"
    start, end = module.source.span(first)
    inserted = f"{name} = min({width}, {code})" if cuts else f"{name} = {code}"
    ops: list[Op] = [InsertStatement(module.path, start, end, inserted, "before")]
    for node in uses:
        if not isinstance(module.parents[node], ast.Slice | ast.Compare):
            start, end = module.source.span(node)
            ops.append(Replace(module.path, start, end, name))
    return ops


def _top(module: Module, function: FunctionNode, node: ast.AST) -> ast.stmt:
    """Return the statement of the function's own body that holds a node."""
    statement = module.statement(node)
    while statement not in function.body:
        parent = module.parents[statement]
        statement = parent if isinstance(parent, ast.stmt) else module.statement(parent)
    return statement
