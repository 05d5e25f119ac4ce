"""Deliveries and their settlement through a front."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    BindingFound,
    Cancel,
    Confirmed,
    Consume,
    Credit,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    Deliver,
    Get,
    Got,
    Publish,
    Qos,
    QueryBinding,
    Recover,
    SelectConfirm,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
)
from gateway.config import BrokerSettings
from gateway.errors import GatewayError, NotFound, ResourceLocked
from gateway.front.channels import credit
from gateway.upstreams.keeper import Dialer
from tests.front.test_survival import Estate, Recorded, estate, seen, until

__all__ = ["estate"]


async def test_a_limit_of_the_channel_is_kept_and_nothing_is_settled_by_mistake(estate: Estate) -> None:
    """With two consumers some deliveries wait at the front, between those that are settled together."""
    channel = await estate.channel(await estate.link())
    await channel.request(Qos(channel.number, 2, whole_channel=True))
    most = 0

    def delivered(delivery: Deliver) -> None:
        nonlocal most
        most = max(most, len(channel.deliveries) - settled)

    settled = 0
    channel.on_delivery = delivered
    for name in ("a", "b"):
        await channel.request(DeclareQueue(channel.number, name, durable=True))
        await channel.request(Consume(channel.number, name, name))
    for number in range(20):
        for name in ("a", "b"):
            channel.send(Publish(channel.number, "", name, Message(b"%s%d" % (name.encode(), number))))
    for so_far in range(2, 41, 2):
        await until(lambda so_far=so_far: len(channel.deliveries) == so_far)  # type: ignore[misc]
        newest = channel.deliveries[-1].delivery
        settled = len(channel.deliveries)
        channel.send(Settle(channel.number, Settlement.ACCEPT, newest - 1, newest))
    assert most == 2
    assert len({bytes(each.message.body) for each in channel.deliveries}) == 40
    await channel.close()
    for name in ("a", "b"):
        assert not estate.broker.broker.virtual_host("/").queues[name].ready


async def test_a_consumer_that_does_not_acknowledge_gets_all(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(Consume(channel.number, "q", "tag", no_ack=True))
    for number in range(1_000):  # more than is sent ahead
        channel.send(Publish(channel.number, "", "q", Message(b"%d" % number)))
    await until(lambda: len(channel.deliveries) == 1_000)
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    await channel.close()
    assert not queue.ready


async def test_exclusive_queues_belong_to_one_client(estate: Estate) -> None:
    link = await estate.link()
    one, two = await estate.channel(link), await estate.channel(await estate.link())
    declared = await one.request(DeclareQueue(one.number, "", exclusive=True))
    assert isinstance(declared, Declared)
    await (await estate.channel(link)).request(DeclareQueue(2, declared.queue, passive=True))
    with pytest.raises(ResourceLocked):
        await two.request(Get(two.number, declared.queue))
    await link.close()
    three = await estate.channel(estate.links[1])
    with pytest.raises(NotFound):
        await three.request(DeclareQueue(three.number, declared.queue, passive=True))


async def test_exclusive_queues_are_gone_when_the_client_hears_why_its_connection_ends(estate: Estate) -> None:
    """It may connect again at once, and declare them."""
    link = await estate.link()
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "mine", exclusive=True))
    with pytest.raises(GatewayError, match="delayed"):
        await channel.request(DeclareExchange(channel.number, "later", "x-delayed-message"))
    assert link.ended is not None
    assert "mine" not in estate.broker.broker.virtual_host("/").queues
    again = await estate.channel(await estate.link())
    await again.request(DeclareQueue(again.number, "mine", exclusive=True))


async def test_a_rollback_takes_settlements_back(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(TxSelect(channel.number))
    plain = await estate.channel(estate.links[0])
    plain.send(Publish(plain.number, "", "q", Message(b"m")))
    await plain.close()
    got = await channel.request(Get(channel.number, "q"))
    assert isinstance(got, Got)
    channel.send(Settle(channel.number, Settlement.ACCEPT, got.delivery, got.delivery))
    await channel.request(TxRollback(channel.number))
    await channel.close()
    assert await seen(await estate.channel(estate.links[0]), "q") == [b"m"]


async def test_users_with_scopes(estate: Estate) -> None:
    front = estate.front
    admin = await estate.channel(await estate.link())
    for name in ("mine", "others"):
        await admin.request(DeclareQueue(admin.number, name, durable=True))
    url = f"amqp://limited:secret@127.0.0.1:{front.port}/?version=0-9-1"
    link = await Dialer("client", BrokerSettings(url=url)).open("client")
    estate.links.append(link)

    async def refused(*requests: object) -> str:
        channel = link.channel(Recorded)
        await channel.open()
        try:
            for request in requests:
                request.channel = channel.number  # type: ignore[attr-defined]
                await channel.request(request)  # type: ignore[arg-type]
        except GatewayError as error:
            return str(error)
        return ""

    assert not await refused(Get(0, "mine"))
    assert "needs the scope consume:upstream/others" in await refused(Get(0, "others"))
    assert "needs the scope broker:upstream" in await refused(DeclareQueue(0, "new", durable=True))
    assert not await refused(DeclareQueue(0, "reply", exclusive=True), Get(0, "reply"))
    channel = await estate.channel(link)
    channel.send(Publish(channel.number, "", "mine", Message(b"", Properties(user_id="guest"))))
    await until(lambda: channel.closed is not None)
    assert "user_id property set to 'guest' but authenticated user was 'limited'" in str(channel.closed)
    assert link.ended is None


async def test_a_wrong_password_and_a_virtual_host_that_is_not_there(estate: Estate) -> None:
    for url in ("guest:wrong@127.0.0.1:{}/", "guest:guest@127.0.0.1:{}/nowhere"):
        settings = BrokerSettings(url=f"amqp://{url.format(estate.front.port)}?version=0-9-1")
        with pytest.raises(GatewayError, match=r"Login was refused|nowhere"):
            await Dialer("client", settings).open("client")


async def test_what_is_given_back_in_a_transaction_comes_again_after_a_rollback(estate: Estate) -> None:
    """Qpid's client gives back before it rolls back, and expects the messages again."""
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    channel.send(Publish(channel.number, "", "q", Message(b"1")))
    channel.send(Publish(channel.number, "", "q", Message(b"2")))
    other = await estate.channel(estate.links[0])
    await other.request(TxSelect(other.number))
    (client,) = estate.front.clients.values()
    client.rules = replace(client.rules, transactional_release=False)
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    await until(lambda: queue.ready == 2)
    for end in (TxRollback, TxCommit):
        first, second = [await other.request(Get(other.number, "q")) for _ in range(2)]
        assert isinstance(first, Got)
        assert isinstance(second, Got)
        other.send(Settle(other.number, Settlement.RELEASE, first.delivery, second.delivery))
        await other.request(end(other.number))
        await until(lambda: queue.ready == 2)
    again = await other.request(Get(other.number, "q"))
    assert isinstance(again, Got)
    assert (again.redelivered, bytes(again.message.body)) == (True, b"1")


