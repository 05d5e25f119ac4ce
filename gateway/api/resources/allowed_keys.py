"""Messages whose routing keys the caller has no scope for.

Who holds ``publish`` on the exchange may use any key, and costs nothing here. Of others each message is looked at: its
routing key, and those that the headers ``CC`` and ``BCC`` name. That is so for every broker, whether it acts upon these
headers or not, and before anything is published or kept for later. What the broker does with a message that it took
(bindings, alternate exchanges, ``x-delay``) is the broker's configuration, and not the caller's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gateway.access.routing_keys import RoutingKeys
from gateway.access.scopes import DEFAULT_EXCHANGE, Principal
from gateway.amqp.values import Value
from gateway.api.http.auth import forbidden
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Scope
from gateway.core import Publication
from gateway.notation.values import ValueProblem
from gateway.upstreams.checks import COPY_HEADERS

if TYPE_CHECKING:
    from gateway.api.http.call import Call


def refuse_foreign_keys(
    call: Call, items: list[Publication | ApiProblem], *, json: bool = True, alone: bool = False
) -> list[Publication | ApiProblem]:
    """The messages, with a problem in place of each that the caller may not publish.

    Args:
        json: The messages are JSON, so that a problem may point into them.
        alone: There is one message, whose problem is the answer. The problems of several are among their results,
            so the audit log hears of them here.
    """
    keys = call.principal.routing_keys(call.names["broker"], call.names["exchange"])
    if keys.every:
        return items
    checked = [_checked(call, keys, item, json) if isinstance(item, Publication) else item for item in items]
    if not alone and any(now is not before for now, before in zip(checked, items, strict=True)):
        _tell(call)
    return checked


def _checked(call: Call, keys: RoutingKeys, item: Publication, json: bool) -> Publication | ApiProblem:
    for path, key in _keys_of(item):
        if not (isinstance(key, str) and keys.allow(key)):
            return foreign_key(call.principal, call.names["broker"], call.names["exchange"], key, path, json=json)
    return item


def foreign_key(
    principal: Principal,
    broker: str,
    exchange: str,
    key: Value,
    path: Sequence[str] = ("routing_key",),
    *,
    json: bool = False,
) -> ApiProblem:
    """403 for a routing key, at ``path`` of a message. ``json``: the request has that place."""
    exchange = exchange or DEFAULT_EXCHANGE
    what = f"the routing key {key!r:.300}" if isinstance(key, str) else f"{key!r:.80}, which is no routing key,"
    where = f" in the header {path[1]}" if len(path) > 1 else ""
    scope = Scope.PUBLISH.value.format(broker=broker, exchange=exchange)
    detail = (
        f"{principal.name!r} may not publish to exchange {exchange!r} of broker {broker!r} with {what}{where}. "
        f"It lacks the scope {scope} that matches."
    )
    return forbidden(principal, detail, [(ValueProblem("", *path).pointer, detail)] if json else ())


def _keys_of(item: Publication) -> Iterator[tuple[Sequence[str], Value]]:
    """Where each routing key of a message stands, and the key."""
    yield ("routing_key",), item.routing_key
    headers = item.message.properties.headers
    if headers:
        for name in COPY_HEADERS:
            if name in headers:
                value = headers[name]
                if isinstance(value, list):
                    for index, key in enumerate(value):
                        yield ("headers", name, str(index)), key
                else:
                    yield ("headers", name), value


def _tell(call: Call) -> None:
    """Have the audit log know that some of the messages were refused."""
    trail = call.access.trail if call.access is not None else None
    if trail is not None:
        client = call.scope.get("client")
        trail.refused(
            call.route.operation, "forbidden", str(client[0]) if client else "", object=call.path,
            actor=call.principal.name, credential=call.principal.credential,
        )  # fmt: skip
