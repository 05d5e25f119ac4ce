"""Clients of AMQP for the runs: pika for 0-9-1, and the gateway's own client for other versions.

A connection has one channel. It says what became of publishes and what was delivered, and whether it was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pika
import pika.exceptions
from pika.adapters.asyncio_connection import AsyncioConnection

from gateway.amqp import operations
from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings
from gateway.errors import GatewayError
from gateway.fidelity.reserved import RESERVED, raw_annotations
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from tests.faults.checker import digest
from tests.servers.process import HOST

USER: Final = "guest"
HEARTBEAT: Final = 15
"""Of clients, in seconds: one that is not answered ends the connection, which is a failure of the run."""
OPEN_WITHIN: Final = 6.0
logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs each connection that is lost, with a traceback


class Lost(Exception):
    """The connection or its channel is over."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a run publishes, in the properties that every version has."""

    id: str
    """A UUID."""
    body: bytes
    number: int

    @property
    def headers(self) -> dict[str, Any]:
        """Two types of values."""
        return {"number": str(self.number), "flag": self.number % 2 == 0}

    @property
    def digest(self) -> str:
        """Of body, properties and headers."""
        return content_digest(self.body, self.id, "text/plain", f"c{self.number}", 2, self.headers)


def content_digest(
    body: bytes, message_id: Any, content_type: Any, correlation_id: Any, mode: Any, headers: Mapping[str, Any]
) -> str:
    """The digest of a message, as publisher and consumer see it."""
    named = {"message_id": str(message_id), "content_type": content_type, "correlation_id": correlation_id}
    return digest(body, {**named, "delivery_mode": mode}, {k: v for k, v in headers.items() if k != RESERVED})


@dataclass(frozen=True, slots=True)
class Arrived:
    """A delivery."""

    number: int
    id: str
    digest: str
    redelivered: bool
    resent: bool
    """The gateway says that it may be there twice."""


class Connection(Protocol):
    """One connection with one channel. ``publish`` and ``settle`` raise :class:`Lost`."""

    over: asyncio.Event
    why: str

    async def open(self) -> None:
        """Connect. Raises Lost."""

    async def declare(self, queue: str, durable: bool) -> None: ...

    async def begin_publishing(self, outcome: Callable[[Iterable[int], bool], None]) -> None:
        """``outcome`` gets numbers of publishes, and whether they were taken."""

    def publish(self, queue: str, content: Content) -> int: ...

    async def consume(self, queue: str, prefetch: int, arrived: Callable[[Arrived], None]) -> None: ...

    def accept(self, number: int, multiple: bool = False) -> None: ...

    def release(self, number: int) -> None: ...

    async def close(self) -> None: ...


# ----------------------------------------------------------------------------------------------- pika


