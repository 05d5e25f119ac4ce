"""The API does what its document says, and nothing that it does not: in little. ``make schemathesis``: for longer."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract.run import furnish, gateway, receiving, schemathesis, unserved

PHASES = ("examples", "coverage", "stateful")


def test_every_operation_is_as_documented(tmp_path: Path) -> None:
    with receiving() as url, gateway(tmp_path, url) as process:
        furnish(process.port, url)
        report = schemathesis(process.port, tmp_path, phases=PHASES, examples=1, seed=1)
        assert report.status == 0, report.said[-20_000:]
        selected = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", report.said)
        assert selected is not None
        assert selected[1] == selected[2] == selected[3]
        assert unserved(process) == set(), "every operation was asked"
        assert report.sightings == []
        assert "http.failed" not in process.log()


def test_an_operation_that_is_not_as_documented_is_found(tmp_path: Path) -> None:
    """The document of a gateway that has more to say than it does."""
    with receiving() as url, gateway(tmp_path, url) as process:
        more = ("--include-path", "/docs/{asset}", "--max-response-time", "0.000001")
        report = schemathesis(process.port, tmp_path, phases=("examples",), examples=1, seed=1, more=more)
    assert report.status == 1
    assert "Response time limit exceeded" in report.said
