"""One front: its port, its logins, its upstream connections, and the clients that it serves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hmac import compare_digest
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway import __version__
from gateway.access.scopes import Principal, principal_of
from gateway.broker.logins import LoginReport, Logins
from gateway.broker.queues import Memory
from gateway.broker.refusals import reply_text
from gateway.broker.served import Listener, Served
from gateway.broker.turns import Turn
from gateway.config import BrokerSettings, FrontSettings
from gateway.errors import ConfigurationError
from gateway.front.client import FrontClient
from gateway.front.counts import FrontCounts
from gateway.front.links import CHANNELS_KEPT, CLOSE_SECONDS, IDLE_SECONDS, SharedLink
from gateway.front.refusals import refused
from gateway.limits import DEFAULT_BROKER_LIMITS, DEFAULT_LIMITS, BrokerLimits, Limits
from gateway.link import Dial
from gateway.runtime.clock import clock, monotonic_time, wall_time
from gateway.runtime.ids import ids, random_bytes
from gateway.runtime.tasks import Tasks
from gateway.sasl import SALT_OCTETS, SaslError, no_scram_keys, scram_keys
from gateway.session import ScramKeys, ServerConfig, Session, Version
from gateway.telemetry import log
from gateway.upstreams.keeper import Dialer
from gateway.values import Table
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
SCRAM_SECRET: Final = 32
"""Octets of the secret from which users that do not exist have their keys."""


class Front:
    """One front.

    Args:
        name: as the configuration has it.
        settings: those of the front.
        brokers: of all brokers, by name.
        connector: opens streams to the upstream in place of TCP and TLS.
    """

    def __init__(
        self,
        name: str,
        settings: FrontSettings,
        brokers: Mapping[str, BrokerSettings],
        *,
        connector: Dial | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.counts = FrontCounts(name)
        self.limits: Limits = replace(
            DEFAULT_LIMITS,
            handshake_timeout=settings.handshake_timeout_seconds,
            message_max=settings.message_max,
            spool_max=max(DEFAULT_LIMITS.spool_max, 2 * settings.message_max),
            frame_elements=FRAME_ELEMENTS,
        )
        self.broker_limits: BrokerLimits = replace(
            DEFAULT_BROKER_LIMITS,
            connections=settings.connections,
            connections_per_address=settings.connections_per_address,
            stuck_timeout=settings.stuck_timeout_seconds,
        )
        self.turn = Turn(monotonic_time, self.broker_limits.turn)
        self.memory = Memory(settings.memory)
        self.logins = Logins()
        self.loopback_users: tuple[str, ...] = ()
        self.loop: asyncio.AbstractEventLoop
        self.clients: dict[int, FrontClient] = {}
        self.links: dict[str, list[SharedLink]] = {}
        """Broker -> its connections."""
        self._brokers = brokers
        self._connector = connector
        self._users = {user.name: user for user in settings.users}
        self._passwords = {user.name: _password(name, user) for user in settings.users}
        self._principals = {user.name: principal_of(user.name, user.scopes) for user in settings.users}
        self._scram_secret = random_bytes(SCRAM_SECRET)
        self._scram_keys: dict[str, ScramKeys] = {}
        self._dialers: dict[str, Dialer] = {}
        self._numbers = count(1)
        self._link_numbers = count(1)
        self._listener: Listener | None = None
        self._served: set[Served] = set()
        self._look: asyncio.TimerHandle | None = None
        self._tasks = Tasks("front")
        self._watching = Tasks("front broker files")
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopping_since: dict[FrontClient, float] = {}
        self.session_configs: Mapping[Version, ServerConfig] = self._configs()

    def _configs(self) -> dict[Version, ServerConfig]:
        properties: Table = {
            "product": "AMQP Gateway front (understands clients of RabbitMQ and Qpid)",
            "version": __version__,
            "platform": "Python",
        }
        config = ServerConfig(
            authenticate=self._authenticate,
            open_virtual_host=self._has_virtual_host,
            properties=properties,
            limits=self.limits,
            random_octets=random_bytes,
            wall_clock=wall_time,
            scram=self._scram,
        )
        allowed = self.settings.versions
        return {each.version: config for each in PROTOCOLS if not allowed or each.name in allowed}

    # ----------------------------------------------------------------------------------------- start, stop

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._listener is not None, "start() it first"
        return self._listener.port

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        """Listen. Raises ConfigurationError if the address is taken, or belongs to another machine."""
        self.loop = asyncio.get_running_loop()
        listener = Listener(self, context)
        try:
            await listener.start(self.settings.host, self.settings.port)
        except OSError as error:
            raise ConfigurationError(f"fronts.{self.name}.port {self.settings.port}: {error.strerror}") from None
        self._listener = listener
        log("front.listening", front=self.name, host=self.settings.host, port=listener.port)
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
        links = [link for each in self.links.values() for link in each]
        self.links.clear()
        for link in links:
            await link.close()
        await self._watching.close()
        await self._tasks.close(CLOSE_SECONDS)
        await listener.wait_closed()

    # ------------------------------------------------------------------------------------------- logins

    def _authenticate(self, user: str, password: str) -> bool:
        known = self._passwords.get(user)
        if known is None:
            return False
        return compare_digest(known.encode("utf-8", "surrogatepass"), password.encode("utf-8", "surrogatepass"))

    def _scram(self, user: str) -> ScramKeys:
        keys = self._scram_keys.get(user)
        if keys is None:
            password = self._passwords.get(user)
            try:
                if not password:
                    return no_scram_keys(user, self._scram_secret)
                keys = scram_keys(password, random_bytes(SALT_OCTETS))
            except SaslError:
                return no_scram_keys(user, self._scram_secret)
            self._scram_keys[user] = keys
        return keys

    def has_user(self, user: str) -> bool:
        """See :class:`~gateway.broker.served.ClientServer`."""
        return user in self._passwords

    def principal_of(self, user: str) -> Principal:
        """What a user may do."""
        return self._principals[user]

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
        report = self.logins.failed(address, user, clock.monotonic())
        if report is not None:
            self._log_failures(report, {"user": user[:USER_SHOWN], "reason": reason})

    def _log_failures(self, report: LoginReport, latest: Mapping[str, Any]) -> None:
        log(
            "front.login_refused", logging.WARNING,
            front=self.name, address=report.address, failures=report.failures, **latest,
        )  # fmt: skip

    # ------------------------------------------------------------------------------- asked by port and clients

    def connect(self, session: Session, wake: Callable[[], None], refusal: str) -> FrontClient:
        """See :class:`~gateway.broker.served.ClientServer`."""
        client = FrontClient(self, next(self._numbers), session, wake, refusal)
        client.since = clock.now()
        self.clients[client.number] = client
        return client

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
        self.clients.pop(client.number, None)
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

    def link_for(self, client: FrontClient) -> SharedLink:
        """The upstream connection for a client that has logged in."""
        broker = client.broker
        links = self.links.setdefault(broker, [])
        link = next((each for each in links if each.room > CHANNELS_KEPT), None)
        if link is None:
            if len(links) >= self.settings.upstream_connections:
                raise refused(506, f"all channels of {len(links)} connections to the broker are in use")
            link = SharedLink(self._dialer(broker), self.name, self.settings.rules, next(self._link_numbers))
            links.append(link)
        link.add(client)
        return link

    def _dialer(self, broker: str) -> Dialer:
        dialer = self._dialers.get(broker)
        if dialer is None:
            settings = self._brokers[broker]
            settings = msgspec.structs.replace(settings, message_max=max(settings.message_max, self.limits.message_max))
            dialer = self._dialers[broker] = Dialer(broker, settings, self._connector)
            self._watching.start(dialer.watch_files(), f"files of {broker}")
        return dialer

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
        for links in self.links.values():
            for link in list(links):
                if not link.clients and now - link.empty_since > IDLE_SECONDS:
                    links.remove(link)
                    self._tasks.start(link.close(), "idle front link")
        self._look = self.loop.call_later(LOOK_EVERY, self._look_after)


def _password(front: str, user: Any) -> str:
    """The password of a user. Raises ConfigurationError."""
    if not user.password_file:
        return str(user.password)
    try:
        return Path(user.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        where = f"fronts.{front}.users.{user.name}.password_file"
        raise ConfigurationError(f"{where}: {user.password_file}: {error}") from None
