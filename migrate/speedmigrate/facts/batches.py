"""What a training loop does with a batch: whether the padded width can change without changing the loss.

The loop's body is read symbolically: batch fields through `.to`, `view(-1)`, the model call, the loss and its
normalisation. Reading a field in any other way is a problem, and then the padding stays.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from speedmigrate.facts.batchcalls import Calls
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader
from speedmigrate.facts.models import Model
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import reaching, targets
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.tracks import Key, Pads, Track, Tracked, Use, said
from speedmigrate.facts.value import Attr, Expr, Ext, Frame, Func, Inst, Item, Result, Value
from speedmigrate.facts.values import Values

_ITERATING = frozenset(
    {"builtins.enumerate", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.trange", "builtins.iter", "itertools.islice"}
)


def read_loops(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads]) -> Use:
    """Read every loop of the run over a `DataLoader`."""
    use = Use()
    seen: set[ast.AST] = set()
    for module, scope, frame in entry.scopes:
        for node in own_nodes(scope):
            if isinstance(node, ast.For | ast.AsyncFor) and node not in seen:
                expr = Expr(module, node.iter, frame)
                if any(_is_over(entry.values, value, loader) for value in entry.values.of(expr)):
                    seen.add(node)
                    use.loops += 1
                    use.hops.append(
                        module.hop(node, f"the loop over the batches of {loader.hop.path}:{loader.hop.line}")
                    )
                    reader = _Reader(entry.values, use, pads, loader.site.expr, module, frame)
                    reader.bind(node, entry.values.of(expr))
                    reader.block(node.body)
                    reader.block(node.orelse)
                    reader.after(scope, node)
    return use


def read_compute_loss(
    entry: EntryFacts, func: Func, loader: Loader, pads: Mapping[Key, Pads], trained: tuple[Model, ...]
) -> Use:
    """Read the `compute_loss(self, model, inputs, ...)` of a Trainer's subclass as the body of a loop."""
    use = Use(loops=1, backward=True)
    use.hops.append(func.module.hop(func.node, "the Trainer's subclass computes the loss here"))
    reader = _Reader(entry.values, use, pads, loader.site.expr, func.module, Frame(func, None, func.receiver))
    names = [argument.arg for argument in func.node.args.args]
    if not isinstance(func.node, FunctionNode) or len(names) < 3:
        use.problems.append(func.module.hop(func.node, "its parameters are not (self, model, inputs)"))
        return use
    reader.model_names[names[1]] = trained
    reader.env[names[2]] = Track("batch")
    reader.block(func.node.body)
    for value in reader.out:
        first = value[0] if isinstance(value, tuple) and value else value
        if isinstance(first, Track) and first.kind != "output":
            use.problems.append(func.module.hop(func.node, f"{said(first)} is returned as the loss"))
    return use


def _is_over(values: Values, value: Value, loader: Loader) -> bool:
    """Whether a value is the loader, or iterates over it through `enumerate`, `tqdm` and the like."""
    for _ in range(6):
        if isinstance(value, Inst) and value.call.node is loader.site.node:
            return True
        if isinstance(value, Item | Attr):
            value = value.of
        elif isinstance(value, Inst | Result) and isinstance(value.call.node, ast.Call) and value.call.node.args:
            found = values.of(value.call.at(value.call.node.args[0]))
            if len(found) != 1:
                return any(_is_over(values, inner, loader) for inner in found)
            value = found[0]
        else:
            return False
    return False


def _depth_of(value: Value, values: Values) -> tuple[int, ...]:
    """Return the target positions that lead to the batch: `enumerate` puts it second."""
    if isinstance(value, Inst) and value.of == Ext("builtins.enumerate"):
        return (1,)
    if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.name in _ITERATING:
        node = value.call.node
        if isinstance(node, ast.Call) and node.args:
            for inner in values.of(value.call.at(node.args[0])):
                return _depth_of(inner, values)
    return ()


class _Reader(Calls):
    """Runs the statements of a loop's body; `out` collects what a helper returns."""

    def bind(self, node: ast.For | ast.AsyncFor, found: tuple[Value, ...]) -> None:
        prefix = _depth_of(found[0], self.values)
        for name, path in targets(node.target):
            if path[: len(prefix)] == prefix:
                rest = path[len(prefix) :]
                self.env[name] = Track("batch") if not rest else self.member(rest[0])

    def after(self, scope: ast.AST, loop: ast.For | ast.AsyncFor) -> None:
        """Batch data that a name still holds behind the loop is read in a way that is not followed."""
        inside = set(ast.walk(loop))
        for node in own_nodes(scope):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and self.env.get(node.id) is not None:
                if node not in inside:
                    found = reaching(self.module, self.module.scope(node), node.id, node)
                    if any(binding.node in inside for binding in found):
                        self.problem(node, "batch data is read behind the loop")

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = self.eval(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.store(target, value, node)
        elif isinstance(node, ast.AugAssign):
            value = self.eval(node.value)
            if isinstance(node.target, ast.Name) and isinstance(node.op, ast.Div):
                self.env[node.target.id] = self.divide(self.env.get(node.target.id), value, node)
            elif value is not None:
                self.touch(value, node)
        elif isinstance(node, ast.Return):
            self.out.append(None if node.value is None else self.eval(node.value))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            self.closure(node)
        elif isinstance(node, ast.If):
            self.branch(node)
        else:
            self.compound(node)

    def compound(self, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.touch(self.eval(child), child, free=isinstance(node, ast.Expr))
            elif isinstance(child, ast.withitem):
                self.eval(child.context_expr)
        for name in ("body", "orelse", "finalbody"):
            self.block(getattr(node, name, None) or [])
        for handler in getattr(node, "handlers", ()):
            self.block(handler.body)

    def branch(self, node: ast.If) -> None:
        """Read both branches; a name that stands for batch data after either stands for it afterwards."""
        self.touch(self.eval(node.test), node.test)
        before = dict(self.env)
        self.block(node.body)
        after, self.env = self.env, before
        self.block(node.orelse)
        for name in {*after, *self.env}:
            one, other = after.get(name), self.env.get(name)
            if one is not None and other is not None and one != other:
                self.problem(node, f"`{name}` is different batch data in the two branches")
            self.env[name] = one if one is not None else other

    def store(self, target: ast.expr, value: Tracked, node: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                if isinstance(value, tuple):
                    part: Tracked = value[index] if index < len(value) else None
                elif isinstance(value, Track) and value.kind == "batch":
                    part = self.member(index)
                elif isinstance(value, Track) and value.kind == "output":
                    part = value
                else:
                    part = None
                    self.touch(value, node)
                self.store(element, part, node)
        else:
            owner = self.eval(target.value) if isinstance(target, ast.Subscript | ast.Attribute) else None
            key = (
                target.slice.value
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
                else None
            )
            if isinstance(owner, Track) and owner.kind == "batch" and key == "attention_mask" and value is None:
                self.problem(target, "the attention mask is made in the loop")
            if not (isinstance(owner, Track) and owner.kind == "batch"):
                self.touch(value, node)
