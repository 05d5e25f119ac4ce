"""Mode ``dtx``: messages go to the target in branches of distributed transactions, and the ledger decides.

A chunk of messages is a branch: published, ended and prepared at the target. Then one transaction of the ledger says
that it is to be committed, notes its messages as ``prepared``, and remembers their origin ids in the inbox. Then it is
committed at the target, the ledger notes its messages as ``forwarded``, and the messages are acknowledged to the
source::

    ledger   begun                                   decided                    finished
               │                                        │                          │
    target     └─ start, transfers, end, prepare ───────┴──── commit ──────────────┴──────> the source is told

As long as nothing is decided, any failure undoes the branch: its messages go again, in another one, and need no
mark. Once it is decided, it is committed, however often that has to be tried: a broker keeps what it has prepared. What
a process leaves behind in the middle is settled by the next (:mod:`gateway.bridges.in_doubt`).

There is one branch at a time, so that messages keep their order; what comes meanwhile makes the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple

from gateway.amqp.message import Message
from gateway.amqp.operations import Xid
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.journal import PAUSE_MAX, PAUSE_MIN, BridgeJournal
from gateway.bridges.routes import BridgeRoute
from gateway.core.leasing.parts import Parts
from gateway.errors import EntriesRefused, GatewayError, RemoteError, Unroutable
from gateway.ledger import EventKind, InboxRow, LogEntry
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.upstreams import BranchOutcome, UpstreamBranch

FORMAT: Final = 0x41475731
"""Of the gateway's transaction ids ("AGW1")."""
BRANCH_MAX: Final = 64
"""Longest branch id, in octets (X/Open XA)."""
PREPARE_WITHIN: Final = 120.0
"""How long a branch may take until it is prepared, in seconds; then it is undone, and its messages go again."""
WHERE: Final = "branch"


def xid_of(token: str, id: bytes) -> Xid:
    """The name of a branch of a bridge, which ``token`` stands for: its name and the id of its gateway."""
    return Xid(FORMAT, id, branch_id(token))


def branch_id(token: str) -> bytes:
    """What all branches of a bridge have in common."""
    octets = token.encode()
    return octets if len(octets) <= BRANCH_MAX else sha256(octets).hexdigest().encode()


class TwoPhaseOutcome(NamedTuple):
    """What became of the messages of a branch."""

    good: list[BridgeDelivery]
    """Committed, and recorded."""
    refused: list[tuple[BridgeDelivery, GatewayError]]
    """Not taken, each for a reason of its own."""
    undone: list[BridgeDelivery]
    """Nothing of them has happened; they may go again."""
    reason: str = ""
    """Why not, if that is the target's fault."""


