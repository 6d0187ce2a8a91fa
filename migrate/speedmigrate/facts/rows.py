"""What one row of a dataset looks like: its `__getitem__` read symbolically, with every padding term and where it
ends up.

The reader follows lists and tensors through one function (and the helpers of the root that it calls): concatenation,
slices, conversions, branches. `[value] * gap` joined to a sequence is a padding term where `gap` is a fixed length less
the length of something of the sample (see `linear`). Anything that touches padded data in a way that is not
understood is a problem, and a row with a problem is never edited.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import targets
from speedmigrate.facts.rowcalls import Calls
from speedmigrate.facts.rowvalue import Abstract, Drop, Number, Record, Rows, Seq
from speedmigrate.facts.value import Cls, Frame, Func, Inst
from speedmigrate.facts.values import Values


def read_rows(values: Values, dataset: Inst) -> Rows:
    """Read the `__getitem__` of a dataset object."""
    assert isinstance(dataset.of, Cls)
    func = values.method(dataset.of, "__getitem__")
    rows = Rows(dataset, None if func is None else replace(func, receiver=dataset))
    if rows.func is not None:
        rows.hops.append(rows.func.module.hop(rows.func.node, f"rows come from {_qualified(rows.func)}"))
        _Reader(values, rows, Frame(rows.func, None, dataset), 0).run()
    return rows


def _qualified(func: Func) -> str:
    parent = func.module.parents.get(func.node)
    name = getattr(func.node, "name", "lambda")
    return f"{parent.name}.{name}" if isinstance(parent, ast.ClassDef) else name


class _Reader(Calls):
    """Runs the statements of one function; `out` collects what it returns."""

    def run(self) -> None:
        node = self.frame.func.node
        assert isinstance(node, FunctionNode)
        self.block(node.body)
        if self.depth == 0:
            self.rows.returned += self.out

    def block(self, body: list[ast.stmt]) -> bool:
        """Run statements; False where the end is not reached."""
        return all(self.statement(node) for node in body)

    def statement(self, node: ast.stmt) -> bool:
        method = getattr(self, "_" + type(node).__name__.lower(), None)
        if method is not None:
            return bool(method(node))
        if isinstance(node, ast.Raise | ast.Continue | ast.Break):
            return False
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.touch(self.eval(child), child)
        return True

    def _return(self, node: ast.Return) -> bool:
        if node.value is not None:
            self.out.append((self.eval(node.value), node))
        return False

    def _assign(self, node: ast.Assign) -> bool:
        value = self.eval(node.value)
        for target in node.targets:
            self.store(target, value)
        return True

    def _annassign(self, node: ast.AnnAssign) -> bool:
        if node.value is not None:
            self.store(node.target, self.eval(node.value))
        return True

    def store(self, target: ast.expr, value: Abstract) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                part = value.get(index) if isinstance(value, Record) else None
                self.store(element, part if part is not None else self.opaque())
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            owner = self.env.get(target.value.id)
            if isinstance(owner, Record) and isinstance(target.slice, ast.Constant):
                self.env[target.value.id] = owner.set(target.slice.value, value)  # type: ignore[arg-type]
            elif owner is not None:
                self.touch(owner, target)
                self.touch(value, target)
        else:
            self.touch(value, target)

    def _augassign(self, node: ast.AugAssign) -> bool:
        value = self.eval(node.value)
        if not isinstance(node.target, ast.Name):
            self.touch(value, node)
            return True
        old = self.env.get(node.target.id) or self.eval(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
        if isinstance(node.op, ast.Add) and isinstance(old, Seq) and isinstance(value, Seq):
            self.env[node.target.id] = self.join_ends(old, value, node, None)
        elif isinstance(old, Number) and isinstance(value, Number) and isinstance(node.op, ast.Add | ast.Sub):
            self.env[node.target.id] = Number(old.value.plus(value.value, -1 if isinstance(node.op, ast.Sub) else 1))
        else:
            self.touch(old, node)
            self.touch(value, node)
            self.env[node.target.id] = self.opaque()
        return True

    def _expr(self, node: ast.Expr) -> bool:
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.attr in {"extend", "append", "insert"} and call.func.value.id in self.env
        ):  # fmt: skip
            old = self.env[call.func.value.id]
            value = self.eval(call.args[-1]) if call.args else self.opaque()
            if call.func.attr == "extend" and isinstance(old, Seq) and isinstance(value, Seq):
                self.env[call.func.value.id] = self.join_ends(old, value, node, None)
            else:
                self.touch(old, node)
                self.touch(value, node)
                self.env[call.func.value.id] = self.opaque()
            return True
        self.touch(self.eval(call), call, reading=True)
        return True

    def _if(self, node: ast.If) -> bool:
        self.eval(node.test)
        before = dict(self.env)
        body = self.block(node.body)
        after_body, self.env = self.env, dict(before)
        orelse = self.block(node.orelse)
        if body and orelse:
            self.env = {n: self.merge(after_body.get(n), self.env.get(n), node) for n in {*after_body, *self.env}}
        elif body:
            self.env = after_body
        return body or orelse

    def _for(self, node: ast.For) -> bool:
        self.touch(self.eval(node.iter), node.iter, reading=True)
        for name, _ in targets(node.target):
            self.env[name] = self.opaque()
        return self._loop(node)

    def _while(self, node: ast.While) -> bool:
        self.eval(node.test)
        self._loop(node)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return not endless or any(isinstance(child, ast.Break) for child in ast.walk(node))

    def _loop(self, node: ast.For | ast.While) -> bool:
        names = {name for s in node.body for name in self.module.binds(s)} | set(_grown(node))
        for name in names & set(self.env):
            if isinstance(self.env[name], Seq) and self.env[name].runs:  # type: ignore[union-attr]
                self.problem(node, f"`{name}` changes in a loop after it is padded")
            self.env[name] = self.opaque()
        self._padding_loop(node)
        self.block(node.body)
        for name in names:
            found = self.env.get(name)
            if not (isinstance(found, Seq) and found.runs):
                self.env[name] = self.opaque()
        self.block(node.orelse)
        return True

    def _padding_loop(self, node: ast.For | ast.While) -> None:
        """`while len(ids) < max_length: ids.append(pad)` pads one by one."""
        if isinstance(node, ast.While) and isinstance(node.test, ast.Compare) and "len(" in ast.unparse(node.test):
            if set(_grown(node)):
                self.problem(node, "the loop appends until a fixed length is reached")

    def _with(self, node: ast.With) -> bool:
        for item in node.items:
            self.eval(item.context_expr)
        return self.block(node.body)

    def _try(self, node: ast.Try) -> bool:
        before = dict(self.env)
        done = self.block(node.body) and self.block(node.orelse)
        for handler in node.handlers:
            kept, self.env = self.env, dict(before)
            if self.block(handler.body):
                self.env = (
                    {n: self.merge(kept.get(n), self.env.get(n), node) for n in {*kept, *self.env}}
                    if done
                    else self.env
                )
                done = True
            else:
                self.env = kept
        return self.block(node.finalbody) and done

    def _assert(self, node: ast.Assert) -> bool:
        lengths = [self.eval(child) for child in ast.walk(node.test) if isinstance(child, ast.Call)]
        if any(isinstance(value, Number) and value.value.is_fixed and value.value.terms for value in lengths):
            self.rows.drops.append(Drop(self.module, node, None))
        return True

    def _functiondef(self, node: ast.FunctionDef) -> bool:
        return True


def _grown(node: ast.AST) -> Iterator[str]:
    """Yield the names that a loop appends to or extends."""
    for child in ast.walk(node):
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Attribute)
            and isinstance(child.func.value, ast.Name)
        ):
            if child.func.attr in {"append", "extend", "insert"}:
                yield child.func.value.id
