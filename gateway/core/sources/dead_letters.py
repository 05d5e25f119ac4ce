"""Dead letters of subscriptions, taps and bridges: a copy at a dead-letter place, confirmed, with the reason.

The copy is the message as it came. Headers that brokers act upon stay in the reserved header, and so do an
``expiration``, for dead letters do not expire, and a ``user_id`` that is not the place's login. The reserved header
says why it is there (``reason``, and ``code``, one of :data:`gateway.fidelity.deaths.CODES`) and since when (``at``).
``subscription``, ``tap`` or ``bridge`` gave it up. ``broker``, ``queue``, ``exchange`` and ``routing_key`` say where it
came from, so that it can be driven back. ``letter`` differs for each copy: a copy that is driven back twice is no
redelivery.
Where the place cannot take the message with these, it goes as it was; the ledger has the reason all the same.

The destination has it before the message is acknowledged to the source: a crash in between leaves two copies and never
none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gateway.amqp.message import Message
from gateway.config import SubscriptionSettings
from gateway.errors import EncodeError, FrameSyntaxError, GatewayError, Unroutable
from gateway.fidelity import annotate, forward
from gateway.fidelity.deaths import FIRST_DEATH, LAST_DEATH, UNKNOWN, X_DEATH, written
from gateway.fidelity.forwarding import COPIES
from gateway.ledger import id_text
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.upstreams import PublishReceipt, Upstream

CONFIRM_TIMEOUT: Final = 30.0
"""How long a copy waits for its confirm, in seconds."""
REASON_MAX: Final = 200
"""Longest reason in a message, in characters; the ledger has more of it."""


NOTHING: Final[Mapping[str, str]] = {}


class DeadLetterDestination(NamedTuple):
    """Where dead letters go."""

    broker: str
    exchange: str
    routing_key: str

    def __str__(self) -> str:
        return f"{self.exchange!r} with {self.routing_key!r} at {self.broker}"


def place_of(settings: SubscriptionSettings) -> DeadLetterDestination | None:
    """The dead-letter place of a subscription; None: it has none."""
    if not settings.dead_letter_exchange and not settings.dead_letter_routing_key:
        return None
    return DeadLetterDestination(
        settings.dead_letter_broker or settings.broker,
        settings.dead_letter_exchange,
        settings.dead_letter_routing_key,
    )


class UndeliverableMessage(NamedTuple):
    """A message on its way there."""

    id: bytes
    """The gateway's."""
    message: Message
    reason: str
    broker: str = ""
    queue: str = ""
    """Where it was taken from; empty: that is not told."""
    exchange: str = ""
    routing_key: str = ""
    """And how it came to be there."""
    code: str = UNKNOWN
    """Why, in one of :data:`gateway.fidelity.deaths.CODES`."""
    entries: Mapping[str, str] = NOTHING
    """What else its reserved header says."""


def died(code: str, broker: str, queue: str, exchange: str, routing_key: str) -> dict[str, Any]:
    """Return what events and rows of the ledger tell of a dead letter, beside its reason."""
    origin = {"broker": broker, "queue": queue, "exchange": exchange, "routing_key": routing_key}
    return {"code": code, "from": {name: _printable(text) for name, text in origin.items()}}


