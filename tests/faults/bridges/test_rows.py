"""The quick form of every row: some hundred messages, each fault once or a few times, and the whole check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.bridges.rows import QUICK, ROWS, Direction, Row, perform

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("direction", "row"), [pytest.param(*each, id=f"{each[1].name}-{each[0].name}") for each in QUICK]
)
async def test_nothing_is_lost(
    direction: Direction, row: Row, request: pytest.FixtureRequest, private_server: Callable[[str], Any]
) -> None:
    servers = private_server if row.private else request.getfixturevalue
    run = await perform(row, direction, servers)
    print(run.summary())


def test_every_row_has_a_quick_form() -> None:
    quick = {name for _, row in QUICK for name in row.name.split(", ")}
    assert {row.name for row in ROWS} == quick
