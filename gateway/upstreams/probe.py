"""What does a broker really speak? Each version is tried in turn, each on a connection of its own."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config import BrokerSettings
from gateway.link import Dial
from gateway.runtime.clock import clock
from gateway.session import Capabilities, Version
from gateway.transports.dial import Resolve
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSIONS


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one version."""

    version: Version
    speaks: bool
    """The handshake went through to an open connection."""
    product: str
    product_version: str
    mechanisms: tuple[str, ...]
    """SASL mechanisms offered."""
    reason: str
    """Why it does not speak it, "" if it does."""
    supported: str | None
    """The version that its protocol header asked for instead."""
    capabilities: Capabilities | None
    """What it can do in this version, None unless it speaks it."""
    seconds: float
    """How long that took."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of all versions."""

    host: str
    port: int
    attempts: tuple[Attempt, ...]

    @property
    def versions(self) -> tuple[Version, ...]:
        """Those that it speaks."""
        return tuple(attempt.version for attempt in self.attempts if attempt.speaks)


async def probe(settings: BrokerSettings, connector: Dial | None = None, resolve: Resolve | None = None) -> Probe:
    """Try every version against the broker of ``settings``, without regard to the version of its URL. Takes at most
    ``connect_timeout`` seconds for each. ``resolve`` says to which addresses, None: any.

    Raises:
        ConfigurationError: the URL is wrong. What the far end does raises nothing: it is the answer.
    """
    dialer = Dialer("probe", settings, connector, resolve)
    attempts: list[Attempt] = []
    for version in VERSIONS:
        began = clock.monotonic()
        link, error = await dialer.attempt(version)
        seconds = clock.monotonic() - began
        capabilities = link.capabilities
        attempts.append(
            Attempt(
                version=version,
                speaks=error is None,
                product=capabilities.product,
                product_version=capabilities.product_version,
                mechanisms=capabilities.mechanisms,
                reason="" if error is None else str(error),
                supported=None if link.ended is None else link.ended.supported,
                capabilities=capabilities if error is None else None,
                seconds=seconds,
            )
        )
        await link.close()
    return Probe(dialer.url.host, dialer.url.port, tuple(attempts))
