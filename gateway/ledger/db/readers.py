"""Connections that read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from gateway.ledger.db.engine import Database

P = ParamSpec("P")
R = TypeVar("R")


class Readers:
    """Connections of the threads that read, at most :data:`~gateway.ledger.db.engine.READERS`.

    A connection to SQLite cannot die, so it is kept as it is for the next read: to take one from the pool and give it
    back costs as much as a small statement. One to PostgreSQL goes back to the pool, which asks whether it still
    lives.
    """

    def __init__(self, database: Database) -> None:
        self._engine = database.readers()
        self._keeps = not database.is_postgresql
        self._idle: list[sa.Connection] = []

    def run(self, function: Callable[Concatenate[sa.Connection, P], R], *arguments: P.args, **options: P.kwargs) -> R:
        """Call a function with a connection, in a thread that reads. What it has begun is rolled back."""
        if not self._keeps:
            with self._engine.connect() as connection:
                return function(connection, *arguments, **options)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._engine.connect()
        try:
            found = function(connection, *arguments, **options)
            if connection.in_transaction():
                connection.rollback()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return found

    def close(self) -> None:
        """Close all connections. Nobody reads any more."""
        while self._idle:
            self._idle.pop().close()
        self._engine.dispose()
