"""The listener of the embedded broker: one port for all versions; the protocol header decides.

A :class:`~gateway.broker.served.Served` connection waits for the 8 octets, makes the session that answers them and
hands on what it receives to the :class:`~gateway.broker.broker.Broker`. What is queued for a client is written once
per turn of the loop. There is no task per connection and none per message.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from gateway import __version__
from gateway.amqp.values import Table
from gateway.broker.broker import Broker, Connection, Skip
from gateway.broker.logins import LoginReport, Logins
from gateway.broker.queues import Memory
from gateway.broker.refusals import reply_text
from gateway.broker.served import NEVER, Listener, Served
from gateway.broker.turns import Turn
from gateway.budgets import Budgets
from gateway.config import EmbeddedSettings
from gateway.errors import ConfigurationError
from gateway.limits import DEFAULT_BROKER_LIMITS, DEFAULT_LIMITS, BrokerLimits, Limits
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.clock import clock, monotonic_time, wall_time
from gateway.runtime.ids import random_bytes
from gateway.session import ServerConfig, Session
from gateway.transports.tls import ServerTls
from gateway.versions import PROTOCOLS

PRODUCT: Final = "AMQP Gateway embedded broker"
CLASSIC_PRODUCT: Final = f"{PRODUCT} (understands clients of RabbitMQ and Qpid)"
"""Product name for 0-8 and 0-9-1: Qpid's JMS client asks for exchanges and bindings only where it reads "qpid"."""
PROPERTIES: Final[Table] = {
    "product": PRODUCT,
    "version": __version__,
    "platform": "Python",
    "information": "In memory, for development and tests: nothing outlives this process.",
    "durable_storage": False,
}
"""Properties of the broker for every client that connects (server-properties)."""

FRAME_ELEMENTS: Final = 16_384
"""Most values decoded from one frame: more of them take longer than a turn may."""
LOOKS: Final = 8
"""How often it is looked after clients that are stuck, within the time that they may be."""
RENEW_EVERY: Final = 2.0
"""How often files of certificates are looked at, in seconds."""
USER_SHOWN: Final = 80
"""Characters of a user's name in the log."""
LOOK_MIN: Final = 0.02
"""Least time between two such looks, in seconds."""


