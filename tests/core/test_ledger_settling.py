"""Leases of the ledger at their end: what is written, what is answered, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.config import SubscriptionSettings
from gateway.core import SubscriptionResource
from gateway.core.leasing import ledger_settling as module
from gateway.core.leasing.ack_ids import AckIds
from gateway.core.leasing.backlogs import Backlogs
from gateway.core.leasing.ledger_settling import LedgerSettling
from gateway.core.leasing.pulled import LedgerLease
from gateway.core.sources.stored import Stored, envelope
from gateway.errors import EntriesRefused, GatewayError, LedgerUnavailable, NotFound
from gateway.ledger import EventKind
from gateway.ledger.pending.owed import BacklogEntry, BacklogSettlement, Ending
from gateway.observing.telemetry import Metrics

OK, GONE, INVALID = "SUCCESS", "LEASE_LOST", "INVALID_ACK_ID"


class Deliveries:
    """The ledger's deliveries, as the test says."""

    def __init__(self) -> None:
        self.settled: list[BacklogSettlement] = []
        self.results: list[bool | None] = []
        """Of the next settlements; True behind the last."""
        self.error: GatewayError | None = None
        self.rows: dict[bytes, BacklogEntry] = {}
        self.with_payload: list[bool] = []

    async def settle(self, settlements: Sequence[BacklogSettlement]) -> list[bool]:
        self.settled += settlements
        if self.error is not None:
            raise self.error
        found = [self.results.pop(0) if self.results else True for _ in settlements]
        return [bool(each) for each in found]

    async def get(self, delivery: bytes, payload: bool = False) -> BacklogEntry | None:
        self.with_payload.append(payload)
        return self.rows.get(delivery)


class DeadLetters:
    """A dead-letter place."""

    def __init__(self) -> None:
        self.letters: list[Any] = []
        self.outcomes: list[GatewayError | None] = []

    async def publish(self, place: Any, name: str, letters: Sequence[Any]) -> list[GatewayError | None]:
        self.letters += letters
        return [self.outcomes.pop(0) if self.outcomes else None for _ in letters]


class Desk:
    """Settling for one subscription."""

    def __init__(self, *, ordered: bool = False, **settings: Any) -> None:
        more = {"order_key": "routing_key"} if ordered else {}
        given = SubscriptionSettings(**{"broker": "fake", "queue": "orders", "lease": "ledger", **more, **settings})
        self.subscription = SubscriptionResource("s", given, "", read_only=False)
        self.deliveries, self.dead_letters, self.metrics = Deliveries(), DeadLetters(), Metrics("test")
        self.timelines: dict[bytes, Any] = {}
        ledger = SimpleNamespace(deliveries=self.deliveries, timeline=self._timeline)
        parts: Any = SimpleNamespace(ledger=ledger, dead_letters=self.dead_letters, metrics=self.metrics)
        self.ack_ids, self.backlogs = AckIds(b"k" * 32), Backlogs()
        self.settling = LedgerSettling(parts, self.ack_ids, self.backlogs)
        self.told: list[tuple[list[int], float]] = []
        self.settling.on_settled.append(lambda leases, left: self.told.append(([each.lease for each in leases], left)))
        self.backlog = self.backlogs["s"]
        self.backlog.asked()
        self.backlog.emptied()

    async def _timeline(self, message_id: bytes) -> Any:
        return self.timelines.get(message_id)

    def ack_id(self, number: int, lease: int = 1, attempt: int = 1, subscription: str = "s") -> str:
        delivery = bytes([number]) * 16
        return self.ack_ids.make_ledger(delivery, b"m" * 16, lease, attempt, self.ack_ids.mark(subscription))

    def row(self, number: int, body: bytes | None = b"body", **more: Any) -> BacklogEntry:
        payload = b"?" if body is None else envelope(Stored(Message(body), "shop", "key", False, False))
        fields: dict[str, Any] = {
            "id": bytes([number]) * 16, "message_id": b"m" * 16, "subscription": "s", "order_key": b"", "at": 0,
            "due_at": 0, "attempt": 2, "lease": 1, "dead": False, "reason": {}, "size": 4, "payload": payload,
            "out": True,
        } | more  # fmt: skip
        row = BacklogEntry(**fields)
        self.deliveries.rows[row.id] = row
        return row

    @property
    def endings(self) -> list[Ending]:
        return [each.ending for each in self.deliveries.settled]

    @property
    def events(self) -> list[EventKind]:
        return [entry.kind for each in self.deliveries.settled for entry in each.entries]

    @property
    def details(self) -> list[dict[str, Any]]:
        return [entry.detail or {} for each in self.deliveries.settled for entry in each.entries]

    def due_moments(self) -> int:
        """At how many moments something will be due."""
        return len(self.backlog._dues)

    def count(self, event: str) -> float:
        labels = {"broker": "fake", "event": event}
        return self.metrics.registry.get_sample_value("amqpgw_deliveries_total", labels) or 0.0


