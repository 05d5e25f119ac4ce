"""The configuration read again: all of it or nothing, and nothing under way suffers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from gateway.app import App, _reloading, running
from gateway.broker.server import EmbeddedBroker
from gateway.config import Config, EmbeddedSettings, load
from gateway.core import retired
from gateway.errors import ReloadRefused
from gateway.limits import Limits
from gateway.reload import RESTART, RULES, changes, rule_of
from tests.ledgers import sqlite_ledger
from tests.tracing.collector import collecting
from tests.upstreams.fake import until

PUBLISH = "/v1/brokers/one/exchanges/amq.default:publish"
RELOAD = "/v1/admin:reload"


class Files:
    """A configuration file, and two brokers that it may name."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.path = folder / "gateway.json"
        self.ports = ports
        self.config: dict[str, Any] = {
            "http": {"port": 0},
            "ops": {"port": 0},
            "data_dir": str(folder / "data"),
            "brokers": {"one": {"url": self.url("one")}},
        }

    def url(self, name: str, login: str = "guest:guest", version: str = "0-9-1") -> str:
        return f"amqp://{login}@127.0.0.1:{self.ports[name]}/?version={version}"

    def write(self, **settings: Any) -> None:
        """With other tables than at first."""
        self.config |= settings
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.config))
        part.replace(self.path)

    def read(self) -> Config:
        return load(self.path, {})


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    brokers = {name: EmbeddedBroker(EmbeddedSettings(port=0), Limits(close_timeout=0.5)) for name in ("one", "two")}
    for broker in brokers.values():
        await broker.start()
    sqlite_ledger(tmp_path / "data")
    files = Files(tmp_path, {name: broker.port for name, broker in brokers.items()})
    files.write()
    yield files
    for broker in brokers.values():
        await broker.stop()


@asynccontextmanager
async def gateway(files: Files) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    async with (
        running(files.read(), read=files.read) as app,
        httpx.AsyncClient(base_url=app.url, timeout=30) as client,
    ):
        for upstream in app.gateway.brokers.values():
            assert await upstream.wait_up(20), upstream.reason
        yield app, client


