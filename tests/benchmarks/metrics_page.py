"""The page of metrics at ten thousand queues: how many series it has, and how long it takes, measured.

``python -m tests.benchmarks.metrics_page`` starts a gateway with its embedded broker, declares 10,000 queues, makes as
many subscriptions that pull from them under leases of the ledger, and owes each of them a message; as many bridges,
taps and endpoints count something besides. Then ``/metrics`` is asked for 50 times over HTTP, while another task asks
``/livez`` all the time: the page must not hold up what else the process does.

Not part of ``make test``: it measures time. The number of series is tested there, in ``tests/test_series.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import uvloop

from gateway.app import App, running
from gateway.config import SubscriptionSettings, load
from gateway.ledger import EventKind, LogEntry, NewMessage, Owed
from gateway.observing.series import SERIES_MAX
from tests.test_series import everything

TIMES = 50
SECONDS_MAX = 0.2
CHUNK = 500


async def fill(app: App, queues: int) -> None:
    """Queues, subscriptions, and a message that is owed to each."""
    gateway = app.gateway
    (name, upstream), *_ = gateway.brokers.items()
    for begin in range(0, queues, CHUNK):
        names = [f"queue-{number}" for number in range(begin, min(begin + CHUNK, queues))]
        await asyncio.gather(*(upstream.declare_queue(queue) for queue in names))
        settings = {queue: SubscriptionSettings(broker=name, queue=queue, lease="ledger") for queue in names}
        await asyncio.gather(*(gateway.subscriptions.put(queue, each, None) for queue, each in settings.items()))
        at = time.time_ns() // 1000
        message = NewMessage(
            broker=name, version="0-9-1", exchange="", routing_key="", size=5, sha256=bytes(32), origin="broker"
        )
        rows = [
            Owed(id=gateway.ids(), message_id=gateway.ids(), subscription=queue, at=at, payload=b"hello", size=5)
            for queue in names
        ]
        entries = [
            LogEntry(row.message_id, EventKind.STORED, at, name, "0-9-1", {"subscription": row.subscription}, message)
            for row in rows
        ]
        await gateway.ledger.deliveries.store(rows, entries)


async def get(port: int, path: str) -> tuple[float, bytes]:
    """How long an answer took, and the answer."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode())
    answer = await reader.read()
    writer.close()
    return time.perf_counter() - began, answer


async def measure(queues: int) -> bool:
    """Fill, ask, print; whether both figures are met."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.toml"
        path.write_text(
            f'data_dir = "{folder}"\nlog_level = "error"\n[embedded]\nenabled = true\nport = 0\n'
            "[http]\nport = 0\n[ops]\nport = 0\n"
        )
        async with running(load(path, {})) as app:
            began = time.monotonic()
            await fill(app, queues)
            everything(app.gateway.metrics, queues)
            await app.gateway.observer.look()
            print(f"{queues:,} queues, subscriptions, bridges, taps, endpoints in {time.monotonic() - began:.0f} s")
            waits: list[float] = []

            async def watch() -> None:
                while True:
                    waits.append((await get(app.ports.ops, "/livez"))[0])
                    await asyncio.sleep(0.005)

            idle = asyncio.create_task(watch())
            await asyncio.sleep(1.0)
            alone = statistics.quantiles(waits, n=100)[98]
            waits.clear()
            pages = [await get(app.ports.ops, "/metrics") for _ in range(TIMES)]
            beside = statistics.quantiles(waits, n=100)[98] if len(waits) > 2 else max(waits)
            idle.cancel()
            worked = time.thread_time()
            for _ in range(TIMES):
                app.gateway.measure()
                app.gateway.metrics.render()
            worked = (time.thread_time() - worked) / TIMES
            seconds = [took for took, _ in pages]
            lines = pages[-1][1].partition(b"\r\n\r\n")[2].splitlines()
            series = sum(1 for line in lines if line.strip() and not line.startswith(b"#"))
            median = statistics.median(seconds)
            print(f"series {series:,} of {SERIES_MAX:,}; {len(pages[-1][1]):,} octets")
            print(f"page: median {median * 1000:.0f} ms, longest {max(seconds) * 1000:.0f} ms, of {TIMES}")
            print(f"processor: {worked * 1000:.0f} ms a page")
            print(f"/livez, 99th percentile: {alone * 1000:.1f} ms, beside the pages {beside * 1000:.1f} ms")
            return series <= SERIES_MAX and median <= SECONDS_MAX


def main() -> int:
    """1 where a figure is not met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.metrics_page", description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    options = parser.parse_args()
    return 0 if uvloop.run(measure(options.queues)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
