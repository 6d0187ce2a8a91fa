"""Places of a run that fix the length of its text, so that neither stripping nor trimming may change it.

Each is told by the words of a library or by shape, never by the name of a variable: the text length of CLIP, prompts
of diffusion, an engine that fixes shapes, a square mask made beside the rows, a width that the model folds by, pads
that stand between tokens or stand for images, tokens that are gathered over ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmigrate.chain.framework import outside_calls
from speedmigrate.chain.optimizer_branches import is_off
from speedmigrate.chain.pads import Pad, pads
from speedmigrate.chain.roles import role
from speedmigrate.chain.widths import followed, width
from speedmigrate.facts.entry import EntryFacts, Scope, shared
from speedmigrate.facts.models import model_classes
from speedmigrate.facts.module import FunctionNode, Module
from speedmigrate.facts.reaching import reaching
from speedmigrate.facts.syntax import call_argument, called_name, own_nodes
from speedmigrate.facts.value import Attr, Cls, Const, Expr, Ext
from speedmigrate.rule import Hop

Kind = Literal["text", "diffusion", "pipeline", "square", "folded", "joined", "image", "multiple", "gathered"]
_CLIP_LENGTH = 77
_CLIP_PACKAGES = frozenset({"clip", "open_clip", "cn_clip"})
_CLIP_TEXT = frozenset({"CLIPTokenizer", "CLIPTokenizerFast", "CLIPTextModel", "CLIPTextModelWithProjection"})
_PIPELINES = frozenset(
    {"torch.distributed.pipeline.sync.Pipe", "fairscale.nn.Pipe", "fairscale.nn.pipe.Pipe", "torchgpipe.GPipe"}
)
_ENGINES = frozenset({"deepspeed", "torch"})
_PIPELINE_MODULES = frozenset({"PipelineModule", "ScheduleGPipe", "Schedule1F1B", "PipelineStage"})
_DENOISERS = ("UNet2DCondition", "Transformer2D", "DiffusionPipeline", "FluxPipeline")
_GATHERS = frozenset({"all_gather", "all_gather_into_tensor", "_all_gather_base"})
_MATRICES = frozenset({"zeros", "ones", "full", "empty"})
_TOKENS = frozenset({"input_ids", "attention_mask", "decoder_input_ids"})
_DEPTH = 8
_ROWS = frozenset({"getitem", "map", "init", "collate"})


@dataclass(frozen=True, slots=True)
class Contract:
    """One place that fixes a length, and what kind of place it is."""

    kind: Kind
    hop: Hop


def fixed_contracts(entry: EntryFacts) -> tuple[Hop, ...]:
    """Return the places of a run that fix the length of its text."""
    return tuple(contract.hop for contract in contracts(entry))


def is_image_text(entry: EntryFacts) -> bool:
    """Say whether the one thing that fixes the length is that the text is an image model's."""
    return bool(contracts(entry)) and all(contract.kind == "text" for contract in contracts(entry))


def contracts(entry: EntryFacts) -> tuple[Contract, ...]:
    """Return the places that fix the length, with their kind (worked out once)."""
    return entry.once("fixed_contracts", lambda entry: tuple(dict.fromkeys(_contracts(entry))))


def _contracts(entry: EntryFacts) -> Iterator[Contract]:
    yield from _of_libraries(entry)
    static = [pad for pad in pads(entry) if pad.reach != "longest"]
    yield from _text_lengths(entry, static)
    for pad in static:
        yield from _joined(entry, pad)
    for scope in (*entry.scopes, *_model_functions(entry).values()):
        for kind, node in _shapes(entry, scope[0]).get(scope[1], ()):
            yield from _READERS[kind](entry, scope, node)


def _model_functions(entry: EntryFacts) -> dict[ast.AST, Scope]:
    """Return the functions of the model classes of the root that a run makes or loads, entered or not."""
    return entry.once("model_functions", _find_model_functions)


