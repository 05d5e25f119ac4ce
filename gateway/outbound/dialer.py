"""From a site to a connection, through the guard.

The host is resolved once; if *any* of its addresses is denied, nothing is connected to, for an answer that mixes public
and private addresses is an attack or a mistake. Then the very addresses that were judged are connected to, as numbers:
nobody is asked a second time, so a name that points elsewhere a moment later (DNS rebinding) changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from gateway.budgets import ShareHolder
from gateway.config import EndpointTls, TlsSettings
from gateway.errors import AddressDenied, ConnectFailed, OutboundFailed, ResolveFailed, TlsFailed
from gateway.outbound.addresses import Address, parse_address
from gateway.outbound.connection import HttpConnection
from gateway.outbound.hosts import OutboundRules, Site
from gateway.outbound.limits import OutboundLimits
from gateway.outbound.resolver import NOBODY, Resolver, SystemResolver
from gateway.runtime.clock import clock
from gateway.transports import client_context

Dial = Callable[[Address, int], Awaitable[socket.socket]]
"""Connects to one address and port. Raises OSError."""

Tls = TlsSettings | EndpointTls
"""Authorities and client certificate, in files or as texts."""

SOONER: Final = 0.05
"""How much sooner than the connection the lookup is given up, in seconds: the resolver knows what it waited for."""
CONTEXTS: Final = 64
"""TLS contexts that are kept: one per set of files and texts."""


async def dial(address: Address, port: int) -> socket.socket:
    """A connected, non-blocking TCP socket."""
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def is_ours(address: Address) -> bool:
    """Whether it is an address of this machine: nobody can bind to another's."""
    if address.is_loopback or address.is_unspecified:
        return True
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class GuardedDialer:
    """Opens connections that the rules allow."""

    def __init__(
        self, rules: OutboundRules, limits: OutboundLimits, resolve: Resolver | SystemResolver, dial: Dial
    ) -> None:
        self._rules = rules
        self._limits = limits
        self._resolve = resolve
        self._dial = dial
        self._context = lru_cache(CONTEXTS)(_context)

    async def open(
        self, site: Site, tls: Tls, connection: HttpConnection, deadline: float, client: ShareHolder = NOBODY
    ) -> None:
        """Connect to the site, before ``deadline`` (of the loop's clock) and within ``connect_timeout``.

        Args:
            client: whose share of the lookups is used.

        Raises:
            Overloaded: there was no place to look the host up. Nobody was asked.
            AddressDenied: the host, or one of its addresses, is not allowed.
            ResolveFailed: it has no address.
            ConnectFailed: none of them takes the connection.
            TlsFailed: no TLS, or none that can be trusted.
            ConfigurationError: a file of ``tls`` is missing or wrong.
        """
        began = clock.monotonic()
        until = min(deadline, began + self._limits.connect_timeout)
        late: type[OutboundFailed] = ResolveFailed
        try:
            async with asyncio.timeout_at(until):
                addresses = await self.addresses_of(site, client, until - began)
                late = ConnectFailed
                sock = await self._connect(site, addresses, until)
                late = TlsFailed
                await self._join(site, tls, connection, sock)
        except TimeoutError:
            raise late(f"{site}: {_LATE[late]} within {until - began:.1f} s") from None

    async def addresses_of(self, site: Site, client: ShareHolder, within: float) -> list[Address]:
        """All addresses of the host, every one of them allowed. Callers are not told whether a name has none or one
        that is denied: they could else explore the names of the network.

        Args:
            client: whose share of the lookups is used.
            within: how long the lookup may take, in seconds.

        Raises:
            Overloaded, AddressDenied, ResolveFailed: as :meth:`open`.
        """
        try:
            return await self._judged(site, client, within)
        except (AddressDenied, ResolveFailed) as error:
            if site.literal is None:
                error.public = ResolveFailed(f"{site.host}: the host has no address that the gateway may call")
            raise

    async def _judged(self, site: Site, client: ShareHolder, within: float) -> list[Address]:
        """All addresses of the host, every one of them allowed."""
        if site.literal is not None:
            self._check(site, site.literal)
            return [site.literal]
        found = []
        for text in await self._look_up(site.host, client, within):
            address = parse_address(text)
            if address is None:
                raise AddressDenied(f"{site}: the resolver answered {text[:80]!r}, which is no address or has a zone")
            self._check(site, address)
            found.append(address)
        if not found:
            raise ResolveFailed(f"{site}: the host has no address")
        return found

    async def _look_up(self, host: str, client: ShareHolder, within: float) -> Sequence[str]:
        if isinstance(self._resolve, SystemResolver):
            return await self._resolve(host, client, max(0.0, within - SOONER))
        return await self._resolve(host)

    def _check(self, site: Site, address: Address) -> None:
        """Raises AddressDenied where the rules do not allow the address, or this process listens there itself."""
        self._rules.check_address(site, address)
        if site.port in self._rules.own_ports and is_ours(address):
            raise AddressDenied(f"{site}: {address} port {site.port} is this gateway itself, which no setting allows")

    async def _connect(self, site: Site, addresses: list[Address], until: float) -> socket.socket:
        """The first address that takes it; each has its share of the time that is left."""
        tried = addresses[: self._limits.addresses]
        why = ""
        for number, address in enumerate(tried):
            share = (until - clock.monotonic()) / (len(tried) - number)
            try:
                async with asyncio.timeout(share):
                    return await self._dial(address, site.port)
            except TimeoutError:
                why = f"no connection within {share:.1f} s"
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else str(error)
        more = f" (and {len(tried) - 1} more)" if len(tried) > 1 else ""
        failed = ConnectFailed(f"{site}: {address}: {why}{more}")
        if site.literal is None:
            failed.public = ConnectFailed(f"{site}: {why}")
        raise failed

    async def _join(self, site: Site, tls: Tls, connection: HttpConnection, sock: socket.socket) -> None:
        """Join the connection and a connected socket, after the TLS handshake where there is one."""
        loop = asyncio.get_running_loop()
        try:
            context = self._context(tls, _stamps(tls)) if site.secure else None
            name = (tls.server_name or site.host) if site.secure else None
            await loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            sock.close()
            raise TlsFailed(f"{site}: the certificate does not verify: {error.verify_message}") from None
        except ssl.SSLError as error:
            sock.close()
            raise TlsFailed(f"{site}: TLS failed: {error.reason or error}") from None
        except OSError as error:
            sock.close()
            why = os.strerror(error.errno) if error.errno else str(error)
            kind, what = (TlsFailed, "the handshake of TLS") if site.secure else (ConnectFailed, "connecting")
            raise kind(f"{site}: the far end hung up in {what}: {why}") from None
        except BaseException:
            sock.close()
            raise


_LATE: Final = {ResolveFailed: "no addresses", ConnectFailed: "no connection", TlsFailed: "no end of the TLS handshake"}


def _context(tls: Tls, stamps: tuple[int, ...]) -> ssl.SSLContext:
    """The context for these settings, as long as their files have these time stamps."""
    context = client_context(tls)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _stamps(tls: Tls) -> tuple[int, ...]:
    """When the files were last written: a certificate that was renewed is used by the next connection."""
    files = (tls.ca_file, tls.cert_file, tls.key_file)
    return tuple(Path(name).stat().st_mtime_ns if name and Path(name).exists() else 0 for name in files)
