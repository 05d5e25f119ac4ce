"""Branches and acquisition as a client asks for them, against a scripted broker."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.operations import XaStatus
from gateway.errors import StateError
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010 import dtx as d
from gateway.v010.structs import Acquired, MessageResumeResult, Struct
from gateway.v010.translate import write_header
from tests.v010.peer import NOW, ClientPeer

XID = o.Xid(7, b"global", b"branch")
WIRE = d.Xid(7, b"global", b"branch")


@pytest.fixture
def peer() -> ClientPeer:
    return ClientPeer().opened().attach(1)


@pytest.fixture
def selected(peer: ClientPeer) -> ClientPeer:
    """Behind dtx.select: serial 2, command 0."""
    peer.session.send(o.DtxSelect(1), NOW)
    assert [entry[1:] for entry in peer.sent()] == [(d.DtxSelect(), True)]
    assert peer.receive(0, k.SessionCompleted(((0, 0),))) == [o.Done(1, 2, 2)]
    peer.sent()
    return peer


def ask(peer: ClientPeer, operation: Any) -> c.Command:
    assert peer.session.send(operation, NOW) == 3
    ((_, command, sync),) = peer.sent()
    assert sync
    made: c.Command = command
    return made


def answer(peer: ClientPeer, value: Struct | None) -> list[o.Operation]:
    octets = None if value is None else value.encode()
    return peer.receive(0, c.ExecutionResult(1, octets), k.SessionCompleted(((1, 1),)))


DECIDED = [
    (o.DtxStart(1, XID, True, False), d.DtxStart(WIRE, True, False), XaStatus.XA_OK),
    (o.DtxStart(1, XID, resume=True), d.DtxStart(WIRE, resume=True), XaStatus.XA_RBTIMEOUT),
    (o.DtxEnd(1, XID, fail=True), d.DtxEnd(WIRE, fail=True), XaStatus.XA_RBROLLBACK),
    (o.DtxEnd(1, XID, suspend=True), d.DtxEnd(WIRE, suspend=True), XaStatus.XA_OK),
    (o.DtxPrepare(1, XID), d.DtxPrepare(WIRE), XaStatus.XA_RDONLY),
    (o.DtxCommit(1, XID, True), d.DtxCommit(WIRE, True), XaStatus.XA_HEURMIX),
    (o.DtxRollback(1, XID), d.DtxRollback(WIRE), XaStatus.XA_OK),
]


@pytest.mark.parametrize(("operation", "command", "status"), DECIDED, ids=lambda value: type(value).__name__)
def test_what_became_of_a_branch(selected: ClientPeer, operation: Any, command: c.Command, status: XaStatus) -> None:
    assert ask(selected, operation) == command
    assert answer(selected, d.XaResult(status.value)) == [o.XaResult(1, 3, 3, status)]


def test_a_status_that_does_not_exist(selected: ClientPeer) -> None:
    ask(selected, o.DtxPrepare(1, XID))
    (closed,) = answer(selected, d.XaResult(8))
    assert isinstance(closed, o.Closed)
    assert closed.text == "xa-status 8 does not exist"


@pytest.mark.parametrize(
    ("operation", "command"),
    [(o.DtxForget(1, XID), d.DtxForget(WIRE)), (o.DtxSetTimeout(1, XID, 30), d.DtxSetTimeout(WIRE, 30))],
    ids=lambda value: type(value).__name__,
)
def test_what_is_only_done(selected: ClientPeer, operation: Any, command: c.Command) -> None:
    assert ask(selected, operation) == command
    assert selected.receive(0, k.SessionCompleted(((1, 1),))) == [o.Done(1, 3, 3)]


def test_what_is_asked(selected: ClientPeer) -> None:
    assert ask(selected, o.DtxGetTimeout(1, XID)) == d.DtxGetTimeout(WIRE)
    assert answer(selected, d.GetTimeoutResult(30)) == [o.GetTimeoutResult(1, 3, 3, 30)]


def test_what_is_in_doubt(selected: ClientPeer) -> None:
    assert ask(selected, o.DtxRecover(1)) == d.DtxRecover()
    found = d.RecoverResult((WIRE, d.Xid(0xFFFFFFFF, b"", b"")))
    assert answer(selected, found) == [o.RecoverResult(1, 3, 3, (XID, o.Xid(0xFFFFFFFF, b"", b"")))]


def test_dtx_is_selected_first_and_not_beside_tx(peer: ClientPeer) -> None:
    for operation in (o.DtxStart(1, XID), o.DtxRecover(1), o.DtxForget(1, XID)):
        with pytest.raises(StateError, match="is not in mode dtx"):
            peer.session.send(operation, NOW)
    peer.session.send(o.DtxSelect(1), NOW)
    with pytest.raises(StateError, match="is in mode dtx already"):
        peer.session.send(o.TxSelect(1), NOW)
    peer.session.send(o.SelectConfirm(1), NOW)
    peer.session.send(o.DtxStart(1, XID), NOW)


def test_tx_is_not_beside_dtx(peer: ClientPeer) -> None:
    peer.session.send(o.TxSelect(1), NOW)
    with pytest.raises(StateError, match="is in mode transacted already"):
        peer.session.send(o.DtxSelect(1), NOW)


def browsing(peer: ClientPeer) -> None:
    """Three messages are shown: deliveries 1 to 3."""
    peer.session.send(o.Consume(1, "q", "t", acquired=False), NOW)
    commands = [entry[1] for entry in peer.sent()]
    assert commands[0] == c.MessageSubscribe("q", "t", c.EXPLICIT, c.NOT_ACQUIRED)
    peer.receive(0, k.SessionCompleted(((0, 0),)))
    shown = (c.MessageTransfer("t", acquire_mode=c.NOT_ACQUIRED), write_header(o.Message(), "q", 0, None, None), b"1")
    assert len(peer.receive(0, shown, shown, shown)) == 3
    peer.sent()


def test_what_was_shown_is_acquired(peer: ClientPeer) -> None:
    browsing(peer)
    number = peer.session.channels[0].sent
    peer.session.send(o.Acquire(1, ((1, 1), (2, 3))), NOW)
    ((_, command, _),) = peer.sent()
    assert command == c.MessageAcquire(((0, 0), (1, 2)))
    result = c.ExecutionResult(number, Acquired(((0, 0), (1, 1))).encode())
    (acquired,) = peer.receive(0, result, k.SessionCompleted(((number, number),)))
    assert acquired == o.Acquired(1, 3, 3, ((1, 2),))


@pytest.mark.parametrize("deliveries", [(4, 4), (1, 9), (3, 2)])
def test_only_what_is_outstanding_is_acquired(peer: ClientPeer, deliveries: tuple[int, int]) -> None:
    browsing(peer)
    with pytest.raises(StateError, match="are not outstanding"):
        peer.session.send(o.Acquire(1, (deliveries,)), NOW)


def test_message_resume(selected: ClientPeer) -> None:
    assert ask(selected, o.Resume(1, "x", "id")) == c.MessageResume("x", "id")
    assert answer(selected, MessageResumeResult(5)) == [o.Resumed(1, 3, 3, 5)]


def test_message_resume_of_nothing(selected: ClientPeer) -> None:
    ask(selected, o.Resume(1, "x", "id"))
    assert answer(selected, None) == [o.Resumed(1, 3, 3, 0)]


def test_message_resume_that_is_not_answered(selected: ClientPeer) -> None:
    ask(selected, o.Resume(1, "x", "id"))
    (failed,) = selected.receive(0, k.SessionCompleted(((1, 1),)))
    assert failed == o.Failed(1, 3, 3, 540, "not-implemented: message.resume: the broker has not answered it")
