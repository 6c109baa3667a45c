"""What mutation testing changes: all ways to change one thing in the source of a module (``mutants.py`` runs the tests on each)."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Key = tuple[str, str, str, int]
"""A module, the code of a line, a change, and which of these changes it is."""


class Mutant(NamedTuple):
    """A change of a module: its line (from 1) and the code of the line, what stood there and stands there now, and the changed module.

    A line may hold one change several times, as in ``1 + 1``, and a module may hold one line several times. ``nth`` (from 1) counts them
    in the order of the source.
    """

    module: str
    line: int
    code: str
    old: str
    new: str
    text: str
    nth: int = 1

    @property
    def change(self) -> str:
        return f"{self.old} -> {self.new}"

    @property
    def key(self) -> Key:
        """What identifies the mutant although lines move."""
        return self.module, self.code, self.change, self.nth


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """The changes of one node of a syntax tree."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            made = copy.deepcopy(node)
            made.ops[i] = _COMPARISONS[type(operator)]()
            yield made
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.If):
        yield ast.If(ast.Constant(False), node.body, node.orelse)
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in _other(node.value))


def _other(value: object) -> Iterable[bool | float | str]:
    if isinstance(value, bool):
        return [not value]
    return [value + 1] if isinstance(value, int | float) else [f"{value}X"] if isinstance(value, str) and value else []


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """The holders of all expressions and statements that may change: (parent, field, index). Docstrings and annotations do not decide."""
    apart = ("annotation", "returns", "decorator_list", "type_params")
    types = {
        part
        for n in ast.walk(tree)
        for name in apart[:2]
        if (held := getattr(n, name, None))
        for part in ast.walk(held)
    }
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if name in apart or node in types or isinstance(node, ast.ImportFrom | ast.JoinedStr):
                continue
            if isinstance(value, list):
                yield from (
                    (node, name, i)
                    for i, child in enumerate(value)
                    if isinstance(child, ast.AST) and not _is_text(child)
                )
            elif isinstance(value, ast.AST):
                yield node, name, None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def mutants(module: str, source: str, *, written: bool = True) -> list[Mutant]:
    """All mutants of a module. Lines that only a type checker reads are left out. Without ``written`` they have no source of their own."""
    tree, lines = ast.parse(source), source.splitlines()
    found = []
    for parent, name, index in places(tree):
        if isinstance(parent, ast.Expr) and isinstance(parent.value, ast.Constant):
            continue
        holder = getattr(parent, name)
        node = holder if index is None else holder[index]
        for changed in variants(node):
            _put(parent, name, index, ast.fix_missing_locations(ast.copy_location(changed, node)))
            line = getattr(node, "lineno", 1)
            made = Mutant(
                module,
                line,
                lines[line - 1].strip(),
                _brief(node),
                _brief(changed),
                ast.unparse(tree) if written else "",
            )
            found.append((made, getattr(node, "col_offset", 0)))
            _put(parent, name, index, node)
    return _counted(found)


def _counted(found: list[tuple[Mutant, int]]) -> list[Mutant]:
    """Give each mutant its ``nth``. ``found`` has their columns. Their order stays, because a sample depends on it."""
    seen, nth = Counter[Key](), dict[int, int]()
    for i, (mutant, _) in sorted(enumerate(found), key=lambda one: (one[1][0].line, one[1][1])):
        seen[mutant.key] += 1
        nth[i] = seen[mutant.key]
    return [mutant._replace(nth=nth[i]) for i, (mutant, _) in enumerate(found)]


def _put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _brief(node: ast.AST) -> str:
    """The first line of a node's code."""
    return ast.unparse(node).splitlines()[0][:90]
