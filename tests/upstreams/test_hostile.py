"""Brokers that answer with another protocol, with garbage, with nothing, or go in the middle of a frame: each
gets its documented error, and nothing else in the process notices."""

from __future__ import annotations

import asyncio
import io
import re
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trustme

from gateway.amqp.message import Message
from gateway.amqp.operations import Close, Done, OpenChannel, Opened
from gateway.commands.client import print_json
from gateway.commands.probe import as_document, show
from gateway.config import BrokerSettings
from gateway.errors import BrokerUnavailable
from gateway.session import ServerConfig, Version
from gateway.upstreams import Upstream, UpstreamState, probe
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from gateway.versions import VERSION_NAMES, VERSIONS, client_session, server_session
from tests.test_telemetry import lines
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, until

__all__ = ["lines"]

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listener(script: Script) -> AsyncIterator[int]:
    """A server that reads the protocol header and then follows a script; its port."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await reader.readexactly(8)
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


HOSTILE = "<\x1b]0;PWNED\x07\x00\x7f\x85\x9b2J\u061c\u200e\u2028\u202e\u2066>"


@pytest.mark.parametrize("version", list(VERSIONS))
async def test_its_texts_are_escaped(version: Version, lines: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """Its product, and the text with which it closes: in the log, and in what ``gateway probe`` prints."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        config = ServerConfig(
            lambda *_: True, lambda *_: True, {"product": HOSTILE, "version": HOSTILE, "platform": HOSTILE}
        )
        session = server_session(version, config)
        data = version.header
        while data:
            for operation in session.receive_data(data, loop.time()):
                if isinstance(operation, Opened):
                    session.send(Close(0, code=320, text=HOSTILE), loop.time())
            writer.writelines(session.data_to_send())
            data = await reader.read(65536)

    async with listener(script) as port:
        url = f"amqp://guest:guest@127.0.0.1:{port}/?version={version.value}"
        upstream = Upstream("hostile", BrokerSettings(url=url, reconnect_min=60.0))
        await upstream.start()
        await until(lambda: "PWNED" in upstream.reason, 20)
        await upstream.close()
        found = await probe(BrokerSettings(url=url, connect_timeout=5.0))
    show(found)
    print_json(as_document(found))
    assert re.fullmatch("[ -~\n]+", shown := capsys.readouterr().out)
    assert shown.count("PWNED") >= (0 if version is V0_10 else 2)
    assert lines.getvalue().count("PWNED") > 0
    assert re.fullmatch("[ -~\n]+", lines.getvalue())


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await reader.read()


async def other_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"AMQP\x00\x01\x00\x00")  # 1.0
    await writer.drain()


async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    return None


async def half_a_frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x01\x00\x00\x00\x00\x01\xf4\x00\x0a\x00\x0a\x00")  # 500 octets are promised
    await writer.drain()


async def huge_frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(struct.pack(">BHI", 1, 0, 0xFFFFFFF0))
    await reader.read()


@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (garbage, "protocol|no AMQP"),
        (other_header, "another protocol"),
        (nothing, "in time"),
        (hang_up, "hung up"),
        (half_a_frame, "hung up|protocol"),
        (huge_frame, "protocol"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_each_has_its_reason_and_nothing_else_notices(
    version: str, script: Script, words: str, start: Start, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = await start(broker)
    monkeypatch.setattr("gateway.upstreams.keeper.client_session", client_session)
    async with listener(script) as port:
        patience = 0.1 if script is nothing else 10.0  # who says something is judged by that
        settings = BrokerSettings(
            url=f"amqp://guest:guest@127.0.0.1:{port}/?version={version}", connect_timeout=patience, reconnect_max=0.5
        )
        upstream = Upstream("hostile", settings)
        await upstream.start()
        await until(lambda: upstream.state is UpstreamState.DOWN)
        assert re.search(words, upstream.reason), upstream.reason
        with pytest.raises(BrokerUnavailable):
            await upstream.publish("", "q", Message())
        await upstream.close()
    broker.put("q")
    assert (await healthy.publish("", "q", Message())).routed


async def test_a_server_that_falls_silent_is_noticed() -> None:
    """Heartbeats are lost: the connection ends after two intervals."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        session = server_session(V0_9_1, ServerConfig(authenticate=lambda *a: True, open_virtual_host=lambda *a: True))
        data = V0_9_1.header
        while data:
            for operation in session.receive_data(data, loop.time()):
                if isinstance(operation, OpenChannel):
                    session.send(Done(operation.channel, operation.serial, operation.serial), loop.time())
            writer.writelines(session.data_to_send())
            data = await reader.read(65536)

    async with listener(script) as port:
        settings = BrokerSettings(
            url=f"amqp://guest:guest@127.0.0.1:{port}/?version=0-9-1", heartbeat=1.0, reconnect_min=60.0
        )
        upstream = Upstream("silent", settings)
        await upstream.start()
        assert await upstream.wait_up(30)
        await until(lambda: upstream.state is UpstreamState.DOWN, 10)
        assert "heartbeat" in upstream.reason
        await upstream.close()


async def test_a_certificate_that_does_not_verify_is_failed() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the server's side of it
    server = await asyncio.start_server(nothing, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        upstream = Upstream("tls", BrokerSettings(url=f"amqps://guest:guest@127.0.0.1:{port}/"))
        await upstream.start()
        await until(lambda: upstream.state is UpstreamState.FAILED)
        assert "certificate does not verify" in upstream.reason
        await upstream.close()


async def test_a_probe_of_what_speaks_nothing() -> None:
    async with listener(other_header) as port:
        result = await probe(BrokerSettings(url=f"amqp://127.0.0.1:{port}/", connect_timeout=1.0))
    assert result.versions == ()
    assert [attempt.version for attempt in result.attempts] == list(VERSIONS)
    assert all("another protocol" in attempt.reason for attempt in result.attempts)


async def test_a_probe_of_nobody() -> None:
    server = await asyncio.start_server(nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    result = await probe(BrokerSettings(url=f"amqp://127.0.0.1:{port}/", connect_timeout=1.0))
    assert not any(attempt.speaks for attempt in result.attempts)
    assert "refused" in result.attempts[0].reason.lower()
