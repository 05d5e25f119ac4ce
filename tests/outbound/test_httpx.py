"""Under an httpx client."""

from __future__ import annotations

import httpx
import pytest

from gateway.errors import AddressDenied, EncodeError, OutboundTimeout
from gateway.outbound import GuardedTransport, guarded_client
from tests.outbound.endpoint import BOMB, Endpoint


async def test_a_request(transport: GuardedTransport, server: Endpoint) -> None:
    client = guarded_client(transport)
    response = await client.post(server.url("/200"), json={"a": 1}, headers={"x-a": "b"})
    assert (response.status_code, response.text) == (200, "ok")
    assert response.extensions == {"truncated": False, "resent": False}
    (request,) = server.requests
    assert request.body == b'{"a":1}'
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-a"] == "b"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"].startswith("amqp-gateway/")
    assert request.headers["content-length"] == "7"
    assert "connection" not in request.headers


async def test_a_body_that_is_made_as_it_goes(transport: GuardedTransport, server: Endpoint) -> None:
    async def pieces():  # type: ignore[no-untyped-def]
        yield b"ab"
        yield b"c"

    await guarded_client(transport).put(server.url("/200"), content=pieces())
    assert server.requests[0].body == b"abc"
    assert "transfer-encoding" not in server.requests[0].headers


async def test_no_redirect_no_cookie_no_unpacking(transport: GuardedTransport, server: Endpoint) -> None:
    client = guarded_client(transport)
    assert (await client.get(server.url("/moved"))).status_code == 301
    await client.get(server.url("/cookie"))
    response = await client.get(server.url("/gzip-bomb"))
    assert response.content == BOMB
    assert response.extensions["content_encoding"] == "gzip"
    assert [request.headers.get("cookie") for request in server.requests] == [None, None, None]
    assert server.paths() == ["/moved", "/cookie", "/gzip-bomb"]


async def test_proxies_of_the_environment_are_not_asked(
    transport: GuardedTransport, server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await guarded_client(transport).get(server.url("/200"))).status_code == 200
    assert (await transport.send("GET", server.url("/200"))).status == 200


async def test_a_deadline_of_its_own(transport: GuardedTransport, server: Endpoint) -> None:
    with pytest.raises(OutboundTimeout):
        await guarded_client(transport).get(server.url("/never"), extensions={"deadline": 0.5})


async def test_a_fragment_stays_here_and_a_password_is_refused(transport: GuardedTransport, server: Endpoint) -> None:
    client = guarded_client(transport)
    assert (await client.get(server.url("/200#a"))).status_code == 200
    assert server.paths() == ["/200"]
    with pytest.raises(EncodeError, match="no place"):
        await client.get(f"http://user:secret@127.0.0.1:{server.port}/200")


async def test_what_is_denied_is_denied_here_too(transport: GuardedTransport) -> None:
    for url in ("https://10.0.0.1/", "http://[::1]/", "https://169.254.169.254/latest/meta-data/"):
        with pytest.raises(AddressDenied):
            await guarded_client(transport).get(url)


async def test_headers_that_end_a_line_are_refused(transport: GuardedTransport, server: Endpoint) -> None:
    request = httpx.Request("GET", server.url("/200"), headers=[(b"x", b"a\r\nb: c")])
    with pytest.raises(EncodeError, match="control character"):
        await transport.handle_async_request(request)
    assert server.connections == 0
