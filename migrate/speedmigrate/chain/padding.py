"""Where and how a run fills its token sequences up: the place, the way it is written, the side, the length."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speedmigrate.chain import data
from speedmigrate.chain.cuts import batch_cuts, cuts
from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.optimizer_branches import truth_of
from speedmigrate.chain.packs import packs
from speedmigrate.chain.pads import Pad, pads
from speedmigrate.chain.roles import Role, origin, passed, role
from speedmigrate.chain.unpadded import of_library, random_batches
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import targets
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.value import Attr, Const, Expr, Item
from speedmigrate.rule import Hop

# Trainers of TRL that pad each batch, and those that generate their batches.
_TRL = ("SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer", "RewardTrainer", "PRMTrainer")
_ONLINE = (
    "PPOTrainer",
    "PPOv2Trainer",
    "GRPOTrainer",
    "RLOOTrainer",
    "OnlineDPOTrainer",
    "XPOTrainer",
    "NashMDTrainer",
)
_FEATURES = ("squad_convert_examples_to_features", "glue_convert_examples_to_features")
_CALLS = (
    ("none", "trl", _ONLINE, "generates its batches"),
    ("dynamic", "trl", _TRL, "pads each batch by itself"),
    ("init", "transformers", _FEATURES, "pads every example to max_seq_length"),
    ("offline", "datasets", ("load_from_disk",), "rows come ready from a file"),
)
# Places that leave nothing to shorten.
DONE = frozenset({"dynamic", "packed", "model", "none", "offline"})
_WORDS = {"library": "dynamic", "random": "none"}
Found = Sequence[tuple[Role, Pad]]
_ORDER: tuple[Role, ...] = ("getitem", "map", "collate", "init", "build")
# The plainest first: a buffer that is filled may as well be a mask of the rows.
_IDIOMS = (
    "tokenizer", "list_concat", "cat", "np_pad", "F_pad", "while_append", "full_slice", "pad_sequence", "collator",
)  # fmt: skip
# What fills up a batch wherever it stands; the other shapes may fill one row up to its neighbour field.
_OF_BATCHES = frozenset({"tokenizer", "pad_sequence"})


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """What decides how long the sequences of a run are.

    Attributes:
        facts: the place, how it is written, the side.
        is_sure: whether what pads is what makes the batches, not any call of a tokenizer.
        origins: the functions of the data path (a `__getitem__`, a map, a collate) that pad.
        cuts: what cuts every padded batch back to its longest row.
        missing: where the trail of the rows breaks, so that it is not sure.
        chunks: where a map pads each chunk of its rows to the longest there, before they are put into batches.
    """

    facts: tuple[Fact, ...]
    is_sure: bool
    origins: frozenset[ast.AST]
    cuts: tuple[Hop, ...] = ()
    missing: tuple[Hop, ...] = ()
    chunks: tuple[Hop, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the batches are seen to be as short as they can be, or not this code's to shorten."""
        return bool(self.cuts) or (self.is_sure and self.facts[0].value in DONE)


def facts(entry: EntryFacts) -> Iterator[Fact]:
    yield from padding(entry).facts


def padding(entry: EntryFacts) -> Padding:
    """Return what is known of a run's padding (worked out once)."""
    return entry.once("padding", _read)


def is_cut_back(entry: EntryFacts) -> bool:
    """Say whether no batch keeps padding to a fixed length: none is put in, or it is cut off before the model."""
    known = padding(entry)
    return known.is_done or bool(known.cuts)


def _read(entry: EntryFacts) -> Padding:
    found = [(_role(entry, pad), pad) for pad in pads(entry) if not _is_off(entry, pad)]
    found = [(where, pad) for where, pad in found if not _is_cut_off(entry, found, pad)]
    place, used = _place(entry, found)
    missing: tuple[Hop, ...] = ()
    sure = place != "dynamic" or all(_role(entry, pad) == "collate" for pad in used)
    sure = sure and not (place == "model" and _is_fixed_inside(used[0]))
    if used and all(_takes_any_rows(pad) for pad in used) and not any(entry.calls("trl", *_TRL)):
        # They take rows of one length, too: what makes the rows has to be seen (TRL makes its own).
        broken = [fact for fact in _data(entry) if fact.value in {None, "library"} or fact.unknown]
        missing = tuple(hop for fact in broken for hop in fact.unknown or fact.evidence)
        sure = sure and not broken
    origins = frozenset(origin(entry, pad.scope)[1] for pad in used)
    if not used:
        return Padding(tuple(_without(entry, place)), sure, origins)
    hops = tuple(dict.fromkeys(pad.hop for pad in used))
    where = Fact("padding.place", place, used[0].length, hops)
    written = Fact("padding.idiom", _idiom(found, used, place), "", hops)
    cut = tuple(dict.fromkeys(cut.hop for cut in batch_cuts(entry))) if place in _ORDER else ()
    return Padding((where, written, _side(entry, used)), sure, origins, cut, missing, _chunks(entry, found))


