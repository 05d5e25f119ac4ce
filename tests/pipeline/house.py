"""A whole gateway over the embedded broker and SQLite, and every flow that writes events, driven through its API."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.app import App, running
from gateway.config import load
from gateway.pipeline.schema import COLUMNS
from gateway.pipeline.source.conform import arrow_schema
from tests.ledgers import sqlite_ledger
from tests.webhooks.test_push_app import Hook

OLD, MID, NEW = "local-0-8", "local-0-9-1", "local-0-10"
"""The embedded broker, spoken to in its three versions."""
WITHIN: Final = 30.0
QUEUES: Final = (
    "plain", "pulled", "owed", "pushed", "failing", "asked", "wanted", "in", "out", "kept", "copied", "spooled",
    "buried", "answers", "due", "again", "edited",
)  # fmt: skip
CONFIG: Final = """
http.port = 0
ops.port = 0
data_dir = "{folder}"
ledger.url = "{ledger}"
embedded = {{ enabled = true, port = 0 }}
outbound = {{ allow = ["127.0.0.1/32"] }}
retention = {{ bodies = "days" }}
brokers.gone.url = "amqp://guest:guest@127.0.0.1:1/"

[endpoints.good]
url = "http://127.0.0.1:{port}/good"
format = "raw"
reply = true
[endpoints.bad]
url = "http://127.0.0.1:{bad}/bad"
format = "raw"
schedule = [0, 0.1]
breaker_failures = 1000

[subscriptions]
pulled = {{ broker = "local-0-9-1", queue = "pulled", dead_letter_routing_key = "buried" }}
owed = {{ broker = "local-0-10", queue = "owed", lease = "ledger" }}
pushed = {{ broker = "local-0-9-1", queue = "pushed", push = "good" }}
asked = {{ broker = "local-0-8", queue = "asked", push = "good" }}
failing = {{ broker = "local-0-9-1", queue = "failing", push = "bad" }}
wanted = {{ broker = "local-0-9-1", queue = "wanted", unmatched = "discard", filter.routing_key = "x.y" }}
out = {{ broker = "local-0-10", queue = "out" }}
copied = {{ broker = "local-0-10", queue = "copied" }}
due = {{ broker = "local-0-9-1", queue = "due" }}
again = {{ broker = "local-0-9-1", queue = "again" }}

[bridges.moves]
source = {{ broker = "local-0-8", queue = "in" }}
target = {{ broker = "local-0-10", routing_key = "out" }}
selector = "colour IS NULL OR colour = 'green'"
unmatched = "discard"
[bridges.mirrors]
source = {{ broker = "local-0-10", queue = "kept" }}
target = {{ broker = "local-0-10", routing_key = "copied" }}
mode = "mirror"

[bridges.edits]
source = {{ broker = "local-0-8", queue = "edited" }}
target = {{ broker = "local-0-9-1", routing_key = "spooled" }}

