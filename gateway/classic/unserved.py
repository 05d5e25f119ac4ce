"""Methods that a definition has and no session serves, as a table. The peer gets 540.

::

    class file 70: content-type shortstr, priority octet
    file.stage 70.50 content
    file.open 70.40 -> open-ok: identifier shortstr, content-size longlong

A line of a class names its content properties. A line of a method has its number, whether content follows, the methods
of its class that answer it, and its fields. A line that begins with spaces goes on with the one before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, Final, NamedTuple

from gateway.classic.methods import Method, method
from gateway.wire.types import Bit, FieldTable, FieldType, Long, LongLong, LongStr, Octet, Short, ShortStr

_TYPES: Final[Mapping[str, Any]] = {
    "bit": Bit,
    "octet": Octet,
    "short": Short,
    "long": Long,
    "longlong": LongLong,
    "timestamp": LongLong,
    "shortstr": ShortStr,
    "longstr": LongStr,
    "table": FieldTable,
}
_METHOD: Final = re.compile(r"(\S+) (\d+)\.(\d+)( content)?(?: -> (.+))?")


class Unserved(NamedTuple):
    """What a table declares."""

    methods: tuple[type[Method], ...]
    properties: Mapping[int, tuple[tuple[str, FieldType], ...]]
    """Number of a class -> name and type of its content properties, in the order of the wire."""


def unserved(table: str) -> Unserved:
    """Return what a table declares. See the module."""
    methods: dict[str, type[Method]] = {}
    properties: dict[int, tuple[tuple[str, FieldType], ...]] = {}
    replies: dict[str, list[str]] = {}
    for line in table.strip().replace("\n    ", " ").splitlines():
        head, _, listed = line.partition(": ")
        fields = {
            _spelled(name): _TYPES[kind] for name, kind in (field.split() for field in listed.split(", ") if field)
        }
        if head.startswith("class "):
            number = int(head.rpartition(" ")[2])
            properties[number] = tuple((name, kind.__metadata__[0]) for name, kind in fields.items())
            continue
        found = _METHOD.fullmatch(head)
        assert found is not None, line
        title, above, index, content, answers = found.groups(default="")
        methods[title] = _method(title, int(above), int(index), content != "", fields)
        replies[title] = [f"{title.partition('.')[0]}.{answer}" for answer in answers.split()]
    for title, names in replies.items():
        methods[title].replies = tuple(methods[name] for name in names)
    return Unserved(tuple(methods.values()), properties)


def _spelled(name: str) -> str:
    name = name.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _method(title: str, class_id: int, method_id: int, content: bool, fields: Mapping[str, Any]) -> type[Method]:
    name = "".join(word.capitalize() for word in re.split(r"[.-]", title))
    body = {"__annotations__": dict(fields), "__module__": __name__, "__doc__": f"{title}, which nobody serves."}
    bare: type[Method] = type(name, (Method,), body)
    made = method(class_id, method_id, content=content)(bare)
    made.title = title
    return made