def _is_cut_off(entry: EntryFacts, found: Found, pad: Pad) -> bool:
    """Say whether what is filled up row by row is cut off again, and the collate pads the rows of all lengths."""
    rows = {cut.scope[1] for cut in cuts(entry) if cut.where == "row"}
    if not rows or not any(where == "collate" and other.reach == "longest" for where, other in found):
        return False
    module, node, frame = pad.scope
    while node not in rows and frame is not None and frame.call is not None:
        module, call, frame = frame.call.module, frame.call.node, frame.call.frame
        node = module.function(call) or module.tree
    return node in rows


def _takes_any_rows(pad: Pad) -> bool:
    """Say whether a library fills up what it gets: its collator, or `tokenizer.pad(rows)`."""
    node = pad.expr.node
    return pad.idiom == "collator" or (
        pad.idiom == "tokenizer" and isinstance(node, ast.Call) and called_name(node) == "pad"
    )


def _chunks(entry: EntryFacts, found: Found) -> tuple[Hop, ...]:
    """Return where a batched map hands all texts of its chunk to a tokenizer that pads to the longest."""
    hops: dict[Hop, None] = {}
    for where, pad in found:
        node = pad.expr.node
        if where != "map" or pad.reach != "longest" or pad.idiom != "tokenizer" or not isinstance(node, ast.Call):
            continue
        given = passed(entry).get(origin(entry, pad.scope)[1])
        batched = call_argument(given.site.node, None, "batched") if given is not None else None
        if given is None or batched is None or entry.values.key(given.site.expr.at(batched)) is not True:
            continue
        if not node.args or not _is_element(pad.expr.module, node.args[0]):
            hops[pad.hop] = None
    return tuple(hops)


def _is_element(module: Module, node: ast.expr) -> bool:
    """Say whether a name is what a loop takes out of a list."""
    for parent in module.ancestors(node):
        for loop in [*getattr(parent, "generators", ()), *([parent] if isinstance(parent, ast.For) else [])]:
            if isinstance(node, ast.Name) and any(name == node.id for name, _ in targets(loop.target)):
                return True
        if isinstance(parent, FunctionNode):
            return False
    return False


def _data(entry: EntryFacts) -> list[Fact]:
    return [fact for fact in data.facts(entry) if fact.name == "data.kind"]


def _role(entry: EntryFacts, pad: Pad) -> Role:
    return "collate" if pad.idiom == "collator" else role(entry, pad.scope)


def _place(entry: EntryFacts, found: Found) -> tuple[str, list[Pad]]:
    """Return the place that decides: rows of one length first, then blocks, then batches, then the model."""
    for place in _ORDER:
        used = [pad for where, pad in found if where == place and _is_static(where, pad)]
        switched = [pad for where, pad in found if where == place and pad.reach == "switch"]
        if switched or (used and all(_is_switched(entry, pad) for pad in used)):
            return "flag", switched or used
        if used and (place != "build" or not packs(entry)):
            return place, used
    if any(entry.calls("trl", *_ONLINE)):
        return "none", [pad for where, pad in found if where == "collate"]
    # A copied Trainer holds a library's collator that it falls back on: the script's own is the better place to name.
    longest = sorted((pad for where, pad in found if where == "collate"), key=lambda pad: pad.idiom == "collator")
    mapped = any(pack.role == "map" for pack in packs(entry))
    if longest and not (mapped and all(pad.idiom == "collator" for pad in longest)):
        return "dynamic", longest
    if packs(entry):
        return "packed", [pad for where, pad in found if where == "map" and pad.idiom == "list_concat"]
    longest += [pad for where, pad in found if where not in {"model", "order"} and pad.idiom in _OF_BATCHES]
    inside = sorted((pad for where, pad in found if where == "model"), key=_rank_inside)
    return ("dynamic", longest) if longest else ("model" if inside else "", inside)


def _rank_inside(pad: Pad) -> tuple[bool, bool]:
    return not _is_fixed_inside(pad), pad.idiom not in _OF_BATCHES


def _is_fixed_inside(pad: Pad) -> bool:
    """Say whether a model fills its text up to a fixed length; buffers of other shapes are its own affair."""
    return pad.reach == "static" and pad.idiom == "tokenizer"


def _is_static(where: Role, pad: Pad) -> bool:
    """Say whether rows come out at one length: a fixed width, or the longest of a whole set."""
    if where == "build" and pad.idiom not in {"list_concat", "tokenizer", "cat", "F_pad", "np_pad", "full_slice"}:
        return False  # a loop of the script itself says nothing of rows
    return pad.reach == "static" or (
        pad.reach == "longest" and where in {"init", "build"} and pad.idiom == "list_concat"
    )


