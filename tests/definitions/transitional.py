"""The transitional draft of 0-10: its definition, read, and ours beside it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.classic.methods import Method as OurMethod
from gateway.v010_draft import constants
from gateway.v010_draft.attached import METHODS
from gateway.v010_draft.fields import ContentType, SerialSetType, UuidType
from gateway.wire.types import BitType, FieldType, Integer, LongString, ShortString, TableType
from tests.definitions.definitions import Class, Constant, Definition, Field, Method, facts, source

FILE: Final = "amqp-transitional.0-10.xml"
TABLE_TYPE: Final = "field-table-type"
INTEGERS: Final = {"B": "octet", "H": "short", "I": "long", "Q": "longlong"}
TYPES: Final[dict[type[FieldType], str]] = {
    BitType: "bit",
    ShortString: "shortstr",
    LongString: "longstr",
    TableType: "table",
    ContentType: "content",
    SerialSetType: "rfc1982-long-set",
    UuidType: "uuid",
}
SAME: Final = {"timestamp": "longlong"}
"""A type of the definition -> the one that is the same octets."""
KEYWORDS: Final = frozenset({"global_", "name_", "class_id_", "method_id_"})
"""Fields whose names are taken in Python, or by the class."""


def definition() -> Definition:
    """From the file, or from the facts."""
    path = source(FILE)
    return facts(FILE) if path is None else read(path)


def read(path: Path) -> Definition:
    """From the file, all of whose names are in a namespace."""
    root = ElementTree.parse(path).getroot()
    for node in root.iter():
        if isinstance(node.tag, str):
            node.tag = node.tag.rpartition("}")[2]
    classes = root.findall("class")
    return Definition(
        tuple(
            Constant(node.attrib["name"], int(node.attrib["value"], 0), node.get("class", ""))
            for node in root.findall("constant")
        ),
        {node.attrib["name"]: node.attrib["type"] for node in root.findall("domain")},
        tuple(Class(node.attrib["name"], int(node.attrib["index"]), _fields(node)) for node in classes),
        tuple(
            Method(
                f"{above.attrib['name']}.{node.attrib['name']}",
                int(node.attrib["index"]),
                node.get("synchronous") == "1",
                node.get("content") == "1",
                tuple(reply.attrib["name"] for reply in node.findall("response")),
                _fields(node),
            )
            for above in classes
            for node in above.findall("method")
        ),
    )


def _fields(node: ElementTree.Element) -> tuple[Field, ...]:
    return tuple(
        Field(field.attrib["name"], field.get("domain") or field.attrib["type"]) for field in node.findall("field")
    )


def type_name(kind: FieldType) -> str:
    """What the definition calls a type of ours."""
    return INTEGERS[kind.code] if isinstance(kind, Integer) else TYPES[type(kind)]


def differences(said: Definition) -> Iterator[str]:
    """Every difference between the definition and ours."""
    ours = (*constants.FRAMES, *constants.REPLIES, *constants.XA)
    mine = {(constant.name, constant.value, constant.error.value if constant.error else "") for constant in ours}
    mine |= {(name, value, TABLE_TYPE) for name, value in constants.TABLE_TYPES.items()}
    theirs = {(constant.name, constant.value, constant.error) for constant in said.constants}
    yield from (f"constant {each}" for each in sorted(mine ^ theirs))
    yield from (f"domain {each}" for each in sorted(said.domains.items() ^ constants.DOMAINS.items()))
    for above in said.classes:
        properties = tuple((field.name, said.type_of(field)) for field in above.properties)
        if properties != constants.PROPERTIES.get(above.name, ()):
            yield f"class {above.name}: properties {properties}"
    numbers = {above.name: above.index for above in said.classes}
    keys = {numbers[method.name.partition(".")[0]] << 16 | method.index: method for method in said.methods}
    yield from (f"method {key >> 16}.{key & 0xFFFF}" for key in sorted(keys.keys() ^ METHODS.keys()))
    for key in keys.keys() & METHODS.keys():
        yield from _method(said, keys[key], METHODS[key])


def _method(said: Definition, theirs: Method, mine: type[OurMethod]) -> Iterator[str]:
    name = theirs.name
    layout = [
        ((field[:-1] if field in KEYWORDS else field).replace("_", "-"), type_name(kind)) for field, kind in mine.layout
    ]
    kinds = [said.type_of(field) for field in theirs.fields]
    fields = [(field.name, SAME.get(kind, kind)) for field, kind in zip(theirs.fields, kinds, strict=True)]
    above = name.partition(".")[0]
    spoken = set(METHODS.values())
    replies = [reply.title for reply in mine.replies if reply in spoken]
    for what, one, other in (
        ("name", name, mine.title),
        ("content", theirs.content, mine.content),
        ("fields", fields, layout),
        ("replies", [f"{above}.{reply}" for reply in theirs.replies], replies),
    ):
        if one != other:
            yield f"{name}: {what} {one} is {other}"
