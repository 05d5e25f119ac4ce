"""What becomes of messages that the target of a bridge does not take, or that cannot be sent at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.bridges.flow import _is_persistent
from gateway.bridges.gate import REFUSED_IN_A_ROW
from gateway.bridges.journal import PAUSE_MAX
from gateway.errors import BrokerUnavailable, GatewayError, OutcomeUnknown, PublishRefused, RemoteError, Unroutable
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.upstreams import PublishReceipt
from tests.bridges.conftest import until
from tests.bridges.hands import OCTETS, Hand, arrive, given, unreadable

# --------------------------------------------------------------------------------------------- at the target


async def test_what_is_refused_many_times_in_a_row_is_the_targets_fault(hand: Hand) -> None:
    flow = await hand.flow()
    arrive(flow, *(given() for _ in range(REFUSED_IN_A_ROW)))
    items = flow._look(flow._take(0.0))
    flow._gate.outstanding = 100  # there are others
    for item in items[:-1]:
        flow._refused([(item, Unroutable("nobody takes it"))], 0)
    assert not flow._journal.faults
    flow._refused([(items[-1], Unroutable("nobody takes it"))], 0)
    assert flow._journal.faults.reason == "target: nobody takes it"
    assert flow._counts.numbers["refused"] == REFUSED_IN_A_ROW


async def test_one_refusal_of_the_only_message_there_is_may_be_the_targets_fault(hand: Hand) -> None:
    flow = await hand.flow()
    arrive(flow, given(), given())
    items = flow._look(flow._take(0.0))
    flow._gate.outstanding = 2
    flow._refused([(items[0], Unroutable("nobody takes it"))], 0)
    assert not flow._journal.faults, "another one is under way and has no outcome yet"
    flow._gate.outstanding = 1
    flow._refused([(items[1], Unroutable("nobody takes it"))], 0)
    assert flow._journal.faults


async def test_others_that_the_target_took_do_not_acquit_it(hand: Hand) -> None:
    flow = await hand.flow()
    arrive(flow, given(), given())
    items = flow._look(flow._take(0.0))
    flow._gate.outstanding = 2
    flow._refused([(items[0], Unroutable("nobody takes it"))], 1)
    assert flow._journal.faults.reason == "target: nobody takes it"


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize(
    ("error", "tries", "pause"),
    [(Unroutable("no"), 2, 0.1), (PublishRefused("no"), 5, 0.5), (OutcomeUnknown("no"), 10, 0.5)],
)
async def test_a_suspect_is_judged_when_others_have_passed_it(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, error: GatewayError, tries: int, pause: float, passed: bool
) -> None:
    """It is tried a few times first, with pauses that grow."""
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    monkeypatch.setattr(clock, "monotonic", lambda: 1_000.0)
    flow = await hand.flow()
    arrive(flow, given())
    (item,) = flow._look(flow._take(0.0))
    flow._messages([item])
    flow._newest = item.first
    for number in range(tries - 1):
        flow._refused([(item, error)], 0)
        assert item.due == 1_000.0 + min(pause * 2**number, PAUSE_MAX)
        assert flow._again.pop() is item
    flow._newest = item.first + passed
    flow._refused([(item, error)], 0)
    assert (len(flow.dead_letters), len(flow._again)) == ((1, 0) if passed else (0, 1))
    assert item.reason == ("no" if passed else "")


@pytest.mark.parametrize("error", [Unroutable("nobody takes it"), RemoteError(541, "no")])
async def test_poison_does_not_keep_others_from_going_again(hand: Hand, error: GatewayError) -> None:
    flow = await hand.flow()
    arrive(flow, given(), given())
    poison, other = flow._look(flow._take(0.0))
    poison.refusals, flow._newest = 1, 100
    flow._refused([(poison, error), (other, BrokerUnavailable("it is gone"))], 0)
    assert (len(flow.dead_letters), flow._again) == (1, [other])
    assert flow._journal.faults.reason == "target: it is gone"
    assert poison.reason == str(error)


async def test_an_unknown_outcome_marks_what_is_sent_again(hand: Hand) -> None:
    flow = await hand.flow()
    arrive(flow, given(), given(), given())
    items = flow._look(flow._take(0.0))
    errors = OutcomeUnknown("no"), PublishRefused("no"), BrokerUnavailable("no")
    flow._refused(list(zip(items, errors, strict=True)), 0)
    assert [item.resent for item in items] == [True, False, False]
    assert [item.refusals for item in items] == [1, 1, 0], "that it is away says nothing of a message"


async def test_what_is_refused_while_it_stops_goes_back(hand: Hand) -> None:
    flow = await hand.flow()
    delivery = given(message_id="m")
    arrive(flow, delivery)
    items = flow._look(flow._take(0.0))
    flow.deduplicator.launched(items[0])
    await flow.stop(0.0)
    flow._refused([(items[0], BrokerUnavailable("it is gone"))], 0)
    assert (delivery.told, flow.held, flow.octets, flow.waiting) == (Settlement.RELEASE, 0, 0, 0)
    assert not flow.deduplicator


async def test_what_was_undone_while_it_stops_goes_back(hand: Hand) -> None:
    flow = await hand.flow()
    delivery = given(message_id="m")
    arrive(flow, delivery)
    items = flow._look(flow._take(0.0))
    flow.deduplicator.launched(items[0])
    await flow.stop(0.0)
    flow._go_again(items, "")
    assert (delivery.told, flow.held, flow.octets, flow.waiting) == (Settlement.RELEASE, 0, 0, 0)
    assert not flow.deduplicator
    assert not flow._journal.faults


async def test_a_fault_over_one_message_as_it_is_made_costs_that_message(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await hand.flow()
    make = flow._route.message

    def broken(item: Any, annotated: bool) -> Message:
        if item.delivery.message.body == b"1":
            raise RuntimeError("a fault of ours")
        return make(item, annotated)

    monkeypatch.setattr(flow._route, "message", broken)
    arrive(flow, *(given(body=b"%d" % number) for number in range(3)))
    items = flow._look(flow._take(0.0))
    assert [item.delivery.message.body for item, _ in flow._messages(items)] == [b"0", b"2"]
    assert len(flow.dead_letters) == 1
    assert items[1].reason == "internal error: RuntimeError('a fault of ours')"


async def test_what_was_lost_while_it_waited_for_persistent_ones_is_not_sent(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source delivers it again."""
    capabilities = hand.estate.new.capabilities
    assert capabilities is not None
    monkeypatch.setattr(capabilities, "transient_overtakes", True)
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sent: list[bytes] = []

    def publish(exchange: str, routing_key: str, message: Message, **options: Any) -> Any:
        sent.append(message.body)
        return outcome

    monkeypatch.setattr(hand.estate.new, "publish_nowait", publish)
    flow = await hand.flow()
    deliveries = [given(body=b"%d" % number, delivery_mode=2 - (number > 0)) for number in range(3)]
    arrive(flow, *deliveries)
    sending = asyncio.create_task(flow._send_all(flow._look(flow._take(0.0))))
    await until(lambda: sent)
    await asyncio.sleep(0)
    assert sent == [b"0"]
    deliveries[1].lost = True
    outcome.cancel()
    await sending
    assert sent == [b"0", b"2"]
    assert (flow.held, flow.octets) == (2, 2)


