"""What a bridge writes into the ledger, and how it waits for a ledger that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.bridges import journal as journals
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.journal import BridgeJournal
from gateway.core.sources.deduplicator import IN_DOUBT
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, id_text
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from tests.bridges.conftest import bridge_settings, until
from tests.bridges.hands import Hand, arrive, given


class FakeLedger:
    """A ledger that is away for so many calls."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.healthy = False
        self.written: list[tuple[Sequence[Any], Sequence[Any]]] = []
        self.refuses = False

    async def record(self, entries: Sequence[Any], inbox: Sequence[Any] = ()) -> None:
        """Note what is written."""
        self._come()
        if self.refuses:
            raise EntriesRefused({0: "it is Monday"})
        self.written.append((entries, inbox))

    async def seen(self, scope: str, keys: Sequence[str]) -> dict[str, Any]:
        """Know nothing."""
        self._come()
        return dict.fromkeys(keys)

    def takes(self) -> tuple[bool, str]:
        """Say whether it can be written."""
        return (self.away == 0), "it is away"

    def _come(self) -> None:
        if self.away:
            self.away -= 1
            raise LedgerUnavailable(f"it is away, {self.away} times more")


@pytest.fixture
async def journal(hand: Hand) -> BridgeJournal:
    """That of a bridge whose ledger is a fake one."""
    journal = (await hand.flow())._journal
    journal._ledger = FakeLedger()  # type: ignore[assignment]
    return journal


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept; nothing sleeps."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def slept(seconds: float) -> None:
        found.append(seconds)
        await sleep(0)

    monkeypatch.setattr(clock, "sleep", slept)
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    return found


def fake(journal: BridgeJournal) -> FakeLedger:
    found: Any = journal._ledger
    assert isinstance(found, FakeLedger)
    return found


# ------------------------------------------------------------------------------------------ a ledger that is away


async def test_what_cannot_be_written_is_tried_with_growing_pauses(journal: BridgeJournal, pauses: list[float]) -> None:
    fake(journal).away = 4
    writing = asyncio.create_task(journal.record([], [object()]))  # type: ignore[list-item]
    for _ in range(100):
        if fake(journal).away <= 1:
            break
        await asyncio.sleep(0)
    assert not journal.writable, "nothing more is published while something waits to be recorded"
    assert journal.faults.reason.startswith("ledger: it is away")
    await writing
    assert len(fake(journal).written) == 1
    assert pauses == [0.5] + [0.5] * 2 + [0.5] * 4 + [0.5] * 8
    assert not journal.faults
    assert journal.writable


async def test_one_write_that_is_through_says_nothing_of_another(journal: BridgeJournal, pauses: list[float]) -> None:
    goes = asyncio.Event()
    tries = {"one": 0, "two": 0}

    async def write(name: str) -> str:
        tries[name] += 1
        if tries[name] == 1 or (name == "two" and not goes.is_set()):
            raise LedgerUnavailable("it is away")
        return name

    one = asyncio.create_task(journal.patiently(lambda: write("one")))
    two = asyncio.create_task(journal.patiently(lambda: write("two")))
    assert await one == "one"
    assert journal.faults.reason == "ledger: it is away"
    assert not journal.writable
    goes.set()
    assert await two == "two"
    assert not journal.faults
    assert journal._stuck == 0


async def test_a_pause_ends_when_the_ledger_is_known_to_be_back(journal: BridgeJournal, pauses: list[float]) -> None:
    await journal._wait(1.25)
    assert pauses == [0.5, 0.5, 0.25]
    pauses.clear()
    await journal._wait(1.0)
    assert pauses == [0.5, 0.5]
    pauses.clear()
    fake(journal).healthy = True
    await journal._wait(1.25)
    assert pauses == [0.5]


async def test_the_inbox_is_asked_until_it_answers(journal: BridgeJournal, pauses: list[float]) -> None:
    fake(journal).away = 2
    asking = asyncio.create_task(journal.seen(["k"]))
    await until(lambda: not fake(journal).away)
    assert journal.faults.reason == "ledger: it is away, 0 times more"
    assert await asking == {"k": None}
    assert pauses == [0.5, 0.5, 0.5]


async def test_a_ledger_that_takes_nothing_is_a_fault_until_it_does(journal: BridgeJournal) -> None:
    states = []
    for away in (1, 0):
        fake(journal).away = away
        states.append((journal.writable, journal.faults.reason))
    assert states == [(False, "ledger: it is away"), (True, "")]


async def test_events_that_cannot_be_stored_hold_up_nothing(
    journal: BridgeJournal, caplog: pytest.LogCaptureFixture
) -> None:
    """Their messages are safe where they are."""
    fake(journal).refuses = True
    await journal.record([object()])  # type: ignore[list-item]
    assert [record.getMessage() for record in caplog.records] == ["bridge.events_refused"]
    assert not journal.faults


