"""The ledger: SQL that knows what happened to every message.

``Ledger`` is the only door (:mod:`gateway.ledger.store`); its verbs take and give the structs of
:mod:`gateway.ledger.records`. The rest, from the outside in::

    store.py        Ledger: the verbs, on the event loop
    writer.py       one thread that groups whatever waits into one transaction
    group.py        that transaction: shard row first, then one statement per table
    calls.py        what waits for the writer
    keys.py         Idempotency-Keys and obligations, within the transaction
    reads.py        timeline, lists, the feed by position
    resources.py    named JSON documents with an etag
    shards.py       the lease of a shard, its fence, takeover
    inserts.py      rows of the history, in the way that is quickest on each database
    batch.py        many rows in two parameters: one JSON array, one string of octets
    prepared.py     statements compiled once
    encoding.py     names as octets, small documents as JSON
    engine.py       SQLite and PostgreSQL: connections, pragmas, the file lock, which errors mean "away"
    schema.py       migrations, revision check, partitions
    models.py       the tables
    states.py       kinds of events, states, transitions
    ids.py          UUIDv7
"""

from gateway.ledger.ids import MessageIds, id_text, parse_id
from gateway.ledger.records import (
    Entry,
    Event,
    Intent,
    KeyClaim,
    KeyLost,
    MessageFilter,
    Mismatch,
    New,
    NewMessage,
    Replay,
    Resource,
    Running,
    StoredMessage,
    Timeline,
    Unknown,
)
from gateway.ledger.states import Kind, State
from gateway.ledger.store import Ledger

__all__ = [
    "Entry",
    "Event",
    "Intent",
    "KeyClaim",
    "KeyLost",
    "Kind",
    "Ledger",
    "MessageFilter",
    "MessageIds",
    "Mismatch",
    "New",
    "NewMessage",
    "Replay",
    "Resource",
    "Running",
    "State",
    "StoredMessage",
    "Timeline",
    "Unknown",
    "id_text",
    "parse_id",
]
