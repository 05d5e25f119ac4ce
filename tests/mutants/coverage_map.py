"""Which test runs which function: measured once, and kept outside the repository.

As a plugin of pytest (``-p tests.mutants.coverage_map``, under coverage) it names the test of each line that runs.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Have coverage write the test's name to what it runs."""
    import coverage

    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid.partition("[")[0])
    try:
        return (yield)
    finally:
        if current is not None:
            current.switch_context("")


def functions_of(source: bytes) -> dict[str, range]:
    """Return the lines of each function, by its qualified name."""
    found: dict[str, range] = {}

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inside = names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = (*names, child.name)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found[".".join(inside)] = range(child.body[0].lineno, (child.end_lineno or child.lineno) + 1)
            visit(child, inside)

    visit(ast.parse(source), ())
    return found


class CoverageMap:
    """Tests of each function, and how long each test takes."""

    def __init__(self, file: Path) -> None:
        self.file = file
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        self.tests: dict[str, set[str]] = {name: set(tests) for name, tests in found.get("tests", {}).items()}
        """File and function -> tests."""
        self.seconds: dict[str, float] = found.get("seconds", {})

    def tests_of(self, path: str, function: str) -> list[str]:
        """Return the tests that run a function, or else those of the function around it, the quickest first. Behind
        them come those that run others of its file: what is done once in a process has the first test as its only one.
        """
        names = function.split(".")
        found: set[str] = set()
        for count in range(len(names), 0, -1):
            found = self.tests.get(f"{path}:{'.'.join(names[:count])}", set())
            if found:
                break
        if not found:
            return []
        near = _union(tests for name, tests in self.tests.items() if name.startswith(f"{path}:")) - found
        return [*self._quickest(found), *self._quickest(near)]

    def _quickest(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds.get(test, 1.0), test))

    def read(self, root: Path, data: Path, seconds: dict[str, float]) -> None:
        """Take what was measured. It replaces what was known of the same tests."""
        import coverage

        measured = coverage.CoverageData(str(data))
        measured.read()
        tests = {each for each in measured.measured_contexts() if each}
        for known in self.tests.values():
            known -= tests
        found: dict[str, set[str]] = defaultdict(set, self.tests)
        for name in measured.measured_files():
            file = Path(name)
            if not file.is_relative_to(root) or not file.exists():
                continue
            lines = measured.contexts_by_lineno(name)
            path = str(file.relative_to(root))
            for function, span in functions_of(file.read_bytes()).items():
                of_function = _union(lines.get(line, ()) for line in span)
                if of_function:
                    found[f"{path}:{function}"] |= of_function
        self.tests = dict(found)
        self.seconds |= seconds

    def write(self) -> None:
        """Keep it for the next run."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        tests = {name: sorted(tests) for name, tests in sorted(self.tests.items()) if tests}
        self.file.write_text(json.dumps({"tests": tests, "seconds": self.seconds}, indent=0))


def _union(parts: Iterable[Iterable[str]]) -> set[str]:
    return {name for part in parts for name in part if name}