async def test_what_cannot_be_read_is_not_persistent(hand: Hand) -> None:
    delivery = given()
    delivery.message = unreadable(b"x")
    flow = await hand.flow()
    arrive(flow, delivery, given(delivery_mode=2), given(delivery_mode=1))
    assert [_is_persistent(item) for item in flow._take(0.0)] == [False, True, False]


# ------------------------------------------------------------------------------- acknowledged before its outcome


class Pending:
    """A target that says nothing yet."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []
        self.done = False

    def publish(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
        """Note it."""
        self.futures.append(asyncio.get_running_loop().create_future())
        if self.done:
            self.futures[-1].set_result(PublishReceipt(False, 312, "NO_ROUTE"))
        return self.futures[-1]


@pytest.mark.parametrize(
    ("more", "size", "told"),
    [
        (2, 1, Settlement.ACCEPT),  # twice the prefetch
        (3, 1, None),
        (0, OCTETS // 2, Settlement.ACCEPT),
        (0, OCTETS // 2 + 1, None),
    ],
)
async def test_what_is_acknowledged_early_is_bounded_by_what_is_held(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, more: int, size: int, told: Settlement | None
) -> None:
    pending = Pending()
    monkeypatch.setattr(hand.estate.new, "publish_nowait", pending.publish)
    flow = await hand.flow(acknowledge="unsafe-on-publish", prefetch=2)
    deliveries = [given(size) for _ in range(2 + more)]
    arrive(flow, *deliveries)
    flow._send(flow._look(flow._take(0.0)))
    assert [delivery.told for delivery in deliveries] == [told] * 2 + [None] * more
    assert (len(pending.futures), flow._gate.outstanding, flow.held) == (2, 2, 2 + more)


async def test_what_was_refused_at_once_is_not_acknowledged_early(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = Pending()
    pending.done = True
    monkeypatch.setattr(hand.estate.new, "publish_nowait", pending.publish)
    flow = await hand.flow(acknowledge="unsafe-on-publish")
    delivery = given()
    arrive(flow, delivery)
    flow._send(flow._look(flow._take(0.0)))
    assert delivery.told is None


async def test_what_was_just_sent_is_let_go_with_the_rest(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for its outcome yet."""
    pending = Pending()
    monkeypatch.setattr(hand.estate.new, "publish_nowait", pending.publish)
    flow = await hand.flow()
    delivery = given()
    arrive(flow, delivery)
    flow._send(flow._look(flow._take(0.0)))
    assert delivery.told is None, "it is acknowledged when the target has it"
    flow.abandon()
    assert pending.futures[0].cancelled()
