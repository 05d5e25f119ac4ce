"""Rows of the log of messages, within the transaction of a group commit.

Their sequence numbers come from the shard's own row, which is locked from the beginning of the transaction until its
commit. So numbers are committed in their order and without gaps, and a transaction that is rolled back has taken none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from gateway.ledger.db.encoding import octets
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import message_log
from gateway.ledger.db.shards import ShardLease, Shards
from gateway.ledger.logs.logged import Spooled
from gateway.ledger.writing.calls import SpoolCall
from gateway.ledger.writing.inserts import insert

ROW: Final = 128
"""Octets that a row counts for beside its body, its names and its properties: numbers, digest, index, header."""


class LogRows:
    """The statements."""

    def __init__(self, database: Database, shards: Shards) -> None:
        self._insert = insert(database, message_log)
        self._shards = shards

    def write(self, connection: sa.Connection, lease: ShardLease, calls: Sequence[SpoolCall]) -> None:
        """Write the messages of these calls, inside a transaction that has entered its shard, and set their results.

        Raises:
            Fenced: the lease is gone; nothing may be committed.
        """
        found = [message for call in calls for message in call.messages]
        if not found:
            return
        names = [
            (octets(each.queue), octets(each.exchange), octets(each.routing_key), octets(each.origin_id))
            for each in found
        ]
        sizes = [size_of(each) + sum(map(len, texts)) for each, texts in zip(found, names, strict=True)]
        first, reached = self._shards.log(connection, lease, len(found), sum(sizes))
        rows = self._insert.rows()
        for each, texts, size in zip(found, names, sizes, strict=True):
            plain = (each.tap, each.at, each.broker, each.version, int(each.redelivered), reached)
            rows.add(plain, each.message_id, *texts, each.properties, each.body, each.sha256)
            reached += size
        self._insert.run(connection, rows, lease.shard, first)
        for call in calls:
            call.result = list(range(first, first + len(call.messages)))
            first += len(call.messages)


def size_of(message: Spooled) -> int:
    """Octets that a row counts for, but for its names."""
    return ROW + len(message.properties) + len(message.body)
