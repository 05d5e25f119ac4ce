"""``gateway exchanges``, ``bindings``, ``scheduled``, ``statistics`` and ``completion``; verbs that are misspelt."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from click.testing import Result

from gateway import commands
from tests.commands.conftest import Canned, Run

BROKER = "local-0-9-1"
Ask = Callable[..., Result]


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A verb on the gateway that runs."""
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


def line_of(result: Result, start: str) -> list[str]:
    """The cells of the line of a table that begins so."""
    assert result.exit_code == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith(f"{start} "))
    return line.split()


def test_an_exchange_from_declaring_to_deleting(ask: Ask, unique_name: Callable[[str], str]) -> None:
    name = unique_name("events")
    declared = ask(
        "exchanges", "declare", BROKER, name, "--type", "topic", "--arguments", '{"alternate-exchange": "amq.fanout"}'
    )
    assert line_of(declared, name) == [name, "topic", "yes", "no", "no"]
    assert line_of(ask("exchanges", "list", BROKER), name)[1:6] == [
        "topic",
        "yes",
        "no",
        "no",
        '{"alternate-exchange":',
    ]
    assert line_of(ask("exchanges", "show", BROKER, "amq.default"), "amq.default")[1] == "direct"
    assert ask("exchanges", "declare", BROKER, name).exit_code == commands.REFUSED, "it is a topic exchange"
    kept = ask("exchanges", "delete", BROKER, name, input="n\n")
    assert (kept.exit_code, "Delete it?" in kept.stdout) == (1, True)
    assert ask("exchanges", "delete", BROKER, name, "--yes").stderr == "deleted\n"
    assert ask("exchanges", "show", BROKER, name).exit_code == commands.NOT_FOUND


def test_a_binding_from_adding_to_removing(ask: Ask, unique_name: Callable[[str], str]) -> None:
    exchange, queue = unique_name("events"), unique_name("orders")
    ask("exchanges", "declare", BROKER, exchange, "--type", "topic")
    ask("queues", "declare", BROKER, queue)
    place = (BROKER, exchange, "order.#", "--queue", queue)
    assert ask("bindings", "add", *place).stderr == "bound\n"
    assert line_of(ask("bindings", "list", BROKER), exchange) == [exchange, "order.#", "queue", queue, "-"]
    assert ask("publish", BROKER, exchange, "order.new", "x").exit_code == 0
    assert ask("bindings", "remove", *place).stderr == "removed\n"
    assert exchange not in ask("bindings", "list", BROKER).stdout
    nowhere = ask("bindings", "add", BROKER, exchange)
    assert (nowhere.exit_code, "give one of --queue and --exchange-to" in nowhere.stderr) == (commands.USAGE, True)
    ask("exchanges", "delete", BROKER, exchange, "--yes")
    ask("queues", "delete", BROKER, queue, "--yes")


def test_a_look_into_a_queue(ask: Ask, canned: Canned, unique_name: Callable[[str], str]) -> None:
    queue = unique_name("looked at")
    ask("queues", "declare", BROKER, queue)
    for body in ("first\x1b[31m", "x" * 3000):
        assert ask("publish", BROKER, "amq.default", queue, body).exit_code == 0
    shown = ask("queues", "look", BROKER, queue)
    assert [line.split()[-2:] for line in shown.stdout.splitlines()[1:]] == [
        ["10", "first\\x1b[31m"], ["3000", "x" * 100 + "…"],
    ]  # fmt: skip
    assert ask("queues", "look", BROKER, queue, "--limit", "1").stderr == "the first 1 messages; there are more\n"
    refused = ask("queues", "look", BROKER, queue, "--take", "--yes")
    assert (refused.exit_code, "none need be taken" in refused.stderr) == (commands.REFUSED, True)
    kept = ask("queues", "look", BROKER, queue, "--take", input="n\n")
    assert (kept.exit_code, "and give them back?" in kept.stdout) == (1, True)
    assert json.loads(ask("queues", "look", BROKER, queue, "--json").stdout)["how"] == "browsed"
    ask("queues", "delete", BROKER, queue, "--yes")
    places = [{"what": "published", "name": "", "path": "/v1/messages?broker=shop"}]
    answer = {"how": "not_shown", "reason": "It cannot.", "can_take": False, "take_reason": "Nobody knows."}
    canned.answer(200, {**answer, "ledger": places})
    told = ask("queues", "look", "shop", "orders", "--url", canned.url)
    assert told.stderr.splitlines() == [
        "It cannot.", "Nobody knows.", "the ledger has what was published: /v1/messages?broker=shop",
    ]  # fmt: skip


