"""Where a run was made: what stands above its table."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from shutil import which

from gateway import __version__
from tests.benchmarks import golang

PEERS = ("pika", "amqp", "aio-pika", "aiormq", "pamqp")
PARTS = ("uvloop", "httptools", "msgspec", "sqlalchemy", "psycopg")


def processor() -> str:
    """The model of the processor."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def load() -> str:
    """Load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def go_version() -> str:
    """Of the Go and of its client, as it is pinned."""
    go = which("go")
    if go is None:
        return "not installed"
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()
    pinned = (golang.SOURCES / "go.mod").read_text().partition("amqp091-go ")[2].split()[0]
    return f"{said}, amqp091-go {pinned}"


def header(command: Sequence[str]) -> Iterator[str]:
    """The lines above the table. Versions of brokers are known once they run: see :func:`brokers`."""
    yield f"command   {' '.join(command)}"
    yield f"begun     {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC, load average {load()}"
    yield f"machine   {os.cpu_count()} × {processor()}, {platform.system()} {platform.release()}"
    yield (
        f"gateway   {__version__} on {platform.python_implementation()} {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in PARTS)
        + f", SQLite {sqlite3.sqlite_version}"
    )


def peers() -> str:
    """One line: who we are compared with."""
    return "peers     " + ", ".join([*(f"{name} {version(name)}" for name in PEERS), f"Go {go_version()}"])


def brokers(names: Sequence[str]) -> str:
    """One line: the servers of the run."""
    return f"servers   {', '.join(names) or 'none'}"
