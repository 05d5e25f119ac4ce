"""Clients of the broker core without sessions or sockets: what is sent to them is recorded.

A test says what a client does and looks at what it was told::

    broker = make_broker()
    client = Client(broker)
    client(DeclareQueue(1, "q"))
    assert client.told == [...]
"""

from __future__ import annotations

from typing import Any, TypeVar

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    ChannelClosed,
    Close,
    Deliver,
    Failed,
    Get,
    Got,
    OpenChannel,
    Opened,
    Operation,
    Publish,
    Request,
    Settle,
    Settlement,
)
from gateway.broker.broker import Broker, Connection
from gateway.config import EmbeddedSettings
from gateway.errors import EncodeError, LocalError, StateError
from gateway.limits import BrokerLimits
from gateway.session import Capabilities, Role, Version
from gateway.v091.version import V0_9_1

SECONDS_1970 = 1_700_000_000.0

_T = TypeVar("_T", bound=Operation)

FRAME_MAX = 131_072
IMPOSSIBLE = 1 << 30
"""A frame size that stands for a message which the version has no form for."""


def frame_size(message: Message) -> int:
    """How large the frame of a message's header is taken to be; a test says so in a header."""
    size: int = (message.properties.headers or {}).get("frame_size", 0)
    return size


class Recorder:
    """A session in the server role that only writes down what it is sent."""

    role = Role.SERVER

    def __init__(self, version: Version = V0_9_1) -> None:
        self.version = version
        self.capabilities = Capabilities(blocked_notification=True, consumer_cancel_notify=True, frame_max=FRAME_MAX)
        self.closed = False
        self.sent: list[Operation] = []
        self.refuses: type[Operation] | None = None
        """Operations of this type do not fit the version."""
        self.tried = 0
        """How often it was given a message that it cannot carry."""
        self.over: set[int] = set()
        """Channels that are closed on the session's side."""
        self._deliveries: dict[int, int] = {}

    def send(self, operation: Operation, now: float) -> int:
        if operation.channel in self.over:
            raise StateError("closed")
        if isinstance(operation, Deliver | Got) and self.capabilities.frame_max < frame_size(operation.message):
            self.tried += 1
            needed = frame_size(operation.message)
            raise EncodeError("the header is too large", needed if needed < IMPOSSIBLE else 0)
        if self.refuses is not None and isinstance(operation, self.refuses):
            raise LocalError("it does not fit")
        number = 0
        if isinstance(operation, (Deliver, Got)):
            number = self._deliveries.get(operation.channel, 0) + 1
            self._deliveries[operation.channel] = number
            operation.delivery = number  # type: ignore[misc]
        if isinstance(operation, (Failed, ChannelClosed)):
            self._deliveries.pop(operation.channel, None)
        self.sent.append(operation)
        return number

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[Operation]:
        return []

    def receive_eof(self, now: float) -> list[Operation]:
        return []

    def data_to_send(self) -> list[bytes]:
        return []

    def next_timeout(self) -> float | None:
        return None

    def handle_timeout(self, now: float) -> list[Operation]:
        return []


def make_broker(limits: BrokerLimits | None = None, **settings: Any) -> Broker:
    """A broker whose random octets count up and whose wall clock stands still. Nobody looks after deliveries that
    are not acknowledged, unless the limits say so."""
    numbers = iter(range(1 << 30))
    return Broker(
        EmbeddedSettings(**settings),
        random_octets=lambda size: next(numbers).to_bytes(size, "big"),
        wall_clock=lambda: SECONDS_1970,
        limits=BrokerLimits(ack_timeout=0) if limits is None else limits,
    )


class Client:
    """An open connection with channel 1 open. Calling it makes requests, in one turn."""

    def __init__(
        self,
        broker: Broker,
        version: Version = V0_9_1,
        user: str = "guest",
        vhost: str = "/",
        product: str = "",
        frame_max: int = FRAME_MAX,
    ) -> None:
        self.broker = broker
        self.session = Recorder(version)
        self.session.capabilities.frame_max = frame_max
        self.session.capabilities.product = product
        self.now = 0.0
        self.wakes = 0
        self.reads = True
        """What it is told leaves the server at the end of each turn."""
        self.connection: Connection = broker.connect(self.session, self._wake)
        self._serials: dict[int, int] = {}
        self(Opened(0, user, vhost), OpenChannel(1))
        self.told.clear()

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def told(self) -> list[Operation]:
        """Everything sent to this client, or since the last :meth:`take`."""
        return self.session.sent

    def __call__(self, *operations: Operation, now: float | None = None) -> list[Operation]:
        """Make requests; what this client was told in the turn (and before, if nobody took it)."""
        if now is not None:
            self.now = now
        for operation in operations:
            if isinstance(operation, Request):
                serial = 1 if isinstance(operation, OpenChannel) else self._serials.get(operation.channel, 0) + 1
                self._serials[operation.channel] = serial
                operation.serial = serial  # type: ignore[misc]
        self.broker.receive(self.connection, operations, self.now)
        if self.reads:
            self.broker.flushed(self.connection)
        return self.take()

    def take(self) -> list[Operation]:
        """What this client was told since the last take."""
        told, self.session.sent = self.session.sent, []
        return told

    def one(self, operation: Operation, kind: type[_T]) -> _T:
        """Make one request that is answered by exactly one operation of that kind."""
        (told,) = self(operation)
        assert isinstance(told, kind), told
        return told

    def publish(
        self, routing_key: str, body: bytes = b"", exchange: str = "", mandatory: bool = False, **properties: Any
    ) -> list[Operation]:
        """Publish one message on channel 1."""
        return self(publishing(routing_key, body, exchange, mandatory=mandatory, **properties))

    def get(self, queue: str, no_ack: bool = True) -> Got | None:
        """Take one message from a queue by channel 1."""
        (told,) = self(Get(1, queue, no_ack))
        return told if isinstance(told, Got) else None

    def drain(self, queue: str) -> list[bytes]:
        """The bodies of all messages that wait in a queue."""
        bodies = []
        while (got := self.get(queue)) is not None:
            bodies.append(got.message.body)
        return bodies

    def bodies(self) -> list[bytes]:
        """The bodies of the deliveries that this client was told of since the last take."""
        return [told.message.body for told in self.take() if isinstance(told, Deliver)]

    def failure(self, operation: Operation) -> tuple[int, str]:
        """Make a request that costs the channel: its code and text. The channel is opened again."""
        failed = self.one(operation, Failed)
        assert failed.channel not in self.connection.channels
        if self.connection.number in self.broker.connections:
            self(OpenChannel(failed.channel))
        return failed.code, failed.text


def publishing(
    routing_key: str,
    body: bytes = b"",
    exchange: str = "",
    *,
    mandatory: bool = False,
    immediate: bool = False,
    channel: int = 1,
    **properties: Any,
) -> Publish:
    """A publish."""
    return Publish(channel, exchange, routing_key, Message(body, Properties(**properties)), mandatory, immediate)


def ack(first: int, last: int | None = None, settlement: Settlement = Settlement.ACCEPT, channel: int = 1) -> Settle:
    """Settle one delivery, or a range."""
    return Settle(channel, settlement, first, first if last is None else last)


def is_closing(operation: Operation) -> bool:
    """The server closes the connection."""
    return isinstance(operation, Close)
