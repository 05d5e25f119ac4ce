"""``gateway probe``: what the far end speaks, in a table and in the exit status."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway import commands
from gateway.commands.client import ApiClient
from gateway.commands.probe import _with_password
from gateway.versions import VERSION_NAMES
from tests.commands.conftest import Run


@pytest.fixture
def broker(gateway: str) -> str:
    """Host and port of the embedded broker of the gateway that runs."""
    port: int = ApiClient(gateway, None).ask("GET", "/v1/brokers/local-0-8")["port"]
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
        *([name, "yes"] for name in VERSION_NAMES),
    ]


def test_as_json(run: Run, broker: str) -> None:
    found = json.loads(run("probe", f"amqp://{broker}", "--json").stdout)
    assert found["versions"] == list(VERSION_NAMES)
    assert {attempt["speaks"] for attempt in found["attempts"]} == {True}


def test_a_broker_that_will_not_have_us(run: Run, broker: str) -> None:
    result = run("probe", f"amqp://guest:wrong@{broker}", "--timeout", "3")
    assert result.exit_code == commands.REFUSED
    assert "wrong" not in result.stdout
    assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == ["no"] * len(VERSION_NAMES)


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


@pytest.mark.parametrize("way", ["file", "stdin", "variable", "url"])
def test_where_the_password_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    file = tmp_path / "password"
    file.write_text("wr/ng@\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"wr/ng@\nmore\n")))
    url, wanted = "amqp://shop@here:5672/vhost", "amqp://shop:wr%2Fng%40@here:5672/vhost"
    found = {
        "file": lambda: _with_password(url, str(file), ""),
        "stdin": lambda: _with_password(url, "-", ""),
        "variable": lambda: _with_password(url, None, "wr/ng@"),
        "url": lambda: _with_password(wanted, None, ""),
    }[way]()
    assert found == wanted
    said = capsys.readouterr().err
    assert ("visible in the process list" in said) == (way == "url")
    assert "wr" not in said


def test_the_password_of_the_file_counts(run: Run, broker: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("guest\n", encoding="utf-8")
    result = run("probe", f"amqp://guest:wrong@{broker}", "--password-file", str(file))
    assert (result.exit_code, "visible" in result.stderr) == (commands.DONE, False)


def test_you_are_asked_for_it(run: Run, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("gateway.commands.probe.sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("gateway.commands.probe.click.prompt", lambda text, **options: asked.append(text) or "guest")
    url = _with_password(f"amqp://guest@{broker}", None, "")
    assert (asked, url) == (["Password"], f"amqp://guest:guest@{broker}")
    assert _with_password(f"amqp://{broker}", None, "") == f"amqp://{broker}", "guest, as brokers come"


def test_no_password_in_the_process_list() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://shop:hunter2%2F@127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "gateway", "probe", url, "--timeout", "20"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            silent.settimeout(60)
            connection, _ = silent.accept()  # it has begun, and waits
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            connection.close()
            process.kill()
            assert process.stderr is not None
            said = process.stderr.read().decode()
    assert b"amqp://shop:xxxxxxxxxx@127.0.0.1" in shown
    assert b"hunter2" not in shown
    assert "visible in the process list" in said
    assert "hunter2" not in said
