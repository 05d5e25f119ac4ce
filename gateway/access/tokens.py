"""Bearer tokens: JSON Web Tokens (RFC 7519) of one issuer, checked as RFC 8725 advises.

A token counts if its signature is that of a key of the issuer's set (RFC 7517) under an algorithm that both the
settings and the key allow, and if ``iss``, ``aud``, ``exp``, ``nbf`` and ``typ`` are right. The set is read through the
guarded transport and kept for :data:`FRESH` seconds. A key that is not in it makes us look again, at most once in
:data:`AGAIN` seconds. So nobody can make the gateway call the issuer with invented key ids. While the issuer does not
answer, the keys that are known go on for :data:`STALE` seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import jwt
import msgspec

from gateway.access.scopes import SCOPES_MAX, Principal, parse_scope, principal_of
from gateway.config import TokenSettings
from gateway.errors import ConfigurationError, EncodeError, GatewayError
from gateway.observing.telemetry import log
from gateway.runtime.clock import monotonic_time

if TYPE_CHECKING:
    from gateway.outbound import GuardedTransport

FRESH: Final = 600.0
"""How long a set of keys is used without a look at the issuer's, in seconds."""
AGAIN: Final = 60.0
"""Least time from one look to the next, in seconds."""
STALE: Final = 86_400.0
"""How long it is used while the issuer does not answer, in seconds."""
WITHIN: Final = 5.0
"""How long a look may take, in seconds."""
SET_MAX: Final = 256 << 10
"""Largest set, in octets."""
KEYS_MAX: Final = 64
"""Most keys of a set that are looked at."""
TOKEN_MAX: Final = 8 << 10
"""Longest token, in octets."""
KID_MAX: Final = 128
"""Characters of the name of a key that a log line has."""
CLIENT_MAX: Final = 128
"""Longest name of a client, in characters."""
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}
"""``kty`` of a key -> how the algorithms begin that it may be used with."""
RSA_BITS_MIN: Final = 2_048
"""Shortest modulus of an RSA key (RFC 7518 section 3.3, RFC 8725 section 3.5)."""
CURVES: Final[Mapping[str, str]] = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


class CallerTokenRefused(Exception):
    """Why a token does not count. The text is for the caller, and holds nothing of the token."""


class TokenHead(msgspec.Struct):
    """What is read of a token before its signature is checked."""

    alg: str = ""
    kid: str = ""
    typ: str = "JWT"
    crit: Any = msgspec.UNSET


class JwkSet(msgspec.Struct):
    """A set of keys."""

    keys: list[dict[str, Any]]


def looks_like_token(credential: bytes) -> bool:
    """Whether a credential is a token rather than a key."""
    return credential.count(b".") == 2 and credential.startswith(b"ey")


