"""Calls in the code that makes rows: functions and classes of the root, tokenizers, what torch and numpy do to rows."""

from __future__ import annotations

import ast

from speedmigrate.chain.cells import Cell, Fill, concatenated, filled, joined, other, tokens
from speedmigrate.chain.row_sequences import Sequences
from speedmigrate.facts.module import FunctionNode
from speedmigrate.facts.reaching import all_arguments
from speedmigrate.facts.syntax import call_argument, called_name
from speedmigrate.facts.value import Cls, Ext, Frame, Func, Inst, Value

# Give what they get, as tensors, arrays or lists, in another type or shape.
_SAME = frozenset(
    "tensor LongTensor FloatTensor IntTensor BoolTensor as_tensor from_numpy array asarray list tuple Tensor stack "
    "squeeze unsqueeze long float int bool to cuda cpu type contiguous numpy tolist flatten view reshape astype "
    "item vstack detach byte LongStorage int64 convert_to_tensors data".split()
)
# Those of them that hold their own data.
_ANEW = frozenset({"tensor", "LongTensor", "FloatTensor", "array", "list", "tuple", "astype", "stack"})
_COPIES = frozenset({"clone", "copy", "deepcopy"})
_CATS = frozenset({"cat", "concat", "concatenate", "hstack", "chain"})
_COMPARING = frozenset({"eq", "ne", "gt", "ge", "lt", "le", "not_equal", "equal"})
_NUMBERS = frozenset(
    "len sum max min item size index count numel argmax any all print nonzero argwhere isinstance mean dim join split "
    "strip format lower replace decode randint random choice shuffle shape arange".split()
)
_ENCODING = frozenset(
    "encode tokenize convert_tokens_to_ids encode_ordinary encode_as_ids EncodeAsIds apply_chat_template "
    "build_inputs_with_special_tokens create_token_type_ids_from_sequences truncate_sequences".split()
)
_TOLD = frozenset({"padding", "truncation", "return_tensors", "pad_to_max_length", "add_special_tokens", "max_length"})
_FULL = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1, "empty": None}


