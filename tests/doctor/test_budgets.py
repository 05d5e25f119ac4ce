"""Budgets whose settings make no sense, and those that a running gateway has nearly used up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from tests.doctor.conftest import Look

KEY = '[[api_keys]]\nname = "alice"\nkey = "secret-of-alice"\nscopes = ["admin"]\n'


@contextmanager
def metrics(page: str) -> Iterator[int]:
    """The operations port of a gateway with this page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            octets = page.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(octets)))
            self.end_headers()
            self.wfile.write(octets)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_defaults_are_well(look: Look) -> None:
    found = look(f"{KEY}[ops]\nport = 0", "access")
    assert found.one("access.budgets").what == "one client may hold 25% of each total"


EMBEDDED = '[embedded]\nenabled = true\nqueue_memory = 16777216\n[[embedded.users]]\nname = "a"\npassword = "p"\n'


def test_a_single_user_of_the_embedded_broker_has_no_share(look: Look) -> None:
    found = look(f"{EMBEDDED}[ops]\nport = 0\n{KEY}", "access")
    assert found.one("access.budgets").what == "one client may hold 25% of each total"


@pytest.mark.parametrize(
    ("settings", "where", "what"),
    [
        ("[http]\nconcurrency = 3\n[budgets.shares]\nstreams = 1.0", "budgets.share", "0.25 of 3 HTTP requests"),
        ("[budgets.shares]\nrequests = 1.0", "budgets.shares.requests", "one client may hold all HTTP requests"),
        (
            f'{EMBEDDED}[[embedded.users]]\nname = "b"\npassword = "q"', "budgets.share",
            "one client may hold all bytes of messages in the embedded broker",
        ),
        ('[budgets.clients]\nalic = 0.5', "budgets.clients.alic", "no key or certificate of the file"),
        ("[budgets]\nreserve = 0.01\n[budgets.totals]\nops_connections = 50", "budgets.reserve", "is nothing"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(look: Look, settings: str, where: str, what: str) -> None:
    found = look(f"{settings}\n[ops]\nport = 0\n{KEY}", "access")
    bad = [each for each in found.all("access.budgets") if each.severity.value == "warn"]
    assert any(each.where == where and what in each.what for each in bad), found.text
    assert all(each.do for each in bad)


def test_clients_that_are_known(look: Look) -> None:
    found = look(f'[budgets.clients]\nalice = 0.5\n"jwt:bob" = 0.5\n[ops]\nport = 0\n{KEY}', "access")
    assert "access.budgets" not in found.warned


def test_what_a_running_gateway_has_nearly_used_up(look: Look) -> None:
    page = "\n".join(
        (
            'amqpgw_budget_used{resource="streams"} 100.0',
            'amqpgw_budget_total{resource="streams"} 750.0',
            'amqpgw_budget_largest{resource="streams"} 180.0',
            'amqpgw_budget_used{resource="requests"} 880.0',
            'amqpgw_budget_total{resource="requests"} 1000.0',
            'amqpgw_budget_largest{resource="requests"} 20.0',
            'amqpgw_budget_refusals_total{reached="total",resource="leases"} 7.0',
            'amqpgw_budget_total{resource="leases"} 10000.0',
        )
    )
    with metrics(page) as port:
        finding = look(f"[ops]\nport = {port}\n{KEY}", "access").one("access.budgets")
    assert finding.where == "a gateway that runs"
    assert "requests: 880 of 1,000 are in use" in finding.what
    assert "streams: one client holds 180, and its share is about 188" in finding.what
    assert "leases: 7 refusals since the start for want of more" in finding.what
    with metrics(page.replace("180.0", "18.0").replace("880.0", "8.0").replace("7.0", "0.0")) as port:
        assert "access.budgets" not in look(f"[ops]\nport = {port}\n{KEY}", "access").warned
