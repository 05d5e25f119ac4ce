"""The quick form of every row against a gateway that runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.lab import Lab, Row
from tests.attack.rows import ROWS


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.mark.parametrize("row", [row for row in ROWS if row.quick], ids=lambda row: row.name)
async def test_nobody_is_hurt(row: Row, lab: Lab) -> None:
    outcome = await lab.perform(row, full=False)
    print("  ".join(outcome.line()))
    assert not outcome.faults()


def test_names_are_different() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
