"""``/v1/search``: what is found, what is not searched and why, and that nobody finds what they may not list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.api.app import Api
from gateway.api.resources.search import SEARCHES
from gateway.config import ApiKeySettings, HttpSettings
from gateway.core.topology import QUEUE
from gateway.errors import LedgerUnavailable
from gateway.ledger import MessageIds, id_text
from gateway.runtime.clock import wall_time
from tests.api.conftest import problem
from tests.replays.conftest import House

MARKUP = "needle<img src=x onerror=alert(1)>\u202e"
SCOPES = {
    "root": ("admin",),
    "consumer": ("consume:fake/needle-b",),
    "reader": ("history",),
    "publisher": ("publish:other/amq.default",),
    "pusher": ("endpoint:needle",),
}


@pytest.fixture(params=["sqlite", "postgresql"])
async def house(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    url = request.getfixturevalue("postgresql_ledger") if request.param == "postgresql" else ""
    house = House(tmp_path, url=url)
    for name in ("orders", "needle-b", "a-NEEDLE", "needle", "nee\udcffdle"):
        await house.fake.declare_queue(name)
    await house.other.declare_queue("orders")
    await house.start()
    monkeypatch.setattr(house.ledger, "headers", ("tenant",))
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

    async def __call__(self, q: str, client: str = "root", **more: Any) -> dict[str, Any]:
        pairs = [("q", q), *((name, str(value)) for name, value in more.items())]
        path = "&".join(f"{name}={quote(value, safe='', errors='surrogateescape')}" for name, value in pairs)
        return await self.page(f"/v1/search?{path}", client)

    async def page(self, path: str, client: str = "root") -> dict[str, Any]:
        found = await self.call("GET", path, client=client)
        assert found.status_code == 200, found.text
        body: dict[str, Any] = found.json()
        return body


@pytest.fixture
async def ask(house: House) -> AsyncIterator[Asked]:
    asked = Asked(house)
    async with asked.client:
        yield asked


def told(found: dict[str, Any], *kinds: str) -> list[tuple[str, str]]:
    return [(each["kind"], each["name"]) for each in found["found"] if not kinds or each["kind"] in kinds]


def searched(found: dict[str, Any]) -> dict[str, str]:
    return {each["kind"]: each["searched"] for each in found["kinds"]}


def of(found: dict[str, Any], kind: str) -> dict[str, Any]:
    row: dict[str, Any] = next(each for each in found["kinds"] if each["kind"] == kind)
    return row


async def queues(ask: Asked, *names: str) -> None:
    for name in names:
        path = f"/v1/brokers/fake/queues/{quote(name, safe='', errors='surrogateescape')}"
        assert (await ask.call("PUT", path)).status_code == 200


async def test_names_of_every_kind(ask: Asked, house: House) -> None:
    await queues(ask, "needle-b", "a-NEEDLE", "needle")
    for path, body in {
        "/v1/brokers/fake/exchanges/needle.events": {},
        "/v1/subscriptions/needle": {"broker": "fake", "queue": "needle"},
        "/v1/subscriptions/nothing": {"broker": "fake", "queue": "orders"},
    }.items():
        assert (await ask.call("PUT", path, body)).status_code == 201, path
    for kind in ("bridge", "tap"):
        await house.ledger.put_resource(kind, "needle", {})
    job = {"id": "needle-1", "source": {"messages": {"broker": "fake"}}}
    assert (await ask.call("POST", "/v1/replays", job)).status_code == 201
    await house.ended("needle-1")
    found = await ask("NeedlE")
    assert told(found) == [
        ("queue", "needle"), ("queue", "needle-b"), ("queue", "a-NEEDLE"), ("exchange", "needle.events"),
        ("subscription", "needle"), ("bridge", "needle"), ("tap", "needle"), ("replay", "needle-1"),
    ]  # fmt: skip
    assert [each["kind"] for each in found["kinds"]] == list(SEARCHES)
    for each in found["found"]:
        if each["kind"] in ("bridge", "tap"):  # nothing runs them here
            assert each["path"] == f"/v1/{each['kind']}s/needle"
        else:
            assert (await ask.call("GET", each["path"])).status_code == 200, each
    assert told(await ask("fak"), "broker") == [("broker", "fake")]
    assert told(await ask("needle", kind="tap")) == [("tap", "needle")]
    assert told(await ask("no such thing")) == []


async def test_replays_by_the_names_that_they_were_asked_for_with(ask: Asked, house: House) -> None:
    for job in (
        {"id": "b", "source": {"deliveries": {"subscription": "Billing"}}},
        {
            "id": "a",
            "source": {"messages": {"broker": "fake", "routing_key": "invoices"}},
            "target": {"broker": "other"},
        },
        {"id": "billing", "source": {"messages": {"broker": "fake"}}},
    ):
        assert (await ask.call("POST", "/v1/replays", job)).status_code == 201
        await house.ended(str(job["id"]))
    found = await ask("billing", kind="replay")
    assert [(each["name"], each["match"]) for each in found["found"]] == [("billing", "id"), ("b", "name")]
    assert told(await ask("voice", kind="replay")) == told(await ask("Other", kind="replay")) == [("replay", "a")]
    first = await ask("fake", kind="replay", limit=1)
    assert told(first) == [("replay", "a")]
    assert told(await ask.page(of(first, "replay")["next"])) == [("replay", "billing")]


async def test_it_says_what_it_did_not_search(ask: Asked, house: House) -> None:
    await queues(ask, "needle")
    found = await ask("needle")
    shared = {("front", "", "incomplete")} if house.ledger.work.shared else set()
    parts = dict.fromkeys(["queue", "exchange", *(kind for kind, _, _ in shared)], "part")
    assert searched(found) == {**dict.fromkeys(SEARCHES, "all"), **parts}
    gaps = {(each["kind"], each["broker"], each["code"]): each["reason"] for each in found["gaps"]}
    assert set(gaps) == {
        ("queue", "fake", "incomplete"), ("queue", "other", "incomplete"), ("exchange", "", "incomplete"),
        *shared,
    }  # fmt: skip
    assert "AMQP cannot list queues" in gaps["queue", "fake", "incomplete"]
    assert "brokers.fake.management" in gaps["queue", "fake", "incomplete"]


async def test_messages_by_everything_that_is_known_of_them(ask: Asked, house: House) -> None:
    (key,) = await house.known(1, routing_key="needle.eu")
    (id,) = await house.known(1, properties={"message_id": "needle.eu", "headers": {"tenant": "7", "other": "7"}})
    (third,) = await house.known(1, properties={"correlation_id": "c-1", "headers": {"message_id": "needle.eu"}})

    async def matches(text: str) -> list[tuple[str, str, str]]:
        found = await ask(text, kind="message")
        for each in found["found"]:
            assert (await ask.call("GET", each["path"])).status_code == 200
        return [(each["name"], each["match"], each["state"]) for each in found["found"]]

    assert await matches("needle.eu") == [
        (id_text(id), "message_id", "confirmed"),
        (id_text(key), "routing_key", "confirmed"),
    ]
    assert await matches("c-1") == [(id_text(third), "correlation_id", "confirmed")]
    assert await matches(id_text(key)) == [(id_text(key), "id", "confirmed")]
    assert await matches("tenant=7") == [(id_text(id), "header", "confirmed")]
    assert await matches("needle") == [], "the whole of it"
    found = await ask("other=7", kind="message")
    assert (found["found"], found["gaps"][0]["code"]) == ([], "incomplete")
    assert found["gaps"][0]["reason"] == "The ledger does not keep the header other (ledger.headers: tenant)."


async def test_messages_are_searched_further_and_further_back(
    ask: Asked, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [id_text(each) for each in await house.known(3, routing_key="needle")]
    await house.known(30, routing_key="other")
    for name, value in {"ROWS": 10, "CHUNK_MIN": 5, "CHUNK_MAX": 5}.items():
        monkeypatch.setattr(f"gateway.ledger.events.searches.{name}", value)
    found = await ask("needle", kind="message", limit=2)
    assert (found["found"], searched(found)) == ([], {"message": "part"})
    assert found["gaps"][0]["code"] == "bounded"
    assert of(found, "message")["reached"] is not None
    names: list[str] = []
    asked = 0
    while (following := of(found, "message")["next"]) is not None:
        found, asked = await ask.page(following), asked + 1
        names += [each["name"] for each in found["found"]]
    assert (names, asked > 2) == (ids[::-1], True)
    assert (searched(found), of(found, "message")["reached"]) == ({"message": "all"}, None)


async def test_a_publishers_id_with_a_time_is_looked_for_at_that_time_first(
    ask: Asked, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, earlier = house.gateway.ids, MessageIds(lambda: wall_time() - 300)
    own = id_text(earlier())
    monkeypatch.setattr(house.gateway, "ids", earlier)
    (first,) = await house.known(1, properties={"message_id": own})
    monkeypatch.setattr(house.gateway, "ids", ids)
    (again,) = await house.known(1, properties={"message_id": own})
    await house.known(30, routing_key="other")
    for name, value in {"ROWS": 10, "CHUNK_MIN": 5, "CHUNK_MAX": 5}.items():
        monkeypatch.setattr(f"gateway.ledger.events.searches.{name}", value)
    found = await ask(own, kind="message")
    assert (told(found), searched(found)) == ([("message", id_text(first))], {"message": "part"})
    assert found["gaps"][0]["reason"].startswith("Only messages of the time that the id has in it were looked at.")
    names: list[str] = []
    while (following := of(found, "message")["next"]) is not None:
        found = await ask.page(following)
        names += [each["name"] for each in found["found"]]
    assert (names, searched(found)) == ([id_text(again)], {"message": "all"}), "all others, and none of them twice"
    for foreign in (id_text(MessageIds(lambda: 1_000_000_000.0)()), "4f6d3c5e-7b1a-4c2d-9e8f-0a1b2c3d4e5f"):
        await house.known(1, properties={"message_id": foreign})
        found = await ask(foreign, kind="message")
        assert [each["match"] for each in found["found"]] == ["message_id"], "it came at another time"
        assert of(found, "message")["reached"] is not None


async def test_scheduled_publishes(ask: Asked) -> None:
    body = {"routing_key": "needle.eu", "payload": "x", "delay_seconds": 3_600}
    sent = await ask.call("POST", "/v1/brokers/fake/exchanges/amq.default:publish", body)
    other = await ask.call("POST", "/v1/brokers/other/exchanges/amq.default:publish", body, "publisher")
    ids = {client: each.json()["id"] for client, each in (("root", sent), ("publisher", other))}
    assert told(await ask("edle", kind="scheduled")) == [("scheduled", ids["root"]), ("scheduled", ids["publisher"])]
    assert told(await ask("edle", "publisher")) == [("scheduled", ids["publisher"])], "its own alone"
    (row,) = (await ask(ids["root"], kind="scheduled"))["found"]
    assert (row["match"], row["state"], row["routing_key"], row["exchange"]) == ("id", "scheduled", "needle.eu", "")
    assert (await ask.call("GET", row["path"])).status_code == 200
    assert told(await ask(ids["root"], "publisher")) == []
    first = await ask("needle", kind="scheduled", limit=1)
    assert told(await ask.page(of(first, "scheduled")["next"])) == [("scheduled", ids["publisher"])]


async def test_a_caller_finds_what_it_could_list(ask: Asked, house: House) -> None:
    await queues(ask, "needle", "needle-b")
    for name in ("needle", "needle-b"):
        await ask.call("PUT", f"/v1/subscriptions/{name}", {"broker": "fake", "queue": name})
    await house.ledger.put_resource("tap", "needle", {})
    await house.known(1, routing_key="needle")
    consumer = await ask("needle", "consumer")
    assert told(consumer) == [("queue", "needle-b"), ("subscription", "needle-b")]
    none = {kind for kind, how in searched(consumer).items() if how == "none"}
    assert none == {"exchange", "endpoint", "bridge", "tap", "front", "replay", "scheduled", "message"}
    assert {each["kind"] for each in consumer["gaps"] if each["code"] == "forbidden"} == none
    assert {each["broker"] for each in consumer["gaps"]} <= {"", "fake"}, "no word of a broker that it may not see"
    publisher = await ask("e", "publisher")
    assert told(publisher) == [("broker", "other")]
    assert told(await ask("needle", "reader"), "message") != []
    assert told(await ask("needle", "reader"), *(set(SEARCHES) - {"message"})) == []
    assert told(await ask("e", "pusher")) == []
    problem(await ask.client.get("/v1/search?q=x"), 401, "unauthorized")


async def test_names_are_paged_in_their_order(ask: Asked, house: House) -> None:
    names = [f"needle-{number:02}" for number in range(25)]
    for name in names:
        await house.fake.declare_queue(name)
        await house.gateway.topology._remember(QUEUE, "fake", name, {"name": name})
    found = await ask("needle", limit=10)
    told_names = [each["name"] for each in found["found"]]
    while (following := of(found, "queue")["next"]) is not None:
        found = await ask.page(following)
        told_names += [each["name"] for each in found["found"]]
    assert told_names == names
    problem(await ask.call("GET", "/v1/search?q=a&cursor=x"), 422, "invalid_parameter")
    for kind in set(SEARCHES) - {"endpoint"}:  # this one pushes nothing
        problem(await ask.call("GET", f"/v1/search?q=a&kind={kind}&cursor=x!"), 422, "invalid_parameter")


async def test_hostile_texts_and_names(ask: Asked, house: House) -> None:
    await house.fake.declare_queue(MARKUP)
    await queues(ask, "nee\udcffdle", MARKUP)
    (binary,) = (await ask("\udcffdle", kind="queue"))["found"]
    assert binary["name"]["type"] == "binary"
    assert (await ask.call("GET", binary["path"])).status_code == 200
    assert told(await ask(MARKUP, kind="queue")) == [("queue", MARKUP)]
    for text in ("\0", "%", "'; drop table messages --", '"', "a=", "\u0130", "x" * 255, "\udcc3", "/../"):
        assert told(await ask(text)) == [], text
    for wrong in ("", "q=", f"q={'x' * 256}", "q=a&limit=0", "q=a&limit=201", "q=a&kind=queues", "q=a&q=b"):
        problem(await ask.call("GET", f"/v1/search?{wrong}"), 422, "invalid_parameter")


async def test_while_the_ledger_is_away_the_rest_is_searched(
    ask: Asked, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("the ledger is away")

    for name in ("list_resources", "messages"):
        monkeypatch.setattr(house.ledger, name, away)
    monkeypatch.setattr(house.ledger.outbox, "find", away)
    found = await ask("fake")
    assert told(found) == [("broker", "fake")]
    assert {kind for kind, how in searched(found).items() if how == "none"} >= {"subscription", "scheduled", "message"}
    assert {each["code"] for each in found["gaps"] if each["kind"] == "message"} == {"ledger_unavailable"}


async def test_a_search_that_takes_too_long_is_given_up(
    ask: Asked, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr("gateway.api.resources.search.WITHIN", 0.05)
    monkeypatch.setattr(house.gateway.inventory, "read", slow)
    found = await ask("fake")
    assert told(found, "broker") == [("broker", "fake")]
    assert ("queue", "late") in {(each["kind"], each["code"]) for each in found["gaps"]}
    assert searched(found)["queue"] == "none"


async def test_only_so_much_is_looked_at(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.api.resources.search.LOOKED_MAX", 2)
    monkeypatch.setattr("gateway.api.resources.search.PAGE", 1)
    for name in ("a", "b", "needle"):
        await ask.call("PUT", f"/v1/brokers/fake/exchanges/{name}", {})
    found = await ask("needle", kind="exchange")
    assert (told(found), {each["code"] for each in found["gaps"]}) == ([], {"incomplete", "bounded"})
