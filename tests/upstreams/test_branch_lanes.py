"""Branches on one channel: outcomes of their publishes, what is counted, and what is asked of others' branches."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    CloseChannel,
    Confirmed,
    DtxCommit,
    DtxForget,
    DtxRollback,
    Failed,
    Flow,
    Operation,
    Publish,
    Refused,
    Returned,
    XaResult,
    XaStatus,
    Xid,
)
from gateway.errors import (
    BrokerUnavailable,
    EncodeError,
    GatewayError,
    NotFound,
    PreconditionFailed,
    PublishRefused,
    RemoteError,
    StateError,
    Unsupported,
)
from gateway.runtime.clock import clock
from gateway.upstreams import branches as module
from gateway.upstreams.branches import BranchLane, BranchOutcome, UpstreamBranch, UpstreamBranches
from gateway.upstreams.publishing.receipts import PublishReceipt

XID = Xid(1, b"g", b"b")


class Wire:
    """A link whose broker answers with given statuses."""

    def __init__(self, *, distributed: bool = True) -> None:
        self.loop = asyncio.get_running_loop()
        self.closing = False
        self.ended: object = None
        self.writable = True
        self.capabilities = SimpleNamespace(distributed=distributed)
        self.session = SimpleNamespace(version=SimpleNamespace(value="0-10"))
        self.sent: list[Operation] = []
        self.fault: GatewayError | None = None
        self.lanes: list[BranchLane] = []
        self.statuses: list[XaStatus | GatewayError] = []

    def channel(self, kind: type[BranchLane]) -> BranchLane:
        anything: Any = self
        lane = kind(anything, len(self.lanes) + 1)
        self.lanes.append(lane)
        return lane

    def send(self, operation: Operation) -> int:
        if self.fault is not None:
            raise self.fault
        self.sent.append(operation)
        serial = len(self.sent)
        if isinstance(operation, DtxCommit | DtxRollback):
            outcome = self.statuses.pop(0)
            lane = self.lanes[-1]
            if isinstance(outcome, GatewayError):
                self.loop.call_soon(lane.end, outcome)
            else:
                self.loop.call_soon(lane.receive, XaResult(lane.number, serial, serial, outcome))
        elif not isinstance(operation, Publish | CloseChannel):
            lane = self.lanes[-1]
            self.loop.call_soon(lane.receive, XaResult(lane.number, serial, serial, XaStatus.XA_OK))
        return serial

    def of(self, kind: type) -> list[Any]:
        return [operation for operation in self.sent if type(operation) is kind]


@pytest.fixture
async def wire() -> Wire:
    return Wire()


async def exists(exchange: str) -> None:
    """Every exchange does."""


@pytest.fixture
async def branches(wire: Wire) -> UpstreamBranches:
    found = UpstreamBranches("b", exists, 100)
    anything: Any = wire
    found.attach(anything)
    return found


async def test_each_publish_has_its_own_outcome(wire: Wire, branches: UpstreamBranches) -> None:
    branch = await branches.worker().begin(XID, "")
    lane = wire.lanes[0]
    futures = [branch.publish("e", "k", Message(b"%d" % number)) for number in range(6)]
    assert [(each.mandatory, each.immediate) for each in wire.of(Publish)] == [(True, False)] * 6
    first = len(wire.sent) - 5
    lane.receive(Confirmed(1, first, first + 1))
    assert [future.done() for future in futures] == [True, True, False, False, False, False]
    lane.receive(Returned(1, first + 2, first + 2, 312, "NO_ROUTE"))
    assert futures[2].result() == PublishReceipt(False, 312, "NO_ROUTE")
    lane.receive(Refused(1, first + 3, first + 3, 0, ""))
    with pytest.raises(PublishRefused, match=r"^the broker refused the message$"):
        await futures[3]
    lane.receive(Failed(1, first + 4, first + 4, 406, "bad"))
    with pytest.raises(PreconditionFailed, match="bad"):
        await futures[4]
    assert not futures[5].done()
    lane.receive(Confirmed(1, first, first + 5))
    assert futures[5].result().routed
    wire.fault = EncodeError("too long")
    bad = branch.publish("e", "k", Message())
    with pytest.raises(EncodeError):
        await bad
    wire.fault = StateError("the session is closed")
    with pytest.raises(BrokerUnavailable, match="the session is closed"):
        branch.publish("e", "k", Message())
    lane.end(RemoteError(541, "no"))
    with pytest.raises(RemoteError, match="no"):
        branch.publish("e", "k", Message())


@pytest.mark.parametrize("ends", ["commit", "rollback", "abandon", "rest"])
async def test_publishes_count_until_their_branch_is_over(wire: Wire, branches: UpstreamBranches, ends: str) -> None:
    worker = branches.worker()
    assert branches.pending == 0
    branch = await worker.begin(XID, "")
    for _ in range(3):
        branch.publish("e", "k", Message())
    assert branches.pending == 3
    wire.statuses = [XaStatus.XA_OK]
    if ends == "rest":
        worker.rest()
    elif ends == "abandon":
        branch.abandon()
    else:
        assert await getattr(branch, ends)() is BranchOutcome.DONE
    assert branches.pending == 0
    branch.abandon()
    assert branches.pending == 0
    assert len(wire.of(CloseChannel)) == 1
    worker.rest()
    assert len(wire.of(CloseChannel)) == 1


async def test_there_is_room_while_the_broker_takes_content(
    wire: Wire, branches: UpstreamBranches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.001)
    branch = await branches.worker().begin(XID, "")
    lane = wire.lanes[0]
    await branch.room()

    async def waits() -> bool:
        task = asyncio.create_task(branch.room())
        done, _ = await asyncio.wait([task], timeout=0.02)
        task.cancel()
        return not done

    lane.receive(Flow(1, False))
    assert await waits()
    lane.receive(Flow(1, True))
    assert not await waits()
    wire.writable = False
    assert await waits()
    lane.receive(Flow(1, False))
    lane.end(BrokerUnavailable("lost"))
    assert not await waits(), "then the next request says what is the matter"


@pytest.mark.parametrize(
    ("status", "committed", "undone", "forgets"),
    [
        (XaStatus.XA_OK, BranchOutcome.DONE, BranchOutcome.DONE, False),
        (XaStatus.XA_RBROLLBACK, BranchOutcome.ROLLED_BACK, BranchOutcome.DONE, False),
        (XaStatus.XA_HEURCOM, BranchOutcome.DONE, BranchOutcome.MIXED, True),
        (XaStatus.XA_HEURRB, BranchOutcome.ROLLED_BACK, BranchOutcome.DONE, True),
        (XaStatus.XA_HEURMIX, BranchOutcome.MIXED, BranchOutcome.MIXED, True),
    ],
)
async def test_what_became_of_a_branch(
    wire: Wire,
    branches: UpstreamBranches,
    status: XaStatus,
    committed: BranchOutcome,
    undone: BranchOutcome,
    forgets: bool,
) -> None:
    """What the broker's administrator has decided is kept there until it is forgotten."""
    wire.statuses = [status, status]
    assert await branches.commit(XID) is committed
    assert [each.xid for each in wire.of(DtxForget)] == [XID] * forgets
    assert await branches.rollback(XID) is undone
    assert len(wire.of(DtxForget)) == 2 * forgets
    assert len(wire.lanes) == 1, "one channel for all that is asked"


