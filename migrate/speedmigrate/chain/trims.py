"""Loaders whose rows come padded to a fixed length and may be cut where they are collated: what the collator has to
know, and why it may not be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from speedmigrate.chain.cells import Fill, Key
from speedmigrate.chain.contracts_fixed import contracts
from speedmigrate.chain.data_pipes import pipes
from speedmigrate.chain.fields import Field, Row, Rows, served
from speedmigrate.chain.padding import padding, tokenizer_side
from speedmigrate.chain.pads import pads
from speedmigrate.chain.roles import origin
from speedmigrate.chain.row_expr import static_pads
from speedmigrate.chain.switches import switches
from speedmigrate.facts.carry import carry
from speedmigrate.facts.collate_run import collated
from speedmigrate.facts.collates import stacks
from speedmigrate.facts.consumers import consumers
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.loaders import Loader, loaders
from speedmigrate.facts.padding import padded_datasets, starters
from speedmigrate.facts.syntax import call_argument
from speedmigrate.facts.tracks import Pads, Use
from speedmigrate.facts.value import Attr, Const, Expr, Ext, Frame, Func, Inst, Value
from speedmigrate.rule import Hop

# Collators of transformers that mask tokens at random.
_MASKING = frozenset({"DataCollatorForLanguageModeling", "DataCollatorForWholeWordMask"})


@dataclass(frozen=True, slots=True, eq=False)
class Trim:
    """One loader of padded rows.

    Attributes:
        pads: field to pad value, as code at the loader; in a tuple one entry a slot (None: not cut).
        tokenizer: code of the tokenizer whose fields the rows have beside `pads`, empty where there are none.
        is_static: whether the tokenizer's fields are cut, too.
        covers: the functions of the data path whose padding is cut.
        serves_evaluation: whether evaluation gets its rows through the same collator, and they have the same fields.
        use: what is done with the batches; empty where the rows are not understood.
        left: padded fields that are not cut, as nothing beside them tells their padding.
        levels: 1 for rows of tokens, 2 for several sequences a row.
        ids_alone: whether the ids alone say what is padding, as the model masks the pad id itself.
        done: where the batches are cut already, None where they are not.
    """

    loader: Loader
    pads: dict[Key, str | None]
    tokenizer: str
    is_static: bool
    is_tuple: bool
    side: str
    covers: frozenset[ast.AST]
    serves_evaluation: bool
    use: Use
    problems: tuple[Hop, ...]
    hops: tuple[Hop, ...]
    left: tuple[Key, ...] = ()
    levels: int = 1
    ids_alone: bool = False
    done: Hop | None = None

    def draws(self, entry: EntryFacts) -> Hop | None:
        """Return the collate that masks tokens at random: it draws over the shape of the batch."""
        for value in entry.values.of(self.loader.collate) if self.loader.collate is not None else ():
            of = value.of if isinstance(value, Inst) else None
            if isinstance(of, Ext) and of.last in _MASKING and isinstance(value, Inst):
                node = value.call.node
                mlm = call_argument(node, 1, "mlm") if isinstance(node, ast.Call) else None
                constant = entry.values.one(value.call.at(mlm)) if mlm is not None else None
                if not (isinstance(constant, Const) and constant.value is False):
                    return value.call.hop(f"{of.last} draws its masks over the shape of the batch")
        return next(iter(self.use.drawn), None)

    @property
    def is_wanted(self) -> bool:
        """Whether the batches can be cut and are not yet."""
        return not self.problems and self.done is None


def trims(entry: EntryFacts) -> tuple[Trim, ...]:
    """Return the training loaders of a run that serve padded rows, stripped ones left out (worked out once)."""
    return entry.once("trims", lambda entry: tuple(_trims(entry)))


def _trims(entry: EntryFacts) -> Iterator[Trim]:
    if padding(entry).is_done or contracts(entry):
        return  # dynamic_padding says why
    for loader in _training(entry):
        trim = _trim(entry, loader)
        if trim is None or (trim.covers and trim.covers <= _switched(entry)):
            continue
        done = _done(entry, loader)
        problems = () if done else (*trim.problems, *_shared(entry, loader))
        yield replace(trim, problems=problems, done=done)


def _switched(entry: EntryFacts) -> set[ast.AST]:
    """Return the functions whose padding the repository's own switch turns off, or has turned off."""
    found = (switch for switch in switches(entry) if not switch.problems or (switch.is_off and not switch.fixed))
    return {node for switch in found for node in switch.covers}


