"""An endpoint: where messages are pushed to, and whether they are now."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.config import EndpointSettings
from gateway.webhooks.attempts.signing import Signer
from gateway.webhooks.settings.keys import HeldKey

Header = tuple[bytes, bytes]


class EndpointState(StrEnum):
    """Whether it gets messages."""

    ACTIVE = "active"
    """It does."""
    PAUSED = "paused"
    """Not until it is resumed."""
    DISABLED = "disabled"
    """It said that it is gone (410), or its secrets cannot be read; not until it is enabled."""
    UNVERIFIED = "unverified"
    """It has not allowed us to call it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint. Nothing secret is in its ``repr``."""

    name: str
    settings: EndpointSettings = field(repr=False)
    """With its secrets."""
    etag: str
    read_only: bool
    """The configuration file defines it."""
    state: EndpointState = EndpointState.ACTIVE
    reason: str = ""
    """Why it is not active."""
    keys: tuple[HeldKey, ...] = field(default=(), repr=False)
    """The newest first."""
    allowed_rate: float = 0.0
    """Most requests a second that it allowed in the handshake; 0: it set no limit."""
    verified_at: float | None = None
    """When it allowed us to call it, in seconds since 1970."""

    @property
    def rate(self) -> float:
        """Most requests a second, as it allows and as its settings say; 0: no limit."""
        limits = [rate for rate in (self.settings.rate, self.allowed_rate) if rate]
        return min(limits, default=0.0)

    @property
    def headers(self) -> list[Header]:
        """Those of each request."""
        return [(name.encode(), value.encode()) for name, value in self.settings.headers.items()]

    def signing_keys(self, now: float) -> list[Signer]:
        """The keys that sign a request made now (seconds since 1970), the newest first."""
        return [key.key for key in self.keys if key.signs(now)]
