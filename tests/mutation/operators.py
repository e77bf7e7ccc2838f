"""The small mistakes that may be made in a module: one edit of its text each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

#: An operator and what it becomes.
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
               "is not": "is", "is": "is not", "not in": "in", "in": "not in"}
ARITHMETIC = {"+": "-", "-": "+", "*": "//", "//": "*", "/": "*", "%": "//", "**": "*",
              "<<": ">>", ">>": "<<", "|": "&", "&": "|"}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """In ``file`` of the package, the bytes from ``start`` to ``end`` become ``new``."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """What identifies it as long as the line's text stays: file, line and edit."""
        return f"{self.file}:{self.line}: {shown(self.old)} -> {shown(self.new)}"

    def of(self, source: bytes) -> bytes:
        """The module's text with the mistake."""
        assert source[self.start:self.end].decode() == self.old
        return source[:self.start] + self.new.encode() + source[self.end:]


def shown(text: str) -> str:
    """On one line, at most 60 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


class _Finder:
    """Walks a module and collects its mutants."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutant] = []

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (self.starts[node.lineno - 1] + node.col_offset,
                self.starts[node.end_lineno - 1] + node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def add(self, kind: str, start: int, end: int, new: str) -> None:
        old = self.source[start:end].decode()
        line = self.source.count(b"\n", 0, start) + 1
        if old != new:
            self.found.append(Mutant(self.file, line, kind, start, end, old, new))

    def between(self, kind: str, left: ast.expr, right: ast.expr, table: dict[str, str]) -> None:
        """The operator that stands between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end].decode()
        words = sorted(table, key=len, reverse=True)
        pattern = "|".join(rf"\b{w}\b" if w[0].isalpha() else re.escape(w) for w in words)
        if (found := re.search(pattern.replace(" ", r"\s+"), re.sub("#.*", _blank, gap))):
            begin = start + len(gap[:found.start()].encode())
            self.add(kind, begin, begin + len(found[0].encode()),
                     table[" ".join(found[0].split())])

    def visit(self, node: ast.AST) -> None:
        for one in _children(node):
            self.visit(one)
        if handle := getattr(self, f"on_{type(node).__name__}", None):
            handle(node)

    def on_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators):
            self.between("comparison", left, right, COMPARISONS)

    def on_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:]):
            self.between("and/or", left, right, {"and": "or", "or": "and"})

    def on_BinOp(self, node: ast.BinOp) -> None:
        texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
        if not any(isinstance(x, texts) or isinstance(x, ast.Constant) and isinstance(x.value, str)
                   for x in (node.left, node.right)):
            self.between("arithmetic", node.left, node.right, ARITHMETIC)

    def on_UnaryOp(self, node: ast.UnaryOp) -> None:
        start, _ = self.span(node)
        if isinstance(node.op, ast.Not):
            self.add("not", start, self.span(node.operand)[0], "")
        elif isinstance(node.op, ast.USub):
            self.add("sign", start, start + 1, "+")

    def on_Constant(self, node: ast.Constant) -> None:
        value, (start, end) = node.value, self.span(node)
        if isinstance(value, bool):
            self.add("constant", start, end, str(not value))
        elif isinstance(value, int):
            self.add("constant", start, end, str(value + 1))
            if value > 0:
                self.add("constant", start, end, str(value - 1))
        elif isinstance(value, float):
            self.add("constant", start, end, f"(2 * {self.text(node)} + 1)")

    def on_Return(self, node: ast.Return) -> None:
        empty = isinstance(node.value, ast.Constant) and node.value.value is None
        if node.value is not None and not empty:
            self.add("return", *self.span(node.value), "None")
        if isinstance(node.value, ast.Tuple):
            self.exchange(node.value.elts)

    def exchange(self, items: list[ast.expr]) -> None:
        """The first two of several, where both are of one kind: names, sums, calls."""
        if len(items) < 2 or type(items[0]) is not type(items[1]) or isinstance(
                items[0], ast.Starred):
            return
        (start, one), (two, end) = self.span(items[0]), self.span(items[1])
        first, second = self.text(items[0]), self.text(items[1])
        self.add("exchange", start, end, second + self.source[one:two].decode() + first)

    def on_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in NAMES:
            self.add("name", *self.span(node.func), NAMES[name])
        elif name not in ("isinstance", "getattr", "cast") and not any(
                isinstance(x, ast.Constant) and isinstance(x.value, str) for x in node.args[:2]):
            self.exchange(node.args)

    def on_If(self, node: ast.If) -> None:
        self.add("condition", *self.span(node.test), f"not ({self.text(node.test)})")

    def on_IfExp(self, node: ast.IfExp) -> None:
        self.add("condition", *self.span(node.test), f"not ({self.text(node.test)})")

    def on_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("statement", *self.span(node), "pass")

    def on_Raise(self, node: ast.Raise) -> None:
        self.add("statement", *self.span(node), "pass")


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below that may be wrong: no annotation, message, device code, import for types."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "cause", "msg"):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.FunctionDef) and any(
                    "jit" in ast.unparse(x) for x in one.decorator_list):
                continue
            if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING":
                continue
            # Before Python 3.12 the nodes within an f-string have no true place.
            if isinstance(one, ast.AST) and not isinstance(one, ast.JoinedStr):
                yield one


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All of a module, in the order of its text. A few do not compile (:func:`compiles`)."""
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found), key=lambda x: (x.start, x.end, x.new))


def compiles(source: bytes) -> bool:
    """Whether it is Python."""
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
