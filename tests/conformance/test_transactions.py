"""Transactions, on a bare link."""

from __future__ import annotations

import asyncio

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    DeclareQueue,
    DeleteQueue,
    Get,
    Got,
    GotNothing,
    Publish,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
)
from gateway.link import Channel, Link
from tests.conformance.conftest import FarEnd


async def opened(link: Link) -> Channel:
    channel = link.channel(Channel)
    await channel.open()
    return channel


async def test_commit_and_rollback(far_end: FarEnd) -> None:
    link = await far_end.link()
    tx, plain = await opened(link), await opened(link)
    name = far_end.name("queue")
    await plain.request(DeclareQueue(plain.number, name, durable=True))
    await tx.request(TxSelect(tx.number))

    tx.send(Publish(tx.number, "", name, Message(b"undone")))
    await tx.request(TxRollback(tx.number))
    assert isinstance(await plain.request(Get(plain.number, name)), GotNothing)

    for body in (b"1", b"2"):
        tx.send(Publish(tx.number, "", name, Message(body)))
    assert isinstance(await plain.request(Get(plain.number, name)), GotNothing)
    await tx.request(TxCommit(tx.number))
    first = await plain.request(Get(plain.number, name))
    assert isinstance(first, Got)
    assert first.message.body == b"1"
    plain.send(Settle(plain.number, Settlement.ACCEPT, first.delivery, first.delivery))

    second = await tx.request(Get(tx.number, name))  # an acknowledgement that is taken back is none
    assert second.message.body == b"2"
    tx.send(Settle(tx.number, Settlement.ACCEPT, second.delivery, second.delivery))
    await tx.request(TxRollback(tx.number))
    await tx.close()
    async with asyncio.timeout(30):  # a closed channel's deliveries are back in the queue a moment later
        while isinstance(again := await plain.request(Get(plain.number, name)), GotNothing):
            await asyncio.sleep(0.05)
    assert isinstance(again, Got)
    assert again.redelivered or not far_end.marks_what_comes_back
    plain.send(Settle(plain.number, Settlement.ACCEPT, again.delivery, again.delivery))
    await plain.request(DeleteQueue(plain.number, name))
    await link.close()
