"""What a caller without ``admin`` needs to make, change and delete a subscription: a scope for each of its settings.

The queue decides whose a subscription is: it takes ``subscribe`` on the source queue, and for each setting that is not
left as it is by default what :data:`NEEDS` says. Who replaces or deletes a subscription needs that for its settings of
before as well. A setting that the table does not have takes ``admin``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import msgspec

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.api.http.auth import lacks
from gateway.api.http.call import Call
from gateway.api.http.routing import Scope
from gateway.config import SubscriptionSettings
from gateway.core import SubscriptionResource
from gateway.core.sources.own_queues import queue_of
from gateway.errors import NoSuchBroker, NoSuchEndpoint, NoSuchSubscription, StateError


class Need(Enum):
    """What a setting takes besides ``subscribe`` on the source queue."""

    NOTHING = "nothing more"
    CONSUME = "`consume:BROKER/QUEUE` of the source"
    """It takes messages, sorts them out, or lets them go."""
    PUSH = "`endpoint:NAME` and `consume:BROKER/QUEUE` of the source; `admin` where the endpoint has `reply = true`"
    DECLARE = "`broker:BROKER`"
    """It declares and binds a queue."""
    DEAD_LETTER = "`publish:BROKER/EXCHANGE`, or a `route:BROKER/EXCHANGE/PATTERN` that matches, of that destination"


NEEDS: Final[Mapping[str, Need]] = {
    "broker": Need.NOTHING,
    "queue": Need.NOTHING,
    "exchange": Need.DECLARE,
    "binding_key": Need.DECLARE,
    "routing_key": Need.DECLARE,
    "arguments": Need.DECLARE,
    "lease": Need.NOTHING,
    "push": Need.PUSH,
    "prefetch": Need.NOTHING,
    "prefetch_octets": Need.NOTHING,
    "backlog_max": Need.NOTHING,
    "ack_deadline_seconds": Need.NOTHING,
    "max_deliveries": Need.NOTHING,
    "dead_letter_native": Need.CONSUME,
    "dead_letter_broker": Need.DEAD_LETTER,
    "dead_letter_exchange": Need.DEAD_LETTER,
    "dead_letter_routing_key": Need.DEAD_LETTER,
    "filter": Need.CONSUME,
    "unmatched": Need.CONSUME,
    "order_key": Need.CONSUME,
    "paused": Need.NOTHING,
}
"""Setting -> what it takes where it is not left at its default."""


async def check_put(call: Call, name: str, settings: SubscriptionSettings, match: str | None) -> str | None:
    """Whether the caller may put these settings. Returns the etag that the subscription must still have: between this
    and the change it may become another's.

    Raises:
        ApiProblem: forbidden.
        StateError: the ledger keeps messages of the name, which came from another queue, or nobody knows from where.
    """
    if call.principal.admin:
        return match
    await _check(call, name, settings)
    before = await _before(call, name)
    if before is not None:
        await _check(call, name, before.settings)
    if before is None or _source(before) != _source(SubscriptionResource(name, settings, "", read_only=False)):
        owed = await call.gateway.ledger.deliveries.backlog(name)
        if owed.waiting or owed.out or owed.dead:
            raise StateError(
                f"the ledger keeps messages for the subscription {name!r} that did not come from this queue. Choose "
                "another name, or ask somebody with the scope admin."
            )
    if before is None:
        return None if match == "*" else match
    return before.etag if match == "*" else match


async def check_name(call: Call, name: str) -> None:
    """Whether the caller may put a subscription of this name, as far as that can be told without its settings. Raises
    ApiProblem (forbidden)."""
    if not call.principal.admin:
        await _before(call, name)


async def check_steer(call: Call, name: str) -> str | None:
    """Whether the caller may pause, resume or delete the subscription. Returns its etag; None: an ``admin`` needs none.

    Raises:
        NoSuchSubscription: there is none, and the caller may know that.
        ApiProblem: forbidden.
    """
    if call.principal.admin:
        return None
    found = await _before(call, name)
    if found is None:
        if call.principal.may("subscribe", "*", "*"):
            raise NoSuchSubscription(f"no subscription {name!r}")
        raise lacks(call.principal, f"subscribe: for the queue of {name!r:.140}")
    await _check(call, name, found.settings)
    return found.etag


async def _before(call: Call, name: str) -> SubscriptionResource | None:
    """The subscription as the ledger has it now, if the caller has the scope for its queue. Raises ApiProblem."""
    call.gateway.subscriptions.forget(name)
    try:
        found = await call.gateway.subscriptions.get(name)
    except NoSuchSubscription:
        return None
    if not call.principal.may("subscribe", *_source(found)):
        raise lacks(call.principal, f"subscribe: for the queue of {name!r:.140}")
    return found


def _source(found: SubscriptionResource) -> tuple[str, str]:
    return found.settings.broker, queue_of(found.name, found.settings)


async def _check(call: Call, name: str, settings: SubscriptionSettings) -> None:
    """Raises ApiProblem (forbidden) for the first scope that is missing."""
    broker, queue = settings.broker, queue_of(name, settings)
    if not call.principal.may("subscribe", broker, queue):
        raise lacks(call.principal, f"subscribe:{broker}/{queue}")
    for field in msgspec.structs.fields(SubscriptionSettings):
        value = getattr(settings, field.name)
        if field.required or value != default_of(field):
            need = NEEDS.get(field.name)
            scope = "admin" if need is None else _MISSING[need](call, queue, settings)
            if scope:
                raise lacks(call.principal, f"{scope}, which the setting {field.name} needs")
    if settings.push and await _replies(call, settings.push):
        raise lacks(call.principal, "admin, which an endpoint with `reply` needs")


def default_of(field: msgspec.structs.FieldInfo) -> object:
    """The default of a setting."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if callable(field.default_factory) else msgspec.NODEFAULT


