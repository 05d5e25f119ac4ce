"""The queues of every broker, kept for a few seconds.

A list comes from the broker's management API where ``brokers.NAME.management`` is set. Of the embedded broker it is its
own. Of all others it has the queues that the gateway itself knows, with what AMQP tells of each, and says so.

One reading at a time is made for each broker, however many ask. Who asks waits for it no longer than
:data:`WAIT_SECONDS`; then there is the list of before, or none yet.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from gateway.errors import BrokerUnavailable, GatewayError, NotFound
from gateway.management.client import ManagementProblem
from gateway.management.reading import ROWS_MAX, read_queue, read_queues
from gateway.management.rows import QueueDetails, QueueList, QueueRow
from gateway.outbound import BrokerGuard, OutboundRules
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams import Upstream, UpstreamState

Source = Literal["management", "amqp", "embedded"]
KEPT_SECONDS: Final = 5.0
"""How long a list is not read again."""
WAIT_SECONDS: Final = 3.0
"""How long somebody who asks waits for a reading."""
STALE_SECONDS: Final = 300.0
"""How long a list stays while later readings fail, and in memory when nobody asks."""
ROWS_IN_ALL: Final = 200_000
"""Most queues of all brokers together that are kept."""
READ_AT_ONCE: Final = 8
"""Most management APIs that are read at once."""
ASKED_MAX: Final = 500
"""Of how many queues of a broker without management AMQP is asked."""
ASKED_AT_ONCE: Final = 8
ASK_SECONDS: Final = 5.0
"""How long AMQP is asked about the queues of one broker."""
UP: Final = (UpstreamState.UP, UpstreamState.BLOCKED)
ONLY_KNOWN: Final = "AMQP cannot list queues: these are the queues that the gateway itself works with or has declared."


class BrokerQueues(msgspec.Struct, frozen=True):
    """What is known of the queues of one broker."""

    source: Source
    rows: list[QueueRow]
    reason: str = ""
    """Why the list is partial, as a sentence; empty: it is complete."""
    as_of: float | None = None
    """When it was read, in seconds since 1970; None: it has not been read yet."""

    @property
    def is_partial(self) -> bool:
        """Whether queues or figures may be missing, or are old."""
        return bool(self.reason)


@dataclass(slots=True)
class _Entry:
    """What is kept for one broker."""

    upstream: Upstream
    queues: BrokerQueues | None = None
    read_at: float = 0.0
    """When the last reading ended, by the monotonic clock."""
    asked_at: float = 0.0
    """When somebody asked last, by the monotonic clock."""
    reading: asyncio.Task[None] | None = None
    changes: int = 0
    """How often a queue was made or deleted through the gateway."""
    begun: int = 0
    """Of these, how many there had been when the last reading began."""
    seen: int = 0
    """And when the reading that gave ``queues`` began."""
    good_until: float = 0.0
    """Until when the rows of a management API are shown although later readings fail."""


@dataclass(slots=True)
class _Known:
    """Broker -> the queues that the gateway itself knows."""

    names: Mapping[str, Collection[str]] = field(default_factory=dict)
    read_at: float = -KEPT_SECONDS
    changes: int = 0
    """How many changes there had been when the reading began."""


class Inventory:
    """The queues of all brokers. Belongs to the event loop."""

    def __init__(self, brokers: Mapping[str, Upstream]) -> None:
        """``brokers``: those that there are now, by name."""
        self._brokers = brokers
        self.sources: list[Callable[[], Awaitable[Iterable[tuple[str, str]]]]] = []
        """Say which queues the gateway itself knows, as pairs of broker and queue."""
        self.embedded: Callable[[str, int], QueueList | None] = lambda _name, _rows_max: None
        """The queues of the embedded broker, if a broker of that name is it."""
        self.own: Collection[tuple[str, int]] = ()
        """Addresses and ports that this process listens on."""
        self._entries: dict[str, _Entry] = {}
        self._known = _Known()
        self._changes = 0
        """How often a queue was made or deleted through the gateway, at any broker."""
        self._turn = asyncio.Semaphore(READ_AT_ONCE)
        self._knowing = asyncio.Lock()
        self._tasks = Tasks("queue inventory")

    async def read(
        self, name: str, *, kept_seconds: float | None = None, wait_seconds: float | None = None
    ) -> BrokerQueues:
        """Return the queues of a broker that there is: as they were a few seconds ago, or as they are now.

        Args:
            kept_seconds: how old a list may be that is not read again; None: :data:`KEPT_SECONDS`.
            wait_seconds: how long a reading is waited for; None: :data:`WAIT_SECONDS`.
        """
        kept_seconds = KEPT_SECONDS if kept_seconds is None else kept_seconds
        wait_seconds = WAIT_SECONDS if wait_seconds is None else wait_seconds
        now = clock.monotonic()
        self._forget(now)
        upstream = self._brokers[name]
        entry = self._entries.get(name)
        if entry is None or entry.upstream is not upstream:
            if entry is not None and entry.reading is not None:
                entry.reading.cancel()
            entry = self._entries[name] = _Entry(upstream)
        entry.asked_at = now
        until = now + wait_seconds
        if entry.reading is not None and entry.begun < entry.changes:  # it may have passed what has changed
            await asyncio.wait([entry.reading], timeout=wait_seconds)
        if entry.queues is not None and entry.seen == entry.changes and now - entry.read_at <= kept_seconds:
            return entry.queues
        reading = entry.reading or self._tasks.start(self._refresh(name, entry), name=f"queues of {name}")
        entry.reading = reading
        await asyncio.wait([reading], timeout=max(0.0, until - clock.monotonic()))
        if entry.queues is None:
            source: Source = "management" if upstream.settings.management else "amqp"
            return BrokerQueues(source, [], f"The broker has not answered within {wait_seconds:g} s. Ask again.")
        if not reading.done():
            late = f"The broker has not answered within {wait_seconds:g} s: {_as_it_was(entry.queues.as_of)}"
            return msgspec.structs.replace(entry.queues, reason=late)
        return entry.queues

    def changed(self, name: str) -> None:
        """Have the queues of a broker read again when somebody asks next: one was made or deleted."""
        self._changes += 1
        for each, entry in self._entries.items():
            entry.changes += each == name or (self.is_embedded(each) and self.is_embedded(name))

    def is_embedded(self, name: str) -> bool:
        """Whether a broker of that name is the embedded one."""
        return self.embedded(name, 0) is not None

    async def details(self, name: str, queue: str, *, consumers: bool = False) -> QueueDetails | None:
        """Return one queue of a broker as it is now; None: neither its management nor the gateway can tell.
        ``consumers``: with those who consume.

        Raises:
            ManagementProblem: the management API cannot be read.
        """
        upstream = self._brokers[name]
        if (own := self.embedded(name, ROWS_MAX)) is not None:
            row = next((row for row in own.rows if row.name == queue), None)
            return QueueDetails(row=row, return_risk="") if row is not None else None
        if not upstream.settings.management:
            return None
        async with self._turn:
            return await read_queue(
                name,
                upstream.settings,
                queue,
                upstream.status().product,
                consumers=consumers,
                own=self.own,
                rules=_rules(upstream),
            )

    async def close(self) -> None:
        """Read nothing more."""
        await self._tasks.close()
        self._entries.clear()

    def _forget(self, now: float) -> None:
        """Drop what nobody has asked for lately, and brokers that are gone."""
        for name, entry in list(self._entries.items()):
            if entry.reading is None and (name not in self._brokers or now - entry.asked_at > STALE_SECONDS):
                del self._entries[name]

    async def _refresh(self, name: str, entry: _Entry) -> None:
        """Read once."""
        begun = entry.begun = entry.changes
        try:
            entry.queues = await self._read(name, entry)
        finally:
            entry.seen = begun
            entry.read_at = clock.monotonic()
            entry.reading = None

    async def _read(self, name: str, entry: _Entry) -> BrokerQueues:
        kept = sum(len(each.queues.rows) for each in self._entries.values() if each.queues and each is not entry)
        rows_max = max(0, min(ROWS_MAX, ROWS_IN_ALL - kept))
        if (own := self.embedded(name, rows_max)) is not None:
            return BrokerQueues("embedded", own.rows, own.reason, clock.now())
        upstream = entry.upstream
        if not upstream.settings.management:
            return await self._ask(name, upstream)
        try:
            async with self._turn:
                found = await read_queues(
                    name,
                    upstream.settings,
                    upstream.status().product,
                    rows_max=rows_max,
                    own=self.own,
                    rules=_rules(upstream),
                )
        except ManagementProblem as problem:
            before = entry.queues
            if before is not None and before.source == "management" and clock.monotonic() < entry.good_until:
                reason = f"{problem.reason} {_as_it_was(before.as_of)}"
                return msgspec.structs.replace(before, reason=reason)
            return await self._ask(name, upstream, f"{problem.reason} ")
        entry.good_until = clock.monotonic() + STALE_SECONDS
        return BrokerQueues("management", found.rows, found.reason, clock.now())

    # ---------------------------------------------------------------------------------- what AMQP can tell

    async def _ask(self, name: str, upstream: Upstream, because: str = "") -> BrokerQueues:
        """The queues that the gateway knows, each with what AMQP tells of it."""
        reason = f"{because}{ONLY_KNOWN}"
        try:
            names = sorted((await self._known_queues()).get(name, ()))[:ROWS_MAX]
        except GatewayError as error:
            return BrokerQueues("amqp", [], f"{reason} They are not known now: {error}.", clock.now())
        rows = {queue: QueueRow(name=queue, vhost=upstream.url.virtual_host) for queue in names}
        if upstream.state not in UP:
            return BrokerQueues("amqp", list(rows.values()), f"{reason} The broker is not up.", clock.now())
        if not upstream.settings.management:
            reason += f" Set brokers.{name}.management for all of them."
        asked = names[:ASKED_MAX]
        waiting, until = iter(asked), clock.monotonic() + ASK_SECONDS

        async def ask() -> None:
            for queue in waiting:
                if clock.monotonic() >= until:
                    return
                try:
                    rows[queue] = await _asked(upstream, queue)
                except NotFound:
                    del rows[queue]
                except BrokerUnavailable:
                    return
                except GatewayError:
                    continue  # it is there, and not for us to look at

        tasks = [self._tasks.start(ask()) for _ in range(min(ASKED_AT_ONCE, len(asked)))]
        if tasks:
            # None is cancelled: a question that is out gets its answer, and its channel is used again.
            await asyncio.wait(tasks, timeout=ASK_SECONDS)
        silent = sum(row.ready is None and row.depth is None for row in rows.values())
        if silent:
            reason += f" Of {silent:,} of them the broker has told nothing."
        return BrokerQueues("amqp", list(rows.values()), reason, clock.now())

    async def _known_queues(self) -> Mapping[str, Collection[str]]:
        async with self._knowing:
            changes = self._changes
            if self._known.changes < changes or clock.monotonic() - self._known.read_at >= KEPT_SECONDS:
                found: defaultdict[str, set[str]] = defaultdict(set)
                for source in self.sources:
                    for broker, queue in await source():
                        found[broker].add(queue)
                self._known = _Known(found, clock.monotonic(), changes)
            return self._known.names


def _rules(upstream: Upstream) -> OutboundRules | None:
    """Where the management API of a broker may be; None: anywhere."""
    guard = upstream.resolve
    return guard.rules if isinstance(guard, BrokerGuard) else None


async def _asked(upstream: Upstream, queue: str) -> QueueRow:
    """A queue as AMQP tells. Raises GatewayError."""
    info = await upstream.query_queue(queue)
    capabilities = upstream.capabilities
    counts_all = capabilities is not None and capabilities.counts_unacked
    return QueueRow(
        name=queue,
        vhost=upstream.url.virtual_host,
        depth=info.message_count if counts_all else None,
        ready=None if counts_all else info.message_count,
        consumers=info.consumer_count,
        durable=info.durable,
    )


def _as_it_was(as_of: float | None) -> str:
    if as_of is None:
        return "Nothing is known yet."
    return f"What is listed is as it was at {datetime.fromtimestamp(as_of, UTC):%H:%M:%S} UTC."
