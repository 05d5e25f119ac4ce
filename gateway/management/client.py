"""One management HTTP API, asked within bounds: size of an answer, time of all of them together.

Where the API of a broker of the configuration file is, is the operator's choice, as the broker itself is. So it may
stand in a private network without being listed in ``outbound.allow``. That of a broker that was put over HTTP must be
where the broker may be. All the rest of the outbound guard holds: no redirect is followed, answers are bounded,
nothing is decompressed, and the gateway's own ports are never called. A server that misbehaves in any way makes a
:class:`ManagementProblem`, which is a sentence.
"""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from gateway.config import BrokerSettings, TlsSettings, parse_broker_url, parse_management_url
from gateway.errors import AddressDenied, ConfigurationError, EncodeError, GatewayError, OutboundFailed, OutboundTimeout
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport, OutboundRules
from gateway.outbound.hosts import split_url
from gateway.runtime.clock import clock
from gateway.runtime.threads import threads
from gateway.upstreams.keeper import is_loopback

ANSWER_MAX: Final = 4 << 20
"""Largest answer that is read, in bytes. 500 queues of RabbitMQ take about 200,000."""
WITHIN_SECONDS: Final = 15.0
"""How long all requests for the queues of one broker may take together, in seconds."""


class ManagementProblem(Exception):
    """Why a management API cannot be read, as a sentence for the operator."""

    def __init__(self, reason: str, status: int = 0, *, refused: bool = False) -> None:
        """
        Args:
            reason: the sentence.
            status: of the answer; 0: there was none.
            refused: whether the login was refused.
        """
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.refused = refused


class ManagementClient:
    """The management API of one broker, for one reading: ``async with``."""

    def __init__(
        self,
        name: str,
        settings: BrokerSettings,
        own: Iterable[tuple[str, int]] = (),
        within: float = WITHIN_SECONDS,
        rules: OutboundRules | None = None,
    ) -> None:
        """
        Args:
            name: the broker's.
            settings: ``management`` of them is not empty.
            own: addresses and ports that this process listens on.
            within: how long all requests may take together, in seconds.
            rules: where it may be; None: anywhere, for the configuration file says so.
        """
        self._setting = f"brokers.{name}.management"
        self._settings = settings
        self._own = tuple(own)
        self._within = within
        self._rules = rules
        self._until = 0.0
        self._base = ""
        self._headers: list[tuple[bytes, bytes]] = []
        self._transport: GuardedTransport | None = None

    async def __aenter__(self) -> Self:
        """Read the settings.

        Raises:
            ManagementProblem: one of them cannot be used.
        """
        settings = self._settings
        try:
            url = parse_management_url(settings.management)
            site, _ = split_url(url.base)
            broker = parse_broker_url(settings.url)
            user = broker.user if url.user is None else url.user
            password = url.password
            if password is None:
                password = await self._password_of_broker(settings.password or broker.password)
        except (ConfigurationError, EncodeError) as error:
            raise ManagementProblem(f"{self._setting}: {error}") from None
        if not (site.secure or settings.allow_plain_without_tls or is_loopback(site.host)):
            raise ManagementProblem(
                f"{self._setting} is http://, and the password would travel in clear. Write https://, or set "
                "allow_plain_without_tls of the broker."
            )
        if ":" in user:
            raise ManagementProblem(f"{self._setting}: the user has a ':', which HTTP Basic cannot carry.")
        token = b64encode(f"{user}:{password}".encode())
        self._headers = [(b"authorization", b"Basic " + token), (b"accept", b"application/json, */*;q=0.1")]
        self._base = url.base
        tls = settings.tls
        rules = self._rules
        if rules is None:
            rules = OutboundRules((site.host if site.literal is None else str(site.literal),), own=self._own)
        limits = dataclasses.replace(
            DEFAULT_OUTBOUND_LIMITS, deadline=self._within, body_kept=ANSWER_MAX, framing_max=ANSWER_MAX,
            connections=1, connections_per_site=1,
        )  # fmt: skip
        self._transport = GuardedTransport(
            rules,
            limits,
            tls=TlsSettings(
                ca=tls.ca,
                ca_file=tls.ca_file,
                cert=tls.cert,
                cert_file=tls.cert_file,
                key=tls.key,
                key_file=tls.key_file,
                dangerous_disable_verification=tls.dangerous_disable_verification,
            ),
        )
        self._until = clock.monotonic() + self._within
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection."""
        if self._transport is not None:
            await self._transport.aclose()

    async def get(self, target: str, read: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
        """Return the decoded JSON at a path.

        Args:
            target: the path, which begins with a slash.
            read: what makes the answer of its bytes, in a thread. It raises msgspec.MsgspecError for no JSON.

        Raises:
            ManagementProblem: there is none.
        """
        assert self._transport is not None
        left = self._until - clock.monotonic()
        if left <= 0:
            raise ManagementProblem(f"The management API took more than {self._within:g} s.")
        try:
            answer = await self._transport.send("GET", self._base + target, self._headers, within=left)
        except OutboundTimeout:
            raise ManagementProblem(f"The management API took more than {self._within:g} s.") from None
        except AddressDenied as error:
            why = error.public or error.broken
            raise ManagementProblem(f"The guard of outbound requests denies {self._setting}: {why}.") from None
        except GatewayError as error:
            public = error.public if isinstance(error, OutboundFailed) else None
            raise ManagementProblem(f"The management API cannot be reached: {public or error}.") from None
        if answer.status != HTTPStatus.OK:
            raise self._refusal(answer.status)
        if answer.truncated:
            raise ManagementProblem(f"An answer of the management API has more than {ANSWER_MAX:,} bytes.", 200)
        if answer.header(b"content-encoding") not in (None, b"identity"):
            raise ManagementProblem("The management API compresses its answers, which nobody asked for.", 200)
        try:
            return await threads.run(read, answer.body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise ManagementProblem(
                f"What answers at {self._setting} is no management API: the answer is not JSON.", 200
            ) from None

    def _refusal(self, status: int) -> ManagementProblem:
        """What an answer that is no success means."""
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return ManagementProblem(
                f"The management API refuses the login ({status}). Correct user and password of {self._setting}; in "
                "RabbitMQ the user needs the tag `management` or `monitoring`.",
                status,
                refused=True,
            )
        if 300 <= status < 400:
            return ManagementProblem(
                f"The management API redirects ({status}), which is not followed. Write the final address into "
                f"{self._setting}.",
                status,
            )
        if status >= 500:
            return ManagementProblem(
                f"The management API answers {status}: the broker starts, stops or is overloaded.", status
            )
        return ManagementProblem(f"The management API answers {status}.", status)

    async def _password_of_broker(self, password: str) -> str:
        path = self._settings.password_file
        if not path:
            return password
        try:
            text = await threads.run(Path(path).read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigurationError(f"password_file {path}: {why}") from None
        return text.rstrip("\r\n")
