"""Scopes: what a caller may do, and to which object. What no scope allows is refused.

A scope is ``KIND`` or ``KIND:OBJECT``; :data:`FORMS` is the table. ``*`` stands for any one part. ``admin`` allows
everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.errors import ConfigurationError

DEFAULT_EXCHANGE: Final = "amq.default"
"""How the exchange whose name is empty is written."""
SCOPES_MAX: Final = 256
"""Most scopes of one caller."""
SCOPE_MAX: Final = 1_024
"""Longest scope, in characters."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a kind of scope is written, and what it allows."""

    text: str
    allows: str


FORMS: Final[Mapping[str, Form]] = {
    "publish": Form("publish:BROKER/EXCHANGE", "publish to that exchange, inspect it, schedule and see own publishes"),
    "consume": Form("consume:BROKER/QUEUE", "pull, settle and stream subscriptions of that queue, inspect the queue"),
    "broker": Form("broker:BROKER", "declare, inspect, bind, empty and delete queues and exchanges of that broker"),
    "endpoint": Form("endpoint:NAME", "put, read, test, steer and delete that endpoint, renew its signing keys"),
    "history": Form("history", "read what happened: messages without their bodies, events, counts"),
    "admin": Form("admin", "everything, also what no other scope allows"),
}
"""Kind -> form. ``amq.default`` stands for the exchange whose name is empty."""
ON_BROKERS: Final = ("publish", "consume", "broker")
"""The kinds that name a broker."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One scope of a caller. ``*`` stands for any one part."""

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
    """The client, as logs, ledger and audit log name it."""
    admin: bool
    grants: tuple[Grant, ...] = ()
    credential: str = ""
    """What it came with, for the audit log: never the secret itself."""

    def may(self, kind: str, broker: str = "", name: str = "") -> bool:
        """Whether the principal holds ``kind`` on that object."""
        return self.admin or any(grant.covers(kind, broker, name) for grant in self.grants)

    def holds(self, kinds: Collection[str]) -> bool:
        """Whether the principal holds a scope of one of these kinds, on whatever object."""
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
        case "publish" | "consume":
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


def principal_of(name: str, scopes: Iterable[str], credential: str = "") -> Principal:
    """A caller with these scopes. Raises ConfigurationError."""
    grants = tuple(parse_scope(scope) for scope in scopes)
    return Principal(name, any(grant.kind == "admin" for grant in grants), grants, credential)