async def statuses(results: Any) -> list[str]:
    return [result.status for result in await results]


# --------------------------------------------------------------------------------------------------------- settling


async def test_each_ack_id_has_its_answer_and_each_lease_is_settled_once() -> None:
    desk = Desk()
    desk.deliveries.results = [True, False]
    desk.backlog.held = 5
    asked = [desk.ack_id(1), "forged", desk.ack_id(2), desk.ack_id(1), desk.ack_id(3, subscription="t")]
    assert await statuses(desk.settling.acknowledge(desk.subscription, asked)) == [OK, INVALID, GONE, OK, INVALID]
    assert (desk.endings, desk.events) == ([Ending.DONE] * 2, [EventKind.ACKNOWLEDGED] * 2)
    assert desk.details[0] == {"subscription": "s", "lease": 1}
    assert desk.told == [([1], 0.0)]
    assert (desk.count("acknowledged"), desk.backlog.held) == (1, 4)
    assert not desk.backlog.may_be_due()


async def test_what_was_ended_here_may_be_ended_again_in_the_same_way() -> None:
    desk = Desk()
    done, released = desk.ack_id(1), desk.ack_id(2)
    await desk.settling.acknowledge(desk.subscription, [done])
    await desk.settling.release_alive(desk.subscription, [released], 0.0)
    desk.deliveries.results = [False] * 20
    assert await statuses(desk.settling.acknowledge(desk.subscription, [done, released])) == [OK, GONE]
    assert await statuses(desk.settling.release_alive(desk.subscription, [done, released], 0.0)) == [GONE, OK]
    assert await statuses(desk.settling.extend(desk.subscription, [done, released], 30)) == [GONE, GONE]
    assert len(desk.told) == 2
    assert desk.backlog.held == 0


async def test_endings_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDED_MAX", 2)
    desk = Desk()
    asked = [desk.ack_id(number) for number in (1, 2, 3)]
    await desk.settling.release_alive(desk.subscription, asked, 0.0)
    desk.deliveries.results = [False] * 3
    assert await statuses(desk.settling.release_alive(desk.subscription, asked, 0.0)) == [GONE, OK, OK]


@pytest.mark.parametrize(
    ("event", "is_owed", "expected"),
    [
        ({"kind": EventKind.ACKNOWLEDGED}, False, OK),
        ({"kind": EventKind.ACKNOWLEDGED}, True, GONE),
        ({"kind": EventKind.RELEASED}, False, GONE),
        ({"kind": EventKind.ACKNOWLEDGED, "subscription": "t"}, False, GONE),
        ({"kind": EventKind.ACKNOWLEDGED, "lease": 2}, False, GONE),
        (None, False, GONE),
    ],
)
async def test_an_acknowledgement_of_another_process_stands_in_the_timeline(
    event: dict[str, Any] | None, is_owed: bool, expected: str
) -> None:
    desk = Desk()
    if is_owed:
        desk.row(1)
    if event is not None:
        found = {"kind": EventKind.ACKNOWLEDGED, "subscription": "s", "lease": 1} | event
        kind = found.pop("kind")
        desk.timelines[b"m" * 16] = SimpleNamespace(events=[SimpleNamespace(kind=kind, detail=found)])
    desk.deliveries.results = [False] * 2
    assert await statuses(desk.settling.acknowledge(desk.subscription, [desk.ack_id(1)])) == [expected]
    assert await statuses(desk.settling.release_alive(desk.subscription, [desk.ack_id(1)], 0.0)) == [GONE]


