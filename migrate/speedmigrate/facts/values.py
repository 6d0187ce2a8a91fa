"""What an expression is: values followed through names, calls, attributes, classes and files (DESIGN 5).

Nothing is guessed from a name. What cannot be followed is `Unknown`, with the place where the trail ends.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from speedmigrate.facts.module import FunctionNode, Import, Module, ScopeNode
from speedmigrate.facts.project import Project
from speedmigrate.facts.reaching import Binding, any_bindings, reaching, targets
from speedmigrate.rule import Hop

MAX_DEPTH = 24
MAX_VALUES = 12
MAX_STEPS = 100
# Methods that return their own object (torch.nn.Module and torch.Tensor).
_SELF_METHODS = frozenset("to cuda cpu train eval half float double bfloat16 requires_grad_ contiguous npu xpu".split())


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A call being followed: which function, from which call, on which object. `call` is None where it is not known.

    Frames nest, so the hash is computed once and equality compares it (of node identities, 64 bits) instead of the
    chain.
    """

    func: Func
    call: Expr | None
    receiver: Value | None = None
    depth: int = field(init=False)
    key: int = field(init=False)

    def __post_init__(self) -> None:
        above = self.call.frame if self.call is not None else None
        object.__setattr__(self, "depth", 1 + (above.depth if above is not None else 0))
        object.__setattr__(self, "key", hash((self.func, self.call, self.receiver)))

    def __hash__(self) -> int:
        return self.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and other.key == self.key and other.func.node is self.func.node


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """An expression in its place: a node, its file and the call that its function was entered by."""

    module: Module
    node: ast.expr
    frame: Frame | None = None

    def __hash__(self) -> int:
        return hash((id(self.node), self.frame))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and other.node is self.node and other.frame == self.frame

    def at(self, node: ast.expr) -> Expr:
        """Return another expression of the same place."""
        return Expr(self.module, node, self.frame)

    def hop(self, what: str) -> Hop:
        return self.module.hop(self.node, what)

    @property
    def text(self) -> str:
        return self.module.text(self.node)


@dataclass(frozen=True, slots=True)
class Ext:
    """Something outside the root, by its dotted name as imported (`torch.optim.AdamW`)."""

    name: str

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class ModuleRef:
    module: Module


@dataclass(frozen=True, slots=True)
class Cls:
    """A class of the root; `outer` is the call that a class defined inside a function belongs to."""

    module: Module
    node: ast.ClassDef
    outer: Frame | None = None


@dataclass(frozen=True, slots=True)
class Func:
    """A function, method (with its `receiver`) or lambda of the root."""

    module: Module
    node: FunctionNode | ast.Lambda
    receiver: Value | None = None
    outer: Frame | None = None


@dataclass(frozen=True, slots=True)
class Inst:
    """What calling a class of the root, or anything outside it, gives."""

    of: Cls | Ext
    call: Expr


@dataclass(frozen=True, slots=True)
class Result:
    """What calling any other value gives (`of` is what was called)."""

    of: Value
    call: Expr


@dataclass(frozen=True, slots=True)
class Const:
    value: object
    expr: Expr


@dataclass(frozen=True, slots=True)
class Display:
    """A list, tuple, set, dict display or comprehension as written."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Item:
    """An element of a value: by key or position, or (`key` None) any of those that iterating gives."""

    of: Value
    key: object
    expr: Expr


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute of an object that is not of the root."""

    of: Value
    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter whose argument is not known."""

    func: Func
    name: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The trail ends here."""

    reason: str
    hop: Hop


Value = Ext | ModuleRef | Cls | Func | Inst | Result | Const | Display | Item | Attr | Param | Unknown


