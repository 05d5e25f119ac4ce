"""``/v1/brokers/{broker}/queues/{queue}/holders``: who holds messages of a queue that are not acknowledged, since when.

Each process knows what it holds itself; the one that is asked asks the others. Consumers that are not the gateway's are
known from the broker's management API, where it tells them.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, Literal

import msgspec
from starlette.responses import Response

from gateway.api.about.schemas import Output
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.api.resources.peers import FORWARDED, CallRequest, ask
from gateway.core.sources.own_queues import queue_of
from gateway.errors import PeerUnavailable
from gateway.front.channels.consumers import FrontConsumer
from gateway.front.client import FrontClient
from gateway.ledger.work import Peer
from gateway.management import ManagementProblem
from gateway.runtime.clock import clock

ANSWER_WITHIN: Final = 3.0
"""How long another process may take to tell what it holds, in seconds."""
HOLDERS_MAX: Final = 200
"""Most holders of one answer."""
OWN_TAG: Final = re.compile(r"gateway-\d+\Z")
"""Tags of the consumers of a gateway."""

HolderKind = Literal["lease", "ledger_lease", "push", "subscription", "bridge", "tap", "front", "fetch", "consumer"]


class QueueHolder(Output, omit_defaults=False):
    """Somebody who holds messages of a queue."""

    kind: HolderKind
    """``lease``: a pull or stream, whose messages the broker holds. ``ledger_lease``: a pull or stream, whose messages
    the ledger holds; they are acknowledged to the broker. ``push``: on their way to an endpoint. ``subscription``,
    ``tap``: on their way into the ledger. ``bridge``: on their way to its target. ``front``: a client of a front.
    ``fetch``: being handed out, or read by a replay. ``consumer``: one that the broker's management lists."""
    name: str
    """Name of the subscription, bridge, tap or front; tag of a consumer."""
    client: str
    """The API key of a lease, or the user of a consumer; empty: there is none."""
    address: str
    """Address of a front's client, or name of a consumer's connection; empty: there is none."""
    count: int | None
    """Messages that it holds; of a ``consumer`` of RabbitMQ those of its channel, from all queues. ``null``: not
    known."""
    since: str | None
    """When it got the first of them, RFC 3339; ``null``: not known."""


class QueueHolders(Output, omit_defaults=False):
    """Who holds messages of a queue."""

    holders: list[QueueHolder]
    """At most 200, those who hold most first."""
    unacknowledged: int | None
    """Messages that are out, as the broker's management counts them; ``null``: not known."""
    others: int | None
    """Those of them that no part of the gateway holds; ``null``: not known."""
    complete: bool
    """Whether all processes have answered."""
    reason: str
    """Why consumers that are not the gateway's are not listed, as a sentence; empty: they are."""


async def list_queue_holders(call: Call) -> Response:
    """Of all processes, and of the broker."""
    broker, queue = call.names["broker"], call.names["queue"]
    gateway = call.gateway
    gateway.broker(broker)
    found = _own(call, broker, queue)
    if FORWARDED in call.scope:
        return answer(QueueHolders(holders=found, unacknowledged=None, others=None, complete=True, reason=""))
    complete = True
    if gateway.peers.shared:
        peers = [peer for peer in gateway.peers.others if peer.url]
        for told in await asyncio.gather(*(_of(call, peer) for peer in peers)):
            complete = complete and told is not None
            found += told.holders if told is not None else []
    at_broker = sum(each.count or 0 for each in found)
    unacknowledged, reason, strangers = await _at_the_broker(call, broker, queue)
    found += strangers
    found += await _in_the_ledger(call, broker, queue)
    found.sort(key=lambda each: (-(each.count or 0), each.since or "", each.kind, each.name))
    return answer(
        QueueHolders(
            holders=found[:HOLDERS_MAX],
            unacknowledged=unacknowledged,
            others=None if unacknowledged is None or not complete else max(0, unacknowledged - at_broker),
            complete=complete,
            reason=printable(reason),
        )
    )


