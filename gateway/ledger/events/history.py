"""History, as :class:`gateway.ledger.store.Ledger` offers it: the feed, counts per hour, and what is kept of it all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from gateway.config import RetentionSettings
from gateway.ledger.db.engine import Database
from gateway.ledger.events import reads, statistics
from gateway.ledger.events.feed import Feed
from gateway.ledger.events.keeper import LedgerKeeper
from gateway.ledger.logs.log_cursors import Cursors
from gateway.ledger.pending.bodies import Bodies
from gateway.ledger.writing.records import EventFilter, HourFilter, HourlyEvents, RecordedEvent

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger


class History:
    """``ledger.history``. A position is the last sequence number of each shard, ``{"0": 812, "3": 77}``."""

    def __init__(
        self,
        ledger: Ledger,
        database: Database,
        clock: Callable[[], int],
        settings: RetentionSettings,
        bodies: Bodies,
        cursors: Cursors,
    ) -> None:
        """``clock`` is the ledger's, in microseconds since 1970."""
        self._ledger = ledger
        self.keeper = LedgerKeeper(ledger, database, clock, settings, bodies, cursors)
        """Counts events and deletes old ones, once :meth:`start` was called."""
        self._feed = Feed(self._read)

    def start(self) -> None:
        """Count events, and delete old ones, in the background."""
        self.keeper.start()

    async def close(self) -> None:
        """Stop."""
        await self.keeper.close()

    async def _read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._ledger.read(lambda connection: function(connection, *arguments))

    async def keeps(self, message_id: bytes) -> tuple[bool, bool]:
        """Whether a publish of this message is without its outcome, and whether its body is there."""
        found: tuple[bool, bool] = await self._read(reads.keeps, message_id)
        return found

    # ------------------------------------------------------------------------------------------------- events

    @property
    def followers(self) -> int:
        """How many follow the feed."""
        return self._feed.followers

    async def end(self) -> dict[str, int]:
        """The position behind everything that there is."""
        found: dict[str, int] = await self._read(reads.end)
        return found

    async def position_at(self, at: int) -> dict[str, int]:
        """The position before what was written at ``at`` or later, in microseconds since 1970."""
        found: dict[str, int] = await self._read(reads.position_at, at)
        return found

    async def events_after(
        self, position: Mapping[str, int], limit: int = 1_000, where: EventFilter | None = None
    ) -> tuple[list[RecordedEvent], dict[str, int]]:
        """Some of the events behind a position, in order within each shard, and the position behind them and behind
        those that are not wanted. The same position: there are no more."""
        found: tuple[list[RecordedEvent], dict[str, int]] = await self._read(reads.events_after, position, limit, where)
        return found

    def follow(
        self, position: Mapping[str, int], where: EventFilter | None = None, idle: float = 15.0
    ) -> AsyncGenerator[tuple[list[RecordedEvent], dict[str, int]], None]:
        """All events behind a position, and those that come, by pages, each with the position behind it. A page is
        empty where nothing is wanted of it, and where nothing came for ``idle`` seconds. Following a position misses no
        event and sees none twice; what retention took is not there. Close the generator.

        Raises:
            LedgerUnavailable: what there was cannot be read.
        """
        return self._feed.follow(position, where or EventFilter(), idle)

    # ------------------------------------------------------------------------------------------------- counts

    async def statistics(
        self,
        where: HourFilter | None = None,
        cursor: str | None = None,
        limit: int = 100,
        by: Collection[str] = statistics.BY,
    ) -> tuple[list[HourlyEvents], str | None]:
        """Counts per hour, newest first, grouped ``by`` these names, and the cursor of the next page (None: that was
        the last). They may be some seconds old.

        Raises:
            ValueError: the cursor is malformed.
        """
        found: tuple[list[HourlyEvents], str | None] = await self._read(
            statistics.page, where or HourFilter(), cursor, limit, by
        )
        return found