def _done(entry: EntryFacts, loader: Loader) -> Hop | None:
    """Return the place where the runtime cuts the batches of a loader already."""
    for value in entry.values.of(loader.collate) if loader.collate is not None else ():
        if isinstance(value, Inst) and isinstance(value.of, Ext) and value.of.package == "speedruntime":
            return value.call.hop("the collate cuts each batch")
    for site, _ in entry.calls("speedruntime", "use_train_collator"):
        trainer = entry.values.of(site.expr.at(site.node.args[0])) if site.node.args else ()
        if any(isinstance(value, Inst) and value.call.node is loader.site.node for value in trainer):
            return site.expr.hop("the training batches are cut")
    return None


def _training(entry: EntryFacts) -> list[Loader]:
    nodes = {pipe.call.node for pipe in pipes(entry)}
    stripped = {
        served.loader.site.node for group in padded_datasets(entry) if not group.refusals for served in group.served
    }
    return [found for found in loaders(entry) if found.site.node in nodes and found.site.node not in stripped]


def _shared(entry: EntryFacts, loader: Loader) -> Iterator[Hop]:
    """Yield why another entry point that uses this very loader forbids it."""
    path = loader.site.module.path
    for other in sorted(starters(entry, path) - {entry.path}) if path != entry.path else ():
        facts = EntryFacts(entry.project, other, entry.target, entry.options, entry.values)
        for same in _training(facts):
            if same.site.node is loader.site.node:
                trim = _trim(facts, same)
                if trim is None:
                    yield Hop(other, 1, "this entry point has rows at the same loader that are not padded")
                else:
                    yield from (Hop(p.path, p.line, f"{p.what} (in the run of {other})") for p in trim.problems[:1])


def _trim(entry: EntryFacts, loader: Loader) -> Trim | None:
    """Read one loader; None where nothing is padded to a fixed length."""
    found = [(name, served(entry, data)) for name, data in loader.datasets]
    training = [rows for name, rows in found if name != "eval_dataset"]
    rows = [row for each in training for row in each.rows]
    problems = [hop for each in training for hop in (*each.unknown, *each.objects)]
    if not any(row.is_padded for row in rows):
        if not (problems and static_pads(entry)):
            return None
        return Trim(loader, {}, "", False, False, "right", frozenset(), False, Use(), tuple(problems), (loader.hop,))
    ids_alone = not any(_guarded(row) or (row.tokenizer is not None and row.is_static) for row in rows)
    codes, tokenizer, sides, missing = _codes(entry, loader, rows)
    problems += [*missing, *_unplaced(loader)]
    levels = {field.levels for row in rows for field in row.fields if codes.get(field.key) is not None}
    levels |= {row.levels for row in rows if row.tokenizer is not None and row.is_static}
    if len(levels) > 1 or max(levels, default=1) > 2:
        problems.append(rows[0].told("some fields hold several sequences a row, others one"))
    side = "left" if "left" in sides.values() else "right"
    if "left" in sides.values() and len(set(sides.values())) > 1:
        problems.append(rows[0].hop)
    cut = {
        key: Pads(_constant(entry, rows, key), code, sides.get(key, "right"), max(levels, default=1))
        for key, code in codes.items()
        if code is not None
    }
    told = tokenizer_side(entry, ()) if any(map(_is_tokenizers, rows)) else None
    if told is not None and told.value == "left":
        cut = {key: replace(pads, side="left") for key, pads in cut.items()}
    if tokenizer and rows[0].is_static:
        for name, constant in (("input_ids", None), ("attention_mask", 0), ("token_type_ids", None)):
            cut.setdefault(name, Pads(constant, f"{tokenizer}.pad", "right", max(levels, default=1)))
    cut, wrong = _collated(entry, loader, cut)
    problems += wrong
    use = Use() if problems else consumers(entry, loader, cut)
    problems += use.problems
    use.corrects += _shifted(
        use, "left" if "left" in sides.values() else told.value if told is not None else "right", rows
    )
    if ids_alone and use.corrects:
        names = ", ".join(repr(key) for key in cut)
        problems.append(rows[0].told(f"neither a mask nor labels say which positions of {names} are padding"))
    left = tuple(f.key for f in rows[0].fields if f.fill is not None and codes.get(f.key) is None)
    if left and any(model.is_causal_lm for model in use.models):
        problems.append(rows[0].told(f"field {left[0]!r}: neither a mask nor labels say which positions are padding"))
    covers = _covered(entry, training)
    hops = tuple(dict.fromkeys((*(row.hop for row in rows), loader.hop, *use.hops)))
    evaluation = [each for name, each in found if name == "eval_dataset"]
    return Trim(
        loader, codes, tokenizer, rows[0].is_static, rows[0].is_tuple, side, covers, _is_alike(rows, evaluation), use,
        tuple(dict.fromkeys(problems)), hops, left, max(levels, default=1), ids_alone,
    )  # fmt: skip


