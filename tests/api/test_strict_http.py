"""What RFC 9110 and RFC 9112 demand of a request, at each of the three ports, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.api.about.ops import Ops
from gateway.api.app import Api
from gateway.api.http.heads import TARGET_MAX
from gateway.api.resources.peers import PeerPort
from gateway.app import _listen, _port, _serving
from gateway.config import HttpSettings
from gateway.core import Gateway
from gateway.core.work.peers import Peers
from gateway.observing.telemetry import Metrics
from tests.core.test_ownership import FakeLedger, Rows

PORTS = ("api", "ops", "cluster")


@pytest.fixture
async def ports(gateway: Gateway) -> AsyncIterator[dict[str, int]]:
    """Name -> port."""
    ledger: Any = FakeLedger(Rows(), 0)
    api = Api(gateway, HttpSettings())
    apps = (api, Ops(gateway), PeerPort(Peers(ledger, Metrics("test"), secret=b"s" * 32), api, 1_000))
    found = {}
    async with AsyncExitStack() as stack:
        for name, app in zip(PORTS, apps, strict=True):
            listener = _listen("127.0.0.1", 0, name)
            stack.callback(listener.close)
            await stack.enter_async_context(_serving(app, listener, 1.0))
            found[name] = _port(listener)
        yield found


async def status(port: int, request: bytes) -> int:
    """The status of the one answer to what is sent; HOST in it stands for host and port. 0: there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.replace(b"HOST", b"127.0.0.1:%d" % port))
        async with asyncio.timeout(20):
            line = await reader.readline()
        return int(line.split(b" ")[1]) if line else 0
    finally:
        writer.close()


def get(*lines: bytes, target: bytes = b"/", version: bytes = b"1.1", method: bytes = b"GET") -> bytes:
    return b"\r\n".join([b"%b %b HTTP/%b" % (method, target, version), *lines, b"", b""])


def post(*lines: bytes, version: bytes = b"1.1", body: bytes = b"") -> bytes:
    return get(b"Host: HOST", *lines, method=b"POST", version=version) + body


