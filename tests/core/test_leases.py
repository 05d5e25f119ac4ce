"""Who holds which delivery, and until when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.budgets import BudgetBounds, Budgets, ShareHolder
from gateway.core.leasing import leases as module
from gateway.core.leasing.ack_ids import AckIds
from gateway.core.leasing.leases import End, Lease, Leases, Unusable
from gateway.errors import BudgetExceeded, Overloaded
from tests.core.fakes import FakeDelivery, FakeQueue, FakeUpstream

ALICE, BOB, ROOT = ShareHolder("alice"), ShareHolder("bob"), ShareHolder("root", is_admin=True)


class Desk:
    """Leases, and what they said."""

    def __init__(self, bound: int = 10) -> None:
        self.upstream = FakeUpstream()
        self.upstream.queues["q"] = FakeQueue()
        self.expired: list[Lease] = []
        self.lost: list[Lease] = []
        self.holdings = Budgets(BudgetBounds(0.5, 0.2, {"leases": bound}))["leases"]
        self.leases = Leases(AckIds(b"k" * 32), self.holdings, self.expired.extend, self.lost.append)

    def grant(
        self,
        seconds: float = 60.0,
        lease_max: float = 1500.0,
        client: ShareHolder = ALICE,
        *,
        body: bytes = b"x",
        message_id: bytes = b"i" * 16,
        subscription: str = "s",
    ) -> tuple[Lease, FakeDelivery]:
        assert self.leases.reserve(client, 1) == 1
        delivery: Any = FakeDelivery(self.upstream, "q", (Message(body), "", "q", False))
        lease = self.leases.grant(delivery, message_id, "b", "0-9-1", subscription, seconds, lease_max, client)
        return lease, delivery


async def test_found_by_its_ack_id_until_it_ends() -> None:
    desk = Desk()
    lease, _ = desk.grant()
    assert desk.leases.find("s", lease.ack_id) is lease
    assert (len(desk.leases), desk.leases.count("s"), desk.leases.count("t")) == (1, 1, 0)
    assert desk.leases.find("t", lease.ack_id) is Unusable.INVALID
    assert desk.leases.settle(lease, Settlement.ACCEPT, End.ACKNOWLEDGED)
    assert desk.leases.find("s", lease.ack_id) is End.ACKNOWLEDGED
    assert (len(desk.leases), desk.leases.count("s")) == (0, 0)
    desk.leases.end(lease, End.LOST)
    assert desk.leases.find("s", lease.ack_id) is End.ACKNOWLEDGED
    assert Desk().leases.find("s", lease.ack_id) is Unusable.LOST
    desk.leases.close()


async def test_a_client_reserves_and_holds_no_more_than_its_share() -> None:
    desk = Desk()
    assert desk.leases.reserve(ALICE, 100) == 5
    with pytest.raises(BudgetExceeded, match=r"budget leases: 'alice' holds 5 messages .* its share is 5 of 10"):
        desk.leases.reserve(ALICE, 1)
    desk.leases.give_back(ALICE, 5)
    held = [desk.grant()[0] for _ in range(5)]
    with pytest.raises(BudgetExceeded):
        desk.leases.reserve(ALICE, 1)
    assert desk.leases.reserve(BOB, 100) == 3  # the rest is reserved for admin
    with pytest.raises(Overloaded, match=r"budget leases: 8 of 10 .* \(http.leases_max\)"):
        desk.leases.reserve(BOB, 1)
    assert desk.leases.reserve(ROOT, 100) == 2
    desk.leases.settle(held[0], Settlement.ACCEPT, End.ACKNOWLEDGED)
    desk.leases.end(held[1], End.LOST)
    assert desk.holdings.held_by(ALICE) == 3
    desk.leases.close()


async def test_what_waits_leaves_room_for_other_pulls_of_the_client() -> None:
    desk = Desk(40)
    assert [desk.leases.reserve(ALICE, 7, waits=True) for _ in range(5)] == [7, 2, 1, 1, 1]
    assert desk.leases.reserve(ALICE, 30) == 8, "one that does not wait gets all that is left"
    for count in (7, 2, 1, 1, 1, 8):
        desk.leases.give_back(ALICE, count)
    assert desk.holdings.standing().held == 0
    assert desk.leases.reserve(ALICE, 30, waits=True) == 10
    assert desk.leases.reserve(ALICE, 30) == 10
    desk.leases.close()


async def test_only_so_many_endings_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDED_MAX", 1)
    desk = Desk()
    first, second = desk.grant()[0], desk.grant()[0]
    for lease in (first, second):
        desk.leases.settle(lease, Settlement.ACCEPT, End.ACKNOWLEDGED)
    assert desk.leases.find("s", first.ack_id) is Unusable.LOST
    assert desk.leases.find("s", second.ack_id) is End.ACKNOWLEDGED
    desk.leases.close()


async def test_deadlines_pass_in_order_whatever_was_extended() -> None:
    desk = Desk()
    leases = [desk.grant(seconds)[0] for seconds in (0.09, 0.03, 0.06)]
    desk.leases.extend(leases[1], 0.12)
    desk.leases.settle(leases[2], Settlement.ACCEPT, End.ACKNOWLEDGED)
    await asyncio.sleep(0.3)
    assert desk.expired == [leases[0], leases[1]]
    assert desk.leases.find("s", leases[0].ack_id) is End.EXPIRED
    assert desk.leases._timer is None


async def test_no_deadline_passes_after_the_end() -> None:
    desk = Desk()
    lease, delivery = desk.grant(0.02)
    desk.leases.close()
    await asyncio.sleep(0.1)
    assert not delivery.settled
    assert desk.expired == []
    assert desk.leases.holds(lease)


async def test_a_shorter_extension_comes_first() -> None:
    desk = Desk()
    lease, _ = desk.grant(60.0)
    assert desk.leases.extend(lease, 0.02) == pytest.approx(0.02, abs=0.01)
    await asyncio.sleep(0.1)
    assert desk.expired == [lease]


async def test_no_extension_goes_beyond_the_end() -> None:
    desk = Desk()
    lease, _ = desk.grant(600.0, lease_max=100.0)
    assert lease.deadline == lease.latest
    assert desk.leases.extend(lease, 600) <= 100.0 - module.LEASE_MARGIN
    desk.leases.close()


async def test_lost_with_and_without_a_word() -> None:
    desk = Desk()
    (told, delivery), (silent, other) = desk.grant(), desk.grant(0.02)
    delivery.lose()
    assert desk.lost == [told]
    other.lost = True
    await asyncio.sleep(0.1)
    assert (desk.lost, desk.expired) == ([told, silent], [])
    assert not desk.leases.settle(told, Settlement.ACCEPT, End.ACKNOWLEDGED)


async def test_deadlines_of_what_has_ended_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAP_MIN", 10)
    desk = Desk()
    lease, delivery = desk.grant(600.0)
    for _ in range(100):
        other, _ = desk.grant(600.0)
        desk.leases.settle(other, Settlement.ACCEPT, End.ACKNOWLEDGED)
        desk.leases.extend(lease, 600.0)
        assert len(desk.leases._heap) <= 14
    desk.leases.extend(lease, 0.0)
    while not desk.expired:
        await asyncio.sleep(0)
    assert desk.expired == [lease]
    assert delivery.settled
    desk.leases.close()


async def test_what_is_out_is_counted_for_each_subscription_and_client() -> None:
    desk = Desk()
    first, _ = desk.grant(body=b"12345")
    second, _ = desk.grant(body=b"", subscription="t")
    third, _ = desk.grant(body=b"678", client=BOB)
    assert desk.leases.all() == [first, second, third]
    assert (desk.leases.count("s"), desk.leases.count("t")) == (2, 1)
    held = desk.leases.byte_holdings
    assert (held.held_by(ALICE), held.held_by(BOB), held.standing().held) == (5, 3, 8)
    assert (first.size, second.size) == (5, 0)
    desk.leases.settle(first, Settlement.ACCEPT, End.ACKNOWLEDGED)
    desk.leases.settle(second, Settlement.ACCEPT, End.ACKNOWLEDGED)
    assert (desk.leases.count("s"), desk.leases.count("t")) == (1, 0)
    assert (held.held_by(ALICE), held.standing().held) == (0, 3)
    assert desk.leases.all() == [third]
    desk.leases.close()


async def test_the_oldest_is_told() -> None:
    desk = Desk()
    assert desk.leases.oldest == 0.0
    now = asyncio.get_running_loop().time()
    first, delivery = desk.grant()
    delivery.at = now - 40.0  # type: ignore[attr-defined]
    _, other = desk.grant()
    other.at = now + 40.0  # type: ignore[attr-defined]
    assert 40.0 <= desk.leases.oldest < 100.0
    desk.leases.end(first, End.LOST)
    assert desk.leases.oldest == 0.0
    desk.leases.close()


async def test_who_had_a_message_before_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDED_MAX", 2)
    desk = Desk()
    for number in (b"1", b"2", b"3"):
        lease, _ = desk.grant(message_id=number * 16)
        assert not desk.leases.was_handed("s", number * 16), "it is out"
        desk.leases.settle(lease, Settlement.RELEASE, End.RELEASED)
    known = [number for number in (b"1", b"2", b"3") if desk.leases.was_handed("s", number * 16)]
    assert known == [b"2", b"3"]
    assert not desk.leases.was_handed("t", b"3" * 16)
    desk.leases.close()


async def test_the_end_of_a_lease_is_told_once() -> None:
    desk = Desk()
    lease, given = desk.grant()
    delivery: Any = given
    ended: list[Lease] = []
    lease.on_end = ended.append
    assert delivery.on_lost is not None
    assert desk.leases.settle(lease, Settlement.RELEASE, End.RELEASED)
    desk.leases.end(lease, End.LOST)
    assert ended == [lease]
    assert delivery.on_lost is None, "the delivery does not hold it any more"
    assert not desk.leases.settle(lease, Settlement.ACCEPT, End.ACKNOWLEDGED)
    assert desk.holdings.held_by(ALICE) == 0
    desk.leases.close()


async def test_a_lease_lasts_no_longer_than_its_delivery_may() -> None:
    """The broker ends what is not settled within ``lease_max``; the gateway is sooner."""
    desk = Desk()
    now = asyncio.get_running_loop().time()
    short, _ = desk.grant(10.0, 100.0)
    long, _ = desk.grant(500.0, 100.0)
    assert now + 10.0 <= short.deadline < now + 20.0
    for lease in (short, long):
        assert lease.latest == pytest.approx(now + 100.0 - module.LEASE_MARGIN, abs=5.0)
    assert long.deadline == long.latest
    assert desk.leases.extend(short, 1000.0) == pytest.approx(100.0 - module.LEASE_MARGIN, abs=5.0)
    assert short.deadline == short.latest
    desk.leases.close()


async def test_nothing_is_kept_of_what_was_reserved_and_given_back() -> None:
    desk = Desk()
    count = desk.leases.reserve(ALICE, 3)
    desk.leases.give_back(ALICE, 0)
    desk.leases.give_back(ALICE, 2)
    assert desk.holdings.held_by(ALICE) == 1
    desk.leases.give_back(ALICE, count - 2)
    assert desk.holdings.held_by(ALICE) == 0
    assert desk.leases._reserved == {}
    desk.leases.give_back(BOB, 0)
    desk.grant()
    assert desk.leases._reserved == {}
    desk.leases.close()


async def test_what_waits_takes_half_of_what_is_left() -> None:
    desk = Desk(40)
    assert [desk.leases.reserve(ALICE, wanted, waits=True) for wanted in (6, 7, 7, 7)] == [6, 2, 1, 1]
    desk.leases.close()


async def test_the_last_message_may_go_beyond_the_bytes() -> None:
    desk = Desk()
    desk.leases.byte_holdings = Budgets(BudgetBounds(0.5, 0.2, {"lease_bytes": 10}))["lease_bytes"]
    desk.grant(body=bytes(100))
    assert desk.leases.byte_holdings.held_by(ALICE) == 100
    desk.leases.close()


async def test_what_is_lost_is_held_no_more() -> None:
    """Whether its channel says so, or it shows when it is settled."""
    desk = Desk()
    (told, delivery), (silent, other) = desk.grant(), desk.grant()
    delivery.lose()
    assert not desk.leases.holds(told)
    other.lost = True
    assert not desk.leases.settle(silent, Settlement.ACCEPT, End.ACKNOWLEDGED)
    assert not desk.leases.holds(silent)
    assert [desk.leases.find("s", lease.ack_id) for lease in (told, silent)] == [End.LOST] * 2
    assert (desk.leases.count("s"), desk.holdings.held_by(ALICE), desk.leases._by_delivery) == (0, 0, {})
    desk.leases.close()


async def test_the_timer_is_that_of_the_next_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the deadlines were tidied up; and there is only one."""
    monkeypatch.setattr(module, "HEAP_MIN", -1_000)
    desk = Desk()
    for seconds in (600.0, 0.08, 300.0, 0.05):
        lease, _ = desk.grant(seconds)
    assert desk.leases._timer is not None
    assert desk.leases._timer.when() == pytest.approx(lease.deadline)
    desk.leases.close()
    await asyncio.sleep(0.1)
    assert (desk.expired, len(desk.leases)) == ([], 4)


