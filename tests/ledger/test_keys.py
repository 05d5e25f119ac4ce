"""Idempotency-Keys, obligations, and what is in doubt after a crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import CommitUnknown, EntriesRefused, LedgerUnavailable
from gateway.ledger import (
    EndedKey,
    EventKind,
    KeyLost,
    Ledger,
    MessageState,
    Mismatch,
    New,
    OutboxEntry,
    RunningRequest,
    StoredAnswer,
    Unknown,
    Wanted,
)
from gateway.ledger.db.engine import Database
from gateway.ledger.db.shards import Fenced, ShardLease
from gateway.ledger.writing import writer as module
from gateway.ledger.writing.calls import Claim, SettleKey, Task, key_digest
from tests.ledger.conftest import NOW, Clock, Open, accepted, entry, intent, new_id, published

FINGERPRINT = b"\x00" * 32
Sql = Callable[[str], list[Any]]


async def state(ledger: Ledger, message_id: bytes) -> MessageState | None:
    timeline = await ledger.timeline(message_id)
    return timeline.message.state if timeline else None


async def claim(ledger: Ledger, key: str = "k", *intents: OutboxEntry, fingerprint: bytes = FINGERPRINT) -> Any:
    return await ledger.claim_key("shop", key, fingerprint, intents)


async def test_a_claim_is_a_promise(ledger: Ledger, sql: Sql) -> None:
    one, two = intent(new_id(), b"\x00\xff"), intent(new_id())
    assert await claim(ledger, "k", one, two) == New()
    assert await state(ledger, one.message_id) is MessageState.ACCEPTED
    assert [bytes(row[0]) for row in sql("SELECT payload FROM obligations ORDER BY item")] == [b"\x00\xff", b"hello"]
    assert await claim(ledger) == RunningRequest(True, (one.message_id, two.message_id))


async def test_finish_and_replay(ledger: Ledger, sql: Sql) -> None:
    one = intent(new_id())
    await claim(ledger, "k", one)
    outcome = [entry(one.message_id, EventKind.CONFIRMED)]
    await ledger.finish_key("shop", "k", 200, b'{"id": "x"}', outcome, headers={"content-type": "application/json"})
    assert await claim(ledger, "k", one) == StoredAnswer(200, {"content-type": "application/json"}, b'{"id": "x"}')
    assert await state(ledger, one.message_id) is MessageState.CONFIRMED
    assert sql("SELECT * FROM obligations") == []
    assert await ledger.claim_key("other", "k", FINGERPRINT, []) == New()


async def test_another_request_under_the_same_key(ledger: Ledger) -> None:
    await claim(ledger)
    assert await claim(ledger, fingerprint=b"other") == Mismatch()
    await ledger.finish_key("shop", "k", 200, b"")
    assert await claim(ledger, fingerprint=b"other") == Mismatch()


async def test_fifty_at_once_one_publishes(ledger: Ledger) -> None:
    intents = [intent(new_id()) for _ in range(50)]
    answers = await asyncio.gather(*(claim(ledger, "k", each) for each in intents))
    assert answers.count(New()) == 1
    winner = intents[answers.index(New())].message_id
    assert [answer for answer in answers if answer != New()] == [RunningRequest(True, (winner,))] * 49
    accepted = [each for each in intents if await ledger.timeline(each.message_id)]
    assert [each.message_id for each in accepted] == [winner]


async def test_many_keys_at_once(ledger: Ledger) -> None:
    intents = {f"k{number}": intent(new_id()) for number in range(100)}
    answers = await asyncio.gather(*(claim(ledger, key, each) for key, each in intents.items()))
    assert answers == [New()] * 100
    await asyncio.gather(
        *(
            ledger.finish_key("shop", key, 200, key.encode(), [entry(each.message_id, EventKind.CONFIRMED)])
            for key, each in intents.items()
        )
    )
    answers = await asyncio.gather(*(claim(ledger, key) for key in intents))
    assert answers == [StoredAnswer(200, {}, key.encode()) for key in intents]
    events, _ = await ledger.events_after({}, 1_000)
    assert [event.sequence for event in events] == list(range(1, 201))


async def test_a_freed_key_is_free(ledger: Ledger, sql: Sql) -> None:
    one, two = intent(new_id()), intent(new_id())
    await claim(ledger, "k", one)
    await ledger.free_key("shop", "k", [entry(one.message_id, EventKind.NOT_SENT)])
    assert sql("SELECT * FROM obligations") == []
    assert await state(ledger, one.message_id) is MessageState.NOT_SENT
    assert await claim(ledger, "k", two, fingerprint=b"another") == New()


async def test_unknown_is_not_final(ledger: Ledger, sql: Sql) -> None:
    """Of a batch of two, one was confirmed: the repeat gets the other to send again, and both ids."""
    one, two = intent(new_id()), intent(new_id(), b"again", routing_key="x")
    await claim(ledger, "k", one, two)
    outcomes = [entry(one.message_id, EventKind.CONFIRMED), entry(two.message_id, EventKind.UNKNOWN)]
    await ledger.unknown_key("shop", "k", outcomes)
    assert await state(ledger, two.message_id) is MessageState.UNKNOWN
    assert await ledger.outbox.take_over() == []
    answer = await claim(ledger, "k", intent(new_id()))
    assert isinstance(answer, Unknown)
    assert answer.ids == (one.message_id, two.message_id)
    (again,) = answer.intents
    assert (again.message_id, again.payload, again.attempt) == (two.message_id, b"again", 2)
    assert (again.client, again.key, again.broker, again.exchange) == ("shop", "k", "rabbit", "orders")
    assert isinstance(await claim(ledger), RunningRequest)
    await ledger.record([entry(two.message_id, EventKind.RESENT, NOW + 1)])
    await ledger.finish_key("shop", "k", 200, b"", [entry(two.message_id, EventKind.CONFIRMED, NOW + 2)])
    assert await state(ledger, two.message_id) is MessageState.CONFIRMED
    assert sql("SELECT * FROM obligations") == []


async def test_a_caller_that_goes_away_before_its_answer_leaves_nothing_behind(ledger: Ledger, sql: Sql) -> None:
    one = intent(new_id())
    for first, repeat in ((New(), New()), (Unknown, Unknown)):
        gone = asyncio.create_task(claim(ledger, "k", one))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        one = intent(new_id()) if first == New() else one
        async with asyncio.timeout(60):
            while isinstance(answer := await claim(ledger, "k", one), RunningRequest):
                await asyncio.sleep(0.01)
        assert answer == repeat if repeat == New() else isinstance(answer, Unknown)
        await ledger.unknown_key("shop", "k", [entry(one.message_id, EventKind.UNKNOWN)])
    page, _ = await ledger.messages()
    assert [found.state for found in page] == [MessageState.UNKNOWN, MessageState.NOT_SENT]
    assert len(sql("SELECT * FROM obligations")) == 1


async def test_a_caller_that_goes_away_in_the_turn_in_which_its_answer_comes(ledger: Ledger) -> None:
    """Nobody knows of the claim then either, and the key must not be held until this process ends."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call = Claim(future, "shop", "k", FINGERPRINT, [intent(new_id())])
    gone = asyncio.create_task(ledger._writer.submit(call))
    future.add_done_callback(lambda _: gone.cancel())  # before the task is told
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert future.result() == New()
    async with asyncio.timeout(60):
        while isinstance(answer := await claim(ledger, "k", intent(new_id())), RunningRequest):
            await asyncio.sleep(0.01)
    assert answer == New()