def test_who_holds_messages_of_a_queue(
    ask: Ask, canned: Canned, gateway: str, unique_name: Callable[[str], str]
) -> None:
    queue = unique_name("held")
    ask("queues", "declare", BROKER, queue)
    ask("publish", BROKER, "amq.default", queue, "x")
    httpx.put(f"{gateway}/v1/subscriptions/{queue}", json={"broker": BROKER, "queue": queue})
    httpx.post(f"{gateway}/v1/subscriptions/{queue}:pull", json={"wait_seconds": 5}, timeout=20)
    assert line_of(ask("queues", "holders", BROKER, queue), "lease")[1:5] == [queue, "anonymous", "-", "1"]
    httpx.delete(f"{gateway}/v1/subscriptions/{queue}")
    ask("queues", "delete", BROKER, queue, "--yes")
    canned.answer(200, {"holders": [], "unacknowledged": 2, "others": 2, "complete": False, "reason": "Nobody tells."})
    assert ask("queues", "holders", "shop", "orders", "--url", canned.url).stderr.splitlines() == [
        "2 messages are out that no part of the gateway holds", "not all processes of the gateway have answered",
        "Nobody tells.",
    ]  # fmt: skip


def test_a_scheduled_publish_is_shown_and_cancelled(ask: Ask, gateway: str) -> None:
    due = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    body = {"routing_key": "nowhere", "payload": "x", "not_before": due}
    made = httpx.post(f"{gateway}/v1/brokers/{BROKER}/exchanges/amq.default:publish", json=body)
    id = made.json()["id"]
    for verb in (("list",), ("list", "--broker", BROKER, "--state", "scheduled"), ("show", id)):
        cells = line_of(ask("scheduled", *verb), id)
        assert (cells[1], cells[3:]) == ("scheduled", [BROKER, "amq.default", "nowhere", "-"])
    assert json.loads(ask("scheduled", "show", id, "--json").stdout)["id"] == id
    assert ask("scheduled", "list", "--state", "refused").stdout.splitlines()[1:] == []
    later = (datetime.now(UTC) + timedelta(hours=5)).isoformat()
    assert line_of(ask("scheduled", "move", id, "--not-before", later), id)[2][:16] == later[:16]
    assert ask("scheduled", "move", id).exit_code == commands.USAGE
    assert ask("scheduled", "cancel", id, "--yes").stderr == "cancelled\n"
    assert ask("scheduled", "move", id, "--delay", "1").exit_code == commands.REFUSED
    assert id not in ask("scheduled", "list").stdout
    assert ask("scheduled", "retry", id).exit_code == commands.REFUSED
    assert ask("scheduled", "cancel", "01a20000-0000-7000-8000-000000000000").exit_code == commands.NOT_FOUND


def test_statistics(ask: Ask) -> None:
    heads = ask("statistics", "--since", "1d", "--by", "kind,subscription").stdout.splitlines()[0].split()
    assert heads == ["HOUR", "KIND", "SUBSCRIPTION", "EVENTS", "OCTETS"]
    assert json.loads(ask("statistics", "--until", "2020-01-01T00:00:00Z", "--json").stdout) == {"hours": []}
    wrong = ask("statistics", "--kind", "comfirmed")
    assert (wrong.exit_code, "kind: 'comfirmed' is not one of " in wrong.stderr) == (commands.USAGE, True)


def test_what_is_not_there_is_told_before_a_question(ask: Ask) -> None:
    for verb in ("subscriptions", "bridges", "taps", "endpoints", "queues", "exchanges"):
        where = (BROKER,) if verb in ("queues", "exchanges") else ()
        result = ask(verb, "delete", *where, "nosuch")
        assert (result.exit_code, "?" in result.stdout) == (commands.NOT_FOUND, False), verb
    assert ask("keys", "revoke", "nosuch").exit_code == commands.NOT_FOUND
    assert ask("queues", "purge", BROKER, "nosuch").exit_code == commands.NOT_FOUND


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_GATEWAY_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize(
    ("given", "meant"), [("exchnages", "exchanges"), ("subscription", "subscriptions"), ("sevre", "serve")]
)
def test_a_misspelt_verb_is_guessed(run: Run, given: str, meant: str) -> None:
    result = run(given)
    assert (result.exit_code, f"Did you mean '{meant}'?" in result.stderr) == (commands.USAGE, True)


def test_a_verb_that_resembles_none(run: Run) -> None:
    assert "Did you mean" not in run("zzzz").stderr