async def test_a_rollback_undoes_what_a_classic_client_has_given_back(estate: Estate) -> None:
    """A broker that is spoken to in 0-10 would give it back at once."""
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    for body in (b"1", b"2", b"3"):
        channel.send(Publish(channel.number, "", "q", Message(body)))
    other = await estate.channel(estate.links[0])
    await other.request(TxSelect(other.number))
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    await until(lambda: queue.ready == 3)
    deliveries = [(await other.request(Get(other.number, "q"))).delivery for _ in range(3)]
    other.send(Settle(other.number, Settlement.RELEASE, deliveries[0], deliveries[0]))
    other.send(Settle(other.number, Settlement.RELEASE, deliveries[1], deliveries[2]))
    await other.request(TxRollback(other.number))
    assert queue.ready == 0
    other.send(Settle(other.number, Settlement.ACCEPT, deliveries[0], deliveries[0]))
    other.send(Settle(other.number, Settlement.RELEASE, deliveries[1], deliveries[1]))
    await other.request(TxCommit(other.number))
    await until(lambda: queue.ready == 1)
    await other.close()
    assert await seen(channel, "q") == [b"2", b"3"]


@pytest.mark.parametrize("at_once", [False, True])
async def test_what_a_client_accepts_around_what_it_has_given_back(estate: Estate, at_once: bool) -> None:
    """It is not accepted with the others."""
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    for body in (b"1", b"2", b"3"):
        channel.send(Publish(channel.number, "", "q", Message(body)))
    other = await estate.channel(estate.links[0])
    await other.request(TxSelect(other.number))
    (client,) = estate.front.clients.values()
    client.rules = replace(client.rules, transactional_release=not at_once)
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    await until(lambda: queue.ready == 3)
    deliveries = [(await other.request(Get(other.number, "q"))).delivery for _ in range(3)]
    other.send(Settle(other.number, Settlement.RELEASE, deliveries[1], deliveries[1]))
    other.send(Settle(other.number, Settlement.ACCEPT, deliveries[0], deliveries[2]))
    await other.request(TxCommit(other.number))
    await other.close()
    assert await seen(channel, "q") == [b"2"]


