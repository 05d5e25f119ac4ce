"""All fronts of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.config import BrokerSettings, FrontSettings
from gateway.front.server import Front


class Fronts:
    """The fronts by name.

    Args:
        settings: of each front.
        brokers: those of all brokers, by name.
    """

    def __init__(self, settings: Mapping[str, FrontSettings], brokers: Mapping[str, BrokerSettings]) -> None:
        self.fronts = {name: Front(name, each, brokers) for name, each in settings.items()}

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
