"""Every view in both themes and three widths: what axe-core says of it, and whether it fits.

And where there is little to see: in a new gateway, with a key that may do little, while broker and ledger are away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Browser

from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from tests.attack.lab import Gateway
from tests.console.conftest import KEYS, Open, Served, console_at, key_of
from tests.console.views import look, look_at
from tests.servers.process import free_port

ROOT: Final = {"name": "root", "key": key_of("root"), "scopes": KEYS["root"]}
NOBODY: Final = "01a21a0b-1511-7000-a39f-1727d9e8ea5f"
"""The id of no message."""
SIZES: Final = [(390, 844, "light"), (1280, 860, "dark")]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2560])
def test_every_view(open_console: Open, something: str, served: Served, width: int, theme: str) -> None:
    assert look(open_console, served, something, width, theme) == []


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway in which nothing was ever done."""
    folder = tmp_path_factory.mktemp("empty")
    embedded = {"enabled": True, "port": free_port()}
    gateway = Gateway(folder, {"data_dir": str(folder / "data"), "embedded": embedded, "api_keys": [ROOT]})
    gateway.start()
    yield f"http://127.0.0.1:{gateway.port}"
    gateway.terminate()
    gateway.close()


@pytest.fixture
def away(tmp_path_factory: pytest.TempPathFactory, private_server: Callable[[str], Any]) -> Iterator[str]:
    """The address of a gateway whose broker and ledger are away."""
    folder = tmp_path_factory.mktemp("away")
    server = private_server("postgresql")
    ledger = server.create_database()
    schema.migrate(Database(ledger))
    gateway = Gateway(
        folder,
        {
            "data_dir": str(folder / "data"),
            "ledger": {"url": ledger},
            "brokers": {"local-0-9-1": {"url": "amqp://guest:guest@127.0.0.1:1/", "reconnect_max": 0.5}},
            "api_keys": [ROOT],
        },
    )
    gateway.start()
    server.kill()
    yield f"http://127.0.0.1:{gateway.port}"
    server.start()
    gateway.terminate()
    gateway.close()


@pytest.mark.parametrize(("width", "height", "theme"), SIZES)
def test_a_new_gateway(browser: Browser, empty: str, width: int, height: int, theme: str) -> None:
    with console_at(browser, empty) as opened:
        page = opened(width=width, height=height, theme=theme)
        assert look_at(page, empty, NOBODY, width, theme, "empty") == []


@pytest.mark.parametrize(("width", "height", "theme"), SIZES)
def test_a_key_that_may_do_little(
    open_console: Open, something: str, served: Served, width: int, height: int, theme: str
) -> None:
    page = open_console(client="publisher", width=width, height=height, theme=theme)
    assert look_at(page, served.url, something, width, theme, "little") == []


@pytest.mark.parametrize(("width", "height", "theme"), SIZES)
def test_while_the_broker_and_the_ledger_are_away(
    browser: Browser, away: str, width: int, height: int, theme: str
) -> None:
    with console_at(browser, away) as opened:
        page = opened(width=width, height=height, theme=theme)
        assert look_at(page, away, NOBODY, width, theme, "away") == []