async def test_ending_a_key_that_is_not_held(ledger: Ledger) -> None:
    for end in (
        ledger.finish_key("shop", "k", 200, b""),
        ledger.free_key("shop", "k"),
        ledger.unknown_key("shop", "k"),
    ):
        with pytest.raises(KeyLost, match="not claimed"):
            await end
    assert ledger.healthy


async def test_a_bad_intent_promises_nothing(ledger: Ledger) -> None:
    good = intent(new_id())
    for bad in (intent(b"short"), intent(new_id(), sha256=b""), OutboxEntry(**{**_fields(good), "message": None})):
        with pytest.raises(EntriesRefused):
            await claim(ledger, "k", good, bad)
    assert await ledger.timeline(good.message_id) is None
    assert await claim(ledger, "k", good) == New()
    with pytest.raises(EntriesRefused):  # the same message cannot be promised twice
        await claim(ledger, "other", good)


def _fields(value: OutboxEntry) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


async def test_keys_are_forgotten(open_ledger: Open, sql: Sql) -> None:
    clock = Clock()
    ledger = await open_ledger(clock=clock, key_retention=60.0, shard_lease=1.0)
    for key in ("done", "unknown", "running"):
        await claim(ledger, key, intent(new_id()))
    await ledger.finish_key("shop", "done", 200, b"")
    await ledger.unknown_key("shop", "unknown")
    clock.now += 59
    assert isinstance(await claim(ledger, "done"), StoredAnswer)
    clock.now += 2
    assert await claim(ledger, "done") == New()  # found expired by the claim itself
    async with asyncio.timeout(60):
        while len(sql("SELECT key FROM idempotency_keys")) > 2:
            await asyncio.sleep(0.05)
    assert {bytes(row[0]) for row in sql("SELECT key FROM idempotency_keys")} == {b"done", b"running"}
    assert len(sql("SELECT * FROM obligations")) == 1


