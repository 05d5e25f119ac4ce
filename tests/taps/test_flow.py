"""From a queue into the message log."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.core.sources import deduplicator, taking
from gateway.core.sources.fetching import settle
from gateway.errors import CommitUnknown, EntriesRefused, LedgerUnavailable, NotFound, PeerUnavailable
from gateway.fidelity import annotate
from gateway.ledger import EventKind, Ledger, MessageIds, id_text
from gateway.ledger.logs.log import Logs
from gateway.ledger.logs.logged import Log
from gateway.taps import TapState, flow
from gateway.taps.flow import TapFlow
from gateway.taps.tap import Tap
from gateway.upstreams import Delivery
from gateway.versions import VERSION_NAMES
from tests.taps.conftest import House, unmarked_copies, until

VERSIONS = VERSION_NAMES


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_spooled_then_acknowledged(house: House) -> None:
    sent = await house.fill(20, content_type="text/plain")
    await house.tap()
    status = await house.wait_for(spooled=20, in_flight=0)
    rows = await house.rows()
    assert [row.body for row in rows] == sent
    assert [row.sequence for row in rows] == list(range(1, 21))
    assert {(row.broker, row.version, row.queue, row.routing_key, row.redelivered) for row in rows} == {
        ("house", house.version, b"in", b"in", False)
    }
    assert await house.depth() == 0
    assert (status.state, status.taken, status.octets) == (TapState.RUNNING, 20, sum(map(len, sent)))
    (event,) = await house.events(rows[0].message_id)
    assert (event.kind, event.detail) == (EventKind.SPOOLED, {"tap": "t", "queue": "in", "redelivered": False})


async def test_an_id_of_a_gateway_is_kept(house: House) -> None:
    mine = MessageIds()()
    await house.publish(Message(b"x", annotate(Properties(message_id="m"), id=id_text(mine), origin="elsewhere/7")))
    await house.fill(1, message_id="m-1")
    await house.fill(1)
    await house.tap()
    await house.wait_for(spooled=3)
    rows = await house.rows()
    assert [row.origin_id for row in rows] == [b"elsewhere/7", b"house/m-1", b""]
    assert rows[0].message_id == mine


# ------------------------------------------------------------------------------------- nothing before the commit


async def test_nothing_is_acknowledged_before_it_is_in_the_log(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is away: what is out is bounded by the prefetch, and it goes on when it is back."""
    spool = Logs.spool
    away = True
    asked = 0

    async def no(self: Logs, messages: Sequence[Any], *more: Any) -> Any:
        nonlocal asked
        asked += 1
        if away:
            raise LedgerUnavailable("the disk is full")
        return await spool(self, messages, *more)

    monkeypatch.setattr(Logs, "spool", no)
    monkeypatch.setattr(taking, "PAUSE_MIN", 0.01)
    sent = await house.fill(30)
    await house.tap(prefetch=10)
    status = await house.wait_for(state=TapState.ERROR, in_flight=10)
    await until(lambda: asked >= 3)
    assert "the disk is full" in status.reason
    assert (await house.depth(), await house.bodies()) == (20, [])
    away = False
    await house.wait_for(spooled=30, state=TapState.RUNNING, reason="")
    assert await house.bodies() == sent
    assert (await house.taps.get("t")).redelivered == 0


async def pages(house: House, more: int) -> None:
    """The database may grow by so many pages, and no further."""

    def limit(connection: Any, _: Any) -> None:
        count = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {count + more}")

    await house.ledger.task(limit)


async def test_a_disk_that_is_full(house: House) -> None:
    """What does not fit stays with the broker, unacknowledged, until there is room."""
    sent = await house.fill(20, size=20_000)
    await pages(house, 30)
    await house.tap(prefetch=5)
    status = await house.wait_for(state=TapState.ERROR, in_flight=5)
    assert "full" in status.reason
    spooled = await house.bodies()
    assert await house.depth() == 20 - 5 - len(spooled)
    assert spooled == sent[: len(spooled)]
    await pages(house, 10_000)
    await house.wait_for(state=TapState.RUNNING, spooled=20)
    assert await house.bodies() == sent


