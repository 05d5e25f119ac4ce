"""``gateway probe``: what the far end speaks, in a table and in the exit status."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from gateway import commands
from gateway.commands.client import Client
from tests.commands.conftest import Run


@pytest.fixture
def broker(gateway: str) -> str:
    """Host and port of the embedded broker of the gateway that runs."""
    port: int = Client(gateway, None).ask("GET", "/v1/brokers/local-0-8")["port"]
    return f"127.0.0.1:{port}"


@pytest.fixture
def babbler() -> Iterator[str]:
    """Host and port of a server that is no broker."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_the_embedded_broker_speaks_all_versions(run: Run, broker: str) -> None:
    result = run("probe", f"amqp://{broker}")
    assert result.exit_code == commands.DONE
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["VERSION", "SPEAKS"],
        ["0-8", "yes"],
        ["0-9-1", "yes"],
        ["0-10", "yes"],
    ]


def test_as_json(run: Run, broker: str) -> None:
    found = json.loads(run("probe", f"amqp://{broker}", "--json").stdout)
    assert found["versions"] == ["0-8", "0-9-1", "0-10"]
    assert {attempt["speaks"] for attempt in found["attempts"]} == {True}


def test_a_broker_that_will_not_have_us(run: Run, broker: str) -> None:
    result = run("probe", f"amqp://guest:wrong@{broker}", "--timeout", "3")
    assert result.exit_code == commands.REFUSED
    assert "wrong" not in result.stdout
    assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == ["no", "no", "no"]


def test_what_is_no_broker(run: Run, babbler: str) -> None:
    assert run("probe", f"amqp://{babbler}", "--timeout", "3").exit_code == commands.UNREACHABLE


def test_nobody_is_there(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = run("probe", f"amqp://127.0.0.1:{taken.getsockname()[1]}", "--timeout", "3")
    assert result.exit_code == commands.UNREACHABLE


def test_a_url_that_is_none(run: Run) -> None:
    result = run("probe", "http://guest:secret@127.0.0.1")
    assert result.exit_code == commands.USAGE
    assert "secret" not in result.stderr