class Values:
    """Resolves expressions of one project; answers are remembered."""

    def __init__(self, project: Project) -> None:
        # A chain of names is followed by recursion, about eight Python frames a step.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
        self.project = project
        self._depth = 0
        self._memo: dict[tuple[int, Frame | None], tuple[Value, ...]] = {}
        self._attributes: dict[ast.ClassDef, dict[str, list[tuple[ast.expr, FunctionNode]]]] = {}

    def of(self, expr: Expr) -> tuple[Value, ...]:
        """Return every value that `expr` can have (never empty)."""
        key = (id(expr.node), expr.frame)
        if key not in self._memo:
            self._memo[key] = (Unknown("it depends on itself", expr.hop("here")),)
            self._depth += 1
            try:
                found = tuple(dict.fromkeys(self._of(expr))) if self._depth <= MAX_STEPS else ()
            finally:
                self._depth -= 1
            if len(found) > 1:
                found = tuple(v for v in found if not (isinstance(v, Unknown) and v.reason == "it depends on itself"))
            self._memo[key] = found[:MAX_VALUES] or (Unknown("nothing reaches this place", expr.hop(expr.text[:60])),)
        return self._memo[key]

    def one(self, expr: Expr) -> Value:
        """Return the value of `expr` where it has just one, else Unknown."""
        found = self.of(expr)
        return found[0] if len(found) == 1 else Unknown("it may be one of several", expr.hop(expr.text[:60]))

    def _of(self, expr: Expr) -> Iterator[Value]:
        node = expr.node
        if expr.frame is not None and expr.frame.depth > MAX_DEPTH:
            yield Unknown("calls nested too deeply", expr.hop(expr.text[:60]))
        elif isinstance(node, ast.Constant):
            yield Const(node.value, expr)
        elif isinstance(node, ast.Name):
            yield from self.name(expr.module, node.id, node, expr.frame)
        elif isinstance(node, ast.Attribute):
            for base in self.of(expr.at(node.value)):
                yield from self.attribute(base, node.attr, expr)
        elif isinstance(node, ast.Call):
            yield from self._call(expr, node)
        elif isinstance(node, ast.IfExp):
            yield from self.of(expr.at(node.body))
            yield from self.of(expr.at(node.orelse))
        elif isinstance(node, ast.BoolOp):
            for operand in node.values:
                yield from self.of(expr.at(operand))
        elif isinstance(node, ast.NamedExpr | ast.Await):
            yield from self.of(expr.at(node.value))
        elif isinstance(node, ast.Lambda):
            yield Func(expr.module, node, None, expr.frame)
        elif isinstance(node, ast.Subscript):
            for base in self.of(expr.at(node.value)):
                yield from self._item(base, self._key(expr.at(node.slice)), expr)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = node.operand.value
            yield (
                Const(-value, expr) if isinstance(value, int | float) else Unknown("not a number", expr.hop(expr.text))
            )
        elif isinstance(
            node, ast.List | ast.Tuple | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.GeneratorExp
        ):
            yield Display(expr)
        else:
            yield Unknown("computed here", expr.hop(expr.text[:60]))

    # Names -----------------------------------------------------------------------------------------------------------

    def name(self, module: Module, name: str, use: ast.AST, frame: Frame | None) -> Iterator[Value]:
        """Yield what `name` means at `use`."""
        scope: ScopeNode = module.scope(use)
        inner: ast.AST = use
        for parent in module.ancestors(use):
            if isinstance(parent, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                for generator in parent.generators:
                    for binding in _comprehension(generator, name):
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
                if found:
                    for binding in sorted(found, key=lambda b: (getattr(b.node, "lineno", 0), b.kind)):
                        yield from self._binding(binding, module, frame)
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
        written = [
            binding
            for function in module.global_writers.get(name, ())
            for statement in function.body
            for binding in any_bindings(statement, name)
        ]
        if written:
            for binding in written:
                yield from self._binding(binding, module, None)
            return
        if not isinstance(module.scope(use), ast.Module):
            found = reaching(module, module.tree, name, None)
            if found:
                for binding in sorted(found, key=lambda b: getattr(b.node, "lineno", 0)):
                    yield from self._binding(binding, module, None)
                return
        for star in module.stars:
            path = self.project.find(module, star.module, star.level)
            source = self.project.module(path) if path is not None else None
            if source is not None and source is not module:
                found = reaching(source, source.tree, name, None)
                for binding in found:
                    yield from self._binding(binding, source, None)
                if found:
                    return
        if name in _BUILTINS:
            yield Ext(f"builtins.{name}")
        else:
            yield Unknown(f"`{name}` is not bound in {module.path}", module.hop(use, name))

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

    def _exported(self, module: Module, name: str) -> Iterator[Value]:
        found = reaching(module, module.tree, name, None)
        if found:
            for binding in sorted(found, key=lambda b: getattr(b.node, "lineno", 0)):
                yield from self._binding(binding, module, None)
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
                found = [part for value in found for part in self._item(value, index, expr)]  # type: ignore[assignment]
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
            cls = _owner(module, scope)
            if cls is not None and is_first_parameter(scope, node):
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
            found = call_argument(call, positional.index(name) - offset if name in positional else None, name)
            if found is not None:
                return frame.call.at(found)
            if has_spread(call):
                return None
        elif frame.call is None:
            return None
        default = parameter_default(arguments, name)
        return None if default is None else Expr(func.module, default, func.outer)

    # Attributes, items, calls ----------------------------------------------------------------------------------------

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
            for value, function, owner in self.assignments(cls, name):
                found = True
                frame = self.init_frame(receiver, owner, function)
                yield from self.of(Expr(owner.module, value, frame))
        if found:
            return
        bases = self.mro(cls)
        for base in bases:
            for node in base.node.body if isinstance(base, Cls) else ():
                assert isinstance(base, Cls)
                if isinstance(node, FunctionNode) and node.name == name:
                    yield from self._method(Func(base.module, node, receiver), expr)
                    return
                if isinstance(node, ast.AnnAssign | ast.Assign) and name in _assigned(node):
                    if node.value is None:
                        yield Attr(receiver or base, name, expr)
                    else:
                        yield from self.of(Expr(base.module, node.value, base.outer))
                    return
        if any(isinstance(base, Ext) for base in bases):
            yield Attr(receiver or cls, name, expr)
        else:
            yield Unknown(f"`{cls.node.name}` has no `{name}` that can be seen", expr.hop(name))

    def _method(self, func: Func, expr: Expr) -> Iterator[Value]:
        assert isinstance(func.node, FunctionNode)
        marks = {ast.unparse(d) for d in func.node.decorator_list}
        if "property" in marks or any(mark.endswith("cached_property") for mark in marks):
            yield from self.returned(Frame(func, None, func.receiver))
        elif "staticmethod" in marks:
            yield Func(func.module, func.node, None)
        elif "classmethod" in marks and isinstance(func.receiver, Inst):
            yield Func(func.module, func.node, func.receiver.of)
        else:
            yield func

    def assignments(self, cls: Cls, name: str) -> Iterator[tuple[ast.expr, FunctionNode, Cls]]:
        """Yield every value that a method of the class or of its bases in the root assigns to `self.name`."""
        for owner in self.mro(cls):
            if isinstance(owner, Ext):
                continue
            if owner.node not in self._attributes:
                self._attributes[owner.node] = _self_assignments(owner.node)
            found = self._attributes[owner.node].get(name, [])
            for value, function in found:
                yield value, function, owner
            if any(function.name == "__init__" for _, function in found):
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
            init = _method_of(candidate, "__init__")
            if init is None:
                continue
            if init is function:
                return frame
            below = Frame(Func(candidate.module, init, receiver, candidate.outer), frame.call, receiver)
            call = _super_init(init)
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

    def method(self, cls: Cls, name: str) -> Func | None:
        """Return the method that an object of the class has under `name`, where it is of the root."""
        for owner in self.mro(cls):
            if isinstance(owner, Cls):
                node = _method_of(owner, name)
                if node is not None:
                    return Func(owner.module, node, None, owner.outer)
        return None

    def _key(self, expr: Expr) -> object:
        value = self.one(expr)
        return value.value if isinstance(value, Const) else None

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

    def _item(self, base: Value, key: object, expr: Expr) -> Iterator[Value]:
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
                    if name is not None and self._key(base.expr.at(name)) == key:
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
                yield from self._item(source, key, expr)
            return
        if isinstance(base, Inst) and base.of == Ext("builtins.dict") and isinstance(base.call.node, ast.Call):
            found = call_argument(base.call.node, None, key) if isinstance(key, str) else None
            if found is not None:
                yield from self.of(base.call.at(found))
                return
        parsed = self._parsed_dataclass(base, key)
        if parsed is not None:
            yield from parsed
        elif (
            isinstance(base, Item) and base.key is None and isinstance(base.of, Inst)
            and base.of.of == Ext("builtins.enumerate") and key == 1 and isinstance(base.of.call.node, ast.Call)
        ):  # fmt: skip
            inner = base.of.call.at(base.of.call.node.args[0])
            for source in self.of(inner):
                yield from self.elements(source, inner)
        else:
            yield base if isinstance(base, Unknown) else Item(base, key, expr)

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

    def _call(self, expr: Expr, node: ast.Call) -> Iterator[Value]:
        for callee in self.of(expr.at(node.func)):
            yield from self.call(callee, expr, node)

    def call(self, callee: Value, expr: Expr, node: ast.Call) -> Iterator[Value]:
        """Yield what calling `callee` at `expr` gives."""
        if isinstance(callee, Cls):
            yield Inst(callee, expr)
        elif isinstance(callee, Ext):
            yield from self._call_outside(callee, expr, node)
        elif isinstance(callee, Func):
            yield from self.returned(Frame(callee, expr, callee.receiver))
        elif isinstance(callee, Attr) and callee.name in _SELF_METHODS:
            yield callee.of
        elif isinstance(callee, Unknown):
            yield callee
        else:
            yield Result(callee, expr)

    def _call_outside(self, callee: Ext, expr: Expr, node: ast.Call) -> Iterator[Value]:
        if callee.name == "builtins.getattr" and len(node.args) >= 2:
            name = self._key(expr.at(node.args[1]))
            if isinstance(name, str):
                for base in self.of(expr.at(node.args[0])):
                    yield from self.attribute(base, name, expr)
                return
        if callee.name == "builtins.super":
            frame = expr.frame
            if frame is not None and isinstance(frame.receiver, Inst):
                yield Result(callee, expr)
                return
        yield Inst(callee, expr)

    def returned(self, frame: Frame) -> Iterator[Value]:
        """Yield what a function of the root returns in this call."""
        node, module = frame.func.node, frame.func.module
        if frame.depth > MAX_DEPTH:
            yield Unknown("calls nested too deeply", module.hop(node, "here"))
            return
        if isinstance(node, ast.Lambda):
            yield from self.of(Expr(module, node.body, frame))
            return
        values = [child for child in own_nodes(node) if isinstance(child, ast.Return) and child.value is not None]
        if any(isinstance(child, ast.Yield | ast.YieldFrom) for child in own_nodes(node)):
            yield Result(
                frame.func, frame.call or Expr(module, ast.Name(id=node.name, lineno=node.lineno, col_offset=0))
            )
            return
        for child in values:
            assert child.value is not None
            yield from self.of(Expr(module, child.value, frame))
        if not values:
            yield Const(None, Expr(module, ast.Constant(value=None, lineno=node.lineno, col_offset=0), frame))


_COPIES = frozenset({Ext("builtins.list"), Ext("builtins.tuple"), Ext("copy.copy"), Ext("copy.deepcopy")})
_HF_PARSE = frozenset({"parse_args_into_dataclasses", "parse_json_file", "parse_yaml_file", "parse_dict"})
_BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope's body, those of nested functions and classes left out."""
    body = node.body if isinstance(node, FunctionNode | ast.Module | ast.ClassDef) else [node]
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, FunctionNode | ast.ClassDef):
            stack += current.decorator_list
            continue
        stack += reversed(list(ast.iter_child_nodes(current)))


