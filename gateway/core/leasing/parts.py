"""What everything that takes messages for a subscription works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.sources.byte_budget import ByteBudget
from gateway.core.sources.dead_letters import DeadLetterPublisher
from gateway.core.sources.own_queues import OwnQueues
from gateway.core.work.recorder import Recorder
from gateway.ledger import Ledger, MessageIds
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Upstream


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a gateway."""

    ledger: Ledger
    ids: MessageIds
    metrics: Metrics
    recorder: Recorder
    find: Callable[[str], Upstream]
    """A broker by name; raises NoSuchBroker."""
    dead_letters: DeadLetterPublisher
    own_queues: OwnQueues
    byte_budget: ByteBudget
