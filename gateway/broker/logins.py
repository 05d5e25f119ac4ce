"""Failed logins at the embedded broker: how long the next answer waits, and what the log says of them.

Failures are counted for the address that they come from and for the user that they name. After a few of them each
answer to a login waits, whether the password is right or wrong, so nobody learns anything by being quick. The wait
doubles with each failure up to :data:`DELAY_MAX` and is forgotten when nothing fails for :data:`FORGET_AFTER`. Nobody
is locked out.

The log has one line for an address at once, and then one a minute at most, with the number of failures since.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from gateway.config import EmbeddedSettings

FREE_OF_ADDRESS: Final = 3
"""Failures of an address that cost nothing: somebody mistypes."""
FREE_OF_USER: Final = 10
"""Failures for a user that cost nothing, wherever they come from."""
DELAY: Final = 0.1
"""The first wait, in seconds."""
DELAY_MAX: Final = 3.0
"""The longest wait, in seconds."""
FORGET_AFTER: Final = 60.0
"""Seconds without a failure after which those before it are forgotten."""
KNOWN_MAX: Final = 4_096
"""Of how many addresses, and of how many users, failures are kept; those that failed longest ago are forgotten."""
LOG_EVERY: Final = 60.0
"""Seconds between two lines about an address."""
NETWORK: Final = 64
"""Bits of an IPv6 address that count as one client."""


def open_to_strangers(settings: EmbeddedSettings) -> list[str]:
    """What lets anybody in who can reach the port from another machine."""
    if not settings.enabled or _is_loopback(settings.host):
        return []
    found = [
        f"user {user.name!r}: its password is its name"
        for user in settings.users
        if user.password == user.name and user.name not in settings.loopback_users
    ]
    if settings.anonymous and settings.anonymous not in settings.loopback_users:
        found.append(f"embedded.anonymous is {settings.anonymous!r}: clients need no password")
    return found


class LoginReport(NamedTuple):
    """A line for the log."""

    address: str
    failures: int
    """How many there were since the line before."""


class _Failures:
    """Failures of one address or user."""

    __slots__ = ("count", "latest", "logged_at", "unlogged")

    def __init__(self) -> None:
        self.count = 0
        self.latest = 0.0
        self.logged_at: float | None = None
        self.unlogged = 0

    def delay(self, free: int, now: float) -> float:
        if self.count < free or now - self.latest >= FORGET_AFTER:
            return 0.0
        return float(min(DELAY * 2.0 ** min(self.count - free, 16), DELAY_MAX))


class Logins:
    """What is remembered of failed logins. Time is an argument."""

    __slots__ = ("_addresses", "_users")

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        """The one that failed longest ago first."""
        self._users: OrderedDict[str, _Failures] = OrderedDict()

    def delay(self, address: str, user: str, now: float) -> float:
        """How long the answer to a login waits, in seconds."""
        of_address, of_user = self._addresses.get(address), self._users.get(user)
        return max(
            0.0 if of_address is None else of_address.delay(FREE_OF_ADDRESS, now),
            0.0 if of_user is None else of_user.delay(FREE_OF_USER, now),
        )

    def failed(self, address: str, user: str, now: float) -> LoginReport | None:
        """A login failed. The line to write now."""
        _count(self._users, user, now)
        failures = _count(self._addresses, address, now)
        failures.unlogged += 1
        if failures.logged_at is not None and now - failures.logged_at < LOG_EVERY:
            return None
        return _report(address, failures, now)

    def reports(self, now: float) -> list[LoginReport]:
        """The lines that are due about failures since the line before."""
        return [
            _report(address, failures, now)
            for address, failures in self._addresses.items()
            if failures.unlogged and failures.logged_at is not None and now - failures.logged_at >= LOG_EVERY
        ]


def client_of(address: str) -> str:
    """As what a remote address counts: of IPv6, its /64 network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is None:
            return str(ip_network((found, NETWORK), strict=False))
        found = found.ipv4_mapped
    return str(found)


def is_local(address: str, own: str) -> bool:
    """Whether a connection from ``address`` to ``own`` comes from this machine."""
    return address == own or _is_loopback(address)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (found if mapped is None else mapped).is_loopback


def _report(address: str, failures: _Failures, now: float) -> LoginReport:
    report = LoginReport(address, failures.unlogged)
    failures.logged_at, failures.unlogged = now, 0
    return report


def _count(table: OrderedDict[str, _Failures], name: str, now: float) -> _Failures:
    failures = table.get(name)
    if failures is None:
        if len(table) >= KNOWN_MAX:
            table.popitem(last=False)
        failures = table[name] = _Failures()
    elif now - failures.latest >= FORGET_AFTER:
        failures.count = 0
    failures.count += 1
    failures.latest = now
    table.move_to_end(name)
    return failures
