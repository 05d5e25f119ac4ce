"""Tells a cursor of every batch of a query, as soon as it is done."""

from __future__ import annotations

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from gateway.pipeline.source.cursor import Follower


class Listener(StreamingQueryListener):
    """Of one query. Spark calls it on a thread of its own, which waits for nobody else."""

    def __init__(self, follower: Follower, query: str) -> None:
        """``query`` is its id."""
        self._follower = follower
        self._query = query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Nothing is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch is done."""
        if str(event.progress.id) == self._query:
            self._follower.tell(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing is new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The code that runs the query reports how it ended."""
