"""Every view in one theme and width; the suite ``console-looks`` has the others."""

from __future__ import annotations

from tests.console.conftest import Open, Served
from tests.console.views import look


def test_axe_finds_nothing(open_console: Open, something: str, served: Served) -> None:
    assert look(open_console, served, something, 1280, "dark") == []
