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
from speedmigrate.facts.rowexpr import COMPARISONS
from speedmigrate.facts.rowstores import Stores
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


class _Reader(Stores):
    """Runs the statements of one function; `out` collects what it returns."""

    def run(self) -> None:
        node = self.frame.func.node
        assert isinstance(node, FunctionNode)
        self.block(node.body)
        if self.depth == 0:
            self.rows.returned += self.out

    def block(self, body: list[ast.stmt]) -> bool:
        """Run statements; False where the end is not reached."""
        for index, node in enumerate(body):
            if not self.leaves(node, body[index + 1 :]) and not self.statement(node):
                return False
        return True

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

    def leaves(self, node: ast.stmt, rest: list[ast.stmt]) -> bool:
        """`if len(x) < n: x = <padded>`, where what follows measures `x` again and then returns it whole.

        Without the padding that would measure less, so the padded way out becomes `return x`.
        """
        if not isinstance(node, ast.If) or node.orelse or len(node.body) != 1 or node not in self.frame.func.node.body:  # type: ignore[operator]
            return False
        pads = node.body[0]
        target = pads.targets[0] if isinstance(pads, ast.Assign) else None
        if not isinstance(target, ast.Name) or not any(_measures(each, target.id) for each in rest):
            return False
        env, drops, problems = dict(self.env), list(self.rows.drops), list(self.rows.problems)
        with self.knowing(node.test, True):
            self.block(node.body)
        padded = self.env.get(target.id)
        is_whole = isinstance(padded, Seq) and padded.runs and padded.length.is_fixed and self.returns(rest, padded)
        self.env, self.rows.drops, self.rows.problems = env, drops, problems
        if not is_whole or not isinstance(padded, Seq):
            return False
        self.drop(pads, None, code=f"return {target.id}")
        self.out.append((padded, node))
        return True

    def returns(self, rest: list[ast.stmt], whole: Seq) -> bool:
        """Whether statements surely end by returning this very sequence and do nothing else."""
        for node in rest:
            if isinstance(node, ast.Return) and node.value is not None:
                return self.eval(node.value) == whole
            if isinstance(node, ast.If):
                verdict = self.verdict(node.test)
                if verdict is None:
                    return False
                branch = node.body if verdict else node.orelse
                if branch and isinstance(branch[-1], ast.Return):
                    return self.returns(branch, whole)
                if branch:
                    return False
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._assign(node)
            else:
                return False
        return False

    def verdict(self, test: ast.expr) -> bool | None:
        """Return how a comparison of numbers ends, None where that is open."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, right = self.eval(test.left), self.eval(test.comparators[0])
        if not isinstance(left, Number) or not isinstance(right, Number):
            return None
        difference = left.value.plus(right.value, -1)
        compute = COMPARISONS.get(type(test.ops[0]))
        return None if difference.terms or compute is None else bool(compute(difference.constant, 0))

    def _return(self, node: ast.Return) -> bool:
        if node.value is not None:
            self.out.append((self.eval(node.value), node))
        return False

    def _assign(self, node: ast.Assign) -> bool:
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Subscript) and self.store_into(target, node.value):
            return True
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
                self.mutated(owner, target)
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
            if old.array or value.array:
                self.touch(old, node)
                self.touch(value, node)
            else:
                self.env.setdefault(node.target.id, old)
                if not value.pure:
                    self.mutated(old, node)
                self.grow(node.target.id, value, node)
        elif isinstance(old, Number) and isinstance(value, Number) and isinstance(node.op, ast.Add | ast.Sub):
            sign = -1 if isinstance(node.op, ast.Sub) else 1
            self.env[node.target.id] = Number(old.value.plus(value.value, sign), old.padded or value.padded)
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
            if not (isinstance(value, Seq) and value.pure):
                self.mutated(old, node)
            if call.func.attr == "extend" and isinstance(old, Seq) and isinstance(value, Seq):
                self.grow(call.func.value.id, value, node)
            else:
                self.touch(old, node)
                self.touch(value, node)
                self.env[call.func.value.id] = self.opaque()
            return True
        self.touch(self.eval(call), call, reading=True)
        return True

    def _if(self, node: ast.If) -> bool:
        self.touch(self.eval(node.test), node.test)
        before = dict(self.env)
        with self.knowing(node.test, True):
            body = self.block(node.body)
        after_body, self.env = self.env, dict(before)
        with self.knowing(node.test, False):
            orelse = self.block(node.orelse)
        if body and orelse:
            self.env = self.merged(after_body, self.env, node)
        elif body:
            self.env = after_body
        return body or orelse

    def merged(self, one: dict[str, Abstract], other: dict[str, Abstract], node: ast.AST) -> dict[str, Abstract]:
        """Merge two branches; names of one list stay names of one list."""
        done: dict[tuple[int, int], Abstract] = {}
        for name in {*one, *other}:
            left, right = one.get(name), other.get(name)
            if (id(left), id(right)) not in done:
                done[id(left), id(right)] = self.merge(left, right, node)
        return {name: done[id(one.get(name)), id(other.get(name))] for name in {*one, *other}}

    def _for(self, node: ast.For) -> bool:
        if self.padding_loop(node):
            return True
        self.touch(self.eval(node.iter), node.iter, reading=True)
        for name, _ in targets(node.target):
            self.env[name] = self.opaque()
        return self._loop(node)

    def _while(self, node: ast.While) -> bool:
        if self.padding_loop(node):
            return True
        self.touch(self.eval(node.test), node.test)
        self._loop(node)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return not endless or any(isinstance(child, ast.Break) for child in ast.walk(node))

    def _loop(self, node: ast.For | ast.While) -> bool:
        names = {name for s in node.body for name in self.module.binds(s)} | set(_grown(node))
        for name in _grown(node):
            self.mutated(self.env.get(name), node)
        for name in names & set(self.env):
            if isinstance(self.env[name], Seq) and self.env[name].runs:  # type: ignore[union-attr]
                self.problem(node, f"`{name}` changes in a loop after it is padded")
            self.env[name] = self.opaque()
        self._unfollowed_padding(node)
        self.block(node.body)
        for name in names:
            found = self.env.get(name)
            if not (isinstance(found, Seq) and found.runs):
                self.env[name] = self.opaque()
        self.block(node.orelse)
        return True

    def _unfollowed_padding(self, node: ast.For | ast.While) -> None:
        """A loop that pads one by one, but does more than that."""
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
                self.env = self.merged(kept, self.env, node) if done else self.env
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


def _measures(node: ast.stmt, name: str) -> bool:
    """Whether a test in a statement asks for the length of a name."""
    tests = [child.test for child in ast.walk(node) if isinstance(child, ast.If)]
    return any(f"len({name})" in ast.unparse(test) for test in tests)


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
