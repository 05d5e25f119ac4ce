"""``gateway reload``: what it says of each end, and its exit status."""

from __future__ import annotations

import json

from gateway import commands
from tests.commands.conftest import Canned, Run

APPLIED = {
    "status": "applied",
    "changes": [{"setting": "brokers.orders", "change": "changed", "when": "new links are made first"}],
    "brokers": [
        {"name": "orders", "state": "up", "reason": "", "code": ""},
        {"name": "far", "state": "down", "reason": "far.example:5672: connection refused", "code": ""},
    ],
    "complete": True,
}


def test_what_was_changed(run: Run, canned: Canned) -> None:
    canned.answer(200, APPLIED)
    result = run("reload", "--url", canned.url)
    assert result.exit_code == commands.DONE
    assert result.stdout.splitlines()[0].split() == ["SETTING", "CHANGE", "COUNTS"]
    assert result.stdout.splitlines()[1].split()[:2] == ["brokers.orders", "changed"]
    assert result.stderr.splitlines() == [
        "The new configuration counts.",
        "broker far: down far.example:5672: connection refused",
    ]
    assert [(method, path) for method, path, _, _ in canned.asked] == [("POST", "/v1/admin:reload")]


def test_a_dry_run(run: Run, canned: Canned) -> None:
    canned.answer(200, {**APPLIED, "status": "checked"})
    result = run("reload", "--dry-run", "--url", canned.url)
    assert result.exit_code == commands.DONE
    assert result.stderr.startswith("The new configuration could count; nothing was changed.\n")
    assert canned.asked[0][1] == "/v1/admin:reload?dry_run=1"


def test_what_is_not_done_yet(run: Run, canned: Canned) -> None:
    canned.answer(200, {**APPLIED, "complete": False})
    result = run("reload", "--url", canned.url, "--json")
    assert result.exit_code == commands.PARTLY_DONE
    assert json.loads(result.stdout)["complete"] is False
    result = run("reload", "--url", canned.url)
    assert result.exit_code == commands.PARTLY_DONE
    assert "still start over" in result.stderr


def test_a_refusal(run: Run, gateway: str) -> None:
    """This one was started without a file."""
    result = run("reload", "--url", gateway)
    assert result.exit_code == commands.REFUSED
    assert "without a configuration" in result.stderr
