"""A cursor of the log: how far a stream is, kept by the gateway.

It is what retention goes by and what a backlog is counted from; where a stream begins again its own checkpoint says.
One query at a time may read under a name. Each claim of a cursor gets a new epoch. A query with an older epoch learns
who has it now when it next moves the cursor, and ends.

A cursor only moves forward, so telling a position twice, or late, does no harm. It moves from three places, because
Spark's ``commit`` comes one batch late and never for the last one: by the source's process when Spark asks what comes
next, for then the batch before is done; by a listener in the driver; and at the end by :meth:`Follower.finish`.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gateway.errors import CursorOwned, GatewayError, ServiceRefused
from gateway.pipeline.source.http import Http
from gateway.pipeline.source.notes import note
from gateway.pipeline.source.offsets import Position, canonical, furthest
from gateway.pipeline.source.retry import Retry
from gateway.runtime.ids import ids
from gateway.runtime.threads import threads

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BEAT: Final = 15.0
"""How often the gateway hears of the owner, in seconds; after 60 s of silence another one may claim the cursor."""


def new_owner() -> str:
    """Who reads, for a query that does not say: a person and a machine to ask, and what tells it from all others."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}/{ids.uuid().hex[:12]}"


def path_of(name: str, verb: str = "") -> str:
    """The path of a cursor."""
    return f"/v1/log/cursors/{quote(name, safe='')}{verb}"


def position_in(document: Any, url: str) -> Position:
    """The position in a cursor's document."""
    try:
        return canonical({str(shard): int(last) for shard, last in document["position"].items()})
    except (TypeError, KeyError, AttributeError, ValueError):
        raise ServiceRefused(f"{url} answered with something that is not a cursor; is it a gateway?") from None


class Cursor:
    """One claim. Moving the cursor never fails; :meth:`check` says whether this query still has it."""

    def __init__(self, http: Http, log: str, name: str, owner: str, beat: float = BEAT) -> None:
        self._http = http
        self._log = log
        self._name = name
        self._owner = owner
        self._beat = beat
        self._epoch = 0
        self._position: Position = {}
        self._told: Position | None = None
        self._lost: GatewayError | None = None
        self.failures = 0
        """How often the gateway could not be told."""
        self._one = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self, start: str | Position, *, take_over: bool) -> Position:
        """Claim it, and make it if it is not there: from ``start`` on, which is looked up once for all.

        Raises:
            CursorOwned: somebody else has it. The text names it.
            ServiceUnreachable, ServiceRefused
        """
        body = {"log": self._log, "owner": self._owner, "start": start, "take_over": take_over}
        found = self._http.ask("POST", path_of(self._name, ":claim"), body=body)
        self._position = position_in(found, self._http.url)
        self._epoch = int(found["epoch"])
        self._thread = threads.start(self._beats, name=f"cursor-{self._name}")
        return self._position

    def put(self, position: Mapping[str, int], *, again: bool = False) -> None:
        """Tell how far this query is. ``again``: also if nothing is new."""
        with self._one:
            self._position = furthest(self._position, position)
            if self._lost is not None or not self._epoch or (self._told == self._position and not again):
                return
            body = {"owner": self._owner, "epoch": self._epoch, "position": self._position}
            try:
                self._http.ask("PUT", path_of(self._name), body=body, retry=Retry(0))
                self._told = self._position
            except (CursorOwned, ServiceRefused) as error:
                self._lost = error
                note("pipeline.cursor_lost", cursor=self._name, owner=self._owner, reason=str(error))
            except GatewayError as error:  # the gateway is away: it will be told the next time
                self.failures += 1
                note("pipeline.cursor_not_told", cursor=self._name, reason=str(error), failures=self.failures)

    def check(self) -> None:
        """Raise an error if this query has lost the cursor."""
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """Say no more. The cursor stays claimed until it is released, or 60 s have passed."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(self._beat)
            self._thread = None
        self._http.close()

    def _beats(self) -> None:
        while not self._over.wait(self._beat):
            self.put({}, again=True)


class Follower:
    """The cursor of a query, as the driver sees it: told of every batch, and let go at the end."""

    def __init__(self, http: Http, name: str, owner: str, source: int = 0) -> None:
        """``source`` is the place of the log among the query's sources."""
        self._http = http
        self._name = name
        self._owner = owner
        self._source = source
        self._one = threading.Lock()
        self._finished = False

    def reached(self, progress: Any) -> Position | None:
        """The position behind a batch, from its progress; None: it had none."""
        text = progress.sources[self._source].endOffset if progress is not None and progress.sources else None
        if not text:
            return None
        found = json.loads(text) if isinstance(text, str) else text
        return canonical(found) if isinstance(found, dict) else None

    def tell(self, progress: Any) -> None:
        """Tell the gateway, if the cursor is still its owner's. Failing to do so is noted, and no more."""
        position = self.reached(progress)
        if position is None or self._finished:
            return
        try:
            self._put(position, Retry(0))
        except GatewayError as error:
            note("pipeline.cursor_not_told", cursor=self._name, reason=str(error))

    def finish(self, query: StreamingQuery) -> Position | None:
        """After the query has ended: move the cursor to its end, and release it. Returns that position.

        Raises:
            CursorOwned: somebody else has it. What the query wrote is written.
            ServiceUnreachable, ServiceRefused
        """
        position = self.reached(query.lastProgress)
        self._finished = True  # what is told of it from now on comes too late
        try:
            epoch = self._put(position or {})
            with self._one:
                self._http.ask("POST", path_of(self._name, ":release"), body={"owner": self._owner, "epoch": epoch})
        finally:
            with self._one:
                self._http.close()
        return position

    def _put(self, position: Position, retry: Retry | None = None) -> int:
        with self._one:
            found = self._http.ask("GET", path_of(self._name), retry=retry)
            if found.get("owner") != self._owner:
                raise CursorOwned(
                    f"the cursor {self._name} belongs to {found.get('owner') or 'nobody'}, not to {self._owner}"
                )
            epoch = int(found["epoch"])
            body = {"owner": self._owner, "epoch": epoch, "position": position}
            self._http.ask("PUT", path_of(self._name), body=body, retry=retry)
            return epoch
