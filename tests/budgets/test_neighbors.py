"""One client at its bound, and another one beside it: each budget once, in short. `measure` has the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.budgets import RESOURCES
from tests.budgets.lab import Lab, gateway, opened
from tests.budgets.measure import measure
from tests.budgets.rows import NOT_HERE, ROWS, Row

LONG = 5.0
"""How long a request of another client may take here, where other tests run beside it, in seconds."""


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[Lab, asyncio.Runner]]:
    """The lab of all tests, and the loop that it belongs to."""
    with gateway(1) as process, asyncio.Runner() as runner:
        lab = opened(process)
        try:
            yield runner.run(lab.__aenter__()), runner
        finally:
            runner.run(lab.__aexit__(None, None, None))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.resource)
def test_another_client_goes_on(lab: tuple[Lab, asyncio.Runner], row: Row) -> None:
    found = lab[1].run(measure(lab[0], row, 0, 0.2))
    assert found.at_bound < LONG
    assert found.refused or not row.is_refused


def test_each_budget_is_measured_or_said_not_to_be() -> None:
    measured = [row.resource for row in ROWS]
    assert len(set(measured)) == len(measured)
    assert {*measured, *NOT_HERE} == set(RESOURCES)