@pytest.mark.parametrize(("results", "expected"), [((), [GONE, GONE]), ((True, None), [OK, GONE])])
async def test_what_cannot_be_written_did_not_take_effect(results: tuple[Any, ...], expected: list[str]) -> None:
    desk = Desk()
    desk.deliveries.error = EntriesRefused({0: "a bad row"}, results)
    asked = [desk.ack_id(1), desk.ack_id(2)]
    assert await statuses(desk.settling.acknowledge(desk.subscription, asked)) == expected


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_next_of_a_key_is_due_when_the_one_before_is_done(ordered: bool) -> None:
    desk = Desk(ordered=ordered)
    desk.deliveries.results = [False]
    await desk.settling.acknowledge(desk.subscription, [desk.ack_id(1)])
    assert not desk.backlog.may_be_due()
    await desk.settling.acknowledge(desk.subscription, [desk.ack_id(2)])
    assert desk.backlog.may_be_due() is ordered


@pytest.mark.parametrize(("delay", "front", "detail"), [(0.0, True, {}), (7.0, False, {"delay": 7.0})])
async def test_what_is_released_is_due_at_once_or_after_its_delay(
    delay: float, front: bool, detail: dict[str, Any]
) -> None:
    desk = Desk()
    desk.deliveries.results = [False]
    await desk.settling.release(desk.subscription, [desk.ack_id(1)], delay)
    assert not desk.backlog.may_be_due()
    before = desk.backlog.next_look()
    await desk.settling.release(desk.subscription, [desk.ack_id(2)], delay)
    assert desk.backlog.may_be_due() is (delay == 0)
    (_, settlement) = desk.deliveries.settled
    assert (settlement.ending, settlement.due_in, settlement.front) == (Ending.RETRY, delay, front)
    assert desk.details[1] == {"subscription": "s", "lease": 1, **detail}
    assert desk.backlog.next_look() <= before
    assert desk.due_moments() == (1 if delay else 0)


async def test_an_extension_is_told_with_what_is_left() -> None:
    desk = Desk()
    desk.deliveries.results = [False]
    assert await statuses(desk.settling.extend(desk.subscription, [desk.ack_id(1)], 30)) == [GONE]
    assert desk.due_moments() == 0
    assert await statuses(desk.settling.extend(desk.subscription, [desk.ack_id(2)], 30)) == [OK]
    assert desk.told == [([1], 30.0)]
    assert (desk.endings[1], desk.deliveries.settled[1].due_in) == (Ending.EXTEND, 30.0)
    assert desk.due_moments() == 1
    desk.deliveries.results = [False]
    assert await statuses(desk.settling.extend(desk.subscription, [desk.ack_id(2)], 30)) == [GONE]


async def test_what_has_used_up_its_deliveries_is_given_up_when_it_is_released() -> None:
    desk = Desk(max_deliveries=3)
    for number in (1, 2, 3):
        desk.row(number, attempt=number + 1)
    asked = [desk.ack_id(1, attempt=2), desk.ack_id(2, attempt=3), "forged", desk.ack_id(3, attempt=4)]
    assert await statuses(desk.settling.release(desk.subscription, asked)) == [OK, OK, INVALID, OK]
    assert desk.endings == [Ending.DEAD, Ending.DEAD, Ending.RETRY]
    assert desk.details[0]["code"] == "delivery_limit"
    assert desk.details[0]["reason"] == "handed out 3 times (max_deliveries)"
    desk.deliveries.settled.clear()
    desk.deliveries.rows.clear()
    assert await statuses(desk.settling.release(desk.subscription, asked[1:2])) == [OK], "as it was asked for before"
    plain = Desk()
    await plain.settling.release(plain.subscription, [plain.ack_id(1, attempt=100)])
    assert plain.endings == [Ending.RETRY]


# -------------------------------------------------------------------------------------------------------- rejecting


@pytest.mark.parametrize(("reason", "detail"), [("", {}), ("no", {"reason": "no"}), ("x" * 600, {"reason": "x" * 500})])
async def test_what_is_discarded_goes_with_its_reason(reason: str, detail: dict[str, Any]) -> None:
    desk = Desk(dead_letter_routing_key="dead")
    await desk.settling.reject(desk.subscription, [desk.ack_id(1)], reason, discard=True)
    assert (desk.endings, desk.events) == ([Ending.DONE], [EventKind.DISCARDED])
    assert desk.details == [{"subscription": "s", "lease": 1, **detail}]
    assert desk.dead_letters.letters == []


