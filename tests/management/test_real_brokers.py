"""``GET /v1/queues`` over real brokers, with their management and without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.config import BrokerSettings
from gateway.management import ManagementProblem, inventory, rabbitmq, read_queues
from tests.management.conftest import Serve, pages, read
from tests.servers import BrokerJ, RabbitMQ

pytestmark = pytest.mark.broker
Name = Callable[[str], str]


def management_of(server: Any) -> str:
    """Where the management API of a server is."""
    return f"http://127.0.0.1:{server.state.ports['http' if isinstance(server, BrokerJ) else 'management']}"


async def until(client: httpx.AsyncClient, name: str, check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The row of a queue, once it is as expected: statistics come late."""
    for _ in range(100):
        rows = (await read(client, search=name, broker="peer"))["queues"]
        if rows and check(rows[0]):
            return dict(rows[0])
        await asyncio.sleep(0.3)
    raise AssertionError(rows)


@pytest.mark.parametrize("kind", ["rabbitmq-4.0", "rabbitmq-3.10", "brokerj"])
async def test_all_queues_with_their_figures(
    kind: str, request: pytest.FixtureRequest, serve: Serve, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "KEPT_SECONDS", 0.2)
    server: Any = request.getfixturevalue(kind)
    settings = {"url": server.url("0-9-1"), "management": management_of(server)}
    queue, other = unique_name("figures"), unique_name("other's")
    if kind == "brokerj":
        server.create_queue(other, alternateBinding={"destination": "amq.fanout"})
    else:
        server.api(
            "PUT", f"queues/%2F/{other}", {"durable": True, "arguments": {"x-dead-letter-exchange": "amq.fanout"}}
        )
    try:
        async with serve({"brokers.peer": settings}) as (app, client):
            assert await app.gateway.brokers["peer"].wait_up(20)
            path = "/v1/brokers/peer"
            assert (await client.put(f"{path}/queues/{queue}", json={"durable": True})).status_code == 201
            body = {"messages": [{"routing_key": queue, "payload": "four"}] * 5}
            assert (await client.post(f"{path}/exchanges/amq.default:publish", json=body)).status_code == 207
            await client.put(f"/v1/subscriptions/{queue}", json={"broker": "peer", "queue": queue})
            pulled = await client.post(f"/v1/subscriptions/{queue}:pull", json={"max_messages": 2, "wait": 5})
            assert len(pulled.json()["messages"]) == 2
            row = await until(client, queue, lambda row: row["unacknowledged"] == 2 and row["consumers"] is not None)
            assert (row["depth"], row["ready"], row["durable"], row["exclusive"]) == (5, 3, True, False)
            assert (row["type"], row["state"]) == (
                ("standard", "active") if kind == "brokerj" else ("classic", "running")
            )
            assert isinstance(row["consumers"], int)
            if kind != "brokerj":
                await until(client, queue, lambda row: row["bytes"] == 20)
                assert (await until(client, queue, lambda row: row["publish_rate"] is not None))["publish_rate"] >= 0
            mine = await until(client, other, lambda row: row["depth"] == 0)
            assert (mine["dead_letters"], mine["dead_letter_exchange"]) == (True, "amq.fanout"), (
                "the gateway did not declare it"
            )
            (broker,) = (await read(client))["brokers"]
            assert (broker["source"], broker["partial"], broker["reason"]) == ("management", False, "")
            names = {row["name"] for row in await pages(client, limit=7)}
            assert {queue, other} <= names
            assert (await client.delete(f"{path}/queues/{queue}")).status_code == 200
    finally:
        server.delete_queue(other)


@pytest.mark.parametrize("kind", ["rabbitmq-4.0", "rabbitmq-3.10", "brokerj"])
async def test_what_is_wrong_is_said(kind: str, request: pytest.FixtureRequest) -> None:
    server: Any = request.getfixturevalue(kind)
    url = management_of(server)

    async def reason(management: str, amqp: str = server.url("0-9-1")) -> str:
        with pytest.raises(ManagementProblem) as caught:
            await read_queues("peer", BrokerSettings(url=amqp, management=management))
        return caught.value.reason

    assert "refuses the login (401)" in await reason(url.replace("://", "://guest:wrong@"))
    parts = urlsplit(server.url("0-9-1"))
    missing = await reason(url, parts._replace(path="/no-such-host", query="").geturl())
    assert "virtual host 'no-such-host'" in missing
    assert "cannot be reached" in await reason(f"http://127.0.0.1:{server.port}"), "that is AMQP"


