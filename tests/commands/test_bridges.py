"""``gateway bridges``: put, shown, steered, compared, deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from gateway import commands
from gateway.commands.bridges import lag_text, moment, read_settings, source_text, target_text
from tests.commands.conftest import Canned, Run

Gateway = Callable[..., Result]
TOML = """\
source = {{broker = "local-0-8", queue = "{0}-in"}}
target = {{broker = "local-0-10", routing_key = "{0}-out"}}
"""


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A verb on the gateway that runs."""
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


@pytest.fixture
def orders(ask: Gateway, unique_name: Callable[[str], str]) -> Iterator[str]:
    """A bridge between two queues, with its name in theirs."""
    name = unique_name("orders")
    for queue in ("in", "out"):
        assert ask("queues", "declare", "local-0-9-1", f"{name}-{queue}").exit_code == 0
    put = ask("bridges", "put", name, "-", input=TOML.format(name))
    assert put.exit_code == 0, put.stderr
    yield name
    ask("bridges", "delete", name, "--yes")


def forward(ask: Gateway, name: str, count: int) -> None:
    for number in range(count):
        published = ask("publish", "local-0-9-1", "amq.default", f"{name}-in", f"m{number}")
        assert published.exit_code == 0, published.output
    waited = ask("bridge", name, "--until-empty", "--timeout", "20", "--interval", "0.1")
    assert waited.exit_code == 0, waited.output


def test_put_get_list_and_delete(ask: Gateway, orders: str) -> None:
    again = ask("bridges", "put", orders, "-", input=TOML.format(orders))
    assert again.exit_code == 0, again.stderr
    assert again.stderr == f"{orders}: from local-0-8 {orders}-in to local-0-10 amq.default {orders}-out\n"
    shown = ask("bridges", "get", orders)
    fields = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines() if not line.startswith(("{", " ", "}")))
    assert (fields["name"], fields["counts"]) == (orders, "since this gateway started")
    settings = json.loads(shown.stdout[shown.stdout.index("{") :])
    assert settings == json.loads(ask("bridges", "get", orders, "--json").stdout)["settings"]
    assert settings["source"]["queue"] == f"{orders}-in"
    listed = ask("bridges", "list").stdout.splitlines()
    assert listed[0].split()[:4] == ["NAME", "STATE", "FROM", "TO"]
    (line,) = [line for line in listed if line.startswith(orders)]
    assert f"local-0-8 {orders}-in" in line
    assert f"local-0-10 amq.default {orders}-out" in line
    assert orders in [each["name"] for each in json.loads(ask("bridges", "list", "--json").stdout)["bridges"]]
    assert ask("bridges", "delete", orders, "--yes").stderr == "deleted\n"
    for verb in ("get", "pause", "resume", "drain", "compare"):
        assert ask("bridges", verb, orders).exit_code == commands.NOT_FOUND
    assert ask("bridges", "delete", orders, "--yes").exit_code == commands.NOT_FOUND


