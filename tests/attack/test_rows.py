"""The quick form of every row against a gateway that runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.attack.lab import Lab, Row
from tests.attack.rows import ROWS

TRIES: Final = 3
"""How often a row is tried whose neighbor waits for too long."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


QUICK: Final = sorted((row for row in ROWS if row.quick), key=lambda row: row.on != "keyed")
"""The rows of the gateway that most of them attack come first: the others, once started, have a busy neighbor."""


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
async def test_nobody_is_hurt(row: Row, lab: Lab) -> None:
    outcome = await lab.perform(row, full=False)
    print("  ".join(outcome.line()))
    for _ in range(TRIES - 1):
        if outcome.slow:  # what a defect costs it costs each time
            outcome = await lab.perform(row, full=False)
            print("  ".join(outcome.line()))
    assert not outcome.faults()


def test_names_are_different() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
