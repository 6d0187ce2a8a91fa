"""Where a line about the model belongs: after everything that changes it, before it is wrapped, optimized or handed
on."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.loaders import HF_TRAINERS
from speedmigrate.facts.models import Model, models
from speedmigrate.facts.module import Module
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.value import Attr, Expr, Ext
from speedmigrate.rule import InsertStatement


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """The statement before which a call on the model goes, the code that names the model there, and the models it can
    be."""

    module: Module
    statement: ast.stmt
    code: str
    models: tuple[Model, ...]
    site: Site

    def insert(self, call: str, order: int) -> InsertStatement:
        """Return the edit that calls a function of the runtime on the model here."""
        start, end = self.module.source.span(self.statement)
        return InsertStatement(self.module.path, start, end, f"{call}({self.code})", "before", order)


_WRAPS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def anchor(entry: EntryFacts) -> Anchor | None:
    """Return where the trained model is first wrapped, optimized or given to a Trainer; None where it is not
    followed."""
    candidates = [*_trainers(entry), *_wrapped(entry), *_optimized(entry)]
    placed = [found for site, expr in candidates for found in [_place(entry, site, expr)] if found is not None]
    if not placed:
        return None
    first = placed[0]
    same = [
        p
        for p in placed
        if p.module is first.module and p.module.scope(p.statement) is first.module.scope(first.statement)
    ]
    return min(same, key=lambda found: found.statement.lineno)


def _trainers(entry: EntryFacts) -> list[tuple[Site, Expr]]:
    return _given(entry, "transformers", HF_TRAINERS, "model", 0)


def _wrapped(entry: EntryFacts) -> list[tuple[Site, Expr]]:
    found = _given(entry, "torch", _WRAPS, "module", 0)
    found += _given(entry, "deepspeed", ("initialize",), "model", 1)
    for site in entry.methods:
        for callee in site.callees:
            if isinstance(callee, Attr) and callee.name == "prepare" and _is_accelerator(callee):
                found += [(site, site.expr.at(a)) for a in site.node.args if _is_model(entry, site.expr.at(a))][:1]
    return found


def _optimized(entry: EntryFacts) -> list[tuple[Site, Expr]]:
    """Yield the models whose parameters an optimizer of torch is built on."""
    found = []
    for site in entry.sites:
        if any(
            isinstance(c, Ext) and (c.name.startswith("torch.optim.") or c.name.endswith("AdamW")) for c in site.callees
        ):
            for node in [n for argument in site.node.args[:1] for n in ast.walk(argument)]:
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    if node.func.attr in {"parameters", "named_parameters"}:
                        found.append((site, site.expr.at(node.func.value)))
    return found


def _given(
    entry: EntryFacts, package: str, names: tuple[str, ...], argument: str, position: int
) -> list[tuple[Site, Expr]]:
    found = []
    for site, _ in entry.calls(package, *names):
        node = call_argument(site.node, position, argument)
        if node is not None:
            found.append((site, site.expr.at(node)))
    return found


def _is_accelerator(callee: Attr) -> bool:
    of = getattr(callee.of, "of", None)
    return isinstance(of, Ext) and of.last == "Accelerator"


def _is_model(entry: EntryFacts, expr: Expr) -> bool:
    return any(model.is_transformers for model in models(entry.values, expr))


def _place(entry: EntryFacts, site: Site, expr: Expr) -> Anchor | None:
    """Go from the use of the model to a statement of the same block as the binding that reaches it."""
    if not isinstance(expr.node, ast.Name):
        return None
    module = expr.module
    scope = module.scope(expr.node)
    found = reaching(module, scope, expr.node.id, expr.node)
    if not found:
        return None
    statement: ast.stmt = module.statement(expr.node)
    blocks = [_block(module, binding.node) for binding in found if isinstance(binding.node, ast.stmt)]
    if any(binding.kind == "parameter" for binding in found) or len(blocks) != 1:
        block = getattr(scope, "body", [])
    else:
        block = blocks[0]
    while statement not in block:
        parent = next((p for p in module.ancestors(statement) if isinstance(p, ast.stmt)), None)
        if parent is None or parent is scope:
            return None
        statement = parent
    return Anchor(module, statement, expr.node.id, models(entry.values, expr), site)


def _block(module: Module, node: ast.stmt) -> list[ast.stmt]:
    parent = module.parents[node]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and node in block:
            return block
    return []


def model_of_parameters(site: Site) -> str:
    """Return the name of the model that an optimizer's parameters come from, where one name is seen; else nothing."""
    module = site.module
    names: set[str] = set()
    queue: list[ast.expr] = list(site.node.args[:1])
    seen: set[str] = set()
    while queue:
        for node in ast.walk(queue.pop()):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
            ):
                if node.func.attr in {"parameters", "named_parameters"}:
                    names.add(node.func.value.id)
            elif isinstance(node, ast.Name) and node.id not in seen and isinstance(node.ctx, ast.Load):
                seen.add(node.id)
                found = reaching(module, module.scope(site.node), node.id, site.node)
                queue += [binding.value for binding in found if binding.value is not None and binding.kind == "value"]
    return names.pop() if len(names) == 1 else ""
