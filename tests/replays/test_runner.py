"""A replay at work, step by step: what is written down when, what is waited for, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import (
    BrokerUnavailable,
    EntriesRefused,
    LedgerUnavailable,
    NotFound,
    Unroutable,
    Unsupported,
)
from gateway.replays import runner
from gateway.replays.items import ReplayItem
from gateway.replays.jobs import JobState, Wish
from gateway.replays.targets import Later
from tests.replays.bench import Bench


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("PAUSE_MIN", 0.001), ("PAUSE_MAX", 0.002), ("LOOK_EVERY", 0.005)):
        monkeypatch.setattr(runner, name, seconds)


async def test_each_step_is_written_down_before_the_next() -> None:
    bench = Bench(2)
    job = await bench.run()
    assert bench.done == [
        "parts", "check", "save", "take", "save", "send", "record", "passed", "refused", "close", "save",
    ]  # fmt: skip
    flying = [saved.flying for saved in bench.saved]
    assert flying == [(), ("key 0", "key 1"), ()]
    assert [saved.state for saved in bench.saved] == [JobState.RUNNING, JobState.RUNNING, JobState.DONE]
    assert (job.found, job.sent, job.resent, job.total, job.position) == (2, 2, 0, 2, "2")
    assert (job.ended_at > 0, bench.ended) == (True, ["r1"])


@pytest.mark.parametrize(("rate", "most"), [(0.0, 500), (3.0, 1), (40.0, 10), (4_000.0, 500)])
async def test_a_rate_makes_chunks_smaller(rate: float, most: int) -> None:
    bench = Bench(1, rate=rate)
    await bench.run()
    assert bench.most == [most]


async def test_a_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(3, rate=4.0)
    waits: list[float] = []

    async def waited(seconds: float) -> None:
        waits.append(seconds)
        ahead.pop()

    monkeypatch.setattr(bench.runner, "_wait", waited)
    ahead, took = [0.0, 5.0, 7.0], list[int]()
    throttle: Any = SimpleNamespace(ready=lambda now: now + ahead[-1], take=took.append)
    bench.runner._throttle = throttle
    assert (await bench.run()).sent == 3
    assert [round(seconds) for seconds in waits] == [7, 5]
    assert took == [1, 1, 1]


async def test_a_total_that_is_not_all_is_none() -> None:
    bench = Bench(2)
    bench.whole = False
    assert (await bench.run()).total is None


async def test_what_is_refused_is_named_by_page_and_counted_by_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK", 2)
    bench = Bench(6)
    codes = {"key 0": Unroutable("nobody"), "key 1": Unsupported("no"), "key 4": Unroutable("x")}

    def refuse(items: Sequence[ReplayItem]) -> list[ReplayItem]:
        for item in items:
            item.error = codes.get(item.key)
        return []

    bench.again = refuse
    job = await bench.run()
    assert (job.state, job.found, job.sent) == (JobState.DONE, 6, 3)
    assert job.refused == {"unroutable": 2, "unsupported": 1}
    assert bench.recorded == [["key 2", "key 3"], ["key 5"]]
    assert (job.pages, [len(names) for _, names in sorted(bench.pages.items())]) == (2, [2, 1])
    assert job.reason == "3 of 6 messages were not sent: unroutable 2, unsupported 1."


@pytest.mark.parametrize("most", [2, 3])
async def test_so_many_refusals_end_it(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(runner, "REFUSALS_MAX", most)
    bench = Bench(4)

    def refuse(items: Sequence[ReplayItem]) -> list[ReplayItem]:
        for item in items[:3]:
            item.error = Unroutable("nobody")
        return []

    bench.again = refuse
    job = await bench.run()
    assert job.state is (JobState.FAILED if most == 2 else JobState.DONE)
    assert bench.done[-2:] == ["close", "save"], "who reads that it ended finds everything back in its queue"


async def test_only_those_that_need_it_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(3)

    def again(items: Sequence[ReplayItem]) -> list[ReplayItem]:
        return [item for item in items if len(bench.sent) < int(item.key[-1]) + 1]

    waits: list[float] = []

    async def waited(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(bench.runner, "_wait", waited)
    bench.again = again
    job = await bench.run()
    assert bench.sent == [["key 0", "key 1", "key 2"], ["key 1", "key 2"], ["key 2"]]
    assert bench.recorded == bench.taken_off == [["key 0"], ["key 1"], ["key 2"]], "at once"
    assert len(waits) == 2, "a pause before each new try"
    assert (job.sent, job.resent) == (3, 0)


async def test_a_target_that_takes_nothing_is_waited_for_and_named() -> None:
    bench = Bench(1)
    bench.faults["send"] = [Later("the endpoint is paused"), Later("busy", 0.003)]
    job = await bench.run()
    reasons = [saved.reason for saved in bench.saved]
    assert reasons == ["", "", "the endpoint is paused", "busy", "", ""]
    assert (job.state, job.sent, len(bench.sent)) == (JobState.DONE, 1, 3)


async def test_the_pause_that_a_target_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(1)
    bench.faults["send"] = [Later("busy", 7.0), Later("away")]
    waits: list[float] = []

    async def waited(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(bench.runner, "_wait", waited)
    await bench.run()
    assert waits[0] == 7.0
    assert 0.0 <= waits[1] <= runner.PAUSE_MAX


@pytest.mark.parametrize("what", ["parts", "check"])
async def test_a_broker_or_ledger_that_is_away_is_waited_for(what: str) -> None:
    bench = Bench(1)
    bench.faults[what] = [BrokerUnavailable("broker b is down"), LedgerUnavailable("no answer")]
    job = await bench.run()
    assert [saved.reason for saved in bench.saved][:2] == ["broker b is down", "no answer"]
    assert (job.state, job.reason, bench.done.count("parts")) == (JobState.DONE, "", 3)


@pytest.mark.parametrize("what", ["parts", "check", "take", "send"])
async def test_what_will_not_pass_ends_it(what: str) -> None:
    bench = Bench(1)
    bench.faults[what] = [NotFound(404, "no exchange")]
    job = await bench.run()
    assert (job.state, job.reason) == (JobState.FAILED, "404 no exchange")
    assert bench.saved[-1].state is JobState.FAILED
    assert bench.ended == ["r1"]


async def test_a_fault_of_ours_ends_it() -> None:
    bench = Bench(1)
    bench.faults["take"] = [ValueError("boom")]
    job = await bench.run()
    assert job.state is JobState.FAILED
    assert "internal error: ValueError('boom')" in job.reason
    assert "close" in bench.done


@pytest.mark.parametrize("what", ["take", "save", "record"])
async def test_what_can_pass_is_done_again(what: str) -> None:
    bench = Bench(2)
    bench.faults[what] = [LedgerUnavailable("no answer")] * 2
    job = await bench.run()
    assert (job.state, job.sent, bench.sent) == (JobState.DONE, 2, [["key 0", "key 1"]])
    assert job.reason == ""
    if what == "take":
        assert "no answer" in [saved.reason for saved in bench.saved]


async def test_events_that_are_refused_stop_nothing() -> None:
    """The messages are safe where they are."""
    bench = Bench(2)
    bench.faults["record"] = [EntriesRefused({0: "too large"})]
    job = await bench.run()
    assert (job.state, job.sent) == (JobState.DONE, 2)
    assert "passed" in bench.done


async def test_paused_and_resumed_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK", 1)
    bench = Bench(3)
    bench.hold = asyncio.Event()
    bench.runner.start()
    await bench.until(lambda: bool(bench.sent))
    bench.job.wish = Wish.PAUSE
    bench.hold.set()
    await bench.until(lambda: bench.job.state is JobState.PAUSED)
    await bench.until(lambda: bench.done.count("reread") > 2)
    assert [saved.state for saved in bench.saved].count(JobState.PAUSED) == 1, "that is written once"
    assert (bench.job.sent, bench.job.position, bench.done.count("close")) == (1, "1", 1)
    bench.wish = Wish.RUN
    bench.runner.look()
    await bench.until(lambda: bool(bench.ended))
    assert bench.sent == [["key 0"], ["key 1"], ["key 2"]]
    assert bench.job.sent == 3


async def test_whoever_waits_looks_at_once_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_EVERY", 30.0)
    bench = Bench(1)
    bench.job.wish = Wish.PAUSE
    bench.runner.start()
    await bench.until(lambda: bool(bench.saved))
    await asyncio.sleep(0.01)
    assert "reread" not in bench.done
    bench.wish = Wish.CANCEL
    bench.runner.look()
    await bench.until(lambda: bool(bench.ended))
    assert (bench.job.state, bench.sent, bench.job.ended_at > 0) == (JobState.CANCELLED, [], True)


async def test_a_wait_for_the_target_ends_with_a_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner looks into the ledger meanwhile, which may be away."""
    bench = Bench(1)
    bench.faults["send"] = [Later("away", 30.0)]
    bench.faults["reread"] = [LedgerUnavailable("no answer")]
    bench.runner.start()
    await bench.until(lambda: bench.done.count("reread") > 1)
    bench.wish = Wish.CANCEL
    await bench.until(lambda: bool(bench.ended))
    assert (bench.job.state, bench.job.sent) == (JobState.CANCELLED, 0)


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_chunk_that_is_left_in_the_middle(monkeypatch: pytest.MonkeyPatch, is_settled: bool) -> None:
    """What is settled at its source is counted now; of the rest the ledger is asked before it is sent again."""
    for name in ("PAUSE_MIN", "PAUSE_MAX"):
        monkeypatch.setattr(runner, name, 30.0)
    bench = Bench(3)

    def again(items: Sequence[ReplayItem]) -> list[ReplayItem]:
        items[1].resent = True
        return list(items[1:])

    bench.again = again
    monkeypatch.setattr(bench, "left", lambda recorded, position: (is_settled, str(len(recorded))))
    bench.wish = Wish.PAUSE
    bench.runner.start()
    await bench.until(lambda: bench.job.state is JobState.PAUSED)
    job = bench.saved[-1]
    assert (job.found, job.sent, job.position) == ((1, 1, "1") if is_settled else (0, 0, "1"))
    assert job.flying == (("key 1",) if is_settled else ("key 1", "key 0"))
    bench.runner.drop()


