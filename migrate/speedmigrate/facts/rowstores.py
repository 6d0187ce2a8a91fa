"""What changes a list or array of a row in place: appending until it is full, filling a canvas, choosing by a mask."""

from __future__ import annotations

import ast
from dataclasses import replace

from speedmigrate.facts.rowcalls import Calls
from speedmigrate.facts.rowfills import side_of
from speedmigrate.facts.rowvalue import Abstract, Number, Run, Seq, Side, is_position, reads


class Stores(Calls):
    """Evaluates the statements that change a sequence where it is."""

    def grow(self, name: str, value: Seq, node: ast.stmt) -> None:
        """`ids += pads`, `ids.extend(pads)`: whatever else the list is called grows too."""
        old = self.env[name]
        assert isinstance(old, Seq)
        self.rebind(old, self.join_ends(old, value, node, None))

    def padding_loop(self, node: ast.For | ast.While) -> bool:
        """`while len(ids) < max_length: ids.append(pad)`, `for _ in range(gap): ids.append(pad)`."""
        grown = [appended(statement) for statement in node.body]
        found = [each for each in grown if each is not None]
        names = [name for name, _, _ in found]
        room = self.room(node, names)
        if room is None or len(found) < len(grown) or len(set(names)) < len(names) or node.orelse:
            return False
        locals_ = {*names, *(ast.unparse(node.target) if isinstance(node, ast.For) else "",)}
        if any(reads(value, locals_) for _, value, _ in found):
            return False
        lists = [self.env.get(name) for name in names]
        if not all(isinstance(each, Seq) and not each.runs and not each.array for each in lists):
            return False
        self.drop(node, None)
        for name, value, side in found:
            old = self.env[name]
            assert isinstance(old, Seq)
            run = Run(side, self.expr(value), room.value)
            self.rebind(old, replace(old, length=old.length.plus(room.value), runs=(run,), pure=False))
        return True

    def room(self, node: ast.For | ast.While, names: list[str]) -> Number | None:
        """Return how often a padding loop runs, None where that is not the gap to a fixed length."""
        if isinstance(node, ast.For):
            room = self.counted(node.iter)
            return room if room is not None and room.value.is_gap and not room.padded else None
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        short, full = test.left, test.comparators[0]
        if isinstance(test.ops[0], ast.Gt):
            short, full = full, short
        elif not isinstance(test.ops[0], ast.Lt | ast.NotEq):
            return None
        if ast.unparse(short) not in {f"len({name})" for name in names}:
            return None
        length, bound = self.eval(short), self.eval(full)
        if not isinstance(length, Number) or not isinstance(bound, Number) or length.padded or bound.padded:
            return None
        room = Number(bound.value.plus(length.value, -1))
        return room if room.value.is_gap else None

    def store_into(self, target: ast.Subscript, node: ast.expr) -> bool:
        """`ids[:n] = tokens`, `ids[~real] = 0`; False where this is not one that is followed."""
        owner = self.env.get(target.value.id) if isinstance(target.value, ast.Name) else None
        if not isinstance(owner, Seq) or not (owner.runs or owner.canvas is not None):
            return False
        value = self.eval(node)
        if isinstance(value, Seq) and (value.runs or value.canvas is not None):
            return False
        if not isinstance(target.slice, ast.Slice):
            test = self.eval(target.slice)
            found = self.chosen(owner, test, node) if isinstance(value, Number) else None
        elif target.slice.step is not None:
            return False
        elif owner.canvas is not None:
            found = self.filled(owner, target.slice)
        else:
            found = self.covered(owner, target.slice, node if isinstance(value, Number) else None)
        if found is not None:
            self.mutated(owner, target)
            self.rebind(owner, found)
        return found is not None

    def bounds(self, at: ast.Slice) -> tuple[Abstract | None, Abstract | None]:
        lower = None if at.lower is None else self.eval(at.lower)
        return lower, None if at.upper is None else self.eval(at.upper)

    def filled(self, owner: Seq, at: ast.Slice) -> Seq | None:
        """A canvas that is filled up to `n` may be made `n` long from the start."""
        end = side_of(*self.bounds(at))
        written = at.upper if at.upper is not None else at.lower
        canvas = owner.canvas
        if end is None or written is None or canvas is None:
            return None
        side, length = end
        if side == "left":
            written = written.operand if isinstance(written, ast.UnaryOp) else None
        if written is None or length.padded or length.value.is_fixed or length != self.earlier(owner, written):
            return None
        gap = Number(owner.length.plus(length.value, -1))
        if not gap.value.is_gap:
            return None
        self.drop(canvas.size, written)
        run = Run(side, canvas.value, gap.value)
        return replace(owner, runs=(run,), wide=False, canvas=None)

    def earlier(self, owner: Seq, node: ast.expr) -> Abstract:
        """Return what an expression was where the canvas was made."""
        assert owner.canvas is not None
        now, self.env = self.env, dict(owner.canvas.env)
        found = self.eval(node)
        self.env = now
        return found

    def covered(self, owner: Seq, at: ast.Slice, scalar: ast.expr | None) -> Seq | None:
        """A part of a padded sequence is set: real positions, or the pads to one value."""
        lower, upper = self.bounds(at)
        if len(owner.runs) != 1 or owner.runs[0].side == "left" or owner.start or owner.stop:
            return None
        if not all(bound is None or is_position(bound) for bound in (lower, upper)):
            return None
        real = owner.length.plus(owner.runs[0].width, -1)
        if isinstance(upper, Number) and upper.value == real:
            return owner
        if scalar is None:
            return None
        if lower is None or self.is_pad(owner.runs[0], scalar):
            return owner
        return replace(owner, runs=(replace(owner.runs[0], value=self.expr(scalar)),)) if upper is None else None

    def is_pad(self, run: Run, node: ast.expr) -> bool:
        number = self.number(node)
        return self.is_same(run.value.node, node) if number is None else self.is_constant(run, number)


def appended(node: ast.stmt) -> tuple[str, ast.expr, Side] | None:
    """Return the list that a statement puts one value at an end of, the value and the end."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name) or call.keywords:
            return None
        name = call.func.value.id
        if call.func.attr == "append" and len(call.args) == 1:
            return name, call.args[0], "right"
        if call.func.attr == "insert" and len(call.args) == 2 and ast.unparse(call.args[0]) == "0":
            return name, call.args[1], "left"
        one = _only(call.args[0]) if call.func.attr == "extend" and len(call.args) == 1 else None
        return None if one is None else (name, one, "right")
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and isinstance(node.op, ast.Add):
        one = _only(node.value)
        return None if one is None else (node.target.id, one, "right")
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
        return None
    name, value = node.targets[0].id, node.value
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    for own, other, side in ((value.left, value.right, "right"), (value.right, value.left, "left")):
        one = _only(other)
        if isinstance(own, ast.Name) and own.id == name and one is not None:
            return name, one, "right" if side == "right" else "left"
    return None


def _only(node: ast.expr) -> ast.expr | None:
    """Return the value of a list of one."""
    return node.elts[0] if isinstance(node, ast.List) and len(node.elts) == 1 else None
