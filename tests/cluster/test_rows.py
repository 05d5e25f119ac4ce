"""Each row in its quick form, and bridges that are looked at and changed through whichever replica."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.rows import ROWS, Row, perform
from tests.faults.source import Shape
from tests.servers import PostgreSQL, RabbitMQ

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_row(rabbitmq: RabbitMQ, postgresql: PostgreSQL, row: Row) -> None:
    cluster = await perform(row, rabbitmq, postgresql, full=False)
    assert cluster.verdict is not None
    assert not cluster.verdict.lost
    assert not cluster.audit.overlaps
    assert not cluster.audit.strays


async def test_any_replica_answers_for_every_bridge(rabbitmq: RabbitMQ, postgresql: PostgreSQL) -> None:
    cluster = Cluster(rabbitmq, postgresql, "forwarding", bridges=2, shape=Shape(messages=40, rate=40.0))
    async with cluster:
        await cluster.spread(*cluster.replicas)
        cluster.begin()
        bridge = cluster.bridges[0]
        path = f"/v1/bridges/{bridge}"
        owner = await asyncio.to_thread(cluster.owner_of, bridge)
        (other,) = [each for each in cluster.replicas if each is not owner]

        async def both(verb: str, state: str) -> None:
            """Told to one that does not own it, and seen at both."""
            told = await cluster.ask(other, "POST", f"{path}:{verb}")
            assert told.status == 200, told.json()
            async with asyncio.timeout(20):
                while {(await each.bridge(bridge))["state"] for each in cluster.replicas} != {state}:
                    await asyncio.sleep(0.05)

        await cluster.forwards(bridge)
        listed = (await cluster.ask(other, "GET", "/v1/bridges")).json()["bridges"]
        assert {each["name"]: each["state"] for each in listed} == dict.fromkeys(cluster.bridges, "running")
        assert next(each for each in listed if each["name"] == bridge)["forwarded"] > 0
        await both("pause", "paused")
        await both("resume", "running")
        assert (await cluster.ask(other, "DELETE", path)).json()["code"] == "read_only"

        # One of the ledger's: made here, changed there, deleted by one that does not own it.
        settings: dict[str, Any] = {
            "source": {"broker": "rabbit", "queue": cluster.sources[bridge]},
            "target": {"broker": "rabbit", "routing_key": cluster.target},
            "paused": True,
        }
        made = await cluster.ask(owner, "PUT", "/v1/bridges/made", settings)
        assert made.status == 201, made.json()
        runs = await asyncio.to_thread(cluster.owner_of, "made")
        (away,) = [each for each in cluster.replicas if each is not runs]
        again = await cluster.ask(away, "PUT", "/v1/bridges/made", settings)
        assert (again.status, again.headers["etag"]) == (200, made.headers["etag"])
        assert (await cluster.ask(away, "PUT", "/v1/bridges/made", settings | {"prefetch": 7})).status == 428
        assert (await away.bridge("made"))["state"] == "paused"
        gone = await cluster.ask(away, "DELETE", "/v1/bridges/made")
        assert gone.status == 204
        for replica in cluster.replicas:
            assert (await cluster.ask(replica, "GET", "/v1/bridges/made")).status == 404
        for replica in cluster.replicas:
            found = replica.get_ops("/metrics")
            assert found is not None
            assert "amqpgw_cluster_processes 2.0" in found[1]
            assert "amqpgw_cluster_config_differs 0.0" in found[1]
        await cluster.finish()


async def test_a_replica_with_other_settings_is_told_of(rabbitmq: RabbitMQ, postgresql: PostgreSQL) -> None:
    cluster = Cluster(rabbitmq, postgresql, "settings", bridges=1, shape=Shape(messages=1))
    tables = cluster._tables(cluster.replicas[1].folder)
    cluster.replicas[1].configure(tables | {"http": {"port": cluster.replicas[1].port, "batch_max": 7}})
    async with cluster:
        for replica in cluster.replicas:

            def differs(replica: Any = replica) -> bool:
                return "amqpgw_cluster_config_differs 1.0" in (replica.get_ops("/metrics") or (0, ""))[1]

            await cluster.until(differs, 20.0, "nobody notices")
            assert len(replica.events("cluster.config_differs")) == 1, "one line, however often it is looked"
