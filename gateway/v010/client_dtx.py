"""What a client says of branches of a distributed transaction and of messages that it was only shown, and what the
answers mean. Tables for :mod:`gateway.v010.client_requests`.

A settlement or a publish belongs to the branch by its place between dtx.start and dtx.end, and commands are carried
out in order, so a channel keeps nothing of it: what a branch holds, and whether it is still there, knows the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.errors import FrameSyntaxError, StateError
from gateway.v010 import commands, dtx
from gateway.v010.execution import RangeSet, unwrap_ranges
from gateway.v010.structs import Acquired

if TYPE_CHECKING:
    from gateway.v010.client_channel import ClientChannel
    from gateway.v010.client_requests import Step


def _wire(xid: operations.Xid) -> dtx.Xid:
    return dtx.Xid(xid.format, xid.global_id, xid.branch_id)


SIMPLE_DTX: Final[Mapping[type[operations.Request], Callable[[Any], commands.Command]]] = {
    operations.DtxSelect: lambda request: dtx.DtxSelect(),
    operations.DtxForget: lambda request: dtx.DtxForget(_wire(request.xid)),
    operations.DtxSetTimeout: lambda request: dtx.DtxSetTimeout(_wire(request.xid), request.timeout),
}
"""Those that are done when they are complete."""


def _xa_result(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    status = dtx.XaResult.decode(value, channel.session.limits).status
    try:
        known = operations.XaStatus(status)
    except ValueError:
        raise FrameSyntaxError(f"xa-status {status} does not exist") from None
    channel.emit(operations.XaResult(channel.number, step.serial, step.serial, known))


def _recovered(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    xids = dtx.RecoverResult.decode(value, channel.session.limits).in_doubt
    in_doubt = tuple(operations.Xid(xid.format, xid.global_id, xid.branch_id) for xid in xids)
    channel.emit(operations.RecoverResult(channel.number, step.serial, step.serial, in_doubt))


def _timeout(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    result = dtx.GetTimeoutResult.decode(value, channel.session.limits)
    channel.emit(operations.GetTimeoutResult(channel.number, step.serial, step.serial, result.timeout))


def _acquire(request: operations.Acquire) -> commands.Command:
    return commands.MessageAcquire(
        tuple((first - 1 & 0xFFFFFFFF, last - 1 & 0xFFFFFFFF) for first, last in request.deliveries)
    )


def _acquired(channel: ClientChannel, step: Step, value: bytes | None) -> None:
    result = Acquired.decode(value, channel.session.limits)
    taken = RangeSet()
    for first, last in unwrap_ranges(result.transfers, channel.received.next):
        taken.add(first + 1, last + 1)
    channel.emit(operations.Acquired(channel.number, step.serial, step.serial, tuple(taken)))


QUERIES_DTX: Final[
    Mapping[
        type[operations.Request],
        tuple[Callable[[Any], commands.Command], Callable[[ClientChannel, Step, bytes | None], None]],
    ]
] = {
    operations.DtxStart: (lambda request: dtx.DtxStart(_wire(request.xid), request.join, request.resume), _xa_result),
    operations.DtxEnd: (lambda request: dtx.DtxEnd(_wire(request.xid), request.fail, request.suspend), _xa_result),
    operations.DtxPrepare: (lambda request: dtx.DtxPrepare(_wire(request.xid)), _xa_result),
    operations.DtxCommit: (lambda request: dtx.DtxCommit(_wire(request.xid), request.one_phase), _xa_result),
    operations.DtxRollback: (lambda request: dtx.DtxRollback(_wire(request.xid)), _xa_result),
    operations.DtxRecover: (lambda request: dtx.DtxRecover(), _recovered),
    operations.DtxGetTimeout: (lambda request: dtx.DtxGetTimeout(_wire(request.xid)), _timeout),
    operations.Acquire: (_acquire, _acquired),
}
"""Those that have a result."""


def check_select(channel: ClientChannel, request: operations.Request) -> None:
    """dtx.select: not together with tx.select."""
    if channel.transacted:
        raise StateError(f"channel {channel.number} is in mode transacted already")
    channel.distributed = True


def check_dtx(channel: ClientChannel, request: operations.Request) -> None:
    """The other requests: only behind it."""
    if not channel.distributed:
        raise StateError(f"channel {channel.number} is not in mode dtx: no {type(request).__name__}")


def check_acquire(channel: ClientChannel, request: operations.Acquire) -> None:
    """message.acquire: of deliveries that are outstanding."""
    outstanding = channel.outstanding
    for first, last in request.deliveries:
        if first > last or first not in outstanding or last not in outstanding:
            raise StateError(f"channel {channel.number}: deliveries {first}..{last} are not outstanding")


CHECKS_DTX: Final[Mapping[type[operations.Operation], Callable[[ClientChannel, Any], None]]] = {
    **dict.fromkeys((*SIMPLE_DTX, *QUERIES_DTX), check_dtx),
    operations.DtxSelect: check_select,
    operations.Acquire: check_acquire,
}
"""What must hold before one of these is sent."""
