"""The twelve tasks of a stranger over every kind of broker, in both themes and three widths."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from tests.console.views import HEIGHTS
from tests.console.walk import Place, Tasks

KINDS: Final = ("rabbitmq-3.10", "rabbitmq-4.3", "brokerj", "embedded")
PLACES: Final = [Place(*each) for each in product(KINDS, HEIGHTS, ("light", "dark"))]


class TestTasks(Tasks):
    """Over each."""

    @pytest.fixture(scope="class", params=PLACES, ids=str)
    @classmethod
    def place(cls, request: pytest.FixtureRequest) -> Place:
        found: Place = request.param
        return found
