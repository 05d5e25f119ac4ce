"""``/v1/overview``: what is not well and why, as far as the caller may see it, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import time_ns
from typing import Any

import httpx
import pytest

from gateway.amqp.message import Message
from gateway.api.app import Api
from gateway.api.resources import overview
from gateway.config import ApiKeySettings, HttpSettings
from gateway.core.topology import QUEUE
from gateway.errors import LedgerUnavailable
from gateway.ledger import Owed, id_text
from gateway.upstreams import UpstreamState
from tests.api.conftest import problem
from tests.replays.conftest import House

MARKUP = "<img src=x onerror=alert(1)> \u202e"
SCOPES = {
    "root": ("admin",),
    "consumer": ("subscribe:fake/orders",),
    "reader": ("history",),
    "publisher": ("publish:other/amq.default",),
}


@pytest.fixture(params=["sqlite", "postgresql"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    url = request.getfixturevalue("postgresql_ledger") if request.param == "postgresql" else ""
    house = House(tmp_path, url=url)
    await house.fake.declare_queue("orders")
    await house.other.declare_queue("orders")
    await house.start()
    yield house
    await house.stop()


class Asked:
    """The route, by the name of a key."""

    def __init__(self, house: House) -> None:
        keys = [ApiKeySettings(name=name, key=f"key-{name}", scopes=scopes) for name, scopes in SCOPES.items()]
        transport = httpx.ASGITransport(Api(house.gateway, HttpSettings(), keys, replays=house.replays))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway.example")

    async def call(self, method: str, path: str, body: Any = None, client: str = "root") -> httpx.Response:
        headers = {"authorization": f"Bearer key-{client}"}
        return await self.client.request(method, path, json=body, headers=headers)

    async def __call__(self, client: str = "root") -> dict[str, Any]:
        found = await self.call("GET", "/v1/overview", client=client)
        assert found.status_code == 200, found.text
        body: dict[str, Any] = found.json()
        return body


@pytest.fixture
async def ask(house: House) -> AsyncIterator[Asked]:
    asked = Asked(house)
    async with asked.client:
        yield asked


def told(found: dict[str, Any]) -> list[tuple[str, ...]]:
    names = ("severity", "kind", "name", "state", "code")
    return [tuple(each[name] for name in names) for each in found["troubles"]]


def counts(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {each["kind"]: (each["count"], each["well"]) for each in found["kinds"]}


async def test_all_is_well(ask: Asked) -> None:
    found = await ask()
    assert (found["troubles"], found["more"]) == ([], False)
    assert counts(found) == {
        "broker": (2, 2), "queue": (1, 1), "bridge": (0, 0), "endpoint": (0, 0), "subscription": (1, 1), "tap": (0, 0),
        "front": (0, 0), "replay": (0, 0),
    }  # fmt: skip
    assert found["backlog"] == {"waiting": 0, "out": 0, "dead": 0, "octets": 0, "oldest_at": None}
    assert (found["events"], found["bridged"]) == ({}, 0.0)


async def test_each_thing_that_is_not_well_says_why(ask: Asked, house: House) -> None:
    house.other.state, house.other.reason = UpstreamState.DOWN, f"connection refused {MARKUP}"
    assert (await ask.call("PUT", "/v1/subscriptions/late", {"broker": "fake", "queue": "orders"})).status_code == 201
    assert (await ask.call("POST", "/v1/subscriptions/late:pause")).status_code == 200
    await house.known(2, kept=False)
    job = {"id": "none", "source": {"messages": {"broker": "fake"}}}
    assert (await ask.call("POST", "/v1/replays", job)).status_code == 201
    await house.ended("none")
    await house.dead(2, code="rejected")
    await house.dead(3, alive=True)
    await house.ledger.history.keeper.count()
    found = await ask()
    assert told(found) == [
        ("bad", "broker", "other", "down", "down"),
        ("bad", "replay", "none", "failed", "failed"),
        ("notice", "subscription", "late", "paused", "paused"),
        ("notice", "dead_letters", "billing", "dead", "rejected"),
    ]
    reasons = [each["reason"] for each in found["troubles"]]
    assert reasons[0] == f"connection refused {MARKUP}"
    assert reasons[1].startswith("none of the 2 messages was sent: no_body 2.")
    assert reasons[2:] == ["Somebody paused it.", "2 dead letters: a consumer rejected it."]
    for each in found["troubles"]:
        assert (await ask.call("GET", each["path"])).status_code == 200, each
    assert (counts(found)["broker"], counts(found)["subscription"], counts(found)["replay"]) == ((2, 1), (2, 1), (1, 0))
    backlog = found["backlog"]
    assert (backlog["waiting"], backlog["dead"], backlog["octets"]) == (3, 2, 30)
    assert backlog["oldest_at"] is not None
    assert found["events"]["confirmed"] > 0


async def test_a_caller_sees_what_its_scopes_allow(ask: Asked, house: House) -> None:
    house.other.state, house.other.reason = UpstreamState.DOWN, "connection refused"
    await house.dead(2, code="rejected")
    await house.dead(1, alive=True)
    body = {"broker": "other", "queue": "orders", "lease": "ledger"}
    await ask.call("PUT", "/v1/subscriptions/secret", body)
    await ask.call("POST", "/v1/subscriptions/secret:pause")
    await house.dead(4, subscription="secret")
    consumer = await ask("consumer")
    assert counts(consumer) == {"broker": (1, 1), "subscription": (1, 1)}
    assert consumer["troubles"] == []
    assert (consumer["backlog"]["waiting"], consumer["backlog"]["dead"]) == (1, 2), "of its own subscription only"
    assert (consumer["events"], consumer["bridged"]) == (None, None)
    publisher = await ask("publisher")
    assert (counts(publisher), told(publisher)) == ({"broker": (1, 0)}, [("bad", "broker", "other", "down", "down")])
    assert publisher["backlog"] is None
    reader = await ask("reader")
    assert (reader["kinds"], reader["troubles"], reader["backlog"]) == ([], [], None)
    assert reader["events"] is not None
    problem(await ask.client.get("/v1/overview"), 401, "unauthorized")


async def test_queues_with_messages_that_nobody_consumes(ask: Asked, house: House) -> None:
    for number in range(25):
        name = f"idle-{number:02}"
        await house.fake.declare_queue(name)
        await house.gateway.topology._remember(QUEUE, "fake", name, {"name": name})
        for _ in range(number):
            house.fake.queues[name].ready.append((Message(b"x"), "", name, False))
    house.fake.queues["orders"].ready.append((Message(b"x"), "", "orders", False))
    found = await ask()
    queues = [each for each in found["troubles"] if each["kind"] == "queue"]
    assert [each["name"] for each in queues] == [f"idle-{number:02}" for number in range(24, 4, -1)], "most first"
    assert (counts(found)["queue"], found["more"]) == ((26, 1), True)
    assert queues[0]["reason"] == "24 messages wait at the broker fake, and nobody consumes the queue."
    assert {(each["code"], each["severity"], each["path"]) for each in queues[:1]} == {
        ("no_consumer", "notice", "/v1/brokers/fake/queues/idle-24")
    }
    consumer = [each for each in (await ask("consumer"))["troubles"] if each["kind"] == "queue"]
    assert consumer == [], "subscribe: does not allow to look at a queue"


async def test_queues_whose_list_is_being_read(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "QUEUES_WAIT", 0.0)
    found = await ask()
    (queues,) = [each for each in found["kinds"] if each["kind"] == "queue"]
    assert (queues["count"], queues["more"], found["more"]) == (0, True, True)
    async with asyncio.timeout(20):
        while found["more"]:
            await asyncio.sleep(0.01)
            found = await ask()
    assert counts(found)["queue"] == (1, 1)


async def test_a_pulled_queue_says_by_whom(ask: Asked, house: House) -> None:
    body = {"broker": "fake", "queue": "pulled"}
    await house.fake.declare_queue("pulled")
    assert (await ask.call("PUT", "/v1/subscriptions/puller", body)).status_code == 201
    house.fake.queues["pulled"].ready.append((Message(b"x"), "", "pulled", False))
    (queue,) = [each for each in (await ask())["troubles"] if each["kind"] == "queue"]
    assert queue["reason"].endswith("The subscription 'puller' takes them when somebody pulls.")


async def test_the_oldest_message_that_fails_again_and_again(ask: Asked, house: House) -> None:
    at = time_ns() // 1000
    rows = []
    for attempt in (2, 0, 0):
        (message_id,) = await house.known(1, kept=False)
        more = {"attempt": attempt, "reason": {"reason": f"it answered 500 {MARKUP}"} if attempt else {}}
        rows.append(
            Owed(
                id=house.gateway.ids(),
                message_id=message_id,
                subscription="billing",
                at=at,
                size=1,
                payload=b"",
                **more,
            )
        )
    await house.ledger.deliveries.store(rows, [])
    (trouble,) = [each for each in (await ask())["troubles"] if each["kind"] == "subscription"]
    assert trouble["reason"] == f"Its oldest message has failed 2 times: it answered 500 {MARKUP}. 2 more wait."
    assert (trouble["code"], trouble["message"]) == ("retrying", id_text(rows[0].message_id))
    (consumer,) = (await ask("consumer"))["troubles"]
    assert (consumer["code"], consumer["message"]) == ("retrying", None), "it may not see messages"
    assert (await ask("publisher"))["troubles"] == []


async def test_while_the_ledger_is_away_the_rest_is_shown(
    ask: Asked, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("the ledger is away")

    for name in ("list_resources", "get_resource"):
        monkeypatch.setattr(house.ledger, name, away)
    monkeypatch.setattr(house.ledger.deliveries, "dead_groups", away)
    monkeypatch.setattr(house.ledger.deliveries, "backlogs", away)
    monkeypatch.setattr(house.ledger.history, "statistics", away)
    found = await ask()
    assert counts(found)["broker"] == (2, 2)
    assert ("bad", "ledger", "ledger", "down", "ledger_unavailable") in told(found)
    assert (found["backlog"], found["events"]) == (None, None)


async def test_it_is_bounded(ask: Asked, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.api.resources.overview.TROUBLES_MAX", 1)
    monkeypatch.setattr("gateway.api.resources.overview.SEEN_MAX", 1)
    for upstream in (house.fake, house.other):
        upstream.state, upstream.reason = UpstreamState.DOWN, "x" * 1_000
    await house.dead(1)
    found = await ask()
    assert (len(found["troubles"]), found["more"]) == (1, True)
    assert len(found["troubles"][0]["reason"]) == 500
    assert next(each for each in found["kinds"] if each["kind"] == "broker")["more"]
