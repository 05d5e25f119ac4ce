"""Logging in at the issuer of tokens: OpenID Connect, the authorization code flow with PKCE (RFC 7636).

The browser fetches a code from the issuer and gives it to the gateway with the verifier that only the page knows. The
gateway redeems it at the issuer's token endpoint, since the page may ask no other origin. The token that comes back is
checked as any other and handed to the page; the gateway keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from gateway.access.tokens import TOKEN_MAX, CallerTokenRefused, IssuedTokens
from gateway.config import TokenSettings
from gateway.errors import ConfigurationError, EncodeError, GatewayError

if TYPE_CHECKING:
    from gateway.outbound import GuardedTransport

WITHIN: Final = 10.0
"""How long the issuer may take, in seconds."""
WORDS_MAX: Final = 200
"""Most characters of the issuer's words that an answer has."""


class Redeemed(NamedTuple):
    """What came for a code."""

    token: str
    client: str
    """The caller that the token names."""
    expires_in: float | None
    """For how long it counts, in seconds, as the issuer says; None: it does not say."""


class IssuerLogin:
    """The login at one issuer."""

    def __init__(self, settings: TokenSettings, tokens: IssuedTokens, transport: GuardedTransport) -> None:
        """``tokens`` checks what comes back. Raises ConfigurationError."""
        self.settings = settings.login
        if urlsplit(self.settings.authorize_url).scheme not in ("https", "http"):
            raise ConfigurationError("access.tokens.login.authorize_url: no URL that a browser can open (https://…)")
        try:
            transport.check(self.settings.token_url)
        except (GatewayError, EncodeError) as error:
            raise ConfigurationError(f"access.tokens.login.token_url: {error}") from None
        self._tokens = tokens
        self._transport = transport

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> Redeemed:
        """The token for a code.

        Raises:
            CallerTokenRefused: the issuer refuses the code, or its token does not count.
            OutboundFailed: the issuer does not answer.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self.settings.client_id,
            "code_verifier": verifier,
        }
        headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"accept", b"application/json")]
        answer = await self._transport.send(
            "POST", self.settings.token_url, headers, urlencode(form).encode(), within=WITHIN, repeatable=False
        )
        try:
            found: Any = {} if answer.truncated else msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            found = {}
        if not isinstance(found, dict):
            found = {}
        if answer.status != 200:
            told = " ".join(str(found[name]) for name in ("error", "error_description") if found.get(name))
            told = "".join(each if each.isprintable() else "?" for each in told)[:WORDS_MAX]
            raise CallerTokenRefused(f"the issuer refused the login ({answer.status}){f': {told}' if told else ''}")
        token = found.get(self.settings.use)
        if not isinstance(token, str) or not 0 < len(token) <= TOKEN_MAX or not token.isascii():
            raise CallerTokenRefused(f"the issuer's answer has no {self.settings.use}")
        principal = await self._tokens.identify(token.encode())
        expires = found.get("expires_in")
        lasts = float(expires) if isinstance(expires, int | float) and 0 < expires < 1e9 else None
        return Redeemed(token, principal.name, lasts)