@pytest.mark.parametrize("kind", ["rabbitmq-4.0", "rabbitmq-3.10"])
async def test_rabbitmq_answers_in_the_types_that_are_read_at_once(
    kind: str, request: pytest.FixtureRequest, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = request.getfixturevalue(kind)
    plain, quorum = unique_name("plain"), unique_name("quorum")
    arguments = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "late"}
    server.api("PUT", f"queues/%2F/{plain}", {"durable": True, "arguments": arguments})
    server.api("PUT", f"queues/%2F/{quorum}", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    monkeypatch.delattr(rabbitmq, "row_of")  # which takes any types, and ten times as long
    try:
        settings = BrokerSettings(url=server.url("0-9-1"), management=management_of(server))
        found = {row.name: row for row in (await read_queues("peer", settings)).rows}
    finally:
        server.delete_queue(plain)
        server.delete_queue(quorum)
    told = found[plain]
    assert (told.dead_letters, told.dead_letter_exchange, told.dead_letter_routing_key) == (True, "amq.fanout", "late")
    assert (found[quorum].type, found[quorum].durable) == ("quorum", True)


async def test_a_virtual_host_sees_its_own_queues_only(rabbitmq40: RabbitMQ, unique_name: Name) -> None:
    host, queue = unique_name("host/of ours"), unique_name("theirs")
    path = host.replace("/", "%2F").replace(" ", "%20")
    rabbitmq40.api("PUT", f"vhosts/{path}")
    rabbitmq40.api("PUT", f"queues/%2F/{queue}", {"durable": True})
    try:
        rabbitmq40.api("PUT", f"queues/{path}/mine", {"durable": True})
        url = urlsplit(rabbitmq40.url("0-9-1"))._replace(path=f"/{path}").geturl()
        found = await read_queues("peer", BrokerSettings(url=url, management=management_of(rabbitmq40)))
        assert [(row.name, row.vhost) for row in found.rows] == [("mine", host)]
    finally:
        rabbitmq40.delete_queue(queue)
        rabbitmq40.api("DELETE", f"vhosts/{path}")


@pytest.mark.parametrize(
    ("kind", "version"), [("rabbitmq-4.0", "0-9-1"), ("rabbitmq-3.10", "0-8"), ("brokerj", "0-10")]
)
async def test_without_management_the_queues_that_the_gateway_knows(
    kind: str, version: str, request: pytest.FixtureRequest, serve: Serve, unique_name: Name
) -> None:
    server: Any = request.getfixturevalue(kind)
    declared, gone, bridged, tapped, foreign = map(unique_name, ("declared", "gone", "bridged", "tapped", "foreign"))
    async with serve({"brokers.peer": {"url": server.url(version)}}) as (app, client):
        assert await app.gateway.brokers["peer"].wait_up(20)
        path = "/v1/brokers/peer"
        for name in (declared, gone, bridged, tapped):
            assert (await client.put(f"{path}/queues/{name}", json={"durable": True})).status_code == 201
        for name in (bridged, tapped):  # known by who takes from them alone
            await app.gateway.ledger.delete_resource("queue:peer", name)
        body = {"messages": [{"routing_key": declared, "payload": "x"}] * 3}
        assert (await client.post(f"{path}/exchanges/amq.default:publish", json=body)).status_code == 207
        target = {"broker": "peer", "exchange": "amq.fanout"}
        bridge = {"source": {"broker": "peer", "queue": bridged}, "target": target, "paused": True}
        assert (await client.put(f"/v1/bridges/{bridged}", json=bridge)).status_code == 201
        tap = await client.put(f"/v1/taps/{tapped}", json={"broker": "peer", "queue": tapped, "paused": True})
        assert tap.status_code == 201, tap.text
        own = await client.put(
            f"/v1/subscriptions/{declared}", json={"broker": "peer", "exchange": "amq.topic", "binding_key": declared}
        )
        assert own.status_code == 201, own.text
        if kind == "brokerj":
            server.create_queue(foreign)
        else:
            server.api("PUT", f"queues/%2F/{foreign}", {"durable": True})
        server.delete_queue(gone)
        found = await read(client, broker="peer")
        rows = {row["name"]: row for row in found["queues"]}
        assert set(rows) == {declared, bridged, tapped, f"gateway.subscription.{declared}"}
        figures = rows[declared]
        assert (figures["depth"], figures["ready"]) in ((3, None), (None, 3))
        assert (figures["consumers"], figures["unacknowledged"], figures["publish_rate"]) == (0, None, None)
        (broker,) = found["brokers"]
        assert (broker["source"], broker["partial"]) == ("amqp", True)
        assert broker["reason"] == (
            "AMQP cannot list queues: these are the queues that the gateway itself works with or has declared. Set "
            "brokers.peer.management for all of them."
        )
        await client.delete(f"/v1/bridges/{bridged}")
        await client.delete(f"/v1/taps/{tapped}")
        await client.delete(f"/v1/subscriptions/{declared}")
        for name in (declared, bridged, tapped):
            await client.delete(f"{path}/queues/{name}")
    server.delete_queue(foreign)


async def test_a_broker_that_is_down_says_so(serve: Serve) -> None:
    async with serve({"brokers.peer": {"url": "amqp://127.0.0.1:1/"}}) as (app, client):
        settings = {"broker": "peer", "queue": "waiting"}
        spec = json.loads(json.dumps(settings))
        await app.gateway.ledger.put_resource("subscription", "waiting", spec)
        found = await read(client)
        assert [(row["name"], row["depth"], row["ready"]) for row in found["queues"]] == [("waiting", None, None)]
        assert found["brokers"][0]["reason"].endswith("The broker is not up.")