[taps.spools]
broker = "local-0-9-1"
queue = "spooled"
"""


class House:
    """A gateway, and what one does with it."""

    def __init__(self, app: App, client: httpx.AsyncClient, good: Hook, bad: Hook) -> None:
        self.app, self.client, self.good, self.bad = app, client, good, bad

    async def ask(self, method: str, path: str, *statuses: int, **options: Any) -> Any:
        answer = await self.client.request(method, path, **options)
        assert answer.status_code in (statuses or (200, 201, 202, 204)), f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def publish(self, broker: str, queue: str, count: int = 1, **fields: Any) -> list[str]:
        """So many messages to a queue; their ids."""
        messages = [{"routing_key": queue, "payload": f"{queue} {n}", **fields} for n in range(count)]
        path = f"/v1/brokers/{broker}/exchanges/amq.default:publish"
        answer = await self.ask("POST", path, 207, json={"messages": messages})
        assert {each["status"] for each in answer["results"]} == {200}, answer
        return [each["id"] for each in answer["results"]]

    async def pull(self, name: str, count: int) -> list[dict[str, Any]]:
        """So many messages of a subscription."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(WITHIN):
            while len(found) < count:
                answer = await self.ask(
                    "POST", f"/v1/subscriptions/{name}:pull", json={"max_messages": count - len(found), "wait": 1}
                )
                found += answer["messages"]
        return found

    async def settle(self, name: str, verb: str, items: list[dict[str, Any]], **more: Any) -> None:
        """Acknowledge them, or the like."""
        body = {"ack_ids": [item["ack_id"] for item in items], **more}
        answer = await self.ask("POST", f"/v1/subscriptions/{name}:{verb}", json=body)
        assert {each["status"] for each in answer["results"]} == {"SUCCESS"}, answer

    async def drain(self, name: str, count: int) -> None:
        """Pull and acknowledge."""
        await self.settle(name, "acknowledge", await self.pull(name, count))

    async def take(self, broker: str, queue: str) -> Message:
        """Take a message off a queue as any other client of the broker would: the gateway hears nothing of it."""
        (delivery,) = await self.app.gateway.broker(broker).fetch(queue, 1, 5.0)
        message = delivery.message
        delivery.settle(Settlement.ACCEPT)
        return message

    async def put(self, broker: str, queue: str, message: Message) -> None:
        """Put a message into a queue as any other client of the broker would."""
        await self.app.gateway.broker(broker).publish("", queue, message)

    async def until_depth(self, queue: str, depth: int) -> None:
        """Wait until a queue holds so many."""
        async with asyncio.timeout(WITHIN):
            while True:
                found = await self.ask("GET", f"/v1/brokers/{MID}/queues/{queue}")
                if found["messages"] == depth:
                    return
                await asyncio.sleep(0.02)

    async def until_state(self, message_id: str, *states: str) -> None:
        """Wait until a message is in one of these states."""
        async with asyncio.timeout(WITHIN):
            while True:
                answer = await self.client.get(f"/v1/messages/{message_id}")
                if answer.status_code == 200 and answer.json()["state"] in states:
                    return
                await asyncio.sleep(0.02)

    # -------------------------------------------------------------------------------------------- the log

    async def log(self, log: str, folder: Path) -> Path:
        """A log as it is now, as a Parquet file with its columns."""
        rows: list[dict[str, Any]] = []
        position = (await self.ask("GET", f"/v1/log/head?log={log}"))["position"]
        for shard, head in position.items():
            answer = await self.client.get(
                f"/v1/log?log={log}&shard={shard}&after=0&upto={head}", headers={"accept": "application/x-ndjson"}
            )
            assert answer.status_code == 200, answer.text
            rows += map(json.loads, answer.text.splitlines())
        for row in rows:
            for name in ("at", "accepted_at"):
                if name in row:
                    row[name] = datetime.fromisoformat(row[name])
            if "body" in row:
                row["body"] = base64.b64decode(row["body"])
        path = folder / f"{log}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(log, [each.name for each in COLUMNS[log]])), path)
        return path

    # ------------------------------------------------------------------------------------------- the flows

    async def publishes(self) -> None:
        """Every outcome of a publish, with and without a key."""
        await self.publish(MID, "plain", 5)
        path = f"/v1/brokers/{MID}/exchanges/amq.default:publish"
        lost = {"routing_key": "no such queue", "payload": "x"}
        await self.ask("POST", path, 200, json={**lost, "mandatory": False})
        await self.ask("POST", path, 422, json={**lost, "mandatory": True})
        await self.ask("POST", f"/v1/brokers/{MID}/exchanges/nowhere:publish", 404, json=lost)
        await self.ask("POST", "/v1/brokers/gone/exchanges/amq.default:publish", 503, json=lost)
        for _ in range(2):
            await self.ask("POST", path, 200, json={"routing_key": "plain", "payload": "k"},
                           headers={"idempotency-key": "once"})  # fmt: skip

    async def later(self) -> None:
        """Published later, and taken back."""
        path = f"/v1/brokers/{MID}/exchanges/amq.default:publish"
        soon = (datetime.now(UTC) + timedelta(seconds=0.3)).isoformat()
        far = (datetime.now(UTC) + timedelta(days=2)).isoformat()
        message = {"routing_key": "due", "payload": "later"}
        await self.ask("POST", path, 202, json={**message, "not_before": soon})
        cancelled = await self.ask("POST", path, 202, json={**message, "not_before": far})
        await self.ask("POST", path, 202, json={**message, "not_before": far})
        await self.ask("DELETE", f"/v1/scheduled/{cancelled['id']}")
        await self.drain("due", 1)

    async def pulls(self) -> None:
        """Leases of the broker: every end of one, and messages that came from others."""
        await self.publish(MID, "pulled", 9)
        await self.put(MID, "pulled", Message(b"of somebody else's", Properties(message_id="m")))
        items = await self.pull("pulled", 10)
        await self.settle("pulled", "modifyAckDeadline", items[:1], ack_deadline_seconds=60)
        await self.settle("pulled", "acknowledge", items[:5])
        await self.settle("pulled", "reject", items[5:6], reason="no good")
        await self.settle("pulled", "reject", items[6:7])
        await self.settle("pulled", "reject", items[7:8], reason="not wanted", discard=True)
        await self.settle("pulled", "release", items[8:])
        await self.drain("pulled", 2)
        await self.publish(MID, "wanted", 2)
        await self.ask("POST", "/v1/subscriptions/wanted:pull", json={"max_messages": 2})

    async def owes(self) -> None:
        """Leases of the ledger: every end of one."""
        await self.publish(NEW, "owed", 6)
        await self.put(NEW, "owed", Message(b"of somebody else's"))
        items = await self.pull("owed", 7)
        await self.settle("owed", "modifyAckDeadline", items[:1], ack_deadline_seconds=60)
        await self.settle("owed", "acknowledge", items[:3])
        await self.settle("owed", "release", items[3:4])
        await self.drain("owed", 1)
        await self.settle("owed", "reject", items[4:], reason="no good")
        dead = (await self.ask("GET", "/v1/deliveries?subscription=owed"))["deliveries"]
        assert len(dead) == 3
        await self.ask("POST", f"/v1/deliveries/{dead[0]['id']}:retry")
        await self.drain("owed", 1)
        await self.ask("POST", f"/v1/deliveries/{dead[1]['id']}:purge")
        target = {"broker": MID, "exchange": "amq.default", "routing_key": "again"}
        await self.ask("POST", f"/v1/deliveries/{dead[2]['id']}:replay", json={"target": target})
        await self.drain("again", 1)

    async def pushes(self) -> None:
        """To an endpoint that takes them, one that answers, and one that does not for a while."""
        for each in await self.publish(OLD, "pushed", 3):
            await self.until_state(each, "acknowledged")
        self.good.body = b"the answer"
        (asked,) = await self.publish(OLD, "asked", properties={"reply_to": "answers", "correlation_id": "c"})
        await self.until_state(asked, "acknowledged")
        self.bad.status = 500
        failing = await self.publish(MID, "failing", 2)
        for each in failing:
            await self.until_state(each, "dead")
        self.bad.status = 200
        dead = (await self.ask("GET", "/v1/deliveries?subscription=failing"))["deliveries"]
        await self.ask("POST", f"/v1/deliveries/{dead[0]['id']}:retry")
        async with asyncio.timeout(WITHIN):
            while len((await self.ask("GET", "/v1/deliveries?subscription=failing"))["deliveries"]) > 1:
                await asyncio.sleep(0.02)

    async def bridges(self) -> None:
        """Moved and mirrored, some of them without what the target cannot carry, some not wanted; and taken there."""
        await self.publish(OLD, "in", 4)
        await self.publish(OLD, "in", headers={"colour": "red"})
        await self.put(OLD, "in", Message(b"of somebody else's", Properties(message_id="m")))
        await self.drain("out", 5)
        await self.publish(MID, "kept", 3)
        await self.drain("copied", 3)

    async def replays(self) -> None:
        """What was published once more, to another queue."""
        ids = await self.publish(MID, "plain", 2)
        target = {"broker": MID, "exchange": "amq.default", "routing_key": "again"}
        await self.ask("POST", "/v1/replays", json={"source": {"messages": {"ids": ids}}, "target": target})
        await self.drain("again", 2)

    async def taps(self) -> None:
        """Spooled to the log of messages."""
        for each in await self.publish(MID, "spooled", 3):
            await self.until_state(each, "spooled")

    async def everything(self) -> None:
        """All flows."""
        for flow in (self.publishes, self.later, self.pulls, self.owes, self.pushes, self.bridges, self.replays,
                     self.taps):  # fmt: skip
            await flow()


@asynccontextmanager
async def house(folder: Path) -> AsyncIterator[House]:
    """Open it, with its queues."""
    hooks = [Hook(), Hook()]
    servers = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in hooks]
    for each, server in zip(hooks, servers, strict=True):
        each.port = server.sockets[0].getsockname()[1]
    file = folder / "gateway.toml"
    file.write_text(CONFIG.format(folder=folder, ledger=sqlite_ledger(folder), port=hooks[0].port, bad=hooks[1].port))
    async with (
        running(load(file, {})) as app,
        httpx.AsyncClient(base_url=app.url, headers={"host": "localhost"}, trust_env=False, timeout=60) as client,
    ):
        found = House(app, client, *hooks)
        for queue in QUEUES:
            await found.ask("PUT", f"/v1/brokers/{MID}/queues/{queue}", json={})
        yield found
    for server in servers:
        server.close()
