"""Whether a delivery was seen before: one rule for bridges, taps, subscriptions that pull and those that push.

A message that was stored or forwarded is remembered in the ledger's inbox, under its origin id or the gateway's id,
with the digest of its body. It may come again all the same: when the gateway, or its channel, ends between the commit
and the broker's acknowledgement. A *doubtful* delivery is looked for in the inbox:

* its broker, or its mark ``resent``, says that it may have been delivered before;
* it is among the first that a channel brings: some brokers forget in a crash what they delivered, and what was
  acknowledged last. The first are a prefetch of them, and a prefetch after each that turned out to be known;
* its source shows every message again (a queue that is browsed).

If the inbox knows the id with another body, or does not know it, the delivery is new. With the same body this table
decides (``-`` is either):

======  =======  ========  ====  =========
resent  claimed  repeated  here  judgement
======  =======  ========  ====  =========
yes     -        -         -     KNOWN
no      yes      no        -     KNOWN
no      yes      yes       no    POSSIBLE
no      no       -         no    POSSIBLE
no      yes      yes       yes   NEW
no      no       -         yes   NEW
======  =======  ========  ====  =========

``resent``: the message is marked as published again after an unknown outcome. ``claimed``: its broker says that it was
delivered before, or its source is known to repeat messages. ``repeated``: the id is its publisher's, who may use it
again, and the same channel has brought one of this id and body before. A channel brings nothing twice, so this is
another message. ``here``: the row of the inbox is about a message that the same channel has brought.

A KNOWN delivery is dropped: the ledger or the target has it. A POSSIBLE one is kept and marked as a possible duplicate:
a second copy, and never a loss. A delivery without an id is always new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from gateway.ledger import Seen
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery, stands

IN_DOUBT: Final = bytes(32)
"""In the inbox, in place of a body's digest: a message of that id may have been sent, and nobody knows its body."""
BROUGHT_MAX: Final = 10_000
"""How many messages of one channel are remembered by id and body; older ones are judged by the time of their row."""
PULLED_MAX: Final = 10_000
"""How many messages that pulls have accepted are remembered with their channel; the oldest are forgotten."""


class Judgement(Enum):
    """What a doubtful delivery is, if the inbox has a row of its id and body."""

    NEW = "new"
    """Another message: it is kept as it is."""
    POSSIBLE = "possible duplicate"
    """Nobody can tell: it is kept, and marked."""
    KNOWN = "known"
    """The same message: it is dropped."""


def judge(*, resent: bool, claimed: bool, repeated: bool, here: bool) -> Judgement:
    """What a delivery is whose id and body the inbox knows; the table is at the top of this module."""
    if resent or (claimed and not repeated):
        return Judgement.KNOWN
    return Judgement.NEW if here else Judgement.POSSIBLE


class Candidate(Protocol):
    """A delivery that may be a duplicate."""

    delivery: Delivery
    id: Any
    """The gateway's id; a known one is given that of the message that it repeats."""
    key: str
    """What the inbox knows it by; empty: it cannot be recognized."""
    sha256: bytes
    """Of the body."""
    resent: bool

    @property
    def strange(self) -> bool:
        """Its key is an id that its publisher chose, and may have used for other messages."""
        ...

    def doubt(self) -> None:
        """Mark it as a possible duplicate."""
        ...


C = TypeVar("C", bound=Candidate)


class DeliveryMemory(Protocol):
    """What was brought before, and does not come again."""

    since: int
    """When the present channel began to bring messages, in microseconds since 1970."""

    def begin(self, channel: object) -> bool:
        """Note that this channel brings something; True: it is the first of it."""
        ...

    def add(self, channel: object, key: str, sha256: bytes) -> None:
        """Note a message that is kept, forwarded, or dropped as known."""
        ...

    def has(self, channel: object, key: str, sha256: bytes, at: int) -> bool:
        """Whether a message of this id and body was brought before and cannot come again. ``at``: the time of the
        inbox's row, in microseconds since 1970."""
        ...

    def forget(self, channel: object, key: str, sha256: bytes) -> None:
        """Note that a message that was added was given back, so that it comes again."""
        ...


