"""Servers that misbehave: each is told apart, in time, and without reading more than is needed."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

import pytest

from gateway.errors import AnswerCut, AnswerHeadTooLarge, AnswerMalformed, OutboundFailed, OutboundTimeout
from gateway.outbound import GuardedTransport
from tests.outbound.conftest import Make
from tests.outbound.endpoint import ANSWERS, BOMB, DRIPS, Endpoint, until

DEADLINE = 0.25


@pytest.mark.parametrize("status", [200, 201, 204, 302, 404, 410, 429, 500, 503])
async def test_an_answer_is_an_answer_whatever_it_says(
    status: int, transport: GuardedTransport, server: Endpoint
) -> None:
    assert (await transport.send("POST", server.url(f"/{status}"), (), b"x")).status == status


async def test_retry_after_is_there_to_be_read(transport: GuardedTransport, server: Endpoint) -> None:
    assert (await transport.send("POST", server.url("/429"))).header(b"retry-after") == b"120"


async def test_a_redirect_is_an_answer_and_is_not_followed(transport: GuardedTransport, server: Endpoint) -> None:
    for path in ("/302", "/moved"):
        answer = await transport.send("POST", server.url(path), (), b"x")
        assert answer.status in (301, 302)
    await asyncio.sleep(0.02)
    assert server.paths() == ["/302", "/moved"]
    assert server.connections == 1


@pytest.mark.parametrize(
    ("path", "kind", "status", "why"),
    [
        ("/never", OutboundTimeout, 0, "nothing came"),
        ("/drip-head", OutboundTimeout, 0, "a part of its head came"),
        ("/drip-interim", OutboundTimeout, 0, "a part of its head came"),
        ("/drip-body", OutboundTimeout, 200, "the status 200 came"),
        ("/many-headers", AnswerHeadTooLarge, 0, "over 200 headers"),
        ("/long-header", AnswerHeadTooLarge, 0, "over 32768 octets"),
        ("/not-http", AnswerMalformed, 0, "no HTTP/1.1"),
        ("/http2", AnswerMalformed, 0, "no HTTP/1.1|HTTP/2"),
        ("/upgrade", AnswerMalformed, 0, "the status 101"),
        ("/hang-up", AnswerCut, 0, "without an answer"),
        ("/half-head", AnswerCut, 0, "in the middle of its answer"),
        ("/half-body", AnswerCut, 200, "in the middle of its answer"),
        ("/reset", AnswerCut, 0, "without an answer"),
    ],
)
async def test_what_is_no_answer(
    path: str, kind: type[OutboundFailed], status: int, why: str, make: Make, server: Endpoint
) -> None:
    transport = make(deadline=DEADLINE if kind is OutboundTimeout else 5)
    began = time.monotonic()
    with pytest.raises(kind, match=why) as error:
        await transport.send("POST", server.url(path), (), b"x")
    assert time.monotonic() - began < DEADLINE + 5 or kind is not OutboundTimeout
    assert type(error.value) is kind
    assert error.value.sent
    assert error.value.status == status
    assert str(error.value).startswith(server.url(": "))
    await until(lambda: transport.open == 0)
    assert transport.idle == 0


@pytest.mark.parametrize("path", DRIPS)
async def test_a_drip_ends_with_the_deadline_and_not_before(path: str, make: Make, server: Endpoint) -> None:
    began = time.monotonic()
    with pytest.raises(OutboundTimeout):
        await make(deadline=DEADLINE).send("POST", server.url(path))
    assert time.monotonic() - began >= DEADLINE - 0.01


async def test_an_endless_body_is_left(transport: GuardedTransport, server: Endpoint) -> None:
    answer = await transport.send("POST", server.url("/endless"))
    assert (answer.status, len(answer.body), answer.truncated) == (200, 16_384, True)
    await until(lambda: transport.open == 0 and not server.serving)
    assert server.sent < 32 << 20, "what fits into the buffers of a kernel"


async def test_a_bomb_is_not_unpacked(transport: GuardedTransport, server: Endpoint) -> None:
    assert len(BOMB) < 16_384
    await transport.send("POST", server.url("/200"))
    tracemalloc.start()
    answer = await transport.send("POST", server.url("/gzip-bomb"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.body == BOMB
    assert not answer.truncated
    assert peak < 1 << 20


async def test_a_hundred_thousand_headers_cost_little(transport: GuardedTransport, server: Endpoint) -> None:
    assert len(ANSWERS["/many-headers"]) > 600_000
    tracemalloc.start()
    with pytest.raises(AnswerHeadTooLarge):
        await transport.send("POST", server.url("/many-headers"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20  # the server's buffers, in the same process, are in it


async def test_one_that_misbehaves_takes_nothing_from_the_others(make: Make, server: Endpoint) -> None:
    transport = make(deadline=1)
    bad = ["/never", "/drip-body", "/reset", "/endless", "/many-headers", "/half-head", "/not-http", "/hang-up"]
    paths = [path for pair in zip(bad, ["/200"] * len(bad), strict=True) for path in pair] * 3
    results = await asyncio.gather(
        *(transport.send("POST", server.url(path)) for path in paths), return_exceptions=True
    )
    for path, result in zip(paths, results, strict=True):
        if path == "/200":
            assert not isinstance(result, BaseException)
            assert (result.status, result.body) == (200, b"ok")
        elif path != "/endless":
            assert isinstance(result, OutboundFailed), path
