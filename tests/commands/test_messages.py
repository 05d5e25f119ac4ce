"""``gateway messages`` and ``gateway why``: what is asked, and how it is shown."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway import commands
from gateway.commands import client, messages
from tests.commands.conftest import Canned, Run

ROW = {
    "id": "01980000-0000-7000-8000-000000000000", "at": "2026-01-01T00:00:00Z", "state": "dead", "broker": "rabbit",
    "exchange": "", "routing_key": "k\x1b", "size": 3,
}  # fmt: skip


def test_every_filter_is_asked_for(run: Run, canned: Canned) -> None:
    canned.answer(200, {"messages": [ROW]})
    options = [part for name in messages.FILTERS for part in (f"--{name}", "a=b" if name == "header" else "2h")]
    result = run("messages", "--url", canned.url, *options)
    assert result.exit_code == 0, result.output
    query = dict(httpx.URL(f"http://x{canned.asked[0][1]}").params)
    assert query.pop("limit") == "20"
    assert query.pop("since").startswith("20")
    assert query.pop("until").startswith("20")
    assert query.pop("header") == "a=b"
    assert set(query.values()) == {"2h"}
    assert {name.replace("_", "-") for name in query} == set(messages.FILTERS) - {"since", "until", "header"}
    assert result.stdout.splitlines()[1].split() == [
        ROW["id"], ROW["at"], "dead", "rabbit", "amq.default", "k\\x1b", "3",
    ]  # fmt: skip


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """A list of 100 pages, most of them empty; what was asked."""
    asked: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        number = len(asked)
        link = {"link": f'</v1/messages?limit=7&state=dead&cursor={number}>; rel="next"'} if number < 100 else {}
        return httpx.Response(200, json={"messages": [ROW] * (number % 30 == 0)}, headers=link)

    made = client.ApiClient.__init__

    def with_transport(self: Any, url: str, api_key: str | None) -> None:
        made(self, url, api_key, httpx.MockTransport(answer))

    monkeypatch.setattr(client.ApiClient, "__init__", with_transport)
    return asked


def test_a_rare_message_is_looked_for_over_pages(run: Run, pages: list[dict[str, str]]) -> None:
    result = run("messages", "--state", "dead", "--limit", "2", "--json")
    assert len(json.loads(result.stdout)["messages"]) == 2
    assert len(pages) == 60
    assert pages[0] == {"state": "dead", "limit": "2"}
    assert pages[1] == {"limit": "7", "state": "dead", "cursor": "1"}
    assert result.stderr.count("looking further back") == 2


def test_the_search_ends_with_the_last_page(run: Run, pages: list[dict[str, str]]) -> None:
    assert len(run("messages", "--limit", "50").stdout.splitlines()) == 4
    assert len(pages) == 100


ANSWER = ROW | {
    "now": "It is dead for the subscription billing\x1b.",
    "events": [{"at": "2026-01-01T00:00:00Z", "kind": "dead", "broker": "b", "version": "v", "detail": {}}],
    "story": ["It was given up; the ledger keeps it."],
    "related": ["01980000-0000-7000-8000-000000000001"],
    "advice": [{"what": "Have it tried again.", "command": "gateway dlq retry x"}, {"what": "Wait.", "command": ""}],
}


def test_why_in_words(run: Run, canned: Canned) -> None:
    canned.answer(200, ANSWER)
    result = run("why", str(ROW["id"]), "--url", canned.url)
    assert result.stdout.splitlines() == [
        f"{ROW['id']} is dead.",
        "It is dead for the subscription billing\\x1b.",
        "",
        "2026-01-01T00:00:00Z  It was given up; the ledger keeps it.",
        "",
        "01980000-0000-7000-8000-000000000001 is dead. It is dead for the subscription billing\\x1b.",
        "",
        "What can be done",
        "  Have it tried again.",
        "    gateway dlq retry x",
        "  Wait.",
    ]
    assert json.loads(run("why", "x", "--json", "--url", canned.url).stdout) == ANSWER


def test_a_related_message_that_is_not_there(run: Run, canned: Canned) -> None:
    canned.answer(200, ANSWER)
    answers = iter([json.dumps(ANSWER).encode(), b'{"code": "message_not_found", "detail": "no"}'])

    def following() -> bytes:
        body = next(answers)
        canned.status = 200 if body.startswith(b'{"id"') else 404
        return body

    canned.body_of = following
    result = run("why", "x", "--url", canned.url)
    assert result.exit_code == 0, result.output
    assert "00000000001: the ledger knows nothing of it" in result.stdout


def test_why_of_nothing(run: Run, canned: Canned) -> None:
    canned.answer(404, {"code": "message_not_found", "detail": "the ledger knows no message x"})
    result = run("why", "x", "--url", canned.url)
    assert result.exit_code == commands.NOT_FOUND
    assert "knows no message" in result.stderr
