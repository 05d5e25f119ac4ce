"""Mode ``dtx``, to an embedded broker: what the ledger says, who is to blame, and every point at which it may end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Confirmed, Operation
from gateway.bridges import two_phase
from gateway.bridges.flow import BridgeFlow, _branches
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.journal import BridgeJournal
from gateway.bridges.two_phase import FORMAT, branch_id, xid_of
from gateway.config import check_bridge
from gateway.errors import BrokerUnavailable, EntriesRefused, LedgerUnavailable, NotFound, RemoteError
from gateway.ledger import BranchStatus, EventKind
from gateway.ledger.pending.branches import BranchStore as Register
from gateway.upstreams import BranchOutcome
from gateway.upstreams import branches as upstream_branches
from gateway.upstreams.branches import BranchLane, BranchWorker, UpstreamBranch, UpstreamBranches
from tests.bridges.conftest import Estate, bridge_settings, entry, until
from tests.bridges.points import POINTS, Hold, after, before, branches, crash, prepared, until_async

VERSIONS = {"old": "0-9-1", "new": "0-10"}
TO_0_10 = pytest.mark.parametrize("estate", [("0-9-1", "0-10")], indirect=True)
DTX = "dtx"


async def told(estate: Estate) -> Counter[str]:
    """How many events of each kind there are."""
    found: Counter[str] = Counter()
    for message in await estate.stored():
        timeline = await estate.ledger.timeline(message.id)
        assert timeline is not None
        found.update(event.kind.value for event in timeline.events)
    return found


async def settled(
    estate: Estate, ids: list[str], forwarded: int | None = None, states: tuple[str, ...] = ("forwarded",)
) -> None:
    """Every message is at the target once, in its order, and nothing is left anywhere."""
    await until_empty(estate)
    found = await estate.take(len(ids))
    assert [entry(delivery)["origin"] for delivery in found] == [f"old/{id}" for id in ids]
    assert not any("resent" in entry(delivery) for delivery in found)
    assert await prepared(estate) == 0
    await until_async(lambda: _nothing_open(estate))
    events = await told(estate)
    assert events[EventKind.FORWARDED] == (len(ids) if forwarded is None else forwarded)
    assert {message.state.value for message in await estate.stored()} == set(states)


async def _nothing_open(estate: Estate) -> bool:
    return set(await branches(estate)) <= {BranchStatus.BEGUN}


async def until_empty(estate: Estate) -> None:
    """Wait until the bridge has nothing more to do."""
    await estate.wait_for(state="running")

    async def empty() -> bool:
        return await estate.depth() == 0 and (await estate.status()).in_flight == 0

    await until_async(empty)


# ------------------------------------------------------------------------------------------------- all is well


@TO_0_10
async def test_messages_are_prepared_then_forwarded(estate: Estate) -> None:
    ids = await estate.fill(30)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="running", forwarded=30)
    await settled(estate, ids)
    for message in await estate.stored():
        timeline = await estate.ledger.timeline(message.id)
        assert timeline is not None
        kinds = [event.kind for event in timeline.events]
        assert kinds == [EventKind.PREPARED, EventKind.FORWARDED]
        assert timeline.events[0].detail == timeline.events[1].detail
    status = await estate.status()
    assert (status.taken, status.forwarded, status.resent, status.duplicates_dropped) == (30, 30, 0, 0)


@TO_0_10
async def test_a_branch_at_a_broker_that_is_configured_no_more_holds_up_no_other(estate: Estate) -> None:
    register = estate.ledger.branches
    gone, known = b"1" * 16, b"2" * 16
    await register.begin(gone, "b", "gone")
    await register.begin(known, "b", "new")
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="running")
    assert [branch.id for branch in await register.of("b")] == [gone]
    await register.abort(gone)
    await register.finish(gone)


@TO_0_10
async def test_confirms_that_come_after_the_answer_to_the_end(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = BranchLane.receive

    def late(lane: BranchLane, operation: Operation) -> None:
        if isinstance(operation, Confirmed):
            asyncio.get_running_loop().call_later(0.01, receive, lane, operation)
        else:
            receive(lane, operation)

    monkeypatch.setattr(BranchLane, "receive", late)
    ids = await estate.fill(30)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="running", forwarded=30)
    await settled(estate, ids)


@TO_0_10
async def test_a_pause_and_a_drain_leave_nothing_open(estate: Estate) -> None:
    await estate.bridge(acknowledge=DTX)
    ids = await estate.fill(5)
    await estate.wait_for(forwarded=5)
    await estate.bridges.pause("b")
    assert await branches(estate) == []
    ids += await estate.fill(5)
    await estate.bridges.resume("b")
    await estate.wait_for(forwarded=10)
    await estate.bridges.drain("b")
    await estate.wait_for(state="stopped", reason="drained")
    await until_async(lambda: _is(branches(estate), []))
    assert len(await estate.take(10)) == 10


async def _is(found: Awaitable[Any], wanted: Any) -> bool:
    return bool(await found == wanted)


@TO_0_10
async def test_what_has_no_id_goes_too(estate: Estate) -> None:
    await estate.fill(10, message_id=None)
    await estate.bridge(acknowledge=DTX, delete_after=10)
    await estate.wait_for(state="stopped")
    assert len(await estate.take(10)) == 10


@TO_0_10
async def test_two_bridges_to_one_target(estate: Estate) -> None:
    """Each has a channel of its own: a branch has the messages of one bridge."""
    await estate.old.declare_queue("in2")
    await estate.fill(50)
    await estate.fill(50, queue="in2")
    await estate.bridge("b", acknowledge=DTX)
    await estate.bridge("c", acknowledge=DTX, source={"broker": "old", "queue": "in2"})
    await estate.wait_for("b", forwarded=50)
    await estate.wait_for("c", forwarded=50)
    assert len({entry(delivery)["origin"] for delivery in await estate.take(100)}) == 100


@TO_0_10
async def test_losses_are_told_with_the_forwarding(estate: Estate) -> None:
    await estate.fill(3, user_id=None, app_id="x", cluster_id="c")
    await estate.bridge(acknowledge=DTX, strip=True)
    await estate.wait_for(forwarded=3)
    events = await told(estate)
    assert events[EventKind.PREPARED] == events[EventKind.FORWARDED] == 3
    assert await estate.take(3)


# ------------------------------------------------------------------------------------- where it may be cut off


@pytest.mark.parametrize("point", POINTS)
@TO_0_10
async def test_neither_gap_nor_duplicate(estate: Estate, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    owner, name, where, status, in_doubt_there = POINTS[point]
    ids = await estate.fill(12)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, where(getattr(owner, name), hold))
        await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        assert await branches(estate) == [status]
        assert await prepared(estate) == in_doubt_there
        await crash(estate)
    ids += await estate.fill_past_it(5)
    await estate.open_gateway(VERSIONS)
    await settled(estate, ids)


@TO_0_10
async def test_cut_off_after_the_sources_acknowledgement(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await estate.fill(12)
    acknowledge, reached = BridgeFlow._acknowledge, []

    def noted(flow: BridgeFlow, items: list[BridgeDelivery]) -> None:
        acknowledge(flow, items)
        reached.append(items)

    monkeypatch.setattr(BridgeFlow, "_acknowledge", noted)
    await estate.bridge(acknowledge=DTX)
    await until(lambda: sum(map(len, reached)) == 12)
    await asyncio.sleep(0.05)
    await crash(estate)
    await estate.open_gateway(VERSIONS)
    await settled(estate, ids)


@pytest.mark.parametrize("point", ["after prepare", "after the ledger's write", "after commit"])
@TO_0_10
async def test_cut_off_again_while_it_is_settled(estate: Estate, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """And again before the ledger knows that it is settled."""
    owner, name, where, *_ = POINTS[point]
    ids = await estate.fill(12)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, where(getattr(owner, name), hold))
        await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        await crash(estate)
    for verb in ("commit", "rollback"):
        hold = Hold()
        with monkeypatch.context() as patched:
            patched.setattr(UpstreamBranches, verb, after(getattr(UpstreamBranches, verb), hold))
            await estate.open_gateway(VERSIONS)
            if (await branches(estate)) == [BranchStatus.DECIDED] and verb == "commit":
                await until(lambda: hold.reached)  # noqa: B023  # at once
            await asyncio.sleep(0.1)
            await crash(estate)
    await estate.open_gateway(VERSIONS)
    await settled(estate, ids)


@TO_0_10
async def test_messages_without_an_id_leave_no_gap(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be there twice."""
    await estate.fill(6, message_id=None)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(UpstreamBranch, "commit", after(UpstreamBranch.commit, hold))
        await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        await crash(estate)
    await estate.open_gateway(VERSIONS)
    await until_empty(estate)
    found = await estate.take(12)
    assert {delivery.message.body for delivery in found} == {b"%d" % number for number in range(1, 7)}
    assert sum("resent" in entry(delivery) for delivery in found) == 6


