"""Who calls, and what they may do.

With ``[[api_keys]]`` every route but the documents needs a key, as ``Authorization: Bearer KEY`` or ``X-Api-Key``,
and a scope for the very object; nothing is allowed by default. Only SHA-256 digests of the keys are held (a random
key needs no slow hash), compared in constant time, all of them each time.

Without keys the gateway is a development tool on loopback: it checks ``Host`` and ``Origin`` against lists, so that
a web page that the developer visits cannot reach it by DNS rebinding or by a cross-site request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway.api.problems import ApiProblem
from gateway.api.routing import DEFAULT_EXCHANGE, Scope
from gateway.config import ApiKeySettings, HttpSettings
from gateway.errors import ConfigurationError

KINDS = ("publish", "consume")


@dataclass(frozen=True, slots=True)
class Grant:
    """One scope of a key. ``*`` stands for any one part."""

    kind: str
    broker: str = "*"
    object: str = "*"

    def covers(self, kind: str, broker: str, name: str) -> bool:
        """Whether this grant allows ``kind`` on that object."""
        return self.kind == kind and self.broker in ("*", broker) and self.object in ("*", name)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls."""

    name: str
    admin: bool
    grants: tuple[Grant, ...] = ()

    def may(self, kind: str, broker: str, name: str) -> bool:
        """Whether the principal holds the scope ``kind:broker/name``."""
        if self.admin:
            return True
        return any(grant.covers(kind, broker, name) for grant in self.grants)


DEVELOPER = Principal("anonymous", admin=True)
"""Everyone, where there are no keys."""
VISITOR = Principal("", admin=False)
"""Someone without a key; may read the documents."""


def parse_scope(text: str) -> Grant:
    """``publish:BROKER/EXCHANGE``, ``consume:BROKER/QUEUE`` or ``admin``. Raises ConfigurationError."""
    if text == "admin":
        return Grant("admin")
    kind, colon, rest = text.partition(":")
    broker, slash, name = rest.partition("/")
    if kind not in KINDS or not colon or not slash or not broker:
        raise ConfigurationError(
            f"api_keys.scopes: {text!r} is not publish:BROKER/EXCHANGE, consume:BROKER/QUEUE or admin"
        )
    return Grant(kind, broker, "" if kind == "publish" and name == "amq.default" else name)


class Keys:
    """The API keys of the configuration."""

    def __init__(self, settings: Iterable[ApiKeySettings]) -> None:
        self._keys: list[tuple[bytes, Principal]] = []
        names: set[str] = set()
        for key in settings:
            if key.name in names:
                raise ConfigurationError(f"api_keys: the name {key.name!r} is there twice")
            names.add(key.name)
            grants = tuple(parse_scope(scope) for scope in key.scopes)
            principal = Principal(key.name, any(grant.kind == "admin" for grant in grants), grants)
            self._keys.append((_digest(key), principal))

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

    def __init__(self, http: HttpSettings, keys: Keys) -> None:
        self._keys = keys
        self._hosts = frozenset(host.lower() for host in http.allowed_hosts)
        self._origins = frozenset(origin.lower() for origin in http.allowed_origins)

    def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """The caller, from the request's headers (names in lower case).

        Raises:
            ApiProblem: unauthorized (a wrong key), misdirected_request, origin_refused.
        """
        if not self._keys:
            self._check_host(headers.get(b"host", b""))
            self._check_origin(headers.get(b"origin"))
            return DEVELOPER
        key = headers.get(b"x-api-key")
        if key is None:
            scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
            key = value.strip() if scheme.lower() == b"bearer" else None
        if key is None:
            return VISITOR
        principal = self._keys.find(key)
        if principal is None:
            raise unauthorized("the API key is not valid")
        return principal

    def _check_host(self, host: bytes) -> None:
        name = host.decode("latin-1").lower()
        if name not in self._hosts and name.rpartition(":")[0] not in self._hosts:
            raise ApiProblem("misdirected_request", f"Host {name!r} is not one of http.allowed_hosts")

    def _check_origin(self, origin: bytes | None) -> None:
        if origin is None:
            return
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return
        try:
            parts = urlsplit(text)
            name = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        except ValueError:
            name = None
        if parts_are_web(text) and name in self._hosts:
            return
        raise ApiProblem("origin_refused", f"Origin {text!r} is not allowed")


def parts_are_web(origin: str) -> bool:
    """Whether the origin has a scheme under which a page of ours can be served."""
    return origin.startswith(("http://", "https://"))


def unauthorized(detail: str) -> ApiProblem:
    """401, with the challenge that RFC 9110 section 11.6.1 asks for."""
    return ApiProblem("unauthorized", detail, headers={"www-authenticate": 'Bearer realm="gateway"'})


def require(principal: Principal, kind: str, broker: str = "", name: str = "") -> None:
    """Refuse the principal without the scope ``kind:broker/name``.

    Raises:
        ApiProblem: unauthorized without a key, forbidden with one that lacks the scope.
    """
    if principal.admin:
        return
    if principal is VISITOR:
        raise unauthorized("this needs an API key")
    if kind == "key" or (kind in KINDS and principal.may(kind, broker, name)):
        return
    anonymous = DEFAULT_EXCHANGE if kind == "publish" else "*"
    scope = f"{kind}:{broker}/{name or anonymous}" if kind in KINDS else kind
    raise ApiProblem("forbidden", f"the API key {principal.name!r} lacks the scope {scope}")


SCOPES: Mapping[Scope, tuple[str, str]] = {
    Scope.KEY: ("key", ""),
    Scope.PUBLISH: ("publish", "exchange"),
    Scope.CONSUME: ("consume", "queue"),
    Scope.ADMIN: ("admin", ""),
}
"""Scope of a route -> kind of grant, and the name in the path that it is about. ``NONE`` asks nothing;
``SUBSCRIPTION`` is checked where the subscription's broker and queue are known."""
