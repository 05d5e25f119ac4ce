"""The message of the interop tests, with every property and every header type, in the words of each side."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from gateway.amqp.message import Message, Properties, ReplyTo
from gateway.amqp.values import Table, Timestamp, Typed
from tests.interop import octets
from tests.servers.judge import octets as base64

WHEN = 1_709_208_000
BODY = b"between \x00\xff two"
TTL = 600_000

# ------------------------------------------------------------------------------------- 0-8 and 0-9-1

HEADERS: Table = {
    "true": True,
    "false": False,
    "int8": Typed("int8", -3),
    "uint8": Typed("uint8", 200),
    "int16": Typed("int16", -300),
    "uint16": Typed("uint16", 60_000),
    "int32": -70_000,
    "three": 3,
    "uint32": Typed("uint32", 4_000_000_000),
    "int64": 1 << 40,
    "small int64": Typed("int64", 5),
    "float": Typed("float", 1.5),
    "double": 0.1,
    "decimal": Decimal("1.25"),
    "string": "é ü",
    "empty string": "",
    "octets as string": Typed("string", b"\xff\xfe"),
    "bytes": b"\x00\xff",
    "time": Timestamp(WHEN),
    "late time": Timestamp(1 << 33),
    "void": None,
    "table": {"z": {"n": 1}, "a": []},
    "array": [1, "two", [Typed("int8", 3)], {"four": 4}, None],
    "é": "key",
    "k" * 255: "long key",
}
"""In an order that is not the alphabet's."""

ENTRIES: list[octets.Entry] = [
    ("true", "t", True),
    ("false", "t", False),
    ("int8", "b", -3),
    ("uint8", "B", 200),
    ("int16", "s", -300),
    ("uint16", "u", 60_000),
    ("int32", "I", -70_000),
    ("three", "I", 3),
    ("uint32", "i", 4_000_000_000),
    ("int64", "l", 1 << 40),
    ("small int64", "l", 5),
    ("float", "f", 1.5),
    ("double", "d", 0.1),
    ("decimal", "D", (2, 125)),
    ("string", "S", "é ü"),
    ("empty string", "S", ""),
    ("octets as string", "S", b"\xff\xfe"),
    ("bytes", "x", b"\x00\xff"),
    ("time", "T", WHEN),
    ("late time", "T", 1 << 33),
    ("void", "V", None),
    ("table", "F", [("z", "F", [("n", "I", 1)]), ("a", "A", [])]),
    ("array", "A", [("I", 1), ("S", "two"), ("A", [("b", 3)]), ("F", [("four", "I", 4)]), ("V", None)]),
    ("é", "S", "key"),
    ("k" * 255, "S", "long key"),
]

PROPERTIES = Properties(
    content_type="application/x-interop",
    content_encoding="identity",
    headers=HEADERS,
    delivery_mode=2,
    priority=7,
    correlation_id="correlation é",
    reply_to="answers",
    expiration=str(TTL),
    message_id="m-1",
    timestamp=WHEN,
    type="sample",
    user_id="guest",
    app_id="interop",
)

ON_THE_WIRE: dict[str, Any] = {
    "content_type": "application/x-interop",
    "content_encoding": "identity",
    "headers": ENTRIES,
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation é",
    "reply_to": "answers",
    "expiration": str(TTL),
    "message_id": "m-1",
    "timestamp": WHEN,
    "type": "sample",
    "user_id": "guest",
    "app_id": "interop",
}


def on_the_wire(in_order: bool) -> dict[str, Any]:
    """The sample as a broker hands it out: with the headers in order, or sorted by name as RabbitMQ 4 does."""
    return ON_THE_WIRE if in_order else {**ON_THE_WIRE, "headers": sorted(ENTRIES, key=lambda entry: entry[0].encode())}


"""What :func:`tests.interop.octets.properties` makes the property list of."""

AS_PYTHON: dict[str, Any] = {
    "true": True,
    "int8": -3,
    "uint8": 200,
    "int16": -300,
    "uint16": 60_000,
    "int32": -70_000,
    "three": 3,
    "uint32": 4_000_000_000,
    "int64": 1 << 40,
    "decimal": Decimal("1.25"),
    "string": "é ü",
    "empty string": "",
    "bytes": b"\x00\xff",
    "time": datetime.fromtimestamp(WHEN, UTC),
    "void": None,
    "table": {"z": {"n": 1}, "a": []},
    "array": [1, "two", [3], {"four": 4}, None],
    "é": "key",
}
"""How pika shows the headers: without their widths (and floats cut to integers, so these are left out)."""

JAVA_CLASSIC: list[Any] = [
    ["true", ["t", True]],
    ["int8", ["b", -3]],
    ["int16", ["s", -300]],
    ["int32", ["I", -70_000]],
    ["int64", ["l", 1 << 40]],
    ["small int64", ["l", 5]],
    ["float", ["f", 1.5]],
    ["double", ["d", 0.1]],
    ["decimal", ["D", [2, 125]]],
    ["string", ["S", "é ü"]],
    ["empty string", ["S", ""]],
    ["bytes", ["x", base64(b"\x00\xff")]],
    ["time", ["T", WHEN]],
    ["void", ["V", None]],
    ["table", ["F", [["z", ["F", [["n", ["I", 1]]]]]]]],
    ["array", ["A", [["I", 1], ["S", "two"]]]],
]
"""The types that Qpid's client knows, as it reads them."""

