"""A plugin for the suites of aiormq and aio-pika, which compare the client's memory before and after each test.

It compares nothing with nothing. No front changes what a client keeps, and the snapshots took half of the time.
"""

from __future__ import annotations

import tracemalloc


def pytest_configure() -> None:
    """Trace nothing."""
    tracemalloc.start = lambda *_: None  # type: ignore[assignment]
    tracemalloc.take_snapshot = lambda: tracemalloc.Snapshot((), 1)  # type: ignore[assignment]
