"""Whether two messages are the same, and in which fields they are not.

Beside :func:`gateway.fidelity.digest` and independent of it: properties one by one, headers with their types, their
octets and their order. Left out is what is the gateway's own (the reserved header; headers that it holds are looked at
in their old places) and what the broker of the source says by itself: when a message arrived.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from gateway.amqp.message import PROPERTY_NAMES, ArrivalTime, Message, Properties, ReplyTo
from gateway.amqp.values import Typed, Value, type_of
from gateway.fidelity import HELD, digest, forward, strip
from tests.translation.live.ends import End
from tests.translation.live.values import HELD_HEADERS

_RELEASE: Final = HELD | frozenset(HELD_HEADERS)


def canonical(value: Value) -> Any:
    """A header value as its type and something that is equal for the same octets alone."""
    kind = type_of(value)
    plain = value.value if isinstance(value, Typed) else value
    match kind:
        case "table":
            return kind, tuple((key, canonical(item)) for key, item in plain.items())
        case "array":
            return kind, tuple(canonical(item) for item in plain)
        case "float" | "double":
            return kind, struct.pack(">d", plain).hex()
        case "decimal" | "dec64":
            return kind, plain.as_tuple()
        case "timestamp":
            return kind, int(plain)
    return kind, type(plain).__name__, plain


def property_of(properties: Properties, name: str) -> Any:
    """A property in a form that may be compared."""
    value = getattr(properties, name)
    if name == "headers":
        return None if value is None else tuple((key, canonical(item)) for key, item in value.items())
    if isinstance(value, ReplyTo):
        return value.exchange, value.routing_key
    if isinstance(value, ArrivalTime):
        return None
    return value


def bare(message: Message) -> Properties:
    """The properties without what is the gateway's own."""
    return strip(forward(message, {}, release=_RELEASE)).properties


def differences(end: End, sent: Message, got: Message, elapsed: float, in_order: bool = True) -> list[str]:
    """``field: sent -> got`` of all that is not the same.

    Args:
        end: Where it was sent, and where it was taken.
        elapsed: Seconds between the two, by which an expiration may have become shorter where it is an instant.
        in_order: The order of the headers counts: all brokers in between keep it.
    """
    found = []
    if sent.body != got.body:
        found.append(f"body: {len(sent.body)} octets {sent.body!r:.40} -> {len(got.body)} octets {got.body!r:.40}")
    wanted, properties = sent.properties, bare(got)
    for name in PROPERTY_NAMES:
        before, after = property_of(wanted, name), property_of(properties, name)
        if name == "headers" and not in_order and before and after:
            before, after = tuple(sorted(before)), tuple(sorted(after))
        if before == after or (name == "expiration" and _shorter(before, after, elapsed if end.instants else 0.0)):
            continue
        found += _headers(before, after) if name == "headers" else [f"{name}: {before!r:.80} -> {after!r:.80}"]
    return found


def same_digest(end: End, sent: Message, got: Message) -> bool:
    """Whether the gateway's own digest of them is the same. An expiration that was an instant is left out of it: who
    sent the message named a duration."""
    one, other = sent.properties, got.properties
    if end.instants:
        one, other = _without_expiration(one), _without_expiration(other)
    return digest(Message(sent.body, one)) == digest(Message(got.body, other))


def _without_expiration(properties: Properties) -> Properties:
    fields = {name: getattr(properties, name) for name in PROPERTY_NAMES}
    return Properties(**{**fields, "expiration": None})


def _shorter(before: str | None, after: str | None, elapsed: float) -> bool:
    """Two durations, of which the second may have become shorter."""
    return before is not None and after is not None and int(before) - elapsed * 1000 - 1 <= int(after) <= int(before)


def _headers(before: Any, after: Any) -> list[str]:
    if before is None or after is None:
        return [f"headers: {before!r:.120} -> {after!r:.120}"]
    one, other = dict(before), dict(after)
    found = [
        f"headers.{key!r:.40}: {one.get(key, 'absent')!r:.200} -> {other.get(key, 'absent')!r:.200}"
        for key in {**one, **other}
        if key not in one or key not in other or one[key] != other[key]
    ]
    return found or [f"headers: order {list(one)!r:.120} -> {list(other)!r:.120}"]
