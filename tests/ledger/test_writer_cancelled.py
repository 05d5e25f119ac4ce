"""Callers that go away before they are answered: what was claimed for them is given back, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.budgets import ON_BEHALF
from gateway.errors import LedgerUnavailable
from gateway.ledger import BacklogEntry, Ending, EventKind, New, StoredAnswer, Unknown
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.pending.keys import FREE, UNKNOWN
from gateway.ledger.writing.calls import Claim, Hand, SettleKey, SettleOwed, WriterCall
from gateway.ledger.writing.records import KeyLost
from gateway.ledger.writing.writer import AGAIN
from tests.ledger.conftest import NOW, intent, new_id
from tests.ledger.writer_steps import ALICE, Call, Make, Stepped, make

__all__ = ["make"]

INTENTS = [intent(new_id()), intent(new_id())]
ENTRY = BacklogEntry(
    id=new_id(), message_id=new_id(), subscription="billing", order_key=b"", at=NOW, due_at=NOW, attempt=3, lease=7,
    dead=False, reason={}, size=5,
)  # fmt: skip


def claim() -> Claim:
    return Claim(asyncio.get_running_loop().create_future(), "shop", "k", b"f", INTENTS)


def hand() -> Hand:
    return Hand(asyncio.get_running_loop().create_future(), "billing", 2, 30.0, False, 1_000, lambda found: [])


def given_back(writer: Stepped) -> list[WriterCall]:
    """What was asked for since, on nobody's behalf."""
    found: list[WriterCall] = []
    while writer._queue.qsize():
        found += writer._queue.get() or ()
    return found


Answer = tuple[Callable[[], WriterCall], Any, BaseException | None]
ANSWERS: dict[str, tuple[Answer, str]] = {
    "a new key": ((claim, New(), None), FREE),
    "a key in doubt": ((claim, Unknown((b"i",), ()), None), UNKNOWN),
    "an answer": ((claim, StoredAnswer(200, {}, b""), None), ""),
    "a key that failed": ((claim, New(), LedgerUnavailable("away")), ""),
    "deliveries": ((hand, [ENTRY], None), "retry"),
    "no deliveries": ((hand, [], None), ""),
    "deliveries that failed": ((hand, [ENTRY], LedgerUnavailable("away")), ""),
    "rows": ((lambda: Call("a"), [1, 2], None), ""),
}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("late", [False, True], ids=["before", "in the turn of the answer"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_what_was_claimed_for_nobody_is_given_back(make: Make, name: str, late: bool, together: bool) -> None:
    (made, result, error), ending = ANSWERS[name]
    writer = make()
    writer._known = ShardLease(0, 4)
    call, other = made(), Call("z", 5)
    token = ON_BEHALF.set(ALICE)
    waiting = asyncio.create_task(writer.submit_all([call, other]) if together else writer.submit(call))
    ON_BEHALF.reset(token)
    await asyncio.sleep(0)
    assert (call.lease, call.holder, call.places) == (ShardLease(0, 4), ALICE, call.rows)
    calls = given_back(writer)
    assert calls == ([call, other] if together else [call])
    assert writer.waiting == sum(each.rows for each in calls)
    call.result, call.error, other.result = result, error, "z is written"
    if late:
        writer._deliver(calls)
        waiting.cancel()
    else:
        waiting.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writer._deliver(calls)
    await asyncio.wait([waiting])
    if not (late and error is not None and not together):
        assert waiting.cancelled()
    found = given_back(writer)
    assert writer.waiting == sum(each.rows for each in found), "it takes its places, whether there are some or not"
    assert [each.places for each in found] == [each.rows for each in found]
    if not ending:
        assert found == []
        return
    (end,) = found
    if isinstance(end, SettleOwed):
        assert [(each.id, each.ending, each.lease, each.attempt) for each in end.settlements] == [
            (ENTRY.id, Ending.RETRY, 7, 2)
        ]
        assert ending == "retry"
    else:
        assert isinstance(end, SettleKey)
        assert isinstance(call, Claim)
        assert (end.key_id, end.ending, end.claimed, end.answer) == (call.key_id, ending, call.lease, None)
        kinds = [(each.message_id, each.kind) for each in end.entries]
        assert kinds == [(each.message_id, EventKind.NOT_SENT) for each in INTENTS if ending == FREE]


async def test_what_is_in_doubt_when_the_ledger_is_closed_is_not_given_back(make: Make) -> None:
    writer = make()
    call = claim()
    call.result = New()
    await writer.close()
    given_back(writer)
    writer._give_back(call)
    assert given_back(writer) == []


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (None, False),
        (LedgerUnavailable("away"), True),
        (KeyLost("it is another's"), False),
        (ZeroDivisionError(), False),
    ],
    ids=str,
)
async def test_what_cannot_be_given_back_now_is_given_back_later(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, again: bool
) -> None:
    writer = make()
    call = claim()
    call.result = New()
    later: list[Any] = []
    monkeypatch.setattr(writer._loop, "call_later", lambda *told: later.append(told))
    writer._give_back(call)
    (end,) = given_back(writer)
    end.error = error
    writer._deliver([end])
    await asyncio.sleep(0)
    assert [told for told in later if told[1] == writer._give_back] == [(AGAIN, writer._give_back, call)] * again


async def test_each_of_several_calls_has_its_result_or_its_error(make: Make) -> None:
    writer = make()
    calls = [Call("a"), Call("b", 2), Call("c")]
    waiting = asyncio.create_task(writer.submit_all(calls))
    await asyncio.sleep(0)
    given_back(writer)
    for call in calls:
        call.result = call.name
    calls[1].error = LedgerUnavailable("away")
    writer._deliver(calls)
    found = await waiting
    assert (found[0], found[2], str(found[1])) == ("a", "c", "away")
    assert writer.waiting == 0


async def test_an_error_is_not_held_by_its_call(make: Make) -> None:
    writer = make()
    call = Call("a")
    waiting = asyncio.create_task(writer.submit(call))
    await asyncio.sleep(0)
    given_back(writer)
    call.error = LedgerUnavailable("away")
    writer._deliver([call])
    with pytest.raises(LedgerUnavailable, match="away"):
        await waiting
    assert str(call.error) == "None"
    assert not hasattr(call, "future")
