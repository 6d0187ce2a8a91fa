"""One entry point: the calls that its run can make, each with what is called, and the facts built on them."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from speedmigrate.facts.models import unwrap
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.project import Project
from speedmigrate.facts.syntax import own_nodes
from speedmigrate.facts.value import PARTIAL, Attr, Cls, Expr, Ext, Frame, Func, Inst, Item, Result, Value
from speedmigrate.facts.values import Values
from speedmigrate.rule import Options
from speedmigrate.target import Target

if TYPE_CHECKING:
    from speedmigrate.launch.find import Launch, Launches

_T = TypeVar("_T")
Scope = tuple[Module, ast.AST, Frame | None]
_MAX_FRAMES = 3000
MAX_FRAMES_A_FUNCTION = 4
# Classes whose methods a framework calls, so that a subclass's own methods are part of the run.
FRAMEWORK_BASES = frozenset(
    "Trainer Seq2SeqTrainer SFTTrainer DPOTrainer RewardTrainer PPOTrainer KTOTrainer ORPOTrainer GRPOTrainer "
    "LightningModule LightningDataModule TrainerCallback".split()
)

# A file without any of these starts no run that trains; it is looked at before anything is parsed.
ENTRY_WORDS = ("backward(", "Trainer", ".fit(", "train")
# What a DataLoader, a sampler's user or a loop calls of an object.
_DATA_PROTOCOL = ("__getitem__", "__iter__", "__next__")


@dataclass(frozen=True, slots=True)
class Site:
    """One call of the run: the expression, in its frame, and what is called."""

    expr: Expr
    callees: tuple[Value, ...]

    @property
    def node(self) -> ast.Call:
        assert isinstance(self.expr.node, ast.Call)
        return self.expr.node

    @property
    def module(self) -> Module:
        return self.expr.module


class EntryFacts:
    """What is known of one entry point; everything is computed when it is first asked for."""

    def __init__(
        self, project: Project, path: str, target: Target, options: Options, values: Values | None = None
    ) -> None:
        self.project = project
        self.path = path
        self.target = target
        self.options = options
        self.values = values or shared(project, "values", lambda: Values(project))
        self._once: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[EntryFacts], _T]) -> _T:
        """Return what `make` says of this entry point, worked out once under this name."""
        if name not in self._once:
            self._once[name] = make(self)
        found: _T = self._once[name]
        return found

    @cached_property
    def module(self) -> Module | None:
        return self.project.module(self.path)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every call of the run that was followed, in the order of the walk."""
        return self._run[0]

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Every function of the run (and the top of the file), in the frame that it was entered by."""
        return self._run[1]

    def scopes_where(self, runs: Callable[[Expr], bool]) -> tuple[Scope, ...]:
        """Return the functions that are entered by the calls that `runs` lets through."""
        scopes: list[Scope] = []
        if self.module is not None:
            deque(_walk(self.values, self.module, [(self.module.tree, None)], scopes, runs), maxlen=0)
        return tuple(scopes)

    @cached_property
    def _run(self) -> tuple[tuple[Site, ...], tuple[Scope, ...]]:
        if self.module is None:
            return (), ()
        scopes: list[Scope] = []
        found = tuple(_walk(self.values, self.module, [(self.module.tree, None)], scopes))
        if self._trains(found):
            return found, tuple(scopes)
        # No run starts here: the file's functions are started from elsewhere (a console script, a registry).
        starts: list[tuple[ast.AST, Frame | None]] = [(self.module.tree, None)]
        for node in self.module.tree.body:
            if isinstance(node, FunctionNode):
                starts.append((node, Frame(Func(self.module, node), None)))
        scopes.clear()
        return tuple(_walk(self.values, self.module, starts, scopes)), tuple(scopes)

    def calls(self, package: str, *names: str) -> Iterator[tuple[Site, Ext | Cls]]:
        """Yield the calls of a class or function of `package` by its last name, subclasses of the root included."""
        wanted = set(names)
        for site in self.sites:
            for callee in site.callees:
                base = self.base(callee)
                if base is not None and base.last in wanted and base.package == package:
                    assert isinstance(callee, Ext | Cls)
                    yield site, callee
                    break

    def base(self, value: Value) -> Ext | None:
        """Return the outside name of a value: itself, or the first base of a class that is outside the root."""
        if isinstance(value, Ext):
            return value
        if isinstance(value, Cls):
            return next((owner for owner in self.values.mro(value) if isinstance(owner, Ext)), None)
        return None

    @cached_property
    def methods(self) -> tuple[Site, ...]:
        """The calls of methods of objects from outside the root (`loss.backward()`, `trainer.train()`)."""
        return tuple(site for site in self.sites if any(isinstance(callee, Attr) for callee in site.callees))

    @cached_property
    def trains(self) -> bool:
        """Whether training code is seen: a backward call, or a trainer's `train`/`fit`."""
        return self._trains(self.sites)

    def _trains(self, sites: tuple[Site, ...]) -> bool:
        for site in sites:
            func = site.node.func
            if isinstance(func, ast.Attribute):
                if func.attr == "backward":
                    return True
                if func.attr in {"train", "fit"} and any(_is_trainer(self, callee) for callee in site.callees):
                    return True
        return False

    def _is_called_by(self, path: str) -> bool:
        """Whether the top of another file calls what the top of this one calls (`train.train()` in a wrapper)."""
        other = self.project.module(path)
        if other is None or self.module is None:
            return False
        here = {v.node for v in _top_calls(self.values, self.module) if isinstance(v, Func) and v.module is self.module}
        return any(isinstance(value, Func) and value.node in here for value in _top_calls(self.values, other))

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        found = launch_index(self.project)
        return found.of(self.path, self.starters(found.programs))

    def starters(self, programs: Iterable[str]) -> tuple[str, ...]:
        """Return the programs that import this file and call what its top calls (`train.train()` in a wrapper)."""
        imports = self.project.imports
        return tuple(path for path in programs if imports(path, self.path) and self._is_called_by(path))


