"""Reads the code that makes rows, statement by statement, for what each field holds where its row is padding."""

from __future__ import annotations

import ast

from speedmigrate.chain.cells import Cell, Fill, concatenated, is_binary, joined, other
from speedmigrate.chain.row_calls import Calls
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import all_arguments, targets
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Cls, Expr, Frame, Func, Inst

_MAX_DEPTH = 6
_MAX_KEYS = 20


class Reader(Calls):
    """Runs one function; `out` collects what it returns or yields."""

    def __init__(
        self, entry: EntryFacts, func: Func, frame: Frame, env: dict[str, Cell], ran: set[ast.AST], depth: int = 0
    ) -> None:
        super().__init__(entry, func.module, frame, env, depth)
        self.ran = ran
        self.func = func
        self.out: list[Cell] = []

    def run(self) -> Cell:
        node = self.func.node
        self.ran.add(node)
        if isinstance(node, ast.Lambda):
            return self.eval(node.body)
        self.block(node.body)
        result: Cell | None = None
        for cell in self.out:
            result = joined(result, cell)
        return result or other()

    def inline(self, func: Func, frame: Frame, given: dict[str, Cell]) -> Cell:
        """Return what a function of the root gives for these arguments."""
        if self.depth >= _MAX_DEPTH or any(func.node is node for node in self.running):
            return Cell("mixed") if any(cell.has_tokens for cell in given.values()) else other()
        reader = Reader(self.entry, func, frame, _bound(func, given), self.ran, self.depth + 1)
        reader.running = (*self.running, self.func.node)
        return reader.run()

    def elsewhere(self, name: str, expr: Expr) -> Cell:
        """Evaluate what a name of another function, or of this one before the part that is run, is bound to."""
        scope = expr.module.function(expr.node)
        frame = expr.frame
        func = frame.func if frame is not None and frame.func.node is scope else unnamed(expr)
        reader = Reader(self.entry, func, frame or Frame(func, None), {}, self.ran, self.depth + 1)
        reader.running = (*self.running, self.func.node)
        if isinstance(expr.node, ast.List | ast.Dict) and not ast.unparse(expr.node).strip("[]{}"):
            # What is put into it counts: run the statements that name it.
            body = (scope or expr.module.tree).body
            mentioned = [s for s in body if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(s))]
            reader.block([s for s in mentioned if not isinstance(s, FunctionNode | ast.ClassDef | ast.Return)])
            return reader.env.get(name, other())
        return reader.eval(expr.node)

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = self.eval(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.store(target, value)
        elif isinstance(node, ast.AugAssign):
            self.augmented(node)
        elif isinstance(node, ast.Return) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)):
            value_node = node.value.value if isinstance(node.value, ast.Yield) else node.value
            if value_node is not None:
                self.out.append(self.eval(value_node))
        elif isinstance(node, ast.Expr):
            self.eval(node.value)
        elif isinstance(node, ast.If):
            self.branch(node)
        elif isinstance(node, ast.While):
            self.loop(node)
        else:
            self.compound(node)

    def compound(self, node: ast.stmt) -> None:
        looped = isinstance(node, ast.For | ast.AsyncFor)
        if isinstance(node, ast.For | ast.AsyncFor):
            self.each(node)
        for name in ("orelse", "finalbody") if looped else ("body", "orelse", "finalbody"):
            if not isinstance(node, FunctionNode | ast.ClassDef):
                self.block(getattr(node, name, None) or [])
        for handler in getattr(node, "handlers", ()):
            self.block(handler.body)

    def each(self, node: ast.For | ast.AsyncFor) -> None:
        found = self.pieces(node.iter, node.target)
        if found is None:
            self.bind(node.target, node.iter)
            self.block(node.body)
            return
        owner, names = found
        keys = dict(self.keys)
        for key, cell in list(owner.items.items())[:_MAX_KEYS]:
            self.enter(names, key, cell)
            self.block(node.body)
        self.keys = keys

    def loop(self, node: ast.While) -> None:
        """Read `while len(ids) < width: ids.append(pad)`, and any other loop as its body once."""
        padded = self.padded.get(node.test) or next(
            (self.padded[child] for child in ast.walk(node.test) if child in self.padded), None
        )
        if padded is None:
            self.block(node.body)
            return
        for child in ast.walk(node):
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == "append":
                cell = self.eval(child.func.value)
                fill = self.constant(child.args[0]) if child.args else None
                is_mask = is_binary(cell) and fill is not None and fill.constant == 0
                cell.become(Cell("tokens", fill, "right", self.length(padded), is_mask=is_mask))

    def branch(self, node: ast.If) -> None:
        self.eval(node.test)
        before = dict(self.env)
        self.block(node.body)
        after, self.env = self.env, before
        self.block(node.orelse)
        for name in {*after, *self.env}:
            self.env[name] = joined(after.get(name), self.env.get(name))

    def augmented(self, node: ast.AugAssign) -> None:
        value = self.eval(node.value)
        owner = self.eval(node.target)
        if isinstance(node.op, ast.Add) and (owner.has_tokens or value.has_tokens or owner.kind == "list"):
            result = concatenated([owner, value])
            # In place, as `+=` is on a list, so that a field of a record and its name stay one value.
            owner.become(result) if owner.kind in {"tokens", "list", "filler"} else self.store(node.target, result)

    def store(self, target: ast.expr, value: Cell) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                self.store(element, self.part(value, index))
        elif isinstance(target, ast.Attribute):
            owner = self.eval(target.value)
            if owner.kind in {"record", "encoded"}:
                owner.items[target.attr] = value
        elif isinstance(target, ast.Subscript):
            self.store_item(target, value)

    def store_item(self, target: ast.Subscript, value: Cell) -> None:
        owner = self.eval(target.value)
        key = self.key(target.slice)
        if owner.kind in {"record", "encoded", "other"} and isinstance(key, str):
            if owner.kind == "other":
                owner.held.kind = "record"
            owner.items[key] = value
        elif owner.kind in {"tokens", "filler"}:
            self.store_part(owner, target, value)
        elif owner.kind in {"list", "record"} and value.has_tokens:
            owner.element = joined(owner.element, value)

    def store_part(self, owner: Cell, target: ast.Subscript, value: Cell) -> None:
        """Read `labels[labels == pad] = -100`, `target[n:] = -100` and `out[i, : len(row)] = row`."""
        where = target.slice.elts[-1] if isinstance(target.slice, ast.Tuple) and target.slice.elts else target.slice
        if isinstance(where, ast.Slice):
            if where.upper is None and where.lower is not None and value.fill is not None and not value.has_tokens:
                owner.held.fill = value.fill
            owner.held.kind = "tokens"
            return
        index = self.eval(where)
        if index.kind == "tokens" and index.fill is not None and index.fill.constant is True:
            owner.held.fill = value.fill
        elif value.kind == "tokens" and value.fill is not None and not index.has_tokens:
            # One row of several is replaced by what it is padded to.
            owner.held.kind, owner.held.fill, owner.held.side = "tokens", value.fill, value.side
            owner.held.width, owner.held.is_mask = value.width, value.is_mask
        elif owner.fill is not None and not value.has_tokens and self.goes_over(where):
            owner.held.fill, owner.held.is_mask = Fill(...), False

    def goes_over(self, index: ast.expr) -> bool:
        """Say whether an index counts the positions of a padded row: `for i in range(len(labels))`."""
        for loop in self.func.module.ancestors(index):
            if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and isinstance(index, ast.Name):
                head = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
                owner = (
                    loop.iter.args[0] if loop.iter.args and called_name(loop.iter) in {"range", "enumerate"} else None
                )
                if isinstance(owner, ast.Call) and called_name(owner) == "len" and owner.args:
                    owner = owner.args[0]
                if isinstance(head, ast.Name) and head.id == index.id and owner is not None:
                    return self.eval(owner).fill is not None
        return False

    def bind(self, target: ast.expr, source: ast.expr) -> None:
        """Bind a loop's target to what its iterable gives."""
        cells = self.iterated(source)
        if isinstance(target, ast.Tuple | ast.List) and cells.is_tuple:
            for index, element in enumerate(target.elts):
                self.store(element, cells.items.get(index, other()))
        elif isinstance(target, ast.Name):
            self.env[target.id] = cells
        else:
            for name, path in targets(target):
                self.env[name] = self.part(cells, path[0]) if path else cells


