"""Who comes without a credential that counts: how often it may ask, and which documents it may read."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from gateway.access import rates as module
from gateway.access.access import Access
from gateway.access.rates import address_of
from gateway.api.app import Api
from gateway.config import AccessSettings, Config, HttpSettings
from gateway.core import Gateway
from gateway.ledger import Ledger
from tests.access.conftest import ROOT
from tests.api.conftest import problem

FAR = "192.0.2.7"
DOCUMENTS = ("/", "/docs", "/docs/start.js", "/docs/errors", "/openapi.json")

Make = Callable[..., Any]


@pytest.fixture
async def make(gateway: Gateway, ledger: Ledger) -> AsyncIterator[Make]:
    """``ask = await make(stranger_rate=0.5)``; ``await ask("GET", path, key, address=…)``."""
    opened: list[Any] = []

    async def make(trusted_proxies: tuple[str, ...] = (), **settings: Any) -> Any:
        http = HttpSettings(trusted_proxies=trusted_proxies)
        config = Config(api_keys=(ROOT,), access=AccessSettings(**settings), http=http)
        access = Access(config, ledger)
        running = access.running()
        await running.__aenter__()
        opened.append(running)
        api = Api(gateway, config.http, (ROOT,), access=access)

        async def ask(method: str, path: str, key: str = "", address: str = FAR, **headers: str) -> httpx.Response:
            transport = httpx.ASGITransport(api, client=(address, 1_234))
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway.example") as client:
                if key:
                    headers["authorization"] = f"Bearer {key}"
                return await client.request(method, path, headers=headers)

        return ask

    yield make
    for running in opened:
        await running.__aexit__(None, None, None)


def basic(password: str, user: str = "me") -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


# ------------------------------------------------------------------------------------------------------ rates


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [("/v1/brokers", "", 401), ("/v1/brokers", "wrong", 401), ("/docs", "", 200), ("/none", "", 404)],
)
async def test_they_are_counted_by_their_address(make: Make, path: str, key: str, status: int) -> None:
    ask = await make(stranger_rate=0.2)
    first = await ask("GET", path, key)
    assert (first.status_code, first.headers["ratelimit"][:13]) == (status, '"address";r=1')
    assert first.headers["ratelimit-policy"] == '"address";q=2;w=10'
    assert (await ask("GET", path, key)).status_code == status
    refused = await ask("GET", path, key)
    problem(refused, 429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 5
    assert refused.headers.get_list("ratelimit-policy") == ['"address";q=2;w=10']
    assert (await ask("GET", path, key, address="192.0.2.8")).status_code == status, "of another address"
    assert (await ask("GET", "/v1/brokers", "root-secret")).status_code == 200, "who has a key is not a stranger"


async def test_who_has_a_key_is_not_counted(make: Make) -> None:
    ask = await make(stranger_rate=0.1)
    for _ in range(5):
        assert "ratelimit" not in (await ask("GET", "/v1/brokers", "root-secret")).headers
    assert (await ask("GET", "/v1/brokers")).status_code == 401


async def test_loopback_is_not_counted_and_0_is_no_limit(make: Make) -> None:
    ask = await make(stranger_rate=0.1)
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        for _ in range(4):
            assert (await ask("GET", "/v1/brokers", address=address)).status_code == 401
    ask = await make(stranger_rate=0)
    assert [(await ask("GET", "/v1/brokers")).status_code for _ in range(5)] == [401] * 5


async def test_behind_a_trusted_proxy_each_caller_is_counted(make: Make, ledger: Ledger) -> None:
    ask = await make(stranger_rate=0.1, trusted_proxies=("192.0.2.0/24",))

    async def statuses(caller: str, address: str = FAR) -> list[int]:
        header = {"x-forwarded-for": f"203.0.113.1, {caller}"}
        return [(await ask("GET", "/v1/brokers", "wrong", address, **header)).status_code for _ in range(2)]

    assert await statuses("198.51.100.1") == [401, 429]
    assert await statuses("198.51.100.2") == [401, 429], "another caller of the same proxy"
    assert await statuses("2001:db8:1:2::1") == [401, 429]
    assert await statuses("2001:db8:1:2::2") == [429, 429], "of the same network"
    assert await statuses("198.51.100.3", "198.51.100.9") == [401, 429], "no proxy: it counts itself"
    assert await statuses("198.51.100.4", "198.51.100.9") == [429, 429]
    async with asyncio.timeout(10):
        while not (found := [row.document() for row in await ledger.audit.read()]):
            await asyncio.sleep(0.05)
    assert {row["address"] for row in found} >= {"198.51.100.1", "198.51.100.2", "198.51.100.9"}


async def test_strangers_are_not_remembered_without_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLERS_MAX", 3)
    ask = await make(stranger_rate=0.1)
    for number in range(10):
        assert (await ask("GET", "/v1/brokers", address=f"192.0.2.{number}")).status_code == 401
    assert (await ask("GET", "/v1/brokers", address="192.0.2.9")).status_code == 429


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7%eth0", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("127.8.8.8", ""),
        ("::1", ""),
        ("a socket", "a socket"),
        ("", ""),
    ],
)
def test_as_what_an_address_is_counted(host: str, counted: str) -> None:
    assert address_of(host) == counted


# -------------------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize("path", DOCUMENTS)
async def test_documents_are_open_unless_they_are_closed(make: Make, path: str) -> None:
    ask = await make()
    assert (await ask("GET", path)).status_code == 200
    ask = await make(documents="closed")
    refused = await ask("GET", path)
    problem(refused, 401, "unauthorized")
    assert refused.headers["www-authenticate"] == 'Basic realm="gateway"'
    assert (await ask("GET", path, "root-secret")).status_code == 200
    assert (await ask("GET", path, authorization=basic("root-secret"))).status_code == 200
    for wrong in (basic("wrong"), basic(""), "Basic", "Basic !", "Digest x"):
        problem(await ask("GET", path, authorization=wrong), 401, "unauthorized")
    problem(await ask("GET", path, "wrong"), 401, "unauthorized")


async def test_what_a_browser_sends_by_itself_opens_nothing_else(make: Make) -> None:
    ask = await make(documents="closed")
    for method, path in (("GET", "/v1/brokers"), ("POST", "/v1/keys"), ("GET", "/v1/messages")):
        refused = await ask(method, path, authorization=basic("root-secret"))
        problem(refused, 401, "unauthorized")
        assert refused.headers["www-authenticate"] == 'Bearer realm="gateway"'


async def test_keys_of_signatures_stay_open(make: Make) -> None:
    ask = await make(documents="closed")
    assert (await ask("GET", "/.well-known/webhook-keys")).status_code in (200, 422)
