"""The checker of a lane: what was published, what its consumers were handed, and what the ledger says of it.

Beside what :mod:`tests.faults.checker` asks (lost 0, unexpected 0, nothing changed, repeats marked, whatever was
received is settled):

* No message is in two leases at once. A lease begins when a consumer is handed the message. It ends when the consumer
  settles it or the attempt's connection ends (push), when its deadline passes, or, if the broker holds it, when whoever
  held the channel to the broker died (:attr:`Found.broken`). A lease of the ledger outlives the gateway, so that the
  message must not come again before its deadline.
* A repeat may lack a mark only where the broker began to stop in between (:attr:`Found.restarts`) and forgot, and the
  message bore no id of a gateway's by which it could be known again. It was out then, or settled right before; of what
  the ledger holds the broker was told when the gateway had taken it.
* The ledger says that each message was acknowledged which a consumer acknowledged. An id under which nobody
  acknowledged anything is possible only where the broker holds the lease and the message bore no id of its own, for
  then it has another id each time it is taken from the broker. And the ledger may not know of a first attempt to push
  that the broker held and that the gateway's end cut off: it came again then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from uuid import UUID

from tests.faults import checker as common
from tests.faults.checker import History, Reception, Settled, Verdict
from tests.faults.consumers.lanes import PUSH, Lane

COLUMNS: Final = (
    "row",
    "lane",
    "attempted",
    "acknowledged",
    "lost",
    "unexpected",
    "received",
    "duplicated",
    "marked",
    "forgotten",
    "recovered",
    "kills that counted",
    "seconds",
    "seed",
)
"""Of the table that a run prints."""

RIGHT_BEFORE: Final = 60.0
"""A settlement that is no older than so many seconds may not be on the disk of a broker that is restarted: nobody says
when it is, and disks are slow."""
UNREAD: Final = 2.0
"""How long what a gateway had sent may lie with its consumer before that takes notice, in seconds: a consumer reads the
last lines of a stream after its gateway was killed."""
LATE: Final = 10.0
"""How long after the end of its broker a gateway or consumer may hear of a message, on a slow machine, in seconds."""
_DONE: Final = frozenset({"acknowledged"})
ABSENT: Final = "absent"
"""The state of what the ledger does not know."""
_BACK: Final = frozenset({"received", "delivered", "released", "stored", "retrying"})
"""States in which somebody still has to do something, or another id took over."""


@dataclass(slots=True)
class Found:
    """Everything that there is of a lane when a run is over."""

    lane: Lane
    history: History
    states: Mapping[str, str] = field(default_factory=dict)
    """Of every message that the ledger knows, of all lanes, by the gateway's id."""
    broken: Sequence[float] = ()
    """When leases that a broker held were lost, on the clock of the receptions."""
    restarts: Sequence[tuple[float, float]] = ()
    """When the lane's broker was told to end, and when it had."""
    since_1970: float = 0.0
    """What has to be added to that clock to make it that of the day."""


def check(found: Found) -> Verdict:
    """Judge a lane.

    Raises:
        NotDrained: it was not drained.
    """
    _mark_forgotten(found)
    verdict = common.check(found.history)
    by_id: dict[str, list[Reception]] = defaultdict(list)
    by_gateway: dict[str, list[Reception]] = defaultdict(list)
    for reception in found.history.receptions:
        by_id[reception.id].append(reception)
        by_gateway[reception.gateway_id].append(reception)
    verdict.problem("handed out while another lease went on", _two_leases(found, by_id))
    wrong = []
    for gateway_id, receptions in by_gateway.items():
        state = found.states.get(gateway_id, ABSENT)
        last = max(by_id[receptions[0].id], key=lambda reception: reception.since)
        allowed = _allowed(found.lane, receptions, again=last.gateway_id != gateway_id)
        if state not in allowed:
            wrong.append(f"{gateway_id or 'no id'} ({state}, not {' or '.join(sorted(allowed))})")
    verdict.problem("with another state in the ledger than observed", wrong)
    return verdict