def _find_model_functions(entry: EntryFacts) -> dict[ast.AST, Scope]:
    made: dict[ast.AST, Cls] = {}
    for site in entry.sites:
        for callee in site.callees:
            if isinstance(callee, Attr) and callee.name == "from_pretrained":
                callee = callee.of
            if isinstance(callee, Cls) and callee.node not in made and entry.values.method(callee, "forward"):
                made[callee.node] = callee
    classes = {cls.node: cls for each in made.values() for cls in model_classes(entry.values, each)}
    return {
        node: (cls.module, node, None)
        for cls in classes.values()
        for node in cls.node.body
        if isinstance(node, FunctionNode)
    }


def _is_model(entry: EntryFacts, scope: Scope) -> bool:
    return role(entry, scope) == "model" or scope[1] in _model_functions(entry)


def _of_libraries(entry: EntryFacts) -> Iterator[Contract]:
    for site, name in outside_calls(entry):
        package, last = name.partition(".")[0], name.rpartition(".")[2]
        if package == "diffusers" and any(word in name for word in _DENOISERS):
            yield Contract("diffusion", site.expr.hop(f"{name}: the length of a prompt is part of the diffusion model"))
        elif (name in _PIPELINES or (package in _ENGINES and last in _PIPELINE_MODULES)) and not is_off(entry, site):
            yield Contract("pipeline", site.expr.hop(f"{name}: a pipeline takes batches of one shape"))


def _text_lengths(entry: EntryFacts, static: list[Pad]) -> Iterator[Contract]:
    """Yield padding to the text length of CLIP: of its tokenizer, or to its 77 tokens in a run that has one."""
    clip = next(_clip_calls(entry), None)
    for pad in static:
        if pad.idiom == "tokenizer" and isinstance(pad.expr.node, ast.Call):
            of_clip = any(_made_by_clip(value) for value in entry.values.of(pad.expr.at(pad.expr.node.func)))
            length = call_argument(pad.expr.node, None, "max_length")
            known = entry.values.key(pad.expr.at(length)) if length is not None else None
            if of_clip or (clip is not None and known == _CLIP_LENGTH):
                yield Contract("text", pad.expr.hop("text is padded to the length that CLIP was trained with"))
        elif _is_clip_tokenize(pad.scope[1]):
            yield Contract("text", pad.expr.hop("text is padded to the context length of a CLIP model"))
    for site, name in outside_calls(entry):
        if name.partition(".")[0] in _CLIP_PACKAGES and name.endswith(".tokenize"):
            yield Contract("text", site.expr.hop(f"{name} pads text to the context length of CLIP"))


def _clip_calls(entry: EntryFacts) -> Iterator[str]:
    for _, name in outside_calls(entry):
        if name.partition(".")[0] in _CLIP_PACKAGES or any(part.startswith("CLIP") for part in name.split(".")):
            yield name


def _made_by_clip(value: object) -> bool:
    of = getattr(value, "of", None)
    while of is not None and not isinstance(of, Ext):
        of = getattr(of, "of", None)
    return isinstance(of, Ext) and any(part in _CLIP_TEXT for part in of.name.split("."))


def _is_clip_tokenize(node: ast.AST) -> bool:
    """Say whether a function is the `tokenize(texts, context_length=...)` of CLIP's package, copied into the root."""
    return (
        isinstance(node, FunctionNode)
        and node.name == "tokenize"
        and any(argument.arg == "context_length" for argument in (*node.args.args, *node.args.kwonlyargs))
    )


