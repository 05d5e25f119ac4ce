"""An endpoint at work for several subscriptions: who is served when, and what ends with whom. The clock is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import OutboundTimeout
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.schedule import AttemptOutcome
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.attempts.slots import Health
from gateway.webhooks.endpoint import Endpoint
from gateway.webhooks.targets import LOOK_EVERY, REST
from tests.webhooks.aims import Aims, PlayedSource, answers_after, with_aims
from tests.webhooks.virtual import now, run

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)
UP, HELD = "amqpgw_push_endpoint_up", "amqpgw_push_endpoints_suspended"


# ------------------------------------------------------------------------------------------- who is served, and ends


@with_aims
async def test_sources_take_turns_and_one_that_has_nothing_keeps_no_other_waiting(aims: Aims) -> None:
    aims.receivers.put("e", answers_after(1.0, OK), concurrency=1)
    idle, s, t = [await aims.join(name) for name in ("idle", "s", "t")]
    s.put(b"s1", b"s2", b"s3")
    t.put(b"t1", b"t2", b"t3")
    await asyncio.sleep(5.5)
    assert aims.receivers.bodies() == [b"s1", b"t1", b"s2", b"t2", b"s3"]
    await asyncio.sleep(5)
    assert len(aims.receivers.bodies()) == 6
    assert idle.next_steps == []
    assert [len(each.next_steps) for each in (s, t)] == [3, 3]
    assert not s.target._requests, "nothing is kept of requests that are over"


@with_aims
async def test_one_whose_messages_are_gone_after_all_keeps_no_other_waiting(aims: Aims) -> None:
    """Their broker took them back just now."""
    aims.receivers.put("e", answers_after(1.0, OK), concurrency=1)
    s, t = await aims.join("s"), await aims.join("t")
    take = s.take

    def nothing(most: int) -> list[PushDelivery]:
        take(most)
        return []

    s.take = nothing  # type: ignore[method-assign]
    s.waiting.append(PushDelivery())
    t.put(b"t")
    await asyncio.sleep(0.1)
    assert aims.receivers.attempts() == [(b"t", 1)]


@with_aims
async def test_the_batch_that_is_ripe_first_goes_first(aims: Aims) -> None:
    aims.receivers.put("e", batch_max=10, batch_wait=2)
    s, t = await aims.join("s"), await aims.join("t")
    begun = now()
    t.put(b"t")
    await asyncio.sleep(1)
    s.put(b"s")
    await asyncio.sleep(5)
    found = [(round(at - begun, 3), items[0].message.body) for at, items in aims.receivers.requests["e"]]
    assert found == [(2.0, b"t"), (3.0, b"s")]


@pytest.mark.parametrize(("form", "sizes"), [("json", [3]), ("cloudevents-batch", [3]), ("raw", [1, 1, 1])])
def test_only_forms_that_carry_several_messages_are_batched(form: str, sizes: list[int]) -> None:
    @with_aims
    async def main(aims: Aims) -> None:
        aims.receivers.put("e", format=form, batch_max=10, concurrency=1)
        source = await aims.join()
        source.put(b"1", b"2", b"3")
        await asyncio.sleep(1)
        assert [len(items) for _, items in aims.receivers.requests["e"]] == sizes

    main()


@with_aims
async def test_before_its_endpoint_is_read_a_batch_has_one_message(aims: Aims) -> None:
    source = await aims.join()
    assert source.target.batch == 1


@with_aims
async def test_a_source_that_is_cut_off_ends_its_own_requests_alone(aims: Aims) -> None:
    aims.receivers.put("e", answers_after(0.01, OK), concurrency=4)
    s, t = await aims.join("s"), await aims.join("t")
    s.put(*[b"%d" % number for number in range(8)])
    await asyncio.sleep(5)
    aims.receivers.put("e", answers_after(30.0, OK), concurrency=4)
    s.put(b"s1", b"s2")
    t.put(b"t")
    await asyncio.sleep(1)
    assert aims.targets.slots.in_flight == 3
    await aims.targets.cut(s.target, s)
    assert (sorted(s.dropped_bodies), t.dropped_bodies) == ([b"s1", b"s2"], [])
    assert aims.targets.slots.in_flight == 1
    s.put(b"s3")
    await asyncio.sleep(60)
    assert aims.targets.get("e") is t.target
    assert aims.receivers.bodies()[-1] == b"t"
    assert (len(t.next_steps), aims.targets.slots.in_flight) == (1, 0)
    assert (b"s3", 1) not in aims.receivers.attempts()


@with_aims
async def test_the_last_source_takes_the_endpoint_with_it(aims: Aims) -> None:
    """With its metrics, and what its timers would have done."""
    aims.receivers.put("e", FAILS, breaker_failures=1)
    s, t = await aims.join("s"), await aims.join("t")
    s.put(b"s")
    await asyncio.sleep(1)
    assert (aims.value(UP, endpoint="e"), aims.value(HELD)) == (0, 1)
    old = s.target
    await aims.targets.cut(old, t)
    assert (len(aims.targets), aims.value(HELD)) == (1, 1)
    await aims.targets.cut(old, s)
    assert (len(aims.targets), aims.targets.get("e")) == (0, None)
    await asyncio.sleep(1_000)
    assert (aims.value(UP, endpoint="e"), aims.value(HELD)) == (None, 0)
    old.pump()
    assert len(aims.times()) == 1
    again = await aims.join("s")
    assert again.target is not old
    assert aims.value(UP, endpoint="e") == 1, "nothing is known of how it was"
    await aims.targets.cut(old, s)
    assert aims.targets.get("e") is again.target


@with_aims
async def test_a_source_whose_start_is_canceled_leaves_nothing(aims: Aims) -> None:
    async def never(name: str) -> Endpoint:
        await asyncio.sleep(3_600)
        raise AssertionError

    aims.receivers.get = never  # type: ignore[method-assign]
    joining = asyncio.get_running_loop().create_task(aims.targets.join("e", PlayedSource("s", aims.targets, "e")))
    await asyncio.sleep(0.1)
    assert len(aims.targets) == 1
    joining.cancel()
    await asyncio.wait([joining])
    assert joining.cancelled()
    assert len(aims.targets) == 0


def test_at_the_end_requests_are_cut_off_and_none_begins() -> None:
    async def main() -> None:
        aims = Aims()
        aims.receivers.put("e", answers_after(30.0, OK))
        aims.receivers.put("f", FAILS, breaker_failures=1)
        e, f = await aims.join("s", "e"), await aims.join("t", "f")
        e.put(b"1", b"2")
        f.put(b"1", b"2")
        await asyncio.sleep(1)
        target = e.target
        await aims.targets.close()
        assert e.dropped_bodies == [b"1"]
        assert (aims.targets.slots.in_flight, len(aims.targets)) == (0, 0)
        target.pump()
        await asyncio.sleep(1_000)
        assert (len(aims.times("e")), len(aims.times("f"))) == (1, 1)

    run(main())


# --------------------------------------------------------------------------------------------------------- places


@with_aims
async def test_one_that_is_not_answered_for_a_second_is_slow(aims: Aims) -> None:
    aims.receivers.put("e", answers_after(2.0, OK))
    source = await aims.join()
    for _ in range(2):
        source.put(b"x")
        await asyncio.sleep(3)
    assert source.target.lane.health is Health.GOOD
    await asyncio.sleep(60)
    source.put(b"x")
    await asyncio.sleep(0.9)
    before = source.target.lane.health
    await asyncio.sleep(0.5)
    assert (before, source.target.lane.health) == (Health.GOOD, Health.SLOW)


def test_a_place_that_becomes_free_goes_to_the_next_at_once() -> None:
    async def main() -> None:
        aims = Aims(places=2)  # of which endpoints that nobody knows may hold one
        for name in "ef":
            aims.receivers.put(name, answers_after(1.1, OK))
        e, f = await aims.join("s", "e"), await aims.join("t", "f")
        begun = now()
        e.put(b"x")
        f.put(b"x")
        await asyncio.sleep(3)
        assert [round(at - begun, 3) for name in "ef" for at, _ in aims.receivers.requests[name]] == [0, 1.1]
        await aims.targets.close()

    run(main())


def test_a_place_that_a_request_leaves_that_was_cut_off_is_not_lost() -> None:
    async def main() -> None:
        aims = Aims(places=2)
        aims.receivers.put("good")
        for name in "ef":
            aims.receivers.put(name, answers_after(60.0, OK))
        good, e, f = [await aims.join(name, name) for name in ("good", "e", "f")]
        good.put(b"x")
        await asyncio.sleep(0.1)
        aims.receivers.answers["good"] = answers_after(60.0, OK)
        for source in (good, e, f):
            source.put(b"x")
        await asyncio.sleep(0.1)
        assert f.target.lane.queued
        await aims.targets.cut(e.target, e)
        await asyncio.sleep(LOOK_EVERY)
        assert len(aims.times("f")) == 1
        await aims.targets.close()

    run(main())


@with_aims
async def test_those_that_fail_begin_one_after_the_other(aims: Aims) -> None:
    sources = []
    for name in "efg":
        aims.receivers.put(name, answers_after(0.1, OK))
        sources.append(await aims.join(name, name))
        sources[-1].target.suspect()
    begun = now()
    for source in sources:
        source.put(b"x")
    await asyncio.sleep(0.05)
    at = [at - begun for name in "efg" for at, _ in aims.receivers.requests[name]]
    assert at == pytest.approx([0, REST, 2 * REST])


def test_one_that_wants_nothing_more_does_not_wait_in_line() -> None:
    """Because it is suspended, its messages are gone, or nobody is served."""

    async def main() -> None:
        aims = Aims(places=2)
        aims.receivers.put("e", answers_after(60.0, OK))
        e = await aims.join("s", "e")
        e.put(b"x")
        waiting = []
        for name in "abc":
            aims.receivers.put(name)
            waiting.append(await aims.join(name, name))
            waiting[-1].put(b"x")
        await asyncio.sleep(1)
        lanes = [each.target.lane for each in waiting]
        assert [lane.queued for lane in lanes] == [True] * 3
        aims.receivers.endpoints.pop("a")
        aims.receivers.tell("a")
        await asyncio.sleep(0.1)
        assert [lane.queued for lane in lanes] == [False, True, True]
        waiting[1].waiting.clear()
        waiting[1].target.pump()
        assert [lane.queued for lane in lanes] == [False, False, True]
        await aims.targets.cut(waiting[2].target, waiting[2])
        assert [lane.queued for lane in lanes] == [False] * 3
        await aims.targets.close()

    run(main())


# -------------------------------------------------------------------------------------------------------- outcomes


@with_aims
async def test_the_next_request_does_not_wait_until_the_last_one_is_written_down(aims: Aims) -> None:
    aims.receivers.put("e", concurrency=1)
    source = await aims.join()
    source.finishing.clear()
    source.put(b"1", b"2")
    await asyncio.sleep(1)
    assert (aims.receivers.bodies(), source.next_steps) == ([b"1", b"2"], [])
    source.finishing.set()
    await asyncio.sleep(0.1)
    assert [each.outcome for each in source.next_steps] == [AttemptOutcome.DELIVERED] * 2


@with_aims
async def test_what_waits_when_the_outcome_is_written_down_goes_next(aims: Aims) -> None:
    aims.receivers.put("e")
    source = await aims.join()
    finished = source.finished

    async def back(items: Any, outcome: Any, next_steps: Any) -> None:
        await asyncio.sleep(0.1)
        await finished(items, outcome, next_steps)
        if len(source.next_steps) == 1:
            source.waiting += items

    source.finished = back  # type: ignore[method-assign]
    source.put(b"x")
    await asyncio.sleep(1)
    assert aims.receivers.bodies() == [b"x", b"x"]


@with_aims
async def test_requests_and_what_is_tried_again_are_counted(aims: Aims) -> None:
    answers = [SendOutcome(status=500, undeliverable={1: "it has no form"}), FAILS, OK]
    aims.receivers.put("e", lambda items: answers.pop(0), batch_max=3, breaker_failures=100, schedule=[0, 1], rate=1)
    source = await aims.join()
    source.put(b"1", b"2", b"3")
    await asyncio.sleep(2)
    assert aims.value("amqpgw_retries_total", what="push", reason="status_5xx") == 2
    source.put(b"4", attempt=2)
    await asyncio.sleep(2)
    source.put(b"5")
    await asyncio.sleep(2)
    assert [each.outcome.value for each in source.next_steps] == [
        "retry", "undeliverable", "retry", "retry", "delivered",
    ]  # fmt: skip
    assert aims.value("amqpgw_push_requests_total", endpoint="e", outcome="retry") == 2
    assert aims.value("amqpgw_push_requests_total", endpoint="e", outcome="delivered") == 1
    assert aims.value("amqpgw_retries_total", what="push", reason="status_5xx") == 2


@with_aims
async def test_a_request_without_an_outcome_is_a_failure(aims: Aims) -> None:
    aims.receivers.put("e", SendOutcome())
    source = await aims.join()
    source.put(b"x")
    await asyncio.sleep(1)
    assert [(each.outcome, each.why) for each in source.next_steps] == [
        (AttemptOutcome.RETRY, "0: the endpoint failed"),
    ]


@with_aims
async def test_after_an_answer_that_was_cut_the_next_request_has_a_connection_of_its_own(aims: Aims) -> None:
    answers = [OK, SendOutcome(error=OutboundTimeout("late")), SendOutcome(status=200, truncated=True), OK, OK]
    aims.receivers.put("e", lambda items: answers.pop(0))
    source = await aims.join()
    for _ in range(5):
        source.put(b"x")
        await asyncio.sleep(0.1)
    assert aims.receivers.fresh["e"] == [False, False, True, True, False]
