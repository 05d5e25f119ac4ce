"""Messages as a publisher of one end may write them: every property and every header type, edge values and random.

Message ``number`` of a seed and an end is always the same one, whoever asks for it and in whatever order. Every
second message holds one edge value, so that what breaks is seen alone; the others are random mixtures. Each message
carries its number in one place or another (:func:`number_of`), so that it is known again whatever became of the rest
of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Final
from uuid import UUID

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Value, type_of
from tests.translation.live import values
from tests.translation.live.ends import End

LARGE_EVERY: Final = 2_500
"""One message in so many has a body of about 1 MB."""

MODES: Final = (2, None, 2, 1)
STRETCH: Final = 50
"""So many messages in a row have the same delivery mode, as most publishers have it: on Broker-J's classic versions a
transient message that follows a persistent one has to wait for it."""

_MARK = re.compile(r"#(\d{6});")
_PLACES: Final = ("content_type", "correlation_id", "message_id", "type", "app_id")
"""Properties that may hold the number. A message id of 0-10 is a UUID and cannot."""


@dataclass(frozen=True)
class Edge:
    """One value in one place."""

    where: str
    """A property, ``header TYPE``, ``array TYPE``, ``table TYPE``, ``key``, ``data``, ``held`` or ``body``."""
    value: Any


def number_of(message: Message) -> int | None:
    """The number that a message of ours carries."""
    properties = message.properties
    for name in _PLACES:
        text = getattr(properties, name)
        if isinstance(text, str) and (found := _MARK.fullmatch(text)):
            return int(found[1])
    mark = (properties.headers or {}).get("n")
    if isinstance(mark, str) and (found := _MARK.fullmatch(mark)):
        return int(found[1])
    found = _MARK.match(message.body[:8].decode("latin-1"))
    return int(found[1]) if found else None


def properties_of(end: End) -> Mapping[str, tuple[Any, ...]]:
    """The properties that a publisher of that end has, with their edge values."""
    if end.native:
        return values.NATIVE_PROPERTIES
    if end.version in ("0-8", "0-9"):
        return values.CLASSIC_PROPERTIES
    return {name: edges for name, edges in values.CLASSIC_PROPERTIES.items() if name != "cluster_id"}


def fits(value: Value, types: frozenset[str]) -> bool:
    """Whether a value, and all that is in it, is of these types."""
    kind = type_of(value)
    if kind == "table":
        return all(fits(inner, types) for inner in value.values())
    if kind == "array":
        return all(fits(inner, types) for inner in value)
    return kind in types


@cache
def header_values(end: End) -> Mapping[str, tuple[Value, ...]]:
    """Type -> edge values that the end's publishers can write."""
    more = values.WIDER if end.native else {}
    edges = {
        kind: tuple(value for value in (*values.TYPES[kind], *more.get(kind, ())) if fits(value, end.types))
        for kind in sorted(end.types)
    }
    if end.native:  # its strings are UTF-8, and Java's characters are not wider than an octet
        edges["string"] = tuple(value for value in edges["string"] if isinstance(value, str))
    return edges


@cache
def edges(end: End) -> tuple[Edge, ...]:
    """Every edge value of an end, each in its place."""
    found = [Edge(name, value) for name, known in properties_of(end).items() for value in known]
    for kind, known in header_values(end).items():
        found += [Edge(f"header {kind}", value) for value in known]
        found += [Edge(f"array {kind}", value) for value in known[:2]]
        found += [Edge(f"table {kind}", value) for value in known[-2:]]
    keys = values.KEYS if end.native else (*values.KEYS, *values.KEYS_NOT_UTF8)
    found += [Edge("key", key) for key in keys]
    for where, headers in (("data", values.DATA_HEADERS), ("held", values.HELD_HEADERS)):
        found += [Edge(where, item) for item in headers.items() if fits(item[1], end.types) and _sent(end, item[0])]
    found += [Edge("body", size) for size in values.SIZES]
    found += [Edge("headers", headers) for headers in ({}, {str(index): index for index in range(200)})]
    Random(0).shuffle(found)  # so that any stretch of them is a bit of everything
    return tuple(found)


def _sent(end: End, name: str) -> bool:
    """RabbitMQ takes BCC off when a message is published: no consumer there has ever seen one."""
    return not (name == "BCC" and end.broker == "rabbitmq")


def messages(end: End, seed: int, count: int) -> Iterator[Message]:
    """The first so many messages of an end."""
    return (message(end, seed, number) for number in range(count))


