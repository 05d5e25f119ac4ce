"""How a replay waits, and how it ends."""

from __future__ import annotations

import pytest

from gateway.errors import LedgerUnavailable, Unroutable
from gateway.replays import runner
from gateway.replays.jobs import Job, JobState, Wish
from gateway.replays.requests import DeliveriesSource, MessagesSource, ReplayRequest, ReplaySource, ReplayTarget
from gateway.replays.runner import Interrupted, _outcome
from gateway.replays.sources import refusal_of
from gateway.runtime.clock import clock
from tests.replays.bench import Bench


@pytest.mark.parametrize(
    ("seconds", "rests", "looks"),
    [(0.5, [0.5], 0), (2.0, [2.0], 0), (5.0, [2.0, 2.0, 1.0], 2), (0.0, [], 0)],
)
async def test_a_long_wait_looks_for_wishes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rests: list[float], looks: int
) -> None:
    now, rested = 100.0, list[float]()

    async def rest(seconds: float) -> bool:
        nonlocal now
        now += seconds
        rested.append(seconds)
        return False

    monkeypatch.setattr(clock, "monotonic", lambda: now)
    bench = Bench()
    monkeypatch.setattr(bench.runner, "_rest", rest)
    bench.faults["reread"] = [LedgerUnavailable("no answer")]
    await bench.runner._wait(seconds)
    assert rested == rests
    assert bench.done.count("reread") == looks
    assert runner.LOOK_EVERY == 2.0


@pytest.mark.parametrize("seconds", [0.0, 5.0])
async def test_a_wait_ends_with_a_wish_that_is_known(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    bench = Bench(wish=Wish.PAUSE)

    async def rest(seconds: float) -> bool:
        return True

    monkeypatch.setattr(bench.runner, "_rest", rest)
    with pytest.raises(Interrupted):
        await bench.runner._wait(seconds)


async def test_who_is_called_while_it_rests_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    assert not await bench.runner._rest(0.0)
    bench.runner.look()
    assert await bench.runner._rest(20.0)
    assert not await bench.runner._rest(0.0)


@pytest.mark.parametrize(
    ("sent", "skipped", "refused", "state", "reason"),
    [
        (3, 0, {}, JobState.DONE, ""),
        (0, 0, {}, JobState.DONE, ""),
        (2, 0, {"unroutable": 1}, JobState.DONE, "1 of 3 messages were not sent: unroutable 1."),
        (0, 2, {"unroutable": 1}, JobState.DONE, "1 of 3 messages were not sent: unroutable 1."),
        (
            0,
            0,
            {"unroutable": 2, "state": 1},
            JobState.FAILED,
            "none of the 3 messages was sent: state 1, unroutable 2.",
        ),
    ],
)
def test_how_a_replay_ends(sent: int, skipped: int, refused: dict[str, int], state: JobState, reason: str) -> None:
    request = ReplayRequest(source=ReplaySource(deliveries=DeliveriesSource()))
    job = Job(id="r", request=request, found=3, sent=sent, skipped=skipped, refused=refused)
    assert _outcome(job) == (state, reason)
    job.request = ReplayRequest(source=request.source, target=ReplayTarget(purge=True))
    assert _outcome(job) == (state, reason.replace("sent", "deleted"))


def test_what_may_have_been_sent_is_named_beside_refusals() -> None:
    request = ReplayRequest(source=ReplaySource(messages=MessagesSource()))
    _, reason = _outcome(Job(id="r", request=request, found=2, sent=1, refused={"unroutable": 1}, flying=("key",)))
    assert reason == (
        "1 of 2 messages were not sent: unroutable 1. And messages that may have been sent, and have not come back to "
        "the queue: 1."
    )


def test_a_hint_where_bodies_are_missing() -> None:
    request = ReplayRequest(source=ReplaySource(messages=MessagesSource()))
    _, reason = _outcome(Job(id="r", request=request, found=1, refused={"no_body": 1}))
    assert reason.startswith('none of the 1 messages was sent: no_body 1. retention.bodies = "days" keeps')


def test_a_refusal_is_short() -> None:
    refusal = refusal_of("id", Unroutable("y" * 500))
    assert (refusal.id, refusal.code, len(refusal.detail)) == ("id", "unroutable", 300)
