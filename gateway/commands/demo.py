"""``gateway demo``: the main job, on a fresh gateway of its own.

A gateway is started as anyone would start it: ``gateway serve``, on free ports, in an empty folder. A message is
published over HTTP through each AMQP version and pulled through each other one, compared, acknowledged, and its
timeline shown. Any unexpected result ends the demo with status 1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import click

from gateway.commands import FAILED, Failure, check_service
from gateway.commands.client import ApiClient, print_json, segment
from gateway.commands.messages import print_timeline
from gateway.runtime.clock import clock
from gateway.versions import VERSION_NAMES

START_TIMEOUT = 60.0
"""How long the gateway may take to start, in seconds."""
STOP_TIMEOUT = 30.0
"""How long it may take to stop, in seconds."""
EVENTS = ("accepted", "confirmed", "delivered", "acknowledged")
"""What must have happened to a message at the end; ``accepted`` only where the ledger was asked first."""

PROPERTIES: Mapping[str, Any] = {
    "content_type": "text/plain",
    "correlation_id": "order 4711",
    "delivery_mode": 2,
    "message_id": "m-1",
    "priority": 5,
    "reply_to": "answers",
    "type": "greeting",
}
HEADERS: Mapping[str, Any] = {"customer": "ann", "items": 3, "express": True, "tags": ["new", "eu"]}


@click.command(short_help="Show the main job on a fresh gateway, step by step.")
@click.option("--json", "as_json", is_flag=True, help="Print the timelines as JSON, and nothing else.")
def demo(as_json: bool) -> None:
    """Show the main job on a fresh gateway of its own, on free ports, and end.

    Publishes over HTTP through each AMQP version, pulls through each other one, compares, acknowledges, and shows
    what the ledger knows.

    \b
    Example:
      gateway demo
    """
    check_service()
    began = clock.monotonic()
    timelines = []
    with gateway_of_our_own() as url:
        client = ApiClient(url, None)
        say(as_json, f"A gateway is up at {url}.")
        for number, (source, target) in enumerate(permutations(VERSION_NAMES, 2), 1):
            say(as_json, f"\n{number}. Published through AMQP {source}, pulled through AMQP {target}")
            timeline = main_job(client, source, target, as_json)
            timelines.append(timeline)
            if not as_json:
                print_timeline(timeline)
    if as_json:
        print_json(timelines)
    say(as_json, f"\nThe gateway has ended. {len(timelines)} messages, none lost, none changed.")
    say(as_json, f"That took {clock.monotonic() - began:.1f} s.")


def say(quiet: bool, text: str) -> None:
    """One line for people."""
    if not quiet:
        click.echo(text)


def main_job(client: ApiClient, source: str, target: str, quiet: bool) -> dict[str, Any]:
    """Publish through one version, pull through another, compare, acknowledge; returns the timeline."""
    queue = f"orders {source}/{target}"
    payload = f"hello from AMQP {source} to AMQP {target} ✓"
    there, here = f"/v1/brokers/local-{source}", f"/v1/subscriptions/billing-{target}-from-{source}"

    client.ask("PUT", f"{there}/queues/{segment(queue)}", body={"durable": True})
    say(quiet, f"   declared   queue {queue!r} on local-{source}")

    body = {
        "routing_key": queue,
        "payload": payload,
        "mandatory": True,
        "properties": PROPERTIES,
        "headers": HEADERS,
    }
    published = client.ask("POST", f"{there}/exchanges/amq.default:publish", body=body)
    expect("the publish", published["status"], "confirmed")
    expect("whether a queue took it", published["routed"], True)
    say(quiet, f"   published  {payload!r}: confirmed, {published['id']}")

    client.ask("PUT", here, body={"broker": f"local-{target}", "queue": queue})
    pulled = client.ask("POST", f"{here}:pull", body={"max_messages": 10, "wait_seconds": 5}, wait=5)["messages"]
    expect("how many messages came", len(pulled), 1)
    message = pulled[0]["message"]
    expect("the id", message["id"], published["id"])
    expect("the payload", message["payload"], payload)
    expect("the routing key", message["routing_key"], queue)
    found = {name: value for name, value in message["properties"].items() if value is not None}
    expect("the properties", found, dict(PROPERTIES))
    expect("the headers", message["headers"], dict(HEADERS))
    say(quiet, f"   pulled     the same payload, {len(found)} properties and {len(message['headers'])} headers")

    settled = client.ask("POST", f"{here}:acknowledge", body={"ack_ids": [pulled[0]["ack_id"]]})
    expect("the acknowledgement", [result["status"] for result in settled["results"]], ["SUCCESS"])
    left = client.ask("GET", f"/v1/brokers/local-{target}/queues/{segment(queue)}")
    expect("how many messages are left", left["messages"], 0)
    say(quiet, "   acknowledged; the queue is empty")

    timeline: dict[str, Any] = client.ask("GET", f"/v1/messages/{published['id']}")
    expect("the state", timeline["state"], "acknowledged")
    kinds = [event["kind"] for event in timeline["events"]]
    expect("the timeline", kinds, [kind for kind in EVENTS if kind in kinds])
    return timeline


def expect(what: str, found: Any, wanted: Any) -> None:
    """Stop the demo where something is not as it should be."""
    if found != wanted:
        raise Failure(f"{what}: expected {wanted!r}, found {found!r}", FAILED)


@contextmanager
def gateway_of_our_own() -> Iterator[str]:
    """Start a gateway in an empty folder, give its URL, and stop it; it must end with status 0."""
    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as name:
        folder = Path(name)
        ports_file, log = folder / "ports.json", folder / "log"
        command = [sys.executable, "-m", "gateway", "serve", "--data-dir", str(folder / "data")]
        command += ["--http-port", "0", "--ops-port", "0", "--amqp-port", "0", "--ports-file", str(ports_file)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)  # noqa: S603  # ourselves
        try:
            yield f"http://127.0.0.1:{wait_for_ports(process, ports_file)['http']}"
            process.send_signal(signal.SIGTERM)
            expect("the status with which the gateway ended", process.wait(STOP_TIMEOUT), 0)
        except subprocess.TimeoutExpired:
            raise Failure(f"the gateway did not end in {STOP_TIMEOUT:.0f} s") from None
        except Failure:
            click.echo(log.read_text(encoding="utf-8", errors="replace"), err=True)
            raise
        finally:
            process.kill()
            process.wait()


def wait_for_ports(
    process: subprocess.Popen[bytes], ports_file: Path, seconds: float = START_TIMEOUT
) -> dict[str, int]:
    """The ports, once the gateway is ready."""
    deadline = clock.monotonic() + seconds
    while not ports_file.exists() or not ports_file.stat().st_size:
        if process.poll() is not None:
            raise Failure(f"the gateway ended with status {process.returncode} while it started")
        if clock.monotonic() > deadline:
            raise Failure(f"the gateway was not ready in {seconds:.0f} s")
        clock.block(0.02)
    ports: dict[str, int] = json.loads(ports_file.read_text(encoding="utf-8"))
    return ports
