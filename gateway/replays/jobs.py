"""A replay as a thing that is kept: its state, its counts, how far it came.

A job is one resource of the ledger. The owner writes down how far it came before each chunk that it sends; a caller
that steers it (pause, resume, cancel) writes the wish. Both write only over what they have read, and read again where
somebody was quicker, so that neither's word is lost.

::

    pending ──> running <──> paused
       │           │            │
       └───────────┴──> done | failed | cancelled ──(asked for again)──> pending
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from gateway.replays.requests import ReplayRequest

REPLAY_RESOURCE: Final = "replay"
REFUSALS: Final = "replay-refusals"
"""The resources that name what was not sent, by job and page."""
ANY_REPLAY: Final = "replay"
"""The inbox of what any replay has sent from a queue. A message that is delivered again may be one of these."""


class JobState(StrEnum):
    """What a replay is doing."""

    PENDING = "pending"
    """Nobody has begun with it."""
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    """Everything that was found was sent, or is named as refused: then the reason says how many were."""
    FAILED = "failed"
    """It cannot go on, or none of what it found was sent; the reason says why. Asked for again, it sends what is
    left."""
    CANCELLED = "cancelled"


MOVES: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.PAUSED, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.PAUSED, JobState.DONE, JobState.FAILED, JobState.CANCELLED}),
    JobState.PAUSED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.DONE: frozenset({JobState.PENDING}),
    JobState.FAILED: frozenset({JobState.PENDING}),
    JobState.CANCELLED: frozenset({JobState.PENDING}),
}
"""State -> those that may follow."""
ENDED: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
"""Nothing more happens in these without a request."""


class Wish(StrEnum):
    """What is wished for."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class Refusal(msgspec.Struct, frozen=True):
    """A message that was not sent."""

    id: str
    """Id of the message or of the delivery."""
    code: str
    """Why, as a code of the table of errors; ``no_body`` where the ledger does not keep the body."""
    detail: str
    """Why, in a sentence."""


class Job(msgspec.Struct, kw_only=True):
    """A replay. Times are microseconds since 1970."""

    id: str
    request: ReplayRequest
    client: str = ""
    """Who asked for it: the name of the API key."""
    state: JobState = JobState.PENDING
    wish: Wish = Wish.RUN
    reason: str = ""
    """What stands in its way, or why it ended."""
    created_at: int = 0
    """When it was first asked for: the date of the ids that its messages get."""
    asked_at: int = 0
    """When it was asked for last."""
    ended_at: int = 0
    runs: int = 1
    """How often it was asked for after it had ended."""
    found: int = 0
    sent: int = 0
    skipped: int = 0
    """Sent by an earlier run of the same id."""
    refused: dict[str, int] = {}
    """Not sent: code -> how many."""
    signed: bool | None = None
    """Whether its requests are signed, as it was asked for; None: it goes to brokers."""
    resent: int = 0
    """Sent although they may have been sent before a crash; marked."""
    total: int | None = None
    """How many there are, as far as it can be known before the end."""
    position: str = ""
    """Where the source goes on; what it means is the source's."""
    flying: tuple[str, ...] = ()
    """The keys of the chunk that was about to be sent when this was written, and of older ones of which it is not known
    whether they were."""
    landed: tuple[str, ...] = ()
    """The names of those that are counted as sent and may be met once more, from ``position`` on."""
    pages: int = 0
    """How many pages of refusals there are."""

    def move(self, state: JobState, reason: str = "") -> None:
        """Go on to another state."""
        if state is not self.state:
            assert state in MOVES[self.state], f"a replay does not go from {self.state} to {state}"
            self.state = state
        self.reason = reason

    def become(self, other: Job) -> None:
        """Take all that another one says of the same replay."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    @property
    def refusals(self) -> int:
        """How many were not sent."""
        return sum(self.refused.values())

    @property
    def scope(self) -> str:
        """Whose inbox it is."""
        return f"replay:{self.id}"

    def spec(self) -> dict[str, Any]:
        """As the ledger keeps it."""
        kept: dict[str, Any] = msgspec.to_builtins(self)
        return kept


def read_job(spec: Mapping[str, Any]) -> Job:
    """The job that the ledger keeps."""
    return msgspec.convert(spec, Job)
