"""The examples for curl and Python do what the documentation says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.commands.demo import gateway_of_our_own
from tests.examples import programs


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with gateway_of_our_own() as url:
        yield url


@pytest.mark.parametrize("language", ["curl", "python"])
def test_it_publishes_once_and_consumes(language: str, gateway: str) -> None:
    programs.publishes_once_and_consumes(language, gateway)


def test_python_receives_and_verifies() -> None:
    programs.receives_and_verifies("python")


def test_the_shell_verifies() -> None:
    assert programs.verifies_by_hand()
    assert not programs.verifies_by_hand(changed=True)
    assert not programs.verifies_by_hand(age=400)