@TO_0_10
async def test_a_decision_on_its_way_comes_too_late(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge begins anew while its old self is about to decide: that is refused, and nothing is there twice."""
    ids = await estate.fill(12)
    hold, go, late = Hold(), asyncio.Event(), []
    decide = Register.decide

    async def slow(register: Register, id: bytes, *arguments: Any) -> bool:
        if not hold.reached:
            hold.reached = True
            await asyncio.shield(asyncio.create_task(go.wait()))
        return await decide(register, id, *arguments)

    monkeypatch.setattr(Register, "decide", slow)
    await estate.bridge(acknowledge=DTX)
    await until(lambda: hold.reached)
    (branch,) = await estate.ledger.branches.of("b")
    flow = estate.bridges._here["b"]._flow
    assert flow is not None
    await estate.bridges._here["b"].drop()
    estate.bridges._here["b"].start()
    await until_async(lambda: _is(_known(estate, branch.id), False))
    late.append(await decide(estate.ledger.branches, branch.id, {}, [], []))
    go.set()
    assert late == [False]
    await settled(estate, ids)


async def _known(estate: Estate, id: bytes) -> bool:
    return any(branch.id == id for branch in await estate.ledger.branches.of("b"))


@TO_0_10
async def test_prepared_branches_without_a_row_are_undone_and_others_left_alone(estate: Estate) -> None:
    """Of another gateway's, of another bridge's, of somebody else's: none of our business."""
    mine = xid_of(f"b@{estate.bridges._identity}", bytes(16))
    other = xid_of(f"bb@{estate.bridges._identity}", bytes(16))
    foreign = type(mine)(FORMAT + 1, bytes(16), b"b")
    for xid in (mine, other, foreign):
        worker = estate.new.branches.worker()
        branch = await worker.begin(xid, "")
        await branch.started()
        branch.publish("", "out", Message(b"x", Properties()))
        await branch.end()
        await branch.prepare()
        worker.rest()
    assert await prepared(estate) == 3
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="running")
    assert set(await estate.new.branches.recover()) == {other, foreign}
    assert await estate.new.branches.commit(other) is BranchOutcome.DONE
    assert await estate.new.branches.rollback(foreign) is BranchOutcome.DONE
    assert await estate.new.branches.rollback(foreign) is BranchOutcome.GONE


