"""``gateway search``."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gateway.api.resources.search import SEARCHES
from gateway.commands.search import KINDS
from tests.commands.conftest import Canned, Run


def row(kind: str, name: str, **more: Any) -> dict[str, Any]:
    about = {"broker": "", "match": "name", "state": "", "exchange": None, "routing_key": None, "at": None, "path": "/"}
    return {"kind": kind, "name": name, **about, **more}


def searched(kind: str, count: int, following: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "count": count, "searched": "all", "next": following, "reached": None}


FOUND: dict[str, Any] = {
    "found": [row("queue", "orders\x1b[31m", broker="shop"), row("message", "01a2", match="routing_key", state="dead")],
    "kinds": [
        searched("queue", 1),
        searched("message", 1, "/v1/search?q=orders&kind=message&cursor=ab"),
        searched("tap", 0),
    ],
    "gaps": [
        {"kind": "queue", "broker": "shop", "code": "incomplete", "reason": "AMQP cannot list queues."},
        {"kind": "tap", "broker": "", "code": "forbidden", "reason": "Your credential lacks the scope admin."},
    ],
}


def test_the_kinds_are_those_of_the_route() -> None:
    assert tuple(SEARCHES) == KINDS


def test_what_is_found_is_a_table_with_what_was_not_searched(run: Run, canned: Canned) -> None:
    canned.answer(200, FOUND)
    result = run("search", "orders & more", "--kind", "queue", "--kind", "message", "--limit", "1", "--url", canned.url)
    assert result.exit_code == 0, result.output
    assert "queue    orders" in result.output
    assert "\x1b" not in result.output
    assert "message  01a2" in result.output
    assert "queue shop: AMQP cannot list queues." in result.output
    assert "Not searched, since the credential may not list them: tap" in result.output
    assert "There is more: message." in result.output
    query = parse_qs(urlsplit(canned.asked[-1][1]).query)
    assert query == {"q": ["orders & more"], "kind": ["queue", "message"], "limit": ["1"]}


def test_as_json(run: Run, canned: Canned) -> None:
    canned.answer(200, FOUND)
    assert json.loads(run("search", "orders", "--url", canned.url, "--json").output) == FOUND


def test_it_goes_on_where_the_search_stopped(run: Run, canned: Canned) -> None:
    gap = {"kind": "message", "broker": "", "code": "bounded", "reason": "Older ones were not looked at."}
    pages = [
        {**FOUND, "gaps": [*FOUND["gaps"], gap]},
        {"found": [], "kinds": [searched("message", 0, "http://evil.example/?cursor=cd")], "gaps": [gap]},
        {"found": [row("message", "00ff")], "kinds": [searched("message", 1)], "gaps": []},
    ]
    answers = iter([json.dumps(page).encode() for page in pages])
    canned.body_of = lambda: next(answers)
    found = json.loads(run("search", "orders", "--further", "--url", canned.url, "--json").output)
    assert [each["name"] for each in found["found"]][1:] == ["01a2", "00ff"]
    assert [gap["code"] for gap in found["gaps"]] == ["incomplete", "forbidden"]
    assert [(each["kind"], each["count"], each["next"]) for each in found["kinds"]][1] == ("message", 2, None)
    cursors = [parse_qs(urlsplit(path).query).get("cursor") for _, path, _, _ in canned.asked]
    assert cursors == [None, ["ab"], ["cd"]]


def test_of_a_gateway_that_runs(run: Run, gateway: str) -> None:
    assert run("queues", "declare", "local-0-9-1", "needle-queue", "--url", gateway).exit_code == 0
    result = run("search", "EDLE-q", "--url", gateway)
    assert result.exit_code == 0, result.output
    assert "needle-queue" in result.output
    nothing = run("search", "no such thing", "--url", gateway, "--json")
    assert (nothing.exit_code, json.loads(nothing.output)["found"]) == (0, [])
    assert run("search", "", "--url", gateway).exit_code == 2
