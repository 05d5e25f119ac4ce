"""The branches of a bridge in mode ``dtx``, step by step."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from gateway.bridges.two_phase import branch_id, detail_of, undone_of, xid_of
from gateway.core.sources.deduplicator import IN_DOUBT
from gateway.errors import BrokerUnavailable, EntriesRefused, RemoteError, Unroutable
from gateway.ledger import EventKind
from gateway.runtime.clock import clock
from gateway.upstreams import BranchOutcome, PublishReceipt
from tests.bridges.asked import Bench, Branch, Target, bench
from tests.bridges.conftest import until
from tests.bridges.hands import arrive, given

__all__ = ["bench"]

UNROUTED = PublishReceipt(False, 312, "NO_ROUTE")
GONE = BrokerUnavailable("it is gone")
PUBLISHED = ["start", "started", "room", "publish", "room", "publish", "end"]


def two() -> list[Any]:
    return [given(message_id=f"m-{number}") for number in range(2)]


# ------------------------------------------------------------------------------------------------- all is well


async def test_each_step_is_taken_once_and_the_next_branch_is_begun_with_the_last_one(bench: Bench) -> None:
    pairs = bench.pairs(*two())
    assert bench.asked.take() == ["check"] * 2
    outcome = await bench.two_phase.forward(pairs)
    assert outcome == ([item for item, _ in pairs], [], [], "")
    assert bench.asked.take() == ["begin", *PUBLISHED, "prepare", "decide", "commit", "finish"]
    ((first, name, broker), _), *_ = bench.asked.of("begin")
    assert (name, broker) == ("b", "new")
    ((finished, told), options), *_ = bench.asked.of("finish")
    assert finished == first
    assert [entry.kind for entry in told] == [EventKind.FORWARDED] * 2
    following, *after = options["following"]
    assert after == ["b", "new"]
    assert (await bench.two_phase.forward(bench.pairs(given(message_id="m-2")))).good
    assert [xid.global_id for (xid,), _ in bench.asked.of("start")] == [first, following]
    bench.asked.take()
    await bench.two_phase.close()
    assert bench.asked.take() == ["rest", "finish"]
    await bench.two_phase.close()
    assert bench.asked.take() == ["rest"]
    bench.two_phase.abandon()
    assert bench.asked.take() == ["rest"]


async def test_what_is_prepared_is_told_before_it_is_committed(bench: Bench) -> None:
    """The ledger hears of the losses of a message when it is forwarded."""

    class Loss:
        name, field = "expiration", "ttl"

    pairs = bench.pairs(*two())
    pairs[0][0].losses = [Loss()]
    await bench.two_phase.forward(pairs)
    (((_, detail, prepared, inbox), _),) = bench.asked.of("decide")
    assert [entry.kind for entry in prepared] == [EventKind.PREPARED] * 2
    assert [row.key for row in inbox] == detail["keys"] == ["old/m-0", "old/m-1"]
    assert detail["scope"] == bench.flow._journal.scope
    assert [kind for _, kind, _ in detail["told"]] == ["forwarded", "reduced", "forwarded"]
    undone = undone_of(detail, "new", "b", BranchOutcome.MIXED)
    assert [(entry.kind, entry.message_id) for entry in undone] == [
        (EventKind.RELEASED, item.id) for item, _ in pairs
    ]  # fmt: skip


async def test_what_has_no_id_is_remembered_by_nothing(bench: Bench) -> None:
    pairs = bench.pairs(given())
    entries, inbox = bench.flow._journal.forwarded([item for item, _ in pairs])
    detail = detail_of(entries, inbox)
    assert (detail["scope"], detail["keys"], detail["version"]) == ("", [], entries[0].version)


def test_names_of_branches_are_as_long_as_they_may_be() -> None:
    assert branch_id("b" * 64) == b"b" * 64
    assert branch_id("b" * 65) != b"b" * 65
    assert len(branch_id("b" * 65)) == 64


# ------------------------------------------------------------------------------------- it cannot be prepared


async def test_a_target_that_takes_none_of_it_has_nothing_to_prepare(bench: Bench) -> None:
    bench.asked.receipts = [UNROUTED, RemoteError(541, "no")]
    pairs = bench.pairs(*two())
    outcome = await bench.two_phase.forward(pairs)
    assert (outcome.good, outcome.undone) == ([], [])
    assert [item for item, _ in outcome.refused] == [item for item, _ in pairs]
    assert [type(error) for _, error in outcome.refused] == [Unroutable, RemoteError]
    assert "no queue takes" in str(outcome.refused[0][1])
    assert bench.asked.take() == ["check"] * 2 + ["begin", *PUBLISHED, "rollback"]
    await bench.two_phase.forward(bench.pairs(given()))
    assert "begin" not in bench.asked.take(), "the target has forgotten it: its id is used again"


@pytest.mark.parametrize(
    ("verb", "begun", "undone"),
    [
        ("start", [], []),
        ("started", ["started"], ["rollback"]),
        ("room", ["started", "room"], ["rollback"]),
        ("end", PUBLISHED[1:], ["rollback"]),
        ("prepare", [*PUBLISHED[1:], "prepare"], ["rollback"]),
    ],
)
async def test_what_is_undone_at_once_leaves_nothing(
    bench: Bench, verb: str, begun: list[str], undone: list[str]
) -> None:
    bench.asked.answers[verb] = [GONE]
    pairs = bench.pairs(*two())
    outcome = await bench.two_phase.forward(pairs)
    assert outcome == ([], [], [item for item, _ in pairs], "it is gone")
    assert bench.asked.take() == ["check"] * 2 + ["begin", "start", *begun, *undone]
    assert bench.aborted == set()
    await bench.two_phase.forward(bench.pairs(given()))
    assert "begin" not in bench.asked.take()


@pytest.mark.parametrize("dies", [True, False])
async def test_what_cannot_be_undone_now_is_undone_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The channel is gone, or the target does not say that it has undone it."""
    await bench.two_phase.forward(bench.pairs(given()))
    assert "begin" in bench.asked.take()
    bench.asked.answers["end"] = [GONE]
    bench.asked.answers["rollback"] = [GONE]
    pairs = bench.pairs(*two())
    room = Branch.room

    async def die(self: Branch) -> None:
        await room(self)
        bench.asked.usable = not dies

    monkeypatch.setattr(Branch, "room", die)
    await bench.two_phase.forward(pairs)
    expected = [*PUBLISHED, *([] if dies else ["rollback"]), "abandon", "abort"]
    assert bench.asked.take() == ["check"] * 2 + expected
    (((id,), _),) = bench.asked.of("abort")
    assert bench.aborted == {id}
    await bench.two_phase.forward(bench.pairs(given()))
    assert "begin" in bench.asked.take(), "the target may have it still"


