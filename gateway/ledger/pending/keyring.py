"""Many Idempotency-Keys at once, each for itself.

A stream of messages with a key each claims hundreds of keys, and ends them, with the events of what became of their
messages. Each claim and each end is a call of its own in the writer's queue, and they all go into the same group
commit: a few statements for all of them, however many there are, and one transaction. What is wrong with one of them is
said of that one.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gateway.errors import GatewayError
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.pending.keys import ANSWERED, FREE, UNKNOWN
from gateway.ledger.writing.calls import Claim, SettleKey
from gateway.ledger.writing.records import KeyClaim, LogEntry, New, OutboxEntry, StoredAnswer

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger

ENDINGS = (ANSWERED, FREE, UNKNOWN)
"""What a claim may come to: with an answer that is kept, as if it had not been, or without an outcome."""


class Wanted(NamedTuple):
    """A key that is to be claimed."""

    key: str
    fingerprint: bytes
    """A digest of what it stands for; another one under the same key is a Mismatch."""
    intents: Sequence[OutboxEntry]
    older: Callable[[], Collection[bytes]] = tuple
    """Makes other digests that stand for the same."""


class EndedKey(NamedTuple):
    """A key of this process that has come to its end."""

    key: str
    ending: str
    """One of :data:`ENDINGS`."""
    entries: Sequence[LogEntry]
    """What became of its messages; of those without an outcome the intents stay, where the key does."""
    status: int = 0
    body: bytes = b""
    claimed: ShardLease | None = None
    """Under which lease it was claimed, see :attr:`Ledger.lease`."""

    @property
    def answer(self) -> StoredAnswer | None:
        """What is kept under the key."""
        return StoredAnswer(self.status, {}, self.body) if self.ending == ANSWERED else None


class Keyring:
    """``ledger.keyring``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def claim(self, client: str, wanted: Sequence[Wanted]) -> list[KeyClaim | GatewayError]:
        """What ``claim_key`` would return or raise for each of these keys, in order. The same key twice is claimed
        once; the other one finds it running.

        Raises:
            LedgerUnavailable: the ledger is closed, or its disk is full; nothing was claimed.
        """
        self._ledger.disk.check()
        loop = get_running_loop()
        calls = [
            Claim(loop.create_future(), client, each.key, each.fingerprint, each.intents, each.older) for each in wanted
        ]
        found = await self._ledger.submit_all(calls)
        if count := sum(isinstance(claim, New) for claim in found):
            self._ledger.on_keys(client, count)
        return [self._ledger.doubt(claim, call.lease) or claim for call, claim in zip(calls, found, strict=True)]

    async def end(self, client: str, ended: Sequence[EndedKey]) -> list[GatewayError | None]:
        """End claims: what ``finish_key``, ``free_key`` or ``unknown_key`` would have raised for each, in order.

        Raises:
            LedgerUnavailable: the ledger is closed; nothing was written.
        """
        loop = get_running_loop()
        found = await self._ledger.submit_all(
            [
                SettleKey(loop.create_future(), client, each.key, each.ending, each.entries, each.answer, each.claimed)
                for each in ended
            ]
        )
        freed = [each for each, error in zip(ended, found, strict=True) if each.ending == FREE and error is None]
        if freed:
            self._ledger.on_keys(client, -len(freed))
        return found
