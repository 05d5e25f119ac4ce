"""The verbs on a gateway that runs: what one does, the next one sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from gateway import commands
from gateway.versions import VERSION_NAMES
from tests.commands.conftest import Canned, Run

Gateway = Callable[..., Result]


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A verb on the gateway that runs."""
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


@pytest.fixture
def queue(ask: Gateway, unique_name: Callable[[str], str]) -> str:
    """A queue of the embedded broker."""
    name = unique_name("orders /:%é")
    assert ask("queues", "declare", "local-0-9-1", name).exit_code == 0
    return name


def test_the_brokers_are_there(ask: Gateway) -> None:
    result = ask("brokers")
    assert result.exit_code == 0
    assert [line.split()[:3] for line in result.stdout.splitlines()[1:]] == [
        [f"local-{name}", "up", name] for name in VERSION_NAMES
    ]
    assert json.loads(ask("brokers", "local-0-8", "--json").stdout)["version"] == "0-8"


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_publish_pull_and_why(ask: Gateway, queue: str, version: str) -> None:
    published = ask("publish", f"local-{version}", "amq.default", queue, "hello ✓", "--header", "n:=3")
    assert published.exit_code == 0, published.stderr
    assert published.stderr == "confirmed; a restart of the broker may lose it\n"
    id = published.stdout.strip()

    pulled = ask("pull", "local-0-9-1", queue, "--wait", "5")
    assert pulled.exit_code == 0, pulled.stderr
    assert pulled.stdout.splitlines()[1] == "hello ✓"
    assert pulled.stdout.startswith(f"{id}  amq.default, {queue}")
    assert pulled.stderr == "1 acknowledged\n"

    told = ask("why", id)
    assert told.stdout.splitlines()[0] == f"{id} is acknowledged."
    assert told.stdout.splitlines()[1].startswith("It is done: the consumer of pull-")
    said = [line.partition("  ")[2] for line in told.stdout.splitlines()[3:]]
    assert [line.split(" ", 3)[:3] for line in said] == [
        ["The", "gateway", "took"],
        ["The", "broker", f"local-{version}"],
        ["It", "was", "handed"],
        ["The", "consumer", "was"],
    ]
    kinds = [line.split()[1] for line in ask("why", id, "--events").stdout.splitlines()[-4:]]
    assert kinds == ["accepted", "confirmed", "delivered", "acknowledged"]
    assert id in ask("messages", "--broker", f"local-{version}").stdout


def test_what_is_not_acknowledged_comes_again(ask: Gateway, queue: str) -> None:
    assert ask("publish", "local-0-10", "amq.default", queue, "again").exit_code == 0
    given_back = ask("pull", "local-0-9-1", queue, "--wait", "5", "--no-ack")
    assert given_back.stderr == "1 given back\n"
    again = json.loads(ask("pull", "local-0-9-1", queue, "--wait", "5", "--json").stdout)
    assert [item["redelivered"] for item in again["messages"]] == [True]
    assert ask("pull", "local-0-9-1", queue).stderr == "no message came\n"


def test_a_rejection_drops_nothing_unless_that_is_said(ask: Gateway, queue: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"broker": "local-0-9-1", "queue": queue, "ack_deadline_seconds": 10}))
    assert ask("subscriptions", "put", queue, str(settings)).exit_code == 0
    assert ask("publish", "local-0-10", "amq.default", queue, "again").exit_code == 0
    rejected = ask("pull", queue, "--wait", "5", "--reject", "no such customer")
    assert rejected.exit_code != 0
    assert "no_dead_letter_destination" in rejected.stderr or "dead-letter destination" in rejected.stderr
    discarded = ask("pull", queue, "--wait", "20", "--reject", "no such customer", "--discard")
    assert (discarded.exit_code, discarded.stderr) == (0, "1 discarded\n")
    assert ask("pull", queue).stderr == "no message came\n"
    assert ask("pull", queue, "--discard").exit_code == commands.USAGE
    assert ask("pull", queue, "--reject", "x", "--no-ack").exit_code == commands.USAGE