def _joined(entry: EntryFacts, pad: Pad) -> Iterator[Contract]:
    """Yield where more tokens come after what is filled up, so that the pads end between tokens."""
    module, function, frame = pad.scope
    if pad.idiom not in {"list_concat", "tokenizer"} or pad.side == "left" or not isinstance(function, FunctionNode):
        return
    for node in own_nodes(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and not _is_fill(node.right):
            if _ends_in(entry, Expr(module, node.left, frame), pad.expr.node, 0):
                yield Contract("joined", module.hop(node, f"tokens come after the pads: {_line(module, node)}"))
                return


def _ends_in(entry: EntryFacts, expr: Expr, pad: ast.AST, depth: int) -> bool:
    """Say whether a list ends in what a padding operation added, cut or not."""
    node = expr.node
    if node is pad:
        return True
    if depth > _DEPTH:
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _ends_in(entry, expr.at(node.right), pad, depth + 1)
    if isinstance(node, ast.Subscript):
        key = node.slice
        whole = isinstance(key, ast.Slice) or (isinstance(key, ast.Constant) and isinstance(key.value, str))
        return whole and _ends_in(entry, expr.at(node.value), pad, depth + 1)
    if isinstance(node, ast.Name):
        return any(_ends_in(entry, found, pad, depth + 1) for found in followed(entry.values, expr))
    return False


def _is_fill(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult))


def _line(module: Module, node: ast.AST) -> str:
    return module.text(node).splitlines()[0][:60]


def _shapes(entry: EntryFacts, module: Module) -> dict[ast.AST, list[tuple[Kind, ast.AST]]]:
    """Return what looks like a contract in a file, by the function that holds it."""
    return shared(entry.project, f"contracts:{module.path}", lambda: _find_shapes(module))


def _find_shapes(module: Module) -> dict[ast.AST, list[tuple[Kind, ast.AST]]]:
    found: dict[ast.AST, list[tuple[Kind, ast.AST]]] = {}
    for node in module.nodes:
        kind = _shape(node)
        if kind is not None:
            found.setdefault(module.function(node) or module.tree, []).append((kind, node))
    return found


def _shape(node: ast.AST) -> Kind | None:
    if isinstance(node, ast.Assert) and any(isinstance(n, ast.Mod) for n in ast.walk(node.test)):
        return "multiple"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return "image" if "pad_token_id" in ast.unparse(node.targets[0].slice) else None
    if not isinstance(node, ast.Call):
        return None
    name = called_name(node)
    if name in _MATRICES and len(_dims(node)) == 2:
        return "square"
    if name in {"view", "reshape"} and len(node.args) == 2 and ast.unparse(node.args[0]) == "-1":
        return "folded"
    if name in {"masked_scatter", "masked_scatter_"} and node.args and "pad_token_id" in ast.unparse(node.args[0]):
        return "image"
    return "gathered" if name in _GATHERS else None


def _dims(node: ast.Call) -> list[ast.expr]:
    shape = call_argument(node, 0, "shape") or call_argument(node, 0, "size")
    if isinstance(shape, ast.Tuple | ast.List):
        return list(shape.elts)
    return list(node.args) if called_name(node) != "full" else []


def _square(entry: EntryFacts, scope: Scope, node: ast.AST) -> Iterator[Contract]:
    """Read `np.zeros((width, width))` beside the rows, and a matrix whose first side is the padded width."""
    assert isinstance(node, ast.Call)
    first, second = _dims(node)
    if not _is_sum_of_names(first) or not _is_sum_of_names(second) or role(entry, scope) not in _ROWS:
        return
    widths = {pad.length for pad in pads(entry) if pad.reach == "static"}
    if ast.unparse(first) != ast.unparse(second) and ast.unparse(first) not in widths:
        return
    if width(entry.values, Expr(scope[0], first, scope[2])) == "static":
        yield Contract("square", scope[0].hop(node, f"a matrix over the positions of a row: {_line(scope[0], node)}"))


