"""Every view in both themes and three widths: what axe-core says of it, and whether it fits."""

from __future__ import annotations

import pytest

from tests.console.conftest import Open, Served
from tests.console.views import look


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_every_view(open_console: Open, something: str, served: Served, width: int, theme: str) -> None:
    assert look(open_console, served, something, width, theme) == []
