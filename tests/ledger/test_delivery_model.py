"""Deliveries beside a simple model of them: whatever is done in whatever order, both say the same.

The model is a dictionary and a clock, and knows nothing of SQL, groups or indexes. What is done at once goes through
one group commit, in the order in which it was asked for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import LedgerSettings
from gateway.ledger import BacklogCounts, BacklogSettlement, DeliveryFilter, Ending, Ledger, MessageIds, Owed
from tests.ledger.conftest import NOW, Clock

SUBSCRIPTIONS = ("a", "b")
KEYS = (b"", b"k", b"\x00l")
SECOND = 1_000_000


@dataclass
class Row:
    """A delivery, as the model has it."""

    id: bytes
    message_id: bytes
    payload: bytes
    subscription: str
    order_key: bytes
    at: int
    due_at: int
    attempt: int = 0
    lease: int = 0
    state: str = "waiting"
    why: int = 0


class Model:
    """What the ledger should hold."""

    def __init__(self) -> None:
        self.now = NOW
        self.rows: dict[bytes, Row] = {}

    def store(self, owed: Owed) -> None:
        if owed.id in self.rows:
            return
        row = Row(
            owed.id, owed.message_id, owed.payload, owed.subscription, owed.order_key, owed.at, owed.due_at or owed.at
        )
        row.attempt = owed.attempt
        if owed.due_at <= self.now:
            row.due_at = min(row.due_at, self.now)
        if owed.dead:
            row.state = "dead"
        elif owed.lease_seconds:
            row.state, row.lease, row.attempt = "out", 1, max(1, owed.attempt)
            row.due_at = self.now + int(owed.lease_seconds * SECOND)
        self.rows[row.id] = row

    def line(self, subscription: str, ordered: bool) -> list[bytes]:
        """Who may be handed out."""
        line = sorted(
            (row for row in self.rows.values() if row.subscription == subscription and row.state != "dead"),
            key=lambda row: (row.due_at, row.id),
        )
        first: dict[bytes, bytes] = {}
        for row in line:
            first[row.order_key] = min(first.get(row.order_key, row.id), row.id)
        return [
            row.id
            for row in line
            if row.due_at <= self.now and not (ordered and row.order_key and first[row.order_key] != row.id)
        ]

    def hand_out(self, row_id: bytes, seconds: float) -> tuple[Any, ...]:
        row = self.rows[row_id]
        expired = row.state == "out"
        row.state, row.due_at = "out", self.now + int(seconds * SECOND)
        row.attempt, row.lease = row.attempt + 1, row.lease + 1
        return (row.id, row.attempt, row.lease, row.due_at, row.payload, expired, row.why)

    def settle(self, settlement: BacklogSettlement) -> bool:
        row = self.rows.get(settlement.id)
        if row is None:
            return False
        if settlement.lease is not None:
            held = row.state == "out" and row.lease == settlement.lease
            fresh = row.state == "waiting" and row.lease == settlement.lease == 0
            if not held and not fresh:
                return False
        due_at = self.now + int(max(0.0, settlement.due_in) * SECOND)
        if settlement.front and settlement.due_in <= 0:
            due_at = min(row.at, self.now)
        match settlement.ending, row.state:
            case ((Ending.PURGE | Ending.DONE), _) | (Ending.DISCARD, "dead"):
                del self.rows[row.id]
            case (Ending.RETRY, "waiting" | "out") | (Ending.REVIVE, "dead"):
                row.state, row.due_at = "waiting", due_at
                row.attempt = row.attempt if settlement.attempt is None else settlement.attempt
            case Ending.EXTEND, "out":
                row.due_at = due_at
            case Ending.DEAD, ("waiting" | "out"):
                row.state = "dead"
            case _:
                return False
        row.why = settlement.reason.get("why", row.why)
        return True

    def backlog(self, subscription: str) -> BacklogCounts:
        mine = [row for row in self.rows.values() if row.subscription == subscription]
        alive = [row for row in mine if row.state != "dead"]
        out = sum(row.state == "out" and row.due_at > self.now for row in alive)
        return BacklogCounts(
            waiting=len(alive) - out,
            out=out,
            dead=len(mine) - len(alive),
            octets=sum(len(row.payload) for row in mine),
            oldest_at=min((row.at for row in alive), default=None),
            next_due_at=min((row.due_at for row in alive), default=None),
        )


# ------------------------------------------------------------------------------------------------ what is done

new = st.tuples(
    st.just("store"),
    st.fixed_dictionaries(
        {
            "subscription": st.sampled_from(SUBSCRIPTIONS),
            "order_key": st.sampled_from(KEYS),
            "message": st.integers(0, 3),
            "body": st.sampled_from((b"x", b"yy")),
            "at": st.integers(-3, 3),
            "due_in": st.sampled_from((None, -2, 0, 2)),
            "attempt": st.integers(0, 2),
            "lease_seconds": st.sampled_from((0.0, 0.0, 3.0)),
            "dead": st.sampled_from((False, False, False, True)),
        }
    ),
)
again = st.tuples(st.just("again"), st.integers(0, 30))
claim = st.tuples(
    st.just("claim"),
    st.fixed_dictionaries(
        {
            "subscription": st.sampled_from(SUBSCRIPTIONS),
            "limit": st.integers(1, 4),
            "seconds": st.sampled_from((1.0, 3.0)),
            "ordered": st.booleans(),
        }
    ),
)
settle = st.tuples(
    st.just("settle"),
    st.fixed_dictionaries(
        {
            "row": st.integers(0, 30),
            "ending": st.sampled_from(Ending),
            "lease": st.sampled_from(("own", "own", "none", "other")),
            "due_in": st.sampled_from((0.0, 0.0, 2.0)),
            "front": st.booleans(),
            "attempt": st.sampled_from((None, None, 0, 5)),
            "why": st.integers(0, 2),
        }
    ),
)
later = st.tuples(st.just("later"), st.integers(1, 3))
once = st.lists(settle, min_size=1, max_size=4).map(lambda steps: ("settle", [step[1] for step in steps]))
steps = st.lists(st.one_of(new, new, again, claim, claim, once, once, later), min_size=1, max_size=25)


class Both:
    """The ledger and the model, side by side."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.model = Model()
        self.clock.now = NOW / 1e6
        self.ids = MessageIds(lambda: NOW / 1e6)
        self.messages = [self.ids() for _ in range(4)]
        self.stored: list[Owed] = []

    async def store(self, values: dict[str, Any]) -> None:
        due_in, now = values["due_in"], self.model.now
        owed = Owed(
            id=self.ids(),
            message_id=self.messages[values["message"]],
            subscription=values["subscription"],
            order_key=values["order_key"],
            at=now + values["at"] * SECOND,
            due_at=0 if due_in is None else now + due_in * SECOND,
            attempt=values["attempt"],
            payload=values["body"],
            size=len(values["body"]),
            lease_seconds=values["lease_seconds"],
            dead=values["dead"],
        )
        self.stored.append(owed)
        await self.ledger.deliveries.store([owed])
        self.model.store(owed)

    async def again(self, number: int) -> None:
        """The same once more, unless it is settled: then it would be new."""
        if self.stored and (owed := self.stored[number % len(self.stored)]).id in self.model.rows:
            await self.ledger.deliveries.store([owed])

    async def claim(self, values: dict[str, Any]) -> None:
        """The first in line; in order, as many, of those whose turn it is."""
        limit, ordered = values["limit"], values["ordered"]
        found = await self.ledger.deliveries.claim(values["subscription"], limit, values["seconds"], ordered=ordered)
        line = self.model.line(values["subscription"], ordered)
        ids = [each.id for each in found]
        if ordered:
            assert len(ids) == min(limit, len(line))
            assert ids == [each for each in line if each in ids]
        else:
            assert ids == line[:limit]
        assert [
            (each.id, each.attempt, each.lease, each.due_at, each.payload, each.expired, each.reason.get("why", 0))
            for each in found
        ] == [self.model.hand_out(each, values["seconds"]) for each in ids]

    async def settle(self, several: Sequence[dict[str, Any]]) -> None:
        """All in one call."""
        if not self.stored:
            return
        settlements = []
        for values in several:
            owed = self.stored[values["row"] % len(self.stored)]
            row = self.model.rows.get(owed.id)
            lease = {"own": row.lease if row else 1, "none": None, "other": 9}[values["lease"]]
            reason = {"why": values["why"]} if values["why"] else {}
            settlements.append(
                BacklogSettlement(
                    owed.id, values["ending"], lease, values["due_in"], values["front"], values["attempt"], reason
                )
            )
        took = await self.ledger.deliveries.settle(settlements)
        assert took == [self.model.settle(settlement) for settlement in settlements]

    async def later(self, seconds: int) -> None:
        self.clock.now += seconds
        self.model.now += seconds * SECOND

    async def compare(self) -> None:
        """Every row, every body, every line."""
        rows, _ = await self.ledger.deliveries.page(DeliveryFilter(), limit=1_000, payload=True)
        columns = attrgetter("id", "subscription", "order_key", "at", "due_at", "attempt", "lease", "payload")
        there = [(columns(row), "dead" if row.dead else "out" if row.out else "waiting", row.reason) for row in rows]
        assert there == [
            (columns(row), row.state, {"why": row.why} if row.why else {})
            for row in sorted(self.model.rows.values(), key=lambda row: row.id)
        ]
        owed = {(row.message_id, row.payload) for row in self.model.rows.values()}
        for message_id in self.messages:
            body = await self.ledger.deliveries.body(message_id)
            assert (message_id, body) in owed if body is not None else message_id not in {each for each, _ in owed}
        for subscription in SUBSCRIPTIONS:
            expected = self.model.backlog(subscription)
            found = await self.ledger.deliveries.backlog(subscription)
            for name in ("waiting", "out", "dead", "octets", "oldest_at", "next_due_at"):
                assert getattr(found, name) == getattr(expected, name), name
            line = sorted(
                (row.due_at, row.id)
                for row in self.model.rows.values()
                if row.subscription == subscription and row.state != "dead"
            )
            due = await self.ledger.deliveries.due(subscription, 1_000)
            assert [(row.due_at, row.id) for row in due] == line

    async def clear(self) -> None:
        """Nothing is left, not even a body."""
        await self.ledger.deliveries.settle([BacklogSettlement(row, Ending.PURGE) for row in self.model.rows])
        self.model.rows.clear()
        await self.compare()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One database for all examples: each leaves it empty."""
    if request.param == "sqlite":
        folder: Path = tmp_path_factory.mktemp("ledger")
        yield f"sqlite:///{folder}/ledger.db"
    else:
        yield request.getfixturevalue("postgresql").create_database()


@asynccontextmanager
async def opened(url: str, clock: Clock) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(url, LedgerSettings(shard_lease=60.0), owner="model", migrate=True, clock=clock)
    try:
        yield ledger
    finally:
        await ledger.close()


def check(loop: asyncio.AbstractEventLoop, ledger: Ledger, clock: Clock, steps: Sequence[tuple[str, Any]]) -> None:
    async def run() -> None:
        both = Both(ledger, clock)
        for verb, values in steps:
            await getattr(both, verb)(values)
            await both.compare()
        await both.clear()

    loop.run_until_complete(run())


@pytest.fixture
def running(place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Ledger, Clock]]:
    """A ledger on a loop of its own, for many examples. Lines in order are short, so that both ways are taken."""
    monkeypatch.setattr("gateway.ledger.pending.delivery_rows.WINDOW", 1)
    monkeypatch.setattr("gateway.ledger.pending.delivery_rows.WINDOW_MIN", 2)
    monkeypatch.setattr("gateway.ledger.pending.delivery_rows.STEPS", 1)
    clock = Clock()
    loop = asyncio.new_event_loop()
    context = opened(place, clock)
    ledger = loop.run_until_complete(context.__aenter__())
    yield loop, ledger, clock
    loop.run_until_complete(context.__aexit__(None, None, None))
    loop.close()


EXAMPLES = int(os.environ.get("GATEWAY_EXAMPLES", "25"))


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(steps=steps)
def test_the_ledger_does_as_the_model(running: tuple[Any, Ledger, Clock], steps: Sequence[tuple[str, Any]]) -> None:
    check(*running, steps)
