"""Callers that ask for much and give little: pipelining, slow ones, large bodies, unread answers, large pulls."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import time
from typing import Any, Final

from tests.attack.client import HOST, talk
from tests.attack.judge import Record
from tests.attack.lab import BROKER, SLOW, Target, key_of

MIB: Final = 1 << 20
PUBLISH: Final = f"/v1/brokers/{BROKER}/exchanges/amq.default:publish"


def one(port: int, target: str = "/", key: str = "") -> bytes:
    """Return the octets of a plain request."""
    credential = f"Authorization: Bearer {key}\r\n" if key else ""
    return f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{credential}\r\n".encode()


async def pipelining(target: Target, record: Record) -> None:
    """Send valid requests without waiting for answers, on each port, reading them or not."""
    most = target.scaled(100 * MIB, 4 * MIB)
    ports = [(target.port, "/"), (target.port, "/v1/brokers"), (target.ops_port, "/livez")]
    ports += [(target.cluster_port, "/")] if target.cluster_port else []
    for port, path in ports if target.full else ports[::2]:
        for reads in (True, False):
            seconds = target.scaled(15, 2) if reads else target.scaled(5, 1)
            sent = await _pipelined(port, one(port, path), most, seconds, reads)
            record.check(sent, f"nothing was sent to port {port}")
            record.notes[f"{path} {'read' if reads else 'unread'}"] = f"{sent / MIB:.1f} MiB sent"


async def _pipelined(port: int, request: bytes, most: int, seconds: float, reads: bool) -> int:
    chunk = request * (65_536 // len(request))
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sent = 0

    async def read() -> None:
        with contextlib.suppress(OSError):
            while await loop.sock_recv(sock, 1 << 18):
                pass

    try:
        await loop.sock_connect(sock, (HOST, port))
        reader = asyncio.create_task(read()) if reads else None
        try:
            async with asyncio.timeout(seconds):
                while sent < most:
                    await loop.sock_sendall(sock, chunk)
                    sent += len(chunk)
                    await asyncio.sleep(0)
        except (OSError, TimeoutError):
            pass  # it was closed, or not read from any more
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
    finally:
        sock.close()
    return sent


async def slow(target: Target, record: Record) -> None:
    """Hold connections that say nothing, half a head or half a body: all are closed in time."""
    head = b"GET /v1/brokers HTTP/1.1\r\nHost: localhost\r\nX-Half: "
    key = f"Authorization: Bearer {key_of('publisher')}\r\n" if target.keyed else ""
    body = (
        f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\n{key}"
        "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
    ).encode()
    count = target.scaled(300, 40)
    within = SLOW + 5.0

    async def hold(said: bytes, drips: bool) -> None:
        began = time.monotonic()
        reader = writer = None
        try:
            async with asyncio.timeout(within):
                reader, writer = await asyncio.open_connection(HOST, target.port)
                writer.write(said)
                while True:
                    try:
                        async with asyncio.timeout(0.2):
                            if not await reader.read(1 << 16):
                                break
                    except TimeoutError:
                        if drips:
                            writer.write(b"x")
        except TimeoutError:
            record.blame(f"{said[:20]!r}: open for more than {within:g} s")
        except OSError:
            pass  # as good as an end
        finally:
            if writer is not None:
                writer.close()
        record.check(time.monotonic() - began < within + 1)

    kinds = [(b"", False), (head, False), (head, True), (body, False), (body, True)]
    await asyncio.gather(*(hold(said, drips) for said, drips in kinds for _ in range(count // len(kinds) or 1)))


async def large_bodies(target: Target, record: Record) -> None:
    """Send bodies that never end, that lie about their length, and that cost much to read."""
    limit = target.scaled(160, 80) * MIB

    async def send(headers: str, chunk: bytes, path: str, most: int, client: str = "publisher") -> tuple[bytes, int]:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key_of(client)}\r\n{headers}\r\n"
        said, sent, writer = b"", 0, None
        try:
            async with asyncio.timeout(40):
                reader, writer = await asyncio.open_connection(HOST, target.port)
                writer.write(head.encode())
                while sent < most:
                    writer.write(chunk)
                    await writer.drain()
                    sent += len(chunk)
                said = await reader.read(1 << 16)
        except TimeoutError:
            said = b"no end"
        except OSError:
            with contextlib.suppress(OSError, AttributeError):
                said = bytes(reader._buffer)  # type: ignore[attr-defined]  # what came before the end
        finally:
            if writer is not None:
                writer.close()
        return said, sent

    mib = b"x" * MIB
    chunked = "Transfer-Encoding: chunked\r\n"
    line = b"100000\r\n" + mib + b"\r\n"
    json_type = "Content-Type: application/json\r\n"

    async def endless(name: str, headers: str, chunk: bytes, path: str) -> None:
        said, sent = await send(headers, chunk, path, limit)
        refused = b" 413 " in said[:20] or b"body_too_large" in said or sent < limit
        record.check(refused, f"{name}: {sent / MIB:.0f} MiB were taken, {said[:40]!r}")

    async def refused_at_once(name: str, headers: str) -> None:
        said, _ = await send(headers, b"x" * 100, PUBLISH, 100)
        record.check(said[9:10] == b"4", f"{name}: {said[:40]!r}")

    async def tiny() -> None:
        chunks = b"1\r\nx\r\n" * 20_000
        said, _ = await send(chunked + json_type, chunks, PUBLISH, target.scaled(8, 1) * len(chunks))
        record.check(b" 500 " not in said[:20], f"chunks of one byte: {said[:40]!r}")

    await asyncio.gather(
        endless("an endless body", chunked + json_type, line, PUBLISH),
        endless("an endless line", chunked + "Content-Type: application/x-ndjson\r\n", line, PUBLISH),
        refused_at_once("a length of 10 GiB", "Content-Length: 10737418240\r\n" + json_type),
        refused_at_once("gzip", "Content-Length: 100\r\nContent-Encoding: gzip\r\n" + json_type),
        tiny(),
    )
    if target.full:
        octets_type = "Content-Type: application/octet-stream\r\n"
        await endless("a raw body", chunked + octets_type, line, f"{PUBLISH}?routing_key=k")


async def unread(target: Target, record: Record) -> None:
    """Ask for large documents, and read none of the answers."""
    count = target.scaled(1_100, 150)
    sockets: list[socket.socket] = []
    try:
        for number in range(count):
            sock = socket.create_connection((HOST, target.port), timeout=5)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            path = ("/docs/swagger.js", "/openapi.json")[number % 2]
            sock.sendall(one(target.port, path))
            sockets.append(sock)
            if not number % 20:
                await asyncio.sleep(0)
        record.check(len(sockets) == count)
        record.tries = count
        await asyncio.sleep(target.scaled(5, 1))
    finally:
        for sock in sockets:
            sock.close()


async def big_pull(target: Target, record: Record) -> None:
    """Pull everything at once from a queue of large messages, with both kinds of leases."""
    count, size = target.scaled(600, 12), MIB
    bound = 80 * MIB
    root = target.client("root")
    payload = base64.b64encode(os.urandom(size // 4) * 4).decode()
    for lease in ("broker", "ledger") if target.full else ("broker",):
        queue = f"big-{lease}"
        await root.ask("PUT", f"/v1/brokers/{BROKER}/queues/{queue}", {"durable": True})
        made = await root.ask("PUT", f"/v1/subscriptions/{queue}", {"broker": BROKER, "queue": queue, "lease": lease})
        record.check(made.status in (200, 201), f"the subscription: {made.status} {made.body[:200]!r}")
        published = 0
        for _ in range(min(count, 220)):  # what the embedded broker's memory holds
            body = {"routing_key": queue, "payload": payload, "payload_encoding": "base64"}
            published += (await root.ask("POST", PUBLISH, body)).status == 200
        record.check(published, "nothing was published")
        octets = 0
        for _ in range(20):
            answer = await root.ask(
                "POST", f"/v1/subscriptions/{queue}:pull", {"max_messages": 1_000, "wait": 0}, within=120
            )
            found = answer.json() or {}
            messages = found.get("messages", ())
            octets = max(octets, len(answer.body))
            record.check(answer.status == 200, f"the pull: {answer.status} {answer.code}")
            if not messages:
                break
            ids: list[Any] = [message["ack_id"] for message in messages]
            await root.ask("POST", f"/v1/subscriptions/{queue}:acknowledge", {"ack_ids": ids})
        record.check(octets <= bound, f"one answer of {octets / MIB:.0f} MiB")
        record.notes[f"{lease} lease"] = f"{published} x 1 MiB, largest answer {octets / MIB:.0f} MiB"
        await root.ask("DELETE", f"/v1/subscriptions/{queue}")
        await root.ask("DELETE", f"/v1/brokers/{BROKER}/queues/{queue}")
    root.close()


async def many_headers(target: Target, record: Record) -> None:
    """Heads of many lines and long ones, again and again."""
    line = b"X-" + b"a" * 60 + b": " + b"b" * 60 + b"\r\n"
    for _ in range(target.scaled(60, 5)):
        said = await talk(target.port, b"GET / HTTP/1.1\r\nHost: a\r\n", *[line * 20] * 50, within=3)
        record.check(not said or said[9:10] == b"4", f"1,000 headers: {said[:40]!r}")
