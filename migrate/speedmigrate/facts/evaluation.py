"""Whether the evaluation of an HF Trainer stays right when the padded width changes.

Transformers pads predictions and labels with -100 to one width where it gathers them, so what leaves -100 out is right
at any width; what takes positions by their number or brings them to a fixed length is not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import TRAINER_METHODS, Loader
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import all_arguments, targets
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.tracks import Key, Pads, Use
from speedmigrate.facts.value import PARTIAL, Attr, Cls, Const, Expr, Func, Inst, Result, Value
from speedmigrate.rule import Hop

_HOOKS = ("compute_metrics", "preprocess_logits_for_metrics")
_METHODS = frozenset({"evaluate", "predict", "evaluation_loop", "prediction_loop", "prediction_step"})
# Heads of transformers whose output has no positions.
_POOLED = ("ForSequenceClassification", "ForMultipleChoice", "ForNextSentencePrediction")
_FREE_SLICES = frozenset({":", "1:", ":-1", "..."})


def evaluation_problems(entry: EntryFacts, loader: Loader, pads: Mapping[Key, Pads], use: Use) -> None:
    """Add to a `Use` what reads the predictions over an evaluation set, whose batches the Trainer's collator makes."""
    pooled = "labels" not in pads and use.models and all(any(w in m.name for w in _POOLED) for m in use.models)
    if pooled:
        return
    for name in _HOOKS:
        for expr in loader.arguments(name):
            for value in entry.values.of(expr):
                _read_hook(entry, expr, value, name, pads, use)
    if _evaluates(entry, loader):
        for base, node in _overrides(entry, loader):
            use.problems += _width_reads(base.module, node, _parameters(node))
    use.problems += _predictions(entry, loader)


def _evaluates(entry: EntryFacts, loader: Loader) -> bool:
    """Say whether the Trainer gets an evaluation set, when it is made or later."""
    given = [expr for name, expr in loader.datasets if name == "eval_dataset"]
    values = [value for expr in given for value in entry.values.of(expr)]
    if any(not (isinstance(value, Const) and value.value is None) for value in values):
        return True
    return any(site.node.args or site.node.keywords for site in _calls(entry, loader, "evaluate"))


def _calls(entry: EntryFacts, loader: Loader, name: str):  # type: ignore[no-untyped-def]
    """Yield the calls of a method of the Trainer from outside it."""
    for site in entry.sites:
        func = site.node.func
        if isinstance(func, ast.Attribute) and func.attr == name:
            owners = entry.values.of(site.expr.at(func.value))
            if any(isinstance(owner, Inst) and owner.call.node is loader.site.node for owner in owners):
                if not (isinstance(func.value, ast.Name) and func.value.id == "self"):
                    yield site


def _read_hook(entry: EntryFacts, expr: Expr, value: Value, name: str, pads: Mapping[Key, Pads], use: Use) -> None:
    if isinstance(value, Const) and value.value is None:
        return
    func = _function(entry, value)
    if func is None or not isinstance(func.node, FunctionNode | ast.Lambda):
        use.problems.append(expr.hop(f"{name} is not followed, it may read the padded width"))
        return
    found = list(_width_reads(func.module, func.node, _parameters(func.node)))
    use.problems += found
    if name == "compute_metrics" and "labels" in pads and not found and not _leaves_out(func.node):
        what = "compute_metrics counts the labels of pads today, afterwards only those that fill a batch up"
        use.corrects.append(func.module.hop(func.node, what))


def _function(entry: EntryFacts, value: Value) -> Func | None:
    if isinstance(value, Func):
        return value
    if isinstance(value, Inst) and isinstance(value.of, Cls):
        return entry.values.method(value.of, "__call__")
    if isinstance(value, Inst) and value.of == PARTIAL and isinstance(value.call.node, ast.Call):
        for argument in value.call.node.args[:1]:
            inner = [v for v in entry.values.of(value.call.at(argument)) if isinstance(v, Func)]
            return inner[0] if len(inner) == 1 else None
    return None


