"""Who consumes which queue, and how much lies there: what reconciling has to know besides the log.

A *holder* is whoever takes messages from a queue here: ``bridge:NAME``, ``subscription:NAME``, ``tap:NAME``. Its queue
is ``BROKER/QUEUE``. Only queues that have a holder are judged: of others nobody here knows what became of their
messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gateway.errors import GatewayError, NoSuchBroker, NoSuchResource, NotFound, ServiceRefused, ServiceUnreachable
from gateway.pipeline.service import Service, decoded

NEXT: Final = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
KINDS: Final[Mapping[str, str]] = {"bridge": "bridges", "subscription": "subscriptions", "tap": "taps"}
"""Holder -> where the API lists them."""


@dataclass(frozen=True)
class Estate:
    """What is there."""

    queues: Mapping[str, str] = field(default_factory=dict)
    """Holder -> its queue, ``BROKER/QUEUE``."""
    mirrors: frozenset[str] = frozenset()
    """Holders that leave messages in their queue."""
    nameless: frozenset[str] = frozenset()
    """Bridges behind which messages have their id no more (``strip``)."""
    routes: Mapping[str, str] = field(default_factory=dict)
    """``BROKER/EXCHANGE/ROUTING_KEY``, or ``BROKER/EXCHANGE`` for all keys -> the queue, ``BROKER/QUEUE``, that gets
    what is published there. The default exchange needs none."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Queue -> how many messages lie there, or are in the hands of its holders. One that is missing is not judged by
    what lies there."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Queue -> why its depth cannot be told."""

    @property
    def watched(self) -> frozenset[str]:
        """The queues that have a holder."""
        return frozenset(queue for holder, queue in self.queues.items() if holder not in self.mirrors)


def ask(service: Service, routes: Mapping[str, str] | None = None) -> Estate:
    """What the gateway says of itself.

    Raises:
        GatewayError: it does not answer, or refuses.
    """
    queues: dict[str, str] = {}
    mirrors: set[str] = set()
    nameless: set[str] = set()
    in_hand: dict[str, int] = {}

    def add(holder: str, broker: str, queue: Any, hands: int) -> None:
        queues[holder] = f"{broker}/{queue}"
        in_hand[queues[holder]] = in_hand.get(queues[holder], 0) + hands

    for found in listed(service, "bridges"):
        settings, name = found["settings"], found["name"]
        source = settings["source"]
        add(f"bridge:{name}", source["broker"], source.get("queue") or f"gateway.bridge.{name}", found["in_flight"])
        if settings.get("mode") == "mirror":
            mirrors.add(f"bridge:{name}")
        if settings.get("strip"):
            nameless.add(f"bridge:{name}")
    for found in listed(service, "subscriptions"):
        name = found["name"]
        one = service.ask("GET", f"/v1/subscriptions/{quote(name, safe='')}")
        queue = one.get("queue") or f"gateway.subscription.{name}"
        add(f"subscription:{name}", one["broker"], queue, hands_of(one))
    for found in listed(service, "taps"):
        settings = found.get("settings", found)
        queue = settings.get("queue") or f"gateway.tap.{found['name']}"
        add(f"tap:{found['name']}", settings["broker"], queue, int(found.get("in_flight") or 0))
    held: dict[str, int] = {}
    unknown: dict[str, str] = {}
    for place in sorted(set(queues.values())):
        broker, _, queue = place.partition("/")
        try:
            held[place] = depth(service, broker, queue) + in_hand[place]
        except (ServiceUnreachable, ServiceRefused):
            raise  # the gateway itself
        except GatewayError as error:
            unknown[place] = str(error)
    return Estate(queues, frozenset(mirrors), frozenset(nameless), dict(routes or {}), held, unknown)


def hands_of(subscription: Mapping[str, Any]) -> int:
    """How many messages the gateway has in hand for a subscription, at most."""
    backlog = subscription.get("backlog") or {}
    push = subscription.get("push_status") or {}
    return int(
        max(  # the same messages, told twice where the ledger holds the leases of what is pushed
            sum(backlog.get(name, 0) for name in ("waiting", "out", "dead")),
            sum(push.get(name, 0) for name in ("waiting", "dead")),
        )
        + subscription.get("leases", 0)
        + sum(push.get(name, 0) for name in ("in_flight", "held"))
    )


def depth(service: Service, broker: str, queue: str) -> int:
    """Messages in a queue; 0: it is not there.

    Raises:
        GatewayError: its broker is away, or does not tell.
    """
    try:
        found = service.ask("GET", f"/v1/brokers/{quote(broker, safe='')}/queues/{quote(queue, safe='')}")
    except NoSuchBroker:
        raise
    except (NoSuchResource, NotFound):
        return 0
    return int(found["messages"])


def listed(service: Service, what: str) -> Iterator[dict[str, Any]]:
    """All things of a kind, page by page; none where the gateway knows no such kind."""
    path: str | None = f"/v1/{what}"
    while path:
        answer = service.exchange("GET", path)
        if answer.status_code == 404:
            return
        yield from decoded(service.url, answer)[what]
        following = NEXT.search(answer.headers.get("link", ""))
        path = following[1] if following else None
