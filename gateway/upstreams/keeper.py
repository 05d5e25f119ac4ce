"""Keeping a link alive: which version to try, how to connect, when to try again.

:class:`Dialer` opens one link in the version of the URL, to the node that was reached last, or to the next one that
can be reached (``hosts``). With ``auto`` it tries 0-9-1, then what the broker's protocol header asks for instead, then
the others, and remembers what it found for the links that follow.

:class:`Keeper` does that again whenever the link has ended, with pauses that double up to ``reconnect_max`` and
are drawn at random from nothing to the whole ("full jitter"), so that a thousand gateways do not come back at
once. A failure that waiting cannot fix (credentials, virtual host, certificate, a wrong setting) is tried only slowly,
and at once when one of the files has changed that the login needs. A broker that hangs up on the login has said
nothing: it is tried as one that is away, not too often at first, and counts as one that refuses us after :data:`CUTS`
times in a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from gateway.amqp.operations import Alert, Closed, CloseReason, UpdateSecret
from gateway.config import BrokerSettings, BrokerUrl, parse_broker_url, parse_host
from gateway.errors import (
    AddressDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    CertificateRefused,
    ConfigurationError,
    GatewayError,
    LoginCut,
    ProtocolMismatch,
)
from gateway.limits import Limits
from gateway.link import Dial, Link, describe
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.session import ClientConfig, Version
from gateway.transports.dial import Resolve, dial, tls_problem
from gateway.transports.stream import Stream, StreamUser
from gateway.transports.tls import stamps
from gateway.upstreams.redirects import REDIRECTS_MAX, RedirectRefused, allowed_places
from gateway.versions import AUTO_ORDER, client_session, version_named

SLOW_RETRY: Final = 60.0
"""Seconds between attempts that waiting will hardly fix."""
CUT_PAUSE: Final = 1.0
"""Pause after the first login that was cut, in seconds, doubled each time up to ``reconnect_max``: what hangs up may
count wrong passwords."""
CUTS: Final = 6
"""After so many logins in a row that were cut the broker counts as one that refuses us."""
SETTLED: Final = 10.0
"""Seconds that a link must have lasted for the pauses to begin small again."""
TLS_PROBLEM_SECONDS: Final = 1.0
"""How long to listen for the reason of a broker that hangs up on TLS, in seconds."""

FILES_EVERY: Final = 2.0
"""How often it is looked whether a file of password or certificates has changed, in seconds."""

_HOPELESS = (AddressDenied, AuthenticationFailed, CertificateRefused, ConfigurationError, RedirectRefused)
_OTHER_VERSION = frozenset({CloseReason.PROTOCOL_HEADER, CloseReason.SYNTAX, CloseReason.EOF, CloseReason.TIMEOUT})
"""How a handshake ends where the far end may speak another version."""


class Dialer:
    """Opens links to one broker."""

    def __init__(
        self, name: str, settings: BrokerSettings, connector: Dial | None = None, resolve: Resolve | None = None
    ) -> None:
        """``connector`` opens streams in place of TCP and TLS; ``resolve`` says to which addresses, None: any."""
        self.name = name
        self.settings = settings
        self.url: BrokerUrl = url_of(settings)
        self.found = ""
        """What ``auto`` found, as a sentence."""
        self.alert = ""
        """What the broker has warned of last, on any link."""
        self.on_files: list[Callable[[], None]] = []
        """Called when a file of password or certificates is another one than before."""
        self._connector = connector
        self._resolve = resolve
        self._passwords: WeakKeyDictionary[Link, str] = WeakKeyDictionary()
        """What the brokers of the links that were opened know."""
        for entry in settings.redirect_hosts:
            parse_host(entry)
        self._places = [self.url, *(_node(self.url, entry) for entry in settings.hosts)]
        """The URL, and those of further nodes."""
        self._place = 0
        """Where the next attempt begins."""
        self._version = None if self.url.version == "auto" else version_named(self.url.version)
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
            AuthenticationFailed, LoginCut, CertificateRefused, ProtocolMismatch, BrokerUnavailable: it could not be
                had.
            ConfigurationError: a password or TLS file is missing or wrong.
        """
        try:
            if self._version is not None and not self.auto:
                return await self._try(self._version, purpose)
            async with self._choosing:
                return await self._choose(purpose)
        except GatewayError:
            self._place += 1
            raise

    async def _choose(self, purpose: str) -> Link:
        order = [version for version in (self._version, *AUTO_ORDER) if version is not None]
        tried: list[str] = []
        last = ""
        while order:
            version = order.pop(0)
            if version.value in tried:
                continue
            tried.append(version.value)
            link, error = await self._reach(version, purpose)
            if error is not None:
                ended = link.ended
                if ended is None or ended.reason not in _OTHER_VERSION or isinstance(error, _HOPELESS):
                    try:
                        raise error
                    finally:
                        del link, error  # both hold the error, which holds this frame
                log("broker.other_version", broker=self.name, version=version.value, reason=str(error))
                if ended.supported is not None:
                    order.insert(0, version_named(ended.supported))
                last = describe(ended)
            else:
                self._version = version
                product = f"{link.capabilities.product} {link.capabilities.product_version}".strip()
                self.found = f"found {version.value}" + (f" ({product})" if product else "")
                return link
        raise ProtocolMismatch(f"none of {', '.join(tried)} is spoken there: {last}")

    async def _try(self, version: Version, purpose: str) -> Link:
        link, error = await self._reach(version, purpose)
        try:
            if error is not None:
                raise error
            return link
        finally:
            del link, error  # both hold the error, which holds this frame

    async def attempt(self, version: Version) -> tuple[Link, GatewayError | None]:
        """Try one version, for a probe: the link, and why it is not open if it is not."""
        return await self._reach(version, "probe")

    async def _reach(self, version: Version, purpose: str) -> tuple[Link, GatewayError | None]:
        """The last link that was tried in this version, and why it is not open if it is not: at the first of the
        broker's nodes that can be reached, and where that sends us as far as the settings allow it. ``connect_timeout``
        is for all of them together."""
        within = self.settings.connect_timeout / len(self._places)
        first = self._place % len(self._places)
        nodes = self._places[first:] + self._places[:first]
        while True:
            url = nodes.pop(0)
            link, error = await self._reach_node(version, purpose, url, within)
            if error is None:
                self._place = self._places.index(url)
            elif nodes and link.stream is None:  # nobody has answered there
                log("broker.next_host", broker=self.name, host=url.host, port=url.port, reason=str(error))
                continue
            return link, error

    async def _reach_node(
        self, version: Version, purpose: str, node: BrokerUrl, within: float
    ) -> tuple[Link, GatewayError | None]:
        """The same at one node, and where that sends us."""
        deadline = clock.monotonic() + within
        places, tried = [node], 0
        while True:
            url = places.pop(0)
            config = self.client_config(purpose, url)
            link = Link(client_session(version, config))
            error: GatewayError
            try:
                await self._open(link, url, within)
            except GatewayError as caught:
                error = caught.with_traceback(None)  # it holds this frame, which holds the error
            else:
                self._passwords[link] = config.password
                link.on_alert = self._alerted
                return link, None
            if link.ended is not None and link.ended.redirect:
                log("broker.redirected", broker=self.name, host=url.host, port=url.port, to=link.ended.redirect[0])
                try:
                    places = allowed_places(url, link.ended.redirect, self.settings.redirect_hosts)
                except RedirectRefused as refused:
                    return link, refused
                if tried >= REDIRECTS_MAX:
                    return link, RedirectRefused(f"the broker sends its clients on more than {REDIRECTS_MAX} times")
            within = deadline - clock.monotonic()
            if not places or tried >= REDIRECTS_MAX or within <= 0:
                return link, error
            tried += 1

    async def _open(self, link: Link, url: BrokerUrl, within: float) -> None:
        """Open a link; where the broker hangs up on TLS before its first word, find out whether TLS is why."""
        deadline = clock.monotonic() + within
        tls, resolve = self.settings.tls, self._resolve

        async def connect(user: StreamUser, within: float) -> Stream:
            return await dial(user, url, tls, within, resolve)

        try:
            await link.open(self._connector or connect, within)
        except BrokerUnavailable:
            silent = link.ended is not None and link.ended.reason is CloseReason.EOF and not link.capabilities.product
            if silent and url.secure and self._connector is None:
                within = min(TLS_PROBLEM_SECONDS, deadline - clock.monotonic())
                problem = await tls_problem(url, tls, within, resolve)
                if problem is not None:
                    raise problem from None
            raise

    def client_config(self, purpose: str, url: BrokerUrl | None = None) -> ClientConfig:
        """How sessions to this broker open, at its own URL or another one that stands for it. The password file is read
        each time: passwords change."""
        settings, url = self.settings, url or self.url
        limits = Limits(
            heartbeat=settings.heartbeat,
            handshake_timeout=settings.connect_timeout,
            message_max=settings.message_max,
        )
        config = ClientConfig(
            user=url.user,
            password=self.password(),
            virtual_host=url.virtual_host,
            secure=url.secure or settings.allow_plain_without_tls or is_loopback(url.host),
            connection_name=connection_name(self.name, purpose),
            limits=replace(limits, spool_max=max(limits.spool_max, 2 * settings.message_max)),
            heartbeat=settings.heartbeat,
            dialect=settings.dialect or url.dialect or None,
            random_octets=lambda size: ids.random_bytes(size),
            wall_clock=lambda: clock.now(),
            insist=not settings.redirect_hosts,
            realm=settings.realm,
        )
        return replace(config, mechanisms=settings.mechanisms) if settings.mechanisms else config

    def password(self) -> str:
        """As it is now.

        Raises:
            ConfigurationError: the file is missing or is no text.
        """
        path = self.settings.password_file
        if not path:
            return self.settings.password or self.url.password
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"brokers.{self.name}.password_file: {path}: {error}") from None

    def _alerted(self, alert: Alert) -> None:
        self.alert = f"{alert.code} {alert.text}"
        log("broker.alert", logging.WARNING, broker=self.name, code=alert.code, text=alert.text)

    async def renew(self) -> None:
        """Tell the open links a password that has changed, as far as their brokers can be told. One that refuses it
        ends the link, which is then opened again with it.

        Raises:
            ConfigurationError: see :meth:`password`.
        """
        password = self.password()
        for link, known in list(self._passwords.items()):
            if known == password or link.ended is not None or link.closing:
                continue
            self._passwords[link] = password
            if not link.capabilities.update_secret:
                continue
            try:
                await link.request(UpdateSecret(0, password, "the password file has changed"))
            except GatewayError as error:
                log("broker.secret_refused", logging.WARNING, broker=self.name, reason=str(error))
            else:
                log("broker.secret_updated", broker=self.name)

    async def watch_files(self) -> None:
        """Look after the files of password and certificates, until cancelled: tell of those that have changed, and
        :meth:`renew`. Every link reads them when it is opened; those that are open go on."""
        settings, tls = self.settings, self.settings.tls
        secure = (tls.ca_file, tls.cert_file, tls.key_file) if self.url.secure else ()
        files = [file for file in (settings.password_file, *secure) if file]
        seen = stamps(files)
        while files:
            await clock.sleep(FILES_EVERY)
            before, seen = seen, stamps(files)
            if seen != before:
                log("broker.files_changed", broker=self.name)
                for tell in self.on_files:
                    tell()
            try:
                await self.renew()
            except ConfigurationError as error:
                log("broker.password_file", logging.WARNING, broker=self.name, reason=str(error))


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
        """The last attempt failed in a way that waiting will hardly fix."""
        self.code = ""
        """Code of the error that the last attempt failed with; empty: it came to a link."""
        self._dialer = dialer
        self._up = up
        self._down = down
        self._cuts = 0
        """How many logins in a row were cut."""
        self._backoff = Backoff(dialer.settings.reconnect_min, dialer.settings.reconnect_max, jitter=1.0)
        self._after_cuts = Backoff(CUT_PAUSE, dialer.settings.reconnect_max)
        self._hurry = asyncio.Event()
        dialer.on_files.append(self._hurry.set)

    def use(self, dialer: Dialer) -> None:
        """Open the next link with other settings. The link that there is stays until somebody ends it."""
        self._dialer = dialer
        self._backoff = Backoff(dialer.settings.reconnect_min, dialer.settings.reconnect_max, jitter=1.0)
        self._after_cuts = Backoff(CUT_PAUSE, dialer.settings.reconnect_max)
        dialer.on_files.append(self._hurry.set)
        self._hurry.set()

    async def run(self) -> None:
        """Connect, wait for the end, and again; until cancelled, which closes the link."""
        while True:
            began = clock.monotonic()
            reason = await self._once()
            if clock.monotonic() - began > SETTLED and not self.hopeless:
                self._backoff.reset()
            self._down(reason)
            wait = self._pause()
            broker, connection = self._dialer.name, connection_name(self._dialer.name, self.purpose)
            log("broker.link_down", broker=broker, connection=connection, reason=reason, again_in=round(wait, 2))
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()

    def _pause(self) -> float:
        """Return for how many seconds to wait before the next attempt."""
        usual = self._backoff.next()
        if self._cuts:
            self._after_cuts.failures = self._cuts - 1
            return self._after_cuts.next()
        return max(SLOW_RETRY, self._dialer.settings.reconnect_max) if self.hopeless else usual

    async def _once(self) -> str:
        """One link from its beginning to its end; why it ended."""
        self.hopeless = False
        try:
            link = await self._dialer.open(self.purpose)
        except GatewayError as error:
            self._cuts = min(self._cuts + 1, CUTS + 1) if isinstance(error, LoginCut) else 0
            self.hopeless = isinstance(error, _HOPELESS) or self._cuts >= CUTS
            self.code = error.code
            return str(error)
        except Exception as error:  # a fault of ours must not end the trying
            return self._fault(error)
        self._cuts, self.code = 0, ""
        over: asyncio.Future[str] = link.loop.create_future()

        def ended(closed: Closed) -> None:
            if not over.done():  # else this was cancelled in the same turn
                over.set_result(describe(closed))

        link.on_closed = ended
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
        connection = connection_name(self._dialer.name, self.purpose)
        log("broker.fault", logging.ERROR, exc_info=error, broker=self._dialer.name, connection=connection)
        return f"internal error: {error!r}"


def connection_name(broker: str, purpose: str) -> str:
    """A connection as the broker shows it, and as logs name it."""
    return f"gateway {broker} {purpose}"


def url_of(settings: BrokerSettings) -> BrokerUrl:
    """The URL of a broker, taken apart. Where only EXTERNAL and ANONYMOUS are allowed, a user that it does not name is
    nobody: we do not know as whom the broker takes us. Raises :class:`~gateway.errors.ConfigurationError`."""
    url = parse_broker_url(settings.url)
    unnamed = bool(settings.mechanisms) and set(settings.mechanisms) <= {"EXTERNAL", "ANONYMOUS"}
    if unnamed and (urlsplit(settings.url).username is None or set(settings.mechanisms) == {"ANONYMOUS"}):
        return msgspec.structs.replace(url, user="", password="")
    return url


def _node(url: BrokerUrl, host: str) -> BrokerUrl:
    """The URL of another node of a broker. Raises ConfigurationError: it is no host."""
    name, port = parse_host(host)
    return msgspec.structs.replace(url, host=name, port=url.port if port is None else port)


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine, so that what is sent in clear is seen by nobody."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