@pytest.mark.parametrize("end", [TxRollback, TxCommit])
async def test_what_waits_for_a_consumer_goes_back_in_a_transaction(
    estate: Estate, end: type[TxRollback | TxCommit]
) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    other = await estate.channel(estate.links[0])
    await other.request(TxSelect(other.number))
    await other.request(Qos(other.number, 1, whole_channel=True))
    for tag in ("a", "b"):
        await other.request(Consume(other.number, "q", tag))
    for _ in range(2):
        channel.send(Publish(channel.number, "", "q", Message(b"m")))
    (client,) = estate.front.clients.values()
    consumers = client.channels[other.number].consumers
    await until(lambda: bool(other.deliveries and (consumers["a"].held or consumers["b"].held)))
    await other.request(Cancel(other.number, "a" if consumers["a"].held else "b"))
    await other.request(end(other.number))
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    await other.request(Cancel(other.number, *consumers))
    await until(lambda: queue.ready == 1)


async def test_what_a_client_accepts_around_what_has_waited_for_a_consumer(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    other = await estate.channel(estate.links[0])
    await other.request(TxSelect(other.number))
    await other.request(Qos(other.number, 2, whole_channel=True))
    for tag in ("a", "b"):
        await other.request(Consume(other.number, "q", tag))
    for number in range(4):
        channel.send(Publish(channel.number, "", "q", Message(b"%d" % number)))
    (client,) = estate.front.clients.values()
    consumers = client.channels[other.number].consumers
    await until(lambda: bool(len(other.deliveries) == 2 and consumers["a"].held and consumers["b"].held))
    third = min(consumers, key=lambda tag: consumers[tag].held[0].delivery)
    await other.request(Cancel(other.number, third))
    await other.request(Cancel(other.number, next(tag for tag in ("a", "b") if tag != third)))
    channel.send(Publish(channel.number, "", "q", Message(b"4")))
    got = await other.request(Get(other.number, "q"))
    first = other.deliveries[0].delivery
    other.send(Settle(other.number, Settlement.ACCEPT, first, got.delivery))
    await other.request(TxCommit(other.number))
    await other.close()
    assert len(await seen(channel, "q")) == 2


async def test_a_client_that_leaves_while_its_transaction_ends_holds_nothing_any_more(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    channel.send(Publish(channel.number, "", "q", Message(b"1")))
    channel.send(Publish(channel.number, "", "q", Message(b"2")))
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    await until(lambda: queue.ready == 2)
    link = await estate.link()
    other = await estate.channel(link)
    await other.request(TxSelect(other.number))
    first, _ = [await other.request(Get(other.number, "q")) for _ in range(2)]
    assert isinstance(first, Got)
    other.send(Settle(other.number, Settlement.ACCEPT, first.delivery, first.delivery))
    other.send(TxCommit(other.number))
    await link.close()
    await until(lambda: queue.ready == 1)
    assert await seen(channel, "q") == [b"2"]


async def test_recovering_without_requeue_is_rewritten_if_it_must_be(estate: Estate) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{estate.front.port}/?version=0-9-1"
    link = await Dialer("client", BrokerSettings(url=url, dialect="qpid")).open("client")
    estate.links.append(link)
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(Consume(channel.number, "q", "tag"))
    channel.send(Publish(channel.number, "", "q", Message(b"once more")))
    await until(lambda: len(channel.deliveries) == 1)
    for links in estate.front.pool.links.values():
        for shared in links:
            shared.use_rules({"recover": "on"})
    await channel.request(Recover(channel.number, requeue=False))
    await until(lambda: len(channel.deliveries) == 2)
    assert channel.deliveries[1].redelivered
    assert estate.front.counts.of("rewrites") == {"recover": 1}


async def test_a_selector_on_the_queue_of_the_client_is_tried_at_the_front(estate: Estate) -> None:
    link = await estate.link()
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "mine", exclusive=True))
    await channel.request(DeclareQueue(channel.number, "shared", durable=True))
    ((upstream,),) = estate.front.pool.links.values()
    upstream.target = replace(upstream.target, capabilities=replace(upstream.target.capabilities, browse=False))
    arguments: Any = {"x-filter-jms-selector": "color = 'red'"}
    await channel.request(Consume(channel.number, "mine", "tag", arguments=arguments))
    for number in range(600):  # more than is sent ahead
        headers: Any = {"color": "red" if number % 3 == 0 else "blue"}
        channel.send(Publish(channel.number, "", "mine", Message(b"%d" % number, Properties(headers=headers))))
    await until(lambda: len(channel.deliveries) == 200)
    assert [int(each.message.body) for each in channel.deliveries] == list(range(0, 600, 3))
    queue = estate.broker.broker.virtual_host("/").queues["mine"]
    first, newest = channel.deliveries[0].delivery, channel.deliveries[-1].delivery
    channel.send(Settle(channel.number, Settlement.ACCEPT, first, newest))
    await until(lambda: not queue.ready)
    wrong = await estate.channel(link)
    bad: Any = {"x-filter-jms-selector": "color = "}
    with pytest.raises(GatewayError, match="malformed"):
        await wrong.request(Consume(wrong.number, "mine", "other", arguments=bad))
    with pytest.raises(GatewayError, match="would ignore it"):
        await channel.request(Consume(channel.number, "shared", "other", arguments=arguments))


