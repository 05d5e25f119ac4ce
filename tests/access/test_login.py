"""Logging in at an issuer: a code and its verifier become a token that counts, and nothing else does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from gateway.access.access import Access
from gateway.api.app import Api
from gateway.config import AccessSettings, Config, LoginSettings, TokenSettings
from gateway.core import Gateway
from gateway.errors import ConfigurationError
from gateway.ledger import Ledger
from gateway.outbound import GuardedTransport
from tests.access import test_tokens
from tests.access.test_tokens import AUDIENCE, ISSUER, KEYS, token
from tests.api.conftest import problem

transport = test_tokens.transport
VERIFIER = "v" * 43
CODE = {"code": "c-1", "code_verifier": VERIFIER, "redirect_uri": "https://gateway.example/console"}


class Issuer:
    """Its keys, and its token endpoint, which answers as a test says."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.answer: Any = {}
        self.forms: list[dict[str, list[str]]] = []
        self.held = asyncio.Event()
        self.held.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Issuer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status, body = 200, json.dumps({"keys": KEYS}).encode()
        if head.startswith("post /token "):
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            self.forms.append(parse_qs((await reader.readexactly(length)).decode()))
            await self.held.wait()
            if self.answer is None:
                writer.close()
                return
            status, body = (
                self.status,
                self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode(),
            )
        writer.write(f"HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer().serving() as issuer:
        yield issuer


def settings(issuer: Issuer, **more: Any) -> TokenSettings:
    login = {
        "client_id": "console",
        "authorize_url": "https://issuer.example/authorize",
        "token_url": f"http://127.0.0.1:{issuer.port}/token",
    }
    url = f"http://127.0.0.1:{issuer.port}/jwks"
    return TokenSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=url, login=LoginSettings(**{**login, **more}))


@pytest.fixture
async def ask(
    issuer: Issuer, transport: GuardedTransport, gateway: Gateway, ledger: Ledger
) -> AsyncIterator[httpx.AsyncClient]:
    config = Config(access=AccessSettings(tokens=settings(issuer)))
    access = Access(config, ledger, transport)
    async with access.running():
        app = httpx.ASGITransport(Api(gateway, config.http, (), access=access))
        async with httpx.AsyncClient(transport=app, base_url="http://gateway.example") as client:
            yield client


async def test_it_says_where(ask: httpx.AsyncClient) -> None:
    answer = await ask.get("/v1/login")
    assert answer.json() == {
        "authorize_url": "https://issuer.example/authorize", "client_id": "console", "scope": "openid",
    }  # fmt: skip
    assert answer.headers["cache-control"] == "no-store"


async def test_without_settings_there_is_none(gateway: Gateway, ledger: Ledger) -> None:
    app = httpx.ASGITransport(Api(gateway, Config().http, ()))
    async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as client:
        assert (await client.get("/v1/login")).json() == {"authorize_url": "", "client_id": "", "scope": ""}
        found = problem(await client.post("/v1/login", json=CODE), 422, "unsupported")
        assert "access.tokens.login" in found["detail"]


async def test_a_code_becomes_a_token_that_counts(ask: httpx.AsyncClient, issuer: Issuer) -> None:
    issuer.answer = {"access_token": token().decode(), "expires_in": 300, "token_type": "Bearer"}
    answer = await ask.post("/v1/login", json=CODE)
    assert answer.json() == {"token": issuer.answer["access_token"], "name": "jwt:shop", "expires_seconds": 300.0}
    assert answer.headers["cache-control"] == "no-store"
    assert issuer.forms == [
        {
            "grant_type": ["authorization_code"], "code": ["c-1"], "client_id": ["console"],
            "redirect_uri": ["https://gateway.example/console"], "code_verifier": [VERIFIER],
        }
    ]  # fmt: skip
    headers = {"authorization": f"Bearer {answer.json()['token']}"}
    assert (await ask.get("/v1/caller", headers=headers)).json()["name"] == "jwt:shop"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            400,
            {"error": "invalid_grant", "error_description": "used\u0007 before"},
            "(400): invalid_grant used? before",
        ),
        (500, b"<html>", "refused the login (500)"),
        (200, b"<html>", "no access_token"),
        (200, [], "no access_token"),
        (200, {"access_token": 7}, "no access_token"),
        (200, {"access_token": "opaque"}, "malformed"),
        (200, {"access_token": token(aud="somebody", exp=4_000_000_000).decode()}, "for somebody else"),
        (200, {"access_token": "x" * 9_000}, "no access_token"),
    ],
)
async def test_what_does_not_count(ask: httpx.AsyncClient, issuer: Issuer, status: int, body: Any, words: str) -> None:
    issuer.status, issuer.answer = status, body
    found = problem(await ask.post("/v1/login", json=CODE), 401, "unauthorized")
    assert words in found["detail"]


