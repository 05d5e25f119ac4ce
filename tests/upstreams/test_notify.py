"""Listeners that fail harm nobody."""

from __future__ import annotations

import pytest

from gateway.upstreams.notify import notify


def test_the_others_hear_of_it(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    def fail(value: int) -> None:
        raise ValueError("boom")

    notify([heard.append, fail, heard.append], 7)
    assert heard == [7, 7]
    (record,) = caplog.records
    assert record.message == "listener.failed"
    assert record.exc_info is not None