async def test_more_keys_are_forgotten_than_one_transaction_takes(
    open_ledger: Open, sql: Sql, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.pending.keys.CHUNK", 10)
    clock = Clock()
    ledger = await open_ledger(clock=clock, key_retention=60.0, shard_lease=3.0 if database.shared else 1.0)
    for number in range(35):
        await claim(ledger, f"k{number}")
        await ledger.finish_key("shop", f"k{number}", 200, b"")
    rounds = 0
    steps: list[int] = []
    renew, forget = ledger._renew, ledger._forget_keys

    def renewed(*arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        return renew(*arguments)

    def forgotten(*arguments: Any) -> int:
        steps.append(rounds)
        return forget(*arguments)

    monkeypatch.setattr(ledger, "_renew", renewed)
    monkeypatch.setattr(ledger, "_forget_keys", forgotten)
    clock.now += 61
    async with asyncio.timeout(60):
        while sql("SELECT key FROM idempotency_keys"):
            await asyncio.sleep(0.05)
    assert len(steps) >= 4
    assert max(map(steps.count, steps)) > 1, "several in one round of the maintenance"


async def test_accepted_opens_an_obligation_and_the_outcome_settles_it(ledger: Ledger, sql: Sql) -> None:
    ids = [new_id() for _ in range(4)]
    await ledger.record([accepted(each) for each in ids])
    assert len(sql("SELECT * FROM obligations")) == 4
    await ledger.record(
        [entry(ids[0], EventKind.CONFIRMED), entry(ids[1], EventKind.UNROUTABLE), entry(ids[2], EventKind.UNKNOWN)]
    )
    assert [bytes(row[0]) for row in sql("SELECT message_id FROM obligations")] == [ids[3]]
    await ledger.record([accepted(new_id()), entry(ids[3], EventKind.NOT_SENT)])
    assert len(sql("SELECT * FROM obligations")) == 1


async def test_what_is_in_doubt_is_resolved(open_ledger: Open, sql: Sql) -> None:
    """The process died: its shard is fenced, or (SQLite) its file lock is gone."""
    old = await open_ledger("old")
    plain, keyed, done, lone = new_id(), intent(new_id(), b"body"), intent(new_id()), new_id()
    await old.record([accepted(plain)])
    await claim(old, "k", keyed, done)
    await claim(old, "finished", intent(lone))
    await old.finish_key("shop", "finished", 200, b"", [entry(lone, EventKind.CONFIRMED)])
    await old.record([entry(done.message_id, EventKind.CONFIRMED)])
    await old.close()

    new = await open_ledger("new")
    (again,) = await new.outbox.take_over()
    assert (again.message_id, again.payload, again.attempt, again.key) == (keyed.message_id, b"body", 2, "k")
    assert await new.outbox.take_over() == []
    assert await state(new, plain) is MessageState.UNKNOWN
    assert await claim(new, "k") == RunningRequest(True, (keyed.message_id, done.message_id))
    await new.finish_key("shop", "k", 200, b"late", [entry(keyed.message_id, EventKind.CONFIRMED)])
    assert await claim(new, "k") == StoredAnswer(200, {}, b"late")
    assert sql("SELECT * FROM obligations") == []


async def test_more_in_doubt_than_the_limit(open_ledger: Open) -> None:
    old = await open_ledger("old")
    await old.record([accepted(new_id()) for _ in range(25)])
    for number in range(7):
        await claim(old, f"k{number}", intent(new_id()), intent(new_id()))
    await old.close()
    new = await open_ledger("new")
    taken = [await new.outbox.take_over(limit=10) for _ in range(3)]
    assert [len(intents) for intents in taken] == [10, 4, 0]
    page, _ = await new.messages(limit=100)
    assert sum(found.state is MessageState.UNKNOWN for found in page) == 25


async def test_a_key_whose_process_died_is_taken_over_by_its_repeat(open_ledger: Open) -> None:
    old = await open_ledger("old")
    one = intent(new_id())
    await claim(old, "k", one)
    await claim(old, "settled", two := intent(new_id()))
    await old.record([entry(two.message_id, EventKind.CONFIRMED)])
    await old.close()
    new = await open_ledger("new")
    answer = await claim(new, "k")
    assert isinstance(answer, Unknown)
    assert [each.message_id for each in answer.intents] == [one.message_id]
    assert await claim(new, "settled") == Unknown((two.message_id,), ())
    assert await new.outbox.take_over() == []


async def test_a_running_key_of_the_dead_is_forgotten_once_nothing_is_owed(open_ledger: Open, sql: Sql) -> None:
    clock = Clock()
    old = await open_ledger("old", clock=clock, key_retention=60.0)
    await claim(old, "settled", one := intent(new_id()))
    await claim(old, "owed", intent(new_id()))
    await old.record([entry(one.message_id, EventKind.CONFIRMED)])
    await old.close()
    clock.now += 61
    await open_ledger("new", clock=clock, key_retention=60.0, shard_lease=1.0)
    async with asyncio.timeout(60):
        while len(sql("SELECT key FROM idempotency_keys")) > 1:
            await asyncio.sleep(0.05)
    assert [bytes(row[0]) for row in sql("SELECT key FROM idempotency_keys")] == [b"owed"]


def test_a_digest_does_not_mix_client_and_key() -> None:
    assert key_digest("ab", "c") != key_digest("a", "bc")
    assert len(key_digest("é\udcff", "x" * 10_000)) == 32


async def test_what_was_claimed_under_an_earlier_lease_is_lost(open_ledger: Open) -> None:
    """A process that gave up its lease takes over the key of its own request, which still runs."""
    ledger = await open_ledger(shard_lease=60.0)
    one = new_id()
    assert await ledger.claim_key("shop", "k", FINGERPRINT, [intent(one)]) == New()
    claimed = ledger.lease
    ledger._writer._abandoned = ledger._writer._lease
    ledger._writer._lose()
    while ledger.lease == claimed:
        await asyncio.sleep(0.01)
    await ledger.record(published(new_id()))
    assert ledger.lease != claimed
    assert [row.message_id for row in await ledger.outbox.take_over()] == [one]
    for end in (ledger.unknown_key, ledger.free_key):
        with pytest.raises(KeyLost):
            await end("shop", "k", [entry(one, EventKind.NOT_SENT)], claimed=claimed)
    with pytest.raises(KeyLost):
        await ledger.finish_key("shop", "k", 200, b"x", claimed=claimed)
    ended = [EndedKey("k", "unknown", (), claimed=claimed)]
    assert [type(error) for error in await ledger.keyring.end("shop", ended)] == [KeyLost]
    await ledger.finish_key("shop", "k", 200, b"x", [entry(one, EventKind.CONFIRMED)], claimed=ledger.lease)
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert [event.kind for event in timeline.events][-1] is EventKind.CONFIRMED


def sleep_through_the_loss_of_the_lease(ledger: Ledger) -> None:
    """Nothing runs on the loop until the writer has lost its lease and got another one."""
    leased = threading.Event()

    def fenced(connection: Any, lease: ShardLease) -> None:
        raise Fenced

    for run in (fenced, lambda connection, lease: leased.set()):
        call = Task(asyncio.get_running_loop().create_future(), run)
        call.future.add_done_callback(lambda done: done.exception())
        ledger._writer._put((call,))
    assert leased.wait(30)


async def test_a_claim_that_is_heard_of_when_its_lease_is_lost_is_in_doubt(open_ledger: Open) -> None:
    """The process slept behind the commit. Under the next lease it takes over the key, as of one that died."""
    ledger = await open_ledger(shard_lease=60.0)
    claiming = asyncio.create_task(claim(ledger, "k", intent(new_id())))
    many = asyncio.create_task(ledger.keyring.claim("shop", [Wanted("m", FINGERPRINT, [intent(new_id())])]))
    await asyncio.sleep(0)
    sleep_through_the_loss_of_the_lease(ledger)
    with pytest.raises(CommitUnknown):
        await claiming
    assert [type(error) for error in await many] == [CommitUnknown]


async def test_what_is_taken_over_and_heard_of_when_the_lease_is_lost_is_not_held(open_ledger: Open) -> None:
    dead = await open_ledger("dead")
    assert await claim(dead, "k", intent(new_id())) == New()
    await dead.close()
    ledger = await open_ledger(shard_lease=60.0)
    taking = asyncio.create_task(ledger.outbox.take_over())
    await asyncio.sleep(0)
    sleep_through_the_loss_of_the_lease(ledger)
    with pytest.raises(LedgerUnavailable):
        await taking


async def test_what_cannot_be_given_back_now_is_given_back_later(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller went away: nobody else knows of it, so that it would be running for as long as the process lives."""
    one = intent(new_id())
    write, failed = ledger._group.write, []

    def away(connection: Any, lease: ShardLease, calls: Any, now: int) -> Any:
        if not failed and any(isinstance(call, SettleKey) for call in calls):
            failed.append(calls)
            raise sa.exc.OperationalError("", {}, Exception("the ledger is locked"))
        return write(connection, lease, calls, now)

    monkeypatch.setattr(ledger._group, "write", away)
    monkeypatch.setattr(module, "AGAIN", 0.01)
    claiming = asyncio.create_task(claim(ledger, "k", one))
    await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.wait([claiming])
    async with asyncio.timeout(10):
        while await state(ledger, one.message_id) is not MessageState.NOT_SENT:
            await asyncio.sleep(0.01)
    assert failed
    assert await claim(ledger, "k", intent(new_id())) == New()
