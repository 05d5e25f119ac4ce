"""What clients of older releases can no longer do on a broker, by the product and version that it states.

``gateway probe`` and ``gateway doctor`` print it, and docs/reference/brokers.md has the same table. Each row was seen
on a live server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """One thing that worked on earlier releases of a product."""

    product: str
    since: tuple[int, int]
    """The first release line that has the limit."""
    what: str
    """What a client cannot do, as a sentence without its full stop."""
    instead: str
    """What to do, as an imperative without its full stop."""


CLIENT_LIMITS: Final = (
    ClientLimit(
        "RabbitMQ", (4, 0), "AMQP 0-8 is not spoken", "connect in 0-9-1, or through a gateway's embedded broker"
    ),
    ClientLimit(
        "RabbitMQ",
        (4, 0),
        "transient queues that are not exclusive may be denied (the default since 4.3): declaring one closes the whole "
        "connection (541)",
        "declare queues durable",
    ),
    ClientLimit(
        "RabbitMQ",
        (4, 0),
        "a message of more than 16 MiB closes the channel (406)",
        "raise max_message_size at the broker",
    ),
    ClientLimit(
        "RabbitMQ",
        (4, 0),
        "headers are handed out sorted by name",
        "do not rely on the order of headers",
    ),
    ClientLimit(
        "RabbitMQ",
        (4, 1),
        "a frame_max below 8192 drops the connection",
        "negotiate 8192 or more, or 0",
    ),
    ClientLimit(
        "RabbitMQ",
        (4, 3),
        "basic.qos with global counts for each consumer, not for the channel",
        "set the prefetch of each consumer",
    ),
    ClientLimit(
        "RabbitMQ",
        (4, 3),
        "the queue argument x-queue-version 1 is refused (406)",
        "leave the argument out",
    ),
)


def client_limits(product: str, version: str) -> tuple[ClientLimit, ...]:
    """Return the limits of a broker, by what it states of itself; none where its version is no number."""
    found = re.match(r"(\d{1,5})\.(\d{1,5})", version)
    if found is None:
        return ()
    release = (int(found[1]), int(found[2]))
    return tuple(row for row in CLIENT_LIMITS if row.product == product and row.since <= release)
