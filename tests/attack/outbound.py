"""URLs and answers of endpoints: the gateway connects to nothing inside, follows nothing, and waits for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from tests.attack.client import Answer, Client
from tests.attack.judge import Record
from tests.attack.lab import ANSWER, RECEIVERS, Target
from tests.outbound.endpoint import Endpoint
from tests.outbound.vectors import TABLE
from tests.servers.process import free_port

CANARIES: Final = ("127.0.0.1", "127.0.0.2", "127.1.2.3", "127.0.1.1", "127.255.255.254", "::1")
"""Addresses of this machine on which somebody listens whom the gateway must not call."""
DENIED: Final = tuple(
    host for network, hosts in TABLE.items() if network not in ("public", "refused") for host in hosts.split()
)
NAMES: Final = ("localhost", "LOCALHOST", "localhost.", "ip6-localhost", "a.localhost", "localhost.localdomain")
SPELLED: Final = (
    "2130706433", "0x7f000001", "017700000001", "127.1", "127.0.1", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.1%00",
    "127.0.0.1%2f", "user@127.0.0.1", "a:b@127.0.0.1", "1.1.1.1@127.0.0.1", "127.0.0.1#@1.1.1.1", "127.0.0.1?@1.1.1.1",
    "127.0.0.1\\@1.1.1.1", "1.1.1.1\\@127.0.0.1", "[::ffff:7f00:1]", "[::1%25lo]", "[::1%lo]", "0", "0.0.0.0", "[::]",
    "127.0.0.1.", "①②⑦.⓪.⓪.①", "127。0。0。1", "127.0.0.1 ", " 127.0.0.1", "127.0.0.1\t", "127.0.0.1\r\n",
)  # fmt: skip
"""Ways to write this machine in a URL."""
SCHEMES: Final = ("file:///etc/passwd", "gopher://127.0.0.1:{port}/x", "ftp://127.0.0.1:{port}/", "dict://127.0.0.1:{port}/",
                  "unix:///run/x.sock", "//127.0.0.1:{port}/", "https:127.0.0.1:{port}", "https:///127.0.0.1:{port}/",
                  "data:text/plain,x", "jar:http://127.0.0.1:{port}!/", "", "https://", "https://:{port}/")  # fmt: skip
DEADLINE: Final = 2.0
"""Of each endpoint, in seconds."""
BEYOND: Final = 3.0
"""How much longer the gateway's own answer may take."""
ENDPOINT: Final = "/v1/endpoints/hooks"


@contextlib.asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], hosts: tuple[str, ...], port: int
) -> AsyncIterator[None]:
    """Serve on one port of these addresses; an address that this machine does not have is left out."""
    servers = []
    for host in hosts:
        with contextlib.suppress(OSError):
            servers.append(await asyncio.start_server(serve, host, port, limit=1 << 20))
    assert servers, "nobody listens"
    try:
        yield
    finally:
        for server in servers:
            server.close()


class Canary:
    """Listens where the gateway must not connect, and counts who comes."""

    def __init__(self) -> None:
        self.port = free_port()
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Count one connection."""
        self.connections += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    def serving(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Listen as long as the block."""
        return listening(self.serve, CANARIES, self.port)


async def urls(target: Target, record: Record) -> None:
    """Put endpoints with every spelling of an inner address, also as token URL, and have each called."""
    canary = Canary()
    hosts = [*target.some(DENIED, 12), *NAMES, *SPELLED]
    found = [f"{scheme}://{host}:{canary.port}/x" for scheme in ("https", "http") for host in hosts]
    found += [f"https://{host}/x" for host in (*NAMES, *SPELLED)] if target.full else []
    found += [each.format(port=canary.port) for each in SCHEMES]
    found += [f"http://127.0.0.1:{port}/x" for port in (target.port, target.ops_port, target.amqp_port)]
    found = target.some(found, 60)
    client = target.client("hooks")
    async with canary.serving():
        for number, url in enumerate(found):
            before = canary.connections
            body: dict[str, Any] = {"url": url, "deadline_seconds": DEADLINE, "signing": []}
            await _put_and_test(client, body, url, record)
            if target.full or not number % 4:
                auth = {"kind": "oauth2", "user": "u", "secret": "s", "token_url": url}
                outside = f"http://{RECEIVERS}:{target.issuer_port}/x"
                await _put_and_test(client, {**body, "url": outside, "auth": auth}, f"token_url {url}", record)
            record.check(canary.connections == before, f"{url!r}: {canary.connections - before} connections")
        await asyncio.sleep(0.1)
        record.check(canary.connections == 0, f"{canary.connections} connections to the inside")
    await client.ask("DELETE", ENDPOINT)
    client.close()


