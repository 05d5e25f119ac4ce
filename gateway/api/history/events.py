"""``/v1/events``: everything that happens, as it happens; server-sent events, or NDJSON where ``Accept`` says so.

The id of an event is the position behind it. A client that comes back with ``Last-Event-ID`` misses nothing and gets
nothing twice. When nothing happens for :data:`IDLE` seconds the stream says so, with the position that it has reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

from gateway.api.history.history_schemas import EventsQuery, FeedEvent, FeedLine
from gateway.api.http.call import Call, encode
from gateway.api.http.problems import ApiProblem, wrong_header, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.messages.streaming import NDJSON, LiveAnswer, StreamFormat, form_of, why_refused
from gateway.api.resources.brokers import moment
from gateway.core import Gateway
from gateway.errors import LedgerUnavailable, Overloaded
from gateway.ledger import EventFilter, EventKind, RecordedEvent, id_text, parse_id
from gateway.observing.telemetry import log
from gateway.validation import one_of, shown

IDLE: Final = 15.0
"""How long a stream may say nothing, in seconds."""
STUCK: Final = 60.0
"""How long a client may take nothing of what is sent, in seconds."""
LOOK: Final = 0.5
"""How often it is looked whether the gateway shuts down, and whether the client may have more, in seconds."""
FOLLOWERS_MAX: Final = 256
"""Most streams at once."""
POSITION_MAX: Final = 8_000
"""Longest position that a client may come back with, in characters."""
PAGE: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_position = msgspec.json.Decoder(dict[str, int]).decode
_KINDS: Final = tuple(EventKind)


async def stream_events(call: Call) -> Response:
    """The stream."""
    query = call.query(EventsQuery)
    where = EventFilter(
        kinds=kinds_of(query.kind),
        broker=query.broker or None,
        message_id=_message(query.message),
        subscription=query.subscription or None,
        endpoint=query.endpoint or None,
        bridge=query.bridge or None,
    )
    history = call.gateway.ledger.history
    if history.followers >= FOLLOWERS_MAX:
        raise Overloaded(f"{FOLLOWERS_MAX} streams of events are open")
    if last := call.header(b"last-event-id"):
        position = position_of(last, partial(wrong_header, "Last-Event-ID"))
    elif query.position:
        position = position_of(query.position, partial(wrong_parameter, "position"))
    elif query.since is not None:
        position = await history.position_at(microseconds(query.since))
    else:
        position = await history.end()
    form = form_of(call)
    if call.scope["method"] == "HEAD":
        return Response(media_type=form.media_type)
    call.take("streams")
    stream = EventStream(call.gateway, form, position, where, follow=query.follow, refused=lambda: why_refused(call))
    return LiveAnswer(form, stream.pieces, STUCK)


class EventStream:
    """What is sent, until the client or the gateway ends it."""

    def __init__(
        self,
        gateway: Gateway,
        form: StreamFormat,
        position: Mapping[str, int],
        where: EventFilter,
        *,
        follow: bool,
        refused: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """``refused`` says why the client may have no more; empty: it may."""
        self._gateway = gateway
        self._form = form
        self._position = dict(position)
        self._where = where
        self._follow = follow
        self._refused = refused
        self._reason = ""

    async def pieces(self, gone: asyncio.Future[None]) -> AsyncGenerator[bytes, None]:
        """Octets, until ``gone`` is done."""
        if self._follow:
            yield self._moved()
        try:
            async with aclosing(self._pages()) as pages:
                while (page := await self._next(pages, gone)) is not None:
                    octets = self._octets(*page)
                    if octets:
                        yield octets
            if self._reason:
                yield self._form.end(self._reason)
        except LedgerUnavailable as error:  # the client comes back to where it was
            log("events.cut_off", reason=str(error))

    async def _pages(self) -> AsyncGenerator[tuple[list[RecordedEvent], dict[str, int]], None]:
        history = self._gateway.ledger.history
        if self._follow:
            async with aclosing(history.follow(self._position, self._where, IDLE)) as pages:
                async for page in pages:
                    yield page
            return
        reached, end = self._position, await history.end()
        while any(reached.get(shard, 0) < last for shard, last in end.items()):
            found, reached = await history.events_after(reached, PAGE, self._where)
            yield found, reached

    async def _next(self, pages: AsyncGenerator[Any, None], gone: asyncio.Future[None]) -> Any:
        """The next page; None: there is none, or nobody who wants it."""
        waiting = asyncio.ensure_future(anext(pages, None))
        try:
            while not waiting.done() and not gone.done() and not self._gateway.draining:
                await asyncio.wait({waiting, gone}, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                if await self._is_refused():
                    return None
            if waiting.done() and not gone.done():
                return waiting.result()
            return None
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})

    async def _is_refused(self) -> bool:
        """Whether the client may have no more; then that is the reason."""
        if self._refused is not None:
            self._reason = await self._refused()
        return bool(self._reason)

    def _octets(self, found: list[RecordedEvent], reached: Mapping[str, int]) -> bytes:
        position = self._position
        parts = []
        for event in found:
            position[str(event.shard)] = event.sequence
            if self._form is NDJSON:
                line = encode(FeedLine(**_fields(event), position=position))
                parts.append(self._form.event("", "message", line))
            else:
                parts.append(
                    self._form.event(encode(position).decode(), "message", encode(FeedEvent(**_fields(event))))
                )
        ahead = reached != position
        self._position = dict(reached)
        if self._follow and (ahead or not found):
            parts.append(self._moved())
        return b"".join(parts)

    def _moved(self) -> bytes:
        """Nothing more, up to here. An ``id`` without data moves the position that a client comes back with."""
        position = encode(self._position)
        return encode({"position": self._position}) + b"\n" if self._form is NDJSON else b":\nid: %b\n\n" % position


def kinds_of(text: str) -> frozenset[EventKind] | None:
    """Kinds of event, with commas between them; None for none of them. Raises ApiProblem (invalid_parameter)."""
    names = [each.strip() for each in text.split(",")] if text else []
    for name in names:
        if name not in _KINDS:
            raise wrong_parameter("kind", one_of(name, _KINDS), _KINDS)
    return frozenset(EventKind(name) for name in names) or None


def position_of(text: str, wrong: Callable[[str], ApiProblem]) -> dict[str, int]:
    """A position as it was sent; ``wrong`` makes the problem that names its place. Raises ApiProblem."""
    if len(text) > POSITION_MAX:
        raise wrong(f"a position of {len(text)} characters, the limit is {POSITION_MAX}")
    try:
        found = _position(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = {"": 0}
    return check_position(found, text, wrong)


def check_position(position: dict[str, int], text: str, wrong: Callable[[str], ApiProblem]) -> dict[str, int]:
    """The position, which was sent as ``text``. Raises ApiProblem."""
    if not all(shard.isdecimal() and shard.isascii() and 0 <= last < 1 << 63 for shard, last in position.items()):
        raise wrong(f'{text!r:.80} is not a position, such as {{"0":812}}')
    return position


def microseconds(time: datetime) -> int:
    """A time in microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def _message(text: str) -> bytes | None:
    try:
        return parse_id(text) if text else None
    except ValueError:
        raise wrong_parameter("message", f"{shown(text)} is not the gateway's id of a message, a UUID") from None


def _fields(event: RecordedEvent) -> dict[str, Any]:
    return {
        "id": id_text(event.message_id),
        "shard": event.shard,
        "sequence": event.sequence,
        "at": moment(event.at / 1e6),
        "kind": event.kind.value,
        "broker": event.broker,
        "version": event.version,
        "detail": event.detail,
    }


ROUTES = (
    Route(
        "GET", "/v1/events", "stream_events", "Follow events", stream_events, Scope.HISTORY,
        {200: ("`text/event-stream`, or `application/x-ndjson` where `Accept` asks for that.", None)},
        query=EventsQuery, headers=("Last-Event-ID",), codes=("invalid_parameter", "ledger_unavailable"),
        description=(
            "Events of all messages. The id of each is the position behind it: a client that comes back with it as "
            "`Last-Event-ID` misses nothing and gets nothing twice. Within a shard events are in their order. Nothing "
            "for 15 s: a comment (an object with `position` alone in NDJSON). When the credential counts no more: "
            '`event: end` with the reason (`{"end": …}`), and the stream is over.'
        ),
        tag="messages",
    ),
)  # fmt: skip
