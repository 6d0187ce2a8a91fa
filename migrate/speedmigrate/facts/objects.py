"""What an attribute means: modules, classes, objects of the root, their bases and methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.names import Names
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import Assigned, assigned, call_argument, method_of, self_assignments, super_init
from speedmigrate.facts.value import Attr, Cls, Expr, Ext, Frame, Func, Inst, ModuleRef, Unknown, Value


class Objects(Names):
    """Follows attributes."""

    def attribute(self, base: Value, name: str, expr: Expr) -> Iterator[Value]:
        """Yield what `base.name` means."""
        if isinstance(base, Ext):
            yield Ext(f"{base.name}.{name}")
        elif isinstance(base, ModuleRef):
            submodule = self.project.find(base.module, name, 1) if base.module.path.endswith("__init__.py") else None
            module = self.project.module(submodule) if submodule is not None else None
            if module is not None and not reaching(base.module, base.module.tree, name, None):
                yield ModuleRef(module)
            else:
                yield from self.exported(base.module, name)
        elif isinstance(base, Cls):
            yield from self._member(base, None, name, expr)
        elif isinstance(base, Inst) and isinstance(base.of, Cls):
            yield from self._member(base.of, base, name, expr)
        elif isinstance(base, Unknown):
            yield base
        else:
            yield Attr(base, name, expr)

    def _member(self, cls: Cls, receiver: Inst | None, name: str, expr: Expr) -> Iterator[Value]:
        found = False
        if receiver is not None:
            for given, owner in self.assignments(cls, name):
                found = True
                made = Expr(owner.module, given.value, self.init_frame(receiver, owner, given.function))
                for value in self.of(made):
                    if given.index is None:
                        yield value
                    else:
                        yield from self.item(value, given.index, made)
        if found:
            return
        bases = self.mro(cls)
        for base in bases:
            for node in base.node.body if isinstance(base, Cls) else ():
                assert isinstance(base, Cls)
                if isinstance(node, FunctionNode) and node.name == name:
                    yield from self._method(Func(base.module, node, receiver), cls)
                    return
                if isinstance(node, ast.AnnAssign | ast.Assign) and name in assigned(node):
                    field = self._given_field(base, receiver, name)
                    if field is not None:
                        yield from self.of(field)
                    elif node.value is None:
                        yield Attr(receiver or base, name, expr)
                    else:
                        yield from self.of(Expr(base.module, node.value, base.outer))
                    return
        if any(isinstance(base, Ext) for base in bases):
            yield Attr(receiver or cls, name, expr)
        else:
            yield Unknown(f"`{cls.node.name}` has no `{name}` that can be seen", expr.hop(name))

    def _given_field(self, cls: Cls, receiver: Inst | None, name: str) -> Expr | None:
        """Return what the construction of an object of a dataclass gives for a field, None where it gives nothing."""
        call = receiver.call.node if receiver is not None else None
        if receiver is None or not isinstance(call, ast.Call) or not _is_dataclass(cls.node):
            return None
        if receiver.of not in self.of(receiver.call.at(call.func)):
            return None
        targets = [node.target for node in cls.node.body if isinstance(node, ast.AnnAssign)]
        fields = [target.id for target in targets if isinstance(target, ast.Name)]
        first = receiver.of == cls and not any(isinstance(base, Cls) for base in self.mro(cls)[1:])
        found = call_argument(call, fields.index(name) if first and name in fields else None, name)
        return None if found is None else receiver.call.at(found)

    def _method(self, func: Func, cls: Cls) -> Iterator[Value]:
        assert isinstance(func.node, FunctionNode)
        marks = {ast.unparse(d) for d in func.node.decorator_list}
        if _is_property(func.node):
            yield from self.returned(Frame(func, None, func.receiver))
        elif "staticmethod" in marks:
            yield Func(func.module, func.node, None)
        elif "classmethod" in marks:
            yield Func(func.module, func.node, cls)
        else:
            yield func

    def assignments(self, cls: Cls, name: str) -> Iterator[tuple[Assigned, Cls]]:
        """Yield every value that a method of the class or of its bases in the root assigns to `self.name`."""
        for owner in self.mro(cls):
            if isinstance(owner, Ext):
                continue
            if owner.node not in self._attributes:
                self._attributes[owner.node] = self_assignments(owner.node)
            found = self._attributes[owner.node].get(name, [])
            yield from ((given, owner) for given in found)
            if any(given.function.name == "__init__" for given in found):
                return

    def init_frame(self, receiver: Inst, owner: Cls, function: FunctionNode) -> Frame:
        """Return the frame of a method of a freshly made object; `__init__` gets the arguments of the construction."""
        func = Func(owner.module, function, receiver, owner.outer)
        if function.name != "__init__":
            return Frame(func, None, receiver)
        frame = Frame(func, receiver.call if isinstance(receiver.call.node, ast.Call) else None, receiver)
        assert isinstance(receiver.of, Cls)
        for candidate in self.mro(receiver.of):
            if isinstance(candidate, Ext):
                break
            init = method_of(candidate.node, "__init__")
            if init is None:
                continue
            if init is function:
                return frame
            below = Frame(Func(candidate.module, init, receiver, candidate.outer), frame.call, receiver)
            call = super_init(init)
            if call is None:
                break
            frame = Frame(func, Expr(candidate.module, call, below), receiver)
        return frame

    def mro(self, cls: Cls) -> tuple[Cls | Ext, ...]:
        """Return the class and its bases, depth first, those outside the root as `Ext`."""
        found: list[Cls | Ext] = []
        queue: list[Cls | Ext] = [cls]
        while queue and len(found) < 40:
            current = queue.pop(0)
            if current in found:
                continue
            found.append(current)
            if isinstance(current, Cls):
                bases: list[Cls | Ext] = []
                for base in current.node.bases:
                    for value in self.of(Expr(current.module, base, current.outer)):
                        bases.append(value if isinstance(value, Cls | Ext) else Ext(f"?.{ast.unparse(base)}"))
                queue = bases + queue
        return tuple(found)

    def properties(self, cls: Cls) -> dict[str, Func]:
        """Return the properties of a class and of its bases in the root (worked out once)."""
        if cls.node not in self._properties:
            owners = [owner for owner in reversed(self.mro(cls)) if isinstance(owner, Cls)]
            self._properties[cls.node] = {
                node.name: Func(owner.module, node, None, owner.outer)
                for owner in owners
                for node in owner.node.body
                if isinstance(node, FunctionNode) and _is_property(node)
            }
        return self._properties[cls.node]

    def method(self, cls: Cls, name: str) -> Func | None:
        """Return the method that an object of the class has under `name`, where it is of the root."""
        for owner in self.mro(cls):
            if isinstance(owner, Cls):
                node = method_of(owner.node, name)
                if node is not None:
                    return Func(owner.module, node, None, owner.outer)
        return None


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(mark) for mark in node.decorator_list) and method_of(node, "__init__") is None


def _is_property(node: FunctionNode) -> bool:
    return any(
        ast.unparse(mark) == "property" or ast.unparse(mark).endswith("cached_property") for mark in node.decorator_list
    )