async def test_few_deadlines_are_kept_of_few_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAP_MIN", 4)
    desk = Desk(1_000)
    leases = [desk.grant(600.0)[0] for _ in range(100)]
    for lease in leases[1:]:
        desk.leases.settle(lease, Settlement.ACCEPT, End.ACKNOWLEDGED)
    assert len(desk.leases._heap) <= 6
    for _ in range(20):
        desk.leases.extend(leases[0], 600.0)
        assert len(desk.leases._heap) <= 6
    desk.leases.close()


async def test_an_ack_id_of_another_process_names_its_owner() -> None:
    desk = Desk()
    other = Leases(AckIds(b"k" * 32, b"o" * 8), desk.holdings, desk.expired.extend, desk.lost.append)
    lease, _ = desk.grant()
    foreign = AckIds(b"k" * 32, b"o" * 8)
    ack_id = foreign.make(1, foreign.mark("s"))
    assert desk.leases.owner_of("s", ack_id) == b"o" * 8
    assert desk.leases.find("s", ack_id) is Unusable.LOST
    assert desk.leases.owner_of("s", lease.ack_id) is None
    assert desk.leases.owner_of("s", "forged") is None
    assert desk.leases.owner_of("t", ack_id) is None
    assert other.owner_of("s", ack_id) is None
    desk.leases.close()


async def test_leases_that_run_out_together_are_told_together() -> None:
    desk = Desk()
    told: list[list[Lease]] = []
    desk.leases._on_expired = told.append
    leases = [desk.grant(600.0)[0] for _ in range(2)]
    settled, _ = desk.grant(600.0)
    leases.append(desk.grant(600.0)[0])
    lost, delivery = desk.grant(600.0)
    for lease in (*leases[:2], settled, leases[2], lost):
        desk.leases.extend(lease, 0.0)
    desk.leases.settle(settled, Settlement.ACCEPT, End.ACKNOWLEDGED)
    delivery.lost = True
    async with asyncio.timeout(5):
        while not told:
            await asyncio.sleep(0)
    assert told == [leases]
    assert desk.lost == [lost]
    assert [desk.leases.find("s", lease.ack_id) for lease in leases] == [End.EXPIRED] * 3
    assert desk.upstream.settled == [(Settlement.ACCEPT, b"x"), *[(Settlement.RELEASE, b"x")] * 3]
