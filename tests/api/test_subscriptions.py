"""``/v1/subscriptions``: settings, pull, settlement."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from gateway.amqp.message import Message, Properties, RawProperties, ReplyTo
from gateway.amqp.operations import Settlement
from gateway.amqp.values import Typed
from gateway.api.app import Api
from gateway.budgets import BudgetBounds
from gateway.config import ApiKeySettings, HttpSettings, SubscriptionSettings
from gateway.core import Gateway
from gateway.errors import FrameSyntaxError
from gateway.fidelity import annotate
from gateway.ledger import MessageIds, id_text
from tests.api.conftest import problem
from tests.core.fakes import FakeQueue, FakeUpstream

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"
BILLING = "/v1/subscriptions/billing"
ORDERS = {"broker": "fake", "queue": "orders"}


@pytest.fixture
async def billing(client: httpx.AsyncClient) -> None:
    assert (await client.put(BILLING, json=ORDERS)).status_code == 201


async def publish(client: httpx.AsyncClient, *payloads: str) -> list[str]:
    body = {"messages": [{"routing_key": "orders", "payload": payload} for payload in payloads]}
    return [item["id"] for item in (await client.post(PUBLISH, json=body)).json()["results"]]


async def pull(client: httpx.AsyncClient, **request: Any) -> list[Any]:
    response = await client.post(f"{BILLING}:pull", json=request)
    assert response.status_code == 200, response.text
    messages: list[Any] = response.json()["messages"]
    return messages


async def settle(client: httpx.AsyncClient, verb: str, *ack_ids: str, **more: Any) -> list[str]:
    response = await client.post(f"{BILLING}:{verb}", json={"ack_ids": ack_ids, **more})
    assert response.status_code == 200, response.text
    return [item["status"] for item in response.json()["results"]]


# ------------------------------------------------------------------------------------------------- settings


async def test_create_read_replace_delete(client: httpx.AsyncClient) -> None:
    created = await client.put(BILLING, json=ORDERS)
    assert created.status_code == 201
    body = created.json()
    names = ("name", "read_only", "state", "reason", "leases", "backlog", "push_status")
    standing = {name: body.pop(name) for name in names}
    assert standing == {
        "name": "billing", "read_only": False, "state": "active", "reason": "", "leases": 0, "backlog": None,
        "push_status": None,
    }  # fmt: skip
    assert body == {**body["settings"], "settings": body["settings"]}
    assert body["settings"] == msgspec.to_builtins(SubscriptionSettings(**ORDERS))
    etag = created.headers["etag"]
    assert (await client.get(BILLING)).headers["etag"] == etag
    assert (await client.put(BILLING, json=ORDERS)).status_code == 200
    other = {**ORDERS, "ack_deadline_seconds": 60}
    problem(await client.put(BILLING, json=other), 428, "precondition_required")
    problem(await client.put(BILLING, json=other, headers={"if-match": '"x"'}), 412, "etag_mismatch")
    problem(await client.put(BILLING, json=other, headers={"if-match": "x"}), 422, "invalid_parameter")
    replaced = await client.put(BILLING, json=other, headers={"if-match": etag})
    assert (replaced.status_code, replaced.json()["ack_deadline_seconds"]) == (200, 60)
    assert replaced.headers["etag"] != etag
    problem(await client.delete(BILLING, headers={"if-match": etag}), 412, "etag_mismatch")
    assert (await client.delete(BILLING, headers={"if-match": "*"})).status_code == 204
    problem(await client.get(BILLING), 404, "subscription_not_found")
    problem(await client.delete(BILLING), 404, "subscription_not_found")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"broker": "fake"}, 422, "invalid_value"),
        ({**ORDERS, "lease": "nobody"}, 422, "invalid_request"),
        ({**ORDERS, "max_deliveries": 3}, 422, "invalid_value"),
        ({**ORDERS, "order_key": "routing_key"}, 422, "invalid_value"),
        ({**ORDERS, "lease": "ledger", "order_key": "property:nonsense"}, 422, "invalid_value"),
        ({**ORDERS, "lease": "ledger", "order_key": "nonsense"}, 422, "invalid_value"),
        ({**ORDERS, "lease": "ledger", "filter": {"selector": "a >"}}, 422, "invalid_value"),
        ({**ORDERS, "filter": {"selector": "a = 1"}}, 422, "invalid_value"),
        ({**ORDERS, "dead_letter_routing_key": "orders"}, 422, "invalid_value"),
        ({**ORDERS, "binding_key": "k"}, 422, "invalid_value"),
        ({**ORDERS, "dead_letter_broker": "missing"}, 404, "broker_not_found"),
        ({"broker": "fake", "exchange": "missing"}, 404, "not_found"),
        ({**ORDERS, "ack_deadline_seconds": 9}, 422, "invalid_request"),
        ({**ORDERS, "ack_deadline_seconds": 601}, 422, "invalid_request"),
        ({**ORDERS, "nonsense": 1}, 422, "invalid_request"),
        ({**ORDERS, "queue": "é" * 128}, 422, "invalid_value"),
        ({**ORDERS, "queue": ""}, 422, "invalid_value"),
        ({**ORDERS, "dead_letter_exchange": "x" * 256}, 422, "invalid_value"),
        ({**ORDERS, "dead_letter_routing_key": "x" * 256}, 422, "invalid_value"),
        ({"broker": "missing", "queue": "q"}, 404, "broker_not_found"),
    ],
)
async def test_bad_settings(client: httpx.AsyncClient, body: Any, status: int, code: str) -> None:
    problem(await client.put(BILLING, json=body), status, code)


async def test_bad_names(client: httpx.AsyncClient) -> None:
    problem(await client.put("/v1/subscriptions/" + "x" * 129, json=ORDERS), 422, "invalid_parameter")
    problem(await client.put("/v1/subscriptions/%00", json=ORDERS), 422, "invalid_parameter")


async def test_names_with_everything_in_them(client: httpx.AsyncClient) -> None:
    path = "/v1/subscriptions/a%2Fb%3Ac%25%20%C3%A9"
    assert (await client.put(path, json=ORDERS)).json()["name"] == "a/b:c% é"
    assert (await client.post(f"{path}:pull", json={})).json() == {"messages": []}


async def test_the_list_is_paged(client: httpx.AsyncClient) -> None:
    for name in "abcde":
        await client.put(f"/v1/subscriptions/{name}", json=ORDERS)
    seen = []
    url: str | None = "/v1/subscriptions?limit=2"
    while url:
        response = await client.get(url)
        seen += [item["name"] for item in response.json()["subscriptions"]]
        url = response.links.get("next", {}).get("url")
    assert seen == ["a", "b", "c", "d", "e"]
    for query in ("limit=0", "limit=1001", "limit=x", "nonsense=1"):
        problem(await client.get(f"/v1/subscriptions?{query}"), 422, "invalid_parameter")


# ---------------------------------------------------------------------------------------------- pull, settle


@pytest.mark.usefixtures("billing")
async def test_publish_pull_acknowledge(client: httpx.AsyncClient) -> None:
    (identity,) = await publish(client, "hello")
    (item,) = await pull(client, max_messages=10)
    assert (item["delivery_attempt"], item["redelivered"], item["resent"]) == (None, False, False)
    assert item["message"] == {
        "id": identity,
        "exchange": "",
        "routing_key": "orders",
        "payload": "hello",
        "payload_encoding": "string",
        "properties": {"delivery_mode": 2},
        "headers": {},
    }
    assert (await client.get(BILLING)).json()["leases"] == 1
    assert await settle(client, "acknowledge", item["ack_id"]) == ["SUCCESS"]
    assert await settle(client, "acknowledge", item["ack_id"]) == ["SUCCESS"]
    events = (await client.get(f"/v1/messages/{identity}")).json()["events"]
    assert [event["kind"] for event in events] == ["accepted", "confirmed", "delivered", "acknowledged"]


@pytest.mark.usefixtures("billing")
async def test_a_possible_duplicate_says_so(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    properties = annotate(Properties(), id=id_text(MessageIds()()), resent="1")
    upstream.queues["orders"].ready.append((Message(b"again", properties), "", "orders", False))
    (item,) = await pull(client)
    assert (item["resent"], item["redelivered"], item["message"]["headers"]) == (True, False, {})


@pytest.mark.usefixtures("billing")
async def test_everything_a_message_may_have(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    properties = Properties(
        content_type="\udcff",
        priority=0,
        correlation_id=b"\xff",
        reply_to=ReplyTo("ex", "é"),
        app_id="a",
        headers={"n": Typed("int8", 3), "x-gateway": {"id": "nonsense", "resent": "1"}},
    )
    upstream.queues["orders"].ready.append((Message(b"\xff", properties), "\udcff", "k", True))
    (item,) = await pull(client)
    message = item["message"]
    assert (item["delivery_attempt"], item["redelivered"]) == (None, True)
    assert not item["resent"], "without an id of ours it is no word of ours"
    assert (message["payload"], message["payload_encoding"]) == ("/w==", "base64")
    assert message["exchange"] == {"type": "binary", "value": "/w=="}
    assert message["headers"] == {"n": {"type": "int8", "value": 3}}
    assert message["properties"] == {
        "content_type": {"type": "binary", "value": "/w=="},
        "priority": 0,
        "correlation_id": {"type": "binary", "value": "/w=="},
        "reply_to": {"type": "address", "exchange": "ex", "routing_key": "é"},
        "app_id": "a",
    }


@pytest.mark.usefixtures("billing")
async def test_properties_that_are_none(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    def broken(octets: bytes) -> Properties:
        raise FrameSyntaxError("no property list")

    message = Message(b"body", raw=RawProperties(b"\xff", "x", broken))
    upstream.queues["orders"].ready.append((message, "", "orders", False))
    (item,) = await pull(client)
    assert item["message"]["undecodable_properties"] == "/w=="
    assert item["message"]["payload"] == "body"


@pytest.mark.usefixtures("billing")
async def test_release_extend_reject(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    await publish(client, "1", "2", "3")
    first, second, third = (item["ack_id"] for item in await pull(client))
    assert await settle(client, "release", first) == ["SUCCESS"]
    assert await settle(client, "modifyAckDeadline", second, ack_deadline_seconds=600) == ["SUCCESS"]
    assert await settle(client, "modifyAckDeadline", third, ack_deadline_seconds=0) == ["SUCCESS"]
    response = await client.post(f"{BILLING}:reject", json={"ack_ids": [second], "reason": "bad"})
    problem(response, 422, "no_dead_letter_destination")
    upstream.dead_letter = True
    assert await settle(client, "reject", second, reason="bad") == ["SUCCESS"]
    assert upstream.settled == [
        (Settlement.RELEASE, b"1"),
        (Settlement.RELEASE, b"3"),
        (Settlement.ACCEPT, b"2"),
    ]


@pytest.mark.usefixtures("billing")
async def test_a_rejection_of_which_one_fails(client: httpx.AsyncClient) -> None:
    await publish(client, "1")
    (item,) = await pull(client)
    response = await client.post(f"{BILLING}:reject", json={"ack_ids": ["forged", item["ack_id"]]})
    results = response.json()["results"]
    assert [result["status"] for result in results] == ["INVALID_ACK_ID", "FAILED"]
    assert results[1]["problem"]["code"] == "no_dead_letter_destination"


@pytest.mark.usefixtures("billing")
async def test_forged_foreign_and_lost_ack_ids(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    await client.put("/v1/subscriptions/other", json=ORDERS)
    await publish(client, "1")
    (item,) = await pull(client)
    foreign = await client.post("/v1/subscriptions/other:acknowledge", json={"ack_ids": [item["ack_id"]]})
    assert foreign.json()["results"] == [{"ack_id": item["ack_id"], "status": "INVALID_ACK_ID"}]
    upstream.out[0].lose()
    assert await settle(client, "acknowledge", "forged", item["ack_id"]) == ["INVALID_ACK_ID", "LEASE_LOST"]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("pull", {"max_messages": 0}),
        ("pull", {"max_messages": 1001}),
        ("pull", {"wait": 61}),
        ("pull", {"ack_deadline_seconds": 9}),
        ("acknowledge", {}),
        ("acknowledge", {"ack_ids": []}),
        ("acknowledge", {"ack_ids": [1]}),
        ("modifyAckDeadline", {"ack_ids": ["x"], "ack_deadline_seconds": 5}),
        ("modifyAckDeadline", {"ack_ids": ["x"], "ack_deadline_seconds": 43_201}),
        ("release", {"ack_ids": ["x"], "delay_seconds": -1}),
        ("release", {"ack_ids": ["x"], "delay_seconds": 604_801}),
        ("reject", {"ack_ids": ["x"], "reason": "x" * 501}),
    ],
)
@pytest.mark.usefixtures("billing")
async def test_bad_requests(client: httpx.AsyncClient, verb: str, body: Any) -> None:
    problem(await client.post(f"{BILLING}:{verb}", json=body), 422, "invalid_request")


@pytest.mark.usefixtures("billing")
async def test_other_media_types(client: httpx.AsyncClient) -> None:
    response = await client.post(f"{BILLING}:pull", content=b"{}", headers={"content-type": "text/plain"})
    problem(response, 415, "unsupported_media_type")
    assert (await client.post(f"{BILLING}:pull")).json() == {"messages": []}


async def test_what_is_missing(client: httpx.AsyncClient) -> None:
    problem(await client.post(f"{BILLING}:pull", json={}), 404, "subscription_not_found")
    await client.put(BILLING, json={"broker": "fake", "queue": "missing"})
    problem(await client.post(f"{BILLING}:pull", json={}), 404, "not_found")


@pytest.mark.usefixtures("billing")
async def test_a_long_poll(client: httpx.AsyncClient) -> None:
    waiting = asyncio.create_task(pull(client, wait=5))
    await asyncio.sleep(0.05)
    await publish(client, "late")
    assert [item["message"]["payload"] for item in await waiting] == ["late"]


# ------------------------------------------------------------------------------------ a caller that hangs up


class Caller:
    """An ASGI caller that hangs up when it is told to."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.gone = asyncio.Event()
        self.sent: list[Any] = []
        self.hang_up_at: str | None = None
        self.asked = False

    async def receive(self) -> Any:
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == self.hang_up_at:
            self.gone.set()
            await asyncio.sleep(0.01)

    def scope(self) -> Any:
        path = f"{BILLING}:pull"
        return {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }  # fmt: skip


