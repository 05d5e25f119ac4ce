"""The quick form of every row: all lanes on one gateway, some dozen messages each, and the whole check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.faults.consumers.lanes import LANES, STREAMS, Lane
from tests.faults.consumers.rows import QUICK, ROWS, Row, perform

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(("lanes", "row"), [pytest.param(*each, id=each[1].name) for each in QUICK])
async def test_nothing_is_lost(
    lanes: Sequence[Lane], row: Row, request: pytest.FixtureRequest, private_server: Callable[[str], Any]
) -> None:
    servers = private_server if row.private else request.getfixturevalue
    run = await perform(row, lanes, servers)
    print(run.summary())


def test_every_row_has_a_quick_form_on_every_lane() -> None:
    """But for the restart of brokers, which is slow: there it is each way and lease, with both brokers."""
    quick = {(lane, name) for lanes, row in QUICK for name in row.name.split(", ") for lane in lanes}
    for row in ROWS:
        lanes = {lane for lane in (*LANES, *STREAMS) if (lane, row.name) in quick}
        if row.private:
            assert {(lane.way, lane.lease, lane.kind) for lane in LANES} <= {
                (lane.way, lane.lease, lane.kind) for lane in lanes
            }
        else:
            assert lanes == {*LANES, *STREAMS}