async def test_no_local_on_the_queue_of_the_client_is_kept_by_the_front(estate: Estate) -> None:
    """All clients share a connection to the broker, which cannot tell whose messages these are."""
    link = await estate.link()
    channel, other = await estate.channel(link), await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "mine", exclusive=True))
    await channel.request(Consume(channel.number, "mine", "tag", no_local=True))
    own = await estate.channel(link)
    await own.request(SelectConfirm(own.number))
    serial = own.send(Publish(own.number, "", "mine", Message(b"of this connection", Properties(headers={"a": 1}))))
    await until(lambda: serial in own.confirmed)
    other.send(Publish(other.number, "", "mine", Message(b"of another")))
    await until(lambda: bool(channel.deliveries))
    assert [bytes(each.message.body) for each in channel.deliveries] == [b"of another"]
    await channel.request(DeclareQueue(channel.number, "shared", durable=True))
    with pytest.raises(GatewayError, match="no_local"):
        await channel.request(Consume(channel.number, "shared", "other", no_local=True))


@pytest.mark.parametrize("version", ["0-8", "0-10"])
@pytest.mark.parametrize("estate", ["0-9-1"], indirect=True)
async def test_a_client_asks_for_bindings_that_the_broker_does_not_tell(estate: Estate, version: str) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{estate.front.port}/?version={version}"
    link = await Dialer("client", BrokerSettings(url=url, dialect="qpid" if version == "0-8" else "")).open("client")
    estate.links.append(link)
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    ((upstream,),) = estate.front.pool.links.values()
    upstream.target = replace(upstream.target, capabilities=replace(upstream.target.capabilities, query_binding=False))
    bound, is_not, gone = (True, True, True), (True, True, False), (True, False, False)
    for exchange, queue, key, known in (
        ("", "q", "q", bound),
        ("amq.direct", "q", "q", is_not),
        ("amq.direct", "none", "q", gone),
        ("none", "q", "q", (False, True, False)),
        # the questions for a durable subscription
        ("amq.topic", "q", "news", is_not),
        ("amq.topic", "none", None, gone),
        ("amq.topic", "q", None, bound),
        ("amq.topic", "q", "news", bound),
        ("amq.topic", "q", "news", is_not),
        ("amq.fanout", "q", None, is_not),
    ):
        found = await channel.request(QueryBinding(channel.number, exchange, queue, key))
        assert isinstance(found, BindingFound)
        assert (found.exchange_found, found.queue_found or not found.exchange_found, found.matched) == known


