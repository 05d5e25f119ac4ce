"""One run: how much is to be done, the servers that it needs, and a gateway of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

import psycopg

from gateway.commands.demo import wait_for_ports
from tests.benchmarks.programs import ROOT, environment
from tests.benchmarks.rows import say
from tests.servers import KINDS, BrokerJ, PostgreSQL, RabbitMQ, RabbitMQ310, Server, started
from tests.servers.process import State

_S = TypeVar("_S", bound=Server)

SIZE = 256
"""Octets of a message."""
WINDOW = 500
"""Publishes without a confirm, and deliveries without an acknowledgement, at most."""


@dataclass(frozen=True)
class Running:
    """A gateway that runs."""

    pid: int
    http: int
    amqp: int | None
    fronts: Mapping[str, int]
    """Front -> its port."""


class Bench:
    """A run. Servers are started when the first section asks for them, and ended with the run."""

    def __init__(
        self, *, quick: bool = False, ours: bool = False, rounds: int | None = None, servers: Path | None = None
    ) -> None:
        """``ours``: without the peers. ``servers``: a file of ``python -m tests.servers up`` to use."""
        self.quick = quick
        self.ours = ours
        self.rounds = rounds if rounds is not None else 1 if quick else 3
        self._shared = json.loads(servers.read_text()) if servers is not None else {}
        self._stack = ExitStack()

    def __enter__(self) -> Bench:
        name = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-bench-"))
        self.folder = Path(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def number(self, full: int, quick: int) -> int:
        """How many of something."""
        return quick if self.quick else full

    @cached_property
    def seconds(self) -> float:
        """How long to measure where time is what is given."""
        return 0.2 if self.quick else 2.0

    # ------------------------------------------------------------------------------------------ servers

    @cached_property
    def rabbitmq(self) -> RabbitMQ:
        """The RabbitMQ of the run, with its management API."""
        return self._server(RabbitMQ310)

    @cached_property
    def brokerj(self) -> BrokerJ:
        """The Broker-J of the run."""
        return self._server(BrokerJ)

    @cached_property
    def postgresql(self) -> PostgreSQL:
        """The PostgreSQL of the run; its commits wait for the disk."""
        server = PostgreSQL
        if server.kind in self._shared:
            return self._server(server)
        return self._server(server, durable=True)

    def versions(self) -> list[str]:
        """Product and version of the servers that were used."""
        found = []
        if "rabbitmq" in self.__dict__:
            overview = self.rabbitmq.api("GET", "overview")
            found.append(f"RabbitMQ {overview['rabbitmq_version']} (Erlang {overview['erlang_version']})")
        if "brokerj" in self.__dict__:
            found.append(f"Broker-J {self.brokerj.api('GET', 'broker')['productVersion']}")
        if "postgresql" in self.__dict__:
            with psycopg.connect(self.postgresql.url().replace("+psycopg", "")) as connection:
                number = connection.info.server_version
            found.append(f"PostgreSQL {number // 10_000}.{number % 10_000}")
        return found

    def _server(self, kind: type[_S], **settings: object) -> _S:
        if kind.kind in self._shared:
            return cast(_S, KINDS[kind.kind](State.from_json(self._shared[kind.kind])))
        say(f"starting {kind.kind}")
        server = kind()
        for name, value in settings.items():
            setattr(server, name, value)
        return self._stack.enter_context(started(server))

    # ------------------------------------------------------------------------------------------ gateway

    @contextmanager
    def gateway(self, brokers: Mapping[str, str] | None = None, settings: str = "") -> Iterator[Running]:
        """A gateway in a process of its own, with a SQLite ledger, and with these brokers (name -> URL) or, where
        there are none, with its embedded broker. ``settings`` is TOML, put behind them."""
        with tempfile.TemporaryDirectory(prefix="gateway-", dir=self.folder) as name:
            folder = Path(name)
            ports, log = folder / "ports.json", folder / "log"
            command = [sys.executable, "-m", "gateway", "serve", "--data-dir", str(folder / "data")]
            command += ["--http-port", "0", "--ops-port", "0", "--amqp-port", "0", "--ports-file", str(ports)]
            if brokers is not None:
                config = folder / "gateway.toml"
                tables = [f'[brokers.{each}]\nurl = "{url}"\n' for each, url in brokers.items()]
                config.write_text("".join([*tables, settings]))
                command += ["--config", str(config)]
            with log.open("wb") as output:
                process = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=output, stdout=output)
            try:
                found = wait_for_ports(process, ports)
                fronts = {name[6:]: port for name, port in found.items() if name.startswith("front ")}
                yield Running(process.pid, found["http"], found.get("amqp"), fronts)
            except BaseException:
                say(f"the gateway's log ends:\n{log.read_text(errors='replace')[-2000:]}")
                raise
            finally:
                process.terminate()
                process.wait()
