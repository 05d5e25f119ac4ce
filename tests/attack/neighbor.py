"""A client that shares the gateway with an attacker, in a process of its own, and measures how long it waits.

It asks ``/livez``, publishes and pulls a small message over HTTP, and publishes and gets one over AMQP, in turn, as
long as it runs. On a machine with other work a wait by the clock says little about the gateway. So two waits are
measured. One is the work that a request waited for: the time that a processor worked for gateway and neighbor, as long
as it would take on an idle machine (:mod:`tests.pace`). The other is by the clock, for other things that a request may
wait for. The time in which the scheduler kept threads of gateway or neighbor from a processor
(``/proc/PID/task/*/schedstat``) is taken off both: the attacker works on the same machine.

A line on its standard input asks for what it has measured since the last one: it answers with a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Confirmed,
    DeclareQueue,
    Done,
    Get,
    Got,
    OpenChannel,
    Opened,
    Operation,
    Publish,
    SelectConfirm,
)
from gateway.session import ClientConfig
from gateway.v091.version import V0_9_1
from tests.attack.judge import Waits
from tests.pace import pace
from tests.pair import client_session
from tests.servers.process import HOST, ROOT

PAUSE: Final = 0.01
"""Between two requests, in seconds."""
GIVE_UP: Final = 20.0
"""How long a request may take, in seconds."""
QUEUE: Final = "neighbor"
"""Its queue, and the name and password of its user of the embedded broker: it shares no budget with an attacker."""
FAILURES_SHOWN: Final = 3
PACES: Final = 3
"""How often the pace of the machine is taken."""


def worked(pid: int) -> float:
    """Return how long processors worked for a process, in seconds since its start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def delayed(pid: int) -> float:
    """Return how long the threads of a process could run and had no processor, all together, in seconds since their
    start. A request waits for more than one of them: the loop, and the thread that writes the ledger."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int(path.read_text().split()[1])
    return total / 1e9


class _Amqp:
    """A client of 0-9-1 on a socket that blocks."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), GIVE_UP)
        config = ClientConfig(
            user=QUEUE, password=QUEUE, secure=True, random_octets=os.urandom, wall_clock=time.time, heartbeat=0
        )
        self._session = client_session(V0_9_1, config)
        self._heard: list[Operation] = []
        self.hear(Opened)
        self.ask(OpenChannel(1), Done)
        self.ask(SelectConfirm(1), Done)

    def ask(self, operation: Operation, *kinds: type[Operation]) -> Operation:
        """Send an operation and read until an answer of one of these kinds."""
        self._session.send(operation, time.monotonic())
        return self.hear(*kinds)

    def hear(self, *kinds: type[Operation]) -> Operation:
        """Read until there is something of these kinds.

        Raises:
            ConnectionError: the connection is over.
        """
        while True:
            for index, operation in enumerate(self._heard):
                if isinstance(operation, kinds):
                    del self._heard[: index + 1]
                    return operation
            if octets := b"".join(self._session.data_to_send()):
                self._socket.sendall(octets)
            octets = self._socket.recv(1 << 16)
            if not octets:
                raise ConnectionError("the broker hung up")
            self._heard += self._session.receive_data(octets, time.monotonic())