def test_queues_are_shown_purged_and_deleted(ask: Gateway, queue: str) -> None:
    assert ask("publish", "local-0-8", "amq.default", queue, "x").exit_code == 0
    assert json.loads(ask("queues", "show", "local-0-8", queue, "--json").stdout)["messages"] == 1
    rows = [line.split("\t") for line in ask("queues", "list", "local-0-9-1", "-o", "tsv").stdout.splitlines()]
    assert [queue, "1", "0", "yes", "no", "-"] in rows
    assert ask("queues", "purge", "local-0-9-1", queue, "--yes").exit_code == 0
    assert json.loads(ask("queues", "show", "local-0-10", queue, "--json").stdout)["messages"] == 0
    assert ask("queues", "delete", "local-0-9-1", queue, "--yes").exit_code == 0
    assert ask("queues", "show", "local-0-9-1", queue).exit_code == commands.NOT_FOUND


def test_queues_are_listed_while_the_broker_does_not_tell_what_they_hold(run: Run, canned: Canned) -> None:
    known = [{"name": name, "settings": {"durable": True, "arguments": {"x-max-length": 9}}} for name in "ab"]

    def body() -> bytes:
        whole = canned.asked[-1][1].endswith("/queues?limit=1000")
        canned.status = 200 if whole else status
        return json.dumps({"queues": known} if whole else {"code": "not_found", "detail": "away"}).encode()

    canned.body_of = body
    rows, status = {}, 0
    for status in (404, 503):
        canned.asked.clear()
        result = run("queues", "list", "shop", "--url", canned.url, "-o", "tsv")
        assert result.exit_code == 0
        rows[status] = [line.split("\t") for line in result.stdout.splitlines()[1:]]
        assert len(canned.asked) == {404: 3, 503: 2}[status]
    assert rows[404] == rows[503] == [[name, "-", "-", "yes", "-", '{"x-max-length": 9}'] for name in "ab"]


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["brokers", "nowhere"], commands.NOT_FOUND, "broker_not_found"),
        (["publish", "local-0-9-1", "no-such-exchange", "k"], commands.NOT_FOUND, "not_found"),
        (["publish", "local-0-10", "no-such-exchange", "k"], commands.NOT_FOUND, "not_found"),
        (["publish", "local-0-8", "amq.default", "no-such-queue"], commands.REFUSED, "unroutable"),
        (
            ["publish", "local-0-9-1", "amq.direct", "k", "--property", "expiration=soon"],
            commands.USAGE,
            "invalid_value",
        ),
        (["pull", "nowhere"], commands.NOT_FOUND, "subscription_not_found"),
        (["pull", "local-0-9-1", "no-such-queue"], commands.NOT_FOUND, "not_found"),
        (["why", "00000000-0000-7000-8000-000000000000"], commands.NOT_FOUND, "message_not_found"),
    ],
)
def test_what_is_wrong_is_told(ask: Gateway, arguments: list[str], status: int, code: str) -> None:
    result = ask(*arguments)
    assert f"[{code}]" in result.stderr
    assert result.exit_code == status


def test_why_over_a_bridge_and_versions(
    ask: Gateway, queue: str, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """One timeline: published in 0-8, bridged, and taken in 0-10."""
    target, bridge = unique_name("target"), unique_name("bridge")
    assert ask("queues", "declare", "local-0-10", target).exit_code == 0
    settings = tmp_path / "bridge.json"
    settings.write_text(
        json.dumps(
            {
                "source": {"broker": "local-0-8", "queue": queue},
                "target": {"broker": "local-0-10", "exchange": "", "routing_key": target},
            }
        )
    )
    assert ask("bridges", "put", bridge, str(settings)).exit_code == 0
    id = ask("publish", "local-0-8", "amq.default", queue, "over").stdout.strip()
    try:
        pulled = ask("pull", "local-0-10", target, "--wait", "10")
        assert pulled.stdout.startswith(id), pulled.output
    finally:
        assert ask("bridges", "delete", bridge, "--yes").exit_code == 0
    told = ask("why", id).stdout
    for part in (
        "The gateway took it, to publish it to exchange 'amq.default' of local-0-8",
        "The broker local-0-8 (0-8) confirmed it",
        f"The bridge published it at exchange 'amq.default' of local-0-10, routing key '{target}', where it was",
        f"confirmed. [bridge {bridge}]",
        "It was handed to a consumer.",
        "The consumer was done with it",
        "It is done: the consumer of pull-",
    ):
        assert part in told, told
    (found,) = json.loads(ask("messages", "--bridge", bridge, "--json").stdout)["messages"]
    assert found["id"] == id
