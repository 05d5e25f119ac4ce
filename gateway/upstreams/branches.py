"""Branches of distributed transactions at one broker: 0-10's dtx class, as somebody who decides them sees it.

A :class:`UpstreamBranch` is worked on by one channel of the link that publishes, from its start to its end; then it is
prepared there, and it may be committed or rolled back there or, when that channel is gone, on any other
(:meth:`UpstreamBranches.commit`, :meth:`UpstreamBranches.rollback`). Nothing here decides anything: a
:class:`BranchOutcome` says what a broker answered.

A broker ends the session over a branch that it does not know, so what is asked of branches that may be unknown has a
channel of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Confirmed,
    DtxCommit,
    DtxEnd,
    DtxForget,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSelect,
    DtxStart,
    Failed,
    Flow,
    Operation,
    Outcome,
    Publish,
    RecoverResult,
    Refused,
    Returned,
    SelectConfirm,
    XaResult,
    XaStatus,
    Xid,
)
from gateway.errors import (
    BrokerUnavailable,
    GatewayError,
    LimitExceeded,
    NotFound,
    PublishRefused,
    StateError,
    Unsupported,
    remote_error,
)
from gateway.link import Channel, Link
from gateway.runtime.clock import clock
from gateway.upstreams.publishing.lanes import settle
from gateway.upstreams.publishing.receipts import ROUTED, PublishReceipt

ANSWER_TIMEOUT: Final = 30.0
"""How long a broker may take for one answer, in seconds."""
EXCHANGE_KNOWN: Final = 5.0
"""Seconds for which an exchange is known to exist."""
LOOK_EVERY: Final = 0.02
"""How often it is looked whether a broker that wants nothing at present wants something again, in seconds."""


class BranchOutcome(Enum):
    """What became of a branch that was to be committed, or to be rolled back."""

    DONE = "done"
    """That."""
    GONE = "gone"
    """The broker does not know it: it has been finished before, or was never prepared."""
    ROLLED_BACK = "rolled back"
    """Nothing of the request has happened."""
    MIXED = "mixed"
    """The broker's administrator has decided it, and nobody can tell how for all of it."""


COMMITTED: Final = {
    XaStatus.XA_OK: BranchOutcome.DONE,
    XaStatus.XA_RDONLY: BranchOutcome.DONE,
    XaStatus.XA_HEURCOM: BranchOutcome.DONE,
    XaStatus.XA_RBROLLBACK: BranchOutcome.ROLLED_BACK,
    XaStatus.XA_RBTIMEOUT: BranchOutcome.ROLLED_BACK,
    XaStatus.XA_HEURRB: BranchOutcome.ROLLED_BACK,
    XaStatus.XA_HEURMIX: BranchOutcome.MIXED,
    XaStatus.XA_HEURHAZ: BranchOutcome.MIXED,
}
"""What the answer to a commit says."""
UNDONE: Final = {
    **dict.fromkeys(
        (XaStatus.XA_OK, XaStatus.XA_RDONLY, XaStatus.XA_RBROLLBACK, XaStatus.XA_RBTIMEOUT, XaStatus.XA_HEURRB),
        BranchOutcome.DONE,
    ),
    **dict.fromkeys((XaStatus.XA_HEURCOM, XaStatus.XA_HEURMIX, XaStatus.XA_HEURHAZ), BranchOutcome.MIXED),
}
"""What the answer to a rollback says."""
HEURISTIC: Final = frozenset({XaStatus.XA_HEURCOM, XaStatus.XA_HEURRB, XaStatus.XA_HEURMIX, XaStatus.XA_HEURHAZ})
"""Statuses of branches that a broker keeps until a request to forget them."""


