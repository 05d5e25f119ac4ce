"""How often a caller may ask: a token bucket each, and what the answers say of it.

A bucket holds ``burst`` tokens and gets ``rate`` a second; a request takes one. Time is an argument. The headers are
those of draft-ietf-httpapi-ratelimit-headers: ``RateLimit-Policy`` says how much in which time, ``RateLimit`` how much
is left, and in how many seconds all of it is back.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from typing import Final, NamedTuple

CALLERS_MAX: Final = 10_000
"""Of how many callers buckets are kept; the one that has asked longest ago is forgotten."""
POLICY: Final = "caller"
"""Name of the policy in the headers, where clients are counted."""
NETWORK: Final = 64
"""Number of bits of an IPv6 address that count: the owner of one address has all the rest of them, too."""


def address_of(host: str) -> str:
    """As what a remote address is counted; empty: it is loopback, and not counted."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return "" if address.is_loopback else str(ip_network((address, NETWORK), strict=False))
        address = address.ipv4_mapped
    return "" if address.is_loopback else str(address)


class RateStanding(NamedTuple):
    """How a caller stands after a request."""

    allowed: bool
    left: int
    """Requests that it may make at once."""
    full_in: int
    """Seconds until it may make all of them."""
    retry_in: int
    """Seconds until it may make one; 0: at once."""


class Rates:
    """The buckets."""

    def __init__(self, rate: float, burst: int = 0, policy: str = POLICY) -> None:
        """``rate``: requests a second, more than 0; ``burst``: at once, 0: as many as in ten seconds, at least one;
        ``policy``: its name in the headers."""
        self._name = policy
        self._rate = rate
        self._burst = float(burst or max(1, ceil(rate * 10)))
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.policy = f'"{policy}";q={int(self._burst)};w={ceil(self._burst / rate)}'
        """``RateLimit-Policy``."""

    def take(self, caller: str, now: float) -> RateStanding:
        """A request of a caller, at a time in seconds of any clock that does not go back."""
        tokens, at = self._buckets.pop(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        allowed = tokens >= 1
        if allowed:
            tokens -= 1
        self._buckets[caller] = (tokens, now)
        if len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)
        retry_in = 0 if tokens >= 1 else ceil((1 - tokens) / self._rate)
        return RateStanding(allowed, int(tokens), ceil((self._burst - tokens) / self._rate), retry_in)

    def headers(self, standing: RateStanding) -> dict[str, str]:
        """What an answer says of it."""
        headers = {
            "ratelimit-policy": self.policy,
            "ratelimit": f'"{self._name}";r={standing.left};t={standing.full_in}',
        }
        return headers if standing.allowed else {**headers, "retry-after": str(max(1, standing.retry_in))}
