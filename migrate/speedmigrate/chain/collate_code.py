"""Reads a collate of the root statement by statement, and names each place that reads the length it pads to.

`row_reader.py` knows what a field holds at padding; here, besides, everything that is done with padded values must be
known to do the same to a narrower batch.
"""

from __future__ import annotations

import ast

from speedmigrate.chain.cells import Cell, concatenated, other, tokens
from speedmigrate.chain.row_reader import Reader
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Cls, Frame, Func
from speedmigrate.rule import Hop

_MAX_DEPTH = 6
TOKENIZED = ("input_ids", "token_type_ids", "attention_mask")
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
# Do the same to each position, or move values as a whole.
_EACH = frozenset(
    "clone copy deepcopy long int float bool half to cuda cpu type detach contiguous masked_fill masked_fill_ where eq "
    "ne gt ge lt le tensor LongTensor as_tensor from_numpy array asarray numpy tolist zeros_like ones_like full_like "
    "not_equal logical_not convert_to_tensors pin_memory unsqueeze expand".split()
)
_WHOLE = frozenset(
    "dict update BatchEncoding pop get items keys values setdefault isinstance print append zip enumerate list".split()
)
_FREE = frozenset({"device", "dtype", "data", "input_ids", "attention_mask", "token_type_ids", "labels"})


