"""Branches as a server hears of them, against a scripted client."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.operations import XaStatus
from gateway.v010 import commands as c
from gateway.v010 import dtx as d
from gateway.v010.server_dtx import REQUESTS_DTX, RESULTS_DTX
from gateway.v010.structs import MessageResumeResult, Struct
from tests.v010.peer import NOW, ServerPeer

XID = o.Xid(7, b"global", b"branch")
WIRE = d.Xid(7, b"global", b"branch")
OK = (o.XaResult(1, 2, 2, XaStatus.XA_RBTIMEOUT), d.XaResult(2))
DONE = (o.Done(1, 2, 2), None)

ASKED: list[tuple[c.Command, Any, Any]] = [
    (d.DtxSelect(), o.DtxSelect(1), DONE),
    (d.DtxStart(WIRE, True, False), o.DtxStart(1, XID, True, False), OK),
    (d.DtxEnd(WIRE, False, True), o.DtxEnd(1, XID, False, True), OK),
    (d.DtxPrepare(WIRE), o.DtxPrepare(1, XID), OK),
    (d.DtxCommit(WIRE, True), o.DtxCommit(1, XID, True), OK),
    (d.DtxRollback(WIRE), o.DtxRollback(1, XID), OK),
    (d.DtxForget(WIRE), o.DtxForget(1, XID), DONE),
    (d.DtxSetTimeout(WIRE, 9), o.DtxSetTimeout(1, XID, 9), DONE),
    (d.DtxGetTimeout(WIRE), o.DtxGetTimeout(1, XID), (o.GetTimeoutResult(1, 2, 2, 9), d.GetTimeoutResult(9))),
    (d.DtxRecover(), o.DtxRecover(1), (o.RecoverResult(1, 2, 2, (XID,)), d.RecoverResult((WIRE,)))),
    (c.MessageResume("x", "id"), o.Resume(1, "x", "id"), (o.Resumed(1, 2, 2, 5), MessageResumeResult(5))),
]


@pytest.mark.parametrize(("command", "operation", "answer"), ASKED, ids=lambda value: type(value).__name__)
def test_what_is_asked_and_answered(command: c.Command, operation: Any, answer: tuple[Any, Struct | None]) -> None:
    peer = ServerPeer().opened().attach()
    operation.serial = 2
    try:
        assert peer.receive(0, command, sync=True) == [operation]
    finally:
        operation.serial = 0
    outcome, result = answer
    peer.session.send(outcome, NOW)
    commands = [entry[1] for entry in peer.sent() if isinstance(entry[1], c.Command)]
    assert commands == ([] if result is None else [c.ExecutionResult(0, result.encode())])


def test_the_published_form_of_a_branch_is_read_too() -> None:
    peer = ServerPeer().opened().attach()
    (request,) = peer.receive(0, d.DtxPrepare(d.PublishedXid(7, b"global", b"branch")))
    assert request == o.DtxPrepare(1, XID, serial=2)


def test_all_that_is_asked_is_tested() -> None:
    assert {type(command) for command, _, _ in ASKED} == set(REQUESTS_DTX)
    answers = {(type(command), type(answer)) for command, _, (answer, result) in ASKED if result is not None}
    assert answers == set(RESULTS_DTX)