class TwoPhase:
    """The branches of one bridge, from its start to its stop."""

    def __init__(self, route: BridgeRoute, parts: Parts, journal: BridgeJournal) -> None:
        """The route's token is the bridge in the names of its branches."""
        self.unsure = False
        """Messages may have been published in another mode, without a branch, before they come again."""
        self._bridge = route.name
        self._token = route.token
        self._exchange = route.settings.target.exchange
        self._target = journal.target
        self._worker = journal.target.branches.worker()
        self._journal = journal
        self._register = parts.ledger.branches
        self._faults = journal.faults
        self._ids = parts.ids
        self._hurry = asyncio.Event()
        self._next: bytes | None = None
        """The id of the next branch, which the ledger knows as begun and the target does not know."""
        self._aborted: set[bytes] = set()
        """Branches that the target may have still, and that the ledger knows as aborted."""
        self._untidy = asyncio.Event()
        """There are more of them, or the target may be back."""

    def inherit(self, ids: Sequence[bytes]) -> None:
        """Branches that the ledger knows as aborted, and the target could not undo yet."""
        self._aborted.update(ids)

    def check(self, message: Message) -> None:
        """Refuse what the target would end a channel over. Raises GatewayError."""
        self._worker.check(message)

    def hurry(self) -> None:
        """The target may be back: do not wait for the end of a pause."""
        self._hurry.set()
        self._untidy.set()

    async def forward(self, pairs: Sequence[tuple[BridgeDelivery, Message]]) -> TwoPhaseOutcome:
        """Bring messages to the target, in order; returns when they are recorded there, or undone."""
        id, xid = await self._begin()
        branch: UpstreamBranch | None = None
        try:
            async with asyncio.timeout(PREPARE_WITHIN):
                branch = await self._worker.begin(xid, self._exchange)
                await branch.started()
                for item, message in pairs:
                    await branch.room()
                    item.future = branch.publish(self._exchange, item.routing_key, message)
                await branch.end()
                good, refused, _ = _outcomes([item for item, _ in pairs], self._exchange)
                if good:
                    await branch.prepare()
        except (GatewayError, TimeoutError) as error:
            await self._undo(id, branch)
            if isinstance(error, TimeoutError):
                return _undone(pairs, self._exchange, f"nothing was prepared within {PREPARE_WITHIN:g} s")
            return _undone(pairs, self._exchange, error)
        except BaseException:  # the next process, or the next start, undoes it
            if branch is not None:
                branch.abandon()
            raise
        if not good:
            await self._undo(id, branch)
            return TwoPhaseOutcome([], refused, [])
        return await self._finish(id, xid, branch, good, refused)

    async def tidy(self) -> None:
        """Undo at the target what could not be undone at once, also while no message comes. Runs until it is
        cancelled."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            self._untidy.clear()
            pause = None
            if await self._undo_aborted():
                backoff.reset()
            else:
                pause = backoff.next()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._untidy.wait()

    def abandon(self) -> None:
        """Another process settles what is not finished here."""
        self._worker.rest()

    async def close(self) -> None:
        """There will be no more."""
        self._worker.rest()
        id, self._next = self._next, None
        if id is not None:
            try:
                await self._register.finish(id)
            except GatewayError:
                pass  # the next start finds that it was begun, and that the target does not know it

    # --------------------------------------------------------------------------------- what was not decided

    async def _begin(self) -> tuple[bytes, Xid]:
        id = self._next
        if id is None:
            new = id = self._ids()
            await self._journal.patiently(lambda: self._register.begin(new, self._bridge, self._target.name))
        self._next = None
        return id, xid_of(self._token, id)

    async def _undo(self, id: bytes, branch: UpstreamBranch | None) -> None:
        """It was not decided: undo it. Where that cannot be done here and now, the ledger knows that it is to be."""
        if branch is None:
            self._next = id  # the target has not heard of it
            return
        if branch.usable:
            try:
                await branch.rollback()
            except GatewayError:
                pass
            else:
                self._next = id  # the target has forgotten it
                return
        branch.abandon()
        await self._journal.patiently(lambda: self._register.abort(id))
        self._undo_later(id)

    def _undo_later(self, id: bytes) -> None:
        self._aborted.add(id)
        self._untidy.set()

    async def _undo_aborted(self) -> bool:
        """Undo at the target what could not be undone before. Return whether nothing of it is left."""
        for id in list(self._aborted):
            try:
                await self._target.branches.rollback(xid_of(self._token, id))
                await self._register.finish(id)
            except GatewayError as error:  # its channel is not known to be dead, or the target is away
                log("bridge.branch_not_undone", bridge=self._bridge, branch=id.hex(), reason=str(error))
                return False
            self._aborted.discard(id)
        return True

    # ------------------------------------------------------------------------------------ what was prepared

    async def _finish(
        self,
        id: bytes,
        xid: Xid,
        branch: UpstreamBranch,
        good: list[BridgeDelivery],
        refused: list[tuple[BridgeDelivery, GatewayError]],
    ) -> TwoPhaseOutcome:
        entries, inbox = self._journal.forwarded(good)
        detail = detail_of(entries, inbox)
        if not await self._decide(id, detail, entries, inbox):
            branch.abandon()
            self._undo_later(id)
            return TwoPhaseOutcome([], refused, good, "somebody else has settled the branch")
        outcome = await self._commit(xid, branch)
        if outcome in (BranchOutcome.ROLLED_BACK, BranchOutcome.MIXED):
            log(
                "bridge.branch_lost", logging.WARNING,
                bridge=self._bridge, branch=id.hex(), outcome=outcome.value, messages=len(good),
            )  # fmt: skip
            forget = {self._journal.scope: [row.key for row in inbox]}
            doubt = doubt_of(detail, id, outcome, self._journal)
            released = undone_of(detail, self._target.name, self._bridge, outcome)
            await self._journal.patiently(lambda: self._register.finish(id, released, forget=forget, doubt=doubt))
            for item in good:
                item.resent = item.resent or outcome is BranchOutcome.MIXED
            return TwoPhaseOutcome(
                [], refused, good, f"the target has not kept a branch that it had prepared: {outcome.value}"
            )
        following = self._ids()
        told = told_of(detail, self._target.name)
        after = following, self._bridge, self._target.name
        try:
            await self._journal.patiently(lambda: self._register.finish(id, told, following=after))
        except EntriesRefused as error:
            self._journal.refused(error)
            await self._journal.patiently(lambda: self._register.finish(id, following=after))
        self._next = following
        return TwoPhaseOutcome(good, refused, [])

    async def _decide(
        self, id: bytes, detail: Mapping[str, Any], entries: Sequence[LogEntry], inbox: Sequence[InboxRow]
    ) -> bool:
        """Whether the ledger says from now on that it is to be committed."""
        prepared = [
            LogEntry(each.message_id, EventKind.PREPARED, each.at, each.broker, each.version, each.detail, each.message)
            for each in entries
            if each.kind is EventKind.FORWARDED
        ]
        try:
            return await self._journal.patiently(lambda: self._register.decide(id, detail, prepared, inbox))
        except EntriesRefused as error:
            self._journal.refused(error)
            return await self._journal.patiently(lambda: self._register.decide(id, detail, [], inbox))

    async def _commit(self, xid: Xid, branch: UpstreamBranch) -> BranchOutcome:
        """Commit what is decided, for as long as it takes."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        if not branch.usable:
            branch.abandon()
        while True:
            self._hurry.clear()
            try:
                outcome = await (branch.commit() if branch.usable else self._target.branches.commit(xid))
                break
            except GatewayError as error:
                branch.abandon()
                self._faults.set(WHERE, f"it is prepared at {self._target.name} and to be committed: {error}")
            with suppress(TimeoutError):  # the pause is over
                async with asyncio.timeout(backoff.next()):
                    await self._hurry.wait()
        self._faults.clear(WHERE)
        return outcome


