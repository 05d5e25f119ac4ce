"""``/v1/log``: the logs of events and of messages by sequence number, for jobs that read all of it; and their cursors.

A reader asks how far a log goes, takes ranges of it, as often as it likes, and says how far it has come. A range is
answered whole or broken off: a client that counts its rows against ``Log-Range-Rows`` misses none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

from msgspec import Meta
from starlette.responses import Response

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.api.about.schemas import Input, Output, PageQuery
from gateway.api.history.events import check_position
from gateway.api.history.log_range import ARROW, NDJSON, Range, RangeAnswer
from gateway.api.http.call import Call, answer, no_content, page_headers
from gateway.api.http.problems import ApiProblem, wrong_parameter
from gateway.api.http.routing import SHORT_STRING_MAX, Route, Scope
from gateway.api.resources.brokers import moment
from gateway.errors import NoArrow, Overloaded, RangeAhead, RangeGone
from gateway.ledger import Log, StoredCursor
from gateway.logs.columns import FILTERS, fields

RANGE_MAX: Final = 1_000_000
"""Most rows of a range."""
READERS_MAX: Final = 16
"""Most ranges that are read at once."""
SHARDS_MAX: Final = 1_000
"""Most shards of a position."""
LISTS: Final = ("kind", "broker", "tap")
"""Filters that take several values, with commas between them."""
WHY: Final = {
    "cursor": "all cursors are behind it",
    "age": "it was older than retention.log_days",
    "size": "the log was larger than retention.log_octets",
    "history": "it was older than retention.history_days",
}
"""Why rows went."""


class LogExtent(Output, omit_defaults=False):
    """What can be read of a shard."""

    shard: int
    """Number of the shard."""
    floor: int
    """The lowest sequence number that can be read."""
    head: int
    """The last one that is committed; below ``floor``: there is none."""
    retired: bool
    """Whether the ledger was restored from a backup since: nothing follows, and a position behind ``head`` is valid."""


class LogHead(Output, omit_defaults=False):
    """How far a log goes."""

    log: str
    """Which log: ``events`` or ``messages``."""
    shards: list[LogExtent]
    """How far each shard goes."""
    position: dict[str, int]
    """The position behind the last row of each shard."""
    start: dict[str, int]
    """The position before the first row of each shard."""
    arrow: bool
    """Whether ranges can be read as Arrow."""


class HeadQuery(Input):
    """Which log."""

    log: Annotated[Literal["events", "messages"], Meta(description="Which log.")]


class RangeQuery(HeadQuery):
    """A range of a shard, and what of it."""

    shard: Annotated[int, Meta(ge=0, lt=1 << 31, description="Shard of the ledger.")]
    after: Annotated[int, Meta(ge=0, lt=1 << 62, description="The last sequence number before the range.")]
    upto: Annotated[
        int, Meta(ge=0, lt=1 << 62, description=f"The last of the range; at most {RANGE_MAX:,} more than `after`.")
    ]
    columns: Annotated[str, Meta(description="Columns, with commas between them; unless given, all.")] = ""
    kind: Annotated[str, Meta(description="Only events of these kinds, with commas between them.")] = ""
    tap: Annotated[str, Meta(description="Only messages of these taps, with commas between them.")] = ""
    broker: Annotated[str, Meta(description="Only of these brokers, with commas between them.")] = ""
    version: Annotated[str, Meta(description="Only of this AMQP version.")] = ""
    queue: Annotated[str | None, Meta(description="Only messages from this queue.")] = None
    exchange: Annotated[str | None, Meta(description="Only of this exchange; `amq.default` is the default one.")] = None
    routing_key: Annotated[str | None, Meta(description="Only with this routing key.")] = None
    origin: Annotated[str, Meta(description="Only events of messages that came this way.")] = ""


class ClaimRequest(Input):
    """Who wants to read under a cursor."""

    log: Literal["events", "messages"]
    """Which log the cursor reads."""
    owner: Annotated[str, Meta(min_length=1, max_length=SHORT_STRING_MAX)]
    """A name for the reader, such as the id of a query or of a run."""
    start: Literal["earliest", "latest"] | dict[str, int] = "earliest"
    """Where a new cursor begins: before the first row that is kept (``earliest``), behind the last one (``latest``), or
    at a position."""
    take_over: bool = False
    """Take the cursor from an owner that was active lately."""


class MoveRequest(Input):
    """How far the owner of a cursor is."""

    owner: str
    """The owner that claimed the cursor."""
    epoch: int
    """The epoch from the answer of ``:claim``."""
    position: dict[str, int]
    """The last sequence number that was read, by shard."""


class CursorRelease(Input):
    """That the owner of a cursor reads no more."""

    owner: str
    """The owner that claimed the cursor."""
    epoch: int
    """The epoch from the answer of ``:claim``."""


class LogCursor(Output, omit_defaults=False):
    """A cursor."""

    name: str
    """Name of the cursor."""
    log: str
    """Which log it reads."""
    position: dict[str, int]
    """The last sequence number that was read, by shard."""
    owner: str
    """The reader that owns it; empty: there is no owner."""
    epoch: int
    """A number that grows with each claim."""
    since: str
    """When the owner claimed it first."""
    heard_at: str | None
    """When the owner was last heard of, RFC 3339; ``null``: never."""
    backlog: int
    """Rows behind the position."""
    backlog_octets: int
    """About how many bytes those rows take; 0 in the log of events."""


class LogCursors(Output, omit_defaults=False):
    """A page of cursors."""

    cursors: list[LogCursor]
    """The cursors of this page."""


# ---------------------------------------------------------------------------------------------------- reading


async def read_head(call: Call) -> Response:
    """How far a log goes."""
    log = Log(call.query(HeadQuery).log)
    logs = call.gateway.ledger.log
    shards = [
        LogExtent(shard=each.shard, floor=each.floor, head=each.head, retired=each.retired)
        for each in await logs.extents(log)
    ]
    found = LogHead(
        log=log.value,
        shards=shards,
        position={str(each.shard): each.head for each in shards},
        start={str(each.shard): each.floor - 1 for each in shards},
        arrow=logs.arrow.available,
    )
    return answer(found)


async def read_range(call: Call) -> Response:
    """A range of it."""
    query = call.query(RangeQuery)
    log = Log(query.log)
    logs = call.gateway.ledger.log
    media_type = _media_type(call)
    asked = _range(query, log)
    extent, floor = await logs.extent(log, query.shard)
    if asked.rows and query.after < extent.floor - 1:
        raise RangeGone(
            f"rows {query.after + 1} to {min(query.upto, extent.floor - 1)} of shard {query.shard} of the log "
            f"{query.log!r} are gone since {moment(floor.at / 1e6)}: {WHY[floor.reason]}; it begins at {extent.floor}"
        )
    if query.upto > extent.head:
        raise RangeAhead(
            f"upto is {query.upto}; shard {query.shard} of the log {query.log!r} ends at {extent.head} at present"
        )
    if logs.readers >= READERS_MAX:
        raise Overloaded(f"{READERS_MAX} ranges of logs are being read")
    return RangeAnswer(call.gateway, asked, media_type)


def _range(query: RangeQuery, log: Log) -> Range:
    """What is asked for. Raises ApiProblem (invalid_parameter)."""
    if not query.after <= query.upto <= query.after + RANGE_MAX:
        detail = f"{query.upto} is not from after ({query.after}) to {RANGE_MAX} behind that"
        raise wrong_parameter("upto", detail)
    names = [name.strip() for name in query.columns.split(",")] if query.columns else []
    try:
        chosen = fields(log, names)
    except ValueError as error:
        raise wrong_parameter("columns", str(error)) from None
    where: dict[str, list[str]] = {}
    for name in sorted({*FILTERS[Log.EVENTS], *FILTERS[Log.MESSAGES]}):
        value: str | None = getattr(query, name)
        if value is None or (value == "" and name not in ("exchange", "routing_key", "queue")):
            continue
        if name not in FILTERS[log]:
            raise wrong_parameter(name, f"the log {log.value!r} is not filtered by that", FILTERS[log])
        if name == "exchange" and value == DEFAULT_EXCHANGE:
            value = ""
        where[name] = [each.strip() for each in value.split(",")] if name in LISTS else [value]
    return Range(log, query.shard, query.after, query.upto, chosen, where)


def _media_type(call: Call) -> str:
    """What the reader gets: Arrow if it asks for that, else NDJSON. Raises NoArrow where it accepts nothing else."""
    accept = (call.header(b"accept") or "").lower()
    if ARROW not in accept:
        return NDJSON
    try:
        call.gateway.ledger.log.arrow.require()
    except NoArrow:
        if NDJSON not in accept:
            raise
        return NDJSON
    return ARROW


# ---------------------------------------------------------------------------------------------------- cursors


async def claim_cursor(call: Call) -> Response:
    """Own a cursor."""
    request = await call.json(ClaimRequest)
    name = _printable(call.names["cursor"], partial(wrong_parameter, "cursor"))
    owner = _printable(request.owner, partial(_wrong_member, "owner"))
    start = request.start if isinstance(request.start, str) else _position(request.start, "start")
    logs = call.gateway.ledger.log
    found = await logs.claim_cursor(name, Log(request.log), owner, start, request.take_over)
    return answer(await _describe(call, found))


async def move_cursor(call: Call) -> Response:
    """Say how far its owner is."""
    request = await call.json(MoveRequest)
    found = await call.gateway.ledger.log.move_cursor(
        call.names["cursor"], request.owner, request.epoch, _position(request.position, "position")
    )
    return answer(await _describe(call, found))


async def release_cursor(call: Call) -> Response:
    """Own it no more."""
    request = await call.json(CursorRelease)
    found = await call.gateway.ledger.log.release_cursor(call.names["cursor"], request.owner, request.epoch)
    return answer(await _describe(call, found))


async def list_cursors(call: Call) -> Response:
    """A page of them, by name."""
    query = call.query(PageQuery)
    page, cursor = await call.gateway.ledger.log.list_cursors(query.cursor or None, query.limit)
    body = LogCursors(cursors=[await _describe(call, each) for each in page])
    return answer(body, headers=page_headers(call, cursor, limit=query.limit))


async def get_cursor(call: Call) -> Response:
    """One of them."""
    return answer(await _describe(call, await call.gateway.ledger.log.get_cursor(call.names["cursor"])))


async def delete_cursor(call: Call) -> Response:
    """Forget one."""
    await call.gateway.ledger.log.delete_cursor(call.names["cursor"])
    return no_content()


async def _describe(call: Call, cursor: StoredCursor) -> LogCursor:
    backlog = await call.gateway.ledger.log.backlog(cursor.log, cursor.position)
    return LogCursor(
        name=cursor.name,
        log=cursor.log.value,
        position=cursor.position,
        owner=cursor.owner,
        epoch=cursor.epoch,
        since=moment(cursor.since / 1e6),
        heard_at=moment(cursor.heard_at / 1e6) if cursor.heard_at else None,
        backlog=backlog.rows,
        backlog_octets=backlog.octets,
    )


def _wrong_member(member: str, detail: str) -> ApiProblem:
    return ApiProblem("invalid_parameter", f"{member}: {detail}", errors=[(f"/{member}", detail)])


def _printable(text: str, wrong: Callable[[str], ApiProblem]) -> str:
    if not 0 < len(text) <= SHORT_STRING_MAX or not text.isprintable():
        raise wrong(f"this is not 1 to {SHORT_STRING_MAX} printable characters")
    return text


def _position(position: dict[str, int], member: str) -> dict[str, int]:
    """A position of a body. Raises ApiProblem (invalid_parameter)."""
    if len(position) > SHARDS_MAX:
        raise _wrong_member(member, f"a position of {len(position)} shards; the limit is {SHARDS_MAX}")
    return check_position(position, str(position), partial(_wrong_member, member))


_PATH: Final = "/v1/log/cursors/{cursor}"
_CURSOR: Final[Any] = {200: ("The cursor, as it is now.", LogCursor)}
_BODY: Final = ("malformed_json", "invalid_request", "invalid_parameter", "unsupported_media_type")

ROUTES = (
    Route(
        "GET", "/v1/log/head", "read_log_head", "Read the extent of a log", read_head, Scope.ADMIN,
        {200: ("What can be read of each shard.", LogHead)}, query=HeadQuery,
        codes=("invalid_parameter", "ledger_unavailable"), tag="log",
    ),
    Route(
        "GET", "/v1/log", "read_log", "Read a range of a log", read_range, Scope.ADMIN,
        {200: (f"`{ARROW}` where `Accept` asks for that, else `{NDJSON}`.", None)}, query=RangeQuery,
        codes=("invalid_parameter", "log_range_gone", "log_range_ahead", "no_arrow", "ledger_unavailable"),
        description=(
            "Rows of a shard behind `after`, up to and with `upto`, in order, with the columns of "
            "docs/reference/log.md. A range has the same rows whenever it is read. `Log-Range-Rows` says how many "
            "rows the range holds, before filters; an answer that turns out to be incomplete is broken off. "
            "Octets are base64 in NDJSON."
        ),
        tag="log",
    ),
    Route(
        "GET", "/v1/log/cursors", "list_log_cursors", "List cursors", list_cursors, Scope.ADMIN,
        {200: ("A page, by name.", LogCursors)}, query=PageQuery, codes=("invalid_parameter", "ledger_unavailable"),
        tag="log",
    ),
    Route(
        "POST", f"{_PATH}:claim", "claim_log_cursor", "Claim a cursor", claim_cursor, Scope.ADMIN, _CURSOR,
        body=ClaimRequest,
        codes=(*_BODY, "cursor_owned", "state", "log_range_ahead", "limit_exceeded", "ledger_unavailable"),
        description=(
            "The first claim makes it. An owner that claims again gets the next epoch; another one gets it when the "
            "first was not heard of for 60 s or has released it, or with `take_over`."
        ),
        tag="log",
    ),
    Route(
        "GET", _PATH, "get_log_cursor", "Read a cursor", get_cursor, Scope.ADMIN, _CURSOR,
        codes=("cursor_not_found", "ledger_unavailable"), tag="log",
    ),
    Route(
        "PUT", _PATH, "move_log_cursor", "Move a cursor", move_cursor, Scope.ADMIN, _CURSOR, body=MoveRequest,
        codes=(*_BODY, "cursor_not_found", "cursor_owned", "log_range_ahead", "ledger_unavailable"),
        description="Of each shard the greater number counts. Without a new number it says that the owner is there.",
        tag="log",
    ),
    Route(
        "POST", f"{_PATH}:release", "release_log_cursor", "Release a cursor", release_cursor, Scope.ADMIN, _CURSOR,
        body=CursorRelease, codes=(*_BODY, "cursor_not_found", "cursor_owned", "ledger_unavailable"), tag="log",
    ),
    Route(
        "DELETE", _PATH, "delete_log_cursor", "Delete a cursor", delete_cursor, Scope.ADMIN,
        {204: ("Deleted. Rows that it had not read may be removed.", None)},
        codes=("cursor_not_found", "cursor_owned", "ledger_unavailable"), tag="log",
    ),
)  # fmt: skip
