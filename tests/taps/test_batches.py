"""Batches of a tap: what is written of them, once, and what is left to write after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.core.sources.arrivals import Arrival
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind
from gateway.taps.rows import TapBatch
from tests.core.conftest import gateway, ledger, upstream
from tests.core.fakes import FakeDelivery
from tests.taps.tapped import Tapped, idle

__all__ = ["gateway", "idle", "ledger", "upstream"]


class FakeLedger:
    """A ledger that fails as the test says."""

    def __init__(self) -> None:
        self.log = self
        self.errors: list[Exception | None] = []
        self.spooled: list[tuple[list[bytes], list[bytes], list[str]]] = []
        self.recorded: list[list[EventKind]] = []

    async def spool(self, rows: Sequence[Any], entries: Sequence[Any], inbox: Sequence[Any]) -> None:
        """Note the bodies, the ids of the events, and what is remembered."""
        self.spooled.append(
            ([row.body for row in rows], [entry.message_id for entry in entries], [row.key for row in inbox])
        )
        self._fail()

    async def record(self, entries: Sequence[Any]) -> None:
        """Note the kinds."""
        self.recorded.append([entry.kind for entry in entries])
        self._fail()

    def _fail(self) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


def away(written: int = 0, refused: dict[int, str] | None = None) -> LedgerUnavailable:
    """It was lost when this number of messages was written."""
    error = LedgerUnavailable("it is locked")
    error.written, error.refused = written, refused or {}
    return error


def arrivals(tapped: Tapped, *bodies: bytes, **properties: Any) -> list[Arrival]:
    """Messages that have come; each has an id unless the properties say otherwise."""
    found = []
    for body in bodies:
        given = {"message_id": f"m-{body.decode()}", **properties}
        delivery: Any = FakeDelivery(tapped.upstream, "orders", (Message(body, Properties(**given)), "", "k", False))
        found.append(tapped.flow._reader.read(delivery))
    return found


def bodies(found: Sequence[Arrival]) -> list[bytes]:
    return [arrival.delivery.message.body for arrival in found]


async def write(batch: TapBatch, ledger: FakeLedger) -> None:
    parts: Any = SimpleNamespace(ledger=ledger)
    await batch.write(parts)


async def test_a_batch_is_written_once(idle: Tapped) -> None:
    fake = FakeLedger()
    new, known = arrivals(idle, b"1", b"2"), arrivals(idle, b"3")
    nameless = arrivals(idle, b"4", message_id=None)
    batch = TapBatch(idle.flow._reader, [*new, *nameless], known)
    await write(batch, fake)
    ids = [arrival.id for arrival in (*new, *nameless)]
    assert fake.spooled == [([b"1", b"2", b"4"], ids, ["fake/m-1", "fake/m-2"])]
    assert fake.recorded == [[EventKind.DUPLICATE_DROPPED]]
    assert (bodies(batch.kept), batch.refused) == ([b"1", b"2", b"4"], [])
    await write(batch, fake)
    assert (len(fake.spooled), len(fake.recorded)) == (1, 1)


async def test_a_batch_without_copies_records_none(idle: Tapped) -> None:
    fake = FakeLedger()
    await write(TapBatch(idle.flow._reader, arrivals(idle, b"1"), []), fake)
    assert (len(fake.spooled), fake.recorded) == (1, [])
    await write(TapBatch(idle.flow._reader, [], arrivals(idle, b"1")), fake)
    assert (len(fake.spooled), len(fake.recorded)) == (1, 1)


async def test_what_is_left_of_a_batch_is_written_later(idle: Tapped) -> None:
    fake = FakeLedger()
    batch = TapBatch(idle.flow._reader, arrivals(idle, b"0", b"1", b"2", b"3"), arrivals(idle, b"9"))
    fake.errors = [away(), away(2, {1: "it is too large"}), None]
    for expected in ([], [b"0"]):
        with pytest.raises(LedgerUnavailable):
            await write(batch, fake)
        assert bodies(batch.kept) == expected
        assert fake.recorded == [], "that it is a copy is said when what it is a copy of is there"
    await write(batch, fake)
    assert [each[0] for each in fake.spooled] == [[b"0", b"1", b"2", b"3"]] * 2 + [[b"2", b"3"]]
    assert [len(each[1]) for each in fake.spooled] == [4, 4, 2]
    assert fake.spooled[2][2] == ["fake/m-2", "fake/m-3"]
    assert bodies(batch.kept) == [b"0", b"2", b"3"]
    assert [(arrival.delivery.message.body, why) for arrival, why in batch.refused] == [(b"1", "it is too large")]
    assert fake.recorded == [[EventKind.DUPLICATE_DROPPED]]


async def test_copies_that_could_not_be_recorded_are_recorded_later(
    idle: Tapped, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeLedger()
    batch = TapBatch(idle.flow._reader, arrivals(idle, b"1"), arrivals(idle, b"9"))
    fake.errors = [None, away(), EntriesRefused({0: "it is Monday"})]
    with pytest.raises(LedgerUnavailable):
        await write(batch, fake)
    assert bodies(batch.kept) == [b"1"]
    for _ in range(2):
        await write(batch, fake)
    assert (len(fake.spooled), len(fake.recorded)) == (1, 2), "what cannot be recorded is not tried again"
    assert [record.getMessage() for record in caplog.records] == ["tap.events_refused"]


async def test_rows_that_the_ledger_refuses_cost_no_others(idle: Tapped) -> None:
    fake = FakeLedger()
    batch = TapBatch(idle.flow._reader, arrivals(idle, b"0", b"1", b"2"), [])
    fake.errors = [EntriesRefused({0: "one", 2: "two"})]
    await write(batch, fake)
    assert bodies(batch.kept) == [b"1"]
    assert [why for _, why in batch.refused] == ["one", "two"]


async def test_what_its_broker_has_taken_back_is_not_written(idle: Tapped) -> None:
    fake = FakeLedger()
    new = arrivals(idle, b"0", b"1", b"2")
    batch = TapBatch(idle.flow._reader, new, [])
    fake.errors = [away()]
    with pytest.raises(LedgerUnavailable):
        await write(batch, fake)
    new[1].delivery.lose()  # type: ignore[attr-defined]  # of a fake
    batch.drop_lost()
    await write(batch, fake)
    assert fake.spooled[1] == ([b"0", b"2"], [new[0].id, new[2].id], ["fake/m-0", "fake/m-2"])
    assert bodies(batch.kept) == [b"0", b"2"]


async def test_one_that_cannot_be_read_has_an_id(idle: Tapped) -> None:
    (arrival,) = arrivals(idle, b"1")
    unread = idle.flow._reader.unread(arrival.delivery)
    assert (len(unread.id), unread.id != arrival.id) == (16, True)
    assert (unread.key, unread.properties) == ("", b"")
