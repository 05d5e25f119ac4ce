"""``/v1/messages``: what happened to every message."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from gateway.api.brokers import moment
from gateway.api.call import Call, answer, page_headers
from gateway.api.problems import ApiProblem
from gateway.api.routing import Route, Scope
from gateway.api.schemas import MessageEvent, Messages, MessagesQuery, MessageSummary, MessageTimeline
from gateway.api.values import text_to_json
from gateway.ledger import Event, MessageFilter, State, StoredMessage, id_text


async def list_messages(call: Call) -> Response:
    """A page, the newest first."""
    query = call.query(MessagesQuery)
    if query.state and query.state not in _STATES:
        raise ApiProblem("invalid_parameter", f"state is not one of {', '.join(sorted(_STATES))}")
    where = MessageFilter(
        broker=query.broker or None,
        exchange=None if query.exchange is None else "" if query.exchange == "amq.default" else query.exchange,
        routing_key=query.routing_key,
        state=State(query.state) if query.state else None,
    )
    try:
        page, cursor = await call.gateway.messages(where, query.cursor or None, query.limit)
    except ValueError as error:
        raise ApiProblem("invalid_parameter", f"the cursor is none of ours: {error}") from None
    filters = {
        "broker": query.broker,
        "exchange": query.exchange or "",
        "routing_key": query.routing_key or "",
        "state": query.state,
    }
    body = Messages(messages=[MessageSummary(**_summary(message)) for message in page])
    return answer(body, headers=page_headers(call, cursor, limit=query.limit, **filters))


async def get_message(call: Call) -> Response:
    """Everything that is known of one."""
    timeline = await call.gateway.timeline(call.names["message"])
    return answer(MessageTimeline(**_summary(timeline.message), events=[_event(event) for event in timeline.events]))


def _summary(message: StoredMessage) -> dict[str, Any]:
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
        "sha256": message.sha256.hex(),
        "properties": message.properties,
    }


def _event(event: Event) -> MessageEvent:
    return MessageEvent(
        shard=event.shard,
        sequence=event.sequence,
        at=moment(event.at / 1e6),
        kind=event.kind.value,
        broker=event.broker,
        version=event.version,
        detail=event.detail,
    )


_STATES = frozenset(state.value for state in State)

ROUTES = (
    Route(
        "GET", "/v1/messages", "list_messages", "List messages", list_messages, Scope.ADMIN,
        {200: ("A page, the newest first.", Messages)}, query=MessagesQuery, codes=("invalid_parameter",),
        tag="messages",
    ),
    Route(
        "GET", "/v1/messages/{message}", "get_message", "Read a message's timeline", get_message, Scope.ADMIN,
        {200: ("Everything that is known of the message, oldest event first.", MessageTimeline)},
        codes=("message_not_found", "ledger_unavailable"), tag="messages",
    ),
)  # fmt: skip