def _unplaced(loader: Loader) -> Iterator[Hop]:
    """Yield why the call of a DataLoader cannot get a collate: it comes, or may come, with `**`."""
    node = loader.site.node
    if loader.kind != "DataLoader" or not any(keyword.arg is None for keyword in node.keywords):
        return
    own = loader.collate is not None and any(keyword.value is loader.collate.node for keyword in node.keywords)
    if loader.spread or (loader.collate is not None and not own):
        spread = next(keyword.value for keyword in node.keywords if keyword.arg is None)
        text = loader.site.module.text(spread)
        yield loader.site.expr.hop(f"the collate is an argument of `**{text[:40]}`, or may be")


def _is_tokenizers(row: Row) -> bool:
    """Whether a tokenizer pads the rows: on its own side."""
    return (row.tokenizer is not None and row.is_static) or any(f.fill is not None and f.fill.attr for f in row.fields)


def _shifted(use: Use, side: str | None, rows: list[Row]) -> Iterator[Hop]:
    """Yield that padding stands before the tokens: the first token is predicted from it, positions may count it."""
    if side == "left":
        yield rows[0].told(
            "the rows are padded on the left: today a pad predicts the first token and may be counted by positions, "
            "afterwards in fewer rows or none"
        )
    elif side == "tokenizer" and any(model.is_causal_lm for model in use.models):
        yield rows[0].told(
            "the tokenizer pads on the side of its own files: if that is the left, a pad predicts the first token "
            "today, and no longer after"
        )


def _codes(
    entry: EntryFacts, loader: Loader, rows: list[Row]
) -> tuple[dict[Key, str | None], str, dict[Key, str], list[Hop]]:
    """Return the pad values as code at the loader, the tokenizer's code, the sides, and what is missing."""
    codes: dict[Key, str | None] = {}
    sides: dict[Key, str] = {}
    tokenizers: set[str] = set()
    problems: list[Hop] = []
    for row in rows:
        if _kind(row) != _kind(rows[0]):
            problems.append(row.told("the rows of this data set have other fields"))
            continue
        if row.tokenizer is not None:
            code = carry(entry.values, row.tokenizer, loader.site.expr)
            tokenizers.add(code or "")
            if not code:
                problems.append(row.tokenizer.hop(f"`{row.tokenizer.text}` cannot be written at the loader"))
        padded = [field for field in row.fields if field.fill is not None]
        cut = _guarded(row) or ([] if row.tokenizer is not None and row.is_static else padded)
        problems += _blind(row, cut)
        for field in row.fields:
            code = _code(entry, loader, field) if field in cut else None
            if field.trouble or (field in cut and code is None):
                why = field.trouble or f"its pad value `{_said(field.fill)}` cannot be written at the loader"
                problems.append(row.told(f"field {field.key!r}: {why}"))
            elif codes.setdefault(field.key, code) != code:
                other = codes[field.key]
                problems.append(row.told(f"field {field.key!r} is padded with {code} here, {other} elsewhere"))
            if field in cut:
                sides[field.key] = field.side
    if len(tokenizers) > 1:
        problems.append(rows[0].told("the rows come from several tokenizers"))
    return codes, next(iter(tokenizers), ""), sides, problems


def _kind(row: Row) -> tuple[object, ...]:
    return row.is_tuple, row.tokenizer is None, row.is_static, frozenset(field.key for field in row.fields)


def _guarded(row: Row) -> list[Field]:
    """Return the fields that can be cut: those beside which a mask or labels tell tokens from padding."""
    widths: dict[str, list[Field]] = {}
    for field in row.fields:
        if field.fill is not None:
            widths.setdefault(field.width, []).append(field)
    own = row.width if row.tokenizer is not None and row.is_static else None
    kept = [fields for width, fields in widths.items() if width == own or any(map(_guards, fields))]
    return [field for fields in kept for field in fields]


def _guards(field: Field) -> bool:
    constant = field.fill.constant if field.fill is not None else None
    return field.is_mask or (isinstance(constant, int | float) and not isinstance(constant, bool) and constant < 0)