async def test_what_was_written_in_part_is_not_written_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one call some messages are in the log, one the ledger cannot hold, and then it was away."""
    spool = Logs.spool
    calls: list[int] = []

    async def partly(self: Logs, messages: Sequence[Any], entries: Sequence[Any], inbox: Sequence[Any] = ()) -> Any:
        calls.append(len(messages))
        if len(calls) == 1:
            await spool(self, messages[:2], entries[:2])
            error = LedgerUnavailable("gone in the middle")
            error.written, error.refused = 3, {2: "too large"}
            raise error
        return await spool(self, messages, entries, inbox)

    monkeypatch.setattr(Logs, "spool", partly)
    monkeypatch.setattr(taking, "PAUSE_MIN", 0.01)
    sent = await house.fill(6)
    await house.tap(prefetch=6)
    status = await house.wait_for(spooled=5, dead_lettered=1)
    assert await house.bodies() == [*sent[:2], *sent[3:]]
    assert (calls[1], status.redelivered) == (calls[0] - 3, 0)
    assert [each.message.body for each in await house.take("gateway.dead.tap.t")] == [sent[2]]


# ----------------------------------------------------------------------- between the commit and the acknowledgement


async def crashed(house: House, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The gateway has spooled so many messages, and dies before it acknowledges any."""
    with monkeypatch.context() as patch:
        patch.setattr(TapFlow, "_acknowledge", lambda self, deliveries: list(deliveries))
        await house.tap()
        await house.wait_for(spooled=count)
        house.cut()
        await house.close_gateway(0.1)
    await house.open()


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_a_message_that_comes_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known by id and digest is dropped; what has no id is kept, and marked."""
    known = await house.fill(1, message_id="m-1")
    strange = await house.fill(1)
    mine = annotate(Properties(), id=id_text(MessageIds()()))
    await house.publish(Message(b"mine", mine))
    await crashed(house, monkeypatch, 3)
    status = await house.wait_for(taken=3, in_flight=0, spooled=1)
    assert (status.redelivered, status.duplicates_dropped) == (1, 2)
    rows = await house.rows()
    assert [(row.body, row.redelivered) for row in rows] == [
        (known[0], False), (strange[0], False), (b"mine", False), (strange[0], True),
    ]  # fmt: skip
    assert await house.depth() == 0
    assert [event.kind for event in await house.events(rows[0].message_id)] == [
        EventKind.SPOOLED,
        EventKind.DUPLICATE_DROPPED,
    ]


async def test_the_same_id_with_another_body_is_another_message(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.fill(1, message_id="m-1")
    await crashed(house, monkeypatch, 1)
    await house.wait_for(duplicates_dropped=1)
    await house.fill(2, message_id="m-1")
    await house.wait_for(spooled=2)
    assert [row.redelivered for row in await house.rows()] == [False, False, False]


async def test_nobody_says_that_it_comes_again(house: House) -> None:
    """The same id and body, and no word of a redelivery: a broker may have forgotten, so it is kept, and marked."""
    twin = Message(b"twin", Properties(message_id="m-1"))
    await house.publish(twin)
    await house.tap()
    await house.wait_for(spooled=1)
    await house.close_gateway()
    await house.publish_outside(twin)
    await house.open()
    await house.wait_for(spooled=1)
    assert [row.redelivered for row in await house.rows()] == [False, True]


TWIN = Message(b"twin", Properties(message_id="m-1", delivery_mode=2))
"""Of a publisher who uses an id again, with the same body."""


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_twins_that_somebody_gave_back_are_two(house: House, prefetch: int) -> None:
    """They are marked as redelivered, and none of them was ever spooled."""
    await house.publish(TWIN, TWIN, TWIN)
    for delivery in reversed(await house.upstream.fetch("in", 3, 0.5)):
        delivery.settle(Settlement.RELEASE)
    await house.tap(prefetch=prefetch)
    await house.wait_for(taken=3, in_flight=0)
    assert await house.bodies() == [b"twin"] * 3
    assert (await house.taps.get("t")).duplicates_dropped == 0


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_what_the_log_has_stands_for_one_of_twins(
    house: House, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    """The gateway died when it had spooled one, and had not acknowledged it."""
    await house.publish(TWIN)
    await crashed(house, monkeypatch, 1)
    await house.wait_for(duplicates_dropped=1)
    await house.taps.delete("t", None)
    await house.publish(TWIN, TWIN)
    for delivery in reversed(await house.upstream.fetch("in", 2, 0.5)):
        delivery.settle(Settlement.RELEASE)
    await house.tap(prefetch=prefetch)
    await house.wait_for(taken=2, in_flight=0)
    assert [row.redelivered for row in await house.rows()] == [False, True]


async def test_more_twins_than_are_remembered(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplicator, "BROUGHT_MAX", 1)
    other = Message(b"other", Properties(message_id="m-2", delivery_mode=2))
    await house.publish(TWIN, other, TWIN, other)
    for delivery in reversed(await house.upstream.fetch("in", 4, 0.5)):
        delivery.settle(Settlement.RELEASE)
    await house.tap(prefetch=1)
    await house.wait_for(taken=4, in_flight=0)
    assert await house.bodies() == [b"twin", b"other"] * 2


async def test_without_deduplication_everything_is_kept(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.fill(2, message_id="m-1")
    monkeypatch.setattr(TapFlow, "_acknowledge", lambda self, deliveries: list(deliveries))
    await house.tap(dedupe_seconds=0)
    await house.wait_for(spooled=2)
    monkeypatch.undo()
    house.cut()
    await house.wait_for(spooled=4, duplicates_dropped=0, redelivered=2)


# ----------------------------------------------------------------------------------------------- the broker


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_a_broker_that_goes_and_comes_back(house: House) -> None:
    first = await house.fill(50)
    await house.tap(prefetch=7)
    await house.wait_for(spooled=lambda count: count > 0)
    await house.away()
    await house.wait_for(state=TapState.ERROR)
    await house.back()
    more = await house.fill(5)
    await house.wait_for(state=TapState.RUNNING, source_messages=0, in_flight=0)
    rows = await house.rows()
    assert {row.body for row in rows} == {*first, *more}, "nothing is lost"
    assert unmarked_copies(rows) == []


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_a_queue_that_is_deleted(house: House) -> None:
    await house.tap()
    await house.wait_for(state=TapState.RUNNING)
    await house.upstream.delete_queue("in")
    status = await house.wait_for(state=TapState.ERROR)
    assert "'in'" in status.reason
    fault = house.metrics.registry.get_sample_value
    assert fault("amqpgw_tap_fault", {"tap": status.name}) == 1
    await house.upstream.declare_queue("in")
    sent = await house.fill(3)
    await house.wait_for(spooled=3, state=TapState.RUNNING)
    assert await house.bodies() == sent


async def test_a_queue_of_its_own(house: House) -> None:
    await house.upstream.declare_exchange("events", "topic")
    status = await house.tap(exchange="events", binding_key="a.*")
    assert status.queue == "gateway.tap.t"
    await house.publish(Message(b"yes", Properties()), exchange="events", queue="a.b")
    await house.wait_for(spooled=1)
    (row,) = await house.rows()
    assert (row.exchange, row.routing_key, row.queue) == (b"events", b"a.b", b"gateway.tap.t")
    await house.taps.delete("t", None)
    while await is_there(house, "gateway.tap.t"):
        await asyncio.sleep(0.05)


async def is_there(house: House, queue: str) -> bool:
    try:
        await house.depth(queue)
    except NotFound:
        return False
    return True


# ------------------------------------------------------------------------------------------------- poison


async def small_ledger(house: House, octets: int) -> None:
    """From now on the database holds no row that is larger."""

    def limit(connection: Any, _: Any) -> None:
        connection.connection.driver_connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, octets)

    await house.ledger.task(limit)


async def test_a_message_that_the_ledger_cannot_hold(house: House) -> None:
    """It is dead-lettered with the reason, and its neighbours do not wait for it."""
    before, after = await house.fill(3), None
    await small_ledger(house, 300_000)
    large = await house.fill(1, size=400_000, message_id="large")
    after = await house.fill(3)
    await house.tap()
    status = await house.wait_for(spooled=6, dead_lettered=1, in_flight=0)
    assert await house.bodies() == [*before, *after]
    assert "too big" in status.last_error
    (letter,) = await house.take("gateway.dead.tap.t")
    assert letter.message.body == large[0]
    note = (letter.message.properties.headers or {})["x-gateway"]
    assert isinstance(note, dict)
    assert (note["tap"], note["queue"], "too big" in str(note["reason"])) == ("t", "in", True)
    message_id = bytes.fromhex(str(note["id"]).replace("-", ""))
    (event,) = await house.events(message_id)
    assert (event.kind, event.detail["tap"]) == (EventKind.DEAD_LETTERED, "t")
    assert event.detail["place"] == {"broker": "house", "exchange": "", "routing_key": "gateway.dead.tap.t"}


async def test_poison_that_nobody_takes_stays_in_the_queue(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead-letter place is not there: the tap says so, the broker keeps the message, the others go on."""
    monkeypatch.setattr("gateway.taps.dead_letters.PAUSE_MIN", 0.05)
    await small_ledger(house, 300_000)
    large = await house.fill(1, size=400_000)
    await house.tap(dead_letter_routing_key="nowhere")
    others = await house.fill(5)
    status = await house.wait_for(spooled=5, state=TapState.ERROR, in_flight=1)
    assert "cannot hold 1 messages" in status.reason
    assert "nowhere" in status.reason
    assert await house.bodies() == others
    await house.upstream.declare_queue("nowhere")
    await house.wait_for(dead_lettered=1, in_flight=0, state=TapState.RUNNING)
    assert [each.message.body for each in await house.take("nowhere")] == large
    assert await house.depth() == 0


