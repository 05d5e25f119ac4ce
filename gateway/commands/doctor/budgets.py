"""Budgets: whether their settings make sense, and how close a gateway that runs is to them."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final

from gateway.budgets import RESOURCES, BudgetBounds, BudgetResource, Budgets
from gateway.commands.doctor.findings import Report
from gateway.commands.doctor.listeners import WITHIN, near
from gateway.config import Config, budget_bounds
from gateway.config.access import JWT_CLIENT

NEAR: Final = 0.8
"""Share of a budget from which on the finding warns."""
PAGE_MAX: Final = 8 << 20
"""Most bytes that are read of the metrics."""
_SAMPLE: Final = re.compile(
    r'^amqpgw_budget_(used|total|largest)\{resource="(\w+)"\} (\S+)$|'
    r'^amqpgw_budget_refusals_total\{reached="(\w+)",resource="(\w+)"\} (\S+)$',
    re.MULTILINE,
)


def examine(report: Report, config: Config) -> None:
    """Look at the settings, and at the metrics of a gateway that runs."""
    bounds = budget_bounds(config)
    wrong = [*_shares(report, bounds, is_shared=_shares_broker(config)), *_clients(report, config)]
    if not wrong:
        report.ok("access.budgets", "budgets", f"one client may hold {bounds.share:.0%} of each total")
    if config.role != "worker" or config.ops.port:
        _in_use(report, config, bounds)


def _shares_broker(config: Config) -> bool:
    """Whether the embedded broker has more than one user; a single one has no share."""
    embedded = config.embedded
    return embedded.enabled and len({embedded.anonymous, *(user.name for user in embedded.users)} - {""}) > 1


def _is_split(row: BudgetResource, is_shared: bool) -> bool:
    """Whether clients have shares of a resource. ``is_shared``: the embedded broker has more than one user."""
    return row.is_split and (is_shared or not row.setting.startswith("embedded."))


def _shares(report: Report, bounds: BudgetBounds, *, is_shared: bool) -> Iterator[str]:
    budgets = Budgets(bounds)
    for holdings in budgets.all():
        row = holdings.resource
        part = bounds.shares.get(row.name, bounds.share)
        where = f"budgets.shares.{row.name}" if row.name in bounds.shares else "budgets.share"
        if not _is_split(row, is_shared):
            continue
        if holdings.total * part < 1:
            report.warn(
                "access.budgets", where, f"{part:g} of {holdings.total:,} {row.what} is less than one; one is allowed",
                why=f"A client may hold one at a time. The total is {row.setting}.",
                do=f"Raise {row.setting}, or set budgets.shares.{row.name}.",
            )  # fmt: skip
            yield where
        elif holdings.share >= holdings.total - holdings.reserve and holdings.total > 1:
            why = f"One request may need {bounds.ones[row.name]:,} of it." if row.name in bounds.ones else ""
            report.warn(
                "access.budgets", where, f"one client may hold all {row.what} that others may",
                why=why or "Then it locks all others out.",
                do=f"Lower budgets.shares.{row.name}, or raise {row.setting}.",
            )  # fmt: skip
            yield where
        if bounds.reserve and not holdings.reserve and row.name not in bounds.ones:
            report.warn(
                "access.budgets", "budgets.reserve", f"{bounds.reserve:g} of {holdings.total:,} {row.what} is nothing",
                why="Nothing is reserved for admin.", do=f"Raise budgets.reserve, or {row.setting}.",
            )  # fmt: skip
            yield "budgets.reserve"


def _clients(report: Report, config: Config) -> Iterator[str]:
    known = {key.name for key in config.api_keys} | {each.client for each in config.access.certificates}
    known |= {user.name for user in config.embedded.users}
    for name in config.budgets.clients:
        if name not in known and not name.startswith(JWT_CLIENT):
            report.warn(
                "access.budgets", f"budgets.clients.{name}", "no key or certificate of the file has this client",
                why="The share counts for nobody, unless `gateway keys` made a key with this name.",
                do="Correct the name. Clients with tokens are called jwt:SUBJECT.",
            )  # fmt: skip
            yield name


def _in_use(report: Report, config: Config, bounds: BudgetBounds) -> None:
    """What the gateway that has the operations port says."""
    page = _metrics(config)
    if page is None:
        return
    used, refused = _samples(page)
    close = []
    is_shared = _shares_broker(config)
    for name, row in RESOURCES.items():
        held, total, largest = (used.get((name, what), 0.0) for what in ("used", "total", "largest"))
        if not total:
            continue
        share = total * bounds.shares.get(name, bounds.share)
        if held >= NEAR * total * (1 - bounds.reserve):
            close.append(f"{name}: {held:,.0f} of {total:,.0f} are in use")
        elif _is_split(row, is_shared) and largest >= NEAR * max(share, bounds.ones.get(name, 1)) and largest > 1:
            close.append(f"{name}: one client holds {largest:,.0f}, and its share is about {share:,.0f}")
        if count := refused.get((name, "total"), 0.0):
            close.append(f"{name}: {count:,.0f} refusals since the start for want of more")
    if close:
        report.warn(
            "access.budgets", "a gateway that runs", "; ".join(close),
            why="A client at its share gets 429; when the total is in use, all but admin get 503.",
            do="gateway budgets names the clients. Raise the total or a share, or have them hold less.",
        )  # fmt: skip


def _metrics(config: Config) -> str | None:
    """The page of the operations port; None: there is no such gateway."""
    if not config.ops.port:
        return None
    connection = http.client.HTTPConnection(near(config.ops.host), config.ops.port, timeout=WITHIN)
    try:
        with closing(connection):
            connection.request("GET", "/metrics", headers={"host": "localhost"})
            return connection.getresponse().read(PAGE_MAX).decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _samples(page: str) -> tuple[Mapping[tuple[str, str], float], Mapping[tuple[str, str], float]]:
    """Resource and gauge -> value; resource and what was reached -> refusals."""
    used: dict[tuple[str, str], float] = {}
    refused: dict[tuple[str, str], float] = {}
    for match in _SAMPLE.finditer(page):
        if match[1]:
            used[match[2], match[1]] = float(match[3])
        else:
            refused[match[5], match[4]] = float(match[6])
    return used, refused