def _overrides(entry: EntryFacts, loader: Loader) -> Iterator[tuple[Cls, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the methods by which a subclass evaluates, those of a copy of the Trainer left out."""
    for callee in loader.site.callees:
        for base in entry.values.mro(callee) if isinstance(callee, Cls) else ():
            if isinstance(base, Cls):
                methods = [node for node in base.node.body if isinstance(node, FunctionNode)]
                if not {node.name for node in methods} >= TRAINER_METHODS:
                    yield from ((base, node) for node in methods if node.name in _METHODS)


def _parameters(node: FunctionNode | ast.Lambda) -> set[str]:
    return {argument.arg for argument in all_arguments(node.args)} - {"self", "cls", "model", "trial"}


def _predictions(entry: EntryFacts, loader: Loader) -> Iterator[Hop]:
    """Yield how a script reads the predictions that `trainer.predict(...)` gives it."""
    for site in _calls(entry, loader, "predict"):
        module = site.module
        names = set(module.binds(module.statement(site.node)))
        scope = module.scope(site.node)
        if isinstance(scope, FunctionNode | ast.Module):
            yield from _width_reads(module, scope, names)


def _width_reads(module: Module, function: ast.AST, names: set[str]) -> Iterator[Hop]:
    """Yield where values that come from `names` are taken by their number in a row, or brought to a fixed length."""
    tainted = _tainted(function, names)
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _reads(node.value, tainted):
            parts = node.slice.elts[1:] if isinstance(node.slice, ast.Tuple) else []
            for part in parts[:1]:
                if not _is_free(part, tainted):
                    yield module.hop(node, f"positions are taken by their number: {module.text(node)[:60]}")
        elif isinstance(node, ast.Call) and called_name(node) in {"reshape", "view", "resize"}:
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if owner is not None and _reads(owner, tainted) and not all(_is_open(a) for a in node.args):
                yield module.hop(node, f"predictions are brought to a fixed shape: {module.text(node)[:60]}")


def _tainted(function: ast.AST, names: set[str]) -> set[str]:
    """Return the names that hold what comes from `names`; text that is decoded has no width left."""
    found = set(names)
    before = -1
    while before < len(found):
        before = len(found)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _reads(node.value, found) and not _is_text(node.value):
                found |= {name for target in node.targets for name, _ in targets(target)}
            elif isinstance(node, ast.For) and _reads(node.iter, found):
                found |= {name for name, _ in targets(node.target)}
    return found


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(child, ast.Name) and child.id in names for child in ast.walk(node))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called_name(node) in {"batch_decode", "decode", "len"}


def _is_free(part: ast.expr, tainted: set[str]) -> bool:
    """Say whether a second index keeps the positions together: all, all but one, from the end of the prompt on, or
    those of a mask."""
    if ast.unparse(part) in _FREE_SLICES:
        return True
    if isinstance(part, ast.Slice):
        bounds = [bound for bound in (part.lower, part.upper) if bound is not None]
        return part.step is None and all(_reads(bound, tainted) for bound in bounds)
    return isinstance(part, ast.Compare)


def _is_open(argument: ast.expr) -> bool:
    """Say whether an argument of `reshape` is -1 or a size of another value."""
    return ast.unparse(argument) in {"-1", "(-1,)"} or any(
        isinstance(child, ast.Attribute) and child.attr in {"shape", "size"} for child in ast.walk(argument)
    )


def _leaves_out(function: ast.AST) -> bool:
    """Say whether a metric leaves labels of -100 out, or decodes without the pads."""
    for node in ast.walk(function):
        if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-100":
            return True
        if isinstance(node, ast.Call) and call_argument(node, None, "skip_special_tokens") is not None:
            return True
    return False


__all__ = ["Attr", "Result", "evaluation_problems"]