async def test_only_what_its_lease_holds_is_given_up() -> None:
    """Another consumer may have it by now."""
    desk = Desk(dead_letter_routing_key="dead")
    desk.row(1)
    desk.row(2, out=False)
    desk.row(3, lease=2)
    desk.row(4, subscription="t")
    asked = [*(desk.ack_id(number) for number in range(1, 6)), "forged", desk.ack_id(1)]
    found = await statuses(desk.settling.reject(desk.subscription, asked, ""))
    assert found == [OK, GONE, GONE, GONE, GONE, INVALID, OK]
    assert [letter.reason for letter in desk.dead_letters.letters] == ["rejected"]
    assert desk.deliveries.with_payload[:5] == [True] * 5
    assert (desk.endings, desk.events) == ([Ending.DONE], [EventKind.DEAD_LETTERED])
    assert desk.told == [([1], 0.0)]
    assert desk.details[0]["place"] == {"broker": "fake", "exchange": "", "routing_key": "dead"}


async def test_each_dead_letter_has_its_own_outcome() -> None:
    """What is damaged has no copy; what the place does not take stays dead, with both reasons."""
    desk = Desk(dead_letter_routing_key="dead")
    rows = [desk.row(1), desk.row(2, None), desk.row(3), desk.row(4)]
    desk.dead_letters.outcomes = [None, NotFound(404, "no queue"), None]
    desk.deliveries.results = [True, True, True, False]
    done = await desk.settling.give_up(desk.subscription, rows, "no", "rejected", 7)
    assert done == [True, True, True, False]
    assert desk.endings == [Ending.DONE, Ending.DEAD, Ending.DEAD, Ending.DONE]
    assert [(detail.get("dead_letter_place") or "")[:9] for detail in desk.details] == [
        "",
        "not a sto",
        "404 no qu",
        "",
    ]
    assert [detail["attempt"] for detail in desk.details] == [7] * 4
    assert [detail.get("from", {}).get("exchange") for detail in desk.details] == ["shop", None, "shop", "shop"]
    assert desk.deliveries.settled[2].reason["reason"] == "no"
    assert desk.deliveries.settled[2].reason["at"] > 0
    assert (desk.count("dead_lettered"), desk.count("dead")) == (1, 2)


async def test_without_a_place_what_is_given_up_stays_dead() -> None:
    desk = Desk()
    rows = [desk.row(1, None), desk.row(2)]
    assert await desk.settling.give_up(desk.subscription, rows, "no", "rejected") == [True, True]
    assert (desk.endings, desk.events) == ([Ending.DEAD] * 2, [EventKind.DEAD] * 2)
    assert not any("place" in detail or "dead_letter_place" in detail for detail in desk.details)
    assert [detail["attempt"] for detail in desk.details] == [2, 2]
    assert desk.dead_letters.letters == []
    assert (desk.count("dead_lettered"), desk.count("dead")) == (0, 2)
    assert await desk.settling.give_up(desk.subscription, [], "no", "rejected") == []
    assert len(desk.deliveries.settled) == 2


# ------------------------------------------------------------------------------------------------------ handed back


def pulled(desk: Desk, *numbers: int) -> list[Any]:
    return [
        SimpleNamespace(lease=LedgerLease(desk.ack_id(number), bytes([number]) * 16, b"m" * 16, 1, "s", "fake"))
        for number in numbers
    ]


async def test_what_was_not_handed_over_is_due_at_once_at_its_old_place() -> None:
    desk = Desk()
    other: Any = SimpleNamespace(lease=None)
    desk.settling.hand_back([*pulled(desk, 1, 2), other], "the caller is gone")
    await desk.settling.close()
    assert [(each.ending, each.front, each.lease) for each in desk.deliveries.settled] == [(Ending.RETRY, True, 1)] * 2
    assert desk.details[0] == {"subscription": "s", "lease": 1, "reason": "the caller is gone"}
    assert desk.backlog.may_be_due()


@pytest.mark.parametrize("error", [None, LedgerUnavailable("away")])
async def test_what_cannot_be_handed_back_is_due_when_its_lease_ends(error: GatewayError | None) -> None:
    desk = Desk()
    desk.deliveries.results, desk.deliveries.error = [False], error
    desk.settling.hand_back(pulled(desk, 1), "the caller is gone")
    await desk.settling.close()
    assert not desk.backlog.may_be_due()
    desk.settling.hand_back([SimpleNamespace(lease=None)], "none is the ledger's")  # type: ignore[list-item]
    await desk.settling.close()
    assert len(desk.deliveries.settled) == 1
