"""What waits for the writer: one call of a writing verb, and what became of it."""

from __future__ import annotations

import hashlib
from asyncio import Future
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from gateway.budgets import ALONE
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.logs.logged import Spooled
from gateway.ledger.pending.owed import BacklogEntry, BacklogSettlement, Ending, KeptBody, Owed
from gateway.ledger.writing.records import InboxRow, LogEntry, OutboxEntry, StoredAnswer
from gateway.ledger.writing.states import EventKind

T = TypeVar("T", LogEntry, InboxRow)
ROW_OCTETS = 16 << 10
"""So many octets of payload count as a row of a group."""
GROUP_OCTETS = 8 << 20
"""A group with this many octets of payload takes no more calls, because other callers wait for its transaction."""


class WriterCall:
    """A call on its way through the writer. ``future`` belongs to the event loop; the writer sets ``result`` or
    ``error``, and the loop passes them on. A ``result`` counts once the call is ``settled``: its transaction is
    committed, or will never be."""

    __slots__ = ("error", "future", "holder", "lease", "places", "result", "settled")

    def __init__(self, future: Future[Any]) -> None:
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = False
        self.lease: ShardLease | None = None
        """That under which it was submitted; it is written under no other. None: under any."""
        self.holder = ALONE
        """In whose share of the queue its rows are."""
        self.places = 0
        """How many rows it has taken of the queue."""

    @property
    def rows(self) -> int:
        """How much of a group it is."""
        return 1

    @property
    def octets(self) -> int:
        """Octets of payload that it writes, or whose space it frees."""
        return 0

    @property
    def units(self) -> int:
        """Into how many calls it can be divided."""
        return 1

    def parts(self, size: int) -> Sequence[WriterCall]:
        """The same in several calls, of at most ``size`` units each and in their order."""
        return [self]


