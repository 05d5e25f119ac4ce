"""What tracing costs: processor time of the gateway for a message, with it and without.

``python -m tests.benchmarks.tracing [--servers FILE]`` runs a gateway before RabbitMQ in this process, and calls it
without a socket, a message a request, then in batches. The ways of tracing take turns, block by block, with the same
gateway, so that what else the machine does hits all of them; spans are encoded, and then dropped in place of the one
request for 512 of them. What is told is the lower quartile of the blocks of each way, since what a neighbour takes is
only ever added, and its ratio to that without.

Not part of ``make test``: it takes minutes, and measures time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from time import process_time
from typing import Any, Final

import uvloop

from gateway.api.app import Api
from gateway.app import prepare_interpreter, running
from gateway.config import HttpSettings, load
from gateway.tracing import OtlpForm, Tracer
from tests.servers import KINDS, RabbitMQ310, started
from tests.servers.process import State

CALLER: Final = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
WAYS: Final[dict[str, tuple[float | None, bool]]] = {
    "off": (None, False),
    "off, and the caller sends a `traceparent`": (None, True),
    "on, one trace in a hundred seen": (0.01, False),
    "on, every trace seen": (1.0, False),
    "on, the caller's trace seen": (0.0, True),
}
"""Name -> share of the traces that are seen (None: there is no tracer), and whether the caller begins them."""
QUEUE: Final = "bench-tracing"
AT_ONCE: Final = 8
BATCH: Final = 100
FORM: Final = OtlpForm({"service.name": "bench"}, "1")


class Caller:
    """Publishes."""

    def __init__(self, api: Api, headers: list[tuple[bytes, bytes]]) -> None:
        self._api = api
        self._headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), *headers]

    async def post(self, body: bytes, status: int) -> None:
        """One request."""
        path = "/v1/brokers/b/exchanges/amq.default:publish"
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "scheme": "http", "headers": self._headers, "client": ("127.0.0.1", 5),
        }  # fmt: skip
        got: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            got.append(message)

        await self._api(scope, receive, send)
        assert got[0]["status"] == status, got

    async def many(self, body: bytes, status: int, count: int) -> None:
        """So many, some at once."""

        async def some() -> None:
            for _ in range(count // AT_ONCE):
                await self.post(body, status)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def quartile(values: Iterable[float]) -> float:
    """The lower one."""
    return statistics.quantiles(values, n=4, method="inclusive")[0]


async def main(url: str, blocks: int, block: int) -> None:
    """All ways in turn, so many times; then the table."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    item = {"routing_key": QUEUE, "payload": "x" * 256}
    one, batch = json.dumps(item).encode(), json.dumps({"messages": [item] * BATCH}).encode()
    prepare_interpreter()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-bench-"))
        settings = {"http.port": 0, "ops.port": 0, "data_dir": folder, "brokers.b.url": url}
        app = await stack.enter_async_context(running(load(None, {}, settings)))
        gateway = app.gateway
        assert await gateway.broker("b").wait_up(60)
        await gateway.broker("b").declare_queue(QUEUE, arguments={"x-max-length": 1_000})
        try:
            for number in range(-1, blocks):  # the first one warms
                for way in WAYS if number % 2 == 0 else reversed(WAYS):
                    sample, calls = WAYS[way]
                    gateway.tracer = Tracer(exports=sample is not None, sample=sample or 0.0, queue_max=1_000_000)
                    tracer = gateway.tracer
                    caller = Caller(Api(gateway, HttpSettings()), [CALLER] if calls else [])
                    costs = []
                    for body, status, count, each in ((one, 200, block, 1), (batch, 207, block // 10, BATCH)):
                        gc.collect()
                        before = process_time()
                        await caller.many(body, status, count)
                        while spans := tracer.fetch(512):
                            FORM.request(spans)
                        costs.append((process_time() - before) / (count // AT_ONCE * AT_ONCE * each) * 1e6)
                    if number >= 0:
                        found[way].append((costs[0], costs[1]))
                print(f"block {number + 1} of {blocks}", flush=True)
        finally:
            await gateway.broker("b").delete_queue(QUEUE)
    print(f"\n256 octets, {blocks} blocks of {block} requests; microseconds of a processor for a message\n")
    print("| tracing | a message a request | ratio | batches of 100 | ratio |")
    print("| --- | --- | --- | --- | --- |")
    base = [quartile(run[index] for run in found["off"]) for index in (0, 1)]
    for way, runs in found.items():
        single, many = (quartile(run[index] for run in runs) for index in (0, 1))
        print(f"| {way} | {single:.0f} | {single / base[0]:.2f} | {many:.1f} | {many / base[1]:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--requests", type=int, default=400, help="of a block, a message each; batches: a tenth")
    parser.add_argument("--servers", type=Path, help="file of `python -m tests.servers up`")
    given = parser.parse_args()
    server: Any
    if given.servers is not None:
        server = nullcontext(
            KINDS["rabbitmq-3.10"](State.from_json(json.loads(given.servers.read_text())["rabbitmq-3.10"]))
        )
    else:
        server = started(RabbitMQ310())
    with server as rabbitmq:
        uvloop.run(main(rabbitmq.url("0-9-1"), given.blocks, given.requests))
