"""Walk shell scripts from the top, as a shell would run them, and collect the commands that they start."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from speedmigrate.launch.expand import Expander, Tree, assign
from speedmigrate.launch.paths import join
from speedmigrate.launch.state import Command, State, join_branches
from speedmigrate.launch.words import Chunk, Place, Text, Word
from speedmigrate.launch.written import below, written

if TYPE_CHECKING:
    from tree_sitter import Node

_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_PREFIXES = {"exec", "nohup", "time", "sudo", "command", "builtin", "srun", "sbatch", "qsub", "bsub", "env", "stdbuf"}
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
# A line with those that it continues on, and what starts Python in one.
LINE = re.compile(r"(?:[^\\\n]|\\(?:\r\n|.|\n))+")
_PYTHON = re.compile(r"\.py\b|\s-m\s")
_DEPTH = 6
_STEPS = 5_000


@dataclass(slots=True)
class Walker:
    """Runs one script on paper.

    Attributes:
        tree_of: the tree of a shell file of the root, None if it is not one.
        find: the path in the root that a script means, given the text and the current folder.
    """

    tree_of: Callable[[str], Tree | None]
    line_of: Callable[[str, int], int]
    find: Callable[[str, str], str | None]
    commands: list[Command] = field(default_factory=list)
    heredocs: list[tuple[Word, Place]] = field(default_factory=list)
    functions: dict[str, tuple[Tree, Node]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    via: tuple[str, ...] = ()
    depth: int = 0
    steps: int = 0

    def run(self, path: str, tree: Tree) -> None:
        """Walk a script and then the functions that nothing in it calls."""
        state = State(path)
        self.walk(tree, tree.root, state)
        for name, (owner, body) in list(self.functions.items()):
            if name not in self.called:
                self.walk(owner, body, state.copy())
        self._salvage(path, tree)

    def _salvage(self, path: str, tree: Tree) -> None:
        """Walk the lines that a syntax error elsewhere swallowed, each as a script of its own."""
        seen = {(command.path, command.line) for command in self.commands}
        for start, end in tree.broken:
            for line in LINE.finditer(tree.text.text, start, end):
                place = tree.text.place(*line.span())
                if _PYTHON.search(line.group()) and place and (path, self.line_of(*place[:2])) not in seen:
                    self._text(tree.text.pieces(*line.span()), State(path))

    def walk(self, tree: Tree, node: Node, state: State) -> None:
        """Run one node in a state, which it changes."""
        kind = node.type
        self.steps += 1
        if self.steps > _STEPS:
            return
        if kind in ("command", "declaration_command", "variable_assignment", "function_definition"):
            self._simple(tree, node, state)
        elif kind == "redirected_statement":
            self._redirected(tree, node, state)
        elif kind in ("if_statement", "case_statement"):
            self._branches(tree, node, state)
        elif kind == "list" and node.child_count == 3:
            self.walk(tree, node.children[0], state)
            self._maybe(tree, [node.children[2]], state)
        elif kind == "subshell":
            self._each(tree, node.named_children, state.copy())
        elif kind == "for_statement":
            name = tree.source(node.named_children[0])
            state.variables[name] = (Word((Chunk(None, "", -1, name=f"${name}"),)),)
            self._each(tree, node.named_children[1:], state)
        elif kind not in ("comment", "test_command", "heredoc_body", "unset_command"):
            self._each(tree, node.named_children, state)

    def _each(self, tree: Tree, nodes: Iterable[Node], state: State) -> None:
        for node in nodes:
            self.walk(tree, node, state)

    def _simple(self, tree: Tree, node: Node, state: State) -> None:
        if node.type == "command":
            self._command(tree, node, (), state)
        elif node.type == "variable_assignment":
            assign(tree, node, state)
        elif node.type == "function_definition":
            self.functions[tree.source(node.named_children[0])] = tree, node.named_children[-1]
        else:
            exports = tree.source(node).startswith("export") or " -x" in tree.source(node)
            for child in node.named_children:
                name = assign(tree, child, state) if child.type == "variable_assignment" else tree.source(child)
                if exports and child.type in ("variable_assignment", "variable_name"):
                    state.exported.add(name)

    def _branches(self, tree: Tree, node: Node, state: State) -> None:
        """Run each branch of an `if` or `case` from the same state."""
        branches: list[list[Node]] = [[]]
        total = False
        for child in node.children:
            if child.type in ("elif_clause", "else_clause", "case_item"):
                branches.append(list(child.named_children[1 if child.type == "case_item" else 0 :]))
                pattern = tree.source(child.named_children[0]) if child.named_children else ""
                total = total or child.type == "else_clause" or (child.type == "case_item" and pattern == "*")
            elif child.is_named:
                branches[0].append(child)
        ends = []
        for branch in branches if node.type == "if_statement" else branches[1:]:
            end = state.copy()
            self._each(tree, branch, end)
            ends.append(end)
        join_branches(state, ends if total else [*ends, state.copy()])

    def _maybe(self, tree: Tree, nodes: Sequence[Node], state: State) -> None:
        end = state.copy()
        self._each(tree, nodes, end)
        join_branches(state, [state.copy(), end])

    def _redirected(self, tree: Tree, node: Node, state: State) -> None:
        redirects = [child for child in node.named_children if child.type.endswith("_redirect")]
        heredocs = [child for child in redirects if child.type == "heredoc_redirect"]
        extra: list[Node] = []
        for redirect in below(redirects, "file_redirect"):
            extra += [child for child in redirect.named_children if child.type != "file_descriptor"][1:]
        for child in node.named_children:
            if child.type == "command":
                self._command(tree, child, extra, state)
                self._written(tree, child, redirects, state)
            elif child not in redirects:
                self.walk(tree, child, state)
        for heredoc in heredocs:
            self._each(tree, [child for child in heredoc.named_children if child.type == "pipeline"], state)

    def _written(self, tree: Tree, command: Node, redirects: list[Node], state: State) -> None:
        """Note the files that a command writes; run a heredoc that is given to a shell or becomes a script."""
        made = written(Expander(tree, state), command, redirects)
        self.heredocs += [(target, place) for target in made.targets for place in made.places]
        if made.command in _SHELLS | {"sbatch", "qsub", "ssh"} or any(t.text.endswith(_SCRIPTS) for t in made.targets):
            for body in below(redirects, "heredoc_body"):
                self._text(tree.text.pieces(*tree.span(body)), state.copy())

    def _text(self, chunks: Iterable[Chunk], state: State) -> None:
        """Run text that `eval`, `bash -c` or a heredoc gives to a shell."""
        if self.depth < _DEPTH:
            self.depth += 1
            tree = Tree(Text(chunks))
            self.walk(tree, tree.root, state)
            self.depth -= 1

    def _command(self, tree: Tree, node: Node, extra: Sequence[Node], state: State) -> None:
        assigned = state if _ends_line(tree, node) else state.copy()
        expander = Expander(tree, state)
        local: set[str] = set()
        words: list[Word] = []
        for child in (*node.named_children, *extra):
            if child.type == "variable_assignment":
                local.add(assign(tree, child, assigned))
            elif not child.type.endswith("_redirect"):
                words += expander.words(child)
        if not words:
            state.variables = assigned.variables
            return
        while len(words) > 1 and words[0].text in ("exec", "command", "builtin"):
            words = words[1:]
        if not self._builtin(words, state) and not self._script(words, state):
            env = {
                key: assigned.variables[key][0] for key in sorted(state.exported | local) if assigned.variables.get(key)
            }
            start, end = tree.span(node)
            place = tree.text.place(start, end) or tree.text.place(start, start + 1)
            path = place.path if place else state.script
            line = self.line_of(place.path, place.start) if place else 0
            self.commands.append(Command(tuple(words), path, line, state.folder, env, self.via, tuple(self.heredocs)))

    def _builtin(self, words: list[Word], state: State) -> bool:
        """Run a command that changes the shell itself, or a function of the script."""
        name, rest = words[0].text, words[1:]
        if name in ("cd", "pushd"):
            state.folder = join(state.folder, rest[-1].text) if rest else "\0"
        elif name in ("exit", "return"):
            state.dead = True
        elif name == "shift":
            state.args = state.args and state.args[int(rest[0].text) if rest and rest[0].text.isdigit() else 1 :]
        elif name == "eval":
            blank = Chunk(" ", "", -1)
            self._text((chunk for word in rest for chunk in (*word.chunks, blank)), state)
        elif name == "read":
            for word in rest:
                state.variables.pop(word.text, None)
        elif name in self.functions and self.depth < _DEPTH:
            self.called.add(name)
            outer, state.args = state.args, tuple(rest)
            self.depth += 1
            self.walk(*self.functions[name], state)
            self.depth -= 1
            state.args, state.dead = outer, False
        else:
            return False
        return True

    def _script(self, words: list[Word], state: State) -> bool:
        """Run another script of the root: sourced, given to a shell, or called by its path."""
        if words[0].text in ("source", "."):
            return len(words) > 1 and self._call(words[1], words[2:], state, keep=True)
        for number, word in enumerate(words):
            name = posixpath.basename(word.text)
            if name in _SHELLS:
                return self._shell(words[number + 1 :], state.copy())
            if name.endswith(_SCRIPTS):
                return self._call(word, words[number + 1 :], state.copy())
            if name not in _PREFIXES if number == 0 else name.endswith(".py") or name.startswith("python"):
                return False
        return False

    def _shell(self, words: Sequence[Word], state: State) -> bool:
        """Run what follows `bash`: a script, or text after `-c`."""
        options = list(itertools.takewhile(lambda word: word.text.startswith("-"), words))
        rest = words[len(options) :]
        if rest and any(word.text[1:2] != "-" and "c" in word.text for word in options):
            self._text(rest[0].chunks, state)
            return True
        return bool(rest) and self._call(rest[0], rest[1:], state)

    def _call(self, word: Word, args: Sequence[Word], state: State, *, keep: bool = False) -> bool:
        path = self.find(word.text, state.folder)
        tree = self.tree_of(path) if path and self.depth < _DEPTH else None
        if path is None or tree is None or path == state.script or path in self.via:
            return False
        outer, self.via = (self.via, state.script, state.args), (*self.via, path)
        state.script = path
        if args or not keep:
            state.args = tuple(args)
        self.depth += 1
        self.walk(tree, tree.root, state)
        self.depth -= 1
        self.via, state.script, state.args = outer
        state.dead = False
        return True


def _ends_line(tree: Tree, command: Node) -> bool:
    """Say whether the assignments before a command are a line of their own (tree-sitter-bash 0.25 joins the two)."""
    assignments = [child for child in command.named_children if child.type == "variable_assignment"]
    name = command.child_by_field_name("name")
    if not assignments or name is None:
        return False
    between = tree.text.text[tree.span(assignments[-1])[1] : tree.span(name)[0]]
    return bool(re.search(r"(?<!\\)(?<!\\\r)\n", between))
