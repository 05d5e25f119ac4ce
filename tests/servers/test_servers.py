"""The servers themselves: that they are what the other tests take them for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import BrokerJ, PostgreSQL, RabbitMQ, RabbitMQ40, RabbitMQ43, ServerUnavailable, process, started
from tests.servers.process import ROOT, State, alive, identify

pytestmark = pytest.mark.broker


def _rows(url: str) -> list[Any]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return connection.execute("SELECT n FROM t").fetchall()


def test_postgresql_keeps_what_was_committed_when_it_is_killed(private_server: Callable[[str], PostgreSQL]) -> None:
    server = private_server("postgresql")
    url = server.create_database()
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute("INSERT INTO t VALUES (1)")
    server.kill()
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        _rows(url)
    server.restart()
    assert _rows(url) == [(1,)]


def test_brokerj_keeps_a_durable_queue_when_it_is_killed(private_server: Callable[[str], BrokerJ]) -> None:
    server = private_server("brokerj")
    server.create_queue("kept", durable=True)
    server.create_queue("forgotten", "memory", durable=True)
    server.kill()
    server.restart()
    assert server.queues() == {"kept"}
    assert server.queues("memory") == set()
    server.delete_queue("kept")
    assert server.queues() == set()


def test_two_processes_are_never_given_the_same_port() -> None:
    """Nobody listens on these ports yet: each process knows of its own choices only."""
    text = "from tests.servers.process import free_port; print([free_port() for _ in range(1_000)]); input()"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", text], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        found: list[int] = []
        for other in others:
            assert other.stdout is not None
            found += json.loads(other.stdout.readline())
    finally:
        for other in others:
            other.communicate("\n", timeout=30)
    assert len(found) == len(set(found)) == 3_000


def test_rabbitmq_has_its_plugins(rabbitmq: RabbitMQ, unique_name: Callable[[str], str]) -> None:
    name = unique_name("plugins")
    rabbitmq.api("PUT", f"queues/%2F/{name}", {"durable": True})
    assert rabbitmq.queue_depth(name) == 0
    assert name in rabbitmq.queues()
    rabbitmq.delete_queue(name)
    assert name not in rabbitmq.queues()
    assert rabbitmq.api("GET", "parameters/shovel") == []


@pytest.mark.parametrize(("kind", "line"), [("rabbitmq-4.0", (4, 0)), ("rabbitmq-4.3", (4, 3))])
def test_rabbitmq_4_has_its_plugins_and_denies_transient_queues(
    private_server: Callable[[str], RabbitMQ], kind: str, line: tuple[int, int]
) -> None:
    server = private_server(kind)
    assert server.release[:2] >= line
    server.api("PUT", "queues/%2F/kept", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    assert server.api("GET", "parameters/shovel") == []
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.api("PUT", "queues/%2F/transient", {"durable": False})
    assert b"transient_nonexcl_queues" in refused.value.read()
    server.kill()
    server.restart()
    assert server.queues() == {"kept"}
    assert server.queue_depth("kept") == 0
    server.delete_queue("kept")


def test_two_instances_share_one_unpacked_folder(private_server: Callable[[str], RabbitMQ]) -> None:
    with started(RabbitMQ40()) as other:
        other.api("PUT", "queues/%2F/mine", {"durable": True})
        server = private_server("rabbitmq-4.0")
        assert "mine" not in server.queues()
        assert server.pid != other.pid


def test_a_variable_names_a_running_server(
    private_server: Callable[[str], RabbitMQ], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = private_server("rabbitmq-4.0")
    address = f"localhost:{server.port},{server.state.ports['management']}"
    monkeypatch.setenv("GATEWAY_TEST_RABBITMQ_40", address)
    state = RabbitMQ40.elsewhere()
    assert state is not None
    named = RabbitMQ40(state)
    assert named.url() == server.url()
    assert named.release == server.release
    with pytest.raises(ServerUnavailable, match="GATEWAY_TEST_RABBITMQ_40 names a running server, and this test needs"):
        named.ctl("status")
    with pytest.raises(ServerUnavailable, match="GATEWAY_TEST_RABBITMQ_40 names a running server"):
        RabbitMQ40()


@pytest.mark.parametrize("named", ["/nowhere/at/all", "127.0.0.1:1", "127.0.0.1:70000", "broker.example:5672"])
def test_a_variable_that_names_nothing(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("GATEWAY_TEST_RABBITMQ_43", named)
    with pytest.raises(ServerUnavailable, match="GATEWAY_TEST_RABBITMQ_43") as said:
        _ = RabbitMQ43.elsewhere() or RabbitMQ43()
    assert named in str(said.value)
    assert str(said.value).count("\n") == 0


LEAVES = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from tests.servers import KINDS
server = KINDS[sys.argv[2]]().start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["postgresql", "rabbitmq-4.0"])
def test_what_a_killed_run_left_is_ended_by_the_next(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="leftovers-") as place:  # not below pytest's, which nobody else may enter
        Path(place).chmod(0o755)
        _left_and_ended(Path(place), monkeypatch, kind)


def _left_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(tmp_path), kind], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    server = identify(int(done.stdout))
    (folder,) = tmp_path.glob("gateway-*")
    assert alive(server)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process.end_leftovers.cache_clear()
    process.end_leftovers()
    assert not alive(server)
    assert not folder.exists()
    assert not [each for each in os.listdir("/proc") if each.isdigit() and str(folder) in _command_line(each)]


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_one_process_starts_and_another_ends_them(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    command = [sys.executable, "-m", "tests.servers"]
    subprocess.run([*command, "up", "--only", "postgresql", "--file", file], cwd=ROOT, check=True)
    state = State.from_json(json.loads(file.read_text())["postgresql"])
    attached = PostgreSQL(state)
    assert attached.running
    assert attached.create_database()
    with pytest.raises(RuntimeError, match="shared"):
        attached.kill()
    subprocess.run([*command, "down", "--file", file], cwd=ROOT, check=True)
    assert not file.exists()
    assert not alive(state.processes["server"])
    assert not Path(state.folder).exists()


def test_the_installation_is_complete_and_needs_nothing_of_the_home_folder() -> None:
    """Run again, it finds that there is nothing to do, and says nothing."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            ["sh", "tests/servers/install.sh"],
            cwd=ROOT,
            env={"HOME": home, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
    assert (done.stdout, done.stderr) == ("", "")
