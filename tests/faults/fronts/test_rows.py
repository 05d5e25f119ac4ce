"""The quick form of every row: a few hundred messages, the fault once or twice, and the whole check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.fronts.rows import ROWS, Row, perform

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("row", "kind", "version"),
    [
        pytest.param(row, kind, version, id=f"{row.name}-{kind}-{version}")
        for row in ROWS
        for kind, version in row.quick
    ],
)
async def test_nothing_is_lost(row: Row, kind: str, version: str, private_server: Callable[[str], Any]) -> None:
    run = await perform(row, private_server(kind), version, row.messages, row.times[0], seed=1)
    print(run.summary())
