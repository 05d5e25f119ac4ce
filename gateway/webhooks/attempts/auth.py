"""Who we say that we are: the ``Authorization`` of a request to an endpoint.

Basic (RFC 7617) and bearer (RFC 6750) are the same for every request. For OAuth2 client credentials (RFC 6749 section
4.4) a token is asked for, through the same guard as everything that goes to a URL that somebody else chose, and kept
until shortly before it runs out. However many requests wait for it, one asks. A token that the endpoint answers with
401 is replaced once, unless that was just done.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, urlencode

import msgspec

from gateway.budgets import ShareHolder
from gateway.config import EndpointAuth
from gateway.errors import ConfigurationError, OutboundTimeout, TokenRefused
from gateway.outbound import NOBODY, GuardedTransport, HttpAnswer
from gateway.outbound.hosts import split_url
from gateway.runtime.clock import monotonic_time

TOKENS: Final = 10_000
"""Tokens that are kept; the one that was used longest ago goes."""
TOKEN_WITHIN: Final = 15.0
"""How long a server may take to give a token, in seconds."""
EARLY: Final = 30.0
"""How long before its end a token is replaced, in seconds; at most a tenth of its life."""
LIFE_UNLESS_SAID: Final = 60.0
"""How long a token is used whose server does not say how long it lives, in seconds."""
LIFE_MAX: Final = 86_400.0
FRESH: Final = 5.0
"""A token that is younger is not replaced because of a 401, in seconds."""
SECRET_MAX: Final = 16_384
"""Most octets of a file with a secret."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""b64token (RFC 6750 section 2.1)."""
_ERROR: Final = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]{1,80}")


class TokenAnswer(msgspec.Struct):
    """RFC 6749 section 5.1; what else is in it is passed over."""

    access_token: str
    token_type: str
    expires_in: float | str | None = None
    """Some servers say it as a text."""


class TokenError(msgspec.Struct):
    """RFC 6749 section 5.2."""

    error: str


class EndpointToken(msgspec.Struct, frozen=True):
    """A token, and when it was given and when it is to be replaced, on our clock."""

    text: str
    at: float
    until: float


class EndpointTokens:
    """The OAuth2 tokens of all endpoints; endpoints with the same settings share one."""

    def __init__(self, transport: GuardedTransport, clock: Callable[[], float] = monotonic_time) -> None:
        self._transport = transport
        self._clock = clock
        self._kept: OrderedDict[EndpointAuth, EndpointToken] = OrderedDict()
        self._asking: dict[EndpointAuth, asyncio.Task[EndpointToken]] = {}

    async def get(self, auth: EndpointAuth, within: float, client: ShareHolder = NOBODY, refused: str = "") -> str:
        """A token.

        Args:
            within: how long to wait for it, in seconds.
            client: whose share of the lookups is used.
            refused: one that the endpoint did not take: another one is asked for, unless this one is new.

        Raises:
            OutboundFailed: there is none; it says why.
            ConfigurationError: the file with the secret cannot be read.
        """
        kept = self._kept.get(auth)
        now = self._clock()
        if kept is not None and now < kept.until and (kept.text != refused or now - kept.at < FRESH):
            self._kept.move_to_end(auth)
            return kept.text
        asking = self._asking.get(auth)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(auth, client), name="token")
            self._asking[auth] = asking
            asking.add_done_callback(lambda task: self._asked(auth, task))
        try:
            async with asyncio.timeout(within):
                token = await asyncio.shield(asking)
        except TimeoutError:
            raise OutboundTimeout("no OAuth2 token within the deadline") from None
        return token.text

    async def close(self) -> None:
        """Ask for nothing any more."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _asked(self, auth: EndpointAuth, task: asyncio.Task[EndpointToken]) -> None:
        del self._asking[auth]
        if not task.cancelled() and task.exception() is None:
            self._kept[auth] = task.result()
            self._kept.move_to_end(auth)
            if len(self._kept) > TOKENS:
                self._kept.popitem(last=False)

    async def _ask(self, auth: EndpointAuth, client: ShareHolder) -> EndpointToken:
        form = {"grant_type": "client_credentials"} | ({"scope": auth.scope} if auth.scope else {})
        headers = [
            (b"content-type", b"application/x-www-form-urlencoded"),
            (b"accept", b"application/json"),
            (b"authorization", _basic(quote_plus(auth.user), quote_plus(secret_of(auth)))),  # section 2.3.1
        ]
        answer = await self._transport.send(
            "POST", auth.token_url, headers, urlencode(form).encode(), within=TOKEN_WITHIN, repeatable=True,
            client=client,
        )  # fmt: skip
        return self._read(auth, answer)

    def _read(self, auth: EndpointAuth, answer: HttpAnswer) -> EndpointToken:
        who = f"the token server at {split_url(auth.token_url)[0]}"
        if answer.status != 200:
            raise TokenRefused(f"{who} answered {answer.status}{_said(answer.body)}")
        if answer.truncated:
            raise TokenRefused(f"{who} answered with over {len(answer.body)} octets")
        try:
            found = msgspec.json.decode(answer.body, type=TokenAnswer)
            life = LIFE_UNLESS_SAID if found.expires_in is None else float(found.expires_in)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise TokenRefused(f"{who} answered with no token (RFC 6749 section 5.1)") from None
        if found.token_type.lower() != "bearer" or not _TOKEN.fullmatch(found.access_token):
            raise TokenRefused(f"{who} answered with a token that is no bearer token (RFC 6750)")
        life = min(max(life, 0.0), LIFE_MAX) if life == life else 0.0  # NaN lives no time
        now = self._clock()
        return EndpointToken(found.access_token, now, now + life - min(EARLY, life / 10))


def _said(body: bytes) -> str:
    """The error that the server names. Its other words may hold anything and stay out of our texts."""
    try:
        error = msgspec.json.decode(body, type=TokenError).error
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""
    return f": {error}" if _ERROR.fullmatch(error) else ""


def fixed(auth: EndpointAuth) -> bytes | None:
    """The value of ``Authorization`` that is the same each time; None: there is none, or it takes a token.

    Raises:
        ConfigurationError: the file with the secret cannot be read.
    """
    if auth.kind == "basic":
        return _basic(auth.user, secret_of(auth))
    if auth.kind == "bearer":
        return bearer(secret_of(auth))
    return None


def bearer(token: str) -> bytes:
    """``Authorization`` with a token."""
    return b"Bearer " + token.encode()


def _basic(user: str, secret: str) -> bytes:
    return b"Basic " + b64encode(f"{user}:{secret}".encode())


def secret_of(auth: EndpointAuth) -> str:
    """The secret, from its file where it is in one; a file that was changed is read again.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if not auth.secret_file:
        return auth.secret
    path = Path(auth.secret_file)
    try:
        found = path.stat()
        return _read_secret(path, found.st_mtime_ns, found.st_size)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"auth.secret_file: {path}: {why}") from None


@lru_cache(256)
def _read_secret(path: Path, changed: int, size: int) -> str:
    if size > SECRET_MAX:
        raise ConfigurationError(f"auth.secret_file: {path}: {size} octets, the limit is {SECRET_MAX}")
    text = path.read_text(encoding="utf-8").strip("\r\n")
    if not text.isprintable() or not text:
        raise ConfigurationError(f"auth.secret_file: {path}: it must hold one line of printable characters")
    return text
