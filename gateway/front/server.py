"""One front: its port, its logins, its upstream connections, and the clients that it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

from gateway import __version__
from gateway.access.scopes import Principal, principal_of
from gateway.amqp.values import Table
from gateway.broker.logins import LoginReport, Logins
from gateway.broker.queues import Memory
from gateway.broker.refusals import reply_text
from gateway.broker.served import Listener, Served
from gateway.broker.turns import Turn
from gateway.budgets import Budgets
from gateway.config import BrokerSettings, FrontSettings
from gateway.errors import ConfigurationError
from gateway.front.client import DeliveryRecords, FrontClient, PublishLane, PublishRecords
from gateway.front.counts import FrontCounts
from gateway.front.links import SharedLink
from gateway.front.pool import LinkPool
from gateway.front.shares import FrontShares, UserShare
from gateway.front.store import FrontStore, PublishLedger
from gateway.front.users import FrontUsers
from gateway.limits import DEFAULT_BROKER_LIMITS, DEFAULT_LIMITS, BrokerLimits, Limits
from gateway.link import Dial
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.clock import clock, monotonic_time, wall_time
from gateway.runtime.ids import ids, random_bytes
from gateway.runtime.tasks import Tasks
from gateway.session import PendingLogin, ServerConfig, Session, Version
from gateway.transports.tls import ServerTls
from gateway.versions import PROTOCOLS

LOOK_EVERY: Final = 1.0
"""Seconds between two looks after clients that are stuck, and connections that are idle."""
LEAVE_WITHIN: Final = 60.0
"""How long what a client has published may take to be confirmed once the client is gone, while the upstream is
there."""
FRAME_ELEMENTS: Final = 16_384
"""Most values decoded from one frame."""
USER_SHOWN: Final = 80
"""Characters of a user's name in the log."""
RENEW_EVERY: Final = 2.0
"""How often files of certificates are looked at, in seconds."""
LOGIN_SHARE: Final = 0.8
"""Part of ``handshake_timeout_seconds`` that the broker may take to answer a login."""


