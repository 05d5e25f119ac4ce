"""Scheduled publishes under an Idempotency-Key: the key, its answer, the promises and their events in one commit.

Since the ledger makes the promise, there is nothing to wait for between the claim of the key and its answer, and no
moment at which a crash could leave one without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from gateway.errors import KeyRunning
from gateway.ledger.db.shards import ShardLease, Shards
from gateway.ledger.pending.keys import ANSWERED, KeyStatements
from gateway.ledger.pending.outbox import OutboxRows
from gateway.ledger.pending.owed import Promised
from gateway.ledger.writing.calls import Claim, Put, SettleKey
from gateway.ledger.writing.records import KeyClaim, LogEntry, New, StoredAnswer, Unknown


class KeyedAccess(Protocol):
    """The ledger, as this part sees it."""

    async def task(self, run: Callable[[sa.Connection, ShardLease], Any]) -> Any: ...


class KeyedOutbox:
    """``ledger.keyed_outbox``."""

    def __init__(
        self,
        ledger: KeyedAccess,
        keys: KeyStatements,
        rows: OutboxRows,
        shards: Shards,
        append: Callable[[sa.Connection, ShardLease, list[LogEntry]], None],
        now: Callable[[], int],
        clock: Callable[[], int] | None,
    ) -> None:
        """As :class:`gateway.ledger.pending.outbox.OutboxStore`; ``now`` is this process's clock, in microseconds."""
        self._ledger = ledger
        self._keys = keys
        self._rows = rows
        self._shards = shards
        self._append = append
        self._now = now
        self._clock = clock

    async def put(
        self,
        client: str,
        key: str,
        fingerprint: bytes,
        rows: Sequence[Promised],
        entries: Sequence[LogEntry],
        *,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        older: Callable[[], Collection[bytes]] = tuple,
    ) -> KeyClaim:
        """Owe publishes from now on, and keep the answer under the key. New: that is done. Replay, Mismatch, Running:
        nothing was written.

        Raises:
            KeyRunning: a request with this key ended without an outcome, and is another's to resolve.
            LedgerUnavailable, EntriesRefused: nothing was written.
        """

        def run(connection: sa.Connection, lease: ShardLease) -> KeyClaim:
            now = self._now()
            while True:
                claim = Claim(_future(), client, key, fingerprint, (), older)
                _, deferred = self._keys.claim(connection, lease, [claim], now)
                if not deferred:
                    break
            if claim.error is not None:
                raise claim.error
            found: KeyClaim = claim.result
            if isinstance(found, Unknown):  # rolls back: the key is not ours
                raise KeyRunning("an earlier request with this Idempotency-Key has no outcome yet")
            if not isinstance(found, New):
                return found
            self._append(connection, lease, list(entries))
            there = self._shards.now if self._clock is None else self._clock()
            self._rows.put(connection, [Put(_future(), rows)], now, there)
            end = SettleKey(_future(), client, key, ANSWERED, (), StoredAnswer(status, dict(headers), body))
            self._keys.settle(connection, lease, [end], now)
            if end.error is not None:
                raise end.error
            return found

        answer: KeyClaim = await self._ledger.task(run)
        return answer


def _future() -> Any:
    """Nobody waits for it: what is done here is done within one call."""
    return None
