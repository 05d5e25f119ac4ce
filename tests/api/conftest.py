"""The API over a gateway with a fake broker, without a port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.config import ApiKeySettings, HttpSettings
from gateway.core import Gateway
from tests.core.conftest import gateway, ledger, upstream

__all__ = ["gateway", "ledger", "upstream"]


@pytest.fixture
def http() -> HttpSettings:
    return HttpSettings(body_max=100_000, batch_max=100)


@pytest.fixture
async def client(gateway: Gateway, http: HttpSettings) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Api(gateway, http))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def client_with_keys(gateway: Gateway) -> Callable[..., Any]:
    """``client_with_keys(scope, ...)``: a client whose key ``secret`` holds these scopes."""

    def make(*scopes: str) -> httpx.AsyncClient:
        keys = [
            ApiKeySettings(name="other", key="other-secret", scopes=("admin",)),
            ApiKeySettings(name="caller", key="secret", scopes=scopes),
        ]
        transport = httpx.ASGITransport(Api(gateway, HttpSettings(), keys))
        return httpx.AsyncClient(
            transport=transport, base_url="http://gateway.example", headers={"authorization": "Bearer secret"}
        )

    return make


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem of a response, checked for its shape."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    body: dict[str, Any] = response.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["type"] == f"/docs/errors#{code}"
    assert isinstance(body["retryable"], bool)
    assert body["outcome"] in ("not_sent", "refused", "unknown")
    assert body["title"]
    assert body["detail"]
    return body
