"""What becomes of messages that do not go straight over."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Typed
from gateway.bridges import BridgeState
from gateway.fidelity import RESERVED
from gateway.upstreams import Delivery
from tests.bridges.conftest import Estate, entry, until

DEAD = "gateway.dead.b"


async def dead(estate: Estate, count: int = 1, queue: str = DEAD, broker: str = "old") -> list[Delivery]:
    """Dead letters, with everything recorded and acknowledged."""
    await estate.wait_for(dead_lettered=count, in_flight=0)
    return await estate.take(count, queue, broker)


# ------------------------------------------------------------------------------------------- nobody wants it


async def test_unroutable_among_routed_ones_is_dead_lettered(estate: Estate) -> None:
    await estate.bridge(target={"broker": "new", "routing_key": "{header:to}"})
    await estate.fill(5, headers={"to": "out"})
    await estate.fill(1, headers={"to": "nowhere"})
    await estate.fill(5, headers={"to": "out"})
    came = await estate.take(10)
    assert [int(delivery.message.body) for delivery in came] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    (letter,) = await dead(estate)
    assert letter.message.body == b"6"
    assert "no queue takes 'nowhere'" in entry(letter)["reason"]
    assert entry(letter)["bridge"] == "b"
    assert len(entry(letter)["letter"]) == 16, "two copies of one message can be told apart"
    await estate.wait_for(state="running")
    events = (await estate.timeline(letter)).events
    assert [event.kind for event in events] == ["dead_lettered"]
    assert events[0].detail["reason"].startswith("no queue takes")


async def test_the_last_message_judged_is_no_fault_of_the_target(estate: Estate) -> None:
    """It was looked at alone, since the others were through: the target's fault is over when it is dead-lettered."""
    await estate.bridge(target={"broker": "new", "routing_key": "{header:to}"})
    await estate.fill(1, headers={"to": "nowhere"})
    await estate.wait_for(state="error")
    await estate.fill(1, headers={"to": "out"})
    await estate.wait_for(state="running", dead_lettered=1, forwarded=1, in_flight=0)


async def test_a_target_that_routes_nothing_is_back_pressure(estate: Estate) -> None:
    await estate.new.delete_queue("out")
    await estate.bridge(prefetch=5)
    await estate.fill(20)
    status = await estate.wait_for(state="error", reason=lambda text: "no queue takes 'out'" in text)
    assert status.in_flight == 5
    await asyncio.sleep(0.5)
    refused = await estate.gateway_refused()
    assert refused < 60, "it spins"
    await estate.new.declare_queue("out")
    came = await estate.take(20)
    assert [int(delivery.message.body) for delivery in came] == list(range(1, 21))
    status = await estate.wait_for(forwarded=20, in_flight=0, state="running")
    assert (status.dead_lettered, status.resent) == (0, 0)


async def test_an_unknown_exchange_is_the_targets_fault(estate: Estate) -> None:
    await estate.bridge(target={"broker": "new", "exchange": "later", "routing_key": "k"})
    await estate.fill(20)
    await estate.wait_for(state="error", reason=lambda text: "later" in text)
    await estate.new.declare_exchange("later", "fanout")
    await estate.new.bind_queue("out", "later")
    came = await estate.take(20)
    # One that comes between the exchange and its binding is refused, and others may pass it.
    assert sorted(int(delivery.message.body) for delivery in came) == list(range(1, 21))
    status = await estate.wait_for(forwarded=20, state="running")
    assert status.dead_lettered == 0