async def test_an_issuer_that_does_not_answer(ask: httpx.AsyncClient, issuer: Issuer) -> None:
    issuer.answer = None
    found = await ask.post("/v1/login", json=CODE)
    assert (found.status_code, found.headers["content-type"]) == (502, "application/problem+json"), found.text
    assert len(issuer.forms) == 1, "a code counts once, and is not sent twice"


@pytest.mark.parametrize("body", [{**CODE, "code_verifier": "short"}, {**CODE, "code": ""}, {"code": "c"}, []])
async def test_wrong_bodies(ask: httpx.AsyncClient, issuer: Issuer, body: Any) -> None:
    assert (await ask.post("/v1/login", json=body)).status_code == 422
    assert issuer.forms == []


async def test_one_that_asks_has_a_share(ask: httpx.AsyncClient, issuer: Issuer, gateway: Gateway) -> None:
    issuer.answer = {"access_token": token().decode()}
    issuer.held.clear()
    share = gateway.budgets["outbound_requests"].share
    waiting = [asyncio.create_task(ask.post("/v1/login", json=CODE)) for _ in range(share)]
    while len(issuer.forms) < share:
        await asyncio.sleep(0.01)
    problem(await ask.post("/v1/login", json=CODE), 429, "budget_exceeded")
    transport = ask._transport
    assert isinstance(transport, httpx.ASGITransport)
    transport.client = ("192.0.2.9", 1)
    waiting.append(asyncio.create_task(ask.post("/v1/login", json=CODE)))
    while len(issuer.forms) < share + 1:
        await asyncio.sleep(0.01)
    issuer.held.set()
    assert {(await each).status_code for each in waiting} == {200}
    assert gateway.budgets["outbound_requests"].held == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"authorize_url": "javascript:alert(1)"}, "authorize_url"),
        ({"token_url": "http://192.0.2.1/token"}, "token_url"),
        ({"token_url": ""}, "token_url"),
    ],
)
async def test_wrong_settings(
    issuer: Issuer, transport: GuardedTransport, ledger: Ledger, more: dict[str, str], words: str
) -> None:
    config = Config(access=AccessSettings(tokens=settings(issuer, **more)))
    with pytest.raises(ConfigurationError, match=rf"access\.tokens\.login\.{words}"):
        Access(config, ledger, transport)
    alone = Config(access=AccessSettings(tokens=TokenSettings(login=LoginSettings(client_id="console"))))
    with pytest.raises(ConfigurationError, match=r"access\.tokens\.issuer is not set"):
        Access(alone, ledger, transport)


async def test_a_reload_changes_it(issuer: Issuer, transport: GuardedTransport, ledger: Ledger) -> None:
    before = Config(access=AccessSettings(tokens=settings(issuer)))
    access = Access(before, ledger, transport)
    wrong = Config(access=AccessSettings(tokens=settings(issuer, token_url="ftp://x/")))
    with pytest.raises(ConfigurationError):
        access.reconfigure(wrong, transport, transport)
    other = Config(access=AccessSettings(tokens=settings(issuer, client_id="other")))
    assert access.reconfigure(other, transport, transport)() is not None
    assert access.login is not None
    assert access.login.settings.client_id == "other"
    none = Config(access=AccessSettings(tokens=settings(issuer, client_id="")))
    access.reconfigure(none, transport, transport)()
    assert access.login is None
