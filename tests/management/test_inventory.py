"""``GET /v1/queues`` over brokers whose management is a fake, and over the embedded broker."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import running
from gateway.config import load
from gateway.management import inventory
from tests.ledgers import sqlite_ledger
from tests.management import fake
from tests.management.conftest import NOWHERE, Serve, pages, read
from tests.management.fake import management

ROWS = [{"name": f"queue-{number:05}", "messages": number * 7919 % 10_007} for number in range(10_000)]
ALL = [
    "name", "depth", "ready", "unacknowledged", "consumers", "bytes", "publish_rate", "deliver_rate", "ack_rate",
]  # fmt: skip


def of(**urls: str) -> dict[str, Any]:
    """Settings of brokers by their management URLs."""
    return {f"brokers.{name}": {"url": NOWHERE, "management": url} for name, url in urls.items()}


async def test_ten_thousand_queues_are_paged_without_doubles(serve: Serve) -> None:
    async with management(fake.rabbitmq(ROWS)) as server, serve(of(shop=server.url)) as (_, client):
        began = time.monotonic()
        first = await read(client, limit=1_000)
        cold = time.monotonic() - began
        assert (first["total"], len(first["queues"])) == (10_000, 1_000)
        (broker,) = first["brokers"]
        assert (broker["name"], broker["source"], broker["partial"], broker["reason"], broker["queues"]) == (
            "shop", "management", False, "", 10_000,
        )  # fmt: skip
        began = time.monotonic()
        await read(client, limit=100, search="queue-0012")
        warm = time.monotonic() - began
        began = time.monotonic()
        names = [row["name"] for row in await pages(client, limit=1_000)]
        print(f"10,000 queues: first page {cold:.2f} s cold, {warm:.3f} s kept, all {time.monotonic() - began:.2f} s")
        assert names == [row["name"] for row in ROWS]
        depths = [(row["depth"], row["name"]) for row in await pages(client, limit=1_000, sort="-depth")]
        assert len(set(depths)) == 10_000
        assert all((-one[0], one[1]) < (-other[0], other[1]) for one, other in pairwise(depths))
        assert [row["name"] for row in await pages(client, limit=999, sort="-name")] == names[::-1]
        assert (await read(client, search="QUEUE-0012", limit=3))["total"] == 10


@pytest.mark.parametrize("sort", [*ALL, *(f"-{each}" for each in ALL)])
async def test_what_is_not_known_comes_last(sort: str, serve: Serve) -> None:
    figures: list[dict[str, Any]] = [
        {}, {"messages": 1, "messages_ready": 1, "messages_unacknowledged": 1, "consumers": 1, "message_bytes": 1},
        {"messages": 2, "messages_ready": 2, "messages_unacknowledged": 2, "consumers": 2, "message_bytes": 2},
    ]  # fmt: skip
    for figure in figures[1:]:
        rate = {"rate": figure["messages"] / 2}
        figure["message_stats"] = {"publish_details": rate, "deliver_get_details": rate, "ack_details": rate}
    rows = [{"name": f"q{number}", **figure} for number, figure in enumerate(figures)]
    async with (
        management(fake.rabbitmq(rows)) as one,
        management(fake.rabbitmq(rows)) as other,
        serve(of(a=one.url, b=other.url)) as (_, client),
    ):
        found = [(row["broker"], row["name"]) for row in await pages(client, limit=1, sort=sort)]
    numbers = [2, 1, 0] if sort.startswith("-") else [0, 1, 2] if sort == "name" else [1, 2, 0]
    brokers = "ba" if sort == "-name" else "ab"
    assert found == [(broker, f"q{number}") for number in numbers for broker in brokers]


async def test_one_reading_is_made_however_many_ask(serve: Serve) -> None:
    async with management(fake.rabbitmq(ROWS[:3])) as server, serve(of(shop=server.url)) as (_, client):
        server.pause = 0.5
        found = await asyncio.gather(*(read(client) for _ in range(20)))
        assert [each["total"] for each in found] == [3] * 20
        await read(client)
        assert len(server.asked) == 1


async def test_a_list_is_read_again_after_some_seconds(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "KEPT_SECONDS", 0.0)
    rows = ROWS[:1]
    async with management(fake.rabbitmq(rows)) as server, serve(of(shop=server.url)) as (_, client):
        first = await read(client)
        rows.append(ROWS[7])
        second = await read(client)
    assert (first["total"], second["total"]) == (1, 2)
    assert first["brokers"][0]["as_of"] < second["brokers"][0]["as_of"]


async def test_a_queue_is_listed_and_found_as_soon_as_it_was_made_through_the_gateway(
    serve: Serve, unique_name: Callable[[str], str]
) -> None:
    """Under each name of the broker, and although the list was read a moment before."""
    async with serve({"embedded.enabled": True}) as (_, client):
        for number, broker in enumerate(("local-0-9-1", "local-0-10")):
            queue = unique_name(f"new-{number}")
            path = f"/v1/brokers/{broker}/queues/{queue}"
            for there in (False, True, False):
                found = await read(client, "/v1/search", q=queue, kind="queue")
                rows = await read(client, search=queue, broker="local-0-10")
                assert (len(found["found"]), rows["total"]) == (there, there)
                if there:
                    assert (await client.delete(path)).is_success
                else:
                    assert (await client.put(path, json={})).status_code == 201


async def test_a_reading_that_began_before_a_change_does_not_count(serve: Serve) -> None:
    rows = ROWS[:1]
    async with management(fake.rabbitmq(rows)) as server, serve(of(shop=server.url)) as (app, client):
        server.pause = 0.5
        before = asyncio.create_task(read(client))
        await asyncio.sleep(0.2)
        app.gateway.inventory.changed("shop")
        server.answer = fake.rabbitmq(ROWS[:2])
        after = await asyncio.gather(*(read(client) for _ in range(5)))
        assert (await before)["total"] in (1, 2)
        assert [each["total"] for each in after] == [2] * 5
        assert len(server.asked) == 2, "one reading more, however many ask"


async def test_a_slow_broker_holds_nobody_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(inventory, "KEPT_SECONDS", 0.0)
    async with (
        management(fake.rabbitmq(ROWS[:2])) as slow,
        management(fake.rabbitmq(ROWS[:1])) as quick,
        serve(of(slow=slow.url, quick=quick.url)) as (_, client),
    ):
        slow.pause = 2.0
        began = time.monotonic()
        found = await read(client)
        assert time.monotonic() - began < 2.0
        states = {each["name"]: (each["queues"], each["partial"], each["reason"]) for each in found["brokers"]}
        assert states == {
            "slow": (0, True, "The broker has not answered within 0.5 s. Ask again."),
            "quick": (1, False, ""),
        }
        assert (await read(client, broker="slow"))["brokers"][0]["as_of"] is None
        await asyncio.sleep(2.0)
        later = (await read(client, broker="slow"))["brokers"][0]
        assert later["queues"] == 2, "what came meanwhile is shown, although it is being read again"
        assert later["reason"].startswith("The broker has not answered within 0.5 s: What is listed is as it was at ")


async def test_the_list_of_before_stays_while_readings_fail(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "KEPT_SECONDS", 0.0)
    async with management(fake.rabbitmq(ROWS[:2])) as server, serve(of(shop=server.url)) as (_, client):
        before = await read(client)
        server.answer = lambda _: (503, {})
        after = await read(client)
        assert after["queues"] == before["queues"]
        (broker,) = after["brokers"]
        assert (broker["source"], broker["partial"]) == ("management", True)
        assert broker["reason"].startswith("The management API answers 503: the broker starts, stops or is overloaded.")
        assert "What is listed is as it was at" in broker["reason"]
        assert broker["as_of"] == before["brokers"][0]["as_of"]
        monkeypatch.setattr(inventory, "STALE_SECONDS", 0.0)
        server.answer = fake.rabbitmq(ROWS[:1])
        assert (await read(client))["total"] == 1
        server.answer = lambda _: (401, {})
        gone = await read(client)
        assert (gone["total"], gone["brokers"][0]["source"]) == (0, "amqp"), "it is too old to be shown"


async def test_all_brokers_together_keep_a_bounded_number_of_queues(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "ROWS_IN_ALL", 30)
    async with (
        management(fake.rabbitmq(ROWS[:20])) as one,
        management(fake.rabbitmq(ROWS[:20])) as other,
        serve(of(one=one.url, other=other.url)) as (_, client),
    ):
        assert (await read(client, broker="one"))["total"] == 20
        found = await read(client)
    assert found["total"] == 30
    reasons = {each["name"]: each["reason"] for each in found["brokers"]}
    assert reasons == {
        "one": "", "other": "The list ends after 10 queues, which is as many as the gateway keeps.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scopes", "seen"),
    [
        (["admin"], {"a": 3, "b": 3}),
        (["broker:a"], {"a": 3}),
        (["broker:*"], {"a": 3, "b": 3}),
        (["consume:a/queue-00001"], {"a": 1}),
        (["consume:*/queue-00001", "consume:b/queue-00002"], {"a": 1, "b": 2}),
        (["consume:b/*"], {"b": 3}),
        (["consume:a/none"], {"a": 0}),
        (["subscribe:a/queue-00001"], {}),
        (["publish:a/amq.default"], {}),
    ],
    ids=str,
)
async def test_a_caller_sees_what_its_scopes_name(scopes: list[str], seen: dict[str, int], serve: Serve) -> None:
    keys = [{"name": "caller", "key": "k" * 32, "scopes": scopes}]
    async with (
        management(fake.rabbitmq(ROWS[:3])) as a,
        management(fake.rabbitmq(ROWS[:3])) as b,
        serve({**of(a=a.url, b=b.url), "api_keys": keys}, key="k" * 32) as (_, client),
    ):
        found = await read(client)
        assert {each["name"]: each["queues"] for each in found["brokers"]} == seen
        rows = [row for row in found["queues"] if row["broker"] in seen]
        assert len(rows) == len(found["queues"]) == found["total"] == sum(seen.values())
        for row in found["queues"]:
            answer = await client.get(f"/v1/brokers/{row['broker']}/queues/{row['name']}")
            assert answer.status_code == 503, "it may be asked for by itself"
        for name, server in {"a": a, "b": b}.items():
            if name not in seen:
                assert server.asked == []
            named = {scope.partition(":")[2].partition("/")[0] for scope in scopes} & {name, "*", ""}
            one = await client.get("/v1/queues", params={"broker": name})
            assert one.status_code == (200 if named else 404)


async def test_a_caller_without_a_scope_of_brokers_sees_nothing(serve: Serve) -> None:
    keys = [{"name": "caller", "key": "k" * 32, "scopes": ["history"]}]
    async with serve({**of(a="http://127.0.0.1:1"), "api_keys": keys}, key="k" * 32) as (_, client):
        assert (await client.get("/v1/queues")).status_code == 403


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"sort": "size"}, "sort"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "ä"}, "cursor"),
        ({"cursor": "W10"}, "cursor"),
        ({"cursor": "WyJuYW1lIixudWxsLCJhIiwienoiXQ"}, "cursor"),
        ({"search": "x" * 256}, "search"),
        ({"page": "1"}, "page"),
    ],
)
async def test_wrong_parameters(query: dict[str, str], parameter: str, serve: Serve) -> None:
    async with serve(of(a="http://127.0.0.1:1")) as (_, client):
        answer = await client.get("/v1/queues", params=query)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
        assert answer.json()["errors"][0]["parameter"] == parameter
        unknown = await client.get("/v1/queues", params={"broker": "none"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "broker_not_found")


async def test_a_cursor_belongs_to_its_order(serve: Serve) -> None:
    async with management(fake.rabbitmq(ROWS[:3])) as server, serve(of(shop=server.url)) as (_, client):
        link = (await client.get("/v1/queues", params={"limit": 1, "sort": "depth"})).links["next"]["url"]
        assert (await client.get(link)).status_code == 200
        wrong = await client.get(link.replace("sort=depth", "sort=-depth"))
        assert (wrong.status_code, wrong.json()["errors"][0]["parameter"]) == (422, "cursor")


async def test_the_passwords_are_nowhere(serve: Serve) -> None:
    async with management(lambda _: (401, {})) as server:
        url = server.url.replace("://", "://watcher:hidden-word@")
        async with serve(of(shop=url)) as (_, client):
            for path in ("/v1/queues", "/v1/brokers", "/v1/brokers/shop"):
                text = (await client.get(path)).text
                assert "hidden-word" not in text
                assert "guest" not in text.replace("//guest@", "//"), "the user is shown, and the password is not"


async def test_a_name_of_any_octets_is_json(serve: Serve) -> None:
    names = ["ä", "a/b", "\x1b[31m", "\u202e", "<b>"]
    rows = [{"name": name} for name in names]
    async with management(fake.rabbitmq(rows)) as server, serve(of(shop=server.url)) as (_, client):
        assert [row["name"] for row in await pages(client, limit=2)] == sorted(names)


# ------------------------------------------------------------------------------------- the embedded broker


async def test_the_embedded_broker_gives_its_own_figures(serve: Serve, unique_name: Callable[[str], str]) -> None:
    queue = unique_name("held")
    async with serve({"embedded.enabled": True}) as (_, client):
        arguments = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "late"}
        path = "/v1/brokers/local-0-9-1"
        assert (await client.put(f"{path}/queues/{queue}", json={"arguments": arguments})).status_code == 201
        body = {"messages": [{"routing_key": queue, "payload": "x"}] * 5}
        assert (await client.post(f"{path}/exchanges/amq.default:publish", json=body)).status_code == 207
        await client.put(f"/v1/subscriptions/{queue}", json={"broker": "local-0-9-1", "queue": queue})
        pulled = await client.post(f"/v1/subscriptions/{queue}:pull", json={"max_messages": 2})
        assert len(pulled.json()["messages"]) == 2
        found = await read(client, search=queue, broker="local-0-9-1")
        assert found["queues"] == [
            {
                "broker": "local-0-9-1", "name": queue, "vhost": "/", "depth": 5, "ready": 3, "unacknowledged": 2,
                "bytes": None, "consumers": 0, "publish_rate": None, "deliver_rate": None, "ack_rate": None,
                "state": None, "type": "classic", "durable": True, "auto_delete": False, "exclusive": False,
                "dead_letters": True, "dead_letter_exchange": "amq.fanout", "dead_letter_routing_key": "late",
            }
        ]  # fmt: skip
        assert [(each["source"], each["partial"]) for each in found["brokers"]] == [("embedded", False)]
        once = await read(client, search=queue)
        assert [row["broker"] for row in once["queues"]] == ["local-0-9-1"]
        assert [each["name"] for each in once["brokers"]] == ["local-0-9-1"]
        other = await read(client, search=queue, broker="local-0-10")
        assert [row["broker"] for row in other["queues"]] == ["local-0-10"]


# --------------------------------------------------------------------------------- brokers that change


async def test_a_broker_that_is_put_over_http_is_listed_as_it_is_now(serve: Serve) -> None:
    async with (
        management(fake.rabbitmq(ROWS[:2])) as one,
        management(fake.rabbitmq(ROWS[:3])) as other,
        serve({"outbound.broker_allow": ["127.0.0.0/8"]}) as (_, client),
    ):
        login = "://watcher:hidden-word@"
        body = {"url": NOWHERE, "management": one.url.replace("://", login)}
        assert (await client.put("/v1/brokers/shop", json=body)).status_code == 201
        assert (await read(client))["total"] == 2
        change = {"password": "guest", "management": other.url.replace("://", login)}
        moved = await client.patch("/v1/brokers/shop", json=change, headers={"if-match": "*"})
        assert moved.status_code == 200, moved.text
        assert "hidden-word" not in moved.text
        assert (await read(client))["total"] == 3, "what was kept is of the settings before"
        assert (await client.delete("/v1/brokers/shop")).status_code == 204
        assert (await read(client))["brokers"] == []
        assert one.logins == other.logins == {b64encode(b"watcher:hidden-word").decode()}


async def test_a_reload_counts_for_the_next_list(tmp_path: Path) -> None:
    async with management(fake.rabbitmq(ROWS[:2])) as one, management(fake.rabbitmq(ROWS[:3])) as other:
        path = tmp_path / "gateway.toml"

        def write(url: str) -> None:
            path.write_text(f'[brokers.shop]\nurl = "{NOWHERE}"\nmanagement = "{url}"\n')

        write(one.url)
        sqlite_ledger(tmp_path)
        given = {"http.port": 0, "ops.port": 0, "data_dir": str(tmp_path)}
        read_again = partial(load, path, {}, given)
        async with (
            running(read_again(), read=read_again) as app,
            httpx.AsyncClient(base_url=app.url, timeout=30) as client,
        ):
            assert (await read(client))["total"] == 2
            write(other.url)
            await app.reloads.reload()
            assert (await read(client))["total"] == 3
