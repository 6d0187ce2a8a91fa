"""What a name means: assignments that reach it, parameters, imports, globals, builtins."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.facts.containers import Containers
from speedmigrate.facts.module import FunctionNode, Import, Module, ScopeNode
from speedmigrate.facts.reaching import Binding, all_arguments, any_bindings, reaching
from speedmigrate.facts.resolver import MAX_STEPS, MAX_VALUES
from speedmigrate.facts.syntax import (
    call_argument,
    comprehension,
    has_spread,
    is_classmethod,
    is_first_parameter,
    owner_class,
    parameter_default,
)
from speedmigrate.facts.value import PARTIAL, Cls, Expr, Ext, Frame, Func, Inst, ModuleRef, Param, Unknown, Value
from speedmigrate.rule import Hop

_BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


class Names(Containers):
    """Follows names."""

    def name(self, module: Module, name: str, use: ast.AST, frame: Frame | None) -> Iterator[Value]:
        """Yield what `name` means at `use`."""
        scope: ScopeNode = module.scope(use)
        inner: ast.AST = use
        for parent in module.ancestors(use):
            if isinstance(parent, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                for generator in parent.generators:
                    for binding in comprehension(generator, name):
                        yield from self._binding(binding, module, frame)
                        return
            if parent is scope:
                break
        first = True
        while True:
            skip = isinstance(scope, ast.ClassDef) and not first
            if not skip and name in module.bound(scope):
                found = reaching(module, scope, name, inner if first else None)
                if not found and isinstance(scope, FunctionNode) and not first:
                    found = frozenset(b for s in scope.body for b in any_bindings(s, name))
                    # A closure sees the parameters of a function that ends in `return`.
                    found |= {Binding(name, "parameter", a) for a in all_arguments(scope.args) if a.arg == name}
                if found:
                    for binding in sorted(found, key=lambda b: (getattr(b.node, "lineno", 0), b.kind)):
                        yield from self._binding(binding, module, frame)
                    if isinstance(scope, ast.Module):
                        yield from self._written(module, name)
                    return
            if isinstance(scope, ast.Module):
                break
            if isinstance(scope, FunctionNode | ast.Lambda) and frame is not None and frame.func.node is scope:
                frame = frame.func.outer
            inner = scope
            scope = module.scope(scope)
            first = False
        yield from self._global(module, name, use)

    def _global(self, module: Module, name: str, use: ast.AST) -> Iterator[Value]:
        """Yield what a module-level name means that no statement reaches: `global` writes, star imports, builtins."""
        if name in module.global_writers:
            yield from self._written(module, name)
            return
        if not isinstance(module.scope(use), ast.Module):
            found = reaching(module, module.tree, name, None)
            if found:
                for binding in sorted(found, key=lambda b: getattr(b.node, "lineno", 0)):
                    yield from self._binding(binding, module, None)
                return
        source = self._star_source(module, name, {module.path})
        if source is not None:
            for binding in reaching(source, source.tree, name, None):
                yield from self._binding(binding, source, None)
            return
        if name in _BUILTINS:
            yield Ext(f"builtins.{name}")
        else:
            yield Unknown(f"`{name}` is not bound in {module.path}", module.hop(use, name))

    def _star_source(self, module: Module, name: str, seen: set[str]) -> Module | None:
        """Return the module that binds a name which star imports bring, those of packages followed inwards."""
        for star in module.stars:
            path = self.project.find(module, star.module, star.level)
            source = self.project.module(path) if path is not None and path not in seen else None
            if source is None:
                continue
            seen.add(source.path)
            if reaching(source, source.tree, name, None):
                return source
            inner = self._star_source(source, name, seen)
            if inner is not None:
                return inner
        return None

    def _written(self, module: Module, name: str) -> Iterator[Value]:
        """Yield what functions write to a name of the module through `global`."""
        for function in module.global_writers.get(name, ()):
            for statement in function.body:
                for binding in any_bindings(statement, name):
                    yield from self._binding(binding, module, None)

    def exported(self, module: Module, name: str) -> Iterator[Value]:
        """Yield what `module.name` means to another file."""
        self._depth += 1
        try:
            if self._depth > MAX_STEPS:
                yield Unknown("imports in a circle", Hop(module.path, 1, name))
            else:
                yield from tuple(self._exported(module, name))
        finally:
            self._depth -= 1

    def defined(self, module: Module, expr: Expr, *, imported: bool) -> Iterator[Value]:
        """Yield the classes and functions that a module defines (and imports from the root): what a name made at run
        time can pick."""
        names = [node.name for node in module.tree.body if isinstance(node, FunctionNode | ast.ClassDef)]
        if imported or not names:
            names += [name for name, entries in module.imports.items() if any(entry.attr for entry in entries)]
        found = [value for name in names for value in self.exported(module, name) if isinstance(value, Cls | Func)]
        if 0 < len(found) <= MAX_VALUES:
            yield from found
        else:
            yield Unknown("the name is made at run time", expr.hop(expr.text[:60]))

    def held(self, module: Module, expr: Expr) -> Iterator[Value]:
        """Yield what `module.__dict__[name]` can be: what the module defines, or the modules that it imports."""
        found = tuple(self.defined(module, expr, imported=False))
        if any(isinstance(value, Unknown) for value in found):
            names = [name for name, entries in module.imports.items() if any(entry.level for entry in entries)]
            modules = [value for name in names for value in self.exported(module, name) if isinstance(value, ModuleRef)]
            found = tuple(modules) if 0 < len(modules) <= MAX_VALUES else found
        yield from found

    def _exported(self, module: Module, name: str) -> Iterator[Value]:
        found = reaching(module, module.tree, name, None)
        if found:
            for binding in sorted(found, key=lambda b: getattr(b.node, "lineno", 0)):
                yield from self._binding(binding, module, None)
            yield from self._written(module, name)
        else:
            yield from self._global(module, name, module.tree.body[-1] if module.tree.body else module.tree)

    def _binding(self, binding: Binding, module: Module, frame: Frame | None) -> Iterator[Value]:
        node = binding.node
        if binding.kind == "import":
            yield from self._import(binding, module)
        elif binding.kind == "definition":
            if isinstance(node, ast.ClassDef):
                yield Cls(module, node, frame)
            else:
                assert isinstance(node, FunctionNode)
                yield Func(module, node, None, frame)
        elif binding.kind == "parameter":
            assert isinstance(node, ast.arg)
            yield from self._parameter(module, node, frame)
        elif binding.kind == "opaque" or binding.value is None:
            yield Unknown(f"`{binding.name}` is bound in a way that is not followed", module.hop(node, binding.name))
        elif binding.kind == "augmented":
            yield Unknown(f"`{binding.name}` is added to here", module.hop(node, binding.name))
        else:
            expr = Expr(module, binding.value, frame)
            found: Iterator[Value] | tuple[Value, ...] = self.of(expr)
            if binding.kind == "element":
                found = [element for value in found for element in self.elements(value, expr)]  # type: ignore[assignment]
            for index in binding.unpack:
                found = [part for value in found for part in self.item(value, index, expr)]  # type: ignore[assignment]
            yield from found

    def _import(self, binding: Binding, module: Module) -> Iterator[Value]:
        for entry in module.imports.get(binding.name, ()):
            if entry.node is binding.node:
                yield from self.imported(module, entry)

    def imported(self, module: Module, entry: Import) -> Iterator[Value]:
        """Yield what an import brings."""
        path, rest = self.project.import_target(module, entry)
        if not path:
            yield Ext(rest)
            return
        target = self.project.module(path)
        if target is None:
            yield Unknown(f"{path} cannot be read", module.hop(entry.node, f"import of {path}"))
        elif rest:
            yield from self.exported(target, rest)
        else:
            yield ModuleRef(target)

    def _parameter(self, module: Module, node: ast.arg, frame: Frame | None) -> Iterator[Value]:
        scope = module.parents[module.parents[node]]
        assert isinstance(scope, FunctionNode | ast.Lambda)
        while frame is not None and frame.func.node is not scope:
            frame = frame.func.outer
        if frame is None:
            cls = owner_class(module, scope)
            parent = module.parents.get(scope)
            if isinstance(parent, ast.ClassDef) and is_classmethod(scope) and is_first_parameter(scope, node):
                yield Cls(module, parent)
            elif cls is not None and is_first_parameter(scope, node):
                yield Inst(Cls(module, cls), Expr(module, ast.Name(id=cls.name, lineno=cls.lineno, col_offset=0)))
            else:
                yield Param(Func(module, scope), node.arg)
            return
        if frame.receiver is not None and is_first_parameter(scope, node):
            yield frame.receiver
            return
        argument = self.argument(frame, node.arg)
        if argument is None:
            yield Param(frame.func, node.arg)
        else:
            yield from self.of(argument)

    def argument(self, frame: Frame, name: str) -> Expr | None:
        """Return the expression that a parameter got in this call: an argument, else the default; None if not known."""
        func = frame.func
        arguments = func.node.args
        if frame.call is not None and isinstance(frame.call.node, ast.Call):
            call = frame.call.node
            positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            offset = 1 if frame.receiver is not None and positional else 0
            # `partial(function, ...)` binds from its second argument on; the rest comes with a call not seen here.
            offset -= PARTIAL in self.of(frame.call.at(call.func))
            found = call_argument(call, positional.index(name) - offset if name in positional else None, name)
            if found is not None:
                return frame.call.at(found)
            if has_spread(call):
                return None
        elif frame.call is None:
            return None
        default = parameter_default(arguments, name)
        return None if default is None else Expr(func.module, default, func.outer)
