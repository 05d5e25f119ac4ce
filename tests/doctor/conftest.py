"""``look(text, "brokers")``: what the doctor finds of a configuration."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.commands import doctor
from gateway.commands.doctor.findings import Finding, Report, Severity

Look = Callable[..., "Found"]


class Found:
    """Findings, by their check."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.exit = report.exit()

    def all(self, check: str) -> list[Finding]:
        """Those of a check."""
        return [finding for finding in self.report.findings if finding.check == check]

    def one(self, check: str) -> Finding:
        """The one of a check that is not well; where all is well, the one that says so."""
        found = self.all(check)
        bad = [finding for finding in found if finding.severity is not Severity.OK]
        assert len(bad or found) == 1, self.text
        return (bad or found)[0]

    @property
    def failed(self) -> list[str]:
        """Checks that failed."""
        return [finding.check for finding in self.report.findings if finding.severity is Severity.FAIL]

    @property
    def warned(self) -> list[str]:
        """Checks that warn."""
        return [finding.check for finding in self.report.findings if finding.severity is Severity.WARN]

    @property
    def text(self) -> str:
        """All of it, as people see it."""
        return "\n".join(line for finding in self.report.findings for line in doctor.lines(finding))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting comes from outside."""
    for name in [name for name in os.environ if name.startswith("GATEWAY_") and "TEST" not in name]:
        monkeypatch.delenv(name)


@pytest.fixture
def look(tmp_path: Path) -> Look:
    def look(text: str, *areas: str, within: float = 10.0, file: str = "gateway.toml", **overrides: Any) -> Found:
        path = tmp_path / file
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        given = {"data_dir": str(tmp_path / "data"), **overrides}
        return Found(asyncio.run(doctor.examine(str(path), given, frozenset(areas or {"config"}), within)))

    return look
