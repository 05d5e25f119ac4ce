"""NDJSON in, NDJSON out: a stream of messages of any length.

Lines are gathered into groups as they come, each group is published with one commit of the ledger, and its results
are written as soon as they are there. At most :data:`GROUPS_AHEAD` groups are under way: a caller that does not read
its results is not read from either. Empty lines are skipped. A line that is wrong costs only its own result.
When the caller's credential counts no more, the stream ends with that as its last line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.about.schemas import BatchResult, PublishMessage
from gateway.api.history.traced import Publishing
from gateway.api.http.call import LOOK_AGAIN, ONE_PIECE, Call, decode_json, invalid_value
from gateway.api.http.json_bounds import FREE, check_size
from gateway.api.http.members import repeated, repeated_member
from gateway.api.http.problems import ApiProblem
from gateway.api.messages.later import prefers_later, publish_each
from gateway.api.messages.messages_json import is_payload, members_of, to_publish
from gateway.api.messages.results import batch_results, refused
from gateway.api.resources.allowed_keys import refuse_foreign_keys
from gateway.core import Publication
from gateway.core.sources.turns import aside
from gateway.errors import BudgetExceeded, GatewayError, Overloaded
from gateway.notation.values import ValueProblem

if TYPE_CHECKING:
    from asyncio import Task

NDJSON: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
GROUP_MAX: Final = 500
"""Most messages of one group."""
GROUPS_AHEAD: Final = 4
"""Most groups under way."""
_decode = msgspec.json.Decoder(PublishMessage).decode
_encode_lines = msgspec.json.Encoder().encode_lines


def publish_stream(call: Call) -> Response:
    """The answer that reads the request while it is written."""
    call.gateway.broker(call.names["broker"])  # a broker that is not there is a 404, not a stream of them
    call.take("streams")
    return StreamAnswer(call)


class StreamAnswer(Response):
    """Results as they come. Nothing else may read the request meanwhile, not even to see whether the caller is still
    there, as Starlette's own streaming response does."""

    def __init__(self, call: Call) -> None:
        self._call = call
        super().__init__(media_type="application/x-ndjson")
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the results of each group."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(_results(self._call)) as results:
            async for lines in results:
                await send({"type": "http.response.body", "body": lines, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _results(call: Call) -> AsyncGenerator[bytes, None]:
    under_way: asyncio.Queue[Task[list[BatchResult]] | None] = asyncio.Queue(GROUPS_AHEAD)
    reader = asyncio.get_running_loop().create_task(_read(call, under_way), name="stream")
    try:
        while (group := await under_way.get()) is not None:
            yield _encode_lines(await group)
        await reader
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        while not under_way.empty():
            left = under_way.get_nowait()
            if left is not None:
                await asyncio.gather(left, return_exceptions=True)


async def _read(call: Call, under_way: asyncio.Queue[Task[list[BatchResult]] | None]) -> None:
    loop = asyncio.get_running_loop()
    order = f"stream-{id(under_way)}"
    later = prefers_later(call)
    try:
        async with aclosing(_groups(call)) as groups:
            while (group := await _next(call, groups)) is not None:
                task = loop.create_task(_publish(call, group, order, later), name="stream group")
                try:
                    await under_way.put(task)
                except asyncio.CancelledError:
                    await asyncio.gather(task, return_exceptions=True)  # it is in nobody else's hands
                    raise
                if not later and len({item.not_before is None for item in group if isinstance(item, Publication)}) > 1:
                    await asyncio.wait([task])  # it stores what is for later first: the next group would overtake it
    except asyncio.CancelledError:
        raise  # nobody takes anything out of the queue any more, so that its end must not wait for room
    except (ApiProblem, BudgetExceeded, Overloaded) as problem:
        await under_way.put(loop.create_task(_refuse(problem)))
    except BaseException:
        await under_way.put(None)
        raise
    await under_way.put(None)


async def _refuse(problem: GatewayError) -> list[BatchResult]:
    """The stream ends here: a line is too long, there is no room for it, the body stopped, or the caller's credential
    counts no more."""
    return [refused(problem)]


async def _next(
    call: Call, groups: AsyncGenerator[list[Publication | ApiProblem], None]
) -> list[Publication | ApiProblem] | None:
    """The next group, of a caller who may publish it; None: that was the last. Raises ApiProblem, Overloaded."""
    waiting = asyncio.ensure_future(anext(groups, None))
    try:
        while not (await asyncio.wait({waiting}, timeout=LOOK_AGAIN))[0]:
            await call.still()
        if (group := waiting.result()) is not None:
            await call.still()
        return group
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting})


async def _groups(call: Call) -> AsyncGenerator[list[Publication | ApiProblem], None]:
    """The messages, in groups of what came together."""
    limit, batch_max = call.http.body_max, call.http.batch_max
    annotated = call.gateway.broker(call.names["broker"]).settings.annotate
    begun: list[bytes] = []  # the line that has no end yet
    size = 0
    async with aclosing(call.chunks()) as chunks:
        async for chunk in chunks:
            end = chunk.rfind(b"\n")
            if end < 0:
                begun.append(chunk)
                size += len(chunk)
            else:
                lines = b"".join([*begun, chunk[:end]]).split(b"\n")
                begun, size = [chunk[end + 1 :]], len(chunk) - end - 1
                for start in range(0, len(lines), GROUP_MAX):
                    some = [line for line in lines[start : start + GROUP_MAX] if line.strip()]
                    group = await aside(sum(map(len, some)), _messages, some, annotated, batch_max)
                    if group:
                        yield group
            if size > limit:
                raise ApiProblem("body_too_large", f"a line is longer than {limit} octets (http.body_max)")
            if size > max(ONE_PIECE, call.holds):
                call.hold(size)  # as the longest so far: those before it may be under way
    last = b"".join(begun)
    if last.strip():
        yield await aside(len(last), _messages, [last], annotated, batch_max)


def _messages(lines: Sequence[bytes], annotated: bool, batch_max: int) -> list[Publication | ApiProblem]:
    return [_message(line, annotated, batch_max) for line in lines]


def _message(line: bytes, annotated: bool, batch_max: int) -> Publication | ApiProblem:
    try:
        if len(line) > FREE:
            check_size(line, batch_max)
        item = _decode(line)
        if (path := repeated(line, members=members_of(item), passes_over=is_payload)) is not None:
            return repeated_member(path)
        return to_publish(item, annotated)
    except ValueProblem as problem:
        return invalid_value(problem)
    except ApiProblem as problem:
        return problem
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            decode_json(line, PublishMessage, is_payload)  # raises what is wrong
        except ApiProblem as problem:
            return problem
        raise


async def _publish(call: Call, group: list[Publication | ApiProblem], order: str, later: bool) -> list[BatchResult]:
    group = refuse_foreign_keys(call, group)
    messages = [item for item in group if isinstance(item, Publication)]
    if not messages:
        return batch_results(group, ()).results
    try:
        if call.trace is None:
            results = await publish_each(call, messages, later=later, order=order)
        else:
            with Publishing(call, messages):
                results = await publish_each(call, messages, later=later, order=order)
    except GatewayError as error:  # the ledger is away, say: every message of the group shares that
        return [refused(item if isinstance(item, ApiProblem) else error) for item in group]
    return batch_results(group, results).results