async def _put(client: Client, body: dict[str, Any]) -> Answer:
    """Make the endpoint, in place of the one before."""
    await client.ask("DELETE", ENDPOINT)
    return await client.ask("PUT", ENDPOINT, body)


async def _put_and_test(client: Client, body: dict[str, Any], url: str, record: Record) -> None:
    put = await _put(client, body)
    if put.status >= 400:
        record.check(put.status in (400, 422), f"{url!r}: {put.status} {put.code}")
        return
    tested = await client.ask("POST", f"{ENDPOINT}:test", {}, within=DEADLINE + BEYOND + 10)
    found = tested.json() or {}
    record.check(not found.get("delivered"), f"{url!r} was delivered")
    record.check(tested.status < 500 or tested.status in (502, 504), f"{url!r}: {tested.status} {tested.code}")


def _answers(canary_port: int) -> dict[str, bytes]:
    """Path -> what a receiver answers."""
    inside = [
        f"http://127.0.0.1:{canary_port}/x", f"http://[::1]:{canary_port}/x", f"//127.0.0.1:{canary_port}/x",
        f"http://localhost:{canary_port}/x", f"https://2130706433:{canary_port}/", "file:///etc/passwd",
    ]  # fmt: skip
    found = {}
    for status in range(300, 309):
        for number, location in enumerate(inside):
            head = f"HTTP/1.1 {status} x\r\nLocation: {location}\r\nRefresh: 0; url={location}\r\n"
            found[f"/{status}-{number}"] = head.encode() + b"Content-Length: 0\r\n\r\n"
    return found