class BranchLane(Channel):
    """A channel that works on branches. Its publishes have outcomes of their own."""

    __slots__ = ("_pending", "stopped")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.stopped = False
        """The broker wants no content at present."""
        self._pending: dict[int, asyncio.Future[PublishReceipt]] = {}

    async def prepare(self) -> None:
        """Open it for branches."""
        await self.open()
        await self.request(SelectConfirm(self.number))
        await self.request(DtxSelect(self.number))

    async def room(self) -> None:
        """Wait until the broker takes content."""
        while self.closed is None and (self.stopped or not self.link.writable):  # two conditions
            await clock.sleep(LOOK_EVERY)

    def publish(self, exchange: str, routing_key: str, message: Message) -> asyncio.Future[PublishReceipt]:
        """Publish in the branch that was started; a message that cannot be written fails, and is no part of it.

        Raises:
            RemoteError: the broker ended the channel.
            BrokerUnavailable: the link is lost, or the broker takes no message now.
        """
        future: asyncio.Future[PublishReceipt] = self.link.loop.create_future()
        try:
            serial = self.send(Publish(self.number, exchange, routing_key, message, True, False))
        except StateError as error:  # that is the channel's fault, not the message's
            raise self.closed or BrokerUnavailable(str(error)) from None
        except GatewayError as error:
            future.set_exception(error)
        else:
            self._pending[serial] = future
        return future

    async def confirmed(self) -> None:
        """Wait until every publish has its outcome.

        Raises:
            RemoteError: the broker ended the channel.
            BrokerUnavailable: the link is lost, or an outcome did not come in time.
        """
        if self._pending:
            _, late = await asyncio.wait(tuple(self._pending.values()), timeout=ANSWER_TIMEOUT)
            if self.closed is not None:
                raise self.closed
            if late:
                raise BrokerUnavailable(f"{len(late)} publishes were not confirmed within {ANSWER_TIMEOUT:g} s")

    def receive(self, operation: Operation) -> None:
        """See :class:`~gateway.link.Channel`."""
        if isinstance(operation, Confirmed):
            self._resolve(operation, ROUTED)
        elif isinstance(operation, Returned):
            self._resolve(operation, PublishReceipt(False, operation.code, operation.text))
        elif isinstance(operation, Refused):
            told = f"{operation.code or ''} {operation.text}".strip()
            text = f"the broker refused the message: {told}".rstrip(": ")
            self._resolve(operation, PublishRefused(text))
        elif isinstance(operation, Failed) and operation.first in self._pending:
            self._resolve(operation, remote_error(operation.code, operation.text))
        else:
            super().receive(operation)

    def _resolve(self, outcome: Outcome, result: PublishReceipt | GatewayError) -> None:
        for serial in range(outcome.first, outcome.last + 1):
            future = self._pending.pop(serial, None)
            if future is not None:
                settle(future, result)

    def handle(self, operation: Operation) -> None:
        """See :class:`~gateway.link.Channel`."""
        if isinstance(operation, Flow):
            self.stopped = not operation.active

    def lost(self, error: GatewayError) -> None:
        """See :class:`~gateway.link.Channel`. Publishes without an outcome are undone with the branch: cancelled."""
        pending, self._pending = self._pending, {}
        for future in pending.values():
            future.cancel()


class UpstreamBranch:
    """A branch that one channel works on."""

    def __init__(self, xid: Xid, lane: BranchLane, branches: UpstreamBranches) -> None:
        self.xid = xid
        self._branches = branches
        self._publishes = 0
        self._lane = lane
        self._started = lane.request(DtxStart(lane.number, xid))

    @property
    def usable(self) -> bool:
        """Its channel lives: it can be finished here."""
        return self._lane.usable

    async def started(self) -> None:
        """Wait until it is. Raises as :meth:`end`."""
        self._check(await _answer(self._started))

    async def room(self) -> None:
        """Wait until the broker takes content."""
        await self._lane.room()

    def publish(self, exchange: str, routing_key: str, message: Message) -> asyncio.Future[PublishReceipt]:
        """Publish in this branch. The future has the receipt, or the error that is this message's own; it is cancelled
        where the channel died over something else: nothing of the branch will have happened. Raises as :meth:`end`."""
        self._publishes += 1
        self._branches.pending += 1
        return self._lane.publish(exchange, routing_key, message)

    async def end(self) -> None:
        """End the work; return when every publish has its outcome. A broker may confirm publishes after it has answered
        what was sent behind them.

        Raises:
            RemoteError: the broker ended the channel.
            BrokerUnavailable: no link, no answer, or the broker has rolled it back.
        """
        self._check(await _answer(self._lane.request(DtxEnd(self._lane.number, self.xid))))
        await self._lane.confirmed()

    async def prepare(self) -> None:
        """The first phase: when it returns, the branch can be committed through all faults. Raises as :meth:`end`."""
        self._check(await _answer(self._lane.request(DtxPrepare(self._lane.number, self.xid))))

    async def commit(self) -> BranchOutcome:
        """The second phase. Raises as :meth:`end`: then nobody knows."""
        outcome = COMMITTED[await _answer(self._lane.request(DtxCommit(self._lane.number, self.xid)))]
        self._over()
        return outcome

    async def rollback(self) -> BranchOutcome:
        """Undo it. Raises as :meth:`end`: then nobody knows."""
        outcome = UNDONE[await _answer(self._lane.request(DtxRollback(self._lane.number, self.xid)))]
        self._over()
        return outcome

    @staticmethod
    def _check(status: XaStatus) -> None:
        if status is not XaStatus.XA_OK:
            raise BrokerUnavailable(f"the broker has undone the branch: {status.name}")

    def abandon(self) -> None:
        """End the channel: a branch that has not ended can only be rolled back then."""
        self._over()
        self._lane.abandon()

    def _over(self) -> None:
        self._branches.pending -= self._publishes
        self._publishes = 0


