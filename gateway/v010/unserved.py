"""The file and stream classes of AMQP 0-10 (specification sections 10.9 and 10.10), as a table.

No known broker serves them, and the gateway's sessions answer 540. They are declared for tools that read or write them.

::

    struct file.file-properties 0901: content-type str8, priority uint8
    file.open 0906 either -> open-ok: identifier str8, content-size uint64
    file.stage 0908 either content

A line of a struct has its code and its fields. A line of a command has its code, the end that has to understand it,
and the commands of its class that answer it. ``content`` says that the properties of its class and a body follow. Then
come its fields. ``!`` marks a text that must be there. A line that begins with spaces goes on with the one before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, Final

from gateway.v010.domains import ExchangeName, FileReturnCode, QueueName, StreamReturnCode
from gateway.v010.fields import CLIENT, EITHER, SERVER, Bit, Datetime, Fields, Map, Str8, Uint8, Uint16, Uint32, Uint64
from gateway.v010.segments import Command, command
from gateway.v010.structs import Struct, coded

_TYPES: Final[Mapping[str, Any]] = {
    "bit": Bit,
    "uint8": Uint8,
    "uint16": Uint16,
    "uint32": Uint32,
    "uint64": Uint64,
    "datetime": Datetime,
    "str8": Str8,
    "map": Map,
    "exchange": ExchangeName,
    "queue": QueueName,
    "file-return-code": FileReturnCode,
    "stream-return-code": StreamReturnCode,
}
_ENDS: Final = {"server": SERVER, "client": CLIENT, "either": EITHER}
_COMMAND: Final = re.compile(r"(\S+) ([0-9a-f]{4}) (server|client|either)( content)?(?: -> (\S+))?")


def unserved(table: str) -> dict[str, type[Fields]]:
    """Declare what a table says. Return name, as the specification spells it -> class."""
    made: dict[str, type[Fields]] = {}
    properties: dict[str, int] = {}
    for line in table.strip().replace("\n    ", " ").splitlines():
        head, _, listed = line.partition(": ")
        fields = dict(each.split() for each in listed.split(", ") if each)
        if head.startswith("struct "):
            _, name, code = head.split()
            properties[name.partition(".")[0]] = int(code, 16)
            made[name] = coded(int(code, 16), name)(_bare(name, Struct, fields))
            continue
        found = _COMMAND.fullmatch(head)
        assert found is not None, line
        name, code, end, content, answer = found.groups(default="")
        above = name.partition(".")[0]
        declare = command(
            int(code, 16),
            name,
            to=_ENDS[end],
            answers=(f"{above}.{answer}",) if answer else (),
            header=(properties[above],) if content else None,
            header_required=bool(content),
        )
        made[name] = declare(_bare(name, Command, fields))
    return made


def _bare(name: str, base: type[Any], fields: Mapping[str, str]) -> type[Any]:
    """A class with these fields, as one that is written out."""
    body: dict[str, Any] = {"__module__": __name__, "__doc__": f"{name}, which nobody serves."}
    hints: dict[str, Any] = {}
    for spelled, kind in fields.items():
        field = spelled.replace("-", "_") + "_" * iskeyword(spelled)
        required = kind.endswith("!")
        hints[field] = _TYPES[kind.rstrip("!")] if required or kind == "bit" else _TYPES[kind] | None
        body[field] = "" if required else False if kind == "bit" else None
    body["__annotations__"] = hints
    return type("".join(word.capitalize() for word in re.split(r"[.-]", name)), (base,), body)


UNSERVED: Final = unserved("""
struct file.file-properties 0901: content-type str8, content-encoding str8, headers map, priority uint8, reply-to str8,
    message-id str8, filename str8, timestamp datetime, cluster-id str8
file.qos 0901 server -> qos-ok: prefetch-size uint32, prefetch-count uint16, global bit
file.qos-ok 0902 client
file.consume 0903 server -> consume-ok: queue queue, consumer-tag str8, no-local bit, no-ack bit, exclusive bit,
    nowait bit, arguments map
file.consume-ok 0904 client: consumer-tag str8
file.cancel 0905 server: consumer-tag str8
file.open 0906 either -> open-ok: identifier str8, content-size uint64
file.open-ok 0907 either -> stage: staged-size uint64
file.stage 0908 either content
file.publish 0909 server: exchange exchange, routing-key str8, mandatory bit, immediate bit, identifier str8
file.return 090a client content: reply-code file-return-code, reply-text str8, exchange exchange, routing-key str8
file.deliver 090b client: consumer-tag str8, delivery-tag uint64, redelivered bit, exchange exchange, routing-key str8,
    identifier str8
file.ack 090c server: delivery-tag uint64, multiple bit
file.reject 090d server: delivery-tag uint64, requeue bit
struct stream.stream-properties 0a01: content-type str8, content-encoding str8, headers map, priority uint8,
    timestamp datetime
stream.qos 0a01 server -> qos-ok: prefetch-size uint32, prefetch-count uint16, consume-rate uint32, global bit
stream.qos-ok 0a02 client
stream.consume 0a03 server -> consume-ok: queue queue, consumer-tag str8, no-local bit, exclusive bit, nowait bit,
    arguments map
stream.consume-ok 0a04 client: consumer-tag str8
stream.cancel 0a05 server: consumer-tag str8
stream.publish 0a06 server content: exchange exchange, routing-key str8, mandatory bit, immediate bit
stream.return 0a07 client content: reply-code stream-return-code, reply-text str8, exchange exchange, routing-key str8
stream.deliver 0a08 client content: consumer-tag str8, delivery-tag uint64, exchange exchange, queue queue!
""")
"""Name, as the specification spells it -> class."""