def test_replacing(ask: Gateway, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    settings = json.loads(ask("bridges", "get", orders, "--json").stdout)["settings"] | {"prefetch": 7}
    file.write_text(json.dumps(settings))
    refused = ask("bridges", "put", orders, str(file))
    assert (refused.exit_code, "precondition_required" in refused.stderr) == (commands.REFUSED, True)
    replaced = ask("bridges", "put", orders, str(file), "--replace", "--json")
    assert json.loads(replaced.stdout)["settings"]["prefetch"] == 7
    assert ask("bridges", "delete", orders, "--yes").exit_code == 0
    assert ask("bridges", "put", orders, str(file), "--replace").exit_code == 0  # there is none to replace


def test_pause_resume_and_drain(ask: Gateway, orders: str) -> None:
    assert ask("bridges", "pause", orders).stderr == f"{orders} is paused\n"
    assert json.loads(ask("bridges", "get", orders, "--json").stdout)["state"] == "paused"
    assert ask("bridges", "resume", orders).exit_code == 0
    forward(ask, orders, 2)
    assert json.loads(ask("bridges", "drain", orders, "--json").stdout)["state"] == "draining"
    ended = ask("bridge", orders, "--timeout", "20", "--interval", "0.1")
    assert ended.exit_code == 0
    last = ended.stdout.splitlines()[-1]
    assert last.startswith(f"{orders} stopped  ")
    assert "  done 2  " in last


def test_compare(ask: Gateway, orders: str) -> None:
    forward(ask, orders, 3)
    equal = ask("bridges", "compare", orders, "--peek")
    assert equal.exit_code == 0, equal.output
    table = [line.split() for line in equal.stdout.splitlines()]
    assert table[1] == ["messages", "3", "3", "yes"]
    assert [row[-1] for row in table if row and row[0] in ("messages", "octets", "digest")] == ["yes"] * 6
    assert ask("pull", "local-0-9-1", f"{orders}-out", "--max", "1", "--wait", "5").exit_code == 0
    different = ask("bridges", "compare", orders, "--peek", "--since", "1h", "--until", "0s")
    assert different.exit_code == commands.DIFFERENT
    assert different.stderr == f"gateway: the sides of the bridge '{orders}' differ\n"
    assert (
        f"1 missing: they are not in the queue {orders}-out. A consumer there may have acknowledged them already."
        in different.stdout.splitlines()
    )
    limited = ask("bridges", "compare", orders, "--peek", "--limit", "1")
    assert limited.exit_code == commands.DIFFERENT
    assert f"{orders}-out holds more than was looked at (--limit)" in limited.stdout
    told = ask("bridges", "compare", orders, "--json")
    assert (told.exit_code, json.loads(told.stdout)["equal"]) == (0, True)
    assert ask("bridges", "compare", orders, "--since", "yesterday").exit_code == commands.USAGE


SIDE = {"what": "taken", "broker": "old", "how": "ledger", "messages": 1, "octets": 1, "digest": "a" * 64}


def test_what_a_comparison_tells_besides(run: Run, canned: Canned) -> None:
    sides = {
        "source": SIDE | {"complete": True},
        "target": SIDE | {"complete": True},
        "rows": [{"name": "digest", "source": "a" * 64, "target": "b" * 64, "equal": False}],
        "missing": 0,
        "extra": 5,
        "copies": 3,
        "changed": 2,
        "differences": [{"id": "", "octets": 1, "source": None, "target": "c" * 64}],
        "equal": False,
    }
    counts = {"reduced": 1, "dead_lettered": 0, "filtered": 2, "looped": 0, "duplicates_dropped": 3}
    canned.answer(200, {"ledger": sides, "queues": None, "equal": False, **counts})
    result = run("bridges", "compare", "a/b", "--url", canned.url, "--source-queue", "s", "--target-queue", "t")
    assert result.exit_code == commands.DIFFERENT
    assert result.stdout.splitlines() == [
        "3 copies: delivered twice, after a restart or a lost connection.",
        "2 extra: they came from elsewhere, or before the window of time.",
        "2 changed: they are on both sides, and differ.",
        "        taken (old, ledger)  taken (old, ledger)  EQUAL",
        f"digest  {'a' * 16}     {'b' * 16}     no",
        "Showing 1 of 7 messages that differ:",
        "MESSAGE  OCTETS  AT THE SOURCE  AT THE TARGET",
        f"(no id)  1       -              {'c' * 16}",
        "reduced: 1",
        "filtered: 2",
        "duplicates dropped: 3",
    ]
    method, path, _, body = canned.asked[0]
    assert (method, path) == ("POST", "/v1/bridges/a%2Fb:compare")
    assert body == {"peek": False, "limit": 10_000, "source_queue": "s", "target_queue": "t"}


def test_the_list_is_read_page_by_page(run: Run, canned: Canned) -> None:
    bridge: dict[str, Any] = {
        "name": "n", "state": "running", "forwarded": 1, "rate": 1.0, "lag": None, "source_messages": None,
        "losses": {}, "reason": "", "settings": {
            "source": {"broker": "b", "queue": "q", "exchange": "", "binding_key": ""},
            "target": {"broker": "c", "exchange": "", "routing_key": None},
        },
    }  # fmt: skip
    answers = iter([[bridge] * 100, [bridge]])
    canned.body_of = lambda: json.dumps({"bridges": next(answers)}).encode()
    found = run("bridges", "list", "--url", canned.url, "--json")
    assert len(json.loads(found.stdout)["bridges"]) == 101
    assert [path for _, path, _, _ in canned.asked] == ["/v1/bridges?limit=100", "/v1/bridges?limit=100&cursor=n"]


def test_settings_of_a_file() -> None:
    toml = b"[brokers.x]\nurl = 'u'\n[bridges.b]\nprefetch = 3\n"
    assert read_settings(toml, "b") == {"prefetch": 3}
    assert read_settings(b"prefetch = 4", "b") == {"prefetch": 4}
    assert read_settings(b' {"prefetch": 5}', "b") == {"prefetch": 5}
    for octets, name in ((toml, "c"), (b"{", "b"), (b"= 3", "b"), (b"\xff", "b")):
        with pytest.raises(click.BadParameter):
            read_settings(octets, name)


def test_how_long_ago() -> None:
    for text, seconds in (("90s", 90), ("2h", 7_200), ("1.5d", 129_600), ("10m", 600)):
        found = datetime.fromisoformat(moment(text) or "")
        assert abs(found - (datetime.now(UTC) - timedelta(seconds=seconds))) < timedelta(seconds=10)
    assert (moment(None), moment("2026-01-01T00:00:00Z"), moment("2 h")) == (None, "2026-01-01T00:00:00Z", "2 h")


def test_texts() -> None:
    assert source_text({"broker": "b", "exchange": "x", "binding_key": "k", "queue": ""}) == "b exchange x k"
    assert source_text({"broker": "b", "exchange": "x", "binding_key": "", "queue": ""}) == "b exchange x"
    assert target_text({"broker": "b", "exchange": "x", "routing_key": None}) == "b x"
    assert [lag_text(lag) for lag in (None, 0.0123, 12.34)] == ["-", "12.3 ms", "12.3 s"]


BRIDGE: dict[str, Any] = {
    "name": "move", "state": "error", "reason": "no queue 'orders'", "last_error": "",
    "settings": {
        "source": {"broker": "a", "queue": "orders", "exchange": "", "binding_key": ""},
        "target": {"broker": "b", "exchange": "", "routing_key": "orders"},
    },
}  # fmt: skip


def test_a_bridge_that_cannot_start_is_told(run: Run, canned: Canned) -> None:
    canned.answer(200, BRIDGE)
    put = run("bridges", "put", "move", "-", "--url", canned.url, input=TOML.format("x"))
    assert (put.exit_code, put.stderr.splitlines()) == (
        commands.FAILED,
        ["move: from a orders to b amq.default orders", "gateway: state: error: no queue 'orders'"],
    )
    as_json = run("bridges", "put", "move", "-", "--json", "--url", canned.url, input=TOML.format("x"))
    assert (as_json.exit_code, json.loads(as_json.stdout)["state"]) == (commands.FAILED, "error")


def test_a_bridge_that_takes_its_time_to_start_is_put(run: Run, canned: Canned) -> None:
    canned.answer(200, {**BRIDGE, "state": "starting"})
    put = run("bridges", "put", "move", "-", "--url", canned.url, input=TOML.format("x"))
    assert put.exit_code == 0
    assert canned.asked[-1][:2] == ("GET", "/v1/bridges/move")
