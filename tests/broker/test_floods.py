"""Too much of everything: what clients can make of it is bounded, refused with the specification's code, and gone when
they are. Every version's sessions, without sockets."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Acquire,
    BindQueue,
    Blocked,
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
    Deliver,
    Done,
    Failed,
    Flow,
    Get,
    Got,
    OpenChannel,
    Operation,
    Publish,
    PurgeQueue,
    Qos,
    Refused,
    SelectConfirm,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
    UnbindQueue,
    Unblocked,
)
from gateway.broker.broker import Broker
from gateway.broker.queues import BATCH, ENTRY_OVERHEAD, Entry
from gateway.broker.vhost import DEAD_LETTERS_AT_ONCE
from gateway.errors import StateError
from gateway.limits import BrokerLimits
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.v09.version import V0_9
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests.broker.clients import Client, ack, make_broker, publishing
from tests.broker.test_sessions import Peer, publish

VERSIONS = list(VERSIONS)
versions = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.value)
selecting = pytest.mark.parametrize(
    "version", [V0_9_1, V0_10], ids=lambda version: version.value
)  # basic.consume of 0-8 has no arguments
classic = pytest.mark.parametrize("version", [V0_8, V0_9, V0_9_1], ids=lambda version: version.value)
BLOCKS = (V0_9, V0_9_1)
"""The versions with connection.blocked, in RabbitMQ's dialect."""


def limited(**limits: Any) -> Broker:
    """A broker with these limits."""
    return make_broker(BrokerLimits(**{"ack_timeout": 0, **limits}))


def joined(broker: Broker, version: Version, *channels: int) -> Peer:
    """A client with these channels open."""
    peer = Peer(broker, version)
    peer(*(OpenChannel(number) for number in channels or (1,)))
    return peer


def code(told: list[Operation]) -> int:
    """The code with which a channel was closed."""
    (closed,) = [each for each in told if isinstance(each, ChannelClosed)]
    return closed.code


def refused(peer: Peer, *requests: Operation) -> int:
    """Make requests of which the last costs the channel: the code. It is opened again."""
    found = code(peer(*requests))
    peer(OpenChannel(requests[-1].channel))
    return found


def numbers(told: list[Operation]) -> list[int]:
    return [each.delivery for each in told if isinstance(each, Deliver)]


# ------------------------------------------------------------------------------------------ what is out


@versions
def test_without_prefetch_so_many_are_out(version: Version) -> None:
    peer = joined(limited(unacked=5), version)
    peer(DeclareQueue(1, "q"), *(publish("q") for _ in range(9)))
    out = numbers(peer(Consume(1, "q", "t")))
    assert len(out) == 5
    assert len(numbers(peer(Settle(1, Settlement.ACCEPT, out[0], out[0])))) == 1
    assert len(numbers(peer(Settle(1, Settlement.RELEASE, out[1], out[1])))) == 1


@versions
def test_without_prefetch_so_many_octets_are_out(version: Version) -> None:
    peer = joined(limited(unacked_octets=1_000), version)
    peer(DeclareQueue(1, "q"), *(publish("q", bytes(400)) for _ in range(4)), publish("q", bytes(5_000)))
    out = numbers(peer(Consume(1, "q", "t")))
    assert len(out) == 2
    assert len(numbers(peer(Settle(1, Settlement.ACCEPT, out[0], out[1])))) == 2
    # One goes however large it is, or it would never go.
    assert len(numbers(peer(Settle(1, Settlement.ACCEPT, out[1] + 1, out[1] + 2)))) == 1


@classic
def test_a_prefetch_does_not_raise_the_limit(version: Version) -> None:
    peer = joined(limited(unacked=5), version)
    peer(DeclareQueue(1, "q"), *(publish("q") for _ in range(9)), Qos(1, 60_000, whole_channel=True))
    assert len(numbers(peer(Consume(1, "q", "t")))) == 5


@versions
def test_all_consumers_of_a_channel_share_the_limit_and_what_becomes_free(version: Version) -> None:
    peer = joined(limited(unacked=4), version)
    for name in "ab":
        peer(DeclareQueue(1, name), *(publish(name) for _ in range(4)))
    out = numbers(peer(Consume(1, "a", "of a")))
    assert len(out) == 4
    assert not numbers(peer(Consume(1, "b", "of b")))
    assert len(numbers(peer(Settle(1, Settlement.ACCEPT, out[0], out[-1])))) == 4


