"""Who calls, and what they may do.

With ``[[api_keys]]`` every route but the documents needs a key, as ``Authorization: Bearer KEY`` or ``X-Api-Key``,
and a scope for the very object; nothing is allowed by default. Only SHA-256 digests of the keys are held (a random
key needs no slow hash), compared in constant time, all of them each time.

Without keys the gateway is a development tool on loopback. It checks where a request comes from, so that a web page
that the developer visits cannot reach it by DNS rebinding or by a cross-site request: :mod:`gateway.api.http.browsers`.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.access.access import Access
from gateway.access.scopes import (
    CONSUMERS,
    DEFAULT_EXCHANGE,
    DEVELOPER,
    ON_BROKERS,
    PUBLISHERS,
    VISITOR,
    Principal,
    principal_of,
)
from gateway.access.tokens import CallerTokenRefused, looks_like_token
from gateway.api.http.browsers import Sites
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Scope
from gateway.config import ApiKeySettings, HttpSettings
from gateway.errors import ConfigurationError


class ConfiguredKeys:
    """The API keys of the configuration."""

    def __init__(self, settings: Iterable[ApiKeySettings]) -> None:
        self._keys: list[tuple[bytes, Principal]] = []
        names: set[str] = set()
        clients: dict[bytes, str] = {}
        for key in settings:
            if key.name in names:
                raise ConfigurationError(f"api_keys: the name {key.name!r} is there twice")
            names.add(key.name)
            try:
                principal = principal_of(key.name, key.scopes, f"key:{key.name}")
            except ConfigurationError as error:
                raise ConfigurationError(f"api_keys.{key.name}.{error}") from None
            digest = _digest(key)
            if (other := clients.setdefault(digest, key.name)) != key.name:
                raise ConfigurationError(f"api_keys: {other!r} and {key.name!r} have the same key")
            self._keys.append((digest, principal))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, key: bytes) -> Principal | None:
        """The principal of a key; every digest is compared, in constant time."""
        digest = hashlib.sha256(key).digest()
        found = None
        for known, principal in self._keys:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def _digest(key: ApiKeySettings) -> bytes:
    given = [name for name in ("sha256", "key", "key_file") if getattr(key, name)]
    if len(given) != 1:
        raise ConfigurationError(f"api_keys.{key.name}: exactly one of sha256, key and key_file must be set")
    if key.sha256:
        try:
            digest = bytes.fromhex(key.sha256)
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise ConfigurationError(f"api_keys.{key.name}.sha256: not 64 hexadecimal digits")
        return digest
    if key.key:
        return hashlib.sha256(key.key.encode()).digest()
    try:
        text = Path(key.key_file).read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"api_keys.{key.name}.key_file: {error.strerror}") from None
    if not text:
        raise ConfigurationError(f"api_keys.{key.name}.key_file: empty")
    return hashlib.sha256(text).digest()


class Doorkeeper:
    """Answers who calls, or refuses."""

    def __init__(self, http: HttpSettings, keys: ConfiguredKeys, access: Access | None = None) -> None:
        self._keys = keys
        self._stored = access.keys if access is not None else None
        self._tokens = access.tokens if access is not None else None
        self._certificates = access.certificates if access is not None else {}
        self._asks = bool(keys) or (access is not None and access.required)
        self._sites = Sites(http)

    async def caller(self, headers: Mapping[bytes, bytes], certificate: Collection[str] = ()) -> Principal:
        """The caller, by any credential of the request. Raises as :meth:`check_token` and :meth:`identify`."""
        return await self.check_token(headers) or self.identify(headers, certificate)

    async def check_token(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        """The caller, where the credential is a token; None: it is not a token, or the gateway takes no tokens.

        Raises:
            ApiProblem: unauthorized (a token that does not count).
        """
        credential = credential_of(headers) if self._tokens is not None else None
        if self._tokens is None or credential is None or not looks_like_token(credential):
            return None
        try:
            return await self._tokens.identify(credential)
        except CallerTokenRefused as refused:
            raise unauthorized(str(refused), "invalid_token", advice=ADVICE["token"]) from None

    def identify(self, headers: Mapping[bytes, bytes], certificate: Collection[str] = ()) -> Principal:
        """The caller, from the request's headers (names in lower case); without a credential there, from the names in
        its certificate.

        Raises:
            ApiProblem: unauthorized (a wrong key), misdirected_request.
        """
        if not self._asks:
            self._sites.check_host(headers.get(b"host", b""))
            return DEVELOPER
        key = credential_of(headers)
        if key is None:
            callers = {self._certificates[name] for name in certificate if name in self._certificates}
            if len(callers) == 1:
                return callers.pop()
            # Two are nobody: which one is not for us to say.
            return Principal("", admin=False, credential=BY_CERTIFICATE) if certificate else VISITOR
        principal = self._of(key)
        if principal is None and looks_like_token(key):
            raise unauthorized("this gateway takes no bearer tokens", advice=ADVICE["token, and none are taken"])
        if principal is None:
            raise unauthorized("the API key is not valid", advice=ADVICE["key"])
        return principal

    def check_site(self, headers: Mapping[bytes, bytes], certificate: Collection[str] = ()) -> None:
        """Refuse what a page of another site has a browser send, where a browser could be the caller: no credential is
        asked for, or it is a client certificate. Keys and tokens are sent by programs that were given them.

        Raises:
            ApiProblem: origin_refused.
        """
        if not self._asks or (certificate and credential_of(headers) is None):
            self._sites.check_site(headers)

    def reader(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Whose key is the password of HTTP Basic (RFC 7617), which a browser asks its user for; a visitor where there
        is none, or an invalid one. It opens documents only: a request that a browser sends on its own must not do
        anything."""
        scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
        try:
            text = b64decode(value.strip(), validate=True) if scheme.lower() == b"basic" else b""
        except ValueError:
            text = b""
        password = text.partition(b":")[2]
        return (self._of(password) if password else None) or VISITOR

    def _of(self, key: bytes) -> Principal | None:
        principal = self._keys.find(key)
        if principal is None and self._stored is not None:
            principal = self._stored.find(key)
        return principal


