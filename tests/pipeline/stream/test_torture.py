"""A stream that is killed, in short; ``python -m tests.pipeline.torture --full`` is the whole."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.torture import torture


def test_every_row_is_published_once_though_driver_and_jvm_are_killed(tmp_path: Path) -> None:
    """Where it is worst: in the second batch, so that the cursor was told of the first and retention has taken that,
    and behind a request that was stored and not answered."""
    points = ["writing: stored, and not answered"]
    found = torture(tmp_path, 3_000, 600, points, seed=7, spare=8)
    assert found.kills == points
    assert (found.published, found.missing) == (3_000, 0)
    assert found.received > 3_000, "something was sent twice, or nothing was shown"
    assert found.position == {"0": 2_250, "3": 750}
