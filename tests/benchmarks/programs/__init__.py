"""What runs in a process of its own: ``python -m tests.benchmarks.programs NAME JOB``.

``JOB`` is a JSON object; one JSON object comes back on the last line of the output. :data:`PROGRAMS` names them all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.rows import ClientFailed, Sample

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS: Mapping[str, str] = {
    "gateway": "our link: callbacks on its channel, uvloop; one basic.ack (0-10: an accept) per message",
    "pika": "SelectConnection, callbacks; one basic.ack per message",
    "amqp": "py-amqp: drain_events, callbacks; one basic.ack per message",
    "aiormq": "uvloop, as many coroutines as the window that publish; one basic.ack per message, not waited for",
    "aio_pika": "uvloop, as many coroutines as the window that publish; one message.ack() per message",
    "load": "HTTP requests, each answered before the next on its connection",
    "outbound": "POSTs to an endpoint: our transport, ours under httpx, or httpx as it comes",
    "endpoint": "the endpoint: takes any request, counts it and answers 200",
    "ledger": "writers of the ledger, each with one record on its way",
    "core": "our own layers one on top of the other, without HTTP",
    "holder": "opens connections and channels and holds them",
    "bridge": "the parts of a bridge, each by itself",
    "relay": "a TCP relay on uvloop",
    "short": "clients that connect, publish one message, wait for its confirm, and leave",
    "queues": "our link: publishes to many queues, and takes it all back",
}
"""Name -> what it does and how; module of this package with the function ``main``."""
TIMEOUT = 300.0
"""How long a program may take, in seconds."""


def environment() -> dict[str, str]:
    """This process's, without settings of a gateway."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}


def call(command: Sequence[str | Path], job: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Run a program and return what it said.

    Raises:
        ClientFailed: it ended with another status than 0, or not in time.
    """
    try:
        done = subprocess.run(
            [*map(str, command), json.dumps(job)],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"{name} did not end within {TIMEOUT:.0f} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise ClientFailed(f"{name} ended with status {done.returncode}: {said[:400]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return answer


def run(name: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run one of :data:`PROGRAMS`. Raises ClientFailed."""
    return call([sys.executable, "-m", "tests.benchmarks.programs", name], job, name)


def samples(answer: Mapping[str, Any]) -> dict[str, Sample]:
    """What a client of AMQP answers: its samples by work, and its memory at its largest."""
    memory = answer["memory"]
    return {work: Sample(memory=memory, **values) for work, values in answer["works"].items()}
