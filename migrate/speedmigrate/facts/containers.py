"""What is in a value: elements of displays, items by key, lists that are appended to, parsed dataclasses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import targets
from speedmigrate.facts.resolver import MAX_STEPS, Resolver
from speedmigrate.facts.syntax import at_path, call_argument, has_spread
from speedmigrate.facts.value import Attr, Cls, Display, Expr, Ext, Inst, Item, Result, Unknown, Value

_COPIES = frozenset({Ext("builtins.list"), Ext("builtins.tuple"), Ext("copy.copy"), Ext("copy.deepcopy")})
_ACCELERATORS = frozenset({Ext("accelerate.Accelerator"), Ext("accelerate.accelerator.Accelerator")})
_HF_PARSE = frozenset({"parse_args_into_dataclasses", "parse_json_file", "parse_yaml_file", "parse_dict"})


class Containers(Resolver):
    """Follows elements and items."""

    def elements(self, value: Value, expr: Expr) -> Iterator[Value]:
        """Yield what iterating over a value gives."""
        self._depth += 1
        try:
            if self._depth > MAX_STEPS:
                yield Unknown("it depends on itself", expr.hop(expr.text[:60]))
            else:
                yield from tuple(self._elements_of(value, expr))
        finally:
            self._depth -= 1

    def _elements_of(self, value: Value, expr: Expr) -> Iterator[Value]:
        node = value.expr.node if isinstance(value, Display) else None
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            assert isinstance(value, Display)
            for element in (*node.elts, *_appended(value.expr)):
                yield from self.of(value.expr.at(element))
        elif isinstance(value, Inst) and value.of in _COPIES and isinstance(value.call.node, ast.Call):
            for argument in value.call.node.args[:1]:
                for inner in self.of(value.call.at(argument)):
                    yield from self.elements(inner, expr)
        elif isinstance(value, Inst) and value.of == Ext("builtins.enumerate"):
            yield Item(value, None, expr)
        else:
            yield value if isinstance(value, Unknown) else Item(value, None, expr)

    def item(self, base: Value, key: object, expr: Expr) -> Iterator[Value]:
        """Yield what `base[key]` can be; `key` None stands for any."""
        self._depth += 1
        try:
            if self._depth > MAX_STEPS:
                yield Unknown("it depends on itself", expr.hop(expr.text[:60]))
            else:
                yield from tuple(self._item_of(base, key, expr))
        finally:
            self._depth -= 1

    def _item_of(self, base: Value, key: object, expr: Expr) -> Iterator[Value]:
        if isinstance(base, Display):
            node = base.expr.node
            if (
                isinstance(node, ast.List | ast.Tuple)
                and isinstance(key, int)
                and -len(node.elts) <= key < len(node.elts)
            ):
                yield from self.of(base.expr.at(node.elts[key]))
                return
            if isinstance(node, ast.List | ast.Tuple) and key is None:
                yield from self.elements(base, expr)
                return
            if isinstance(node, ast.Dict) and key is not None:
                for name, value in zip(node.keys, node.values, strict=True):
                    if name is not None and self.key(base.expr.at(name)) == key:
                        yield from self.of(base.expr.at(value))
                        return
            if isinstance(node, ast.Dict) and key is None and all(name is not None for name in node.keys):
                for part in node.values:
                    yield from self.of(base.expr.at(part))
                return
        if (
            isinstance(base, Inst)
            and base.of in _COPIES
            and isinstance(base.call.node, ast.Call)
            and base.call.node.args
        ):
            for source in self.of(base.call.at(base.call.node.args[0])):
                yield from self.item(source, key, expr)
            return
        if isinstance(base, Inst) and base.of == Ext("builtins.dict") and isinstance(base.call.node, ast.Call):
            found = call_argument(base.call.node, None, key) if isinstance(key, str) else None
            if found is not None:
                yield from self.of(base.call.at(found))
                return
        known = self._returned_items(base, key)
        if known is not None:
            yield from known
        elif (
            isinstance(base, Item) and base.key is None and isinstance(base.of, Inst)
            and base.of.of == Ext("builtins.enumerate") and key == 1 and isinstance(base.of.call.node, ast.Call)
        ):  # fmt: skip
            inner = base.of.call.at(base.of.call.node.args[0])
            for source in self.of(inner):
                yield from self.elements(source, inner)
        else:
            yield base if isinstance(base, Unknown) else Item(base, key, expr)

    def _returned_items(self, base: Value, key: object) -> list[Value] | None:
        """Follow what a library returns in the order of its arguments."""
        prepared = prepared_arguments(base)
        if prepared is not None and isinstance(key, int) and key < len(prepared):
            return list(self.of(prepared[key]))
        return self._parsed_dataclass(base, key)

    def _parsed_dataclass(self, base: Value, key: object) -> list[Value] | None:
        """Follow `a, b = HfArgumentParser((A, B)).parse_args_into_dataclasses()` to objects of A and B."""
        if not (isinstance(base, Result) and isinstance(base.of, Attr) and base.of.name in _HF_PARSE):
            return None
        parser = base.of.of
        if not (isinstance(parser, Inst) and isinstance(parser.of, Ext) and parser.of.last == "HfArgumentParser"):
            return None
        call = parser.call.node
        types = call_argument(call, 0, "dataclass_types") if isinstance(call, ast.Call) else None
        if types is None or not isinstance(key, int):
            return None
        found: list[Value] = []
        for value in self.of(parser.call.at(types)):
            node = value.expr.node if isinstance(value, Display) else None
            elements = node.elts if isinstance(node, ast.List | ast.Tuple) else [types]
            if key < len(elements):
                owner = value.expr if isinstance(value, Display) else parser.call
                for cls in self.of(owner.at(elements[key])):
                    found.append(Inst(cls, base.call) if isinstance(cls, Cls | Ext) else cls)
        return found or None


def prepared_arguments(value: Value) -> list[Expr] | None:
    """Return the arguments of `accelerator.prepare(model, optimizer, loader)`, which returns them in this order."""
    if not (isinstance(value, Result) and isinstance(value.of, Attr) and value.of.name == "prepare"):
        return None
    owner, call = value.of.of, value.call.node
    if not (isinstance(owner, Inst) and owner.of in _ACCELERATORS and isinstance(call, ast.Call)):
        return None
    return None if has_spread(call) else [value.call.at(argument) for argument in call.args]


def _appended(expr: Expr) -> Iterator[ast.expr]:
    """Yield what is appended in the same scope to the names that a list display is assigned to."""
    module = expr.module
    statement = module.statement(expr.node)
    if not isinstance(expr.node, ast.List) or not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    if isinstance(module.parents.get(expr.node), ast.Call | ast.keyword):
        return
    found = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = {name for target in found for name, path in targets(target) if at_path(statement.value, path) is expr.node}
    attributes = {ast.unparse(t) for t in found if isinstance(t, ast.Attribute) and statement.value is expr.node}
    scope = module.scope(expr.node)
    around = module.scope(scope) if attributes and isinstance(scope, FunctionNode) else scope
    for node in ast.walk(around):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            owner = ast.unparse(node.func.value)
            if owner in names | attributes and node.func.attr == "append":
                yield node.args[0]
