"""Why a message waits: what holds the subscriptions that could take it.

The ledger says which subscriptions it holds a message for. For a message in a broker's queue, the subscriptions are
looked up that take from that queue, as far as the gateway knows how the queue is bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from gateway.api.history.story import Holding, Wait, delivery_state, queue_of_message
from gateway.api.resources.peers import CallRequest, ask
from gateway.core.sources.filters import matches
from gateway.core.sources.own_queues import queue_of
from gateway.errors import GatewayError, NoSuchEndpoint, NoSuchSubscription
from gateway.ledger import MessageState, RecordedEvent, StoredMessage
from gateway.webhooks.endpoint import EndpointState
from gateway.webhooks.supervisor import PUSH_KIND

if TYPE_CHECKING:
    from gateway.api.http.call import Call
    from gateway.core.subscriptions import SubscriptionResource

LOOKED_AT: Final = 2_000
"""Most subscriptions that are looked at, and most bindings."""
WAITS_MAX: Final = 20
"""Most subscriptions that an answer names."""
ASK_WITHIN: Final = 2.0
"""How long the process that pushes a subscription is waited for, in seconds."""
IN_QUEUE: Final = frozenset(
    {MessageState.CONFIRMED, MessageState.RECEIVED, MessageState.RELEASED, MessageState.FORWARDED}
)
"""States of a message that is in a queue of a broker, as far as is known."""


class _Owner(msgspec.Struct):
    """What another process says of a subscription that it pushes."""

    push_status: _Status | None = None


class _Status(msgspec.Struct):
    code: str = ""
    reason: str = ""


async def waits(call: Call, message: StoredMessage, events: Sequence[RecordedEvent], holding: Holding) -> list[Wait]:
    """Return what the message waits for. Empty: it does not wait, or nothing is known to hold it."""
    names = [each.subscription for each in holding.deliveries if delivery_state(each) == "waiting"]
    if names:
        found = [await _named(call, name) for name in dict.fromkeys(names[:WAITS_MAX])]
        return [wait for wait in found if wait is not None]
    if holding.deliveries or holding.outbox is not None or message.state not in IN_QUEUE:
        return []
    broker, exchange, routing_key, queue = queue_of_message(message, events)
    queues = {queue} if queue else await _bound(call, broker, exchange, routing_key)
    takers = [each for each in await _subscriptions(call) if _takes(each, broker, exchange, routing_key, queues)]
    if not takers:
        return [Wait("", "no_subscription", queue=queue, exchange=exchange, broker=broker)]
    held = [await _of(call, each) for each in takers[:WAITS_MAX]]
    return [wait for wait in held if wait is not None]


async def _subscriptions(call: Call) -> list[SubscriptionResource]:
    """Those of the configuration file, and the first of the others."""
    found, _ = await call.gateway.subscriptions.page(None, LOOKED_AT)
    return found


def _takes(found: SubscriptionResource, broker: str, exchange: str, routing_key: str, queues: set[str]) -> bool:
    settings = found.settings
    if settings.broker != broker:
        return False
    if queue_of(found.name, settings) in queues:
        return True
    return bool(exchange) and settings.exchange == exchange and _fits(settings.binding_key, routing_key)


async def _bound(call: Call, broker: str, exchange: str, routing_key: str) -> set[str]:
    """Queues that the gateway bound to the exchange for that routing key."""
    found, _ = await call.gateway.topology.known("binding", broker, None, LOOKED_AT)
    bindings = [item.spec.get("binding") or {} for item in found]
    return {
        str(each["queue"])
        for each in bindings
        if each.get("exchange") == exchange and each.get("queue") and _fits(str(each["routing_key"]), routing_key)
    }


def _fits(binding_key: str, routing_key: str) -> bool:
    """Whether a binding may lead there. What is bound without a key, as to a fanout exchange, may get everything."""
    return not binding_key or matches(tuple(binding_key.split(".")), routing_key.split(".") if routing_key else [])


async def _named(call: Call, name: str) -> Wait | None:
    try:
        return await _of(call, await call.gateway.subscriptions.get(name))
    except NoSuchSubscription:
        return Wait(name, "subscription_missing")


async def _of(call: Call, found: SubscriptionResource) -> Wait | None:
    """What holds a subscription; None: nothing that is known."""
    settings = found.settings
    if found.paused:
        return Wait(found.name, "subscription_paused")
    if not settings.push:
        return Wait(found.name, "not_pulled", reason=call.gateway.intakes.reason(found.name))
    code, reason = await _push(call, found)
    return Wait(found.name, code, endpoint=settings.push, reason=reason) if code else None


async def _push(call: Call, found: SubscriptionResource) -> tuple[str, str]:
    """Code and reason of what holds a subscription that is pushed; empty: nothing."""
    if call.pushes is not None and call.pushes.here(found.name):
        status = await call.pushes.status(found)
        return status.code, status.reason
    if call.pushes is not None and (trouble := call.pushes.trouble(found.name)):
        return "queue_unreadable", trouble
    if (told := await _elsewhere(call, found.name)) is not None:
        return told.code, told.reason
    if call.endpoints is None:
        return "", ""
    try:
        endpoint = await call.endpoints.get(found.settings.push)
    except NoSuchEndpoint:
        return "endpoint_missing", ""
    if endpoint.state is EndpointState.ACTIVE:
        return "not_running", ""
    return f"endpoint_{endpoint.state.value}", endpoint.reason


async def _elsewhere(call: Call, name: str) -> _Status | None:
    """What the process that pushes a subscription says; None: no other process does, or it does not answer."""
    gateway = call.gateway
    if not gateway.peers.shared:
        return None
    try:
        owner = await gateway.ownership.owner(PUSH_KIND, name)
        if owner is None or not gateway.ownership.elsewhere(owner):
            return None
        path = f"/v1/subscriptions/{quote(name, safe='')}".encode()
        request = CallRequest("GET", path, b"", {}, b"", call.principal.name, True, [])
        answer = await ask(gateway.peers, owner, request, ASK_WITHIN)
        return msgspec.json.decode(answer.body, type=_Owner).push_status if answer.status == 200 else None
    except (GatewayError, msgspec.DecodeError):
        return None
