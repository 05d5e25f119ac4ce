"""A gateway with something of everything in it, and schemathesis, which asks it all that its document allows, and more.

The gateway runs as a process, with its embedded broker and keys; an HTTP server of the test's own takes what it
pushes. All its secrets are one that is looked for in whatever it says (:mod:`tests.canary`). What is there at the
beginning is what the examples of the document name, so that each operation has something to work on.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import httpx

from tests import canary
from tests.faults.harness import GatewayProcess
from tests.ledgers import sqlite_ledger
from tests.servers.process import ROOT, free_port

KEY: Final = canary.CANARY
BROKER: Final = "local-0-9-1"
PHASES: Final = ("examples", "coverage", "fuzzing", "stateful")
COUNT: Final = re.compile(r'amqpgw_http_requests_total\{operation="(\w+)",status="(\d+)"\} (\S+)')
SECRET: Final = {"kind": "bearer", "secret": canary.CANARY}
CONFIG: Final = Path(__file__).with_name("schemathesis.toml")


@dataclass(frozen=True)
class Report:
    """What a run found."""

    status: int
    """Of schemathesis: 0, nothing failed."""
    said: str
    """What it printed."""
    sightings: list[str]
    """Where an answer had a secret in it (:mod:`tests.canary`)."""


@contextmanager
def gateway(folder: Path, receiver: str) -> Iterator[GatewayProcess]:
    """A gateway, as long as the block. ``receiver``: the URL of an endpoint of its configuration."""
    sqlite_ledger(folder / "data")
    tables: dict[str, Any] = {
        "data_dir": str(folder / "data"),
        "embedded": {"enabled": True, "port": free_port(), "users": [{"name": "guest", "password": canary.CANARY}]},
        "endpoints": {"fixed": {"url": receiver, "paused": True, "auth": SECRET}},
        "api_keys": [{"name": "contract", "key": KEY, "scopes": ["admin"]}],
        "outbound": {"allow": ["127.0.0.1/32"]},
        "log_level": "error",
    }
    process = GatewayProcess(folder, {})
    tables |= {"http": {"port": process.port}, "ops": {"port": process.ops_port}}
    process.config = folder / "gateway.json"
    process.config.write_text(json.dumps(tables))
    process.start()
    try:
        yield process
        process.terminate()
    finally:
        process.close()


class Receiver(BaseHTTPRequestHandler):
    """Takes whatever is pushed, and allows it beforehand."""

    def do_POST(self) -> None:
        """Thank you."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.send_header("webhook-allowed-origin", self.headers.get("webhook-request-origin", ""))
        self.end_headers()

    do_OPTIONS = do_POST  # noqa: N815  # the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def receiving() -> Iterator[str]:
    """The URL of a server that takes what is pushed, as long as the block."""
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook"
        finally:
            server.shutdown()
            thread.join()


def furnish(port: int, receiver: str) -> None:
    """Put into a gateway what the examples of its document name. It may be done again: what has gone comes back."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", headers={"x-api-key": KEY}, timeout=10) as client:

        def ask(method: str, path: str, body: Any = None) -> Any:
            answer = client.request(method, path, json=body)
            assert answer.status_code in (200, 201, 202, 409, 412, 428), (method, path, answer.status_code, answer.text)
            return answer.json()

        queues = f"/brokers/{BROKER}/queues"
        ask("PUT", f"{queues}/orders", {})
        ask("PUT", f"{queues}/copies", {})
        ask("PUT", f"/brokers/{BROKER}/exchanges/events", {"type": "topic"})
        for number in range(5):
            ask("POST", f"/brokers/{BROKER}/exchanges/amq.default:publish",
                {"routing_key": "orders", "payload": str(number)})  # fmt: skip
        ask("PUT", "/subscriptions/billing", {"broker": BROKER, "queue": "orders", "lease": "ledger"})
        ask("PUT", "/endpoints/shop", {"url": receiver, "paused": True, "auth": SECRET})
        bridge = {"source": {"broker": BROKER, "queue": "copies"}, "target": {"broker": "local-0-10"}}
        ask("PUT", "/bridges/copy", {**bridge, "paused": True})
        ask("PUT", "/taps/audit", {"broker": BROKER, "queue": "copies", "paused": True})


def schemathesis(
    port: int, folder: Path, *, phases: Sequence[str] = PHASES, examples: int, seconds: int = 0, seed: int = 0,
    more: Sequence[str] = (),
) -> Report:  # fmt: skip
    """Run it: ``examples`` of each operation for each phase that invents some; ``seconds`` in all, 0: no limit."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "--no-color", "run",
        f"http://127.0.0.1:{port}/openapi.json", "--header", f"X-Api-Key: {KEY}",
        "--phases", ",".join(phases), "--max-examples", str(examples), "--no-shrink", "--continue-on-failure",
        "--checks", "all", *(["--seed", str(seed)] if seed else []), *(["--max-time", str(seconds)] if seconds else []),
        *more,
    ]  # fmt: skip
    seen = folder / "canary"
    environ = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.contract.hooks", "PYTHONPATH": str(ROOT)}
    environ[canary.VARIABLE] = str(seen)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    sightings = seen.read_text().splitlines() if seen.exists() else []
    return Report(done.returncode, done.stdout + done.stderr, sightings)


def answered(process: GatewayProcess) -> dict[str, dict[int, int]]:
    """Operation -> status -> how often the gateway answered so, as its own metrics say."""
    page = process.get_ops("/metrics")
    assert page is not None
    found: dict[str, dict[int, int]] = {}
    for operation, status, count in COUNT.findall(page[1]):
        found.setdefault(operation, {})[int(status)] = int(float(count))
    return found


def operations(process: GatewayProcess) -> set[str]:
    """Every operation of the document that the gateway serves."""
    paths = httpx.get(f"http://127.0.0.1:{process.port}/openapi.json").json()["paths"]
    return {operation["operationId"] for item in paths.values() for operation in item.values()}


def unserved(process: GatewayProcess) -> set[str]:
    """Operations of the document that nobody has asked for, or that were only away (503)."""
    return operations(process) - {name for name, statuses in answered(process).items() if statuses.keys() - {503}}