async def test_poison_is_acknowledged_once_the_ledger_says_where_it_is(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.taps.dead_letters.PAUSE_MIN", 0.01)
    record, refused = Ledger.record, []
    away = True

    async def no_dead_letters(self: Ledger, entries: Sequence[Any], *more: Any) -> Any:
        if away and any(entry.kind is EventKind.DEAD_LETTERED for entry in entries):
            refused.append(entries)
            raise LedgerUnavailable("the disk is full")
        return await record(self, entries, *more)

    monkeypatch.setattr(Ledger, "record", no_dead_letters)
    await small_ledger(house, 300_000)
    large = await house.fill(1, size=400_000)
    await house.tap()
    await until(lambda: len(refused) >= 3)
    assert (await house.taps.get("t")).in_flight == 1, "the broker keeps the message"
    away = False
    await house.wait_for(dead_lettered=1, in_flight=0)
    assert [each.message.body for each in await house.take("gateway.dead.tap.t")] == large


async def test_no_copy_of_poison_while_the_ledger_is_away(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """For then nobody would know of it."""
    monkeypatch.setattr("gateway.taps.dead_letters.PAUSE_MIN", 0.01)
    await small_ledger(house, 300_000)
    large = await house.fill(1, size=400_000)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "healthy", False)
        patch.setattr(Ledger, "ready", lambda self: (False, "away"))
        await house.tap()
        status = await house.wait_for(state=TapState.ERROR, in_flight=1)
        assert "away" in status.reason
        await asyncio.sleep(0.1)
        assert not await is_there(house, "gateway.dead.tap.t")
    await house.wait_for(dead_lettered=1, in_flight=0)
    assert [each.message.body for each in await house.take("gateway.dead.tap.t")] == large


async def test_a_message_that_cannot_be_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours over one message holds up no other."""
    read = flow.TapOrigins.read

    def faulty(self: Any, delivery: Any) -> Any:
        if delivery.message.body == b"bad":
            raise RuntimeError("cannot")
        return read(self, delivery)

    monkeypatch.setattr(flow.TapOrigins, "read", faulty)
    await house.publish(*(Message(body, Properties()) for body in (b"1", b"bad", b"2")))
    await house.tap()
    status = await house.wait_for(spooled=2, dead_lettered=1)
    assert "RuntimeError" in status.last_error
    assert [each.message.body for each in await house.take("gateway.dead.tap.t")] == [b"bad"]


async def test_a_message_over_message_max(tmp_path: Any) -> None:
    house = House(tmp_path, "0-9-1")
    await house.open(message_max=1024)
    try:
        await house.upstream.declare_queue("in")
        await house.publish_outside(Message(b"y" * 2_000, Properties()))
        sent = await house.fill(4)
        await house.tap()
        status = await house.wait_for(spooled=4, oversized=1)
        assert "over message_max = 1024" in status.last_error
        assert await house.bodies() == sent
        await house.taps.pause("t")
        assert await house.depth() == 1, "it is where it was"
    finally:
        await house.close()


# ------------------------------------------------------------------------------------------------- no room


async def test_a_log_that_is_full(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is taken than fits, and it goes on when somebody has read it."""
    monkeypatch.setattr(flow, "HELD_EVERY", 0.02)
    for name in ("HOLD", "LOOK_EVERY"):
        monkeypatch.setattr(taking, name, 0.02)
    sent = await house.fill(40, size=100_000)
    await house.tap(prefetch=2, log_octets=1 << 20)
    status = await house.wait_for(state=TapState.FULL)
    assert "log_octets is 1048576" in status.reason
    held = 0
    while (status := await house.wait_for(in_flight=0)).spooled > held:  # what has come is stored all the same
        held = status.spooled
        await asyncio.sleep(0.2)
    assert held < 20
    assert await house.depth() == 40 - held
    cursor = await house.ledger.log.claim_cursor("reader", Log.MESSAGES, "me", "latest", take_over=False)
    assert cursor.position == {"0": held}
    await house.wait_for(state=TapState.FULL, spooled=lambda count: held < count < 40)
    while (await house.taps.get("t")).spooled < 40:
        status = await house.taps.get("t")
        await house.ledger.log.move_cursor("reader", "me", cursor.epoch, {"0": status.spooled})
        await asyncio.sleep(0.02)
    assert await house.bodies() == sent


async def test_a_prefetch_in_octets(house: House) -> None:
    sent = await house.fill(40, size=20_000)
    await house.tap(prefetch=40, prefetch_octets=1 << 16)
    await house.wait_for(spooled=lambda count: count >= 40, source_messages=0, in_flight=0)
    assert set(await house.bodies()) == set(sent)


# --------------------------------------------------------------------------- paused, resumed, deleted, replaced


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_pauses_and_restarts_while_messages_are_in_flight(house: House) -> None:
    sent: list[bytes] = []
    await house.tap(prefetch=8)
    filling = asyncio.create_task(fill_slowly(house, sent))
    for _ in range(5):
        status = await house.taps.pause("t")
        assert (status.state, status.in_flight) == (TapState.PAUSED, 0)
        spooled = len(await house.bodies())
        await asyncio.sleep(0.02)
        assert len(await house.bodies()) == spooled
        await house.taps.resume("t")
        await asyncio.sleep(0.03)
    await filling
    await house.wait_for(source_messages=0, in_flight=0)
    await until_equal(house, sent)


async def fill_slowly(house: House, sent: list[bytes]) -> None:
    for _ in range(20):
        sent += await house.fill(20)
        await asyncio.sleep(0.01)


async def until_equal(house: House, sent: list[bytes]) -> None:
    async with asyncio.timeout(10):
        while sorted(await house.bodies()) != sorted(sent):
            await asyncio.sleep(0.02)


async def test_deleted_while_messages_are_in_flight(house: House) -> None:
    sent = await house.fill(500)
    await house.tap(prefetch=5)
    await house.wait_for(spooled=lambda count: count > 0)
    await house.taps.delete("t", None)
    spooled = await house.bodies()
    left = [each.message.body for each in await house.take()]
    assert sorted(spooled + left) == sorted(sent), "each is in the log, or in the queue"
    await asyncio.sleep(0.05)
    assert await house.bodies() == spooled


async def test_replaced_while_messages_are_in_flight(house: House) -> None:
    sent = await house.fill(300)
    await house.tap(prefetch=5)
    await house.taps.put("t", (await house.taps.get("t")).settings, None)
    etag = (await house.taps.get("t")).etag
    status, created = await house.taps.put("t", house.settings(prefetch=50), etag)
    assert (created, status.settings.prefetch) == (False, 50)
    await until_equal(house, sent)


async def test_a_pause_outlives_the_gateway(house: House) -> None:
    await house.tap()
    await house.taps.pause("t")
    await house.close_gateway()
    await house.open()
    sent = await house.fill(3)
    await house.wait_for(state=TapState.PAUSED, spooled=0, source_messages=3)
    await house.taps.resume("t")
    await house.wait_for(spooled=3)
    assert await house.bodies() == sent


async def test_what_is_lost_and_taken_again_as_it_is_resumed_runs_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.tap()
    await house.taps.pause("t")
    keep = house.taps._keep_wish
    keeping, may_go = asyncio.Event(), asyncio.Event()

    async def slow(tap: Tap) -> None:
        await keep(tap)
        keeping.set()
        await may_go.wait()

    monkeypatch.setattr(house.taps, "_keep_wish", slow)
    resuming = asyncio.create_task(house.taps.resume("t"))
    await keeping.wait()
    before = house.taps._here["t"]
    house.taps.lose("t")
    await house.taps.take("t")
    may_go.set()
    await resuming
    assert before._flow is None
    await house.wait_for(state=TapState.RUNNING)


async def test_a_pause_that_may_be_written_does_not_count_after_a_restart(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.tap()
    put = house.ledger.put_resource

    async def unknown(*arguments: Any) -> None:
        await put(*arguments)
        raise CommitUnknown("the ledger was lost while it committed")

    with monkeypatch.context() as patched:
        patched.setattr(house.ledger, "put_resource", unknown)
        with pytest.raises(CommitUnknown):
            await house.taps.pause("t")
    await house.taps.resume("t")  # it has never stopped
    await until(lambda: not house.taps._tasks)
    await house.close_gateway()
    await house.open()
    await house.wait_for(state=TapState.RUNNING)


async def test_a_pause_holds_for_who_takes_the_tap_before_it_is_written(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.tap()
    keep = house.taps._keep_wish
    keeping, may_go = asyncio.Event(), asyncio.Event()

    async def late(tap: Tap) -> None:
        keeping.set()
        await may_go.wait()
        await keep(tap)

    monkeypatch.setattr(house.taps, "_keep_wish", late)
    pausing = asyncio.create_task(house.taps.pause("t"))
    await keeping.wait()
    house.taps.lose("t")
    await house.taps.take("t")
    await house.wait_for(state=TapState.RUNNING)
    may_go.set()
    await pausing
    await house.wait_for(state=TapState.PAUSED)


async def test_settings_that_are_stored_though_their_put_fails_count(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = house.ledger.put_resource

    async def unknown(*arguments: Any) -> None:
        await put(*arguments)
        raise CommitUnknown("the ledger was lost while it committed")

    async def put_twice(etag: str | None, **settings: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(house.ledger, "put_resource", unknown)
            with pytest.raises(CommitUnknown):
                await house.taps.put("t", house.settings(**settings), etag)
        with suppress(PeerUnavailable):  # it is being taken
            await house.taps.put("t", house.settings(**settings), None)

    await put_twice(None)
    status = await house.wait_for(state=TapState.RUNNING)
    await put_twice(status.etag, prefetch=7)
    await house.wait_for(state=TapState.RUNNING, settings=lambda found: found.prefetch == 7)


async def test_other_processes_hear_of_settings_that_one_of_them_may_have_read_before(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = await house.tap()
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(house.gateway.ownership, "changed", lambda kind, name="": told.append((kind, name)))

    async def elsewhere(kind: str, name: str) -> bool:
        return False

    async def lost(self: Tap, within: float = 1.0) -> None:
        house.taps.lose("t")
        monkeypatch.setattr(house.gateway.ownership, "acquire", elsewhere)

    with monkeypatch.context() as patched:
        patched.setattr(Tap, "halt", lost)
        await house.taps.put("t", house.settings(prefetch=7), status.etag)
    assert told == [("tap", "t")]


@pytest.mark.parametrize("change", ["refresh", "put"])
async def test_what_is_lost_and_taken_again_as_it_starts_over_runs_once(
    house: House, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    status = await house.tap()
    halt = Tap.halt
    halting, may_go = asyncio.Event(), asyncio.Event()

    async def slow(self: Tap, within: float = 1.0) -> None:
        halting.set()
        await may_go.wait()
        await halt(self, within)

    monkeypatch.setattr(Tap, "halt", slow)
    other = house.settings(prefetch=7)
    if change == "put":
        changing: asyncio.Task[Any] = asyncio.create_task(house.taps.put("t", other, status.etag))
    else:
        await house.ledger.put_resource("tap", "t", msgspec.to_builtins(other), None)
        changing = asyncio.create_task(house.taps.refresh("t"))
    await halting.wait()
    house.taps.lose("t")
    await house.taps.take("t")
    taken = house.taps._here["t"]
    may_go.set()
    await changing
    assert house.taps._here["t"] is taken
    assert (await house.wait_for(state=TapState.RUNNING)).settings.prefetch == 7


# ------------------------------------------------------------------------------------- until the depth is taken


@pytest.mark.parametrize("prefetch", [1, 7, 1_000])
@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_until_the_depth_seen_at_the_start(house: House, prefetch: int) -> None:
    """It ends exactly there: what came behind was never out."""
    sent = await house.fill(25)
    await house.taps.put("t", house.settings(prefetch=prefetch, until="depth", paused=True), None)
    await house.taps.resume("t")
    await house.wait_for(depth=lambda depth: depth is not None)
    more = await house.fill(10)
    status = await house.wait_for(state=TapState.STOPPED)
    assert status.reason == "until: 25 of 25 messages are taken"
    assert await house.bodies() == sent
    left = await house.take()
    assert [each.message.body for each in left] == more
    assert not any(each.redelivered for each in left)


@pytest.mark.parametrize("size", [10_000, 20_000, 40_000])
async def test_until_the_depth_of_messages_larger_than_expected(house: House, size: int) -> None:
    """Its consumer begins again with a smaller prefetch, near the end."""
    sent = await house.fill(12, size=size)
    await house.tap(until="depth", prefetch=10, prefetch_octets=65_536)
    status = await house.wait_for(state=TapState.STOPPED)
    assert status.reason == "until: 12 of 12 messages are taken"
    assert await house.bodies() == sent


async def test_until_the_depth_of_an_empty_queue(house: House) -> None:
    await house.tap(until="depth")
    status = await house.wait_for(state=TapState.STOPPED)
    assert status.reason == "until: 0 of 0 messages are taken"


async def test_an_end_waits_for_no_room_in_the_log(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was wanted has come: it is spooled at once, not when what is out is no longer held."""
    monkeypatch.setattr(taking, "CHUNK", 2)
    monkeypatch.setattr(taking, "HOLD", 3600.0)
    sent = await house.fill(8, size=300_000)
    await house.tap(until="depth", log_octets=1 << 20)
    status = await house.wait_for(state=TapState.STOPPED)
    assert status.reason == "until: 8 of 8 messages are taken"
    assert await house.bodies() == sent
    assert await house.depth() == 0


async def test_a_queue_that_gives_less_than_it_held(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes some of it."""
    monkeypatch.setattr(flow, "EMPTY_EVERY", 0.02)
    monkeypatch.setattr(taking, "LOOK_EVERY", 0.02)
    sent = await house.fill(10)

    async def four() -> list[Delivery]:
        """A busy broker may give fewer at a time."""
        found: list[Delivery] = []
        while len(found) < 4:
            found += await house.upstream.fetch("in", 4 - len(found), 5.0)
        return found

    for delivery in await four():
        delivery.settle(Settlement.RELEASE)
    while await house.depth() < 10:  # a release is not awaited, and the tap's first look must find all of them
        await asyncio.sleep(0.005)
    query = house.upstream.query_queue
    taken = False

    async def seen(queue: str) -> Any:
        nonlocal taken
        found = await query(queue)
        if not taken and sys._getframe(1).f_globals["__name__"] == flow.__name__:  # a status asks for the depth, too
            taken = True  # the tap has looked, and then somebody else is quicker
            for delivery in await four():
                delivery.settle(Settlement.ACCEPT)
        return found

    monkeypatch.setattr(house.upstream, "query_queue", seen)
    await house.tap(until="depth", prefetch=3)
    status = await house.wait_for(state=TapState.STOPPED)
    assert status.reason == "until: 6 of 10 messages are taken; the queue gave no more"
    assert await house.bodies() == sent[4:]


async def test_an_end_that_outlives_restarts(house: House) -> None:
    """What is left is remembered, so that the end is where it was; and a stopped tap stays stopped."""
    sent = await house.fill(200)
    await house.tap(until="depth", prefetch=2)
    await house.wait_for(spooled=lambda count: count > 3)
    await house.close_gateway()
    await house.open()
    await house.fill(20)
    await house.wait_for(state=TapState.STOPPED)
    assert set(await house.bodies()) == set(sent)
    assert unmarked_copies(await house.rows()) == []
    assert await house.depth() == 20
    await house.close_gateway()
    await house.open()
    await house.wait_for(state=TapState.STOPPED)
    assert await house.depth() == 20
    await house.taps.resume("t")
    await house.wait_for(state=TapState.STOPPED, spooled=20)
    assert await house.depth() == 0


async def test_an_end_over_a_channel_that_dies(house: House) -> None:
    sent = await house.fill(300)
    await house.tap(until="depth", prefetch=10)
    await house.fill(20)
    for _ in range(3):
        house.cut()
        await asyncio.sleep(0.1)
    await house.wait_for(state=TapState.STOPPED)
    bodies = set(await house.bodies())
    assert bodies >= set(sent), "it may have taken a few more, but not fewer"
    assert await house.depth() == 20 - len(bodies - set(sent))
    assert unmarked_copies(await house.rows()) == []


async def test_acknowledgements_that_a_dead_channel_took_along(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their messages come again, and are still part of the depth."""
    told = 0
    filled, cutting = asyncio.Event(), []

    async def cut() -> None:
        await filled.wait()  # what fills the queue goes over the same connection
        house.cut()

    def lost(delivery: Delivery, settlement: Settlement) -> bool:
        nonlocal told
        told += 1
        if told == 5:
            cutting.append(asyncio.create_task(cut()))
        return True if told <= 5 else settle(delivery, settlement)

    monkeypatch.setattr(flow, "settle", lost)
    sent = await house.fill(30)
    await house.tap(until="depth", prefetch=5)
    await house.wait_for(depth=lambda depth: depth is not None)
    await house.fill(20)
    filled.set()
    await house.wait_for(state=TapState.STOPPED)
    bodies = set(await house.bodies())
    assert bodies >= set(sent), "it may have taken a few more, but not fewer"
    assert await house.depth() == 20 - len(bodies - set(sent))
    assert unmarked_copies(await house.rows()) == []


async def test_acknowledgements_that_a_dead_process_took_along(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had written down how much is left, and its connection was cut before they were out."""
    sent = await house.fill(30)
    with monkeypatch.context() as patched:
        patched.setattr(flow, "settle", lambda delivery, settlement: True)
        patched.setattr(taking, "LOOK_EVERY", 0.02)
        await house.tap(until="depth", prefetch=5)
        await house.wait_for(spooled=5, left=25)
        await asyncio.sleep(1.1 * flow.PROGRESS_EVERY)
        house.taps.lose("t")
        house.cut()
    await house.taps.take("t")
    await house.wait_for(state=TapState.STOPPED)
    assert set(await house.bodies()) == set(sent), "it may have taken a few more, but not fewer"


async def test_an_end_with_poison(house: House) -> None:
    await small_ledger(house, 300_000)
    sent = await house.fill(2)
    await house.fill(1, size=400_000)
    await house.tap(until="depth")
    status = await house.wait_for(state=TapState.STOPPED)
    assert (status.reason, status.dead_lettered) == ("until: 3 of 3 messages are taken", 1)
    assert await house.bodies() == sent


async def test_refused_rows_do_not_cost_others_their_events(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(self: Logs, messages: Sequence[Any], *more: Any) -> Any:
        raise EntriesRefused(dict.fromkeys(range(len(messages)), "it is Monday"))

    monkeypatch.setattr(Logs, "spool", none)
    sent = await house.fill(4)
    await house.tap()
    await house.wait_for(dead_lettered=4, spooled=0)
    assert [each.message.body for each in await house.take("gateway.dead.tap.t")] == sent
