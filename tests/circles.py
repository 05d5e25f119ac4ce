"""Count of the circles of imports inside each package, those that only type checkers follow included.

``python -m tests.circles`` prints the modules of each circle, and fails if a package has more of them than
:data:`KNOWN` says. Two modules that import each other are one thing in two files: what both need belongs in a third.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from tests.names import package

KNOWN: Final[Mapping[str, int]] = {
    "gateway.api": 6,
    "gateway.broker": 10,
    "gateway.classic": 6,
    "gateway.front": 10,
    "gateway.ledger": 7,
    "gateway.upstreams": 2,
    "gateway.v010": 7,
    "gateway.v010_draft": 7,
}
"""Package -> how many of its modules may be in circles; 0 unless it is here."""


def imports(path: str, source: str, modules: Mapping[str, str]) -> set[str]:
    """Return the modules that a module imports, wherever in it. ``modules``: name -> path."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in modules else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name in modules and modules[name] != path}


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the sets of modules that reach each other, each in order (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            members = sorted(stack[at:])
            del stack[at:]
            if len(members) > 1:
                found.append(members)

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found)


def by_package(sources: Mapping[str, str]) -> dict[str, list[list[str]]]:
    """Return the circles of each package below ``gateway`` that has some: among its own modules."""
    modules = {path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in sources}
    packages: defaultdict[str, dict[str, set[str]]] = defaultdict(dict)
    for name, path in modules.items():
        owner = ".".join(name.split(".")[:2])
        others = imports(path, sources[path], modules)
        packages[owner][name] = {other for other in others if other.startswith(f"{owner}.")}
    return {owner: found for owner, graph in sorted(packages.items()) if (found := circles(graph))}


def check(found: Mapping[str, Iterable[list[str]]], known: Mapping[str, int] = KNOWN) -> list[str]:
    """Return what is wrong, and what to do."""
    wrong: list[str] = []
    for owner in sorted({*found, *known}):
        members, may = sum(map(len, found.get(owner, ()))), known.get(owner, 0)
        if members != may:
            advice = "move what both need into a third" if members > may else "take that number down"
            wrong.append(f"{owner}: {members} modules import each other in circles, and {may} may: {advice}")
    return wrong


def main() -> int:
    """Print the circles. Return the exit code."""
    found = by_package(package())
    for owner, members in found.items():
        for circle in members:
            print(f"{owner}: {', '.join(name.removeprefix(f'{owner}.') for name in circle)}")
    every = [circle for members in found.values() for circle in members]
    print(f"{len(every)} circles, {sum(map(len, every))} modules")
    wrong = check(found)
    if wrong:
        print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
