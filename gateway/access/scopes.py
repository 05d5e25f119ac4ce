"""Scopes: what a caller may do, and to which object. What no scope allows is refused.

A scope is ``KIND`` or ``KIND:OBJECT``; :data:`FORMS` is the table. ``*`` stands for any one part. ``admin`` allows
everything.

The parts of ``route:`` are percent-encoded, since exchange and pattern may contain a slash. In all other scopes the
text behind the first slash is the name as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from gateway.access.routing_keys import NAME_MAX, RoutingKeys
from gateway.errors import ConfigurationError

DEFAULT_EXCHANGE: Final = "amq.default"
"""How the exchange whose name is empty is written."""
SCOPES_MAX: Final = 256
"""Most scopes of one caller."""
SCOPE_MAX: Final = 1_024
"""Longest scope, in characters."""
REMEMBERED: Final = 1_000
"""How many exchanges are remembered with what a caller may publish to them. All are forgotten when they are more."""
_ENCODED: Final = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*\Z")


@dataclass(frozen=True, slots=True)
class ScopeForm:
    """How a kind of scope is written, and what it allows."""

    text: str
    allows: str


FORMS: Final[Mapping[str, ScopeForm]] = {
    "publish": ScopeForm(
        "publish:BROKER/EXCHANGE", "publish to that exchange, inspect it, schedule and see own publishes"
    ),
    "route": ScopeForm(
        "route:BROKER/EXCHANGE/PATTERN", "the same, with routing keys that match the pattern and with no others"
    ),
    "consume": ScopeForm(
        "consume:BROKER/QUEUE",
        "pull, settle and stream subscriptions of that queue, inspect the queue and look into it",
    ),
    "subscribe": ScopeForm(
        "subscribe:BROKER/QUEUE", "put, patch, read, pause, resume and delete subscriptions of that queue"
    ),
    "broker": ScopeForm(
        "broker:BROKER", "declare, inspect, bind, empty and delete queues and exchanges of that broker"
    ),
    "endpoint": ScopeForm("endpoint:NAME", "put, read, test, steer and delete that endpoint, renew its signing keys"),
    "history": ScopeForm("history", "read what happened: messages without their bodies, events, counts"),
    "admin": ScopeForm("admin", "everything, also what no other scope allows"),
}
"""Kind -> form. ``amq.default`` stands for the exchange whose name is empty."""
ON_BROKERS: Final = ("publish", "route", "consume", "subscribe", "broker")
"""The kinds that name a broker."""
PUBLISHERS: Final = ("publish", "route")
"""The kinds of those who publish."""
CONSUMERS: Final = ("consume", "subscribe")
"""The kinds of those who see subscriptions."""
STRICT: Final = ("route", "subscribe")
"""The kinds that no configuration may have in vain: the others may be there for a broker that is gone."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One scope of a caller. ``*`` stands for any one part."""

    kind: str
    broker: str = "*"
    object: str = "*"
    pattern: str = ""
    """Of ``route``: the topic pattern that routing keys must match."""

    def __str__(self) -> str:
        """Return the scope as it is written."""
        match self.kind:
            case "route":
                broker, exchange = _quoted(self.broker), _quoted(self.object or DEFAULT_EXCHANGE)
                return f"route:{broker}/{exchange}/{quote(self.pattern, '*#', errors='surrogateescape')}"
            case "publish" | "consume" | "subscribe":
                return f"{self.kind}:{self.broker}/{self.object or DEFAULT_EXCHANGE}"
            case "broker":
                return f"broker:{self.broker}"
            case "endpoint":
                return f"endpoint:{self.object}"
        return self.kind

    def covers(self, kind: str, broker: str, name: str) -> bool:
        """Whether this grant allows ``kind`` on that object."""
        return self.kind == kind and self.broker in ("*", broker) and self.object in ("*", name)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls."""

    name: str
    """The client, as logs, ledger and audit log name it."""
    admin: bool
    grants: tuple[Grant, ...] = ()
    credential: str = ""
    """What it came with, for the audit log: never the secret itself."""
    _keys: dict[tuple[str, str], RoutingKeys] = field(default_factory=dict, init=False, repr=False, compare=False)

    def may(self, kind: str, broker: str = "", name: str = "") -> bool:
        """Whether the principal holds ``kind`` on that object. For publishing, ask :meth:`routing_keys`."""
        return self.admin or any(grant.covers(kind, broker, name) for grant in self.grants)

    def routing_keys(self, broker: str, exchange: str) -> RoutingKeys:
        """The routing keys with which the principal may publish to that exchange."""
        found = self._keys.get((broker, exchange))
        if found is None:
            if len(self._keys) >= REMEMBERED:
                self._keys.clear()
            patterns = [each.pattern for each in self.grants if each.covers("route", broker, exchange)]
            found = RoutingKeys(patterns, every=self.may("publish", broker, exchange))
            self._keys[broker, exchange] = found
        return found

    def holds(self, kinds: Collection[str]) -> bool:
        """Whether the principal holds a scope of one of these kinds, on any object."""
        return self.admin or any(grant.kind in kinds for grant in self.grants)

    def sees(self, broker: str) -> bool:
        """Whether a scope of the principal names this broker."""
        return self.admin or any(grant.kind in ON_BROKERS and grant.broker in ("*", broker) for grant in self.grants)


DEVELOPER: Final = Principal("anonymous", admin=True)
"""Everyone, where no credential is asked for."""
VISITOR: Final = Principal("", admin=False)
"""Someone without a credential."""


def parse_scope(text: str) -> Grant:
    """A scope as the table writes it; ``admin:*`` is ``admin``. Raises ConfigurationError."""
    kind, colon, rest = text.partition(":")
    match kind:
        case "admin" | "history" if rest == ("*" if colon else "") and (kind == "admin" or not colon):
            return Grant(kind)
        case "route" if rest:
            return _route(text, rest)
        case "publish" | "consume" | "subscribe":
            broker, slash, name = rest.partition("/")
            if broker and slash and not name:
                what = f"write {DEFAULT_EXCHANGE} for the default exchange" if kind == "publish" else "name a queue"
                raise ConfigurationError(f"scopes: {text[:SCOPE_MAX]!r} has nothing behind the slash: {what}")
            if broker and slash:
                return Grant(kind, broker, "" if kind == "publish" and name == DEFAULT_EXCHANGE else name)
        case "broker" if rest:
            return Grant(kind, rest)
        case "endpoint" if rest:
            return Grant(kind, "*", rest)
    raise ConfigurationError(f"scopes: {text[:SCOPE_MAX]!r} is none of {', '.join(f.text for f in FORMS.values())}")


def _route(text: str, rest: str) -> Grant:
    """``BROKER/EXCHANGE/PATTERN``, each part percent-encoded. Raises ConfigurationError."""
    text = text[:SCOPE_MAX]
    parts = rest.split("/")
    if len(parts) != 3:
        raise ConfigurationError(
            f"scopes: {text!r} has {len(parts)} parts, not 3: {FORMS['route'].text}. Write %2F for a slash in a name."
        )
    for name, part, advice in zip(
        ("BROKER", "EXCHANGE", "PATTERN"),
        parts,
        ("Name a broker.", f"Write {DEFAULT_EXCHANGE} for the default exchange.", "Write # for all routing keys."),
        strict=True,
    ):
        if not part:
            raise ConfigurationError(f"scopes: {text!r} has no {name}. {advice}")
    broker, exchange = _name(text, parts[0]), _name(text, parts[1])
    pattern = _decoded(text, parts[2])
    for word in pattern.split("."):
        if word not in ("*", "#") and ("*" in word or "#" in word):
            raise ConfigurationError(
                f"scopes: {text!r}: the pattern has the word {word!r}. * stands for exactly one whole word between "
                "dots, # for any number of words."
            )
    return Grant("route", broker, "" if exchange == DEFAULT_EXCHANGE else exchange, pattern)


def _name(text: str, part: str) -> str:
    """A broker or exchange, or ``*`` for any. Raises ConfigurationError."""
    if part == "*":
        return part
    name = _decoded(text, part)
    if "*" in part or name == "*":
        raise ConfigurationError(
            f"scopes: {text!r}: {part!r} is not a name. Only the third part is a pattern. A part that is * stands for "
            "any name; write %2A for a * within a name."
        )
    return name


def _quoted(name: str) -> str:
    """The reverse of :func:`_name`."""
    return name if name == "*" else quote(name, "", errors="surrogateescape")


def _decoded(text: str, part: str) -> str:
    """Percent-decoded text, where bytes that are not UTF-8 are surrogate escapes. Raises ConfigurationError."""
    if not _ENCODED.match(part):
        raise ConfigurationError(f"scopes: {text!r}: {part!r} is not percent-encoded. Write %25 for a percent sign.")
    try:
        found = unquote_to_bytes(part)
    except UnicodeEncodeError:
        raise ConfigurationError(f"scopes: {text!r} is not Unicode text. Percent-encode the bytes.") from None
    if len(found) > NAME_MAX:
        raise ConfigurationError(f"scopes: {text!r}: {part!r} has {len(found)} bytes; a name has at most {NAME_MAX}")
    return found.decode("utf-8", "surrogateescape")


def doubt(text: str, brokers: Collection[str]) -> str:
    """Why a scope matches nothing, or not what it seems to, as a sentence; empty: there is no doubt.

    Args:
        text: The scope.
        brokers: Those that there are.

    Raises:
        ConfigurationError: It is malformed.
    """
    grant = parse_scope(text)
    if grant.kind in ON_BROKERS and grant.broker != "*" and grant.broker not in brokers:
        known = ", ".join(sorted(brokers)) or "none"
        return f"it can match nothing: there is no broker {grant.broker!r}. The brokers are: {known}."
    name = grant.object
    if grant.kind == "route" or name == "*":
        return ""
    if len(name.encode("utf-8", "replace")) > NAME_MAX:
        return f"it can match nothing: the name has more than {NAME_MAX} bytes."
    if grant.kind == "publish" and ("*" in name or "#" in name.split(".")):
        literal = f"route:{grant.broker}/{name.replace('%', '%25').replace('/', '%2F').replace('*', '%2A')}/#"
        return (
            f"a * or # within a name is not a pattern: this names the one exchange that is called {name!r}. For "
            f"routing keys write {FORMS['route'].text}; for an exchange of that name write {literal}"
        )
    if "*" in name:
        return f"a * within a name is not a pattern: this names the one {_OBJECTS[grant.kind]} that is called {name!r}."
    return ""


_OBJECTS: Final = {"consume": "queue", "subscribe": "queue", "endpoint": "endpoint"}
"""Kind of scope -> what its object is."""


def principal_of(name: str, scopes: Iterable[str], credential: str = "") -> Principal:
    """A caller with these scopes. Raises ConfigurationError."""
    grants = tuple(parse_scope(scope) for scope in scopes)
    return Principal(name, any(grant.kind == "admin" for grant in grants), grants, credential)
