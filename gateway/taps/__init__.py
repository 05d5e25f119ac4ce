"""Taps: a broker's queue into the message log, from where any number of readers take it.

A delivery is in the ledger's message log, with its body, before it is acknowledged to the broker. A
crash in between brings it again: it is known by its id and dropped, or kept and marked; see
``docs/reference/taps.md``. The parts, from the outside in::

    supervisor.py   Taps: all of them; what the API does with them.
    tap.py          one tap: its flow, what stands in its way, status.
    flow.py         the way of messages: taken, spooled, acknowledged.
    depth.py        as many as the queue held when it began, and no more.
    dead_letters.py messages that the ledger cannot hold go to the dead-letter destination.
    rows.py         a delivery as a row of the log, with its event and its row of the inbox.
    counts.py       numbers for status and metrics.
    states.py       states, and the status.
"""

from gateway.taps.states import TapState, TapStatus
from gateway.taps.supervisor import TapSupervisor

__all__ = ["TapState", "TapStatus", "TapSupervisor"]
