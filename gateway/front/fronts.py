"""All fronts of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.access.scopes import principal_of
from gateway.config import BrokerSettings, FrontSettings
from gateway.errors import ConfigurationError
from gateway.front.rules import RULE_NAMES
from gateway.front.server import Front
from gateway.telemetry import Metrics


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


class Fronts:
    """The fronts by name.

    Args:
        settings: of each front.
        brokers: those of all brokers, by name.
        metrics: where what happens is counted.
    """

    def __init__(
        self,
        settings: Mapping[str, FrontSettings],
        brokers: Mapping[str, BrokerSettings],
        metrics: Metrics | None = None,
    ) -> None:
        self.fronts = {name: Front(name, each, brokers, metrics) for name, each in settings.items()}

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
