"""``/v1/deliveries``: what the ledger owes to subscriptions, and the dead that it keeps.

A filter selects many deliveries at once; ``dry_run`` says first how many there are, and shows ten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from gateway.api.about.schemas import Input, Output, PageQuery
from gateway.api.history.dead_letters import of_delivery
from gateway.api.http.call import Call, answer, invalid_setting, no_content, page_headers
from gateway.api.http.problems import wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.messages.bodies import BodyMax, file_answer, payload_of
from gateway.api.messages.pulled_json import SLICE, PiecesAnswer, pieces_around
from gateway.api.resources.replays import Replay, describe, the_replays
from gateway.core.publishing.envelopes import NOT_AS_WRITTEN, EnvelopeError
from gateway.core.publishing.outbox import moment
from gateway.core.sources.stored import Stored, open_envelope
from gateway.core.sources.turns import aside
from gateway.errors import EncodeError, LedgerDamaged, NoSuchDelivery, StateError
from gateway.ledger import (
    BacklogEntry,
    BacklogSettlement,
    DeliveryFilter,
    Ending,
    EventKind,
    Ledger,
    LogEntry,
    id_text,
    parse_id,
)
from gateway.notation.dead_letters import DeadLetter
from gateway.notation.messages import ReceivedMessage, received
from gateway.replays.requests import (
    DeliveriesSource,
    JobId,
    ReplayRequest,
    ReplaySource,
    ReplayTarget,
    check_code,
    microseconds,
)
from gateway.replays.targets import discard, revivals
from gateway.runtime.clock import clock
from gateway.validation import Moment, shown

BULK_MAX: Final = 10_000
"""Most deliveries that one request changes."""
PART: Final = 500
"""How many of them one commit changes."""
SAMPLE: Final = 10
"""How many a dry run shows."""
COUNT_MAX: Final = 1_000_000
"""Most that are counted."""


class DeliveryRow(Output, omit_defaults=False):
    """A message that is pending for a subscription."""

    id: str
    """Id of the delivery."""
    message_id: str
    """The gateway's id of the message: see ``/v1/messages/{id}``."""
    subscription: str
    """Name of the subscription."""
    state: Literal["waiting", "out", "dead"]
    """``waiting``; ``out``: a consumer has it; ``dead``: it was given up and is kept."""
    at: str
    """When the message arrived, RFC 3339."""
    due_in: float | None
    """Seconds until it may be handed out, or until its lease ends; ``null`` where it is dead."""
    attempts: int
    """How often it was handed out or tried."""
    octets: int
    """Bytes of the body."""
    reason: Any
    """Why it was released, tried again or given up the last time: an object with ``reason``, and what else is known,
    such as ``attempt`` and ``at`` (RFC 3339); empty: there is nothing to say."""
    dead_letter: DeadLetter | None
    """Why it is dead, and where it came from; ``null``: it is not dead."""


class DeliveryWithMessage(DeliveryRow, omit_defaults=False):
    """The same, and the message itself."""

    message: ReceivedMessage | None
    """The message; ``null`` where it cannot be read."""
    cut: bool | UnsetType = UNSET
    """With ``body_max``: whether ``payload`` has the beginning of the body only."""
    payload_bytes: int | UnsetType = UNSET
    """With ``body_max``: how many bytes of the body ``payload`` has, of ``octets``."""


class DeliveryPage(Output, omit_defaults=False):
    """A page of deliveries."""

    deliveries: list[DeliveryRow]
    """The deliveries of this page."""


class DeliveryQuery(Input):
    """How much to show."""

    body_max: Annotated[BodyMax | None, Meta(description="Most bytes of the body. Unless given: all of it.")] = None


