"""The command line, called in this process, and a gateway for it to talk to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.commands import cli
from gateway.commands.demo import gateway_of_our_own

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("pull", "billing", input=b"")``: one command, nothing of the environment's settings."""
    for variable in ("GATEWAY_URL", "GATEWAY_API_KEY", "GATEWAY_CONFIG", "GATEWAY_DATA_DIR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(cli, list(arguments), catch_exceptions=False, **options)


@pytest.fixture(scope="session")
def gateway() -> Iterator[str]:
    """The URL of a gateway that runs, with the embedded broker."""
    with gateway_of_our_own() as url:
        yield url


class Canned(HTTPServer):
    """A server that answers everything alike, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CannedHandler)
        self.status = 200
        self.body = b"{}"
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.body_of: Callable[[], bytes] = lambda: self.body
        """What it answers next, where that changes."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, status: int, body: Any) -> None:
        """What it answers from now on: octets, or what becomes JSON."""
        self.status, self.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()


class CannedHandler(BaseHTTPRequestHandler):
    """Every method alike."""

    server: Canned

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers, body))
        answer = self.server.body_of()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  # the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def canned() -> Iterator[Canned]:
    """A server with one answer."""
    with Canned() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
