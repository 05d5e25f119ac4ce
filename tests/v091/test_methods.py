"""The methods that only 0-9-1 has."""

from __future__ import annotations

from gateway.classic.methods import SHARED
from gateway.v091.dialect import RABBITMQ
from gateway.v091.methods import DIFFERENT


def test_they_are_none_of_the_shared_ones() -> None:
    assert not set(DIFFERENT) & set(SHARED)
    assert not {method.key for method in DIFFERENT} & {method.key for method in SHARED}
    assert all(RABBITMQ.methods[method.key] is method for method in DIFFERENT)