class ChannelMemory:
    """What the present channel of a consumer has brought: it does not bring that again.

    So two deliveries of one id and body on one channel are two messages of a publisher who uses ids again, whatever
    their broker says: another consumer may have had both and given them back. What the inbox knows from an earlier
    channel stands for one of them, and not for all.
    """

    def __init__(self) -> None:
        self.since = 0
        self._channel: object = None
        self._keys: OrderedDict[tuple[str, bytes], None] = OrderedDict()  # its first is found at once
        self._all = True
        """None of them was forgotten."""

    def begin(self, channel: object) -> bool:
        """See :class:`DeliveryMemory`."""
        if channel is self._channel:
            return False
        self._channel = channel
        self.since = clock.now_ns() // 1000
        self._keys.clear()
        self._all = True
        return True

    def add(self, channel: object, key: str, sha256: bytes) -> None:
        """See :class:`DeliveryMemory`."""
        if channel is self._channel:
            self._keys[key, sha256] = None
            if len(self._keys) > BROUGHT_MAX:
                self._keys.popitem(last=False)
                self._all = False

    def has(self, channel: object, key: str, sha256: bytes, at: int) -> bool:
        """See :class:`DeliveryMemory`."""
        if channel is not self._channel:
            return False
        return (key, sha256) in self._keys or (not self._all and at >= self.since)

    def forget(self, channel: object, key: str, sha256: bytes) -> None:
        """See :class:`DeliveryMemory`. The inbox does not know what was given back."""


class PullMemory:
    """What pulls have accepted, whichever channels brought it.

    A pull has a channel for a moment, and the next one may have another. But what was accepted on a channel that
    nothing has cut off does not come again on any: another delivery of the same publisher's id and body is another
    message. Several messages may have both, so they are counted: one that is given back takes none of the others with
    it.
    """

    def __init__(self) -> None:
        self.since = 0
        self._channels: OrderedDict[tuple[str, bytes], tuple[tuple[object, int], ...]] = OrderedDict()
        """Key and digest -> on which channels they were accepted, and how many on each."""

    def begin(self, channel: object) -> bool:
        """See :class:`DeliveryMemory`: nothing is forgotten for another channel."""
        return False

    def add(self, channel: object, key: str, sha256: bytes) -> None:
        """See :class:`DeliveryMemory`."""
        counts = {each: count for each, count in self._channels.get((key, sha256), ()) if stands(each)}
        counts[channel] = counts.get(channel, 0) + 1
        self._channels[key, sha256] = tuple(counts.items())
        if len(self._channels) > PULLED_MAX:
            self._channels.popitem(last=False)

    def has(self, channel: object, key: str, sha256: bytes, at: int) -> bool:
        """See :class:`DeliveryMemory`."""
        return any(stands(each) for each, _ in self._channels.get((key, sha256), ()))

    def forget(self, channel: object, key: str, sha256: bytes) -> None:
        """See :class:`DeliveryMemory`."""
        counts = dict(self._channels.get((key, sha256), ()))
        left = counts.pop(channel, 0) - 1
        if left > 0:
            counts[channel] = left
        if counts:
            self._channels[key, sha256] = tuple(counts.items())
        else:
            self._channels.pop((key, sha256), None)


class DuplicatesFound(NamedTuple, Generic[C]):
    """What became of doubtful deliveries; the others are new, or marked."""

    known: list[C]
    """The ledger or the target has them, or will have them with another of the same batch."""
    joined: list[C]
    """Their first delivery was lost while it was under way: they take its place, and share its outcome."""


