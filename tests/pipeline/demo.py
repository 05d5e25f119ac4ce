"""``make pipeline-demo``: 20,000 messages over three versions, some of them with bad luck, and what the pipeline says.

Real RabbitMQ and Broker-J, a real gateway, all private to the run. Orders go from 0-8 over a bridge to 0-10, invoices
from 0-10 over another one to 0-9-1, and both into the message log; alerts are published in 0-9-1 and pushed to a
webhook whose receiver is not always well. Then somebody takes one alert out of its queue behind the gateway's back, and
puts another one in twice, so that the counts agree. Archive, rollup, reconcile and replay run, and the demo compares
what they say with its own list of what it published, with the receiver, and with the brokers' own counts.

``python -m tests.pipeline.demo [--messages N] [--reports FOLDER]``. It ends with status 1 where a number differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

import amqp
import httpx
from pyspark.sql import SparkSession

from gateway.commands.demo import wait_for_ports
from gateway.config import PipelineSettings
from gateway.pipeline import session as sessions
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.jobs import runs
from gateway.pipeline.jobs.base import Context, JobRequest, Outcome, job_of, options_of
from gateway.pipeline.jobs.rollups import Rollups
from gateway.pipeline.reports.page import report
from gateway.pipeline.reports.text import text_of
from gateway.pipeline.settings import Pipeline
from gateway.terminal import Progress
from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310, started

BATCH = 500
"""Messages of one request."""
ILL = 100
"""Every so many a request comes at which the receiver is not well."""
REFUSED = 25
"""Messages that are published to where no queue is; they are none of the 20,000."""
REPLAYED = "queue = 'orders.in' AND size % 10 = 3"
"""What is replayed."""
START = 120.0
"""How long the gateway may take to start beside two brokers that do, in seconds."""
SETTLED = 180.0
"""How long it may take until all has arrived, in seconds."""
VERSIONS = {"legacy": "0-8", "settlement": "0-10", "modern": "0-9-1"}
"""Broker -> version."""


@dataclass
class Published:
    """What the demo published: the checker's own list."""

    flow: str
    broker: str
    digests: dict[str, str] = field(default_factory=dict)
    """Id -> SHA-256 of the body."""


