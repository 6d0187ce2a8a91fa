"""What the code does when one setting has one value: which branches run, and what a name stands for then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.flags import Flag, flag_at
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import Binding, all_arguments, any_bindings, reaching
from speedmigrate.facts.syntax import at_path, call_argument, called_name, own_nodes
from speedmigrate.facts.value import Cls, Const, Expr, Frame, Func, Inst

_DEPTH = 8
# What asks for a device that wants one length for all batches; the target is a GPU.
_XLA_CALLS = frozenset({"is_torch_tpu_available", "is_torch_xla_available", "is_tpu_available"})
_XLA = frozenset({"TPU", "XLA"})
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_MAYBE = (ast.For, ast.AsyncFor, ast.While, ast.Try, ast.ExceptHandler, ast.Match, ast.match_case, ast.BoolOp)


class Branches:
    """The run with one setting fixed (none: as the constants of the code say).

    `read` collects the settings that the answers depend on, `compared` what they are compared with, `devices` the tests
    for a device that the target is not.
    """

    def __init__(self, entry: EntryFacts, key: ast.AST | None = None, value: object = None) -> None:
        self.entry = entry
        self.key = key
        self.value = value
        self.read: dict[ast.AST, Flag] = {}
        self.compared: dict[ast.AST, set[object]] = {}
        self.devices: list[Expr] = []

    def truth(self, expr: Expr, depth: int = 0) -> bool | None:
        """Return whether a test holds, None where it depends on something else."""
        node = expr.node
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(expr.at(part), depth) for part in node.values]
            decides = isinstance(node.op, ast.Or)
            return decides if decides in parts else None if None in parts else not decides
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(expr.at(node.operand), depth)
            return None if inner is None else not inner
        if isinstance(node, ast.Compare):
            return self._compared(expr, node, depth)
        if isinstance(node, ast.Call) and called_name(node) in _XLA_CALLS:
            self.devices.append(expr)
            return False
        found = self.constant(expr, depth)
        return None if found is None else bool(found.value)

    def _compared(self, expr: Expr, node: ast.Compare, depth: int) -> bool | None:
        if len(node.ops) != 1:
            return None
        other, operator = node.comparators[0], node.ops[0]
        equal = isinstance(operator, ast.Eq | ast.Is)
        if isinstance(other, ast.Attribute) and other.attr in _XLA and equal:
            self.devices.append(expr)
            return False
        left = self.constant(expr.at(node.left), depth)
        flag = flag_at(self.entry, expr.at(node.left))
        if flag is not None:
            strings = [n.value for n in ast.walk(other) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            self.compared.setdefault(flag.key, set()).update(strings)
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(other, ast.List | ast.Tuple | ast.Set):
            parts = [part.value for part in other.elts if isinstance(part, ast.Constant)]
            held = None if left is None or len(parts) < len(other.elts) else left.value in parts
            return held if held is None or isinstance(operator, ast.In) else not held
        right = self.constant(expr.at(other), depth)
        if left is None or right is None or not (equal or isinstance(operator, ast.NotEq | ast.IsNot)):
            return None
        return (left.value == right.value) is equal

    def constant(self, expr: Expr, depth: int = 0) -> Const | None:
        """Return the constant that an expression is."""
        if isinstance(expr.node, ast.Constant):
            return Const(expr.node.value, expr)
        made = self._of_dataclass(expr) if isinstance(expr.node, ast.Attribute) and depth < _DEPTH else None
        if made is not None:
            return self.constant(made, depth + 1)
        flag = flag_at(self.entry, expr)
        if flag is not None:
            self.read[flag.key] = flag
            if flag.key is self.key:
                return Const(self.value, expr)
            return Const(flag.default, expr) if flag.kind == "constant" else None
        found = [leaf for leaf in self.settled(expr, depth + 1) if leaf != expr] if depth < _DEPTH else []
        constants = [self.constant(leaf, depth + 1) for leaf in found]
        first = constants[0] if constants else None
        return first if first is not None and all(c is not None and c.value == first.value for c in constants) else None

    def runs(self, module: Module, node: ast.AST, frame: Frame | None, depth: int = 0) -> bool | None:
        """Return whether a node of a function is come to, None where it depends."""
        answers: set[bool | None] = set()
        child = node
        for parent in module.ancestors(node):
            if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
                inside = child in parent.body if isinstance(parent, ast.If) else child is parent.body
                holds = self.truth(Expr(module, parent.test, frame), depth)
                answers.add(None if holds is None else holds is inside)
            elif isinstance(parent, _MAYBE):
                answers.add(None)
            if isinstance(child, ast.stmt):
                answers |= {self._passes(Expr(module, s.test, frame), s, depth) for s in _ifs_before(parent, child)}
            if isinstance(parent, FunctionNode | ast.Lambda):
                break
            child = parent
        return False if False in answers else None if None in answers else True

    def _passes(self, test: Expr, statement: ast.If, depth: int) -> bool | None:
        """Return whether the code after an `if` that may leave is come to."""
        holds = self.truth(test, depth)
        leaves = [bool(body) and isinstance(body[-1], _LEAVES) for body in (statement.body, statement.orelse)]
        if holds is None:
            return False if all(leaves) else None
        return not leaves[0 if holds else 1]

    def settled(self, expr: Expr, depth: int = 0) -> list[Expr]:
        """Return what an expression can stand for: names, branches, attributes and helpers of the root followed."""
        node = expr.node
        if depth > _DEPTH:
            return [expr]
        if isinstance(node, ast.IfExp):
            holds = self.truth(expr.at(node.test), depth)
            parts = [part for part, wanted in ((node.body, True), (node.orelse, False)) if holds in {wanted, None}]
            return [leaf for part in parts for leaf in self.settled(expr.at(part), depth + 1)]
        found: list[Expr] | None = None
        if isinstance(node, ast.Name):
            found = self._defined(expr, depth)
        elif isinstance(node, ast.Attribute):
            found = self._held(expr, node, depth)
        elif isinstance(node, ast.Call):
            found = self._returned(expr, node, depth)
        if found is None:
            return [expr]
        return [leaf for part in found for leaf in self.settled(part, depth + 1)]

    def _defined(self, expr: Expr, depth: int) -> list[Expr] | None:
        """Return the definitions of a name that reach it in the branches that run."""
        scope, frame, bindings = _bindings(expr)
        if not bindings:
            return None
        found: list[tuple[int, bool | None, Expr]] = []
        for binding in bindings:
            if binding.kind == "parameter":
                func = frame.func.node if frame is not None else None
                argument = self.entry.values.argument(frame, binding.name) if frame and func is scope else None
                if argument is None:
                    return None
                found.append((0, True, argument))
                continue
            value = binding.value if not binding.unpack else at_path(binding.value, binding.unpack)
            if binding.kind != "value" or value is None:
                return None
            runs = self.runs(expr.module, binding.node, frame, depth + 1)
            if runs is not False:
                found.append((value.lineno, runs, Expr(expr.module, value, frame)))
        # A definition that surely runs takes the place of those before it.
        last = max((line for line, runs, _ in found if runs), default=0)
        return [made for line, _, made in sorted(found, key=lambda each: each[0]) if line >= last]

    def _held(self, expr: Expr, node: ast.Attribute, depth: int) -> list[Expr] | None:
        """Return what an object of the root got under an attribute."""
        owner = self.entry.values.one(expr.at(node.value))
        if not isinstance(owner, Inst) or not isinstance(owner.of, Cls):
            return None
        values = self.entry.values
        found = []
        for assigned, cls in values.assignments(owner.of, node.attr):
            frame = values.init_frame(owner, cls, assigned.function)
            if assigned.index is not None:
                return None
            if self.runs(cls.module, assigned.value, frame, depth + 1) is not False:
                found.append(Expr(cls.module, assigned.value, frame))
        made = self._of_dataclass(expr)
        return found or (None if made is None else [made])

    def _of_dataclass(self, expr: Expr) -> Expr | None:
        """Return what the construction of an object gives the field that is read, where no `__init__` is written."""
        assert isinstance(expr.node, ast.Attribute)
        values, name = self.entry.values, expr.node.attr
        owner = values.one(expr.at(expr.node.value))
        call = owner.call.node if isinstance(owner, Inst) else None
        if not isinstance(owner, Inst) or not isinstance(owner.of, Cls) or not isinstance(call, ast.Call):
            return None
        if values.method(owner.of, "__init__") is not None or owner.of not in values.of(owner.call.at(call.func)):
            return None
        names = [
            node.target.id
            for cls in reversed(values.mro(owner.of))
            if isinstance(cls, Cls)
            for node in cls.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
        given = call_argument(call, names.index(name), name) if name in names else None
        return None if given is None else owner.call.at(given)

    def _returned(self, expr: Expr, node: ast.Call, depth: int) -> list[Expr] | None:
        """Return what a helper of the root returns in the branches that run."""
        func = self.entry.values.one(expr.at(node.func))
        if not isinstance(func, Func) or not isinstance(func.node, FunctionNode):
            return None
        frame = Frame(func, expr, func.receiver)
        returns = [child for child in own_nodes(func.node) if isinstance(child, ast.Return)]
        if frame.depth > _DEPTH or any(child.value is None for child in returns):
            return None
        live = [child for child in returns if self.runs(func.module, child, frame, depth + 1) is not False]
        return [Expr(func.module, child.value, frame) for child in live if child.value is not None]


def _ifs_before(parent: ast.AST, child: ast.stmt) -> Iterator[ast.If]:
    """Yield the `if` statements before a statement of the same block whose branch leaves it."""
    for block in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
        if isinstance(block, list) and child in block:
            for statement in block[: block.index(child)]:
                if isinstance(statement, ast.If) and any(
                    body and isinstance(body[-1], _LEAVES) for body in (statement.body, statement.orelse)
                ):
                    yield statement


def _bindings(expr: Expr) -> tuple[ast.AST, Frame | None, list[Binding]]:
    """Return the scope that binds a name, its frame, and the bindings that reach the use, first to last."""
    module, node, frame = expr.module, expr.node, expr.frame
    assert isinstance(node, ast.Name)
    scope, inner, first = module.scope(node), node, True
    while True:
        skip = isinstance(scope, ast.ClassDef) and not first
        if not skip and node.id in module.bound(scope):
            found = reaching(module, scope, node.id, inner if first else None)
            if not found and isinstance(scope, FunctionNode):
                found = frozenset(b for s in scope.body for b in any_bindings(s, node.id))
                found |= {Binding(node.id, "parameter", a) for a in all_arguments(scope.args) if a.arg == node.id}
            return scope, frame, sorted(found, key=lambda b: getattr(b.node, "lineno", 0))
        if isinstance(scope, ast.Module):
            return scope, frame, []
        if isinstance(scope, FunctionNode | ast.Lambda) and frame is not None and frame.func.node is scope:
            frame = frame.func.outer
        scope, first = module.scope(scope), False
