"""How a loss of torch counts positions: what it ignores, what it averages over, whether it shifts the labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.widths import followed
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.syntax import call_argument, own_nodes
from speedmigrate.facts.value import Expr, Ext, Inst

_FUNCTIONS = frozenset({"cross_entropy", "nll_loss"})
_CLASSES = frozenset({"CrossEntropyLoss", "NLLLoss"})
_MAX_STEPS = 4


def loss_shape(entry: EntryFacts) -> Iterator[Fact]:
    """Yield `loss.ignore`, `loss.shift` and `loss.mean` of every loss of torch that the run calls."""
    seen: set[ast.AST] = set()
    for site in entry.sites:
        made = _made(entry, site)
        if made is not None and site.node not in seen:
            seen.add(site.node)
            hop = (site.expr.hop(site.expr.text.splitlines()[0][:60]),)
            given = call_argument(made.node, None, "ignore_index") if isinstance(made.node, ast.Call) else None
            yield Fact("loss.ignore", "-100" if given is None else made.at(given).text[:40], "", hop)
            yield Fact(
                "loss.shift", "yes" if any(_shifts(entry, site.expr.at(a)) for a in site.node.args) else "no", "", hop
            )
            yield _mean(entry, site, made)


def _made(entry: EntryFacts, site: Site) -> Expr | None:
    """Return the call that holds the settings of a loss: its own, or the construction of the module that is called."""
    for callee in site.callees:
        if isinstance(callee, Ext) and callee.last in _FUNCTIONS and callee.package == "torch":
            return site.expr
        if isinstance(callee, Inst) and isinstance(callee.of, Ext) and callee.of.last in _CLASSES:
            return callee.call
    return None


def _shifts(entry: EntryFacts, expr: Expr, steps: int = 0) -> bool:
    """Say whether an argument is cut by one position (`logits[..., :-1, :]`, `labels[..., 1:]`)."""
    for node in ast.walk(expr.node):
        if isinstance(node, ast.Slice) and node.step is None:
            if {ast.unparse(end) for end in (node.lower, node.upper) if end is not None} in ({"1"}, {"-1"}):
                return True
        if isinstance(node, ast.Name) and steps < _MAX_STEPS:
            if any(_shifts(entry, found, steps + 1) for found in followed(entry.values, expr.at(node))):
                return True
    return False


def _mean(entry: EntryFacts, site: Site, made: Expr) -> Fact:
    """Return what is averaged over: the labels that are not ignored, a mask, or all positions, pads among them."""
    hop = site.expr.hop(site.expr.text.splitlines()[0][:60])
    given = call_argument(made.node, None, "reduction") if isinstance(made.node, ast.Call) else None
    reduction = "mean" if given is None else entry.values.key(made.at(given))
    if reduction in {"mean", "sum"}:
        return Fact("loss.mean", "labels" if reduction == "mean" else "sum", "", (hop,))
    if reduction != "none":
        return unknown("loss.mean", made.hop("the reduction is not a constant"))
    for node in _uses(site):
        text = site.module.text(node).splitlines()[0][:60]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return Fact("loss.mean", "mask", text, (site.module.hop(node, text), hop))
        if isinstance(node, ast.Subscript):
            return Fact("loss.mean", "mask", text, (site.module.hop(node, text), hop))
    for node in _uses(site):
        if isinstance(node, ast.Attribute) and node.attr == "mean":
            what = "mean over all positions, pads among them"
            return Fact("loss.mean", "positions", what, (site.module.hop(node, site.module.text(node)), hop))
    return unknown("loss.mean", site.expr.hop("what becomes of the losses of the positions is not followed"))


def _uses(site: Site) -> Iterator[ast.AST]:
    """Yield what is done to the losses of the positions in the function that computes them."""
    module = site.module
    chain: ast.AST = site.node
    parent = module.parents.get(chain)
    while isinstance(parent, ast.Attribute | ast.Call | ast.BinOp | ast.Subscript):
        yield parent
        chain, parent = parent, module.parents.get(parent)
    statement = module.statement(site.node)
    names = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
    for node in own_nodes(module.function(site.node) or module.tree):
        operand = {ast.BinOp: ("left", "right"), ast.Subscript: ("value",), ast.Attribute: ("value",)}.get(
            type(node), ()
        )
        if any(_named(getattr(node, part)) in names for part in operand):
            yield node


def _named(node: ast.expr) -> str:
    """Return the name that an expression is made of by methods alone (`loss.view(-1)`)."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""
