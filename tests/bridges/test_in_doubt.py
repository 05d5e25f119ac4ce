"""What a process of mode ``dtx`` has left in the middle, settled by the next one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.operations import Xid
from gateway.bridges import in_doubt
from gateway.bridges.in_doubt import InDoubtOutcome, settle
from gateway.bridges.two_phase import FORMAT, xid_of
from gateway.errors import BrokerUnavailable, EntriesRefused, NoSuchBroker, RemoteError
from gateway.ledger import BranchRecord, BranchStatus, EventKind
from gateway.ledger.pending.branches import BranchStore
from gateway.observing.repeats import FIELDS
from gateway.upstreams import BranchOutcome
from gateway.upstreams.branches import UpstreamBranch, UpstreamBranches
from tests.bridges.asked import Bench, Register, Target, bench
from tests.bridges.conftest import Estate, entry, until
from tests.bridges.points import Hold, after, branches, prepared, until_async

__all__ = ["bench"]


class Left:
    """What a process has left, and what settles it."""

    def __init__(self, bench: Bench) -> None:
        self.asked = bench.asked
        self.token = bench.flow._route.token
        self.journal = bench.flow._journal
        self.target = Target(bench.asked)
        self.other = Target(bench.asked, "old")
        ledger = SimpleNamespace(branches=Register(bench.asked))
        self.gateway: Any = SimpleNamespace(ledger=ledger, broker=self._broker)

    def _broker(self, name: str) -> Target:
        found = {"new": self.target, "old": self.other}.get(name)
        if found is None:
            raise NoSuchBroker(name)
        return found

    def record(self, number: int, status: BranchStatus, broker: str = "new") -> BranchRecord:
        """What the ledger knows of a branch."""
        detail = {
            "version": "0-10", "scope": "scope", "keys": ["k"],
            "told": [[bytes(16).hex(), "forwarded", {"n": number}], [bytes(16).hex(), "reduced", {}]],
        }  # fmt: skip
        return BranchRecord(b"%016d" % number, "b", broker, status, detail)

    async def settle(self, *records: BranchRecord, looks: bool = True) -> InDoubtOutcome:
        """Settle these."""
        self.asked.answers["of"] = [list(records) for _ in range(10)]
        target: Any = self.target if looks else None
        return await settle("b", self.token, self.gateway, self.journal, target)


@pytest.fixture
def left(bench: Bench) -> Left:
    return Left(bench)


async def test_each_is_settled_by_the_ledgers_word(left: Left, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    outcome = await left.settle(
        left.record(1, BranchStatus.BEGUN, "gone"),
        left.record(2, BranchStatus.BEGUN),
        left.record(3, BranchStatus.ABORTED, "old"),
        left.record(4, BranchStatus.DECIDED),
        left.record(5, BranchStatus.DECIDED, "gone"),
    )
    assert outcome == (1, 2, [], 2)
    assert left.asked.take() == [
        "of", "abort", "rollback there", "finish", "rollback there", "finish", "of", "commit there", "finish",
        "recover",
    ]  # fmt: skip
    *undone, ((id, told), _) = left.asked.of("finish")
    assert undone == [((b"%016d" % 2,), {}), ((b"%016d" % 3,), {})]
    assert (id, [entry.kind for entry in told]) == (b"%016d" % 4, [EventKind.FORWARDED, EventKind.REDUCED])
    (record,) = caplog.records
    assert (record.getMessage(), record.levelname) == ("bridge.branches_settled", "WARNING")
    told_of = getattr(record, FIELDS)
    assert [told_of[name] for name in ("committed", "rolled_back", "left", "lost")] == [1, 2, 0, 2]


async def test_one_that_is_decided_as_it_is_aborted_is_committed(left: Left) -> None:
    left.asked.answers["abort"] = [BranchStatus.DECIDED]
    assert await left.settle(left.record(1, BranchStatus.BEGUN), looks=False) == (1, 0, [], 0)
    assert left.asked.take() == ["of", "abort", "of", "commit there", "finish"]


async def test_what_a_channel_works_on_is_left_to_the_bridge_of_that_target(left: Left) -> None:
    left.asked.answers["rollback there"] = [RemoteError(406, "a channel works on it")] * 2
    records = [left.record(1, BranchStatus.ABORTED), left.record(2, BranchStatus.ABORTED, "old")]
    outcome = await left.settle(*records)
    assert outcome == (0, 0, [b"%016d" % 1], 0)
    assert "finish" not in left.asked.take(), "the ledger must not forget it"
    left.asked.answers["rollback there"] = [BrokerUnavailable("it is gone")]
    with pytest.raises(BrokerUnavailable):
        await left.settle(*records)


async def test_only_branches_of_its_own_that_nobody_knows_are_undone(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    strange, known = b"s" * 16, b"%016d" % 1
    mine = xid_of(left.token, strange)
    left.asked.answers["recover"] = [
        (
            Xid(FORMAT + 1, strange, mine.branch_id), Xid(FORMAT, strange, b"another"), xid_of(left.token, known), mine,
        )
    ]  # fmt: skip
    left.asked.answers["rollback there"] = [RemoteError(406, "a channel works on it")]
    outcome = await left.settle(left.record(1, BranchStatus.ABORTED))
    assert outcome == (0, 1, [known], 0)
    assert [xid for (xid,), _ in left.asked.of("rollback there")] == [xid_of(left.token, known), mine]
    assert caplog.records[-1].levelname == "INFO"
    caplog.clear()
    left.asked.answers["recover"] = [(mine,)]
    assert await left.settle() == (0, 1, [], 0)
    assert [record.getMessage() for record in caplog.records] == ["bridge.branches_settled"]
    caplog.clear()
    assert await left.settle() == (0, 0, [], 0)
    assert caplog.records == [], "there was nothing"


async def test_one_that_the_ledger_does_not_show_is_aborted_there_before_it_is_undone(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process may have begun it since the ledger was read, and must not decide it any more."""
    caplog.set_level("INFO")
    left.asked.answers["recover"] = [(xid_of(left.token, b"s" * 16),)]
    assert await left.settle() == (0, 1, [], 0)
    assert left.asked.take() == ["of", "recover", "abort", "rollback there", "finish"]
    left.asked.answers["recover"] = [(xid_of(left.token, b"s" * 16),)]
    left.asked.answers["rollback there"] = [RemoteError(406, "a channel works on it")]
    assert await left.settle() == (0, 0, [b"s" * 16], 0)
    assert left.asked.take() == ["of", "recover", "abort", "rollback there"], "the ledger must not forget it"
    assert [arguments for verb in ("abort", "finish") for arguments, _ in left.asked.of(verb)] == [(b"s" * 16,)] * 3
    assert getattr(caplog.records[-1], FIELDS)["left"] == 1


