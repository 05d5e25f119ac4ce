"""The bounds of budgets that a whole configuration sets."""

from __future__ import annotations

from typing import Final

from gateway.budgets import RESOURCES, BudgetBounds, BudgetResource
from gateway.config.document import Config

TOTALS: Final = "budgets.totals"
"""The setting of the totals of resources that have no setting of their own."""
WITHIN: Final = 0.75
"""The largest part of a resource that another one within it takes where nothing is set."""


def check_budgets(config: Config) -> str | None:
    """Return what is wrong with the budgets, beginning with the setting; None: nothing is."""
    for setting in ("totals", "shares"):
        for name in getattr(config.budgets, setting):
            row = RESOURCES.get(name)
            if row is None:
                return f"{setting}: there is no resource {name!r}; the resources are {', '.join(RESOURCES)}"
            if setting == "totals" and row.setting != TOTALS:
                return f"{setting}: the total of {name!r} is {row.setting}; set that"
    for name, total in config.budgets.totals.items():
        if (outer := RESOURCES[name].within) and total >= (most := _total(config, RESOURCES[outer])):
            return f"totals: {name!r} is {total}; set it below {RESOURCES[outer].setting}, which is {most}"
    return None


def budget_bounds(config: Config) -> BudgetBounds:
    """Return the bounds that a configuration sets."""
    settings = config.budgets
    totals = {name: _total(config, row) for name, row in RESOURCES.items()}
    ones = {name: _number(config, row.one) for name, row in RESOURCES.items() if row.one}
    return BudgetBounds(settings.share, settings.reserve, totals, settings.shares, settings.clients, ones)


def _total(config: Config, row: BudgetResource) -> int:
    if row.setting != TOTALS:
        return _number(config, row.setting)
    if (total := config.budgets.totals.get(row.name)) is not None:
        return total
    if row.within:
        return min(row.total, max(1, int(_total(config, RESOURCES[row.within]) * WITHIN)))
    return row.total


def _number(config: Config, setting: str) -> int:
    value: object = config
    for part in setting.split("."):
        value = getattr(value, part)
    if not isinstance(value, int):
        raise TypeError(f"{setting} is no whole number")
    return value
