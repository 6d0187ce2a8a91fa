"""Which values of a function have the padded width in them, from the parameters that have it on."""

from __future__ import annotations

import ast

from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import reaching, targets
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.value import Func


class Wide:
    """Reads one function; `wide` are the assignments of values that have the padded width in them."""

    def __init__(self, func: Func, names: frozenset[str]) -> None:
        self.func, self.module = func, func.module
        self.given = names
        self.nodes = [node for node in ast.walk(func.node) if not _is_cached(func.module, node)]
        self.wide: set[tuple[str, int]] = set()
        stores = [n for n in self.nodes if isinstance(n, ast.Assign | ast.AugAssign | ast.For | ast.comprehension)]
        before = -1
        while before < len(self.wide):
            before = len(self.wide)
            for node in stores:
                self.bind(node)

    def bind(self, node: ast.AST) -> None:
        """Note the names that an assignment or a loop gives a value with the padded width in it."""
        if isinstance(node, ast.Assign) and self.is_wide(node.value):
            for target in node.targets:
                for name, path in targets(target):
                    if not self._is_fixed_part(node.value, path):
                        self.wide.add((name, id(node.value)))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if self.is_wide(node.value) or self.is_wide(ast.copy_location(ast.Name(node.target.id, ast.Load()), node)):
                self.wide.add((node.target.id, id(node.value)))
        elif isinstance(node, ast.For | ast.comprehension) and self.is_wide(node.iter):
            self.wide |= {(name, id(node.iter)) for name, _ in targets(node.target)}

    def is_wide_name(self, node: ast.Name) -> bool:
        if node not in self.module.parents:
            return any(name == node.id for name, _ in self.wide) or node.id in self.given
        for parent in self.module.ancestors(node):
            if isinstance(parent, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                for generator in parent.generators:
                    if node.id in {name for name, _ in targets(generator.target)}:
                        return (node.id, id(generator.iter)) in self.wide
            if parent is self.func.node:
                break
        scope, inner = self.module.scope(node), node
        while scope is not self.func.node and node.id not in self.module.bound(scope):
            if isinstance(scope, ast.Module):
                return False
            scope, inner = self.module.scope(scope), scope  # type: ignore[assignment]
        for binding in reaching(self.module, scope, node.id, inner):
            if binding.kind == "parameter" and (scope is not self.func.node or node.id in self.given):
                return True
            if binding.value is not None and (node.id, id(binding.value)) in self.wide:
                return True
        return False

    def _is_fixed_part(self, value: ast.expr, path: tuple[int, ...]) -> bool:
        """Whether a name gets a part of an unpacked shape that is not the length: the rows, or the features."""
        text = ast.unparse(value)
        if not text.endswith((".shape", ".size()", ".shape[:2]")) or len(path) != 1:
            return False
        return path[0] == 0

    def is_wide(self, node: ast.AST) -> bool:
        """Whether an expression has the padded width in it."""
        if isinstance(node, ast.Name):
            return self.is_wide_name(node)
        if isinstance(node, ast.Attribute) and node.attr in {"device", "dtype"}:
            return False
        if isinstance(node, ast.Subscript):
            return self.is_wide_part(node)
        if isinstance(node, ast.Call):
            return self.is_wide_call(node)
        if isinstance(node, ast.Lambda | ast.Constant):
            return False
        return any(self.is_wide(child) for child in ast.iter_child_nodes(node))

    def is_wide_part(self, node: ast.Subscript) -> bool:
        """Whether a part still has the width: `x[:, :n]` and `x.shape[0]` do not."""
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return ast.unparse(node.slice) not in {"0", "-1"} and self.is_wide(node.value.value)
        if not self.is_wide(node.value):
            return False
        index = second(node)
        if isinstance(index, ast.Slice) and index.upper is not None and not is_negative(index.upper):
            return self.is_wide(index.upper)
        return not (index is not None and not isinstance(index, ast.Slice) and not _is_axis(index))

    def is_wide_call(self, node: ast.Call) -> bool:
        name = called_name(node)
        if name in {"isinstance", "hasattr", "type", "print", "get_world_size"}:
            return False
        if name == "size" and node.args and ast.unparse(node.args[0]) in {"0", "-1"}:
            return False
        if name in {"cross_entropy", "sum", "all", "any", "numel"} and not node.args[1:] and name != "numel":
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if owner is not None and self.is_wide(owner) and not node.args and not node.keywords:
                return False
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        parts += [node.func.value] if isinstance(node.func, ast.Attribute) else [node.func]
        return any(self.is_wide(part) for part in parts)


def second(node: ast.Subscript) -> ast.expr | None:
    """Return the index of the second axis, the positions of a batch."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    if len(parts) < 2 or (isinstance(parts[0], ast.Constant) and parts[0].value is Ellipsis):
        return None
    return parts[1]


def _is_axis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in {None, Ellipsis}


def is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _is_cached(module: Module, node: ast.AST) -> bool:
    """Whether a node stands in a branch that only runs with a cache of earlier positions, as generation does."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.If) and child in parent.body:
            test = ast.unparse(parent.test)
            if ("past" in test and "is not None" in test) or "use_cache" in test:
                return True
        if isinstance(parent, FunctionNode):
            return False
        child = parent
    return False
