"""The gateway's own HTTP client: for URLs that somebody else chose.

:class:`GuardedTransport` sends one request and reads one answer, under :class:`~gateway.outbound.hosts.OutboundRules`
and :class:`~gateway.outbound.limits.OutboundLimits`: HTTP/1.1, no redirect followed, no proxy, no cookie, nothing
decompressed, one deadline over everything. :meth:`~GuardedTransport.send` is the quick way in; as a transport of httpx
it does the same for code that wants an ``httpx.AsyncClient`` (:func:`guarded_client`).

**When a request is sent twice.** A server may close a kept connection at the moment when a request is on its way. If
not one octet of an answer came, the server has most likely not seen the request, but nobody can know. So the request
goes out once more, on a new connection and within the same deadline, only if repeating it is harmless: by its method
(RFC 9110 section 9.2.2), or because the caller says so (``repeatable``: the receiver knows a repeat by its id). The
answer then says ``resent``. What failed on a fresh connection, or after the first octet of an answer, is never repeated
here. A kept connection that is known to be closed, or on which anything came that nobody asked for, is not used at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Final

import httpx

from gateway.budgets import Holdings, ShareHolder
from gateway.config import TlsSettings
from gateway.errors import AnswerCut, StateError
from gateway.outbound.answers import HttpAnswer
from gateway.outbound.connection import HttpConnection
from gateway.outbound.dialer import Dial, GuardedDialer, Tls, dial
from gateway.outbound.hosts import OutboundRules, Site, split_url
from gateway.outbound.limits import DEFAULT_OUTBOUND_LIMITS, OutboundLimits
from gateway.outbound.pool import Pool
from gateway.outbound.requests import IDEMPOTENT, OURS, Headers, request_line, request_octets
from gateway.outbound.resolver import NOBODY, Resolver, SystemResolver
from gateway.runtime.clock import clock

URLS: Final = 1_024
"""URLs whose parts are remembered."""
NO_TLS_SETTINGS: Final = TlsSettings()
NOT_FOR_HTTPX: Final = frozenset({b"content-encoding", b"set-cookie"})
"""Headers of an answer that httpx would act upon, by decompressing the body and by keeping cookies."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """See the module. Belongs to the event loop on which it is made."""

    def __init__(
        self,
        rules: OutboundRules | None = None,
        limits: OutboundLimits = DEFAULT_OUTBOUND_LIMITS,
        *,
        tls: Tls = NO_TLS_SETTINGS,
        resolve: Resolver | None = None,
        dial: Dial = dial,
        lookups: Holdings | None = None,
    ) -> None:
        """
        Args:
            lookups: places for lookups by the system's resolver, and each client's share; None: by ``limits``.
            tls: authorities and client certificate of requests that bring none of their own.
            resolve: instead of the system's resolver.
            dial: instead of connecting by TCP; it gets nothing but addresses that the rules allow.
        """
        self._limits = limits
        self._tls = tls
        self._rules = rules if rules is not None else OutboundRules()
        self._system = SystemResolver(limits, lookups)
        self._dialer = GuardedDialer(self._rules, limits, resolve or self._system, dial)
        self._pool = Pool(limits)
        self._destination = lru_cache(URLS)(self._judge)

    @property
    def open(self) -> int:
        """Connections that are open or being opened."""
        return self._pool.open

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return self._pool.idle

    def check(self, url: str) -> None:
        """What can be said of a URL before anybody calls it.

        Raises: EncodeError: it is malformed.
            AddressDenied: its scheme, port or host is not allowed.
        """
        self._destination(url)

    def judge_anew(self) -> None:
        """The rules are others: nothing that was judged, and no connection that was opened, counts any more."""
        self._destination.cache_clear()
        self._pool.renew(clock.monotonic())

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        within: float | None = None,
        repeatable: bool | None = None,
        fresh: bool = False,
        tls: Tls | None = None,
        client: ShareHolder = NOBODY,
    ) -> HttpAnswer:
        """Send a request and read its answer, with any status.

        Args:
            within: deadline in seconds, instead of the limits'.
            repeatable: whether the request may be sent twice (see the module); None: by its method.
            fresh: on a new connection, even if one is kept open: for a request that will most likely end its
            connection,
                by a time-out for instance, so that others find theirs.
            tls: authorities, client certificate and name to verify.
            client: whose share of the lookups is used: an endpoint's, or that of who asked for the request.

        Raises:
            EncodeError: the URL or a header cannot be sent.
            Overloaded: too many requests are under way.
            OutboundFailed: one of its kinds says why there is no answer, and whether the request may have arrived.
        """
        site, key, line = self._destination(url)
        limits = self._limits
        octets = request_octets(method, line, headers, body, limits.request_head_max)
        if tls is not None and tls != self._tls:
            key = (key, tls)
        now = clock.monotonic()
        deadline = now + (limits.deadline if within is None else within)
        head_only = method == "HEAD"
        connection = None if fresh else self._pool.take(key, now)
        if connection is not None:
            try:
                return await self._exchange(connection, octets, head_only, deadline)
            except AnswerCut as cut:
                harmless = method in IDEMPOTENT if repeatable is None else repeatable
                if cut.sent and (connection.heard or not harmless):
                    raise
        opened = await self._open(site, key, tls or self._tls, deadline, client)
        answer = await self._exchange(opened, octets, head_only, deadline)
        answer.resent = connection is not None
        return answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """For httpx. Time-outs are the gateway's, not those of the client; ``request.extensions["deadline"]`` sets
        another one. Errors are those of :meth:`send`. Headers that frame the request or negotiate with the next hop are
        replaced, and of the answer ``Content-Encoding`` and ``Set-Cookie`` are left out; the extensions of the response
        hold ``truncated``, ``resent`` and, where there was one, ``content_encoding``."""
        answer = await self.send(
            request.method,
            str(request.url).partition("#")[0],
            [(name, value) for name, value in request.headers.raw if name.lower() not in OURS],
            await request.aread(),
            within=request.extensions.get("deadline"),
        )
        extensions: dict[str, Any] = {"truncated": answer.truncated, "resent": answer.resent}
        if (encoding := answer.header(b"content-encoding")) is not None:
            extensions["content_encoding"] = encoding.decode("latin-1")
        headers = [pair for pair in answer.headers if pair[0].lower() not in NOT_FOR_HTTPX]
        return httpx.Response(
            answer.status, headers=headers, content=answer.body, extensions=extensions, request=request
        )

    async def aclose(self) -> None:
        """End the connections that are idle; requests under way go on to their end, new ones are refused."""
        self._pool.close()
        self._system.close()

    def _judge(self, url: str) -> tuple[Site, Hashable, bytes]:
        """Where a URL leads, what its connections are kept by, and the start of its requests. What was judged before
        is remembered, what was refused is not."""
        site, target = split_url(url)
        self._rules.check_site(site)
        return site, str(site), request_line(site, target)

    async def _open(self, site: Site, key: Hashable, tls: Tls, deadline: float, client: ShareHolder) -> HttpConnection:
        if self._pool.closed:
            raise StateError(f"{site}: the transport is closed")
        pool = self._pool
        pool.reserve(key, str(site))
        connection = HttpConnection(key, str(site), self._limits, pool.keep, pool.gone)
        try:
            await self._dialer.open(site, tls, connection, deadline, client)
        finally:
            if not connection.made:  # else the pool hears of its end
                pool.release(key)
        return connection

    async def _exchange(
        self, connection: HttpConnection, octets: bytes, head_only: bool, deadline: float
    ) -> HttpAnswer:
        try:
            return await connection.exchange(octets, head_only=head_only, deadline=deadline)
        except asyncio.CancelledError:
            connection.abort()
            raise


def guarded_client(transport: GuardedTransport) -> httpx.AsyncClient:
    """An httpx client that uses nothing but ``transport``: no proxy and no ``.netrc`` of the environment, no redirect
    followed."""
    return httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)
