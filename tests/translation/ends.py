"""Both ends of a bridge, without brokers: every version and dialect, and samples of all that a message can hold."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from gateway.amqp.message import PROPERTY_NAMES, ArrivalTime, Deadline, Message, Properties, ReplyTo
from gateway.amqp.values import DRAFT_STRINGS, TYPES, Timestamp, Typed, Value
from gateway.fidelity import RESERVED, forward
from gateway.session import Version
from gateway.translation import TranslationTarget, target_of
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.v09.version import V0_9
from gateway.v091.version import V0_9_1

NOW: Final = 1_700_000_000.0


def clock() -> float:
    """A wall clock that stands."""
    return NOW


def _end(version: Version, dialect: str, product: str = "") -> TranslationTarget:
    return target_of(version, product, dialect=dialect, clock=clock)


ENDS: Final[dict[str, TranslationTarget]] = {
    "0-8 rabbitmq": _end(V0_8, "rabbitmq"),
    "0-8 qpid": _end(V0_8, "qpid"),
    "0-8 published": _end(V0_8, "published"),
    "0-9 rabbitmq": _end(V0_9, "rabbitmq"),
    "0-9 qpid": _end(V0_9, "qpid"),
    "0-9 published": _end(V0_9, "published"),
    "0-9-1 rabbitmq": _end(V0_9_1, "rabbitmq"),
    "0-9-1 qpid": _end(V0_9_1, "qpid"),
    "0-10 qpid": _end(V0_10, "", "qpid"),
    "0-10 other": _end(V0_10, "", "qpid-cpp"),
    "0-10 transitional": _end(V0_10, "transitional"),
}
PAIRS: Final = [(there, here) for there in ENDS for here in ENDS]

PROPERTY_SAMPLES: Final[dict[str, tuple[Any, ...]]] = {
    "content_type": ("", "text/plain", "é" * 127, "\udcff"),
    "content_encoding": ("gzip", "x-gzip", "identity"),
    "delivery_mode": (0, 1, 2, 3, 255),
    "priority": (0, 4, 9, 10, 255),
    "correlation_id": ("", "c-1", "é" * 127, "x" * 256, "x" * 60_000, b"\xff", b"\xff" * 300, "\udcff"),
    "reply_to": (
        "", "replies", "\udcff", "amq.rabbitmq.reply-to", ReplyTo("x", "k"), ReplyTo("x", ""), ReplyTo("", "k"),
    ),
    "expiration": (
        "0", "1", "60000", "007", "soon", "", "-1", "9" * 30, str((1 << 32) - 1), str(1 << 32), str((1 << 64) - 1),
        Deadline.at(1_700_000_060_000, NOW), Deadline.at(1, NOW),
    ),
    "message_id": ("", "m-1", "x" * 255, "\udcff", "12345678-1234-5678-1234-567812345678", "ID:1", "ABCDEF" * 6),
    "timestamp": (0, 1_700_000_000, (1 << 64) - 1, ArrivalTime(1_600_000_000)),
    "type": ("", "order", "x" * 255, "é", "\udcff"),
    "app_id": ("", "shop", "x" * 256, b"\xff", "\udcff"),
    "cluster_id": ("", "c"),
}  # fmt: skip
"""Property -> values, usual ones and edges. ``user_id`` is not restored; see test_users.py."""

HEADER_SAMPLES: Final[dict[str, tuple[Value, ...]]] = {
    "void": (None,),
    "bool": (True, False),
    "int8": (Typed("int8", -128), Typed("int8", 127)),
    "uint8": (Typed("uint8", 0), Typed("uint8", 255)),
    "int16": (Typed("int16", -(1 << 15)),),
    "uint16": (Typed("uint16", 65_535),),
    "int32": (0, -(1 << 31), (1 << 31) - 1),
    "uint32": (Typed("uint32", 5), Typed("uint32", (1 << 32) - 1)),
    "int64": (1 << 31, -(1 << 63), Typed("int64", 3)),
    "uint64": (1 << 63, (1 << 64) - 1, Typed("uint64", 3)),
    "float": (Typed("float", 0.5), Typed("float", float("inf"))),
    "double": (0.1, -0.0, float("inf"), float("-inf"), 5e-324),
    "decimal": (Decimal("1.50"), Decimal("-0.0000001"), Decimal(0)),
    "dec64": (Typed("dec64", Decimal("1.50")), Typed("dec64", Decimal(1 << 62))),
    "timestamp": (Timestamp(0), Timestamp(1_700_000_000), Timestamp((1 << 64) - 1)),
    "char": (Typed("char", "a"), Typed("char", "é")),
    "char-utf32": (Typed("char-utf32", "😀"), Typed("char-utf32", b"\x00\x00\xd8\x00")),
    "uuid": (UUID(int=5),),
    "string": ("", "text", "é" * 100, "x" * 70_000, Typed("string", b"\xff\x00")),
    "str8": (Typed("str8", "a"), Typed("str8", b"\xff")),
    "str8-latin": (Typed("str8-latin", "é"),),
    "str8-utf16": (Typed("str8-utf16", "é"), Typed("str8-utf16", b"\xd8")),
    "str16-latin": (Typed("str16-latin", "é"),),
    "str16-utf16": (Typed("str16-utf16", "é"),),
    **{kind: (Typed(kind, "é"), Typed(kind, "")) for kind in DRAFT_STRINGS},
    "bytes": (b"", b"\x00\xff" * 50),
    "vbin8": (Typed("vbin8", b"x"),),
    "vbin16": (Typed("vbin16", b"x"),),
    **{
        f"bin{bits}": (Typed(f"bin{bits}", bytes(range(bits // 8))),)
        for bits in (8, 16, 32, 40, 64, 72, 128, 256, 512, 1024)
    },
    "bit": (Typed("bit", True),),
    "struct32": (Typed("struct32", b"\x04\x01\x00\x00"),),
    "typed-array": (Typed("typed-array", b"\x01\x00\x00\x00\x02\x05\x06"), Typed("typed-array", b"")),
    "table": ({}, {"a": 1}, {"a": {"b": {"c": [1, {"d": UUID(int=5)}]}}, "empty": {}}),
    "array": ([], [1, "x", None], [[Typed("uint8", 5)], {"u": UUID(int=5)}, []]),
}
"""Wire type -> values. The other two types of :data:`gateway.amqp.values.TYPES` are on no wire."""
ON_NO_WIRE: Final = {"sequence-no", "bin48"}
NAMES: Final = ("k", "", "é" * 127, "\udcff\udcfe", "x" * 255, "x-gateway-key-0")
"""Names of headers."""


def samples() -> list[Properties]:
    """Messages of one property each, of one header each, and of many."""
    found = [Properties()]
    for name, values in PROPERTY_SAMPLES.items():
        found += [Properties(**{name: value}) for value in values]
    for kind, values in HEADER_SAMPLES.items():
        found += [Properties(headers={"before": 1, kind: value, "behind": "x"}) for value in values]
    found += [Properties(headers={name: "value", "n": {name: [{name: UUID(int=5)}]}}) for name in NAMES]
    found.append(Properties(headers={}))
    found.append(Properties(headers={}, type="t", timestamp=5))
    for held in ("x-jms-type", "qpid.subject", "x-received-from"):  # mere data
        found.append(Properties(headers={held: "text"}))
        found.append(Properties(headers={held: "text"}, type="text"))
        found.append(Properties(headers={held: "text", "a": 1}, type="other"))
        found.append(Properties(headers={held: Typed("str8", "text")}))
        found.append(Properties(headers={held: 5}, type="other"))
    found.append(
        Properties(
            **{name: values[1] for name, values in PROPERTY_SAMPLES.items()},
            headers={
                f"{kind}{number}": value
                for kind, values in HEADER_SAMPLES.items()
                for number, value in enumerate(values)
                if not isinstance(value, str) or len(value) < 1_000
            },
        )
    )
    return found


def mine(properties: Properties) -> Properties:
    """Properties without what bridges wrote, and without a broker's own time."""
    if type(properties.timestamp) is ArrivalTime:
        properties = replace(properties, timestamp=None)
    headers = properties.headers
    if headers is None or RESERVED not in headers:
        return properties
    rest = {key: value for key, value in headers.items() if key != RESERVED}
    return replace(properties, headers=rest if rest or "empty" in headers[RESERVED] else None)


def hop(message: Message, end: TranslationTarget, **options: Any) -> Message:
    """What a bridge makes of a message, read back from its target."""
    return end.there_and_back(forward(message, {"id": "0190", "hops": "1"}, **options))


assert {*PROPERTY_SAMPLES, "headers", "user_id"} == {*PROPERTY_NAMES}
assert HEADER_SAMPLES.keys() == TYPES - ON_NO_WIRE
