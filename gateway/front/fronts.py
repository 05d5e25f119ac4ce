"""All fronts of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gateway.access.scopes import principal_of
from gateway.config import BrokerSettings, FrontSettings
from gateway.core.gateway import Gateway
from gateway.errors import ConfigurationError
from gateway.front.channels.rules import RULE_NAMES
from gateway.front.server import Front
from gateway.front.shares import BYTES, measured
from gateway.front.store import GatewayLedger
from gateway.front.users import FrontUsers
from gateway.observing.telemetry import Metrics

PORTS: Final = "ports are opened at the start"
RESTART: Final[Mapping[str, str]] = {
    "host": PORTS,
    "port": PORTS,
    "tls": "which files are read is said to the open port; what is in them counts within seconds",
    "login": "clients have logged in the other way",
    "broker": "clients have queues and messages there",
    "virtual_hosts": "clients have queues and messages there",
    "message_max": "connections are open that were told the old one",
}
"""Setting of a front that takes a restart, and why. All others count at once."""


def check_fronts(settings: Mapping[str, FrontSettings]) -> None:
    """Check what the configuration alone cannot: names of rules, and scopes. Raises ConfigurationError."""
    for name, front in settings.items():
        if unknown := front.rules.keys() - set(RULE_NAMES):
            known = ", ".join(RULE_NAMES)
            raise ConfigurationError(f"fronts.{name}.rules: there is no rule {min(unknown)!r}; there are {known}")
        for user in front.users:
            try:
                principal_of(user.name, user.scopes)
            except ConfigurationError as error:
                raise ConfigurationError(f"fronts.{name}.users.{user.name}.{error}") from None


def restarts(before: Mapping[str, FrontSettings], after: Mapping[str, FrontSettings]) -> Iterator[tuple[str, str]]:
    """What of other settings takes a restart: a dotted setting, and why."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            yield f"fronts.{name}", PORTS
            continue
        for field, why in RESTART.items():
            if getattr(old, field) != getattr(new, field):
                yield f"fronts.{name}.{field}", why


class Fronts:
    """The fronts by name.

    Args:
        settings: of each front.
        brokers: those of all brokers, by name.
        metrics: where what happens is counted.
        gateway: whose ledger keeps publishes while a broker is away, and timelines, and whose budgets count; None:
            there are none.
    """

    def __init__(
        self,
        settings: Mapping[str, FrontSettings],
        brokers: Mapping[str, BrokerSettings],
        metrics: Metrics | None = None,
        gateway: Gateway | None = None,
    ) -> None:
        self._brokers = brokers
        if gateway is None:
            self.fronts = {name: Front(name, each, brokers, metrics) for name, each in settings.items()}
            return
        ledger, budgets = GatewayLedger(gateway), gateway.budgets
        self.fronts = {
            name: Front(name, each, brokers, metrics, ledger=ledger, budgets=budgets) for name, each in settings.items()
        }
        budgets[BYTES].measure = measured(
            lambda: [each.shares for each in self.fronts.values() if each.shares is not None]
        )

    def prepare(
        self, settings: Mapping[str, FrontSettings], brokers: Mapping[str, BrokerSettings]
    ) -> Callable[[], None]:
        """Check other settings of the fronts that there are. What is returned has them count.

        Raises:
            ConfigurationError: the file of a password is missing or empty.
        """
        users = {name: FrontUsers(name, settings[name].users) for name in self.fronts}

        def commit() -> None:
            self._brokers = {**self._brokers, **brokers}
            for name, front in self.fronts.items():
                front.use(settings[name], users[name], self._brokers)

        return commit

    @property
    def ports(self) -> dict[str, int]:
        """Where each of them listens."""
        return {name: front.port for name, front in self.fronts.items()}

    async def start(self) -> None:
        """Listen. Raises ConfigurationError: a port is taken, or a password file is missing."""
        for front in self.fronts.values():
            await front.start()

    async def stop(self) -> None:
        """Tell every client, and end."""
        await asyncio.gather(*(front.stop() for front in self.fronts.values()))
