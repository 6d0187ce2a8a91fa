"""The edits that make a static collate dynamic, the smallest first: a word of a tokenizer call, a trim at the end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from speedmigrate.chain.collate_code import TOKENIZED, CollateReader
from speedmigrate.chain.collate_columns import columns
from speedmigrate.chain.collate_edit import Edit
from speedmigrate.chain.collate_fields import Fields
from speedmigrate.chain.collate_widths import MAKING, measured
from speedmigrate.chain.pads import Pad
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.module import Module
from speedmigrate.facts.syntax import call_argument, called_name, own_nodes
from speedmigrate.facts.tracks import Key
from speedmigrate.facts.value import Const, Expr
from speedmigrate.requirements import runtime_requirement
from speedmigrate.rule import AddImport, Hop, Op, RemoveKeyword, Replace, SetKeyword, Wrap

_LINE = 110
_MEDIA = frozenset({"images", "videos", "audio", "audios"})
_WORDS = ("padding", "pad_to_max_length")
_TARGETS = frozenset({"labels", "decoder_input_ids", "decoder_attention_mask"})


def edit(entry: EntryFacts, reader: CollateReader, held: Fields, found: list[Pad]) -> Edit:
    """Return the smallest edit that is right for a collate."""
    again = list(_fixed_uses(reader, found))
    by_word = all(pad.idiom == "tokenizer" for pad in found)
    processor = [pad.expr.hop("a processor, not a tokenizer, pads") for pad in found if _takes_images(pad)]
    if by_word and not reader.repeated and not held.problems:
        trouble = [*reader.trouble, *_separate(reader, held, found), *again, *(reader.fronts if held.is_left else ())]
        if not trouble:
            return _words(entry, found)
        trimmed = _trimmed(entry, reader, held, [*again, *processor])
        return trimmed if not trimmed.problems else Edit(problems=[*trouble, *trimmed.problems])
    if not by_word:
        for local in (columns(entry, reader, found), measured(reader, held, found)):
            if local is not None:
                return local
    return _trimmed(entry, reader, held, [*again, *processor])


def _takes_images(pad: Pad) -> bool:
    return isinstance(pad.expr.node, ast.Call) and any(k.arg in _MEDIA for k in pad.expr.node.keywords)


def _fixed_uses(reader: CollateReader, found: list[Pad]) -> Iterator[Hop]:
    """Yield what else in the collate is made as long as the padding."""
    lengths = {pad.length for pad in found}
    inside = {node for pad in found for node in ast.walk(pad.expr.node)}
    for function in reader.ran:
        for node in own_nodes(function):
            if isinstance(node, ast.expr) and node not in inside and ast.unparse(node) in lengths:
                if _makes(reader.module, node):
                    yield reader.module.hop(node, f"something else is made `{ast.unparse(node)}` long here")


def _makes(module: Module, node: ast.expr) -> bool:
    """Say whether an expression is the length of something new: `torch.ones(n, width)`, `[0] * width`."""
    for parent in module.ancestors(node):
        if isinstance(parent, ast.Call) and called_name(parent) in MAKING:
            return True
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult):
            if isinstance(parent.left, ast.List) or isinstance(parent.right, ast.List):
                return True
        if not isinstance(parent, ast.expr):
            return False
    return False


def _separate(reader: CollateReader, held: Fields, found: list[Pad]) -> Iterator[Hop]:
    """Yield calls whose rows would get lengths of their own, where they were equal or may have to be."""
    for pad in found:
        if sum(node is pad.expr.node for node, _ in reader.runs) > 1:
            yield pad.expr.hop("fields of several calls of this tokenizer would get lengths of their own")
    first, *others = found
    for other in others:
        keys = {key for key, width in held.widths.items() if width == other.length}
        if other.length == first.length and _are_exclusive(first, other):
            continue
        if other.length == first.length or not keys <= _TARGETS:
            yield other.expr.hop(f"fields of {len(found)} tokenizer calls would get lengths of their own")


def _are_exclusive(first: Pad, second: Pad) -> bool:
    """Say whether two calls stand in the two branches of one `if`."""
    above = set(first.expr.module.ancestors(first.expr.node))
    for parent in second.expr.module.ancestors(second.expr.node):
        if isinstance(parent, ast.If) and parent in above:
            first_in, second_in = (
                any(pad.expr.node in ast.walk(statement) for statement in parent.body) for pad in (first, second)
            )
            return first_in != second_in
    return False


def _words(entry: EntryFacts, found: list[Pad]) -> Edit:
    apart = len({pad.length for pad in found}) > 1
    result = Edit(how="the tokenizer pads to the longest row of the batch", apart=apart)
    ops: list[Op] = []
    for pad in found:
        assert isinstance(pad.expr.node, ast.Call)
        for op in _word(entry, pad.expr, pad.expr.node):
            if isinstance(op, Hop):
                result.problems.append(op)
            else:
                ops.append(op)
        function = pad.expr.module.function(pad.expr.node)
        result.touched |= {function} if function is not None else set()
    result.ops = tuple(dict.fromkeys(ops))
    return result


def _word(entry: EntryFacts, expr: Expr, call: ast.Call) -> Iterator[Op | Hop]:
    """Yield the edit of the word that has one tokenizer call pad to a fixed length, wherever it is written."""
    module = expr.module
    start, end = module.source.span(call)
    if call_argument(call, None, "pad_to_max_length") is not None:
        yield RemoveKeyword(module.path, start, end, "pad_to_max_length")
        yield SetKeyword(module.path, start, end, "padding", "True")
        return
    given = call_argument(call, None, "padding")
    if isinstance(given, ast.Constant):
        yield SetKeyword(module.path, start, end, "padding", "True")
        return
    assert given is not None
    for value in entry.values.of(expr.at(given)):
        if not (isinstance(value, Const) and isinstance(value.expr.node, ast.Constant)):
            yield expr.hop(f"where `{module.text(given)}` gets its value is not seen")
            continue
        other = _other_read(expr, given)
        if other is not None:
            yield expr.module.hop(other, f"`{module.text(given)}` is read here too")
            continue
        first, last = value.expr.module.source.span(value.expr.node)
        yield Replace(value.expr.module.path, first, last, '"longest"')


def _other_read(expr: Expr, given: ast.expr) -> ast.AST | None:
    """Return a place that reads the same attribute or name for anything but the padding of a tokenizer."""
    module: Module = expr.module
    scope: ast.AST = module.scope(given)
    name = given.attr if isinstance(given, ast.Attribute) else given.id if isinstance(given, ast.Name) else ""
    if isinstance(given, ast.Attribute):
        scope = next((p for p in module.ancestors(given) if isinstance(p, ast.ClassDef)), scope)
    for node in ast.walk(scope):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            if (node.attr if isinstance(node, ast.Attribute) else node.id) == name:
                parent = module.parents[node]
                kept = isinstance(parent, ast.Assign | ast.AnnAssign)
                if not kept and not (isinstance(parent, ast.keyword) and parent.arg in _WORDS):
                    return node
    return None


def _trimmed(entry: EntryFacts, reader: CollateReader, held: Fields, again: list[Hop]) -> Edit:
    """Cut what is padding in the whole batch where the collate ends: right whatever the code before does."""
    result = Edit(problems=[*held.problems, *held.unwritten, *again])
    if result.problems:
        return result
    path = reader.module.path
    ops: list[Op] = []
    if held.rows is not None:
        start, end = reader.module.source.span(held.rows.func)
        if held.tokenizer:
            ops.append(AddImport(path, "speedruntime", "pad_values_of"))
        code = _collator(reader.module, held.rows.func, _values(held))
        ops += [AddImport(path, "speedruntime", "PaddingCollator"), Replace(path, start, end, code)]
        result.how = "what is padding in all rows of the batch is cut before they are stacked"
    else:
        if not held.is_dict or held.tokenizer:
            result.problems.append(reader.module.hop(reader.func.node, "the batch is a tokenizer's own object"))
        ops.append(AddImport(path, "speedruntime", "trim_batch"))
        for node, _ in reader.returned:
            ops += _wrapped(reader.module, node, held, result)
        result.how = "what is padding in all rows of the batch is cut where the collate ends"
    result.ops = (*ops, *runtime_requirement(entry.project, path))
    return result


def _values(held: Fields) -> str:
    if held.tokenizer:
        own = {key: code for key, code in held.codes.items() if key not in TOKENIZED}
        return f"pad_values_of({', '.join([held.tokenizer, *(f'{key}={code}' for key, code in own.items())])})"
    return "{" + ", ".join(f"{_quoted(key)}: {code}" for key, code in held.codes.items()) + "}"


def _quoted(key: Key) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _wrapped(module: Module, node: ast.expr, held: Fields, result: Edit) -> Iterator[Op]:
    """Wrap what is returned, once for each length that fields are padded to."""
    lengths: dict[str, list[Key]] = {}
    for key in held.codes:
        lengths.setdefault(held.widths[key], []).append(key)
    for keys in lengths.values():
        if not any(_says(held, key) for key in keys):
            names = ", ".join(repr(key) for key in keys)
            what = f"neither a mask nor labels say which positions of {names} are padding"
            result.problems.append(module.hop(node, what))
        left = ', padding_side="left"' if held.pads[keys[0]].side == "left" else ""
        values = "{" + ", ".join(f"{_quoted(key)}: {held.codes[key]}" for key in keys) + "}"
        yield _wrap(module, node, f"{values}{left}")


def _wrap(module: Module, node: ast.expr, values: str) -> Op:
    """Wrap an expression in a call, on lines of its own where one is too long."""
    start, end = module.source.span(node)
    inner = _indented(module, node, len(values))
    if not inner:
        return Wrap(module.path, start, end, "trim_batch(", f", {values})")
    indent = inner[:-4].removeprefix("\n")
    return Wrap(module.path, start, end, f"trim_batch({inner}", f",{inner}{values},\n{indent})")


def _collator(module: Module, collate: ast.expr, values: str) -> str:
    """Return the collator that takes the place of a collate, on lines of its own where one is too long."""
    given = f"{values}, collate_fn={module.text(collate)}, trim=True"
    inner = _indented(module, collate, len(given))
    return f"PaddingCollator({inner}{given}{inner[:-4]})"


def _indented(module: Module, node: ast.expr, added: int) -> str:
    """Return the line break and indentation of an argument, nothing where the line takes `added` more characters."""
    line = module.source.text.splitlines()[node.lineno - 1]
    if len(line) + added < _LINE:
        return ""
    return "\n" + line[: len(line) - len(line.lstrip())] + "    "


def _says(held: Fields, key: Key) -> bool:
    constant = held.pads[key].constant
    negative = isinstance(constant, int | float) and not isinstance(constant, bool) and constant < 0
    return negative or "mask" in str(key)
