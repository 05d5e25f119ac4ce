"""How things stand with a subscription that is pushed."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class PushState(StrEnum):
    """In one word."""

    RUNNING = "running"
    """What comes is pushed."""
    WAITING = "waiting"
    """The endpoint gets nothing now: it is paused, disabled, unverified or missing, asked for a pause, or failed so
    often that it is left alone."""
    FULL = "full"
    """The ledger holds ``backlog_max`` messages for it: nothing is taken from its queue."""
    ERROR = "error"
    """Its queue cannot be read."""
    PAUSED = "paused"
    """The subscription is paused."""
    STOPPED = "stopped"
    """No process has begun with it yet, or its settings are wrong."""


class PushStatus(msgspec.Struct, kw_only=True):
    """Times in microseconds since 1970."""

    endpoint: str
    state: PushState
    reason: str = ""
    """Why it is not running."""
    code: str = ""
    """The same in one word; empty: it is running, or this process does not know."""
    in_flight: int = 0
    """Messages in requests that are under way."""
    held: int = 0
    """Messages that were taken from queue or ledger, and wait for a request."""
    waiting: int = 0
    """Messages that the ledger holds and that are to be pushed."""
    retrying: int = 0
    """Those of them that were tried before."""
    dead: int = 0
    next_attempt_at: int | None = None
    last_error: str = ""
    last_error_at: int | None = None
