"""Where and how a run fills its token sequences up: the place, the way it is written, the side, the length."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speedmigrate.chain import data
from speedmigrate.chain.fact import Fact, unknown
from speedmigrate.chain.packs import packs
from speedmigrate.chain.pads import Pad, pads
from speedmigrate.chain.roles import Role, origin, role
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import FunctionNode
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
    """

    facts: tuple[Fact, ...]
    is_sure: bool
    origins: frozenset[ast.AST]


def facts(entry: EntryFacts) -> Iterator[Fact]:
    yield from padding(entry).facts


def padding(entry: EntryFacts) -> Padding:
    """Return what is known of a run's padding (worked out once)."""
    return entry.once("padding", _read)


def _read(entry: EntryFacts) -> Padding:
    found = [(_role(entry, pad), pad) for pad in pads(entry) if not _is_off(entry, pad)]
    place, used = _place(entry, found)
    sure = place != "dynamic" or all(_role(entry, pad) == "collate" for pad in used)
    if used and all(pad.idiom == "collator" for pad in used) and not any(entry.calls("trl", *_TRL)):
        # A library's collator takes rows of one length, too: what makes the rows has to be seen (TRL makes its own).
        sure = sure and all(fact.value not in {None, "library"} and not fact.unknown for fact in _data(entry))
    origins = frozenset(origin(entry, pad.scope)[1] for pad in used)
    if not used:
        return Padding(tuple(_without(entry, place)), sure, origins)
    hops = tuple(dict.fromkeys(pad.hop for pad in used))
    where = Fact("padding.place", place, used[0].length, hops)
    written = Fact("padding.idiom", _idiom(found, used, place), "", hops)
    return Padding((where, written, _side(entry, used)), sure, origins)


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
    longest = [pad for where, pad in found if where == "collate"]
    mapped = any(pack.role == "map" for pack in packs(entry))
    if longest and not (mapped and all(pad.idiom == "collator" for pad in longest)):
        return "dynamic", longest
    if packs(entry):
        return "packed", [pad for where, pad in found if where == "map" and pad.idiom == "list_concat"]
    longest += [pad for where, pad in found if where not in {"model", "order"} and pad.idiom in _OF_BATCHES]
    inside = [pad for where, pad in found if where == "model"]
    return ("dynamic", longest) if longest else ("model" if inside else "", inside)


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
    told = _tokenizer_side(entry, hops)
    if not written or (len(written) > 1 and told.value != "tokenizer"):
        return told
    return Fact("padding.side", "right" if len(written) > 1 else written[0], " or ".join(written), hops)


def _tokenizer_side(entry: EntryFacts, hops: tuple[Hop, ...]) -> Fact:
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
    return any(
        _constant(entry, pad.expr.at(test)) is not wanted
        for test, wanted in _guards(pad)
        if _constant(entry, pad.expr.at(test)) is not None
    )


def _is_switched(entry: EntryFacts, pad: Pad) -> bool:
    """Say whether a setting of the script decides whether the padding runs."""
    return any(
        isinstance(value, Attr | Item)
        for test, _ in _guards(pad)
        for part in (test.values if isinstance(test, ast.BoolOp) else [test])
        if isinstance(part, ast.Name | ast.Attribute)
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


def _constant(entry: EntryFacts, expr: Expr) -> bool | None:
    """Return what a condition always is, None where it depends."""
    node = expr.node
    if isinstance(node, ast.BoolOp):
        parts = [_constant(entry, expr.at(part)) for part in node.values]
        decides = isinstance(node.op, ast.Or)
        return decides if decides in parts else (None if None in parts else not decides)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _constant(entry, expr.at(node.operand))
        return None if inner is None else not inner
    if not isinstance(node, ast.Name | ast.Attribute | ast.Constant):
        return None
    value = entry.values.one(expr)
    return bool(value.value) if isinstance(value, Const) else None


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
    yield Fact("padding.place", place, "", hops)
    if place == "offline":
        yield from (unknown(f"padding.{question}", *hops) for question in ("idiom", "side"))
        return
    yield Fact("padding.idiom", "tokenizer" if place == "init" else "none", "", hops)
    side = _tokenizer_side(entry, hops)
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