@pytest.mark.parametrize("at", ["http.response.start", "http.response.body"])
@pytest.mark.usefixtures("billing")
async def test_messages_that_nobody_took_go_back(
    client: httpx.AsyncClient, gateway: Gateway, upstream: FakeUpstream, at: str
) -> None:
    await publish(client, "1", "2")
    caller = Caller(b"{}")
    caller.hang_up_at = at
    await Api(gateway, HttpSettings())(caller.scope(), caller.receive, caller.send)
    assert [body for _, body in upstream.settled] == [b"1", b"2"]
    assert {settlement for settlement, _ in upstream.settled} == {Settlement.RELEASE}


@pytest.mark.usefixtures("billing")
async def test_a_poll_ends_when_its_caller_is_gone(
    client: httpx.AsyncClient, gateway: Gateway, upstream: FakeUpstream
) -> None:
    caller = Caller(b'{"wait": 30}')
    task = asyncio.create_task(Api(gateway, HttpSettings())(caller.scope(), caller.receive, caller.send))
    await asyncio.sleep(0.05)
    caller.gone.set()
    async with asyncio.timeout(15):
        await task
    await publish(client, "1")
    assert len(await pull(client)) == 1


@pytest.mark.usefixtures("billing")
async def test_messages_that_cannot_be_written_as_json_go_back(
    client: httpx.AsyncClient, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours: it must not keep them until their leases end."""

    def fail(*args: Any) -> Any:
        raise TypeError("a fault of ours")

    await publish(client, "1", "2")
    monkeypatch.setattr("gateway.api.messages.pulled_json.received", fail)
    problem(await client.post(f"{BILLING}:pull", json={"max_messages": 2}), 500, "internal")
    assert [settlement for settlement, _ in upstream.settled] == [Settlement.RELEASE, Settlement.RELEASE]
    assert len(upstream.queues["orders"].ready) == 2


async def test_one_client_does_not_take_the_leases_of_others(gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(0.25, 0.1, {"leases": 40}))
    keys = [
        ApiKeySettings(name=name, key=f"{name}-secret", scopes=(f"consume:fake/{name}", "publish:fake/*"))
        for name in ("alice", "bob")
    ]
    upstream: Any = gateway.brokers["fake"]
    for name in ("alice", "bob"):
        upstream.queues[name] = FakeQueue()
        await gateway.subscriptions.put(name, SubscriptionSettings(broker="fake", queue=name), None)
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(), keys))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        alice, bob = ({"x-api-key": f"{name}-secret"} for name in ("alice", "bob"))
        for name, count in (("alice", 50), ("bob", 5)):
            messages = [{"routing_key": name, "payload": "x"} for _ in range(count)]
            assert (await client.post(PUBLISH, json={"messages": messages}, headers=bob)).status_code == 207
        pull = "/v1/subscriptions/{}:pull"
        held = await client.post(pull.format("alice"), json={"max_messages": 1000}, headers=alice)
        assert len(held.json()["messages"]) == 10
        refused = problem(await client.post(pull.format("alice"), headers=alice, json={}), 429, "budget_exceeded")
        assert "budget leases: 'alice' holds 10" in refused["detail"]
        problem(await client.get("/v1/subscriptions/alice:stream", headers=alice), 429, "budget_exceeded")
        other = await client.post(pull.format("bob"), json={"max_messages": 1000}, headers=bob)
        assert len(other.json()["messages"]) == 5
        ack_ids = [message["ack_id"] for message in held.json()["messages"]]
        assert (
            await client.post(f"{pull.format('alice')[:-5]}:acknowledge", json={"ack_ids": ack_ids}, headers=alice)
        ).is_success
        again = await client.post(pull.format("alice"), json={"max_messages": 1000}, headers=alice)
        assert len(again.json()["messages"]) == 10
