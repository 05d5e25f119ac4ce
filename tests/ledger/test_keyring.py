"""Many keys at once: one commit, and each for itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import (
    EndedKey,
    EventKind,
    KeyLost,
    Ledger,
    Mismatch,
    New,
    OutboxEntry,
    RunningRequest,
    StoredAnswer,
    Unknown,
    Wanted,
)
from gateway.ledger.pending.keys import ANSWERED, FREE, UNKNOWN
from gateway.ledger.writing.writer import Writer
from tests.ledger.conftest import Clock, Open, entry, intent, new_id

Sql = Callable[[str], list[Any]]


def wanted(count: int, first: int = 0) -> list[Wanted]:
    return [Wanted(f"k{number}", b"%032d" % number, [intent(new_id())]) for number in range(first, first + count)]


def id_of(each: Wanted) -> bytes:
    found: bytes = each.intents[0].message_id
    return found


def confirmed(each: Wanted, ending: str = ANSWERED, kind: EventKind = EventKind.CONFIRMED) -> EndedKey:
    return EndedKey(each.key, ending, [entry(id_of(each), kind)], 1, each.key.encode())


async def test_a_thousand_keys_are_claimed_and_ended_in_a_commit_each(ledger: Ledger, sql: Sql) -> None:
    [(before,)] = sql("SELECT commits FROM shards")
    some = wanted(1_000)
    assert await ledger.keyring.claim("shop", some) == [New()] * 1_000
    assert sql("SELECT count(*) FROM obligations") == [(1_000,)]
    assert await ledger.keyring.end("shop", [confirmed(each) for each in some]) == [None] * 1_000
    [(after,)] = sql("SELECT commits FROM shards")
    assert after - before == 2
    assert sql("SELECT count(*) FROM obligations") == [(0,)]
    again = await ledger.keyring.claim("shop", some)
    assert again == [StoredAnswer(1, {}, each.key.encode()) for each in some]
    events, _ = await ledger.events_after({}, 10_000)
    assert [event.sequence for event in events] == list(range(1, 2_001))


async def test_a_thread_that_is_quick_does_not_divide_what_came_together(open_ledger: Open, sql: Sql) -> None:
    ledger = await open_ledger(shard_lease=600.0)  # to renew it is a commit, too
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.000_01)  # the writer's thread takes its turn as soon as there is something to write
    try:
        for first in range(0, 20_000, 1_000):
            some = wanted(1_000, first)
            [(before,)] = sql("SELECT commits FROM shards")
            await ledger.keyring.claim("shop", some)
            assert sql("SELECT commits FROM shards") == [(before + 1,)]
            await ledger.keyring.end("shop", [confirmed(each) for each in some])
    finally:
        sys.setswitchinterval(interval)


async def test_each_is_told_what_is_its_own(ledger: Ledger) -> None:
    one, other = wanted(1)[0], wanted(1)[0]
    strange = Wanted("k0", b"another" * 4, [intent(new_id())])
    found = await ledger.keyring.claim("shop", [one, other, strange, *wanted(1, 1)])
    assert found == [New(), RunningRequest(True, (id_of(one),)), Mismatch(), New()]
    assert await ledger.keyring.claim("other", [other]) == [New()]
    lost = await ledger.keyring.end("shop", [confirmed(one), EndedKey("nobody's", ANSWERED, ())])
    assert [type(error) for error in lost] == [type(None), KeyLost]


@pytest.mark.parametrize("endings", [(ANSWERED, UNKNOWN), (UNKNOWN, ANSWERED)])
async def test_of_two_ends_of_a_key_in_one_commit_the_first_counts(ledger: Ledger, endings: tuple[str, str]) -> None:
    [one] = wanted(1)
    assert await ledger.keyring.claim("shop", [one]) == [New()]
    kinds = EventKind.CONFIRMED, EventKind.UNKNOWN
    ends = [confirmed(one, ending, kind) for ending, kind in zip(endings, kinds, strict=True)]
    first, second = await ledger.keyring.end("shop", ends)
    assert first is None
    assert isinstance(second, KeyLost)
    events, _ = await ledger.events_after({}, 10)
    assert [event.kind for event in events] == [EventKind.ACCEPTED, EventKind.CONFIRMED]
    [found] = await ledger.keyring.claim("shop", [one])
    assert isinstance(found, StoredAnswer if endings[0] == ANSWERED else Unknown)


async def test_a_bad_message_costs_only_its_own_key(ledger: Ledger, sql: Sql) -> None:
    some = wanted(9)
    bad = Wanted("bad", b"b" * 32, [intent(b"too short")])
    found = await ledger.keyring.claim("shop", [*some[:5], bad, *some[5:]])
    assert isinstance(found.pop(5), EntriesRefused)
    assert found == [New()] * 9
    assert sql("SELECT count(*) FROM idempotency_keys") == [(9,)]


async def test_keys_without_an_outcome_are_handed_out_together(ledger: Ledger) -> None:
    some = wanted(300)
    await ledger.keyring.claim("shop", some)
    halves = [confirmed(each, UNKNOWN) for each in some[:150]]
    halves += [confirmed(each, UNKNOWN, EventKind.UNKNOWN) for each in some[150:]]
    await ledger.keyring.end("shop", halves)
    found = await ledger.keyring.claim("shop", [each._replace(intents=[intent(new_id())]) for each in some])
    assert [answer.ids for answer in found if isinstance(answer, Unknown)] == [(id_of(each),) for each in some]
    owed: list[tuple[OutboxEntry, ...]] = [answer.intents for answer in found if isinstance(answer, Unknown)]
    assert owed[:150] == [()] * 150
    assert [(again.message_id, again.key, again.attempt) for (again,) in owed[150:]] == [
        (id_of(each), each.key, 2) for each in some[150:]
    ]
    assert [type(answer) for answer in await ledger.keyring.claim("shop", some)] == [RunningRequest] * 300


async def test_keys_of_a_dead_process_come_in_portions(open_ledger: Open) -> None:
    dead = await open_ledger(owner="dead")
    await dead.keyring.claim("shop", wanted(25))
    await dead.claim_key("shop", "of three", b"f" * 32, [intent(new_id()) for _ in range(3)])
    await dead.close()
    ledger = await open_ledger(owner="next")
    taken: list[list[OutboxEntry]] = []
    while intents := await ledger.outbox.take_over(10):
        taken.append(intents)
    assert sum(map(len, taken)) == 28
    assert all(10 <= len(portion) <= 12 for portion in taken[:-1])
    assert len({intent.message_id for portion in taken for intent in portion}) == 28
    (together,) = [portion for portion in taken if any(intent.key == "of three" for intent in portion)]
    assert sum(intent.key == "of three" for intent in together) == 3


async def test_keys_that_have_expired_are_free_together(open_ledger: Open, sql: Sql) -> None:
    clock = Clock()
    ledger = await open_ledger(clock=clock, key_retention=60.0)
    some = wanted(50)
    await ledger.keyring.claim("shop", some)
    await ledger.keyring.end("shop", [confirmed(each, UNKNOWN, EventKind.UNKNOWN) for each in some])
    clock.now += 61
    fresh = [each._replace(intents=[intent(new_id())]) for each in some]
    assert await ledger.keyring.claim("shop", fresh) == [New()] * 50
    assert {row[0] for row in sql("SELECT message_id FROM obligations")} == {id_of(each) for each in fresh}


@pytest.mark.parametrize("turns", [1, 3, 50])
async def test_a_caller_that_goes_away_leaves_nothing_behind(ledger: Ledger, turns: int) -> None:
    """However far it was: waiting for the writer, or its answers on their way."""
    some = wanted(20)
    gone = asyncio.create_task(ledger.keyring.claim("shop", some))
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns == 50:
        await asyncio.sleep(0.001)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    if not gone.cancelled():
        await ledger.keyring.end("shop", [confirmed(each, FREE, EventKind.NOT_SENT) for each in some])
    fresh = [each._replace(intents=[intent(new_id())]) for each in some]
    found = await ledger.keyring.claim("shop", fresh)
    async with asyncio.timeout(10):
        while not all(answer == New() for answer in found):
            left = [each for each, answer in zip(fresh, found, strict=True) if answer == New()]
            await ledger.keyring.end("shop", [confirmed(each, FREE, EventKind.NOT_SENT) for each in left])
            fresh = [each._replace(intents=[intent(new_id())]) for each in some]
            found = await ledger.keyring.claim("shop", fresh)


async def test_answers_that_nobody_hears_any_more_are_given_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller goes away when its answers are there, and before it has looked at them."""
    deliver = Writer._deliver

    def and_go_away(self: Writer, calls: Any) -> None:
        deliver(self, calls)
        gone.cancel()

    gone = asyncio.create_task(ledger.keyring.claim("shop", wanted(3)))
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_deliver", and_go_away)
        await asyncio.gather(gone, return_exceptions=True)
    assert gone.cancelled()
    async with asyncio.timeout(10):  # giving back is a write of its own; a claim beside it finds the key still running
        for each in wanted(3):
            while (found := await ledger.keyring.claim("shop", [each])) != [New()]:
                assert isinstance(found[0], RunningRequest)


async def test_a_ledger_that_is_closed_claims_nothing(ledger: Ledger) -> None:
    await ledger.close()
    with pytest.raises(LedgerUnavailable):
        await ledger.keyring.claim("shop", wanted(2))
