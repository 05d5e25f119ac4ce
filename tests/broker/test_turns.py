"""No callback of the embedded broker holds up the event loop, whatever its clients have made: the longest is measured
in CPU, which a shared machine does not stretch much.

Each case builds what makes a command or a background job expensive, and then has it carried out. Where the documented
limit takes long to build, fewer are built, more than enough to take longer than a callback may if it were done at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Acquire,
    BindExchange,
    BindQueue,
    Cancel,
    ChannelClosed,
    CloseChannel,
    Confirmed,
    Consume,
    Credit,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Done,
    DtxCommit,
    DtxEnd,
    DtxPrepare,
    DtxRollback,
    DtxSelect,
    DtxStart,
    Failed,
    Get,
    Got,
    OpenChannel,
    Publish,
    PurgeQueue,
    Qos,
    QueryBinding,
    Recover,
    Returned,
    SelectConfirm,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
    UnbindQueue,
    Xid,
)
from gateway.limits import BrokerLimits
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from tests.broker.clients import publishing
from tests.broker.loop import Driver, Watched, watched
from tests.broker.raw import VERSIONS, Raw
from tests.pace import pace, untraced

SECONDS = 0.020
"""What a callback may take."""
ROUNDS = 3
"""A case that takes longer is tried again: the machine is shared."""

Case = Callable[[Watched], Awaitable[None]]
CASES: dict[str, Case] = {}


def case(build: Case) -> Case:
    CASES[build.__name__] = build
    return build


def fill(w: Watched, client: Driver, count: int, queue: str = "q", **properties: Any) -> None:
    for _ in range(count // 500):
        w.build(client, *(publishing(queue, **properties) for _ in range(500)))


def selecting(text: str) -> dict[str, Any]:
    return {"x-filter-jms-selector": text}


async def out(w: Watched, count: int = 30_000) -> Driver:
    """A client that has so many deliveries, and acknowledges none."""
    publisher = w.client()
    w.build(publisher, DeclareQueue(1, "q"))
    fill(w, publisher, count)
    client = w.client()
    await client.ask(Consume(1, "q", "t"))
    assert len(client.connection.channels[1].unsettled) == count
    return client


# ------------------------------------------------------------------------------------------ finding queues


@case
async def query_of_many_bindings(w: Watched) -> None:
    client = w.client(V0_10)
    w.build(client, DeclareQueue(1, "q"), DeclareExchange(1, "f", "fanout"))
    for number in range(20_000):
        w.build(client, BindQueue(1, "q", "f", "k", {"u": number}), BindQueue(1, "q", "f", f"x{number}", {"z": 1}))
    w.begin()
    await client.ask(QueryBinding(1, "f", "q", "k", {"z": 1}))


@case
async def headers_of_long_arrays(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q"), DeclareExchange(1, "h", "headers"))
    for number in range(1_000):
        wanted = {f"h{each}": [True, number] for each in range(12)}
        w.build(client, BindQueue(1, "q", "h", str(number), {"x-match": "any", **wanted}))
    w.begin()
    assert 506 in codes(await client.ask(publishing("", b"", "h", headers=arrays(12))))


@case
async def headers_of_as_many_bindings_as_may_be(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q"), SelectConfirm(1))
    for number in range(BrokerLimits().tried_bindings):
        wanted = {"a": 1, "b": 2, "c": 3, "number": number}
        w.build(client, BindQueue(1, "q", "amq.headers", str(number), {"x-match": "all", **wanted}))
    w.begin()
    headers = {"a": 1, "b": 2, "c": 3, "number": 4}
    assert confirmed(await client.ask(publishing("", b"", "amq.headers", headers=headers)))


@case
async def topics_that_are_anywhere_in_a_key(w: Watched) -> None:
    client, choice = w.client(), random.Random(1).choice
    w.build(client, DeclareQueue(1, "q"))
    for _ in range(4_000):
        w.build(client, BindQueue(1, "q", "amq.topic", ".".join(f"#.{choice('abcdef')}" for _ in range(12))))
    w.begin()
    key = ".".join(choice("abcdef") for _ in range(120))
    assert 506 in codes(await client.ask(publishing(key, b"", "amq.topic")))


@case
async def patterns_of_underscores(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q"))
    for number in range(10):
        w.build(client, Consume(1, "q", f"t{number}", arguments=selecting(f"h LIKE '%{'_' * 3_900}x'")))
        w.build(client, Consume(1, "q", f"u{number}", arguments=selecting(f"h LIKE '%{'a_' * 1_900}x'")))
    w.begin()
    await client.ask(publishing("q", headers={"h": "a" * 120_000}))


@case
async def bindings_with_selectors(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q"))
    text = " OR ".join(f"n={number}" for number in range(2, 202))
    for number in range(500):
        w.build(client, BindQueue(1, "q", "amq.fanout", str(number), selecting(text)))
    w.begin()
    assert 506 in codes(await client.ask(publishing("", b"", "amq.fanout", headers={"n": 1})))


@case
async def message_to_many_queues(w: Watched) -> None:
    client = w.client()
    w.build(client, SelectConfirm(1), DeclareExchange(1, "e", "fanout"), BindExchange(1, "amq.fanout", "e", ""))
    for number in range(20_000):
        w.build(client, DeclareQueue(1, f"q{number}"), BindQueue(1, f"q{number}", "amq.fanout"))
    w.begin()
    assert confirmed(await client.ask(publishing("", b"", "e")))
    assert all(queue.ready == 1 for queue in w.core.virtual_host("/").queues.values())


# ----------------------------------------------------------------------------------------------- consumers


@case
async def selector_on_a_long_queue(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q"))
    fill(w, client, 5_000, headers={"n": 1})
    w.begin()
    await client.ask(Consume(1, "q", "t", arguments=selecting(" OR ".join(f"n={n}" for n in range(2, 402)))))


@case
async def many_selectors(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q"))
    text = " OR ".join(f"n={number}" for number in range(2, 52))
    for number in range(BrokerLimits().selective_consumers):
        w.build(client, Consume(1, "q", f"t{number}", arguments=selecting(text)))
    w.begin()
    await client.ask(*(publishing("q", headers={"n": 1}) for _ in range(3)))


@case
async def consumer_of_a_long_queue(w: Watched) -> None:
    await out(w)


@case
async def browser_of_a_long_queue(w: Watched) -> None:
    publisher = w.client()
    w.build(publisher, DeclareQueue(1, "q"))
    fill(w, publisher, 30_000)
    client = w.client(V0_10)
    w.begin()
    await client.ask(Consume(1, "q", "t", acquired=False, credit=True), Credit(1, "t", None, None))
    assert len(client.connection.channels[1].unsettled) == 30_000
    await client.ask(Acquire(1, ((1, 30_000),)))


@case
async def as_many_consumers_as_may_be(w: Watched) -> None:
    client, count = w.client(), BrokerLimits().queue_consumers
    w.build(client, DeclareQueue(1, "q"), *(Consume(1, "q", f"t{number}") for number in range(count)))
    w.build(client, Qos(1, 1, whole_channel=True))
    w.begin()
    await client.ask(*(publishing("q") for _ in range(3)))
    await client.ask(*(Settle(1, Settlement.ACCEPT, number, number) for number in (1, 2, 3)))
    await client.ask(*(Cancel(1, f"t{number}") for number in reversed(range(count // 2))))
    await client.ask(DeleteQueue(1, "q"))


@case
async def consumers_for_whom_the_message_is_too_large(w: Watched) -> None:
    client = w.client(V0_10)
    w.build(client, DeclareQueue(1, "q"))
    for number in range(BrokerLimits().queue_consumers):
        w.build(client, Consume(1, "q", f"t{number}", credit=True), Credit(1, f"t{number}", None, 10))
    w.begin()
    await client.ask(*(publishing("q", bytes(100)) for _ in range(20)))


# ---------------------------------------------------------------------------------------------- deliveries


@case
async def acknowledging_all(w: Watched) -> None:
    client = await out(w)
    w.begin()
    await client.ask(Settle(1, Settlement.ACCEPT, 0, 0))


@case
async def giving_all_back(w: Watched) -> None:
    client = await out(w)
    w.begin()
    await client.ask(Cancel(1, "t"), Settle(1, Settlement.RELEASE, 0, 30_000))
    assert w.core.virtual_host("/").queues["q"].ready == 30_000


@case
async def giving_back_in_no_order(w: Watched) -> None:
    client = await out(w)
    w.build(client, Cancel(1, "t"))
    numbers = [*range(30_000, 0, -13), *range(29_995, 0, -13)]
    w.begin()
    await client.ask(*(Settle(1, Settlement.RELEASE, number, number) for number in numbers))
    positions = [entry.position for entry in w.core.virtual_host("/").queues["q"].clear()[0]]
    assert positions == sorted(number - 1 for number in numbers)


@case
async def recovering_all(w: Watched) -> None:
    client = await out(w)
    w.begin()
    await client.ask(Recover(1, False))
    await client.ask(Cancel(1, "t"), Recover(1, True))


@case
async def closing_a_channel_with_all_out(w: Watched) -> None:
    client = await out(w)
    w.begin()
    await client.ask(CloseChannel(1))
    assert w.core.virtual_host("/").queues["q"].ready == 30_000


@case
async def leaving_with_all_out(w: Watched) -> None:
    client = await out(w)
    w.begin()
    await client.leave()
    assert w.core.virtual_host("/").queues["q"].ready == 30_000


# -------------------------------------------------------------------------------------------- transactions


@case
async def committing_much(w: Watched) -> None:
    client = await out(w)
    w.build(client, Cancel(1, "t"), TxSelect(1), Settle(1, Settlement.ACCEPT, 0, 0))
    fill(w, client, 20_000)
    w.begin()
    await client.ask(TxCommit(1))
    assert w.core.virtual_host("/").queues["q"].ready == 20_000


@case
async def rolling_much_back(w: Watched) -> None:
    client = await out(w)
    w.build(client, Cancel(1, "t"), TxSelect(1), Settle(1, Settlement.ACCEPT, 0, 0))
    fill(w, client, 20_000)
    w.begin()
    await client.ask(TxRollback(1))
    assert len(client.connection.channels[1].unsettled) == 30_000


@case
async def branches_of_distributed_transactions(w: Watched) -> None:
    client = w.client(V0_10)
    w.build(client, DeclareQueue(1, "q"), DtxSelect(1))
    for number in (1, 2):
        xid = Xid(number, b"g", b"b")
        w.build(client, DtxStart(1, xid))
        fill(w, client, 20_000)
        w.build(client, DtxEnd(1, xid))
    w.begin()
    await client.ask(DtxPrepare(1, Xid(1, b"g", b"b")), DtxCommit(1, Xid(1, b"g", b"b")))
    await client.ask(DtxRollback(1, Xid(2, b"g", b"b")))
    assert w.core.virtual_host("/").queues["q"].ready == 20_000


# ------------------------------------------------------------------------------------------------ the end


@case
async def purging_and_deleting(w: Watched) -> None:
    client = w.client(V0_10)
    w.build(client, DeclareQueue(1, "d"), BindQueue(1, "d", "amq.fanout"))
    w.build(client, DeclareQueue(1, "q", arguments={"alternate-exchange": "amq.fanout"}))
    fill(w, client, 50_000)
    w.begin()
    await client.ask(PurgeQueue(1, "q"))
    fill(w, client, 20_000)
    w.begin()
    await client.ask(DeleteQueue(1, "q"))
    assert w.core.virtual_host("/").queues["d"].ready == 20_000


@case
async def removing_many_bindings(w: Watched) -> None:
    client = w.client(V0_10)
    w.build(client, DeclareQueue(1, "q"), DeclareExchange(1, "t", "topic"), DeclareExchange(1, "f", "fanout"))
    for number in range(15_000):
        w.build(client, BindQueue(1, "q", "t", f"k{number}.*"), BindQueue(1, "q", "f", "k", {"number": number}))
        w.build(client, BindQueue(1, "q", "amq.direct", f"k{number}"))
    w.begin()
    await client.ask(DeleteExchange(1, "t"), UnbindQueue(1, "q", "f", "k"), DeleteQueue(1, "q"))
    assert w.core.virtual_host("/")._bindings == 0


@case
async def leaving_with_many_queues(w: Watched) -> None:
    client = w.client()
    for number in range(15_000):
        w.build(client, DeclareQueue(1, f"q{number}", exclusive=True), BindQueue(1, f"q{number}", "amq.fanout"))
    w.begin()
    await client.leave()
    assert not w.core.virtual_host("/").queues
    assert w.core.virtual_host("/")._bindings == 0


@case
async def leaving_with_many_channels(w: Watched) -> None:
    client = w.client()
    w.build(client, *(OpenChannel(number) for number in range(2, 2_000)))
    w.begin()
    await client.leave()
    assert w.core.channels == 0


# ---------------------------------------------------------------------------------------- background jobs


@case
async def queues_and_messages_that_expire_together(w: Watched) -> None:
    client = w.client()
    for number in range(5_000):
        arguments = {"x-message-ttl": 1, "x-expires": 1}
        w.build(client, DeclareQueue(1, f"q{number}", arguments=arguments), publishing(f"q{number}"))
    w.build(client, DeclareQueue(1, "q", arguments={"x-message-ttl": 1}))
    fill(w, client, 20_000)
    w.begin()
    w.server.watch_timeouts()
    async with asyncio.timeout(60):
        while len(w.core.virtual_host("/").queues) > 1 or w.core.memory.used:
            await asyncio.sleep(0.01)


@case
async def get_behind_what_has_expired(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q"), publishing("q"))
    fill(w, client, 20_000, expiration="1")
    w.build(client, publishing("q", b"last"))
    await asyncio.sleep(0.01)
    w.begin()
    told = await client.ask(Get(1, "q", True), Get(1, "q", True))
    assert [each.message.body for each in told if isinstance(each, Got)] == [b"", b"last"]


@case
async def one_message_that_pushes_many_out(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q", arguments={"x-max-length-bytes": 30_000}))
    for _ in range(60):
        w.build(client, *(publishing("q", b"x") for _ in range(500)))
    w.begin()
    await client.ask(publishing("q", bytes(29_999)))
    assert w.core.virtual_host("/").queues["q"].ready == 2


@case
async def dead_letters_to_many_queues(w: Watched) -> None:
    client = w.client()
    w.build(client, DeclareQueue(1, "q", arguments={"x-dead-letter-exchange": "amq.fanout"}))
    for number in range(1_000):
        w.build(client, DeclareQueue(1, f"q{number}"), BindQueue(1, f"q{number}", "amq.fanout"))
    w.build(client, *(publishing("q") for _ in range(20)), Consume(1, "q", "t"))
    w.begin()
    await client.ask(Settle(1, Settlement.REJECT, 0, 0))
    assert w.core.virtual_host("/").queues["q7"].ready == 20


@case
async def dead_letters_in_a_cascade(w: Watched) -> None:
    client = w.client()
    for number in range(60):
        arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "amq.fanout"}
        w.build(client, DeclareQueue(1, f"q{number}", arguments=arguments), BindQueue(1, f"q{number}", "amq.fanout"))
    w.begin()
    await client.ask(publishing("", bytes(10), "amq.fanout"))
    async with asyncio.timeout(60):
        while w.core.memory.used:
            assert w.core.memory.used < 4 << 20
            await asyncio.sleep(0.005)


@case
async def many_publishers_that_may_go_on(w: Watched) -> None:
    publisher, clients = w.client(), [w.client(V0_8) for _ in range(5)]
    w.build(publisher, DeclareQueue(1, "q"))
    for client in clients:
        client.session.capabilities.blocked_notification = False
        w.build(client, *(OpenChannel(number) for number in range(2, 1_000)))
    while w.core.memory.used < w.core.memory.alarm:
        w.build(publisher, *(publishing("q", bytes(1 << 20)) for _ in range(10)))
    for client in clients:
        w.build(client, *(publishing("q", b"x", channel=number) for number in range(1, 1_000)))
    assert w.core._stopped
    w.begin()
    await publisher.ask(PurgeQueue(1, "q"))
    assert not w.core._stopped


# ------------------------------------------------------------------------------------------- on the wire


@case
async def headers_of_as_many_values_as_may_be(w: Watched) -> None:
    client = await Raw.open(w.server.port)
    await client.tell(SelectConfirm(1))
    await client.hear(Done)
    w.begin()
    await client.tell(Publish(1, "amq.headers", "", Message(b"", Properties(headers=arrays(4)))))
    await client.hear(Returned)


@case
async def small_frames(w: Watched) -> None:
    for version in VERSIONS:
        client, queue = await Raw.open(w.server.port, version), f"of {version.value}"
        await client.declare(queue)
        burst = client.octets(*(publishing(queue) for _ in range(2_000)))
        w.begin() if version is VERSIONS[0] else None
        await client.write(burst)
        while await client.declare(queue) < 2_000:
            await asyncio.sleep(0.001)


# --------------------------------------------------------------------------------------------------------


def arrays(count: int) -> dict[str, Any]:
    return {f"h{number}": [True] * 4_000 for number in range(count)}


def codes(told: list[Any]) -> set[int]:
    return {each.code for each in told if isinstance(each, (Failed, ChannelClosed))}


def confirmed(told: list[Any]) -> bool:
    return any(isinstance(each, Confirmed) for each in told)


LIMITS: Mapping[str, int] = {"queue_memory": 256 << 20}


@pytest.mark.parametrize("name", CASES)
async def test_no_callback_takes_long(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for _ in range(ROUNDS):
        with untraced():
            async with watched(**LIMITS) as w:
                await CASES[name](w)
                await w.idle()
        if w.longest <= SECONDS:
            break
    assert w.longest <= SECONDS * pace(), f"{w.what}: {w.longest * 1_000:.1f} ms"
