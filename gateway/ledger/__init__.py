"""The ledger: SQL that knows what happened to every message.

``Ledger`` is the only door (:mod:`gateway.ledger.store`). Its verbs take and give the structs of
:mod:`gateway.ledger.writing.records`. The rest::

    store.py        Ledger: the verbs, on the event loop
    work.py         who of several processes does what
    resources.py    named JSON documents with an etag
    backups.py      a copy of an SQLite ledger that is in use, in one file
    restoring.py    what changes in a ledger that comes from a backup
    writing/        one thread that groups what waits into one transaction
    pending/        what is owed: deliveries, scheduled publishes, keys, branches; statements and readers
    events/         history: timelines, searches, the feed, counts per hour, retention
    logs/           the logs of events and of messages, for jobs
    access/         API keys, and the audit log
    db/             SQLite and PostgreSQL: connections, migrations, tables, shards, how values lie in columns
"""

from gateway.ledger.db.ids import MessageIds, first_id, id_text, parse_id, time_of
from gateway.ledger.events.windows import Happened
from gateway.ledger.logs.logged import Extent, Floor, Run, Spooled, StoredCursor
from gateway.ledger.pending.branches import BranchRecord, BranchStatus
from gateway.ledger.pending.keyring import EndedKey, Wanted
from gateway.ledger.pending.owed import (
    BacklogCounts,
    BacklogEntry,
    BacklogSettlement,
    DeadGroup,
    DeliveryFilter,
    Ending,
    KeptBody,
    OutboxFilter,
    Owed,
)
from gateway.ledger.store import Ledger
from gateway.ledger.writing.records import (
    EventFilter,
    HourFilter,
    HourlyEvents,
    InboxRow,
    KeyClaim,
    KeyLost,
    LogEntry,
    MessageFilter,
    Mismatch,
    New,
    NewMessage,
    OutboxEntry,
    RecordedEvent,
    ResourceRecord,
    RunningRequest,
    Seen,
    StoredAnswer,
    StoredMessage,
    Timeline,
    Unknown,
)
from gateway.ledger.writing.states import EventKind, MessageState
from gateway.logs import Log

__all__ = [
    "BacklogCounts",
    "BacklogEntry",
    "BacklogSettlement",
    "BranchRecord",
    "BranchStatus",
    "DeadGroup",
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
    "OutboxEntry",
    "OutboxFilter",
    "Owed",
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
    "first_id",
    "id_text",
    "parse_id",
    "time_of",
]
