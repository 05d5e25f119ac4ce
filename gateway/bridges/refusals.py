"""Whose fault it is when a target does not take a message: one table.

::

    MESSAGE   the message's: it is dead-lettered at once, with the reason
    TARGET    the target's: nothing is dead-lettered; the bridge waits, and tries again with growing pauses
    SUSPECT   it cannot be told from one refusal. The message is held and tried again, with growing pauses, while its
              neighbours go on. If it was refused ``tries`` times, and the target has taken messages that were
              published after it, it is the message's fault. As long as the target takes none, it is the target's.

So a queue that is missing at the target, or full, stops the bridge and loses nothing; and a message that nobody at
the target wants does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.errors import (
    AccessRefused,
    BrokerUnavailable,
    FrameSyntaxError,
    GatewayError,
    LimitExceeded,
    LocalError,
    NotFound,
    OutcomeUnknown,
    PublishRefused,
    RemoteError,
    Unroutable,
)
from gateway.upstreams.publishing.isolation import whole_exchange


class Fault(Enum):
    """Whose fault a refusal is."""

    MESSAGE = "message"
    TARGET = "target"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class RefusalOutcome:
    """What follows from a refusal."""

    fault: Fault
    tries: int = 1
    """How often a suspect is refused before it is the message's fault."""
    pause: float = 0.5
    """How long a suspect waits after its first refusal, in seconds; doubled each time."""
    alone: bool = False
    """One refusal says nothing of the others, which go on at full speed."""


MESSAGE: Final = RefusalOutcome(Fault.MESSAGE)
TARGET: Final = RefusalOutcome(Fault.TARGET)

REFUSALS: Final[Mapping[type[GatewayError], RefusalOutcome]] = {
    Unroutable:        RefusalOutcome(Fault.SUSPECT, tries=2, pause=0.1, alone=True),
    AccessRefused:     RefusalOutcome(Fault.SUSPECT, tries=2, pause=0.1, alone=True),
    PublishRefused:    RefusalOutcome(Fault.SUSPECT, tries=5),
    OutcomeUnknown:    RefusalOutcome(Fault.SUSPECT, tries=10),
    NotFound:          TARGET,
    BrokerUnavailable: TARGET,
    RemoteError:       MESSAGE,
    LocalError:        MESSAGE,
    LimitExceeded:     MESSAGE,
    FrameSyntaxError:  MESSAGE,
    GatewayError:      RefusalOutcome(Fault.SUSPECT, tries=5),
}  # fmt: skip
"""Error -> outcome. A subclass counts as its nearest ancestor here."""


def refusal_of(error: GatewayError) -> RefusalOutcome:
    """Whose fault it is that a publish ended with this error."""
    if isinstance(error, RemoteError) and whole_exchange(error):
        return TARGET
    return next(REFUSALS[kind] for kind in type(error).__mro__ if kind in REFUSALS)
