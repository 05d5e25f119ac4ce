"""The embedded broker under hostile clients: its core, real sessions in the server role, no sockets.

A hostile client brings the broker into a state by correct octets, then sends those of the case. A healthy one, with
a queue and a consumer of its own on the same broker, must find everything as it was, and nothing of the hostile one
may be left when that has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from gateway.amqp import operations as o
from gateway.broker.broker import Broker
from gateway.config import EmbeddedSettings
from gateway.errors import Unsupported
from gateway.session import ServerConfig, Session, Version
from gateway.versions import client_session, server_session
from tests.broker.clients import Client
from tests.fuzz.oracle import Broken, Case
from tests.fuzz.states import LARGE, LIMITS, NOW, SMALL
from tests.pair import CLIENT

HEALTHY: Final = "healthy"
"""The queue of the neighbour. It is exclusive: the hostile client cannot reach it."""
MEMORY: Final = 1 << 20
FACTOR: Final = 64
XID: Final = o.Xid(1, b"global", b"branch")
GIVEN_UP: Final = 5_000.0
"""After so many seconds nothing that a client has left behind is kept, but for what is prepared."""


class Hosted:
    """A session of a client on a broker, as the listener runs it."""

    def __init__(self, broker: Broker, version: Version) -> None:
        self.broker = broker
        config = ServerConfig(
            authenticate=broker.authenticate,
            open_virtual_host=broker.open_virtual_host,
            properties={"product": "fuzz (qpid)"},
            limits=LIMITS,
            random_octets=lambda size: bytes(size),
            wall_clock=lambda: 1_700_000_000.0,
            session_timeout=60,
            resume_session=broker.resume_session,
        )
        self.session: Session = server_session(version, config)
        self.connection = broker.connect(self.session, lambda: None)
        self.now = NOW
        self.sent = 0

    def feed(self, octets: bytes) -> bytes:
        """Octets of the client; what it is told."""
        self.broker.receive(self.connection, self.session.receive_data(octets, self.now), self.now)
        return self.flush()

    def flush(self) -> bytes:
        """What waits for the client."""
        self.broker.flushed(self.connection)
        told = b"".join(self.session.data_to_send())
        self.sent += len(told)
        if self.connection.backlog:
            self.broker.resume(self.connection, self.now)
        return told

    def end(self) -> None:
        """The stream ends."""
        self.broker.receive(self.connection, self.session.receive_eof(self.now), self.now)
        self.broker.disconnect(self.connection, self.now)


def _new_broker() -> Broker:
    numbers = iter(range(1 << 30))
    return Broker(
        EmbeddedSettings(queue_memory=1 << 22),
        random_octets=lambda size: next(numbers).to_bytes(size, "big"),
        wall_clock=lambda: 1_700_000_000.0,
    )


def _declare(channel: int = 1) -> list[o.Operation]:
    return [
        o.DeclareQueue(channel, "q"),
        o.DeclareExchange(channel, "e", "topic"),
        o.BindQueue(channel, "q", "e", "k"),
        o.BindQueue(channel, "q", "amq.match", "", {"x-match": "any", "a": 1}),
    ]


STATES: Final[Mapping[str, Callable[[], list[o.Operation]]]] = {
    "open": list,
    "channel": lambda: [o.OpenChannel(1), o.OpenChannel(2)],
    "confirms": lambda: [o.OpenChannel(1), o.OpenChannel(2), o.SelectConfirm(1), *_declare()],
    "consuming": lambda: [
        o.OpenChannel(1), o.OpenChannel(2), *_declare(), *[o.Publish(1, "e", "k", SMALL) for _ in range(5)],
        o.Publish(1, "e", "k", LARGE), o.Qos(2, prefetch_count=3), o.Consume(2, "q", "tag"),
    ],
    "transaction": lambda: [
        o.OpenChannel(1), o.OpenChannel(2), *_declare(), o.TxSelect(1), o.Publish(1, "e", "k", SMALL),
    ],
    "branch": lambda: [
        o.OpenChannel(1), o.OpenChannel(2), *_declare(), o.Publish(1, "e", "k", SMALL), o.DtxSelect(1),
        o.DtxStart(1, XID), o.Publish(1, "e", "k", SMALL), o.DtxEnd(1, XID, suspend=True), o.Get(1, "q"),
    ],
    "lasting": lambda: [
        o.OpenChannel(1, 60), o.OpenChannel(2), *_declare(), o.Publish(1, "e", "k", SMALL), o.Qos(1, 3),
        o.Consume(1, "q", "tag"),
    ],
}  # fmt: skip
"""What the hostile client did before, correctly; the broker answers."""


@cache
def tape(version: Version, state: str) -> tuple[bytes, ...]:
    """The octets by which a client comes into a state."""
    hosted = Hosted(_new_broker(), version)
    client = client_session(version, CLIENT)
    said: list[bytes] = []

    def talk() -> None:
        while octets := b"".join(client.data_to_send()):
            said.append(octets)
            client.receive_data(hosted.feed(octets), NOW)

    talk()
    for request in STATES[state]():
        try:
            client.send(request, NOW)
        except Unsupported:
            continue  # only 0-10 has branches
        talk()
    return tuple(said)


def play(case: Case) -> str:
    """Play a case; how the hostile connection ended. Raises :class:`~tests.fuzz.oracle.Broken`."""
    broker = _new_broker()
    healthy = Client(broker)
    healthy(o.DeclareQueue(1, HEALTHY, exclusive=True))
    healthy(o.SelectConfirm(1))
    hostile = Hosted(broker, case.version)
    for octets in tape(case.version, case.state):
        hostile.feed(octets)
    hostile.sent = 0
    for chunk in case.chunks:
        hostile.feed(chunk)
        _check_neighbour(healthy)
    if hostile.sent > MEMORY + FACTOR * case.size:
        raise Broken(f"{case.size} octets made the broker send {hostile.sent}")
    ended = "closed" if hostile.session.closed else hostile.session.phase.value  # type: ignore[attr-defined]
    for at in (broker.next_timeout(), hostile.session.next_timeout()):
        if at is not None:
            hostile.now = max(hostile.now, at)
    broker.handle_timeout(hostile.now)
    broker.receive(hostile.connection, hostile.session.handle_timeout(hostile.now), hostile.now)
    hostile.flush()
    hostile.end()
    for _ in range(3):  # sessions that outlive it, then branches that nobody asks for
        hostile.now += GIVEN_UP
        broker.handle_timeout(hostile.now)
    _check_neighbour(healthy)
    if list(broker.connections.values()) != [healthy.connection]:
        raise Broken("the hostile connection is still there")
    held = sum(queue.ready for vhost in broker._virtual_hosts.values() for queue in vhost.queues.values())
    if not held and not broker.in_doubt() and broker.memory.used:
        raise Broken(f"all queues are empty, and {broker.memory.used} octets are in use")
    return ended


def _check_neighbour(healthy: Client) -> None:
    healthy.take()
    healthy.publish(HEALTHY, b"still there")
    told = healthy.take()
    got = healthy.get(HEALTHY)
    if got is None or got.message.body != b"still there":
        raise Broken(f"the neighbour published, was told {told}, and got {got}")
