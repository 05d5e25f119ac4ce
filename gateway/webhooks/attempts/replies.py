"""The answer of an endpoint, as a message to the requester.

Where an endpoint has ``reply``, the body of its 2xx answer is published to the message's ``reply_to``, at the broker
that the message came from and in the words of that broker's version: a routing key of the default exchange, or with
0-10 an exchange and a routing key. It carries the request's ``correlation_id``, or its ``message_id`` where there is
none, and the answer's content type and encoding. It is confirmed before the message is done with; a crash in between
sends it again, with the request, marked ``resent``: so is each reply to a message of which an attempt came to no end
that is known, or that may itself be there twice. A reply that cannot be published is no reason to make the request
again: the message's timeline says why.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from gateway.amqp.message import Message, Properties, ReplyTo
from gateway.core.publishing.publisher import RESENT
from gateway.core.sources.arrivals import printable
from gateway.errors import BrokerUnavailable, FrameSyntaxError, GatewayError, Unroutable
from gateway.fidelity import annotate
from gateway.ledger import EventKind, MessageIds, id_text
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.tracing import trace_of
from gateway.upstreams import Upstream
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.sender import SendOutcome

CONFIRM_TIMEOUT: Final = 10.0
"""How long a reply waits for its confirm, in seconds."""
TRIES: Final = 3
"""How often it is tried while the broker is away."""
PAUSE: Final = 1.0
"""Between two tries, in seconds."""
TEXT_MAX: Final = 255
"""Longest content type and content encoding that are passed on, in octets."""
NO_CONTENT: Final = frozenset({204, 205})
"""Statuses that say that there is no reply."""

Told = tuple[EventKind | None, Any]


class Replies:
    """Publishes replies."""

    def __init__(self, ids: MessageIds) -> None:
        self._ids = ids

    async def send(self, upstream: Upstream, item: PushDelivery, outcome: SendOutcome) -> Told | None:
        """Publish what the endpoint answered. None: nobody asked for it, or there is nothing to say. Else the event and
        its detail; without an event, why there is no reply."""
        try:
            properties = item.message.properties
        except FrameSyntaxError:
            return None
        reply_to = properties.reply_to
        if not reply_to or outcome.status in NO_CONTENT:
            return None
        if outcome.truncated:
            return None, f"not sent: the answer has more than {len(outcome.body)} octets"
        exchange, routing_key = ("", reply_to) if isinstance(reply_to, str) else _place(reply_to)
        reply_id = id_text(self._ids())
        notes = {"id": reply_id, **(RESENT if item.doubtful else {})} if upstream.settings.annotate else {}
        message = _reply(properties, outcome, notes)
        try:
            await self._publish(upstream, exchange, routing_key, message)
        except GatewayError as error:
            log(
                "push.no_reply", logging.WARNING, message_id=id_text(item.message_id), reason=str(error)[:500],
                trace_id=trace_of(item.message),
            )  # fmt: skip
            became = "perhaps sent" if error.outcome == "unknown" else "not sent"
            return None, f"{became}: {printable(str(error))[:300]}"
        return EventKind.REPLIED, {
            "reply_id": reply_id,
            "exchange": printable(exchange),
            "routing_key": printable(routing_key),
            "size": len(outcome.body),
        }

    async def _publish(self, upstream: Upstream, exchange: str, routing_key: str, message: Message) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                receipt = await upstream.publish(exchange, routing_key, message, timeout=CONFIRM_TIMEOUT)
            except BrokerUnavailable:
                if not tries_left:
                    raise
                await clock.sleep(PAUSE)
                continue
            if not receipt.routed:
                raise Unroutable(f"no queue takes replies at {exchange!r} with {routing_key!r}: {receipt.reply_text}")
            return


def _place(reply_to: ReplyTo) -> tuple[str, str]:
    return reply_to.exchange, reply_to.routing_key


def _reply(asked: Properties, outcome: SendOutcome, notes: Mapping[str, str]) -> Message:
    properties = Properties(
        content_type=_short(outcome.content_type),
        content_encoding=_short(outcome.content_encoding),
        delivery_mode=asked.delivery_mode,
        correlation_id=asked.correlation_id if asked.correlation_id is not None else asked.message_id,
    )
    return Message(outcome.body, annotate(properties, **notes) if notes else properties)


def _short(text: str | None) -> str | None:
    """What fits into a property; None: there is none, or it does not."""
    return None if text is None or len(text.encode()) > TEXT_MAX else text
