"""Mutants of the code that holds promises: which there are, and how one is put into a file."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = ("core", "bridges", "webhooks", "ledger", "upstreams", "replays", "taps")
"""Packages of the gateway that are mutated."""
COMPARISONS: Final = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SETTLEMENTS: Final = {"ACCEPT": "RELEASE", "RELEASE": "ACCEPT", "REJECT": "ACCEPT"}
QUIET: Final = ("log", "logger", "observe", "note", "warn")
"""Names of functions whose calls are not deleted: what they write is no promise."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one expression or statement."""

    path: str
    """Of the file, from the root of the project."""
    function: str
    """Qualified name of the function it is in."""
    change: str
    """Kind of the change."""
    before: str
    after: str
    line: int
    start: int
    """Where the text begins that is replaced, in bytes from the start of the file."""
    end: int

    @property
    def name(self) -> str:
        """Name that stays the same while lines move."""
        return f"{self.path}:{self.function}: {' '.join(self.before.split())} -> {' '.join(self.after.split())}"

    def apply(self, root: Path) -> None:
        """Put the mutant into its file below ``root``."""
        file = root / self.path
        source = file.read_bytes()
        file.write_bytes(source[: self.start] + self.after.encode() + source[self.end :])


class _Visitor(ast.NodeVisitor):
    """Collects the mutants of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.found: list[Mutant] = []
        self._names: list[str] = []
        self._inside = 0
        """How many functions the node is in: nothing outside of functions is mutated."""
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def _add(self, change: str, node: ast.AST, after: str | None = None) -> None:
        if not self._inside:
            return
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        before = self.source[start:end].decode()
        after = f"not ({before})" if after is None else after
        name = ".".join(self._names)
        self.found.append(Mutant(self.path, name, change, before, after, node.lineno, start, end))  # type: ignore[attr-defined]

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        self._names.append(node.name)
        self._inside += 1
        for statement in node.body:  # neither decorators nor defaults
            self.visit(statement)
        self._inside -= 1
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Python 3.11 does not say where the parts of such a string are."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """What is asserted is for the type checker."""

    def visit_Call(self, node: ast.Call) -> None:
        """That what is zipped is of one length is asserted, too."""
        is_zip = isinstance(node.func, ast.Name) and node.func.id == "zip"
        for child in ast.iter_child_nodes(node):
            if not (is_zip and isinstance(child, ast.keyword) and child.arg == "strict"):
                self.visit(child)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _test(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, ast.Constant | ast.Compare) or len(getattr(node.test, "ops", ())) > 1:
            self._add("negate", node.test)
        elif isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            self._add("negate", node.test)  # the others are negated as comparisons
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._test(node)

    def visit_While(self, node: ast.While) -> None:
        self._test(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._test(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and (sign := COMPARISONS.get(type(node.ops[0]))) is not None:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            self._add("compare", node, f"({left} {sign} {right})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        sign = "or" if isinstance(node.op, ast.And) else "and"
        self._add("and/or", node, "(" + f" {sign} ".join(f"({ast.unparse(each)})" for each in node.values) + ")")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(called, ast.Call):
            name = ast.unparse(called.func).rpartition(".")[2]
            if name.strip("_") not in QUIET:
                self._add("delete", node, "pass")
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._names[-1:] != ["__init__"] and all(
            isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets
        ):
            self._add("delete", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("delete", node, "pass")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("flip", node, str(not node.value))
        elif isinstance(node.value, int) and node.value in (0, 1):
            self._add("number", node, str(node.value + 1))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == "Settlement" and node.attr in SETTLEMENTS:
            self._add("settlement", node, f"Settlement.{SETTLEMENTS[node.attr]}")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._add("break/continue", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add("break/continue", node, "break")


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """Return all mutants of one file."""
    source = (root / path).read_bytes()
    visitor = _Visitor(path, source)
    visitor.visit(ast.parse(source))
    return [each for each in visitor.found if each.before != each.after]


def files_of(root: Path, packages: Sequence[str] = PACKAGES) -> Iterator[str]:
    """Yield the files that are mutated, from the root of the project."""
    for package in packages:
        for file in sorted((root / "gateway" / package).rglob("*.py")):
            yield str(file.relative_to(root))


def draw(root: Path, seed: int, count: int, packages: Sequence[str] = PACKAGES) -> list[Mutant]:
    """Return ``count`` mutants of the packages, the same for the same seed and the same code."""
    everything = [mutant for path in files_of(root, packages) for mutant in mutants_of(root, path)]
    rng = random.Random(f"mutants {seed}")
    rng.shuffle(everything)
    return everything[:count]
