"""Load by clients that follow readiness: publishers at a steady rate, consumers that pull and acknowledge."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.deploy.kubelet import Pod, PodHttp
from tests.faults.http import Answer, NoAnswer, NotSent

CONSUMERS = 2
PUBLISHERS = 16


@dataclass
class Load:
    """What was asked for, and what came of it."""

    pods: Callable[[], Sequence[Pod]]
    """Those that serve the API, ready or not."""
    key: str
    places: Sequence[str]
    """Routing keys, in turn."""
    rate: float
    published: dict[str, set[int]] = field(default_factory=dict)
    """Routing key -> numbers for which the answer was 200."""
    failures: list[str] = field(default_factory=list)
    """Requests that failed."""
    pulled: Counter[int] = field(default_factory=Counter)
    """Number -> how often it came to a consumer."""
    unmarked: list[int] = field(default_factory=list)
    """Those that came again without a mark."""
    requests: int = 0
    _stop: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)
    _turn: Any = field(default_factory=count)

    def begin(self, subscription: str) -> None:
        """Publish, pull."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._publish(number)) for number in range(PUBLISHERS)]
        self._tasks += [loop.create_task(self._consume(subscription)) for _ in range(CONSUMERS)]

    async def end(self) -> None:
        """Nothing more is published; what was is pulled."""
        self._stop = True
        await asyncio.gather(*self._tasks[:PUBLISHERS])
        await asyncio.sleep(2)
        for task in self._tasks[PUBLISHERS:]:
            task.cancel()
        await asyncio.gather(*self._tasks[PUBLISHERS:], return_exceptions=True)

    async def ask(self, clients: dict[str, PodHttp], method: str, path: str, body: Any = None) -> Answer | None:
        """A request to one of those that are ready, in turn; None: it failed, and that is noted."""
        while not (ready := [pod for pod in self.pods() if pod.ready]):
            await asyncio.sleep(0.01)
        pod = ready[next(self._turn) % len(ready)]
        client = clients.get(pod.name)
        if client is None:
            client = clients[pod.name] = PodHttp(pod.address, pod.port("http"))
        self.requests += 1
        try:
            answer = await client.request(method, path, body, {"Authorization": f"Bearer {self.key}"})
        except (NoAnswer, NotSent) as error:
            self.failures.append(f"{method} {path} at {pod.name}: {error!r}")
            return None
        if answer.status != 200:
            self.failures.append(f"{method} {path} at {pod.name}: {answer.status} {answer.body[:300]!r}")
            return None
        return answer

    async def _publish(self, number: int) -> None:
        clients: dict[str, PodHttp] = {}
        loop = asyncio.get_running_loop()
        pause = PUBLISHERS / self.rate
        due = loop.time() + pause * number / PUBLISHERS
        while not self._stop:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + pause, loop.time() - 1.0)
            item = next(self._numbers)
            place = self.places[item % len(self.places)]
            body = {
                "routing_key": place,
                "payload": str(item),
                "mandatory": True,
                "properties": {"message_id": f"m-{item}", "delivery_mode": 2},
            }
            answer = await self.ask(clients, "POST", "/v1/brokers/rabbit/exchanges/amq.default:publish", body)
            if answer is not None:
                self.published.setdefault(place, set()).add(item)
        for client in clients.values():
            client.close()

    async def _consume(self, subscription: str) -> None:
        clients: dict[str, PodHttp] = {}
        try:
            while True:
                await self.take(clients, subscription)
        finally:
            for client in clients.values():
                client.close()

    async def take(self, clients: dict[str, PodHttp], subscription: str, wait: float = 1.0) -> list[int]:
        """One pull, acknowledged; the numbers that came."""
        path = f"/v1/subscriptions/{subscription}"
        answer = await self.ask(clients, "POST", f"{path}:pull", {"max_messages": 100, "wait": wait})
        items = [] if answer is None else answer.json()["messages"]
        numbers = []
        for item in items:
            numbers.append(number := int(item["message"]["payload"]))
            self.pulled[number] += 1
            marked = (
                item["message"].get("redelivered") or item.get("redelivered") or (item.get("delivery_attempt") or 1) > 1
            )
            if self.pulled[number] > 1 and not marked:
                self.unmarked.append(number)
        if items:
            body = {"ack_ids": [item["ack_id"] for item in items]}
            await self.ask(clients, "POST", f"{path}:acknowledge", body)
        return numbers


class Receiver:
    """An endpoint: takes webhooks, and counts them."""

    def __init__(self) -> None:
        self.came: Counter[int] = Counter()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._writers):
                writer.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                self.came[int(json.loads(body)["message"]["payload"])] += 1
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
