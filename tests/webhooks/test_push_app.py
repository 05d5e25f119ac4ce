"""Pushing in a whole gateway: configuration file, real requests over loopback, the API, and a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import App, running
from gateway.config import load


class Hook:
    """A little HTTP server that remembers what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        self.head = ""
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                assert line.startswith(b"POST "), line
                headers: dict[str, str] = {}
                while (line := await reader.readline()) != b"\r\n":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers["content-length"]))
                self.got.append((headers, body))
                head = f"HTTP/1.1 {self.status} X\r\n{self.head}content-length: {len(self.body)}\r\n\r\n"
                writer.write(head.encode() + self.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway is gone
        finally:
            writer.close()

    def bodies(self) -> list[bytes]:
        return sorted(body for _, body in self.got)


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    found = Hook()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


@asynccontextmanager
async def gateway(path: Path, hook: Hook, **settings: str) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    file = path / "gateway.toml"
    more = "\n".join(f"{name} = {value}" for name, value in settings.items())
    file.write_text(
        f"""
        data_dir = "{path}/data"
        http.port = 0
        ops.port = 0
        embedded = {{ enabled = true, port = 0 }}
        outbound = {{ allow = ["127.0.0.1/32"] }}

        [endpoints.hook]
        url = "http://127.0.0.1:{hook.port}/in"
        format = "raw"
        {more}

        [subscriptions.orders]
        broker = "local-0-9-1"
        queue = "orders"
        push = "hook"
        """
    )
    async with (
        running(load(file, {})) as app,
        httpx.AsyncClient(base_url=app.url, headers={"host": "localhost"}, trust_env=False) as client,
    ):
        (await client.put("/v1/brokers/local-0-9-1/queues/orders", json={})).raise_for_status()
        yield app, client


async def publish(client: httpx.AsyncClient, *payloads: str, **properties: Any) -> list[str]:
    ids = []
    for payload in payloads:
        body = {"routing_key": "orders", "payload": payload, "properties": properties}
        answer = await client.post("/v1/brokers/local-0-10/exchanges/amq.default:publish", json=body)
        answer.raise_for_status()
        ids.append(answer.json()["id"])
    return ids


async def until_settled(client: httpx.AsyncClient, message_id: str, state: str = "acknowledged") -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            answer = await client.get(f"/v1/messages/{message_id}")
            found: dict[str, Any] = answer.json()
            if found["state"] == state:
                return found
            await asyncio.sleep(0.02)


async def test_a_message_goes_from_one_version_to_an_endpoint_signed_and_recorded(tmp_path: Path, hook: Hook) -> None:
    async with gateway(tmp_path, hook) as (app, client):
        (message_id,) = await publish(client, "hello", content_type="text/plain", message_id="m-1")
        timeline = await until_settled(client, message_id)
        ((headers, body),) = hook.got
        assert body == b"hello"
        assert headers["content-type"] == "text/plain"
        assert headers["amqp-message-id"] == "m-1"
        assert headers["webhook-signature"].startswith("v1,")
        (event,) = [event for event in timeline["events"] if event["kind"] == "acknowledged"]
        assert event["detail"]["endpoint"] == "hook"
        assert (event["detail"]["attempt"], event["detail"]["status"]) == (1, 200)
        answer = (await client.get("/v1/subscriptions/orders")).json()
        assert answer["push_status"]["state"] == "running"
        assert answer["push_status"]["waiting"] == answer["push_status"]["dead"] == 0
        metrics = (await client.get(f"{app.ops_url}/metrics")).text
        assert 'amqpgw_push_messages_total{endpoint="hook",event="delivered"} 1.0' in metrics
        assert 'amqpgw_push_endpoint_up{endpoint="hook"} 1.0' in metrics


async def test_what_waits_for_its_next_attempt_is_there_after_a_restart(tmp_path: Path, hook: Hook) -> None:
    hook.status = 500
    async with gateway(tmp_path, hook, schedule="[0, 600]") as (_, client):
        (message_id,) = await publish(client, "hello")
        told = await until_settled(client, message_id, "retrying")
        assert "gateway endpoints test hook" in [step["command"] for step in told["advice"]]
        status = (await client.get("/v1/subscriptions/orders")).json()["push_status"]
        assert (status["waiting"], status["retrying"]) == (1, 1)
        assert status["last_error"].startswith("500")
        assert status["next_attempt_at"] is not None
        shown = (await client.get("/v1/endpoints/hook")).json()
        assert (shown["state"], shown["pending"]) == ("error", 1)
        assert shown["reason"].startswith("1 message waits, last attempt failed: 500")
        (listed,) = (await client.get("/v1/endpoints")).json()["endpoints"]
        assert (listed["state"], listed["reason"]) == ("error", shown["reason"])
    hook.status = 200
    async with gateway(tmp_path, hook, schedule="[0, 600]") as (_, client):
        shown = (await client.get("/v1/endpoints/hook")).json()
        assert (shown["state"], shown["pending"]) == ("error", 1), "a restart forgets nothing of what waits"
        status = (await client.get("/v1/subscriptions/orders")).json()["push_status"]
        assert (status["waiting"], status["retrying"]) == (1, 1)
        (delivery,) = (await client.get("/v1/deliveries?subscription=orders")).json()["deliveries"]
        answer = await client.post(f"/v1/deliveries/{delivery['id']}:retry")
        assert answer.status_code == 200, answer.text
        await until_settled(client, message_id)
        async with asyncio.timeout(20):
            while (shown := (await client.get("/v1/endpoints/hook")).json())["state"] != "active":
                await asyncio.sleep(0.02)
        assert (shown["reason"], shown["pending"]) == ("", 0)
    first, second = hook.got
    assert first[0]["webhook-id"] == second[0]["webhook-id"] == delivery["id"]
    assert first[1] == second[1] == b"hello"


async def test_the_answer_of_an_endpoint_goes_to_whoever_asked(tmp_path: Path, hook: Hook) -> None:
    hook.body = b"the answer"
    hook.head = "content-type: text/x\r\ncontent-encoding: gzip\r\n"  # which we did not ask for
    async with gateway(tmp_path, hook, reply="true") as (app, client):
        asker = app.gateway.broker("local-0-8")
        await asker.declare_queue("answers")
        (message_id,) = await publish(client, "question", reply_to="answers", correlation_id="c-1")
        timeline = await until_settled(client, message_id)
        assert "replied" in [event["kind"] for event in timeline["events"]]
        (delivery,) = await asker.fetch("answers", 1, 10.0)
        assert delivery.message.body == b"the answer"
        found = delivery.message.properties
        assert (found.correlation_id, found.content_type, found.content_encoding) == ("c-1", "text/x", "gzip")


async def test_a_subscription_whose_broker_is_not_configured_any_more_is_in_error(tmp_path: Path, hook: Hook) -> None:
    away = '[brokers.gone]\nurl = "amqp://127.0.0.1:1/"\n'
    file = tmp_path / "gateway.toml"
    embedded = "http.port = 0\nops.port = 0\nembedded = { enabled = true, port = 0 }\n"
    file.write_text(f'data_dir = "{tmp_path}/data"\n{embedded}[endpoints.hook]\nurl = "https://hook.example"\n{away}')
    async with running(load(file, {})) as app, httpx.AsyncClient(base_url=app.url, trust_env=False) as client:
        client.headers["host"] = "localhost"
        for name, push in (("pushed", "hook"), ("pulled", "")):
            body = {"broker": "gone", "queue": "orders", "push": push}
            (await client.put(f"/v1/subscriptions/{name}", json=body)).raise_for_status()
    file.write_text(file.read_text().removesuffix(away))
    async with running(load(file, {})) as app, httpx.AsyncClient(base_url=app.url, trust_env=False) as client:
        client.headers["host"] = "localhost"
        listed = (await client.get("/v1/subscriptions")).json()["subscriptions"]
        shown = [(await client.get(f"/v1/subscriptions/{name}")).json() for name in ("pulled", "pushed")]
        for found in (*listed, *shown):
            assert (found["state"], found["reason"]) == ("error", "no broker 'gone' is configured"), found["name"]
        assert len(listed) == 2
