"""What a value can be: the vocabulary of `values.py`.

Nothing is guessed from a name. What cannot be followed is `Unknown`, with the place where the trail ends.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.rule import Hop


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
PARTIAL = Ext("functools.partial")