class Receiver(ThreadingHTTPServer):
    """Takes webhooks; every hundredth request finds it ill, and comes again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: Counter[str] = Counter()
        self.ill = 0
        self.asked = 0
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.asked += 1
            ill = self.server.asked % ILL == 0
            if ill:
                self.server.ill += 1
            else:
                self.server.taken[event["message"]["id"]] += 1
        self.send_response(500 if ill else 204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Demo:
    """One run of it."""

    def __init__(self, folder: Path, reports: Path, messages: int) -> None:
        self.folder, self.reports, self.messages = folder, reports, messages
        self.wrong: list[str] = []
        self.rabbitmq: RabbitMQ
        self.brokerj: BrokerJ
        self.receiver: Receiver
        self.api: httpx.Client
        self.url = ""
        self.lost = self.doubled = ""

    # ------------------------------------------------------------------------------------------------ the story

    def run(self) -> int:
        """All of it; returns the exit status."""
        began = time.monotonic()
        with ExitStack() as stack:
            self.step("Starting RabbitMQ, Broker-J and a gateway")
            self.rabbitmq = stack.enter_context(started(RabbitMQ310()))
            self.brokerj = stack.enter_context(started(BrokerJ()))
            self.receiver = stack.enter_context(receiver())
            self.url = stack.enter_context(gateway(self.folder, self.rabbitmq, self.brokerj))
            self.api = stack.enter_context(httpx.Client(base_url=self.url, timeout=120, trust_env=False))
            self.declare()
            published = self.publish()
            self.interfere(published["alerts"])
            self.settle(published)
            spark = stack.enter_context(spark_for(self.folder))
            self.analyse(spark, published)
        self.step(f"Done in {time.monotonic() - began:.0f} s; pages in {self.reports}")
        for each in self.wrong:
            print(f"WRONG: {each}", flush=True)
        print("All numbers agree." if not self.wrong else f"{len(self.wrong)} numbers differ.", flush=True)
        return 1 if self.wrong else 0

    def declare(self) -> None:
        """Queues, bridges, taps, and the webhook, which is paused at first."""
        for broker, names in {
            "legacy": ["orders"], "settlement": ["orders.in", "invoices"], "modern": ["invoices.in", "alerts", "again"],
        }.items():  # fmt: skip
            for name in names:
                self.ask("PUT", f"/v1/brokers/{broker}/queues/{name}", {"durable": True})
        for name, source, target, key in (
            ("orders", "legacy", "settlement", "orders.in"), ("invoices", "settlement", "modern", "invoices.in"),
        ):  # fmt: skip
            self.ask("PUT", f"/v1/bridges/{name}", {
                "source": {"broker": source, "queue": name}, "target": {"broker": target, "routing_key": key},
            })  # fmt: skip
            self.ask("PUT", f"/v1/taps/{name}", {"broker": target, "queue": key})
        hook = f"http://127.0.0.1:{self.receiver.server_address[1]}/alerts"
        self.ask("PUT", "/v1/endpoints/alerts", {"url": hook, "schedule": [0, 0.2, 1, 5], "breaker_failures": 1_000})
        self.ask("PUT", "/v1/subscriptions/alerts", {
            "broker": "modern", "queue": "alerts", "push": "alerts", "paused": True,
        })  # fmt: skip

    def publish(self) -> dict[str, Published]:
        """Publish them all; in the middle of it RabbitMQ closes every connection."""
        shares = {"orders": ("legacy", 40), "invoices": ("settlement", 30), "alerts": ("modern", 30)}
        found: dict[str, Published] = {}
        for flow, (broker, share) in shares.items():
            count = self.messages * share // 100
            self.step(f"Publishing {count:,} {flow} at {broker}, AMQP {VERSIONS[broker]}")
            found[flow] = Published(flow, broker)
            for at in range(0, count, BATCH):
                self.batch(found[flow], range(at, min(at + BATCH, count)))
                if flow == "invoices" and at == 0:
                    self.step("RabbitMQ closes all connections, bridges and taps included")
                    self.rabbitmq.close_connections()
            self.check(f"{flow} that are confirmed", len(found[flow].digests), count)
        statuses = set()
        for at in range(REFUSED):
            answer = self.api.post(
                "/v1/brokers/modern/exchanges/amq.default:publish",
                json={"routing_key": "nowhere", "payload": f"{at}", "mandatory": True},
            )
            statuses.add(answer.status_code)
        self.check(f"the statuses of {REFUSED} publishes that go nowhere", statuses, {422})
        return found

    def batch(self, published: Published, numbers: range) -> None:
        """Publish some as NDJSON, with a key each; what was not confirmed is published again under its key."""
        bodies = {
            f"{published.flow}-{number}": f"{published.flow} {number} {'x' * (number % 200)}" for number in numbers
        }
        left = dict(bodies)
        deadline = time.monotonic() + SETTLED
        while left and time.monotonic() < deadline:
            lines = [
                json.dumps({
                    "key": key, "routing_key": published.flow, "payload": body, "mandatory": True,
                    "properties": {"message_id": key, "delivery_mode": 2},
                })
                for key, body in left.items()
            ]  # fmt: skip
            answer = self.api.post(
                f"/v1/brokers/{published.broker}/exchanges/amq.default:publish",
                content="\n".join(lines) + "\n",
                headers={"content-type": "application/x-ndjson"},
            )
            for key, line in zip(list(left), answer.text.splitlines(), strict=False):
                result = json.loads(line)
                if result.get("status") == 200:
                    published.digests[result["id"]] = hashlib.sha256(left.pop(key).encode()).hexdigest()
            if left:
                time.sleep(0.5)
        if left:
            self.check(f"{published.flow} that are not confirmed", len(left), 0)

    def interfere(self, alerts: Published) -> None:
        """At the broker, behind the gateway's back: take one alert, and put another one in twice."""
        connection = amqp.Connection(
            f"127.0.0.1:{self.rabbitmq.port}", self.rabbitmq.user, self.rabbitmq.password,
            virtual_host=self.rabbitmq.virtual_host, confirm_publish=True,
        )  # fmt: skip
        with connection:
            channel = connection.channel()
            taken = channel.basic_get("alerts")
            self.lost = id_of(taken)
            channel.basic_ack(taken.delivery_tag)
            copied = channel.basic_get("alerts")
            self.doubled = id_of(copied)
            for _ in range(2):
                channel.basic_publish(amqp.Message(copied.body, **copied.properties), routing_key="alerts")
            channel.basic_ack(copied.delivery_tag)
        self.step(f"Somebody deleted {self.lost} at the broker, and put {self.doubled} there twice")
        self.check("one of the alerts", {self.lost, self.doubled} <= alerts.digests.keys(), True)
        self.check("alerts in the queue, says RabbitMQ", self.depth("alerts"), len(alerts.digests))
        self.ask("POST", "/v1/subscriptions/alerts:resume")

    def settle(self, published: Mapping[str, Published]) -> None:
        """Wait until nothing is on its way any more."""
        spooled = len(published["orders"].digests) + len(published["invoices"].digests)
        pushed = len(published["alerts"].digests)
        self.step(f"Waiting until {spooled:,} messages are in the log and {pushed:,} were pushed")
        deadline = time.monotonic() + SETTLED
        while time.monotonic() < deadline:
            head = self.ask("GET", "/v1/log/head?log=messages")["shards"]
            if sum(shard["head"] for shard in head) >= spooled and sum(self.receiver.taken.values()) >= pushed:
                break
            time.sleep(0.5)
        time.sleep(2)  # one that is too many may still come
        head = self.ask("GET", "/v1/log/head?log=messages")["shards"]
        self.check("messages in the log", sum(shard["head"] for shard in head), spooled)
        self.check("requests that the receiver took", sum(self.receiver.taken.values()), pushed)
        for broker, queue in (
            ("RabbitMQ", "orders"), ("RabbitMQ", "invoices.in"), ("RabbitMQ", "alerts"), ("Broker-J", "invoices"),
            ("Broker-J", "orders.in"),
        ):  # fmt: skip
            self.check(f"left in {queue}, says {broker}", self.depth(queue, broker), 0)

    def analyse(self, spark: SparkSession, published: Mapping[str, Published]) -> None:
        """The jobs, and whether they say what is so."""
        spooled = {**published["orders"].digests, **published["invoices"].digests}
        everything = {**spooled, **published["alerts"].digests}

        archived = self.job(spark, "archive", {})
        self.check("rows archived", archived.rows, len(spooled))
        rows = archive_of(spark, self.pipeline, "messages").read().select("message_id", "sha256").collect()
        self.check("archived messages and their digests", {row.message_id: row.sha256 for row in rows}, spooled)
        self.check("archived twice", len(rows) - len({row.message_id for row in rows}), 0)

        self.job(spark, "rollup", {})
        table = Rollups(self.pipeline.place("rollups")).read(spark).where("kind = 'confirmed'")
        confirmed = dict(table.groupBy("route").sum("events").collect())
        for flow in published.values():
            route = f"{flow.broker}//{flow.flow}"
            self.check(f"confirmed for {route}, says the rollup", confirmed.get(route), len(flow.digests))

        found = self.job(spark, "reconcile", {"grace": 0.0}, exit=7)
        breaks = {(each["kind"], each["id"]) for each in found.detail["first"]}
        wanted = {("lost", self.lost), ("duplicate", self.doubled)}
        self.check("what reconcile names", breaks, wanted)
        self.check(
            "what the receiver got twice", [each for each, n in self.receiver.taken.items() if n > 1], [self.doubled]
        )
        self.check(
            "what the receiver never got", published["alerts"].digests.keys() - self.receiver.taken.keys(), {self.lost}
        )
        self.check("messages of the demo", len(everything), self.messages)

        chosen = sum(len(body_of("orders", number)) % 10 == 3 for number in range(len(published["orders"].digests)))
        options = {"where": REPLAYED, "to": "amq.default@modern", "routing_key": "again", "rate": 1_000.0}
        again = self.job(spark, "replay", options, run_id="demo-replay")
        self.check("replayed", again.rows, chosen)
        self.check("in the queue again, says RabbitMQ", self.depth("again"), chosen)
        self.job(spark, "replay", options, run_id="demo-replay")
        self.check("in the queue again after the same replay once more", self.depth("again"), chosen)

    # ------------------------------------------------------------------------------------------------ pieces

    @property
    def pipeline(self) -> Pipeline:
        """What the jobs work with."""
        return Pipeline(PipelineSettings(memory="1g"), self.url, storage=str(self.folder / "storage"))

    def job(
        self, spark: SparkSession, name: str, given: Mapping[str, Any], *, run_id: str = "", exit: int = 0
    ) -> Outcome:
        """Run a job, print its report, and write it as a page."""
        job = job_of(name)
        self.step(f"gateway pipeline run {name}" + "".join(f" --{key} {value!r}" for key, value in given.items()))
        context = Context(
            self.pipeline,
            JobRequest(run_id or runs.new_id(name), options_of(job, given), name),
            reporter=Progress(False),
            spark=spark,
        )
        try:
            ended = runs.run(job, context)
        finally:
            context.close()
        print(text_of(f"{name} {ended.run_id}", ended.outcome.reports), flush=True)
        if not ended.repeated:
            page = report(f"{name} {ended.run_id}", ended.outcome.reports)
            (self.reports / f"{name}.html").write_text(page, encoding="utf-8")
        self.check(f"exit status of {name}", ended.outcome.exit, exit)
        return ended.outcome

    def depth(self, queue: str, broker: str = "RabbitMQ") -> int:
        """Messages in a queue, as the broker itself counts them."""
        return self.rabbitmq.queue_depth(queue) if broker == "RabbitMQ" else self.brokerj.queue_depth(queue)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One exchange with the gateway, which must succeed."""
        answer = self.api.request(method, path, json=body)
        if not answer.is_success:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def check(self, what: str, found: Any, wanted: Any) -> None:
        """Say that a number is as it should be, or keep that it is not."""
        if found == wanted:
            shown = found if isinstance(found, (int, str, bool)) else f"{len(found)} as they should be"
            print(f"   ok  {what}: {shown}", flush=True)
            return
        text = f"{what}: found {str(found)[:300]}, and it should be {str(wanted)[:300]}"
        self.wrong.append(text)
        print(f"   NO  {text}", flush=True)

    def step(self, text: str) -> None:
        """A heading."""
        print(f"\n── {text}", flush=True)


def body_of(flow: str, number: int) -> str:
    """A body: bodies differ, and so do their sizes."""
    return f"{flow} {number} {'x' * (number % 200)}"


def id_of(message: Any) -> str:
    """The gateway's id of a message, from its reserved header."""
    found: str = message.application_headers["x-gateway"]["id"]
    return found


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def gateway(folder: Path, rabbitmq: RabbitMQ, brokerj: BrokerJ) -> Iterator[str]:
    """A gateway between those brokers; its URL."""
    config, ports, log = folder / "gateway.toml", folder / "ports.json", folder / "gateway.log"
    config.write_text(
        '[http]\nport = 0\n[ops]\nport = 0\n[outbound]\nallow = ["127.0.0.1"]\n'
        + "".join(
            f'[brokers.{name}]\nurl = "{(brokerj if name == "settlement" else rabbitmq).url(version)}"\n'
            for name, version in VERSIONS.items()
        ),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    command += ["--data-dir", str(folder / "data"), "--ports-file", str(ports)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
    try:
        yield f"http://127.0.0.1:{wait_for_ports(process, ports, START)['http']}"
    except BaseException:
        print(log.read_text(encoding="utf-8", errors="replace")[-4_000:], file=sys.stderr, flush=True)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def spark_for(folder: Path) -> Iterator[SparkSession]:
    """Spark for all the jobs; as commands they would each start one."""
    settings = PipelineSettings(memory="1g", scratch=str(folder / "scratch"))
    spark = sessions.spark_session(Pipeline(settings), "local[2]", "demo", extra={"spark.sql.shuffle.partitions": "2"})
    try:
        yield spark
    finally:
        sessions.close_session(spark)


def end(number: int, _: FrameType | None) -> None:
    """End what was started, and do not begin to do so twice."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tests.pipeline.demo", description="Show what the pipeline does.")
    parser.add_argument("--messages", type=int, default=20_000, help="how many messages in all")
    parser.add_argument("--reports", type=Path, default=Path("pipeline-demo"), help="folder for the pages")
    options = parser.parse_args(arguments)
    options.reports.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory(prefix="gateway-pipeline-demo-") as folder:
        return Demo(Path(folder), options.reports, options.messages).run()


if __name__ == "__main__":
    sys.exit(main())