class IssuedTokens:
    """The tokens of one issuer."""

    def __init__(
        self, settings: TokenSettings, transport: GuardedTransport, clock: Callable[[], float] = monotonic_time
    ) -> None:
        """``transport`` must keep :data:`SET_MAX` octets of an answer. Raises ConfigurationError."""
        for name in ("audience", "jwks_url", "algorithms"):
            if not getattr(settings, name):
                raise ConfigurationError(f"access.tokens.{name} is not set, and issuer is")
        for name, scopes in settings.scopes.items():
            try:
                principal_of(name, scopes)
            except ConfigurationError as error:
                raise ConfigurationError(f"access.tokens.scopes.{name}: {error}") from None
        try:
            transport.check(settings.jwks_url)
        except (GatewayError, EncodeError) as error:
            raise ConfigurationError(f"access.tokens.jwks_url: {error}") from None
        self._settings = settings
        self._transport = transport
        self._clock = clock
        self._types = frozenset(each.lower() for each in settings.types)
        self._keys: dict[tuple[str, str], Any] = {}
        self._refused: dict[str, str] = {}
        """Name of a key of the set -> why it is not used."""
        self._read_at = self._asked_at = -float("inf")
        self._asking: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------- tokens

    async def identify(self, credential: bytes) -> Principal:
        """The caller whose token that is. Raises TokenRefused."""
        head = self._head(credential)
        age = self._clock() - self._read_at
        if (head.alg, head.kid) not in self._keys or age > STALE:
            self._look()
            if (asking := self._asking) is not None:
                await asyncio.wait((asking,))  # who waits does not end with it, nor it with who waits
                if not asking.cancelled():
                    asking.result()
        elif age > FRESH:
            self._look()
        key = self._keys.get((head.alg, head.kid))
        if key is None and (why := self._refused.get(head.kid)) is not None:
            raise CallerTokenRefused(f"the token is signed with a key that does not count: {why}")
        if key is None or self._clock() - self._read_at > STALE:
            raise CallerTokenRefused("the token is not signed by a key of the issuer that we know")
        return self._principal(self._claims(credential, head, key))

    def _head(self, credential: bytes) -> TokenHead:
        if len(credential) > TOKEN_MAX:
            raise CallerTokenRefused(f"the token has more than {TOKEN_MAX} octets")
        try:
            octets = jwt.utils.base64url_decode(credential.partition(b".")[0])
            head = msgspec.json.decode(octets, type=TokenHead)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise CallerTokenRefused("the token is malformed") from None
        if head.alg not in self._settings.algorithms:
            raise CallerTokenRefused(
                "the token is signed with an algorithm that access.tokens.algorithms does not name"
            )
        if head.typ.lower().removeprefix("application/") not in self._types:
            raise CallerTokenRefused("the token is of a type that access.tokens.types does not name")
        if head.crit is not msgspec.UNSET:
            raise CallerTokenRefused("the token asks for what we do not know (crit)")
        return head

    def _claims(self, credential: bytes, head: TokenHead, key: Any) -> dict[str, Any]:
        settings = self._settings
        try:
            claims: dict[str, Any] = jwt.decode(
                credential, key, [head.alg], issuer=settings.issuer, audience=settings.audience,
                leeway=settings.leeway, options={"require": ["exp", "iss", "aud", settings.client_claim]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError:
            raise CallerTokenRefused("the token has expired") from None
        except jwt.ImmatureSignatureError:
            raise CallerTokenRefused("the token is not valid yet") from None
        except jwt.InvalidIssuerError:
            raise CallerTokenRefused("the token is of another issuer") from None
        except jwt.InvalidAudienceError:
            raise CallerTokenRefused("the token is for somebody else") from None
        except jwt.InvalidSignatureError:
            raise CallerTokenRefused("the signature of the token is wrong") from None
        except jwt.MissingRequiredClaimError as error:
            raise CallerTokenRefused(f"the token has no {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError):
            raise CallerTokenRefused("the token is malformed") from None
        return claims

    def _principal(self, claims: dict[str, Any]) -> Principal:
        name = claims[self._settings.client_claim]
        if not isinstance(name, str) or not 0 < len(name) <= CLIENT_MAX or not name.isprintable():
            raise CallerTokenRefused(f"{self._settings.client_claim} is not 1 to {CLIENT_MAX} printable characters")
        found = claims.get(self._settings.scopes_claim, "")
        texts = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        scopes: list[str] = []
        for text in texts:
            scopes += self._ours(text) if isinstance(text, str) else ()
        return principal_of(f"jwt:{name}", list(dict.fromkeys(scopes))[:SCOPES_MAX], f"jwt:{name}")

    def _ours(self, text: str) -> tuple[str, ...]:
        """What a scope of the issuer stands for."""
        if self._settings.scopes:
            return self._settings.scopes.get(text, ())
        try:
            parse_scope(text)
        except ConfigurationError:
            return ()
        return (text,)

    # --------------------------------------------------------------------------------------------------- keys

    def _look(self) -> None:
        """Have the issuer's keys read, unless that is under way, or was not long ago."""
        if self._asking is None and self._clock() - self._asked_at >= AGAIN:
            self._asked_at = self._clock()
            self._asking = asyncio.get_running_loop().create_task(self._read(), name="access-jwks")
            self._asking.add_done_callback(self._asked)

    def _asked(self, _: asyncio.Task[None]) -> None:
        self._asking = None

    async def _read(self) -> None:
        url = self._settings.jwks_url
        try:
            answer = await self._transport.send("GET", url, [(b"accept", b"application/json")], within=WITHIN)
            if answer.status != 200 or answer.truncated:
                what = f"over {SET_MAX} octets" if answer.truncated else f"status {answer.status}"
                log("access.jwks_not_read", logging.WARNING, detail=f"{url} answered with {what}")
                return
            self._keys = self._known(msgspec.json.decode(answer.body, type=JwkSet).keys[:KEYS_MAX])
            self._read_at = self._clock()
        except GatewayError as error:
            log("access.jwks_not_read", logging.WARNING, detail=str(error))
        except (msgspec.DecodeError, ValueError, RecursionError):
            log("access.jwks_not_read", logging.WARNING, detail=f"{url} answered with no set of keys (RFC 7517)")

    def _known(self, keys: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
        """(algorithm, name) -> key, for every algorithm that a key may be used with. A key without a name, or of a
        kind that we have no use for, is passed over; what is wrong with one is kept for who comes with it."""
        found: dict[tuple[str, str], Any] = {}
        self._refused = {}
        for each in keys:
            kid = each.get("kid")
            if not isinstance(kid, str) or not kid:
                continue
            if why := refusal_of(each):
                self._refused[kid] = why
                if each.get("use", "sig") == "sig":  # a set may well have keys for something else
                    log("access.jwk_refused", logging.WARNING, kid=kid[:KID_MAX], reason=why)
                continue
            for algorithm in self._settings.algorithms:
                if not _fits(each, algorithm):
                    continue
                try:
                    found[algorithm, kid] = jwt.PyJWK(each, algorithm).key
                except (jwt.PyJWTError, ValueError, TypeError, KeyError):
                    log("access.jwk_skipped", logging.WARNING, detail="a key of the issuer cannot be read")
        return found

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)


def refusal_of(key: Mapping[str, Any]) -> str:
    """Return why no token is checked with a key of a set, by any algorithm; empty if one may be."""
    if key.get("kty") == "oct":
        return "it is a shared secret, in a set that everybody may read"
    if "d" in key:
        return "it is a private key, in a set that everybody may read"
    if key.get("use", "sig") != "sig":
        return "it is not for signatures (use)"
    operations = key.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return "it is not for checking signatures (key_ops)"
    if key.get("kty") == "RSA" and (bits := _bits(key.get("n"))) is not None and bits < RSA_BITS_MIN:
        return f"it is an RSA key of {bits} bits, and at least {RSA_BITS_MIN} are needed (RFC 7518 section 3.3)"
    return ""


def _bits(text: Any) -> int | None:
    """Return how many bits a number has (Base64urlUInt of RFC 7518); None if it is not a number."""
    try:
        return int.from_bytes(jwt.utils.base64url_decode(text)).bit_length()
    except (ValueError, TypeError, AttributeError):
        return None


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a key may be used with an algorithm: by its kind, its curve, and what it says itself."""
    kind = key.get("kty")
    families = FAMILIES.get(kind, ()) if isinstance(kind, str) else ()
    if key.get("alg", algorithm) != algorithm or not algorithm.startswith(families or ("?",)):
        return False
    if kind == "EC":
        curve = key.get("crv")
        return isinstance(curve, str) and CURVES.get(curve) == algorithm
    if kind == "OKP":
        return key.get("crv") == "Ed25519"
    return True
