"""Edge values of every property and of every type of header value.

What a source has no place for is left out by ``messages.py``; nothing here knows of brokers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from gateway.amqp.message import ReplyTo
from gateway.amqp.values import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    Timestamp,
    Typed,
    Value,
    typed,
)

A_UUID: Final = "3f0e6a51-20bb-4f3d-8f0e-2d4f2c1b7a10"

SHORT: Final = (
    "",
    "a",
    "a/b",
    " ",
    "é ü €",
    "\N{GRINNING FACE}",
    "nul \x00 nul",
    "a" * 255,
    "é" * 127,
    "line\r\nline",
    '{"json": [1, "two"]}',
)
"""Short strings of every version."""
NOT_UTF8: Final = ("\udcff", "caf\udce9", "\udcc3(\udc80")
"""Octets that are no UTF-8, as the short strings of the classic versions may have."""

CLASSIC_PROPERTIES: Final[Mapping[str, tuple[Any, ...]]] = {
    "content_type": (*SHORT, *NOT_UTF8, "text/plain; charset=utf-8", "amqp/map", "jms/stream-message"),
    "content_encoding": (*SHORT, *NOT_UTF8, "gzip"),
    "delivery_mode": (1, 2),
    "priority": (0, 1, 4, 9, 10, 127, 128, 255),
    "correlation_id": (*SHORT, *NOT_UTF8, A_UUID, f"ID:{A_UUID}"),
    "reply_to": (*SHORT, *NOT_UTF8, "amq.direct/answers", "direct://amq.direct//answers?routingkey='answers'"),
    "expiration": ("600000", "0600000", "86400000", "4294967295"),
    "message_id": (*SHORT, *NOT_UTF8, A_UUID, A_UUID.upper(), f"ID:{A_UUID}", A_UUID.replace("-", ""), "ID:"),
    "timestamp": (0, 1, INT32_MAX, 1 << 32, 1_709_208_000, 1_709_208_000_000, INT64_MAX, 1 << 63, UINT64_MAX),
    "type": (*SHORT, *NOT_UTF8),
    "user_id": ("guest",),
    "app_id": (*SHORT, *NOT_UTF8),
    "cluster_id": (*SHORT, *NOT_UTF8),
}
"""What a publisher of 0-8 may set; 0-9-1 has no cluster-id."""

NATIVE_PROPERTIES: Final[Mapping[str, tuple[Any, ...]]] = {
    "content_type": SHORT,
    "content_encoding": SHORT,
    "delivery_mode": (1, 2),
    "priority": tuple(range(10)),
    "correlation_id": (
        *SHORT,
        A_UUID,
        b"\xff\x00",
        bytes(range(128, 256)),
        "é" * 128,
        "c" * 256,
        "c" * 9_000,
        b"\xfe" * 600,
    ),
    "reply_to": (
        *SHORT,
        ReplyTo("amq.direct", "answers"),
        ReplyTo("ex", ""),
        ReplyTo("x" * 255, "k" * 255),
        ReplyTo("é/ü", "#.€"),
    ),
    "expiration": ("600000", "4294967295", "4294967296", str(1 << 53)),
    "message_id": (A_UUID, str(UUID(int=0)), str(UUID(int=(1 << 128) - 1)), str(UUID(int=1))),
    "user_id": ("guest",),
    "app_id": (*SHORT, b"\xff\x00", "a" * 256, b"\xfe" * 300),
}
"""What a publisher of 0-10 may set."""

TYPES: Final[Mapping[str, tuple[Value, ...]]] = {
    "void": (None,),
    "bool": (True, False),
    "int8": tuple(Typed("int8", value) for value in (-128, -1, 0, 3, 127)),
    "uint8": tuple(Typed("uint8", value) for value in (0, 3, 128, 255)),
    "int16": tuple(Typed("int16", value) for value in (-32768, -1, 0, 3, 32767)),
    "uint16": tuple(Typed("uint16", value) for value in (0, 3, 32768, 65535)),
    "int32": (INT32_MIN, -1, 0, 3, INT32_MAX),
    "uint32": tuple(Typed("uint32", value) for value in (0, 3, 1 << 31, (1 << 32) - 1)),
    "int64": tuple(typed("int64", value) for value in (INT64_MIN, INT32_MIN - 1, -1, 0, 3, 1 << 31, INT64_MAX)),
    "uint64": tuple(typed("uint64", value) for value in (0, 3, 1 << 32, INT64_MAX, 1 << 63, UINT64_MAX)),
    "float": tuple(
        Typed("float", struct.unpack(">f", bytes.fromhex(octets))[0])
        for octets in ("00000000", "80000000", "3fc00000", "7f7fffff", "00000001", "7f800000", "ff800000", "7fc00000")
    ),
    "double": tuple(
        struct.unpack(">d", bytes.fromhex(octets.ljust(16, "0")))[0]
        for octets in ("", "8", "3fb999999999999a", "7fefffffffffffff", "0000000000000001", "7ff", "fff", "7ff8")
    ),
    "decimal": tuple(
        Decimal(f"{unscaled}E-{scale}")
        for scale, unscaled in (
            (0, 0), (0, 5), (0, INT32_MAX), (0, INT32_MIN), (1, 10), (2, 125), (2, -125), (2, 0), (9, 1),
            (10, INT32_MAX), (28, 1), (127, -7), (128, 7), (255, 1), (255, INT32_MIN),
        )
    ),
    "dec64": tuple(
        Typed("dec64", Decimal(f"{unscaled}E-{scale}"))
        for scale, unscaled in ((0, 0), (0, INT64_MAX), (0, INT64_MIN), (2, 150), (18, -1), (255, INT64_MAX))
    ),
    "timestamp": tuple(map(Timestamp, (0, 1, INT32_MAX, 1 << 32, 1_709_208_000, INT64_MAX, 1 << 63, UINT64_MAX))),
    "char": tuple(Typed("char", value) for value in ("a", "\x00", "\x7f")),
    "char-utf32": tuple(Typed("char-utf32", value) for value in ("a", "é", "\N{GRINNING FACE}", b"\xff\xff\xff\xff")),
    "uuid": (UUID(int=0), UUID(A_UUID), UUID(int=(1 << 128) - 1)),
    "string": (*SHORT, "s" * 256, "s" * 5_000, "€" * 5_000, Typed("string", b"\xff"), Typed("string", b"caf\xe9\x00")),
    "str8": tuple(Typed("str8", value) for value in ("", "a", "é", "a" * 255, b"\xff")),
    "str8-latin": tuple(Typed("str8-latin", value) for value in ("", "a", "a" * 255)),
    "str8-utf16": tuple(Typed("str8-utf16", value) for value in ("", "a", "é", b"\xd8\x00")),
    "str16-latin": tuple(Typed("str16-latin", value) for value in ("", "a", "é€", "a" * 300)),
    "str16-utf16": tuple(Typed("str16-utf16", value) for value in ("", "a", "é", "\N{GRINNING FACE}")),
    "bytes": (b"", b"\x00", b"text", bytes(range(256)), b"\xff" * 3_000),
    "vbin8": tuple(Typed("vbin8", value) for value in (b"", b"\x00\xff", b"v" * 255)),
    "vbin16": tuple(Typed("vbin16", value) for value in (b"", b"\x00\xff", b"v" * 300)),
    "bit": (Typed("bit", True),),
    "struct32": tuple(
        Typed("struct32", bytes.fromhex(octets)) for octets in ("04010000", "040101000000000000000007", "")
    ),
    "typed-array": tuple(
        Typed("typed-array", bytes.fromhex(octets))
        for octets in ("2100000002ffffffff00000007", "0800000003010001", "95000000020001610000", "")
    ),
    "table": ({}, {"a": 1}, {"": {"": {}}}, {"deep": {"deeper": {"deepest": [{"end": None}]}}}, {"k" * 255: "é"}),
    "array": ([], [None], [1, "two", 3.0], [[], [[]], [{}]], [True, b"\xff", [Decimal("1.50")]]),
} | {
    f"bin{bits}": (Typed(f"bin{bits}", bytes(bits // 8)), Typed(f"bin{bits}", b"\xff" * (bits // 8)))
    for bits in (8, 16, 32, 40, 64, 72, 128, 256, 512, 1024)
}  # fmt: skip
"""Type of a header value -> values of it."""

WIDER: Final[Mapping[str, tuple[Value, ...]]] = {
    "char": tuple(Typed("char", value) for value in ("é", "ÿ")),
    "str8-latin": (Typed("str8-latin", "é"),),
}
"""More of them that 0-10 has."""

KEYS: Final = (
    "",
    "a",
    "A",
    "x-a",
    "a.b",
    "a/b",
    "é",
    "k" * 255,
    "€" * 85,
    "$",
    "1",
    " ",
    "JMSXGroupID",
    "qpid.subject",
)
"""Names of headers."""
KEYS_NOT_UTF8: Final = ("\udcff", "k\udce9")

DATA_HEADERS: Final[Mapping[str, Value]] = {
    "x-jms-type": "order",
    "qpid.subject": "subject",
    "x-received-from": [{"uri": "amqp://upstream", "exchange": "orders", "redelivered": False, "cluster-name": "east"}],
    "x-opt-jms-msg-type": Typed("int8", 5),
    "JMS_QPID_DESTTYPE": 1,
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
"""Headers that products gave a meaning, and that no broker acts upon."""

HELD_HEADERS: Final[Mapping[str, Value]] = {
    "x-death": [
        {
            "count": typed("int64", 1),
            "reason": "expired",
            "queue": "elsewhere",
            "time": Timestamp(1_709_208_000),
            "exchange": "",
            "routing-keys": ["elsewhere"],
        }
    ],
    "x-first-death-exchange": "",
    "x-first-death-queue": "elsewhere",
    "x-first-death-reason": "expired",
    "CC": ["nobody.listens.here"],
    "BCC": ["nor.here"],
    "x-delay": 5_000,
}
"""Headers that brokers act upon."""

SIZES: Final = (
    0, 1, 2, 255, 4_096 - 12, 4_096 - 11, 4_096 - 8, 4_096 - 7, 4_096, 65_535 - 12, 65_535 - 11, 65_535, 65_536,
    131_072 - 8, 131_072 - 7, 131_072, 262_136 - 8, 262_136 - 7,
)  # fmt: skip
"""Of bodies: nothing, and about the sizes of frames."""
LARGE: Final = (1 << 20, 1_000_003)
"""Of a few bodies."""