def unnamed(expr: Expr) -> Func:
    """Return a function that stands for the top of a file."""
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return Func(expr.module, ast.Lambda(nothing, expr.node))


def _bound(func: Func, given: dict[str, Cell]) -> dict[str, Cell]:
    """Return the parameters that cells are known for; what another one got is looked up where it is read."""
    known = {argument.arg for argument in all_arguments(func.node.args)}
    return {name: cell for name, cell in given.items() if name in known}


def object_cell(entry: EntryFacts, value: Inst, ran: set[ast.AST]) -> Cell:
    """Return the attributes of an object of the root as its `__init__` leaves them."""
    cell = Cell("record")
    init = entry.values.method(value.of, "__init__") if isinstance(value.of, Cls) else None
    if init is not None and isinstance(init.node, FunctionNode):
        parent = init.module.parents[init.node]
        assert isinstance(parent, ast.ClassDef)
        frame = entry.values.init_frame(value, Cls(init.module, parent, init.outer), init.node)
        first = init.node.args.args[0].arg if init.node.args.args else "self"
        func = Func(init.module, init.node, value, init.outer)
        Reader(entry, func, frame, _bound(func, {first: cell}), ran, 1).run()
    return cell


def method_cell(entry: EntryFacts, value: Inst, method: Func, ran: set[ast.AST]) -> Cell:
    """Return what a method of an object gives, after its `__init__`."""
    func = Func(method.module, method.node, value, method.outer)
    names = [argument.arg for argument in method.node.args.args]
    owner = object_cell(entry, value, ran)
    given: dict[str, Cell] = {names[0]: owner} if names else {}
    result = Reader(entry, func, Frame(func, None, value), _bound(func, given), ran).run()
    return other() if result is owner else result


def function_cell(entry: EntryFacts, func: Func, frame: Frame, row: Cell, ran: set[ast.AST]) -> Cell:
    """Return what a map function gives for a row (or a batch of them, which reads the same)."""
    names = [argument.arg for argument in func.node.args.args]
    if func.receiver is not None and names:
        names = names[1:]
    free = [name for name in names if entry.values.argument(frame, name) is None] or names[:1]
    given: dict[str, Cell] = {free[0]: row} if free else {}
    return Reader(entry, func, frame, _bound(func, given), ran).run()
