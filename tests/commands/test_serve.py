"""``gateway serve``: how it starts, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway import commands
from gateway.commands.client import ApiClient
from gateway.commands.demo import wait_for_ports
from gateway.config import LOCAL_BROKERS

ANY_PORT = ("--http-port", "0", "--ops-port", "0", "--amqp-port", "0")


def serve(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start ``gateway serve`` in an empty folder."""
    command = [sys.executable, "-m", "gateway", "serve", "--ports-file", os.fspath(folder / "ports.json"), *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_that_it_is_ready_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    process = serve(tmp_path, *ANY_PORT)
    ports = wait_for_ports(process, tmp_path / "ports.json")
    assert set(ports) == {"http", "ops", "amqp"}
    assert httpx.get(f"http://127.0.0.1:{ports['ops']}/readyz", trust_env=False).json()["ready"] is True
    brokers = ApiClient(f"http://127.0.0.1:{ports['http']}", None).ask("GET", "/v1/brokers")["brokers"]
    assert {broker["name"] for broker in brokers} == set(LOCAL_BROKERS)
    process.send_signal(number)
    out, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.decode().splitlines() == [
        f"ready: http http://127.0.0.1:{ports['http']} ops http://127.0.0.1:{ports['ops']} "
        f"amqp amqp://127.0.0.1:{ports['amqp']} console http://127.0.0.1:{ports['http']}/console"
    ]
    events = [json.loads(line)["event"] for line in log.decode().splitlines()]
    assert events[-1] == "gateway.stopped"
    assert (tmp_path / "gateway-data" / "ledger.db").exists()


def test_with_a_file_the_embedded_broker_runs_only_if_it_says_so(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text('[brokers.away]\nurl = "amqp://127.0.0.1:1"\n', encoding="utf-8")
    process = serve(tmp_path, "--config", os.fspath(config), *ANY_PORT)
    ports = wait_for_ports(process, tmp_path / "ports.json")
    brokers = ApiClient(f"http://127.0.0.1:{ports['http']}", None).ask("GET", "/v1/brokers")["brokers"]
    process.terminate()
    process.communicate(timeout=30)
    assert set(ports) == {"http", "ops"}
    assert [broker["name"] for broker in brokers] == ["away"]


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = serve(tmp_path, "--ops-port", "0", "--amqp-port", "0", "--http-port", port)
        _, log = process.communicate(timeout=30)
    assert process.returncode == commands.USAGE
    *_, said, holder = log.decode().splitlines()
    assert said == (
        f"gateway: http.port {port} on 127.0.0.1: Address already in use. "
        "Choose another one: --http-port, http.port or GATEWAY_HTTP_PORT"
    )
    assert f"(pid {os.getpid()}) has port {port}. Stop it, or take any free ports: --http-port 0" in holder


def test_a_ports_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "ports.json"
    process = serve(tmp_path, *ANY_PORT, "--ports-file", os.fspath(path))
    _, log = process.communicate(timeout=60)
    assert process.returncode == commands.USAGE
    assert log.decode().splitlines()[-1] == f"gateway: --ports-file {path}: No such file or directory"
    assert b"Traceback" not in log


def test_a_try_out_is_open_to_its_key_and_password_only(tmp_path: Path) -> None:
    process = serve(tmp_path, *ANY_PORT, "--try-out")
    ports = wait_for_ports(process, tmp_path / "ports.json")
    url = f"http://127.0.0.1:{ports['http']}"
    try:
        assert process.stdout is not None
        ready, key, password = (process.stdout.readline().decode().split() for _ in range(3))
        assert f"http://0.0.0.0:{ports['http']}" in ready
        assert httpx.get(f"{url}/v1/brokers", trust_env=False).status_code == 401
        client = ApiClient(url, key[-1])
        assert {broker["name"] for broker in client.ask("GET", "/v1/brokers")["brokers"]} == set(LOCAL_BROKERS)
        client.ask("PUT", "/v1/brokers/local-0-9-1/queues/hello", body={})
        body = {"routing_key": "hello", "payload": "hi"}
        assert client.ask("POST", "/v1/brokers/local-0-9-1/exchanges/amq.default:publish", body=body)["id"]
        for login, state in (((f"try-out:{password[-1]}"), True), ("guest:guest", False)):
            command = [sys.executable, "-m", "gateway", "probe", f"amqp://{login}@127.0.0.1:{ports['amqp']}/"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert (done.returncode == 0) is state, done.stdout + done.stderr
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_try_out_takes_no_file(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("")
    process = serve(tmp_path, "--config", os.fspath(config), "--try-out")
    _, log = process.communicate(timeout=60)
    assert process.returncode == commands.USAGE
    assert b"--try-out is for a gateway without --config" in log
