"""Bridges as resources: made, changed, paused, drained, deleted, and there again after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.errors import ConfigurationError, EncodeError, EtagMismatch, NoSuchBridge, NoSuchBroker, ReadOnly
from tests.bridges.conftest import Estate, bridge_settings, entry, until


async def again(estate: Estate, configured: dict[str, Any] | None = None) -> None:
    """The gateway is closed and started again."""
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"}, configured)


# --------------------------------------------------------------------------------------------- resources


async def test_put_get_page_delete(estate: Estate) -> None:
    status, created = await estate.bridges.put("b", bridge_settings(), None)
    assert created
    assert (await estate.bridges.put("b", bridge_settings(), None))[1] is False
    assert (await estate.bridges.get("b")).etag == status.etag
    for name in ("a", "c"):
        await estate.bridges.put(name, bridge_settings(), None)
    page, cursor = await estate.bridges.page(None, 2)
    assert ([item.name for item in page], cursor) == (["a", "b"], "b")
    page, cursor = await estate.bridges.page(cursor, 2)
    assert ([item.name for item in page], cursor) == (["c"], None)
    with pytest.raises(EtagMismatch):
        await estate.bridges.put("b", bridge_settings(prefetch=5), None)
    with pytest.raises(EtagMismatch):
        await estate.bridges.put("b", bridge_settings(prefetch=5), "another")
    changed, created = await estate.bridges.put("b", bridge_settings(prefetch=5), status.etag)
    assert not created
    assert changed.etag != status.etag
    assert changed.settings.prefetch == 5
    with pytest.raises(EtagMismatch):
        await estate.bridges.delete("b", status.etag)
    await estate.bridges.delete("b", changed.etag)
    with pytest.raises(NoSuchBridge):
        await estate.bridges.delete("b", None)
    for verb in (estate.bridges.get, estate.bridges.pause, estate.bridges.resume, estate.bridges.drain):
        with pytest.raises(NoSuchBridge):
            await verb("b")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"selector": "a ="}, "selector"),
        ({"target": {"broker": "new", "routing_key": "{nothing}"}}, "target.routing_key"),
        ({"source": {"broker": "old"}}, "neither queue nor exchange"),
        ({"release_headers": ["n"]}, "release_headers"),
        ({"remove_headers": ["x-gateway"]}, "remove_headers"),
        ({"set_headers": {"": 1}}, "set_headers"),
        ({"set_headers": {"x" * 256: 1}}, "set_headers"),
        ({"mode": "mirror", "acknowledge": "unsafe-no-ack"}, "acknowledge"),
    ],
)
async def test_wrong_settings_are_refused_before_anything_is_written(
    estate: Estate, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(EncodeError, match=says):
        await estate.bridge(**settings)
    assert await estate.ledger.get_resource("bridge", "b") is None
    with pytest.raises(NoSuchBridge):
        await estate.status()
    assert 'bridge="b"' not in estate.metrics.render().decode()
    await estate.close_gateway()
    with pytest.raises(ConfigurationError, match=f"bridges.b.*{says}"):
        await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"}, {"b": bridge_settings(**settings)})


@pytest.mark.parametrize("where", ["source", "target", "dead_letter"])
async def test_a_broker_that_is_not_configured(estate: Estate, where: str) -> None:
    settings = {"source": {"broker": "old", "queue": "in"}, "target": {"broker": "new"}}
    with pytest.raises(NoSuchBroker):
        await estate.bridge(**{**settings, where: {**settings.get(where, {}), "broker": "none"}})


async def test_those_of_the_file_are_read_only(estate: Estate) -> None:
    await again(estate, {"f": bridge_settings()})
    assert (await estate.status("f")).read_only
    with pytest.raises(ReadOnly):
        await estate.bridges.put("f", bridge_settings(), None)
    with pytest.raises(ReadOnly):
        await estate.bridges.delete("f", None)
    await estate.fill(3)
    await estate.take(3)
    assert (await estate.bridges.pause("f")).state == "paused"


async def test_bridges_and_wishes_survive_a_restart(estate: Estate) -> None:
    await estate.bridge("runs")
    await estate.bridge("paused", source={"broker": "old", "queue": "p"})
    await estate.bridge("born-paused", source={"broker": "old", "queue": "q"}, paused=True)
    await estate.bridges.pause("paused")
    await again(estate)
    await estate.wait_for("runs", state="running")
    assert (await estate.status("paused")).state == "paused"
    assert (await estate.status("born-paused")).state == "paused"
    await estate.bridges.resume("born-paused")
    await again(estate)
    assert (await estate.status("born-paused")).state != "paused"


async def test_a_bridge_of_the_ledger_that_is_wrong_keeps_no_other_from_starting(estate: Estate) -> None:
    await estate.bridge()
    await estate.ledger.put_resource("bridge", "bad", {"source": {"broker": "gone", "queue": "x"}, "target": {}}, None)
    await again(estate)
    await estate.wait_for(state="running")
    with pytest.raises(NoSuchBridge):
        await estate.status("bad")


async def test_two_gateways_may_have_bridges_of_one_name(estate: Estate, tmp_path: Path) -> None:
    """What has passed a bridge ``b`` of another gateway has not passed this one."""
    await estate.bridge()
    await estate.fill(1, headers={"x-gateway": {"via": "b@00000000", "hops": "1"}})
    (delivery,) = await estate.take(1)
    first, second = str(entry(delivery)["via"]).split(",")
    assert first == "b@00000000"
    assert second.startswith("b@")
    await again(estate)
    await estate.fill(1)
    (delivery,) = await estate.take(1)
    assert entry(delivery)["via"] == second, "the same after a restart"


# -------------------------------------------------------------------------------- pause, resume, drain, change


async def test_pause_and_resume(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(10)
    await estate.wait_for(forwarded=10)
    status = await estate.bridges.pause("b")
    assert (status.state, status.in_flight) == ("paused", 0)
    await estate.fill(10)
    await asyncio.sleep(0.1)
    assert await estate.depth() == 10
    assert (await estate.bridges.resume("b")).state in ("starting", "running")
    await estate.take(20)
    assert (await estate.bridges.resume("b")).state == "running"


async def test_a_pause_under_load_loses_nothing_and_sends_nothing_twice(estate: Estate) -> None:
    await estate.bridge(prefetch=50)
    sending = asyncio.ensure_future(estate.fill(2_000))
    for _ in range(3):
        await asyncio.sleep(0.1)
        status = await estate.bridges.pause("b")
        assert status.in_flight == 0
        await estate.bridges.resume("b")
    await sending
    came = await estate.take(2_000)
    assert [int(delivery.message.body) for delivery in came] == list(range(1, 2_001))


async def test_a_change_under_load_loses_nothing_and_sends_nothing_twice(estate: Estate) -> None:
    status = await estate.bridge(messages_per_second=1_500)
    await estate.new.declare_queue("other")
    sending = asyncio.ensure_future(estate.fill(2_000))
    await estate.wait_for(forwarded=lambda count: count > 100)
    await estate.bridges.put("b", bridge_settings(target={"broker": "new", "routing_key": "other"}), status.etag)
    await sending
    status = await estate.wait_for(forwarded=2_000, in_flight=0, source_messages=0)
    at_first = await estate.depth("out", "new")
    assert at_first + await estate.depth("other", "new") == 2_000
    assert 100 <= at_first < 2_000
    assert status.duplicates_dropped == 0


async def test_drain(estate: Estate) -> None:
    await estate.fill(500)
    await estate.bridge(messages_per_second=1_000)
    await estate.wait_for(state="running")
    assert (await estate.bridges.drain("b")).state == "draining"
    status = await estate.wait_for(state="stopped")
    assert (status.forwarded, status.in_flight, status.reason) == (500, 0, "drained")
    await estate.fill(1)
    await again(estate)
    await asyncio.sleep(0.1)
    assert (await estate.status()).state == "stopped"
    await estate.bridges.resume("b")
    await estate.wait_for(forwarded=1)


async def test_a_drain_waits_for_what_its_broker_has_not_delivered(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    source = estate.gateway.broker("old")
    query_queue, left = source.query_queue, [1, 1, 0, 0]

    async def slow(queue: str) -> Any:
        found = await query_queue(queue)
        return replace(found, message_count=left.pop(0)) if queue == "in" and left else found

    monkeypatch.setattr(source, "query_queue", slow)
    await estate.bridges.drain("b")
    status = await estate.wait_for(state="stopped")
    assert (status.reason, left) == ("drained", [])


async def test_resume_takes_a_drain_back(estate: Estate) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    await estate.bridges.drain("b")
    await estate.bridges.resume("b")
    await asyncio.sleep(1.3)
    assert (await estate.status()).state == "running"


async def test_put_keeps_a_wish_unless_it_says_otherwise(estate: Estate) -> None:
    status = await estate.bridge()
    await estate.bridges.pause("b")
    status, _ = await estate.bridges.put("b", bridge_settings(prefetch=7), status.etag)
    assert status.state == "paused"
    status, _ = await estate.bridges.put("b", bridge_settings(prefetch=7, paused=True), status.etag)
    assert status.state == "paused"
    status, _ = await estate.bridges.put("b", bridge_settings(prefetch=7), status.etag)
    await estate.wait_for(state="running")
    await again(estate)
    await estate.wait_for(state="running")


@pytest.mark.parametrize(("after", "count"), [("queue-length", 30), (10, 10)])
async def test_delete_after(estate: Estate, after: str | int, count: int) -> None:
    await estate.fill(30)
    await estate.bridge(delete_after=after, prefetch=20)
    status = await estate.wait_for(state="stopped")
    assert status.forwarded == count
    assert str(count) in status.reason
    assert await estate.depth() == 30 - count
    assert [int(delivery.message.body) for delivery in await estate.take(count)] == list(range(1, count + 1))


async def test_delete_after_nothing(estate: Estate) -> None:
    await estate.bridge(delete_after="queue-length")
    await estate.wait_for(state="stopped", forwarded=0)


async def test_the_gateway_closes(estate: Estate) -> None:
    """What is under way is brought to its end, the rest goes back."""
    await estate.bridge(messages_per_second=50, prefetch=100)
    await estate.fill(200)
    await estate.wait_for(forwarded=lambda count: count >= 5)
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"})
    await estate.bridges.pause("b")
    left = await estate.depth()
    came = await estate.take(200 - left)
    assert [int(delivery.message.body) for delivery in came] == list(range(1, 201 - left))


async def test_closing_does_not_wait_for_a_target_that_is_away(estate: Estate) -> None:
    await estate.bridge()
    await estate.away("new")
    await estate.wait_for(state="error")
    await estate.fill(10)
    await estate.wait_for(in_flight=10)
    async with asyncio.timeout(30.0):
        await estate.bridges.pause("b")
    assert await estate.depth() == 10
    await estate.back("new")


# ------------------------------------------------------------------------------------------------- mirror


@pytest.mark.parametrize("estate", [("0-10", "0-9-1")], indirect=True)
async def test_a_mirror_of_a_queue(estate: Estate) -> None:
    await estate.fill(20)
    await estate.bridge(mode="mirror", prefetch=7)
    await estate.wait_for(forwarded=20, in_flight=0)
    await estate.fill(5)
    await estate.take(25)
    assert await estate.depth() == 25
    await estate.bridges.pause("b")
    await estate.bridges.resume("b")
    status = await estate.wait_for(duplicates_dropped=25, in_flight=0)
    assert (status.forwarded, status.state) == (25, "running")
    assert await estate.depth("out", "new") == 0


async def test_a_mirror_where_the_broker_cannot_show(estate: Estate) -> None:
    await estate.bridge(mode="mirror")
    status = await estate.wait_for(state="error")
    assert "mirror from the exchange" in status.reason
    assert "source.binding_key" in status.reason


async def test_a_mirror_of_an_exchange(estate: Estate) -> None:
    await estate.old.declare_exchange("logs", "fanout")
    await estate.old.bind_queue("in", "logs")
    await estate.bridge(mode="mirror", source={"broker": "old", "exchange": "logs", "queue": "copies"})
    await estate.wait_for(state="running")
    await estate.old.publish("logs", "", Message(b"x", Properties()))
    await estate.take(1)
    assert await estate.depth() == 1
    await until(lambda: True)
