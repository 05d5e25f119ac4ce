"""Connections of the ports of a whole gateway, more than there may be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trustme

from gateway.app import App, running
from gateway.config import ApiKeySettings
from gateway.config.service import HttpTls
from tests.ledgers import sqlite_ledger
from tests.test_app import configuration

KEYS = tuple(
    ApiKeySettings(name=name, key=f"{name}-secret", scopes=scopes)
    for name, scopes in (("root", ("admin",)), ("alice", ("broker:local-0-8",)), ("bob", ("broker:local-0-8",)))
)
HALF = b"GET /v1/brokers HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HALF + b"X-Api-Key: alice-secret\r\n\r\n"


@asynccontextmanager
async def serving(folder: Path, **http: Any) -> AsyncIterator[App]:
    """A gateway with three keys."""
    sqlite_ledger(folder / "data")
    config = configuration(folder)
    settings = msgspec.structs.replace(config.http, connections=20, head_timeout=60.0, **http)
    config = msgspec.structs.replace(config, http=settings, api_keys=KEYS)
    async with running(config) as app:
        yield app


@asynccontextmanager
async def opened(port: int, count: int, data: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that send so much, each after the one before."""
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(data)
            readers.append(reader)
        await asyncio.sleep(0.05)
        yield readers


async def ask(url: str, key: str = "", path: str = "/v1/brokers") -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=5) as client:
        return await client.get(path, headers={"x-api-key": f"{key}-secret"} if key else {})


async def test_strangers_keep_nobody_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as app:
        assert app.ports.http is not None
        for data in (b"", HALF):
            async with opened(app.ports.http, 60, data):
                for key in ("root", "alice", "bob"):
                    answer = await ask(app.url, key)
                    assert answer.status_code == 200, answer.text
                held = app.gateway.budgets["connections"].held
                assert held <= 20
        page = (await ask(app.ops_url, path="/metrics")).text
        assert 'amqpgw_budget_refusals_total{reached="dropped",resource="connections"}' in page


async def test_a_client_at_its_share_of_connections_keeps_nobody_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as app:
        assert app.ports.http is not None
        async with opened(app.ports.http, 8, WHOLE) as readers:
            answers = [await reader.readuntil(b"\r\n\r\n") for reader in readers]
            statuses = [answer[9:12] for answer in answers]
            assert statuses == [b"200"] * 5 + [b"429"] * 3
            assert b"connection: close" in answers[-1]
            assert b"budget connections: 'alice' holds 5 HTTP connections" in await readers[-1].read()
            assert (await ask(app.url, "alice")).status_code == 429
            for key in ("root", "bob"):
                assert (await ask(app.url, key)).status_code == 200
        await asyncio.sleep(0.05)
        assert (await ask(app.url, "alice")).status_code == 200


async def test_the_operations_port_answers_whoever_comes_last(tmp_path: Path) -> None:
    async with serving(tmp_path) as app, opened(app.ports.ops, 400), opened(app.ports.ops, 100, HALF):
        assert (await ask(app.ops_url, path="/livez")).status_code == 200
        assert app.gateway.budgets["ops_connections"].held <= 256
        assert (await ask(app.url, "root")).status_code == 200


async def test_handshakes_that_do_not_end_keep_nobody_out(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(pem.bytes() for pem in server.cert_chain_pems))
    key.write_bytes(server.private_key_pem.bytes())
    async with serving(tmp_path, tls=HttpTls(cert_file=str(certificate), key_file=str(key))) as app:
        assert app.ports.http is not None
        async with opened(app.ports.http, 60) as readers, httpx.AsyncClient(verify=False) as client:
            assert app.gateway.budgets["connections"].held <= 20
            assert app.gateway.budgets["connections"].held >= 16
            for reader in readers[:40]:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 1.0) == b""
            answer = await client.get(f"{app.url}/v1/brokers", headers={"x-api-key": "root-secret"})
            assert answer.status_code == 200
        for _ in range(100):
            if app.gateway.budgets["connections"].held == 0:
                break
            await asyncio.sleep(0.05)
        assert app.gateway.budgets["connections"].held == 0