def call_argument(call: ast.Call, position: int | None, name: str | None) -> ast.expr | None:
    """Return the argument of a call by keyword or position."""
    for keyword in call.keywords:
        if name is not None and keyword.arg == name:
            return keyword.value
    if position is not None and 0 <= position < len(call.args):
        if not any(isinstance(argument, ast.Starred) for argument in call.args[: position + 1]):
            return call.args[position]
    return None


def has_spread(call: ast.Call) -> bool:
    """Say whether a call has `*args` or `**kwargs`."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def parameter_default(arguments: ast.arguments, name: str) -> ast.expr | None:
    positional = [*arguments.posonlyargs, *arguments.args]
    for argument, default in zip(
        positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True
    ):
        if argument.arg == name:
            return default
    for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.arg == name:
            return keyword_default
    return None


def is_first_parameter(function: FunctionNode | ast.Lambda, node: ast.arg) -> bool:
    positional = [*function.args.posonlyargs, *function.args.args]
    return bool(positional) and positional[0] is node


def _owner(module: Module, function: FunctionNode | ast.Lambda) -> ast.ClassDef | None:
    parent = module.parents.get(function)
    if not isinstance(parent, ast.ClassDef) or not isinstance(function, FunctionNode):
        return None
    marks = {ast.unparse(d) for d in function.decorator_list}
    return None if marks & {"staticmethod", "classmethod"} else parent


def _method_of(cls: Cls, name: str) -> FunctionNode | None:
    found = [node for node in cls.node.body if isinstance(node, FunctionNode) and node.name == name]
    return found[-1] if found else None


def _super_init(init: FunctionNode) -> ast.Call | None:
    """Return the call of the base's `__init__` in an `__init__`."""
    for node in own_nodes(init):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
            base = node.func.value
            if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "super":
                return node
    return None


