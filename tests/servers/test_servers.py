"""The servers themselves: that they are what the other tests take them for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import BrokerJ, PostgreSQL, RabbitMQ
from tests.servers.process import ROOT, State, alive

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


def test_rabbitmq_has_its_plugins(rabbitmq: RabbitMQ, unique_name: Callable[[str], str]) -> None:
    name = unique_name("plugins")
    rabbitmq.api("PUT", f"queues/%2F/{name}", {"durable": True})
    assert rabbitmq.queue_depth(name) == 0
    assert name in rabbitmq.queues()
    rabbitmq.delete_queue(name)
    assert name not in rabbitmq.queues()
    assert rabbitmq.api("GET", "parameters/shovel") == []


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
