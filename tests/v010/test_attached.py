"""What both roles do with the controls of the session class."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.operations import Closed, CloseReason
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.attached import CONTROLS
from tests.v010.peer import ClientPeer, Peer, ServerPeer


@pytest.fixture(params=[ClientPeer, ServerPeer])
def peer(request: pytest.FixtureRequest) -> Peer:
    made: Any = request.param().opened()
    made.attach(1 if request.param is ClientPeer else 0)
    made.sent()
    return made  # type: ignore[no-any-return]


def test_every_control_of_the_class_is_handled() -> None:
    assert set(CONTROLS) == {control for code, control in k.CONTROLS.items() if code >> 8 == 2}


@pytest.mark.parametrize(
    "control",
    [k.SessionTimeout(0), k.SessionExpected(), k.SessionConfirmed(((0, 1),)), k.SessionKnownCompleted(((0, 9),))],
    ids=lambda control: control.spelled,
)
def test_what_needs_no_answer(peer: Peer, control: k.Control) -> None:
    assert peer.receive(0, control) == []
    assert peer.sent() == []


def test_no_session_outlives_its_channel(peer: Peer) -> None:
    peer.receive(0, k.SessionRequestTimeout(300))
    assert peer.sent() == [(0, k.SessionTimeout(0))]


def test_attach_on_a_channel_in_use(peer: Peer) -> None:
    assert peer.receive(0, k.SessionAttach(b"other")) == []
    assert peer.sent() == [(0, k.SessionDetached(b"other", 2))]


def test_completions_are_answered(peer: Peer) -> None:
    peer.receive(0, k.SessionCompleted(((0, 0),)))
    assert peer.sent() == [(0, k.SessionKnownCompleted(((0, 0),)))]
    peer.receive(0, k.SessionCompleted())
    assert peer.sent() == []
    peer.receive(0, k.SessionCompleted((), True))
    assert peer.sent() == [(0, k.SessionKnownCompleted(()))]


def test_what_is_expected(peer: Peer) -> None:
    peer.receive(0, k.SessionFlush(expected=True))
    assert peer.sent() == [(0, k.SessionExpected(()))]  # a session that is new here
    peer.receive(0, c.ExecutionSync(), k.SessionFlush(expected=True))
    assert peer.sent()[0] == (0, k.SessionExpected(((1, 1),)))


@pytest.mark.parametrize("flush", [k.SessionFlush(completed=True), k.SessionFlush(confirmed=True)])
def test_what_is_complete(peer: Peer, flush: k.SessionFlush) -> None:
    peer.receive(0, c.ExecutionSync(), flush)
    assert peer.sent() == [(0, k.SessionCompleted(((0, 0),)))]
    peer.receive(0, k.SessionKnownCompleted(((0, 0),)), flush)
    assert peer.sent() == []


def test_a_gap_counts_as_complete(peer: Peer) -> None:
    assert peer.receive(0, k.SessionGap(((0, 4),)), k.SessionGap(((2, 3),)), c.ExecutionSync()) == []
    assert peer.sent() == [(0, k.SessionCompleted(((0, 5),)))]


def test_a_gap_that_leaves_something_out(peer: Peer) -> None:
    """Commands are counted: what lies between could never be sent, and all behind it would wait for ever."""
    events = peer.receive(0, k.SessionGap(((5, 9),)))
    if isinstance(peer, ServerPeer):
        events = peer.receive(0, k.ConnectionCloseOk())
    (event,) = events
    assert isinstance(event, Closed)
    assert (event.reason, event.text) == (CloseReason.SYNTAX, "session.gap from 5 where 0 comes next")


@pytest.mark.parametrize(("first", "last"), [(5, 3), (0, 0xFFFFFFFF), (1, 0)])
def test_a_range_that_ends_before_it_starts(peer: Peer, first: int, last: int) -> None:
    for control in (k.SessionCompleted(((first, last),)), c.MessageAccept(((first, last),))):
        events = peer.receive(0, control)
        if isinstance(peer, ServerPeer):
            events = peer.receive(0, k.ConnectionCloseOk())
        (event,) = events
        assert isinstance(event, Closed)
        assert event.text.endswith(f"a sequence-set with the range {first} to {last}")
        peer.__init__()  # type: ignore[misc]
        made: Any = peer
        made.opened().attach(0 if isinstance(peer, ServerPeer) else 1)


def test_the_command_point(peer: Peer) -> None:
    peer.receive(0, k.SessionCommandPoint(7), c.ExecutionSync(), k.SessionCommandPoint(8))
    assert peer.sent() == [(0, k.SessionCompleted(((7, 7),)))]
    events = peer.receive(0, k.SessionCommandPoint(3))
    if isinstance(peer, ServerPeer):
        events = peer.receive(0, k.ConnectionCloseOk())
    (event,) = events
    assert isinstance(event, Closed)
    assert event.reason is CloseReason.SYNTAX


def test_nothing_is_heard_behind_an_exception(peer: Peer) -> None:
    peer.receive(0, c.MessageSetFlowMode("nowhere") if isinstance(peer, ServerPeer) else c.TxSelect())
    peer.sent()
    assert peer.receive(0, c.ExecutionSync(), (c.MessageTransfer("x"), b"", b"b"), k.SessionFlush(completed=True)) == []
    assert peer.sent() == []


def test_decoded_transfers_are_few(peer: Peer) -> None:
    channel = peer.session.channels[0]
    for number in range(600):
        channel._read_transfer(c.MessageTransfer(str(number)).encode())
    assert len(channel._transfers) <= 256