async def test_publishes_in_a_transaction_are_answered_before_its_end(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qpid's clients wait for an answer to each of them, and come to the commit then."""
    channel = await estate.channel(await estate.link("0-10"))
    (client,) = estate.front.clients.values()
    told: list[Any] = []
    tell = client.tell
    monkeypatch.setattr(client, "tell", lambda operation: (told.append(operation), tell(operation)))
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(TxSelect(channel.number))
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    for end, ready in ((TxRollback, 0), (TxCommit, 1)):
        told.clear()
        channel.send(Publish(channel.number, "", "q", Message(b"m")))
        await until(lambda: any(isinstance(operation, Confirmed) for operation in told))
        assert not queue.ready
        await channel.request(end(channel.number))
        assert queue.ready == ready
        assert sum(isinstance(operation, Confirmed) for operation in told) == 1


async def test_a_durable_subscription_outlives_its_client(estate: Estate) -> None:
    """Qpid's clients declare its queue durable and exclusive, and expect it to stay."""
    arguments: Any = {"x-filter-jms-selector": "color = 'red'"}
    url = "amqp://{}@127.0.0.1:" + f"{estate.front.port}/?version=0-9-1"

    async def subscribe(login: str = "guest:guest") -> Recorded:
        link = await Dialer("client", BrokerSettings(url=url.format(login))).open("client")
        estate.links.append(link)
        client = list(estate.front.clients.values())[-1]
        client.rules = replace(client.rules, durable_exclusive_stays=True)
        ((shared,),) = estate.front.pool.links.values()
        shared.target = replace(shared.target, capabilities=replace(shared.target.capabilities, browse=False))
        channel = await estate.channel(link)
        await channel.request(DeclareQueue(channel.number, "news", durable=True, exclusive=True))
        await channel.request(Consume(channel.number, "news", "tag", exclusive=True, arguments=arguments))
        return channel

    first = await subscribe()
    with pytest.raises(ResourceLocked):
        await subscribe()
    await first.link.close()
    other = await estate.channel(await estate.link())
    await other.request(SelectConfirm(other.number))
    for color in ("red", "blue", "red"):
        message = Message(color.encode(), Properties(headers={"color": color}))
        serial = other.send(Publish(other.number, "", "news", message))
        await until(lambda serial=serial: serial in other.confirmed)  # type: ignore[misc]
    with pytest.raises(GatewayError, match="needs the scope broker:upstream"):
        await subscribe("limited:secret")
    again = await subscribe()
    await until(lambda: len(again.deliveries) == 2)
    assert [bytes(each.message.body) for each in again.deliveries] == [b"red", b"red"]
    await again.request(DeleteQueue(again.number, "news"))
    assert "news" not in estate.broker.broker.virtual_host("/").queues


async def test_a_durable_exclusive_queue_goes_with_its_client_where_the_rule_is_off(estate: Estate) -> None:
    link = await estate.link("0-8")
    ((shared,),) = estate.front.pool.links.values()
    shared.use_rules({"durable_subscription": "off"})
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "news", durable=True, exclusive=True))
    await link.close()
    assert "news" not in estate.broker.broker.virtual_host("/").queues


async def test_credit_that_comes_behind_a_flush_is_not_taken_away(estate: Estate) -> None:
    """Qpid's JMS client sends it at once, and gets nothing more without it."""
    channel = await estate.channel(await estate.link("0-10"))
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(Consume(channel.number, "q", "tag"))
    (client,) = estate.front.clients.values()
    (front_channel,) = client.channels.values()
    consumer = front_channel.consumers["tag"]
    await until(lambda: consumer.is_running)
    number = front_channel.number
    client.host.begin()
    client.receive([Credit(number, "tag", flush=True), Credit(number, "tag", 5, None)], client.now)
    assert front_channel.flushing
    await until(lambda: not front_channel.flushing and not client.backlog)
    assert consumer.credit is not None
    assert consumer.credit.admits(1)


async def test_gets_whose_parts_are_read_in_several_turns_bring_everything(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 0-10 each is five commands. A consumer that began between them took the rest of the queue."""
    monkeypatch.setattr(credit, "START_AFTER", 0.0)
    monkeypatch.setattr(type(estate.front), "until", property(lambda front: 0.0))  # one command in each turn
    link = await estate.link("0-10")
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(SelectConfirm(channel.number))
    for number in range(30):
        serial = channel.send(Publish(channel.number, "", "q", Message(b"%d" % number)))
        await until(lambda serial=serial: serial in channel.confirmed)  # type: ignore[misc]
    found = await asyncio.gather(*(channel.request(Get(channel.number, "q")) for _ in range(30)))
    assert [bytes(each.message.body) for each in found if isinstance(each, Got)] == [b"%d" % n for n in range(30)]
    assert not any(each.redelivered for each in found)
