"""What a definition in the style of 0-8 and 0-9-1 says: read from its XML, and written down as facts, a line each.

::

    constant not-found 404 soft-error
    domain queue-name shortstr
    class basic 60: content-type shortstr, headers table
    method basic.get 70 synchronous -> get-ok get-empty: ticket access-ticket, queue queue-name, no-ack no-ack
    method basic.get-ok 71 synchronous content: delivery-tag delivery-tag, message-count long

Names that a definition writes with spaces are written with hyphens, as the others write them.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
VARIABLE = "GATEWAY_SPEC_DIR"
DEBIAN = Path("/usr/share/amqp/specs")
"""Where Debian's package ``amqp-specs`` has them, in a folder for each."""


@dataclass(frozen=True, slots=True)
class Field:
    """An argument of a method, or a property of a class."""

    name: str
    domain: str
    """The name of its domain, or of its type."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant; ``error`` is empty, ``soft-error`` or ``hard-error``."""

    name: str
    value: int
    error: str


@dataclass(frozen=True, slots=True)
class Class:
    """A class without its methods."""

    name: str
    index: int
    properties: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """A method; ``replies`` are names within its class."""

    name: str
    """With its class: ``basic.get``."""
    index: int
    synchronous: bool
    content: bool
    replies: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole definition. Its order is the file's."""

    constants: tuple[Constant, ...]
    domains: Mapping[str, str]
    """Domain -> type."""
    classes: tuple[Class, ...]
    methods: tuple[Method, ...]

    def type_of(self, field: Field) -> str:
        """The type of a field, whose domain may be a type itself."""
        return self.domains.get(field.domain, field.domain)


def folder() -> Path | None:
    """Where the definitions are; None where there are none.

    Raises:
        FileNotFoundError: ``GATEWAY_SPEC_DIR`` names a folder that is none.
    """
    named = os.environ.get(VARIABLE)
    if named is None:
        return None
    if not Path(named).is_dir():
        raise FileNotFoundError(f"{VARIABLE}: there is no folder {named}")
    return Path(named)


def definition(file: str) -> Definition:
    """A definition by the name of its file, from the file or from the facts."""
    there = source(file)
    return read(there) if there is not None else facts(file)


def source(file: str) -> Path | None:
    """The definition's file; None where it is not to be had."""
    where = folder()
    if where is not None and (where / file).is_file():
        return where / file
    return None if VARIABLE in os.environ else next(DEBIAN.glob(f"*/{file}"), None)


# ------------------------------------------------------------------------------------------------------ XML


def read(path: Path) -> Definition:
    """A definition from its XML."""
    root = ElementTree.parse(path).getroot()
    return Definition(
        tuple(
            Constant(_name(node), int(node.attrib["value"]), _hyphens(node.get("class", "")))
            for node in root.findall("constant")
        ),
        {_name(node): node.attrib["type"] for node in root.findall("domain")},
        tuple(Class(_name(node), int(node.attrib["index"]), _fields(node)) for node in root.findall("class")),
        tuple(_method(above, node) for above in root.findall("class") for node in above.findall("method")),
    )


def _method(above: ElementTree.Element, node: ElementTree.Element) -> Method:
    return Method(
        f"{_name(above)}.{_name(node)}",
        int(node.attrib["index"]),
        node.get("synchronous") == "1",
        node.get("content") == "1",
        tuple(_name(reply) for reply in node.findall("response")),
        _fields(node),
    )


def _fields(node: ElementTree.Element) -> tuple[Field, ...]:
    return tuple(
        Field(_name(field), _hyphens(field.get("domain") or field.attrib["type"])) for field in node.findall("field")
    )


def _name(node: ElementTree.Element) -> str:
    return _hyphens(node.attrib["name"])


def _hyphens(text: str) -> str:
    return text.replace(" ", "-")


# ---------------------------------------------------------------------------------------------------- facts


def facts(file: str) -> Definition:
    """A definition from the facts."""
    return parsed(facts_path(file).read_text())


def facts_path(file: str) -> Path:
    """Where the facts of a definition are."""
    return HERE / "facts" / Path(file).with_suffix(".txt").name


def written(said: Definition) -> str:
    """A definition as facts."""
    return "".join(f"{line}\n" for line in _lines(said))


def _lines(said: Definition) -> Iterator[str]:
    for constant in said.constants:
        yield f"constant {constant.name} {constant.value} {constant.error}".rstrip()
    for name, type_ in said.domains.items():
        yield f"domain {name} {type_}"
    for above in said.classes:
        yield f"class {above.name} {above.index}{_listed(above.properties)}"
        for method in said.methods:
            if method.name.startswith(f"{above.name}."):
                flags = " synchronous" * method.synchronous + " content" * method.content
                replies = f" -> {' '.join(method.replies)}" if method.replies else ""
                yield f"method {method.name} {method.index}{flags}{replies}{_listed(method.fields)}"


def _listed(fields: tuple[Field, ...]) -> str:
    return ": " + ", ".join(f"{field.name} {field.domain}" for field in fields) if fields else ""


_METHOD = re.compile(r"(\S+) (\d+)( synchronous)?( content)?(?: -> (.+))?")


def parsed(text: str) -> Definition:
    """The definition that :func:`written` wrote."""
    constants: list[Constant] = []
    domains: dict[str, str] = {}
    classes: list[Class] = []
    methods: list[Method] = []
    for line in text.splitlines():
        head, _, listed = line.partition(": ")
        kind, _, said = head.partition(" ")
        fields = tuple(Field(*field.split()) for field in listed.split(", ") if field)
        if kind == "constant":
            name, value, *error = said.split()
            constants.append(Constant(name, int(value), "".join(error)))
        elif kind == "domain":
            name, type_ = said.split()
            domains[name] = type_
        elif kind == "class":
            name, index = said.split()
            classes.append(Class(name, int(index), fields))
        else:
            found = _METHOD.fullmatch(said)
            assert kind == "method", line
            assert found is not None, line
            name, index, synchronous, content, replies = found.groups(default="")
            methods.append(
                Method(name, int(index), bool(synchronous), bool(content), tuple(replies.split()), fields)
            )  # fmt: skip
    return Definition(tuple(constants), domains, tuple(classes), tuple(methods))
