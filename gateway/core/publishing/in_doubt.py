"""What dead processes left open, taken over and sent again.

At start, and whenever another process is found dead, the ledger hands out what was promised under keys and has no
outcome. It is sent again with the same ids, marked ``resent``, all that goes to one exchange at once; what cannot be
sent now stays unknown, since an earlier attempt may have arrived. The answers are made by the next repeats, from the
timelines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gateway.core.publishing.endings import LATE_CONFIRM, PAUSE_MAX, insist, outgoing_of, stay_unknown
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.publishing.publisher import Publication, Publisher
from gateway.errors import LedgerUnavailable, OutcomeUnknown
from gateway.ledger import EndedKey, EventKind, Intent, Ledger, LogEntry
from gateway.ledger.pending.keys import UNKNOWN
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.upstreams import Upstream

PART = 500
"""Most messages that are asked for at once."""
GONE = {"code": OutcomeUnknown.code, "text": "its broker is no longer configured, or it is damaged"}
"""Detail of the ``unknown`` of what cannot be sent again at all."""


class InDoubt:
    """Resolves what is in doubt, in the background."""

    def __init__(self, ledger: Ledger, publisher: Publisher, find: Callable[[str], Upstream | None]) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._find = find
        self._resolving: asyncio.Task[None] | None = None

    def resolve_soon(self) -> None:
        """Take over what dead processes left open, in the background."""
        if self._resolving is None or self._resolving.done():
            self._resolving = asyncio.get_running_loop().create_task(self._resolve(), name="resolve in doubt")

    async def close(self, within: float) -> None:
        """Let it come to its end, for at most ``within`` seconds. What does not is resolved at the next start."""
        if self._resolving is not None:
            _, late = await asyncio.wait([self._resolving], timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)

    async def _resolve(self) -> None:
        count = 0
        waited: set[str] = set()
        while True:
            try:
                intents = await self._ledger.resolve_in_doubt(PART)
            except LedgerUnavailable as error:
                log("ledger.in_doubt_waits", logging.WARNING, detail=str(error))
                await clock.sleep(PAUSE_MAX)
                continue
            if not intents:
                break
            count += len(intents)
            by_place: dict[tuple[str, str], list[Intent]] = {}
            for intent in intents:
                by_place.setdefault((intent.broker, intent.exchange), []).append(intent)
            for (broker, exchange), group in by_place.items():
                await self._end(group, await self._entries(broker, exchange, group, waited))
        if count:
            log("ledger.in_doubt_resolved", count=count)

    async def _entries(self, broker: str, exchange: str, intents: Sequence[Intent], waited: set[str]) -> list[LogEntry]:
        """Send messages of one exchange again: the events of what became of them."""
        upstream = self._find(broker)
        entries: list[LogEntry] = []
        messages: list[Publication] = []
        for intent in intents:
            try:
                item = outgoing_of(intent)
            except EnvelopeError as error:
                log("ledger.intent_unreadable", logging.ERROR, broker=broker, detail=str(error))
            else:
                if upstream is not None:
                    messages.append(item)
                    continue
            entries.append(LogEntry(intent.message_id, EventKind.UNKNOWN, clock.now_ns() // 1000, broker, "", GONE))
        if upstream is None or not messages:
            return entries
        patience = upstream.settings.connect_timeout
        if broker not in waited:
            waited.add(broker)
            await upstream.wait_up(patience)
        try:
            futures = self._publisher.send(upstream, exchange, messages, patience * LATE_CONFIRM)
            results = await self._publisher.outcomes(upstream, exchange, messages, futures)
            stay_unknown(results)
            entries += self._publisher.events(upstream, messages, results)
        except Exception as error:  # a fault of ours must not keep these keys, nor those behind them
            log("ledger.resolving_failed", logging.ERROR, error, broker=broker)
        return entries

    async def _end(self, intents: Sequence[Intent], entries: Sequence[LogEntry]) -> None:
        """Release the keys of these messages."""
        of: dict[bytes, list[LogEntry]] = {intent.message_id: [] for intent in intents}
        for entry in entries:
            of[entry.message_id].append(entry)
        clients: dict[str, dict[str, list[LogEntry]]] = {}
        for intent in intents:
            clients.setdefault(intent.client, {}).setdefault(intent.key, []).extend(of[intent.message_id])
        for client, keys in clients.items():
            await insist(self._ledger, client, [EndedKey(key, UNKNOWN, found) for key, found in keys.items()])