class Deduplicator(Generic[C]):
    """Which deliveries of one queue were seen before. All methods belong to the event loop.

    A source asks :meth:`is_doubtful` for each delivery in the order of arrival, :meth:`find` for those that are, and
    then says of each that it keeps or drops :meth:`brought`. A source whose messages are under way for long says so
    with :meth:`launched` and :meth:`landed`.
    """

    def __init__(
        self,
        seen: Callable[[Sequence[str]], Awaitable[Mapping[str, Seen]]],
        first: int,
        memory: DeliveryMemory | None = None,
    ) -> None:
        """
        Args:
            seen: what the inbox knows of these keys.
            first: how many of the first deliveries of a channel are doubtful, which is a prefetch of them.
            memory: what was brought before; by default by the present channel.
        """
        self.repeats = False
        """The source shows every message again at each start, and does not say so: a queue that is browsed."""
        self.trusts_ids = False
        """An id is taken at its word: what the inbox had under it before this channel began is the same message."""
        self._seen = seen
        self._first = first
        self._memory: DeliveryMemory = memory if memory is not None else ChannelMemory()
        self._doubtful = 0
        """How many of the next deliveries are doubtful."""
        self._under_way: dict[str, C] = {}
        self._late: set[str] = set()
        """Recorded since the present channel began, of what an earlier one had brought."""
        self._channel: object = None

    def __len__(self) -> int:
        return len(self._under_way)

    def is_doubtful(self, candidate: C) -> bool:
        """Whether a delivery may have been seen before; ask once for each, in the order of arrival."""
        channel = candidate.delivery.channel
        if channel is not self._channel and self._memory.begin(channel):
            self._channel = channel
            self._doubtful = self._first
            self._late.clear()
        if self._doubtful:
            self._doubtful -= 1
            return bool(candidate.key)
        return bool(candidate.key) and (candidate.delivery.redelivered or candidate.resent or self.repeats)

    def brought(self, candidates: Iterable[C]) -> None:
        """These are kept, or dropped as known: they do not come again on their channel. A gateway gives an id to one
        message only, so that two deliveries of it are one message."""
        for candidate in candidates:
            if candidate.key and candidate.strange:
                self._memory.add(candidate.delivery.channel, candidate.key, candidate.sha256)

    def given_back(self, candidates: Iterable[C]) -> None:
        """These were given back after :meth:`brought`, or taken back by their broker: they come again."""
        for candidate in candidates:
            if candidate.key and candidate.strange:
                self._memory.forget(candidate.delivery.channel, candidate.key, candidate.sha256)

    def launched(self, candidate: C) -> None:
        """This message is under way, and not recorded yet."""
        if candidate.key:
            self._under_way[candidate.key] = candidate
            self.brought((candidate,))

    def landed(self, candidate: C) -> None:
        """This message is recorded, or is the source's again."""
        key = candidate.key
        if key and candidate.delivery.channel is not self._channel:
            self._late.add(key)
        if key and self._under_way.get(key) is candidate:
            del self._under_way[key]

    @property
    def _always_claims(self) -> bool:
        return self.repeats or self.trusts_ids

    async def find(self, doubtful: Sequence[C], batch: Sequence[C] = ()) -> DuplicatesFound[C]:
        """Which of these doubtful deliveries were seen before; these were :meth:`brought`. Marks those that may have
        been.

        Args:
            batch: all that are written in one commit, the doubtful ones among them: those of one id and body in it are
                compared with each other.

        Raises:
            LedgerUnavailable: the inbox cannot be asked.
        """
        found: DuplicatesFound[C] = DuplicatesFound([], [])
        asked = self._among(doubtful, batch, found) if batch else self._not_under_way(doubtful, found)
        seen = await self._seen([candidate.key for candidate in asked]) if asked else {}
        self.brought(found.known)
        for candidate in asked:
            row = seen.get(candidate.key)
            if row is not None and row.body_sha256 == IN_DOUBT:
                candidate.doubt()
            elif row is not None and row.body_sha256 == candidate.sha256:
                self._compare(candidate, row, found)
        return found

    def _compare(self, candidate: C, row: Seen, found: DuplicatesFound[C]) -> None:
        delivery = candidate.delivery
        here = bool(self._memory.since) and row.at >= self._memory.since and candidate.key not in self._late
        judgement = judge(
            resent=candidate.resent,
            claimed=delivery.redelivered or (self._always_claims and not here),
            repeated=candidate.strange and self._memory.has(delivery.channel, candidate.key, candidate.sha256, row.at),
            here=here,
        )
        if not here or judgement is Judgement.KNOWN:
            self._doubtful = max(self._doubtful, self._first)  # its broker forgot, and may have forgotten more
        if judgement is Judgement.KNOWN:
            self.brought((candidate,))
            candidate.id = row.message_id
            found.known.append(candidate)
        elif judgement is Judgement.POSSIBLE:
            candidate.doubt()

    def _not_under_way(self, doubtful: Sequence[C], found: DuplicatesFound[C]) -> list[C]:
        """Without those whose first delivery is under way: what is to be looked for in the inbox."""
        asked: list[C] = []
        for candidate in doubtful:
            if not candidate.key:
                continue
            first = self._under_way.get(candidate.key)
            if first is None or first.sha256 != candidate.sha256:
                asked.append(candidate)
            elif first.delivery.lost:
                claimed = candidate.delivery.redelivered or self._always_claims
                judgement = judge(resent=candidate.resent, claimed=claimed, repeated=False, here=False)
                if judgement is Judgement.KNOWN:
                    first.delivery = candidate.delivery
                    self.brought((candidate,))
                    found.joined.append(candidate)
                else:
                    candidate.doubt()
        return asked

    def _among(self, doubtful: Sequence[C], batch: Sequence[C], found: DuplicatesFound[C]) -> list[C]:
        """Compare those of one commit with each other: what is still to be looked for in the inbox."""
        here: dict[str, C] = {}
        asked: list[C] = []
        looked = set(map(id, doubtful))
        for candidate in batch:
            if not candidate.key:
                continue
            first = here.setdefault(candidate.key, candidate)
            if first is not candidate and first.sha256 == candidate.sha256:
                candidate.doubt()
                # Both are out at once: on one channel they are two messages, if their publisher chose the id.
                two = candidate.strange and first.delivery.channel is candidate.delivery.channel
                claimed = candidate.delivery.redelivered
                if judge(resent=candidate.resent, claimed=claimed, repeated=two, here=False) is Judgement.KNOWN:
                    candidate.id = first.id
                    found.known.append(candidate)
                    continue
                if two:
                    continue
            if id(candidate) in looked:
                asked.append(candidate)
        return asked
