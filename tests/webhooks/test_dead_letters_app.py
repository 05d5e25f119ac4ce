"""Dead letters in a whole gateway: what they say of themselves when they are pulled, streamed, pushed and asked about,
and what a receiver's answer does to a message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import running
from gateway.config import load
from gateway.versions import VERSION_NAMES
from tests.webhooks.test_push_app import Hook, hook, until_settled

__all__ = ["hook"]
CLOUD = "application/cloudevents+json"


class Client(httpx.AsyncClient):
    """A client that knows the other port, too."""

    ops_url = ""


@asynccontextmanager
async def service(path: Path, **brokers: str) -> AsyncIterator[Client]:
    """A gateway with its embedded broker, and with others by name and URL."""
    tables = "".join(f'\n[brokers.{name}]\nurl = "{url}"\n' for name, url in brokers.items())
    file = path / "gateway.toml"
    file.write_text(
        f"""
        data_dir = "{path}/data"
        http.port = 0
        ops.port = 0
        embedded = {{ enabled = true, port = 0 }}
        outbound = {{ allow = ["127.0.0.1/32"] }}
        {tables}
        """
    )
    async with (
        running(load(file, {})) as app,
        Client(base_url=app.url, headers={"host": "localhost"}, trust_env=False, timeout=30) as client,
    ):
        client.ops_url = app.ops_url
        yield client


async def put(client: httpx.AsyncClient, path: str, **settings: Any) -> dict[str, Any]:
    answer = await client.put(path, json=settings)
    assert answer.status_code < 300, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


async def publish(client: httpx.AsyncClient, broker: str, queue: str, payload: str = "x", **more: Any) -> str:
    body = {"routing_key": queue, "payload": payload, "mandatory": True, **more}
    found: str = (await post(client, f"/v1/brokers/{broker}/exchanges/amq.default:publish", **body))["id"]
    return found


async def pull(client: httpx.AsyncClient, name: str, wait: float = 10) -> dict[str, Any]:
    """One message."""
    found: dict[str, Any]
    (found,) = (await post(client, f"/v1/subscriptions/{name}:pull", max_messages=1, wait=wait))["messages"]
    return found


@pytest.mark.parametrize("lease", ["broker", "ledger"])
@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_a_rejected_message_explains_itself_where_it_is_pulled_and_streamed(
    tmp_path: Path, version: str, lease: str
) -> None:
    broker = f"local-{version}"
    async with service(tmp_path) as client:
        for queue in ("orders", "dead"):
            await put(client, f"/v1/brokers/{broker}/queues/{queue}")
            await put(client, f"/v1/subscriptions/{queue}", broker=broker, queue=queue)
        settings = {"broker": broker, "queue": "orders", "lease": lease, "dead_letter_routing_key": "dead"}
        await put(client, "/v1/subscriptions/rejects", **settings)
        message_id = await publish(client, broker, "orders")
        ack_id = (await pull(client, "rejects"))["ack_id"]
        await post(client, "/v1/subscriptions/rejects:reject", ack_ids=[ack_id], reason="no such customer")

        answer = (await client.get(f"/v1/messages/{message_id}")).json()
        told = answer["dead_letter"]
        assert (told["code"], told["reason"], told["queue"]) == ("rejected", "no such customer", "orders")
        assert "confirmed at the dead-letter destination" in answer["now"]
        assert any("confirmed" in said and "dead-letter destination" in said for said in answer["story"])

        found = await pull(client, "dead")
        told = found["message"].pop("dead_letter")
        assert told.pop("at").startswith("20")
        assert told == {
            "reason": "no such customer", "code": "rejected", "exchange": "", "routing_key": "orders",
            "queue": "orders",
        }  # fmt: skip
        assert found["message"]["headers"] == {}
        await post(client, "/v1/subscriptions/dead:release", ack_ids=[found["ack_id"]])
        async with client.stream(
            "GET", "/v1/subscriptions/dead:stream", headers={"accept": "application/x-ndjson"}
        ) as (lines):
            async for line in lines.aiter_lines():
                if line and "message" in json.loads(line):
                    assert json.loads(line)["message"]["dead_letter"]["reason"] == "no such customer"
                    break


async def test_a_dead_message_of_the_ledger_explains_itself(tmp_path: Path) -> None:
    broker = "local-0-9-1"
    async with service(tmp_path) as client:
        await put(client, f"/v1/brokers/{broker}/queues/orders")
        await put(client, "/v1/subscriptions/orders", broker=broker, queue="orders", lease="ledger", max_deliveries=1)
        ids = {}
        for reason in ("no such customer", ""):
            message_id = await publish(client, broker, "orders")
            ack_id = (await pull(client, "orders"))["ack_id"]
            verb = "reject" if reason else "release"
            await post(
                client, f"/v1/subscriptions/orders:{verb}", ack_ids=[ack_id], **({"reason": reason} if reason else {})
            )
            ids[message_id] = reason
        rows = (await client.get("/v1/deliveries", params={"state": "dead"})).json()["deliveries"]
        assert len(rows) == 2
        for row in rows:
            told = row["dead_letter"]
            expected = ("rejected", "no such customer") if ids[row["message_id"]] else (
                "delivery_limit", "handed out 1 times (max_deliveries)"
            )  # fmt: skip
            assert (told["code"], told["reason"]) == expected
            assert (told["exchange"], told["routing_key"], told["queue"]) == ("", "orders", "orders")
            assert told["at"].startswith("20")
            assert (await client.get(f"/v1/deliveries/{row['id']}")).json()["dead_letter"] == told
            timeline = (await client.get(f"/v1/messages/{row['message_id']}")).json()
            assert timeline["dead_letter"] == told
            await post(client, f"/v1/deliveries/{row['id']}:retry")
            assert (await client.get(f"/v1/deliveries/{row['id']}")).json()["dead_letter"] is None
            assert (await client.get(f"/v1/messages/{row['message_id']}")).json()["dead_letter"] is None


def dead_letter_in(form: str, headers: dict[str, str], body: bytes) -> Any:
    """What a request says of its one dead letter."""
    if form == "json":
        return json.loads(body)["message"]["dead_letter"]
    if form in ("raw", "cloudevents-binary"):
        return json.loads(headers["amqp-dead-letter"])
    event = json.loads(body)
    return json.loads((event[0] if form == "cloudevents-batch" else event)["amqpdeadletter"])


@pytest.mark.parametrize("form", ["json", "raw", "cloudevents-binary", "cloudevents-structured", "cloudevents-batch"])
async def test_webhooks_say_why_a_message_is_dead_in_every_form(tmp_path: Path, hook: Hook, form: str) -> None:
    """Here the embedded broker dead-letters it, natively."""
    broker = "local-0-9-1"
    async with service(tmp_path) as client:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 1}
        await put(client, f"/v1/brokers/{broker}/queues/dead")
        await put(client, f"/v1/brokers/{broker}/queues/slow", arguments=arguments)
        await put(client, "/v1/endpoints/hook", url=f"http://127.0.0.1:{hook.port}/", format=form)
        await put(client, "/v1/subscriptions/dead", broker=broker, queue="dead", push="hook")
        alive = await publish(client, broker, "dead", "alive")
        await until_settled(client, alive)
        dead = await publish(client, broker, "slow", "dead")
        await until_settled(client, dead)
        (first, body), second = hook.got
        assert "amqp-dead-letter" not in first
        assert b"dead_letter" not in body
        assert b"amqpdeadletter" not in body
        told = dead_letter_in(form, *second)
        assert told.pop("at").startswith("20")
        assert told == {
            "reason": "its time to live ran out", "code": "expired", "exchange": "", "routing_key": "slow",
            "queue": "slow",
        }  # fmt: skip


@pytest.mark.parametrize("place", ["dead", ""])
async def test_a_receiver_may_have_a_message_dropped(tmp_path: Path, hook: Hook, place: str) -> None:
    broker = "local-0-9-1"
    hook.status, hook.head, hook.body = 422, "Webhook-Verdict: drop\r\n", b"no such customer"
    async with service(tmp_path) as client:
        for queue in ("orders", "dead"):
            await put(client, f"/v1/brokers/{broker}/queues/{queue}")
        await put(client, "/v1/endpoints/hook", url=f"http://127.0.0.1:{hook.port}/", format="raw")
        settings = {"dead_letter_routing_key": place} if place else {}
        await put(client, "/v1/subscriptions/orders", broker=broker, queue="orders", push="hook", **settings)
        message_id = await publish(client, broker, "orders")
        timeline = await until_settled(client, message_id, "dead_lettered" if place else "dead")
        assert len(hook.got) == 1
        told = timeline["dead_letter"]
        assert told["code"] == "dropped_by_receiver"
        assert told["reason"] == "422: the receiver asked to drop the message"
        assert told["queue"] == "orders"
        assert any("response body: no such customer" in said for said in timeline["story"])
        assert (await client.get("/v1/endpoints/hook")).json()["state"] == "active"
        if place:
            await put(client, "/v1/subscriptions/dead", broker=broker, queue="dead")
            found = (await pull(client, "dead"))["message"]["dead_letter"]
            assert {**found, "at": told["at"]} == told
        else:
            (row,) = (await client.get("/v1/deliveries", params={"state": "dead"})).json()["deliveries"]
            assert row["dead_letter"] == told


async def test_a_failed_attempt_keeps_what_the_receiver_said_without_secrets(tmp_path: Path, hook: Hook) -> None:
    broker = "local-0-9-1"
    secret, path = "s3cret-of-the-endpoint", "/hooks/T0123456789abcdef"
    async with service(tmp_path) as client:
        await put(client, f"/v1/brokers/{broker}/queues/orders")
        made = await put(
            client, "/v1/endpoints/hook", url=f"http://127.0.0.1:{hook.port}{path}", format="raw",
            auth={"kind": "basic", "user": "shop", "secret": secret}, headers={"x-token": "the-value-of-a-header"},
            schedule=[0, 600],
        )  # fmt: skip
        key = made["signing_keys"][0]["secret"]
        hook.status = 500
        hook.body = (
            f"bad \x1b[31m {secret} c2hvcDpzM2NyZXQtb2YtdGhlLWVuZHBvaW50 {key} {path} the-value-of-a-header".encode()
        )
        hook.body += b" \xff" + b"x" * 5_000
        await put(client, "/v1/subscriptions/orders", broker=broker, queue="orders", push="hook")
        message_id = await publish(client, broker, "orders")
        timeline = await until_settled(client, message_id, "retrying")
        (event,) = [event for event in timeline["events"] if event["kind"] == "attempt_failed"]
        kept = event["detail"]["response_body"]
        assert kept.startswith("bad \\x1b[31m " + "[redacted] " * 5 + "\\xffxxx")
        assert len(kept.encode()) <= 1_024
        assert kept.endswith("…")
        assert kept[:40] in " ".join(timeline["story"])
        for word in (secret, key, path, "the-value-of-a-header"):
            assert word not in json.dumps(timeline)


async def test_an_endpoint_that_is_in_use_cannot_be_deleted(tmp_path: Path, hook: Hook) -> None:
    broker = "local-0-9-1"
    async with service(tmp_path) as client:
        await put(client, "/v1/endpoints/hook", url=f"http://127.0.0.1:{hook.port}/", format="raw")
        for name in ("orders", "audit"):
            await put(client, f"/v1/brokers/{broker}/queues/{name}")
            await put(client, f"/v1/subscriptions/{name}", broker=broker, queue=name, push="hook")
        refused = (await client.delete("/v1/endpoints/hook")).json()
        assert (refused["status"], refused["code"]) == (409, "endpoint_in_use")
        assert refused["detail"] == "the endpoint 'hook' is in use by the subscriptions 'audit', 'orders'"
        assert (await client.get("/v1/endpoints/hook")).status_code == 200
        assert (await client.delete("/v1/subscriptions/audit")).status_code == 204
        detail = (await client.delete("/v1/endpoints/hook")).json()["detail"]
        assert detail == "the endpoint 'hook' is in use by the subscription 'orders'"
        assert (await client.delete("/v1/subscriptions/orders")).status_code == 204
        assert (await client.delete("/v1/endpoints/hook")).status_code == 204
        assert (await client.delete("/v1/endpoints/hook")).status_code == 404


async def test_an_endpoint_made_over_http_has_its_own_name_in_the_metrics(tmp_path: Path, hook: Hook) -> None:
    broker = "local-0-9-1"
    async with service(tmp_path) as client:
        await put(client, f"/v1/brokers/{broker}/queues/orders")
        await put(client, "/v1/endpoints/hook", url=f"http://127.0.0.1:{hook.port}/", format="raw")
        await put(client, "/v1/subscriptions/orders", broker=broker, queue="orders", push="hook")
        await until_settled(client, await publish(client, broker, "orders"))
        series = 'amqpgw_push_messages_total{endpoint="hook",event="delivered"} 1.0'
        assert series in (await client.get(f"{client.ops_url}/metrics")).text
        assert (await client.delete("/v1/subscriptions/orders")).status_code == 204
        assert series in (await client.get(f"{client.ops_url}/metrics")).text
        assert (await client.delete("/v1/endpoints/hook")).status_code == 204
        assert 'endpoint="hook"' not in (await client.get(f"{client.ops_url}/metrics")).text


async def why(client: httpx.AsyncClient, message_id: str, *codes: str) -> dict[str, Any]:
    """The answer about a message, once it waits for that."""
    async with asyncio.timeout(20):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/messages/{message_id}")).json()
            if [wait["code"] for wait in found["waits"]] == list(codes):
                assert all(wait["reason"] in found["now"] for wait in found["waits"])
                return found
            await asyncio.sleep(0.05)


async def retry(client: httpx.AsyncClient, delivery: str) -> None:
    """Retry a delivery now; while its last attempt is being recorded, that is refused."""
    async with asyncio.timeout(20):
        while (answer := await client.post(f"/v1/deliveries/{delivery}:retry", json={})).status_code == 409:
            await asyncio.sleep(0.05)
    assert answer.status_code < 300, answer.text


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_a_waiting_message_says_why_it_waits(tmp_path: Path, hook: Hook, lease: str) -> None:
    """Each in turn, of a message in the queue, or of one that the ledger holds since it failed once."""
    broker, url = "local-0-9-1", f"http://127.0.0.1:{hook.port}/"
    async with service(tmp_path) as client:
        await put(client, f"/v1/brokers/{broker}/queues/orders")
        message_id = await publish(client, broker, "orders")
        await why(client, message_id, "no_subscription")
        await put(client, "/v1/subscriptions/pulled", broker=broker, queue="orders", lease=lease)
        found = await why(client, message_id, "not_pulled")
        assert "gateway pull pulled" in [step["command"] for step in found["advice"]]
        await post(client, "/v1/subscriptions/pulled:pause")
        found = await why(client, message_id, "subscription_paused")
        assert "gateway subscriptions resume pulled" in [step["command"] for step in found["advice"]]
        assert (await client.delete("/v1/subscriptions/pulled")).status_code == 204

        settings = {"url": url, "format": "raw", "paused": True, "breaker_failures": 1, "schedule": [0, 600]}
        await put(client, "/v1/endpoints/hook", **settings)
        await put(client, "/v1/subscriptions/orders", broker=broker, queue="orders", push="hook", lease=lease)
        found = await why(client, message_id, "endpoint_paused")
        assert "gateway endpoints resume hook" in [step["command"] for step in found["advice"]]
        subscription = (await client.get("/v1/subscriptions/orders")).json()
        assert subscription["push_status"]["code"] == "endpoint_paused"
        assert subscription["reason"] == "paused: paused"
        await put(client, "/v1/endpoints/other", url=url, format="raw", handshake=True)
        etag = (await client.get("/v1/subscriptions/orders")).headers["etag"]
        changed = {"broker": broker, "queue": "orders", "lease": lease, "push": "other"}
        answer = await client.put("/v1/subscriptions/orders", json=changed, headers={"if-match": etag})
        assert answer.status_code == 200, answer.text
        found = await why(client, message_id, "endpoint_unverified")
        assert "gateway endpoints verify other" in [step["command"] for step in found["advice"]]
        answer = await client.put(
            "/v1/subscriptions/orders", json=changed | {"push": "hook"}, headers={"if-match": answer.headers["etag"]}
        )
        hook.status = 500
        await post(client, "/v1/endpoints/hook:resume")
        await until_settled(client, message_id, "retrying")
        found = await why(client, message_id, "breaker_open")
        assert "500" in " ".join(found["story"])
        assert "1 requests in a row failed" in found["now"]
        hook.status = 410
        await retry(client, found["owed"][0]["id"])
        await post(client, "/v1/endpoints/hook:resume")
        found = await why(client, message_id, "endpoint_disabled")
        assert "410: the endpoint is gone and says so" in found["now"]
        hook.status = 200
        await retry(client, found["owed"][0]["id"])
        await post(client, "/v1/endpoints/hook:enable")
        assert (await until_settled(client, message_id))["waits"] == []
