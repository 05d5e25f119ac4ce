"""``/v1/messages``: what happened to every message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.responses import Response

from gateway.api.about.schemas import MessageEvent, Messages, MessageSummary
from gateway.api.history import story
from gateway.api.history.dead_letters import of_message
from gateway.api.history.events import microseconds
from gateway.api.history.history_schemas import Advice, MessagesQuery, MessageTimeline, OwedDelivery, Waiting
from gateway.api.http.call import Call, answer, page_headers
from gateway.api.http.problems import printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.messages.deliveries import reason_json
from gateway.api.messages.waiting import waits
from gateway.api.resources.brokers import moment
from gateway.ledger import (
    BacklogEntry,
    DeliveryFilter,
    MessageFilter,
    MessageState,
    RecordedEvent,
    StoredMessage,
    id_text,
)
from gateway.notation.values import text_to_json
from gateway.validation import one_of, shown

OWED_MAX: Final = 100
"""Most deliveries of one message that are shown."""
_PROPERTIES: Final = ("message_id", "correlation_id", "type", "content_type")


async def list_messages(call: Call) -> Response:
    """A page, the newest first."""
    query = call.query(MessagesQuery)
    if query.state and query.state not in _STATES:
        raise wrong_parameter("state", one_of(query.state, words := sorted(_STATES)), words)
    try:
        page, cursor = await call.gateway.messages(
            _filter(query, call.gateway.ledger.headers), query.cursor or None, query.limit
        )
    except ValueError as error:
        raise wrong_parameter("cursor", f"it was not given by a page of this list: {error}") from None
    given: dict[str, str | int | Sequence[str]] = {}
    for name in MessagesQuery.__struct_fields__:
        value = getattr(query, name)
        if name != "cursor" and value is not None:
            given[name] = value.isoformat() if isinstance(value, datetime) else value
    body = Messages(
        messages=[MessageSummary(**_summary(call, message)) for message in page],
        reached=None if cursor is None else moment(int.from_bytes(bytes.fromhex(cursor)[:6]) / 1e3),  # an id is a time
    )
    return answer(body, headers=page_headers(call, cursor, **given))


def _filter(query: MessagesQuery, kept: Sequence[str]) -> MessageFilter:
    """``kept``: the headers that the ledger keeps. Raises ApiProblem (invalid_parameter)."""
    properties = {name: value for name in _PROPERTIES if (value := getattr(query, name))}
    headers: dict[str, str] = {}
    for text in filter(None, query.header):
        header, equals, value = text.partition("=")
        if not (header and equals):
            raise wrong_parameter("header", f"{shown(text)} is not NAME=VALUE")
        if header not in kept:  # nothing would be found, whatever there was
            names = ", ".join(kept) or "none"
            detail = f"{shown(header)} is not kept by the ledger (ledger.headers: {names:.400})"
            raise wrong_parameter("header", detail, kept)
        if headers.setdefault(header, value) != value:
            raise wrong_parameter("header", f"{shown(header)} cannot have two values")
    return MessageFilter(
        broker=query.broker or None,
        exchange=None if query.exchange is None else "" if query.exchange == "amq.default" else query.exchange,
        routing_key=query.routing_key,
        client=query.client or None,
        origin=query.origin or None,
        state=MessageState(query.state) if query.state else None,
        since=None if query.since is None else microseconds(query.since),
        until=None if query.until is None else microseconds(query.until),
        subscription=query.subscription or None,
        endpoint=query.endpoint or None,
        bridge=query.bridge or None,
        properties=properties or None,
        headers=headers or None,
    )


async def get_message(call: Call) -> Response:
    """Everything that is known of one."""
    timeline = await call.gateway.timeline(call.names["message"])
    message, events = timeline.message, timeline.events
    holding = await _holding(call, message.id)
    holding = msgspec.structs.replace(holding, waits=await waits(call, message, events, holding))
    return answer(
        MessageTimeline(
            **_summary(call, message),
            events=[_event(event) for event in events],
            owed=[_owed(delivery) for delivery in holding.deliveries],
            body_kept=holding.body,
            dead_letter=of_message(message, events, holding.deliveries),
            story=story.story(message, events),
            waits=[
                Waiting(subscription=wait.subscription, code=wait.code, reason=story.waiting(wait))
                for wait in holding.waits
            ],
            now=story.now(message, events, holding),
            advice=[Advice(what=step.what, command=step.command) for step in story.advice(message, events, holding)],
            related=story.related(message, events),
        )
    )


async def _holding(call: Call, message_id: bytes) -> story.Holding:
    ledger = call.gateway.ledger
    deliveries, _ = await ledger.deliveries.page(DeliveryFilter(message_id=message_id), None, OWED_MAX)
    in_doubt, body = await ledger.history.keeps(message_id)
    return story.Holding(deliveries, await ledger.outbox.get(message_id), in_doubt, body)


def _owed(delivery: BacklogEntry) -> OwedDelivery:
    return OwedDelivery(
        id=id_text(delivery.id),
        subscription=printable(delivery.subscription),
        state=story.delivery_state(delivery),
        attempt=delivery.attempt,
        due_at=moment(delivery.due_at / 1e6),
        reason=reason_json(delivery.reason),
    )


def _summary(call: Call, message: StoredMessage) -> dict[str, Any]:
    return {
        "id": id_text(message.id),
        "state": message.state.value if message.state is not None else "",
        "broker": message.broker,
        "version": message.version,
        "exchange": text_to_json(message.exchange),
        "routing_key": text_to_json(message.routing_key),
        "at": moment(message.at / 1e6),
        "origin": message.origin,
        "client": message.client,
        "size": message.size,
        "sha256": message.sha256.hex() if call.principal.admin else "",
        "properties": message.properties,
    }


def _event(event: RecordedEvent) -> MessageEvent:
    return MessageEvent(
        shard=event.shard,
        sequence=event.sequence,
        at=moment(event.at / 1e6),
        kind=event.kind.value,
        broker=event.broker,
        version=event.version,
        detail=event.detail,
    )


_STATES = frozenset(state.value for state in MessageState)

ROUTES = (
    Route(
        "GET", "/v1/messages", "list_messages", "List messages", list_messages, Scope.HISTORY,
        {200: ("A page, the newest first.", Messages)}, query=MessagesQuery,
        codes=("invalid_parameter", "ledger_unavailable"),
        description=(
            "With a filter a page may have fewer messages than `limit`, or none, and a next page all the same: at most "
            "500,000 messages are looked at for each, for 2 s."
        ),
        tag="messages",
    ),
    Route(
        "GET", "/v1/messages/{message}", "get_message", "Read a message's timeline", get_message, Scope.HISTORY,
        {200: ("Everything that is known of the message, oldest event first.", MessageTimeline)},
        codes=("message_not_found", "ledger_unavailable"), tag="messages",
    ),
)  # fmt: skip