class Record(WriterCall):
    """``record``: append entries, and what of them is to be remembered in the inbox."""

    __slots__ = ("entries", "inbox")

    def __init__(self, future: Future[Any], entries: Sequence[LogEntry], inbox: Sequence[InboxRow] = ()) -> None:
        super().__init__(future)
        self.entries = entries
        self.inbox = inbox

    @property
    def rows(self) -> int:
        return max(len(self.entries), len(self.inbox))

    @property
    def units(self) -> int:
        """Its entries."""
        return len(self.entries)

    def parts(self, size: int) -> list[Record]:
        """See :class:`WriterCall`. A row of the inbox goes with the last entry of its message; without an entry,
        with the first part."""
        rows = _divide(self.inbox, self.entries, size)
        return [
            Record(self.future, self.entries[begin : begin + size], rows.get(begin // size, ()))
            for begin in range(0, len(self.entries), size)
        ]


class Claim(WriterCall):
    """``claim_key``."""

    __slots__ = ("client", "fingerprint", "intents", "key", "key_id", "older")

    def __init__(
        self,
        future: Future[Any],
        client: str,
        key: str,
        fingerprint: bytes,
        intents: Sequence[OutboxEntry],
        older: Callable[[], Collection[bytes]] = tuple,
    ) -> None:
        super().__init__(future)
        self.client = client
        self.key = key
        self.key_id = key_digest(client, key)
        self.fingerprint = fingerprint
        self.intents = intents
        self.older = older
        """Makes other fingerprints that stand for the same; only asked where ``fingerprint`` is not the one kept."""

    @property
    def rows(self) -> int:
        return len(self.intents) + 1


class SettleKey(WriterCall):
    """The end of a claim: ``finish_key`` (``done``), ``free_key`` (``free``) or ``unknown_key`` (``unknown``)."""

    __slots__ = ("answer", "claimed", "ending", "entries", "key_id")

    def __init__(
        self,
        future: Future[Any],
        client: str,
        key: str,
        ending: str,
        entries: Sequence[LogEntry],
        answer: StoredAnswer | None = None,
        claimed: ShardLease | None = None,
    ) -> None:
        super().__init__(future)
        self.key_id = key_digest(client, key)
        self.ending = ending
        self.entries = entries
        self.answer = answer
        """To be kept (``done``)."""
        self.claimed = claimed
        """Under which lease the key was claimed. Under another one it is in doubt; None: that is not asked."""

    @property
    def rows(self) -> int:
        return len(self.entries) + 1


class Store(WriterCall):
    """``deliveries.store``: new pending messages, with events and rows of the inbox."""

    __slots__ = ("entries", "fresh", "inbox", "owed")

    def __init__(
        self,
        future: Future[Any],
        owed: Sequence[Owed],
        entries: Sequence[LogEntry] = (),
        inbox: Sequence[InboxRow] = (),
    ) -> None:
        super().__init__(future)
        self.owed = owed
        self.entries = entries
        self.fresh = entries
        """Those to be written: not of deliveries that were there already."""
        self.inbox = inbox

    @property
    def rows(self) -> int:
        return max(len(self.owed) + len(self.entries) // 2, len(self.inbox)) + self.octets // ROW_OCTETS

    @property
    def octets(self) -> int:
        """Of all payloads."""
        return sum(len(owed.payload) for owed in self.owed)

    def forget_repeated(self, new: Collection[bytes]) -> None:
        """Only the deliveries with these ids were not there yet: the events of the others are written already."""
        known = {owed.message_id for owed in self.owed if owed.id not in new}
        known -= {owed.message_id for owed in self.owed if owed.id in new}
        self.fresh = [entry for entry in self.entries if entry.message_id not in known]

    @property
    def units(self) -> int:
        """Pending entries."""
        return len(self.owed)

    def parts(self, size: int) -> list[Store]:
        """See :class:`WriterCall`. Entries and rows of the inbox go with the last delivery of their message; else with
        the first part."""
        entries = _divide(self.entries, self.owed, size)
        inbox = _divide(self.inbox, self.owed, size)
        return [
            Store(
                self.future,
                self.owed[begin : begin + size],
                entries.get(begin // size, ()),
                inbox.get(begin // size, ()),
            )
            for begin in range(0, len(self.owed), size)
        ]


class SpoolCall(WriterCall):
    """``log.spool``: rows of the log of messages, with events and rows of the inbox. Its result are their sequence
    numbers."""

    __slots__ = ("entries", "inbox", "messages")

    def __init__(
        self,
        future: Future[Any],
        messages: Sequence[Spooled],
        entries: Sequence[LogEntry] = (),
        inbox: Sequence[InboxRow] = (),
    ) -> None:
        super().__init__(future)
        self.messages = messages
        self.entries = entries
        self.inbox = inbox

    @property
    def rows(self) -> int:
        return max(len(self.messages) + len(self.entries) // 2, len(self.inbox)) + self.octets // ROW_OCTETS

    @property
    def octets(self) -> int:
        """Of all messages."""
        return sum(len(message.body) for message in self.messages)

    @property
    def units(self) -> int:
        """Its messages."""
        return len(self.messages)

    def parts(self, size: int) -> list[SpoolCall]:
        """See :class:`WriterCall`. Entries and rows of the inbox go with the last row of their message; else with the
        first part."""
        entries = _divide(self.entries, self.messages, size)
        inbox = _divide(self.inbox, self.messages, size)
        return [
            SpoolCall(
                self.future,
                self.messages[begin : begin + size],
                entries.get(begin // size, ()),
                inbox.get(begin // size, ()),
            )
            for begin in range(0, len(self.messages), size)
        ]


class Hand(WriterCall):
    """``deliveries.claim``: hand out what is due. ``entries`` makes the events of what was handed out."""

    __slots__ = ("entries", "limit", "octets_max", "ordered", "seconds", "subscription")

    def __init__(
        self,
        future: Future[Any],
        subscription: str,
        limit: int,
        seconds: float,
        ordered: bool,
        octets_max: int,
        entries: Callable[[list[BacklogEntry]], list[LogEntry]],
    ) -> None:
        super().__init__(future)
        self.subscription = subscription
        self.limit = limit
        self.seconds = seconds
        self.ordered = ordered
        self.octets_max = octets_max
        self.entries = entries

    @property
    def rows(self) -> int:
        return self.limit

    def given_back(self, future: Future[Any], now: int) -> SettleOwed:
        """The call that undoes it, where nobody has seen the handed-out message: it is in its old place in line, and
        was not handed out. ``now`` in microseconds."""
        delivered: list[BacklogEntry] = self.result
        released = {"subscription": self.subscription, "reason": "the caller went away"}
        return SettleOwed(
            future,
            [
                BacklogSettlement(
                    each.id,
                    Ending.RETRY,
                    each.lease,
                    front=True,
                    attempt=each.attempt - 1,
                    entries=(LogEntry(each.message_id, EventKind.RELEASED, now, detail=released),),
                )
                for each in delivered
            ],
        )


class SettleOwed(WriterCall):
    """``deliveries.settle``: endings, each with the events that go with it."""

    __slots__ = ("settlements",)

    def __init__(self, future: Future[Any], settlements: Sequence[BacklogSettlement]) -> None:
        super().__init__(future)
        self.settlements = settlements

    @property
    def rows(self) -> int:
        return len(self.settlements)

    @property
    def octets(self) -> int:
        """Of what goes, as far as that is known."""
        return sum(settlement.octets for settlement in self.settlements)

    @property
    def units(self) -> int:
        """Its settlements."""
        return len(self.settlements)

    def parts(self, size: int) -> list[SettleOwed]:
        """See :class:`WriterCall`."""
        return [
            SettleOwed(self.future, self.settlements[begin : begin + size])
            for begin in range(0, len(self.settlements), size)
        ]


class Keep(WriterCall):
    """``deliveries.keep_bodies``: bodies that are kept without a pending delivery."""

    __slots__ = ("kept",)

    def __init__(self, future: Future[Any], kept: Sequence[KeptBody]) -> None:
        super().__init__(future)
        self.kept = kept

    @property
    def rows(self) -> int:
        return len(self.kept) + self.octets // ROW_OCTETS

    @property
    def octets(self) -> int:
        """Of all bodies."""
        return sum(len(row.payload) for row in self.kept)

    @property
    def units(self) -> int:
        """Its bodies."""
        return len(self.kept)

    def parts(self, size: int) -> list[Keep]:
        """See :class:`WriterCall`."""
        return [Keep(self.future, self.kept[begin : begin + size]) for begin in range(0, len(self.kept), size)]


class Put(WriterCall):
    """``outbox.put``: new pending publishes, with events."""

    __slots__ = ("entries", "known", "promised")

    def __init__(self, future: Future[Any], promised: Sequence[OutboxEntry], entries: Sequence[LogEntry] = ()) -> None:
        super().__init__(future)
        self.promised = promised
        self.entries = entries
        self.known: set[bytes] = set()
        """Messages that are resent and were put before."""

    @property
    def rows(self) -> int:
        return len(self.promised) + len(self.entries) // 2 + self.octets // ROW_OCTETS

    @property
    def resent(self) -> list[bytes]:
        """Messages that may have been put before: the answer was lost."""
        return [row.message_id for row in self.promised if "resent" in row.reason]

    @property
    def octets(self) -> int:
        """Of all publishes."""
        return sum(len(row.payload) for row in self.promised)

    @property
    def units(self) -> int:
        """Its publishes."""
        return len(self.promised)

    def parts(self, size: int) -> list[Put]:
        """See :class:`WriterCall`. Entries go with the publish of their message; else with the first part."""
        entries = _divide(self.entries, self.promised, size)
        return [
            Put(self.future, self.promised[begin : begin + size], entries.get(begin // size, ()))
            for begin in range(0, len(self.promised), size)
        ]


class SettleOutbox(WriterCall):
    """``outbox.settle``: what was sent, with events; what is to be sent later; what is kept, with events. Events of
    what is another process's by now are not written: its outcome counts."""

    __slots__ = ("done", "kept", "retry")

    def __init__(
        self,
        future: Future[Any],
        done: Sequence[tuple[bytes, Sequence[LogEntry]]],
        retry: Sequence[tuple[bytes, float, dict[str, Any]]] = (),
        kept: Sequence[tuple[bytes, Sequence[LogEntry], dict[str, Any]]] = (),
    ) -> None:
        super().__init__(future)
        self.done = done
        self.retry = retry
        self.kept = kept

    @property
    def rows(self) -> int:
        return self.units

    @property
    def units(self) -> int:
        """Its publishes."""
        return len(self.done) + len(self.retry) + len(self.kept)

    def parts(self, size: int) -> list[SettleOutbox]:
        """See :class:`WriterCall`."""
        before, both = len(self.done), len(self.done) + len(self.retry)
        return [
            SettleOutbox(
                self.future,
                self.done[begin : begin + size],
                self.retry[max(0, begin - before) : max(0, begin + size - before)],
                self.kept[max(0, begin - both) : max(0, begin + size - both)],
            )
            for begin in range(0, self.units, size)
        ]


class SettlePublishes(WriterCall):
    """``outbox.settle_publishes``: what became of publishes without a key, each with its events. Events of what another
    process has taken over are not written."""

    __slots__ = ("done",)

    def __init__(self, future: Future[Any], done: Sequence[tuple[bytes, Sequence[LogEntry]]]) -> None:
        super().__init__(future)
        self.done = done

    @property
    def rows(self) -> int:
        return len(self.done)

    @property
    def units(self) -> int:
        """Its publishes."""
        return len(self.done)

    def parts(self, size: int) -> list[SettlePublishes]:
        """See :class:`WriterCall`."""
        return [
            SettlePublishes(self.future, self.done[begin : begin + size]) for begin in range(0, len(self.done), size)
        ]


class Task(WriterCall):
    """Anything else: a function that gets a transaction of its own. ``proves``: where it succeeds, so would the others
    that write."""

    __slots__ = ("proves", "run")

    def __init__(
        self, future: Future[Any], run: Callable[[sa.Connection, ShardLease], Any], proves: bool = False
    ) -> None:
        super().__init__(future)
        self.run = run
        self.proves = proves


def _divide(rows: Sequence[T], owners: Sequence[Any], size: int) -> dict[int, list[T]]:
    """Rows by the part that they go with, where each part has ``size`` of the ``owners``."""
    place = {owner.message_id: index // size for index, owner in enumerate(owners)}
    divided: dict[int, list[T]] = {}
    for row in rows:
        divided.setdefault(place.get(row.message_id, 0), []).append(row)
    return divided


def key_digest(client: str, key: str) -> bytes:
    """Lookup value of a key: 32 bytes, for any length of client and key."""
    name = client.encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(len(name).to_bytes(4, "big"))
    digest.update(name)
    digest.update(key.encode("utf-8", "surrogateescape"))
    return digest.digest()
