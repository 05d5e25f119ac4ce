"""From 10 queues to 10,000: CPU of a message and memory, at our link and in the embedded broker.

The same number of messages goes to the queues in turn, persistent and confirmed: first to rest in them ("publish"),
then through consumers that wait on every queue and acknowledge each message ("through"). What the queues and
consumers themselves cost is not on the clock. On RabbitMQ only our side is of interest, and 1,000 queues are the most:
with ten times as many it is busy with them long after they are gone.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.benchmarks import programs
from tests.benchmarks.bench import SIZE, WINDOW, Bench
from tests.benchmarks.rows import Row, Sample
from tests.benchmarks.sections.memory import BROKER, CLIENT
from tests.benchmarks.sections.publish import node

QUEUES = (10, 1_000, 10_000)
QUICK_QUEUES = (20,)
NUMBER = 20_000
WORKS = {"publish": "publish", "through": "publish and consume"}


def run(bench: Bench) -> list[Row]:
    """On the embedded broker of a new gateway each time, and on RabbitMQ."""
    rows: list[Row] = []
    queues = QUICK_QUEUES if bench.quick else QUEUES
    for count in queues:
        samples = []
        for _ in range(bench.rounds):
            with bench.gateway() as gateway:
                url = f"amqp://guest:guest@127.0.0.1:{gateway.amqp}/%2F?version=0-9-1"
                samples.append(measure(bench, url, count, gateway.pid))
        for key in WORKS:
            work = name(key, count)
            rows.append(Row("growth", work, CLIENT, [sample(each, key, "cpu", "own") for each in samples]))
            rows.append(Row("growth", work, BROKER, [sample(each, key, "server", "server") for each in samples]))
    work = f"growth: one more queue, of {queues[-1]:,}"
    rows.append(Row("growth", work, BROKER, [Sample(memory=each["queue"]) for each in samples]))
    for count in queues[:2]:
        found = measure(bench, bench.rabbitmq.url("0-9-1"), count, node(bench.rabbitmq))
        rows += [
            Row("growth", f"RabbitMQ {name(key, count)}", CLIENT, [sample(found, key, "cpu", "own")]) for key in WORKS
        ]
    return rows


def name(key: str, count: int) -> str:
    """Of the work."""
    return f"growth: {WORKS[key]}, {count:,} queues"


def measure(bench: Bench, url: str, count: int, pid: int) -> dict[str, Any]:
    """One round."""
    job = {"url": url, "queue": f"bench-{uuid4().hex}", "queues": count, "pid": pid, "size": SIZE, "window": WINDOW}
    return programs.run("queues", {**job, "number": bench.number(NUMBER, 200)})


def sample(found: dict[str, Any], key: str, cpu: str, memory: str) -> Sample:
    """One end of one work."""
    work = found[key]
    return Sample(work["number"], work["seconds"], work[cpu], memory=found["memory"][memory])
