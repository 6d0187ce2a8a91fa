"""What a model is built of when the run's settings are what they are: constructor branches, look-ups in registries."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any

from speedmigrate.chain.run_settings import RunSettings
from speedmigrate.facts.dynamic_parts import Parts, dynamic_parts
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.value import Attr, Cls, Const, Display, Expr, Frame, Inst, Item, Value

_DEPTH = 12
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class Built:
    """Answers which parts of a model are made.

    Attributes:
        others: what registries have beside the classes that are looked up, with the look-up's key and the table.
        missing: the settings under which a look-up finds nothing, with the keys that there are.
    """

    def __init__(self, entry: EntryFacts, file: str | None = None) -> None:
        self.values = entry.values
        self.settings = RunSettings(entry, file)
        self.others: dict[Cls, tuple[Expr, Display]] = {}
        self.missing: dict[str, frozenset[object]] = {}
        self._made: dict[Expr, bool] = {}
        self._plain: dict[Expr, tuple[object, ...] | None] = {}

    def one(self, expr: Expr) -> Const | None:
        """Return the only plain value that an expression can have under the settings."""
        found = self.plain(expr)
        return Const(found[0], expr) if found is not None and len(found) == 1 else None

    def plain(self, expr: Expr) -> tuple[object, ...] | None:
        """Return the plain values that an expression can have, None where it has others."""
        if expr not in self._plain:
            self._plain[expr] = None
            self._plain[expr] = self._plain_of(expr)
        return self._plain[expr]

    def _plain_of(self, expr: Expr) -> tuple[object, ...] | None:
        node = expr.node
        if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp) or _is_hasattr(node):
            truth = self.truth(expr)
            return None if truth is None else (truth,)
        found: list[object] = []
        for inner in self._assigned(expr, node) if isinstance(node, ast.Attribute) else ():
            plain = self.plain(inner)
            if plain is None:
                return None
            found += plain
        for value in self.values.of(expr) if not found else ():
            held = (value.value,) if isinstance(value, Const) else self.of_value(value)
            if held is None:
                return None
            found += held
        return tuple({repr(each): each for each in found}.values())

    def of_value(self, value: Value, *, is_key: bool = False) -> tuple[object, ...] | None:
        """Return what a setting, or an element of one that is a list, can be."""
        if isinstance(value, Item) and value.key is None:
            lists = self.of_value(value.of, is_key=is_key)
            if lists is None or not all(isinstance(each, list) for each in lists):
                return None
            return tuple(part for each in lists if isinstance(each, list) for part in each)
        held = self.settings.held(value) if is_key else self.settings.take(value)
        return None if held is None else held.values

    def _assigned(self, expr: Expr, node: ast.Attribute) -> Iterator[Expr]:
        """Yield what the constructors that run here assign to an attribute."""
        owners = self.values.of(expr.at(node.value))
        if len(owners) == 1 and isinstance(owner := owners[0], Inst) and isinstance(owner.of, Cls):
            for given, base in self.values.assignments(owner.of, node.attr):
                made = Expr(base.module, given.value, self.values.init_frame(owner, base, given.function))
                if given.index is None and self.runs(made):
                    yield made

    def truth(self, expr: Expr) -> bool | None:
        """Return whether a test holds under the settings."""
        node = expr.node
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(expr.at(part)) for part in node.values]
            decides = isinstance(node.op, ast.Or)
            return decides if decides in parts else None if None in parts else not decides
        if isinstance(node, ast.UnaryOp):
            inner = self.truth(expr.at(node.operand)) if isinstance(node.op, ast.Not) else None
            return None if inner is None else not inner
        if _is_hasattr(node) and isinstance(node, ast.Call):
            return self._has(expr, node)
        if isinstance(node, ast.Compare):
            return self._compared(expr, node)
        found = self.plain(expr)
        truths = {bool(each) for each in found or ()}
        return truths.pop() if len(truths) == 1 else None

    def _has(self, expr: Expr, node: ast.Call) -> bool | None:
        name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
        owner = self.values.one(expr.at(node.args[0]))
        if owner is None or not isinstance(name, str):
            return None
        held = self.settings.take(Attr(owner, name, expr))
        return None if held is None else bool(held.values)

    def _compared(self, expr: Expr, node: ast.Compare) -> bool | None:
        compare = _COMPARED.get(type(node.ops[0])) if len(node.ops) == 1 else None
        left, right = self.plain(expr.at(node.left)), self.plain(expr.at(node.comparators[0]))
        if compare is None or not left or not right:
            return None
        try:
            truths = {bool(compare(one, other)) for one in left for other in right}
        except TypeError:
            return None
        return truths.pop() if len(truths) == 1 else None

    def runs(self, expr: Expr, depth: int = 0) -> bool:
        """Say whether an expression can be reached: no branch around it, nor around the calls into it, is shut."""
        if expr in self._made:
            return self._made[expr]
        self._made[expr] = True
        self._made[expr] = depth > _DEPTH or self._runs(expr, depth)
        return self._made[expr]

    def _runs(self, expr: Expr, depth: int) -> bool:
        below: ast.AST = expr.node
        for parent in expr.module.ancestors(expr.node):
            if isinstance(parent, FunctionNode | ast.Lambda):
                break
            if isinstance(parent, ast.If | ast.IfExp) and below is not parent.test:
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                if self.truth(expr.at(parent.test)) is (below not in body):
                    return False
            below = parent
        frame: Frame | None = expr.frame
        if frame is None:
            return True
        receiver = frame.receiver
        if isinstance(receiver, Inst) and not self.made(receiver, depth + 1):
            return False
        return frame.call is None or self.runs(frame.call, depth + 1)

    def opened(self, value: Value) -> tuple[Value, ...]:
        """Return what a callee is in this run: nothing where it is not built, the part that its namespace holds."""
        if isinstance(value, Attr) and self.settings.is_namespace(value.of):
            stored = [expr for expr in self.settings.stored(value.name) if self.runs(expr)]
            return tuple(dict.fromkeys(each for expr in stored for each in self.values.of(expr))) or (value,)
        return (value,) if self.made(value) else ()

    def made(self, value: Value, depth: int = 0) -> bool:
        """Say whether an object can be one of this run: where it is built is reached, and its class is looked up."""
        if not isinstance(value, Inst) or not isinstance(value.call.node, ast.Call):
            return True
        return self._is_chosen(value, value.call.node.func) and self.runs(value.call, depth)

    def _is_chosen(self, value: Inst, func: ast.expr) -> bool:
        if not isinstance(func, ast.Subscript):
            return True
        key = value.call.at(func.slice)
        tables = [each for each in self.values.of(value.call.at(func.value)) if isinstance(each, Display)]
        if len(tables) != 1 or not isinstance(tables[0].expr.node, ast.Dict):
            return True
        keys, held = self._looked_for(key), self.keys(tables[0])
        self._misses(key, keys, held)
        if keys is None:
            return True
        looked = [each for name in keys for each in self.values.looked_up(tables[0], name, value.call)]
        if value.of not in looked and isinstance(value.of, Cls):
            self.others.setdefault(value.of, (key, tables[0]))
        return value.of in looked

    def _looked_for(self, key: Expr) -> tuple[object, ...] | None:
        found = [
            (value.value,) if isinstance(value, Const) else self.of_value(value, is_key=True)
            for value in self.values.of(key)
        ]
        return None if None in found else tuple(each for values in found for each in values or ())

    def _misses(self, key: Expr, keys: tuple[object, ...] | None, held: dict[object, Expr]) -> None:
        """Note a setting whose value the registry does not have: with it the script cannot start."""
        for value in self.values.of(key):
            of = value.of if isinstance(value, Item) and value.key is None else value
            if isinstance(of, Attr) and (given := self.settings.held(of)) is not None:
                is_list = isinstance(value, Item) and not all(isinstance(each, list) for each in given.values)
                if held and (is_list or (keys is not None and not set(keys) & set(held))):
                    self.missing[of.name] = frozenset(held)

    def keys(self, table: Display) -> dict[object, Expr]:
        """Return the entries of a dict by their keys, as far as these are plain."""
        node = table.expr.node
        found: dict[object, Expr] = {}
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                found[key.value] = table.expr.at(value)
        return found

    def parts(self, entry: EntryFacts) -> Parts:
        """Return what modules get under names worked out at run time, each under the names that it can have."""
        found = {}
        for owner, given in dynamic_parts(entry, self.runs).items():
            kept = [part for part in given if self.runs(part.value)]
            found[owner] = tuple(part.under(self.plain(part.name)) for part in kept)
        return found


def _is_hasattr(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
