"""Branches of distributed transactions: a register that is written once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import LedgerUnavailable
from gateway.ledger import BranchRecord, BranchStatus, EventKind, InboxRow, Ledger, LogEntry, MessageState
from tests.ledger.conftest import NOW, SHA, Open, entry, message, new_id

BEGUN, DECIDED, ABORTED = BranchStatus.BEGUN, BranchStatus.DECIDED, BranchStatus.ABORTED
SCOPE = "b"
FAR = 4_000_000_000_000_000


def prepared(message_id: bytes) -> LogEntry:
    """The event of a message that its target has prepared."""
    return LogEntry(message_id, EventKind.PREPARED, NOW, "new", "0-10", {"bridge": "b"}, message(origin="bridge"))


def known(key: str, message_id: bytes) -> InboxRow:
    """A row of the inbox."""
    return InboxRow(SCOPE, key, SHA, message_id, FAR)


async def of(ledger: Ledger, bridge: str = "b") -> list[tuple[bytes, BranchStatus]]:
    return [(branch.id, branch.status) for branch in await ledger.branches.of(bridge)]


async def test_a_branch_from_begin_to_finish(ledger: Ledger) -> None:
    branch, following, one, two = new_id(), new_id(), new_id(), new_id()
    await ledger.branches.begin(branch, "b", "new")
    assert await of(ledger) == [(branch, BEGUN)]
    assert await ledger.branches.decide(
        branch, {"then": [1]}, [prepared(one), prepared(two)], [known("k1", one), known("k2", two)]
    )
    assert await ledger.branches.of("b") == [BranchRecord(branch, "b", "new", DECIDED, {"then": [1]})]
    assert set(await ledger.seen(SCOPE, ["k1", "k2", "k3"])) == {"k1", "k2"}
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert timeline.message.state is MessageState.PREPARED
    await ledger.branches.finish(
        branch, [entry(one, EventKind.FORWARDED), entry(two, EventKind.FORWARDED)], following=(following, "b", "new")
    )
    assert await of(ledger) == [(following, BEGUN)]
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert (timeline.message.state, [event.kind for event in timeline.events]) == (
        MessageState.FORWARDED, [EventKind.PREPARED, EventKind.FORWARDED],
    )  # fmt: skip
    assert set(await ledger.seen(SCOPE, ["k1", "k2"])) == {"k1", "k2"}


async def test_who_aborts_first_has_the_last_word(ledger: Ledger) -> None:
    branch, one = new_id(), new_id()
    await ledger.branches.begin(branch, "b", "new")
    assert await ledger.branches.abort(branch) is ABORTED
    assert not await ledger.branches.decide(branch, {}, [prepared(one)], [known("k", one)])
    assert await ledger.seen(SCOPE, ["k"]) == {}
    assert await ledger.timeline(one) is None
    assert await of(ledger) == [(branch, ABORTED)]
    assert await ledger.branches.abort(branch) is ABORTED


async def test_who_decides_first_has_the_last_word(ledger: Ledger) -> None:
    branch, one = new_id(), new_id()
    await ledger.branches.begin(branch, "b", "new")
    decided, status = await asyncio.gather(
        ledger.branches.decide(branch, {"n": 1}, [prepared(one)]), ledger.branches.abort(branch)
    )
    assert (decided, status) == (True, DECIDED)
    assert [found.detail for found in await ledger.branches.of("b")] == [{"n": 1}]


async def test_a_branch_without_a_row_is_aborted(ledger: Ledger) -> None:
    assert await ledger.branches.abort(new_id()) is ABORTED
    assert not await ledger.branches.decide(new_id(), {}, [prepared(new_id())])
    assert await of(ledger) == []


async def test_repeating_a_step_whose_answer_was_lost(ledger: Ledger) -> None:
    branch, following, one = new_id(), new_id(), new_id()
    for _ in range(2):
        await ledger.branches.begin(branch, "b", "new")
    for _ in range(2):
        assert await ledger.branches.decide(branch, {}, [prepared(one)], [known("k", one)])
    await ledger.branches.begin(branch, "b", "new")
    assert await of(ledger) == [(branch, DECIDED)]
    for _ in range(2):
        await ledger.branches.finish(branch, [entry(one, EventKind.FORWARDED)], following=(following, "b", "new"))
    assert await of(ledger) == [(following, BEGUN)]
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert [event.kind for event in timeline.events] == [EventKind.PREPARED, EventKind.FORWARDED]


async def test_what_was_rolled_back_after_all_is_forgotten(ledger: Ledger) -> None:
    branch, one, two = new_id(), new_id(), new_id()
    await ledger.record([], [known("k1", two)])
    await ledger.branches.begin(branch, "b", "new")
    assert await ledger.branches.decide(branch, {}, [prepared(one)], [known("k2", one)])
    await ledger.branches.finish(branch, forget={SCOPE: ["k2"]})
    assert set(await ledger.seen(SCOPE, ["k1", "k2"])) == {"k1"}
    assert await of(ledger) == []


async def test_nothing_of_a_decision_without_all_of_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events, inbox and decision are one transaction."""
    branch, one = new_id(), new_id()
    await ledger.branches.begin(branch, "b", "new")

    def full(*_: Any) -> None:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ledger._inbox, "write", full)
        with pytest.raises(LedgerUnavailable):
            await ledger.branches.decide(branch, {}, [prepared(one)], [known("k", one)])
    assert await of(ledger) == [(branch, BEGUN)]
    assert await ledger.timeline(one) is None
    assert await ledger.branches.decide(branch, {}, [prepared(one)], [known("k", one)])


async def test_they_survive_a_restart_and_are_told_by_bridge(open_ledger: Open) -> None:
    first = await open_ledger()
    one, two = new_id(), new_id()
    await first.branches.begin(one, "b", "new")
    await first.branches.begin(two, "c", "other")
    assert await first.branches.decide(two, {"x": "ä"}, [prepared(new_id())])
    await first.close()
    second = await open_ledger()
    assert await of(second) == [(one, BEGUN)]
    assert await second.branches.of("c") == [BranchRecord(two, "c", "other", DECIDED, {"x": "ä"})]
    assert await second.branches.of("d") == []
    assert await second.branches.bridges() == ["b", "c"]
