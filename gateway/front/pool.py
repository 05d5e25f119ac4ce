"""Upstream connections of a front, by the login that they have at the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hmac import digest
from itertools import count
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from gateway.config import BrokerSettings, FrontSettings
from gateway.errors import AuthenticationFailed, LoginCut
from gateway.front.channels.refusals import refused
from gateway.front.client import FrontClient, Login
from gateway.front.counts import FrontCounts
from gateway.front.handed import HandedMemory
from gateway.front.links import CHANNELS_KEPT, CLOSE_SECONDS, IDLE_SECONDS, SharedLink
from gateway.link import Dial
from gateway.runtime.clock import clock
from gateway.runtime.ids import random_bytes
from gateway.runtime.tasks import Tasks
from gateway.upstreams.keeper import Dialer

LOGINS_AT_ONCE: Final = 64
"""Most logins that the broker is asked about at the same time."""
SECRET_OCTETS: Final = 32


class LinkPool:
    """The upstream connections of one front."""

    def __init__(
        self,
        settings: FrontSettings,
        brokers: Mapping[str, BrokerSettings],
        counts: FrontCounts,
        connector: Dial | None,
    ) -> None:
        self.links: dict[Login, list[SharedLink]] = {}
        self._settings = settings
        self._brokers = brokers
        self._counts = counts
        self._connector = connector
        self._dialers: dict[Login, Dialer] = {}
        self._handed: dict[str, HandedMemory] = {}
        """By broker."""
        self._numbers = count(1)
        self._secret = random_bytes(SECRET_OCTETS)
        self._asked = 0
        self._closing = Tasks("front links")
        self._watching = Tasks("front broker files")
        self._watchers: dict[Login, asyncio.Task[None]] = {}

    def link_for(self, client: FrontClient) -> SharedLink:
        """The connection for a client that has logged in.

        Raises:
            RemoteError: there are too many, or none may be had.
        """
        login = client.login or Login(client.access.broker)
        links = self.links.setdefault(login, [])
        link = next((each for each in links if each.room > CHANNELS_KEPT), None)
        if link is None:
            if len(links) >= self._settings.upstream_connections:
                raise refused(506, f"all channels of {len(links)} connections to the broker are in use")
            link = self._open(login, links)
        link.add(client)
        return link

    def login_of(self, broker: str, user: str, password: str) -> Login:
        """A client's own login, as the key of its connections."""
        octets = password.encode("utf-8", "surrogatepass")
        return Login(broker, user, digest(self._secret, octets, "sha256"))

    def knows(self, login: Login) -> bool:
        """Whether the broker has taken that login, and not refused it since."""
        known = next((link for link in self.links.get(login, ()) if link.is_accepted), None)
        if known is not None:
            known.empty_since = clock.monotonic()  # the client is on its way
        return known is not None

    async def ask(self, login: Login, password: str, within: float) -> str | None:
        """Log in at the broker as a client does. Clients with the same login wait for the same answer.

        Returns:
            Why nobody could tell; empty: the broker has refused the login; None: it has taken it.
        """
        links = self.links.setdefault(login, [])
        if not links:
            if self._asked >= LOGINS_AT_ONCE or len(self.links) > self._settings.logins:
                del self.links[login]
                return "there are too many different logins at once"
            self._dialers[login] = self._dialer(login, password)
            self._open(login, links)
        link = links[0]
        self._asked += 1
        link.expected += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await link.changed.wait()
        finally:
            self._asked -= 1
            link.expected -= 1
        if link.is_accepted:
            return None
        if not link.is_needed:
            self._forget(login, link)
        if link.keeper.code == LoginCut.code:
            return "the broker hung up on the login: it does not take it, or starts or stops just now"
        return "" if link.keeper.code == AuthenticationFailed.code else "the broker is away, and cannot check the login"

    def use(self, settings: FrontSettings, brokers: Mapping[str, BrokerSettings]) -> None:
        """Go on with other settings. Connections to a broker that has changed are opened again."""
        rules_before, self._settings = self._settings.rules, settings
        before, self._brokers = self._brokers, brokers
        for login, dialer in list(self._dialers.items()):
            if brokers[login.broker] == before[login.broker]:
                continue
            self._dialers[login] = other = self._dialer(login, dialer.url.password)
            if not login.user:
                self._watch(login, other)
            for link in self.links.get(login, ()):
                link.use(other)
        if settings.rules != rules_before:
            for link in self.all():
                link.use_rules(settings.rules)

    def all(self) -> Iterator[SharedLink]:
        """All connections."""
        for links in self.links.values():
            yield from links

    def close_idle(self, now: float) -> None:
        """Close the connections that nobody has needed for a while."""
        for login, links in list(self.links.items()):
            for link in list(links):
                if not link.is_needed and now - link.empty_since > IDLE_SECONDS:
                    self._forget(login, link)

    async def close(self) -> None:
        """Close all."""
        links = list(self.all())
        self.links.clear()
        await self._watching.close()
        for link in links:
            await link.close()
        await self._closing.close(CLOSE_SECONDS)

    def _open(self, login: Login, links: list[SharedLink]) -> SharedLink:
        dialer = self._dialers.get(login)
        if dialer is None:
            if login.user:
                raise refused(320, "the broker has refused this login in the meantime")
            dialer = self._dialers[login] = self._dialer(login)
            self._watch(login, dialer)
        link = SharedLink(
            dialer, self._settings.rules, next(self._numbers), self._counts,
            self._handed.setdefault(login.broker, HandedMemory()), bool(login.user),
            self._settings.upstream_connections,
        )  # fmt: skip
        links.append(link)
        return link

    def _watch(self, login: Login, dialer: Dialer) -> None:
        """Look after the files of a broker's login, in place of those of before."""
        before = self._watchers.pop(login, None)
        if before is not None:
            before.cancel()
        self._watchers[login] = self._watching.start(dialer.watch_files(), f"files of {login.broker}")

    def _dialer(self, login: Login, password: str = "") -> Dialer:
        settings = self._brokers[login.broker]
        settings = msgspec.structs.replace(
            settings, message_max=max(settings.message_max, self._settings.message_max)
        )  # fmt: skip
        return Dialer(
            login.broker, as_user(settings, login.user, password) if login.user else settings, self._connector
        )

    def _forget(self, login: Login, link: SharedLink) -> None:
        links = self.links.get(login, [])
        if link not in links:
            return
        links.remove(link)
        if not links:
            del self.links[login]
            if login.user:
                self._dialers.pop(login, None)
        self._closing.start(link.close(), "idle front link")


def as_user(settings: BrokerSettings, user: str, password: str) -> BrokerSettings:
    """The settings of a broker, with another login."""
    parts = urlsplit(settings.url)
    place = parts.netloc.rpartition("@")[2]
    return msgspec.structs.replace(
        settings,
        url=urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{place}")),
        password="",
        password_file="",
        mechanisms=tuple(name for name in settings.mechanisms if name not in ("EXTERNAL", "ANONYMOUS")),
    )
