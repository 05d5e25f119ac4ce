"""Who has how much in the ledger: counted now and then, kept up to date between, and taken while it is written."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.budgets import BudgetBounds, Budgets, ShareHolder
from gateway.core.work import ledger_budgets as module
from gateway.core.work.ledger_budgets import Changes, LedgerBudgets
from gateway.errors import BudgetExceeded, LedgerUnavailable, Overloaded
from gateway.ledger import Ledger
from gateway.ledger.writing import holdings

ME, YOU = ShareHolder("me"), ShareHolder("you")


class Made:
    """Budgets over a ledger."""

    def __init__(self, ledger: Ledger, **totals: int) -> None:
        self.ledger = ledger
        self.budgets = Budgets(BudgetBounds(1.0, 0.0, totals))
        self.subject = LedgerBudgets(ledger, self.budgets)

    def held(self, resource: str, client: ShareHolder = ME) -> int:
        return self.budgets[resource].held_by(client)

    @property
    def all(self) -> list[int]:
        return [self.held(name) for name in ("idempotency_keys", "scheduled", "scheduled_bytes")]


@pytest.fixture
def made(ledger: Ledger) -> Made:
    return Made(ledger)


def test_changes_are_added_and_removed() -> None:
    changes = Changes()
    for amount in (3, -1, 2, -4):
        changes.add("me", amount)
    assert (changes.added, changes.removed) == ({"me": 5}, {"me": 5})
    changes.clear()
    assert (changes.added, changes.removed) == ({}, {})


async def test_what_is_scheduled_counts_for_its_clients(made: Made) -> None:
    def entry(client: str, size: int) -> Any:
        return SimpleNamespace(client=client, payload=bytes(size))

    entries = [entry("me", 3), entry("you", 5), entry("me", 4)]
    made.subject.entries_changed(entries, 1)
    assert (made.held("scheduled"), made.held("scheduled_bytes")) == (2, 7)
    assert (made.held("scheduled", YOU), made.held("scheduled_bytes", YOU)) == (1, 5)
    made.subject.entries_changed(entries[:1], -1)
    assert (made.held("scheduled"), made.held("scheduled_bytes")) == (1, 4)
    made.subject.keys_changed("me", 2)
    made.subject.keys_changed("me", 0)
    made.ledger.on_keys("me", -1)
    assert made.held("idempotency_keys") == 1


@pytest.mark.parametrize(
    ("totals", "wanted"),
    [
        ({"idempotency_keys": 2}, (3, 1, 1)),
        ({"scheduled": 2}, (1, 3, 1)),
        ({"scheduled_bytes": 2}, (1, 1, 3)),
    ],
)
async def test_all_is_taken_or_nothing(ledger: Ledger, totals: dict[str, int], wanted: tuple[int, int, int]) -> None:
    made = Made(ledger, **totals)
    with pytest.raises((BudgetExceeded, Overloaded)):
        made.subject.take(ME, *wanted)
    assert made.all == [0, 0, 0]
    made.subject.take(ME, 1, 2, 2)
    assert made.all == [1, 2, 2]
    made.subject.give(ME, 1, 2, 2)
    assert made.all == [0, 0, 0]


async def test_a_client_at_its_share_may_repeat_its_keys(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(ledger, idempotency_keys=2)
    assert await made.subject.claim(ME, ["a", "b"])
    assert made.all == [2, 0, 0]
    known = 2
    real = ledger.read

    async def read(query: Any) -> Any:
        await real(query)
        return known

    monkeypatch.setattr(ledger, "read", read)
    assert not await made.subject.claim(ME, ["a", "b"])
    assert not await made.subject.claim(ME, ["a", "a", "b"]), "each counts once"
    with pytest.raises((BudgetExceeded, Overloaded)):
        await made.subject.claim(ME, ["a", "b", "c"])
    assert made.all == [2, 0, 0]


async def test_a_count_takes_in_what_changed_meanwhile(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted and what was reported since are not the same twice."""
    made.subject.keys_changed("me", 7)  # counted before, and in the ledger no more
    await made.ledger.claim_key("me", "k", b"f" * 32, [])
    made.subject.keys_changed("you", 1)
    await made.ledger.put_resource("tap", "t", {"queue": "q"})
    await made.subject.created(ME, "tap", "t")
    written = made.ledger.written

    async def meanwhile() -> None:
        made.subject.scheduled_changed("me", 2, 20)
        await written()

    monkeypatch.setattr(made.ledger, "written", meanwhile)
    await made.subject.count()
    assert made.all == [1, 2, 20]
    assert (made.held("idempotency_keys", YOU), made.held("taps")) == (0, 1)
    await made.ledger.delete_resource("tap", "t", None)
    await made.subject.count()
    assert made.held("taps") == 0


async def test_who_created_what_is_remembered(made: Made, ledger: Ledger) -> None:
    await made.subject.created(ME, "tap", "t")
    assert made.held("taps") == 1
    await made.subject.created(ME, "tap", "u")
    await made.subject.created(ME, "tap", "v")
    await made.subject.deleted("tap", "t")
    assert made.held("taps") == 2
    await made.subject.deleted("tap", "u")
    await made.subject.deleted("tap", "v")
    assert made.held("taps") == 0
    assert await ledger.get_resource(holdings.CREATOR.format("tap"), "t") is None
    await made.subject.deleted("tap", "t")
    assert (made.held("taps"), made.budgets["taps"].standing().held) == (0, 0)


async def test_what_nobody_is_known_to_have_created_counts_in_the_total(
    made: Made, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*arguments: Any) -> Any:
        raise LedgerUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "put_resource", away)
        await made.subject.created(ME, "tap", "t")
    assert (made.held("taps"), made.budgets["taps"].standing().held) == (0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "get_resource", away)
        await made.subject.deleted("tap", "t")
    assert made.budgets["taps"].standing().held == 0


async def test_what_is_there_may_be_replaced_at_any_time(ledger: Ledger) -> None:
    made = Made(ledger, taps=1)
    async with made.subject.creating(ME, "tap", "t"):
        assert made.held("taps") == 1
        with pytest.raises((BudgetExceeded, Overloaded)):
            async with made.subject.creating(ME, "tap", "new"):
                raise AssertionError("nothing is written")
        await ledger.put_resource("tap", "there", {"queue": "q"})
        async with made.subject.creating(ME, "tap", "there"):
            pass
    assert made.held("taps") == 0


async def test_it_is_counted_again_and_again(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counts, slept, now = 0, [], 0.0

    async def count() -> None:
        nonlocal counts, now
        counts += 1
        now += counts - 1
        if counts < 3:
            raise LedgerUnavailable("away") if counts == 1 else ValueError("a fault")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            await asyncio.Event().wait()

    monkeypatch.setattr(module, "clock", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    monkeypatch.setattr(made.subject, "count", count)
    made.subject.start()
    async with asyncio.timeout(5):
        while len(slept) < 3:
            await asyncio.sleep(0)
    assert slept == [module.EVERY, module.SHARE, 2 * module.SHARE]
    assert [record.getMessage() for record in caplog.records] == ["budgets.failed"]
    await made.subject.close()
    await made.subject.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "ledger budgets"]
