"""How things stand with a broker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.session import Capabilities, Version


class UpstreamState(Enum):
    """How things stand with a broker."""

    CONNECTING = "connecting"
    """Nothing was ever up, and nothing has failed yet."""
    UP = "up"
    BLOCKED = "blocked"
    """Connected, but the broker takes no publishes."""
    DOWN = "down"
    """A link is lost or cannot be had; it is tried again."""
    FAILED = "failed"
    """Credentials, virtual host, certificate or a setting are wrong; it is tried again only once a minute."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Status:
    """Everything there is to say of a broker, at one moment."""

    name: str
    state: UpstreamState
    reason: str
    """Why it is not up; "" when it is."""
    version: Version | None
    capabilities: Capabilities | None
    """Both as negotiated last, None before the first time."""
    product: str
    product_version: str
    since: float
    """When ``state`` changed last, in seconds since 1970."""
    publishing: bool
    consuming: bool
    """The two links."""
    pending: int
    """Publishes without an outcome."""
    leases: int
    """Deliveries that are out, on pulls and consumers."""
    found: str
    """What ``version=auto`` found, as a sentence; "" where the version is given."""
    code: str = ""
    """Code of the error that keeps it from being up; "" when it is, and where a link was lost that had been there."""
    alert: str = ""
    """What the broker warned of last (channel.alert of 0-8); "" where it never did."""
