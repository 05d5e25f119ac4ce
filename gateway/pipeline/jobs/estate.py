"""Who consumes which queue, and how much lies there: what reconciling has to know besides the log.

A *holder* takes messages from a queue: ``bridge:NAME``, ``subscription:NAME``, ``tap:NAME``. Its queue
is ``BROKER/QUEUE``. Only queues that have a holder are judged: of others nobody here knows what became of their
messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gateway.errors import GatewayError, NoSuchBroker, NoSuchResource, NotFound, ServiceRefused, ServiceUnreachable
from gateway.pipeline.service import Service, decoded
from gateway.runtime.clock import block

NEXT: Final = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
LOOKS: Final = 3
"""How often it is looked at what lies in the queues."""
PAUSE: Final = 0.5
"""Between two looks, in seconds."""
HELD_MAX: Final = 100_000
"""Most messages for later that are listed."""


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
    same: Mapping[str, str] = field(default_factory=dict)
    """``BROKER/QUEUE`` -> the name under which that queue is known here, of a broker that has two names."""

    @property
    def watched(self) -> frozenset[str]:
        """The queues that have a holder."""
        return frozenset(queue for holder, queue in self.queues.items() if holder not in self.mirrors)


def ask_estate(
    service: Service,
    routes: Mapping[str, str] | None = None,
    *,
    looks: int = LOOKS,
    sleep: Callable[[float], None] = block,
) -> Estate:
    """What the gateway says of itself.

    What lies in a queue is looked at several times, and the least counts: each look alone says how many messages
    at most of those that should lie there can, and one behind which nobody is in line says most.

    Raises:
        GatewayError: it does not answer, or refuses.
    """
    brokers = {found["name"]: found for found in listed(service, "brokers")}
    first = _holders(service, brokers)
    held: dict[str, int] = {}
    unknown: dict[str, str] = {}
    wanted = sorted(set(first.queues.values()))
    before = first
    for look in range(looks):
        if look:
            sleep(PAUSE)
        depths: dict[str, int] = {}
        for place in wanted:
            broker, _, queue = place.partition("/")
            try:
                depths[place] = depth(service, broker, queue)
            except (ServiceUnreachable, ServiceRefused):
                raise  # the gateway itself
            except GatewayError as error:
                unknown[place] = str(error)
        after = _holders(service, brokers)
        for place, count in depths.items():
            found = count + _between(before.hands.get(place, 0), after.hands.get(place, 0))
            held[place] = min(held.get(place, found), found)
        before = after
        wanted = [place for place in depths if held[place]]
        if not wanted:
            break
    return Estate(
        first.queues, frozenset(first.mirrors), frozenset(first.nameless), dict(routes or {}),
        {place: count for place, count in held.items() if place not in unknown}, unknown, first.same(brokers),
    )  # fmt: skip


def _between(before: int, after: int) -> int:
    """How many are in hand at most, where the gateway was asked before the broker and after it. Where both answers
    differ, messages were on their way from the one to the other, in either direction."""
    return before if before == after else before + after


@dataclass(slots=True)
class _Holders:
    """Who consumes what, and what they have in hand."""

    queues: dict[str, str] = field(default_factory=dict)
    mirrors: set[str] = field(default_factory=set)
    nameless: set[str] = field(default_factory=set)
    hands: dict[str, int] = field(default_factory=dict)
    """Queue -> how many messages, besides those that its broker counts."""

    def same(self, brokers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Other names of these queues: of a broker that is configured more than once, for its versions say."""
        found: dict[str, str] = {}
        for place in self.queues.values():
            broker, _, queue = place.partition("/")
            for name in brokers:
                if name != broker and where_of(brokers, name) == where_of(brokers, broker):
                    found[f"{name}/{queue}"] = place
        return found


def _holders(service: Service, brokers: Mapping[str, Mapping[str, Any]]) -> _Holders:
    found = _Holders()
    names: dict[tuple[Any, ...], str] = {}

    def add(holder: str, broker: str, queue: Any, owed: int, out: int) -> None:
        place = names.setdefault((*where_of(brokers, broker), queue), f"{broker}/{queue}")
        capabilities = brokers.get(broker, {}).get("capabilities") or {}
        counted = out if capabilities.get("counts_unacked") else 0
        found.queues[holder] = place
        found.hands[place] = found.hands.get(place, 0) + owed + out - counted

    for each in listed(service, "bridges"):
        settings, name = each["settings"], each["name"]
        source = settings["source"]
        add(f"bridge:{name}", source["broker"], source.get("queue") or f"gateway.bridge.{name}", 0, each["in_flight"])
        if settings.get("mode") == "mirror":
            found.mirrors.add(f"bridge:{name}")
        if settings.get("strip"):
            found.nameless.add(f"bridge:{name}")
    for each in listed(service, "subscriptions"):
        name = each["name"]
        one = service.ask("GET", f"/v1/subscriptions/{quote(name, safe='')}")
        queue = one.get("queue") or f"gateway.subscription.{name}"
        add(f"subscription:{name}", one["broker"], queue, *hands_of(one))
    for each in listed(service, "taps"):
        settings = each.get("settings", each)
        queue = settings.get("queue") or f"gateway.tap.{each['name']}"
        add(f"tap:{each['name']}", settings["broker"], queue, 0, int(each.get("in_flight") or 0))
    return found


def where_of(brokers: Mapping[str, Mapping[str, Any]], name: str) -> tuple[Any, ...]:
    """Where a broker is: two names of one place have the same queues."""
    found = brokers.get(name)
    if found is None or not found.get("host") or not found.get("port"):
        return (name,)
    return found["host"], found["port"], found.get("virtual_host")


class HeldPublishes:
    """What the gateway holds to be published later."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._held: set[str] | None = None
        self._whole = True

    def owes(self, message_id: str) -> bool:
        """Whether it holds this message, or has done with it what was to be done by now. Where it holds too many to be
        listed, it may be any of them."""
        if self._done(message_id):
            return True
        if self._held is None:
            self._held = set()
            for each in listed(self._service, "scheduled"):
                self._held.add(each["id"])
                if len(self._held) >= HELD_MAX:
                    self._whole = False
                    break
        return message_id in self._held or not self._whole or self._done(message_id)

    def _done(self, message_id: str) -> bool:
        try:
            found = self._service.ask("GET", f"/v1/scheduled/{quote(message_id, safe='')}")
        except (NoSuchResource, NotFound):
            return False
        return bool(found["state"] != "scheduled")


def hands_of(subscription: Mapping[str, Any]) -> tuple[int, int]:
    """How many messages the gateway has in hand for a subscription, at most: in its ledger or on their way, and leased
    from the broker."""
    backlog = subscription.get("backlog") or {}
    push = subscription.get("push_status") or {}
    owed = max(  # the same messages, told twice where the ledger holds the leases of what is pushed
        sum(backlog.get(name, 0) for name in ("waiting", "out", "dead")),
        sum(push.get(name, 0) for name in ("waiting", "dead")),
    )
    leased = 0 if subscription.get("lease") == "ledger" else int(subscription.get("leases", 0))
    known = int(subscription.get("leases", 0)) - leased
    return int(owed + known + sum(push.get(name, 0) for name in ("in_flight", "held"))), leased


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