HOST = b"Host: HOST"
EMPTY = b"0\r\n\r\n"
REFUSED: dict[str, tuple[bytes, int]] = {
    "no host": (get(), 400),
    "two hosts": (get(HOST, HOST), 400),
    "two hosts, old": (get(HOST, HOST, version=b"1.0"), 400),
    "two names in a host": (get(b"Host: a b"), 400),
    "a path in a host": (get(b"Host: a/b"), 400),
    "a user in a host": (get(b"Host: user@HOST"), 400),
    "a bracket in a host": (get(b"Host: [::1"), 400),
    "a port that is none": (get(b"Host: a:b"), 400),
    "two ports": (get(b"Host: a:1:2"), 400),
    "a wrong escape in a host": (get(b"Host: a%zz"), 400),
    "octets over 127 in a host": (get(b"Host: caf\xe9"), 400),
    "a folded line": (get(HOST, b" more"), 400),
    "a blank before the colon": (get(b"Host : HOST"), 400),
    "NUL in a value": (get(HOST, b"X: a\x00b"), 400),
    "CR in a value": (get(HOST, b"X: a\rb"), 400),
    "two credentials": (get(HOST, b"Authorization: Bearer a", b"authorization: Bearer a"), 400),
    "two keys": (get(HOST, b"X-Api-Key: a", b"x-api-key: b"), 400),
    "two origins": (get(HOST, b"Origin: http://HOST", b"Origin: https://evil.example"), 400),
    "two sites": (get(HOST, b"Sec-Fetch-Site: same-origin", b"Sec-Fetch-Site: cross-site"), 400),
    "two types": (post(b"Content-Type: text/plain", b"Content-Type: text/html", b"Content-Length: 0"), 400),
    "two idempotency keys": (post(b"Idempotency-Key: a", b"Idempotency-Key: b", b"Content-Length: 0"), 400),
    "another coding": (post(b"Transfer-Encoding: gzip, chunked", body=EMPTY), 501),
    "identity": (post(b"Transfer-Encoding: identity"), 501),
    "chunked twice": (post(b"Transfer-Encoding: chunked, chunked", body=EMPTY), 400),
    "two codings": (post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=EMPTY), 400),
    "a coding and a length": (post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=EMPTY), 400),
    "a coding in HTTP/1.0": (post(b"Transfer-Encoding: chunked", version=b"1.0", body=EMPTY), 400),
    "two lengths": (post(b"Content-Length: 0", b"Content-Length: 1"), 400),
    "a list of lengths": (post(b"Content-Length: 0, 0"), 400),
    "a sign before a length": (post(b"Content-Length: +0"), 400),
    "a target over the limit": (get(HOST, target=b"/" + b"a" * TARGET_MAX), 414),
    "a query over the limit": (get(HOST, target=b"/?" + b"a" * TARGET_MAX), 414),
    "a target over a head": (get(HOST, target=b"/" + b"a" * 120_000), 400),
    "a URL of another host": (get(HOST, target=b"http://evil.example/"), 400),
    "another host than the URL": (get(b"Host: evil.example", target=b"http://HOST/"), 400),
    "a user in the URL": (get(HOST, target=b"http://user@HOST/"), 400),
    "a URL without a path": (get(HOST, target=b"http://HOST"), 400),
    "another scheme": (get(HOST, target=b"ftp://HOST/"), 400),
    "a fragment": (get(HOST, target=b"/#a"), 400),
    "a fragment of a URL": (get(HOST, target=b"http://HOST/#a"), 400),
    "octets over 127 in a target": (get(HOST, target=b"/caf\xe9"), 400),
    "a star": (get(HOST, target=b"*"), 400),
    "a tunnel": (get(HOST, target=b"HOST", method=b"CONNECT"), 400),
    "HTTP/1.2": (get(HOST, version=b"1.2"), 400),
    "HTTP/2.0": (get(HOST, version=b"2.0"), 505),
    "no line ends": (b"GET / HTTP/1.1\nHost: HOST\n\n", 400),
}
"""What is wrong -> the request, and its status."""
TAKEN: dict[str, bytes] = {
    "a host": get(HOST),
    "HTTP/1.0 without a host": get(version=b"1.0"),
    "a URL": get(HOST, target=b"HTTP://HOST/"),
    "a target at the limit": get(HOST, target=b"/" + b"a" * (TARGET_MAX - 1)),
    "a star of OPTIONS": get(HOST, target=b"*", method=b"OPTIONS"),
    "chunks": post(b"Transfer-Encoding: Chunked", body=EMPTY),
    "many other headers": get(HOST, b"If-Match: a", b"If-Match: b", b"Accept: a", b"Accept: b"),
}


@pytest.mark.parametrize("name", PORTS)
async def test_what_is_refused(ports: dict[str, int], name: str) -> None:
    said = {what: await status(ports[name], request) for what, (request, _) in REFUSED.items()}
    assert said == {what: wanted for what, (_, wanted) in REFUSED.items()}


@pytest.mark.parametrize("name", PORTS)
async def test_what_is_taken(ports: dict[str, int], name: str) -> None:
    """It is answered by the application, whatever that says of it."""
    said = {what: await status(ports[name], request) for what, request in TAKEN.items()}
    assert [what for what, found in said.items() if found in (0, 400, 414, 501, 505)] == []


@pytest.mark.parametrize(
    "host", [b"[::1]:80", b"[2001:db8::1]", b"a%C3%A9:8080", b"host:", b"", b"a_b.c-d~e!$&'()*+,;=:1"]
)
async def test_hosts_that_are_hosts(ports: dict[str, int], host: bytes) -> None:
    assert await status(ports["cluster"], get(b"Host: " + host)) == 404
