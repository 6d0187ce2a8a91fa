"""Comprehensions and what loops go over, in the code that makes rows."""

from __future__ import annotations

import ast

from speedmigrate.chain.cells import Cell, joined, other, tokens
from speedmigrate.chain.row_expr import Expressions
from speedmigrate.facts.syntax import called_name


class Sequences(Expressions):
    """Evaluates comprehensions, and gives the elements of what is iterated."""

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Cell:
        source = node.generators[0].iter
        if len(node.generators) == 1 and isinstance(source, ast.Call) and called_name(source) in {"range", "arange"}:
            return self.ranged(node, source)
        before = dict(self.env)
        for generator in node.generators:
            self.bind(generator.target, generator.iter)
            for test in generator.ifs:
                self.eval(test)
        cell = self.eval(node.elt)
        self.env = before
        if cell.kind in {"tokens", "mixed"}:
            result = cell.copied()
            result.levels = cell.levels + 1
            return result
        return Cell("list", element=cell)

    def ranged(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, source: ast.Call) -> Cell:
        """Read `[0 for _ in range(width)]` and `[i for i in range(len(ids))]`."""
        target, stop = node.generators[0].target, source.args[-1] if source.args else source
        name = target.id if isinstance(target, ast.Name) else ""
        used = any(isinstance(child, ast.Name) and child.id == name for child in ast.walk(node.elt))
        if not used and isinstance(node.elt, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp):
            return self.filler(node, self.constant(node.elt), stop)
        if isinstance(node.elt, ast.Name) and node.elt.id == name:
            return self.counting(stop)
        before = dict(self.env)
        self.env[name] = other()
        cell = self.eval(node.elt)
        self.env = before
        if cell.kind in {"tokens", "mixed"}:
            return cell.view(cell.levels + 1)
        width = self.counted(stop)
        return tokens(width=width) if width else Cell("list", element=cell)

    def bind(self, target: ast.expr, source: ast.expr) -> None:
        raise NotImplementedError

    def iterated(self, source: ast.expr) -> Cell:
        """Return one element of an iterable; `zip` and `enumerate` give tuples."""
        if isinstance(source, ast.Call):
            name = source.func.id if isinstance(source.func, ast.Name) else ""
            if name == "enumerate" and source.args:
                return Cell("record", items={0: other(), 1: self.iterated(source.args[0])}, is_tuple=True)
            if name == "zip":
                parts = [self.iterated(a.value if isinstance(a, ast.Starred) else a) for a in source.args]
                return Cell("record", items=dict(enumerate(parts)), is_tuple=True)
            if name in {"range", "trange"}:
                return other()
            if name in {"tqdm", "list", "sorted", "reversed"} and source.args:
                return self.iterated(source.args[0])
        cell = self.eval(source)
        if cell.kind == "list":
            return cell.element or other()
        if cell.is_tuple and cell.items:
            found: Cell | None = None
            for inner in cell.items.values():
                found = joined(found, inner)
            return found or other()
        if cell.kind in {"tokens", "mixed", "encoded"}:
            return cell.view(cell.levels - 1)
        return cell.element or other()

    def _dictcomp(self, node: ast.DictComp) -> Cell:
        """Read `{key: f(value) for key, value in rows.items()}`: each field put through `f`."""
        generator = node.generators[0]
        found = self.pieces(generator.iter, generator.target)
        if found is None or not isinstance(node.key, ast.Name):
            return self.computed([self.eval(node.value)])
        owner, names = found
        result = owner.copied()
        before, keys = dict(self.env), dict(self.keys)
        if owner.tokenizer is not None:
            self.enter(names, "", self.encoded_field(owner, "input_ids"))
            result.levels = self.eval(node.value).levels
        for key, cell in owner.items.items():
            self.enter(names, key, cell)
            result.items[key] = self.eval(node.value)
        self.env, self.keys = before, keys
        return result

    def pieces(self, source: ast.expr, target: ast.expr) -> tuple[Cell, tuple[str, str]] | None:
        """Return the record that a loop goes over key by key, and the names of its key and value."""
        attr = source.func.attr if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) else ""
        base = source.func.value if attr in {"items", "keys"} else source  # type: ignore[attr-defined]
        owner = self.eval(base)
        if owner.kind not in {"record", "encoded"} or owner.is_tuple or not (owner.items or owner.tokenizer):
            return None
        if attr == "items" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            names = tuple(e.id if isinstance(e, ast.Name) else "" for e in target.elts)
            return owner, (names[0], names[1])
        return (owner, (target.id, "")) if attr != "items" and isinstance(target, ast.Name) else None

    def enter(self, names: tuple[str, str], key: object, cell: Cell) -> None:
        if isinstance(key, str) and key:
            self.keys[names[0]] = key
        self.env[names[0]] = other()
        if names[1]:
            self.env[names[1]] = cell

    _generatorexp = _listcomp
    _setcomp = _listcomp
