"""A range of a log on its way to a reader: Arrow's stream format, or NDJSON.

The range is read a segment at a time, and the next one once the reader has taken the one before: memory holds one
segment, for any range. A range that turns out to be incomplete, because retention took rows meanwhile or because the
gateway shuts down, is broken off: the connection ends in the middle of the answer, which no client takes for its end.
What was asked for without filters is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.http.cycle import CUT
from gateway.api.messages.streaming import disconnected
from gateway.core import Gateway
from gateway.errors import GatewayError
from gateway.ledger.logs.log import PAGE, SEGMENT
from gateway.logs import Log
from gateway.logs.columns import Field
from gateway.observing import telemetry
from gateway.runtime.clock import clock

ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""How a stream of Arrow ends."""
STUCK: Final = 60.0
"""How long a reader may take nothing of what is sent, in seconds."""
LOOK: Final = 0.5
"""How often it is looked whether the gateway shuts down, in seconds."""
_encode = msgspec.json.Encoder().encode


class CutOff(Exception):
    """The answer is not whole, and will not be."""


@dataclass(frozen=True, slots=True)
class Range:
    """What is asked for."""

    log: Log
    shard: int
    after: int
    upto: int
    chosen: Sequence[Field]
    where: Mapping[str, Sequence[str]]

    @property
    def rows(self) -> int:
        """How many there are, before filters."""
        return self.upto - self.after


class RangeAnswer(Response):
    """See the module."""

    def __init__(self, gateway: Gateway, range: Range, media_type: str) -> None:
        self._gateway = gateway
        self._range = range
        self._rows = 0
        headers = {"log-range-rows": str(range.rows), "cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, and then piece after piece."""
        logs = self._gateway.ledger.log
        logs.readers += 1
        gone = asyncio.get_running_loop().create_task(disconnected(receive), name="disconnect")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                if scope["method"] != "HEAD":
                    async with aclosing(self._pieces()) as pieces:
                        async for piece in pieces:
                            await self._send(send, gone, {"body": piece, "more_body": True})
                await self._send(send, gone, {"body": b"", "more_body": False})
            except (CutOff, GatewayError) as error:
                telemetry.log(
                    "log.cut_off",
                    logging.WARNING,
                    reason=str(error),
                    log=self._range.log.value,
                    shard=self._range.shard,
                )
                await send({"type": CUT})
        finally:
            gone.cancel()
            logs.readers -= 1

    async def _send(self, send: Send, gone: asyncio.Future[None], piece: dict[str, Any]) -> None:
        """Send a piece, which waits for the reader; not for ever, and not for one that is gone."""
        sending = asyncio.ensure_future(send({"type": "http.response.body", **piece}))
        deadline = clock.monotonic() + STUCK
        try:
            while not sending.done():
                await asyncio.wait({sending, gone}, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    break
                if gone.done():
                    raise CutOff("the reader hung up")
                if self._gateway.draining:
                    raise CutOff("the gateway is shutting down")
                if clock.monotonic() >= deadline:
                    raise CutOff(f"the reader took nothing for {STUCK:g} s")
            sending.result()
        finally:
            sending.cancel()

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        segments = self._arrow if self.media_type == ARROW else self._ndjson
        most = SEGMENT if self.media_type == ARROW else PAGE
        logs, range = self._gateway.ledger.log, self._range
        after, begin = range.after, True
        while begin or after < range.upto:
            if self._gateway.draining:
                raise CutOff("the gateway is shutting down")
            upto = await logs.segment(range.log, range.shard, after, range.upto, range.chosen, most)
            async with aclosing(segments(after, upto, begin)) as pieces:
                async for piece in pieces:
                    yield piece
            after, begin = upto, False
        await self._check()
        if self.media_type == ARROW:
            yield END_OF_STREAM

    async def _arrow(self, after: int, upto: int, begin: bool) -> AsyncGenerator[bytes, None]:
        range = self._range
        batches = self._gateway.ledger.log.record_batches(
            range.log, range.shard, after, upto, range.chosen, range.where, begin
        )
        async with aclosing(batches) as pieces:
            async for piece in pieces:
                if isinstance(piece, int):
                    self._rows += piece
                else:
                    yield piece

    async def _ndjson(self, after: int, upto: int, begin: bool) -> AsyncGenerator[bytes, None]:
        range = self._range
        rows = await self._gateway.ledger.log.rows(range.log, range.shard, after, upto, range.chosen, range.where)
        self._rows += len(rows)
        if rows:
            yield b"\n".join([*map(_encode, rows), b""])

    async def _check(self) -> None:
        """Whether all of the range was there. Rows go once the floor is above them; so, if it still is not, none of
        those that were read had gone."""
        range = self._range
        extent, _ = await self._gateway.ledger.log.extent(range.log, range.shard)
        if range.rows and extent.floor > range.after + 1:
            raise CutOff(f"retention took rows before {extent.floor} while they were read")
        if not range.where and self._rows != range.rows:
            telemetry.log("log.rows_missing", logging.ERROR, log=range.log.value, shard=range.shard, after=range.after,
                 upto=range.upto, rows=self._rows)  # fmt: skip
            raise CutOff(f"{self._rows} rows of {range.rows} are there")