def _self_assignments(cls: ast.ClassDef) -> dict[str, list[tuple[ast.expr, FunctionNode]]]:
    """Return what the methods of a class assign to attributes of their first parameter."""
    found: dict[str, list[tuple[ast.expr, FunctionNode]]] = {}
    for function in cls.body:
        if not isinstance(function, FunctionNode) or not function.args.args:
            continue
        receiver = function.args.args[0].arg
        for node in own_nodes(function):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for attribute, value in _pairs(target, node.value):
                        owner = attribute.value
                        if isinstance(owner, ast.Name) and owner.id == receiver:
                            found.setdefault(attribute.attr, []).append((value, function))
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Yield the attributes that an assignment sets with what each gets, `self.a, self.b = a, b` taken apart."""
    if isinstance(target, ast.Attribute):
        yield target, value
    elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        if len(target.elts) == len(value.elts):
            for inner, part in zip(target.elts, value.elts, strict=True):
                yield from _pairs(inner, part)


def _appended(expr: Expr) -> Iterator[ast.expr]:
    """Yield what is appended in the same scope to the names that a list display is assigned to."""
    module = expr.module
    statement = module.statement(expr.node)
    if not isinstance(expr.node, ast.List) or not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    if isinstance(module.parents.get(expr.node), ast.Call | ast.keyword):
        return
    found = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = {name for target in found for name, path in targets(target) if _at_path(statement.value, path) is expr.node}
    attributes = {ast.unparse(t) for t in found if isinstance(t, ast.Attribute) and statement.value is expr.node}
    scope = module.scope(expr.node)
    around = module.scope(scope) if attributes and isinstance(scope, FunctionNode) else scope
    for node in ast.walk(around):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            owner = ast.unparse(node.func.value)
            if owner in names | attributes and node.func.attr == "append":
                yield node.args[0]


def _at_path(value: ast.expr | None, path: tuple[int, ...]) -> ast.expr | None:
    for index in path:
        if not isinstance(value, ast.Tuple | ast.List) or index >= len(value.elts):
            return None
        value = value.elts[index]
    return value


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    found = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in found if isinstance(target, ast.Name)}


def _comprehension(generator: ast.comprehension, name: str) -> Iterator[Binding]:
    for bound, path in targets(generator.target):
        if bound == name:
            yield Binding(name, "element", generator.target, generator.iter, path)
