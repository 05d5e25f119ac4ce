"""A bridge at work, between embedded brokers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.message import Message, Properties
from gateway.bridges import BridgeState
from gateway.core import Publication
from gateway.errors import NoSuchBridge, NotFound
from gateway.fidelity import RESERVED
from gateway.versions import VERSION_NAMES
from tests.bridges.conftest import Estate, entry

VERSIONS = VERSION_NAMES


@pytest.mark.parametrize("estate", [(old, new) for old in VERSIONS for new in VERSIONS], indirect=True)
async def test_messages_go_over_in_order(estate: Estate) -> None:
    await estate.bridge()
    ids = await estate.fill(50)
    came = await estate.take(50)
    assert [delivery.message.body for delivery in came] == [b"%d" % (number + 1) for number in range(50)]
    assert [delivery.message.properties.message_id for delivery in came] == ids
    assert all(entry(delivery)["hops"] == "1" for delivery in came)
    status = await estate.wait_for(forwarded=50, in_flight=0)
    assert status.state is BridgeState.RUNNING
    assert await estate.depth() == 0


async def test_what_the_ledger_knows(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(3)
    await estate.wait_for(forwarded=3)
    for delivery in await estate.take(3):
        timeline = await estate.timeline(delivery)
        (event,) = timeline.events
        assert (event.kind, event.broker, event.version) == ("forwarded", "new", "0-9-1")
        assert event.detail == {"bridge": "b", "target": "new", "exchange": "", "routing_key": "out"}
        message = timeline.message
        assert (message.broker, message.routing_key, message.origin) == ("old", "in", "bridge")
        assert message.properties["message_id"] == delivery.message.properties.message_id
        assert entry(delivery)["origin"] == f"old/{delivery.message.properties.message_id}"
        assert entry(delivery)["via"].startswith("b@")


async def test_an_id_of_the_gateway_is_kept(estate: Estate) -> None:
    (published,) = await estate.gateway.publish(
        "old", "", [Publication("in", Message(b"x", Properties(message_id="m")))]
    )
    await estate.bridge()
    (delivery,) = await estate.take(1)
    assert entry(delivery)["id"] == published.id
    assert "origin" not in entry(delivery)
    await estate.wait_for(forwarded=1)
    kinds = [event.kind for event in (await estate.timeline(delivery)).events]
    assert kinds == ["accepted", "confirmed", "forwarded"]


async def test_rewriting(estate: Estate) -> None:
    await estate.new.declare_queue("eu.in")
    await estate.bridge(
        target={"broker": "new", "routing_key": "{header:region}.{routing_key}"},
        set_headers={"stage": "new", "n": 3},
        remove_headers=["secret"],
    )
    await estate.fill(1, headers={"region": "eu", "secret": "x", "kept": 1})
    (delivery,) = await estate.take(1, "eu.in")
    headers = dict(delivery.message.properties.headers or {})
    headers.pop(RESERVED)
    assert headers == {"region": "eu", "kept": 1, "stage": "new", "n": 3}


async def test_held_headers_come_out_where_that_is_asked_for(estate: Estate) -> None:
    await estate.bridge(release_headers=["x-delay"])
    await estate.fill(1, headers={"x-delay": 5, "BCC": ["elsewhere"]})
    (delivery,) = await estate.take(1)
    headers = delivery.message.properties.headers or {}
    assert headers["x-delay"] == 5
    assert "BCC" not in headers
    assert entry(delivery)["held"] == {"BCC": ["elsewhere"]}


async def test_strip(estate: Estate) -> None:
    await estate.bridge(strip=True)
    await estate.fill(1)
    (delivery,) = await estate.take(1)
    assert delivery.message.properties.headers is None
    assert delivery.message.properties.message_id == "m-1"


async def test_the_routing_key_is_kept_where_none_is_given(estate: Estate) -> None:
    await estate.new.declare_queue("in")
    await estate.bridge(target={"broker": "new"})
    await estate.fill(1)
    await estate.take(1, "in")


async def test_an_exchange_as_source(estate: Estate) -> None:
    await estate.old.declare_exchange("logs", "topic")
    await estate.bridge(source={"broker": "old", "exchange": "logs", "binding_key": "eu.#"})
    await estate.wait_for(state="running")
    for key in ("eu.a", "us.a", "eu.b"):
        await estate.old.publish("logs", key, Message(key.encode()))
    came = await estate.take(2)
    assert [delivery.message.body for delivery in came] == [b"eu.a", b"eu.b"]
    assert (await estate.old.query_queue("gateway.bridge.b")).queue == "gateway.bridge.b"


async def test_its_own_queue_is_declared_again(estate: Estate) -> None:
    await estate.old.declare_exchange("logs", "fanout")
    await estate.bridge(source={"broker": "old", "exchange": "logs"})
    await estate.wait_for(state="running")
    await estate.old.delete_queue("gateway.bridge.b")
    status = await estate.wait_for(last_error=lambda text: text.startswith("source"))
    await estate.wait_for(state="running")
    await estate.old.publish("logs", "", Message(b"x"))
    await estate.take(1)
    assert "queue" in status.last_error


async def test_a_deleted_bridge_leaves_no_empty_queue(estate: Estate) -> None:
    await estate.old.declare_exchange("logs", "fanout")
    await estate.bridge(source={"broker": "old", "exchange": "logs"})
    await estate.wait_for(state="running")
    await estate.bridges.delete("b", None)
    with pytest.raises(NotFound):
        await estate.old.query_queue("gateway.bridge.b")
    with pytest.raises(NoSuchBridge):
        await estate.status()
    await estate.bridge(source={"broker": "old", "exchange": "logs"}, target={"broker": "new", "exchange": "nowhere"})
    await estate.wait_for(state="running")
    await estate.old.publish("logs", "", Message(b"x"))
    await estate.wait_for(state="error")
    await estate.bridges.delete("b", None)
    assert await estate.depth("gateway.bridge.b") == 1
    assert not (await estate.old.publish("logs", "", Message(b"y"))).routed


@pytest.mark.parametrize("acknowledge", ["unsafe-on-publish", "unsafe-no-ack"])
@pytest.mark.parametrize("estate", [("0-9-1", "0-9-1"), ("0-10", "0-10")], indirect=True)
async def test_unsafe_modes(estate: Estate, acknowledge: str) -> None:
    await estate.bridge(acknowledge=acknowledge)
    await estate.fill(50)
    came = await estate.take(50)
    assert [delivery.message.body for delivery in came] == [b"%d" % (number + 1) for number in range(50)]
    await estate.wait_for(forwarded=50, in_flight=0, state="running")
    assert await estate.depth() == 0


@pytest.mark.parametrize("acknowledge", ["unsafe-on-publish", "unsafe-no-ack"])
async def test_a_pause_loses_nothing_even_then(estate: Estate, acknowledge: str) -> None:
    """What the source has forgotten is brought to its end before the bridge pauses."""
    await estate.fill(100)
    await estate.bridge(acknowledge=acknowledge, messages_per_second=200)
    await estate.wait_for(forwarded=lambda count: count >= 10)
    assert (await estate.bridges.pause("b")).in_flight == 0
    left = await estate.depth()
    assert len(await estate.take(100 - left)) == 100 - left


async def test_what_cannot_be_held_back_is_bounded_all_the_same(estate: Estate) -> None:
    await estate.new.delete_queue("out")
    await estate.bridge(acknowledge="unsafe-no-ack", prefetch=10)
    await estate.wait_for(state="running")
    for _ in range(20):
        await estate.fill(10)
    status = await estate.wait_for(state="error", source_messages=lambda count: count > 0)
    assert 20 <= status.in_flight < 200
    await estate.new.declare_queue("out")
    came = await estate.take(200)
    assert sorted(int(delivery.message.body) for delivery in came) == list(range(1, 201))


async def test_a_rate_in_messages(estate: Estate) -> None:
    await estate.fill(40)
    began = asyncio.get_running_loop().time()
    await estate.bridge(messages_per_second=50)
    await estate.take(40)
    assert 0.6 <= asyncio.get_running_loop().time() - began <= 15.0


async def test_a_rate_in_octets(estate: Estate) -> None:
    await estate.fill(10, size=10_000)
    began = asyncio.get_running_loop().time()
    await estate.bridge(octets_per_second=200_000)
    await estate.take(10)
    assert 0.3 <= asyncio.get_running_loop().time() - began <= 15.0


async def test_metrics(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(3)
    await estate.wait_for(forwarded=3, in_flight=0)
    text = estate.metrics.render().decode()
    assert 'amqpgw_bridge_messages_total{bridge="b",event="forwarded"} 3.0' in text
    assert 'amqpgw_bridge_up{bridge="b"} 1.0' in text
    assert 'amqpgw_bridge_octets_total{bridge="b"} 3.0' in text
    assert 'amqpgw_bridge_lag_seconds_count{bridge="b"}' in text
    await estate.bridges.delete("b", None)
    assert 'bridge="b"' not in estate.metrics.render().decode()


async def test_the_numbers_of_a_status(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(20)
    status = await estate.wait_for(forwarded=20, in_flight=0, source_messages=0)
    assert (status.taken, status.octets, status.resent, status.dead_lettered) == (20, 0, 0, 0)
    assert status.rate == pytest.approx(4.0)
    assert status.lag is not None
    assert 0 < status.lag < 5
    assert (status.source_version, status.target_version) == ("0-9-1", "0-9-1")
