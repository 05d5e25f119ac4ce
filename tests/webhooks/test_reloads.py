"""What an endpoint at work does when its settings change, or cannot be read. The clock is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import StateError
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.targets import TROUBLE_EVERY
from tests.webhooks.aims import Aims, answers_after, with_aims
from tests.webhooks.virtual import now

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)


@with_aims
async def test_an_endpoint_that_cannot_be_read_is_read_again_and_goes_on_as_it_was_known(aims: Aims) -> None:
    get, reads = aims.receivers.get, 0

    async def no(name: str) -> Endpoint:
        nonlocal reads
        reads += 1
        raise StateError("it is locked")

    aims.receivers.put("e")
    aims.receivers.get = no  # type: ignore[method-assign]
    source = await aims.join()
    held = source.target.suspension(now())
    assert held is not None
    assert (held.state, held.reason) == ("missing", "it is locked")
    source.put(b"1")
    await asyncio.sleep(TROUBLE_EVERY + 1)
    assert reads == 2
    aims.receivers.get = get  # type: ignore[method-assign]
    await asyncio.sleep(TROUBLE_EVERY)
    assert (aims.receivers.bodies(), source.target.trouble) == ([b"1"], "")
    aims.receivers.get = no  # type: ignore[method-assign]
    aims.receivers.tell("e")
    await asyncio.sleep(0.1)
    assert source.target.trouble == "it is locked"
    source.put(b"2")
    await asyncio.sleep(1)
    assert aims.receivers.bodies() == [b"1", b"2"]
    await aims.targets.cut(source.target, source)
    await asyncio.sleep(10 * TROUBLE_EVERY)
    assert reads == 3, "one that serves nobody is not read"


@with_aims
async def test_other_settings_count_at_once(aims: Aims) -> None:
    aims.receivers.put("e", answers_after(1.0, OK), concurrency=1)
    source = await aims.join()
    source.put(*[b"%d" % number for number in range(6)])
    await asyncio.sleep(2.5)
    assert aims.receivers.most["e"] == 1
    aims.receivers.put("e", answers_after(1.0, OK), concurrency=2)
    await asyncio.sleep(5)
    assert (aims.receivers.most["e"], len(aims.receivers.bodies())) == (2, 6)
    aims.receivers.put("e", FAILS, schedule=[0, 77])
    source.put(b"x")
    await asyncio.sleep(1)
    assert source.next_steps[-1].wait == 77
    aims.targets.changed("unknown")


@pytest.mark.parametrize(
    ("settings", "is_held"),
    [({"rate": 50}, True), ({"url": "https://moved.example/"}, False), ({"breaker_failures": 2}, False)],
)
@pytest.mark.parametrize("outcome", [FAILS, SendOutcome(status=503, retry_after="1000")])
def test_what_is_known_of_it_is_forgotten_where_it_has_moved_or_is_judged_in_another_way(
    settings: dict[str, Any], *, is_held: bool, outcome: SendOutcome
) -> None:
    @with_aims
    async def main(aims: Aims) -> None:
        aims.receivers.put("e", outcome, breaker_failures=1)
        source = await aims.join()
        source.put(b"x")
        await asyncio.sleep(1)
        assert source.target.suspension(now()) is not None
        aims.receivers.put("e", outcome, **{"breaker_failures": 1, **settings})
        await asyncio.sleep(0.1)
        assert (source.target.suspension(now()) is not None) == is_held

    main()


@with_aims
async def test_a_rate_spaces_requests_and_another_one_counts_from_now_on(aims: Aims) -> None:
    aims.receivers.put("e", rate=2)
    source = await aims.join()
    source.put(*[b"%d" % number for number in range(4)])
    await asyncio.sleep(1.2)
    assert aims.times() == [0, 0.4, 0.9], "what it may do at once after a rest counts against the next one"
    aims.receivers.put("e", rate=0.01)
    await asyncio.sleep(1)
    aims.receivers.put("e", rate=0.5)
    source.put(b"x")
    source.put(b"y")
    await asyncio.sleep(10)
    assert aims.times()[3:] == [1.4, 4.2, 6.2]
    aims.receivers.put("e")
    await asyncio.sleep(0.1)
    source.put(b"1", b"2")
    await asyncio.sleep(0.1)
    assert len(aims.times()) == 8, "without a rate nothing waits"


@with_aims
async def test_an_endpoint_that_is_read_when_its_last_subscription_ends_has_no_metrics(aims: Aims) -> None:
    get = aims.receivers.get
    up, held = "amqpgw_push_endpoint_up", "amqpgw_push_endpoints_suspended"

    async def slow(name: str) -> Endpoint:
        await asyncio.sleep(1)
        return await get(name)

    aims.receivers.put("e")
    source = await aims.join()
    aims.receivers.get = slow  # type: ignore[method-assign]
    aims.receivers.set_state("e", EndpointState.PAUSED)
    await asyncio.sleep(0.5)
    await aims.targets.cut(source.target, source)
    assert (aims.value(up, endpoint="e"), aims.value(held)) == (None, 0)
    await asyncio.sleep(5)
    assert (aims.value(up, endpoint="e"), aims.value(held)) == (None, 0)
