"""The cost of a message published over HTTP, split: what each layer adds to the CPU of the process.

The same messages go through one more layer each time, up to the whole gateway under HTTP load: the difference
between two layers is what the upper one costs. "all" is the whole. With 64 callers at once a message is a request;
with batches of 1,000 from 4 callers a request and a commit are shared.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from uuid import uuid4

from tests.benchmarks import programs
from tests.benchmarks.aims import BATCH
from tests.benchmarks.bench import SIZE, Bench
from tests.benchmarks.rows import Row, Sample
from tests.benchmarks.sections.publish import ask, turn

STAGES = ("link", "upstream", "core", "ledger")
ALL, HTTP = "all", "HTTP"
CASES = (("64 callers", 64, 1, 10_000), (f"4 callers, batches of {BATCH:,}", 4, BATCH, 40_000))
"""Name, callers, messages of a request, messages in all."""


def run(bench: Bench) -> list[Row]:
    """Both cases."""
    rows: list[Row] = []
    for name, callers, batch, number in CASES[:1] if bench.quick else CASES:
        work = f"cost of a publish, {name}"
        parts = {client: Row("cost", work, client) for client in (ALL, HTTP, *STAGES[::-1])}
        messages = bench.number(number, 2 * callers * batch)
        for _ in range(bench.rounds):
            for client, sample in split(layers(bench, callers, batch, messages)).items():
                parts[client].samples.append(sample)
        rows += parts.values()
    return rows


def layers(bench: Bench, callers: int, batch: int, number: int) -> dict[str, Sample]:
    """One round: the layers from the lowest up, and the whole."""
    found = {}
    url, queue = bench.rabbitmq.url("0-9-1"), f"bench-{uuid4().hex}"
    for stage in STAGES:
        with TemporaryDirectory(dir=bench.folder) as folder:
            job = {"url": url, "queue": queue, "size": SIZE, "callers": callers, "batch": batch, "number": number}
            ledger = f"sqlite:///{folder}/ledger.db"
            found[stage] = Sample(**programs.run("core", {**job, "stage": stage, "ledger": ledger}))
    with bench.gateway({"rabbit": url}) as gateway:
        ask(gateway, "GET", f"/v1/brokers/rabbit/queues/{queue}")
        found[ALL] = turn(bench, gateway, ALL, queue, callers, batch)()[ALL]
    bench.rabbitmq.delete_queue(queue)
    return found


def split(found: dict[str, Sample]) -> dict[str, Sample]:
    """What each layer adds, as a sample of its own; and the whole."""
    shares = {ALL: found[ALL]}
    below = 0.0
    for client, layer in (*((stage, found[stage]) for stage in STAGES), (HTTP, found[ALL])):
        each = layer.cpu / layer.number
        shares[client] = Sample(layer.number, cpu=(each - below) * layer.number)
        below = each
    return shares
