"""What the dtx class and message.resume mean to a server, and how the outcomes are put: the tables of
:mod:`gateway.v010.server_requests` for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.amqp import operations
from gateway.v010 import commands, dtx
from gateway.v010.structs import MessageResumeResult, Struct


def _xid(xid: dtx.Xid) -> operations.Xid:
    return operations.Xid(xid.format, xid.global_id, xid.branch_id)


REQUESTS_DTX: Final[Mapping[type[commands.Command], Callable[[int, Any], operations.Request]]] = {
    dtx.DtxSelect: lambda channel, command: operations.DtxSelect(channel),
    dtx.DtxStart: lambda channel, command: operations.DtxStart(
        channel, _xid(command.xid), command.join, command.resume
    ),
    dtx.DtxEnd: lambda channel, command: operations.DtxEnd(channel, _xid(command.xid), command.fail, command.suspend),
    dtx.DtxPrepare: lambda channel, command: operations.DtxPrepare(channel, _xid(command.xid)),
    dtx.DtxCommit: lambda channel, command: operations.DtxCommit(channel, _xid(command.xid), command.one_phase),
    dtx.DtxRollback: lambda channel, command: operations.DtxRollback(channel, _xid(command.xid)),
    dtx.DtxForget: lambda channel, command: operations.DtxForget(channel, _xid(command.xid)),
    dtx.DtxRecover: lambda channel, command: operations.DtxRecover(channel),
    dtx.DtxSetTimeout: lambda channel, command: operations.DtxSetTimeout(channel, _xid(command.xid), command.timeout),
    dtx.DtxGetTimeout: lambda channel, command: operations.DtxGetTimeout(channel, _xid(command.xid)),
    commands.MessageResume: lambda channel, command: operations.Resume(channel, command.destination, command.resume_id),
}
"""Command -> operation."""


def _xa_result(outcome: operations.XaResult) -> Struct:
    return dtx.XaResult(outcome.status.value)


def _recovered(outcome: operations.RecoverResult) -> Struct:
    return dtx.RecoverResult(tuple(dtx.Xid(xid.format, xid.global_id, xid.branch_id) for xid in outcome.in_doubt))


RESULTS_DTX: Final[Mapping[tuple[type[commands.Command], type[operations.Outcome]], Callable[[Any], Struct]]] = {
    **dict.fromkeys(
        (
            (command, operations.XaResult)
            for command in (dtx.DtxStart, dtx.DtxEnd, dtx.DtxPrepare, dtx.DtxCommit, dtx.DtxRollback)
        ),
        _xa_result,
    ),
    (dtx.DtxRecover, operations.RecoverResult): _recovered,
    (dtx.DtxGetTimeout, operations.GetTimeoutResult): lambda outcome: dtx.GetTimeoutResult(outcome.timeout),
    (commands.MessageResume, operations.Resumed): lambda outcome: MessageResumeResult(outcome.offset),
}
"""(command, outcome) -> result."""
