"""Callers behind a proxy, and strangers who say that they are behind one: each counts by the address that it has.

What is counted is requests under way: each connection asks for large documents that are open to all, and reads none.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from tests.attack.client import HOST
from tests.attack.judge import Record
from tests.attack.lab import Target

PROXY: Final = "127.0.0.21"
STRANGER: Final = "127.0.0.22"
SHARE: Final = 10
SETTINGS: Final[dict[str, Any]] = {
    "http.trusted_proxies": [PROXY],
    "http.concurrency": 4 * SHARE,
    "access.stranger_rate": 0,
}
"""A client may have a quarter of all requests under way, and begin any number of them in a second."""
DOCUMENT: Final = "/docs/swagger.js"
TIMES: Final = 5
"""How often a connection asks for it: no connection holds so much unread."""
MOST: Final = 4 * SHARE
"""After how many requests, at most, a caller is refused: one that has just ended leaves room for a moment."""
CALLER: Final = "198.51.100.1"
OTHER: Final = "198.51.100.2"
NETWORK: Final = "2001:db8:1:2"
"""The first half of addresses of IPv6 that count as one."""


Header = Callable[[str], str]
"""An address as a line of a head."""


class _Callers:
    """Requests that are under way, each on a connection of its own, until they are let go."""

    def __init__(self, target: Target, record: Record) -> None:
        self._port = target.port
        self._record = record
        self._sockets: list[socket.socket] = []

    async def ask(self, source: str, *lines: str) -> bytes:
        """Ask from an address with these headers. Return the first bytes of the answer, or nothing."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        self._sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        sock.bind((source, 0))
        head = [f"GET {DOCUMENT} HTTP/1.1", f"Host: {HOST}:{self._port}", *lines, "", ""]
        try:
            async with asyncio.timeout(10):
                await loop.sock_connect(sock, (HOST, self._port))
                await loop.sock_sendall(sock, "\r\n".join(head).encode() * TIMES)
                return await loop.sock_recv(sock, 2_048)
        except (OSError, TimeoutError):
            return b""

    async def admitted(self, source: str, *lines: str) -> None:
        """Ask, and be answered."""
        said = await self.ask(source, *lines)
        self._record.check(said[9:12] == b"200", f"from {source} with {lines}: {said[:300]!r}")

    async def refused(self, counted: str, source: str, *forged: tuple[str, ...]) -> None:
        """Ask with each of these headers in turn, until the one who is counted is refused as one at its share."""
        said = b""
        for number in range(MOST):
            said = await self.ask(source, *forged[number % len(forged)])
            if said[9:12] != b"200":
                break
        right = said[9:12] == b"429" and f"budget requests: the address '{counted}'".encode() in said
        self._record.check(right, f"from {source} with {forged[0]}, as {counted}: {said[:12]!r} … {said[-200:]!r}")

    async def let_go(self) -> None:
        """End all requests."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        await asyncio.sleep(0.2)


def _forwarded(address: str) -> str:
    return f'Forwarded: for="[{address}]:4711";proto=https' if ":" in address else f"Forwarded: for={address}"


def _x_forwarded_for(address: str) -> str:
    return f"X-Forwarded-For: {address}"


async def attack(target: Target, record: Record) -> None:
    """Reach the share of a caller behind the proxy, of a network of IPv6, and of a stranger that forges the header."""
    callers = _Callers(target, record)
    try:
        for header in (_x_forwarded_for, _forwarded):
            await _behind_the_proxy(callers, header)
            await _one_network(callers, header)
            await _stranger(callers, header)
        both = [(_x_forwarded_for(f"203.0.113.{number}"), _forwarded(f"192.0.2.{number}")) for number in range(SHARE)]
        await callers.refused(PROXY, PROXY, *both)
    finally:
        await callers.let_go()


async def _behind_the_proxy(callers: _Callers, header: Header) -> None:
    """What stands left of a caller's address was written by the caller."""
    forged = [(header(f"203.0.113.{number}"), header(CALLER)) for number in range(SHARE)]
    await callers.refused(CALLER, PROXY, *forged)
    await callers.admitted(PROXY, header(OTHER))
    await callers.let_go()


async def _one_network(callers: _Callers, header: Header) -> None:
    """A caller with one address of a network of IPv6 has all of them."""
    await callers.refused(
        f"{NETWORK}::/64", PROXY, *((header(f"{NETWORK}::{number + 1:x}"),) for number in range(MOST))
    )
    await callers.admitted(PROXY, header("2001:db8:1:3::1"))
    await callers.let_go()


async def _stranger(callers: _Callers, header: Header) -> None:
    """A stranger is not believed, and takes nothing from those whose addresses it names."""
    forged = [f"203.0.113.{number}" for number in range(SHARE)] + [CALLER, PROXY, HOST]
    await callers.refused(STRANGER, STRANGER, *((header(address),) for address in forged))
    for number in range(SHARE):
        await callers.admitted(PROXY, header(f"203.0.113.{number}"))
    await callers.let_go()
