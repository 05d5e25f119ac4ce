"""A broker that dies between the two phases of a distributed transaction: what was prepared is still to be decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    DeclareQueue,
    DtxCommit,
    DtxEnd,
    DtxPrepare,
    DtxRollback,
    DtxStart,
    Publish,
    XaStatus,
)
from gateway.link import Link
from tests.conformance.conftest import FarEnd
from tests.conformance.test_distributed import distributed, in_doubt, new_xid, opened, status, taken


@pytest.mark.broker
async def test_killed_between_prepare_and_commit(private_server: Callable[[str], Any]) -> None:
    server = private_server("brokerj")
    end = FarEnd("brokerj", "0-10", server.port, "default")  # the durable virtual host
    dtx = await distributed(await end.link())
    name = end.name("dtx")
    await dtx.request(DeclareQueue(dtx.number, name, durable=True))
    kept, undone = new_xid(), new_xid()
    for xid, body in ((kept, b"kept"), (undone, b"undone")):
        assert await status(dtx, DtxStart(dtx.number, xid)) is XaStatus.XA_OK
        dtx.send(Publish(dtx.number, "", name, Message(body, Properties(delivery_mode=2))))
        assert await status(dtx, DtxEnd(dtx.number, xid)) is XaStatus.XA_OK
        assert await status(dtx, DtxPrepare(dtx.number, xid)) is XaStatus.XA_OK
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.restart)

    link = await _up(end)
    dtx, plain = await distributed(link), await opened(link)
    assert {kept, undone} <= set(await in_doubt(dtx))
    assert await taken(plain, name) == []
    assert await status(dtx, DtxCommit(dtx.number, kept)) is XaStatus.XA_OK
    assert await status(dtx, DtxRollback(dtx.number, undone)) is XaStatus.XA_OK
    assert await taken(plain, name) == [b"kept"]
    await end.close()


async def _up(end: FarEnd) -> Link:
    """The broker listens before its virtual host is active."""
    await (await end.upstream()).close(1.0)
    return await end.link()
