"""Settings of budgets: how much of everything that clients share one of them may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from gateway.budgets import RESOURCES, BudgetBounds
from gateway.config.base import Settings

if TYPE_CHECKING:
    from gateway.config.document import Config

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


def check_budgets(settings: BudgetSettings) -> str | None:
    """Return what is wrong with a resource's name, beginning with the setting; None: nothing is."""
    for setting in ("totals", "shares"):
        for name in getattr(settings, setting):
            row = RESOURCES.get(name)
            if row is None:
                return f"{setting}: there is no resource {name!r}; the resources are {', '.join(RESOURCES)}"
            if setting == "totals" and row.setting != "budgets.totals":
                return f"{setting}: the total of {name!r} is {row.setting}; set that"
    return None


def budget_bounds(config: Config) -> BudgetBounds:
    """Return the bounds that a configuration sets."""
    settings = config.budgets
    totals = dict(settings.totals)
    for name, row in RESOURCES.items():
        if row.setting != "budgets.totals":
            value: object = config
            for part in row.setting.split("."):
                value = getattr(value, part)
            if not isinstance(value, int):
                raise TypeError(f"{row.setting} is no whole number")
            totals[name] = value
    return BudgetBounds(settings.share, settings.reserve, totals, settings.shares, settings.clients)
