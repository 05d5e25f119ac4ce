"""The API over a gateway with a fake broker, without a port; and with what a gateway knows of callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from gateway.access.access import Access
from gateway.api.app import Api
from gateway.config import AccessSettings, ApiKeySettings, Config
from gateway.core import Gateway
from gateway.ledger import Ledger
from tests.api.conftest import client_with_keys
from tests.core.conftest import gateway, ledger, upstream

__all__ = ["client_with_keys", "gateway", "ledger", "upstream"]

ROOT = ApiKeySettings(name="root", key="root-secret", scopes=("admin",))


@pytest.fixture
async def access(ledger: Ledger) -> AsyncIterator[Access]:
    """Of a gateway whose file has one key, ``root-secret``."""
    access = Access(Config(api_keys=(ROOT,), access=AccessSettings(required="always")), ledger)
    async with access.running():
        yield access


@pytest.fixture
def ask(gateway: Gateway, access: Access) -> Callable[..., Any]:
    """``await ask("GET", path, key, json=…)``: a request under a key; without one as root."""
    api = Api(gateway, Config().http, (ROOT,), access=access)

    async def request(method: str, path: str, key: str = "root-secret", **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway.example") as client:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return await client.request(method, path, headers=headers | more.pop("headers", {}), **more)

    return request
