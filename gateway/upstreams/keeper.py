"""Keeping a link alive: which version to try, how to connect, when to try again.

:class:`Dialer` opens one link in the version of the URL. With ``auto`` it tries 0-9-1, then what the broker's
protocol header asks for instead, then the others, and remembers what it found for the links that follow.

:class:`Keeper` does that again whenever the link has ended, with pauses that double up to ``reconnect_max`` and
are drawn at random from nothing to the whole ("full jitter"), so that a thousand gateways do not come back at
once. What waiting cannot mend (credentials, virtual host, certificate, a wrong setting) is tried only slowly.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gateway.config import BrokerSettings, BrokerUrl, parse_broker_url
from gateway.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    ConfigurationError,
    GatewayError,
    ProtocolMismatch,
)
from gateway.limits import Limits
from gateway.link import Dial, Link, describe
from gateway.operations import CloseReason
from gateway.session import ClientConfig, Version
from gateway.telemetry import log
from gateway.transports.dial import CertificateRefused, dial, tls_verdict
from gateway.transports.stream import Stream, StreamUser
from gateway.versions import AUTO_ORDER, client_session

SLOW_RETRY: Final = 60.0
"""Seconds between attempts that waiting will hardly mend."""
SETTLED: Final = 10.0
"""Seconds that a link must have lasted for the pauses to begin small again."""
VERDICT: Final = 1.0
"""How long to listen for the reason of a broker that hangs up on TLS, in seconds."""

_HOPELESS = (AuthenticationFailed, CertificateRefused, ConfigurationError)
_OTHER_VERSION = frozenset({CloseReason.PROTOCOL_HEADER, CloseReason.SYNTAX, CloseReason.EOF, CloseReason.TIMEOUT})
"""How a handshake ends where the far end may speak another version."""


class Dialer:
    """Opens links to one broker."""

    def __init__(self, name: str, settings: BrokerSettings, connector: Dial | None = None) -> None:
        self.name = name
        self.settings = settings
        self.url: BrokerUrl = parse_broker_url(settings.url)
        self.found = ""
        """What ``auto`` found, as a sentence."""
        self._dials = connector is None
        self._connector = connector if connector is not None else self._dial
        self._version = None if self.url.version == "auto" else Version(self.url.version)
        self._choosing = asyncio.Lock()
        if self.url.secure and settings.tls.dangerous_disable_verification:
            log("broker.tls_not_verified", logging.WARNING, broker=name, host=self.url.host)

    @property
    def auto(self) -> bool:
        """The version is found out, not given."""
        return self.url.version == "auto"

    async def open(self, purpose: str) -> Link:
        """A link that is open. ``purpose`` is part of the connection's name.

        Raises:
            AuthenticationFailed, CertificateRefused, ProtocolMismatch, BrokerUnavailable: it could not be had.
            ConfigurationError: a password or TLS file is missing or wrong.
        """
        if self._version is not None and not self.auto:
            return await self._try(self._version, purpose)
        async with self._choosing:
            return await self._choose(purpose)

    async def _choose(self, purpose: str) -> Link:
        order = [version for version in (self._version, *AUTO_ORDER) if version is not None]
        tried: list[str] = []
        last = ""
        while order:
            version = order.pop(0)
            if version.value in tried:
                continue
            tried.append(version.value)
            link = self._link(version, purpose)
            try:
                await self._open(link)
            except BrokerUnavailable as error:
                ended = link.ended
                if ended is None or ended.reason not in _OTHER_VERSION or isinstance(error, CertificateRefused):
                    raise
                log("broker.other_version", broker=self.name, version=version.value, reason=str(error))
                if ended.supported is not None:
                    order.insert(0, Version(ended.supported))
                last = describe(ended)
            else:
                self._version = version
                product = f"{link.capabilities.product} {link.capabilities.product_version}".strip()
                self.found = f"found {version.value}" + (f" ({product})" if product else "")
                return link
        raise ProtocolMismatch(f"none of {', '.join(tried)} is spoken there: {last}")

    async def _try(self, version: Version, purpose: str) -> Link:
        link = self._link(version, purpose)
        await self._open(link)
        return link

    async def _open(self, link: Link) -> None:
        """Open a link; where the broker hangs up on TLS before its first word, find out whether TLS is why."""
        within = self.settings.connect_timeout
        deadline = link.loop.time() + within
        try:
            await link.open(self._connector, within)
        except BrokerUnavailable:
            silent = link.ended is not None and link.ended.reason is CloseReason.EOF and not link.capabilities.product
            if silent and self.url.secure and self._dials:
                verdict = await tls_verdict(self.url, self.settings.tls, min(VERDICT, deadline - link.loop.time()))
                if verdict is not None:
                    raise verdict from None
            raise

    def _link(self, version: Version, purpose: str) -> Link:
        return Link(client_session(version, self.client_config(purpose)))

    async def attempt(self, version: Version) -> tuple[Link, GatewayError | None]:
        """Try one version, for a probe: the link, and why it is not open if it is not."""
        link = self._link(version, "probe")
        try:
            await self._open(link)
        except GatewayError as error:
            return link, error
        return link, None

    def client_config(self, purpose: str) -> ClientConfig:
        """How sessions to this broker open. The password file is read each time: passwords change."""
        settings, url = self.settings, self.url
        limits = Limits(
            heartbeat=settings.heartbeat,
            handshake_timeout=settings.connect_timeout,
            message_max=settings.message_max,
        )
        config = ClientConfig(
            user=url.user,
            password=self._password(),
            virtual_host=url.virtual_host,
            secure=url.secure or settings.allow_plain_without_tls or is_loopback(url.host),
            connection_name=f"gateway {self.name} {purpose}",
            limits=replace(limits, spool_max=max(limits.spool_max, 2 * settings.message_max)),
            heartbeat=settings.heartbeat,
            dialect=settings.dialect or None,
            random_octets=os.urandom,
            wall_clock=time.time,
        )
        return replace(config, mechanisms=settings.mechanisms) if settings.mechanisms else config

    def _password(self) -> str:
        path = self.settings.password_file
        if not path:
            return self.url.password
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"brokers.{self.name}.password_file: {path}: {error}") from None

    async def _dial(self, user: StreamUser, within: float) -> Stream:
        return await dial(user, self.url, self.settings.tls, within)


class Keeper:
    """Keeps one link to a broker; :meth:`run` is its life."""

    def __init__(
        self,
        dialer: Dialer,
        purpose: str,
        *,
        up: Callable[[Link], Awaitable[None]],
        down: Callable[[str], None],
    ) -> None:
        self.purpose = purpose
        self.link: Link | None = None
        """The link, while it is up."""
        self.hopeless = False
        """The last attempt failed in a way that waiting will hardly mend."""
        self._dialer = dialer
        self._up = up
        self._down = down

    async def run(self) -> None:
        """Connect, wait for the end, and again; until cancelled, which closes the link."""
        settings = self._dialer.settings
        loop = asyncio.get_running_loop()
        pause = settings.reconnect_min
        while True:
            began = loop.time()
            reason = await self._once()
            if loop.time() - began > SETTLED and not self.hopeless:
                pause = settings.reconnect_min
            self._down(reason)
            wait = max(SLOW_RETRY, settings.reconnect_max) if self.hopeless else random.uniform(0, pause)  # noqa: S311
            log("broker.link_down", broker=self._dialer.name, link=self.purpose, reason=reason, again_in=round(wait, 2))
            await asyncio.sleep(wait)
            pause = min(pause * 2, settings.reconnect_max)

    async def _once(self) -> str:
        """One link from its beginning to its end; why it ended."""
        self.hopeless = False
        try:
            link = await self._dialer.open(self.purpose)
        except _HOPELESS as error:
            self.hopeless = True
            return str(error)
        except GatewayError as error:
            return str(error)
        except Exception as error:  # a fault of ours must not end the trying
            return self._fault(error)
        over: asyncio.Future[str] = link.loop.create_future()
        link.on_closed = lambda closed: over.set_result(describe(closed))
        if link.ended is not None:  # between its opening and our coming to look
            return describe(link.ended)
        try:
            self.link = link
            try:
                await self._up(link)
            except GatewayError as error:
                return str(error)
            except Exception as error:  # as above
                return self._fault(error)
            return await over
        finally:
            self.link = link.on_closed = None
            if link.ended is None:
                await link.close()

    def _fault(self, error: Exception) -> str:
        log("broker.fault", logging.ERROR, exc_info=error, broker=self._dialer.name, link=self.purpose)
        return f"internal error: {error!r}"


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine, so that what is sent in clear is seen by nobody."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
