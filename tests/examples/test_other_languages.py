"""The examples for the other languages; ``tests/generated/install.sh`` installs what they need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.commands.demo import gateway_of_our_own
from tests.examples import programs

OTHERS = [name for name in programs.LANGUAGES if name not in {"curl", "python"}]


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with gateway_of_our_own() as url:
        yield url


@pytest.mark.parametrize("language", OTHERS)
def test_it_publishes_once_and_consumes(language: str, gateway: str) -> None:
    programs.publishes_once_and_consumes(language, gateway)


@pytest.mark.parametrize("language", OTHERS)
def test_it_receives_and_verifies(language: str) -> None:
    programs.receives_and_verifies(language)


def test_every_language_has_three_programs() -> None:
    folders = {path.name for path in programs.EXAMPLES.iterdir() if path.is_dir()} - {"generated"}
    assert folders == set(programs.LANGUAGES)
    for folder in folders:
        assert len([path for path in (programs.EXAMPLES / folder).rglob("*") if path.is_file()]) == 3
