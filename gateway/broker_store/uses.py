"""What works with a broker: resources of the ledger, scheduled publishes, and messages that are out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gateway.bridges.supervisor import BRIDGE_KIND
from gateway.config import BridgeSettings, SubscriptionSettings, TapSettings
from gateway.core import Gateway
from gateway.core.publishing.outbox import OUTBOX_WORK
from gateway.core.sources.intakes import INTAKE_WORK
from gateway.core.subscriptions import SUBSCRIPTION_RESOURCE
from gateway.ledger import Ledger, OutboxFilter
from gateway.replays.jobs import ENDED, REPLAY_RESOURCE, Job
from gateway.taps.rows import TAP_KIND
from gateway.webhooks.supervisor import PUSH_KIND

DEPENDENT_WORK: Final = (OUTBOX_WORK, INTAKE_WORK, PUSH_KIND, BRIDGE_KIND, TAP_KIND)
"""Work that may be about something else once a broker is another one."""
PAGE: Final = 500
NAMED_MAX: Final = 10
"""Most users that a refusal names."""


class LedgerUser(NamedTuple):
    """A resource of the ledger, and what it works with."""

    kind: str
    name: str
    brokers: set[str]
    endpoints: set[str]


def _of_bridge(settings: BridgeSettings) -> tuple[set[str], set[str]]:
    return {settings.source.broker, settings.target.broker, settings.dead_letter.broker}, set()


def _of_tap(settings: TapSettings) -> tuple[set[str], set[str]]:
    return {settings.broker, settings.dead_letter_broker}, set()


def _of_subscription(settings: SubscriptionSettings) -> tuple[set[str], set[str]]:
    return {settings.broker, settings.dead_letter_broker}, {settings.push}


def _of_replay(job: Job) -> tuple[set[str], set[str]]:
    if job.state in ENDED:
        return set(), set()
    source, target = job.request.source, job.request.target
    brokers = {part.broker for part in (source.messages, source.queue) if part is not None}
    return {*brokers, target.broker}, {target.endpoint}


_USERS: Final[Sequence[tuple[str, Callable[[Any], tuple[set[str], set[str]]], Any]]] = (
    (SUBSCRIPTION_RESOURCE, _of_subscription, SubscriptionSettings),
    (BRIDGE_KIND, _of_bridge, BridgeSettings),
    (TAP_KIND, _of_tap, TapSettings),
    (REPLAY_RESOURCE, _of_replay, Job),
)
"""Kind of resource, which brokers and endpoints one works with, and what it is."""


async def users_in_ledger(ledger: Ledger) -> AsyncIterator[LedgerUser]:
    """Yield the resources of the ledger that work with brokers or endpoints. One that cannot be read does not run, and
    is left out. Raises LedgerUnavailable."""
    for kind, names, shape in _USERS:
        async for item in ledger.all_resources(kind):
            try:
                brokers, endpoints = names(msgspec.convert(item.spec, shape))
            except msgspec.ValidationError:
                continue
            yield LedgerUser(kind, item.name, brokers - {""}, endpoints - {""})


async def users_of(gateway: Gateway, broker: str) -> list[str]:
    """Return what works with a broker, in words, at most :data:`NAMED_MAX`. Messages that are out, and publishes under
    way, are those of this process.

    Raises:
        LedgerUnavailable: it cannot be told.
    """
    found: list[str] = []
    async for user in users_in_ledger(gateway.ledger):
        if broker in user.brokers:
            found.append(f"the {user.kind} {user.name!r}")
            if len(found) == NAMED_MAX:
                return found
    scheduled, more = await gateway.outbox.page(OutboxFilter(broker=broker), None, NAMED_MAX)
    if scheduled:
        count = f"{len(scheduled)} or more" if more else str(len(scheduled))
        found.append(f"{count} scheduled publish{'es' * (len(scheduled) > 1)}")
    upstream = gateway.brokers.get(broker)
    if upstream is not None:
        status = upstream.status()
        if status.leases:
            found.append(f"{status.leases} message{'s' * (status.leases > 1)} out with consumers")
        if status.pending:
            found.append(f"{status.pending} publish{'es' * (status.pending > 1)} under way")
    return found
