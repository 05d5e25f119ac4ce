"""``gateway subscriptions``, and ``gateway pull --follow``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from gateway import commands
from gateway.commands import Failure, follow
from gateway.commands.client import ApiClient
from gateway.commands.follow import Acknowledger
from tests.commands.conftest import Canned, Run

Ask = Callable[..., Result]
TOML = 'broker = "local-0-10"\nqueue = "{0}"\nlease = "ledger"\n'


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A verb on the gateway that runs."""
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


@pytest.fixture
def billing(ask: Ask, unique_name: Callable[[str], str]) -> Iterator[str]:
    """A subscription to a queue of its name."""
    name = unique_name("billing")
    assert ask("queues", "declare", "local-0-10", name).exit_code == 0
    put = ask("subscriptions", "put", name, "-", input=TOML.format(name))
    assert put.exit_code == 0, put.stderr
    yield name
    ask("subscriptions", "delete", name, "--yes")


def publish(ask: Ask, name: str, *payloads: str) -> None:
    for payload in payloads:
        assert ask("publish", "local-0-10", "amq.default", name, payload).exit_code == 0


def test_put_get_list_pause_resume_and_delete(ask: Ask, billing: str) -> None:
    again = ask("subscriptions", "put", billing, "-", input=f"[subscriptions.{billing}]\n" + TOML.format(billing))
    assert again.stderr == f"{billing} is active: from local-0-10 {billing}, leases held by the ledger\n"
    shown = ask("subscriptions", "get", billing)
    fields = {line.rsplit(maxsplit=1)[0]: line.rsplit(maxsplit=1)[1] for line in shown.stdout.splitlines()}
    assert (fields["name"], fields["lease"], fields["backlog waiting"], fields["push"]) == (billing, "ledger", "0", "-")
    listed = ask("subscriptions", "list")
    (line,) = (line for line in listed.stdout.splitlines() if line.startswith(f"{billing} "))
    assert line.split() == [billing, "active", "local-0-10", billing, "ledger", "pull", "0", "-"]
    assert ask("subscriptions", "pause", billing).stderr == f"{billing} is paused\n"
    refused = ask("pull", billing)
    assert (refused.exit_code, "is paused" in refused.stderr) == (commands.REFUSED, True)
    assert json.loads(ask("subscriptions", "resume", billing, "--json").stdout)["state"] == "active"
    other = ask("subscriptions", "put", billing, "-", input=TOML.format(billing) + "max_deliveries = 3\n")
    assert other.exit_code == commands.REFUSED
    assert ask("subscriptions", "put", billing, "-", "--replace", input=TOML.format(billing)).exit_code == 0
    assert ask("subscriptions", "delete", billing, "--yes").stderr == "deleted\n"
    assert ask("subscriptions", "get", billing).exit_code == commands.NOT_FOUND
    ask("subscriptions", "put", billing, "-", input=TOML.format(billing))


def test_follow(ask: Ask, billing: str) -> None:
    publish(ask, billing, "1", "2", "3")
    got = ask("pull", billing, "--follow", "--max", "2", "--json")
    assert got.exit_code == 0, got.stderr
    assert [json.loads(line)["message"]["payload"] for line in got.stdout.splitlines()] == ["1", "2"]
    rest = ask("pull", billing, "--follow", "--max", "1")
    assert rest.exit_code == 0, rest.stderr
    assert rest.stdout.splitlines()[1:] == ["3"]
    assert ask("pull", billing).stderr == "no message came\n", "they are acknowledged"


def test_follow_without_acknowledging_is_wrong_usage(run: Run) -> None:
    assert run("pull", "billing", "--follow", "--no-ack").exit_code == commands.USAGE


def test_it_comes_back(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.runtime.clock.clock.block", lambda seconds: None)
    lines = iter(
        [
            b'\n{"ack_id": "a", "payload": 1}\n',
            b'{"end": "the gateway is shutting down"}\n',
            b'{"ack_id": "b", "payload": 2}\n',
        ]
    )
    acknowledged: list[list[str]] = []
    canned.body_of = lambda: next(lines)
    client = ApiClient(canned.url, None)
    shown: list[Any] = []
    follow.follow_stream(client, "/v1/subscriptions/s", shown.append, acknowledged.append, 2)
    assert [item["payload"] for item in shown] == [1, 2]
    assert sorted(ack_id for group in acknowledged for ack_id in group) == ["a", "b"]
    assert {path for _, path, _, _ in canned.asked} == {"/v1/subscriptions/s:stream?max_outstanding=2"}


def test_a_problem_is_told(canned: Canned) -> None:
    canned.answer(404, {"detail": "no subscription 's'", "code": "subscription_not_found"})
    with pytest.raises(Failure, match="no subscription 's'"):
        follow.follow_stream(ApiClient(canned.url, None), "/v1/subscriptions/s", print, print, None)


def test_acknowledgements_share_requests_and_failures_are_told_at_the_end() -> None:
    sent: list[list[str]] = []
    busy = threading.Event()

    def settle(ack_ids: list[str]) -> None:
        sent.append(ack_ids)
        busy.wait(5)
        if "bad" in ack_ids:
            raise Failure("1 not (LEASE_LOST)")

    done = Acknowledger(settle)
    done.add("first")
    while not sent:
        pass
    for ack_id in ("bad", "c", "d"):
        done.add(ack_id)
    busy.set()
    with pytest.raises(Failure, match="LEASE_LOST"):
        done.close()
    assert sent == [["first"], ["bad", "c", "d"]]
