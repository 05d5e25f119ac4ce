"""What stands between an endpoint at work and the subscriptions that it serves: how much it can take, why it takes
nothing, and what it asks of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.schedule import NextStep
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import Endpoint


class Demand(StrEnum):
    """How much a target can take."""

    NOTHING = "nothing"
    """It is suspended: messages stay in their queues."""
    LITTLE = "little"
    """It fails, or is to be tried whether it still does: a message or two."""
    MUCH = "much"


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why a target gets nothing now."""

    state: str
    """One word: ``paused``, ``disabled``, ``unverified``, ``missing``, ``asked_to_wait``, ``breaker_open``,
    ``ledger``."""
    reason: str
    until: float | None
    """When it is over, on the loop's clock; None: when somebody says so."""

    @property
    def code(self) -> str:
        """The same word, as the API has it beside other reasons."""
        return {"breaker_open": "breaker_open", "ledger": "ledger_unavailable"}.get(
            self.state, f"endpoint_{self.state}"
        )


class PushSource(Protocol):
    """Where a target gets its messages from: one subscription."""

    name: str

    def ripe_at(self, most: int, wait: float) -> float | None:
        """When it has a request's worth of messages, ``most`` of them or those that have waited ``wait`` seconds, on
        the loop's clock; None: it has none."""
        ...

    def take(self, most: int) -> list[PushDelivery]:
        """The messages of the next request, at least one where it is ripe."""
        ...

    def outgoing(self, item: PushDelivery) -> PushedMessage:
        """A message as the sender wants it."""
        ...

    async def finished(
        self, items: Sequence[PushDelivery], outcome: SendOutcome, next_steps: Sequence[NextStep]
    ) -> None:
        """A request is over; returns when what follows is safe."""
        ...

    def dropped(self, items: Sequence[PushDelivery]) -> None:
        """A request was cut off: nothing is known of it."""
        ...

    def changed(self) -> None:
        """Note that the target's demand has changed."""
        ...


class Send(Protocol):
    """What makes requests."""

    async def send(
        self, endpoint: Endpoint, items: Sequence[PushedMessage], timestamp: int, fresh: bool = False
    ) -> SendOutcome:
        """Never raises but CancelledError."""
        ...