class PikaConnection:
    """By pika."""

    def __init__(self, port: int) -> None:
        self.over = asyncio.Event()
        self.why = ""
        self._port = port
        self._connection: Any = None
        self._channel: Any = None
        self._published = 0
        self._unconfirmed: dict[int, None] = {}
        self._outcome: Callable[[Iterable[int], bool], None] = lambda numbers, taken: None

    async def open(self) -> None:
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        parameters = pika.ConnectionParameters(
            HOST, self._port, credentials=pika.PlainCredentials(USER, USER), heartbeat=HEARTBEAT
        )

        def failed(connection: Any, error: Any) -> None:
            if not opened.done():
                opened.set_exception(Lost(repr(error)))

        def is_open(connection: Any) -> None:
            if not opened.done():
                opened.set_result(connection)

        AsyncioConnection(
            parameters,
            on_open_callback=is_open,
            on_open_error_callback=failed,
            on_close_callback=self._ended,
            custom_ioloop=asyncio.get_running_loop(),
        )
        try:
            async with asyncio.timeout(OPEN_WITHIN):
                self._connection = await opened
                self._channel = await self._done(
                    lambda done: self._connection.channel(on_open_callback=lambda channel: done(channel))
                )
        except TimeoutError:
            raise Lost("no open connection in time") from None
        self._channel.add_on_close_callback(self._ended)

    def _ended(self, what: Any, reason: Any) -> None:
        self.why = self.why or repr(reason)
        self.over.set()

    async def _done(self, ask: Callable[[Callable[..., None]], Any]) -> Any:
        """The answer of a request. Raises Lost."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(answer: Any = None) -> None:
            if not answered.done():
                answered.set_result(answer)

        try:
            ask(done)
        except pika.exceptions.AMQPError as error:
            raise Lost(repr(error)) from None
        over = asyncio.ensure_future(self.over.wait())
        await asyncio.wait([answered, over], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not answered.done():
            raise Lost(self.why)
        return answered.result()

    async def declare(self, queue: str, durable: bool) -> None:
        await self._done(lambda done: self._channel.queue_declare(queue, durable=durable, callback=done))

    async def begin_publishing(self, outcome: Callable[[Iterable[int], bool], None]) -> None:
        self._outcome = outcome
        await self._done(lambda done: self._channel.confirm_delivery(self._confirmed, callback=done))

    def _confirmed(self, frame: Any) -> None:
        tag, taken = frame.method.delivery_tag, isinstance(frame.method, pika.spec.Basic.Ack)
        numbers = [number for number in self._unconfirmed if number <= tag] if frame.method.multiple else [tag]
        for number in numbers:
            self._unconfirmed.pop(number, None)
        self._outcome(numbers, taken)

    def publish(self, queue: str, content: Content) -> int:
        properties = pika.BasicProperties(
            "text/plain", headers=content.headers, delivery_mode=2, correlation_id=f"c{content.number}",
            message_id=content.id,
        )  # fmt: skip
        try:
            self._channel.basic_publish("", queue, content.body, properties)
        except pika.exceptions.AMQPError as error:
            raise Lost(repr(error)) from None
        self._published += 1
        self._unconfirmed[self._published] = None
        return self._published

    async def consume(self, queue: str, prefetch: int, arrived: Callable[[Arrived], None]) -> None:
        def message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            headers = properties.headers or {}
            seen = content_digest(
                body, properties.message_id, properties.content_type, properties.correlation_id,
                properties.delivery_mode, headers,
            )  # fmt: skip
            resent = "resent" in (headers.get(RESERVED) or {})
            arrived(Arrived(method.delivery_tag, properties.message_id or "", seen, method.redelivered, resent))

        await self._done(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done))
        self._channel.add_on_cancel_callback(lambda method: self._ended(None, "the consumer was canceled"))
        await self._done(lambda done: self._channel.basic_consume(queue, message, callback=done))

    def accept(self, number: int, multiple: bool = False) -> None:
        self._say(lambda: self._channel.basic_ack(number, multiple))

    def release(self, number: int) -> None:
        self._say(lambda: self._channel.basic_reject(number, requeue=True))

    def _say(self, say: Callable[[], None]) -> None:
        try:
            say()
        except pika.exceptions.AMQPError as error:
            raise Lost(repr(error)) from None

    async def close(self) -> None:
        with suppress(pika.exceptions.AMQPError):
            self._connection.close()
            async with asyncio.timeout(OPEN_WITHIN):
                await self.over.wait()


# -------------------------------------------------------------------------------- the gateway's own client


class _Channel(Channel):
    __slots__ = ("connection",)
    connection: LinkConnection

    def receive(self, operation: operations.Operation) -> None:
        kind = type(operation)
        if kind is operations.Confirmed or kind is operations.Refused:
            assert isinstance(operation, operations.Outcome)
            numbers = range(operation.first, operation.last + 1)
            self.connection.outcome(numbers, kind is operations.Confirmed)
        super().receive(operation)

    def handle(self, operation: operations.Operation) -> None:
        if isinstance(operation, operations.Deliver):
            self.connection.delivered(operation)
        elif isinstance(operation, operations.Cancelled):
            self.connection.ended("the consumer was canceled")

    def lost(self, error: GatewayError) -> None:
        self.connection.ended(str(error))


class LinkConnection:
    """By the gateway's own client, in any version."""

    def __init__(self, port: int, version: str) -> None:
        self.over = asyncio.Event()
        self.why = ""
        self.outcome: Callable[[Iterable[int], bool], None] = lambda numbers, taken: None
        self._url = f"amqp://{USER}:{USER}@{HOST}:{port}/?version={version}"
        self._arrived: Callable[[Arrived], None]
        self._link: Link
        self._channel: _Channel

    def ended(self, why: str) -> None:
        """It is lost."""
        self.why = self.why or why
        self.over.set()

    async def open(self) -> None:
        settings = BrokerSettings(url=self._url, heartbeat=float(HEARTBEAT), connect_timeout=OPEN_WITHIN)
        try:
            self._link = await Dialer("client", settings).open("client")
            self._channel = self._link.channel(_Channel)
            self._channel.connection = self
            await self._channel.open()
        except GatewayError as error:
            raise Lost(str(error)) from None

    async def ask(self, request: operations.Request) -> operations.Outcome:
        """The outcome of a request. Raises Lost."""
        try:
            return await self._channel.request(request)
        except GatewayError as error:
            raise Lost(str(error)) from None

    async def declare(self, queue: str, durable: bool) -> None:
        await self.ask(operations.DeclareQueue(self._channel.number, queue, durable=durable))

    async def begin_publishing(self, outcome: Callable[[Iterable[int], bool], None]) -> None:
        self.outcome = outcome
        await self.ask(operations.SelectConfirm(self._channel.number))

    def publish(self, queue: str, content: Content) -> int:
        properties = Properties(
            content_type="text/plain", headers=content.headers, delivery_mode=2, correlation_id=f"c{content.number}",
            message_id=content.id,
        )  # fmt: skip
        return self._say(
            operations.Publish(self._channel.number, "", queue, Message(content.body, properties), mandatory=False)
        )

    async def consume(self, queue: str, prefetch: int, arrived: Callable[[Arrived], None]) -> None:
        self._arrived = arrived
        await self.ask(operations.Qos(self._channel.number, prefetch))
        await self.ask(operations.Consume(self._channel.number, queue, "consumer"))

    def delivered(self, operation: operations.Deliver) -> None:
        """A message has come."""
        self._arrived(self.seen(operation))

    def seen(self, operation: operations.Deliver | operations.Got) -> Arrived:
        """A message as the runs look at it."""
        message = operation.message
        properties = message.properties
        seen = content_digest(
            bytes(message.body), properties.message_id, properties.content_type, properties.correlation_id,
            properties.delivery_mode, properties.headers or {},
        )  # fmt: skip
        resent = "resent" in raw_annotations(message)
        id = str(properties.message_id or "")
        return Arrived(operation.delivery, id, seen, operation.redelivered, resent)

    async def get(self, queue: str) -> Arrived | None:
        """Fetch a message; None: there is none. Raises Lost."""
        found = await self.ask(operations.Get(self._channel.number, queue))
        return self.seen(found) if isinstance(found, operations.Got) else None

    async def begin_transactions(self) -> None:
        """Have publishes and settlements count from the next commit on. Raises Lost."""
        await self.ask(operations.TxSelect(self._channel.number))

    async def end_transaction(self, commit: bool) -> None:
        """Commit, or roll back. Raises Lost: nobody knows whether it did."""
        number = self._channel.number
        await self.ask(operations.TxCommit(number) if commit else operations.TxRollback(number))

    def accept(self, number: int, multiple: bool = False) -> None:
        first = 0 if multiple else number
        self._say(operations.Settle(self._channel.number, Settlement.ACCEPT, first, number))

    def release(self, number: int) -> None:
        self._say(operations.Settle(self._channel.number, Settlement.RELEASE, number, number))

    def _say(self, operation: operations.Operation) -> int:
        try:
            return self._channel.send(operation)
        except GatewayError as error:
            raise Lost(str(error)) from None

    async def close(self) -> None:
        with suppress(GatewayError):
            await self._link.close()


def connection(port: int, version: str) -> Connection:
    """A connection to a port, which is to be opened."""
    return PikaConnection(port) if version == "0-9-1" else LinkConnection(port, version)
