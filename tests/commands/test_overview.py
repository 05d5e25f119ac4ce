"""``gateway overview``."""

from __future__ import annotations

import json
from typing import Any

from tests.commands.conftest import Canned, Run

FOUND: dict[str, Any] = {
    "at": "2026-11-27T00:00:00Z",
    "kinds": [{"kind": "broker", "count": 2, "well": 1, "more": False, "path": "/v1/brokers"}],
    "troubles": [
        {
            "severity": "bad", "kind": "broker", "name": "shop", "state": "down", "code": "connect_failed",
            "reason": "refused \x1b[31m", "since": None, "path": "/v1/brokers/shop",
        },
    ],
    "more": True,
    "backlog": {"waiting": 1_200, "out": 3, "dead": 2, "octets": 1, "oldest_at": None},
    "events": {},
    "bridged": 0.0,
}  # fmt: skip


def test_what_is_wrong_is_a_table(run: Run, canned: Canned) -> None:
    canned.answer(200, FOUND)
    result = run("overview", "--url", canned.url)
    assert result.exit_code == 0, result.output
    assert "broker  2      1" in result.output
    assert "bad       broker  shop  down   connect_failed  refused" in result.output
    assert "\x1b" not in result.output
    assert "1,200 messages wait, 3 are out, 2 are dead" in result.output
    assert "There is more than is shown here." in result.output


def test_all_is_well(run: Run, canned: Canned) -> None:
    canned.answer(200, {**FOUND, "troubles": [], "backlog": None, "more": False})
    assert "Everything that you may see is well." in run("overview", "--url", canned.url).output


def test_as_json(run: Run, canned: Canned) -> None:
    canned.answer(200, FOUND)
    assert json.loads(run("overview", "--url", canned.url, "--json").output) == FOUND