def _nothing(call: Call, queue: str, settings: SubscriptionSettings) -> str:
    return ""


def _consume(call: Call, queue: str, settings: SubscriptionSettings) -> str:
    allowed = call.principal.may("consume", settings.broker, queue)
    return "" if allowed else f"consume:{settings.broker}/{queue}"


def _push(call: Call, queue: str, settings: SubscriptionSettings) -> str:
    if not call.principal.may("endpoint", "", settings.push):
        return f"endpoint:{settings.push}"
    return _consume(call, queue, settings)


def _declare(call: Call, queue: str, settings: SubscriptionSettings) -> str:
    return "" if call.principal.may("broker", settings.broker) else f"broker:{settings.broker}"


def _dead_letter(call: Call, queue: str, settings: SubscriptionSettings) -> str:
    broker, exchange = settings.dead_letter_broker or settings.broker, settings.dead_letter_exchange
    keys = call.principal.routing_keys(broker, exchange)
    names = {"broker": broker, "exchange": exchange or DEFAULT_EXCHANGE}
    if keys.every:
        return ""
    if not _holds_headers(call, broker):  # CC and BCC would route copies to other keys
        return f"publish:{names['broker']}/{names['exchange']}"
    return "" if keys.allow(settings.dead_letter_routing_key) else Scope.PUBLISH.value.format_map(names)


_MISSING: Final[Mapping[Need, Callable[[Call, str, SubscriptionSettings], str]]] = {
    Need.NOTHING: _nothing,
    Need.CONSUME: _consume,
    Need.PUSH: _push,
    Need.DECLARE: _declare,
    Need.DEAD_LETTER: _dead_letter,
}
"""What a setting takes -> the scope that the caller lacks for it; empty: none."""


def _holds_headers(call: Call, broker: str) -> bool:
    """Whether dead letters there keep headers that brokers act upon in the gateway's own."""
    try:
        return call.gateway.broker(broker).settings.annotate
    except NoSuchBroker:
        return True


async def _replies(call: Call, endpoint: str) -> bool:
    """Whether what the endpoint answers is published to where a message says."""
    if call.endpoints is None:
        return False
    try:
        return (await call.endpoints.get(endpoint)).settings.reply
    except NoSuchEndpoint:
        return False