async def redirects(target: Target, record: Record) -> None:
    """Answer with redirects to the inside: none is followed."""
    canary = Canary()
    answers = _answers(canary.port)
    port = free_port()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            line = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            writer.write(answers.get(line, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
            await writer.drain()
        writer.close()

    client = target.client("hooks")
    async with canary.serving(), listening(serve, (RECEIVERS,), port):
        for path in target.some(list(answers), 8):
            body = {"url": f"http://{RECEIVERS}:{port}{path}", "deadline_seconds": DEADLINE}
            put = await _put(client, body)
            record.check(put.status in (200, 201), f"the endpoint: {put.status} {put.body[:200]!r}")
            tested = await client.ask("POST", f"{ENDPOINT}:test", {})
            found = tested.json() or {}
            record.check(tested.status == 200 and not found.get("delivered"), f"{path}: {tested.status} {found}")
        record.check(canary.connections == 0, f"{canary.connections} redirects were followed")
    await client.ask("DELETE", ENDPOINT)
    client.close()


HOSTILE: Final = (
    "/gzip-bomb", "/many-headers", "/long-header", "/not-http", "/http2", "/upgrade", "/half-head", "/half-body",
    "/hang-up", "/reset", "/twice", "/interim", "/drip-head", "/drip-body", "/drip-interim", "/10-gb", "/endless",
    "/never", "/interim-flood", "/lying-length", "/two-lengths", "/deep-json", "/odd-status",
)  # fmt: skip
"""Paths of a receiver that misbehaves (:mod:`tests.outbound.endpoint`), and those of :class:`_Hostile`."""


class _Hostile(Endpoint):
    """A receiver with some more ways."""

    async def _answer(self, request: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        path = request.line.split()[1]  # type: ignore[attr-defined]
        if path == "/interim-flood":
            while True:
                writer.write(b"HTTP/1.1 103 x\r\n\r\n" * 1_000)
                await writer.drain()
        more = {
            "/lying-length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nx",
            "/two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
            "/deep-json": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
            "/odd-status": b"HTTP/1.1 999999 x\r\nContent-Length: 0\r\n\r\n",
        }
        if path in more:
            writer.write(more[path])
            await writer.drain()
            return True
        return await super()._answer(request, reader, writer)  # type: ignore[arg-type]


async def answers(target: Target, record: Record) -> None:
    """Answer in every hostile way: the gateway's own answer comes soon after the deadline."""
    receiver = _Hostile(port=free_port())
    client = target.client("hooks")
    async with listening(receiver.serve, (RECEIVERS,), receiver.port):
        try:
            for path in HOSTILE if target.full else HOSTILE[::3]:
                deadline = DEADLINE if target.full else 1.0
                body = {"url": receiver.url(path, host=RECEIVERS), "deadline_seconds": deadline}
                put = await _put(client, body)
                record.check(put.status in (200, 201), f"the endpoint: {put.status} {put.body[:200]!r}")
                began = time.monotonic()
                tested = await client.ask("POST", f"{ENDPOINT}:test", {}, within=deadline + BEYOND + 5)
                took = time.monotonic() - began
                record.check(tested.status == 200, f"{path}: {tested.status} {tested.code}")
                record.check(took < deadline + BEYOND, f"{path}: an answer after {took:.1f} s")
                record.check(len(tested.body) < 1 << 18, f"{path}: {len(tested.body)} bytes are shown")
        finally:
            await receiver.close()
    await client.ask("DELETE", ENDPOINT)
    client.close()


SILENT_NAMES: Final = {"outbound.allow": [f"{RECEIVERS}/32", "localhost", "*.silent.example"]}
"""Settings: names that the gateway may ask for, and where it gets the keys of tokens."""
LOCAL: Final = ("127.0.0.1", "::1")
"""Addresses of ``localhost``."""
SOON: Final = 2.5
"""How long a test beside silent names may take, in seconds: half of the time that a connection may take."""


async def _agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, EOFError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
    writer.close()


async def silent_names(target: Target, record: Record) -> None:
    """Have one endpoint ask for name after name that no name server answers: another endpoint's test is delivered."""
    port = free_port()
    greedy, modest = target.client("hooks"), target.client("modest")
    tests: list[asyncio.Task[None]] = []

    async def ask_for(number: int) -> None:
        client = target.client("hooks")
        answer = await client.ask("POST", f"{ENDPOINT}:test", {}, within=DEADLINE + BEYOND + 10)
        record.check(answer.status in (200, 429, 503), f"silent name {number}: {answer.status} {answer.code}")
        if answer.status == 200:
            record.check(not (answer.json() or {}).get("delivered"), f"silent name {number} was delivered")
        client.close()

    async with listening(_agree, LOCAL, port):
        try:
            body = {"url": f"http://localhost:{port}/x", "deadline_seconds": DEADLINE}
            put = await modest.ask("PUT", "/v1/endpoints/modest", body)
            record.check(put.status in (200, 201), f"the other endpoint: {put.status} {put.body[:200]!r}")
            took = []
            for number in range(32 + target.scaled(20, 3)):  # it is still asked for names that nobody waits for
                if number < 32:
                    url = f"http://n{number}.silent.example/x"
                    put = await _put(greedy, {"url": url, "deadline_seconds": DEADLINE})
                    record.check(put.status in (200, 201), f"the endpoint: {put.status} {put.body[:200]!r}")
                    tests.append(asyncio.create_task(ask_for(number)))
                    await asyncio.sleep(0.02)
                elif number == 32:
                    await asyncio.gather(*tests)
                began = time.monotonic()
                tested = await modest.ask("POST", "/v1/endpoints/modest:test", {})
                took.append(time.monotonic() - began)
                found = tested.json() or {}
                if not record.check(found.get("delivered"), f"the other endpoint: {tested.status} {found}"):
                    break
            record.notes["the other endpoint"] = f"{max(took) * 1e3:.0f} ms"
            record.check(max(took) < SOON or not target.full, f"the other endpoint's test took {max(took):.1f} s")
        finally:
            (target.folder / ANSWER).touch()
            for test in tests:
                test.cancel()
            await asyncio.gather(*tests, return_exceptions=True)
    for client in (greedy, modest):
        client.close()
