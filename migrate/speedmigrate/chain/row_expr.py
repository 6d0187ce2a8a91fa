"""Expressions of the code that makes rows; calls are read by `row_calls.py`."""

from __future__ import annotations

import ast

from speedmigrate.chain.cells import Cell, Fill, concatenated, filled, joined, other, tokens
from speedmigrate.chain.pads import Pad, pads
from speedmigrate.chain.widths import followed, source
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import Module
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Attr, Const, Expr, Ext, Frame, Inst

_COMPARED = {ast.Eq: "eq", ast.NotEq: "ne", ast.Gt: "gt", ast.GtE: "ge", ast.Lt: "lt", ast.LtE: "le"}
# Constants of libraries that scripts fill their labels with.
_LIBRARY = {"transformers.trainer_pt_utils.LabelSmoother.ignore_index": -100}


def static_pads(entry: EntryFacts) -> dict[ast.AST, Pad]:
    """Return the operations of a run that pad to a fixed length, or may, by their node."""
    return entry.once(
        "static pads", lambda entry: {pad.expr.node: pad for pad in pads(entry) if pad.reach in {"static", "switch"}}
    )


class Expressions:
    """Evaluates expressions in one frame; `env` holds the names that were assigned."""

    def __init__(
        self, entry: EntryFacts, module: Module, frame: Frame | None, env: dict[str, Cell], depth: int
    ) -> None:
        self.entry = entry
        self.module = module
        self.frame = frame
        self.env = env
        self.depth = depth
        self.running: tuple[ast.AST, ...] = ()
        # The names that a loop over a record's items binds to its keys.
        self.keys: dict[str, str] = {}
        self.padded = static_pads(entry)

    def expr(self, node: ast.expr) -> Expr:
        return Expr(self.module, node, self.frame)

    def eval(self, node: ast.expr) -> Cell:
        method = getattr(self, "_" + type(node).__name__.lower(), None)
        if method is not None:
            cell: Cell = method(node)
            return cell
        return self.computed([self.eval(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])

    def computed(self, cells: list[Cell]) -> Cell:
        """Return what is computed in a way that is not followed."""
        return Cell("mixed") if any(cell.has_tokens for cell in cells) else other()

    def constant(self, node: ast.expr) -> Fill | None:
        """Return a number or an attribute chain as a value that may fill."""
        if isinstance(node, ast.IfExp):
            test = self.entry.values.one(self.expr(node.test))
            if isinstance(test, Const):
                return self.constant(node.body if test.value else node.orelse)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id in self.keys:
            return self.eval(node).fill  # `pads[name]` in a loop over the fields
        value = self.entry.values.one(self.expr(node)) if not isinstance(node, ast.Call) else None
        if isinstance(value, Ext) and value.name in _LIBRARY:
            return Fill(_LIBRARY[value.name])
        if isinstance(value, Attr) and value.name == "ignore_index" and isinstance(value.of, Inst):
            made = value.of.call.node
            if value.of.of == Ext("torch.nn.CrossEntropyLoss") and isinstance(made, ast.Call) and not made.keywords:
                return Fill(-100)
        if isinstance(value, Const) and isinstance(value.value, int | float):
            return Fill(value.value)
        if isinstance(node, ast.Name) and self.env.get(node.id) is not None and self.env[node.id].fill is not None:
            return self.env[node.id].fill
        is_code = isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.BinOp) or _is_look_up(node)
        return Fill(None, self.expr(node)) if is_code else None

    def key(self, node: ast.expr) -> object:
        if isinstance(node, ast.Name) and node.id in self.keys:
            return self.keys[node.id]
        return self.entry.values.key(self.expr(node))

    def _constant(self, node: ast.Constant) -> Cell:
        return Cell("other", Fill(node.value) if isinstance(node.value, int | float) else None)

    def _name(self, node: ast.Name) -> Cell:
        if node.id in self.env:
            return self.env[node.id]
        found = other()
        for expr in followed(self.entry.values, self.expr(node)) if self.depth < 5 else ():
            found = joined(found, self.elsewhere(node.id, expr))
        return Cell("other", self.constant(node)) if found.kind == "other" and found.fill is None else found

    def elsewhere(self, name: str, expr: Expr) -> Cell:
        raise NotImplementedError

    def _attribute(self, node: ast.Attribute) -> Cell:
        owner = self.eval(node.value)
        if owner.kind in {"record", "encoded"}:
            return self.field(owner, node.attr, node)
        if owner.kind in {"tokens", "filler", "mixed"}:
            return other() if node.attr in {"shape", "ndim", "device", "dtype"} else owner
        return Cell("other", self.constant(node))

    def field(self, owner: Cell, name: str, node: ast.expr) -> Cell:
        """Return a field of a record; a tokenizer's output has its own."""
        if name in owner.items:
            return owner.items[name]
        if owner.tokenizer is not None:
            cell = self.encoded_field(owner, name)
            owner.items[name] = cell
            return cell
        return Cell("other", Fill(None, self.expr(node)))

    def encoded_field(self, owner: Cell, name: str) -> Cell:
        assert owner.tokenizer is not None
        padded = owner.kind == "encoded" and bool(owner.width)
        fills = {
            "input_ids": Fill(None, owner.tokenizer, "pad_token_id"),
            "token_type_ids": Fill(None, owner.tokenizer, "pad_token_type_id"),
            "attention_mask": Fill(0),
        }
        is_mask = name == "attention_mask"
        fill = fills.get(name) if padded else None
        return Cell("tokens", fill, owner.side, owner.width, is_mask=is_mask, levels=owner.levels)

    def _subscript(self, node: ast.Subscript) -> Cell:
        owner = self.eval(node.value)
        key = self.key(node.slice)
        if owner.kind in {"record", "encoded"} and isinstance(key, str | int) and not owner.is_tuple:
            return self.field(owner, key, node) if isinstance(key, str) else owner
        if owner.is_tuple and isinstance(key, int):
            return owner.items.get(key if key >= 0 else len(owner.items) + key, other())
        if owner.kind == "list":
            return owner.element or other()
        if owner.kind in {"tokens", "filler", "mixed"}:
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) and node.slice.elts else [node.slice]
            added = sum(isinstance(part, ast.Constant) and part.value is None for part in parts)
            if added:
                return owner.view(owner.levels + added)
            first = parts[0]
            taken = not self.is_slice(first) and not self.eval(first).has_tokens
            return owner.view(max(owner.levels - 1, 0)) if taken and owner.levels else owner
        if isinstance(key, str) and owner.kind == "other":
            return Cell("other", Fill(None, self.expr(node)))
        return other()

    def is_slice(self, node: ast.expr) -> bool:
        """Say whether an index is a slice: written as one, or a name for `slice(start, stop)`."""
        if isinstance(node, ast.Call):
            return called_name(node) == "slice"
        found = list(followed(self.entry.values, self.expr(node))) if isinstance(node, ast.Name) else []
        return isinstance(node, ast.Slice) or any(
            isinstance(each.node, ast.Call) and called_name(each.node) == "slice" for each in found
        )

    def part(self, cell: Cell, index: int) -> Cell:
        if cell.is_tuple:
            return cell.items.get(index, other())
        if cell.kind == "list":
            return cell.element or other()
        return cell.view(cell.levels - 1) if cell.kind in {"tokens", "mixed", "record", "encoded"} else other()

    def _binop(self, node: ast.BinOp) -> Cell:
        left, right = self.eval(node.left), self.eval(node.right)
        if node in self.padded and self.padded[node].idiom == "full_slice":
            return self.prefilled(node, left, right)
        if isinstance(node.op, ast.Mult):
            for part, cell in ((node.left, left), (node.right, right)):
                if isinstance(part, ast.List) and len(part.elts) == 1:
                    times = node.right if part is node.left else node.left
                    return self.filler(node, self.constant(part.elts[0]), times)
                if cell.kind == "list" and isinstance(part, ast.List):
                    return cell
        if isinstance(node.op, ast.Add) and (_is_long(left) or _is_long(right)):
            if all(_is_long(cell) for cell in (left, right)) or any(cell.kind == "filler" for cell in (left, right)):
                return concatenated([tokens() if cell.kind == "other" else cell for cell in (left, right)])
        return self.arithmetic(node, left, right)

    def prefilled(self, node: ast.BinOp, left: Cell, right: Cell) -> Cell:
        """Read `pad * torch.ones(width)` and `torch.zeros(width) + pad`, which a slice of the row goes into."""
        full, scale = (left, node.right) if left.kind in {"filler", "tokens"} else (right, node.left)
        neutral = {ast.Mult: 1, ast.Add: 0}.get(type(node.op))
        is_plain = full.fill is not None and full.fill.constant == neutral and neutral is not None
        pad = self.padded[node]
        return tokens(self.constant(scale) if is_plain else None, pad.side, self.length(pad))

    def filler(self, node: ast.expr, fill: Fill | None, times: ast.expr | None = None) -> Cell:
        """Return a row of one value: what fills a gap, or (`times` the fixed length) a whole row."""
        pad = self.padded.get(node)
        if pad is not None:
            return Cell("filler", fill, pad.side, self.length(pad))
        width = self.counted(times) if times is not None else ""
        return tokens(fill, width=width) if width else Cell("filler", fill, "")

    def length(self, pad: Pad) -> str:
        """Return the length that an operation pads to in this call, as it is written where it comes from."""
        if pad.fills is None or pad.fills.module is not self.module:
            return pad.length
        return source(self.entry.values, Expr(self.module, pad.fills.node, self.frame)).text

    def arithmetic(self, node: ast.BinOp, left: Cell, right: Cell) -> Cell:
        if not (left.has_tokens or right.has_tokens):
            return other()
        one, two = left.fill, right.fill
        base = left if left.has_tokens else right
        if one is not None and two is not None and one.expr is None and two.expr is None:
            numbers = (one.constant, two.constant)
            if all(isinstance(number, int | float) for number in numbers):
                value = _calculated(node.op, *numbers)  # type: ignore[arg-type]
                if value is not None:
                    return Cell(base.kind, Fill(value), base.side, base.width, levels=base.levels)
        return Cell("mixed")

    def _compare(self, node: ast.Compare) -> Cell:
        left, right = self.eval(node.left), self.eval(node.comparators[0])
        word = _COMPARED.get(type(node.ops[0]), "")
        return self.compared(left, word, right, node.comparators[0])

    def compared(self, left: Cell, word: str, right: Cell, operand: ast.expr) -> Cell:
        """Return the truth of a comparison where the row is padding."""
        if not left.has_tokens:
            return self.computed([left, right])
        against = right.fill if right.fill is not None else self.constant(operand)
        result = _truth(left.fill, word, against)
        return filled(left, None if result is None else Fill(result))

    def _unaryop(self, node: ast.UnaryOp) -> Cell:
        cell = self.eval(node.operand)
        if cell.has_tokens and isinstance(node.op, ast.Invert | ast.Not):
            known = cell.fill is not None and isinstance(cell.fill.constant, bool)
            return filled(cell, Fill(not cell.fill.constant) if known and cell.fill is not None else None)
        if isinstance(node.op, ast.USub) and cell.fill is not None and isinstance(cell.fill.constant, int | float):
            return Cell(cell.kind, Fill(-cell.fill.constant), cell.side, cell.width, levels=cell.levels)
        return cell

    def _ifexp(self, node: ast.IfExp) -> Cell:
        test, body, orelse = self.eval(node.test), self.eval(node.body), self.eval(node.orelse)
        if test.kind == "tokens" and test.fill is not None and isinstance(test.fill.constant, bool | int):
            chosen, chosen_node = (body, node.body) if test.fill.constant else (orelse, node.orelse)
            return filled(test, chosen.fill if chosen.fill is not None else self.constant(chosen_node))
        if test.kind == "tokens" and (body.kind == "tokens" or orelse.kind == "tokens"):
            return filled(test, None)
        return joined(body, orelse)

    def counting(self, stop: ast.expr) -> Cell:
        """Return positions that count up to a length: at padding they hold no one value."""
        width = self.counted(stop)
        if width:
            return tokens(Fill(...), width=width)
        # Where rows are padded, numbers up to something that is not followed may be one a position.
        return Cell("mixed") if self.padded and not isinstance(stop, ast.Constant) else other()

    def counted(self, stop: ast.expr) -> str:
        """Return the length that a range counts to, where rows are padded to it."""
        inner = stop.args[0] if isinstance(stop, ast.Call) and called_name(stop) == "len" and stop.args else None
        if inner is not None:
            cell = self.eval(inner)
            return cell.width if cell.kind == "tokens" else ""
        values = self.entry.values
        found = source(values, self.expr(stop)).text
        lengths = {pad.length if pad.fills is None else source(values, pad.fills).text for pad in self.padded.values()}
        return found if found in lengths else ""

    def _dict(self, node: ast.Dict) -> Cell:
        result = Cell("record")
        for key, value in zip(node.keys, node.values, strict=True):
            cell = self.eval(value)
            if key is None:
                result.items.update(cell.items)
                result.tokenizer = cell.tokenizer or result.tokenizer
                continue
            name = self.key(key)
            if isinstance(name, str | int):
                result.items[name] = cell
            elif cell.has_tokens:
                result.element = joined(result.element, cell)
        return result

    def _tuple(self, node: ast.Tuple) -> Cell:
        if any(isinstance(element, ast.Starred) for element in node.elts):
            return self.computed([self.eval(e.value if isinstance(e, ast.Starred) else e) for e in node.elts])
        return Cell("record", items=dict(enumerate(self.eval(e) for e in node.elts)), is_tuple=True)

    def _list(self, node: ast.List) -> Cell:
        if not node.elts:
            return Cell("list")
        cells = [self.eval(e.value if isinstance(e, ast.Starred) else e) for e in node.elts]
        if all(cell.kind == "other" for cell in cells):
            # A few ids to be joined with others; alone it is no row of tokens.
            return Cell("filler")
        if len({_held(cell) for cell in cells if cell.kind == "tokens"}) > 1:
            return Cell("record", items=dict(enumerate(cells)), is_tuple=True)  # `[ids, labels, mask]` is a row
        found = cells[0]
        for cell in cells[1:]:
            found = joined(found, cell)
        return found.view(found.levels + 1) if found.kind in {"tokens", "mixed"} else Cell("list", element=found)

    def instance(self, node: ast.expr) -> Inst | None:
        value = self.entry.values.one(self.expr(node))
        return value if isinstance(value, Inst) else None


