"""Whether a ledger on SQLite is what was written: its structure, and every row that has a checksum or a digest.

It only reads, and may run beside a gateway.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from gateway.errors import GatewayError
from gateway.ledger.db.checksums import is_sound
from gateway.ledger.db.commit_count import check_commits
from gateway.ledger.db.encoding import parse
from gateway.ledger.db.files import check_files
from gateway.ledger.pending.bodies import digest_of
from gateway.ledger.resources import etag_of

MOST: Final = 10
"""Most findings of each kind."""


def _resource(spec: bytes, etag: str) -> bool:
    try:
        return etag_of(parse(spec)) == etag
    except GatewayError:
        return False


_ROWS: Final[tuple[tuple[str, str, Callable[..., bool]], ...]] = (
    (
        "a scheduled or pending publish",
        "SELECT hex(message_id), checksum, message_id, CAST(broker AS BLOB), exchange, routing_key, payload, client"
        " FROM outbox",
        is_sound,
    ),
    (
        "a publish without an outcome",
        "SELECT hex(message_id), checksum, CAST(broker AS BLOB), message_id, key_id, exchange, routing_key, payload"
        " FROM obligations",
        is_sound,
    ),
    (
        "the answer under an Idempotency-Key",
        "SELECT hex(id), checksum, id, CAST(answer_status AS BLOB), answer_headers, answer_body"
        " FROM idempotency_keys WHERE status = 'done'",
        is_sound,
    ),
    (
        "the body of a message",
        "SELECT hex(message_id), payload, digest FROM bodies",
        lambda payload, digest: bool(digest_of(payload) == digest),
    ),
    (
        "the reference to a body in a delivery",
        "SELECT hex(id), EXISTS (SELECT 1 FROM bodies WHERE bodies.message_id = deliveries.message_id"
        " AND bodies.digest = deliveries.digest) FROM deliveries",
        bool,
    ),
    (
        "a spooled message",
        "SELECT hex(message_id), body, sha256 FROM message_log",
        lambda body, digest: bool(sha256(body).digest() == digest),
    ),
    ("a resource", "SELECT kind || ' ' || CAST(name AS TEXT), spec, etag FROM resources", _resource),
)
"""What it is, the rows with a name first, and whether one is as it was written."""


def check(path: Path, *, is_open: bool = False) -> list[str]:
    """Read all of a ledger. Blocks, about a second for 300 MB.

    Args:
        path: the database.
        is_open: a process has it open, so its files change meanwhile.

    Returns:
        What is damaged, at most :data:`MOST` findings of each kind. Empty: it is sound, as far as can be said.
    """
    found: list[str] = []
    try:
        if not is_open:
            check_files(path)
            check_commits(path)
        mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
        uri = f"file:{quote(str(path.absolute()))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            rows = database.execute(f"PRAGMA integrity_check({MOST})")
            found += [str(row[0]) for row in rows if row[0] != "ok"]
            for what, query, is_right in _ROWS:
                found += _damaged(database, what, query, is_right)
    except (sqlite3.Error, OSError, GatewayError, UnicodeDecodeError) as error:
        found.append(str(error))
    return found


def _damaged(database: sqlite3.Connection, what: str, query: str, is_right: Callable[..., Any]) -> Iterator[str]:
    count = 0
    for name, *values in database.execute(query):
        if not is_right(*values):
            count += 1
            if count <= MOST:
                yield f"{what} is not what was written: {name}"
    if count > MOST:
        yield f"{what} is not what was written: {count - MOST} more"
