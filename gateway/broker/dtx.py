"""Branches of distributed transactions (0-10's dtx class): what is noted for each, and what becomes of it.

Between DtxStart and DtxEnd, publishes of a channel and the deliveries that it accepts are noted in the branch. A
publish is routed when it comes: what nobody would get is returned at once, and a commit puts messages into the very
queues they were routed to, even if they were unbound since. What a prepared branch holds is promised, so a queue that
refuses publishes when it is full is asked at prepare, and takes them at commit. Releasing and rejecting are done at
once, as Broker-J does.

======================  ===========================================================================
a branch is             until
======================  ===========================================================================
active                  prepared, committed in one phase, rolled back; its timeout
prepared                committed or rolled back, for as long as this process lives and no longer
rollback-only           rolled back, prepared or committed (which answers XA_RBROLLBACK)
timed out               the same (XA_RBTIMEOUT); or the same time once more
======================  ===========================================================================

The branch's work goes back as soon as it is rollback-only or timed out, and when a session ends that is associated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from enum import Enum
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.amqp.operations import (
    Done,
    DtxCommit,
    DtxEnd,
    DtxForget,
    DtxGetTimeout,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSelect,
    DtxSetTimeout,
    DtxStart,
    GetTimeoutResult,
    Operation,
    RecoverResult,
    Request,
    Resume,
    Resumed,
    XaResult,
    XaStatus,
    Xid,
)
from gateway.broker.alarms import Alarms
from gateway.broker.queues import REFUSING, Entry, Envelope, Queue
from gateway.broker.refusals import missing, refusal
from gateway.broker.turns import PIECE, Job, drained, for_each, pieces
from gateway.limits import BrokerLimits

if TYPE_CHECKING:
    from gateway.broker.channels import Channel


Decision: TypeAlias = Generator[None, None, XaStatus]
"""A job that ends with what a coordinator is answered."""


class BranchState(Enum):
    """Of a branch; see the module."""

    ACTIVE = "active"
    PREPARED = "prepared"
    ROLLBACK_ONLY = "rollback-only"
    TIMED_OUT = "timed out"


_OUTCOMES: Mapping[BranchState, XaStatus] = {
    BranchState.ROLLBACK_ONLY: XaStatus.XA_RBROLLBACK,
    BranchState.TIMED_OUT: XaStatus.XA_RBTIMEOUT,
}


class Branch:
    """What one branch has noted."""

    __slots__ = ("alarm", "channels", "entries", "publishes", "since", "state", "timeout", "xid")

    def __init__(self, xid: Xid, timeout: int, now: float) -> None:
        self.xid = xid
        self.timeout = timeout
        """Seconds."""
        self.since = now
        self.state = BranchState.ACTIVE
        self.alarm: float | None = None
        self.channels: dict[Channel, None] = {}
        """Those associated with it, at work or suspended."""
        self.publishes: list[tuple[Envelope, Queue]] = []
        """Each held once per queue."""
        self.entries: list[Entry] = []
        """Accepted: out of their queues, and gone for good with a commit."""

    @property
    def status(self) -> XaStatus:
        """What a start, an end or a prepare answers."""
        return _OUTCOMES.get(self.state, XaStatus.XA_OK)

    def publish(self, envelope: Envelope, queues: list[Queue]) -> None:
        """Note a message for the queues it was routed to; nothing is noted in a branch that is to be rolled back."""
        if self.state is BranchState.ACTIVE and queues:
            envelope.hold(len(queues))
            self.publishes += zip(repeat(envelope), queues, strict=False)

    def fits(self) -> Generator[None, None, bool]:
        """Whether the queues would take what is to come into them."""
        counts: Counter[Queue] = Counter()
        octets: Counter[Queue] = Counter()
        for piece in pieces(self.publishes):
            for envelope, queue in piece:
                if queue.arguments.overflow in REFUSING:
                    counts[queue] += 1
                    octets[queue] += len(envelope.message.body)
            yield
        for queues in pieces(counts.items()):
            if any(queue.overflows(octets[queue], count) for queue, count in queues):
                return False
            yield
        return True

    def commit(self, now: float) -> Job:
        """Carry out what is noted."""
        publishes, self.publishes = self.publishes, []
        entries, self.entries = self.entries, []
        for piece in pieces(drained(publishes), PIECE // 4):
            for envelope, queue in piece:
                if not queue.gone:
                    queue.publish(envelope, now, promised=True)
                envelope.release()
            yield
        yield from for_each(drained(entries), Entry.drop)

    def undo(self, now: float) -> Job:
        """Forget what is noted; what was accepted is in its queue again."""
        publishes, self.publishes = self.publishes, []
        entries, self.entries = self.entries, []
        yield from for_each(drained(publishes), lambda publish: publish[0].release())
        for piece in pieces(drained(entries)):
            returned: dict[Queue, list[Entry]] = {}
            for entry in piece:
                if entry.queue.gone:
                    entry.drop()
                else:
                    entry.redelivered = True
                    returned.setdefault(entry.queue, []).append(entry)
            for queue, back in returned.items():
                queue.requeue(back, now)
                queue.dispatch(now)
            yield


class Branches:
    """The branches of a virtual host."""

    def __init__(self, limits: BrokerLimits, begin: Callable[[Job], None]) -> None:
        self.limits = limits
        self._begin = begin
        self._branches: dict[Xid, Branch] = {}
        self.alarms: Alarms[Branch] = Alarms()

    def __len__(self) -> int:
        return len(self._branches)

    # ------------------------------------------------------------------------------------- demarcation

    def start(self, channel: Channel, request: DtxStart, now: float) -> XaStatus:
        """dtx.start; 409, 506, 530."""
        xid = request.xid
        branch = self._branches.get(xid)
        if request.join and request.resume:
            raise refusal(530, "both join and resume")
        if channel.branch is not None:
            raise _illegal(f"the session works on {_title(channel.branch.xid)}")
        if branch is None:
            if request.join or request.resume:
                raise refusal(530, f"{_title(xid)} is not known")
            branch = self._make(xid, now)
        elif not (request.join or request.resume):
            raise refusal(530, f"{_title(xid)} is known already")
        elif branch.state is BranchState.PREPARED:
            raise _illegal(f"{_title(xid)} is prepared")
        elif request.resume and branch not in channel.branches:
            raise _illegal(f"{_title(xid)} was not suspended by this session")
        elif branch.state is not BranchState.ACTIVE:
            return branch.status
        branch.channels[channel] = None
        channel.branches[branch] = None
        channel.branch = branch
        return XaStatus.XA_OK

    def _make(self, xid: Xid, now: float) -> Branch:
        if len(self._branches) >= self.limits.branches:
            raise refusal(506, f"the limit of {self.limits.branches} branches is reached")
        branch = self._branches[xid] = Branch(xid, self.limits.branch_timeout, now)
        self._arm(branch)
        return branch

    def end(self, channel: Channel, request: DtxEnd, now: float) -> XaStatus:
        """dtx.end; 409, 530."""
        if request.suspend and request.fail:
            raise refusal(530, "both suspend and fail")
        branch = self._branches.get(request.xid)
        if branch is None or branch not in channel.branches or (request.suspend and channel.branch is not branch):
            raise _illegal(f"{_title(request.xid)} is not associated with this session")
        if channel.branch is branch:
            channel.branch = None
        if not request.suspend:
            _dissociate(channel, branch)
        if request.fail and branch.state is BranchState.ACTIVE:
            branch.state = BranchState.ROLLBACK_ONLY  # at once: undoing it may have to wait for its turn
            self._begin(branch.undo(now))
        return branch.status

    def leave(self, channel: Channel, now: float) -> Job:
        """A session ends: what it is associated with can only be rolled back."""
        channel.branch = None
        for branch in list(channel.branches):
            _dissociate(channel, branch)
            yield from _fail(branch, now)

    # ------------------------------------------------------------------------------------ coordination

    def prepare(self, channel: Channel, request: DtxPrepare, now: float) -> Decision:
        """dtx.prepare; 404, 409."""
        branch = self._left_alone(request.xid)
        if branch.state is BranchState.PREPARED:
            raise _illegal(f"{_title(request.xid)} is prepared already")
        if branch.state is BranchState.ACTIVE and not (branch.publishes or branch.entries):
            self._forget(branch)
            return XaStatus.XA_RDONLY
        if not (yield from self._sound(branch, now)):
            return branch.status
        branch.state = BranchState.PREPARED
        self.alarms.clear(branch)
        return XaStatus.XA_OK

    def commit(self, channel: Channel, request: DtxCommit, now: float) -> Decision:
        """dtx.commit; 404, 409."""
        branch = self._left_alone(request.xid)
        prepared = branch.state is BranchState.PREPARED
        if prepared is request.one_phase and branch.status is XaStatus.XA_OK:
            raise _illegal(f"{_title(request.xid)} is {'' if prepared else 'not '}prepared")
        if not prepared and not (yield from self._sound(branch, now)):
            return branch.status
        self._forget(branch)
        yield from branch.commit(now)
        return XaStatus.XA_OK

    def rollback(self, channel: Channel, request: DtxRollback, now: float) -> Decision:
        """dtx.rollback; 404, 409."""
        branch = self._left_alone(request.xid)
        self._forget(branch)
        yield from branch.undo(now)
        return XaStatus.XA_RBTIMEOUT if branch.state is BranchState.TIMED_OUT else XaStatus.XA_OK

    def known(self, xid: Xid) -> Branch:
        """A branch; 404."""
        branch = self._branches.get(xid)
        if branch is None:
            raise missing(_title(xid))
        return branch

    def _left_alone(self, xid: Xid) -> Branch:
        """A branch that no session is associated with."""
        branch = self.known(xid)
        if branch.channels:
            raise _illegal(f"{_title(xid)} is associated with a session")
        return branch

    def _sound(self, branch: Branch, now: float) -> Generator[None, None, bool]:
        """Whether it can be committed; if not, it is gone."""
        if branch.state is BranchState.ACTIVE and (yield from branch.fits()) and self._is_untouched(branch):
            return True
        yield from _fail(branch, now)
        self._forget(branch)
        return False

    def _is_untouched(self, branch: Branch) -> bool:
        """Whether nobody has decided of it, or begun to work on it, in between."""
        is_known = self._branches.get(branch.xid) is branch
        return is_known and branch.state is BranchState.ACTIVE and not branch.channels

    def _forget(self, branch: Branch) -> None:
        if self._branches.get(branch.xid) is branch:
            del self._branches[branch.xid]
        self.alarms.clear(branch)

    # ------------------------------------------------------------------------------- recovery, timeouts

    def forget(self, request: DtxForget) -> None:
        """dtx.forget; 404, and 409 for any other: nothing is ever decided here without a client."""
        self.known(request.xid)
        raise _illegal(f"{_title(request.xid)} was not decided heuristically")

    def in_doubt(self) -> tuple[Xid, ...]:
        """dtx.recover: what is prepared."""
        return tuple(xid for xid, branch in self._branches.items() if branch.state is BranchState.PREPARED)

    def set_timeout(self, request: DtxSetTimeout) -> None:
        """dtx.set-timeout; 404. From the start of the branch."""
        branch = self.known(request.xid)
        branch.timeout = request.timeout or self.limits.branch_timeout
        if branch.state is BranchState.ACTIVE:
            self.alarms.clear(branch)
            self._arm(branch)

    def _arm(self, branch: Branch) -> None:
        self.alarms.set(branch, branch.since + branch.timeout)

    def handle_timeout(self, now: float) -> None:
        """Drop branches that take too long, and in the end those that nobody asks for."""
        for branch in list(islice(self.alarms.due(now), PIECE)):
            if branch.state is BranchState.TIMED_OUT and not branch.channels:
                self._forget(branch)
                continue
            branch.state = BranchState.TIMED_OUT
            self._begin(branch.undo(now))
            branch.since = now
            self._arm(branch)


def _dissociate(channel: Channel, branch: Branch) -> None:
    del branch.channels[channel]
    del channel.branches[branch]


def _fail(branch: Branch, now: float) -> Job:
    if branch.state is BranchState.ACTIVE:
        branch.state = BranchState.ROLLBACK_ONLY
        yield from branch.undo(now)


def _title(xid: Xid) -> str:
    return f"branch {xid.format}:{xid.global_id.hex()}:{xid.branch_id.hex()}"


def _illegal(detail: str) -> Exception:
    return refusal(409, detail)


# ------------------------------------------------------------------------------------------------- requests


def _select(channel: Channel, request: DtxSelect, now: float) -> None:
    if channel.transaction is not None:
        raise _illegal("cannot switch from tx to dtx mode")
    channel.distributed = True
    channel.connection.send(Done(channel.number, request.serial, request.serial), now)


def _answered(
    decide: Callable[[Branches, Channel, Any, float], XaStatus | Decision],
) -> Callable[[Channel, Any, float], Job]:
    """A request whose outcome is what became of the branch."""

    def handle(channel: Channel, request: Request, now: float) -> Job:
        status = decide(_branches(channel), channel, request, now)
        if not isinstance(status, XaStatus):
            status = yield from status
        channel.connection.send(XaResult(channel.number, request.serial, request.serial, status), now)

    return handle


def _branches(channel: Channel) -> Branches:
    if not channel.distributed:
        raise _illegal("dtx is not selected")
    return channel.connection.vhost.branches


def _forget(channel: Channel, request: DtxForget, now: float) -> None:
    _branches(channel).forget(request)


def _recover(channel: Channel, request: DtxRecover, now: float) -> None:
    in_doubt = _branches(channel).in_doubt()
    channel.connection.send(RecoverResult(channel.number, request.serial, request.serial, in_doubt), now)


def _set_timeout(channel: Channel, request: DtxSetTimeout, now: float) -> None:
    _branches(channel).set_timeout(request)
    channel.connection.send(Done(channel.number, request.serial, request.serial), now)


def _get_timeout(channel: Channel, request: DtxGetTimeout, now: float) -> None:
    timeout = _branches(channel).known(request.xid).timeout
    channel.connection.send(GetTimeoutResult(channel.number, request.serial, request.serial, timeout), now)


def _resume(channel: Channel, request: Resume, now: float) -> None:
    """message.resume: nothing is kept of a message that was interrupted, so all of it is to come again."""
    if request.destination not in channel.consumers:
        channel.connection.vhost.exchange(request.destination)
    channel.connection.send(Resumed(channel.number, request.serial, request.serial, 0), now)


DTX_HANDLERS: Mapping[type[Operation], Callable[[Channel, Any, float], Job | None]] = {
    DtxSelect: _select,
    DtxStart: _answered(Branches.start),
    DtxEnd: _answered(Branches.end),
    DtxPrepare: _answered(Branches.prepare),
    DtxCommit: _answered(Branches.commit),
    DtxRollback: _answered(Branches.rollback),
    DtxForget: _forget,
    DtxRecover: _recover,
    DtxSetTimeout: _set_timeout,
    DtxGetTimeout: _get_timeout,
    Resume: _resume,
}
"""The part of :data:`gateway.broker.requests.HANDLERS` that is about branches, and message.resume."""
