"""Callers that say nothing, half a head or half a body, on real sockets: they are cut off, and others are served."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from gateway.api.http.call import _Pace
from gateway.app import running, with_development
from gateway.config import HttpSettings, load
from tests.ledgers import sqlite_ledger

HALF_HEAD = b"GET /v1/brokers HTTP/1.1\r\nHost: localhost\r\nX-Half: "
HALF_BODY = (
    b"POST /v1/brokers/local-0-9-1/exchanges/amq.default:publish HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
)


class Caller:
    """A connection that says something once, and then an octet now and then."""

    def __init__(self, said: bytes, drips: bool) -> None:
        self.said, self.drips = said, drips
        self.seconds = 0.0
        self.heard = b""

    async def call(self, port: int) -> None:
        began = monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(self.said)
        dripping = asyncio.create_task(self._drip(writer)) if self.drips else None
        try:
            self.heard = await reader.read()
        except ConnectionResetError:
            pass  # as good as an end
        self.seconds = monotonic() - began
        if dripping is not None:
            dripping.cancel()
        writer.close()

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(0.1)
            writer.write(b"x")


async def test_they_are_cut_off_and_the_others_are_served(tmp_path: Path) -> None:
    sqlite_ledger(tmp_path / "data")
    overrides: dict[str, Any] = {"http.port": 0, "ops.port": 0, "embedded.port": 0, "data_dir": str(tmp_path / "data")}
    overrides |= {"http.head_timeout": 1.0, "http.body_idle": 1.0}
    callers = [Caller(b"", False) for _ in range(100)]
    callers += [Caller(HALF_HEAD, drips) for drips in (False, True) for _ in range(50)]
    bodies = [Caller(HALF_BODY, drips) for drips in (False, True) for _ in range(20)]
    async with running(with_development(load(None, {}, overrides))) as app:
        assert app.ports.http is not None
        async with httpx.AsyncClient(base_url=app.url, timeout=20) as client, asyncio.timeout(60):
            calls = [asyncio.create_task(caller.call(app.ports.http)) for caller in (*callers, *bodies)]
            while not all(call.done() for call in calls):
                assert (await client.get("/v1/brokers")).status_code == 200
                await asyncio.sleep(0.05)
            await asyncio.gather(*calls)
    assert all(caller.heard == b"" for caller in callers)
    for caller in bodies:  # an answer is lost to the kernel's reset where octets were still on their way
        assert b" 408 " in caller.heard or (caller.drips and caller.heard == b"")
    assert max(caller.seconds for caller in (*callers, *bodies)) < 30
    assert min(caller.seconds for caller in (*callers, *bodies)) > 0.9


@pytest.mark.parametrize(
    ("octets", "since", "until", "why"),
    [
        (0, 0.0, 10.0, "body_idle"),  # nothing yet
        (1, 1.0, 10.0, "body_rate"),  # an octet a second
        (30_000, 25.0, 30.0, "body_rate"),  # as fast as it must, and then no more
        (1 << 30, 55.0, 60.0, "body_timeout"),
    ],
)
def test_the_pace_of_a_body(octets: int, since: float, until: float, why: str) -> None:
    pace = _Pace(HttpSettings())
    pace.until(110.0, "first wait at 100")
    pace.octets = octets
    found, sentence = pace.until(100.0 + since + 10.0, "body_idle")
    assert found == 100.0 + until
    assert why in sentence


def test_a_body_of_any_pace() -> None:
    pace = _Pace(HttpSettings(body_rate=0, body_timeout=1_000))
    pace.until(110.0, "")
    assert pace.until(910.0, "idle") == (910.0, "idle")


async def test_a_body_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    """256 MiB in chunks to a route that takes 1 MiB."""
    sqlite_ledger(tmp_path / "data")
    overrides: dict[str, Any] = {"http.port": 0, "ops.port": 0, "embedded.port": 0, "data_dir": str(tmp_path / "data")}
    overrides |= {"http.body_max": 1 << 20}
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    async with running(with_development(load(None, {}, overrides))) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.ports.http)
        head = HALF_BODY.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head)
        before, most = resident(), 0
        sent = 0
        try:
            for _ in range(4_096):
                writer.write(chunk)
                await writer.drain()
                most, sent = max(most, resident()), sent + 1
            assert b" 413 " in await reader.read()
        except ConnectionError:
            assert 16 <= sent < 4_096  # refused, and not read any further
        writer.close()
    assert most - before < 32 << 20


def resident() -> int:
    """Octets of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
