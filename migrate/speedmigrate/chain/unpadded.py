"""What makes the batches of a run where no code of the root pads them: a library of its own, or random numbers."""

from __future__ import annotations

import ast

from speedmigrate.chain.data import data
from speedmigrate.facts.entry import EntryFacts, Site
from speedmigrate.facts.syntax import called_name, own_nodes
from speedmigrate.facts.value import Attr, Ext, Inst, Item, Result, Value
from speedmigrate.rule import Hop

_RANDOM = frozenset({"torch.randint", "torch.randint_like"})
_MAX_STEPS = 14


def of_library(entry: EntryFacts) -> tuple[Hop, ...]:
    """Return the Trainer and the data set where both are a library's that the root does not hold."""
    found = data(entry)
    for each in found:
        if each.pipe.kind != "library" or each.unknown or not each.origins or each.pipe.collate:
            return ()
        if any(origin.kind != "library" for origin in each.origins):
            return ()
    return tuple(hop for each in found for hop in (each.pipe.hop, *(origin.hop for origin in each.origins)))


def random_batches(entry: EntryFacts) -> tuple[Hop, ...]:
    """Return the calls that make token ids of random numbers and that a training step hands to its model."""
    if data(entry) or not any(_is_random(callee) for site in entry.sites for callee in site.callees):
        return ()
    hops = (hop for site in entry.sites if _in_a_step(site) for hop in _random_arguments(entry, site))
    return tuple(dict.fromkeys(hops))


def _in_a_step(site: Site) -> bool:
    function = site.module.function(site.node)
    return function is not None and any(
        isinstance(node, ast.Call) and called_name(node) == "backward" for node in own_nodes(function)
    )


def _random_arguments(entry: EntryFacts, site: Site) -> list[Hop]:
    """Return where the arguments of a call of a model are made, nothing where one of them is no random number."""
    hops: list[Hop] = []
    if not any(isinstance(callee, Inst | Item) for callee in site.callees):
        return hops
    for argument in (*site.node.args, *(keyword.value for keyword in site.node.keywords)):
        for value in entry.values.of(site.expr.at(argument)):
            made = _made(value)
            if made is None or not _is_random(made.of):
                return []
            hops.append(made.call.hop(f"random token ids: {made.call.text.splitlines()[0][:50]}"))
    return hops


def _made(value: Value) -> Inst | None:
    """Return the call at the bottom of methods of a tensor (`x.cuda()`)."""
    for _ in range(_MAX_STEPS):
        if isinstance(value, Result) and isinstance(value.of, Attr):
            value = value.of.of
        elif isinstance(value, Item):
            value = value.of
        else:
            break
    return value if isinstance(value, Inst) else None


def _is_random(value: Value) -> bool:
    return isinstance(value, Ext) and value.name in _RANDOM