def _held(cell: Cell) -> object:
    fill = cell.fill
    return (None if fill is None else fill.constant if fill.expr is None else fill.expr.text, cell.width)


def _is_look_up(node: ast.expr) -> bool:
    """Say whether an expression asks a tokenizer for the id of a token."""
    return isinstance(node, ast.Call) and called_name(node) in {"convert_tokens_to_ids", "token_to_id", "piece_to_id"}


def _is_long(cell: Cell) -> bool:
    return cell.kind in {"tokens", "filler", "list", "mixed"}


def _calculated(op: ast.operator, one: float, two: float) -> float | None:
    if isinstance(op, ast.Add):
        return one + two
    if isinstance(op, ast.Sub):
        return one - two
    return one * two if isinstance(op, ast.Mult) else None


def _truth(fill: Fill | None, word: str, against: Fill | None) -> bool | None:
    if fill is None or against is None:
        return None
    if word in {"eq", "ne"}:
        same = fill.is_same(against)
        return None if same is None else same == (word == "eq")
    one, two = fill.constant, against.constant
    if fill.expr is not None or against.expr is not None:
        return None
    if isinstance(one, int | float) and isinstance(two, int | float):
        return {"gt": one > two, "ge": one >= two, "lt": one < two, "le": one <= two}.get(word)
    return None