class UpstreamBranches:
    """The branches at one broker. :meth:`attach` gives it a link, :meth:`detach` takes it away."""

    def __init__(self, name: str, check_exchange: Callable[[str], Awaitable[object]], message_max: int) -> None:
        self.name = name
        self.check_exchange = check_exchange
        self.message_max = message_max
        self.pending = 0
        """How many publishes are in branches that are not finished."""
        self._link: Link | None = None
        self._why = "not connected yet"
        self._asking: BranchLane | None = None
        self._turn = asyncio.Lock()

    def attach(self, link: Link) -> None:
        """The link to work on."""
        self._link = link
        self._asking = None

    def detach(self, reason: str) -> None:
        """It is lost."""
        self._link = self._asking = None
        self._why = reason

    def worker(self) -> BranchWorker:
        """Somebody who works on branches, one after the other."""
        return BranchWorker(self)

    async def commit(self, xid: Xid) -> BranchOutcome:
        """Commit a branch that was prepared, on whichever channel.

        Raises:
            RemoteError, BrokerUnavailable, Unsupported: nobody knows what became of it; try again.
        """
        return await self._finish(DtxCommit, xid, COMMITTED)

    async def rollback(self, xid: Xid) -> BranchOutcome:
        """Roll back a branch in any state, unless a channel works on it still (406). Raises as :meth:`commit`."""
        return await self._finish(DtxRollback, xid, UNDONE)

    async def recover(self) -> tuple[Xid, ...]:
        """The branches that are prepared, of everybody's. Raises as :meth:`commit`."""
        async with self._turn:
            lane = await self._asked()
            found = await _wait(lane.request(DtxRecover(lane.number)))
        assert isinstance(found, RecoverResult)
        return found.in_doubt

    async def _finish(
        self, kind: type[DtxCommit | DtxRollback], xid: Xid, outcomes: dict[XaStatus, BranchOutcome]
    ) -> BranchOutcome:
        async with self._turn:
            lane = await self._asked()
            try:
                status = await _answer(lane.request(kind(lane.number, xid)))
            except NotFound:
                return BranchOutcome.GONE
            if status in HEURISTIC:
                await _wait(lane.request(DtxForget(lane.number, xid)))
        return outcomes[status]

    async def _asked(self) -> BranchLane:
        if self._asking is None or not self._asking.usable:
            self._asking = await self.open()
        return self._asking

    async def open(self) -> BranchLane:
        """A channel that works on branches. Raises as :meth:`commit`."""
        link = self._link
        if link is None or link.ended is not None:
            raise BrokerUnavailable(f"broker {self.name}: {self._why if link is None else 'the connection is lost'}")
        if not link.capabilities.distributed:
            raise Unsupported(
                f"broker {self.name} speaks {link.session.version.value} here, without distributed transactions: "
                'acknowledge = "dtx" needs a target of version 0-10'
            )
        lane = link.channel(BranchLane)
        try:
            await _wait(lane.prepare())
        except BaseException:
            lane.abandon()
            raise
        return lane


class BranchWorker:
    """Works on branches of one broker, one at a time."""

    def __init__(self, branches: UpstreamBranches) -> None:
        self._branches = branches
        self._lane: BranchLane | None = None
        self._branch: UpstreamBranch | None = None
        """The one that it works on, or has worked on last."""
        self._known: dict[str, float] = {}
        """Exchange that exists -> since when that is known."""

    async def begin(self, xid: Xid, exchange: str) -> UpstreamBranch:
        """Start a branch, to publish to an exchange; the one before it is finished.

        Raises:
            Unsupported: the version has no distributed transactions.
            NotFound: there is no such exchange.
            RemoteError, BrokerUnavailable: it cannot be started. The broker knows nothing of it then.
        """
        lane = self._lane
        if lane is None or not lane.usable:
            self._known.clear()
            lane = self._lane = await self._branches.open()
        now = clock.monotonic()
        if exchange and self._known.get(exchange, 0.0) + EXCHANGE_KNOWN <= now:
            self._known.clear()
            await self._branches.check_exchange(exchange)
            self._known[exchange] = now
        self._branch = UpstreamBranch(xid, lane, self._branches)
        return self._branch

    def check(self, message: Message) -> None:
        """Refuse what would make the broker end the channel, and with it the branch.

        Raises:
            LimitExceeded: the body is over ``message_max``.
        """
        size, most = len(message.body), self._branches.message_max
        if size > most:
            raise LimitExceeded(f"a body of {size} octets is over message_max = {most}", "message_max")

    def rest(self) -> None:
        """End the channel, and the work on the branch that is not finished."""
        lane, self._lane = self._lane, None
        branch, self._branch = self._branch, None
        if branch is not None:
            branch.abandon()
        if lane is not None:
            lane.abandon()


async def _wait(answer: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await answer
    except TimeoutError:
        raise BrokerUnavailable(f"no answer within {ANSWER_TIMEOUT:g} s") from None


async def _answer(answer: Awaitable[Any]) -> XaStatus:
    found = await _wait(answer)
    assert isinstance(found, XaResult)
    return found.status