class _Caller:
    """What the neighbor does, each as a function without arguments."""

    def __init__(self, ports: tuple[int, int, int], key: str) -> None:
        http, ops, amqp = ports
        self._ports = {"http": http, "ops": ops}
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._connections: dict[str, HTTPConnection] = {}
        self._amqp_port = amqp
        self._amqp: _Amqp | None = None

    def steps(self) -> dict[str, Callable[[], None]]:
        """Name -> what it does."""
        found = {"GET /livez": self.live, ":publish": self.publish, ":pull": self.pull}
        return found | ({"basic.publish": self.amqp_publish, "basic.get": self.amqp_get} if self._amqp_port else {})

    def live(self) -> None:
        self._ask("ops", "GET", "/livez")

    def publish(self) -> None:
        path = "/v1/brokers/local-0-9-1/exchanges/amq.default:publish"
        self._ask("http", "POST", path, {"routing_key": QUEUE, "payload": "hello"})

    def pull(self) -> None:
        found = self._ask("http", "POST", f"/v1/subscriptions/{QUEUE}:pull", {"max_messages": 10, "wait": 0})
        ids = [message["ack_id"] for message in found["messages"]]
        if ids:
            self._ask("http", "POST", f"/v1/subscriptions/{QUEUE}:acknowledge", {"ack_ids": ids})

    def amqp_publish(self) -> None:
        self._broker(Publish(1, "", f"{QUEUE}-amqp", Message(b"hello", Properties())), Confirmed)

    def amqp_get(self) -> None:
        found = self._broker(Get(1, f"{QUEUE}-amqp", no_ack=True), Operation)
        if not isinstance(found, Got):
            raise RuntimeError(f"basic.get was answered by {type(found).__name__}")

    def _broker(self, operation: Operation, *kinds: type[Operation]) -> Operation:
        try:
            if self._amqp is None:
                self._amqp = _Amqp(self._amqp_port)
                self._amqp.ask(DeclareQueue(1, f"{QUEUE}-amqp"), Operation)
            return self._amqp.ask(operation, *kinds)
        except BaseException:
            self._amqp = None
            raise

    def _ask(self, name: str, method: str, path: str, body: Any = None) -> Any:
        connection = self._connections.get(name)
        if connection is None:
            connection = self._connections[name] = HTTPConnection(HOST, self._ports[name], timeout=GIVE_UP)
        try:
            try:
                connection.request(method, path, None if body is None else json.dumps(body), self._headers)
                answer = connection.getresponse()
            except (OSError, HTTPException):  # it was idle for too long
                connection.close()
                connection.request(method, path, None if body is None else json.dumps(body), self._headers)
                answer = connection.getresponse()
            said = answer.read()
        except BaseException:
            connection.close()
            raise
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status} {said[:200].decode(errors='replace')}")
        return json.loads(said) if said[:1] in (b"{", b"[") else None


def _work(ports: tuple[int, int, int], pid: int, key: str) -> None:
    """Measure until the standard input ends."""
    caller = _Caller(ports, key)
    steps = caller.steps()
    own = os.getpid()
    count, worst, what, longest, failures = 0, 0.0, "", 0.0, []
    print("ready", flush=True)
    while True:
        for name, step in steps.items():
            kept, work = delayed(pid) + delayed(own), worked(pid) + time.process_time()
            began = time.monotonic()
            try:
                step()
            except (OSError, HTTPException, RuntimeError) as error:
                failures.append(f"{name}: {type(error).__name__} {error}")
                time.sleep(0.1)
            waited = max(0.0, time.monotonic() - began - (delayed(pid) + delayed(own) - kept))
            work = min(waited, worked(pid) + time.process_time() - work)
            count += 1
            longest = max(longest, waited)
            if work > worst and (work := work / min(pace() for _ in range(PACES))) > worst:
                worst, what = work, name
            if select.select([sys.stdin], [], [], PAUSE)[0]:
                if not sys.stdin.readline():
                    return
                failed = failures[:FAILURES_SHOWN]
                said = {
                    "count": count,
                    "worst_ms": worst * 1e3,
                    "what": what,
                    "longest_ms": longest * 1e3,
                    "failures": failed,
                }
                print(json.dumps(said), flush=True)
                count, worst, what, longest, failures = 0, 0.0, "", 0.0, []


class Neighbor:
    """The process. The main thread of the caller asks it now and then."""

    def __init__(self, ports: tuple[int, int, int], pid: int, key: str) -> None:
        """
        Args:
            ports: of HTTP, operations and AMQP (0: none) of the gateway.
            pid: of the gateway.
            key: API key; empty: none.
        """
        command = [sys.executable, "-m", "tests.attack.neighbor", *map(str, ports), str(pid)]
        environ = {**os.environ, "ATTACK_NEIGHBOR_KEY": key}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read("ready")

    def _read(self, expected: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (expected and line != expected):
            raise RuntimeError("the neighbor ended: what it wrote to the standard error says why")
        return line

    def take(self) -> Waits:
        """Return what it has measured since this was asked last. It ends its request first."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._read())
        return Waits(**{**found, "failures": tuple(found["failures"])})

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


if __name__ == "__main__":
    http, ops, amqp, pid = map(int, sys.argv[1:5])
    _work((http, ops, amqp), pid, os.environ.get("ATTACK_NEIGHBOR_KEY", ""))