JAVA_CLASSIC_HEADERS: Table = {
    **{entry[0]: HEADERS[entry[0]] for entry in JAVA_CLASSIC},
    "table": {"z": {"n": 1}},
    "array": [1, "two"],
}
JAVA_CLASSIC_PROPERTIES = replace(PROPERTIES, headers=JAVA_CLASSIC_HEADERS)


def java_classic(written: bool) -> dict[str, Any]:
    """The sample as Qpid's client writes it (elements of arrays by their Java class) or reads it."""
    headers = JAVA_CLASSIC
    if written:
        headers = [*JAVA_CLASSIC[:-1], ["array", ["A", [["Integer", 1], ["String", "two"]]]]]
    return {
        **{name: value for name, value in ON_THE_WIRE.items() if name not in ("headers", "expiration")},
        "headers": headers,
    }


# ---------------------------------------------------------------------------------------------- 0-10

MESSAGE_ID = UUID("3f0e6a51-20bb-4f3d-8f0e-2d4f2c1b7a10")

NATIVE_HEADERS: Table = {
    "true": True,
    "int8": Typed("int8", -3),
    "uint8": Typed("uint8", 200),
    "int16": Typed("int16", -300),
    "uint16": Typed("uint16", 60_000),
    "int32": -70_000,
    "uint32": Typed("uint32", 4_000_000_000),
    "int64": 1 << 40,
    "uint64": Typed("uint64", 1 << 50),
    "float": Typed("float", 1.5),
    "double": 0.1,
    "string": "é ü",
    "bytes": b"\x00\xff",
    "uuid": MESSAGE_ID,
    "time": Timestamp(WHEN),
    "void": None,
    "map": {"z": {"n": 1}},
    "list": [1, "two", [3], {"four": 4}],
}
JAVA_NATIVE: list[Any] = [
    ["true", ["Boolean", True]],
    ["int8", ["Byte", -3]],
    ["uint8", ["Short", 200]],
    ["int16", ["Short", -300]],
    ["uint16", ["Integer", 60_000]],
    ["int32", ["Integer", -70_000]],
    ["uint32", ["Long", 4_000_000_000]],
    ["int64", ["Long", 1 << 40]],
    ["uint64", ["Long", 1 << 50]],
    ["float", ["Float", 1.5]],
    ["double", ["Double", 0.1]],
    ["string", ["String", "é ü"]],
    ["bytes", ["byte[]", base64(b"\x00\xff")]],
    ["uuid", ["UUID", str(MESSAGE_ID)]],
    ["time", ["Long", WHEN]],
    ["void", ["null", None]],
    ["map", ["Map", [["z", ["Map", [["n", ["Integer", 1]]]]]]]],
    [
        "list",
        [
            "List",
            [["Integer", 1], ["String", "two"], ["List", [["Integer", 3]]], ["Map", [["four", ["Integer", 4]]]]],
        ],
    ],
]
"""As Qpid's client reads them: unsigned integers as the next wider Java type."""

JAVA_WRITES = (
    "true",
    "int8",
    "int16",
    "int32",
    "int64",
    "float",
    "double",
    "string",
    "bytes",
    "uuid",
    "void",
    "map",
    "list",
)
"""Which of the types that client can write."""

NATIVE_PROPERTIES = Properties(
    content_type="application/x-interop",
    content_encoding="identity",
    headers=NATIVE_HEADERS,
    delivery_mode=2,
    priority=7,
    correlation_id=b"\xff correlation",
    reply_to=ReplyTo("amq.direct", "answers"),
    expiration=str(TTL),
    message_id=str(MESSAGE_ID),
    user_id="guest",
    app_id="interop",
)
"""What 0-10 has a field for."""

JAVA_NATIVE_MESSAGE: dict[str, Any] = {
    "content_type": "application/x-interop",
    "content_encoding": "identity",
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": base64(b"\xff correlation"),
    "reply_to": ["amq.direct", "answers"],
    "message_id": str(MESSAGE_ID),
    "user_id": base64(b"guest"),
    "app_id": base64(b"interop"),
}


def message(properties: Properties = PROPERTIES, body: bytes = BODY) -> Message:
    """The sample."""
    return Message(body, properties)


def pattern(size: int) -> bytes:
    """A body of that size whose octets tell where they stood."""
    return bytes((index * 31 + (index >> 8)) & 0xFF for index in range(size))


SIZES = (0, 1, 65_535 - 12, 65_535 - 11, 131_072 - 8, 131_072 - 7, 2 * (262_136 - 8), 1_000_003)
"""Of bodies: nothing, and about the frame sizes of the brokers."""