def never_handed_out(lanes: Iterable[Found], states: Mapping[str, str]) -> list[str]:
    """Ids that the ledger knows and no consumer of any lane ever saw, in a state that is not possible for these."""
    seen = {reception.gateway_id for found in lanes for reception in found.history.receptions}
    return [f"{id} ({state})" for id, state in states.items() if id not in seen and state not in _BACK]


def _mark_forgotten(found: Found) -> None:
    """Find the repeats that a restarted broker does not know for repeats."""
    earlier: dict[str, Reception] = {}
    for later in sorted(found.history.receptions, key=lambda reception: reception.since):
        before = earlier.get(later.id)
        earlier[later.id] = later
        if before is None or later.marked or later.gateway_id == before.gateway_id:
            continue
        if found.lane.lease == "ledger":
            # The broker was told when the ledger had it, whenever that handed it out.
            came = out = _stored(found, before)
            again = _stored(found, later)
        else:
            came, again = before.since, later.since
            out = before.until if before.until is not None else float("inf")
        came -= LATE  # gateways and consumers may hear of it only after the broker that handed it out has ended
        # While a broker shuts down it requeues deliveries, and may deliver them again.
        later.forgotten = any(came <= end and told <= min(again, out + RIGHT_BEFORE) for told, end in found.restarts)


def _stored(found: Found, reception: Reception) -> float:
    """When the gateway took it from its broker: its id, a UUIDv7, says so. On the clock of the receptions."""
    try:
        return (UUID(reception.gateway_id).int >> 80) / 1_000 - found.since_1970
    except ValueError:
        return reception.since


def _two_leases(found: Found, by_id: Mapping[str, Iterable[Reception]]) -> list[str]:
    """Messages that were handed out while a lease of theirs went on. Two copies of a message that was published again
    after an unknown outcome are two messages; and so are two in the ledger, where the gateway died before it told the
    broker of the first, and nobody could know the second one again."""
    by_copy = found.lane.lease == "ledger" or found.lane.way == PUSH
    order = lambda each: (each.gateway_id if by_copy else "", each.since)  # noqa: E731
    broken = found.broken if found.lane.lease == "broker" and found.lane.way != PUSH else ()
    wrong = []
    for id, receptions in by_id.items():
        for earlier, later in pairwise(sorted(receptions, key=order)):
            end = _end(found.lane, earlier)
            forgiven = any(earlier.since - UNREAD <= moment <= later.since for moment in broken)
            if by_copy and later.gateway_id != earlier.gateway_id:
                continue
            if later.since < end and not (forgiven or earlier.resent or later.resent):
                wrong.append(f"{id} ({end - later.since:.2f} s too early)")
    return wrong


def _end(lane: Lane, reception: Reception) -> float:
    """When a lease ended, as far as its holder knows. What a consumer that pulls does with a message that it does not
    settle says nothing of its lease; an attempt to push is over when its connection is."""
    ends = reception.ends if reception.ends is not None else float("inf")
    told = lane.way == PUSH or reception.settled is not Settled.NO
    return min(ends, reception.until) if told and reception.until is not None else ends


def _allowed(lane: Lane, receptions: Sequence[Reception], again: bool) -> frozenset[str]:
    """The states that a message may be in which was received like this under one id. ``again``: it came later, under
    another id."""
    settled = {reception.settled for reception in receptions}
    if lane.lease == "broker" and again:
        return _DONE | _BACK | {ABSENT} if lane.way == PUSH else _DONE if Settled.ACKED in settled else _DONE | _BACK
    if Settled.ACKED in settled:
        return _DONE
    return _DONE | _BACK if Settled.UNCLEAR in settled else _DONE


def row(name: str, lane: Lane, verdict: Verdict, kills: int, seconds: float, seed: int) -> tuple[str, ...]:
    """One line of the table."""
    numbers = (
        verdict.attempted,
        verdict.acknowledged,
        len(verdict.lost),
        len(verdict.unexpected),
        verdict.received,
        verdict.duplicated,
        verdict.marked,
        verdict.forgotten,
        verdict.recovered,
        kills,
    )
    return (name, lane.name, *(f"{number:,}" for number in numbers), f"{seconds:.0f}", str(seed))
