"""JMS applications of different versions, each on its own broker, with a gateway between the two, and RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import BrokerSettings
from gateway.errors import GatewayError
from gateway.upstreams import Upstream
from tests.bridges.conftest import Estate
from tests.jms.conftest import PAIRS, Jms, Place, check, check_answer
from tests.servers import BrokerJ, RabbitMQ

pytestmark = pytest.mark.broker

LATE = 60_000
"""A time to live begins again with every bridge: how much later a message may expire, in milliseconds."""
HOSTS = {"old": "default", "new": "memory"}
MIDDLE = "middle"
"""RabbitMQ's name, where messages pass it on their way."""


class Between(Estate):
    """Two virtual hosts of Broker-J, and bridges both ways between queues of the same name."""

    def __init__(self, path: Path, broker: BrokerJ, rabbitmq: RabbitMQ) -> None:
        super().__init__(path)
        self._broker = broker
        self._rabbitmq = rabbitmq
        self._queues: list[tuple[str, str]] = []

    def upstream(self, name: str, version: str, **options: Any) -> Upstream:
        url = self._rabbitmq.url(version) if name == MIDDLE else self._broker.url(version, HOSTS[name])
        return Upstream(name, BrokerSettings(url=url, **options))

    def place(self, name: str, version: str, queue: str) -> Place:
        return Place(self._broker.port, HOSTS[name], version, queue)

    async def join(self, jms: Jms, queue: str, source: Place, target: Place, *, back: bool = False) -> None:
        """A bridge for one queue, from one virtual host to the other."""
        names = ("new", "old") if back else ("old", "new")
        for name, place in zip(names, (source, target), strict=True):
            await asyncio.to_thread(jms.declare, place)
            self._queues.append((name, queue))
        await self.bridge(
            queue,
            source={"broker": names[0], "queue": queue},
            target={"broker": names[1], "exchange": "amq.direct", "routing_key": queue},
            dead_letter={"broker": names[0], "routing_key": f"{queue}.dead"},
        )

    async def join_by_rabbitmq(self, jms: Jms, queue: str, source: Place, target: Place) -> None:
        """Two bridges, with a queue of RabbitMQ between them."""
        for name, place in (("old", source), ("new", target)):
            await asyncio.to_thread(jms.declare, place)
            self._queues.append((name, queue))
        await self.upstreams[MIDDLE].declare_queue(queue, durable=True)
        self._queues.append((MIDDLE, queue))
        await self.bridge(
            f"{queue}.in",
            source={"broker": "old", "queue": queue},
            target={"broker": MIDDLE, "routing_key": queue},
            dead_letter={"broker": "old", "routing_key": f"{queue}.dead"},
        )
        await self.bridge(
            f"{queue}.out",
            source={"broker": MIDDLE, "queue": queue},
            target={"broker": "new", "exchange": "amq.direct", "routing_key": queue},
            dead_letter={"broker": MIDDLE, "routing_key": f"{queue}.dead"},
        )

    async def end(self) -> None:
        await self.bridges.close(1.0)
        for name, queue in self._queues:
            try:
                await self.upstreams[name].delete_queue(queue)
            except GatewayError:
                pass  # a test that failed may not have it
        await self.close()


@pytest.fixture
async def between(
    tmp_path: Path, brokerj: BrokerJ, rabbitmq: RabbitMQ, request: pytest.FixtureRequest
) -> AsyncIterator[Between]:
    """The estate, with the versions of the parameter."""
    old, new = request.param
    between = Between(tmp_path, brokerj, rabbitmq)
    await between.open_gateway({"old": old, "new": new, MIDDLE: "0-9-1"})
    yield between
    await between.end()


@pytest.mark.parametrize(("between", "pair"), [(pair, pair) for pair in PAIRS], indirect=["between"])
async def test_every_kind_of_message_and_an_answer_pass_a_bridge(
    between: Between, pair: tuple[str, str], jms: Jms, unique_name: Callable[[str], str]
) -> None:
    sender, receiver = pair
    queue = unique_name("kinds")
    here, there = between.place("old", sender, queue), between.place("new", receiver, queue)
    await between.join(jms, queue, here, there)
    sent = await asyncio.to_thread(jms.send, here)
    check(sent, await asyncio.to_thread(jms.receive, there, len(sent)), LATE)

    answers = unique_name("answers")
    await between.join(
        jms, answers, between.place("new", receiver, answers), between.place("old", sender, answers), back=True
    )
    check_answer(await asyncio.to_thread(jms.request, here, there, answers))


@pytest.mark.parametrize(("between", "pair"), [(pair, pair) for pair in PAIRS if "0-10" in pair], indirect=["between"])
async def test_every_kind_of_message_passes_rabbitmq(
    between: Between, pair: tuple[str, str], jms: Jms, unique_name: Callable[[str], str]
) -> None:
    sender, receiver = pair
    queue = unique_name("kinds")
    here, there = between.place("old", sender, queue), between.place("new", receiver, queue)
    await between.join_by_rabbitmq(jms, queue, here, there)
    sent = await asyncio.to_thread(jms.send, here)
    check(sent, await asyncio.to_thread(jms.receive, there, len(sent)), LATE)
