"""A thousand publishes in flight, and some of them poison: these are named, all others are confirmed, and what the
broker holds twice is marked and at most a window."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.amqp.message import Message, Properties
from gateway.app import running
from gateway.config import BrokerSettings, load
from gateway.errors import (
    AccessRefused,
    EncodeError,
    GatewayError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    PublishRefused,
    Unsupported,
)
from gateway.upstreams import PublishReceipt, Upstream, UpstreamState
from tests.faults.poison import DENIED_KEY, PEERS, Denied, bound, check, drain, messages
from tests.ledgers import sqlite_ledger
from tests.servers import serving
from tests.upstreams.fake import until

pytestmark = pytest.mark.broker

COUNT = 1_000
WINDOW = 1_000
MESSAGE_MAX = 4_096


class Peer:
    """A broker in one version, as the user to whom some things are denied."""

    def __init__(self, kind: str, version: str, server: Any) -> None:
        self.kind = kind
        self.version = version
        self.server = server
        self.denied = Denied(server)
        self.upstreams: list[Upstream] = []

    async def upstream(self, **settings: Any) -> Upstream:
        options = {"reconnect_min": 0.05, "reconnect_max": 0.5, "message_max": MESSAGE_MAX, **settings}
        upstream = Upstream("peer", BrokerSettings(url=self.denied.url(self.version), **options))
        self.upstreams.append(upstream)
        await upstream.start()
        assert await upstream.wait_up(20), upstream.reason
        return upstream


@pytest.fixture(params=PEERS, ids="-".join)
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    kind, version = request.param
    peer = Peer(kind, version, request.getfixturevalue(serving(kind, version)))
    await asyncio.to_thread(peer.denied.create)
    yield peer
    for upstream in peer.upstreams:
        await upstream.close(1.0)
    await asyncio.to_thread(peer.denied.delete)


async def publish(upstream: Upstream, items: list[tuple[str, str, Message]], **more: Any) -> dict[bytes, object]:
    """All at once; outcome by body."""
    calls = [upstream.publish(exchange, key, message, **more) for exchange, key, message in items]
    results = await asyncio.gather(*calls, return_exceptions=True)
    return {message.body: result for (_, _, message), result in zip(items, results, strict=True)}


async def warm(upstream: Upstream, exchange: str, key: str, received_by: str) -> None:
    """Open the window wide, and empty the queue again."""
    await publish(upstream, [(exchange, key, Message(b"warm %d" % n)) for n in range(COUNT)], order="one")
    await drain(upstream, received_by, silence=0.1)


async def test_what_is_known_is_refused_before_the_wire(peer: Peer, unique_name: Callable[[str], str]) -> None:
    """One to a missing exchange, one with a bad property, one over the limit, at random places: nobody else notices,
    and not one channel dies."""
    chance = random.Random(7)
    upstream = await peer.upstream()
    missing = unique_name("missing")
    bad_properties = [
        (Properties(expiration="soon"), EncodeError),
        (Properties(user_id="mallory"), EncodeError),
        (Properties(delivery_mode=3), EncodeError),
    ]
    if peer.kind == "rabbitmq":
        bad_properties += [
            (Properties(headers={"CC": "no array"}), EncodeError),
            (Properties(reply_to="amq.rabbitmq.reply-to"), EncodeError),
        ]
    if peer.version != "0-10":
        bad_properties.append((Properties(headers={"x": "y" * 300_000}), EncodeError))
    async with bound(upstream, "amq.topic", "good") as queue:
        for number, (properties, kind) in enumerate(bad_properties):
            first, second, third = chance.sample(range(COUNT), 3)
            items = [("amq.topic", "good", message) for message in messages(COUNT, [first, second, third])]
            items[first] = (missing, "good", items[first][2])
            items[second] = ("amq.topic", "good", Message(items[second][2].body, properties))
            items[third] = ("amq.topic", "good", Message(b"culprit".ljust(MESSAGE_MAX + 1)))
            sent = await publish(upstream, items)
            assert type(sent[items[first][2].body]) is NotFound
            assert type(sent[items[second][2].body]) is kind, (number, sent[items[second][2].body])
            assert type(sent[items[third][2].body]) is LimitExceeded
            culprits = {items[n][2].body for n in (first, second, third)}
            figures = check(sent, await drain(upstream, queue), culprits, 0)
            assert figures == {"confirmed": COUNT - 3, "duplicated": 0, "marked": 0}
        if peer.kind == "rabbitmq":
            with pytest.raises(Unsupported):
                await upstream.publish("", queue, Message(), immediate=True)


async def test_what_only_the_broker_knows_is_found(peer: Peer) -> None:
    """A routing key that the login may not use, in a window that is wide open."""
    chance = random.Random(11)
    upstream = await peer.upstream()
    async with bound(upstream, "amq.topic", "good", "other") as queue:
        await warm(upstream, "amq.topic", "good", queue)
        places = sorted(chance.sample(range(COUNT), 3))
        keys = [DENIED_KEY if n in places else chance.choice(["good", "other"]) for n in range(COUNT)]
        batch = messages(COUNT, places)
        began = time.perf_counter()
        sent = await publish(
            upstream, [("amq.topic", key, message) for key, message in zip(keys, batch, strict=True)], order="one"
        )
        seconds = time.perf_counter() - began
        culprits = {batch[n].body for n in places}
        for body in culprits:
            assert type(sent[body]) is AccessRefused, (body, sent[body])
        figures = check(sent, await drain(upstream, queue), culprits, WINDOW)
        print(f"{peer.kind} {peer.version}: {figures}, culprits at {places}, {seconds:.2f} s")
        await until(lambda: upstream.state is UpstreamState.UP, 5)
        # Remembered: it costs nobody a channel for the moment.
        with pytest.raises(AccessRefused):
            await upstream.publish("amq.topic", DENIED_KEY, Message())
        assert (await upstream.publish("amq.topic", "good", Message())).routed


async def test_a_refused_exchange_costs_its_own_callers_only(peer: Peer) -> None:
    """A flood to an exchange that the login may not write to."""
    upstream = await peer.upstream()
    async with bound(upstream, "amq.topic", "good") as queue:
        good = [("amq.topic", "good", message) for message in messages(COUNT // 2, [])]
        bad = [("amq.fanout", f"k{n % 5}", Message(b"culprit %d" % n)) for n in range(COUNT // 2)]
        mixed = good + bad
        random.Random(5).shuffle(mixed)
        sent = await publish(upstream, mixed)
        culprits = {message.body for _, _, message in bad}
        assert {type(sent[body]) for body in culprits} == {AccessRefused}
        figures = check(sent, await drain(upstream, queue), culprits, WINDOW)
        print(f"{peer.kind} {peer.version}: {figures}")


async def test_an_exchange_that_went_away_a_moment_ago(peer: Peer, unique_name: Callable[[str], str]) -> None:
    """Its existence is remembered still. The one publish to it is told so, and the others go elsewhere."""
    upstream, other = await peer.upstream(), await peer.upstream()
    gone = unique_name("gone")
    await upstream.declare_exchange(gone)
    async with bound(upstream, "amq.topic", "good") as queue:
        assert not (await upstream.publish(gone, "k", Message())).routed
        await other.delete_exchange(gone)
        items = [("amq.topic", "good", message) for message in messages(COUNT, [500])]
        items[500] = (gone, "good", items[500][2])
        sent = await publish(upstream, items)
        outcome = sent[items[500][2].body]
        if peer.version == "0-10":  # Broker-J gives it to the default exchange, where no queue has that name
            assert isinstance(outcome, PublishReceipt)
            assert not outcome.routed
            sent[items[500][2].body] = NotFound(404, "not routed")
        else:
            assert type(outcome) is NotFound
        check(sent, await drain(upstream, queue), {items[500][2].body}, WINDOW)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("version", ["0-8", "0-9-1"])
async def test_a_full_queue_among_others(request: pytest.FixtureRequest, version: str) -> None:
    """Without confirms RabbitMQ refuses a whole transaction for it, after it has stored the others."""
    peer = Peer("rabbitmq", version, request.getfixturevalue(serving("rabbitmq", version)))
    await asyncio.to_thread(peer.denied.create)
    upstream = await peer.upstream()
    async with bound(upstream, "amq.topic", "good") as queue:
        full = f"{queue}-full"
        await upstream.declare_queue(full, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        with pytest.raises(PublishRefused):
            await upstream.publish("", full, Message())
        await upstream.bind_queue(full, "amq.topic", "full")
        await warm(upstream, "amq.topic", "good", queue)
        batch = messages(COUNT, [333])
        sent = await publish(
            upstream,
            [("amq.topic", "full" if n == 333 else "good", message) for n, message in enumerate(batch)],
            order="one",
        )
        assert type(sent[batch[333].body]) is (OutcomeUnknown if version == "0-8" else PublishRefused)
        figures = check(sent, await drain(upstream, queue), {batch[333].body}, WINDOW)
        print(f"{version}: {figures}")
        await upstream.delete_queue(full)
    await upstream.close()
    await asyncio.to_thread(peer.denied.delete)


MAX_MESSAGE_SIZE = "application:set_env(rabbit, max_message_size, 2000), persistent_term:put(max_message_size, 2000)."
"""RabbitMQ 3.10 reads the setting for each channel; 4.0 keeps what it was at the start in a term of its own."""


async def test_a_body_over_the_brokers_own_limit(private_server: Callable[[str], Any]) -> None:
    """RabbitMQ's ``max_message_size`` is smaller than our ``message_max``: one channel dies, then it is known."""
    for version in ("0-8", "0-9-1"):
        private = private_server(serving("rabbitmq", version))
        await asyncio.to_thread(private.ctl, "eval", MAX_MESSAGE_SIZE)
        peer = Peer("rabbitmq", version, private)
        await asyncio.to_thread(peer.denied.create)
        upstream = await peer.upstream()
        async with bound(upstream, "amq.topic", "good") as queue:
            await warm(upstream, "amq.topic", "good", queue)
            batch = messages(300, [])
            batch[100] = Message(b"culprit".ljust(3000))
            batch[200] = Message(b"another".ljust(3001))
            sent = await publish(upstream, [("amq.topic", "good", message) for message in batch], order="one")
            culprits = {batch[100].body, batch[200].body}
            assert type(sent[batch[100].body]) is PreconditionFailed
            assert isinstance(sent[batch[200].body], GatewayError)
            check(sent, await drain(upstream, queue), culprits, WINDOW)
            with pytest.raises(LimitExceeded, match="own limit of 2000"):
                await upstream.publish("amq.topic", "good", batch[100])
        await upstream.close()


