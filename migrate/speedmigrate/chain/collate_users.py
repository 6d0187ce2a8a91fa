"""Who else uses a collate of the root: every loader and run that it serves must take the narrower batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from speedmigrate.chain.data_maps import functions
from speedmigrate.facts.consumers import consumers
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.lightning_runs import is_idle
from speedmigrate.facts.loaders import Loader, loaders
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.padding import starters
from speedmigrate.facts.syntax import called_name
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.value import Cls, Expr, Func, Inst
from speedmigrate.rule import Hop


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A loader of one run that batches with a collate, and the collate as it is bound there."""

    entry: EntryFacts
    loader: Loader
    func: Func


def served(entry: EntryFacts) -> dict[ast.AST, list[Served]]:
    """Return the loaders of a run by the function of the root that collates for them (worked out once)."""
    return entry.once("collates_served", _served)


def _served(entry: EntryFacts) -> dict[ast.AST, list[Served]]:
    found: dict[ast.AST, list[Served]] = {}
    for loader in loaders(entry):
        for func in functions(entry, entry.values.of(loader.collate)) if loader.collate is not None else ():
            found.setdefault(func.node, []).append(Served(entry, loader, func))
    return found


def owner(func: Func) -> ast.ClassDef | FunctionNode | None:
    """Return what names a collate in other code: its class, or itself."""
    parent = func.module.parents.get(func.node)
    if isinstance(parent, ast.ClassDef):
        return parent
    return func.node if isinstance(func.node, FunctionNode) else None


def other_runs(entry: EntryFacts, func: Func) -> list[Served]:
    """Return the loaders that the collate serves in runs of other entry points."""
    named = owner(func)
    paths: set[str] = set()
    for module, _ in mentions(entry, func) if named is not None else ():
        paths |= starters(entry, module.path)
    found: list[Served] = []
    for path in sorted(paths - {entry.path}):
        facts = EntryFacts(entry.project, path, entry.target, entry.options, entry.values)
        found += served(facts).get(func.node, [])
    return found


def mentions(entry: EntryFacts, func: Func) -> list[tuple[Module, ast.expr]]:
    """Return where other code names the collate or its class."""
    named = owner(func)
    assert named is not None
    found: list[tuple[Module, ast.expr]] = []
    for module in entry.project.modules_mentioning(named.name):
        for node in module.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                if (node.id if isinstance(node, ast.Name) else node.attr) == named.name:
                    values = entry.values.of(Expr(module, node))
                    if any(isinstance(v, Cls | Func) and v.node is named for v in values):
                        found.append((module, node))
    return found


def stray(entry: EntryFacts, func: Func, found: list[Served]) -> Iterator[Hop]:
    """Yield uses of a collate that lead to no loader that was read."""
    named = owner(func)
    if named is None:
        return
    reached = {scope for each in [entry, *(one.entry for one in found)] for _, scope, _ in each.scopes}
    made = {served.func.receiver.call.node for served in found if isinstance(served.func.receiver, Inst)}
    for path in entry.project.unreadable_mentioning(named.name):
        yield Hop(path, 1, f"this file mentions {named.name} and cannot be parsed")
    for module, node in mentions(entry, func):
        parent = module.parents[node]
        if isinstance(parent, ast.ClassDef):
            yield module.hop(node, f"{parent.name} inherits from {named.name}")
        elif isinstance(parent, ast.Call) and parent.func is node and parent not in made:
            what = "built" if isinstance(named, ast.ClassDef) else "called"
            yield module.hop(node, f"{named.name} is {what} here too and not followed to a loader")
        elif isinstance(named, FunctionNode) and (module.function(node) or module.tree) not in reached:
            yield module.hop(node, f"{named.name} is used here too, in code that is not followed")
    for site in entry.sites:
        if isinstance(site.node.func, ast.Name | ast.Attribute):
            values = entry.values.of(site.expr.at(site.node.func))
            if any(isinstance(v, Inst) and v.call.node in made for v in values) and "__call__" in func_name(func):
                yield site.expr.hop(f"the script itself calls the collate: {site.expr.text.splitlines()[0][:50]}")


def func_name(func: Func) -> str:
    return func.node.name if isinstance(func.node, FunctionNode) else "lambda"


def shared_helpers(entry: EntryFacts, func: Func, edited: set[FunctionNode]) -> Iterator[Hop]:
    """Yield calls from elsewhere of the helpers of a collate whose code is edited."""
    named = owner(func)
    for helper in edited - {func.node}:
        for module in entry.project.modules_mentioning(helper.name):
            for node in module.nodes:
                if not isinstance(node, ast.Call) or called_name(node) != helper.name:
                    continue
                around = set(module.ancestors(node))
                if named in around or around & edited or not _may_call(entry, Expr(module, node.func), helper, named):
                    continue
                text = module.text(node).splitlines()[0][:50]
                yield module.hop(node, f"{helper.name} pads for others too: {text}")


def _may_call(entry: EntryFacts, callee: Expr, helper: FunctionNode, named: ast.AST | None) -> bool:
    """Say whether a call may be one of a helper: a method is called only where its class is known."""
    values = entry.values.of(callee)
    if any(isinstance(value, Func) and value.node is helper for value in values):
        return True
    if any(isinstance(value, Func | Cls) for value in values):
        return False
    return isinstance(named, ast.ClassDef) and helper in named.body and named.name in callee.module.source.text


def uses(found: list[Served], pads: dict[Key, Pads], home: EntryFacts) -> tuple[list[Use], list[Hop]]:
    """Return what each loader's batches are used for, and why that forbids another width."""
    all_uses: list[Use] = []
    problems: list[Hop] = []
    busy = [each for each in found if not is_idle(each.entry, each.loader)]
    for each in busy or found:
        use = consumers(each.entry, each.loader, pads)
        all_uses.append(use)
        again = "" if each.entry is home else f" (in the run of {each.entry.path})"
        problems += [Hop(hop.path, hop.line, hop.what + again) for hop in use.problems]
    return all_uses, problems
