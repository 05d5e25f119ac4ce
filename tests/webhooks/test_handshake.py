"""Does the endpoint want to be called?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.config import EndpointAuth, EndpointSettings, EndpointTls
from gateway.errors import AddressDenied
from gateway.outbound import GuardedTransport, HttpAnswer
from gateway.webhooks.attempts.handshake import HandshakeRefused, ask
from tests.outbound.endpoint import Endpoint as Server
from tests.outbound.endpoint import plain

ORIGIN = "gateway.example"


class Owner(Server):
    """Answers what it is told to."""

    answer = plain(200)

    async def _answer(self, request: Any, reader: Any, writer: Any) -> bool:
        writer.write(self.answer)
        return True


@pytest.fixture
async def server() -> AsyncIterator[Owner]:
    found = Owner()
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = listening.sockets[0].getsockname()[1]
    yield found
    listening.close()
    await found.close()


async def test_the_request(transport: GuardedTransport, server: Owner) -> None:
    server.answer = plain(200, "WebHook-Allowed-Origin: gateway.example\r\nWebHook-Allowed-Rate: 120\r\n")
    settings = EndpointSettings(
        url=server.url("/in"), rate=0.51, headers={"x-secret": "s"}, auth=EndpointAuth(kind="bearer", secret="t")
    )
    assert await ask(transport, settings, ORIGIN) == 2.0
    (request,) = server.requests
    assert request.line == "OPTIONS /in HTTP/1.1"
    assert request.headers["webhook-request-origin"] == ORIGIN
    assert request.headers["webhook-request-rate"] == "31"
    assert "authorization" not in request.headers, "it has not agreed to anything yet"
    assert "x-secret" not in request.headers


async def test_the_greatest_rate(transport: GuardedTransport, server: Owner) -> None:
    server.answer = plain(200, "WebHook-Allowed-Origin: *\r\n")
    assert await ask(transport, EndpointSettings(url=server.url("/in"), rate=1e308), ORIGIN) == 0.0
    assert server.requests[0].headers["webhook-request-rate"] == "999999999"


async def test_the_least_rate(transport: GuardedTransport, server: Owner) -> None:
    server.answer = plain(200, "WebHook-Allowed-Origin: *\r\n")
    await ask(transport, EndpointSettings(url=server.url("/in"), rate=0.001), ORIGIN)
    assert server.requests[0].headers["webhook-request-rate"] == "1"


@pytest.mark.parametrize("tls", [EndpointTls(), EndpointTls(server_name="inner.example")])
async def test_the_certificates_of_the_endpoint_are_used(
    transport: GuardedTransport, server: Owner, monkeypatch: pytest.MonkeyPatch, tls: EndpointTls
) -> None:
    server.answer = plain(200, "WebHook-Allowed-Origin: *\r\n")
    send, used = transport.send, []

    async def seen(*arguments: Any, **named: Any) -> HttpAnswer:
        used.append(named.pop("tls"))
        return await send(*arguments, **named)

    monkeypatch.setattr(transport, "send", seen)
    await ask(transport, EndpointSettings(url=server.url("/in"), tls=tls), ORIGIN)
    assert used == [None if tls == EndpointTls() else tls]


@pytest.mark.parametrize(
    ("headers", "rate"),
    [
        ("WebHook-Allowed-Origin: *\r\n", 0.0),
        ("WebHook-Allowed-Origin: *\r\nWebHook-Allowed-Rate: *\r\n", 0.0),
        ("webhook-allowed-origin:  GATEWAY.example \r\nWebHook-Allowed-Rate: 30\r\n", 0.5),
    ],
)
async def test_what_allows_it(transport: GuardedTransport, server: Owner, headers: str, rate: float) -> None:
    server.answer = plain(204, headers)
    assert await ask(transport, EndpointSettings(url=server.url("/in")), ORIGIN) == rate
    assert "webhook-request-rate" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (plain(200), "no WebHook-Allowed-Origin"),
        (plain(405), "answered OPTIONS with 405"),
        (plain(301, "Location: /x\r\nWebHook-Allowed-Origin: *\r\n"), "with 301"),
        (plain(200, "WebHook-Allowed-Origin: other.example\r\n"), "allows 'other.example', and we are"),
        (plain(200, "WebHook-Allowed-Origin: *\r\nWebHook-Allowed-Rate: 0\r\n"), "Allowed-Rate is '0'"),
        (plain(200, "WebHook-Allowed-Origin: *\r\nWebHook-Allowed-Rate: -1\r\n"), "Allowed-Rate is '-1'"),
        (plain(200, "WebHook-Allowed-Origin: *\r\nWebHook-Allowed-Rate: 1e3\r\n"), "Allowed-Rate is '1e3'"),
    ],
)
async def test_what_does_not(transport: GuardedTransport, server: Owner, answer: bytes, why: str) -> None:
    server.answer = answer
    with pytest.raises(HandshakeRefused, match=why) as refused:
        await ask(transport, EndpointSettings(url=server.url("/in")), ORIGIN)
    assert len(server.requests) == 1
    assert refused.value.sent, "it has the request"
    assert refused.value.status == int(answer.split()[1])


async def test_the_guard_comes_first(transport: GuardedTransport) -> None:
    with pytest.raises(AddressDenied):
        await ask(transport, EndpointSettings(url="http://10.0.0.1/"), ORIGIN)