def credential_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the credential of a request; None: it has none.

    Raises:
        ApiProblem: malformed_request (two of them: a proxy may check the other one).
    """
    key = headers.get(b"x-api-key")
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        return key
    if key is not None:
        raise ApiProblem(
            "malformed_request",
            "the request has two credentials: `X-Api-Key` and `Authorization: Bearer`. Send one of them.",
        )
    return value.strip()


BY_CERTIFICATE: Final = "certificate:"
ADVICE: Final[Mapping[str, str]] = {
    "key": "Check for a typing error. The key may also be revoked, expired, or of another gateway.",
    "token": "Get a token from the issuer that access.tokens names, and send `Authorization: Bearer TOKEN`.",
    "token, and none are taken": "Send an API key; or have access.tokens name the issuer.",
    "certificate": "Have access.certificates name the certificate, or send an API key.",
}
"""Credential that does not count -> what to do about it."""
SCOPE_ADVICE: Final[Mapping[str, str]] = {
    "key": "Ask for an API key with the scope that detail names.",
    "jwt": "Ask the issuer for a token with that scope, or have access.tokens.scopes translate one to it.",
    "certificate": "Have access.certificates give the scope to this client.",
}
"""Kind of credential -> what to do where it lacks a scope."""


def unauthorized(detail: str, error: str = "", scheme: str = "Bearer", advice: str = "") -> ApiProblem:
    """401, with the challenge that RFC 9110 section 11.6.1 asks for; ``error`` is that of RFC 6750 section 3.1."""
    challenge = f'{scheme} realm="gateway"' + (f', error="{error}"' if error else "")
    return ApiProblem("unauthorized", detail, headers={"www-authenticate": challenge}, advice=advice)


def lacks(principal: Principal, scope: str) -> ApiProblem:
    """403 for a caller without that scope; 401 for one without a credential."""
    return forbidden(principal, f"{principal.name!r} lacks the scope {scope}")


def forbidden(principal: Principal, detail: str, errors: Sequence[tuple[str, str]] = ()) -> ApiProblem:
    """403 for a caller, with advice for its kind of credential; 401 for one without a credential that counts."""
    if not principal.name and principal.credential == BY_CERTIFICATE:
        return unauthorized("no client has this certificate, or several have", advice=ADVICE["certificate"])
    if not principal.name:
        return unauthorized("this needs a credential")
    return ApiProblem("forbidden", detail, errors, advice=SCOPE_ADVICE.get(principal.credential.partition(":")[0], ""))


def require(principal: Principal, scope: Scope, names: Mapping[str, str]) -> None:
    """Refuse a principal who does not hold what a route needs; ``names`` are those of the path.

    Raises:
        ApiProblem: unauthorized without a credential, forbidden with one that lacks the scope.
    """
    if not principal.admin and not NEEDS[scope](principal, names):
        raise lacks(principal, _written(scope, names))


def _written(scope: Scope, names: Mapping[str, str]) -> str:
    """The scope with the names of the path; those that the path does not name are not known yet."""
    known = {"broker": "*", "queue": "*", **{name: value or DEFAULT_EXCHANGE for name, value in names.items()}}
    return scope.value.format_map(known)


Check = Callable[[Principal, Mapping[str, str]], bool]


def _publish(principal: Principal, names: Mapping[str, str]) -> bool:
    return bool(principal.routing_keys(names["broker"], names["exchange"]))


def _consume(principal: Principal, names: Mapping[str, str]) -> bool:
    return principal.may("consume", names["broker"], names["queue"])


def _broker(principal: Principal, names: Mapping[str, str]) -> bool:
    return principal.may("broker", names["broker"])


NEEDS: Final[Mapping[Scope, Check]] = {
    Scope.NONE: lambda _, names: True,
    Scope.CALLER: lambda principal, _: bool(principal.name),
    Scope.BROKERS: lambda principal, _: principal.holds(ON_BROKERS),
    Scope.BROKER_SEEN: lambda principal, names: principal.sees(names["broker"]),
    Scope.PUBLISHER: lambda principal, _: principal.holds(PUBLISHERS),
    Scope.CONSUMER: lambda principal, _: principal.holds(CONSUMERS),
    Scope.PUBLISH: _publish,
    Scope.EXCHANGE: lambda principal, names: _publish(principal, names) or _broker(principal, names),
    Scope.QUEUE: lambda principal, names: _consume(principal, names) or _broker(principal, names),
    Scope.CONSUME: _consume,
    Scope.SUBSCRIPTION: lambda principal, _: principal.holds(("consume",)),
    Scope.SUBSCRIPTION_SEEN: lambda principal, _: principal.holds(CONSUMERS),
    Scope.SUBSCRIBE: lambda principal, _: principal.holds(("subscribe",)),
    Scope.BROKER: _broker,
    Scope.ENDPOINTS: lambda principal, _: principal.holds(("endpoint",)),
    Scope.ENDPOINT: lambda principal, names: principal.may("endpoint", "", names["endpoint"]),
    Scope.HISTORY: lambda principal, _: principal.may("history"),
    Scope.ADMIN: lambda principal, _: principal.admin,
}
"""What a route needs -> whether a caller has it. Where an object is only known later, here is asked whether there can
be any: the handlers of subscriptions ask again when they know the queue."""