async def test_a_full_queue_is_back_pressure(estate: Estate) -> None:
    await estate.new.declare_queue("small", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    await estate.bridge(target={"broker": "new", "routing_key": "small"})
    await estate.fill(10)
    await estate.wait_for(state="error", forwarded=3)
    found: list[Delivery] = []
    while len(found) < 10:
        found += await estate.new.fetch("small", 3, 1.0)
        for delivery in found:
            if not delivery.settled:
                delivery.settle(estate.accept)
    assert sorted(int(delivery.message.body) for delivery in found) == list(range(1, 11))
    status = await estate.wait_for(forwarded=10, in_flight=0, state="running")
    assert status.dead_lettered == 0


# -------------------------------------------------------------------------------------------------- poison


async def test_what_fills_its_frame_is_dead_lettered_without_the_reason(estate: Estate) -> None:
    """There is room for its headers in one frame, and none for ours."""
    await estate.bridge()
    await estate.fill(1)
    await estate.fill(1, headers={f"h{number}": "x" * 1_000 for number in range(129)} | {"last": "y" * 850})
    await estate.fill(1)
    assert [int(delivery.message.body) for delivery in await estate.take(2)] == [1, 3]
    (letter,) = await dead(estate)
    assert int(letter.message.body) == 2
    assert RESERVED not in (letter.message.properties.headers or {})
    status = await estate.wait_for(state="running", dead_lettered=1, in_flight=0)
    assert status.forwarded == 2


@pytest.mark.parametrize("estate", [("0-9-1", "0-9-1"), ("0-10", "0-8"), ("0-8", "0-10")], indirect=True)
async def test_a_body_over_the_targets_limit_is_poison(estate: Estate) -> None:
    estate.new._publisher._body_max = estate.new._publisher._message_max = 1_000
    await estate.bridge()
    await estate.fill(2)
    await estate.fill(1, size=2_000, expiration="60000")
    await estate.fill(2)
    assert [int(delivery.message.body) for delivery in await estate.take(4)] == [1, 2, 4, 5]
    (letter,) = await dead(estate)
    assert len(letter.message.body) == 2_001
    assert letter.message.properties.expiration is None
    assert "message_max" in entry(letter)["reason"]
    assert entry(letter)["expiration"] == "60000"


@pytest.mark.parametrize("estate", [("0-9-1", "0-9-1")], indirect=True)
async def test_a_template_that_finds_no_header_is_poison(estate: Estate) -> None:
    await estate.bridge(
        target={"broker": "new", "routing_key": "{header:to}"},
        dead_letter={"broker": "new", "exchange": "", "routing_key": "hospital"},
    )
    await estate.new.declare_queue("hospital")
    await estate.fill(1)
    await estate.fill(1, headers={"to": "out"})
    await estate.take(1)
    (letter,) = await dead(estate, 1, "hospital", "new")
    assert "no header 'to'" in entry(letter)["reason"]


async def test_poison_waits_for_its_place_and_holds_up_nobody(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.bridges.dead_letters.PAUSE_MIN", 0.05)
    await estate.bridge(
        target={"broker": "new", "routing_key": "{header:to}"},
        dead_letter={"broker": "new", "exchange": "hospital", "routing_key": "x"},
    )
    await estate.fill(1)
    await estate.fill(10, headers={"to": "out"})
    await estate.take(10)
    status = await estate.wait_for(state="error", in_flight=1, forwarded=10)
    assert "dead-letter place" in status.reason
    await estate.new.declare_exchange("hospital", "fanout")
    await estate.wait_for(
        state="error", in_flight=1, dead_lettered=0, reason=lambda text: "no queue takes dead letters" in text
    )
    await estate.new.declare_queue("beds")
    await estate.new.bind_queue("beds", "hospital")
    await dead(estate, 1, "beds", "new")
    await estate.wait_for(state="running")


@pytest.mark.parametrize("estate", [("0-10", "0-9-1")], indirect=True)
@pytest.mark.parametrize("on_loss", ["strict", "warn", "drop"])
async def test_losses(estate: Estate, on_loss: str, caplog: pytest.LogCaptureFixture) -> None:
    await estate.bridge(on_loss=on_loss, strip=True)
    await estate.fill(1, headers={"c": Typed("char", "x")})
    await estate.fill(1)
    if on_loss == "strict":
        (letter,) = await dead(estate)
        assert "it would lose" in entry(letter)["reason"]
        assert [delivery.message.body for delivery in await estate.take(1)] == [b"2"]
        return
    await estate.take(2)
    status = await estate.wait_for(forwarded=2)
    assert sum(status.losses.values()) == 1
    assert [record.message for record in caplog.records].count("bridge.loss") == (on_loss == "warn")
    reduced = [message for message in await estate.stored() if message.size]
    kinds = [
        [event.kind for event in (await estate.ledger.timeline(message.id)).events]  # type: ignore[union-attr]
        for message in reduced
    ]
    assert sorted(kinds) == [["forwarded"], ["forwarded", "reduced"]]


# ---------------------------------------------------------------------------------------- selectors, loops


@pytest.mark.parametrize("unmatched", ["", "discard"])
async def test_a_selector(estate: Estate, unmatched: str) -> None:
    await estate.bridge(selector="region = 'eu' AND n > 2", unmatched=unmatched)
    await estate.fill(1, headers={"region": "eu", "n": 3})
    await estate.fill(1, headers={"region": "us", "n": 3})
    await estate.fill(1, headers={"region": "eu", "n": 4})
    assert [int(delivery.message.body) for delivery in await estate.take(2)] == [1, 3]
    status = await estate.wait_for(filtered=1, in_flight=0)
    if unmatched == "discard":
        assert status.dead_lettered == 0
        assert [message.state for message in await estate.stored()] == ["forwarded", "discarded", "forwarded"]
    else:
        (letter,) = await dead(estate)
        assert "selector" in entry(letter)["reason"]


async def test_what_passes_its_own_bridge_again_is_stopped(estate: Estate) -> None:
    await estate.old.declare_exchange("there", "fanout")
    await estate.new.declare_exchange("back", "fanout")
    await estate.bridge(
        "there", source={"broker": "old", "exchange": "there"}, target={"broker": "new", "exchange": "back"}
    )
    await estate.bridge(
        "back", source={"broker": "new", "exchange": "back"}, target={"broker": "old", "exchange": "there"}
    )
    await estate.new.bind_queue("out", "back")
    for name in ("there", "back"):
        await estate.wait_for(name, state="running")
    await estate.old.publish("there", "", Message(b"x", Properties(message_id="m")))
    (delivery,) = await estate.take(1)
    assert entry(delivery)["hops"] == "1"
    status = await estate.wait_for("there", looped=1, in_flight=0, forwarded=1)
    assert (status.taken, status.dead_lettered) == (2, 0)
    assert (await estate.status("back")).forwarded == 1


async def test_too_many_hops_from_a_queue_are_dead_lettered(estate: Estate) -> None:
    await estate.bridge(hops_max=2)
    await estate.fill(1, headers={"x-gateway": {"hops": "2", "via": "x@1,y@1"}})
    await estate.fill(1, headers={"x-gateway": {"hops": "1", "via": "x@1"}})
    (delivery,) = await estate.take(1)
    assert entry(delivery)["hops"] == "2"
    (letter,) = await dead(estate)
    assert "hops_max" in entry(letter)["reason"]
    assert (await estate.status()).looped == 1


async def test_a_forged_reserved_header_changes_nothing(estate: Estate) -> None:
    await estate.bridge()
    forged = {"id": "not-one", "origin": "x" * 600, "hops": "many", "via": "y" * 5_000, "resent": "maybe"}
    await estate.fill(1, headers={"x-gateway": forged})
    (delivery,) = await estate.take(1)
    assert entry(delivery)["hops"] == "1"
    assert entry(delivery)["origin"] == "old/m-1"
    assert entry(delivery)["id"] != "not-one"


# ------------------------------------------------------------------------------------------- redeliveries


def deaf(estate: Estate) -> None:
    """No acknowledgement of the bridge's reaches the source any more."""
    flow = estate.bridges._here["b"]._flow
    assert flow is not None
    flow._settle = lambda delivery, settlement: False  # type: ignore[method-assign]


async def test_a_redelivery_of_what_was_forwarded_is_dropped(estate: Estate) -> None:
    await estate.bridge(prefetch=100)
    await estate.wait_for(state="running")
    deaf(estate)
    ids = await estate.fill(10)
    await estate.wait_for(forwarded=10, in_flight=0)
    await estate.bridges.pause("b")
    await estate.old.publish("", "in", Message(b"another body", Properties(message_id=ids[0])))
    await estate.old.publish("", "in", Message(b"1", Properties()))
    await estate.bridges.resume("b")
    status = await estate.wait_for(duplicates_dropped=10, forwarded=12, in_flight=0)
    came = await estate.take(12)
    assert [delivery.message.body for delivery in came[10:]] == [b"another body", b"1"]
    kinds = [event.kind for event in (await estate.timeline(came[3])).events]
    assert kinds == ["forwarded", "duplicate_dropped"]
    assert status.resent == 0


async def test_an_id_and_a_body_that_come_again_without_a_word_are_no_redelivery(estate: Estate) -> None:
    """A publisher may send the same under the same id again, and a consumer may begin anew at any time."""
    await estate.bridge(prefetch=100)
    ids = await estate.fill(3)
    await estate.wait_for(forwarded=3, in_flight=0)
    await estate.bridges.pause("b")
    for number, message_id in enumerate(ids):
        await estate.old.publish("", "in", Message(b"%d" % (number + 1), Properties(message_id=message_id)))
    await estate.bridges.resume("b")
    status = await estate.wait_for(forwarded=6, in_flight=0)
    assert (status.duplicates_dropped, status.resent) == (0, 3)
    assert [entry(delivery).get("resent") for delivery in await estate.take(6)] == [None] * 3 + ["1"] * 3


async def test_without_a_window_nothing_is_dropped(estate: Estate) -> None:
    await estate.bridge(dedupe_seconds=0)
    (message_id,) = await estate.fill(1)
    await estate.wait_for(forwarded=1)
    await estate.bridges.pause("b")
    await estate.old.publish("", "in", Message(b"1", Properties(message_id=message_id)))
    await estate.bridges.resume("b")
    await estate.wait_for(forwarded=2, duplicates_dropped=0)


async def test_a_redelivery_that_is_published_is_marked(estate: Estate) -> None:
    await estate.fill(3)
    for delivery in await estate.old.fetch("in", 3, 1.0):
        delivery.settle(estate.release)
    await until(lambda: True)
    await estate.bridge()
    came = await estate.take(3)
    assert [entry(delivery).get("resent") for delivery in came] == ["1"] * 3
    await estate.wait_for(resent=3, duplicates_dropped=0)


async def test_a_gateway_that_died_leaves_no_duplicates_of_what_it_recorded(estate: Estate) -> None:
    """The ledger knows what was forwarded; the source never heard of it."""
    await estate.bridge()
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    flow = bridge._flow
    assert flow is not None
    flow._settle = lambda delivery, settlement: False  # type: ignore[method-assign]  # no acknowledgement leaves
    await estate.fill(20)
    await estate.wait_for(forwarded=20)
    await estate.close_gateway(0.0)
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"})
    status = await estate.wait_for(duplicates_dropped=20, in_flight=0, source_messages=0)
    assert status.forwarded == 0
    assert len(await estate.take(20)) == 20
    assert status.state is BridgeState.RUNNING
