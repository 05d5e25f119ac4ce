"""A thousand endpoints of which half fail: what that costs the other half, measured.

``python -m tests.benchmarks.endpoints`` starts a gateway with a thousand pushed subscriptions, each with a queue and an
endpoint of its own, in a process of its own, as it is served, and one that plays the endpoints. Two kinds of runs
alternate: in one all endpoints are well, in the other half of them fail, each in one of four ways: nobody listens, 500,
no answer, 429. The load is the same in both. What is told is the time from the publish to the arrival at those
endpoints that are well in both: median and 99th percentile of each run, and the ratio of the medians of the latter.

Not part of ``make test``: it takes minutes, and measures time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop

from gateway.amqp.message import Message, Properties
from gateway.config import BrokerSettings
from gateway.upstreams import Upstream
from tests.benchmarks.bench import Bench
from tests.benchmarks.programs.clock import cpu_of

DEADLINE = 2.0
"""That of the endpoints, in seconds: how long one that does not answer holds a place."""
WAYS = ("refuse", "500", "hang", "429")


async def receive(file: Path) -> None:
    """Play the endpoints until SIGTERM comes. Prints the port, and writes a line for each message that came to one that
    is well: its number, when it was published, when it came."""
    got: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while line := await reader.readline():
                way = line.split(b"/")[1].decode()
                length = 0
                while (header := await reader.readline()) != b"\r\n":
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                if way == "hang":
                    await asyncio.sleep(10 * DEADLINE)
                elif way == "well":
                    got.append(f"{body.decode()} {time.monotonic():.6f}")
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                else:
                    more = b"retry-after: 5\r\n" if way == "429" else b""
                    writer.write(b"HTTP/1.1 %b X\r\n%bcontent-length: 0\r\n\r\n" % (way.encode(), more))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    file.write_text("\n".join(got))


@contextlib.asynccontextmanager
async def receivers(file: Path) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.endpoints", "--receive", str(file), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline()), process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def configuration(port: int, endpoints: int, failing: bool) -> str:
    """TOML, for a gateway with its embedded broker."""
    lines = ["embedded = { enabled = true }", 'outbound = { allow = ["127.0.0.1/32"] }']
    for number in range(endpoints):
        way = WAYS[number // 2 % len(WAYS)] if failing and number % 2 else "well"
        target = 9 if way == "refuse" else port
        lines += [
            f"[endpoints.e{number}]",
            f'url = "http://127.0.0.1:{target}/{way}/{number}"',
            'format = "raw"',
            f"deadline = {DEADLINE}",
            f"[subscriptions.s{number}]",
            f'broker = "local-0-9-1"\nqueue = "q{number}"\npush = "e{number}"',
        ]
    return "\n".join(lines)


async def consumed(broker: Upstream, endpoints: int) -> None:
    """Wait until the gateway consumes from all queues."""
    for number in range(endpoints):
        while not (await broker.query_queue(f"q{number}")).consumer_count:
            await asyncio.sleep(0.1)


async def play(
    bench: Bench, endpoints: int, rate: float, warm_up: float, seconds: float, failing: bool
) -> tuple[list[float], float]:
    """One run: the latencies, in seconds, sorted; and the part of a processor that the gateway, with its embedded
    broker, took."""
    with tempfile.TemporaryDirectory(prefix="gateway-endpoints-") as name:
        file = Path(name) / "got"
        async with receivers(file) as (port, process):
            with bench.gateway({}, configuration(port, endpoints, failing)) as gateway:
                settings = BrokerSettings(url=f"amqp://guest:guest@127.0.0.1:{gateway.amqp}/%2F?version=0-9-1")
                broker = Upstream("publisher", settings)
                await broker.start()
                try:
                    async with asyncio.timeout(60):
                        assert await broker.wait_up(20), broker.reason
                        for number in range(endpoints):
                            await broker.declare_queue(f"q{number}")
                        await consumed(broker, endpoints)
                    await asyncio.sleep(1.0)
                    begun, part = await publish(broker, gateway.pid, endpoints, rate, warm_up, seconds)
                    await asyncio.sleep(2.0)
                finally:
                    await broker.close()
            process.terminate()
            await process.wait()
        rows = file.read_text().splitlines()
    latencies = []
    for row in rows:
        which, published, came = row.split()
        if int(which) % 2 == 0 and float(published) >= begun + warm_up:
            latencies.append(float(came) - float(published))
    return sorted(latencies), part


async def publish(
    broker: Upstream, pid: int, endpoints: int, rate: float, warm_up: float, seconds: float
) -> tuple[float, float]:
    """To each queue in turn, at this rate. When it began, and the part of a processor that the gateway took."""
    begun = time.monotonic()
    sent = 0
    busy: tuple[float, float] | None = None
    while (now := time.monotonic()) < begun + warm_up + seconds:
        while sent < (now - begun) * rate:
            body = f"{sent % endpoints} {time.monotonic():.6f}".encode()
            future = broker.publish_nowait("", f"q{sent % endpoints}", Message(body, Properties()))
            future.add_done_callback(lambda done: done.result())
            sent += 1
        if busy is None and now >= begun + warm_up:
            busy = now, cpu_of(pid)
        await asyncio.sleep(0.005)
    assert busy is not None
    return begun, (cpu_of(pid) - busy[1]) / (time.monotonic() - busy[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--endpoints", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second, over all endpoints")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds that are not measured")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    options = parser.parse_args()
    if options.receive:
        uvloop.run(receive(options.receive))
        return
    p99: dict[bool, list[float]] = {False: [], True: []}
    with Bench() as bench:
        for number in range(options.runs):
            for failing in (False, True):
                work = play(bench, options.endpoints, options.rate, options.warm_up, options.seconds, failing)
                found, part = uvloop.run(work)
                p99[failing].append(found[int(0.99 * len(found))])
                what = "half of them fail" if failing else "all are well"
                print(
                    f"run {number + 1}, {what}: {len(found)} messages, median {statistics.median(found) * 1e3:.1f} ms, "
                    f"p99 {p99[failing][-1] * 1e3:.1f} ms, {part:.0%} of a processor, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    ratio = statistics.median(p99[True]) / statistics.median(p99[False])
    print(f"p99, medians of {options.runs} runs: half fail / all well = {ratio:.2f}")


if __name__ == "__main__":
    main()
