"""What happens at a front, counted and logged. ``/metrics`` and the API show the counts."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from gateway.amqp.operations import Publish
from gateway.observing.telemetry import Metrics, log

REASON_MAX: Final = 200
"""Longest reason in the log, in characters."""
PUBLISHES: Final = "publishes"
"""Publishes by outcome: ``confirmed``, ``stored`` (kept in the ledger for the broker), ``returned``, ``refused``,
``resent`` (sent again after a loss), ``lost`` (refused, and the client hears of no refusals)."""
DELIVERIES: Final = "deliveries"
"""Deliveries by event: ``delivered``, ``undeliverable`` (its connection cannot carry it), ``void`` (settled after the
broker had taken it back), ``marked`` (as redelivered, where the broker may have forgotten that), ``consumer_lost``."""
REWRITES: Final = "rewrites"
"""By rule."""
REFUSALS: Final = "refusals"
"""By reply code."""


class CountedClient(Protocol):
    """A client, as the log names it."""

    user: str
    address: str
    rewrites: dict[str, int]
    """Rule -> how often it rewrote what this client asked."""


class FrontCounts:
    """The counts of one front, from its start on."""

    def __init__(self, front: str, metrics: Metrics | None = None) -> None:
        self.front = front
        self.totals: dict[tuple[str, str], int] = {}
        """What is counted, and its label -> how many."""
        self.refused_operations: dict[tuple[str, int], int] = {}
        """Operation and reply code -> how often it was refused."""
        self.delivered = 0
        """Deliveries that were written to their clients."""
        self.restores = 0
        """Connections to the broker that were lost and opened again."""
        self.logins_refused = 0
        self.unconfirmed_bytes = 0
        """Of publishes without an outcome, now."""
        self.stored_bytes = 0
        """Of publishes that the ledger keeps for a broker that is away, now."""
        self.held_bytes = 0
        """Of deliveries that wait for their clients, now."""
        self._metrics = metrics
        self._shown: dict[tuple[str, str], int] = {}

    def of(self, what: str) -> dict[str, int]:
        """All counts of a kind, by label."""
        return {label: number for (kind, label), number in sorted(self.totals.items()) if kind == what}

    def add(self, what: str, label: str, number: int = 1) -> None:
        """Count."""
        key = (what, label)
        self.totals[key] = self.totals.get(key, 0) + number

    def show(self) -> None:
        """Add to the metrics what was counted since the last time."""
        if self.delivered:
            self.totals[DELIVERIES, "delivered"] = self.delivered
        self.totals["restores", ""] = self.restores
        self.totals["logins_refused", ""] = self.logins_refused
        metrics = self._metrics
        if metrics is None:
            return
        families = {
            PUBLISHES: metrics.front_publishes,
            DELIVERIES: metrics.front_deliveries,
            REWRITES: metrics.front_rewrites,
            REFUSALS: metrics.front_refusals,
            "restores": metrics.front_restores,
            "logins_refused": metrics.front_logins_refused,
        }
        for (what, label), number in self.totals.items():
            more = number - self._shown.get((what, label), 0)
            if more or not number:
                families[what].labels(self.front, *(label,) if label else ()).inc(more)
                self._shown[what, label] = number

    def refused(self, operation: str, code: int) -> None:
        """A request was refused."""
        key = (operation, code)
        self.refused_operations[key] = self.refused_operations.get(key, 0) + 1
        self.add(REFUSALS, str(code))

    def rewritten(self, rule: str, client: CountedClient) -> None:
        """A rule has rewritten a request: logged once for each client."""
        self.add(REWRITES, rule)
        count = client.rewrites[rule] = client.rewrites.get(rule, 0) + 1
        if count == 1:
            log("front.rewritten", front=self.front, rule=rule, user=client.user, client=client.address)

    def unconfirmed(self, size: int) -> None:
        """So many bytes more have no outcome."""
        self.unconfirmed_bytes += size

    def held(self, size: int) -> None:
        """So many bytes more wait for their client."""
        self.held_bytes += size

    def undeliverable(self, client: CountedClient, queue: str, why: str) -> None:
        """A delivery stays unacknowledged until its client goes, and is for others then."""
        self.add(DELIVERIES, "undeliverable")
        log(
            "front.undeliverable", logging.WARNING,
            front=self.front, user=client.user, queue=queue, reason=why[:REASON_MAX],
        )  # fmt: skip

    def publish_lost(self, client: CountedClient, request: Publish, why: str) -> None:
        """A publish was refused, and its client does not hear of refusals."""
        self.add(PUBLISHES, "lost")
        log(
            "front.publish_refused", logging.WARNING,
            front=self.front, user=client.user, exchange=request.exchange, reason=why[:REASON_MAX],
        )  # fmt: skip

    def consumer_lost(self, client: CountedClient, queue: str, why: str) -> None:
        """A consumer could not be restored."""
        self.add(DELIVERIES, "consumer_lost")
        log(
            "front.consumer_lost", logging.WARNING,
            front=self.front, user=client.user, queue=queue, reason=why[:REASON_MAX],
        )  # fmt: skip