def detail_of(entries: Sequence[LogEntry], inbox: Sequence[InboxRow]) -> dict[str, Any]:
    """What the ledger keeps of a branch that is decided: what to tell when it is committed, what to forget if not."""
    return {
        "version": entries[0].version,
        "told": [[each.message_id.hex(), each.kind.value, each.detail] for each in entries],
        "scope": inbox[0].scope if inbox else "",
        "keys": [row.key for row in inbox],
    }


def told_of(detail: Mapping[str, Any], broker: str) -> list[LogEntry]:
    """The events of a branch that is committed."""
    at = clock.now_ns() // 1000
    return [
        LogEntry(bytes.fromhex(id), EventKind(kind), at, broker, detail["version"], told)
        for id, kind, told in detail["told"]
    ]


def undone_of(detail: Mapping[str, Any], broker: str, bridge: str, outcome: BranchOutcome) -> list[LogEntry]:
    """The events of a branch that was to be committed, and that its broker has undone."""
    at = clock.now_ns() // 1000
    why = {"bridge": bridge, "reason": f"the branch that {broker} had prepared was {outcome.value} there"}
    return [
        LogEntry(bytes.fromhex(id), EventKind.RELEASED, at, broker, detail["version"], why)
        for id, kind, _ in detail["told"]
        if kind == EventKind.FORWARDED
    ]


def doubt_of(detail: Mapping[str, Any], id: bytes, outcome: BranchOutcome, journal: BridgeJournal) -> list[InboxRow]:
    """Entries of the inbox for a branch that its broker has undone, if some of it may have been committed: every later
    attempt to send its messages marks them."""
    return journal.in_doubt(detail["scope"], detail["keys"], id) if outcome is BranchOutcome.MIXED else []


def _outcomes(
    items: Sequence[BridgeDelivery], exchange: str
) -> tuple[list[BridgeDelivery], list[tuple[BridgeDelivery, GatewayError]], list[BridgeDelivery]]:
    """Those that the target took into the branch, those that it did not take, and those of which nobody knows."""
    good: list[BridgeDelivery] = []
    refused: list[tuple[BridgeDelivery, GatewayError]] = []
    unknown: list[BridgeDelivery] = []
    for item in items:
        future = item.future
        if future is None or not future.done() or future.cancelled():
            unknown.append(item)
        elif isinstance(error := future.exception(), GatewayError):
            refused.append((item, error))
        elif (receipt := future.result()).routed:
            good.append(item)
        else:
            text = f"no queue takes {item.routing_key!r} at {exchange!r}: {receipt.reply_text}"
            refused.append((item, Unroutable(text)))
    return good, refused, unknown


def _undone(pairs: Sequence[tuple[BridgeDelivery, Message]], exchange: str, why: GatewayError | str) -> TwoPhaseOutcome:
    """A branch that was not prepared: who is to blame for it?"""
    items = [item for item, _ in pairs]
    good, refused, unknown = _outcomes(items, exchange)
    others = sorted([*good, *unknown], key=lambda item: item.number)
    if any(isinstance(error, RemoteError) for _, error in refused):
        return TwoPhaseOutcome([], refused, others)  # the broker has named it; the others go again
    sent = any(item.future is not None for item in items)
    if len(others) == 1 and others == unknown and sent and isinstance(why, RemoteError):
        return TwoPhaseOutcome([], [*refused, (others[0], why)], [])
    return TwoPhaseOutcome([], refused, others, str(why))