@classic
def test_messages_that_were_fetched_count_too(version: Version) -> None:
    peer = joined(limited(unacked=2), version)
    peer(DeclareQueue(1, "q"), *(publish("q") for _ in range(3)))
    for _ in range(2):
        assert isinstance(peer(Get(1, "q"))[0], Got)
    assert isinstance(peer(Get(1, "q", True))[0], Got)
    assert refused(peer, Get(1, "q")) == 506


@versions
def test_who_does_not_acknowledge_in_time_loses_the_channel(version: Version) -> None:
    """What was out goes back; who acknowledges in time, but always has something out, is not meant."""
    broker = limited(ack_timeout=160)
    peer = joined(broker, version, 1, 2)
    peer(DeclareQueue(1, "q"), publish("q", b"x"), DeclareQueue(2, "busy"))
    peer(Consume(2, "busy", "b"))
    assert len(numbers(peer(Consume(1, "q", "t")))) == 1
    out: list[int] = []
    for _ in range(15):
        peer.now += 10
        out += numbers(peer(publish("busy"), publish("busy")))
        if len(out) > 6:
            peer(Settle(2, Settlement.ACCEPT, out[0], out[1]))
            del out[:2]
        assert broker.next_timeout() is not None
        broker.handle_timeout(peer.now)
        assert not [each for each in peer.pump() if isinstance(each, ChannelClosed)]
    told: list[Operation] = []
    for _ in range(3):
        peer.now += 10
        if len(out) > 2:
            peer(Settle(2, Settlement.ACCEPT, out[0], out[1]))
            del out[:2]
        broker.handle_timeout(peer.now)
        told += peer.pump()
    (closed,) = [each for each in told if isinstance(each, ChannelClosed)]
    assert (closed.channel, closed.code) == (1, 406)
    assert "delivery acknowledgement on channel 1 timed out. Timeout value used: 160000 ms" in closed.text
    peer(OpenChannel(1))
    (again,) = [each for each in peer(Consume(1, "q", "t")) if isinstance(each, Deliver)]
    assert again.redelivered
    assert peer.count("busy") == 0


@classic
def test_an_acknowledgement_that_is_not_committed_is_none(version: Version) -> None:
    broker = limited(ack_timeout=160)
    peer = joined(broker, version)
    peer(DeclareQueue(1, "q"), publish("q"), publish("q"), TxSelect(1))
    out = numbers(peer(Consume(1, "q", "t")))
    peer(Settle(1, Settlement.ACCEPT, out[0], out[1]))
    for _ in range(18):
        peer.now += 10
        broker.handle_timeout(peer.now)
    assert code(peer.pump()) == 406


def test_nobody_looks_where_no_channel_is_open() -> None:
    broker = limited(ack_timeout=160)
    peer = joined(broker, V0_9_1)
    peer(CloseChannel(1))
    broker.handle_timeout(peer.now + 20)
    assert broker.next_timeout() is None


# ---------------------------------------------------------------------------- channels and what they declare


@versions
def test_channels_of_all_clients(version: Version) -> None:
    broker = limited(channels=2)
    first, second = joined(broker, version, 1, 2), Peer(broker, version)
    assert code(second(OpenChannel(1))) == 506
    first(CloseChannel(1))
    assert isinstance(second(OpenChannel(1))[0], Done)
    first.broker.disconnect(first.connection, 0)
    second.broker.disconnect(second.connection, 0)
    assert broker.channels == 0


