"""Two gateways on one PostgreSQL: what one of them does, the other goes on with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.amqp.message import Message, Properties
from gateway.core import Publication
from gateway.ledger import EventKind, parse_id
from gateway.replays import JobState
from tests.replays.conftest import House, eventually
from tests.replays.test_replays import ALL, dead_queue, grave, mark_of, request, sent

pytestmark = pytest.mark.broker


@pytest.fixture
async def houses(tmp_path: Path, postgresql_ledger: str) -> AsyncIterator[list[House]]:
    one = House(tmp_path, url=postgresql_ledger)
    houses = [one, House(tmp_path, url=postgresql_ledger, beside=one)]
    await one.fake.declare_queue("orders")
    await one.other.declare_queue("orders")
    for house in houses:
        await house.start()
    yield houses
    for house in houses:
        await house.stop()


def owner(houses: list[House], kind: str, name: str) -> House | None:
    return next((house for house in houses if house.gateway.ownership.owns(kind, name)), None)


async def owned(houses: list[House], kind: str, name: str) -> House:
    async def is_owned() -> bool:
        return owner(houses, kind, name) is not None

    await eventually(is_owned)
    found = owner(houses, kind, name)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["messages", "queue"])
async def test_another_goes_on_with_a_replay(houses: list[House], kind: str) -> None:
    if kind == "messages":
        await houses[0].known(40)
        asked = request(messages=ALL, rate=20.0, broker="other")
    else:
        await grave(houses[0], 40)
        asked = request(queue=dead_queue(), rate=20.0, broker="other", exchange="amq.default", routing_key="orders")
    await houses[0].replays.ask(asked, "")
    first = await owned(houses, "replay", "r1")
    second = next(house for house in houses if house is not first)
    await second.until("r1", lambda job: job.sent >= 5)
    await first.kill()
    job = await second.ended("r1")
    assert (job.state, job.found, job.sent) == (JobState.DONE, 40, 40)
    bodies = [message.body for _, _, message in first.other.published if "resent" not in mark_of(message)]
    assert len(bodies) == len(set(bodies))
    assert len(set(sent(first.other))) == 40
    await first.start()


async def test_steered_through_the_one_that_does_not_do_it(houses: list[House]) -> None:
    await houses[0].known(100)
    await houses[0].replays.ask(request(messages=ALL, rate=20.0), "")
    first = await owned(houses, "replay", "r1")
    second = next(house for house in houses if house is not first)
    await second.until("r1", lambda job: job.sent > 0)
    await second.replays.pause("r1")
    await second.until("r1", lambda job: job.state is JobState.PAUSED)
    await second.replays.cancel("r1")
    job = await second.ended("r1")
    assert (job.state, job.sent) == (JobState.CANCELLED, len(first.fake.published))


async def test_another_sends_what_is_due_and_marks_what_is_in_doubt(houses: list[House]) -> None:
    houses[0].fake.held = []
    messages = [Publication("orders", Message(body, Properties(delivery_mode=2))) for body in (b"1", b"2")]
    gateway = houses[0].gateway
    results = await gateway.outbox.put(gateway.broker("fake"), "", messages, "")
    async with asyncio.timeout(30):
        while len(houses[0].fake.published) < 2:
            await asyncio.sleep(0.01)
    first = next(house for house in houses if any(lane.busy for lane in house.gateway.outbox.sender._lanes.values()))
    second = next(house for house in houses if house is not first)
    await first.kill()
    first.fake.held = None

    async def all_sent() -> bool:
        rows = [await second.ledger.outbox.get(parse_id(result.id)) for result in results]
        return rows == [None] * 2

    await eventually(all_sent)
    found = [(message.body, mark_of(message).get("resent")) for _, _, message in first.fake.published]
    assert found == [(b"1", None), (b"2", None), (b"1", "1"), (b"2", "1")]
    assert await second.kinds(parse_id(results[0].id)) == [EventKind.SCHEDULED, EventKind.RESENT, EventKind.CONFIRMED]
    await first.start()
