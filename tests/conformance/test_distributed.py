"""Distributed transactions of 0-10, on a bare link: Broker-J and the embedded broker."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    DeclareQueue,
    DeleteQueue,
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
    Get,
    GetTimeoutResult,
    Got,
    GotNothing,
    Publish,
    RecoverResult,
    SelectConfirm,
    Settle,
    Settlement,
    TxSelect,
    XaResult,
    XaStatus,
    Xid,
)
from gateway.errors import NotFound, PreconditionFailed, RemoteError, StateError
from gateway.link import Channel, Link
from tests.conformance.conftest import FarEnd

pytestmark = pytest.mark.parametrize(
    "far_end",
    [
        pytest.param(("brokerj", "0-10"), marks=pytest.mark.broker, id="brokerj"),
        pytest.param(("embedded", "0-10"), id="embedded"),
    ],
    indirect=True,
)


def new_xid() -> Xid:
    return Xid(7, uuid4().bytes, b"branch")


async def opened(link: Link) -> Channel:
    channel = link.channel(Channel)
    await channel.open()
    return channel


async def distributed(link: Link) -> Channel:
    channel = await opened(link)
    await channel.request(DtxSelect(channel.number))
    return channel


async def queues(channel: Channel, far_end: FarEnd, count: int = 2) -> list[str]:
    names = [far_end.name("dtx") for _ in range(count)]
    for name in names:
        await channel.request(DeclareQueue(channel.number, name, durable=True))
    return names


async def status(channel: Channel, request: object) -> XaStatus:
    result = await channel.request(request)  # type: ignore[arg-type]
    assert isinstance(result, XaResult)
    return result.status


async def work(channel: Channel, xid: Xid, names: list[str], bodies: list[bytes]) -> None:
    """Publish to the queues in turn, in the branch."""
    assert await status(channel, DtxStart(channel.number, xid)) is XaStatus.XA_OK
    for index, body in enumerate(bodies):
        channel.send(Publish(channel.number, "", names[index % len(names)], Message(body)))
    assert await status(channel, DtxEnd(channel.number, xid)) is XaStatus.XA_OK


async def taken(channel: Channel, name: str, settlement: Settlement = Settlement.ACCEPT) -> list[bytes]:
    """What is in a queue."""
    bodies = []
    while isinstance(got := await channel.request(Get(channel.number, name)), Got):
        bodies.append(got.message.body)
        channel.send(Settle(channel.number, settlement, got.delivery, got.delivery))
    return bodies


async def in_doubt(channel: Channel) -> tuple[Xid, ...]:
    result = await channel.request(DtxRecover(channel.number))
    assert isinstance(result, RecoverResult)
    return result.in_doubt


async def test_two_phases_over_two_queues(far_end: FarEnd) -> None:
    link = await far_end.link()
    dtx, plain = await distributed(link), await opened(link)
    names, xid = await queues(plain, far_end), new_xid()

    await work(dtx, xid, names, [b"1", b"2", b"3"])
    assert [await taken(plain, name) for name in names] == [[], []]
    assert await status(dtx, DtxPrepare(dtx.number, xid)) is XaStatus.XA_OK
    assert [await taken(plain, name) for name in names] == [[], []]
    assert xid in await in_doubt(dtx)
    assert await status(dtx, DtxCommit(dtx.number, xid)) is XaStatus.XA_OK
    assert [await taken(plain, name) for name in names] == [[b"1", b"3"], [b"2"]]
    assert xid not in await in_doubt(dtx)
    for name in names:
        await plain.request(DeleteQueue(plain.number, name))


async def test_one_phase(far_end: FarEnd) -> None:
    link = await far_end.link()
    dtx, plain = await distributed(link), await opened(link)
    names, xid = await queues(plain, far_end), new_xid()
    await work(dtx, xid, names, [b"1", b"2"])
    assert await status(dtx, DtxCommit(dtx.number, xid, one_phase=True)) is XaStatus.XA_OK
    assert [await taken(plain, name) for name in names] == [[b"1"], [b"2"]]


@pytest.mark.parametrize("prepare", [False, True], ids=["ended", "prepared"])
async def test_rollback_undoes_publishes_and_settlements(far_end: FarEnd, prepare: bool) -> None:
    link = await far_end.link()
    dtx, plain = await distributed(link), await opened(link)
    (taken_from, put_into), xid = await queues(plain, far_end), new_xid()
    plain.send(Publish(plain.number, "", taken_from, Message(b"there")))
    await plain.request(SelectConfirm(plain.number))

    assert await status(dtx, DtxStart(dtx.number, xid)) is XaStatus.XA_OK
    got = await dtx.request(Get(dtx.number, taken_from))
    assert isinstance(got, Got)
    dtx.send(Settle(dtx.number, Settlement.ACCEPT, got.delivery, got.delivery))
    dtx.send(Publish(dtx.number, "", put_into, Message(b"undone")))
    assert await status(dtx, DtxEnd(dtx.number, xid)) is XaStatus.XA_OK
    if prepare:
        assert await status(dtx, DtxPrepare(dtx.number, xid)) is XaStatus.XA_OK
    assert isinstance(await plain.request(Get(plain.number, taken_from)), GotNothing)
    assert await status(dtx, DtxRollback(dtx.number, xid)) is XaStatus.XA_OK
    again = await plain.request(Get(plain.number, taken_from))
    assert isinstance(again, Got)
    assert (again.message.body, again.redelivered) == (b"there", True)
    assert await taken(plain, put_into) == []


async def test_a_branch_moves_a_message(far_end: FarEnd) -> None:
    link = await far_end.link()
    dtx, plain = await distributed(link), await opened(link)
    (source, target), xid = await queues(plain, far_end), new_xid()
    plain.send(Publish(plain.number, "", source, Message(b"moved")))
    await plain.request(SelectConfirm(plain.number))
    got = await dtx.request(Get(dtx.number, source))
    assert await status(dtx, DtxStart(dtx.number, xid)) is XaStatus.XA_OK
    dtx.send(Publish(dtx.number, "", target, got.message))
    dtx.send(Settle(dtx.number, Settlement.ACCEPT, got.delivery, got.delivery))
    assert await status(dtx, DtxEnd(dtx.number, xid)) is XaStatus.XA_OK
    assert await status(dtx, DtxPrepare(dtx.number, xid)) is XaStatus.XA_OK
    assert await status(dtx, DtxCommit(dtx.number, xid)) is XaStatus.XA_OK
    await dtx.close()
    assert await taken(plain, source) == []
    assert await taken(plain, target) == [b"moved"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
async def test_a_branch_in_doubt_is_recovered_after_a_cut(far_end: FarEnd, commit: bool) -> None:
    first = await far_end.link()
    dtx = await distributed(first)
    names, xid = await queues(dtx, far_end), new_xid()
    await work(dtx, xid, names, [b"1", b"2"])
    assert await status(dtx, DtxPrepare(dtx.number, xid)) is XaStatus.XA_OK
    assert first.stream is not None
    first.stream.abort()  # between the two phases

    second = await far_end.link()
    dtx, plain = await distributed(second), await opened(second)
    found = [each for each in await in_doubt(dtx) if each == xid]
    assert found == [xid]
    assert [await taken(plain, name) for name in names] == [[], []]
    decide = DtxCommit(dtx.number, found[0]) if commit else DtxRollback(dtx.number, found[0])
    assert await status(dtx, decide) is XaStatus.XA_OK
    assert [await taken(plain, name) for name in names] == ([[b"1"], [b"2"]] if commit else [[], []])
    assert xid not in await in_doubt(dtx)


async def test_what_was_not_prepared_is_gone_with_its_session(far_end: FarEnd) -> None:
    first = await far_end.link()
    dtx = await distributed(first)
    (name,), xid = await queues(dtx, far_end, 1), new_xid()
    await dtx.request(DtxStart(dtx.number, xid))
    dtx.send(Publish(dtx.number, "", name, Message(b"lost")))
    await dtx.request(SelectConfirm(dtx.number))
    assert first.stream is not None
    first.stream.abort()
    second = await far_end.link()
    dtx, plain = await distributed(second), await opened(second)
    assert xid not in await in_doubt(dtx)
    assert await taken(plain, name) == []


async def test_a_branch_that_failed_is_rolled_back(far_end: FarEnd) -> None:
    link = await far_end.link()
    dtx, plain = await distributed(link), await opened(link)
    (name,), xid = await queues(plain, far_end, 1), new_xid()
    assert await status(dtx, DtxStart(dtx.number, xid)) is XaStatus.XA_OK
    dtx.send(Publish(dtx.number, "", name, Message(b"undone")))
    failed = await status(dtx, DtxEnd(dtx.number, xid, fail=True))
    assert failed is (XaStatus.XA_OK if far_end.kind == "brokerj" else XaStatus.XA_RBROLLBACK)  # both are allowed
    assert await status(dtx, DtxRollback(dtx.number, xid)) is XaStatus.XA_OK
    assert await taken(plain, name) == []


async def test_suspended_and_resumed_joined_by_another(far_end: FarEnd) -> None:
    link = await far_end.link()
    dtx, other, plain = await distributed(link), await distributed(link), await opened(link)
    (name,), xid = await queues(plain, far_end, 1), new_xid()
    assert await status(dtx, DtxStart(dtx.number, xid)) is XaStatus.XA_OK
    dtx.send(Publish(dtx.number, "", name, Message(b"1")))
    assert await status(dtx, DtxEnd(dtx.number, xid, suspend=True)) is XaStatus.XA_OK
    assert await status(other, DtxStart(other.number, xid, join=True)) is XaStatus.XA_OK
    other.send(Publish(other.number, "", name, Message(b"2")))
    assert await status(other, DtxEnd(other.number, xid)) is XaStatus.XA_OK
    assert await status(dtx, DtxStart(dtx.number, xid, resume=True)) is XaStatus.XA_OK
    dtx.send(Publish(dtx.number, "", name, Message(b"3")))
    assert await status(dtx, DtxEnd(dtx.number, xid)) is XaStatus.XA_OK
    assert await status(dtx, DtxPrepare(dtx.number, xid)) is XaStatus.XA_OK
    assert await status(other, DtxCommit(other.number, xid)) is XaStatus.XA_OK
    assert sorted(await taken(plain, name)) == [b"1", b"2", b"3"]


async def test_timeouts(far_end: FarEnd) -> None:
    link = await far_end.link()
    dtx, plain = await distributed(link), await opened(link)
    (name,), xid = await queues(plain, far_end, 1), new_xid()
    assert await status(dtx, DtxStart(dtx.number, xid)) is XaStatus.XA_OK
    assert isinstance(await dtx.request(DtxSetTimeout(dtx.number, xid, 1)), Done)
    result = await dtx.request(DtxGetTimeout(dtx.number, xid))
    assert isinstance(result, GetTimeoutResult)
    assert result.timeout == 1
    dtx.send(Publish(dtx.number, "", name, Message(b"late")))
    await asyncio.sleep(1.5)
    assert await status(dtx, DtxEnd(dtx.number, xid)) is XaStatus.XA_RBTIMEOUT
    assert await taken(plain, name) == []


NOWHERE = Xid(7, b"nobody has started it", b"")


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda number: DtxPrepare(number, NOWHERE), NotFound),
        (lambda number: DtxCommit(number, NOWHERE), NotFound),
        (lambda number: DtxRollback(number, NOWHERE), NotFound),
        (lambda number: DtxForget(number, NOWHERE), NotFound),
        (lambda number: DtxGetTimeout(number, NOWHERE), NotFound),
        (lambda number: DtxSetTimeout(number, NOWHERE, 5), NotFound),
        (lambda number: DtxEnd(number, NOWHERE), PreconditionFailed),
        (lambda number: DtxStart(number, NOWHERE, resume=True), RemoteError),
    ],
    ids=["prepare", "commit", "rollback", "forget", "get-timeout", "set-timeout", "end", "resume"],
)
async def test_a_branch_that_is_not_known(far_end: FarEnd, build: object, error: type[RemoteError]) -> None:
    link = await far_end.link()
    dtx = await distributed(link)
    with pytest.raises(error):
        await dtx.request(build(dtx.number))  # type: ignore[operator]


async def test_what_is_out_of_order(far_end: FarEnd) -> None:
    link = await far_end.link()
    names, plain = [], await opened(link)
    names = await queues(plain, far_end, 1)

    dtx, xid = await distributed(link), new_xid()
    await dtx.request(DtxStart(dtx.number, xid))
    with pytest.raises(PreconditionFailed):  # it has not ended
        await dtx.request(DtxPrepare(dtx.number, xid))

    dtx, xid = await distributed(link), new_xid()
    await work(dtx, xid, names, [b"1"])
    with pytest.raises(PreconditionFailed):  # it is not prepared
        await dtx.request(DtxCommit(dtx.number, xid))

    dtx = await distributed(link)
    assert await status(dtx, DtxRollback(dtx.number, xid)) is XaStatus.XA_OK
    await dtx.request(DtxStart(dtx.number, xid))
    other = await distributed(link)
    with pytest.raises(RemoteError) as caught:  # it is known already
        await other.request(DtxStart(other.number, xid))
    assert caught.value.reply_code == 530


async def test_no_dtx_on_a_transacted_channel(far_end: FarEnd) -> None:
    link = await far_end.link()
    channel = await opened(link)
    with pytest.raises(StateError, match="is not in mode dtx: no DtxRecover"):
        channel.request(DtxRecover(channel.number))
    await channel.request(TxSelect(channel.number))
    with pytest.raises(StateError, match="is in mode transacted already"):
        channel.request(DtxSelect(channel.number))
    other = await distributed(link)
    with pytest.raises(StateError, match="is in mode dtx already"):
        other.request(TxSelect(other.number))