async def test_stopped_it_brings_its_chunk_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK", 1)
    bench = Bench(3)
    bench.hold = asyncio.Event()
    bench.runner.start()
    await bench.until(lambda: bool(bench.sent))
    stopping = asyncio.create_task(bench.runner.stop(20.0))
    await asyncio.sleep(0.01)
    assert not stopping.done()
    bench.hold.set()
    await stopping
    assert (bench.job.state, bench.job.sent, bench.sent) == (JobState.RUNNING, 1, [["key 0"]])
    assert (bench.saved[-1].position, bench.saved[-1].sent) == ("1", 1)
    assert bench.ended == [], "another process goes on with it"
    assert bench.done.count("close") == 1


async def test_stopped_while_it_waits_it_does_not_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_EVERY", 30.0)
    bench = Bench(1)
    bench.faults["send"] = [Later("away", 30.0)]
    bench.runner.start()
    await bench.until(lambda: len(bench.saved) > 2)
    async with asyncio.timeout(20):
        await bench.runner.stop(30.0)
    assert bench.saved[-1].flying == (), "none of it was sent"


async def test_stopped_it_is_dropped_when_its_time_is_up() -> None:
    bench = Bench(1)
    bench.hold = asyncio.Event()
    bench.runner.start()
    await bench.until(lambda: bool(bench.sent))
    await bench.runner.stop(0.01)
    task = bench.runner._task
    assert task is not None
    assert task.cancelled()
    assert bench.saved[-1].flying == ("key 0",), "whether it was sent is not known"