async def test_one_that_is_cancelled_lets_its_branch_go(bench: Bench) -> None:
    bench.asked.answers["end"] = [asyncio.CancelledError()]
    with pytest.raises(asyncio.CancelledError):
        await bench.two_phase.forward(bench.pairs(*two()))
    assert bench.asked.take()[-1] == "abandon"
    bench.asked.answers["start"] = [asyncio.CancelledError()]
    with pytest.raises(asyncio.CancelledError):
        await bench.two_phase.forward(bench.pairs(given()))
    assert bench.asked.take()[-1] == "start", "there is nothing to let go"


# ------------------------------------------------------------------------------------------ undone later


async def test_what_is_left_is_undone_as_soon_as_that_can_be_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what another process has left."""
    failures: list[int] = []

    def pause_after(failed: int, *_: Any) -> float:
        failures.append(failed)
        return 0.002 if len(failures) != 3 else 600.0

    monkeypatch.setattr("gateway.runtime.backoff.pause_after", pause_after)
    caplog.set_level("INFO")
    bench.asked.answers["rollback there"] = [GONE, GONE, GONE, None, GONE]
    bench.two_phase.inherit([b"1" * 16])
    tidying = asyncio.create_task(bench.two_phase.tidy())
    await until(lambda: len(failures) >= 3)
    assert bench.aborted == {b"1" * 16}
    assert "finish" not in bench.asked.take()
    bench.two_phase.hurry()
    await until(lambda: not bench.aborted)
    assert bench.asked.take() == ["rollback there", "finish"]
    assert [arguments for arguments, _ in bench.asked.of("finish")] == [(b"1" * 16,)]
    xids = {xid for (xid,), _ in bench.asked.of("rollback there")}
    assert xids == {xid_of(bench.flow._route.token, b"1" * 16)}
    await asyncio.sleep(0.01)
    assert bench.asked.take() == [], "there is nothing to do"
    bench.two_phase._undo_later(b"2" * 16)
    await until(lambda: not bench.aborted)
    assert failures == [0, 1, 2, 0], "it worked meanwhile"
    tidying.cancel()
    assert [record.getMessage() for record in caplog.records].count("bridge.branch_not_undone") == 4


async def test_one_that_cannot_be_undone_keeps_its_row(bench: Bench) -> None:
    bench.two_phase.inherit([b"1" * 16])
    bench.asked.answers["finish"] = [GONE]
    assert not await bench.two_phase._undo_aborted()
    assert bench.aborted == {b"1" * 16}
    assert await bench.two_phase._undo_aborted()
    assert bench.aborted == set()
    assert await bench.two_phase._undo_aborted()


# -------------------------------------------------------------------------------------------- it is decided


async def test_what_somebody_else_has_settled_is_not_committed(bench: Bench) -> None:
    bench.asked.answers["decide"] = [False]
    pairs = bench.pairs(*two())
    outcome = await bench.two_phase.forward(pairs)
    assert outcome == ([], [], [item for item, _ in pairs], "somebody else has settled the branch")
    assert bench.asked.take()[-3:] == ["prepare", "decide", "abandon"]
    (((id, *_), _),) = bench.asked.of("decide")
    assert bench.aborted == {id}


@pytest.mark.parametrize("outcome", [BranchOutcome.ROLLED_BACK, BranchOutcome.MIXED])
async def test_what_the_target_has_not_kept_is_released(bench: Bench, outcome: BranchOutcome) -> None:
    bench.asked.answers["commit"] = [outcome]
    pairs = bench.pairs(*two())
    pairs[1][0].resent = True
    found = await bench.two_phase.forward(pairs)
    items = [item for item, _ in pairs]
    assert (found.good, found.refused, found.undone) == ([], [], items)
    assert outcome.value in found.reason
    mixed = outcome is BranchOutcome.MIXED
    assert [item.resent for item in items] == [mixed, True]
    (((_, released), options),) = bench.asked.of("finish")
    assert [entry.kind for entry in released] == [EventKind.RELEASED] * 2
    assert options["forget"] == {bench.flow._journal.scope: ["old/m-0", "old/m-1"]}
    assert [(row.key, row.body_sha256) for row in options["doubt"]] == (
        [("old/m-0", IN_DOUBT), ("old/m-1", IN_DOUBT)] if mixed else []
    )
    await bench.two_phase.forward(bench.pairs(given()))
    assert bench.asked.take().count("begin") == 2, "none was begun with the last one"


async def test_a_commit_is_tried_until_it_is_known(bench: Bench) -> None:
    """Over any channel: its own may be gone."""
    reasons: list[str] = []
    bench.flow._journal.faults._on_change = lambda: reasons.append(bench.flow._journal.faults.reason)
    bench.asked.answers["commit"] = [GONE]
    bench.asked.answers["commit there"] = [GONE, BranchOutcome.DONE]
    assert (await bench.two_phase.forward(bench.pairs(*two()))).good
    calls = bench.asked.take()
    assert calls[calls.index("decide") :] == [
        "decide", "commit", "abandon", "commit there", "abandon", "commit there", "finish",
    ]  # fmt: skip
    assert reasons == ["branch: it is prepared at new and to be committed: it is gone", ""]


async def test_news_that_came_before_a_pause_does_not_end_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []
    commit = Target.commit

    async def there(self: Target, xid: Any) -> BranchOutcome:
        tried.append(clock.monotonic())
        return await commit(self, xid)

    monkeypatch.setattr(Target, "commit", there)
    monkeypatch.setattr("gateway.runtime.backoff.pause_after", lambda *_: 0.01)
    bench.asked.answers["commit"] = [GONE]
    bench.asked.answers["commit there"] = [GONE, GONE]
    bench.two_phase.hurry()
    assert (await bench.two_phase.forward(bench.pairs(given()))).good
    assert all(after - before > 0.005 for before, after in pairwise(tried))
    assert len(tried) == 3


async def test_what_is_in_a_branch_is_under_way_and_what_was_taken_opens_the_gate(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = bench.flow
    found: list[int] = []
    prepare = Branch.prepare

    async def prepared(self: Branch) -> None:
        found.append(flow._gate.outstanding)
        await prepare(self)

    monkeypatch.setattr(Branch, "prepare", prepared)
    last = given()
    arrive(flow, *two(), last)
    items = flow._look(flow._take(0.0))
    flow._gate.close("it was gone", clock.monotonic())
    await flow._send_branches(items[:2], bench.two_phase)
    assert (found, flow._gate.outstanding, flow.held) == ([2], 0, 1)
    assert (flow._gate.room, bool(flow._journal.faults)) == (4, False)
    assert [item.delivery.settled for item in items] == [True, True, False]
    last.lost = True
    bench.asked.take()
    await flow._send_branches(items[2:], bench.two_phase)
    assert (flow.held, bench.asked.take()) == (0, []), "its source delivers it again"


@pytest.mark.parametrize("verb", ["decide", "finish"])
async def test_events_that_cannot_be_stored_do_not_keep_a_branch_from_its_end(
    bench: Bench, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.asked.answers[verb] = [EntriesRefused({0: "it is Monday"})]
    assert (await bench.two_phase.forward(bench.pairs(*two()))).good
    first, second = bench.asked.of(verb)
    assert "bridge.events_refused" in [record.getMessage() for record in caplog.records]
    if verb == "decide":
        assert [len(arguments[2]) for arguments, _ in (first, second)] == [2, 0]
        assert first[0][3] == second[0][3], "what is remembered is the same"
    else:
        assert (len(first[0]), len(second[0])) == (2, 1)
        assert first[1] == second[1]
    bench.asked.take()
    await bench.two_phase.forward(bench.pairs(given()))
    assert "begin" not in bench.asked.take()
