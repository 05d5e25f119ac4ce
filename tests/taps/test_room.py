"""How much room the log has for a tap, and what becomes of a batch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.core import Gateway
from gateway.core.sources.taking import BatchGivenUp
from gateway.taps import flow
from gateway.taps.depth import Depth
from tests.core.conftest import gateway, ledger, upstream
from tests.core.fakes import FakeDelivery, FakeUpstream
from tests.taps.tapped import Tapped, idle, now, numbered

__all__ = ["gateway", "idle", "ledger", "now", "upstream"]


# ------------------------------------------------------------------------------------------------- the room


def holds(idle: Tapped, monkeypatch: pytest.MonkeyPatch, octets: Callable[[], int]) -> list[int]:
    """Have the log hold so many octets; how often it was asked."""
    found: list[int] = []

    async def held() -> Any:
        found.append(octets())
        return SimpleNamespace(octets=found[-1])

    monkeypatch.setattr(idle.gateway.ledger.log, "held", held)
    return found


async def test_the_log_has_room_until_it_holds_what_it_may(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    octets = 99
    found = holds(idle, monkeypatch, lambda: octets)
    idle.log_octets = 100
    assert await idle.flow._room_now() == idle.flow._settings.prefetch
    assert (idle.flow.full, idle.changes) == ("", 1)
    now[0] += flow.HELD_EVERY / 2
    octets = 100
    assert await idle.flow._room_now() == idle.flow._settings.prefetch
    assert len(found) == 1, "it is not asked all the time"
    now[0] += flow.HELD_EVERY / 2
    assert await idle.flow._room_now() == 0
    assert idle.flow.full == "the message log holds 100 octets that no reader has passed yet, and log_octets is 100"
    assert idle.changes == 2
    now[0] += flow.HELD_EVERY
    octets = 98
    assert await idle.flow._room_now() > 0
    assert (idle.flow.full, idle.changes) == ("", 3)
    assert [record.getMessage() for record in caplog.records] == ["tap.full", "tap.full_over"]


async def test_what_is_spooled_takes_its_room(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the log is asked again."""
    monkeypatch.setattr(flow, "HELD_EVERY", 1e9)
    tapped = Tapped(gateway, upstream, begins=False)
    tapped.flow._asked = -2e9
    tapped.log_octets = 10_000
    tapped.put(Message(b"x" * 5_000, Properties()))
    tapped.flow.begin()
    await tapped.until(lambda: len(upstream.settled) == 1)
    await tapped.flow.stop(1.0)
    left = tapped.flow._log_left
    (row,) = await tapped.rows()
    assert left == 10_000 - 5_000 - flow.ROW - len(row.properties)
    assert (tapped.flow.stored, tapped.counts.octets) == (1, 5_000)


# ------------------------------------------------------------------------------------------------- the batch


async def test_what_cannot_be_read_goes_back_when_it_stops_meanwhile(
    idle: Tapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = idle.flow._reader.read

    def faulty(delivery: Any) -> Any:
        if delivery.message.body == b"bad":
            raise RuntimeError("cannot")
        return read(delivery)

    async def stopped(*_: Any) -> None:
        raise BatchGivenUp

    monkeypatch.setattr(idle.flow._reader, "read", faulty)
    monkeypatch.setattr(idle.flow, "_keep", stopped)
    good, bad = (
        FakeDelivery(idle.upstream, "orders", (Message(body, Properties()), "", "k", False)) for body in (b"1", b"bad")
    )
    chunk: list[Any] = [good, bad]
    idle.flow._batch = chunk
    with pytest.raises(BatchGivenUp):
        await idle.flow._store(chunk)
    await idle.flow.stop(1.0)
    assert idle.upstream.settled == [(Settlement.RELEASE, b"1"), (Settlement.RELEASE, b"bad")]


async def test_an_acknowledgement_that_comes_too_late_leaves_the_depth_as_it_was(idle: Tapped) -> None:
    deliveries: list[Any] = [
        FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(4)
    ]
    idle.flow.depth = Depth(9, 9)
    idle.flow.depth.begin(2)
    for delivery in deliveries:
        assert idle.flow.depth.arrive(delivery, 2)
    deliveries[1].lost = True
    idle.flow._acknowledge(deliveries)
    assert idle.flow.depth.left == 6
    assert idle.counts.numbers["lease_lost"] == 1
    assert [body for _, body in idle.upstream.settled] == [b"0", b"2", b"3"]


async def test_what_is_withheld_does_not_keep_back_what_is_not(idle: Tapped) -> None:
    found: list[Any] = [FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(2)]
    one, two = found
    two.channel = "another"
    depth = idle.flow.depth = Depth(1, 1)
    depth.begin(1)
    assert depth.arrive(one, 1)
    idle.flow._acknowledge(found)
    assert idle.upstream.settled == [(Settlement.ACCEPT, b"1")]
    assert depth.release() == [one]
