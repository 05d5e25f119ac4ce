"""Answers that go on: server-sent events, or NDJSON for who asks for it by ``Accept``.

::

    id: ACK_ID                          {"ack_id": "…", "delivery_attempt": 1, …}
    event: message                      {"ack_id": "…", "delivery_attempt": 1, …}
    data: {"ack_id": "…", …}
                                        (an empty line: still there)
    :                                   {"end": "the gateway is shutting down"}

    event: end
    data: {"reason": "…"}

``GET …:stream`` pulls for as long as its reader stays, and its reader settles on the side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.history.traced import handed_out
from gateway.api.http.auth import lacks
from gateway.api.http.call import Call
from gateway.api.http.problems import ApiProblem
from gateway.api.messages.pulled_json import in_turns, pieces_of
from gateway.core.leasing.pulled import Pulled
from gateway.core.leasing.streams import DeliveryStream, StreamReader
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource

NDJSON_TYPES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """How events are written."""

    media_type: str
    event: Callable[[str, str, bytes], bytes]
    """Of its id, its name and its JSON."""
    frame: Callable[[str], tuple[bytes, bytes]]
    """What stands before and behind the JSON of a message with that id."""
    heartbeat: bytes
    end: Callable[[str], bytes]
    """Of why it ends."""


def _sse(id: str, name: str, data: bytes) -> bytes:
    head = f"id: {id}\nevent: {name}\n" if id else f"event: {name}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


SSE: Final = StreamFormat(
    "text/event-stream",
    _sse,
    lambda id: (b"id: %b\nevent: message\ndata: " % id.encode(), b"\n\n"),
    b":\n\n",
    lambda reason: _sse("", "end", _encode({"reason": reason})),
)
NDJSON: Final = StreamFormat(
    "application/x-ndjson",
    lambda id, name, data: data + b"\n",
    lambda id: (b"", b"\n"),
    b"\n",
    lambda reason: _encode({"end": reason}) + b"\n",
)


def form_of(call: Call) -> StreamFormat:
    """NDJSON where ``Accept`` names it, else server-sent events."""
    accept = (call.header(b"accept") or "").lower()
    return NDJSON if any(kind in accept for kind in NDJSON_TYPES) else SSE


class LiveAnswer(Response):
    """An answer whose pieces come as they come. A reader that does not read stops them; one that hangs up ends them."""

    def __init__(
        self,
        form: StreamFormat,
        pieces: Callable[[asyncio.Future[None]], AsyncGenerator[bytes, None]],
        write_seconds: float | None = None,
    ) -> None:
        """``pieces`` gets what is done when the reader is gone, and ends soon after that. A reader that takes nothing
        for ``write_seconds`` seconds is cut off; None: never."""
        self._pieces = pieces
        self._write_seconds = write_seconds
        super().__init__(media_type=form.media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, and then the pieces."""
        gone = asyncio.get_running_loop().create_task(disconnected(receive), name="disconnect")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._pieces(gone)) as pieces:
                async for piece in pieces:
                    async with asyncio.timeout(self._write_seconds):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()


async def disconnected(receive: Receive) -> None:
    """Returns when the caller hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def why_refused(call: Call, broker: str = "", queue: str = "") -> str:
    """Why the caller may have no more; empty: it may. With ``queue``: also why not of that one."""
    try:
        principal = await call.still()
    except ApiProblem as problem:
        return str(problem)
    if queue and not principal.may("consume", broker, queue):
        return str(lacks(principal, f"consume:{broker}/{queue}"))
    return ""


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream may be asked for."""

    max_outstanding: Annotated[int, Meta(ge=1, le=1000)] = 100
    """Most messages that are out and not settled; then the stream waits."""
    ack_deadline_seconds: Annotated[int, Meta(ge=10, le=600)] | None = None
    """How long each message is leased; unless given, as the subscription says."""


def stream_answer(call: Call, subscription: SubscriptionResource) -> Response:
    """The stream of a subscription's messages."""
    query = call.query(StreamQuery)
    gateway = call.gateway
    gateway.consuming.check(subscription)
    if subscription.settings.lease == "broker":
        with gateway.budgets["leases"].hold(call.client):
            pass  # a client at its share is told so before the stream begins
    form = form_of(call)
    if call.scope["method"] == "HEAD":  # nobody would read what is pulled for it
        return Response(media_type=form.media_type)
    call.take("streams")

    async def refused() -> str:
        settings = subscription.settings
        return await why_refused(call, settings.broker, queue_of(subscription.name, settings))

    async def pieces(gone: asyncio.Future[None]) -> AsyncGenerator[bytes, None]:
        reader = StreamReader(
            gone,
            query.max_outstanding,
            query.ack_deadline_seconds,
            call.client,
            lambda: gateway.budgets["bytes"].check(call.client),
            refused,
        )
        stream = DeliveryStream(
            gateway.consuming,
            gateway.subscriptions,
            gateway.ledger,
            subscription,
            reader,
            shared=gateway.peers.shared,
        )
        try:
            yield form.heartbeat  # so that the reader knows that it is heard
            async with aclosing(stream.batches()) as batches:
                async for batch in batches:
                    call.hold_all(sum(len(item.delivery.message.body) for item in batch))
                    if call.trace is not None:
                        handed_out(call, subscription, batch)
                    async with aclosing(in_turns(_events(form, batch))) as events:
                        async for piece in events:
                            if gone.done():
                                return
                            yield piece
                    call.hold_all(0)
                    if not batch:
                        yield form.heartbeat
            yield form.end(stream.reason)
        finally:
            stream.close()

    return LiveAnswer(form, pieces)


def _events(form: StreamFormat, batch: Iterable[Pulled]) -> Iterator[bytes]:
    """The events of a batch, in pieces."""
    for item in batch:
        head, tail = form.frame(item.lease.ack_id)
        yield from chain((head,), pieces_of(item), (tail,))
