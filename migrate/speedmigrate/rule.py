"""What a rule is and what it may say: the contracts between the analysis, the rules and the plan.

A rule is a module in `rules/` with `RULE = Rule(...)`. Its `check` reads the facts of one entry point and yields
findings; it never edits, prints or raises on user code. A change asks for edits by describing them (`Op`); `edits.py`
and `launch/` carry them out.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from speedmigrate.facts.entry import EntryFacts

Goal = Literal["padding", "compile", "precision", "optimizer"]
Effect = Literal["exact", "order", "precision", "corrects"]
Status = Literal["change", "done", "refused", "note"]
Verdict = Literal["edit", "config", "noop", "refuse", "report"]

GOALS: tuple[Goal, ...] = ("padding", "compile", "precision", "optimizer")
EFFECTS: tuple[Effect, ...] = ("exact", "order", "precision", "corrects")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says to the rules.

    Attributes:
        precision: `auto` (bf16 where the target has it, FP8 where its `arch` was named), `fp8`, `bf16` or `keep`.
        launch: globs of launch files to edit where an entry point has more than eight.
    """

    precision: Literal["auto", "fp8", "bf16", "keep"] = "auto"
    launch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A line range of a file of the root."""

    path: str
    line: int
    end_line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of the evidence: what was read at a place."""

    path: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class SetKeyword:
    """Add `name=code` to the call at `start:end`, or give that keyword a new value."""

    path: str
    start: int
    end: int
    name: str
    code: str


@dataclass(frozen=True, slots=True)
class RemoveKeyword:
    """Take the keyword argument `name` out of the call at `start:end`."""

    path: str
    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the expression at `start:end` by `code`."""

    path: str
    start: int
    end: int
    code: str


@dataclass(frozen=True, slots=True)
class Wrap:
    """Put `before` and `after` around the expression at `start:end`."""

    path: str
    start: int
    end: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class DeleteStatement:
    """Delete the statement at `start:end`; an emptied branch goes with it, an emptied body becomes `pass`."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class InsertStatement:
    """Insert `code` (one or more lines) before or after the statement at `start:end`, with its indentation.

    Several at one place come by `order`, lowest first, then as given.
    """

    path: str
    start: int
    end: int
    code: str
    where: Literal["before", "after"] = "after"
    order: int = 0


@dataclass(frozen=True, slots=True)
class AddImport:
    """Have `from module import name` (or `import module` where `name` is empty) at the top of the file."""

    path: str
    module: str
    name: str


@dataclass(frozen=True, slots=True)
class RemoveImport:
    """Take the name bound by an import away, where nothing else in the file uses it."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class SetFlag:
    """In a launch file, replace the text at `start:end` (a flag, its value, or an insertion point) by `code`."""

    path: str
    start: int
    end: int
    code: str


@dataclass(frozen=True, slots=True)
class AddRequirement:
    """Have a dependency line in a requirements file."""

    path: str
    line: str


Op = (
    SetKeyword | RemoveKeyword | Replace | Wrap | DeleteStatement | InsertStatement | AddImport | RemoveImport | SetFlag
    | AddRequirement
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says of one place.

    Attributes:
        status: `change` (with `ops`), `done` (already there or does not apply), `refused` or `note`.
        group: changes with one group are applied together or not at all.
        requires: groups of other changes that must be selected too.
        needs: what the change needs, as a reader would write it (`torch>=2.0`, `speedmigrate[runtime]`).
    """

    rule: str
    code: str
    goal: Goal
    status: Status
    place: Place
    message: str
    effect: Effect | None = None
    evidence: tuple[Hop, ...] = ()
    ops: tuple[Op, ...] = ()
    group: str = ""
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    resume_safe: bool = True


@dataclass(frozen=True, slots=True)
class Example:
    """A sample of a rule: the file before and after; `after=None` means that the rule leaves it alone."""

    title: str
    before: str
    after: str | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its stable code, its name (the module's), what it is for, and its check.

    The module's docstring is the documentation (What it does / When it is refused / Effect / References).
    """

    code: str
    name: str
    title: str
    goal: Goal
    effect: Effect
    check: Callable[[EntryFacts], Iterable[Finding]]
    docs: str
    examples: tuple[Example, ...] = ()

    def finding(
        self,
        status: Status,
        place: Place,
        message: str,
        *,
        evidence: tuple[Hop, ...] = (),
        ops: tuple[Op, ...] = (),
        effect: Effect | None = None,
        group: str = "",
        requires: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        resume_safe: bool = True,
    ) -> Finding:
        """Make a finding of this rule; a change without an effect of its own has the rule's."""
        if status == "change":
            effect = effect or self.effect
            group = group or f"{self.code}:{place}"
        return Finding(
            self.name, self.code, self.goal, status, place, message, effect, evidence, ops, group, requires, needs,
            resume_safe,
        )  # fmt: skip


def load_rules() -> tuple[Rule, ...]:
    """Import every module of `rules/` and return its `RULE`, by code."""
    package = importlib.import_module("speedmigrate.rules")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    rules: list[Rule] = [importlib.import_module(f"speedmigrate.rules.{name}").RULE for name in names]
    return tuple(sorted(rules, key=lambda rule: rule.code))