# --------------------------------------------------------------------------------------------- over HTTP


def problem(result: dict[str, Any]) -> tuple[int, str]:
    """Status and code of one result of a batch."""
    return result["status"], result.get("problem", {}).get("code", "")


@pytest.fixture
async def client(peer: Peer, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A whole gateway in front of the peer."""
    settings = {
        "http.port": 0,
        "ops.port": 0,
        "data_dir": str(tmp_path),
        "brokers.peer.url": peer.denied.url(peer.version),
        "brokers.peer.message_max": MESSAGE_MAX,
        "brokers.peer.reconnect_min": 0.05,
    }
    limits = httpx.Limits(max_connections=50)
    sqlite_ledger(tmp_path)
    async with (
        running(load(None, {}, settings)) as app,
        httpx.AsyncClient(base_url=app.url, timeout=60, limits=limits) as client,
        httpx.AsyncClient(base_url=app.ops_url) as ops,
    ):
        client.ops = ops  # type: ignore[attr-defined]
        assert await app.gateway.brokers["peer"].wait_up(20)
        yield client


async def test_over_http(peer: Peer, client: httpx.AsyncClient) -> None:
    """A batch of a thousand and single requests beside it, with every kind of poison: each culprit has its own answer,
    everybody else 200, and the timelines say what was sent twice."""
    chance = random.Random(13)
    upstream = await peer.upstream()
    path = "/v1/brokers/peer/exchanges/amq.topic:publish"
    async with bound(upstream, "amq.topic", "good") as queue:
        good = {"routing_key": "good"}
        assert (
            await client.post(path, json={"messages": [{**good, "payload": f"w{n}"} for n in range(COUNT)]})
        ).is_success
        await drain(upstream, queue, silence=0.2)
        batch = [{**good, "payload": str(n)} for n in range(COUNT)]
        denied, bad, large = chance.sample(range(COUNT), 3)
        batch[denied] = {"routing_key": DENIED_KEY, "payload": "culprit denied"}
        batch[bad] = {**good, "payload": "culprit bad", "properties": {"user_id": "mallory"}}
        batch[large] = {**good, "payload": "culprit".ljust(MESSAGE_MAX + 1)}

        async def one(number: int) -> httpx.Response:
            return await client.post(path, json={**good, "payload": f"single {number}"})

        async def missing() -> httpx.Response:
            return await client.post("/v1/brokers/peer/exchanges/missing:publish", json={"payload": "culprit missing"})

        answer, lost, *singles = await asyncio.gather(
            client.post(path, json={"messages": batch}), missing(), *(one(number) for number in range(40))
        )
        assert answer.status_code == 207
        results = answer.json()["results"]
        assert problem(results[denied]) == (403, "access_refused"), results[denied]
        assert problem(results[bad])[1] == "invalid_value", results[bad]
        assert problem(results[large]) == (413, "limit_exceeded"), results[large]
        while lost.status_code == 503:
            lost = await missing()
        assert (lost.status_code, lost.json()["code"]) == (404, "not_found")
        others = [result for n, result in enumerate(results) if n not in (denied, bad, large)]
        assert Counter(map(problem, others)) == {(200, ""): COUNT - 3}
        # A request that comes while the connection is away is told to come again, and nothing of it was sent.
        for number, response in enumerate(singles):
            if response.status_code == 503:
                assert (response.json()["outcome"], "retry-after" in response.headers) == ("not_sent", True)
                await upstream.wait_up(5)
                while (response := await one(number)).status_code == 503:
                    await asyncio.sleep(0.1)
            assert response.status_code == 200, response.text
        received = await drain(upstream, queue)
        expected = {item["payload"].encode() for n, item in enumerate(batch) if n not in (denied, bad, large)}
        expected |= {b"single %d" % number for number in range(40)}
        assert set(received.bodies) == expected
        assert set(received.duplicated) <= received.marked
        assert len(received.duplicated) <= WINDOW
        resent = [n for n, result in enumerate(results) if result.get("resent")]
        doubled = {body for body in received.duplicated if not body.startswith(b"single")}
        assert doubled <= {batch[n]["payload"].encode() for n in resent}
        timeline = (await client.get(f"/v1/messages/{results[denied]['id']}")).json()
        assert [event["kind"] for event in timeline["events"]][-1] == "refused"
        metrics = (await client.ops.get("/metrics")).text  # type: ignore[attr-defined]
        if resent:
            timeline = (await client.get(f"/v1/messages/{results[resent[0]]['id']}")).json()
            kinds = [event["kind"] for event in timeline["events"]]
            assert (kinds[0], kinds[-2]) == ("accepted", "resent")
            counted = next(line for line in metrics.splitlines() if line.startswith("amqpgw_publishes_resent_total{"))
            assert float(counted.rpartition(" ")[2]) >= len(resent)
        print(f"{peer.kind} {peer.version}: {len(resent)} sent again, {len(received.duplicated)} stored twice")