@versions
def test_channels_opened_and_closed_by_the_ten_thousand(version: Version) -> None:
    """Nothing is left of any of them: as many objects as before."""
    broker = make_broker()
    peer = joined(broker, version, 1)
    peer(CloseChannel(1))
    opening = peer.client.send(OpenChannel(1), peer.now), b"".join(peer.client.data_to_send())
    peer.connection.session.receive_data(b"", peer.now)
    octets = opening[1] + _closing(version)

    def storm(count: int) -> None:
        for _ in range(count // 100):
            broker.receive(peer.connection, peer.server.receive_data(octets * 100, peer.now), peer.now)
            broker.flushed(peer.connection)
            peer.server.data_to_send()
        gc.collect()

    storm(1_000)
    before = len(gc.get_objects())
    storm(20_000)
    assert not peer.connection.channels
    assert not peer.server.closed
    assert len(gc.get_objects()) - before < 200
    assert broker.channels == 0


def _closing(version: Version) -> bytes:
    """How a client closes its channel, once it is open."""
    other = Peer(make_broker(), version)
    other(OpenChannel(1))
    other.client.send(CloseChannel(1), other.now)
    return b"".join(other.client.data_to_send())


JMS_SELECTOR = {"x-filter-jms-selector": "x = 1"}
FLOODS: dict[str, tuple[dict[str, int], list[Operation], Operation, Operation]] = {
    "queues": (
        {"queues": 2},
        [DeclareQueue(1, "a"), DeclareQueue(1, "b")],
        DeclareQueue(1, "c"),
        DeleteQueue(1, "a"),
    ),
    "exclusive queues": (
        {"queues": 2},
        [DeclareQueue(1, "a", exclusive=True), DeclareQueue(1, "b", exclusive=True)],
        DeclareQueue(1, "c", exclusive=True),
        DeleteQueue(1, "a"),
    ),
    "exchanges": (
        {"exchanges": 7},  # those that are always there
        [DeclareExchange(1, "a")],
        DeclareExchange(1, "b"),
        DeleteExchange(1, "a"),
    ),
    "bindings": (
        {"bindings": 1},
        [DeclareQueue(1, "a"), BindQueue(1, "a", "amq.direct", "1")],
        BindQueue(1, "a", "amq.direct", "2"),
        UnbindQueue(1, "a", "amq.direct", "1"),
    ),
    "bindings that every message is compared with": (
        {"tried_bindings": 1},
        [DeclareQueue(1, "a"), BindQueue(1, "a", "amq.headers", "1", {"x-match": "all"})],
        BindQueue(1, "a", "amq.headers", "2", {"x-match": "all"}),
        UnbindQueue(1, "a", "amq.headers", "1", {"x-match": "all"}),
    ),
    "bindings with a selector": (
        {"tried_bindings": 1},
        [DeclareQueue(1, "a"), BindQueue(1, "a", "amq.topic", "1", {"x-filter-jms-selector": "x = 1"})],
        BindQueue(1, "a", "amq.topic", "2", {"x-filter-jms-selector": "x = 1"}),
        UnbindQueue(1, "a", "amq.topic", "1", {"x-filter-jms-selector": "x = 1"}),
    ),
    "long names and arguments": (
        {"declared_octets": 10_000},
        [DeclareQueue(1, "a" * 200), BindQueue(1, "a" * 200, "amq.direct", "1", {"x": "x" * 3_000})],
        BindQueue(1, "a" * 200, "amq.direct", "2", {"x": "x" * 3_000}),
        UnbindQueue(1, "a" * 200, "amq.direct", "1", {"x": "x" * 3_000}),
    ),
    "priorities of queues": (
        {"declared_octets": 500_000},
        [DeclareQueue(1, f"q{number}", arguments={"x-max-priority": 255}) for number in range(2)],
        DeclareQueue(1, "c", arguments={"x-max-priority": 255}),
        DeleteQueue(1, "q0"),
    ),
    "words of topic patterns": (
        {"declared_octets": 100_000},
        [DeclareQueue(1, "a"), *(BindQueue(1, "a", "amq.topic", f"{number}{'.*' * 126}") for number in range(2))],
        BindQueue(1, "a", "amq.topic", f"2{'.*' * 126}"),
        UnbindQueue(1, "a", "amq.topic", f"0{'.*' * 126}"),
    ),
    "words of topic patterns with a selector": (
        {"declared_octets": 100_000},
        [
            DeclareQueue(1, "a"),
            *(BindQueue(1, "a", "amq.topic", f"{number}{'.*' * 126}", JMS_SELECTOR) for number in range(2)),
        ],
        BindQueue(1, "a", "amq.topic", f"2{'.*' * 126}", JMS_SELECTOR),
        UnbindQueue(1, "a", "amq.topic", f"0{'.*' * 126}", JMS_SELECTOR),
    ),
}
"""What there may be too much of -> limits, what is within them, one more, and what makes room for it."""


@versions
@pytest.mark.parametrize("flood", FLOODS)
def test_one_more_is_refused(flood: str, version: Version) -> None:
    limits, within, more, less = FLOODS[flood]
    broker = limited(**limits)
    peer = joined(broker, version, 1, 2)
    told = [each for request in within for each in peer(request)]
    assert not [each for each in told if isinstance(each, ChannelClosed)], told
    more.channel = 2  # type: ignore[misc]
    assert refused(peer, more) == 506
    assert not [each for each in peer(*within) if isinstance(each, ChannelClosed)], "declared again"
    peer(less)
    assert not [each for each in peer(more) if isinstance(each, ChannelClosed)]


@versions
def test_consumers(version: Version) -> None:
    peer = joined(limited(consumers=2), version, 1, 2)
    peer(DeclareQueue(1, "q"), Consume(1, "q", "a"), Consume(1, "q", "b"))
    assert refused(peer, Consume(2, "q", "c")) == 506
    peer(Cancel(1, "a"))
    assert len(peer(Consume(2, "q", "c"))) == 1


@selecting
def test_consumers_that_select(version: Version) -> None:
    peer = joined(limited(selective_consumers=1), version, 1, 2)
    some = {"x-filter-jms-selector": "x = 1"}
    peer(DeclareQueue(1, "q"), Consume(1, "q", "a", arguments=some), Consume(1, "q", "b"))
    assert refused(peer, Consume(2, "q", "c", arguments=some)) == 506
    peer(Cancel(1, "a"))
    assert len(peer(Consume(2, "q", "c", arguments=some))) == 1


@versions
def test_names_are_not_kept(version: Version) -> None:
    """Declared, bound, consumed from and deleted, a thousand times with other names: nothing remains."""
    broker = make_broker()
    peer = joined(broker, version)
    vhost = broker.virtual_host("/")
    some = {} if version is V0_8 else {"x-filter-jms-selector": "x = 1"}

    def use(count: int) -> None:
        for number in range(count):
            name = f"{count}-{number}"
            peer(
                DeclareQueue(1, name, exclusive=number % 2 == 0, arguments={"x-expires": 60_000}),
                DeclareExchange(1, name, "topic"),
                BindQueue(1, name, name, name),
                Consume(1, name, name, arguments=some),
                publish(name),
                DeleteExchange(1, name),
                DeleteQueue(1, name),
                Cancel(1, name) if version is V0_10 else PurgeQueue(1, ""),
            )
            peer(OpenChannel(1)) if not peer.connection.channels else None

    use(50)
    gc.collect()
    before = len(gc.get_objects())
    use(500)
    gc.collect()
    assert len(gc.get_objects()) - before < 1_500
    assert (vhost._declared, vhost.consumers, vhost._bindings, broker.memory.used) == (0, 0, 0, 0)


def test_subscriptions_that_the_server_has_ended_are_forgotten() -> None:
    """0-10 has no word for that, so the client may still name them; the latest of them."""
    peer = joined(make_broker(), V0_10)
    for number in range(1_200):
        peer.broker.receive(peer.connection, [DeclareQueue(1, "q", serial=0)], peer.now)
        peer.client.send(Consume(1, "q", f"tag {number}"), peer.now)
        peer.broker.receive(
            peer.connection, peer.server.receive_data(b"".join(peer.client.data_to_send()), peer.now), peer.now
        )
        peer.broker.virtual_host("/").drop_queue(peer.broker.virtual_host("/").queues["q"], peer.now)
    (channel,) = peer.server.channels.values()  # type: ignore[attr-defined]
    assert len(channel.destinations) == 1_024


# --------------------------------------------------------------------------------------- memory for messages


def full_queue(version: Version, confirms: bool) -> tuple[Broker, Peer, int]:
    """A queue without consumers, into which a client publishes 2 MB where there is memory for 1 MB; what of it was
    confirmed."""
    broker = make_broker(queue_memory=1 << 20)
    peer = joined(broker, version)
    peer(DeclareQueue(1, "q"))
    if confirms:
        peer(SelectConfirm(1))
    confirmed = 0
    for _ in range(40):
        try:
            told = peer(publish("q", bytes(50_000)))
        except StateError:
            assert version is V0_10  # whose message.stop our client does not ignore
            break
        confirmed += sum(each.last - each.first + 1 for each in told if isinstance(each, Confirmed))
        assert broker.memory.used <= broker.memory.limit
    return broker, peer, confirmed


@versions
def test_nothing_that_was_confirmed_is_lost_when_the_memory_is_full(version: Version) -> None:
    broker, peer, confirmed = full_queue(version, confirms=True)
    assert 15 < confirmed < 40
    other = joined(broker, version)
    assert other.count("q") == confirmed
    for _ in range(confirmed):
        assert isinstance(other(Get(1, "q", True))[0], Got)
    assert broker.memory.used == 0
    peer.pump()
    assert [type(each) for each in peer(publish("q", b"x"))] == [Confirmed]


@versions
def test_publishers_are_asked_to_stop_before_it_is_too_late(version: Version) -> None:
    """connection.blocked, channel.flow or message.stop: before anything is refused, and once; and when there is room,
    to go on."""
    broker = make_broker(queue_memory=1 << 20)
    peer = joined(broker, version)
    peer(DeclareQueue(1, "q"), SelectConfirm(1)) if version is not V0_10 else peer(DeclareQueue(1, "q"))
    asked: list[Operation] = []
    refusals = 0
    for _ in range(19):
        told = peer(publish("q", bytes(50_000)))
        asked += [each for each in told if isinstance(each, (Blocked, Flow))]
        refusals += sum(isinstance(each, Refused) for each in told)
    assert not refusals
    stopped = Blocked(0, "low on memory") if version in BLOCKS else Flow(1, False)
    assert asked == [stopped]
    other = joined(broker, version)
    other(PurgeQueue(1, "q"))
    resumed = [each for each in peer.pump() if isinstance(each, (Unblocked, Flow))]
    assert resumed == [Unblocked(0) if version in BLOCKS else Flow(1, True)]


@classic
def test_a_publisher_without_confirms_waits(version: Version) -> None:
    """Nobody could be told that a message is refused. It is not read from, and nothing is lost."""
    broker, peer, _ = full_queue(version, confirms=False)
    assert peer.connection.waits
    assert peer.connection.backlog
    waiting = len(peer.connection.backlog)
    other = joined(broker, version)
    before = other.count("q")
    assert before + waiting == 40
    for _ in range(before):
        other(Get(1, "q", True))
        peer.pump()
    assert not peer.connection.waits
    assert other.count("q") == waiting
    assert not peer.connection.backlog


@classic
def test_who_holds_deliveries_does_not_wait(version: Version) -> None:
    """It would not be heard to give them back. Nor does a message wait that never fits."""
    broker = make_broker(queue_memory=1 << 20)
    peer = joined(broker, version, 1, 2)
    peer(DeclareQueue(2, "q"), publish("q", bytes(500_000)))
    assert len(numbers(peer(Consume(2, "q", "t")))) == 1
    peer(DeclareQueue(2, "r"), Publish(2, "", "r", Message(bytes(300_000))))
    more = Publish(1, "", "r", Message(bytes(200_000)))
    assert not [each for each in peer(more) if isinstance(each, ChannelClosed)]
    assert code(peer(more)) == 506
    other = joined(broker, version)
    assert code(other(publish("r", bytes(1_100_000)))) == 506
    assert not other.connection.waits


@classic
def test_who_waits_may_go(version: Version) -> None:
    broker, peer, _ = full_queue(version, confirms=False)
    broker.disconnect(peer.connection, peer.now)
    joined(broker, version)(PurgeQueue(1, "q"))
    assert broker.memory.used == 0
    assert not broker._waiting


@versions
def test_a_transaction_is_bounded(version: Version) -> None:
    """It is refused what there is no memory for, and rollback gives all of it back."""
    broker = make_broker(queue_memory=1 << 20)
    peer = joined(broker, version)
    peer(DeclareQueue(1, "q"), TxSelect(1))
    most = 0
    told: list[Operation] = []
    while version is not V0_10 or Flow(1, False) not in told:
        told = peer(publish("q", bytes(50_000)))
        most = max(most, broker.memory.used)
        if any(isinstance(each, ChannelClosed) for each in told):
            assert code(told) == 506
            break
    else:
        peer(TxRollback(1))
    assert 900_000 < most < 1 << 20
    assert broker.memory.used == 0


@classic
def test_settlements_of_a_transaction_count_as_out(version: Version) -> None:
    peer = joined(limited(unacked=3), version)
    peer(DeclareQueue(1, "q"), *(publish("q") for _ in range(9)), TxSelect(1))
    out = numbers(peer(Consume(1, "q", "t")))
    assert len(out) == 3
    assert not numbers(peer(Settle(1, Settlement.ACCEPT, out[0], out[-1])))
    assert len(numbers(peer(TxCommit(1)))) == 3


@versions
def test_properties_are_kept_as_octets(version: Version) -> None:
    """Decoded, a table of empty values takes thirty times as much."""
    broker = make_broker()
    peer = joined(broker, version)
    peer(DeclareQueue(1, "q"), DeclareExchange(1, "h", "headers"), BindQueue(1, "q", "h", "", {"x-match": "all"}))
    headers = {f"{number:x}": True for number in range(1_000)}
    peer(publish("q", headers=headers), publish("", b"", "h", headers=headers))
    peer(Consume(1, "q", "s", arguments={} if version is V0_8 else {"x-filter-jms-selector": "a = 'no'"}))
    peer(CloseChannel(1))
    found = [entry.envelope.message for line in broker.virtual_host("/").queues["q"].clear() for entry in line]
    assert len(found) == 2
    for message in found:
        assert message._properties is None
        assert message.properties.headers is not None


def test_each_place_of_a_message_costs() -> None:
    """Bound to ten thousand queues, one small message is ten thousand entries."""
    client = Client(make_broker())
    for number in range(100):
        client(DeclareQueue(1, f"q{number}"), BindQueue(1, f"q{number}", "amq.fanout"))
    client.publish("", b"x", "amq.fanout")
    assert client.broker.memory.used > 99 * ENTRY_OVERHEAD
    for number in range(100):
        client(PurgeQueue(1, f"q{number}"))
    assert client.broker.memory.used == 0


def test_what_a_browser_is_shown_costs_until_it_says_so() -> None:
    """A thousand browsers that say nothing are shown no more when the memory is full, and go on when it is not."""
    client = Client(make_broker(queue_memory=1 << 20), V0_10)
    client(DeclareQueue(1, "q"))
    for _ in range(900):
        client(publishing("q"))
    used = client.broker.memory.used
    shown = 0
    for number in range(3):
        client(Consume(1, "q", f"b{number}", acquired=False, credit=True))
        shown += len(numbers(client(Credit(1, f"b{number}", None, None))))
        client(Flow(1, True))
    assert shown < 2_700
    assert client.broker.memory.used - used == shown * ENTRY_OVERHEAD
    while more := len(numbers(client(ack(1, shown)))):
        assert client.broker.memory.used <= client.broker.memory.limit + ENTRY_OVERHEAD
        shown += more
    assert shown == 2_700
    assert client.broker.memory.used == used
    client(Acquire(1, ((1, 9),)))


# ------------------------------------------------------------------------------------------ long queues


def long_queue(count: int, **arguments: Any) -> Client:
    client = Client(make_broker(queue_memory=1 << 30))
    client(DeclareQueue(1, "q", arguments=arguments))
    for _ in range(count // 500):
        client(*(publishing("q") for _ in range(500)))
    assert client.broker.virtual_host("/").queues["q"].ready == count
    return client


@pytest.mark.parametrize("request_", [PurgeQueue(1, "q"), DeleteQueue(1, "q")], ids=lambda each: type(each).__name__)
def test_a_long_queue_is_dropped_bit_by_bit(request_: Operation) -> None:
    """It is empty at once; its memory comes back a batch at a time, and others are served in between."""
    client = long_queue(5_000)
    broker = client.broker
    used = broker.memory.used
    client(request_)
    assert used - broker.memory.used <= BATCH * used // 5_000
    assert client.get("q") is None if isinstance(request_, PurgeQueue) else True
    turns = 0
    while broker.memory.used:
        assert broker.next_timeout() == 0.0
        before = broker.memory.used
        broker.handle_timeout(0.0)
        assert before - broker.memory.used <= BATCH * used // 5_000
        turns += 1
        if turns == 1:
            client(DeclareQueue(1, "other"), PurgeQueue(1, "other"))
    assert turns == 4
    assert broker.next_timeout() is None


def test_a_long_queue_expires_bit_by_bit() -> None:
    client = long_queue(5_000, **{"x-message-ttl": 1_000})
    broker, queue = client.broker, client.broker.virtual_host("/").queues["q"]
    turns = 0
    while queue.ready:
        before = queue.ready
        broker.handle_timeout(10.0)
        assert before - queue.ready <= BATCH
        turns += 1
    assert turns == 5
    while broker.next_timeout() is not None:
        broker.handle_timeout(10.0)
    assert broker.memory.used == 0


def test_a_browser_looks_at_a_long_queue_bit_by_bit() -> None:
    """What it has in mind of the queue is bounded; and it sees everything, once, in order."""
    client = long_queue(5_000)
    queue = client.broker.virtual_host("/").queues["q"]
    client.session.version = V0_10
    client(Consume(1, "q", "b", acquired=False, credit=True))
    consumer = client.connection.channels[1].consumers["b"]
    seen: list[int] = []
    for _ in range(50):
        client.broker.receive(client.connection, [Credit(1, "b", 100, None)], 0.0)
        client.broker.resume(client.connection, 0.0)
        assert consumer.cursor is not None
        assert len(consumer.cursor.unseen) <= BATCH
        seen += numbers(client())
    assert seen == list(range(1, 5_001))
    assert queue.ready == 5_000
    client(Credit(1, "b", 9, None))
    assert len(numbers(client(*(publishing("q") for _ in range(4))))) == 4


def test_queues_that_feed_each_other_do_not_hold_up_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dead letter comes to all the others and dies there at once: n factorial of them. They are buried a few at
    a time, and what dead-lettering may make of one message is bounded."""
    client = Client(make_broker())
    broker, vhost = client.broker, client.broker.virtual_host("/")
    for number in range(12):
        arguments = {"x-max-length": 0, "x-dead-letter-exchange": "amq.fanout"}
        client(DeclareQueue(1, f"q{number}", arguments=arguments), BindQueue(1, f"q{number}", "amq.fanout"))
    other = Client(broker)
    buried: list[Entry] = []
    bury = vhost._dead_letter
    monkeypatch.setattr(vhost, "_dead_letter", lambda entry, *rest: (buried.append(entry), bury(entry, *rest)))
    client.publish("", b"x", "amq.fanout")
    assert len(buried) <= DEAD_LETTERS_AT_ONCE
    total = len(buried)
    while broker.next_timeout() is not None:
        buried.clear()
        broker.handle_timeout(0.0)
        assert len(buried) <= DEAD_LETTERS_AT_ONCE
        total += len(buried)
        assert isinstance(other.one(DeclareQueue(1, "mine"), Operation), Operation)
    assert total < 12 * (broker.limits.dead_letter_copies + 12)
    assert vhost.dropped
    assert broker.memory.used == 0


def test_a_message_that_fans_out_again_and_again_does_not_fill_the_memory() -> None:
    """Sixty queues whose messages expire into the exchange that feeds them."""
    client = Client(make_broker())
    broker = client.broker
    for number in range(60):
        arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "amq.fanout"}
        client(DeclareQueue(1, f"q{number}", arguments=arguments), BindQueue(1, f"q{number}", "amq.fanout"))
    client.publish("", bytes(10), "amq.fanout")
    most, now = 0, 0.0
    while broker.next_timeout() is not None:
        now += 0.002
        broker.handle_timeout(now)
        most = max(most, broker.memory.used)
        assert now < 10
    assert most < 4 << 20
    assert broker.memory.used == 0


def test_a_dead_letter_goes_to_as_many_queues_as_it_may() -> None:
    """Not to some of them: to all, or to none. Each death of its own has its way."""
    client = Client(limited(dead_letter_copies=2))
    client(DeclareQueue(1, "q", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "amq.fanout"}))
    for name in ("a", "b", "c"):
        client(DeclareQueue(1, name), BindQueue(1, name, "amq.fanout"))
    client.publish("q", b"1")
    client.broker.handle_timeout(1.0)
    assert [client.drain(name) for name in ("a", "b", "c")] == [[b"1"]] * 3
    client(DeclareQueue(1, "d"), BindQueue(1, "d", "amq.fanout"))
    client.publish("q", b"2")
    client.broker.handle_timeout(2.0)
    assert [client.drain(name) for name in ("a", "b", "c", "d")] == [[]] * 4
    assert client.broker.virtual_host("/").dropped == 1
    assert client.broker.memory.used == 0


def test_a_retry_that_a_consumer_asks_for_goes_on_for_ever() -> None:
    """What was rejected, waits and comes again is no cascade."""
    client = Client(make_broker())
    client(DeclareQueue(1, "work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}))
    waiting = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    client(DeclareQueue(1, "wait", arguments=waiting))
    client.publish("work", b"x")
    for number in range(1, 300):
        assert client.get("work", no_ack=False) is not None
        client(ack(number, settlement=Settlement.REJECT))
        client.broker.handle_timeout(float(number))
    assert client.drain("work") == [b"x"]


# -------------------------------------------------------------------------------------------------- 0-10


def test_credit_without_measure() -> None:
    """Unlimited, as much as a number holds, and again and again: what is not accepted is bounded all the same."""
    client = Client(limited(unacked=10), V0_10)
    client(DeclareQueue(1, "q"), *(publishing("q") for _ in range(30)))
    client(Consume(1, "q", "t", credit=True))
    told = client(*(Credit(1, "t", amount, None) for amount in (1 << 32, (1 << 32) - 2, None, 5)))
    assert len(numbers(told)) == 10
    assert len(numbers(client(ack(1, 3)))) == 3
    assert not numbers(client(Credit(1, "t", 1 << 32, 1 << 32)))


def test_who_never_says_completed_loses_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """In window mode each delivery is remembered until then."""
    monkeypatch.setattr("gateway.v010.server_channel.WINDOW_MAX", 20)
    broker = make_broker()
    peer = joined(broker, V0_10)
    peer(DeclareQueue(1, "q"), *(publish("q") for _ in range(30)))
    from gateway.v010 import commands as c

    (channel,) = peer.client.channels.values()  # type: ignore[attr-defined]
    channel.write(c.MessageSubscribe("q", "t", accept_mode=1))
    channel.write(c.MessageFlow("t", c.MESSAGES, (1 << 32) - 2))
    channel.write(c.MessageFlow("t", c.OCTETS, c.UNLIMITED))
    broker.receive(peer.connection, peer.server.receive_data(b"".join(peer.client.data_to_send()), 0.0), 0.0)
    octets = b"".join(peer.server.data_to_send())
    assert b"20 deliveries are not complete" in octets
    assert not peer.connection.channels
    assert broker.virtual_host("/").queues["q"].ready == 10


@versions
def test_a_channel_that_failed_is_free_again(version: Version) -> None:
    """A failure does not cost the number, nor the name of the session."""
    peer = joined(make_broker(), version)
    for _ in range(300):
        told = peer(PurgeQueue(1, "none"))
        assert any(isinstance(each, (Failed, ChannelClosed)) for each in told)
        peer(OpenChannel(1))
    assert len(peer.connection.channels) == 1
    assert peer.broker.channels == 1


def test_no_message_is_too_many() -> None:
    """A prefetch of 65,535 and one message larger than all octets that may be out: it goes."""
    client = Client(limited(unacked_octets=10))
    client(DeclareQueue(1, "q"), Consume(1, "q", "t"))
    client(Publish(1, "", "q", Message(bytes(100), Properties())))
    assert client.connection.channels[1].window.count == 1
