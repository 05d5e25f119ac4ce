"""What a definition of 0-10 says: read from its XML, and written down as facts, a line each.

::

    constant MIN-MAX-FRAME-SIZE 4096
    type uint8 0x02 fixed 1
    type sequence-set - variable 2
    domain track uint8: control 0, command 1
    struct dtx.xid - size 2 pack 2: format uint32 required, global-id vbin8 required, branch-id vbin8 required
    control connection.tune 0x0105 to client -> connection.tune-ok: channel-max uint16, heartbeat-min uint16
    command message.acquire 0x0405 to server result message.acquired: transfers session.commands required
    command file.stage 0x0908 to client server required-header file.file-properties

Domains and structs of a class stand behind its name. A definition that says nearly the same as another is written as
``like`` it, followed by the lines that are its own.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.definitions.definitions import VARIABLE, facts_path, source

FINAL = "amqp0-10.xml"
ERRATA = "amqp0-10.qpid-errata.stripped.xml"
FILES = (FINAL, ERRATA)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a control, command or struct."""

    name: str
    type: str
    """A type, a domain or a struct."""
    required: bool = False
    default: str = ""


@dataclass(frozen=True, slots=True)
class Type:
    """A type of the type table."""

    code: int | None
    fixed: bool
    width: int
    """Octets: of a fixed type, or of the length in front of a variable one."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A type with a name."""

    type: str
    choices: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct; ``code`` holds that of its class in its high octet."""

    code: int | None
    size: int
    pack: int
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A control or a command."""

    kind: str
    """``control`` or ``command``."""
    code: int
    """With that of its class in the high octet."""
    to: tuple[str, ...]
    """The roles that have to understand it."""
    answers: tuple[str, ...]
    result: str
    header: tuple[str, ...] | None
    """The structs of the header segment in front of a body segment; None: neither."""
    header_required: bool
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole definition. Its order is the file's."""

    constants: dict[str, int]
    types: dict[str, Type]
    domains: dict[str, Domain]
    structs: dict[str, Struct]
    segments: dict[str, Segment]


def definition(file: str) -> Definition:
    """A definition by the name of its file, from the file or from the facts."""
    there = source(file)
    return read(there) if there is not None else facts(file)


# ------------------------------------------------------------------------------------------------------ XML

_SPACE = "{http://www.amqp.org/schema/amqp.xsd}"


def read(path: Path) -> Definition:
    """A definition from its XML."""
    root = ElementTree.parse(path).getroot()
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SPACE)
    said = Definition({}, {}, {}, {}, {})
    for node in root.findall("constant"):
        said.constants[node.attrib["name"]] = int(node.attrib["value"])
    for node in root.findall("type"):
        fixed = "fixed-width" in node.attrib
        width = node.attrib["fixed-width" if fixed else "variable-width"]
        said.types[node.attrib["name"]] = Type(_code(node), fixed, int(width))
    for above in (root, *root.findall("class")):
        for node in above.findall("domain"):
            said.domains[_within(above, node)] = Domain(node.attrib["type"], _choices(node))
    for above in root.findall("class"):
        local = {node.attrib["name"] for node in above.iter() if node.tag in ("domain", "struct")}
        for node in above.iter("struct"):
            size, pack = int(node.attrib["size"]), int(node.attrib["pack"])
            code = _code(node, above) if "code" in node.attrib else None
            said.structs[_within(above, node)] = Struct(code, size, pack, _fields(above, node, local))
        for node in above:
            if node.tag in ("control", "command"):
                said.segments[_within(above, node)] = _segment(above, node, local)
    return said


def _code(node: ElementTree.Element, above: ElementTree.Element | None = None) -> int | None:
    if "code" not in node.attrib:
        return None
    high = int(above.attrib["code"], 0) << 8 if above is not None else 0
    return high | int(node.attrib["code"], 0)


def _within(above: ElementTree.Element, node: ElementTree.Element) -> str:
    return f"{above.attrib['name']}.{node.attrib['name']}" if above.tag == "class" else node.attrib["name"]


def _choices(node: ElementTree.Element) -> tuple[tuple[str, int], ...]:
    return tuple((choice.attrib["name"], int(choice.attrib["value"])) for choice in node.iter("choice"))


def _resolve(above: ElementTree.Element, local: set[str], name: str) -> str:
    return f"{above.attrib['name']}.{name}" if name in local else name


def _fields(above: ElementTree.Element, node: ElementTree.Element, local: set[str]) -> tuple[Field, ...]:
    return tuple(
        Field(
            field.attrib["name"],
            _resolve(above, local, field.attrib["type"]),
            field.get("required") == "true",
            field.get("default", ""),
        )
        for field in node.findall("field")
    )