def _blind(row: Row, cut: list[Field]) -> Iterator[Hop]:
    """Yield that labels are padded whose ids are not seen: then those would stay as long as they are."""
    if cut and row.tokenizer is None and all(map(_guards, cut)):
        yield row.told(f"the ids beside {', '.join(repr(field.key) for field in cut)} are not seen")


def _code(entry: EntryFacts, loader: Loader, field: Field) -> str | None:
    fill = field.fill
    if fill is None:
        return None
    if fill.constant is ...:
        return "..."
    if fill.expr is None:
        return repr(int(fill.constant)) if isinstance(fill.constant, bool) else repr(fill.constant)
    code = carry(entry.values, fill.expr, loader.site.expr) or _through_rows(loader, fill.expr)
    return None if code is None else f"{code}.{fill.attr}" if fill.attr else code


def _through_rows(loader: Loader, expr: Expr) -> str | None:
    """Write `self.tokenizer` of a data set as `train_dataset.tokenizer`, where the loader names the data set."""
    root: ast.expr = expr.node
    while isinstance(root, ast.Attribute):
        root = root.value
    receiver = expr.frame.receiver if expr.frame is not None else None
    if not isinstance(root, ast.Name) or root is expr.node or not isinstance(receiver, Inst):
        return None
    arguments = expr.frame.func.node.args.args if expr.frame is not None else []
    if not arguments or arguments[0].arg != root.id:
        return None
    for _, data in loader.datasets[:1]:
        if isinstance(data.node, ast.Name | ast.Attribute | ast.Subscript):
            return data.text + expr.text[len(root.id) :]
    return None


def _said(fill: Fill | None) -> str:
    if fill is None or fill.expr is None:
        return "?"
    return fill.expr.text + (f".{fill.attr}" if fill.attr else "")


def _constant(entry: EntryFacts, rows: list[Row], key: Key) -> object:
    for row in rows:
        for field in row.fields:
            if field.key == key and field.fill is not None:
                if field.fill.expr is None:
                    return field.fill.constant
                value = entry.values.one(field.fill.expr) if not field.fill.attr else None
                return value.value if isinstance(value, Const) else None
    return None


def _collated(entry: EntryFacts, loader: Loader, cut: dict[Key, Pads]) -> tuple[dict[Key, Pads], list[Hop]]:
    """Return the padded fields as the collate that stands there hands them on, and why it may not get narrower rows."""
    for value in entry.values.of(loader.collate) if loader.collate is not None else ():
        of = value.of if isinstance(value, Inst) else value
        if isinstance(value, Const) and value.value is None:
            continue
        if isinstance(of, Ext) and of.package in {"transformers", "torch"}:
            continue
        assert loader.collate is not None
        found, wrong = collated(entry.values, value, cut, loader.site.expr)
        if not wrong:
            cut = found
        elif not stacks(entry.values, value) and not _is_library_call(entry, value):
            what = f"the collate `{loader.collate.text[:40]}` is not seen to do nothing but stack"
            return cut, [Hop(wrong[0].path, wrong[0].line, f"{what}: {wrong[0].what}")]
    return cut, []


def _is_library_call(entry: EntryFacts, value: Value) -> bool:
    """Whether a collate is nothing but one call of a tokenizer's `pad`, which takes rows of any length."""
    if not isinstance(value, Func):
        return False
    body = value.node.body if isinstance(value.node, ast.Lambda) else value.node.body[-1]
    call = body.value if isinstance(body, ast.Return) else body
    is_alone = isinstance(value.node, ast.Lambda) or len(value.node.body) == 1
    if not (is_alone and isinstance(call, ast.Call)):
        return False
    callees = entry.values.of(Expr(value.module, call.func, Frame(value, None, value.receiver)))
    return bool(callees) and all(
        isinstance(c, Attr) and c.name == "pad" and isinstance(c.of, Inst) and isinstance(c.of.of, Ext)
        and c.of.of.package == "transformers"
        for c in callees
    )  # fmt: skip


def _covered(entry: EntryFacts, found: list[Rows]) -> frozenset[ast.AST]:
    ran = {node for rows in found for node in rows.functions}
    return frozenset(origin(entry, pad.scope)[1] for pad in pads(entry) if pad.scope[1] in ran)


def _is_alike(rows: list[Row], evaluation: list[Rows]) -> bool:
    """Whether the rows of evaluation have the very fields of the training rows."""
    return all(not each.unknown and all(_kind(row) == _kind(rows[0]) for row in each.rows) for each in evaluation)
