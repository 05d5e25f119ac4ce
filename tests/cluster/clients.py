"""Producers and consumers over HTTP, each of which asks any replica, and never the same one twice running.

A producer publishes under an ``Idempotency-Key`` and repeats until it is told that the message is safe. A consumer
pulls from one replica and acknowledges at another one, which has the first one do it. Everything that is acknowledged
to a producer must reach a consumer; every message is one row of the ledger, and has one outcome.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tests.faults.http import Answer, NoAnswer, NotSent

if TYPE_CHECKING:
    from tests.cluster.harness import Cluster, Replica

SUBSCRIPTION: Final = "pulled"
PRODUCERS: Final = 3
CONSUMERS: Final = 3
WITHIN: Final = 30.0
"""How long a request may take, in seconds."""


class Clients:
    """Producers and consumers of one queue."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._turn = count(seed)
        self._run = uuid4().hex[:8]
        self.attempted: set[str] = set()
        self.safe: set[str] = set()
        self.received: Counter[str] = Counter()
        self.unmarked: list[str] = []
        """Received again without a mark."""
        self.answers: Counter[str] = Counter()
        self._stopped = asyncio.Event()
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self.queue = f"pulled-{self._run}"

    async def begin(self) -> None:
        """Start."""
        await self._cluster.side.upstream.declare_queue(self.queue)
        settings = {"broker": "rabbit", "queue": self.queue, "ack_deadline_seconds": 60}
        answer = await self._ask("PUT", f"/v1/subscriptions/{SUBSCRIPTION}", settings)
        assert answer is not None, "no replica answers"
        assert answer.status in (200, 201), answer.json()
        self._producing = [asyncio.create_task(self._produce(number)) for number in range(PRODUCERS)]
        self._consuming = [asyncio.create_task(self._consume()) for _ in range(CONSUMERS)]

    async def finish(self, within: float = 60.0) -> None:
        """End the producers, let the consumers take everything, and check."""
        self._stopped.set()
        async with asyncio.timeout(within):
            await asyncio.gather(*self._producing)
            while not self.safe <= self.received.keys():
                await asyncio.sleep(0.1)
                if all(task.done() for task in self._consuming):
                    break
        for task in self._consuming:
            task.cancel()
        await asyncio.gather(*self._consuming, return_exceptions=True)
        cluster = self._cluster
        await cluster.side.upstream.delete_queue(self.queue)
        cluster.must(self.safe <= self.received.keys(), f"{len(self.safe - self.received.keys())} publishes lost")
        strange = self.received.keys() - self.attempted
        cluster.must(not strange, f"{len(strange)} messages that nobody published")
        cluster.must(not self.unmarked, f"{len(self.unmarked)} came twice without a mark: {self.unmarked[:3]}")
        rows = cluster.query("SELECT count(*), count(DISTINCT convert_from(properties, 'UTF8')::json->>'message_id')"
                             " FROM messages WHERE origin = 'http'")[0]  # fmt: skip
        cluster.must(rows[0] == rows[1], f"{rows[0]} rows for {rows[1]} messages that were published over HTTP")
        cluster.notes |= {
            "published": len(self.safe),
            "pulled": self.received.total(),
            "pulled twice": self.received.total() - len(self.received),
            "answers": dict(self.answers),
        }

    def _replica(self) -> Replica:
        replicas = self._cluster.replicas
        return replicas[next(self._turn) % len(replicas)]

    async def _ask(self, method: str, path: str, body: Any, key: str = "") -> Answer | None:
        """One request to the next replica; None: no answer."""
        from tests.faults.http import Http

        http = Http(self._replica().port)
        headers = {"Connection": "close"} | ({"Idempotency-Key": key} if key else {})
        try:
            answer = await http.request(method, path, body, headers, WITHIN)
        except (NotSent, NoAnswer):
            self.answers["none"] += 1
            return None
        finally:
            http.close()
        self.answers[f"{path.rpartition(':')[2]} {answer.status}"] += 1
        return answer

    async def _produce(self, number: int) -> None:
        for serial in count():
            if self._stopped.is_set():
                return
            name = f"{self._run}-{number}-{serial}"
            self.attempted.add(name)
            body = {"routing_key": self.queue, "payload": name, "properties": {"message_id": name, "delivery_mode": 2}}
            while True:
                answer = await self._ask("POST", "/v1/brokers/rabbit/exchanges/amq.default:publish", body, name)
                if answer is not None and answer.status == 200:
                    self.safe.add(name)
                    break
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.02)

    async def _consume(self) -> None:
        while True:
            pulled = await self._ask(
                "POST", f"/v1/subscriptions/{SUBSCRIPTION}:pull", {"max_messages": 10, "wait": 0.5}
            )
            if pulled is None or pulled.status != 200:
                await asyncio.sleep(0.05)
                continue
            messages = pulled.json()["messages"]
            for item in messages:
                name = item["message"]["properties"]["message_id"]
                self.received[name] += 1
                if self.received[name] > 1 and not (item["redelivered"] or item.get("resent")):
                    self.unmarked.append(name)
            if messages:
                ack_ids = [item["ack_id"] for item in messages]
                acked = await self._ask("POST", f"/v1/subscriptions/{SUBSCRIPTION}:acknowledge", {"ack_ids": ack_ids})
                if acked is not None and acked.status == 200:
                    for result in acked.json()["results"]:
                        self.answers[f"ack {result['status']}"] += 1