async def test_lost_while_it_stops_it_is_dropped_at_once() -> None:
    bench = Bench(1)
    bench.hold = asyncio.Event()
    bench.runner.start()
    await bench.until(lambda: bool(bench.sent))
    stopping = asyncio.create_task(bench.runner.stop(60.0))
    await asyncio.sleep(0.01)
    stopping.cancel()
    await asyncio.wait([stopping])
    task = bench.runner._task
    assert task is not None
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


@pytest.mark.parametrize("wish", [Wish.RUN, Wish.CANCEL])
async def test_what_was_under_way_is_counted_where_the_ledger_knows_it(wish: Wish) -> None:
    bench = Bench(3, flying=("key 0", "key 1"), position="0", wish=wish, found=4, sent=4)
    bench.known = {"key 0": SimpleNamespace(body_sha256=b"")}
    job = await bench.run()
    assert job.state is (JobState.DONE if wish is Wish.RUN else JobState.CANCELLED)
    assert (job.found, job.sent) == ((7, 7) if wish is Wish.RUN else (5, 5))
    assert bench.marked == (["key 1"] if wish is Wish.RUN else []), "whether it was sent is not known"
    assert job.resent == (1 if wish is Wish.RUN else 0)
    assert bench.saved[0].flying == ("key 1",), "of the other one it is known"
    assert bench.sent == ([["key 1", "key 2"]] if wish is Wish.RUN else [])


