"""The logs of events and of messages as columns: what is in them, how SQL finds it, and what a reader gets.

A log lies in the ledger's database and is numbered per shard without gaps (:mod:`gateway.ledger.logs.log`). This
package knows only a URL and a dialect of the database, so that a process that makes Arrow of a range needs nothing else
of the ledger::

    columns.py    columns and filters, the statement, values one by one
    arrow.py      ranges as Arrow record batches, column by column
    worker.py     a process that does that for the service
"""

from __future__ import annotations

from enum import StrEnum


class Log(StrEnum):
    """The logs."""

    EVENTS = "events"
    """What happened to messages: the ledger's events."""
    MESSAGES = "messages"
    """Messages that taps have spooled, with their bodies."""
