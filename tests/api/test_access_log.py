"""The access log: a share, every failure, an end to it, and nothing that was secret."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.api.http.access_log import LINES_MAX, PATH_MAX, AccessLog
from gateway.config import ApiKeySettings, HttpSettings
from gateway.core import Gateway
from gateway.runtime.clock import clock

SCOPE: dict[str, Any] = {"method": "GET", "raw_path": b"/v1/brokers", "client": ("192.0.2.1", 5)}


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.gateway_fields for record in caplog.records if record.message == "http.request"]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway")


async def test_a_line_says_who_what_and_how_long(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    keys = [ApiKeySettings(name="shop", key="canary-key", scopes=("admin",))]
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(access_log=1.0), keys), client=("192.0.2.1", 4711))
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"authorization": "Bearer canary-key", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    async with httpx.AsyncClient(transport=transport, base_url="http://gw.example", headers=headers) as client:
        await client.get("/v1/brokers?secret=canary-query")
        await client.get("/nowhere")
    first, second = told(caplog)
    assert 0 < first.pop("seconds") < 60
    assert first == {
        "method": "GET", "path": "/v1/brokers", "operation": "list_brokers", "status": 422,
        "connection": "192.0.2.1:4711", "client": "shop", "trace_id": trace,
    }  # fmt: skip
    assert (second["status"], second["operation"]) == (404, "none")
    assert "canary" not in caplog.text + str(first) + str(second)


async def test_off_by_default(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    transport = httpx.ASGITransport(Api(gateway, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await client.get("/v1/brokers")
    assert told(caplog) == []


def test_a_share_and_all_that_failed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    found = AccessLog(0.1, Random(7))
    for number in range(2_000):
        now[0] = number / 100
        found.tell(SCOPE, "list_brokers", 200, 0.001, None)  # type: ignore[arg-type]
    assert 150 < len(told(caplog)) < 250
    caplog.clear()
    for _ in range(20):
        found.tell(SCOPE, "list_brokers", 503, 0.001, None)  # type: ignore[arg-type]
    assert len(told(caplog)) == 20


def test_a_second_has_an_end(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    found = AccessLog(1.0)
    for _ in range(LINES_MAX + 30):
        found.tell(SCOPE, "list_brokers", 200, 0.001, None)  # type: ignore[arg-type]
    assert len(told(caplog)) == LINES_MAX
    now[0] = 6.0
    found.tell({**SCOPE, "raw_path": b"/" * 1_000}, "list_brokers", 200, 0.001, None)  # type: ignore[arg-type]
    last = told(caplog)[-1]
    assert (last["left_out"], len(last["path"])) == (30, PATH_MAX)
