"""How things that take their time look in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.terminal import Estimate, Progress, bar, percent, printable

__all__ = ["Estimate", "Progress", "bar", "percent", "replay_line"]


def replay_line(job: Mapping[str, Any], remaining: str = "") -> str:
    """A replay in one line, the most important first: a terminal may cut it."""
    refused = sum(job["refused"].values())
    of = f" of {job['total']:,}" if job["total"] is not None else ""
    parts = [bar(job["found"], job["total"]), remaining, job["state"], f"{job['found']:,}{of}"]
    parts += [
        f"{name} {count:,}"
        for name, count in (
            ("sent", job["sent"]), ("skipped", job["skipped"]), ("refused", refused), ("resent", job["resent"])
        )
        if count or name == "sent"
    ]  # fmt: skip
    parts.append(printable(job["id"]))
    if job["reason"]:
        parts.append(printable(job["reason"]))
    return "  ".join(part for part in parts if part)
