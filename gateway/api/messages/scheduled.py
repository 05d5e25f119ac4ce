"""``/v1/scheduled``: publishes that the ledger holds, and what became of them.

A caller sees and steers what its own API key has published; ``admin`` sees all.
"""

from __future__ import annotations

from starlette.responses import Response

from gateway.api.about.schemas import Reschedule, ScheduledMessage, ScheduledMessages, ScheduledQuery
from gateway.api.http.call import JSON, Call, answer, invalid_value, no_content, page_headers
from gateway.api.http.problems import ApiProblem, printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.messages.later import due_at
from gateway.api.resources.allowed_keys import foreign_key
from gateway.api.resources.patching import MEDIA, MERGE_PATCH
from gateway.core.publishing.outbox import ScheduledPublish, moment
from gateway.errors import NoSuchMessage
from gateway.ledger import EventKind, MessageState, OutboxEntry, OutboxFilter, Timeline, id_text, parse_id
from gateway.notation.values import ValueProblem, text_to_json


async def list_scheduled(call: Call) -> Response:
    """A page, by when they are due."""
    query = call.query(ScheduledQuery)
    where = OutboxFilter(
        broker=query.broker or None,
        client=None if call.principal.admin else call.principal.name,
        dead=None if query.state == "" else query.state == "refused",
    )
    try:
        page, cursor = await call.gateway.outbox.page(where, query.cursor or None, query.limit)
    except ValueError as error:
        raise wrong_parameter("cursor", f"it was not given by a page of this list: {error}") from None
    shown = [_row(row, call.gateway.outbox.waits_for(row)) for row in page]
    headers = page_headers(call, cursor, limit=query.limit, broker=query.broker, state=query.state)
    return answer(ScheduledMessages(scheduled=shown), headers=headers)


async def get_scheduled(call: Call) -> Response:
    """How things stand with one."""
    found = await _find(call)
    return answer(_describe(found))


async def cancel_scheduled(call: Call) -> Response:
    """Take one back."""
    found = await _find(call)
    await call.gateway.outbox.cancel(found.id, call.principal.name)
    after = await call.gateway.outbox.get(found.id)
    return answer(_describe(after)) if after.is_in_doubt else no_content()


async def reschedule(call: Call) -> Response:
    """Give one another time."""
    request = await call.json(Reschedule, (JSON, MERGE_PATCH))
    found = await _find(call)
    if request.not_before is None and request.delay_seconds is None:
        detail = "give not_before or delay_seconds"
        raise ApiProblem("invalid_request", detail, errors=[("/not_before", detail)])
    try:
        time = due_at(request.not_before, request.delay_seconds)
    except ValueProblem as problem:
        raise invalid_value(problem) from None
    _check_key(call, found)
    await call.gateway.outbox.reschedule(found.id, time, call.principal.name)
    return answer(_describe(await _find(call)))


def _check_key(call: Call, found: ScheduledPublish) -> None:
    """Raises ApiProblem: the caller may not publish with this routing key any more."""
    if (row := found.row) is not None:
        keys = call.principal.routing_keys(row.broker, row.exchange)
        if not keys.allow(row.routing_key):
            raise foreign_key(call.principal, row.broker, row.exchange, row.routing_key)


async def retry_scheduled(call: Call) -> Response:
    """Send one again that the broker would not take."""
    found = await _find(call)
    _check_key(call, found)
    await call.gateway.outbox.retry(found.id)
    return answer(_describe(await _find(call)))


async def _find(call: Call) -> ScheduledPublish:
    """The one that the path names, if it is the caller's to see.

    Raises:
        NoSuchMessage: there is none, or it is another's.
    """
    text = call.names["scheduled"]
    missing = NoSuchMessage(f"nothing was scheduled under the id {text!r:.60}")
    try:
        found = await call.gateway.outbox.get(parse_id(text))
    except (ValueError, NoSuchMessage):
        raise missing from None
    if not call.principal.admin and found.client != call.principal.name:
        raise missing
    return found


