"""Check of the shapes of classes: how many parameters a constructor has, and how many attributes change.

``python -m tests.shapes`` prints what is over a limit, and fails if it is not in :data:`EXEMPT`, has grown over the
number there, or needs no exemption any more. What always travels together is a parameter with a name of its own;
attributes that change for independent reasons belong to classes of their own.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.names import package

PARAMETERS_MAX: Final = 7
"""Parameters of a constructor, without ``self`` and what collects the rest."""
CHANGING_MAX: Final = 15
"""Attributes that a class assigns outside its constructor."""

EXEMPT: Final[Mapping[str, tuple[int, str]]] = {
    "parameters of gateway/broker/consumers.py Consumer": (12, "the fields of the operation that asks for it, by name"),
    "parameters of gateway/tracing/spans.py Span": (8, "the fields of a span, set at one place"),
    "parameters of gateway/api/app.py Api": (10, "each part of the gateway that routes work with"),
    "parameters of gateway/core/gateway.py Gateway": (11, "each part of the gateway, put together at one place"),
    "attributes of gateway/api/http/guard.py GuardedProtocol": (21, "touched by each request; three are uvicorn's"),
    "attributes of gateway/v010/client_channel.py ClientChannel": (17, "touched by each message"),
}
"""What is over a limit -> how much it may have, and why."""


class Shape(NamedTuple):
    """What was counted of one class."""

    name: str
    """File and class."""
    parameters: int
    changing: frozenset[str]


def shapes(path: str, source: str) -> Iterator[Shape]:
    """Count the classes of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            parameters = 0
            changing: set[str] = set()
            for function in functions:
                if function.name == "__init__":
                    arguments = function.args
                    parameters = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1
                else:
                    changing.update(_assigned(function))
            yield Shape(f"{path} {node.name}", parameters, frozenset(changing))


def _assigned(function: ast.AST) -> Iterator[str]:
    """The attributes of ``self`` that are assigned."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def over(sources: Mapping[str, str]) -> dict[str, int]:
    """Return what is over a limit, and by what number it is."""
    found: dict[str, int] = {}
    for path, source in sources.items():
        for shape in shapes(path, source):
            if shape.parameters > PARAMETERS_MAX:
                found[f"parameters of {shape.name}"] = shape.parameters
            if len(shape.changing) > CHANGING_MAX:
                found[f"attributes of {shape.name}"] = len(shape.changing)
    return found


def check(found: Mapping[str, int], exempt: Mapping[str, tuple[int, str]] = EXEMPT) -> list[str]:
    """Return what is wrong, and what to do."""
    wrong: list[str] = []
    for what, number in sorted(found.items()):
        if what not in exempt:
            limit = PARAMETERS_MAX if what.startswith("parameters") else CHANGING_MAX
            wrong.append(f"{what}: {number}, at most {limit} may be: give what belongs together a name of its own")
        elif number > exempt[what][0]:
            wrong.append(f"{what}: {number}, at most {exempt[what][0]} may be by its exemption")
    wrong += [f"{what}: it needs no exemption any more: take it out" for what in sorted(exempt.keys() - found.keys())]
    return wrong


def main() -> int:
    """Print what is over a limit. Return the exit code."""
    found = over(package())
    for what, number in sorted(found.items()):
        print(f"{number:>7,}  {what}")
    wrong = check(found)
    if wrong:
        print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