def _own(call: Call, broker: str, queue: str) -> list[QueueHolder]:
    """What this process holds."""
    gateway = call.gateway
    found: list[QueueHolder] = []
    by_lease: dict[tuple[str, str], list[float]] = {}
    leased = gateway.consuming.leased(broker, queue)
    for lease in leased:
        by_lease.setdefault((lease.subscription, lease.client.name), []).append(lease.delivery.at)
    for (subscription, client), times in by_lease.items():
        found.append(_holder("lease", subscription, len(times), min(times), client=client))
    for held in gateway.broker(broker).held(queue):
        kind, name = held.holder
        if not kind:
            if held.count > len(leased):
                found.append(_holder("fetch", "", held.count - len(leased), held.oldest_at))
        elif kind in ("push", "subscription", "bridge", "tap"):
            found.append(_holder(kind, name, held.count, held.oldest_at))  # type: ignore[arg-type]
    for front in call.fronts.values():
        for each in front.clients.values():
            out = [consumer.out for consumer in _consumers_of(each, queue)] if each.access.broker == broker else []
            if any(out):
                holder = _holder("front", front.name, sum(out), None, client=each.user)
                found.append(msgspec.structs.replace(holder, address=each.address))
    return found


def _holder(kind: HolderKind, name: str, count: int, at: float | None, client: str = "") -> QueueHolder:
    """``at``: when the first came, on the loop's clock."""
    since = None if at is None else moment(clock.now() - (clock.monotonic() - at))
    return QueueHolder(kind=kind, name=printable(name), client=printable(client), address="", count=count, since=since)


async def _of(call: Call, peer: Peer) -> QueueHolders | None:
    """What another process holds; None: it does not answer."""
    grants = [(grant.kind, grant.broker, grant.object) for grant in call.principal.grants]
    path: bytes = call.scope["raw_path"]
    request = CallRequest("GET", path, b"", {}, b"", call.principal.name, call.principal.admin, grants)
    try:
        told = await ask(call.gateway.peers, peer, request, ANSWER_WITHIN)
        return msgspec.json.decode(told.body, type=QueueHolders) if told.status == 200 else None
    except (PeerUnavailable, msgspec.DecodeError):
        return None


async def _at_the_broker(call: Call, broker: str, queue: str) -> tuple[int | None, str, list[QueueHolder]]:
    """How many messages are out, why consumers are not listed, and those that are not the gateway's."""
    try:
        details = await call.gateway.inventory.details(broker, queue, consumers=True)
    except ManagementProblem as problem:
        return None, problem.reason, []
    if details is None:
        return (
            None,
            f"AMQP does not tell who consumes. Set brokers.{broker}.management, so that the gateway can ask.",
            [],
        )
    unacknowledged = details.row.unacknowledged
    if details.consumers is None:
        return unacknowledged, "The management of this broker does not list consumers here.", []
    clients = [client for front in call.fronts.values() for client in front.clients.values()]
    fronts = {each.request.consumer_tag for client in clients for each in _consumers_of(client, queue)}
    strangers = [
        QueueHolder(
            kind="consumer",
            name=printable(each.tag),
            client=printable(each.user),
            address=printable(each.connection),
            count=each.unacknowledged,
            since=None,
        )
        for each in details.consumers
        if not OWN_TAG.match(each.tag) and each.tag not in fronts
    ]
    return unacknowledged, "", strangers


def _consumers_of(client: FrontClient, queue: str) -> list[FrontConsumer]:
    """The consumers of a queue that a client of a front has."""
    consumers = (each for channel in client.channels.values() for each in channel.consumers.values())
    return [each for each in consumers if each.request.queue == queue]


async def _in_the_ledger(call: Call, broker: str, queue: str) -> list[QueueHolder]:
    """Leases of the ledger, of subscriptions that take from the queue."""
    found: list[QueueHolder] = []
    for each in await call.gateway.subscriptions.all():
        settings = each.settings
        if settings.lease == "ledger" and (settings.broker, queue_of(each.name, settings)) == (broker, queue):
            counts = await call.gateway.ledger.deliveries.backlog(each.name)
            if counts.out:
                found.append(_holder("ledger_lease", each.name, counts.out, None))
    return found


ROUTES: Final = (
    Route(
        "GET", "/v1/brokers/{broker}/queues/{queue}/holders", "list_queue_holders",
        "List who holds unacknowledged messages of a queue", list_queue_holders, Scope.QUEUE,
        {200: ("Leases, pushes, bridges, taps, clients of fronts, and consumers of others.", QueueHolders)},
        codes=("broker_not_found", "ledger_unavailable"),
        description=(
            "What the gateway holds, in all of its processes, is known with its time. Other consumers are those that "
            "the management API of RabbitMQ or Broker-J lists, where `management` of the broker is set."
        ),
        tag="topology",
    ),
)  # fmt: skip