class CollateReader(Reader):
    """Runs a collate.

    Attributes:
        returned: what the collate itself returns: the expression and what it holds.
        trouble: places that may read the padded length.
        repeated: padding calls that run once a sample.
        runs: padding calls of a tokenizer, once for each call of the function that they stand in.
        fronts: places that count positions from the front, which padding on the left shifts.
    """

    def __init__(
        self, entry: EntryFacts, func: Func, frame: Frame, env: dict[str, Cell], ran: set[ast.AST], depth: int = 0
    ) -> None:
        super().__init__(entry, func, frame, env, ran, depth)
        self.returned: list[tuple[ast.expr, Cell]] = []
        self.trouble: list[Hop] = []
        self.repeated: set[ast.AST] = set()
        self.runs: set[tuple[ast.AST, Frame | None]] = set()
        self.fronts: list[Hop] = []
        self.looped = False
        self.seen: dict[ast.AST, Cell] = {}
        self.rows: set[str] = set()

    def inline(self, func: Func, frame: Frame, given: dict[str, Cell]) -> Cell:
        if self.depth >= _MAX_DEPTH or any(func.node is node for node in self.running):
            return Cell("mixed") if any(cell.has_tokens for cell in given.values()) else other()
        env = {argument.arg: other() for argument in all_arguments(func.node.args)} | given
        reader = CollateReader(self.entry, func, frame, env, self.ran, self.depth + 1)
        reader.running = (*self.running, self.func.node)
        reader.trouble, reader.repeated, reader.fronts = self.trouble, self.repeated, self.fronts
        reader.runs = self.runs
        call = frame.call.node if frame.call is not None else None
        reader.looped = self.looped or (call is not None and self.is_repeated(call))
        return reader.run()

    def statement(self, node: ast.stmt) -> None:
        super().statement(node)
        if isinstance(node, ast.While):
            self.cell(node.test)
        if isinstance(node, ast.Return) and node.value is not None:
            self.returned.append((node.value, self.out[-1]))

    def compound(self, node: ast.stmt) -> None:
        if isinstance(node, ast.For | ast.AsyncFor):
            self.each(node)
            self.cell(node.iter)
            self.block(node.orelse)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.withitem):
                self.cell(child.context_expr if isinstance(child, ast.withitem) else child)
        super().compound(node)

    def augmented(self, node: ast.AugAssign) -> None:
        if is_wide(self.eval(node.target)):
            self.problem(node)
        super().augmented(node)

    def cell(self, node: ast.expr) -> Cell:
        """Return what an expression holds; much that gives a number is not looked into until it is asked for."""
        return self.seen[node] if node in self.seen else self.eval(node)

    def is_repeated(self, node: ast.AST) -> bool:
        """Say whether a node runs for each sample: in a loop, or in the element of a comprehension."""
        child = node
        for parent in self.module.ancestors(node):
            if isinstance(parent, FunctionNode | ast.Lambda):
                return False
            if isinstance(parent, ast.comprehension):
                child = parent
                continue
            first = getattr(parent, "iter", None) or (parent.generators[0] if hasattr(parent, "generators") else None)
            if isinstance(parent, _LOOPS) and child is not first:
                return True
            child = parent
        return False

    def encoded(self, node: ast.Call, width: str) -> Cell:
        if width:
            self.runs.add((node, self.frame))
        if width and (self.looped or self.is_repeated(node)):
            self.repeated.add(node)
        return super().encoded(node, width)

    def pieces(self, source: ast.expr, target: ast.expr) -> tuple[Cell, tuple[str, str]] | None:
        """Go over all fields that a tokenizer may return, where the code does not name them."""
        base = source.func.value if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) else source
        owner = self.eval(base)
        if owner.kind == "encoded" and owner.width and not owner.items:
            for name in TOKENIZED:
                owner.items[name] = self.encoded_field(owner, name)
        return super().pieces(source, target)

    def _binop(self, node: ast.BinOp) -> Cell:
        """Read `row["ids"] + [pad] * (width - len(row["ids"]))` of rows of which nothing is known."""
        if isinstance(node.op, ast.Add):
            left, right = self.eval(node.left), self.eval(node.right)
            for filler, ids in ((left, right), (right, left)):
                if filler.kind == "filler" and filler.width and ids.kind == "other":
                    return concatenated([tokens(), right] if filler is right else [left, tokens()])
        return super()._binop(node)

    def eval(self, node: ast.expr) -> Cell:
        cell = super().eval(node)
        self.seen[node] = cell
        if isinstance(node, ast.Call):
            self.check_call(node)
        elif isinstance(node, ast.Subscript):
            for child in ast.walk(node.slice):
                if isinstance(child, ast.Call | ast.Attribute):
                    self.cell(child)
            self.check_item(node)
        elif (isinstance(node, ast.Attribute) and self.is_tokens(node.value) and node.attr not in _FREE) or (
            isinstance(node, ast.BinOp) and cell.kind == "mixed"
        ):
            self.problem(node)
        return cell

    def store(self, target: ast.expr, value: Cell) -> None:
        if isinstance(target, ast.Subscript):
            self.eval(target.value)
            for part in target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]:
                self.eval(part)
            self.check_item(target)
        super().store(target, value)

    def bind(self, target: ast.expr, source: ast.expr) -> None:
        super().bind(target, source)
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and is_wide(self.env.get(name.id)):
                self.rows.add(name.id)

    def is_tokens(self, node: ast.expr) -> bool:
        cell = self.cell(node)
        return cell.kind in {"tokens", "filler", "mixed"} and is_wide(cell)

    def problem(self, node: ast.AST) -> None:
        text = self.module.text(node).splitlines()[0][:60]
        self.trouble.append(self.module.hop(node, f"the padded length may be read: {text}"))

    def check_call(self, node: ast.Call) -> None:
        name = called_name(node)
        given = [a.value if isinstance(a, ast.Starred) else a for a in node.args] + [k.value for k in node.keywords]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        cells = [self.cell(part) for part in (*given, *([owner] if owner is not None else []))]
        if not any(is_wide(cell) for cell in cells):
            return
        callees = self.entry.values.of(self.expr(node.func))
        if any(isinstance(callee, Func | Cls) for callee in callees) or node in self.padded or name in _WHOLE:
            return
        if name in _EACH:
            if name == "where" and len(given) < 3:
                self.problem(node)
            return
        if name in {"sum", "count_nonzero"} and self.sums_nothing(owner or given[0], node):
            return
        if name == "len" and isinstance(given[0], ast.Name | ast.Subscript | ast.Attribute):
            if not (isinstance(given[0], ast.Name) and given[0].id in self.rows) and self.is_whole(given[0]):
                return
        self.problem(node)

    def sums_nothing(self, subject: ast.expr, node: ast.Call) -> bool:
        """Say whether positions of padding add 0 to a sum, so that it is the same without them."""
        fill = self.cell(subject).fill
        by_row = [ast.unparse(a) for a in (*node.args, *(k.value for k in node.keywords))]
        return fill is not None and fill.expr is None and fill.constant in {0} and set(by_row) <= {"1", "-1"}

    def is_whole(self, node: ast.expr) -> bool:
        """Say whether an expression stands for a whole batch: a name, or a field of one."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return not isinstance(node, ast.Name) or node.id not in self.rows

    def check_item(self, node: ast.Subscript) -> None:
        """Let masks, rows of a batch and what starts at a token through; an end counts from the padded length."""
        if not self.is_tokens(node.value):
            return
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        last = parts[-1]
        whole = isinstance(last, ast.Slice) and last.lower is None and last.upper is None
        batch = self.is_whole(node.value)
        if whole or (is_wide(self.cell(last)) and isinstance(node.ctx, ast.Store)):
            return
        if isinstance(last, ast.Slice):
            is_tokens_slice = len(parts) > 1 or not batch or isinstance(node.value, ast.Subscript)
            ends = [bound for bound in (last.lower, last.upper) if bound is not None]
            if is_tokens_slice and all(not _is_negative(bound) for bound in ends) and last.step is None:
                # In front of a position, or from one on: right padding stays behind it.
                if last.upper is None or isinstance(node.ctx, ast.Store):
                    self.fronts.append(self.module.hop(node, "positions are counted from the left, where padding is"))
                    return
        elif len(parts) == 1 and batch and isinstance(last, ast.Name):
            return
        self.problem(node)


def _is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def is_wide(cell: Cell | None) -> bool:
    """Say whether a value has the length that something was padded to."""
    return cell is not None and any(part.width and part.kind != "other" for part in cell.parts())


def read_collate(entry: EntryFacts, func: Func) -> CollateReader:
    """Run a collate on rows of which nothing is known."""
    env = {argument.arg: other() for argument in all_arguments(func.node.args)}
    reader = CollateReader(entry, func, Frame(func, None, func.receiver), env, set())
    result = reader.run()
    if isinstance(func.node, ast.Lambda):
        reader.returned.append((func.node.body, result))
    return reader