class DeliveriesQuery(PageQuery):
    """Paging and filters."""

    subscription: Annotated[str, Meta(description="Only of this subscription.")] = ""
    state: Annotated[Literal["", "dead", "alive"], Meta(description="Only dead ones, or only the others.")] = ""
    endpoint: Annotated[str, Meta(description="Only of subscriptions that are pushed to this endpoint.")] = ""
    code: Annotated[str, Meta(description="Only dead ones with this code.")] = ""
    message: Annotated[str, Meta(description="Only of this message, by its id.")] = ""
    since: Annotated[Moment | None, Meta(description="Arrived at or after this time.")] = None
    until: Annotated[Moment | None, Meta(description="Arrived before this time.")] = None
    newest: Annotated[bool, Meta(description="The newest first, in place of the oldest.")] = False


class BulkFilter(Input):
    """Which deliveries. All that is given must hold."""

    subscription: str = ""
    """Only deliveries of this subscription; empty: of all."""
    endpoint: str = ""
    """Only deliveries of subscriptions that are pushed to this endpoint; empty: of all."""
    code: str = ""
    """Only deliveries that died with this code; empty: with any."""
    since: Moment | None = None
    """Only deliveries that arrived then or later."""
    until: Moment | None = None
    """Only deliveries that arrived before this time."""


class BulkRequest(Input):
    """What is done to many."""

    filter: BulkFilter
    """Which deliveries are changed."""
    dry_run: bool = False
    """Change nothing: only count, and show ten."""


class BulkPurgeRequest(BulkRequest):
    """Dead ones are deleted; with ``alive`` those that are not dead, too."""

    alive: bool = False
    """Delete deliveries that are not dead, too."""


class BulkResult(Output, omit_defaults=False):
    """What was done, or would be."""

    count: int
    """How many were changed; with ``dry_run``: how many there are."""
    more: bool
    """There are more: ask again. With ``dry_run``: there are more than were counted."""
    sample: list[DeliveryRow]
    """With ``dry_run``: the first ones."""


class DeliveryReplayRequest(Input):
    """Where a delivery is sent."""

    id: JobId = ""
    """Id of the replay. Unless given, one is made."""
    target: ReplayTarget = ReplayTarget()
    """Where the message goes. Unless given: to the place that it came from."""


# ------------------------------------------------------------------------------------------------- looking


async def list_deliveries(call: Call) -> Response:
    """A page."""
    query = call.query(DeliveriesQuery)
    where = DeliveryFilter(
        subscription=query.subscription or None,
        subscriptions=await pushed_to(call, query.endpoint),
        code=parsed_code(query.code),
        message_id=_parsed(query.message, "message") if query.message else None,
        dead=None if not query.state else query.state == "dead",
        since=microseconds(query.since),
        until=microseconds(query.until),
    )
    try:
        page, cursor = await call.gateway.ledger.deliveries.page(
            where, query.cursor or None, query.limit, newest_first=query.newest
        )
    except ValueError as error:
        raise wrong_parameter("cursor", f"it was not given by a page of this list: {error}") from None
    given = {name: getattr(query, name) for name in ("subscription", "endpoint", "code", "state", "message")}
    given |= {name: time.isoformat() for name in ("since", "until") if (time := getattr(query, name)) is not None}
    if query.newest:
        given["newest"] = "true"
    return answer(
        DeliveryPage(deliveries=[row_of(row) for row in page]),
        headers=page_headers(call, cursor, limit=query.limit, **given),
    )


async def pushed_to(call: Call, endpoint: str) -> tuple[str, ...] | None:
    """The subscriptions that are pushed to an endpoint; None where none is given."""
    return await call.gateway.subscriptions.pushed_to(endpoint) if endpoint else None


def parsed_code(code: str) -> str | None:
    """The code of a query; None where none is given. Raises ApiProblem."""
    try:
        check_code(code, "code")
    except EncodeError as error:
        raise wrong_parameter("code", str(error).partition(": ")[2]) from None
    return code or None