def _segment(above: ElementTree.Element, node: ElementTree.Element, local: set[str]) -> Segment:
    code = _code(node, above)
    assert code is not None
    result = node.find("result")
    results = [] if result is None else [result.get("type") or result.find("struct").attrib["name"]]  # type: ignore[union-attr]
    header = node.find("segments/header")
    entries = None if header is None else tuple(header.findall("entry"))
    return Segment(
        node.tag,
        code,
        tuple(sorted({implement.attrib["role"] for implement in node.findall("implement")})),
        tuple(_within(above, answer) for answer in node.findall("response")),
        "".join(_resolve(above, local, name) for name in results),
        None if entries is None else tuple(_resolve(above, local, entry.attrib["type"]) for entry in entries),
        header is not None and header.get("required") == "true",
        _fields(above, node, local),
    )


# ---------------------------------------------------------------------------------------------------- facts


def facts(file: str) -> Definition:
    """A definition from the facts."""
    return parsed(facts_path(file).read_text())


def _number(code: int | None) -> str:
    return "-" if code is None else f"0x{code:04x}"


def _listed(fields: tuple[Field, ...]) -> str:
    words = (
        f"{field.name} {field.type}{' required' * field.required}{f' = {field.default}' if field.default else ''}"
        for field in fields
    )
    return f": {', '.join(words)}" if fields else ""


def lines(said: Definition) -> Iterator[str]:
    """A definition as facts."""
    for name, value in said.constants.items():
        yield f"constant {name} {value}"
    for name, kind in said.types.items():
        yield f"type {name} {_number(kind.code)} {'fixed' if kind.fixed else 'variable'} {kind.width}"
    for name, domain in said.domains.items():
        choices = ", ".join(f"{choice} {value}" for choice, value in domain.choices)
        yield f"domain {name} {domain.type}{f': {choices}' if choices else ''}"
    for name, struct in said.structs.items():
        yield f"struct {name} {_number(struct.code)} size {struct.size} pack {struct.pack}{_listed(struct.fields)}"
    for name, segment in said.segments.items():
        words = [segment.kind, name, _number(segment.code)]
        words += ["to", *segment.to] if segment.to else []
        words += ["->", *segment.answers] if segment.answers else []
        words += ["result", segment.result] if segment.result else []
        if segment.header is not None:
            words += ["required-header" if segment.header_required else "header", *segment.header]
        yield f"{' '.join(words)}{_listed(segment.fields)}"


def written(said: Definition, like: str = "") -> str:
    """The facts of a definition, or only those in which it is not like another."""
    own = list(lines(said))
    if like:
        others = set(lines(facts(like)))
        own = [f"like {like}", *(line for line in own if line not in others)]
    return "".join(f"{line}\n" for line in own)


def _name(line: str) -> str:
    return " ".join(line.split()[:2]).rstrip(":")


_SEGMENT = re.compile(
    r"(\S+)(?: to ((?:\w+ ?)+?))?(?: -> ((?:\S+\.\S+ ?)+?))?(?: result (\S+))?(?: ((?:required-)?header) (.+))?"
)


def parsed(text: str) -> Definition:
    """The definition that :func:`written` wrote."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("like "):
            found = {_name(other): other for other in lines(facts(line.removeprefix("like ")))}
        else:
            found[_name(line)] = line
    said = Definition({}, {}, {}, {}, {})
    for line in found.values():
        head, _, listed = line.partition(": ")
        kind, name, *words = head.split()
        items = [item.split() for item in listed.split(", ") if item]
        if kind == "constant":
            said.constants[name] = int(words[0])
        elif kind == "type":
            said.types[name] = Type(_parsed_code(words[0]), words[1] == "fixed", int(words[2]))
        elif kind == "domain":
            said.domains[name] = Domain(words[0], tuple((choice, int(value)) for choice, value in items))
        elif kind == "struct":
            fields = tuple(map(_field, items))
            said.structs[name] = Struct(_parsed_code(words[0]), int(words[2]), int(words[4]), fields)
        else:
            match = _SEGMENT.fullmatch(" ".join(words))
            assert kind in ("control", "command"), line
            assert match is not None, line
            code, to, answers, result, required, header = match.groups(default="")
            said.segments[name] = Segment(
                kind,
                int(code, 0),
                tuple(to.split()),
                tuple(answers.split()),
                result,
                tuple(header.split()) if required else None,
                required == "required-header",
                tuple(map(_field, items)),
            )
    return said


def _parsed_code(word: str) -> int | None:
    return None if word == "-" else int(word, 0)


def _field(words: list[str]) -> Field:
    name, type_, *rest = words
    return Field(name, type_, "required" in rest, rest[-1] if "=" in rest else "")


def main() -> int:
    """Write the facts anew, of the definitions that are found."""
    for file, like in ((FINAL, ""), (ERRATA, FINAL)):
        there = source(file)
        if there is None:
            print(f"not found: {file}; {VARIABLE} says where to look")
            return 1
        facts_path(file).write_text(written(read(there), like))
        print(f"wrote {facts_path(file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
