"""The twelve tasks of a stranger, over RabbitMQ 4.0."""

from __future__ import annotations

import pytest

from tests.console.walk import Place, Tasks


class TestTasks(Tasks):
    """In the middle width, and in the light."""

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls) -> Place:
        return Place("rabbitmq-4.0")