def _describe(found: ScheduledPublish) -> ScheduledMessage:
    if found.row is not None:
        return _row(found.row, found.waits_for, id_text(found.id))
    assert found.timeline is not None
    message = found.timeline.message
    state, reason, not_before = _ended(found.timeline)
    return ScheduledMessage(
        id=id_text(found.id),
        state=state.value,
        broker=message.broker,
        exchange=text_to_json(message.exchange),
        routing_key=text_to_json(message.routing_key),
        at=moment(message.at),
        client=message.client,
        not_before=not_before,
        reason=reason,
    )


def _row(row: OutboxEntry, waits_for: str, id: str = "") -> ScheduledMessage:
    return ScheduledMessage(
        id=id or id_text(row.message_id),
        state=MessageState.REFUSED.value if row.dead else MessageState.SCHEDULED.value,
        broker=row.broker,
        exchange=text_to_json(row.exchange),
        routing_key=text_to_json(row.routing_key),
        at=moment(row.at),
        client=row.client,
        not_before=row.reason.get("not_before"),
        attempts=row.attempt,
        sending=row.claimed,
        reason=printable(waits_for or str(row.reason.get("text", ""))),
    )


def _ended(timeline: Timeline) -> tuple[MessageState, str, str | None]:
    """The outcome of the publish, before anything that consumers did; why, where it was not delivered; and the time
    that was asked for."""
    state, reason, not_before = MessageState.SCHEDULED, "", None
    for event in timeline.events:
        found = OUTCOMES.get(event.kind)
        if found is not None:
            state, reason = found, str(event.detail.get("text", ""))
            not_before = event.detail.get("not_before", not_before)
    return state, reason, not_before


OUTCOMES = {
    EventKind.CONFIRMED: MessageState.CONFIRMED,
    EventKind.UNROUTABLE: MessageState.UNROUTABLE,
    EventKind.REFUSED: MessageState.REFUSED,
    EventKind.NOT_SENT: MessageState.NOT_SENT,
    EventKind.CANCELLED: MessageState.CANCELLED,
    EventKind.SCHEDULED: MessageState.SCHEDULED,
}
"""Event of a publish that was to be sent later -> what it is after that."""

_PATH = "/v1/scheduled/{scheduled}"
_CODES = ("message_not_found", "ledger_unavailable")

ROUTES = (
    Route(
        "GET", "/v1/scheduled", "list_scheduled", "List scheduled messages", list_scheduled, Scope.PUBLISHER,
        {200: ("A page, the earliest due first. Messages that were published are not listed.", ScheduledMessages)},
        query=ScheduledQuery, codes=("invalid_parameter", "ledger_unavailable"),
        description="Without `admin`: what the same API key has published.", tag="publish",
    ),
    Route(
        "GET", _PATH, "get_scheduled", "Read a scheduled message", get_scheduled,
        Scope.PUBLISHER, {200: ("The message, as it is now.", ScheduledMessage)}, codes=_CODES, tag="publish",
    ),
    Route(
        "DELETE", _PATH, "cancel_scheduled", "Cancel a scheduled message", cancel_scheduled,
        Scope.PUBLISHER,
        {
            200: ("Canceled, but an earlier attempt has no outcome: `reason` says that it may have arrived.",
                  ScheduledMessage),
            204: ("Canceled: it is not published.", None),
        },
        codes=(*_CODES, "state"),
        description="409 `state` where it is on its way to the broker, or there. A repeat gets the same answer.",
        tag="publish",
    ),
    Route(
        "PATCH", _PATH, "reschedule", "Give a scheduled message another time", reschedule,
        Scope.PUBLISHER, {200: ("The message, with its new time.", ScheduledMessage)}, body=Reschedule, media=MEDIA,
        codes=(
            *_CODES, "state", "malformed_json", "invalid_request", "invalid_value", "unsupported_media_type",
        ),
        description=(
            "409 `state` where it is on its way to the broker, there, or refused. A time that has passed publishes it "
            "at once."
        ),
        tag="publish",
    ),
    Route(
        "POST", f"{_PATH}:retry", "retry_scheduled", "Retry a scheduled message that the broker refused",
        retry_scheduled, Scope.PUBLISHER, {200: ("The message, which is sent now.", ScheduledMessage)},
        codes=(*_CODES, "state"),
        description="For a message that the broker refused, after you have removed the cause.", tag="publish",
    ),
)  # fmt: skip