class Front:
    """One front.

    Args:
        name: as the configuration has it.
        settings: those of the front.
        brokers: of all brokers, by name.
        metrics: where what happens is counted.
        connector: opens streams to the upstream in place of TCP and TLS.
        ledger: what keeps publishes while the broker is away, and timelines, if the settings ask for them; None:
            publishes wait, and there are no timelines.
        budgets: what each user may hold; None: no user has a share.
    """

    def __init__(
        self,
        name: str,
        settings: FrontSettings,
        brokers: Mapping[str, BrokerSettings],
        metrics: Metrics | None = None,
        *,
        connector: Dial | None = None,
        ledger: PublishLedger | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.counts = FrontCounts(name, metrics)
        self.limits = _limits(settings)
        self.broker_limits = _broker_limits(settings)
        self.turn = Turn(monotonic_time, self.broker_limits.turn)
        self.memory = Memory(settings.memory)
        self.logins = Logins()
        self.loopback_users: tuple[str, ...] = ()
        self.loop: asyncio.AbstractEventLoop
        self.clients: dict[int, FrontClient] = {}
        self.users = FrontUsers(name, settings.users)
        self.pool = LinkPool(settings, brokers, self.counts, connector)
        self.store = None if ledger is None else FrontStore(name, settings, ledger, self.counts)
        self._records = None if ledger is None else ledger.records(name)
        self.shares = None if budgets is None else FrontShares(name, settings, budgets)
        self._numbers = count(1)
        self._listener: Listener | None = None
        self._served: set[Served] = set()
        self._look: asyncio.TimerHandle | None = None
        self._asking = Tasks("front logins")
        self._renewing = Tasks("front certificates")
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopping_since: dict[FrontClient, float] = {}
        self.session_configs: Mapping[Version, ServerConfig] = self._configs()
        if metrics is not None:
            self._show(metrics)

    def _configs(self) -> dict[Version, ServerConfig]:
        properties: Table = {
            "product": "AMQP Gateway front (understands clients of RabbitMQ and Qpid)",
            "version": __version__,
            "platform": "Python",
        }
        config = ServerConfig(
            authenticate=self.users.authenticate,
            open_virtual_host=self._has_virtual_host,
            properties=properties,
            limits=self.limits,
            random_octets=random_bytes,
            wall_clock=wall_time,
            scram=None if self.settings.login == "pass" else self.users.scram,
        )
        allowed = self.settings.versions
        return {each.version: config for each in PROTOCOLS if not allowed or each.name in allowed}

    def _show(self, metrics: Metrics) -> None:
        name, counts = self.name, self.counts
        metrics.front_clients.labels(name).set_function(lambda: sum(each.open for each in self.clients.values()))
        metrics.front_connections.labels(name).set_function(lambda: sum(link.is_up for link in self.pool.all()))
        metrics.front_up.labels(name).set_function(
            lambda: float(all(link.is_up for link in self.pool.all() if link.is_needed))
        )
        metrics.front_bytes.labels(name, "unconfirmed").set_function(lambda: float(counts.unconfirmed_bytes))
        metrics.front_bytes.labels(name, "held").set_function(lambda: float(counts.held_bytes))
        metrics.front_bytes.labels(name, "stored").set_function(lambda: float(counts.stored_bytes))
        counts.show()

    # ----------------------------------------------------------------------------------------- start, stop

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._listener is not None, "start() it first"
        return self._listener.port

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigurationError: the address is taken, or belongs to another machine; a file of certificates is missing
                or wrong.
        """
        self.loop = asyncio.get_running_loop()
        tls = ServerTls(self.settings.tls, f"fronts.{self.name}") if self.settings.tls.cert_file else None
        listener = Listener(self, None if tls is None else tls.context)
        try:
            await listener.start(self.settings.host, self.settings.port)
        except OSError as error:
            raise ConfigurationError(f"fronts.{self.name}.port {self.settings.port}: {error.strerror}") from None
        self._listener = listener
        log("front.listening", front=self.name, host=self.settings.host, port=listener.port, tls=tls is not None)
        if tls is not None:
            self._renewing.start(self._renew(tls))
        self._look = self.loop.call_later(LOOK_EVERY, self._look_after)

    async def stop(self) -> None:
        """Tell every client (connection.close 320), wait for their answers as long as a close may take, and end."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        if self._look is not None:
            self._look.cancel()
        for client in list(self.clients.values()):
            client.now = clock.monotonic()
            client.close(320, reply_text(320, "the gateway stops"))
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
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limits.close_timeout):
                    await self._empty.wait()
        for client in list(self.clients.values()):
            client.disconnect(clock.monotonic())
        if self.store is not None:
            await self.store.close()
        await self._asking.close()
        await self._renewing.close()
        await self.pool.close()
        await listener.wait_closed()

    def use(self, settings: FrontSettings, users: FrontUsers, brokers: Mapping[str, BrokerSettings]) -> None:
        """Go on with other settings. Clients stay connected, but those whose user is gone, or has another password."""
        before, self.users = self.users, users
        self.settings = settings
        self.limits, self.broker_limits = _limits(settings), _broker_limits(settings)
        self.memory.resize(settings.memory)
        self.session_configs = self._configs()
        self.pool.use(settings, brokers)
        for client in self.clients.values():
            client.delivery_records = self.delivery_records
        if self.shares is not None:
            self.shares.use(settings)
        if self.store is not None:
            self.store.use(settings)
            for client in self.clients.values():
                if client.open and client.lane is None:
                    client.lane = self.store.lane_for(client)
        if settings.login == "pass":
            return
        for client in list(self.clients.values()):
            if not client.open:
                continue
            client.now = clock.monotonic()
            if users.is_as_before(client.user, before):
                client.access.principal = users.principal(client.user)
            else:
                client.close(320, reply_text(320, f"the login of '{client.user}' has changed"))

    async def _renew(self, tls: ServerTls) -> None:
        """Have certificates that are renewed count for clients that connect from then on."""
        while True:
            await clock.sleep(RENEW_EVERY)
            try:
                if tls.renew():
                    log("front.tls_renewed", front=self.name)
            except ConfigurationError as error:
                log("front.tls_not_renewed", logging.WARNING, front=self.name, detail=str(error))

    # ------------------------------------------------------------------------------------------- logins

    def authenticator(self, served: Served) -> Callable[[str, str], bool | PendingLogin]:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return self.users.authenticate if self.settings.login == "gateway" else partial(self._pass_login, served)

    def _pass_login(self, served: Served, user: str, password: str) -> bool | PendingLogin:
        """Whether the broker takes that user and password."""
        client = served.connection
        assert isinstance(client, FrontClient)
        if client.open:
            return False  # connection.update-secret: the broker's own connection has the old one
        client.login = login = self.pool.login_of(self.settings.broker, user, password)
        if self.pool.knows(login):
            return True
        pending = PendingLogin()

        async def ask() -> None:
            why = await self.pool.ask(login, password, self.limits.handshake_timeout * LOGIN_SHARE)
            served.login_decided(pending, why is None, why or "")

        self._asking.start(ask())
        return pending

    def has_user(self, user: str) -> bool:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return user in self.users

    def principal_of(self, user: str) -> Principal:
        """What a user may do. With ``login = "pass"`` the broker says that."""
        return principal_of(user, ("admin",)) if self.settings.login == "pass" else self.users.principal(user)

    def _has_virtual_host(self, user: str, name: str) -> bool:
        return bool(self.broker_of(name))

    def broker_of(self, virtual_host: str) -> str:
        """The broker behind a virtual host; empty: there is no such virtual host."""
        hosts = self.settings.virtual_hosts
        if hosts:
            return hosts.get(virtual_host) or hosts.get(virtual_host.lstrip("/") or "/", "")
        return self.settings.broker if virtual_host.lstrip("/") == "" else ""

    def login_failed(self, address: str, user: str, reason: str) -> None:
        """See :class:`~gateway.broker.served.ClientServer`."""
        self.counts.logins_refused += 1
        report = self.logins.failed(address, user, clock.monotonic())
        if report is not None:
            self._log_failures(report, {"user": user[:USER_SHOWN], "reason": reason})

    def _log_failures(self, report: LoginReport, latest: Mapping[str, Any]) -> None:
        log(
            "front.login_refused", logging.WARNING,
            front=self.name, address=report.address, failures=report.failures, **latest,
        )  # fmt: skip

    # ------------------------------------------------------------------------------- asked by port and clients

    def connect(self, session: Session, wake: Callable[[], None], refusal: str, address: str) -> FrontClient:
        """See :class:`~gateway.broker.served.ClientServer`."""
        client = FrontClient(self, next(self._numbers), session, wake, refusal)
        client.since = clock.now()
        client.address = address
        self.clients[client.number] = client
        return client

    def close_client(self, number: int) -> bool:
        """End the connection of a client, for an operator. Whether there is one of that number."""
        client = self.clients.get(number)
        if client is None or not client.open:
            return False
        client.now = clock.monotonic()
        client.close(320, reply_text(320, "an operator has closed the connection"))
        log("front.client_closed", front=self.name, client=number, user=client.user, address=client.address)
        return True

    def arrived(self, served: Served) -> None:
        """See :class:`~gateway.broker.served.ClientServer`."""
        self._served.add(served)
        self._empty.clear()

    def ended(self, served: Served) -> None:
        """See :class:`~gateway.broker.served.ClientServer`."""
        self._served.discard(served)
        if not self._served:
            self._empty.set()

    def watch_timeouts(self) -> None:
        """See :class:`~gateway.broker.served.ClientServer`: nothing expires here."""

    def gone(self, client: FrontClient) -> None:
        """A client is over."""
        if self.clients.pop(client.number, None) is not None and client.share is not None and self.shares is not None:
            client.share.give_connection()
            self.shares.leave(client.user)
        self._stopping_since.pop(client, None)

    def clock(self) -> float:
        """See :class:`~gateway.front.client.ClientHost`."""
        return clock.monotonic()

    def begin(self) -> None:
        """See :class:`~gateway.front.client.ClientHost`."""
        self.turn.begin()

    def soon(self, call: Callable[[], None]) -> None:
        """See :class:`~gateway.front.client.ClientHost`."""
        self.loop.call_soon(call)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """See :class:`~gateway.front.client.ClientHost`."""
        self.loop.call_later(seconds, call)

    @property
    def until(self) -> float:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self.turn.until

    @property
    def prefetch_max(self) -> int:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self.settings.prefetch_max

    @property
    def transient_expires(self) -> int:
        """See :class:`~gateway.front.client.ClientHost`."""
        return int(self.settings.transient_expires_seconds * 1_000)

    @property
    def publish_window(self) -> int:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self.settings.publish_window

    @property
    def publish_window_bytes(self) -> int:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self.settings.publish_window_bytes

    @property
    def client_bytes(self) -> int:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self.settings.client_bytes

    def has_memory(self, size: int) -> bool:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self.counts.unconfirmed_bytes + self.counts.held_bytes + size <= self.settings.memory

    def random_text(self, octets: int) -> str:
        """See :class:`~gateway.front.client.ClientHost`."""
        return ids.hex(octets)

    @property
    def records(self) -> PublishRecords | None:
        """See :class:`~gateway.front.client.ClientHost`."""
        return None if self.settings.record == "none" else self._records

    @property
    def delivery_records(self) -> DeliveryRecords | None:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self._records if self.settings.record == "all" else None

    def share_of(self, client: FrontClient) -> UserShare | None:
        """See :class:`~gateway.front.client.ClientHost`."""
        return None if self.shares is None else self.shares.of(client.user)

    def lane_for(self, client: FrontClient) -> PublishLane | None:
        """See :class:`~gateway.front.client.ClientHost`."""
        return None if self.store is None else self.store.lane_for(client)

    def link_for(self, client: FrontClient) -> SharedLink:
        """See :class:`~gateway.front.client.ClientHost`."""
        return self.pool.link_for(client)

    # ------------------------------------------------------------------------------------------ looking after

    def _look_after(self) -> None:
        """Cut off who is stuck, let go of what is idle."""
        now, timeout = clock.monotonic(), self.broker_limits.stuck_timeout
        for report in self.logins.reports(now):
            self._log_failures(report, {})
        for served in list(self._served):
            if timeout and served.is_stuck(now, timeout):
                log("front.stuck", front=self.name, connection=served.stream.peer, unsent=served.stream.unsent)
                served.stream.abort()
        for client in list(self.clients.values()):
            if not client.stopping or not client.open:
                continue
            since = self._stopping_since.setdefault(client, now)
            if not client.link.is_up:
                self._stopping_since[client] = now
            elif now - since > LEAVE_WITHIN:
                log("front.publishes_given_up", logging.WARNING, front=self.name, user=client.user)
                client.disconnect(now)
        self.pool.close_idle(now)
        self.counts.show()
        self._look = self.loop.call_later(LOOK_EVERY, self._look_after)


def _limits(settings: FrontSettings) -> Limits:
    """The limits of each session."""
    return replace(
        DEFAULT_LIMITS,
        handshake_timeout=settings.handshake_timeout_seconds,
        message_max=settings.message_max,
        spool_max=max(DEFAULT_LIMITS.spool_max, 2 * settings.message_max),
        frame_elements=FRAME_ELEMENTS,
    )


def _broker_limits(settings: FrontSettings) -> BrokerLimits:
    """The limits of all clients together."""
    return replace(
        DEFAULT_BROKER_LIMITS,
        connections=settings.connections,
        connections_per_address=settings.connections_per_address,
        stuck_timeout=settings.stuck_timeout_seconds,
    )
