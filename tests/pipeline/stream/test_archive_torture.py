"""The archive under kill, the quick form; the whole is ``python -m tests.pipeline.archive_torture --full``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.archive_torture import torture


@pytest.mark.slow
def test_driver_and_jvm_are_killed_while_messages_arrive(tmp_path: Path) -> None:
    result = torture(tmp_path, 3_000, 2, "parquet", 7, beside=False)
    assert result.ok, result