async def test_one_that_was_decided_since_the_ledger_was_read_is_committed(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    record = left.record(1, BranchStatus.DECIDED)
    left.asked.answers |= {
        "of": [[], [record]], "recover": [(xid_of(left.token, record.id),)], "abort": [BranchStatus.DECIDED],
    }  # fmt: skip
    target: Any = left.target
    assert await settle("b", left.token, left.gateway, left.journal, target) == (1, 0, [], 0)
    assert left.asked.take() == ["of", "recover", "abort", "of", "commit there", "finish"]
    (((id, told), _),) = left.asked.of("finish")
    assert (id, [entry.kind for entry in told]) == (record.id, [EventKind.FORWARDED, EventKind.REDUCED])
    assert {entry.broker for entry in told} == {"new"}
    assert [arguments for arguments, _ in left.asked.of("of")] == [("b",)] * 2
    assert getattr(caplog.records[-1], FIELDS)["committed"] == 1


async def test_one_that_its_own_process_has_finished_meanwhile_is_left_alone(left: Left) -> None:
    begun = BranchRecord(b"%016d" % 1, "b", "new", BranchStatus.BEGUN, {})
    left.asked.answers |= {"of": [[begun], []], "abort": [BranchStatus.DECIDED]}
    assert await settle("b", left.token, left.gateway, left.journal, None) == (0, 0, [], 0)
    assert left.asked.take() == ["of", "abort", "of"]


@pytest.mark.parametrize("outcome", [BranchOutcome.ROLLED_BACK, BranchOutcome.MIXED])
async def test_what_a_target_has_undone_meanwhile_is_released(left: Left, outcome: BranchOutcome) -> None:
    left.asked.answers["commit there"] = [outcome]
    assert await left.settle(left.record(1, BranchStatus.DECIDED), looks=False) == (0, 0, [], 0)
    (((_, released), options),) = left.asked.of("finish")
    assert [entry.kind for entry in released] == [EventKind.RELEASED]
    assert options["forget"] == {"scope": ["k"]}
    assert [row.key for row in options["doubt"]] == (["k"] if outcome is BranchOutcome.MIXED else [])


async def test_its_newest_detail_counts(left: Left) -> None:
    older, newer, other = (left.record(number, BranchStatus.DECIDED) for number in (1, 2, 3))
    newer = BranchRecord(older.id, "b", "new", BranchStatus.DECIDED, newer.detail)
    left.asked.answers["of"] = [[other, newer]]
    await in_doubt._commit(left.token, left.target, left.gateway, left.journal, older)  # type: ignore[arg-type]
    (((id, (forwarded, _)), _),) = left.asked.of("finish")
    assert (id, forwarded.detail) == (older.id, {"n": 2})


async def test_events_that_cannot_be_stored_do_not_keep_it_in_doubt(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    left.asked.answers["finish"] = [EntriesRefused({0: "it is Monday"})]
    assert await left.settle(left.record(1, BranchStatus.DECIDED), looks=False) == (1, 0, [], 0)
    assert [len(arguments) for arguments, _ in left.asked.of("finish")] == [2, 1]
    assert "bridge.events_refused" in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("estate", [("0-9-1", "0-10")], indirect=True)
async def test_a_pause_commits_what_was_decided(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left in the middle where nobody looks for it."""
    await estate.fill(4)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(BranchStore, "decide", after(BranchStore.decide, hold))
        await estate.bridge(acknowledge="dtx")
        await until(lambda: hold.reached)
        await estate.bridges._here["b"].halt(0.05)
    assert (await branches(estate), await prepared(estate)) == ([], 0)
    assert await estate.depth("out", "new") == 4


@pytest.mark.parametrize(("owner", "verb"), [(UpstreamBranch, "prepare"), (BranchStore, "decide")])
@pytest.mark.parametrize("estate", [("0-9-1", "0-10")], indirect=True)
async def test_one_that_settles_late_costs_its_heir_no_messages(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, owner: Any, verb: str
) -> None:
    """It has read the ledger, and asks the target only when another process has prepared a branch of the bridge."""
    ids = await estate.fill(4)
    await estate.bridge(acknowledge="dtx", paused=True)
    bridge = estate.bridges._here["b"]
    recover, step = UpstreamBranches.recover, getattr(owner, verb)
    late, heir = Turn(), Turn()

    async def slow_recover(self: UpstreamBranches) -> Any:
        await late.here()
        return await recover(self)

    async def slow_step(*arguments: Any) -> Any:
        found = await step(*arguments)
        await heir.here()
        return found

    monkeypatch.setattr(UpstreamBranches, "recover", slow_recover)
    monkeypatch.setattr(owner, verb, slow_step)
    settling = asyncio.create_task(settle("b", bridge.route.token, estate.gateway, bridge._journal(), estate.new))
    await until(lambda: late.reached)
    await estate.bridges.resume("b")
    await until(lambda: heir.reached)
    late.may_go.set()
    outcome = await settling
    heir.may_go.set()
    await estate.wait_for(state="running", forwarded=4, in_flight=0)
    await until_async(lambda: _is_empty(estate))
    found = await estate.take(4)
    assert [entry(delivery)["origin"] for delivery in found] == [f"old/{id}" for id in ids]
    assert not any("resent" in entry(delivery) for delivery in found)
    assert outcome == ((0, 1, [], 0) if verb == "prepare" else (1, 0, [], 0))


async def _is_empty(estate: Estate) -> bool:
    return await estate.depth() == 0


class Turn:
    """Holds up the first that comes here, until it may go on."""

    def __init__(self) -> None:
        self.reached = False
        self.may_go = asyncio.Event()

    async def here(self) -> None:
        """Wait, if nobody has been here before."""
        if not self.reached:
            self.reached = True
            await self.may_go.wait()
