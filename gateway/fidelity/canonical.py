"""One digest for a message wherever it is: equal at both ends means unchanged.

Version, dialect and transport leave no trace in it. It covers the body and every property, header values with their
types, and the order inside of them. Two things do not count, for RabbitMQ 4 changes them: the order of the headers
themselves, and zeros at the beginning of an expiration. Left out are the reserved header (what that carries counts as
what it was), the redelivered flag, and the time at which a broker took the message.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from gateway.amqp.message import PROPERTY_NAMES, ArrivalTime, Deadline, Message, Properties, ReplyTo
from gateway.amqp.values import Typed, Value, type_of
from gateway.fidelity.forwarding import held_in, put_back
from gateway.fidelity.homes import CLAIM, unpack
from gateway.fidelity.reserved import RESERVED, entry_of

_DIGITS_MAX: Final = 20
"""No duration in milliseconds has more digits."""
_U32 = struct.Struct(">I").pack
_DOUBLE = struct.Struct(">d").pack
_NAMES: Final = tuple(name for name in PROPERTY_NAMES if name != "headers")


def digest(message: Message) -> bytes:
    """SHA-256 over the canonical message, 32 octets.

    Raises:
        FrameSyntaxError: the properties are malformed.
    """
    made = sha256(canonical(message.properties))
    made.update(message.body)
    return made.digest()


def canonical(properties: Properties) -> bytes:
    """Properties as octets that are equal where the properties say the same."""
    out: list[bytes] = []
    headers = properties.headers or {}
    entry = entry_of(headers)
    for name in _NAMES:
        value = getattr(properties, name)
        if value is None and name == CLAIM:
            value = _claimed_user(entry)
        if value is None or isinstance(value, ArrivalTime):
            continue
        if name == "expiration" and type(value) is str and value.isdecimal():
            value = str(int(value)) if len(value) <= _DIGITS_MAX else value
        out.append(_sized(name.encode()))
        out.append(_property(value))
    held, places = held_in(entry)
    rest = {key: value for key, value in headers.items() if key != RESERVED}
    if held:
        rest = put_back(rest, held, places, list(held))
    out.append(_table(dict(sorted(rest.items(), key=_name))))
    return b"".join(out)


def _name(entry: tuple[str, Value]) -> bytes:
    return _octets(entry[0])


def _claimed_user(entry: Mapping[str, Value]) -> Any:
    """The user-id that travels in the reserved header, where it is no more than a claim."""
    claim = entry.get(CLAIM)
    return unpack(CLAIM, claim) if claim is not None else None


def _property(value: Any) -> bytes:
    if isinstance(value, ReplyTo):
        return b"R" + _sized(_octets(value.exchange)) + _sized(_octets(value.routing_key))
    if isinstance(value, Deadline):
        return b"@" + _sized(str(value.instant).encode())
    if isinstance(value, int):
        return b"I" + _sized(str(int(value)).encode())
    return b"S" + _sized(_octets(value))


def _octets(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def _sized(octets: bytes) -> bytes:
    return _U32(len(octets)) + octets


def _table(table: Mapping[str, Value]) -> bytes:
    out = [_U32(len(table))]
    for key, value in table.items():
        out.append(_sized(_octets(key)))
        out.append(_value(value))
    return b"".join(out)


def _value(value: Value) -> bytes:
    kind = type_of(value)
    plain = value.value if isinstance(value, Typed) else value
    if kind == "table":
        octets = _table(plain)
    elif kind == "array":
        octets = _U32(len(plain)) + b"".join([_value(item) for item in plain])
    elif isinstance(plain, str | bytes):
        octets = _octets(plain)
    elif isinstance(plain, float):
        octets = _DOUBLE(plain)
    elif isinstance(plain, Decimal):
        octets = _decimal(plain)
    elif isinstance(plain, UUID):
        octets = plain.bytes
    else:  # integers, booleans, nothing
        octets = repr(None if plain is None else int(plain)).encode()
    return _sized(kind.encode()) + _sized(octets)


def _decimal(value: Decimal) -> bytes:
    """Digits and scale, as they are on the wire: a scale is never negative there."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value).encode()
    unscaled = int("".join(map(str, digits)))
    if exponent > 0:
        unscaled, exponent = unscaled * 10 ** min(exponent, 40), 0
    return f"{-unscaled if sign else unscaled}E{exponent}".encode()
