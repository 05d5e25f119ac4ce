"""Settings of budgets: how much of everything that clients share one of them may hold."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.config.base import Settings

Part = Annotated[float, Meta(gt=0, le=1)]


class BudgetSettings(Settings, frozen=True):
    """``[budgets]``: how much of the resources in [limits](limits.md#budgets) one client may hold."""

    share: Part = 0.25
    """The part of each total that one client may hold, from 0 to 1."""
    reserve: Annotated[float, Meta(ge=0, le=0.9)] = 0.1
    """The part of each total that only clients with ``admin`` may use, from 0 to 0.9."""
    totals: dict[str, Annotated[int, Meta(ge=1, le=1 << 50)]] = {}
    """Resource = its total, in place of the default. Resources that have a setting of their own are not named here."""
    shares: dict[str, Part] = {}
    """Resource = the part of it that one client may hold, in place of ``share``."""
    clients: dict[str, Part] = {}
    """Client = the part of each total that it may hold, in place of ``share`` and ``shares``."""
