"""What a bridge in mode ``dtx`` has left in the middle: settled by the ledger's word, before anything is taken.

Each branch that was begun has a row in the ledger (:mod:`gateway.ledger.pending.branches`), which survives any crash::

    the ledger says   what is done at the broker                          what the ledger says afterwards
    begun             first the ledger: aborted, so that nobody can       nothing: the row goes
                      decide it any more; then it is rolled back
    aborted           it is rolled back                                   nothing: the row goes
    decided           it is committed. The broker does not know it: it    its messages are forwarded; the row goes
                      was committed, and the answer was lost
    decided           the broker has undone it, against its word          its messages are forgotten; they come again,
                                                                          marked if some of it may have been committed
    nothing           the broker says that it is prepared, under a name   nothing
                      of this bridge: first the ledger, as for one that
                      is begun; then it is rolled back

This is done for a bridge of any mode that has such rows, at whichever broker they are: the mode and the target may have
been changed since.

A process that has lost the bridge may not have heard of that, and settle branches while another process begins some. So
nothing is rolled back before the ledger has been asked in a transaction that lets nobody decide it any more: what was
read of the ledger before may be old.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from gateway.bridges.journal import BridgeJournal
from gateway.bridges.two_phase import FORMAT, branch_id, doubt_of, told_of, undone_of, xid_of
from gateway.core.gateway import Gateway
from gateway.errors import EntriesRefused, NoSuchBroker, RemoteError
from gateway.ledger import BranchRecord, BranchStatus
from gateway.observing.telemetry import log
from gateway.upstreams import BranchOutcome, Upstream


class InDoubtOutcome(NamedTuple):
    """What became of the branches that were found."""

    committed: int
    rolled_back: int
    left: Sequence[bytes]
    """They are aborted, and the target says that a channel works on them still."""
    lost: int
    """Their broker is not configured any more."""


async def settle(
    bridge: str, token: str, gateway: Gateway, journal: BridgeJournal, target: Upstream | None
) -> InDoubtOutcome:
    """Settle what was left in the middle. ``target``: where to look for branches of which the ledger knows nothing.

    Raises:
        BrokerUnavailable, LedgerUnavailable, RemoteError: it cannot be settled now; nothing may be taken until it is.
    """
    register = gateway.ledger.branches
    found = await register.of(bridge)
    committed = rolled_back = lost = 0
    left: list[bytes] = []
    for branch in found:
        try:
            upstream = gateway.broker(branch.broker)
        except NoSuchBroker:
            lost += 1
            continue
        status = branch.status
        if status is BranchStatus.BEGUN:
            status = await register.abort(branch.id)
        if status is BranchStatus.DECIDED:
            committed += await _commit(token, upstream, gateway, journal, branch)
        elif await _roll_back(token, upstream, branch.id):
            await register.finish(branch.id)
            rolled_back += 1
        elif upstream is target:
            left.append(branch.id)
    if target is not None:
        known = {branch.id for branch in found}
        for xid in await target.branches.recover():
            id = xid.global_id
            if xid.format != FORMAT or xid.branch_id != branch_id(token) or id in known:
                continue
            # Another process may have begun it since the ledger was read, and even decided it.
            if await register.abort(id) is BranchStatus.DECIDED:
                decided = BranchRecord(id, bridge, target.name, BranchStatus.DECIDED, {})
                committed += await _commit(token, target, gateway, journal, decided)
            elif await _roll_back(token, target, id):
                await register.finish(id)
                rolled_back += 1
            else:
                left.append(id)
    if found or committed or rolled_back or left:
        log(
            "bridge.branches_settled", logging.WARNING if lost else logging.INFO,
            bridge=bridge, committed=committed, rolled_back=rolled_back, left=len(left), lost=lost,
        )  # fmt: skip
    return InDoubtOutcome(committed, rolled_back, left, lost)


async def _commit(
    token: str, upstream: Upstream, gateway: Gateway, journal: BridgeJournal, branch: BranchRecord
) -> bool:
    register = gateway.ledger.branches
    found = await register.of(branch.bridge)  # its detail may be newer than what was read of it
    detail = next((each.detail for each in found if each.id == branch.id), branch.detail)
    if not detail:
        return False  # its own process has finished it meanwhile
    outcome = await upstream.branches.commit(xid_of(token, branch.id))
    if outcome in (BranchOutcome.ROLLED_BACK, BranchOutcome.MIXED):
        log("bridge.branch_lost", logging.WARNING, bridge=branch.bridge, branch=branch.id.hex(), outcome=outcome.value)
        released = undone_of(detail, branch.broker, branch.bridge, outcome)
        doubt = doubt_of(detail, branch.id, outcome, journal)
        await register.finish(branch.id, released, forget={detail["scope"]: detail["keys"]}, doubt=doubt)
        return False
    try:
        await register.finish(branch.id, told_of(detail, branch.broker))
    except EntriesRefused as error:
        journal.refused(error)
        await register.finish(branch.id)
    return True


async def _roll_back(token: str, upstream: Upstream, id: bytes) -> bool:
    """Whether the broker has forgotten it."""
    try:
        await upstream.branches.rollback(xid_of(token, id))
    except RemoteError as error:
        # It says that a channel works on it: one of a process that is dead, of which it has not heard yet.
        log("bridge.branch_not_undone", logging.WARNING, branch=id.hex(), reason=str(error))
        return False
    return True