class Calls(Sequences):
    """Evaluates calls."""

    def _call(self, node: ast.Call) -> Cell:
        name = called_name(node)
        callees = self.entry.values.of(self.expr(node.func))
        for callee in callees:
            if isinstance(callee, Func):
                return self.call_function(node, callee)
            if isinstance(callee, Cls):
                return self.made(node, callee)
            if isinstance(callee, Inst) and isinstance(callee.of, Cls):
                method = self.entry.values.method(callee.of, "__call__")
                if method is not None:
                    return self.call_function(node, Func(method.module, method.node, callee, method.outer))
        if node in self.padded and self.padded[node].idiom == "tokenizer":
            return self.encoded(node, self.length(self.padded[node]) or "max_length")
        if name == "__init__":
            return self.base_init(node)
        known = self.known(node, name, callees)
        if known is not None:
            return known
        if _is_tokenizer(node, name, callees):
            return self.encoded(node, "")
        if name in _ENCODING:
            return tokens()
        return self.computed(self.arguments(node))

    def arguments(self, node: ast.Call) -> list[Cell]:
        cells = [self.eval(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        cells += [self.eval(keyword.value) for keyword in node.keywords]
        return cells + ([self.eval(node.func.value)] if isinstance(node.func, ast.Attribute) else [])

    def call_function(self, node: ast.Call, func: Func) -> Cell:
        frame = Frame(func, self.expr(node), func.receiver)
        return self.inline(func, frame, self.given(node, func))

    def given(self, node: ast.Call, func: Func) -> dict[str, Cell]:
        """Return the cells of the parameters of a function at a call."""
        names = [argument.arg for argument in (*func.node.args.posonlyargs, *func.node.args.args)]
        given: dict[str, Cell] = {}
        if func.receiver is not None and names:
            owner = self.eval(node.func.value) if isinstance(node.func, ast.Attribute) else other()
            given[names[0]] = owner
            names = names[1:]
        for name, argument in zip(names, node.args, strict=False):
            if isinstance(argument, ast.Starred):
                break
            given[name] = self.eval(argument)
        known = {argument.arg for argument in all_arguments(func.node.args)}
        for keyword in node.keywords:
            cell = self.eval(keyword.value)
            if keyword.arg in known:
                given[keyword.arg] = cell
            elif keyword.arg is None:
                given.update({str(key): inner for key, inner in cell.items.items() if key in known})
        return given

    def inline(self, func: Func, frame: Frame, given: dict[str, Cell]) -> Cell:
        raise NotImplementedError

    def made(self, node: ast.Call, cls: Cls) -> Cell:
        """Return the object that a class of the root makes: its attributes, or the fields of a dataclass or tuple."""
        result = Cell("record")
        result.is_object = True
        init = self.entry.values.method(cls, "__init__")
        if init is not None:
            func = Func(init.module, init.node, Inst(cls, self.expr(node)), init.outer)
            names = [argument.arg for argument in init.node.args.args]
            pairs = zip(names[1:], node.args, strict=False)
            env = {name: self.eval(a) for name, a in pairs if not isinstance(a, ast.Starred)}
            env |= {k.arg: self.eval(k.value) for k in node.keywords if k.arg in names and k.arg is not None}
            if names:
                env[names[0]] = result
            self.inline(func, Frame(func, self.expr(node), func.receiver), env)
            return result
        fields = [n.target.id for n in cls.node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        for name, argument in zip(fields, node.args, strict=False):
            result.items[name] = self.eval(argument)
        for keyword in node.keywords:
            if keyword.arg is not None:
                result.items[keyword.arg] = self.eval(keyword.value)
        return result

    def base_init(self, node: ast.Call) -> Cell:
        """Read `super().__init__(...)` of a class of the root with the same object."""
        receiver = self.frame.receiver if self.frame is not None else None
        if isinstance(receiver, Inst) and isinstance(receiver.of, Cls) and self.frame is not None:
            bases = [base for base in self.entry.values.mro(receiver.of) if isinstance(base, Cls)]
            own = self.module.parents.get(self.frame.func.node)
            later = [b for i, b in enumerate(bases) if any(before.node is own for before in bases[:i])]
            for base in later:
                for method in base.node.body:
                    if isinstance(method, FunctionNode) and method.name == "__init__":
                        func = Func(base.module, method, receiver, base.outer)
                        first = self.frame.func.node.args.args[0].arg
                        names = [argument.arg for argument in method.args.args]
                        pairs = zip(names[1:], node.args, strict=False)
                        given = {n: self.eval(a) for n, a in pairs if not isinstance(a, ast.Starred)}
                        given |= {k.arg: self.eval(k.value) for k in node.keywords if k.arg in names and k.arg}
                        given[names[0]] = self.env.get(first, other())
                        return self.inline(func, Frame(func, self.expr(node), receiver), given)
        return other()

    def encoded(self, node: ast.Call, width: str) -> Cell:
        """Return a tokenizer's output; `width` where it pads to a fixed length."""
        name = called_name(node)
        owner: ast.expr = node.func
        methods = {"encode", "encode_plus", "batch_encode_plus", "prepare_for_model", "pad", "__call__", "tokenize",
                   "_encode_plus", "build_chat_input", "apply_chat_template"}  # fmt: skip
        if isinstance(owner, ast.Attribute) and owner.attr in methods:
            owner = owner.value
        levels = 2 if call_argument(node, None, "return_tensors") is not None or self.is_batch(node) else 1
        hop = self.module.hop(node, "tokens are made")
        cell = Cell("encoded", tokenizer=self.expr(owner), width=width, levels=levels, hop=hop)
        if name in {"encode", "apply_chat_template", "tokenize"}:
            return self.encoded_field(cell, "input_ids")
        if name == "pad" and node.args:
            cell.items.update(self.eval(node.args[0]).items)
        return cell

    def is_batch(self, node: ast.Call) -> bool:
        """Say whether a tokenizer gets several texts, as far as that is written at the call."""
        first = node.args[0] if node.args else call_argument(node, None, "text")
        return isinstance(first, ast.List | ast.ListComp) or (first is not None and self.eval(first).kind == "list")

    def known(self, node: ast.Call, name: str, callees: tuple[Value, ...]) -> Cell | None:
        """Read what is known by its name in torch, numpy, Python: whose names are methods of tokens, too."""
        outside = [callee.name for callee in callees if isinstance(callee, Ext)]
        subject = self.subject(node, bool(outside))
        if name in _COPIES and subject is not None:
            return self.eval(subject).copied()
        if name in _SAME and subject is not None:
            return self.same(node, name, subject)
        if name in _CATS:
            return self.cat(node)
        if name in _FULL or name in {"full", "full_like", "new_full"}:
            return self.full(node, name)
        if name == "pad" and node in self.padded and self.padded[node].idiom in {"np_pad", "F_pad"}:
            value = call_argument(node, 3, "value") or call_argument(node, 3, "constant_values")
            pad = self.padded[node]
            return tokens(self.constant(value) if value is not None else Fill(0), pad.side, self.length(pad))
        if name in {"range", "arange"} and node.args:
            return self.counting(node.args[-1])
        if name in _COMPARING and subject is not None:
            operand = node.args[-1] if node.args else subject
            return self.compared(self.eval(subject), name[:2], self.eval(operand), operand)
        return self.changed(node, name, subject)

    def changed(self, node: ast.Call, name: str, subject: ast.expr | None) -> Cell | None:
        """Read what changes a value in place, or chooses between two."""
        if name in {"append", "extend", "add", "insert"} and isinstance(node.func, ast.Attribute) and node.args:
            return self.grown(node, name)
        if name in {"masked_fill", "masked_fill_"} and subject is not None and len(node.args) > 1:
            cell, mask = self.eval(subject), self.eval(node.args[0])
            hit = mask.fill is not None and mask.fill.constant is True
            fill = self.constant(node.args[1]) if hit else cell.fill
            if name.endswith("_"):
                cell.held.fill = fill
                return cell
            return filled(cell, fill)
        if name == "where" and len(node.args) == 3:
            mask, one, two = (self.eval(argument) for argument in node.args)
            if mask.has_tokens and mask.fill is not None and isinstance(mask.fill.constant, bool):
                chosen, at = (one, node.args[1]) if mask.fill.constant else (two, node.args[2])
                return filled(mask, chosen.fill if chosen.fill is not None else self.constant(at))
            return self.computed([mask, one, two])
        if name in {"dict", "OrderedDict", "BatchEncoding", "DotDict", "EasyDict"} and isinstance(node.func, ast.Name):
            return self.record(node)
        if name == "update" and isinstance(node.func, ast.Attribute) and node.args:
            owner = self.eval(node.func.value)
            if owner.kind in {"record", "encoded", "other"}:
                owner.held.kind = "record" if owner.kind == "other" else owner.kind
                owner.items.update(self.eval(node.args[0]).items)
                return other()
        if name == "setdefault" and isinstance(node.func, ast.Attribute) and len(node.args) == 2:
            owner, key = self.eval(node.func.value), self.key(node.args[0])
            if owner.kind == "record" and isinstance(key, str):
                return owner.items.setdefault(key, self.eval(node.args[1]))
        if name in {"pop", "get"} and isinstance(node.func, ast.Attribute) and node.args:
            owner, key = self.eval(node.func.value), self.key(node.args[0])
            if owner.kind in {"record", "encoded"} and isinstance(key, str):
                cell = self.field(owner, key, node)
                if name == "pop":
                    owner.items.pop(key, None)
                return cell
        if name in {"map", "imap", "starmap"} and len(node.args) >= 2:
            return self.mapped(node)
        if name in _NUMBERS or (name == "where" and len(node.args) == 1):
            return other()
        return None

    def mapped(self, node: ast.Call) -> Cell | None:
        """Read `pool.map(make_row, records)` and `map(make_row, records)`: rows that a function of the root makes."""
        for callee in self.entry.values.of(self.expr(node.args[0])):
            if isinstance(callee, Func):
                names = [argument.arg for argument in callee.node.args.args]
                owner = node.args[0].value if isinstance(node.args[0], ast.Attribute) else None
                is_method = callee.receiver is not None and owner is not None and names
                given = {names[0]: self.eval(owner)} if is_method and owner is not None else {}
                names = names[len(given) :]
                given |= {names[0]: self.iterated(node.args[1])} if names else {}
                row = self.inline(callee, Frame(callee, None, callee.receiver), given)
                return row.view(row.levels + 1) if row.kind in {"tokens", "mixed"} else Cell("list", element=row)
        return None

    def subject(self, node: ast.Call, is_function: bool) -> ast.expr | None:
        """Return what a call works on: the first argument of a function, the owner of a method."""
        if isinstance(node.func, ast.Attribute) and not is_function:
            return node.func.value
        first = call_argument(node, 0, "data") or (node.args[0] if node.args else None)
        return first.value if isinstance(first, ast.Starred) else first

    def same(self, node: ast.Call, name: str, subject: ast.expr) -> Cell:
        cell = self.eval(subject)
        if cell.kind == "record" and cell.is_tuple and name in {"stack", "tensor", "array", "LongTensor"}:
            return self.part(Cell("list", element=self.iterated(subject)), 0)
        if cell.kind == "list" and cell.element is not None and cell.element.kind in {"tokens", "filler", "mixed"}:
            return cell.element.view(cell.element.levels + 1)
        if name in _ANEW:
            return cell.copied()
        if name in {"squeeze", "flatten"} or (name in {"view", "reshape"} and _is_flat(node)):
            return cell.view(1)
        if name in {"view", "reshape"} and len(node.args) > 1:
            return cell.view(len(node.args))
        return cell.view(cell.levels + 1) if name == "unsqueeze" else cell

    def cat(self, node: ast.Call) -> Cell:
        first = node.args[0] if node.args else None
        parts = first.elts if isinstance(first, ast.List | ast.Tuple) else node.args
        if isinstance(first, ast.List | ast.Tuple) and any(isinstance(p, ast.Starred) for p in parts):
            return self.computed(self.arguments(node))
        cells = [self.eval(part) for part in parts if not isinstance(part, ast.Starred)]
        pad = self.padded.get(node)
        if pad is not None and cells and pad.idiom == "cat":
            end = cells[0] if pad.side == "left" else cells[-1]
            return tokens(end.fill, pad.side, self.length(pad))
        if not isinstance(first, ast.List | ast.Tuple):
            return cells[0] if cells else other()
        return concatenated([c if c.kind != "other" else tokens() for c in cells])

    def full(self, node: ast.Call, name: str) -> Cell:
        if name in {"full", "full_like", "new_full"}:
            value = call_argument(node, 1, "fill_value")
            fill = self.constant(value) if value is not None else None
        else:
            number = _FULL[name]
            fill = None if number is None else Fill(number)
        pad = self.padded.get(node)
        like = self.eval(node.args[0]) if name.endswith("_like") and node.args else self.sized(node)
        if like is not None and like.has_tokens:
            return Cell("tokens", fill, like.side, like.width)
        if pad is not None:
            return tokens(fill, pad.side, self.length(pad))
        width = self.counted(node.args[0]) if len(node.args) == 1 and name in {"zeros", "ones"} else ""
        return tokens(fill, width=width) if width else Cell("filler", fill)

    def sized(self, node: ast.Call) -> Cell | None:
        """Return the tokens whose size a tensor is made with: `torch.ones(labels.shape)`."""
        size = node.args[0] if len(node.args) == 1 else None
        if isinstance(size, ast.Call) and called_name(size) in {"size", "len"}:
            owner = size.func.value if isinstance(size.func, ast.Attribute) else size.args[0] if size.args else None
        else:
            owner = size.value if isinstance(size, ast.Attribute) and size.attr == "shape" else None
        return None if owner is None else self.eval(owner)

    def grown(self, node: ast.Call, name: str) -> Cell:
        """Read `rows.append(row)` and `ids.extend(more)`."""
        assert isinstance(node.func, ast.Attribute)
        owner, added = self.eval(node.func.value), self.eval(node.args[-1])
        if name == "extend" and owner.kind in {"tokens", "list", "filler"}:
            owner.become(concatenated([owner, added]))
        elif owner.kind == "list" and added.kind in {"tokens", "mixed", "filler"}:
            owner.become(added.copied())
            owner.levels = added.levels + 1
        elif owner.kind == "list":
            owner.element = joined(owner.element, added)
        elif owner.kind == "tokens" and owner.fill is None and added.fill is not None and added.kind == "tokens":
            levels = owner.levels
            owner.become(added.copied())
            owner.levels = levels
        return other()

    def record(self, node: ast.Call) -> Cell:
        result = Cell("record")
        if node.args:
            base = self.eval(node.args[0])
            result.items.update(base.items)
            result.tokenizer, result.held.kind = base.tokenizer, base.kind if base.kind == "encoded" else "record"
            result.held.width, result.levels = base.width, base.levels
        for keyword in node.keywords:
            cell = self.eval(keyword.value)
            if keyword.arg is None:
                result.items.update(cell.items)
                result.tokenizer = result.tokenizer or cell.tokenizer
            else:
                result.items[keyword.arg] = cell
        return result


def _is_flat(node: ast.Call) -> bool:
    return [ast.unparse(argument) for argument in node.args] == ["-1"]


def _is_tokenizer(node: ast.Call, name: str, callees: tuple[Value, ...]) -> bool:
    """Say whether a call is one of a tokenizer, by what only tokenizers take."""
    if any(isinstance(callee, Ext) for callee in callees):
        return False
    words = {keyword.arg for keyword in node.keywords}
    if name in {"encode_plus", "batch_encode_plus", "prepare_for_model"}:
        return True
    if any(isinstance(v, Inst) and isinstance(v.of, Ext) and "Tokenizer" in v.of.name for v in callees):
        return True
    return len(words & _TOLD) > 0 and any(w in words for w in ("truncation", "padding", "return_tensors"))
