"""What happens at a front, counted and logged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from gateway.operations import Publish
from gateway.telemetry import log

if TYPE_CHECKING:
    from gateway.front.client import FrontClient

REASON_MAX: Final = 200


class FrontCounts:
    """The counters of one front, from its start on."""

    def __init__(self, front: str) -> None:
        self.front = front
        self.rewrites: dict[str, int] = {}
        """Rule -> how often it rewrote something."""
        self.refusals: dict[tuple[str, int], int] = {}
        """Operation and reply code -> how often it was refused."""
        self.void_settlements = 0
        """Settlements of deliveries that a lost upstream connection had taken back."""
        self.resent_publishes = 0
        """Publishes that were sent again, marked."""
        self.undelivered = 0
        """Deliveries that a client's connection cannot carry."""
        self.lost_publishes = 0
        """Publishes that the upstream refused, of clients that hear of no refusal."""
        self.lost_consumers = 0
        """Consumers that could not be restored."""
        self.unconfirmed_bytes = 0
        """Of publishes without an outcome, now."""
        self.held_bytes = 0
        """Of deliveries that wait for their clients, now."""

    def refused(self, operation: str, code: int) -> None:
        """A request was refused."""
        key = (operation, code)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def rewritten(self, rule: str, client: FrontClient) -> None:
        """A rule has rewritten a request: logged once for each client."""
        self.rewrites[rule] = self.rewrites.get(rule, 0) + 1
        count = client.rewrites[rule] = client.rewrites.get(rule, 0) + 1
        if count == 1:
            log("front.rewritten", front=self.front, rule=rule, user=client.user, client=client.address)

    def unconfirmed(self, size: int) -> None:
        """So many octets more have no outcome."""
        self.unconfirmed_bytes += size

    def held(self, size: int) -> None:
        """So many octets more wait for their client."""
        self.held_bytes += size

    def void(self) -> None:
        """A settlement came for what is in its queue again."""
        self.void_settlements += 1

    def resent(self) -> None:
        """A publish was sent again."""
        self.resent_publishes += 1

    def undeliverable(self, client: FrontClient, queue: str, why: str) -> None:
        """A delivery stays unacknowledged until its client goes, and is for others then."""
        self.undelivered += 1
        log(
            "front.undeliverable", logging.WARNING,
            front=self.front, user=client.user, queue=queue, reason=why[:REASON_MAX],
        )  # fmt: skip

    def publish_lost(self, client: FrontClient, request: Publish, why: str) -> None:
        """A publish was refused, and its client does not hear of refusals."""
        self.lost_publishes += 1
        log(
            "front.publish_refused", logging.WARNING,
            front=self.front, user=client.user, exchange=request.exchange, reason=why[:REASON_MAX],
        )  # fmt: skip

    def consumer_lost(self, client: FrontClient, queue: str, why: str) -> None:
        """A consumer could not be restored."""
        self.lost_consumers += 1
        log(
            "front.consumer_lost", logging.WARNING,
            front=self.front, user=client.user, queue=queue, reason=why[:REASON_MAX],
        )  # fmt: skip