async def get_delivery(call: Call) -> Response:
    """One, with its message."""
    body_max = call.query(DeliveryQuery).body_max
    row = await _find(call, payload=True)
    try:
        stored = await _opened(row)
    except EnvelopeError:  # damaged; what else is known is shown
        return answer(DeliveryWithMessage(**_fields(row), message=None))
    id, exchange, key, message = id_text(row.message_id), stored.exchange, stored.routing_key, stored.message
    if body_max is None:
        if len(message.body) > SLICE:
            return PiecesAnswer(
                pieces_around(
                    message.body,
                    lambda payload: DeliveryWithMessage(
                        **_fields(row), message=received(id, exchange, key, message, payload)
                    ),
                )
            )
        return answer(DeliveryWithMessage(**_fields(row), message=received(id, exchange, key, message)))
    cut = len(message.body) > body_max
    payload, encoding, count = payload_of(message.body[:body_max], is_cut=cut)
    shown_message = received(id, exchange, key, message, (payload, encoding))
    return answer(DeliveryWithMessage(**_fields(row), message=shown_message, cut=cut, payload_bytes=count))


async def get_delivery_body(call: Call) -> Response:
    """Its body as it is, and nothing else."""
    row = await _find(call, payload=True)
    try:
        body = (await _opened(row)).message.body
    except EnvelopeError as error:
        raise LedgerDamaged(f"the delivery {id_text(row.id)} cannot be read: {error}") from None
    return file_answer(body, f"{id_text(row.id)}.bin")


async def _opened(row: BacklogEntry) -> Stored:
    """The message of a delivery that was read with its payload. Raises EnvelopeError."""
    if row.payload is None:
        raise EnvelopeError(NOT_AS_WRITTEN)
    return await aside(len(row.payload), open_envelope, row.payload)


async def _find(call: Call, *, payload: bool = False) -> BacklogEntry:
    """The delivery. Its payload is counted before it is read."""
    text, deliveries = call.names["delivery"], call.gateway.ledger.deliveries
    try:
        row = await deliveries.get(parse_id(text))
    except ValueError:
        row = None
    if payload and row is not None:
        call.hold_for_answer(row.size)
        row = await deliveries.get(row.id, payload=True)
    if row is None:
        raise NoSuchDelivery(f"the ledger neither owes nor keeps a delivery {text!r:.60}")
    return row


# -------------------------------------------------------------------------------------------------- one


