"""The commands of the documentation do what it says: every command in a ``console`` block, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pages

NAMES = pages.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_page(name: str, tmp_path: Path) -> None:
    run = 0
    for command, told, seen in pages.compare(NAMES[name], tmp_path):
        assert pages.masked(seen) == pages.masked(told), command
        run += 1
    assert run


def test_the_first_steps_are_among_them() -> None:
    assert {"README.md", "docs/tutorials/first-message.md", "docs/tutorials/first-webhook.md"} <= set(NAMES)
    assert len([name for name in NAMES if name.startswith("docs/how-to/")]) >= 12