def _top_calls(values: Values, module: Module) -> Iterator[Value]:
    """Yield what the top of a file calls."""
    for node in own_nodes(module.tree):
        if isinstance(node, ast.Call):
            yield from values.of(Expr(module, node.func))


def _is_trainer(entry: EntryFacts, callee: Value) -> bool:
    owner = callee.of if isinstance(callee, Attr | Result) else callee
    if isinstance(owner, Func):
        owner = owner.receiver or owner
    base = entry.base(owner.of) if isinstance(owner, Inst) else None
    return base is not None and any(part.endswith("Trainer") for part in base.name.split("."))


def shared(project: Project, name: str, make: Callable[[], _T]) -> _T:
    """Return what `make` gives for a project, worked out once under this name."""
    if name not in project.shared:
        project.shared[name] = make()
    found: _T = project.shared[name]
    return found


def launch_index(project: Project) -> Launches:
    """Return what the launch files of a project start (read once)."""
    from speedmigrate.launch.find import index

    return shared(project, "launches", lambda: index(project.root, project.files, project.source))


def entry_facts(project: Project, path: str, target: Target, options: Options) -> EntryFacts:
    """Return the facts of the entry point at `path`."""
    return EntryFacts(project, path, target, options)


def find_entries(project: Project, path: str) -> tuple[str, ...]:
    """Return the entry points that `path` names: itself, those that a launch file starts, or all in a folder."""
    if path.endswith(".py"):
        return (path,)
    prefix = "" if path in {"", "."} else path.rstrip("/") + "/"
    if path and path in project.files:
        scripts = [file for file in project.files if file.endswith(".py") and _is_started_in(project, path, file)]
        return tuple(scripts)
    found = []
    for file in project.files:
        if file.startswith(prefix) and file.endswith(".py") and looks_like_entry(project, file):
            found.append(file)
    return tuple(found)


def _is_started_in(project: Project, launch: str, script: str) -> bool:
    return any(item.path == launch for item in launch_index(project).of(script))


def looks_like_entry(project: Project, path: str) -> bool:
    """Say whether a file starts a run that trains (worked out once a file)."""
    return shared(project, f"entry:{path}", lambda: _looks_like_entry(project, path))


def _looks_like_entry(project: Project, path: str) -> bool:
    source = project.source(path)
    if source is None or not any(word in source.text for word in ENTRY_WORDS):
        return False
    module = project.module(path)
    if module is None or not has_main(module):
        return False
    return EntryFacts(project, path, Target(), Options()).trains


def has_main(module: Module) -> bool:
    """Say whether running a file does more than define: a call, a loop, an `if __name__`."""
    for node in module.tree.body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            return True
        if isinstance(node, ast.For | ast.While | ast.With):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return True
    return False


