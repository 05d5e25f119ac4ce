"""The dead-letter place of a tap: what waits for it, why, and what is recorded when it has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.config import TapSettings
from gateway.core import Gateway
from gateway.core.sources.arrivals import Arrival
from gateway.errors import AccessRefused, EntriesRefused, LedgerUnavailable
from gateway.ledger import Ledger
from gateway.taps.dead_letters import TapDeadLetterPublisher, place_of
from tests.core.conftest import gateway, ledger, upstream
from tests.core.fakes import FakeDelivery, FakeUpstream
from tests.taps.conftest import until
from tests.taps.tapped import Tapped

__all__ = ["gateway", "ledger", "upstream"]

DEAD = "gateway.dead.tap.t"


class Place:
    """The dead-letter place of a flow that has not begun, and what it tells."""

    def __init__(self, tapped: Tapped) -> None:
        self.tapped = tapped
        self.done: list[bytes] = []
        self.reasons: list[str] = []
        self.publisher = TapDeadLetterPublisher(
            tapped.flow._parts, tapped.flow._reader, tapped.flow._settings, self._dead_lettered, self._changed
        )

    def _dead_lettered(self, arrivals: Sequence[Arrival]) -> None:
        self.done += [arrival.delivery.message.body for arrival in arrivals]

    def _changed(self) -> None:
        self.reasons.append(self.publisher.reason)

    def refused(self, *bodies: bytes) -> list[tuple[Arrival, str]]:
        """Messages that the ledger cannot hold."""
        found = []
        for body in bodies:
            delivery: Any = FakeDelivery(self.tapped.upstream, "orders", (Message(body, Properties()), "", "k", False))
            found.append((self.tapped.flow._reader.read(delivery), "it is too large"))
        return found

    @property
    def copies(self) -> list[bytes]:
        """What is in the queue of the dead letters."""
        queue = self.tapped.upstream.queues.get(DEAD)
        return [] if queue is None else [message.body for message, *_ in queue.ready]


@pytest.fixture
async def place(gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr("gateway.taps.dead_letters.PAUSE_MIN", 0.002)
    tapped = Tapped(gateway, upstream, begins=False)
    yield Place(tapped)
    await tapped.flow.stop(0.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("house", "", "gateway.dead.tap.t")),
        ({"dead_letter_broker": "other"}, ("other", "", "gateway.dead.tap.t")),
        ({"dead_letter_exchange": "ex"}, ("house", "ex", "")),
        ({"dead_letter_routing_key": "key"}, ("house", "", "key")),
        ({"dead_letter_exchange": "ex", "dead_letter_routing_key": "key"}, ("house", "ex", "key")),
    ],
)
def test_where_it_is(settings: dict[str, str], expected: tuple[str, str, str]) -> None:
    assert place_of("t", TapSettings(broker="house", queue="in", **settings)) == expected  # type: ignore[arg-type]


async def test_they_are_recorded_before_they_are_acknowledged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Ledger.record
    told: list[tuple[int, list[bytes], int]] = []

    async def recorded(self: Ledger, entries: Sequence[Any], *more: Any) -> Any:
        told.append((len(entries), list(place.done), place.publisher.waiting))
        return await record(self, entries, *more)

    monkeypatch.setattr(Ledger, "record", recorded)
    await place.publisher.publish(place.refused(b"1", b"2"))
    assert told == [(2, [], 2)]
    assert (place.done, place.copies, place.publisher.waiting) == ([b"1", b"2"], [b"1", b"2"], 0)
    assert place.reasons == [], "nothing stood in the way"


async def test_what_its_broker_has_taken_back_is_no_dead_letter(place: Place) -> None:
    refused = place.refused(b"1", b"2")
    refused[0][0].delivery.lose()  # type: ignore[attr-defined]  # of a fake
    await place.publisher.publish(refused)
    assert (place.done, place.copies, place.publisher.waiting) == ([b"2"], [b"2"], 0)
    refused = place.refused(b"3")
    refused[0][0].delivery.lose()  # type: ignore[attr-defined]
    await place.publisher.publish(refused)
    assert (place.done, place.copies, place.publisher.waiting) == ([b"2"], [b"2"], 0)


async def test_its_own_queue_is_declared_once_and_again_after_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare, declared = place.tapped.upstream.declare_queue, 0

    async def count(queue: str, **options: Any) -> Any:
        nonlocal declared
        declared += 1
        return await declare(queue, **options)

    monkeypatch.setattr(place.tapped.upstream, "declare_queue", count)
    for body in (b"1", b"2"):
        await place.publisher.publish(place.refused(body))
    assert declared == 1
    del place.tapped.upstream.queues[DEAD]
    await place.publisher.publish(place.refused(b"3"))
    assert (declared, place.copies) == (2, [b"3"])


@pytest.mark.parametrize("setting", ["dead_letter_exchange", "dead_letter_routing_key"])
async def test_a_place_that_is_somebody_elses_is_not_declared(
    gateway: Gateway, upstream: FakeUpstream, setting: str
) -> None:
    tapped = Tapped(gateway, upstream, begins=False, **{setting: "hospital"})
    upstream.exchanges["hospital"] = "direct"
    queue = await upstream.declare_queue("hospital")
    await upstream.bind_queue("hospital", "hospital", "")
    place = Place(tapped)
    before = set(upstream.queues)
    await place.publisher.publish(place.refused(b"1"))
    assert (place.done, queue.queue, set(upstream.queues)) == ([b"1"], "hospital", before)
    await tapped.flow.stop(0.0)


async def test_it_says_why_they_wait_and_tries_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    declare, refusals = place.tapped.upstream.declare_queue, 3

    async def refuse(queue: str, **options: Any) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise AccessRefused(403, "not now")
        return await declare(queue, **options)

    monkeypatch.setattr(place.tapped.upstream, "declare_queue", refuse)
    await place.publisher.publish(place.refused(b"1", b"2"))
    assert (place.done, place.copies) == ([b"1", b"2"], [b"1", b"2"])
    first, last = place.reasons
    assert first.startswith("the ledger cannot hold 2 messages (it is too large)")
    assert "not now" in first
    assert last == ""


async def test_those_that_the_place_refused_are_tried_again_without_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = place.tapped.flow._parts.dead_letters.publish
    asked: list[list[bytes]] = []
    goes = asyncio.Event()

    async def partly(where: Any, name: str, letters: Any, *more: Any, **options: Any) -> list[Any]:
        asked.append([letter.message.body for letter in letters])
        if len(asked) == 2:
            await goes.wait()
        outcomes: list[Any] = await publish(where, name, letters, *more, **options)
        if len(asked) == 1:
            outcomes[1] = AccessRefused(403, "no bed")
        return outcomes

    monkeypatch.setattr(place.tapped.flow._parts.dead_letters, "publish", partly)
    publishing = asyncio.create_task(place.publisher.publish(place.refused(b"1", b"2", b"3")))
    await until(lambda: place.reasons)
    assert (place.publisher.waiting, place.done) == (1, [b"1", b"3"])
    assert "cannot hold 1 messages" in place.publisher.reason
    goes.set()
    await publishing
    assert asked == [[b"1", b"2", b"3"], [b"2"]]
    assert (place.done, place.publisher.waiting, place.publisher.reason) == ([b"1", b"3", b"2"], 0, "")


async def test_no_copy_is_made_while_the_ledger_is_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "healthy", False)
        patched.setattr(Ledger, "ready", lambda self: (False, "it is locked"))
        publishing = asyncio.create_task(place.publisher.publish(place.refused(b"1")))
        await until(lambda: place.reasons)
        assert (place.copies, place.publisher.waiting) == ([], 1)
        assert place.publisher.reason.endswith("it is locked")
    await publishing
    assert (place.copies, place.reasons[-1]) == ([b"1"], "")


async def test_one_batch_that_is_through_says_nothing_of_another(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    record, away = Ledger.record, True

    async def refuse(self: Ledger, entries: Sequence[Any], *more: Any) -> Any:
        if away and len(entries) == 2:
            raise LedgerUnavailable("the disk is full")
        return await record(self, entries, *more)

    monkeypatch.setattr(Ledger, "record", refuse)
    waiting = asyncio.create_task(place.publisher.publish(place.refused(b"1", b"2")))
    await until(lambda: place.reasons)
    await place.publisher.publish(place.refused(b"3"))
    assert (place.done, place.publisher.waiting, place.publisher.reason) == ([b"3"], 2, "the disk is full")
    away = False
    await waiting
    assert (place.done, place.publisher.waiting) == ([b"3", b"1", b"2"], 0)
    assert place.reasons == ["the disk is full", ""]
    assert place.copies == [b"1", b"2", b"3"], "there is one copy of each"


async def test_events_that_cannot_be_stored_hold_up_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(self: Ledger, entries: Sequence[Any], *more: Any) -> Any:
        raise EntriesRefused(dict.fromkeys(range(len(entries)), "it is Monday"))

    monkeypatch.setattr(Ledger, "record", refuse)
    await place.publisher.publish(place.refused(b"1"))
    assert (place.done, place.publisher.waiting) == ([b"1"], 0)
    assert [record.getMessage() for record in caplog.records] == ["tap.message_refused", "tap.events_refused"]


async def test_one_that_is_cancelled_leaves_none_waiting(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "healthy", False)
    publishing = asyncio.create_task(place.publisher.publish(place.refused(b"1", b"2")))
    await until(lambda: place.reasons)
    publishing.cancel()
    await asyncio.wait([publishing])
    assert (place.publisher.waiting, place.publisher.reason, place.done) == (0, "", [])