async def reload(client: httpx.AsyncClient, status: int = 200, **query: str) -> Any:
    answer = await client.post(RELOAD, params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


async def refused(client: httpx.AsyncClient, words: str, code: str = "reload_refused") -> Any:
    found = await reload(client, 409 if code == "restart_needed" else 422)
    assert found["code"] == code
    assert words in found["detail"], found["detail"]
    return found


async def put_queue(client: httpx.AsyncClient, *names: str, broker: str = "one") -> None:
    for name in names:
        answer = await client.put(f"/v1/brokers/{broker}/queues/{name}", json={})
        assert answer.status_code in (200, 201), answer.text


async def publish(client: httpx.AsyncClient, queue: str, *payloads: str, broker: str = "one") -> None:
    for payload in payloads:
        path = PUBLISH.replace("/one/", f"/{broker}/")
        answer = await client.post(path, json={"routing_key": queue, "payload": payload, "mandatory": True})
        assert answer.status_code == 200, answer.text


async def pull(client: httpx.AsyncClient, name: str, count: int = 10, wait: float = 5.0) -> list[Any]:
    answer = await client.post(f"/v1/subscriptions/{name}:pull", json={"max_messages": count, "wait": wait})
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["messages"]
    return found


async def acknowledge(client: httpx.AsyncClient, name: str, items: list[Any]) -> set[str]:
    body = {"ack_ids": [item["ack_id"] for item in items]}
    answer = await client.post(f"/v1/subscriptions/{name}:acknowledge", json=body)
    return {item["status"] for item in answer.json()["results"]}


async def depth(client: httpx.AsyncClient, queue: str, broker: str = "one") -> int:
    found: int = (await client.get(f"/v1/brokers/{broker}/queues/{queue}")).json()["messages"]
    return found


# ------------------------------------------------------------------------------------------------- the rules


def test_every_setting_has_a_rule_and_every_rule_a_setting() -> None:
    known = set()
    for field in msgspec.structs.fields(Config):
        known.add(field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            known |= {f"{field.name}.{inner.name}" for inner in msgspec.structs.fields(field.type)}
    assert {rule_of(setting)[0] for setting in known} == {"live", RESTART}
    assert set(RULES) <= known
    assert rule_of("http.body_max")[0] == "live"
    assert rule_of("http.port")[0] == RESTART
    assert rule_of("brokers.http")[0] == "live"


def test_what_differs() -> None:
    one = load(None, {}, {"brokers": {"a": {"url": "amqp://h/"}, "b": {"url": "amqp://h/"}}})
    two = load(
        None,
        {},
        {
            "brokers": {"a": {"url": "amqp://i/"}, "c": {"url": "amqp://h/"}},
            "http.body_max": 2048,
            "log_level": "debug",
        },
    )
    assert list(changes(one, one)) == []
    assert set(changes(one, two)) == {
        ("brokers.a", "changed"), ("brokers.b", "removed"), ("brokers.c", "added"), ("http.body_max", "changed"),
        ("log_level", "changed"),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------- all or nothing


async def test_the_same_again(files: Files) -> None:
    async with gateway(files) as (app, client):
        before = app.gateway.brokers["one"]
        found = await reload(client)
        assert found == {"status": "unchanged", "changes": [], "brokers": [], "complete": True}
        assert app.gateway.brokers["one"] is before


async def test_a_file_that_is_wrong_changes_nothing(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(files) as (app, client):
        good = files.path.read_text()
        settings, before = app.reloads.config, dict(app.gateway.brokers)
        queue = {"broker": "one", "queue": "q"}
        for wrong, words in (
            ("{", "Expecting property name"),
            (json.dumps({**files.config, "htpp": {}}), "htpp: there is no such setting; did you mean http?"),
            (json.dumps({**files.config, "subscriptions": {"s": {"broker": "nobody", "queue": "q"}}}), "no broker"),
            (json.dumps({**files.config, "bridges": {"b": {"source": queue, "target": {"broker": "one", "routing_key":
                "{nothing}"}}}}), "bridges.b"),
            (json.dumps({**files.config, "endpoints": {"e": {"url": "http://10.0.0.1/"}}}), "endpoints.e"),
            (json.dumps({**files.config, "outbound": {"allow": ["no host!"]}}), "neither a network nor a host"),
            (json.dumps({**files.config, "taps": {"t": {**queue, "log_octets": 1 << 60}}}), "taps.t"),
        ):  # fmt: skip
            files.path.write_text(wrong)
            await refused(client, words)
        files.path.unlink()
        await refused(client, "No such file")
        assert app.reloads.config is settings
        assert app.gateway.brokers == before
        assert [r.getMessage() for r in caplog.records].count("config.not_reloaded") == 8
        files.path.write_text(good)
        assert (await reload(client))["status"] == "unchanged"
        metrics = await metrics_of(app)
        assert 'amqpgw_config_reloads_total{outcome="refused"} 8.0' in metrics
        assert 'amqpgw_config_reloads_total{outcome="unchanged"} 1.0' in metrics


async def test_what_takes_a_restart_refuses_the_rest_with_it(files: Files) -> None:
    async with gateway(files) as (app, client):
        source = {"broker": "one", "queue": "a"}
        bridge = {"source": source, "target": {"broker": "one", "routing_key": "b"}}
        files.write(ledger={"intent": "always"}, http={"port": 0, "idle_timeout": 5}, bridges={"b": bridge})
        found = await refused(client, "ledger.intent", "restart_needed")
        assert [each["pointer"] for each in found["errors"]] == ["/http/idle_timeout", "/ledger/intent"]
        assert all(each["detail"] for each in found["errors"])
        assert (await client.get("/v1/bridges")).json()["bridges"] == []
        assert app.reloads.config.bridges == {}
        files.write(ledger={}, http={"port": 0}, api_keys=[{"name": "x", "key": "secret"}])
        await refused(client, "access.required", "restart_needed")


async def test_tracing_retention_and_kept_headers_count_at_once(files: Files) -> None:
    caller = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    async with gateway(files) as (app, client), collecting() as one, collecting() as two:
        ledger = app.gateway.ledger

        async def sent(name: str) -> str:
            body = {"routing_key": "q", "payload": "x", "headers": {"customer": name}}
            answer = await client.post(PUBLISH, json=body, headers=caller)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["id"])

        async def found(name: str) -> list[Any]:
            return list((await client.get("/v1/messages", params={"header": f"customer={name}"})).json()["messages"])

        await put_queue(client, "q")
        first = await sent("before")
        refused_filter = await client.get("/v1/messages", params={"header": "customer=before"})
        assert refused_filter.status_code == 422
        files.write(
            tracing={"endpoint": one.url, "interval": 0.02},
            retention={"bodies": "days", "history_days": 5},
            ledger={"headers": ["customer"]},
        )
        told = await reload(client)
        assert [each["setting"] for each in told["changes"]] == [
            "ledger.headers", "tracing.endpoint", "tracing.interval", "retention.history_days", "retention.bodies",
        ]  # fmt: skip
        second = await sent("after")
        await one.until(lambda spans: any(span.name == "publish q" for span in spans))
        assert [item["id"] for item in await found("after")] == [second]
        assert await found("before") == [], "those that are kept have the headers of their time"
        assert ledger.history.keeper._settings.history_days == 5
        assert [await ledger.history.keeps(UUID(each).bytes) for each in (first, second)] == [
            (False, False), (False, True),
        ]  # fmt: skip
        files.write(tracing={"endpoint": two.url, "interval": 0.02}, retention={}, ledger={})
        await reload(client)
        before = len(one.spans)
        third = await sent("last")
        await two.until(lambda spans: any(span.name == "publish q" for span in spans))
        assert len(one.spans) == before
        assert await ledger.history.keeps(UUID(third).bytes) == (False, False)
        files.write(tracing={"endpoint": "http://collector/", "headers_file": "/nowhere"})
        await refused(client, "tracing.headers_file: /nowhere")
        files.write(tracing={})
        await reload(client)
        assert not app.gateway.tracer.exports


async def test_taps_go_by_the_retention_of_the_same_file(files: Files) -> None:
    async with gateway(files) as (_, client):
        tap = {"broker": "one", "queue": "q", "log_octets": 64 << 20}
        await put_queue(client, "q")
        files.write(taps={"t": tap}, retention={"log_octets": 128 << 20})
        assert (await reload(client))["status"] == "applied"
        files.write(taps={"t": {**tap, "log_octets": 512 << 20}}, retention={"log_octets": 1 << 30})
        assert (await reload(client))["status"] == "applied"
        files.write(retention={"log_octets": 256 << 20})
        await refused(client, "log_octets")


async def test_a_dry_run_changes_nothing(files: Files) -> None:
    async with gateway(files) as (app, client):
        before = app.gateway.brokers["one"]
        files.write(brokers={"one": {"url": files.url("one", version="0-10")}, "two": {"url": files.url("two")}})
        found = await reload(client, dry_run="1")
        assert found["status"] == "checked"
        assert [(each["setting"], each["change"]) for each in found["changes"]] == [
            ("brokers.one", "changed"), ("brokers.two", "added"),
        ]  # fmt: skip
        assert next((each["name"], each["state"]) for each in found["brokers"]) == ("one", "up")
        assert app.gateway.brokers == {"one": before}
        assert len(app.gateway.retired) == 0
        files.write(brokers={"one": {"url": files.url("one", "guest:wrong")}})
        answer = await reload(client, 422, dry_run="1")
        assert "it is up, and would not be" in answer["detail"]
        assert "wrong" not in answer["detail"]


async def test_without_a_file_there_is_nothing_to_read(tmp_path: Path) -> None:
    sqlite_ledger(tmp_path)
    config = load(None, {}, {"http.port": 0, "ops.port": 0, "data_dir": str(tmp_path)})
    async with running(config) as app, httpx.AsyncClient(base_url=app.url) as client:
        await refused(client, "without a configuration")
        with pytest.raises(ReloadRefused):
            await app.reloads.reload()


# -------------------------------------------------------------------------------------------- what may change


async def test_bounds_rates_and_levels(files: Files) -> None:
    files.write(api_keys=[{"name": "root", "key": "old-key"}], log_level="warning")
    async with gateway(files) as (app, client):
        client.headers["x-api-key"] = "old-key"
        assert (await client.get("/v1/brokers")).status_code == 200
        files.write(
            api_keys=[{"name": "root", "key": "new-key"}, {"name": "reader", "key": "r", "scopes": ["history"]}],
            http={"port": 0, "body_max": 1024, "head_timeout": 3, "leases_max": 1, "confirm_timeout": 7},
            access={"rate": 0.5, "burst": 3},
            log_level="info",
        )
        found = await reload(client)
        assert {each["setting"] for each in found["changes"]} == {
            "api_keys", "http.body_max", "http.head_timeout", "http.leases_max", "http.confirm_timeout", "access.rate",
            "access.burst", "log_level",
        }  # fmt: skip
        assert logging.getLogger("gateway").level == logging.INFO
        assert (await client.get("/v1/brokers")).status_code == 401
        client.headers["x-api-key"] = "new-key"
        assert (await client.post(PUBLISH, content=b"x" * 2000)).status_code == 413
        assert app.gateway.confirm_timeout == 7
        assert (await client.get("/v1/brokers")).headers["ratelimit-policy"] == '"caller";q=3;w=6'
        assert (await client.get("/v1/brokers")).status_code == 200
        assert (await client.get("/v1/brokers")).status_code == 429
        client.headers["x-api-key"] = "r"
        assert (await client.get("/v1/messages")).status_code == 200
        assert (await client.post(RELOAD)).status_code == 403


async def test_issuers_and_certificates_of_callers(files: Files) -> None:
    files.write(api_keys=[{"name": "root", "key": "k"}])
    tokens = {"issuer": "https://login.example", "audience": "us", "jwks_url": "https://login.example/jwks"}
    async with gateway(files) as (app, client):
        client.headers["x-api-key"] = "k"
        access = app.reloads._running.access
        assert access.tokens is None
        files.write(access={"tokens": {**tokens, "jwks_url": "http://10.0.0.1/jwks"}})
        await refused(client, "access.tokens.jwks_url")
        files.write(access={"certificates": [{"client": "x", "name": "CN:x", "scopes": ["history"]}]})
        await refused(client, "http.tls.client_ca_file")
        files.write(access={"tokens": tokens})
        assert [each["setting"] for each in (await reload(client))["changes"]] == ["access.tokens"]
        first = access.tokens
        assert first is not None
        token = {"authorization": "Bearer eyJhbGciOiJub25lIn0.e30.x"}
        async with httpx.AsyncClient(base_url=app.url) as stranger:
            found = await stranger.get("/v1/brokers", headers=token)
        assert found.status_code == 401
        assert 'error="invalid_token"' in found.headers["www-authenticate"]
        # With the guard as it will be: an issuer of one's own is allowed by the same file that names it.
        files.write(
            access={"tokens": {**tokens, "jwks_url": "http://10.0.0.1/jwks"}}, outbound={"allow": ["10.0.0.0/8"]}
        )
        assert (await reload(client))["status"] == "applied"
        assert access.tokens not in (None, first)
        files.write(access={})
        assert (await reload(client))["status"] == "applied"
        assert access.tokens is None


async def test_a_key_in_a_file_that_has_changed(files: Files, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("first")
    files.write(api_keys=[{"name": "root", "key_file": str(key)}])
    async with gateway(files) as (_, client):
        client.headers["x-api-key"] = "first"
        key.write_text("second")
        assert (await reload(client))["status"] == "unchanged"
        assert (await client.post(RELOAD)).status_code == 401
        client.headers["x-api-key"] = "second"
        assert (await reload(client))["status"] == "unchanged"


async def test_subscriptions_bridges_and_taps_come_change_and_go(files: Files) -> None:
    async with gateway(files) as (_, client):
        await put_queue(client, "a", "b", "c", "d")
        await publish(client, "a", "1", "2")
        bridge = {"source": {"broker": "one", "queue": "a"}, "target": {"broker": "one", "routing_key": "b"}}
        files.write(
            subscriptions={"s": {"broker": "one", "queue": "b"}},
            bridges={"move": bridge},
            taps={"t": {"broker": "one", "queue": "c"}},
        )
        found = await reload(client)
        assert (found["status"], found["complete"]) == ("applied", True)
        assert sorted(item["message"]["payload"] for item in await pull(client, "s", 2)) == ["1", "2"]
        assert (await client.get("/v1/bridges/move")).json()["state"] == "running"
        assert (await client.get("/v1/taps/t")).json()["state"] in ("running", "starting")
        assert (await client.put("/v1/subscriptions/s", json={"broker": "one", "queue": "d"})).status_code == 409
        # Paused over HTTP, which the file does not undo; and moved elsewhere.
        assert (await client.post("/v1/bridges/move:pause")).status_code == 200
        bridge["target"] = {"broker": "one", "routing_key": "d"}
        files.write(bridges={"move": bridge}, subscriptions={"s": {"broker": "one", "queue": "d"}}, taps={})
        assert (await reload(client))["complete"]
        assert (await client.get("/v1/taps/t")).status_code == 404
        assert (await client.get("/v1/bridges/move")).json()["state"] == "paused"
        await publish(client, "a", "3")
        assert (await client.post("/v1/bridges/move:resume")).status_code == 200
        (item,) = await pull(client, "s", 1)
        assert item["message"]["payload"] == "3"
        files.write(bridges={}, subscriptions={})
        assert (await reload(client))["complete"]
        assert (await client.get("/v1/bridges/move")).status_code == 404
        assert (await client.get("/v1/subscriptions/s")).status_code == 404
        await publish(client, "a", "4")
        await asyncio.sleep(0.2)
        assert await depth(client, "a") == 1


async def test_own_queues_follow_their_bindings(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """Bound anew before it is unbound; that of a subscription that is taken out stays."""
    own = {"broker": "one", "exchange": "amq.direct", "binding_key": "old"}
    files.write(subscriptions={"s": own})
    async with gateway(files) as (_, client):
        await until_found(client, "gateway.subscription.s")
        files.write(subscriptions={"s": {**own, "binding_key": "new"}})
        assert (await reload(client))["complete"]
        path = "/v1/brokers/one/exchanges/amq.direct:publish"
        answers = [await client.post(path, json={"routing_key": key}) for key in ("new", "old")]
        assert [answer.status_code for answer in answers] == [200, 422]
        files.write(subscriptions={})
        with caplog.at_level(logging.WARNING, "gateway"):
            assert (await reload(client))["complete"]
        assert "subscription.queue_left" in [r.getMessage() for r in caplog.records]
        assert (await client.post(path, json={"routing_key": "new"})).json()["routed"]
        assert await depth(client, "gateway.subscription.s") == 2


async def metrics_of(app: App) -> str:
    async with httpx.AsyncClient(base_url=app.ops_url) as client:
        return (await client.get("/metrics")).text


async def until_found(client: httpx.AsyncClient, queue: str) -> None:
    async with asyncio.timeout(10):
        while (await client.get(f"/v1/brokers/one/queues/{queue}")).status_code != 200:
            await asyncio.sleep(0.02)


async def test_endpoints_come_change_and_go(files: Files) -> None:
    came: list[tuple[str, str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length:")[2].split()[0])
        body = await reader.readexactly(length)
        came.append((head.split()[1], body.decode()))
        writer.write(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, gateway(files) as (_, client):
        await put_queue(client, "a")
        files.write(
            outbound={"allow": ["127.0.0.1"]},
            endpoints={"e": {"url": f"{url}/first", "format": "raw"}},
            subscriptions={"s": {"broker": "one", "queue": "a", "push": "e"}},
        )
        assert (await reload(client))["complete"]
        assert (await client.get("/v1/endpoints/e")).json()["state"] == "active"
        await publish(client, "a", "1")
        await until(lambda: came == [("/first", "1")], 10.0)
        keys = (await client.get("/v1/endpoints/e")).json()["signing_keys"]
        files.write(endpoints={"e": {"url": f"{url}/second", "format": "raw", "signing": ["v1", "v1a"]}})
        assert (await reload(client))["complete"]
        await publish(client, "a", "2")
        await until(lambda: came[1:] == [("/second", "2")], 10.0)
        now = (await client.get("/v1/endpoints/e")).json()["signing_keys"]
        assert len(now) == 2
        assert keys[0] in now
        # Whom the guard does not allow any more is refused, as long as the file names it; both together go.
        files.write(outbound={})
        await refused(client, "endpoints.e")
        files.write(endpoints={}, subscriptions={})
        assert (await reload(client))["complete"]
        assert (await client.get("/v1/endpoints/e")).status_code == 404
        answer = await client.put("/v1/endpoints/other", json={"url": f"{url}/x"})
        assert answer.json()["code"] == "address_denied"


# --------------------------------------------------------------------------------------------------- brokers


async def test_what_is_out_is_settled_where_it_was_taken(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired, "REST", 0.2)
    monkeypatch.setattr(retired, "LOOK_EVERY", 0.05)
    async with gateway(files) as (app, client):
        await put_queue(client, "a")
        await client.put("/v1/subscriptions/s", json={"broker": "one", "queue": "a"})
        await publish(client, "a", "1", "2", "3")
        before = app.gateway.brokers["one"]
        items = await pull(client, "s", 2)
        waiting = asyncio.create_task(pull(client, "s", 10))
        assert len(await waiting) == 1
        files.write(brokers={"one": {"url": files.url("one", version="0-10")}})
        assert [(each["name"], each["state"]) for each in (await reload(client))["brokers"]] == [("one", "up")]
        after = app.gateway.brokers["one"]
        assert after is not before
        assert (await client.get("/v1/brokers/one")).json()["version"] == "0-10"
        await asyncio.sleep(0.5)
        assert len(app.gateway.retired) == 1, "three messages are out"
        assert await acknowledge(client, "s", items) == {"SUCCESS"}
        await publish(client, "a", "4")
        assert [item["message"]["payload"] for item in await pull(client, "s", 1)] == ["4"]
        assert await acknowledge(client, "s", waiting.result()) == {"SUCCESS"}
        await until(lambda: not len(app.gateway.retired), 10.0)
        assert before.state.value == "closed"
        metrics = await metrics_of(app)
        assert 'amqpgw_broker_up{broker="one"} 1.0' in metrics


async def test_a_stream_of_messages_stays_in_order(files: Files) -> None:
    """What was sent over the old link and is not confirmed yet is not overtaken over the new one."""
    count = 2_000
    async with gateway(files) as (app, client):
        await put_queue(client, "a")
        before = app.gateway.brokers["one"]
        used: set[bool] = set()

        async def lines() -> AsyncIterator[bytes]:
            for number in range(count):
                message = {"routing_key": "a", "payload": str(number), "mandatory": True}
                yield json.dumps(message).encode() + b"\n"
                if number % 50 == 0:
                    await asyncio.sleep(0)
                    used.add(app.gateway.brokers["one"] is before)
                if number == count // 4:
                    files.write(brokers={"one": {"url": files.url("one", version="0-10")}})
                    reloading.append(asyncio.create_task(reload(client)))
                if number == count * 3 // 4:
                    await reloading[0]

        reloading: list[asyncio.Task[Any]] = []
        answer = await client.post(PUBLISH, content=lines(), headers={"content-type": "application/x-ndjson"})
        results = [json.loads(line) for line in answer.text.splitlines()]
        assert [result["status"] for result in results] == [200] * count
        assert used == {True, False}
        await client.put("/v1/subscriptions/s", json={"broker": "one", "queue": "a"})
        found: list[int] = []
        while len(found) < count:
            items = await pull(client, "s", 500)
            found += [int(item["message"]["payload"]) for item in items]
            assert await acknowledge(client, "s", items) == {"SUCCESS"}
        assert found == list(range(count))
        assert app.gateway._orders == {}


async def test_a_broker_that_is_up_stays_up(files: Files) -> None:
    async with gateway(files) as (app, client):
        before = app.gateway.brokers["one"]
        for url in (files.url("one", "guest:wrong"), "amqp://guest:guest@127.0.0.1:9/?version=0-9-1"):
            files.write(brokers={"one": {"url": url, "connect_timeout": 1.0}})
            await refused(client, "brokers.one: it is up, and would not be")
            assert app.gateway.brokers["one"] is before
            assert before.state.value == "up"
        # One that is new may be away.
        files.write(
            brokers={"one": {"url": files.url("one")}, "far": {"url": "amqp://guest:guest@127.0.0.1:9/?version=0-8"}}
        )
        assert (await reload(client))["status"] == "applied"
        assert (await client.get("/v1/brokers/far")).json()["state"] in ("connecting", "down")


async def test_a_broker_goes_unless_it_is_in_use(files: Files) -> None:
    files.write(brokers={"one": {"url": files.url("one")}, "two": {"url": files.url("two")}})
    async with gateway(files) as (app, client):
        await put_queue(client, "a")
        await put_queue(client, "a", broker="two")
        bridge = {"source": {"broker": "one", "queue": "a"}, "target": {"broker": "two", "routing_key": "a"}}
        assert (await client.put("/v1/bridges/b", json=bridge)).status_code == 201
        files.write(brokers={"one": {"url": files.url("one")}})
        await refused(client, "brokers.two: the bridge 'b' of the ledger works with it")
        assert (await client.delete("/v1/bridges/b", headers={"if-match": "*"})).status_code == 204
        assert [each["change"] for each in (await reload(client))["changes"]] == ["removed"]
        assert (await client.get("/v1/brokers/two")).status_code == 404
        metrics = await metrics_of(app)
        assert 'broker="two"' not in [line for line in metrics.splitlines() if "broker_up" in line]
        await publish(client, "a", "1")


async def test_whoever_works_with_a_broker_begins_anew(files: Files) -> None:
    """A bridge, a tap, and a subscription in order, none of which has changed itself."""
    files.write(brokers={"one": {"url": files.url("one")}, "two": {"url": files.url("two")}})
    async with gateway(files) as (app, client):
        await put_queue(client, "a", "b", "c")
        await put_queue(client, "a", broker="two")
        bridge = {"source": {"broker": "one", "queue": "a"}, "target": {"broker": "two", "routing_key": "a"}}
        assert (await client.put("/v1/bridges/b", json=bridge)).status_code == 201
        assert (await client.put("/v1/taps/t", json={"broker": "one", "queue": "b"})).status_code == 201
        ordered = {"broker": "one", "queue": "c", "lease": "ledger", "order_key": "routing_key"}
        assert (await client.put("/v1/subscriptions/o", json=ordered)).status_code == 201
        await client.put("/v1/subscriptions/far", json={"broker": "two", "queue": "a"})
        for round in ("1", "2", "3"):
            version = {"1": "0-10", "2": "0-8", "3": "0-9-1"}[round]
            files.write(brokers={name: {"url": files.url(name, version=version)} for name in ("one", "two")})
            assert (await reload(client))["complete"]
            for queue in ("a", "b", "c"):
                await publish(client, queue, round)
            (item,) = await pull(client, "far", 1)
            assert item["message"]["payload"] == round
            (item,) = await pull(client, "o", 1)
            assert await acknowledge(client, "o", [item]) == {"SUCCESS"}
            tap = app.gateway.brokers["one"]
            async with asyncio.timeout(10):
                while (await client.get("/v1/taps/t")).json()["spooled"] < int(round):
                    await asyncio.sleep(0.05)
            assert tap.status().leases <= 1
        assert (await client.get("/v1/bridges/b")).json()["source_version"] == "0-9-1"


async def test_there_is_an_end_to_brokers_of_before(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired, "RETIRED_MAX", 2)
    async with gateway(files) as (app, client):
        for prefetch in (1, 2):
            files.write(brokers={"one": {"url": files.url("one"), "publish_channels": prefetch}})
            assert (await reload(client))["status"] == "applied"
        files.write(brokers={"one": {"url": files.url("one"), "publish_channels": 3}})
        answer = await reload(client, 503)
        assert answer["code"] == "overloaded"
        assert len(app.gateway.retired) == 2
        assert app.reloads.config.brokers["one"].publish_channels == 2


# ---------------------------------------------------------------------------------------------------- signal


async def test_sighup(files: Files, tmp_path: Path) -> None:
    ports_file = tmp_path / "ports.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--config", str(files.path), "--ports-file", str(ports_file),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None

    async def event(name: str) -> dict[str, Any]:
        assert process.stderr is not None
        while True:
            line = json.loads(await process.stderr.readline())
            if line["event"] == name:
                return dict(line)

    try:
        async with asyncio.timeout(60):
            await process.stdout.readline()
            files.write(subscriptions={"s": {"broker": "one", "queue": "b"}})
            process.send_signal(signal.SIGHUP)
            assert (await event("config.reloaded"))["changed"] == ["subscriptions.s added"]
            good = files.path.read_text()
            files.path.write_text("{")
            process.send_signal(signal.SIGHUP)
            assert (await event("config.not_reloaded"))["code"] == "configuration"
            url = f"http://127.0.0.1:{json.loads(ports_file.read_text())['http']}"
            async with httpx.AsyncClient(base_url=url) as client:
                assert (await client.get("/v1/subscriptions/s")).status_code == 200
                files.path.write_text(good)
                assert (await reload(client))["status"] == "unchanged"
            process.send_signal(signal.SIGTERM)
            await process.stderr.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_sighup_is_in_the_audit_log(files: Files) -> None:
    """As the request is; not where nothing came of it."""
    files.write(api_keys=[{"name": "root", "key": "key"}])
    async with gateway(files) as (app, _), _reloading(app):
        audit = app.gateway.ledger.audit
        before = len(await audit.read())
        good = files.path.read_text()
        files.path.write_text("{")
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.2)
        files.path.write_text(good)
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(30):
            while not (rows := (await audit.read())[before:]):
                await asyncio.sleep(0.02)
        (row,) = (row.document() for row in rows)
        assert (row["action"], row["object"], row["result"]) == ("reload_configuration", "SIGHUP", 200)


# --------------------------------------------------------------------------------------------------- several


@pytest.mark.broker
async def test_processes_are_reloaded_one_by_one(files: Files, postgresql_ledger: str) -> None:
    """They tell each other that they differ, and work that is one's stays one's."""
    files.config["ledger"] = {"url": postgresql_ledger}
    files.write()
    async with gateway(files) as (one, first), gateway(files) as (two, second):
        await put_queue(first, "a", "b", "c")
        await agree(one, two, differing=0)
        bridge = {"source": {"broker": "one", "queue": "a"}, "target": {"broker": "one", "routing_key": "b"}}
        files.write(bridges={"move": bridge})
        assert (await reload(first))["complete"]
        await agree(one, two, differing=1)
        assert (await reload(second))["complete"]
        await agree(one, two, differing=0)
        await publish(second, "a", "1", "2")
        async with asyncio.timeout(20):
            while await depth(first, "b") < 2:
                await asyncio.sleep(0.05)
        assert sum(app.gateway.ownership.owns("bridge", "move") for app in (one, two)) == 1
        # Whoever owns it reads it again.
        bridge["target"]["routing_key"] = "c"
        files.write(bridges={"move": bridge})
        for client in (first, second):
            assert (await reload(client))["complete"]
        await publish(first, "a", "3")
        async with asyncio.timeout(20):
            while await depth(first, "c") < 1:
                await asyncio.sleep(0.05)
        assert await depth(first, "b") == 2
        files.write(bridges={})
        for client in (first, second):
            assert (await reload(client))["complete"]
        async with asyncio.timeout(20):
            while (await first.get("/v1/bridges")).json()["bridges"]:
                await asyncio.sleep(0.05)


async def agree(*apps: App, differing: int) -> None:
    """Each knows how many of the others have another configuration."""
    async with asyncio.timeout(20):
        for app in apps:
            while f"amqpgw_cluster_config_differs {differing}.0" not in await metrics_of(app):
                await asyncio.sleep(0.05)


async def test_the_file_and_the_ledger_name_the_same_broker(files: Files) -> None:
    """The file wins; when it names the broker no more, that of the ledger takes its place without a gap."""
    files.write(outbound={"broker_allow": ["127.0.0.0/8"]})
    async with gateway(files) as (app, client):
        in_ledger = await client.put("/v1/brokers/extra", json={"url": files.url("two"), "heartbeat": 7})
        assert in_ledger.status_code == 201, in_ledger.text
        files.write(brokers={**files.config["brokers"], "extra": {"url": files.url("one")}})
        assert (await reload(client))["status"] == "applied"
        shown = (await client.get("/v1/brokers/extra")).json()
        assert (shown["read_only"], shown["port"]) == (True, files.ports["one"])
        refused_put = await client.patch("/v1/brokers/extra", json={"heartbeat": 8}, headers={"if-match": "*"})
        assert (refused_put.status_code, refused_put.json()["code"]) == (409, "read_only")
        subscription = await client.put("/v1/subscriptions/s", json={"broker": "extra", "queue": "q"})
        assert subscription.status_code == 201, subscription.text
        before = dict(app.gateway.brokers)
        files.write(brokers={"one": files.config["brokers"]["one"]})
        assert (await reload(client, dry_run="1"))["status"] == "checked"
        assert app.gateway.brokers == before
        assert (await reload(client))["status"] == "applied"
        shown = (await client.get("/v1/brokers/extra")).json()
        assert (shown["read_only"], shown["port"], shown["settings"]["heartbeat"]) == (False, files.ports["two"], 7)
        assert (await client.delete("/v1/brokers/extra")).json()["code"] == "broker_in_use"
        assert (await client.delete("/v1/subscriptions/s")).status_code == 204
        assert (await client.delete("/v1/brokers/extra")).status_code == 204


async def test_what_brokers_over_http_may_name_is_read_again(files: Files) -> None:
    async with gateway(files) as (_, client):
        settings = {"url": files.url("two")}
        denied = await client.put("/v1/brokers/extra", json=settings)
        assert (denied.status_code, denied.json()["code"]) == (422, "address_denied")
        files.write(outbound={"broker_allow": ["127.0.0.1"]})
        assert (await reload(client))["status"] == "applied"
        assert (await client.put("/v1/brokers/extra", json=settings)).status_code == 201
        files.write(outbound={"broker_allow": ["nonsense/99"]})
        await refused(client, "outbound broker_allow: 'nonsense/99'")
