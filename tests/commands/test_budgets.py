"""``gateway budgets``: what is held, and by whom."""

from __future__ import annotations

import json

from gateway import commands
from gateway.budgets import RESOURCES
from tests.commands.conftest import Canned, Run

STREAMS = {
    "resource": "streams", "counts": "streams", "held": 1_023, "total": 4_000, "share": 1_000, "reserve": 400,
    "scope": "process", "setting": "budgets.totals", "refusals": {"share": 2, "total": 1, "dropped": 0},
    "largest": [
        {"client": name, "kind": "address" if name == "bob" else "client", "held": 20, "share": 1_000}
        for name in ("alice", "bob", "carol", "dave")
    ],
}  # fmt: skip


def test_a_table(run: Run, canned: Canned) -> None:
    canned.answer(200, {"budgets": [STREAMS]})
    result = run("budgets", "--url", canned.url)
    assert result.exit_code == commands.DONE
    head, row = result.stdout.splitlines()
    assert head.split() == ["RESOURCE", "HELD", "TOTAL", "SHARE", "RESERVE", "SCOPE", "REFUSED", "LARGEST"]
    assert row.split() == [
        "streams", "1,023", "4,000", "1,000", "400", "process", "3", "alice", "20,", "address", "bob", "20,", "carol",
        "20",
    ]  # fmt: skip


def test_a_running_gateway(run: Run, gateway: str) -> None:
    result = run("budgets", "--url", gateway, "--json")
    assert result.exit_code == commands.DONE
    assert [each["resource"] for each in json.loads(result.stdout)["budgets"]] == list(RESOURCES)