class EmbeddedBroker:
    """The embedded broker on its sockets.

    Args:
        settings: where to listen, who may log in, how much memory messages may take.
        limits: of each session; None: the default ones, with ``handshake_timeout`` and ``message_max`` of ``settings``.
        broker_limits: of the broker as a whole; None: the default ones, with what ``settings`` say.
        metrics: where what happens is counted.
        budgets: what each user may hold; None: no user has a share.
    """

    def __init__(
        self,
        settings: EmbeddedSettings,
        limits: Limits | None = None,
        broker_limits: BrokerLimits | None = None,
        metrics: Metrics | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self.settings = settings
        self._metrics = metrics
        if limits is None:
            limits = replace(
                DEFAULT_LIMITS,
                handshake_timeout=settings.handshake_timeout,
                message_max=settings.message_max,
                spool_max=max(DEFAULT_LIMITS.spool_max, 2 * settings.message_max),
                frame_elements=FRAME_ELEMENTS,
            )
        if broker_limits is None:
            broker_limits = replace(
                DEFAULT_BROKER_LIMITS,
                connections=settings.connections,
                connections_per_address=settings.connections_per_address,
                stuck_timeout=settings.stuck_timeout,
                ack_timeout=settings.ack_timeout,
                channels=settings.channels,
                exchanges=settings.exchanges,
                queues=settings.queues,
                bindings=settings.bindings,
                consumers=settings.consumers,
                declared_octets=settings.declared_bytes,
            )
        self.limits = limits
        self.loop: asyncio.AbstractEventLoop
        self.broker = Broker(
            settings,
            random_octets=random_bytes,
            wall_clock=wall_time,
            limits=broker_limits,
            clock=monotonic_time,
            budgets=budgets,
        )
        self.broker.on_skip = self._skipped
        self.broker.on_refused_match = self._match_refused
        config = ServerConfig(
            authenticate=self.broker.authenticate,
            open_virtual_host=self.broker.open_virtual_host,
            properties=PROPERTIES,
            limits=limits,
            random_octets=random_bytes,
            wall_clock=wall_time,
            scram=self.broker.scram_keys,
            anonymous=settings.anonymous,
            session_timeout=broker_limits.session_timeout,
            resume_session=self.broker.resume_session,
        )
        classic = replace(config, properties={**PROPERTIES, "product": CLASSIC_PRODUCT})
        native = replace(config, dialect="transitional") if settings.transitional else config
        self.session_configs = {each.version: classic if each.is_classic else native for each in PROTOCOLS}
        self.logins = Logins()
        self._listeners: list[Listener] = []
        self._served: set[Served] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._look: asyncio.TimerHandle | None = None
        self._tls: ServerTls | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def unfinished(self) -> int:
        """Octets of messages that are not all there, over all connections."""
        return self.broker.memory.unfinished

    @property
    def broker_limits(self) -> BrokerLimits:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.broker.limits

    @property
    def turn(self) -> Turn:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.broker.turn

    @property
    def memory(self) -> Memory:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.broker.memory

    @property
    def loopback_users(self) -> tuple[str, ...]:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.settings.loopback_users

    def authenticator(self, served: Served) -> Callable[[str, str], bool]:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.broker.authenticate

    def has_user(self, user: str) -> bool:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.broker.has_user(user)

    def connect(self, session: Session, wake: Callable[[], None], refusal: str, address: str) -> Connection:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.broker.connect(session, wake, refusal)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listeners[0].port

    @property
    def tls_port(self) -> int:
        """The port that it listens on with TLS, if it does."""
        return self._listeners[1].port

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is taken or not local.
            ConfigurationError: the certificate or the key is malformed.
        """
        self.loop = asyncio.get_running_loop()
        settings = self.settings
        ports: list[tuple[int, ssl.SSLContext | None]] = [(settings.port, None)]
        if settings.tls.cert_file:
            self._tls = ServerTls(settings.tls)
            ports.append((settings.tls.port, self._tls.context))
        for port, context in ports:
            listener = Listener(self, context)
            self._listeners.append(listener)
            try:
                await listener.start(settings.host, port)
            except OSError:
                await self.stop()
                raise
            log("embedded.listening", host=settings.host, port=listener.port, tls=context is not None)
        if self._tls is not None:
            self._renewing = self.loop.create_task(self._renew(self._tls), name="embedded tls")
        self._look_later()

    async def _renew(self, tls: ServerTls) -> None:
        """Use renewed certificates for new connections."""
        while True:
            await clock.sleep(RENEW_EVERY)
            try:
                if tls.renew():
                    log("embedded.tls_renewed")
            except ConfigurationError as error:
                log("embedded.tls_not_renewed", logging.WARNING, detail=str(error))

    async def stop(self) -> None:
        """Tell every client (connection.close 320), wait for their answers as long as a close may take, and end."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        if self._look is not None:
            self._look.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
        if not listeners:
            return
        if prepared := self.broker.in_doubt():
            log("embedded.branches_forgotten", prepared=prepared)
        self.broker.close_all(320, reply_text(320, "the embedded broker stops"), clock.monotonic())
        for served in list(self._served):
            served.stream.flush()
            if served.session is None:
                served.hang_up()
        try:
            async with asyncio.timeout(self.limits.close_timeout):
                await self._empty.wait()
        except TimeoutError:
            for served in list(self._served):
                served.hang_up()
            await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()
        for listener in listeners:
            await listener.wait_closed()

    def _skipped(self, skip: Skip) -> None:
        """A message that some connection cannot carry stays in its queue."""
        log(
            "embedded.skipped", logging.WARNING,
            queue=skip.queue, exchange=skip.exchange, version=skip.version, reason=skip.why,
        )  # fmt: skip
        if self._metrics is not None:
            self._metrics.embedded_skipped.labels(skip.version).inc()

    def _match_refused(self) -> None:
        """Finding the queues of a message, or selecting it, costs too much."""
        if self._metrics is not None:
            self._metrics.embedded_matches_refused.inc()

    def login_failed(self, address: str, user: str, reason: str) -> None:
        """A client from ``address`` did not get in as ``user``."""
        if self._metrics is not None:
            self._metrics.embedded_logins_refused.inc()
        report = self.logins.failed(address, user, clock.monotonic())
        if report is not None:
            _log_failures(report, {"user": user[:USER_SHOWN], "reason": reason})

    def arrived(self, served: Served) -> None:
        """A client has connected."""
        self._served.add(served)
        self._empty.clear()

    def ended(self, served: Served) -> None:
        """A connection is over."""
        self._served.discard(served)
        if not self._served:
            self._empty.set()
        self.watch_timeouts()

    def watch_timeouts(self) -> None:
        """Set the timer for what expires next in the broker, if that is sooner than it was."""
        at = self.broker.next_timeout()
        if at is not None and at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(at, self._timeout)
            self._timer_at = at

    def _timeout(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        self.broker.turn.begin()
        self.broker.handle_timeout(clock.monotonic())
        self.watch_timeouts()

    def _look_later(self) -> None:
        timeout = self.broker.limits.stuck_timeout
        if timeout:
            self._look = self.loop.call_later(max(timeout / LOOKS, LOOK_MIN), self._look_after_clients)

    def _look_after_clients(self) -> None:
        """Cut off who is stuck."""
        now, timeout = clock.monotonic(), self.broker.limits.stuck_timeout
        for report in self.logins.reports(now):
            _log_failures(report, {})
        for served in list(self._served):
            if served.is_stuck(now, timeout):
                log("embedded.stuck", connection=served.stream.peer, unsent=served.stream.unsent)
                served.stream.abort()
        self._look_later()


def _log_failures(report: LoginReport, latest: Mapping[str, Any]) -> None:
    log("embedded.login_refused", logging.WARNING, address=report.address, failures=report.failures, **latest)