def message(end: End, seed: int, number: int) -> Message:
    """Message ``number``."""
    random = Random(f"{seed}/{end.id}/{number}")
    if number % 2 == 0:
        known = edges(end)
        made, taken = _with_edge(known[(number // 2 + seed * 97) % len(known)], random)
    else:
        made, taken = _mixture(end, random), ""
    if taken != "delivery_mode":
        made = Message(made.body, replace(made.properties, delivery_mode=MODES[number // STRETCH % len(MODES)]))
    if number % LARGE_EVERY == LARGE_EVERY // 2 + 1:
        made = Message(random.randbytes(random.choice(values.LARGE)), made.properties)
    return _marked(made, end, number, taken, random)


def _with_edge(edge: Edge, random: Random) -> tuple[Message, str]:
    """A message of an edge value and little else, and the place that must not be touched."""
    place = edge.where.partition(" ")[0]
    body = b"edge"
    properties = Properties()
    match place:
        case "header":
            properties.headers = {"a": edge.value, "b": "behind"}
        case "array":
            properties.headers = {"a": [edge.value, 1, edge.value]}
        case "table":
            properties.headers = {"a": {"first": 1, "b": {"c": edge.value}, "last": edge.value}}
        case "key":
            properties.headers = {"before": 1, edge.value: {edge.value: "value"}}
        case "data" | "held":
            properties.headers = {"before": 1, edge.value[0]: edge.value[1], "behind": 2}
        case "body":
            body = random.randbytes(edge.value)
        case name:
            setattr(properties, name, edge.value)
    return Message(body, properties), place


def _mixture(end: End, random: Random) -> Message:
    """Properties, each present or not, and any headers."""
    properties = Properties()
    for name, known in properties_of(end).items():
        if random.random() < 0.45:
            value = random.choice(known) if random.random() < 0.6 else _random_property(end, name, random)
            setattr(properties, name, value)
    if random.random() < 0.8:
        properties.headers = _random_headers(end, random)
    return Message(_random_body(random), properties)


def _random_property(end: End, name: str, random: Random) -> Any:
    match name:
        case "delivery_mode" | "priority" | "user_id" | "reply_to":
            return random.choice(properties_of(end)[name])
        case "expiration":
            return str(random.randrange(600_000, 1 << 32))
        case "timestamp":
            return random.randrange(1 << random.choice((16, 32, 48, 64)))
        case "message_id":
            return str(UUID(int=random.getrandbits(128))) if end.native else _text(random, 255)
        case "correlation_id" | "app_id" if end.native and random.random() < 0.5:
            octets = random.randbytes(random.choice((1, 8, 40)))
            return octets if not _is_utf8(octets) else octets.decode()
    return _text(random, 255)


def _is_utf8(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(random: Random, most: int) -> str:
    alphabet = random.choice(("abc XYZ-_.:/", "aéü€\N{GRINNING FACE}", "\x00\t\n\x7f\x80ÿ"))
    length = random.randrange(min(most, 40) // 4 + 1)
    return "".join(random.choices(alphabet, k=length))


def _random_headers(end: End, random: Random) -> dict[str, Value]:
    keys = values.KEYS if end.native else (*values.KEYS, *values.KEYS_NOT_UTF8)
    headers: dict[str, Value] = {}
    for _ in range(random.choice((0, 1, 2, 3, 5, 12))):
        key = random.choice(keys) if random.random() < 0.3 else _text(random, 100)
        headers[key] = _random_value(end, random, 0)
    for known, chance in ((values.DATA_HEADERS, 0.1), (values.HELD_HEADERS, 0.05)):
        if random.random() < chance:
            name = random.choice(tuple(known))
            if fits(known[name], end.types) and _sent(end, name):
                headers[name] = known[name]
    items = list(headers.items())
    random.shuffle(items)
    return dict(items)


def _random_value(end: End, random: Random, depth: int) -> Value:
    known = header_values(end)
    kind = random.choice(tuple(known))
    if depth < 4 and random.random() < 0.3:
        kind = random.choice(("table", "array"))
        inner = [_random_value(end, random, depth + 1) for _ in range(random.randrange(4))]
        return inner if kind == "array" else {_text(random, 60) + str(index): item for index, item in enumerate(inner)}
    return random.choice(known[kind])


def _random_body(random: Random) -> bytes:
    chance = random.random()
    if chance < 0.1:
        return random.randbytes(random.choice((0, 1)))
    if chance < 0.75:
        return random.randbytes(random.randrange(200))
    if chance < 0.97:
        return random.randbytes(random.randrange(8_000))
    return random.randbytes(random.choice(values.SIZES))


def _marked(made: Message, end: End, number: int, taken: str, random: Random) -> Message:
    """With its number somewhere but in ``taken``."""
    mark = f"#{number:06d};"
    places: list[str] = [name for name in _PLACES if name in properties_of(end) and name != taken]
    if end.native and "message_id" in places:
        places.remove("message_id")
    if taken != "headers":
        places += ["header", "header", "header"]
    if taken != "body" and len(made.body) >= len(mark):
        places += ["body", "body", "body"]
    place = random.choice(places)
    properties = made.properties
    if place == "body":
        return Message(mark.encode() + made.body[len(mark) :], properties)
    if place == "header":
        items = [item for item in (properties.headers or {}).items() if item[0] != "n"]
        items.insert(random.randrange(len(items) + 1), ("n", mark))
        return Message(made.body, replace(properties, headers=dict(items)))
    return Message(made.body, replace(properties, **dict[str, Any]({place: mark})))
