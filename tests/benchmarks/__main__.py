"""``python -m tests.benchmarks``: run them all, print the table. ``--quick`` shows that they work, not how fast."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from gateway.commands.demo import wait_for_ports
from tests.benchmarks import ours, theirs
from tests.benchmarks.codec import codec
from tests.benchmarks.measure import ROUNDS, Measured, best, table
from tests.servers import VARIABLE, RabbitMQ, started
from tests.servers.process import State

Client = Callable[[str, str, bytes, int, int, int], tuple[Measured, Measured]]

BODY = b"x" * 256
WINDOW = 500
"""Publishes without a confirm, and deliveries without an acknowledgement."""
ACK_EVERY = 50
NUMBER = 20_000


@contextmanager
def embedded() -> Iterator[str]:
    """URL of the embedded broker of a gateway in a process of its own."""
    with TemporaryDirectory(prefix="gateway-bench-") as name:
        ports = Path(name) / "ports.json"
        command = [sys.executable, "-m", "gateway", "serve", "--data-dir", name, "--ports-file", str(ports)]
        command += ["--http-port", "0", "--ops-port", "0", "--amqp-port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            yield f"amqp://guest:guest@127.0.0.1:{wait_for_ports(process, ports)['amqp']}/%2F"
        finally:
            process.terminate()
            process.wait()


@contextmanager
def rabbitmq() -> Iterator[str]:
    """URL of a RabbitMQ: the one that runs for the tests, or a private one."""
    shared = os.environ.get(VARIABLE)
    if shared:
        state = State.from_json(json.loads(Path(shared).read_text())["rabbitmq"])
        yield RabbitMQ(state).url("0-9-1").partition("?")[0]
        return
    with started(RabbitMQ()) as server:
        yield server.url("0-9-1").partition("?")[0]


def links(broker: str, url: str, number: int) -> Iterator[Measured]:
    """Our link and pika on one broker, turn and turn about; the best round of each."""
    clients: tuple[tuple[Client, str], ...] = ((ours.run, url + "?version=0-9-1"), (theirs.run, url))
    found: dict[tuple[str, str], list[Measured]] = {}
    for _ in range(ROUNDS):
        for client, where in clients:
            rows = client(where, f"bench-{uuid4().hex}", BODY, number, WINDOW, ACK_EVERY)
            for work, row in zip(("publish, confirmed", "consume, acknowledged"), rows, strict=True):
                found.setdefault((work, row.client), []).append(replace(row, work=f"{broker}: {work}"))
    for work in ("publish, confirmed", "consume, acknowledged"):
        for name in ("gateway", "pika"):
            yield best(found[work, name])


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages")
    number = 500 if parser.parse_args().quick else NUMBER
    rows = list(codec())
    for name, broker in (("embedded 0-9-1", embedded), ("RabbitMQ 0-9-1", rabbitmq)):
        with broker() as url:
            rows += links(name, url, number)
    print(f"{len(BODY)} octets, window {WINDOW}, one acknowledgement for {ACK_EVERY}, best of {ROUNDS} rounds\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
