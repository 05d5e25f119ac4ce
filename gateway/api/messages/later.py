"""Publishes that are asked for later: ``Prefer: respond-async``, ``not_before`` and ``delay_seconds``.

Both are answered with 202 as soon as the ledger holds the message (:mod:`gateway.core.publishing.outbox`). The
preference (RFC 7240) is for the whole request, a time for a message; a batch may have some with it and some without.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.api.http.problems import ApiProblem, wrong_header
from gateway.core import Publication, PublishOutcome
from gateway.core.publishing.outbox import YEAR
from gateway.errors import GatewayError
from gateway.notation.values import ValueProblem
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from gateway.api.http.call import Call

ASYNC: Final = "respond-async"
APPLIED: Final[Mapping[str, str]] = {"preference-applied": ASYNC}


def prefers_later(call: Call) -> bool:
    """Whether the caller does not want to wait for the broker."""
    value = call.header(b"prefer")
    return value is not None and any(
        preference.split(";")[0].strip().lower() == ASYNC for preference in value.split(",")
    )


def moment_of(given: datetime | float | str) -> int:
    """A time as a message names it, in microseconds since 1970.

    Raises:
        ValueProblem: it is no time, before 1970, or more than a year ahead.
    """
    if isinstance(given, str):
        try:
            given = float(given) if given.replace(".", "", 1).isdecimal() else msgspec.convert(given, datetime)
        except (ValueError, msgspec.ValidationError):
            raise ValueProblem(f"{given!r:.40} is neither RFC 3339 nor seconds since 1970", "not_before") from None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueProblem("the time has no offset from UTC", "not_before")
        given = given.timestamp()
    if given > clock.now() + YEAR:
        raise ValueProblem(f"more than a year ({YEAR // 86_400} days) ahead", "not_before")
    if given < 0:
        raise ValueProblem("it is before 1970", "not_before")
    return int(given * 1_000_000)


def due_at(not_before: datetime | float | str | None, delay_seconds: float | None) -> int:
    """Return the time that one of the two names, in microseconds since 1970.

    Raises:
        ValueProblem: both are there, or it is no time, or more than a year ahead.
    """
    if delay_seconds is None:
        assert not_before is not None
        return moment_of(not_before)
    if not_before is not None:
        raise ValueProblem("give not_before or delay_seconds, not both", "delay_seconds")
    if not 0 <= delay_seconds <= YEAR:
        raise ValueProblem(f"{delay_seconds} is not a number of seconds from 0 to {YEAR}", "delay_seconds")
    return int((clock.now() + delay_seconds) * 1_000_000)


async def publish_each(
    call: Call, messages: Sequence[Publication], *, later: bool, order: str | None = None
) -> list[PublishOutcome]:
    """Keep those that are for later, and publish the others; one result each, in order.

    Raises:
        GatewayError: nothing was kept, nor sent.
    """
    gateway, broker, exchange, client = call.gateway, call.names["broker"], call.names["exchange"], call.principal.name
    if later and any(item.key for item in messages):
        raise wrong_header("Prefer", f"{ASYNC}: a message with a key is published at once")
    delayed = [item for item in messages if later or item.not_before is not None]
    if not delayed:
        return await _publish_now(call, messages, order)
    upstream = gateway.broker(broker)
    size = len(delayed), sum([len(item.message.body) for item in delayed])
    gateway.ledger_budgets.take(call.client, 0, *size)
    try:
        kept = iter(await gateway.outbox.put(upstream, exchange, delayed, client))
    finally:
        gateway.ledger_budgets.give(call.client, 0, *size)
    at_once = [item for item in messages if not later and item.not_before is None]
    if not at_once:
        return list(kept)
    try:
        published = await _publish_now(call, at_once, order)
    except GatewayError as error:  # that of some; the others are kept already
        published = [PublishOutcome(item.text, error, routed=False) for item in at_once]
    sent = iter(published)
    return [next(sent) if item.not_before is None else next(kept) for item in messages]


def _publish_now(call: Call, messages: Sequence[Publication], order: str | None) -> Awaitable[list[PublishOutcome]]:
    if [item for item in messages if item.key]:
        return _publish_keyed(call, messages, order)
    return call.gateway.publish(call.names["broker"], call.names["exchange"], messages, call.principal.name, order)


async def _publish_keyed(call: Call, messages: Sequence[Publication], order: str | None) -> list[PublishOutcome]:
    gateway, broker, exchange, client = call.gateway, call.names["broker"], call.names["exchange"], call.principal.name
    keys = [item.key for item in messages if item.key]
    taken = await gateway.ledger_budgets.claim(call.client, keys)
    try:
        return await gateway.publish(broker, exchange, messages, client, order)
    finally:
        if taken:
            gateway.ledger_budgets.give(call.client, len(keys), 0, 0)


def all_or_none(messages: Sequence[Any], later: bool) -> bool:
    """Whether a request with an Idempotency-Key is for later. Its answer is kept as a whole, so that it is for now or
    for later as a whole.

    Raises:
        ApiProblem: some of it is, and some is not.
    """
    delayed = sum(item.not_before is not None for item in messages)
    if later or delayed == 0:
        return later
    if delayed == len(messages):
        return True
    raise ApiProblem(
        "invalid_parameter",
        f"{delayed} of {len(messages)} messages have not_before or delay_seconds; with an Idempotency-Key all or none "
        "may, or send `Prefer: respond-async`",
    )