async def test_a_branch_that_is_not_known_costs_the_channel(wire: Wire, branches: UpstreamBranches) -> None:
    wire.statuses = [NotFound(404, "no such branch"), XaStatus.XA_OK]
    assert await branches.commit(XID) is BranchOutcome.GONE
    assert await branches.commit(XID) is BranchOutcome.DONE
    assert len(wire.lanes) == 2


async def test_another_link_has_other_channels(wire: Wire, branches: UpstreamBranches) -> None:
    wire.statuses = [XaStatus.XA_OK]
    await branches.commit(XID)
    other = Wire()
    other.statuses = [XaStatus.XA_OK]
    anything: Any = other
    branches.attach(anything)
    await branches.commit(XID)
    assert (len(wire.lanes), len(other.lanes)) == (1, 1)
    branches.detach("the broker went")
    with pytest.raises(BrokerUnavailable, match="broker b: the broker went"):
        await branches.commit(XID)
    branches.attach(anything)
    other.ended = object()
    with pytest.raises(BrokerUnavailable, match="the connection is lost"):
        await branches.open()


async def test_a_channel_that_cannot_be_made_ready_is_closed(
    wire: Wire, branches: UpstreamBranches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.01)
    wire.capabilities.distributed = False
    with pytest.raises(Unsupported, match="speaks 0-10 here"):
        await branches.open()
    assert wire.lanes == []
    wire.capabilities.distributed = True

    async def silent(lane: BranchLane) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(BranchLane, "prepare", silent)
    with pytest.raises(BrokerUnavailable, match="no answer"):
        await branches.open()
    assert len(wire.of(CloseChannel)) == 1


async def test_an_exchange_is_known_for_some_seconds(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    now = 1_000.0

    async def check(exchange: str) -> None:
        asked.append(exchange)

    branches = UpstreamBranches("b", check, 100)
    anything: Any = wire
    branches.attach(anything)
    worker = branches.worker()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "monotonic", lambda: now)
        for exchange, after in (("e", 0.0), ("e", module.EXCHANGE_KNOWN - 1), ("e", module.EXCHANGE_KNOWN), ("", 9.0)):
            now = 1_000.0 + after
            await worker.begin(XID, exchange)
        assert asked == ["e", "e"]
        await worker.begin(XID, "f")
        await worker.begin(XID, "e")
        assert asked == ["e", "e", "f", "e"], "one is remembered"
        wire.lanes[0].end(RemoteError(404, "no"))
        await worker.begin(XID, "e")
        assert asked[4:] == ["e"]
    assert len(wire.lanes) == 2


async def test_a_channel_without_a_branch_is_closed_too(wire: Wire) -> None:
    async def gone(exchange: str) -> None:
        raise NotFound(404, "no exchange")

    branches = UpstreamBranches("b", gone, 100)
    anything: Any = wire
    branches.attach(anything)
    worker = branches.worker()
    with pytest.raises(NotFound):
        await worker.begin(XID, "e")
    assert wire.of(CloseChannel) == []
    worker.rest()
    assert len(wire.of(CloseChannel)) == 1


async def test_a_branch_that_the_broker_has_undone(wire: Wire, branches: UpstreamBranches) -> None:
    branch = await branches.worker().begin(XID, "")
    assert branch.usable
    UpstreamBranch._check(XaStatus.XA_OK)
    with pytest.raises(BrokerUnavailable, match="XA_RBTIMEOUT"):
        UpstreamBranch._check(XaStatus.XA_RBTIMEOUT)
    await branch.started()
    await branch.end()
    await branch.prepare()
