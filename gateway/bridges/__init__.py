"""Bridges: from a queue of one broker to an exchange of another, in any versions.

Each message is published at the target and confirmed there, then recorded in the ledger, then acknowledged to the
source. A crash anywhere leaves duplicates at worst, marked and of one origin id; see
``docs/reference/bridges.md``. The parts, from the outside in::

    supervisor.py   Bridges: all of them; what the API does with them.
    bridge.py       one bridge: source, consumer, faults, status.
    flow.py         the way of messages: taken, published, recorded, acknowledged.
    two_phase.py    mode dtx: branches of distributed transactions, which the ledger decides.
    in_doubt.py     what such a bridge has left in the middle.
    gate.py         how much may be under way at the target.
    dead_letters.py publishes messages at the dead-letter destination.
    journal.py      the ledger, as a bridge sees it.
    routes.py       what becomes of one message: rules without I/O.
    templates.py    routing-key templates.
    refusals.py     whose fault it is when a target does not take a message.
    throttle.py     messages and octets a second.
    items.py        a message on its way.
    compare.py      both sides beside each other, for a cut-over.
    faults.py       what stands in a bridge's way.
    counts.py       numbers for status and metrics.
    states.py       states, and the status.
"""

from gateway.bridges.states import BridgeState, BridgeStatus
from gateway.bridges.supervisor import BridgeSupervisor

__all__ = ["BridgeState", "BridgeStatus", "BridgeSupervisor"]