@TO_0_10
async def test_what_was_decided_is_committed_in_another_mode_too(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await estate.fill(4)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(Register, "decide", after(Register.decide, hold))
        before_ = await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        await crash(estate)
    await estate.open_gateway(VERSIONS)
    await estate.bridges.put("b", bridge_settings(), before_.etag)
    await settled(estate, ids)


@TO_0_10
@pytest.mark.parametrize("ends", [1, 2])
async def test_what_another_mode_has_published_is_marked(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    """The target has the messages, and the ledger knows nothing of them: they had no branch."""
    ids = await estate.fill(6)
    await estate.close_gateway()
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(BridgeJournal, "record", before(BridgeJournal.record, hold))
        await estate.open_gateway(VERSIONS, {"b": bridge_settings()})
        await until(lambda: hold.reached)
        await crash(estate)
    if ends == 2:
        again = Hold()
        with monkeypatch.context() as patched:
            patched.setattr(BranchWorker, "begin", before(BranchWorker.begin, again))
            await estate.open_gateway(VERSIONS, {"b": bridge_settings(acknowledge=DTX)})
            await until(lambda: again.reached)
            await crash(estate)
    await estate.open_gateway(VERSIONS, {"b": bridge_settings(acknowledge=DTX)})
    await estate.wait_for(forwarded=6)
    found = await estate.take(12)
    assert [entry(delivery)["origin"] for delivery in found] == [f"old/{id}" for id in ids] * 2
    assert [entry(delivery).get("resent") for delivery in found] == [None] * 6 + ["1"] * 6


@TO_0_10
async def test_a_branch_at_a_broker_that_is_not_configured_any_more(estate: Estate) -> None:
    await estate.ledger.branches.begin(bytes(16), "b", "gone")
    await estate.fill(3)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(forwarded=3)
    assert BranchStatus.BEGUN in await branches(estate)


@pytest.mark.parametrize("away", [False, True])
@TO_0_10
async def test_a_bridge_that_is_deleted_with_a_decided_branch(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    ids = await estate.fill(4)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(Register, "decide", after(Register.decide, hold))
        status = await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        monkeypatch.setattr("gateway.core.work.supervised.HALT_WITHIN", 0.1)
        if away:
            await estate.away("new")
        await estate.bridges.delete("b", status.etag)
    left = [record for record in caplog.records if record.message == "bridge.branches_left"]
    assert len(left) == away
    if away:
        await crash(estate)
        await estate.back_without_a_gateway("new")
        await estate.open_gateway(VERSIONS)
        assert len([record for record in caplog.records if record.message == "bridge.branches_left"]) == 2
    await estate.bridge(acknowledge=DTX)
    await settled(estate, ids)


# ---------------------------------------------------------------------------- what goes wrong while it lives


@pytest.mark.parametrize("lost", ["before", "after"])
@TO_0_10
async def test_the_link_is_lost_over_the_commit(estate: Estate, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The branch is prepared, or committed without our hearing of it; the next link finds out which."""
    ids = await estate.fill(6)
    commit, cut = UpstreamBranch.commit, []

    async def once(branch: UpstreamBranch) -> BranchOutcome:
        if cut:
            return await commit(branch)
        cut.append(1)
        if lost == "after":
            await commit(branch)
        await estate.away("new")
        await estate.back("new")
        raise BrokerUnavailable("the connection is lost")

    monkeypatch.setattr(UpstreamBranch, "commit", once)
    await estate.bridge(acknowledge=DTX)
    await settled(estate, ids)
    assert cut == [1]


@TO_0_10
async def test_nothing_is_pending_once_another_channel_has_committed(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is replaced is kept as long as something is pending there."""
    ids = await estate.fill(6)
    decide = Register.decide

    async def cut(*arguments: Any) -> bool:
        decided = await decide(*arguments)
        await estate.away("new")
        await estate.back("new")
        return decided

    monkeypatch.setattr(Register, "decide", cut)
    await estate.bridge(acknowledge=DTX)
    await settled(estate, ids)
    assert estate.new.status().pending == 0


@TO_0_10
async def test_nothing_is_pending_once_another_process_has_the_bridge(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await estate.fill(6)
    hold = Hold()
    monkeypatch.setattr(UpstreamBranch, "commit", before(UpstreamBranch.commit, hold))
    await estate.bridge(acknowledge=DTX)
    await until(lambda: hold.reached)
    link = estate.new._keepers["publish"].link
    assert link is not None
    channels = link.channels
    await estate.bridges._here["b"].drop()
    assert estate.new.status().pending == 0
    await until(lambda: link.channels == channels - 1)


@TO_0_10
async def test_while_it_cannot_be_committed_the_bridge_says_so(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await estate.fill(6)
    commit, cut = UpstreamBranch.commit, []

    async def once(branch: UpstreamBranch) -> BranchOutcome:
        if cut:
            return await commit(branch)
        cut.append(1)
        await estate.away("new")
        raise BrokerUnavailable("the connection is lost")

    monkeypatch.setattr(UpstreamBranch, "commit", once)
    monkeypatch.setattr(two_phase, "PAUSE_MIN", 600.0)  # that its target is back ends the pause
    monkeypatch.setattr(two_phase, "PAUSE_MAX", 600.0)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="error", reason=lambda text: "branch: it is prepared at new" in text)
    assert (await branches(estate)) == [BranchStatus.DECIDED]
    await estate.back("new")
    await settled(estate, ids)


@TO_0_10
async def test_the_target_is_away_at_the_start(estate: Estate) -> None:
    ids = await estate.fill(6)
    await estate.away("new")
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="error", reason=lambda text: "branch: broker new" in text)
    await estate.back("new")
    await settled(estate, ids)


@pytest.mark.parametrize("point", ["started", "room", "end", "prepare"])
@TO_0_10
async def test_the_link_is_lost_before_it_is_prepared(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    ids = await estate.fill(6)
    original, cut = getattr(UpstreamBranch, point), []

    async def once(branch: UpstreamBranch) -> None:
        if not cut:
            cut.append(1)
            await estate.away("new")
            await estate.back("new")
        await original(branch)

    monkeypatch.setattr(UpstreamBranch, point, once)
    await estate.bridge(acknowledge=DTX)
    await settled(estate, ids)
    ids = await estate.fill(1)
    await settled(estate, ids, forwarded=7)
    assert await branches(estate) == [BranchStatus.BEGUN]


@TO_0_10
async def test_it_takes_too_long(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await estate.fill(6)
    end, slow = UpstreamBranch.end, []

    async def once(branch: UpstreamBranch) -> None:
        if not slow:
            slow.append(1)
            await asyncio.sleep(60)
        await end(branch)

    monkeypatch.setattr(two_phase, "PREPARE_WITHIN", 0.3)
    monkeypatch.setattr(UpstreamBranch, "end", once)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="error", reason=lambda text: "nothing was prepared within 0.3 s" in text)
    await settled(estate, ids)


@pytest.mark.parametrize("verb", ["begin", "decide", "finish", "abort"])
@TO_0_10
async def test_the_ledger_is_away(estate: Estate, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """And what it was told may have been written all the same."""
    ids = await estate.fill(6)
    original, calls = getattr(Register, verb), [0]

    async def away(register: Register, *arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise LedgerUnavailable("it is locked")
        found = await original(register, *arguments, **options)
        if calls[0] == 2:
            raise LedgerUnavailable("its answer was lost")
        return found

    if verb == "abort":
        end, cut = UpstreamBranch.end, []

        async def once(branch: UpstreamBranch) -> None:
            if not cut:
                cut.append(1)
                branch.abandon()
                raise BrokerUnavailable("cut off")
            await end(branch)

        monkeypatch.setattr(UpstreamBranch, "end", once)
    monkeypatch.setattr(Register, verb, away)
    await estate.bridge(acknowledge=DTX)
    await until(lambda: calls[0] >= 2)
    await settled(estate, ids)


@pytest.mark.parametrize("verb", ["decide", "finish"])
@TO_0_10
async def test_events_that_cannot_be_stored(estate: Estate, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Their messages are forwarded all the same."""
    estate.refused.add("branch")
    original, refused = getattr(Register, verb), []

    async def refuse(register: Register, *arguments: Any, **options: Any) -> Any:
        if not refused:
            refused.append(1)
            raise EntriesRefused({0: "bad"})
        return await original(register, *arguments, **options)

    monkeypatch.setattr(Register, verb, refuse)
    ids = await estate.fill(1)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(forwarded=1)
    assert [entry(delivery)["origin"] for delivery in await estate.take(1)] == [f"old/{id}" for id in ids]
    assert refused == [1]


@pytest.mark.parametrize("outcome", [BranchOutcome.ROLLED_BACK, BranchOutcome.MIXED])
@TO_0_10
async def test_a_target_that_undoes_what_it_had_prepared(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, outcome: BranchOutcome
) -> None:
    """Against its word: the messages go again, marked if some of them may be there."""
    ids = await estate.fill(6)
    commit, undone = UpstreamBranch.commit, []

    async def once(branch: UpstreamBranch) -> BranchOutcome:
        if not undone:
            undone.append(1)
            assert await branch.rollback() is BranchOutcome.DONE
            return outcome
        return await commit(branch)

    monkeypatch.setattr(UpstreamBranch, "commit", once)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(forwarded=6)
    found = await estate.take(6)
    assert [entry(delivery)["origin"] for delivery in found] == [f"old/{id}" for id in ids]
    marked = sum("resent" in entry(delivery) for delivery in found)
    assert marked > 0 if outcome is BranchOutcome.MIXED else marked == 0


@TO_0_10
@pytest.mark.parametrize("ends", [1, 2])
async def test_doubt_outlives_ends_in_quick_succession(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    """Some of a branch may have been committed: that is found out by one process, and its messages go by another."""
    ids = await estate.fill(6)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(Register, "decide", after(Register.decide, hold))
        await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        await crash(estate)
    rollback = UpstreamBranches.rollback

    async def undo(branches_: UpstreamBranches, xid: Any) -> BranchOutcome:
        await rollback(branches_, xid)
        return BranchOutcome.MIXED

    monkeypatch.setattr(UpstreamBranches, "commit", undo)
    if ends == 2:
        again = Hold()
        with monkeypatch.context() as patched:
            patched.setattr(BranchWorker, "begin", before(BranchWorker.begin, again))
            await estate.open_gateway(VERSIONS)
            await until(lambda: again.reached)
            await crash(estate)
    await estate.open_gateway(VERSIONS)
    await estate.wait_for(forwarded=6)
    found = await estate.take(6)
    assert [entry(delivery)["origin"] for delivery in found] == [f"old/{id}" for id in ids]
    assert all(entry(delivery).get("resent") == "1" for delivery in found)


@TO_0_10
async def test_a_target_that_undoes_it_while_nobody_looks(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await estate.fill(6)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(Register, "decide", after(Register.decide, hold))
        await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        await crash(estate)

    rollback = UpstreamBranches.rollback

    async def undo(branches_: UpstreamBranches, xid: Any) -> BranchOutcome:
        await rollback(branches_, xid)
        return BranchOutcome.ROLLED_BACK

    monkeypatch.setattr(UpstreamBranches, "commit", undo)
    await estate.open_gateway(VERSIONS)
    await settled(estate, ids, states=("forwarded", "released"))
    assert (await told(estate))[EventKind.RELEASED] == 6


@TO_0_10
async def test_events_that_cannot_be_stored_as_it_is_settled(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await estate.fill(2)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(Register, "decide", after(Register.decide, hold))
        await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        await crash(estate)
    estate.refused.add("branch")
    finish, refused = Register.finish, []

    async def refuse(register: Register, id: bytes, entries: Any = (), **options: Any) -> None:
        if entries and not refused:
            refused.append(1)
            raise EntriesRefused({0: "bad"})
        await finish(register, id, entries, **options)

    monkeypatch.setattr(Register, "finish", refuse)
    await estate.open_gateway(VERSIONS)
    await until_empty(estate)
    assert [entry(delivery)["origin"] for delivery in await estate.take(2)] == [f"old/{id}" for id in ids]
    assert await prepared(estate) == 0


@TO_0_10
async def test_a_branch_that_a_channel_works_on_still(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead process's connection is not known to be dead: its branch is undone later."""
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(state="running")
    id = bytes(15) + b"\1"
    await estate.bridges.pause("b")
    worker = estate.new.branches.worker()
    await (await worker.begin(xid_of(f"b@{estate.bridges._identity}", id), "")).started()
    await estate.ledger.branches.begin(id, "b", "new")
    await estate.bridges.resume("b")
    await estate.fill(1)
    await estate.wait_for(forwarded=1)
    assert BranchStatus.ABORTED in await branches(estate)
    worker.rest()
    await until_async(lambda: _is(branches(estate), [BranchStatus.BEGUN]))
    assert len(await estate.take(1)) == 1


@TO_0_10
async def test_a_branch_of_an_idle_bridge_is_undone(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its target crashed, and the ledger could not be written when it was back. No message comes after that."""
    ids = await estate.fill(1)
    end, finish, cut, failed = UpstreamBranch.end, Register.finish, [], []

    async def crash_first(branch: UpstreamBranch) -> None:
        if not cut:
            cut.append(1)
            await estate.away("new")
        await end(branch)

    async def fail_first(register: Register, *arguments: Any, **options: Any) -> None:
        if not failed:
            failed.append(1)
            raise LedgerUnavailable("it is locked")
        await finish(register, *arguments, **options)

    monkeypatch.setattr(UpstreamBranch, "end", crash_first)
    monkeypatch.setattr(Register, "finish", fail_first)
    await estate.bridge(acknowledge=DTX)
    await until_async(lambda: _is(branches(estate), [BranchStatus.ABORTED]))
    await estate.back("new")
    await settled(estate, ids)
    assert failed == [1]


@TO_0_10
async def test_aborted_by_somebody_else(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await estate.fill(6)
    decide, stolen = Register.decide, []

    async def late(register: Register, id: bytes, *arguments: Any) -> bool:
        if not stolen:
            stolen.append(await register.abort(id))
        return await decide(register, id, *arguments)

    monkeypatch.setattr(Register, "decide", late)
    await estate.bridge(acknowledge=DTX)
    await settled(estate, ids)
    assert stolen == [BranchStatus.ABORTED]


# ------------------------------------------------------------------------------------------- who is to blame


@TO_0_10
async def test_one_unroutable_among_others(estate: Estate) -> None:
    await estate.new.declare_exchange("shop", "direct")
    await estate.new.bind_queue("out", "shop", "good")
    for number in range(20):
        headers = {"key": "bad" if number == 7 else "good"}
        await estate.fill(1, headers=headers)
    await estate.bridge(acknowledge=DTX, target={"broker": "new", "exchange": "shop", "routing_key": "{header:key}"})
    await estate.wait_for(forwarded=19, within=20)
    await estate.fill(1, headers={"key": "good"})
    await estate.wait_for(forwarded=20, dead_lettered=1)
    assert len(await estate.take(20)) == 20
    (dead,) = await estate.take(1, "gateway.dead.b", "old")
    assert dead.message.body == b"8"


@TO_0_10
async def test_nothing_of_a_branch_is_routable(estate: Estate) -> None:
    ids = await estate.fill(5)
    await estate.bridge(acknowledge=DTX, target={"broker": "new", "routing_key": "later"})
    await estate.wait_for(state="error", reason=lambda text: "no queue takes 'later'" in text)
    assert await prepared(estate) == 0
    await estate.new.declare_queue("later")
    await until_empty(estate)
    found = await estate.take(5, "later")
    assert sorted(entry(delivery)["origin"] for delivery in found) == sorted(f"old/{id}" for id in ids)
    assert not any("resent" in entry(delivery) for delivery in found)


@TO_0_10
async def test_the_exchange_is_not_there(estate: Estate) -> None:
    await estate.fill(5)
    await estate.bridge(acknowledge=DTX, target={"broker": "new", "exchange": "shop"})
    await estate.wait_for(state="error", reason=lambda text: "shop" in text)
    await estate.new.declare_exchange("shop", "fanout")
    await estate.new.bind_queue("out", "shop")
    await estate.wait_for(forwarded=5)
    assert (await estate.status()).dead_lettered == 0
    assert len(await estate.take(5)) == 5


@TO_0_10
async def test_a_message_that_is_too_large(estate: Estate) -> None:
    await estate.close_gateway()
    await estate.open_gateway(VERSIONS, message_max=1 << 16)
    estate.new.branches.message_max = 1_000
    await estate.fill(2)
    await estate.fill(1, size=2_000)
    await estate.fill(2)
    await estate.bridge(acknowledge=DTX)
    await estate.wait_for(forwarded=4, dead_lettered=1)
    assert len(await estate.take(4)) == 4


async def test_a_target_of_another_version(estate: Estate) -> None:
    await estate.fill(2)
    await estate.bridge(acknowledge=DTX)
    status = await estate.wait_for(state="error", reason=lambda text: "needs a target of version 0-10" in text)
    assert status.taken == 0
    assert await estate.depth() == 2


def _pairs(count: int) -> list[Any]:
    class Delivered:
        message = Message(b"x", Properties())
        exchange = routing_key = ""

    return [(BridgeDelivery(Delivered(), number), Delivered.message) for number in range(count)]  # type: ignore[arg-type]


async def _with(pairs: list[Any], *outcomes: Any) -> list[BridgeDelivery]:
    loop = asyncio.get_running_loop()
    for (item, _), outcome in zip(pairs, outcomes, strict=True):
        if outcome is None:
            continue
        item.future = loop.create_future()
        if isinstance(outcome, Exception):
            item.future.set_exception(outcome)
        elif outcome == "cut":
            item.future.cancel()
        else:
            item.future.set_result(outcome)
    return [item for item, _ in pairs]


async def test_the_culprit_that_the_broker_names_and_the_others() -> None:
    """They go again at once, without a mark or a suspicion."""
    pairs = _pairs(3)
    culprit = RemoteError(541, "no")
    items = await _with(pairs, upstream_branches.ROUTED, culprit, "cut")
    assert two_phase._undone(pairs, "", RemoteError(541, "no")) == ([], [(items[1], culprit)], [items[0], items[2]], "")


async def test_one_message_alone_is_to_blame() -> None:
    pairs, why = _pairs(1), RemoteError(541, "no")
    (item,) = await _with(pairs, "cut")
    assert two_phase._undone(pairs, "", why) == ([], [(item, why)], [], "")
    assert two_phase._undone(pairs, "", BrokerUnavailable("away")) == ([], [], [item], "away")


async def test_among_several_nobody_is_to_blame_yet() -> None:
    """The window closes, and they go one by one."""
    pairs, why = _pairs(2), RemoteError(541, "no")
    items = await _with(pairs, "cut", "cut")
    assert two_phase._undone(pairs, "", why) == ([], [], items, str(why))


async def test_a_broker_that_dislikes_the_branch_itself() -> None:
    """Nothing was published in it, or what was is in it: it is not the message's fault."""
    pairs, why = _pairs(1), NotFound(404, "no exchange")
    (item,) = await _with(pairs, None)
    assert two_phase._undone(pairs, "", why) == ([], [], [item], str(why))
    (item,) = await _with(pairs, upstream_branches.ROUTED)
    assert two_phase._undone(pairs, "", why) == ([], [], [item], str(why))


# --------------------------------------------------------------------------------------------------- the rest


def test_settings() -> None:
    assert check_bridge(bridge_settings(acknowledge=DTX)) is None
    assert "dedupe_seconds" in str(check_bridge(bridge_settings(acknowledge=DTX, dedupe_seconds=0)))
    mirror = bridge_settings(acknowledge=DTX, mode="mirror", source={"broker": "old", "exchange": "ex"})
    assert check_bridge(mirror) is None


def test_names_of_branches() -> None:
    assert branch_id("b@12345678") == b"b@12345678"
    assert len(branch_id("b" * 100)) == 64
    assert branch_id("b" * 100) != branch_id("b" * 101)


def test_how_much_is_in_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.bridges.flow.BRANCH_OCTETS", 10)

    class Sized:
        def __init__(self, size: int) -> None:
            self.size = size

    items = [Sized(size) for size in (4, 4, 4, 30, 1, 9, 1)]
    found = [[item.size for item in branch] for branch in _branches(items)]  # type: ignore[arg-type]
    assert found == [[4, 4], [4], [30], [1, 9], [1]]


@TO_0_10
async def test_what_is_behind_a_branch_that_is_undone_does_not_overtake_it(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await estate.fill(9)
    end, cut = UpstreamBranch.end, []

    async def once(branch: UpstreamBranch) -> None:
        if not cut:
            cut.append(1)
            branch.abandon()
            raise BrokerUnavailable("cut off")
        await end(branch)

    monkeypatch.setattr(UpstreamBranch, "end", once)
    monkeypatch.setattr("gateway.bridges.flow.BRANCH_OCTETS", 2)
    await estate.bridge(acknowledge=DTX)
    await settled(estate, ids)
    assert (await estate.status()).taken == 9


@TO_0_10
async def test_a_source_that_forgets_what_it_had_delivered(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """It brings again what it was not told of, and does not say so: with an id it is known all the same."""
    await estate.fill(6)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(UpstreamBranch, "commit", after(UpstreamBranch.commit, hold))
        await estate.bridge(acknowledge=DTX)
        await until(lambda: hold.reached)
        await crash(estate)
    monkeypatch.setattr(BridgeDelivery, "delivery", Forgetful(BridgeDelivery.delivery))  # type: ignore[attr-defined]
    await estate.open_gateway(VERSIONS)
    await estate.wait_for(duplicates_dropped=6)
    assert len(await estate.take(6)) == 6


class Forgetful:
    """The attribute ``delivery`` of items, of which none says that it is a redelivery."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, item: Any, owner: Any = None) -> Any:
        return self._slot.__get__(item, owner)

    def __set__(self, item: Any, delivery: Any) -> None:
        delivery.redelivered = False
        self._slot.__set__(item, delivery)
