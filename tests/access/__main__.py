"""``python -m tests.access``: callers that are slow, silent or endless, in full, against a gateway as a process.

``slow``: 1,000 that say nothing, 1,000 with half a head and 100 with half a body, of which half drip an octet ten times
a second, from a process of their own (``attack``), on the quickest loop there is, since it shares the processors with
what is measured. In turn with them and without, others are served: how long each of theirs took, as p99, and when the
slow ones were cut off. ``body``: a chunked body of a gibioctet, to a route that takes 64 MiB; how much memory that
took.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import httpx
import uvloop

from tests.access.test_slow_callers import HALF_BODY, HALF_HEAD, Caller
from tests.faults.harness import GatewayProcess
from tests.ledgers import sqlite_ledger
from tests.servers.process import ROOT, free_port

SLOW = (
    (b"", False, 1_000),
    (HALF_HEAD, False, 500),
    (HALF_HEAD, True, 500),
    (HALF_BODY, False, 50),
    (HALF_BODY, True, 50),
)
"""What they say at once, whether they drip, and how many there are."""
LATEST = 15.0
"""When all of them must be cut off, in seconds."""
RATIO = 1.5
"""How much longer p99 may be beside them; of the medians."""
GROWTH = 64 << 20
"""How much memory may grow, in octets: what a body may have, and is discarded as it comes."""


@contextmanager
def gateway() -> Iterator[GatewayProcess]:
    """A gateway with its embedded broker, as long as the block."""
    with tempfile.TemporaryDirectory(prefix="gateway-access-") as name:
        folder = Path(name)
        sqlite_ledger(folder / "data")
        tables = {"data_dir": str(folder / "data"), "embedded": {"enabled": True, "port": free_port()}}
        process = GatewayProcess(folder, tables)
        process.start()
        try:
            yield process
            process.terminate()
        finally:
            process.close()


async def served(port: int, seconds: float) -> list[float]:
    """How long each request of five callers took, in seconds."""
    took: list[float] = []
    end = monotonic() + seconds

    async def call() -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            while (began := monotonic()) < end:
                (await client.get("/v1/brokers")).raise_for_status()
                took.append(monotonic() - began)
                await asyncio.sleep(0.005)

    await asyncio.gather(*(call() for _ in range(5)))
    return took


async def attack(port: int) -> int:
    """Be all of the slow ones, when a line comes; print after how many seconds the last was cut off."""
    callers = [Caller(said, drips) for said, drips, count in SLOW for _ in range(count)]
    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(caller.call(port) for caller in callers))
    print(max(caller.seconds for caller in callers))
    return 0


async def slow(port: int, rounds: int) -> int:
    """Print a line for each round; the exit status."""
    alone, beside, latest = [], [], 0.0
    command = [sys.executable, "-m", "tests.access", "attack", "--port", str(port)]
    for number in range(rounds):
        alone.append(statistics.quantiles(await served(port, 12), n=100)[98])
        pipe = asyncio.subprocess.PIPE
        attacker = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        await attacker.stdout.readline()  # that a process starts beside them is not what is measured
        attacker.stdin.write(b"\n")
        beside.append(statistics.quantiles(await served(port, 12), n=100)[98])
        said, _ = await attacker.communicate()
        latest = max(latest, float(said))
        took = alone[-1] * 1e3, beside[-1] * 1e3
        print(f"round {number + 1}: p99 alone {took[0]:.1f} ms, beside them {took[1]:.1f} ms", flush=True)
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"ratio of medians {ratio:.2f} (at most {RATIO}), the last cut off after {latest:.1f} s (at most {LATEST})")
    return 0 if ratio < RATIO and latest < LATEST else 1


async def body(process: GatewayProcess, octets: int) -> int:
    """Send a body without an end; the exit status."""
    assert process.process is not None
    statm = Path(f"/proc/{process.process.pid}/statm")
    resident = lambda: int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")  # noqa: E731
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    writer.write(HALF_BODY.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    before = most = resident()
    sent = 0
    said = b""
    try:
        while sent < octets:
            writer.write(chunk)
            await writer.drain()
            most, sent = max(most, resident()), sent + 65_536
        said = await reader.read()
    except ConnectionError:
        said = bytes(reader._buffer)  # type: ignore[attr-defined]  # what came before the end
    writer.close()
    most = max(most, resident())
    status = said.split(b" ")[1].decode() if b" " in said else "the connection was closed"
    print(f"{sent >> 20} MiB sent, {status}; resident memory {before >> 20} MiB before, {most >> 20} MiB at most")
    return 0 if sent < octets and most - before < 2 * GROWTH else 1


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.access", description="Slow, silent and endless callers.")
    parser.add_argument("what", choices=("slow", "body", "attack"))
    parser.add_argument("--rounds", type=int, default=5, help="of slow (5)")
    parser.add_argument("--octets", type=int, default=1 << 30, help="of body (1 GiB)")
    parser.add_argument("--port", type=int, default=0, help="of attack")
    options = parser.parse_args()
    if options.what == "attack":
        return uvloop.run(attack(options.port))
    with gateway() as process:
        if options.what == "slow":
            return uvloop.run(slow(process.port, options.rounds))
        return asyncio.run(body(process, options.octets))


if __name__ == "__main__":
    sys.exit(main())
