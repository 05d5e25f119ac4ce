"""A whole gateway with its embedded broker, on real ports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme

from gateway import app as apps
from gateway.app import App, run, running, with_development
from gateway.broker.server import EmbeddedBroker
from gateway.config import Config, load
from gateway.errors import ConfigurationError, LedgerUnavailable
from gateway.versions import VERSION_NAMES
from tests.ledgers import sqlite_ledger

BROKERS = tuple(f"local-{name}" for name in VERSION_NAMES)


def configuration(folder: Path, **overrides: Any) -> Config:
    anywhere = {"http.port": 0, "ops.port": 0, "embedded.port": 0, "data_dir": str(folder / "data")}
    return with_development(load(None, {}, {**anywhere, **overrides}))


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    sqlite_ledger(tmp_path / "data")
    async with running(configuration(tmp_path)) as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        yield client


def queue_path(broker: str, queue: str) -> str:
    return f"/v1/brokers/{broker}/queues/{queue}"


def publish_path(broker: str, exchange: str = "amq.default") -> str:
    return f"/v1/brokers/{broker}/exchanges/{exchange}:publish"


async def subscribe(client: httpx.AsyncClient, broker: str, queue: str) -> str:
    path = f"/v1/subscriptions/{queue}-{broker}"
    response = await client.put(path, json={"broker": broker, "queue": queue})
    assert response.status_code == 201, response.text
    return path


async def pull(client: httpx.AsyncClient, path: str, count: int = 10, wait: float = 5) -> list[Any]:
    response = await client.post(f"{path}:pull", json={"max_messages": count, "wait": wait})
    assert response.status_code == 200, response.text
    messages: list[Any] = response.json()["messages"]
    return messages


# ----------------------------------------------------------------------------------------------- the main job


@pytest.mark.parametrize("source", BROKERS)
@pytest.mark.parametrize("target", BROKERS)
async def test_published_in_one_version_and_pulled_in_another(
    client: httpx.AsyncClient, source: str, target: str
) -> None:
    assert (await client.put(queue_path(source, "orders"))).status_code == 201
    body = {
        "routing_key": "orders",
        "payload": "hello",
        "mandatory": True,
        "properties": {"content_type": "text/plain", "message_id": "m-1", "priority": 3, "type": "t"},
        "headers": {"n": 1, "s": "é", "small": {"type": "int8", "value": 3}, "t": {"x": True}},
    }
    response = await client.post(publish_path(source), json=body)
    assert response.status_code == 200, response.text
    published = response.json()
    assert (published["routed"], published["durable"]) == (True, False)
    path = await subscribe(client, target, "orders")
    (item,) = await pull(client, path)
    message = item["message"]
    assert (message["id"], message["payload"], message["routing_key"]) == (published["id"], "hello", "orders")
    assert message["properties"] == {**body["properties"], "delivery_mode": 2}  # type: ignore[dict-item]
    assert message["headers"] == body["headers"]
    (result,) = (await client.post(f"{path}:acknowledge", json={"ack_ids": [item["ack_id"]]})).json()["results"]
    assert result["status"] == "SUCCESS"
    timeline = (await client.get(f"/v1/messages/{published['id']}")).json()
    assert [(event["kind"], event["broker"]) for event in timeline["events"]] == [
        ("accepted", source), ("confirmed", source), ("delivered", target), ("acknowledged", target),
    ]  # fmt: skip
    assert await pull(client, path, wait=0) == []


@pytest.mark.parametrize("broker", BROKERS)
async def test_what_a_broker_says_no_to(client: httpx.AsyncClient, broker: str) -> None:
    response = await client.post(publish_path(broker), json={"routing_key": "nowhere"})
    assert (response.status_code, response.json()["code"]) == (422, "unroutable")
    answer = (await client.post(publish_path(broker), json={"routing_key": "nowhere", "mandatory": False})).json()
    assert (answer["status"], answer["routed"]) == ("unroutable", False)
    response = await client.post(publish_path(broker, "missing"), json={"payload": "x"})
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert (await client.get(queue_path(broker, "missing"))).status_code == 404
    path = await subscribe(client, broker, "missing")
    assert (await client.post(f"{path}:pull", json={})).status_code == 404
    assert (await client.put(queue_path(broker, "q"), json={"durable": True})).status_code == 201
    assert (await client.put(queue_path(broker, "q"), json={"durable": True})).status_code == 200
    assert (await client.put(queue_path(broker, "q"), json={"durable": False})).status_code == 409
    long = {"routing_key": "q", "properties": {"type": "x" * 256}}
    response = await client.post(publish_path(broker), json=long)
    if broker != "local-0-10":  # which carries what does not fit in a header
        assert (response.status_code, response.json()["code"]) == (422, "invalid_value"), response.text
    assert (await client.post(publish_path(broker), json={"routing_key": "q"})).status_code == 200


@pytest.mark.parametrize("broker", BROKERS)
async def test_release_extend_reject(client: httpx.AsyncClient, broker: str) -> None:
    await client.put(queue_path(broker, "dead"))
    await client.put(f"/v1/brokers/{broker}/exchanges/dlx", json={"type": "fanout"})
    await client.post(f"/v1/brokers/{broker}/bindings", json={"exchange": "dlx", "queue": "dead"})
    await client.put(queue_path(broker, "work"), json={"arguments": {"x-dead-letter-exchange": "dlx"}})
    await client.post(publish_path(broker), json={"routing_key": "work", "payload": "x"})
    path = await subscribe(client, broker, "work")
    (item,) = await pull(client, path)
    extend = {"ack_ids": [item["ack_id"]], "ack_deadline_seconds": 60}
    assert (await client.post(f"{path}:modifyAckDeadline", json=extend)).json()["results"][0]["status"] == "SUCCESS"
    await client.post(f"{path}:release", json={"ack_ids": [item["ack_id"]]})
    (again,) = await pull(client, path)
    assert (again["redelivered"], again["delivery_attempt"]) == (True, None)
    response = await client.post(f"{path}:reject", json={"ack_ids": [again["ack_id"]], "reason": "bad"})
    assert response.status_code == 200, response.text
    dead = await subscribe(client, broker, "dead")
    (item,) = await pull(client, dead)
    assert item["message"]["payload"] == "x"
    events = (await client.get(f"/v1/messages/{item['message']['id']}")).json()["events"]
    assert [event["kind"] for event in events] == [
        "accepted", "confirmed", "delivered", "extended", "released", "delivered", "rejected", "delivered",
    ]  # fmt: skip


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize(
    ("name", "encoded"),
    [("a/b:c%d é", "a%2Fb%3Ac%25d%20%C3%A9"), ("é" * 127 + "x", "%C3%A9" * 127 + "x"), ("q:publish", "q%3Apublish")],
    ids=["odd", "255 octets", "verb"],
)
async def test_names_through_every_route(client: httpx.AsyncClient, broker: str, name: str, encoded: str) -> None:
    queue, exchange = queue_path(broker, encoded), f"/v1/brokers/{broker}/exchanges/{encoded}"
    assert (await client.put(queue)).json()["name"] == name
    assert (await client.put(exchange)).json()["name"] == name
    binding = {"exchange": name, "queue": name, "routing_key": name}
    assert (await client.post(f"/v1/brokers/{broker}/bindings", json=binding)).status_code == 201
    published = await client.post(f"{exchange}:publish", json={"routing_key": name, "mandatory": True})
    assert published.status_code == 200, published.text
    assert (await client.get(queue)).json()["messages"] == 1
    assert (await client.get(exchange)).status_code == 200
    subscription = "/v1/subscriptions/a%2Fb%3Ac"
    await client.put(subscription, json={"broker": broker, "queue": name})
    (item,) = await pull(client, subscription)
    assert (item["message"]["exchange"], item["message"]["routing_key"]) == (name, name)
    assert (await client.delete(f"/v1/brokers/{broker}/bindings", params=binding)).status_code == 204
    assert (await client.post(f"{queue}:purge")).status_code == 200
    assert (await client.delete(queue)).status_code == 200
    assert (await client.delete(exchange)).status_code == 204
    assert (await client.delete(subscription)).status_code == 204


@pytest.mark.parametrize("broker", BROKERS)
async def test_large_batches_and_their_order(client: httpx.AsyncClient, broker: str) -> None:
    await client.put(queue_path(broker, "many"))
    messages = [{"routing_key": "many", "payload": str(n)} for n in range(1000)]
    response = await client.post(publish_path(broker), json={"messages": messages})
    assert response.status_code == 207
    assert {item["status"] for item in response.json()["results"]} == {200}
    path = await subscribe(client, broker, "many")
    items = await pull(client, path, 1000)
    assert [item["message"]["payload"] for item in items] == [str(n) for n in range(1000)]
    results = await client.post(f"{path}:acknowledge", json={"ack_ids": [item["ack_id"] for item in items]})
    assert {item["status"] for item in results.json()["results"]} == {"SUCCESS"}


# ------------------------------------------------------------------------------------------------ over the wire


async def test_fifty_repeats_in_parallel_publish_once(client: httpx.AsyncClient) -> None:
    await client.put(queue_path("local-0-9-1", "once"))
    headers = {"idempotency-key": "k"}
    body = {"routing_key": "once"}
    responses = await asyncio.gather(
        *(client.post(publish_path("local-0-9-1"), json=body, headers=headers) for _ in range(50))
    )
    assert {response.status_code for response in responses} <= {200, 409}
    assert (await client.get(queue_path("local-0-9-1", "once"))).json()["messages"] == 1


async def test_a_stream_is_answered_while_it_is_sent(app: App) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", app.ports.http)
    head = (
        f"POST {publish_path('local-0-9-1')} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    writer.write(head.encode())
    for number in range(3):
        line = msgspec.json.encode({"payload": str(number), "mandatory": False}) + b"\n"
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        async with asyncio.timeout(20):
            while b'"status":200' not in await reader.readline():
                pass
    writer.write(b"0\r\n\r\n")
    async with asyncio.timeout(20):
        while await reader.readline() != b"0\r\n":
            pass
    writer.close()
    await writer.wait_closed()


async def test_a_caller_that_hangs_up_costs_no_message(app: App, client: httpx.AsyncClient) -> None:
    await client.put(queue_path("local-0-9-1", "q"))
    path = await subscribe(client, "local-0-9-1", "q")
    with pytest.raises(httpx.ReadTimeout):
        await client.post(f"{path}:pull", json={"wait": 60}, timeout=0.2)
    await asyncio.sleep(0.1)
    await client.post(publish_path("local-0-9-1"), json={"routing_key": "q", "payload": "kept"})
    (item,) = await pull(client, path)
    assert (item["message"]["payload"], item["redelivered"]) == ("kept", False)


async def test_cloudevents_and_raw_bodies(client: httpx.AsyncClient) -> None:
    await client.put(queue_path("local-0-10", "q"))
    path = await subscribe(client, "local-0-8", "q")
    event = {"ce-id": "1", "ce-source": "/s", "ce-specversion": "1.0", "ce-type": "t", "content-type": "text/plain"}
    raw = {"content-type": "image/png", "amqp-routing-key": "q"}
    target = publish_path("local-0-10")
    assert (await client.post(f"{target}?routing_key=q", content=b"data", headers=event)).status_code == 200
    assert (await client.post(target, content=b"\xff", headers=raw)).status_code == 200
    first, second = (item["message"] for item in await pull(client, path))
    assert (first["payload"], first["headers"]["cloudEvents_id"]) == ("data", "1")
    assert (second["payload"], second["properties"]["content_type"]) == ("/w==", "image/png")


async def test_a_head_that_never_ends(app: App) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", app.ports.http)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: ")
    writer.write(b"x" * 40_000)
    async with asyncio.timeout(20):
        try:
            assert b"400" in await reader.readline()
        except ConnectionResetError:
            pass  # the kernel's word for the same, where octets were still unread
    writer.close()


async def test_a_connection_that_says_nothing(tmp_path: Path) -> None:
    async with running(configuration(tmp_path, **{"http.head_timeout": 0.05})) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.ports.http)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_probe(client: httpx.AsyncClient) -> None:
    found = (await client.post("/v1/brokers/local-0-9-1:probe")).json()
    assert found["versions"] == list(VERSION_NAMES)


async def test_the_operations_port(app: App, client: httpx.AsyncClient) -> None:
    async with httpx.AsyncClient(base_url=app.ops_url) as ops:
        assert (await ops.get("/livez")).status_code == 200
        assert (await ops.get("/readyz")).json() == {"ready": True, "reasons": []}
        await client.post(publish_path("local-0-10"), json={"routing_key": "nowhere"})
        assert (
            'amqpgw_publishes_total{broker="local-0-10",outcome="unroutable"} 1.0' in (await ops.get("/metrics")).text
        )
        assert (await ops.get("/v1/brokers")).status_code == 404
    for path in ("/livez", "/readyz", "/metrics"):
        assert (await client.get(path)).status_code == 404


# ------------------------------------------------------------------------------------------------ start and end


async def test_a_second_start_finds_what_the_first_wrote(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    async with running(config) as app, httpx.AsyncClient(base_url=app.url) as client:
        identity = (await client.post(publish_path("local-0-8"), json={"routing_key": "nowhere"})).json()["id"]
        await subscribe(client, "local-0-8", "q")
        await client.put(queue_path("local-0-8", "q"))
        await client.post(publish_path("local-0-8"), json={"routing_key": "q"})
        (item,) = await pull(client, "/v1/subscriptions/q-local-0-8")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    async with running(config) as app, httpx.AsyncClient(base_url=app.url) as client:
        assert (await client.get(f"/v1/messages/{identity}")).json()["state"] == "unroutable"
        timeline = (await client.get(f"/v1/messages/{item['message']['id']}")).json()
        assert timeline["events"][-1]["kind"] == "released"
        response = await client.post("/v1/subscriptions/q-local-0-8:acknowledge", json={"ack_ids": [item["ack_id"]]})
        assert response.json()["results"][0]["status"] == "LEASE_LOST"


async def test_a_long_poll_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with httpx.AsyncClient(timeout=70) as client:
        async with running(configuration(tmp_path)) as app:
            client.base_url = app.url
            await client.put(queue_path("local-0-9-1", "q"))
            path = await subscribe(client, "local-0-9-1", "q")
            waiting = asyncio.create_task(client.post(f"{path}:pull", json={"wait": 60}))
            await asyncio.sleep(0.1)
            started = asyncio.get_running_loop().time()
        response = await waiting
        assert (response.status_code, response.json()) == (200, {"messages": []})
        assert asyncio.get_running_loop().time() - started < 10


async def test_brokers_of_the_configuration(tmp_path: Path) -> None:
    config = load(
        None,
        {},
        {
            "http.port": 0,
            "ops.port": 0,
            "data_dir": str(tmp_path),
            "brokers.away.url": "amqp://guest:guest@127.0.0.1:1/?version=0-9-1",
            "brokers.away.required": True,
        },
    )
    async with running(config) as app, httpx.AsyncClient(base_url=app.url) as client:
        assert app.ports.amqp is None
        assert "amqp" not in app.ports.as_dict()
        response = await client.post(publish_path("away"), json={"routing_key": "q"})
        assert (response.status_code, response.json()["code"]) == (503, "broker_unavailable")
        async with httpx.AsyncClient(base_url=app.ops_url) as ops:
            assert (await ops.get("/readyz")).status_code == 503


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ({"http.host": "0.0.0.0"}, "loopback"),
        ({"http.host": "gateway.example"}, "loopback"),
        ({"brokers.local-0-8.url": "amqp://localhost"}, "embedded broker"),
        ({"data_dir": "/dev/null/data"}, "data_dir"),
    ],
)
async def test_wrong_configurations(tmp_path: Path, overrides: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        async with running(configuration(tmp_path, **overrides)):
            pass


@pytest.mark.parametrize("setting", ["http.port", "ops.port", "embedded.port"])
async def test_a_port_that_is_taken(tmp_path: Path, setting: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match=setting):
            async with running(configuration(tmp_path, **{setting: taken.getsockname()[1]})):
                pass


async def test_two_processes_do_not_share_a_ledger(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    async with running(config):
        with pytest.raises(LedgerUnavailable):
            async with running(config):
                pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_ends_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    ports_file = tmp_path / "ports.json"
    program = (
        "import sys\n"
        "from gateway.app import serve, with_development\n"
        "from gateway.config import load\n"
        "settings = {'http.port': 0, 'ops.port': 0, 'embedded.port': 0, 'data_dir': sys.argv[1]}\n"
        "config = with_development(load(None, {}, settings))\n"
        "sys.exit(serve(config, sys.argv[2], lambda line: print(line, flush=True)))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path / "data"), str(ports_file),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
            ports = json.loads(ports_file.read_text())
            assert line.startswith(f"ready: http http://127.0.0.1:{ports['http']} ")
            assert str(ports["amqp"]) in line
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['http']}") as client:
                body = {"payload": "x", "mandatory": False}
                assert (await client.post(publish_path("local-0-9-1"), json=body)).status_code == 200
            process.send_signal(number)
            errors = await process.stderr.read()
            assert await process.wait() == 0, errors
        assert [json.loads(text)["event"] for text in errors.decode().splitlines()][-1] == "gateway.stopped"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_an_idle_gateway_is_woken_once_a_second_to_write_the_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[int] = []
    on_tick = apps._Server.on_tick

    async def counted(server: apps._Server, counter: int) -> bool:
        ticks.append(counter)
        return await on_tick(server, counter)

    monkeypatch.setattr(apps._Server, "on_tick", counted)
    async with running(configuration(tmp_path)):
        await asyncio.sleep(0.3)
    assert ticks.count(0) == 2  # both ports
    assert {tick % apps.TICKS for tick in ticks} == {0}


async def test_run_fails_before_it_is_ready(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(ConfigurationError):
        await run(configuration(tmp_path, **{"http.host": "0.0.0.0"}), ready=lines.append)
    assert lines == []


def test_urls_of_ipv6(tmp_path: Path) -> None:
    config = configuration(tmp_path, **{"http.host": "::1"})
    app = App(config, None, apps.Ports(1, 2, None), None)  # type: ignore[arg-type]
    assert app.url == "http://[::1]:1"
    assert app.ready_line() == "ready: http http://[::1]:1 ops http://127.0.0.1:2 console http://[::1]:1/console"


# -------------------------------------------------------------------------------------------- whom we call


async def test_the_gateway_does_not_call_itself(tmp_path: Path) -> None:
    allow = {"outbound.allow": ["127.0.0.0/8", "localhost"]}
    async with running(configuration(tmp_path, **allow)) as app, httpx.AsyncClient(base_url=app.url) as client:
        for port in app.ports.as_dict().values():
            response = await client.put("/v1/endpoints/self", json={"url": f"http://127.0.0.1:{port}/"})
            assert (response.status_code, response.json()["code"]) == (422, "address_denied"), response.text
            assert "this gateway itself" in response.json()["detail"]
        named = await client.put("/v1/endpoints/named", json={"url": f"http://localhost:{app.ports.http}/"})
        assert named.status_code == 201, "where a name leads is known when it is called"
        tested = (await client.post("/v1/endpoints/named:test")).json()
        assert tested["problem"]["code"] == "address_denied"
        assert "this gateway itself" in tested["problem"]["detail"]


async def test_nor_the_port_of_its_broker_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EmbeddedBroker] = []

    class Seen(EmbeddedBroker):
        async def start(self) -> None:
            await super().start()
            made.append(self)

    monkeypatch.setattr(apps, "EmbeddedBroker", Seen)
    pem = tmp_path / "server.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    settings = {"outbound.allow": ["127.0.0.1"], "embedded.tls.port": 0, "embedded.tls.cert_file": str(pem)}
    async with running(configuration(tmp_path, **settings)) as app, httpx.AsyncClient(base_url=app.url) as client:
        response = await client.put("/v1/endpoints/self", json={"url": f"https://127.0.0.1:{made[0].tls_port}/"})
        assert (response.status_code, response.json()["code"]) == (422, "address_denied"), response.text


async def test_nobody_is_called_unless_it_is_public_or_listed(
    app: App, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Loopback is listed where there is no configuration file, but for what listens there for the gateway."""
    for url in (app.url, app.ops_url, "https://10.0.0.1/", "https://169.254.169.254/", "http://example.com/"):
        response = await client.put("/v1/endpoints/x", json={"url": url})
        assert (response.status_code, response.json()["code"]) == (422, "address_denied"), response.text
    assert (await client.put("/v1/endpoints/x", json={"url": "http://127.0.0.1:1/"})).status_code == 201
    assert stat.S_IMODE((tmp_path / "data" / "secrets.key").stat().st_mode) == 0o600
