"""A fresh ledger on each database, and short ways to say what goes in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import sqlalchemy as sa

from gateway.config import LedgerSettings
from gateway.ledger import EventKind, Ledger, LogEntry, MessageIds, NewMessage, OutboxEntry
from gateway.ledger.db.engine import Database
from tests.ledgers import sqlite_ledger

SHA = bytes(range(32))
NOW = 1_800_000_000_000_000
"""A time in microseconds since 1970."""

new_id = MessageIds(clock=time.time)  # not the clock that a test replaces: ids of a process never go back

Open: TypeAlias = Callable[..., Awaitable[Ledger]]


def message(**fields: Any) -> NewMessage:
    """A message from a client."""
    values: dict[str, Any] = {
        "broker": "rabbit",
        "version": "0-9-1",
        "exchange": "orders",
        "routing_key": "eu.new",
        "size": 5,
        "sha256": SHA,
        "origin": "http",
        "client": "shop",
        "properties": {"message_id": "m-1"},
    }
    return NewMessage(**(values | fields))


def entry(message_id: bytes, kind: EventKind, at: int = NOW, detail: dict[str, Any] | None = None) -> LogEntry:
    """An event of a message that the ledger knows."""
    return LogEntry(message_id, kind, at, "rabbit", "0-9-1", detail)


def accepted(message_id: bytes, at: int = NOW, **fields: Any) -> LogEntry:
    """The first event of a message."""
    return LogEntry(message_id, EventKind.ACCEPTED, at, "rabbit", "0-9-1", None, message(**fields))


def published(message_id: bytes, at: int = NOW, **fields: Any) -> list[LogEntry]:
    """Accepted and confirmed."""
    return [accepted(message_id, at, **fields), entry(message_id, EventKind.CONFIRMED, at)]


def intent(message_id: bytes, payload: bytes = b"hello", **fields: Any) -> OutboxEntry:
    """A promise to publish."""
    return OutboxEntry(
        message_id=message_id,
        broker="rabbit",
        exchange="orders",
        routing_key="eu.new",
        payload=payload,
        at=NOW,
        message=message(**fields),
    )


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = NOW / 1e6

    def __call__(self) -> float:
        return self.now


DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.broker)]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger, up to date and empty."""
    if request.param == "sqlite":
        return sqlite_ledger(tmp_path)
    found: str = request.getfixturevalue("postgresql_ledger")
    return found


@pytest.fixture(params=DATABASES)
def bare_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    found: str = request.getfixturevalue("postgresql_url")
    return found


ON_POSTGRESQL = pytest.mark.parametrize("url", [pytest.param("postgresql", marks=pytest.mark.broker)], indirect=True)
"""For what only a shared database has."""


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


@pytest.fixture
async def open_ledger(url: str) -> AsyncIterator[Open]:
    """Opens ledgers on ``url``; they are closed after the test."""
    opened: list[Ledger] = []

    async def open_ledger(owner: str = "test", clock: Any = None, retention: Any = None, **settings: Any) -> Ledger:
        settings = {"shard_lease": 60.0} | settings
        more = {name: value for name, value in (("clock", clock), ("retention", retention)) if value is not None}
        ledger = await Ledger.open(url, LedgerSettings(**settings), owner=owner, migrate=True, **more)
        opened.append(ledger)
        return ledger

    yield open_ledger
    for ledger in opened:
        await ledger.close()


@pytest.fixture
async def ledger(open_ledger: Open) -> Ledger:
    return await open_ledger()


@pytest.fixture
def sql(database: Database) -> Iterator[Callable[[str], list[Any]]]:
    """Runs a statement on the database, past the ledger."""
    engine = database.readers()

    def run(statement: str) -> list[Any]:
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return list(result.all()) if result.returns_rows else []

    yield run
    engine.dispose()
