"""``gateway tail``: nothing missed, nothing twice, whatever the connection does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway import commands
from gateway.commands import tail
from tests.commands.conftest import Run

TOTAL = 30


def block(number: int) -> bytes:
    """An event as the API sends it."""
    data = {
        "id": f"m-{number}",
        "shard": 0,
        "sequence": number,
        "at": "2026-01-01T00:00:00.000000Z",
        "kind": "confirmed",
    }
    data |= {"broker": "b\x1b", "version": "0-9-1", "detail": {"n": number}}
    return b'id: {"0":%d}\nevent: message\ndata: %b\n\n' % (number, json.dumps(data).encode())


class Feed(ThreadingHTTPServer):
    """A gateway's feed that cuts its connections where it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.cuts: list[int] = []
        """After how many octets each of the first connections ends."""
        self.answers: dict[int, tuple[int, dict[str, Any]]] = {}
        """Connections that are answered by a problem."""


class Handler(BaseHTTPRequestHandler):
    server: Feed

    def do_GET(self) -> None:
        number = len(self.server.asked)
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if number in self.server.answers:
            status, problem = self.server.answers[number]
            body = json.dumps(problem).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        reached = json.loads(self.headers.get("last-event-id") or "{}").get("0", 0)
        body = b':\nid: {"0":%d}\n\n' % reached + b"".join(block(each) for each in range(reached + 1, TOTAL + 1))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body[: self.server.cuts[number]] if number < len(self.server.cuts) else body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    monkeypatch.setattr(tail, "PAUSE_MIN", 0.0)
    with Feed() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_connection_that_drops_anywhere_costs_nothing(run: Run, feed: Feed) -> None:
    """At every octet of an event, and in the head of the stream."""
    head = len(b':\nid: {"0":0}\n\n')
    feed.cuts = [head + cut for cut in range(0, len(block(1)) + 40, 3)]
    result = run("tail", "--url", f"http://127.0.0.1:{feed.server_port}", "--json", "--count", str(TOTAL))
    assert result.exit_code == 0, result.output
    assert [json.loads(each)["sequence"] for each in result.stdout.splitlines()] == list(range(1, TOTAL + 1))
    assert len(feed.asked) > 20
    assert "coming back" in result.stderr
    assert "last-event-id" not in feed.asked[0][1]
    assert all("last-event-id" in headers for _, headers in feed.asked[1:])


def test_lines_and_filters(run: Run, feed: Feed) -> None:
    url = f"http://127.0.0.1:{feed.server_port}"
    result = run(
        "tail", "--url", url, "--count", "1", "--all", "--kind", "dead", "--kind", "confirmed", "--bridge", "e&st",
        "--no-follow", "--since", "2026-01-01T00:00:00Z",
    )  # fmt: skip
    assert result.stdout == "2026-01-01T00:00:00.000000Z  m-1  confirmed          b\\x1b  n=1\n"
    path, headers = feed.asked[0]
    assert headers["accept"] == "text/event-stream"
    for part in ("kind=dead%2Cconfirmed", "bridge=e%26st", "follow=false", "position=%7B%7D", "since=2026-01-01T00"):
        assert part in path


def test_a_gateway_that_shuts_down_is_waited_for(run: Run, feed: Feed) -> None:
    feed.cuts = [100]
    feed.answers = {1: (503, {"code": "overloaded", "detail": "shutting down"})}
    result = run("tail", "--url", f"http://127.0.0.1:{feed.server_port}", "--json", "--count", "3")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3
    assert "shutting down" in result.stderr


@pytest.mark.parametrize(("place", "status", "expected"), [(0, 503, 5), (0, 401, 4), (1, 403, 4), (1, 422, 4)])
def test_what_it_does_not_come_back_from(run: Run, feed: Feed, place: int, status: int, expected: int) -> None:
    feed.cuts = [100]
    feed.answers = {place: (status, {"code": "some", "detail": "because"})}
    result = run("tail", "--url", f"http://127.0.0.1:{feed.server_port}")
    assert result.exit_code == expected
    assert "because [some]" in result.stderr


def test_nobody_is_there(run: Run) -> None:
    result = run("tail", "--url", "http://127.0.0.1:9")
    assert result.exit_code == commands.UNREACHABLE
    assert "gateway serve" in result.stderr


def test_a_stream_that_ends_before_it_begins(run: Run, feed: Feed) -> None:
    feed.cuts = [5]
    result = run("tail", "--url", f"http://127.0.0.1:{feed.server_port}")
    assert result.exit_code == commands.UNREACHABLE


def test_what_there_is_and_no_more(run: Run, feed: Feed) -> None:
    result = run("tail", "--url", f"http://127.0.0.1:{feed.server_port}", "--no-follow", "--json")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == TOTAL


def test_it_follows_a_gateway_that_runs(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_URL", gateway)
    assert run("queues", "declare", "local-0-10", "tailed").exit_code == 0
    id = run("publish", "local-0-10", "amq.default", "tailed", "x").stdout.strip()
    result = run("tail", "--message", id, "--all", "--count", "2")
    assert [line.split()[1:3] for line in result.stdout.splitlines()] == [[id, "accepted"], [id, "confirmed"]]
