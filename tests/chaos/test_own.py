"""The quick forms of what no other suite has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.figures import Form
from tests.chaos.parts import Context, Own
from tests.chaos.table import EXPERIMENTS

pytestmark = pytest.mark.broker

OURS = [
    part
    for experiment in EXPERIMENTS
    for part in experiment.parts
    if isinstance(part, Own) and Form.QUICK in part.forms and not part.ids
]


@pytest.mark.parametrize("part", OURS, ids=lambda part: part.name)
def test_it_holds(part: Own, request: pytest.FixtureRequest) -> None:
    find: Callable[[str], Any] = request.getfixturevalue
    found = part.work(Context(Form.QUICK, find=find))
    assert found
    for figures in found:
        print(figures)
        assert figures.passed, figures
