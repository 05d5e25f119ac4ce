"""Callers with ``subscribe:`` scopes: subscriptions of their queues, and nothing that they have no scope for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from gateway.api.app import Api
from gateway.api.resources.subscription_scopes import NEEDS
from gateway.config import ApiKeySettings, EndpointSettings, HttpSettings, SubscriptionSettings
from gateway.core import Gateway
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport, OutboundRules
from gateway.webhooks.attempts.sender import Sender
from gateway.webhooks.settings.endpoints import EndpointRegistry
from gateway.webhooks.settings.secrets import Seals
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

MINE = "/v1/subscriptions/mine"
PLAIN = {"broker": "fake", "queue": "orders"}


@pytest.fixture
async def make(gateway: Gateway, upstream: FakeUpstream) -> Any:
    """``make(scope, ...)``: a client of these scopes, beside endpoints ``hook`` and ``answers``, which replies."""
    upstream.exchanges |= {"ex": "topic", "dlx": "topic"}
    await upstream.declare_queue("secret")
    transport = GuardedTransport(OutboundRules(()), DEFAULT_OUTBOUND_LIMITS)
    sender = Sender(transport)
    configured = {
        "hook": EndpointSettings(url="https://hook.example/", signing=("v1a",)),
        "answers": EndpointSettings(url="https://hook.example/", signing=("v1a",), reply=True),
    }
    endpoints = EndpointRegistry(gateway.ledger, configured, sender, Seals([bytes(32)]))
    await endpoints.start()

    def client(*scopes: str) -> httpx.AsyncClient:
        keys = [ApiKeySettings(name="caller", key="secret", scopes=scopes)]
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(Api(gateway, HttpSettings(), keys, endpoints=endpoints)),
            base_url="http://gateway.example", headers={"authorization": "Bearer secret"},
        )  # fmt: skip

    yield client
    await endpoints.close()
    await sender.close()
    await transport.aclose()


Make = Callable[..., httpx.AsyncClient]


async def test_a_consumer_makes_reads_changes_and_deletes_its_own(make: Make) -> None:
    client = make("subscribe:fake/orders")
    made = await client.put(MINE, json=PLAIN)
    assert made.status_code == 201, made.text
    assert (await client.put(MINE, json=PLAIN)).status_code == 200
    assert (await client.get(MINE)).json()["queue"] == "orders"
    assert [each["name"] for each in (await client.get("/v1/subscriptions")).json()["subscriptions"]] == ["mine"]
    other = PLAIN | {"lease": "ledger", "ack_deadline_seconds": 60, "max_deliveries": 3}
    problem(await client.put(MINE, json=other), 428, "precondition_required")
    changed = await client.put(MINE, json=other, headers={"if-match": made.headers["etag"]})
    assert (changed.status_code, changed.json()["lease"]) == (200, "ledger")
    assert (await client.post(f"{MINE}:pause")).json()["state"] == "paused"
    assert (await client.post(f"{MINE}:resume")).json()["state"] == "active"
    assert (await client.put(MINE, json=PLAIN, headers={"if-match": "*"})).status_code == 200
    problem(await client.delete(MINE, headers={"if-match": '"other"'}), 412, "etag_mismatch")
    assert (await client.delete(MINE)).status_code == 204
    problem(await client.get(MINE), 403, "forbidden")


async def test_it_does_not_consume(make: Make) -> None:
    client = make("subscribe:fake/orders")
    await client.put(MINE, json=PLAIN)
    for verb in ("pull", "acknowledge", "release", "reject", "modifyAckDeadline"):
        problem(await client.post(f"{MINE}:{verb}", json={"ack_ids": ["x"]}), 403, "forbidden")
    problem(await client.get(f"{MINE}:stream"), 403, "forbidden")
    both = make("subscribe:fake/orders", "consume:fake/orders")
    assert (await both.post(f"{MINE}:pull")).status_code == 200


@pytest.mark.parametrize(
    ("settings", "lacking"),
    [
        ({"queue": "secret"}, "subscribe:fake/secret"),
        ({"broker": "none"}, "subscribe:none/orders"),
        ({"push": "hook"}, "endpoint:hook"),
        ({"push": "missing"}, "endpoint:missing"),
        ({"exchange": "ex", "binding_key": "#"}, "broker:fake"),
        ({"dead_letter_exchange": "dlx"}, "publish:fake/dlx or route:fake/dlx/PATTERN"),
        ({"dead_letter_routing_key": "secret"}, "publish:fake/amq.default or route:fake/amq.default/PATTERN"),
        ({"dead_letter_broker": "else"}, "publish:else/amq.default or route:else/amq.default/PATTERN"),
        ({"filter": {"routing_key": "a"}, "unmatched": "discard"}, "consume:fake/orders"),
        ({"order_key": "routing_key", "lease": "ledger"}, "consume:fake/orders"),
    ],
)
async def test_what_a_setting_takes(make: Make, settings: dict[str, Any], lacking: str) -> None:
    client = make("subscribe:fake/orders")
    found = problem(await client.put(MINE, json=PLAIN | settings), 403, "forbidden")
    assert f"'caller' lacks the scope {lacking}" in found["detail"]
    problem(await make("admin").get(MINE), 404, "subscription_not_found")


@pytest.mark.parametrize(
    ("settings", "scopes"),
    [
        ({"exchange": "ex", "binding_key": "#"}, ["broker:fake"]),
        ({"push": "hook"}, ["endpoint:hook", "consume:fake/orders"]),
        ({"dead_letter_exchange": "dlx", "dead_letter_routing_key": "dead.mine"}, ["route:fake/dlx/dead.*"]),
        ({"dead_letter_exchange": "dlx"}, ["publish:fake/dlx"]),
        ({"dead_letter_routing_key": "secret"}, ["route:fake/amq.default/secret"]),
        ({"filter": {"routing_key": "a"}, "unmatched": "discard"}, ["consume:fake/orders"]),
    ],
)
async def test_with_the_scopes_that_it_takes(make: Make, settings: dict[str, Any], scopes: list[str]) -> None:
    for scope in scopes:
        others = [each for each in scopes if each != scope]
        problem(await make("subscribe:fake/orders", *others).put(MINE, json=PLAIN | settings), 403, "forbidden")
    made = await make("subscribe:fake/orders", *scopes).put(MINE, json=PLAIN | settings)
    assert made.status_code == 201, made.text


async def test_a_routing_key_that_the_pattern_does_not_match(make: Make) -> None:
    client = make("subscribe:fake/orders", "route:fake/dlx/dead.*")
    for key in ("", "other", "dead.a.b"):
        settings = PLAIN | {"dead_letter_exchange": "dlx", "dead_letter_routing_key": key}
        problem(await client.put(MINE, json=settings), 403, "forbidden")


async def test_dead_letters_that_keep_their_copy_headers_take_the_whole_exchange(
    make: Make, upstream: FakeUpstream
) -> None:
    upstream.settings = type(upstream.settings)(url=upstream.settings.url, annotate=False)
    settings = PLAIN | {"dead_letter_exchange": "dlx", "dead_letter_routing_key": "dead"}
    client = make("subscribe:fake/orders", "route:fake/dlx/dead")
    assert "publish:fake/dlx" in problem(await client.put(MINE, json=settings), 403, "forbidden")["detail"]
    assert (await make("subscribe:fake/orders", "publish:fake/dlx").put(MINE, json=settings)).status_code == 201


async def test_an_endpoint_that_replies_takes_admin(make: Make) -> None:
    settings = PLAIN | {"push": "answers"}
    client = make("subscribe:fake/orders", "consume:fake/orders", "endpoint:answers", "publish:*/*")
    assert "`reply`" in problem(await client.put(MINE, json=settings), 403, "forbidden")["detail"]
    assert (await make("admin").put(MINE, json=settings)).status_code == 201


async def test_patches_take_the_same(make: Make) -> None:
    client = make("subscribe:fake/orders", "route:fake/dlx/dead.*")
    await client.put(MINE, json=PLAIN)
    any_etag = {"if-match": "*"}
    changed = await client.patch(MINE, json={"ack_deadline_seconds": 60}, headers=any_etag)
    assert (changed.status_code, changed.json()["ack_deadline_seconds"]) == (200, 60)
    dead = {"dead_letter_exchange": "dlx", "dead_letter_routing_key": "dead.mine"}
    assert (await client.patch(MINE, json=dead, headers=any_etag)).status_code == 200
    for patch, lacking in (
        ({"queue": "secret"}, "subscribe:fake/secret"),
        ({"push": "hook"}, "endpoint:hook"),
        ({"dead_letter_routing_key": "other"}, "route:fake/dlx/PATTERN"),
        ({"unmatched": "discard"}, "consume:fake/orders"),
    ):
        answer = await client.patch(MINE, json=patch, headers=any_etag)
        assert lacking in problem(answer, 403, "forbidden")["detail"]
    # What it was lets only those change it who could have made it so.
    answer = await make("subscribe:fake/orders").patch(MINE, json={"prefetch": 1}, headers=any_etag)
    assert "publish:fake/dlx" in problem(answer, 403, "forbidden")["detail"]


async def test_subscriptions_of_others(make: Make) -> None:
    """Neither seen, nor replaced, nor deleted: the queue decides whose it is."""
    admin, client = make("admin"), make("subscribe:fake/orders")
    theirs = {"broker": "fake", "queue": "secret"}
    await admin.put(MINE, json=theirs)
    for answer in (
        await client.get(MINE),
        await client.put(MINE, json=PLAIN),
        await client.put(MINE, json=PLAIN, headers={"if-match": "*"}),
        await client.put(MINE, json=theirs),
        await client.patch(MINE, json={"queue": "orders"}, headers={"if-match": "*"}),
        await client.delete(MINE),
        await client.post(f"{MINE}:pause"),
        await client.post(f"{MINE}:resume"),
    ):
        assert "secret" not in problem(answer, 403, "forbidden")["detail"]
    assert (await client.get("/v1/subscriptions")).json() == {"subscriptions": []}
    assert (await admin.get(MINE)).json()["queue"] == "secret"


async def test_what_the_old_settings_took_is_needed_as_well(make: Make) -> None:
    admin, client = make("admin"), make("subscribe:fake/orders")
    await admin.put(MINE, json=PLAIN | {"push": "hook"})
    assert (await client.get(MINE)).status_code == 200
    for answer in (
        await client.put(MINE, json=PLAIN, headers={"if-match": "*"}),
        await client.delete(MINE),
        await client.post(f"{MINE}:pause"),
    ):
        assert "endpoint:hook" in problem(answer, 403, "forbidden")["detail"]


async def test_messages_that_the_ledger_keeps_under_the_name_are_not_inherited(
    make: Make,
) -> None:
    admin = make("admin")
    theirs = {"broker": "fake", "queue": "secret", "lease": "ledger"}
    await admin.put(MINE, json=theirs)
    await admin.post("/v1/brokers/fake/exchanges/amq.default:publish", json={"routing_key": "secret", "payload": "x"})
    pulled = (await admin.post(f"{MINE}:pull")).json()["messages"]
    assert [each["message"]["payload"] for each in pulled] == ["x"]
    assert (await admin.delete(MINE)).status_code == 204
    client = make("subscribe:fake/orders", "consume:fake/orders")
    found = problem(await client.put(MINE, json=PLAIN | {"lease": "ledger"}), 409, "state")
    assert "did not come from this queue. Choose another name" in found["detail"]
    await admin.put(MINE, json=theirs)
    both = make("subscribe:fake/*", "consume:fake/orders")
    problem(await both.put(MINE, json=PLAIN | {"lease": "ledger"}, headers={"if-match": "*"}), 409, "state")
    assert (await both.put(MINE, json=theirs | {"prefetch": 7}, headers={"if-match": "*"})).status_code == 200
    await admin.post(f"{MINE}:acknowledge", json={"ack_ids": [each["ack_id"] for each in pulled]})


def test_every_setting_has_its_row() -> None:
    """A new setting takes ``admin`` until it is decided what it takes."""
    assert set(NEEDS) == {field.name for field in msgspec.structs.fields(SubscriptionSettings)}
