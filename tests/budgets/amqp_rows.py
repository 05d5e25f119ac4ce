"""Rows of the budgets whose clients speak AMQP: users of the embedded broker, and of a front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    BindQueue,
    Confirmed,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Get,
    Got,
    Publish,
    PurgeQueue,
    Qos,
    Request,
    Settle,
    Settlement,
    UnbindQueue,
)
from gateway.broker.declared import Kind
from gateway.errors import GatewayError
from gateway.link import Channel
from tests.budgets.lab import PREFETCH, Lab, channel_of, is_held, is_held_at_most, until
from tests.budgets.row import Row, more_nothing
from tests.faults.proxy import Direction, HalfOpen

LARGE = 65_536
"""Bytes of a message that is held."""
LONG = 4_096
"""Bytes of the arguments of a binding that counts."""
COUNTED = 10_000
"""More than what is counted of it."""
COST = 1_024
"""More than what is counted of a message beside its body."""
REST = 200_000
"""What is left below a bound, in bytes."""
REFUSED = 429
"""What a refusal counts as, as over HTTP."""


def front_label(client: str) -> str:
    """Under which name the table of budgets knows a user of the front."""
    return f"front:test/{client}"


@asynccontextmanager
async def channel(lab: Lab, user: str, *, front: bool = False, confirms: bool = False) -> AsyncIterator[Channel]:
    """A channel on a connection of its own."""
    link = await lab.amqp(user, front=front)
    try:
        yield await channel_of(link, confirms=confirms)
    finally:
        await link.close()


# ------------------------------------------------------------------------------------------------ connections


@asynccontextmanager
async def hold_links(lab: Lab, client: str, count: int, front: bool = False) -> AsyncIterator[None]:
    """Connections."""
    links = [await lab.amqp(client, front=front) for _ in range(count)]
    try:
        yield
    finally:
        for link in links:
            await link.close()
        await until(lambda: is_less(lab, "front_connections" if front else "embedded_connections"))


async def is_less(lab: Lab, resource: str) -> bool:
    """Whether nobody is at its bound any more."""
    standing = await lab.budget(resource)
    return all(each["held"] < standing["share"] for each in standing["largest"] if each["client"] == "alice")


async def more_links(lab: Lab, client: str, at_bound: bool, front: bool = False) -> int:
    """One more, for a moment."""
    try:
        link = await lab.amqp(client, front=front)
    except GatewayError:
        return REFUSED
    try:
        await (await channel_of(link)).close()
    except GatewayError:
        return REFUSED
    finally:
        await link.close()
    return 200


async def other_links(lab: Lab, front: bool = False) -> None:
    """The same of the other client."""
    assert await more_links(lab, "bob", at_bound=False, front=front) == 200


# --------------------------------------------------------------------------------------- channels and declared


@asynccontextmanager
async def hold_channels(lab: Lab, client: str, count: int, front: bool = False) -> AsyncIterator[None]:
    """Channels on one connection; those of a front have one at the broker."""
    link = await lab.amqp(client, front=front)
    try:
        for _ in range(count):
            await used(await channel_of(link), front)
        yield
    finally:
        await link.close()


async def used(channel: Channel, front: bool) -> None:
    """Have a channel of a front take one at the broker."""
    if front:
        await channel.request(Qos(channel.number, 10))
        await channel.request(DeclareQueue(channel.number, "alice-amqp", passive=True))


async def more_channels(lab: Lab, client: str, at_bound: bool, front: bool = False) -> int:
    """One more, for a moment."""
    link = await lab.standing(client, front=front)
    try:
        channel = await channel_of(link)
        await used(channel, front)
    except GatewayError:
        return REFUSED
    await channel.close()
    return 200


async def other_channels(lab: Lab, front: bool = False) -> None:
    """The same of the other client."""
    assert await more_channels(lab, "bob", at_bound=False, front=front) == 200


@dataclass(frozen=True)
class Thing:
    """Something that is declared on a channel, by name."""

    declare: Callable[[int, str], Request]
    delete: Callable[[int, str], Request] | None
    """None: it goes with its channel."""


def binding(number: int, key: str, size: int = 0) -> Request:
    """Bind the queue ``alice-amqp``, with arguments of this size in bytes."""
    return BindQueue(number, "alice-amqp", "amq.direct", key, {"x": "x" * size} if size else {})


def unbinding(number: int, key: str, size: int = 0) -> Request:
    """The opposite."""
    return UnbindQueue(number, "alice-amqp", "amq.direct", key, {"x": "x" * size} if size else {})


THINGS = {
    Kind.EXCHANGES: Thing(DeclareExchange, DeleteExchange),
    Kind.QUEUES: Thing(DeclareQueue, DeleteQueue),
    Kind.BINDINGS: Thing(binding, unbinding),
    Kind.CONSUMERS: Thing(lambda number, name: Consume(number, "alice-amqp", name, no_ack=True), None),
    Kind.OCTETS: Thing(partial(binding, size=LONG), partial(unbinding, size=LONG)),
}


@asynccontextmanager
async def hold_declared(lab: Lab, client: str, count: int, kind: Kind) -> AsyncIterator[None]:
    """Things that a client has declared; of bytes, as many as have so many."""
    thing, names = THINGS[kind], [f"{client}-{lab.number()}" for _ in range(count)]
    async with channel(lab, client) as held:
        for name in names:
            await held.request(thing.declare(held.number, name))
        yield
        await delete(held, thing, names)


@asynccontextmanager
async def hold_octets(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Bindings up to this number of bytes; :data:`REST`: all that are admitted."""
    thing, names = THINGS[Kind.OCTETS], []
    async with channel(lab, client) as held:
        with suppress(GatewayError):
            for _ in range(count // COUNTED if count > REST else REST):
                names.append(f"{client}-{lab.number()}")
                await held.request(thing.declare(held.number, names[-1]))
        yield
    async with channel(lab, client) as held:
        await delete(held, thing, names)


async def delete(held: Channel, thing: Thing, names: Iterable[str]) -> None:
    """Delete these."""
    if thing.delete is not None:
        for name in names:
            await held.request(thing.delete(held.number, name))


async def more_declared(lab: Lab, client: str, at_bound: bool, kind: Kind) -> int:
    """One more, for a moment."""
    thing, name = THINGS[kind], f"{client}-{lab.number()}"
    asking = await channel_of(await lab.standing(client))
    try:
        await asking.request(thing.declare(asking.number, name))
        if thing.delete is not None:
            await asking.request(thing.delete(asking.number, name))
    except GatewayError:
        return REFUSED
    await asking.close()
    return 200


async def other_declared(lab: Lab, kind: Kind) -> None:
    """The same of the other client."""
    assert await more_declared(lab, "bob", at_bound=False, kind=kind) == 200


# ---------------------------------------------------------------------------------------- bytes and deliveries


async def publish(channel: Channel, queue: str, size: int = 10) -> None:
    """Publish, and wait for the confirm. Raises GatewayError where it is refused."""
    outcome = await channel.request(Publish(channel.number, "", queue, Message(bytes(size))))
    if not isinstance(outcome, Confirmed):
        raise GatewayError(str(outcome))


@asynccontextmanager
async def hold_messages(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Messages in a queue of the embedded broker up to this number of bytes; :data:`REST`: all that are
    admitted."""
    name = f"{client}-{lab.number()}"
    async with channel(lab, client, confirms=True) as held:
        await held.request(DeclareQueue(held.number, name))
        with suppress(GatewayError):
            for _ in range(count // (LARGE + COST) if count > REST else REST):
                await publish(held, name, LARGE)
        yield
    async with channel(lab, client) as held:
        await held.request(DeleteQueue(held.number, name))


async def more_messages(lab: Lab, client: str, at_bound: bool) -> int:
    """One more, for a moment."""
    try:
        asking = await channel_of(await lab.standing(client), confirms=True)
        await publish(asking, "alice-amqp", LARGE)
        await asking.request(PurgeQueue(asking.number, "alice-amqp"))
    except GatewayError:
        return REFUSED
    await asking.close()
    return 200


async def flow(lab: Lab, front: bool = False) -> None:
    """Publish a message, get it, acknowledge it."""
    asking = await lab.standing_channel("bob", front=front)
    await publish(asking, "bob-amqp")
    got = await asking.request(Get(asking.number, "bob-amqp"))
    assert isinstance(got, Got), got
    asking.send(Settle(asking.number, Settlement.ACCEPT, got.delivery, got.delivery))


@asynccontextmanager
async def hold_unanswered(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Publishes through a front to a broker that answers nothing meanwhile."""
    held = await lab.standing_channel(client, front=True, host="slow")
    before = await lab.budget("front_bytes")
    toxic = lab.proxy.add(HalfOpen(), Direction.DOWNSTREAM)
    sent = [asyncio.ensure_future(publish(held, "unanswered", LARGE)) for _ in range(count // LARGE)]
    try:
        await until(lambda: is_held(lab, "front_bytes", min(before["held"] + count, before["share"])))
        yield
    finally:
        lab.proxy.remove(toxic)
        if not lab.proxy.toxics:
            await asyncio.gather(*sent)
            await until(lambda: is_held_at_most(lab, "front_bytes", 0))
            await held.request(PurgeQueue(held.number, "unanswered"))


@asynccontextmanager
async def hold_deliveries(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Deliveries of a front that are not acknowledged."""
    before = await lab.budget("front_deliveries")
    async with channel(lab, client, front=True) as held:
        await held.request(Qos(held.number, count + PREFETCH))
        await held.request(Consume(held.number, "many"))
        wanted = min(before["held"] + count, before["share"])
        await until(lambda: is_held(lab, "front_deliveries", wanted))
        yield
    await until(lambda: is_held_at_most(lab, "front_deliveries", before["held"]))


ROWS: tuple[Row, ...] = (
    Row("embedded_connections", hold_links, more_links, other_links),
    Row("embedded_channels", hold_channels, more_channels, other_channels),
    *(
        Row(
            kind, partial(hold_declared, kind=kind), partial(more_declared, kind=kind),
            partial(other_declared, kind=kind),
        )
        for kind in THINGS
        if kind is not Kind.OCTETS
    ),
    Row(
        Kind.OCTETS, hold_octets, partial(more_declared, kind=Kind.OCTETS), partial(other_declared, kind=Kind.OCTETS),
        one=REST,
    ),
    Row("embedded_bytes", hold_messages, more_messages, flow, one=REST),
    Row(
        "front_connections", partial(hold_links, front=True), partial(more_links, front=True),
        partial(other_links, front=True), label=front_label,
    ),
    Row(
        "front_channels", partial(hold_channels, front=True), partial(more_channels, front=True),
        partial(other_channels, front=True), label=front_label,
    ),
    Row(
        "front_bytes", hold_unanswered, more_nothing, partial(flow, front=True), one=LARGE, beyond=8 * LARGE,
        is_refused=False, alternates=False, label=front_label,
    ),
    Row(
        "front_deliveries", hold_deliveries, more_nothing, partial(flow, front=True), beyond=200, is_refused=False,
        label=front_label,
    ),
)  # fmt: skip
"""Each budget of AMQP clients."""