def _is_sum_of_names(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_sum_of_names(node.left) and _is_sum_of_names(node.right)
    return isinstance(node, ast.Name | ast.Attribute)


def _folded(entry: EntryFacts, scope: Scope, node: ast.AST) -> Iterator[Contract]:
    """Read `ids.view(-1, width)` of what a forward gets, where `width` is what the rows are padded to."""
    assert isinstance(node, ast.Call)
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
    last = node.args[1]
    if not isinstance(receiver, ast.Name) or not isinstance(last, ast.Name | ast.Attribute):
        return
    if not _is_model(entry, scope) or not _is_parameter(scope[1], receiver.id):
        return
    names = {pad.length.rpartition(".")[2] for pad in pads(entry) if pad.reach == "static"}
    if ast.unparse(last).rpartition(".")[2] in names:
        yield Contract("folded", scope[0].hop(node, f"the model folds by the padded width: {_line(scope[0], node)}"))


def _is_parameter(node: ast.AST, name: str) -> bool:
    return isinstance(node, FunctionNode) and any(argument.arg == name for argument in node.args.args)


def _image(entry: EntryFacts, scope: Scope, node: ast.AST) -> Iterator[Contract]:
    """Read `embeds[ids == config.pad_token_id] = features`, not labels that are masked by a number."""
    if not _is_model(entry, scope):
        return
    if isinstance(node, ast.Assign):
        expr = Expr(scope[0], node.value, scope[2])
        if not isinstance(node.value, ast.Name | ast.Call) or isinstance(entry.values.one(expr), Const):
            return
    yield Contract("image", scope[0].hop(node, f"pads stand for other features: {_line(scope[0], node)}"))


def _multiple(entry: EntryFacts, scope: Scope, node: ast.AST) -> Iterator[Contract]:
    """Read `assert length % window == 0` in a model, where `length` is the second size of a tensor."""
    assert isinstance(node, ast.Assert)
    for part in ast.walk(node.test):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            if _is_second_size(scope[0], part.left) and _is_model(entry, scope) and not _fills_windows(scope[0]):
                text = _line(scope[0], node.test)
                yield Contract("multiple", scope[0].hop(node, f"the model takes a multiple of a window: {text}"))


def _fills_windows(module: Module) -> bool:
    """Say whether a file fills rows up to a whole window by itself: `(window - length % window) % window`."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and isinstance(node.left, ast.BinOp)
        and isinstance(node.left.op, ast.Sub)
        and isinstance(node.left.right, ast.BinOp)
        and isinstance(node.left.right.op, ast.Mod)
        for node in module.nodes
    )


def _is_second_size(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        found = reaching(module, module.scope(node), node.id, node)
        return any(b.unpack == (1,) and b.value is not None and _is_size(b.value) for b in found)
    if isinstance(node, ast.Subscript):
        return _is_size(node.value) and ast.unparse(node.slice) == "1"
    return _is_size(node) and isinstance(node, ast.Call) and [ast.unparse(a) for a in node.args] == ["1"]


def _is_size(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "shape") or (
        isinstance(node, ast.Call) and called_name(node) == "size"
    )


def _gathered(entry: EntryFacts, scope: Scope, node: ast.AST) -> Iterator[Contract]:
    """Read an `all_gather` of token ids: of a field that goes to a model as `input_ids`."""
    assert isinstance(node, ast.Call)
    given = {ast.unparse(a) for a in (*node.args, *(k.value for k in node.keywords))}
    if not any(isinstance(callee, Ext | Attr) for callee in entry.values.of(Expr(scope[0], node.func, scope[2]))):
        return
    if _is_model(entry, scope) and given & _token_fields(scope[1]):
        yield Contract("gathered", scope[0].hop(node, f"tokens are gathered over ranks: {_line(scope[0], node)}"))


def _token_fields(function: ast.AST) -> set[str]:
    """Return what a function hands on as token ids, as written."""
    return {
        ast.unparse(k.value)
        for node in own_nodes(function)
        if isinstance(node, ast.Call)
        for k in node.keywords
        if k.arg in _TOKENS
    }


_READERS = {
    "square": _square,
    "folded": _folded,
    "image": _image,
    "multiple": _multiple,
    "gathered": _gathered,
}
