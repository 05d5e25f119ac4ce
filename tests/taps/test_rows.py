"""Deliveries as rows of the log, from a fake broker: what no broker of ours sends by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.operations import Settlement
from gateway.core import Gateway
from gateway.errors import FrameSyntaxError
from gateway.fidelity import annotate
from gateway.ledger import EventKind, MessageIds, id_text
from gateway.notation.logged import from_json
from tests.core.conftest import gateway, ledger, upstream
from tests.core.fakes import FakeConsumer, FakeUpstream
from tests.taps.tapped import Tapped

__all__ = ["gateway", "ledger", "upstream"]


@pytest.fixture
async def tapped(gateway: Gateway, upstream: FakeUpstream) -> Any:
    found = Tapped(gateway, upstream)
    yield found
    await found.flow.stop(1.0)


def undecodable(octets: bytes) -> Message:
    def broken(_: bytes) -> Properties:
        raise FrameSyntaxError("no property list")

    return Message(b"body", None, RawProperties(octets, "0-9-1 rabbitmq", broken))


async def test_octets_that_are_no_property_list(tapped: Tapped) -> None:
    """They are kept as they came, and hold up nobody."""
    tapped.put(Message(b"1", Properties()), undecodable(b"\xff\xfe"), Message(b"2", Properties()))
    await tapped.until(lambda: len(tapped.upstream.settled) == 3)
    rows = await tapped.rows()
    assert [row.body for row in rows] == [b"1", b"body", b"2"]
    found = from_json(rows[1].properties, rows[1].body)
    assert found.raw is not None
    assert (found.raw.octets, found.raw.dialect) == (b"\xff\xfe", "0-9-1 rabbitmq")
    assert {settlement for settlement, _ in tapped.upstream.settled} == {Settlement.ACCEPT}


async def test_names_that_are_not_utf_8(tapped: Tapped) -> None:
    tapped.upstream.queues["orders"].ready.append(
        (Message(b"x", Properties(message_id="m\udcff\0")), "\udcfe", "k", True)
    )
    tapped.upstream.pump()
    await tapped.until(lambda: len(tapped.upstream.settled) == 1)
    (row,) = await tapped.rows()
    assert (row.exchange, row.origin_id, row.redelivered) == (b"\xfe", rb"fake/m\udcff\x00", 1)


async def test_sent_twice_by_a_gateway(tapped: Tapped) -> None:
    """A mark says that it may be there twice: the second one is dropped, if its body is the same."""
    mine = id_text(MessageIds()())
    once = annotate(Properties(), id=mine)
    again = annotate(Properties(), id=mine, resent="1")
    tapped.put(Message(b"x", once), Message(b"x", again), Message(b"other", again))
    await tapped.until(lambda: len(tapped.upstream.settled) == 3)
    rows = await tapped.rows()
    assert [(row.body, row.redelivered) for row in rows] == [(b"x", 0), (b"other", 0)]
    events = (await tapped.gateway.timeline(mine)).events
    assert [event.kind for event in events] == [EventKind.SPOOLED, EventKind.SPOOLED, EventKind.DUPLICATE_DROPPED]
    assert tapped.counts.numbers["duplicates_dropped"] == 1


async def test_the_dropped_one_is_told_of_under_the_id_of_the_first(tapped: Tapped) -> None:
    """A stranger gets an id when it comes; its redelivery is the same message."""
    twin = Message(b"x", Properties(message_id="m-1"))
    tapped.put(twin)
    await tapped.until(lambda: len(tapped.upstream.settled) == 1)
    tapped.upstream.consumers[0].lose()  # and with it the acknowledgement
    tapped.put(twin, redelivered=True)
    await tapped.until(lambda: len(tapped.upstream.settled) == 2)
    (row,) = await tapped.rows()
    events = (await tapped.gateway.timeline(id_text(row.message_id))).events
    assert [event.kind for event in events] == [EventKind.SPOOLED, EventKind.DUPLICATE_DROPPED]


async def test_what_was_sent_anew_is_another_message(tapped: Tapped) -> None:
    """A replay sends the same id and body once more: that is no redelivery."""
    mine = id_text(MessageIds()())
    tapped.put(Message(b"x", annotate(Properties(), id=mine)))
    await tapped.until(lambda: len(tapped.upstream.settled) == 1)
    tapped.put(Message(b"x", annotate(Properties(), id=mine, replay="r-1")), redelivered=True)
    await tapped.until(lambda: len(tapped.upstream.settled) == 2)
    assert len(await tapped.rows()) == 2


async def test_lost_drops_everything_at_once(tapped: Tapped) -> None:
    """Another process has it: nothing is spooled or acknowledged any more."""
    await tapped.until(lambda: bool(tapped.upstream.consumers))
    tapped.put(*(Message(b"%d" % number, Properties()) for number in range(5)))
    tapped.flow.lost()
    await tapped.flow.gone()
    await asyncio.sleep(0.05)
    assert [settlement for settlement, _ in tapped.upstream.settled if settlement is Settlement.ACCEPT] == []
    assert await tapped.rows() == []
    assert len(tapped.upstream.queues["orders"].ready) == 5


async def test_an_end_of_which_the_last_messages_are_lost(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have come, and the channel dies before they are acknowledged: they come again."""
    cancel = FakeConsumer.cancel
    cancelled = 0

    async def die(self: FakeConsumer, within: float = 0.0) -> None:
        nonlocal cancelled
        cancelled += 1
        await cancel(self, within)
        if cancelled == 1:
            self.lose()

    monkeypatch.setattr(FakeConsumer, "cancel", die)
    for number in range(5):
        message = Message(b"%d" % number, Properties(message_id=f"m-{number}"))
        upstream.queues["orders"].ready.append((message, "", "orders", False))
    tapped = Tapped(gateway, upstream, until="depth")
    await tapped.until(lambda: bool(tapped.done))
    assert tapped.done == ["until: 5 of 5 messages are taken"]
    assert not upstream.queues["orders"].ready
    assert len(await tapped.rows()) == 5
    await tapped.flow.stop(1.0)