class DeadLetterPublisher:
    """Copies at dead-letter places."""

    def __init__(self, find: Callable[[str], Upstream]) -> None:
        self._find = find

    async def publish(
        self,
        place: DeadLetterDestination,
        name: str,
        letters: Sequence[UndeliverableMessage],
        within: float = CONFIRM_TIMEOUT,
        *,
        kind: str = "subscription",
    ) -> list[GatewayError | None]:
        """Publish copies, all at once and in order; ``kind`` says what ``name`` is. What became of each: None, it is
        confirmed there; else why not, and it may or may not be there."""
        try:
            upstream = self._find(place.broker)
        except GatewayError as error:
            return [error] * len(letters)
        outcomes = await self._publish(
            upstream, place, [_copy(upstream, {kind: name}, item) for item in letters], within
        )
        for smaller in (lambda message: message, without_deaths):  # too large with what was added, say
            bare = [
                index
                for index, error in enumerate(outcomes)
                if isinstance(error, EncodeError) and not _routes_copies(upstream, letters[index].message)
            ]
            if bare:
                messages = [smaller(letters[index].message) for index in bare]
                again = await self._publish(upstream, place, messages, within)
                for index, outcome in zip(bare, again, strict=True):
                    outcomes[index] = outcome
        return outcomes

    async def _publish(
        self, upstream: Upstream, place: DeadLetterDestination, messages: Sequence[Message], within: float
    ) -> list[GatewayError | None]:
        order = f"dead letters {place.exchange}/{place.routing_key}"
        futures: list[asyncio.Future[PublishReceipt]] = [
            upstream.publish_nowait(place.exchange, place.routing_key, message, timeout=within, order=order)
            for message in messages
        ]
        outcomes: list[GatewayError | None] = []
        for future in futures:
            try:
                receipt = await future
            except GatewayError as error:
                outcomes.append(error)
                continue
            outcomes.append(
                None if receipt.routed else Unroutable(f"no queue takes dead letters at {place}: {receipt.reply_text}")
            )
        return outcomes


def _routes_copies(upstream: Upstream, message: Message) -> bool:
    """Whether the broker would route copies of the message as it is to elsewhere."""
    if upstream.capabilities is None or not upstream.capabilities.routes_copies:
        return False
    try:
        headers = message.properties.headers
    except FrameSyntaxError:
        return False
    return headers is not None and not COPIES.isdisjoint(headers)


def _copy(upstream: Upstream, who: Mapping[str, str], letter: UndeliverableMessage) -> Message:
    if not upstream.settings.annotate and not letter.entries:
        return letter.message
    entries = {
        "id": id_text(letter.id),
        "reason": _printable(letter.reason[:REASON_MAX]),
        "code": letter.code,
        "at": written(clock.now()),
        **who,
        "letter": ids.hex(8),
        **letter.entries,
    }
    if letter.queue:
        entries |= {
            "broker": letter.broker,
            "queue": _printable(letter.queue),
            "exchange": _printable(letter.exchange),
            "routing_key": _printable(letter.routing_key),
        }
    return dead_letter_copy(letter.message, entries, upstream.url.user)


def dead_letter_copy(message: Message, entries: Mapping[str, str], login: str) -> Message:
    """A message as a dead letter. ``login`` is the place's: a ``user_id`` that is not that would be refused."""
    entries = dict(entries)
    try:
        properties = message.properties
        copy = forward(message, entries)
        user = properties.user_id
        foreign = user is not None and user not in (login, login.encode())
        if properties.expiration is None and not foreign:
            return copy
        properties = copy.properties
        if properties.expiration is not None:
            entries["expiration"] = properties.expiration
        if foreign and user is not None:
            entries["user_id"] = user if isinstance(user, str) else user.decode("utf-8", "backslashreplace")
        properties = annotate(replace(properties, expiration=None), **entries)
        copy = copy.altered(replace(properties, user_id=None) if foreign else properties)
        copy.relayed = True
        return copy
    except FrameSyntaxError:
        return message  # its properties are octets that only pass through


def without_deaths(message: Message) -> Message:
    """A message without the headers in which brokers tell of its deaths: they may have made it too large to publish
    again. The ledger tells why it died."""
    try:
        properties = message.properties
    except FrameSyntaxError:
        return message
    if not properties.headers:
        return message
    headers = {
        name: value
        for name, value in properties.headers.items()
        if name != X_DEATH and not name.startswith((FIRST_DEATH, LAST_DEATH))
    }
    if len(headers) == len(properties.headers):
        return message
    return message.altered(replace(properties, headers=headers or None))


def _printable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
