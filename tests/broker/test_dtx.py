"""Branches of distributed transactions in the broker's core: what they hold, and how they end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement, XaStatus, Xid
from gateway.amqp.values import Table
from tests.broker.wire import Host, Wire

XID = Xid(1, b"global", b"branch")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def wire(host: Host) -> Wire:
    """Channel 1 is in mode dtx and confirms, channel 2 is neither."""
    return selected(host)


def selected(host: Host) -> Wire:
    wire = host.connect()
    for channel in (1, 2):
        assert isinstance(wire.ask(o.OpenChannel(channel)), o.Done)
    assert isinstance(wire.ask(o.DtxSelect(1)), o.Done)
    assert isinstance(wire.ask(o.SelectConfirm(1)), o.Done)
    return wire


def declare(wire: Wire, queue: str = "q", **arguments: Any) -> None:
    table: Table = {name.replace("_", "-"): value for name, value in arguments.items()}
    assert isinstance(wire.ask(o.DeclareQueue(2, queue, arguments=table)), o.Declared)


def status(wire: Wire, operation: o.Request) -> XaStatus:
    result = wire.ask(operation)
    assert isinstance(result, o.XaResult), result
    return result.status


def publish(wire: Wire, body: bytes = b"1", queue: str = "q", channel: int = 1, **options: Any) -> Any:
    wire.send(o.Publish(channel, "", queue, Message(body), **options))
    return wire.take()


def work(wire: Wire, *bodies: bytes, xid: Xid = XID) -> None:
    assert status(wire, o.DtxStart(1, xid)) is XaStatus.XA_OK
    for body in bodies:
        (confirmed,) = publish(wire, body)
        assert isinstance(confirmed, o.Confirmed)
    assert status(wire, o.DtxEnd(1, xid)) is XaStatus.XA_OK


def bodies(wire: Wire, queue: str = "q") -> list[bytes]:
    found = []
    while isinstance(got := wire.ask(o.Get(2, queue, True)), o.Got):
        found.append(got.message.body)
    return found


def refused(wire: Wire, operation: o.Request, code: int) -> str:
    wire.send(operation)
    failed, closed = wire.take()
    assert isinstance(failed, o.Failed)
    assert isinstance(closed, o.ChannelClosed)
    assert failed.code == code
    return failed.text


def test_memory_is_counted_once_and_given_back(host: Host, wire: Wire) -> None:
    declare(wire)
    memory = host.broker.memory
    before = memory.used
    work(wire, b"x" * 1_000)
    assert memory.used > before + 1_000
    status(wire, o.DtxRollback(1, XID))
    assert memory.used == before
    work(wire, b"x" * 1_000)
    held = memory.used
    status(wire, o.DtxPrepare(1, XID))
    status(wire, o.DtxCommit(1, XID))
    assert memory.used == held
    assert len(bodies(wire)) == 1
    assert memory.used == before


def test_a_branch_in_which_nothing_was_done(wire: Wire) -> None:
    work(wire)
    assert status(wire, o.DtxPrepare(1, XID)) is XaStatus.XA_RDONLY
    assert "no branch 1:676c6f62616c:6272616e6368" in refused(wire, o.DtxCommit(1, XID), 404)


def test_what_nobody_gets_is_returned_at_once(wire: Wire) -> None:
    assert status(wire, o.DtxStart(1, XID)) is XaStatus.XA_OK
    (returned,) = publish(wire, queue="nowhere")
    assert isinstance(returned, o.Returned)
    (confirmed,) = publish(wire, queue="nowhere", mandatory=False)
    assert isinstance(confirmed, o.Confirmed)
    declare(wire)
    (returned,) = publish(wire, immediate=True)
    assert (type(returned), returned.code) == (o.Returned, 313)
    assert status(wire, o.DtxEnd(1, XID)) is XaStatus.XA_OK
    assert status(wire, o.DtxPrepare(1, XID)) is XaStatus.XA_RDONLY


def test_messages_go_where_they_were_routed_to(wire: Wire) -> None:
    declare(wire)
    declare(wire, "deleted")
    wire.ask(o.BindQueue(2, "q", "amq.direct", "k"))
    assert status(wire, o.DtxStart(1, XID)) is XaStatus.XA_OK
    wire.send(o.Publish(1, "amq.direct", "k", Message(b"1")))
    wire.take()
    publish(wire, b"2", "deleted")
    assert status(wire, o.DtxEnd(1, XID)) is XaStatus.XA_OK
    assert status(wire, o.DtxPrepare(1, XID)) is XaStatus.XA_OK
    wire.ask(o.UnbindQueue(2, "q", "amq.direct", "k"))
    wire.ask(o.DeleteQueue(2, "deleted"))
    assert status(wire, o.DtxCommit(1, XID)) is XaStatus.XA_OK
    assert bodies(wire) == [b"1"]


def test_a_full_queue_refuses_at_prepare_and_takes_what_is_promised(host: Host, wire: Wire) -> None:
    declare(wire, x_max_length=2, x_overflow="reject-publish")
    work(wire, b"1", b"2", b"3")
    assert status(wire, o.DtxPrepare(1, XID)) is XaStatus.XA_RBROLLBACK
    assert host.depth("q") == 0
    work(wire, b"1", b"2", b"3")
    assert status(wire, o.DtxCommit(1, XID, one_phase=True)) is XaStatus.XA_RBROLLBACK
    work(wire, b"1", b"2")
    assert status(wire, o.DtxPrepare(1, XID)) is XaStatus.XA_OK
    publish(wire, b"between", channel=2)
    assert host.depth("q") == 1
    assert status(wire, o.DtxCommit(1, XID)) is XaStatus.XA_OK
    assert bodies(wire) == [b"between", b"1", b"2"]


def test_a_queue_that_drops_its_oldest_takes_everything(wire: Wire) -> None:
    declare(wire, x_max_length=2)
    work(wire, b"1", b"2", b"3")
    assert status(wire, o.DtxPrepare(1, XID)) is XaStatus.XA_OK
    assert status(wire, o.DtxCommit(1, XID)) is XaStatus.XA_OK
    assert bodies(wire) == [b"2", b"3"]


def consumed(wire: Wire, count: int) -> list[o.Deliver]:
    declare(wire)
    for number in range(count):
        publish(wire, b"%d" % number, channel=2)
    wire.send(o.Qos(1, 2), o.Consume(1, "q", "c"))
    return [event for event in wire.take() if isinstance(event, o.Deliver)]


def test_what_is_accepted_makes_room_and_is_gone_with_the_commit(host: Host, wire: Wire) -> None:
    first, second = consumed(wire, 3)
    assert status(wire, o.DtxStart(1, XID)) is XaStatus.XA_OK
    wire.send(o.Settle(1, Settlement.ACCEPT, first.delivery, first.delivery))
    (third,) = wire.take()
    assert isinstance(third, o.Deliver)
    assert third.message.body == b"2"
    wire.send(o.Settle(1, Settlement.RELEASE, second.delivery, second.delivery))
    (again,) = wire.take()
    assert isinstance(again, o.Deliver)
    assert (again.message.body, again.redelivered) == (b"1", True)
    assert status(wire, o.DtxEnd(1, XID)) is XaStatus.XA_OK
    assert status(wire, o.DtxPrepare(1, XID)) is XaStatus.XA_OK
    assert status(wire, o.DtxCommit(1, XID)) is XaStatus.XA_OK
    wire.cut_server()
    assert host.depth("q") == 2


def test_a_session_that_ends_within_a_branch(host: Host, wire: Wire) -> None:
    first, _ = consumed(wire, 2)
    assert status(wire, o.DtxStart(1, XID)) is XaStatus.XA_OK
    wire.send(o.Settle(1, Settlement.ACCEPT, first.delivery, first.delivery))
    publish(wire)
    wire.cut_server()
    assert host.depth("q") == 2
    other = selected(host)
    assert status(other, o.DtxStart(1, XID, join=True)) is XaStatus.XA_RBROLLBACK
    assert status(other, o.DtxPrepare(1, XID)) is XaStatus.XA_RBROLLBACK
    assert "no branch" in refused(other, o.DtxRollback(1, XID), 404)


def test_a_session_that_ends_with_a_suspended_branch(host: Host, wire: Wire) -> None:
    declare(wire)
    assert status(wire, o.DtxStart(1, XID)) is XaStatus.XA_OK
    assert status(wire, o.DtxEnd(1, XID, suspend=True)) is XaStatus.XA_OK
    publish(wire, b"outside")
    assert host.depth("q") == 1
    wire.ask(o.CloseChannel(1))
    other = selected(host)
    assert status(other, o.DtxCommit(1, XID, one_phase=True)) is XaStatus.XA_RBROLLBACK


def test_a_branch_that_failed_takes_nothing_more(host: Host, wire: Wire) -> None:
    declare(wire)
    other = selected(host)
    assert status(wire, o.DtxStart(1, XID)) is XaStatus.XA_OK
    assert status(other, o.DtxStart(1, XID, join=True)) is XaStatus.XA_OK
    assert status(other, o.DtxEnd(1, XID, fail=True)) is XaStatus.XA_RBROLLBACK
    publish(wire, b"1", channel=2)
    got = wire.ask(o.Get(1, "q"))
    wire.send(o.Settle(1, Settlement.ACCEPT, got.delivery, got.delivery))
    publish(wire)
    assert host.depth("q") == 1, "what is accepted goes back at once"
    assert status(wire, o.DtxEnd(1, XID)) is XaStatus.XA_RBROLLBACK
    assert status(wire, o.DtxRollback(1, XID)) is XaStatus.XA_OK
    assert bodies(wire) == [b"1"]


def test_a_branch_has_failed_before_all_of_it_is_undone(
    host: Host, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(wire)
    waiting: list[Any] = []
    monkeypatch.setattr(host.broker.virtual_host("/").branches, "_begin", waiting.append)
    assert status(wire, o.DtxStart(1, XID)) is XaStatus.XA_OK
    publish(wire)
    assert status(wire, o.DtxEnd(1, XID, fail=True)) is XaStatus.XA_RBROLLBACK
    assert len(waiting) == 1


def test_what_is_accepted_from_a_queue_that_goes(host: Host, wire: Wire) -> None:
    first, _ = consumed(wire, 2)
    status(wire, o.DtxStart(1, XID))
    wire.send(o.Settle(1, Settlement.ACCEPT, first.delivery, first.delivery))
    status(wire, o.DtxEnd(1, XID))
    wire.send(o.DeleteQueue(2, "q"))
    wire.take()
    assert status(wire, o.DtxRollback(1, XID)) is XaStatus.XA_OK


def test_a_branch_that_takes_too_long_is_undone_and_forgotten_in_the_end(host: Host, wire: Wire) -> None:
    declare(wire)
    work(wire, b"1")
    assert isinstance(wire.ask(o.DtxSetTimeout(1, XID, 10)), o.Done)
    assert wire.ask(o.DtxGetTimeout(1, XID)).timeout == 10
    assert host.broker.next_timeout() == 1_010.0
    host.later(10)
    assert isinstance(wire.ask(o.DtxSetTimeout(1, XID, 0)), o.Done)
    assert wire.ask(o.DtxGetTimeout(1, XID)).timeout == 3_600
    assert status(wire, o.DtxStart(1, XID, join=True)) is XaStatus.XA_RBTIMEOUT
    host.later(10)
    assert len(host.broker.virtual_host("/").branches) == 0
    assert bodies(wire) == []


@pytest.mark.parametrize("ask", [o.DtxPrepare, o.DtxRollback, o.DtxCommit])
def test_what_a_branch_that_took_too_long_is_answered(host: Host, wire: Wire, ask: Any) -> None:
    declare(wire)
    work(wire, b"1")
    host.later(3_600)
    assert status(wire, ask(1, XID)) is XaStatus.XA_RBTIMEOUT
    assert len(host.broker.virtual_host("/").branches) == 0


def test_a_branch_that_is_worked_on_is_not_forgotten(host: Host, wire: Wire) -> None:
    status(wire, o.DtxStart(1, XID))
    host.later(3_600)
    host.later(3_600)
    assert status(wire, o.DtxEnd(1, XID)) is XaStatus.XA_RBTIMEOUT


def test_a_prepared_branch_has_no_timeout(host: Host, wire: Wire) -> None:
    declare(wire)
    work(wire, b"1")
    status(wire, o.DtxPrepare(1, XID))
    assert isinstance(wire.ask(o.DtxSetTimeout(1, XID, 1)), o.Done)
    host.later(100_000)
    assert host.broker.in_doubt() == 1
    assert status(wire, o.DtxCommit(1, XID)) is XaStatus.XA_OK
    assert (host.broker.in_doubt(), bodies(wire)) == (0, [b"1"])


ACTIVE = [o.DtxStart(1, XID)]
ENDED = [*ACTIVE, o.DtxEnd(1, XID)]
PREPARED = [*ACTIVE, o.Publish(1, "", "q", Message(b"1")), o.DtxEnd(1, XID), o.DtxPrepare(1, XID)]
OTHER = Xid(2, b"", b"")


@pytest.mark.parametrize(
    ("before", "operation", "code", "text"),
    [
        ([], o.DtxStart(1, XID, join=True, resume=True), 530, "both join and resume"),
        ([], o.DtxStart(1, XID, join=True), 530, "is not known"),
        (ENDED, o.DtxStart(1, XID), 530, "is known already"),
        (ACTIVE, o.DtxStart(1, OTHER), 406, "the session works on branch 1:"),
        (ENDED, o.DtxStart(1, XID, resume=True), 406, "was not suspended by this session"),
        (PREPARED, o.DtxStart(1, XID, join=True), 406, "is prepared"),
        (ACTIVE, o.DtxEnd(1, XID, fail=True, suspend=True), 530, "both suspend and fail"),
        (ENDED, o.DtxEnd(1, XID), 406, "is not associated with this session"),
        ([*ACTIVE, o.DtxEnd(1, XID, suspend=True)], o.DtxEnd(1, XID, suspend=True), 406, "is not associated"),
        (ACTIVE, o.DtxPrepare(1, XID), 406, "is associated with a session"),
        (PREPARED, o.DtxPrepare(1, XID), 406, "is prepared already"),
        (PREPARED, o.DtxCommit(1, XID, one_phase=True), 406, "is prepared"),
        (ENDED, o.DtxCommit(1, XID), 406, "is not prepared"),
        (PREPARED, o.DtxForget(1, XID), 406, "was not decided heuristically"),
    ],
)
def test_what_is_not_allowed(wire: Wire, before: list[o.Operation], operation: Any, code: int, text: str) -> None:
    declare(wire)
    wire.send(*before)
    wire.take()
    assert text in refused(wire, operation, code)


def test_dtx_is_selected_first(wire: Wire) -> None:
    wire.client.channels[1].distributed = True
    assert "dtx is not selected" in refused(wire, o.DtxRecover(2), 406)


def test_tx_is_not_selected_beside_dtx(wire: Wire) -> None:
    wire.ask(o.DtxSelect(2))
    wire.client.channels[1].distributed = False  # a client of ours does not ask for it
    assert "cannot switch from dtx to tx mode" in refused(wire, o.TxSelect(2), 406)


def test_dtx_is_not_selected_beside_tx(wire: Wire) -> None:
    wire.ask(o.TxSelect(2))
    wire.client.channels[1].transacted = False
    assert "cannot switch from tx to dtx mode" in refused(wire, o.DtxSelect(2), 406)


def test_branches_are_few() -> None:
    wire = selected(Host(branches=1))
    work(wire)
    assert "the limit of 1 branches is reached" in refused(wire, o.DtxStart(1, OTHER), 506)
