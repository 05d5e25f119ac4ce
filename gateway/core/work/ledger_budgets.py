"""Budgets of what clients have the ledger keep: scheduled publishes, Idempotency-Keys, subscriptions and the like.

The tables are the truth. They are counted at the start, and again from time to time for what other processes did; what
this process writes counts at once. So a share may be exceeded by what others write between two counts. Counting reads
every row: the pause is 100 times as long as the count took, and 10 seconds at least.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Final, Literal

from gateway.budgets import Budgets, ShareHolder
from gateway.errors import BudgetExceeded, GatewayError, LedgerUnavailable, Overloaded
from gateway.ledger import Ledger, OutboxEntry
from gateway.ledger.writing import holdings
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock

SCHEDULED: Final = "scheduled"
SCHEDULED_BYTES: Final = "scheduled_bytes"
KEYS: Final = "idempotency_keys"
"""Resources."""
CREATED: Final[Mapping[str, str]] = {
    "subscription": "subscriptions",
    "endpoint": "endpoints",
    "bridge": "bridges",
    "tap": "taps",
}
"""Kind of what is created over HTTP -> resource."""
EVERY: Final = 10.0
"""Pause between two counts, in seconds."""
SHARE: Final = 100
"""The same, in times that a count took, where that is longer."""


class Changes:
    """By client: how much was added and removed."""

    __slots__ = ("added", "removed")

    def __init__(self) -> None:
        self.added: Counter[str] = Counter()
        self.removed: Counter[str] = Counter()

    def add(self, client: str, amount: int) -> None:
        """Add so much; below 0: remove it."""
        (self.added if amount > 0 else self.removed)[client] += abs(amount)

    def clear(self) -> None:
        """Forget all."""
        self.added.clear()
        self.removed.clear()


class LedgerBudgets:
    """Who has how much in the ledger."""

    def __init__(self, ledger: Ledger, budgets: Budgets) -> None:
        self._ledger = ledger
        self._budgets = budgets
        self._keys, self._scheduled, self._scheduled_bytes = budgets[KEYS], budgets[SCHEDULED], budgets[SCHEDULED_BYTES]
        self._changes: dict[str, Changes] = {
            name: Changes() for name in (SCHEDULED, SCHEDULED_BYTES, KEYS, *CREATED.values())
        }
        """Resource -> what changed since the count under way began."""
        self._task: asyncio.Task[None] | None = None
        ledger.on_keys = self.keys_changed

    # ------------------------------------------------------------------------------------------- counting

    def start(self) -> None:
        """Count, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger budgets")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            began = clock.monotonic()
            try:
                await self.count()
            except LedgerUnavailable as error:
                log("budgets.not_counted", logging.DEBUG, reason=str(error))
            except Exception as error:  # a defect of ours; shares go by what was counted last
                log("budgets.failed", logging.ERROR, error)
            await clock.sleep(max(EVERY, SHARE * (clock.monotonic() - began)))

    async def count(self) -> None:
        """Count once.

        Raises:
            LedgerUnavailable: it cannot be read; what was counted before stays.
        """
        for changes in self._changes.values():
            changes.clear()
        scheduled = await self._ledger.read(holdings.scheduled)
        counts = {
            SCHEDULED: {client: row.messages for client, row in scheduled.items()},
            SCHEDULED_BYTES: {client: row.payload_bytes for client, row in scheduled.items()},
            KEYS: dict(await self._ledger.read(holdings.idempotency_keys)),
        }
        for kind, resource in CREATED.items():
            counts[resource] = dict(await self._ledger.read(partial(holdings.created, kind=kind)))
        await self._ledger.written()  # what was read has been reported now, too
        for resource, found in counts.items():
            changes = self._changes[resource]
            self._budgets[resource].recount(found, changes.added, changes.removed)

    # ---------------------------------------------------------------------------------------------- changes

    def entries_changed(self, entries: Sequence[OutboxEntry], sign: Literal[1, -1]) -> None:
        """The outbox holds these from now on (1), or no more (-1)."""
        for client in {entry.client for entry in entries}:
            sizes = [len(entry.payload) for entry in entries if entry.client == client]
            self.scheduled_changed(client, sign * len(sizes), sign * sum(sizes))

    def scheduled_changed(self, client: str, messages: int, payload_bytes: int) -> None:
        """Count publishes that the ledger holds now; below 0: that it holds no more."""
        self._change(SCHEDULED, client, messages)
        self._change(SCHEDULED_BYTES, client, payload_bytes)

    def keys_changed(self, client: str, count: int) -> None:
        """Count Idempotency-Keys that are kept now; below 0: that are kept no more."""
        self._change(KEYS, client, count)

    def _change(self, resource: str, client: str, amount: int) -> None:
        if amount:
            self._changes[resource].add(client, amount)
            self._budgets[resource].keep(client, amount)

    # --------------------------------------------------------------------------------------------- promises

    def take(self, client: ShareHolder, keys: int, messages: int, payload_bytes: int) -> None:
        """Take so much of the client's share while it is written: :meth:`give` it back then, for what is in the ledger
        counts there.

        Raises:
            BudgetExceeded, Overloaded: nothing was taken; write nothing.
        """
        self._keys.take(client, keys)
        try:
            self._scheduled.take(client, messages)
            try:
                self._scheduled_bytes.take(client, payload_bytes)
            except GatewayError:
                self._scheduled.give(client, messages)
                raise
        except GatewayError:
            self._keys.give(client, keys)
            raise

    def give(self, client: ShareHolder, keys: int, messages: int, payload_bytes: int) -> None:
        """Give back what :meth:`take` took."""
        self._keys.give(client, keys)
        self._scheduled.give(client, messages)
        self._scheduled_bytes.give(client, payload_bytes)

    async def claim(self, client: ShareHolder, keys: Sequence[str], messages: int = 0, payload_bytes: int = 0) -> bool:
        """:meth:`take` what Idempotency-Keys, and publishes scheduled with them, need while they are written. A client
        at its share may repeat keys that the ledger knows. Returns whether anything was taken.

        Raises:
            BudgetExceeded, Overloaded: some of the keys are new, and there is no room for them.
            LedgerUnavailable: it cannot be told.
        """
        try:
            self.take(client, len(keys), messages, payload_bytes)
        except (BudgetExceeded, Overloaded):
            known = await self._ledger.read(lambda connection: holdings.known_keys(connection, client.name, keys))
            if known < len(set(keys)):
                raise
            return False
        return True

    # ------------------------------------------------------------------------------------------- what is created

    @asynccontextmanager
    async def creating(self, client: ShareHolder, kind: str, name: str) -> AsyncIterator[None]:
        """Take the share that a new subscription, say, needs while it is written. What is there may be replaced at any
        time.

        Raises:
            BudgetExceeded, Overloaded: it would be new, and there is no room for it.
            LedgerUnavailable: it cannot be told.
        """
        with ExitStack() as held:
            try:
                held.enter_context(self._budgets[CREATED[kind]].hold(client))
            except (BudgetExceeded, Overloaded):
                if await self._ledger.get_resource(kind, name) is None:
                    raise
            yield

    async def created(self, client: ShareHolder, kind: str, name: str) -> None:
        """Remember who has created it. Where that cannot be written, it counts in no share, but in the total."""
        creator = client.name
        try:
            await self._ledger.put_resource(holdings.CREATOR.format(kind), name, {"client": creator}, None)
        except GatewayError as error:
            creator = holdings.UNKNOWN
            log("budgets.creator_not_kept", logging.WARNING, kind=kind, name=name, reason=str(error))
        self._change(CREATED[kind], creator, 1)

    async def deleted(self, kind: str, name: str) -> None:
        """Give back the share of who created it."""
        creators, creator = holdings.CREATOR.format(kind), holdings.UNKNOWN
        try:
            if (found := await self._ledger.get_resource(creators, name)) is not None:
                creator = holdings.creator_of(found.spec)
                await self._ledger.delete_resource(creators, name)
        except GatewayError as error:  # the next count finds it
            log("budgets.creator_not_kept", logging.WARNING, kind=kind, name=name, reason=str(error))
        self._change(CREATED[kind], creator, -1)
