"""What suspends an endpoint, what ends that, who hears of it, and how much one that fails gets. The clock is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.errors import Overloaded, StateError
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.schedule import PAUSE_MAX, AttemptOutcome
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.attempts.slots import Health
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.lines import Demand
from gateway.webhooks.targets import LEDGER_EVERY
from tests.webhooks.aims import Aims, PlayedSource, answers_after, with_aims
from tests.webhooks.virtual import now

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)
GONE = SendOutcome(status=410)
UP, HELD = "amqpgw_push_endpoint_up", "amqpgw_push_endpoints_suspended"


def why(source: PlayedSource) -> tuple[str, str] | None:
    """What suspends its endpoint now."""
    found = source.target.suspension(now())
    return None if found is None else (found.state, found.reason)


def until(source: PlayedSource) -> float | None:
    """For how many seconds it is suspended."""
    found = source.target.suspension(now())
    assert found is not None
    return None if found.until is None else round(found.until - now(), 3)


async def proven(aims: Aims, **settings: Any) -> PlayedSource:
    """A source whose endpoint is known to be good, with a window of four."""
    aims.receivers.put("e", answers_after(0.01, OK), **{"concurrency": 4, "breaker_failures": 100, **settings})
    source = await aims.join()
    source.put(*[b"good"] * 12)
    await asyncio.sleep(1)
    assert (source.target.lane.window, source.target.lane.health) == (4, Health.GOOD)
    aims.receivers.requests.clear()
    source.next_steps.clear()
    return source


# -------------------------------------------------------------------------------------------------- what suspends it


@with_aims
async def test_all_sources_hear_once_of_each_change(aims: Aims) -> None:
    aims.receivers.put("e")
    s, t = await aims.join("s"), await aims.join("t")
    for state in (EndpointState.PAUSED, EndpointState.DISABLED, EndpointState.ACTIVE):
        aims.receivers.set_state("e", state)
        await asyncio.sleep(0.1)
        s.target.look()
        up = state is EndpointState.ACTIVE
        assert (aims.value(UP, endpoint="e"), aims.value(HELD)) == (up, not up)
    assert s.heard == [Demand.MUCH, Demand.NOTHING, Demand.MUCH]
    assert t.heard == [Demand.NOTHING, Demand.MUCH]


@with_aims
async def test_a_state_without_a_reason_says_what_it_is(aims: Aims) -> None:
    aims.receivers.put("e", state=EndpointState.UNVERIFIED)
    source = await aims.join()
    assert why(source) == ("unverified", "the endpoint is unverified")
    assert until(source) is None
    aims.receivers.set_state("e", EndpointState.PAUSED)
    await asyncio.sleep(0.1)
    assert why(source) == ("paused", "now paused")


@with_aims
async def test_it_goes_on_in_the_moment_in_which_the_pause_is_over(aims: Aims) -> None:
    answers = [SendOutcome(status=429, retry_after="8"), OK]
    aims.receivers.put("e", lambda items: answers.pop(0))
    source = await aims.join()
    source.put(b"1", b"2")
    await asyncio.sleep(1)
    assert (why(source), until(source)) == (("asked_to_wait", "429: too many requests"), 7.0)
    assert aims.value(UP, endpoint="e") == 0
    await asyncio.sleep(20)
    assert aims.times() == [0, 8]
    assert source.heard == [Demand.MUCH, Demand.NOTHING, Demand.LITTLE, Demand.MUCH]


@with_aims
async def test_of_two_pauses_the_longer_one_counts(aims: Aims) -> None:
    source = await proven(aims)
    outcomes = [
        SendOutcome(status=503, retry_after="20"),
        SendOutcome(status=429, retry_after="60"),
        SendOutcome(status=503, retry_after="40"),
    ]
    aims.receivers.answers["e"] = answers_after(0.1, *outcomes)
    source.put(b"1", b"2", b"3")
    await asyncio.sleep(1.1)
    assert (why(source), until(source)) == (("asked_to_wait", "429: too many requests"), 59.0)


@with_aims
async def test_while_the_gateway_is_too_busy_it_rests(aims: Aims) -> None:
    """That says nothing of the endpoint."""
    source = await proven(aims)
    answers = [SendOutcome(error=Overloaded("too many")), OK, OK]
    aims.receivers.answers["e"] = lambda items: answers.pop(0)
    source.put(b"1")
    await asyncio.sleep(0.1)
    assert why(source) == ("asked_to_wait", "the gateway has too many requests under way: too many")
    assert [each.outcome for each in source.next_steps] == [AttemptOutcome.NOT_TRIED]
    assert (source.target.lane.health, source.target.last_error) == (Health.GOOD, "")
    source.put(b"2")
    await asyncio.sleep(5)
    assert aims.times() == [0, 1.5]


@with_aims
async def test_while_the_ledger_is_away_nothing_begins_and_it_is_looked_for_now_and_then(aims: Aims) -> None:
    aims.receivers.put("e")
    source = await aims.join()
    aims.is_writable = False
    source.put(b"1")
    assert (why(source), until(source)) == (("ledger", "the ledger cannot be written now"), LEDGER_EVERY)
    assert source.target.demand is Demand.NOTHING
    await asyncio.sleep(3.2)
    assert aims.receivers.attempts() == []
    aims.is_writable = True
    await asyncio.sleep(LEDGER_EVERY)
    assert aims.receivers.bodies() == [b"1"]


@pytest.mark.parametrize("outcome", [FAILS, SendOutcome(status=503, retry_after="1000")])
def test_who_says_that_it_is_well_has_it_asked_at_once(outcome: SendOutcome) -> None:
    @with_aims
    async def main(aims: Aims) -> None:
        aims.receivers.put("e", outcome, breaker_failures=1)
        source = await aims.join()
        source.put(b"1", b"2")
        await asyncio.sleep(1)
        assert len(aims.times()) == 1
        aims.receivers.answers["e"] = OK
        source.target.recheck()
        await asyncio.sleep(0.1)
        assert aims.times() == [0, 1]
        assert why(source) is None

    main()


# ----------------------------------------------------------------------------------------------------- it is gone


@with_aims
async def test_one_that_is_gone_gets_nothing_while_it_is_being_disabled(aims: Aims) -> None:
    """Another answer that comes meanwhile changes nothing."""
    disable, may_go = aims.receivers.disable, asyncio.Event()

    async def slow(name: str, reason: str, url: str) -> Endpoint:
        await may_go.wait()
        return await disable(name, reason, url)

    source = await proven(aims)
    aims.receivers.disable = slow  # type: ignore[method-assign]

    async def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        late = items[0].message.body == b"late"
        await asyncio.sleep(1 if late else 0.1)
        return OK if late else GONE

    aims.receivers.answers["e"] = answer
    source.put(b"gone", b"late")
    await asyncio.sleep(0.5)
    source.put(b"next")
    for _ in range(2):
        assert why(source) == ("disabled", "410: the endpoint is gone and says so")
        assert len(aims.times()) == 2
        await asyncio.sleep(1)
    assert [each.outcome for each in source.next_steps] == [AttemptOutcome.DELIVERED]
    may_go.set()
    await asyncio.sleep(0.1)
    assert len(source.next_steps) == 2
    assert why(source) == ("disabled", "now disabled")
    assert list(aims.receivers.disabled) == ["e"]
    aims.receivers.answers["e"] = OK
    aims.receivers.set_state("e", EndpointState.ACTIVE)
    await asyncio.sleep(0.1)
    assert aims.receivers.bodies()[-1] == b"next"


@with_aims
async def test_one_that_cannot_be_disabled_rests_and_is_asked_again(aims: Aims) -> None:
    async def no(name: str, reason: str, url: str) -> Endpoint:
        raise StateError("the file defines it")

    aims.receivers.disable = no  # type: ignore[method-assign]
    aims.receivers.put("e", answers_after(0.0, GONE, OK))
    source = await aims.join()
    source.put(b"1", b"2")
    await asyncio.sleep(1)
    assert (why(source), until(source)) == (
        ("asked_to_wait", "410: the endpoint is gone and says so"),
        PAUSE_MAX - 1,
    )
    await asyncio.sleep(2 * PAUSE_MAX)
    assert aims.times() == [0, PAUSE_MAX]
    assert aims.receivers.bodies() == [b"2"]


# ---------------------------------------------------------------------------------------------------- it fails


@with_aims
async def test_a_new_one_that_fails_is_given_little_at_once(aims: Aims) -> None:
    aims.receivers.put("e", FAILS, breaker_failures=100)
    source = await aims.join()
    source.put(b"x")
    await asyncio.sleep(0.1)
    assert source.heard == [Demand.MUCH, Demand.LITTLE]
    assert source.target.last_error == "500: the endpoint failed"
    aims.receivers.answers["e"] = OK
    source.put(b"x")
    await asyncio.sleep(0.1)
    assert source.heard[2:] == [Demand.MUCH]
    assert source.target.last_error == ""


@pytest.mark.parametrize(("seconds", "demand"), [(1.0, Demand.MUCH), (1.25, Demand.LITTLE)])
def test_one_that_was_well_is_given_less_when_it_has_failed_for_a_while(seconds: float, demand: Demand) -> None:
    """Counted from the beginning of the first request that failed."""

    @with_aims
    async def main(aims: Aims) -> None:
        source = await proven(aims, concurrency=4)
        aims.receivers.answers["e"] = answers_after(seconds, FAILS)
        for _ in range(2):
            source.put(b"x")
            await asyncio.sleep(seconds)
        await asyncio.sleep(0.01)
        assert source.target.lane.health is Health.FAILING
        assert (source.target.demand, why(source)) == (demand, None)

    main()


@with_aims
async def test_one_that_fails_again_later_has_a_while_again(aims: Aims) -> None:
    source = await proven(aims)
    for _ in range(2):
        aims.receivers.answers["e"] = FAILS
        for health in (Health.GOOD, Health.FAILING):
            source.put(b"x")
            await asyncio.sleep(0.1)
            assert (source.target.lane.health, source.target.demand) == (health, Demand.MUCH)
        aims.receivers.answers["e"] = OK
        source.put(b"x")
        await asyncio.sleep(10)


@with_aims
async def test_while_its_breaker_is_half_open_it_is_given_little(aims: Aims) -> None:
    source = await proven(aims, breaker_failures=1)
    aims.receivers.answers["e"] = FAILS
    source.put(b"x")
    await asyncio.sleep(1)
    assert why(source) == ("breaker_open", "1 requests in a row failed")
    assert (until(source), source.target.lane.health) == (9, Health.FAILING)
    await asyncio.sleep(9.5)
    assert source.heard[-1] is Demand.LITTLE
    aims.receivers.answers["e"] = answers_after(5.0, OK)
    source.put(b"1", b"2", b"3")
    await asyncio.sleep(4)
    assert len(aims.times()) == 2, "one probe at a time"
    await asyncio.sleep(2)
    assert source.heard[-2:] == [Demand.LITTLE, Demand.MUCH]
    assert len(aims.times()) == 4


@with_aims
async def test_a_probe_that_is_cut_off_leaves_its_turn_to_another_one(aims: Aims) -> None:
    aims.receivers.put("e", FAILS, breaker_failures=1)
    s, t = await aims.join("s"), await aims.join("t")
    s.put(b"s")
    await asyncio.sleep(11)
    aims.receivers.answers["e"] = answers_after(1_000.0, OK)
    s.put(b"s")
    await asyncio.sleep(1)
    await aims.targets.cut(s.target, s)
    aims.receivers.answers["e"] = OK
    t.put(b"t")
    await asyncio.sleep(0.1)
    assert aims.receivers.bodies() == [b"t"]


@with_aims
async def test_what_fails_while_the_breaker_is_open_opens_it_no_longer(aims: Aims) -> None:
    source = await proven(aims, breaker_failures=1)

    async def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(float(items[0].message.body))
        return FAILS

    aims.receivers.answers["e"] = answer
    source.put(b"1", b"4")
    await asyncio.sleep(5)
    assert until(source) == 6
    assert source.target.lane.health is Health.FAILING


@with_aims
async def test_one_that_failed_before_the_start_is_no_new_one(aims: Aims) -> None:
    aims.receivers.put("e", answers_after(1.0, OK))
    source = await aims.join()
    source.target.suspect()
    source.target.look()
    assert (source.target.lane.health, source.target.demand) == (Health.FAILING, Demand.LITTLE)
    assert source.target.last_error == "it failed before this process began"
    source.target.lane.health = Health.NEW
    source.target.last_error = "500"
    source.target.suspect()
    assert source.target.last_error == "500"


@with_aims
async def test_what_another_subscription_knows_counts_for_less_than_what_it_does_here(aims: Aims) -> None:
    aims.receivers.put("e", answers_after(1.0, OK))
    source = await aims.join()
    source.put(b"x")
    source.target.suspect()
    assert source.target.lane.health is Health.NEW, "its first request is under way"
    await asyncio.sleep(2)
    source.target.suspect()
    assert (source.target.lane.health, source.target.last_error) == (Health.GOOD, "")


# ------------------------------------------------------------------------------------------------------ the log


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says of suspensions."""
    caplog.set_level("INFO")

    def found() -> list[str]:
        names = {"push.suspended": "suspended", "push.resumed": "resumed"}
        return [names[record.getMessage()] for record in caplog.records if record.getMessage() in names]

    return found


def test_the_log_has_each_reason_once_and_not_the_ledger(told: Callable[[], list[str]]) -> None:
    @with_aims
    async def main(aims: Aims) -> None:
        aims.receivers.put("e", FAILS, breaker_failures=1)
        source = await aims.join()
        aims.is_writable = False
        source.target.look()
        await asyncio.sleep(2)
        aims.is_writable = True
        await asyncio.sleep(2)
        assert (source.heard, told()) == ([Demand.MUCH, Demand.NOTHING, Demand.MUCH], [])
        for _ in range(3):  # the probes fail, too
            source.put(b"x")
            await asyncio.sleep(50)
        assert source.heard[3:] == [Demand.NOTHING, Demand.LITTLE] * 3
        assert told() == ["suspended"]
        aims.receivers.answers["e"] = OK
        source.put(b"x")
        await asyncio.sleep(50)
        assert told() == ["suspended", "resumed"]
        for _ in range(2):
            aims.receivers.set_state("e", EndpointState.PAUSED)
            await asyncio.sleep(1)
            aims.receivers.set_state("e", EndpointState.ACTIVE)
            await asyncio.sleep(1)
        assert told() == ["suspended", "resumed"] * 3

    main()