async def test_what_another_replay_may_have_sent_is_marked() -> None:
    """Its last acknowledgment may never have reached the broker."""
    bench = Bench(4)
    bench.redelivered = {"key 0", "key 1"}
    bench.sent_before = {"key 0", "key 2"}
    job = await bench.run()
    assert (bench.marked, job.sent, job.resent) == (["key 0"], 4, 1)


async def test_what_another_replay_has_under_way_is_marked() -> None:
    """It, or its owner, may have ended between sending and recording. It records before it forgets: in that order the
    two are asked here, the other way round."""
    bench = Bench(4)
    bench.redelivered = {"key 0", "key 1"}
    bench.flying_elsewhere = {"key 1", "key 3"}
    job = await bench.run()
    assert (bench.marked, job.sent, job.resent) == (["key 1"], 4, 1)
    assert [what for what in bench.done if what in ("flying", "seen")] == ["flying", "seen"]


async def test_others_are_asked_only_for_what_was_delivered_before() -> None:
    bench = Bench(4)
    bench.flying_elsewhere = {"key 1"}
    assert (await bench.run()).resent == 0
    assert "flying" not in bench.done


async def test_what_is_in_doubt_at_the_end_is_kept_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue holds it no more, or not yet: the next replay has to know."""
    bench = Bench(1, flying=("key 7", "key 8"), position="0")
    monkeypatch.setattr(bench, "ahead", lambda names, chunk: names)
    job = await bench.run()
    assert (job.state, job.sent, job.flying) == (JobState.DONE, 1, ("key 7", "key 8"))
    assert job.reason == "messages that may have been sent, and have not come back to the queue: 2"


async def test_what_an_earlier_run_sent_is_skipped() -> None:
    """A first run has none before it; another body under the same key is another message."""
    for runs, skipped in ((1, 0), (2, 1)):
        bench = Bench(3, runs=runs)
        bench.known = {"key 0": SimpleNamespace(body_sha256=b""), "key 1": SimpleNamespace(body_sha256=b"other")}
        job = await bench.run()
        assert (job.found, job.sent, job.skipped) == (3, 3 - skipped, skipped)
        assert bench.sent == [["key 0", "key 1", "key 2"][skipped:]]
        assert bench.taken_off == [["key 0"]] * skipped + bench.sent
