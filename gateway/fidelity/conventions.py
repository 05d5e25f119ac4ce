"""Conventions of JMS over AMQP 0-x: how Qpid's client writes one thing in 0-8 and 0-9-1, and how in 0-10.

========================  =========================================  =============================================
what                      0-8, 0-9-1                                 0-10
========================  =========================================  =============================================
message id                ``ID:`` and a UUID                         the UUID
reply-to                  a binding URL                              exchange and routing key
timestamp                 milliseconds since 1970                    the same, in the delivery-properties
========================  =========================================  =============================================

A binding URL is ``class://exchange/destination/queue?option='value'&...``. Any other form does not count, and stays as
it is.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.amqp.message import ArrivalTime, Properties, ReplyTo, UuidMessageId

ID: Final = "ID:"
"""What a JMS message id begins with."""
MILLISECONDS: Final = 10**11
"""From here on a time since 1970 counts milliseconds: as seconds it would be the year 5138."""

_uuid: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch

_CLASSES: Final = {"": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.match": "headers"}
"""Exchange -> its class. Of any other exchange the name does not tell, and a client that only publishes to it uses
``direct`` for what has a routing key."""
_url: Final = re.compile(
    r"(?P<kind>direct|topic|fanout|headers)://(?P<exchange>[^/?%]*)/"
    r"(?:(?P<destination>[^/?%]*)/)?(?P<queue>[^/?%]*)"
    r"(?:\?(?P<options>[^='%]+='[^'%]+'(?:[&,][^='%]+='[^'%]+')*))?"
).fullmatch
_options: Final = re.compile(r"([^=&,']+)='([^']+)'").findall
_ROUTING_KEY: Final = "routingkey"
_SHORT_MAX: Final = 255


def is_uuid(text: str) -> bool:
    """Whether the text is a UUID in canonical form: lower case, four hyphens."""
    return _uuid(text) is not None


def uuid_of(message_id: str) -> str | None:
    """Return the UUID of a JMS message id; None where it is not ``ID:`` and a UUID in canonical form."""
    if not message_id.startswith(ID) or not is_uuid(message_id[len(ID) :]):
        return None
    return message_id[len(ID) :]


def address_of(reply_to: str) -> ReplyTo | None:
    """Return the exchange and routing key that a binding URL names; None where it is no binding URL."""
    if "://" not in reply_to or (found := _url(reply_to)) is None:
        return None
    if (key := dict(_options(found["options"] or "")).get(_ROUTING_KEY)) is None:
        key = found["queue"] if found["kind"] == "direct" else found["destination"]
    return ReplyTo(found["exchange"], key) if key else None


def binding_url(reply_to: ReplyTo) -> str | None:
    """Return the binding URL of an exchange and routing key; None where no URL names them."""
    exchange, key = reply_to.exchange, reply_to.routing_key
    url = f"{_CLASSES.get(exchange, 'direct')}://{exchange}//?{_ROUTING_KEY}='{key}'"
    if address_of(url) != reply_to or len(url.encode("utf-8", "surrogateescape")) > _SHORT_MAX:
        return None
    return url


_KINDS: Final = frozenset(
    {
        "text/plain",
        "text/xml",
        "application/octet-stream",
        "application/java-object-stream",
        "amqp/map",
        "amqp/list",
        "jms/map-message",
        "jms/stream-message",
    }
)
"""The content types of Qpid's JMS client: text, bytes, object, map, list, the older form of a map, stream."""


def is_of_jms(properties: Properties) -> bool:
    """Whether properties that came in 0-10 are as Qpid's JMS client writes them: its content types, a message id, a
    priority and a delivery mode."""
    return (
        properties.content_type in _KINDS
        and type(properties.message_id) is UuidMessageId
        and properties.priority is not None
        and properties.delivery_mode is not None
    )


def arrival_in_classic(time: int) -> int:
    """Return a ``timestamp`` as 0-8 and 0-9-1 have it: that of a JMS message in milliseconds."""
    if type(time) is not ArrivalTime:
        return time
    return int(time) if time.milliseconds is None else time.milliseconds


def arrival_in_native(time: int, unit: int) -> int:
    """Return a ``timestamp`` as it is written in 0-10, where a second is ``unit``. What counts milliseconds already
    stays as it is."""
    if type(time) is ArrivalTime and time.milliseconds is not None:
        return time.milliseconds
    return time if time >= MILLISECONDS else time * unit
