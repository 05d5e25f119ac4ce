"""What one more connection, channel and subscription takes: resident memory between 50 of them and 500, by 450.

Connections (each with a channel) and channels are between two processes of ours, one the client, the other the
embedded broker. Subscriptions are those of a gateway on RabbitMQ, each with a message that is out under a lease.

Idle subscriptions are many beside few (10,000 and 1,000 that are pulled, 3,000 and 250 that are pushed) in the
configuration of a gateway, in two processes; they are of one queue of another gateway's embedded broker, that has no
messages. Pushed ones have an endpoint in common, and each a consumer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from tests.benchmarks import programs
from tests.benchmarks.bench import Bench, Running
from tests.benchmarks.programs.clock import resident
from tests.benchmarks.rows import OURS, ClientFailed, Row, Sample, alternate
from tests.benchmarks.sections.publish import PATIENCE, ask

CLIENT, BROKER = f"{OURS} as client", f"{OURS} as broker"
COUNTS = (50, 500)
QUICK_COUNTS = (2, 6)
KINDS = ("connections", "channels")
IDLE = {"pulled": (1_000, 10_000), "pushed": (250, 3_000)}
"""What idle subscriptions are -> how many there are. Pushed ones begin one after the other, some dozen a second."""
QUEUE = "idle"
BROKER_NAME = "idle"
STARTED = 10
"""Consumers a second that come at the least."""


def run(bench: Bench) -> list[Row]:
    """All three; each round in new processes."""
    counts = QUICK_COUNTS if bench.quick else COUNTS
    rows: list[Row] = []
    for kind in KINDS[:1] if bench.quick else KINDS:
        for _ in range(bench.rounds):
            with bench.gateway() as gateway:
                found = hold(gateway, kind, counts)
            for client, sample in found.items():
                row = next((row for row in rows if (row.work, row.client) == (work(kind), client)), None)
                if row is None:
                    rows.append(row := Row("memory", work(kind), client))
                row.samples.append(sample)
    rows += alternate("memory", [(OURS, partial(subscriptions, bench, counts))], bench.rounds)
    for what, numbers in IDLE.items():
        counts = QUICK_COUNTS if bench.quick else numbers
        rows += alternate("memory", [(OURS, partial(idle_subscriptions, bench, what, counts))], 1)
    return rows


def work(kind: str) -> str:
    """As the table has it."""
    return f"one more {kind.removesuffix('s')}"


def hold(gateway: Running, kind: str, counts: tuple[int, int]) -> dict[str, Sample]:
    """Both ends of connections or channels."""
    url = f"amqp://guest:guest@127.0.0.1:{gateway.amqp}/%2F?version=0-9-1"
    low, high = programs.run("holder", {"url": url, "kind": kind, "counts": counts, "pid": gateway.pid})["found"]
    more = counts[1] - counts[0]
    return {
        client: Sample(memory=(high[end] - low[end]) / more) for client, end in ((CLIENT, "own"), (BROKER, "server"))
    }


def subscriptions(bench: Bench, counts: tuple[int, int]) -> dict[str, Sample]:
    """A gateway that has more and more of them."""
    name = f"bench-{uuid4().hex}"
    found = []
    with bench.gateway({"rabbit": bench.rabbitmq.url("0-9-1")}) as gateway:
        subscribe: Callable[[str], None] = partial(_subscribe, gateway)
        made = 0
        for count in counts:
            for number in range(made, count):
                subscribe(f"{name}-{number}")
            made = count
            found.append(resident(gateway.pid))
        for number in range(made):
            ask(gateway, "DELETE", f"/v1/brokers/rabbit/queues/{name}-{number}")
    return {"one more subscription, with a message out": Sample(memory=(found[1] - found[0]) / (counts[1] - counts[0]))}


def idle(what: str) -> str:
    """As the table has it."""
    return f"one more idle subscription, {what}"


def idle_subscriptions(bench: Bench, what: str, counts: tuple[int, int]) -> dict[str, Sample]:
    """Gateways with few and with many of them."""
    found = []
    with bench.gateway() as broker:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp}/%2F?version=0-9-1"
        ask(broker, "PUT", f"/v1/brokers/local-0-9-1/queues/{QUEUE}", {"durable": True})
        for count in counts:
            push = f'push = "{QUEUE}"\n' if what == "pushed" else ""
            tables = [
                f'[subscriptions.s{number}]\nbroker = "{BROKER_NAME}"\nqueue = "{QUEUE}"\n{push}'
                for number in range(count)
            ]
            endpoint = f'[endpoints.{QUEUE}]\nurl = "https://hooks.example/"\n' if push else ""
            with bench.gateway({BROKER_NAME: url}, "\n".join([endpoint, *tables])) as gateway:
                consumers = count if push else 0
                patience = PATIENCE + count / STARTED
                deadline = time.monotonic() + patience
                while (there := _consumers(broker)) < consumers:
                    if time.monotonic() > deadline:
                        raise ClientFailed(f"{there:,} of {consumers:,} consumers came within {patience:.0f} s")
                    time.sleep(0.1)
                found.append(resident(gateway.pid))
    return {idle(what): Sample(memory=(found[1] - found[0]) / (counts[1] - counts[0]))}


def _consumers(broker: Running) -> int:
    number: int = ask(broker, "GET", f"/v1/brokers/local-0-9-1/queues/{QUEUE}")["consumers"]
    return number


def _subscribe(gateway: Running, name: str) -> None:
    """A queue, a subscription, a message, and a lease of it."""
    ask(gateway, "PUT", f"/v1/brokers/rabbit/queues/{name}", {"durable": True})
    ask(gateway, "PUT", f"/v1/subscriptions/{name}", {"broker": "rabbit", "queue": name})
    ask(gateway, "POST", "/v1/brokers/rabbit/exchanges/amq.default:publish", {"routing_key": name, "payload": "x"})
    pulled = ask(gateway, "POST", f"/v1/subscriptions/{name}:pull", {"max_messages": 1, "wait": 5})["messages"]
    assert len(pulled) == 1, pulled
