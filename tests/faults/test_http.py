"""The small HTTP client: what a failure means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.faults.http import Http, Hung, NoAnswer, NotSent
from tests.servers.process import free_port

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nX-Y: z\r\n\r\n" + b'{"a": 1}'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[Http]:
    """A client of a server that does one thing with every connection, and closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    running = await asyncio.start_server(handle, "127.0.0.1", 0)
    http = Http(running.sockets[0].getsockname()[1])
    try:
        yield http
    finally:
        http.close()
        running.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def test_one_connection_serves_many_requests() -> None:
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            requests.append(await read_request(reader))
            writer.write(OK)

    async with server(serve) as http:
        for _ in range(2):
            answer = await http.request("POST", "/x", {"n": 1}, {"Idempotency-Key": "k"})
            assert (answer.status, answer.headers["x-y"], answer.json()) == (200, "z", {"a": 1})
    assert len(requests) == 2
    assert requests[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert b"Idempotency-Key: k\r\n" in requests[0]
    assert requests[0].endswith(b'\r\n\r\n{"n": 1}')


async def test_nobody_listens() -> None:
    with pytest.raises(NotSent):
        await Http(free_port()).request("GET", "/")


@pytest.mark.parametrize("part", [b"", OK[:10], OK[:-1]], ids=["nothing", "half a head", "half a body"])
async def test_no_whole_answer(part: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(part)

    async with server(serve) as http:
        for _ in range(2):  # on a new connection each time
            with pytest.raises(NoAnswer):
                await http.request("GET", "/")


async def test_no_answer_in_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with server(serve) as http:
        with pytest.raises(Hung, match=r"GET /: no answer in 0.05 s"):
            await http.request("GET", "/", within=0.05)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[Http]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + body)

    async with server(serve) as http:
        yield http


async def test_an_answer_in_chunks() -> None:
    async with answering(b'4\r\n{"a"\r\n6\r\n: "\r\n"\r\n1\r\n}\r\n0\r\n\r\n') as http:
        assert (await http.request("GET", "/")).body == b'{"a": "\r\n"}'


@pytest.mark.parametrize(
    "body", [b"4\r\n{}\r\n", b"1\r\n{}\r\n0\r\n\r\n", b"x\r\n", b"2\r\n{}\r\n", b"0\r\nA: b\r\n\r\n"]
)
async def test_chunks_that_are_not_whole_are_no_answer(body: bytes) -> None:
    async with answering(body) as http:
        with pytest.raises(NoAnswer):
            await http.request("GET", "/", within=5)