async def test_nothing_is_written_where_there_is_nothing(journal: BridgeJournal) -> None:
    await journal.record([])
    assert fake(journal).written == []
    await journal.record([object()])  # type: ignore[list-item]
    assert len(fake(journal).written) == 1


# --------------------------------------------------------------------------------------------- what is written


async def items(hand: Hand, *deliveries: Any, **settings: Any) -> tuple[BridgeJournal, list[BridgeDelivery]]:
    """These, as they are when they have been looked at."""
    flow = await hand.flow(**settings)
    arrive(flow, *deliveries)
    return flow._journal, flow._look(flow._take(0.0))


async def test_what_is_forwarded_is_told_and_remembered(hand: Hand) -> None:
    journal, (plain, resent, strange) = await items(
        hand, given(message_id="m-1"), given(message_id="m-2"), given(), dedupe_seconds=60
    )
    resent.resent = True
    before = clock.now_ns() // 1000
    entries, inbox = journal.forwarded([plain, resent, strange])
    assert [entry.kind for entry in entries] == [EventKind.FORWARDED] * 3
    assert [entry.message_id for entry in entries] == [plain.id, resent.id, strange.id]
    assert [(entry.detail or {}).get("resent") for entry in entries] == [None, True, None]
    assert [row.key for row in inbox] == ["old/m-1", "old/m-2"], "what has no id cannot be known again"
    assert [row.message_id for row in inbox] == [plain.id, resent.id]
    assert all(before + 60_000_000 <= row.expires_at < before + 120_000_000 for row in inbox)


async def test_without_a_window_nothing_is_remembered(hand: Hand) -> None:
    journal, found = await items(hand, given(message_id="m-1"), dedupe_seconds=0)
    entries, inbox = journal.forwarded(found)
    assert (len(entries), inbox) == (1, [])


async def test_details_are_kept_for_few_routing_keys(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher may send each message under another one."""
    monkeypatch.setattr(journals, "DETAILS_MAX", 3)
    journal, (item,) = await items(hand, given())
    sizes = []
    for number in range(7):
        item.routing_key = f"k-{number}"
        ((entry,), _) = journal.forwarded([item])
        assert entry.detail is not None
        assert entry.detail["routing_key"] == f"k-{number}"
        sizes.append(len(journal._details))
    assert sizes == [1, 2, 3, 1, 2, 3, 1]


async def test_what_is_dropped_or_dead_is_told_under_its_id(hand: Hand) -> None:
    journal, (item,) = await items(hand, given())
    item.reason = "y" * 600
    (dropped,) = journal.dropped([item], EventKind.FILTERED)
    (dead,) = journal.dead_lettered([item], hand.estate.old, "ex", "key")
    assert [(entry.kind, entry.message_id) for entry in (dropped, dead)] == [
        (EventKind.FILTERED, item.id),
        (EventKind.DEAD_LETTERED, item.id),
    ]
    assert dropped.detail is not None
    assert dead.detail is not None
    assert (dropped.detail["reason"], dead.detail["reason"]) == ("y" * 500,) * 2
    assert (dead.detail["exchange"], dead.detail["routing_key"]) == ("ex", "key")
    assert item.id is not None
    assert item.text == id_text(item.id)


async def test_ids_in_doubt_are_remembered_without_a_body(hand: Hand) -> None:
    journal = (await hand.flow(dedupe_seconds=60))._journal
    (row,) = journal.in_doubt("scope", ["k"], b"branch")
    assert (row.scope, row.key, row.body_sha256, row.message_id) == ("scope", "k", IN_DOUBT, b"branch")


def test_a_bridge_with_another_source_or_target_has_forwarded_nothing_yet(hand: Hand) -> None:
    estate = hand.estate

    def scope(**settings: Any) -> str:
        faults: Any = None
        return BridgeJournal(
            "b", bridge_settings(**settings), estate.ledger, estate.old, estate.new, faults
        ).scope  # fmt: skip

    sources = [
        {"broker": "old", "queue": "in"}, {"broker": "old", "exchange": "in2"}, {"broker": "old", "exchange": "in3"},
        {"broker": "new", "queue": "in"},
    ]  # fmt: skip
    targets = [{"broker": "new", "routing_key": "out"}, {"broker": "new", "exchange": "out"}, {"broker": "old"}]
    scopes = [scope(source=source) for source in sources] + [scope(target=target) for target in targets[1:]]
    assert len(set(scopes)) == len(scopes)
    assert scope() == scope(prefetch=7)