async def retry_delivery(call: Call) -> Response:
    """Owe a dead one again, or do not wait with one that waits."""
    row = await _find(call)
    if row.dead:
        (settlement,) = await revivals(call.gateway, [row], clock.now_ns() // 1000, _by(call))
    elif row.out:
        raise StateError("it is out with a consumer, or on its way to the endpoint")
    else:
        settlement = BacklogSettlement(row.id, Ending.RETRY)
    (done,) = await call.gateway.ledger.deliveries.settle([settlement])
    if not done:
        raise StateError("it was settled in between")
    call.gateway.deliveries_changed(row.subscription)
    return answer(row_of(await _find(call)))


async def replay_delivery(call: Call) -> Response:
    """Send it somewhere else."""
    row = await _find(call)
    asked = await call.json(DeliveryReplayRequest)
    source = ReplaySource(deliveries=DeliveriesSource(ids=(id_text(row.id),)))
    request = ReplayRequest(id=asked.id, source=source, target=asked.target)
    try:
        job, created = await the_replays(call).ask(request, call.principal.name)
    except EncodeError as error:
        raise invalid_setting(error) from None
    return answer(describe(job), 201 if created else 200, {"location": f"/v1/replays/{job.id}"})


async def purge_delivery(call: Call) -> Response:
    """Delete it."""
    row = await _find(call)
    if not any(await call.gateway.ledger.deliveries.settle([_purge(row, clock.now_ns() // 1000, _by(call))])):
        raise NoSuchDelivery("it was settled in between")
    call.gateway.deliveries_changed(row.subscription)
    return no_content()


def _purge(row: BacklogEntry, at: int, by: dict[str, str]) -> BacklogSettlement:
    entry = LogEntry(row.message_id, EventKind.PURGED, at, "", "", {"subscription": row.subscription, **by})
    return BacklogSettlement(row.id, Ending.PURGE, entries=(entry,), octets=row.size)


def _by(call: Call) -> dict[str, str]:
    return {"client": call.principal.name}


# ------------------------------------------------------------------------------------------------- many


async def retry_deliveries(call: Call) -> Response:
    """Owe dead ones again."""
    request = await call.json(BulkRequest)
    by = _by(call)
    where = await _where(call, request.filter, dead=True)
    if request.dry_run:
        return answer(await _dry_run(call.gateway.ledger, where))
    at = clock.now_ns() // 1000
    return answer(await _each(call, where, lambda rows: revivals(call.gateway, rows, at, by)))


async def purge_deliveries(call: Call) -> Response:
    """Delete them."""
    request = await call.json(BulkPurgeRequest)
    by = _by(call)
    where = await _where(call, request.filter, dead=None if request.alive else True)
    if request.dry_run:
        return answer(await _dry_run(call.gateway.ledger, where))
    at = clock.now_ns() // 1000

    async def purges(rows: Sequence[BacklogEntry]) -> list[BacklogSettlement]:
        return [_purge(row, at, by) if request.alive else discard(row, at, by) for row in rows]

    return answer(await _each(call, where, purges))


async def _where(call: Call, given: BulkFilter, *, dead: bool | None) -> DeliveryFilter:
    """What is meant, and nothing that comes after it was asked for. Raises ApiProblem."""
    try:
        check_code(given.code, "filter.code")
    except EncodeError as error:
        raise invalid_setting(error) from None
    where = DeliveryFilter(
        subscription=given.subscription or None,
        subscriptions=await pushed_to(call, given.endpoint),
        code=given.code or None,
        dead=dead,
        since=microseconds(given.since),
        until=microseconds(given.until),
    )
    newest, _ = await call.gateway.ledger.deliveries.page(where, None, 1, newest_first=True)
    return msgspec.structs.replace(where, until_id=newest[0].id if newest else bytes(16))


async def _dry_run(ledger: Ledger, where: DeliveryFilter) -> BulkResult:
    count = await ledger.deliveries.count(where, COUNT_MAX)
    page, _ = await ledger.deliveries.page(where, None, SAMPLE)
    return BulkResult(count=count, more=count == COUNT_MAX, sample=[row_of(row) for row in page])


async def _each(
    call: Call,
    where: DeliveryFilter,
    settlements: Callable[[Sequence[BacklogEntry]], Awaitable[list[BacklogSettlement]]],
) -> BulkResult:
    """Settle them, part by part; what was settled meanwhile by somebody else is not counted."""
    deliveries = call.gateway.ledger.deliveries
    count = seen = 0
    cursor: str | None = None
    changed: set[str] = set()
    while seen < BULK_MAX:
        page, cursor = await deliveries.page(where, cursor, PART)
        if page:
            results = await deliveries.settle(await settlements(page))
            count += sum(results)
            seen += len(page)
            changed.update(row.subscription for row in page)
        if cursor is None:
            break
    for name in changed:
        call.gateway.deliveries_changed(name)
    return BulkResult(count=count, more=cursor is not None, sample=[])


# ------------------------------------------------------------------------------------------------- pieces


def row_of(row: BacklogEntry) -> DeliveryRow:
    """A delivery as JSON."""
    return DeliveryRow(**_fields(row))


def _fields(row: BacklogEntry) -> dict[str, Any]:
    return {
        "id": id_text(row.id),
        "message_id": id_text(row.message_id),
        "subscription": row.subscription,
        "state": "dead" if row.dead else "out" if row.out and row.due_in > 0 else "waiting",
        "at": moment(row.at),
        "due_in": None if row.dead else round(max(row.due_in, 0.0), 3),
        "attempts": row.attempt,
        "octets": row.size,
        "reason": reason_json(row.reason),
        "dead_letter": of_delivery(row),
    }


def reason_json(reason: Mapping[str, Any]) -> dict[str, Any]:
    """What the ledger keeps as a reason, with its time as the API writes times."""
    at = reason.get("at")
    return {**reason, "at": moment(at)} if isinstance(at, int) else dict(reason)


def _parsed(text: str, name: str) -> bytes:
    try:
        return parse_id(text)
    except ValueError:
        raise wrong_parameter(name, f"{shown(text)} is not an id, a UUID") from None


_PATH: Final = "/v1/deliveries/{delivery}"
_CODES: Final = ("delivery_not_found", "ledger_unavailable")
_BODY: Final = ("malformed_json", "invalid_request", "invalid_value", "unsupported_media_type", "ledger_unavailable")

ROUTES = (
    Route(
        "GET", "/v1/deliveries", "list_deliveries", "List pending and dead deliveries", list_deliveries, Scope.ADMIN,
        {200: ("A page, in the order in which they arrived.", DeliveryPage)}, query=DeliveriesQuery,
        codes=("invalid_parameter", "ledger_unavailable"),
        description="With `state=dead`: dead letters that the ledger keeps.", tag="deliveries",
    ),
    Route(
        "GET", _PATH, "get_delivery", "Read a delivery", get_delivery, Scope.ADMIN,
        {200: ("The delivery, with its message.", DeliveryWithMessage)}, query=DeliveryQuery, codes=_CODES,
        tag="deliveries",
    ),
    Route(
        "GET", f"{_PATH}/body", "get_delivery_body", "Download the body of a delivery", get_delivery_body, Scope.ADMIN,
        {200: ("The bytes of the body, as `application/octet-stream`.", None)}, codes=_CODES,
        description="The body as it is, to be saved as a file. Browsers do not show it.", tag="deliveries",
    ),
    Route(
        "POST", f"{_PATH}:retry", "retry_delivery", "Retry a delivery now", retry_delivery, Scope.ADMIN,
        {200: ("The delivery, which is due now.", DeliveryRow)}, codes=(*_CODES, "state"),
        description="A dead delivery gets one more attempt at once. A delivery that waits is tried now.",
        tag="deliveries",
    ),
    Route(
        "POST", f"{_PATH}:replay", "replay_delivery", "Send a delivery somewhere else", replay_delivery, Scope.ADMIN,
        {200: ("There is a replay of this id.", Replay), 201: ("The replay that does it.", Replay)},
        body=DeliveryReplayRequest,
        codes=(*_CODES, "malformed_json", "invalid_request", "invalid_value", "unsupported_media_type",
               "broker_not_found", "endpoint_not_found", "address_denied", "state", "limit_exceeded"),
        description="A dead delivery leaves its subscription when it has arrived. Of any other, a copy is sent.",
        tag="deliveries",
    ),
    Route(
        "POST", f"{_PATH}:purge", "purge_delivery", "Delete a delivery", purge_delivery, Scope.ADMIN,
        {204: ("It is gone.", None)}, codes=_CODES, tag="deliveries",
    ),
    Route(
        "POST", "/v1/deliveries:retry", "retry_deliveries", "Retry dead deliveries", retry_deliveries, Scope.ADMIN,
        {200: (f"What was done, to {BULK_MAX:,} at most; or with `dry_run` what there is.", BulkResult)},
        body=BulkRequest, codes=_BODY, tag="deliveries",
    ),
    Route(
        "POST", "/v1/deliveries:purge", "purge_deliveries", "Delete deliveries", purge_deliveries, Scope.ADMIN,
        {200: (f"What was done, to {BULK_MAX:,} at most; or with `dry_run` what there is.", BulkResult)},
        body=BulkPurgeRequest, codes=_BODY, tag="deliveries",
    ),
)  # fmt: skip
