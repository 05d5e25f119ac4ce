"""A message that is sent once more: as it was, and without what it met on its way.

It is a message of its own, with an id of its own. What brokers wrote when it died (``x-death``), and what the gateway's
own header tells of earlier ways, are not its; headers that brokers act upon are held, as in
:mod:`gateway.fidelity.forwarding`. All other properties and headers are as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.amqp.message import Message, with_headers
from gateway.amqp.values import Table
from gateway.errors import FrameSyntaxError
from gateway.fidelity.deaths import FIRST_DEATH, X_DEATH
from gateway.fidelity.forwarding import forward, strip
from gateway.fidelity.reserved import RESERVED, entry_of

DEATHS: Final = (X_DEATH, "x-delivery-count")
DEATH_PREFIXES: Final = (FIRST_DEATH, "x-last-death-")
"""Headers that brokers write when a message dies."""
FORGOTTEN: Final = frozenset({
    "id", "origin", "hops", "via", "resent", "reason", "code", "at", "bridge", "subscription", "broker", "queue",
    "exchange", "routing_key", "letter", "replay", "replay_of", "tap",
})  # fmt: skip
"""Entries of the reserved header that tell of an earlier way."""


def copy_of(message: Message, entries: Mapping[str, str], *, annotated: bool = True) -> Message:
    """The message as it is sent once more.

    Args:
        entries: what to write into the reserved header.
        annotated: whether the target's messages get that header.
    """
    try:
        properties = message.properties
    except FrameSyntaxError:
        return message  # octets that are no property list only pass through
    headers = properties.headers
    if headers:
        kept: Table = {name: value for name, value in headers.items() if not is_death(name)}
        entry: Table = {name: value for name, value in entry_of(headers).items() if name not in FORGOTTEN}
        held = entry.get("held")
        if isinstance(held, dict) and any(is_death(name) for name in held):
            entry = _without_deaths(entry, held)
        kept.pop(RESERVED, None)
        if entry:
            kept[RESERVED] = entry
        message = message.altered(with_headers(properties, kept or None))
    if not annotated:
        return strip(message)
    return forward(message, entries)


def _without_deaths(entry: Table, held: Table) -> Table:
    at = entry.get("held_at")
    places = dict(zip(held, at.split(",") if isinstance(at, str) else (), strict=False))
    left = {name: value for name, value in held.items() if not is_death(name)}
    rest = {name: value for name, value in entry.items() if name not in ("held", "held_at")}
    if left:
        rest |= {"held": left, "held_at": ",".join(places.get(name, "0") for name in left)}
    return rest


def is_death(name: str) -> bool:
    """Whether brokers write this header when a message dies."""
    return name in DEATHS or name.startswith(DEATH_PREFIXES)
