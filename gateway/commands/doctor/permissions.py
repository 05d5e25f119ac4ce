"""What is there at a broker, and what the login may do.

Nothing is declared, nothing is taken, and no message comes into a queue:

* Queues and exchanges are asked for as the protocol has it (passive declarations; 0-10's queries).
* A permission to publish is tried with a message that the broker must refuse after it has looked at the permission.
  RabbitMQ looks at ``expiration`` later than at the permission (406 PRECONDITION_FAILED against 403 ACCESS_REFUSED);
  other brokers get a mandatory message for a queue that nobody has, at the default exchange, and give it back.
* A permission to read is tried at RabbitMQ's 0-9-1 with a consumer whose ``x-priority`` is no number: 406 against 403.
* Under an alarm RabbitMQ reads nothing more from who has published. So a request follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.operations import (
    Consume,
    ExchangeFound,
    Outcome,
    Publish,
    QueryExchange,
    QueryQueue,
    Refused,
    Request,
    SelectConfirm,
)
from gateway.commands.doctor.findings import Report
from gateway.config import BrokerUrl
from gateway.errors import (
    AccessRefused,
    BrokerUnavailable,
    EncodeError,
    GatewayError,
    NotFound,
    PreconditionFailed,
)
from gateway.link import Channel, Link
from gateway.runtime.ids import ids
from gateway.versions import PROTOCOLS

NAMES: Final = 50
"""Most queues, and most exchanges, of a broker that are asked for."""
DEFAULT: Final = "the default exchange"
RABBITMQ: Final = {
    protocol.version: protocol.dialects["rabbitmq"] for protocol in PROTOCOLS if "rabbitmq" in protocol.dialects
}
"""Version -> how RabbitMQ speaks it."""
HOPELESS: Final = b"\x11\x00\x01\x04none"
"""Properties of a message that RabbitMQ refuses: delivery-mode 1, and an expiration that is no number (0-9-1 section
4.2.6.1)."""


@dataclass
class Uses:
    """What the configuration wants of a broker: name -> who wants it."""

    queues: dict[str, list[str]] = field(default_factory=dict)
    """Queues that must be there, and are read from."""
    sources: dict[str, list[str]] = field(default_factory=dict)
    """Exchanges that own queues are bound to."""
    exchanges: dict[str, list[str]] = field(default_factory=dict)
    """Exchanges that are published to."""


class Around:
    """An open connection, and what can be seen from it."""

    def __init__(self, report: Report, broker: str, where: str, uses: Uses, within: float) -> None:
        self.report = report
        self.broker = broker
        self.where = where
        self.uses = uses
        self.within = within

    async def look(self, link: Link, url: BrokerUrl) -> None:
        """All that the configuration names there; then publishes."""
        there = [name for name in self._few(self.uses.queues, "broker.queue") if await self._there("queue", name, link)]
        for name in [*self._few(self.uses.sources), *self._few(self.uses.exchanges, "broker.exchange")]:
            if name:
                await self._there("exchange", name, link)
        if link.capabilities.routes_copies and RABBITMQ[link.session.version].consume_arguments:
            for name in there:
                await self._read(link, name)
        for name in dict.fromkeys([*self._few(self.uses.exchanges), ""]):
            if name and not link.capabilities.routes_copies:
                continue  # what such a broker has in mind for a message there, nobody can tell
            await self._publish(link, name, url)
            if link.ended is not None:
                return
            if not await self._reads_on(link):
                self._takes_nothing(link.blocked)
                return
        self.report.ok("broker.blocked", self.where, "it takes publishes")

    def _few(self, names: Mapping[str, Sequence[str]], check: str = "") -> list[str]:
        """The first of them; ``check``: for the finding that not all are checked."""
        if check and len(names) > NAMES:
            self.report.ok(check, self.where, f"the first {NAMES} of {len(names)} names are looked at")
        return list(names)[:NAMES]

    async def _ask(self, link: Link, request: Request) -> Outcome:
        """Ask on a channel of its own. Raises GatewayError, TimeoutError."""
        channel = link.channel(Channel)
        async with asyncio.timeout(self.within):
            await channel.open()
            outcome: Outcome = await channel.request(replace(request, channel=channel.number))
        channel.abandon()
        return outcome

    async def _there(self, kind: str, name: str, link: Link) -> bool:
        """Whether a queue or an exchange is there."""
        wanted = self.uses.queues.get(name) if kind == "queue" else [
            *self.uses.sources.get(name, ()), *self.uses.exchanges.get(name, ()),
        ]  # fmt: skip
        who, check = ", ".join(wanted or ()), f"broker.{kind}"
        request: Request = QueryQueue(0, name) if kind == "queue" else QueryExchange(0, name)
        try:
            outcome = await self._ask(link, request)
        except NotFound as error:
            declare = f"gateway queues declare {self.broker} {name}" if kind == "queue" else "Declare it"
            self.report.fail(
                check, self.where, f"there is no {kind} {name!r}, and {who} needs it", why=str(error),
                do=f"{declare}; or correct the name.",
            )  # fmt: skip
            return False
        except (GatewayError, TimeoutError) as error:
            self.report.warn(
                check, self.where, f"the {kind} {name!r} cannot be asked for: {str(error) or 'no answer'}",
                why=f"{who} needs it.", do="See what the broker logs.",
            )  # fmt: skip
            return False
        self.report.ok(check, self.where, f"the {kind} {name!r} is there" + (
            f", {outcome.type}" if isinstance(outcome, ExchangeFound) and outcome.type else ""
        ))  # fmt: skip
        return True

    async def _read(self, link: Link, queue: str) -> None:
        """Whether the login may read from a queue: RabbitMQ looks at that before it looks at the arguments."""
        request = Consume(0, queue, f"doctor-{ids.uuid().hex}", arguments={"x-priority": "none"})
        try:
            await self._ask(link, request)
        except PreconditionFailed:
            pass  # it came as far as the arguments
        except AccessRefused as error:
            if "exclusive" not in str(error):
                self.report.fail(
                    "broker.read", self.where, f"the login may not read from {queue!r}", why=str(error),
                    do="rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ: READ must fit the queue.",
                )  # fmt: skip
                return
        except (GatewayError, TimeoutError):
            return  # nothing is known
        self.report.ok("broker.read", self.where, f"the login may read from {queue!r}")

    async def _publish(self, link: Link, exchange: str, url: BrokerUrl) -> None:
        """Whether the login may publish to an exchange."""
        shown, named = repr(exchange) if exchange else DEFAULT, exchange in self.uses.exchanges
        message = Message(b"", Properties(delivery_mode=1))
        if link.capabilities.routes_copies:  # RabbitMQ
            message = Message(b"", raw=RawProperties(HOPELESS, RABBITMQ[link.session.version].properties, _as_they_are))
        try:
            channel = link.channel(Channel)
            async with asyncio.timeout(self.within):
                await channel.open()
                await channel.request(SelectConfirm(channel.number))
                key = f"gateway-doctor-{ids.uuid().hex}"
                outcome = await channel.request(Publish(channel.number, exchange, key, message, mandatory=True))
        except PreconditionFailed:
            outcome = None  # it came as far as the expiration
        except AccessRefused as error:
            do = "rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ: WRITE must fit the exchange."
            what = f"the login {url.user} may not publish to {shown}"
            if named:
                self.report.fail("broker.publish", self.where, what, why=str(error), do=do)
            else:
                self.report.warn("broker.publish", self.where, what, why=str(error), do=do)
            return
        except NotFound:
            return  # said already
        except (BrokerUnavailable, TimeoutError) as error:
            if link.ended is None:
                return  # it reads nothing, which is about to be found out
            self.report.warn(
                "broker.publish", self.where, f"a publish to {shown} had no answer: {str(error) or 'none in time'}",
                do="See what the broker logs.",
            )  # fmt: skip
            return
        except GatewayError as error:
            self.report.warn("broker.publish", self.where, f"a publish to {shown}: {error}", do="See what it logs.")
            return
        if isinstance(outcome, Refused):
            self.report.warn("broker.publish", self.where, f"it refuses a publish to {shown}: {outcome.text}", do="")
            return
        self.report.ok("broker.publish", self.where, f"the login may publish to {shown}")

    async def _reads_on(self, link: Link) -> bool:
        """Whether the broker still reads what we send, now that we have published."""
        blocked = asyncio.Event()
        link.on_blocked = blocked.set
        try:
            opening = asyncio.ensure_future(link.channel(Channel).open())
            waiting = asyncio.ensure_future(blocked.wait())
            await asyncio.wait((opening, waiting), timeout=self.within, return_when=asyncio.FIRST_COMPLETED)
            reads = opening.done() and not link.blocked
            for task in (opening, waiting):
                task.cancel()
            await asyncio.gather(opening, waiting, return_exceptions=True)
            return reads
        finally:
            link.on_blocked = None

    def _takes_nothing(self, reason: str | None) -> None:
        self.report.fail(
            "broker.blocked", self.where,
            f"it takes no publishes now: {reason}" if reason else "it takes no publishes now, and says nothing",
            why="An alarm for memory or disk, as a rule: it goes on delivering, and publishes are answered with 503.",
            do="rabbitmq-diagnostics alarms; have queues emptied, or make room.",
        )  # fmt: skip


def _as_they_are(octets: bytes) -> Properties:
    """These octets go out as they are, or nothing does: decoded they would be put right."""
    raise EncodeError("this is no message to send in another way")