def _idiom(found: Found, used: Sequence[Pad], place: str) -> str:
    """Return how static padding is written, several ways joined."""
    if place in {"dynamic", "model", "none"}:
        return "none"
    written = {pad.idiom for where, pad in found if where not in {"model", "order"} and pad.reach == "static"}
    written |= {pad.idiom for pad in used}
    return "+".join((["flag"] if place == "flag" else []) + [idiom for idiom in _IDIOMS if idiom in written])


def _side(entry: EntryFacts, used: Sequence[Pad]) -> Fact:
    sides = dict.fromkeys(pad.side for pad in used)
    hops = tuple(pad.hop for pad in used)
    written = [side for side in sides if side != "tokenizer"]
    told = tokenizer_side(entry, hops)
    if not written or (len(written) > 1 and told.value != "tokenizer"):
        return told
    return Fact("padding.side", "right" if len(written) > 1 else written[0], " or ".join(written), hops)


def tokenizer_side(entry: EntryFacts, hops: tuple[Hop, ...]) -> Fact:
    """Return the side that the script gives its tokenizer; transformers pads right where nothing is said."""
    told = []
    for module in dict.fromkeys(module for module, _, _ in entry.scopes):
        if "padding_side" not in module.source.text:
            continue
        for node in module.nodes:
            if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".padding_side")) or (
                isinstance(node, ast.keyword) and node.arg == "padding_side"
            ):
                told.append(Expr(module, node.value))
            elif isinstance(node, ast.Dict):
                told += [Expr(module, v) for k, v in zip(node.keys, node.values, strict=True) if _is_side_key(k)]
    for expr in told:
        value = entry.values.one(expr)
        if isinstance(value, Const) and value.value in {"left", "right"}:
            return Fact("padding.side", str(value.value), "the tokenizer's", (expr.hop(expr.text), *hops))
    return Fact("padding.side", "tokenizer", "the default of the tokenizer, right unless its files say left", hops)


def _is_side_key(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "padding_side"


def _is_off(entry: EntryFacts, pad: Pad) -> bool:
    """Say whether a condition around the padding is a constant that keeps it from running."""
    truths = ((truth_of(entry, pad.expr.at(test), flags=False), wanted) for test, wanted in _guards(pad))
    return any(truth is not None and truth is not wanted for truth, wanted in truths)


def _is_switched(entry: EntryFacts, pad: Pad) -> bool:
    """Say whether a setting of the script decides whether the padding runs."""
    return any(
        isinstance(value, Attr | Item)
        for test, _ in _guards(pad)
        for part in (test.values if isinstance(test, ast.BoolOp) else [test])
        if isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) != pad.length
        for value in entry.values.of(pad.expr.at(part))
    )


def _guards(pad: Pad) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the conditions around a padding, and what each must be for it to run."""
    child: ast.AST = pad.expr.node
    for parent in pad.expr.module.ancestors(pad.expr.node):
        if isinstance(parent, ast.If) and child is not parent.test:
            yield parent.test, child not in parent.orelse
        elif isinstance(parent, FunctionNode):
            return
        child = parent


def _without(entry: EntryFacts, place: str) -> Iterator[Fact]:
    """Say what there is where nothing pads: blocks, a library's trainer, rows that come ready from a file."""
    if place == "packed":
        hops = tuple(pack.hop for pack in packs(entry))
    else:
        place, hops = next(((name, found) for name, found in _libraries(entry) if found), ("", ()))
    broken = Hop(entry.path, 1, "no operation that pads or packs is seen in the run")
    if not place:
        yield from (unknown(f"padding.{question}", broken) for question in ("place", "idiom", "side"))
        return
    yield Fact("padding.place", _WORDS.get(place, place), place, hops)
    if place == "offline":
        yield from (unknown(f"padding.{question}", *hops) for question in ("idiom", "side"))
        return
    yield Fact("padding.idiom", "tokenizer" if place == "init" else "none", "", hops)
    side = tokenizer_side(entry, hops)
    by_tokenizer = place == "init" or (place == "dynamic" and side.value != "tokenizer")
    yield side if by_tokenizer else Fact("padding.side", "none", "", hops)


def _libraries(entry: EntryFacts) -> Iterator[tuple[str, tuple[Hop, ...]]]:
    """Yield what calls of libraries say, the surest first."""
    for name, package, calls, what in _CALLS:
        yield (
            name,
            tuple(
                site.expr.hop(f"{site.expr.text.splitlines()[0][:40]}: {what}")
                for site, _ in entry.calls(package, *calls)
            ),
        )
    yield "library", of_library(entry)
    yield "random", random_batches(entry)
