"""What the dtx class and message.resume mean to a server, and how the outcomes are put: the tables of
:mod:`gateway.v010.server_requests` for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway import operations as o
from gateway.v010 import commands as c
from gateway.v010 import dtx as d
from gateway.v010.structs import MessageResumeResult, Struct


def _xid(xid: d.Xid) -> o.Xid:
    return o.Xid(xid.format, xid.global_id, xid.branch_id)


REQUESTS_DTX: Final[Mapping[type[c.Command], Callable[[int, Any], o.Request]]] = {
    d.DtxSelect: lambda channel, command: o.DtxSelect(channel),
    d.DtxStart: lambda channel, command: o.DtxStart(channel, _xid(command.xid), command.join, command.resume),
    d.DtxEnd: lambda channel, command: o.DtxEnd(channel, _xid(command.xid), command.fail, command.suspend),
    d.DtxPrepare: lambda channel, command: o.DtxPrepare(channel, _xid(command.xid)),
    d.DtxCommit: lambda channel, command: o.DtxCommit(channel, _xid(command.xid), command.one_phase),
    d.DtxRollback: lambda channel, command: o.DtxRollback(channel, _xid(command.xid)),
    d.DtxForget: lambda channel, command: o.DtxForget(channel, _xid(command.xid)),
    d.DtxRecover: lambda channel, command: o.DtxRecover(channel),
    d.DtxSetTimeout: lambda channel, command: o.DtxSetTimeout(channel, _xid(command.xid), command.timeout),
    d.DtxGetTimeout: lambda channel, command: o.DtxGetTimeout(channel, _xid(command.xid)),
    c.MessageResume: lambda channel, command: o.Resume(channel, command.destination, command.resume_id),
}
"""Command -> operation."""


def _xa_result(outcome: o.XaResult) -> Struct:
    return d.XaResult(outcome.status.value)


def _recovered(outcome: o.RecoverResult) -> Struct:
    return d.RecoverResult(tuple(d.Xid(xid.format, xid.global_id, xid.branch_id) for xid in outcome.in_doubt))


RESULTS_DTX: Final[Mapping[tuple[type[c.Command], type[o.Outcome]], Callable[[Any], Struct]]] = {
    **dict.fromkeys(
        ((command, o.XaResult) for command in (d.DtxStart, d.DtxEnd, d.DtxPrepare, d.DtxCommit, d.DtxRollback)),
        _xa_result,
    ),
    (d.DtxRecover, o.RecoverResult): _recovered,
    (d.DtxGetTimeout, o.GetTimeoutResult): lambda outcome: d.GetTimeoutResult(outcome.timeout),
    (c.MessageResume, o.Resumed): lambda outcome: MessageResumeResult(outcome.offset),
}
"""(command, outcome) -> result."""
