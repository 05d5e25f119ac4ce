"""The ledger: SQL that knows what happened to every message.

``Ledger`` is the only door (:mod:`gateway.ledger.store`); its verbs take and give the structs of
:mod:`gateway.ledger.records`. The rest, from the outside in::

    store.py        Ledger: the verbs, on the event loop
    writer.py       one thread that groups whatever waits into one transaction
    group.py        that transaction: shard row first, then one statement per table
    calls.py        what waits for the writer
    keys.py         Idempotency-Keys and obligations, within the transaction
    keyed.py        ledger.keyed_outbox: publishes of later under a key
    keyring.py      ledger.keyring: many keys at once
    deliveries.py   ledger.deliveries: what is owed to subscriptions
    delivery_rows.py, delivery_reads.py    its statements: within the transaction, and on a reader's connection
    bodies.py       payloads of what is owed, or kept
    log.py          ledger.log: the logs of events and of messages, for jobs
    logged.py       what goes in and out of it
    log_rows.py, log_reads.py    its statements: within the transaction, and on a reader's connection
    outbox.py       ledger.outbox: publishes of later
    owed.py         what goes in and out of these three
    inbox.py        what bridges forwarded, so that a redelivery is recognised
    branches.py     ledger.branches: branches of distributed transactions, and whether they are to be committed
    reads.py        timeline, events by position
    searches.py     messages by filters
    windows.py      events between two times
    history.py      ledger.history: the feed, counts per hour, retention
    feed.py         events as they come, for all who follow
    statistics.py   counts per hour
    keeper.py       when to count, and when to let go
    retention.py    what goes, and how
    resources.py    named JSON documents with an etag
    api_keys.py     ledger.api_keys: keys of callers, by their digests
    audit.py        ledger.audit: who changed what, hash-chained, with a MAC
    audit_check.py  whether that log is as the gateways wrote it
    shards.py       the lease of a shard, its fence, takeover
    inserts.py      rows of the history, in the way that is quickest on each database
    batch.py        many rows in two parameters: one JSON array, one string of octets
    prepared.py     statements compiled once
    encoding.py     names as octets, small documents as JSON
    engine.py       SQLite and PostgreSQL: connections, pragmas, the file lock, which errors mean "away"
    backups.py      a copy of an SQLite ledger that is in use, in one file
    restoring.py    what changes in a ledger that comes from a backup
    schema.py       migrations, revision check, partitions
    models.py       the tables
    states.py       kinds of events, states, transitions
    ids.py          UUIDv7
"""

from gateway.ledger.branches import BranchRecord, BranchStatus
from gateway.ledger.ids import MessageIds, id_text, parse_id
from gateway.ledger.keyring import EndedKey, Wanted
from gateway.ledger.logged import Extent, Floor, Run, Spooled, StoredCursor
from gateway.ledger.owed import (
    BacklogCounts,
    BacklogEntry,
    BacklogSettlement,
    DeliveryFilter,
    Ending,
    KeptBody,
    OutboxFilter,
    Owed,
    Promised,
)
from gateway.ledger.records import (
    EventFilter,
    HourFilter,
    HourlyEvents,
    InboxRow,
    Intent,
    KeyClaim,
    KeyLost,
    LogEntry,
    MessageFilter,
    Mismatch,
    New,
    NewMessage,
    RecordedEvent,
    ResourceRecord,
    RunningRequest,
    Seen,
    StoredAnswer,
    StoredMessage,
    Timeline,
    Unknown,
)
from gateway.ledger.states import EventKind, MessageState
from gateway.ledger.store import Ledger
from gateway.ledger.windows import Happened
from gateway.logs import Log

__all__ = [
    "BacklogCounts",
    "BacklogEntry",
    "BacklogSettlement",
    "BranchRecord",
    "BranchStatus",
    "DeliveryFilter",
    "EndedKey",
    "Ending",
    "EventFilter",
    "EventKind",
    "Extent",
    "Floor",
    "Happened",
    "HourFilter",
    "HourlyEvents",
    "InboxRow",
    "Intent",
    "KeptBody",
    "KeyClaim",
    "KeyLost",
    "Ledger",
    "Log",
    "LogEntry",
    "MessageFilter",
    "MessageIds",
    "MessageState",
    "Mismatch",
    "New",
    "NewMessage",
    "OutboxFilter",
    "Owed",
    "Promised",
    "RecordedEvent",
    "ResourceRecord",
    "Run",
    "RunningRequest",
    "Seen",
    "Spooled",
    "StoredAnswer",
    "StoredCursor",
    "StoredMessage",
    "Timeline",
    "Unknown",
    "Wanted",
    "id_text",
    "parse_id",
]
