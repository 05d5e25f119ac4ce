"""Which scope of a gateway user each operation needs.

Scopes are those of the API (:mod:`gateway.access.scopes`). ``docs/reference/front-door.md`` has the table for users.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from gateway.access.scopes import Principal
from gateway.amqp import operations
from gateway.front.channels.messages import copies
from gateway.front.channels.refusals import refused

Check = Callable[[Any, Principal, str, Collection[str]], str]
"""Request, who asks, the broker, the client's own queues -> what is missing; empty: nothing."""


def _broker(request: Any, principal: Principal, broker: str, own: Collection[str]) -> str:
    return "" if principal.may("broker", broker) else f"broker:{broker}"


def _publishes(request: operations.DeclareQueue) -> bool:
    """Whether the queue sends dead letters on."""
    return any(name.startswith("x-dead-letter") or name == "alternate-exchange" for name in request.arguments)


def _queue(request: Any, principal: Principal, broker: str, own: Collection[str]) -> str:
    """Declare, purge or delete a queue."""
    if principal.may("broker", broker):
        return ""
    declares = type(request) is operations.DeclareQueue and not request.passive
    if declares and request.exclusive and not _publishes(request):
        return ""
    if not declares and request.queue in own:
        return ""
    if getattr(request, "passive", False) or type(request) is operations.QueryQueue:
        return _consume(request, principal, broker, own)
    return f"broker:{broker}"


def _consume(request: Any, principal: Principal, broker: str, own: Collection[str]) -> str:
    if request.queue in own or principal.may("consume", broker, request.queue):
        return ""
    return f"consume:{broker}/{request.queue}"


def _sees(request: Any, principal: Principal, broker: str, own: Collection[str]) -> str:
    return "" if principal.sees(broker) else f"broker:{broker}"


def _exchange(request: operations.DeclareExchange, principal: Principal, broker: str, own: Collection[str]) -> str:
    return (_sees if request.passive else _broker)(request, principal, broker, own)


def _publish(request: operations.Publish, principal: Principal, broker: str, own: Collection[str]) -> str:
    keys = principal.routing_keys(broker, request.exchange)
    for key in (request.routing_key, *copies(request.message)):
        if not keys.allow(key):
            return f"publish:{broker}/{request.exchange or 'amq.default'}"
    return ""


RIGHTS: Final[Mapping[type[operations.Operation], Check]] = {
    operations.DeclareExchange: _exchange,
    operations.DeleteExchange: _broker,
    operations.BindExchange: _broker,
    operations.UnbindExchange: _broker,
    operations.QueryExchange: _sees,
    operations.DeclareQueue: _queue,
    operations.QueryQueue: _queue,
    operations.BindQueue: _broker,
    operations.UnbindQueue: _broker,
    operations.QueryBinding: _sees,
    operations.PurgeQueue: _queue,
    operations.DeleteQueue: _queue,
    operations.Publish: _publish,
    operations.Consume: _consume,
    operations.Get: _consume,
}
"""Operation -> what must be held. What is not here needs nothing: it is about what the client holds already."""


def check(request: Any, principal: Principal, broker: str, own: Collection[str]) -> None:
    """Raise 403 where the principal may not do this."""
    if principal.admin or (rule := RIGHTS.get(type(request))) is None:
        return
    if missing := rule(request, principal, broker, own):
        name = getattr(request, "queue", "") or getattr(request, "exchange", "")
        raise refused(403, f"access to '{name}' refused for user '{principal.name}': it needs the scope {missing}")