def _walk(
    values: Values,
    module: Module,
    starts: list[tuple[ast.AST, Frame | None]],
    scopes: list[Scope],
    runs: Callable[[Expr], bool] = lambda _: True,
) -> Iterator[Site]:
    """Follow every call that `runs` from the starts, breadth first; `scopes` collects the functions entered."""
    queue: deque[tuple[Module, ast.AST, Frame | None]] = deque((module, scope, frame) for scope, frame in starts)
    seen: dict[int, list[Frame | None]] = {}
    total = 0
    while queue and total < _MAX_FRAMES:
        owner, scope, frame = queue.popleft()
        frames = seen.setdefault(id(scope), [])
        if frame in frames or len(frames) >= MAX_FRAMES_A_FUNCTION:
            continue
        frames.append(frame)
        scopes.append((owner, scope, frame))
        total += 1
        for node in own_nodes(scope):
            if isinstance(node, ast.Attribute):
                queue.extend(_read(values, Expr(owner, node, frame)))
            if not isinstance(node, ast.Call):
                continue
            expr = Expr(owner, node, frame)
            if not runs(expr):
                continue
            callees = values.of(expr.at(node.func))
            yield Site(expr, callees)
            for callee in callees:
                queue.extend(_entered(values, callee, expr))
            bound = PARTIAL in callees
            for argument in (*node.args[bound:], *(keyword.value for keyword in node.keywords)):
                if isinstance(argument, ast.Name | ast.Attribute | ast.Lambda | ast.Call):
                    for value in values.of(expr.at(argument)):
                        queue.extend(_called_later(values, value))


def _read(values: Values, expr: Expr) -> Iterator[tuple[Module, ast.AST, Frame | None]]:
    """Yield the property of the root that reading `self.name` runs."""
    receiver = expr.frame.receiver if expr.frame is not None else None
    assert isinstance(expr.node, ast.Attribute)
    if isinstance(receiver, Inst) and isinstance(receiver.of, Cls) and isinstance(expr.node.value, ast.Name):
        found = values.properties(receiver.of).get(expr.node.attr)
        if found is not None and receiver in values.of(expr.at(expr.node.value)):
            func = Func(found.module, found.node, receiver, found.outer)
            yield func.module, func.node, Frame(func, None, receiver)


def _called_later(values: Values, value: Value) -> Iterator[tuple[Module, ast.AST, Frame | None]]:
    """Yield what a callee may call of its arguments: functions, and the `__call__` of objects
    (`data.map(tokenize)`); of a collator of transformers the `torch_call` that its `__call__` goes on to."""
    if isinstance(value, Func):
        yield value.module, value.node, Frame(value, None, value.receiver)
    elif isinstance(value, Inst):
        yield from _protocol(values, value, ("__call__", "torch_call"))


def _entered(values: Values, callee: Value, expr: Expr) -> Iterator[tuple[Module, ast.AST, Frame | None]]:
    if isinstance(callee, Func):
        yield callee.module, callee.node, Frame(callee, expr, callee.receiver)
    elif callee == PARTIAL:
        assert isinstance(expr.node, ast.Call)
        for inner in values.of(expr.at(expr.node.args[0])) if expr.node.args else ():
            if isinstance(inner, Func):
                yield inner.module, inner.node, Frame(inner, expr, inner.receiver)
    elif isinstance(callee, Cls):
        receiver = Inst(callee, expr)
        init = values.method(callee, "__init__")
        if init is not None:
            assert isinstance(init.node, FunctionNode)
            owner = Cls(init.module, _class_of(init), init.outer)
            yield init.module, init.node, values.init_frame(receiver, owner, init.node)
        yield from _protocol(values, receiver, _DATA_PROTOCOL)
        bases = values.mro(callee)
        if any(isinstance(base, Ext) and base.last in FRAMEWORK_BASES for base in bases):
            for base in bases:
                if isinstance(base, Cls):
                    for node in base.node.body:
                        if isinstance(node, FunctionNode) and node.name != "__init__":
                            func = Func(base.module, node, receiver, base.outer)
                            yield base.module, node, Frame(func, None, receiver)
    elif isinstance(callee, Inst | Item):
        for model in unwrap(values, callee):
            if isinstance(model.value, Inst):
                yield from _protocol(values, model.value, ("__call__", "forward"), expr)


def _protocol(
    values: Values, value: Inst, names: tuple[str, ...], call: Expr | None = None
) -> Iterator[tuple[Module, ast.AST, Frame | None]]:
    """Yield the methods of an object of the root that torch or Python calls for it, as entered by `call`."""
    for name in names if isinstance(value.of, Cls) else ():
        assert isinstance(value.of, Cls)
        method = values.method(value.of, name)
        if method is not None:
            func = Func(method.module, method.node, value, method.outer)
            yield method.module, method.node, Frame(func, call, value)


def _class_of(func: Func) -> ast.ClassDef:
    parent = func.module.parents[func.node]
    assert isinstance(parent, ast.ClassDef)
    return parent
